"""The report in a real browser: nothing complains, nothing is fetched, bars are results.json's, the viewer works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conftest import Tab
from cotalk.report import report
from cotalk.report.read import LEVELS, read_study
from test_report import CROSS_PLAY, RESULTS, hostile_study, write_study

QUICKSTART = Path(__file__).parent.parent / "results" / "quickstart"
pytest.importorskip("cotalk.report.charts")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_study(tmp_path_factory.mktemp("study"), RESULTS | {"cross_play": CROSS_PLAY})
    report(directory)
    return directory


def opened(tab, directory: Path, fragment: str = "", **settings) -> Tab:
    """The report of a directory, from disk, with every chart drawn."""
    found = tab(**settings)
    found.page.goto((directory / "report.html").resolve().as_uri() + fragment)
    found.page.wait_for_function(
        "[...document.querySelectorAll('.chart[data-chart]')].every((each) => each.querySelector('svg'))"
    )
    return found


def is_quiet(found: Tab) -> bool:
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:"))] == []
    return True


@pytest.mark.parametrize("which", ["made up", "quickstart"])
def test_the_page_opens_from_disk_without_complaint_or_request(tab, study: Path, which: str) -> None:
    directory = QUICKSTART if which == "quickstart" else study
    found = opened(tab, directory)
    assert is_quiet(found) and found.requests == [found.page.url]
    assert (directory / "report.html").stat().st_size < 5_000_000
    fold = found.page.viewport_size["height"]
    for part in ("h1", ".chart[data-chart=solved] svg"):
        box = found.page.locator(part).first.bounding_box()
        assert box["y"] + box["height"] <= fold, f"{part} is below the fold"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["made up", "quickstart"])
def test_the_bars_and_dots_are_those_of_results_json(tab, study: Path, which: str) -> None:
    directory = QUICKSTART if which == "quickstart" else study
    found = opened(tab, directory)
    told = found.page.eval_on_selector_all(
        ".chart[data-chart=solved] svg [aria-label]",
        "all => all.map((each) => [each.getAttribute('aria-label'), each.getBoundingClientRect().toJSON()])",
    )
    results = json.loads((directory / "results.json").read_text())
    conditions = {name: c for name, c in read_study(directory).conditions.items() if name not in LEVELS}
    rows = [(words, box) for words, box in told if re.search(r", n = ", words) and "seed 1" not in words]
    shown = {words.partition(": ")[0]: words for words, _ in rows}
    for name, condition in conditions.items():
        score = results["conditions"][name]["score"]
        assert f"{100 * score['mean']:.1f} [" in shown[condition.label] and ", n = " in shown[condition.label]
        for seed, mean in condition.per_seed.items():
            assert f"{condition.label}, seed {seed}: {100 * mean:.1f}" in [words for words, _ in told]
    # The track of a row is 0 to 100 wide; the bar on it is as long as the mean says, within a pixel.
    bars = found.page.eval_on_selector_all(
        ".chart[data-chart=solved] svg .mark-rect path",
        "all => all.map((e) => [e.getAttribute('fill'), e.getBoundingClientRect().toJSON()])",
    )
    track = next(box for _, box in rows if box["width"] > 300)
    lengths = sorted(box["width"] for fill, box in bars if fill in ("var(--blue)", "var(--orange)"))
    means = sorted(results["conditions"][name]["score"]["mean"] for name in conditions)
    assert lengths == pytest.approx([track["width"] * mean for mean in means], abs=1)


def test_a_row_tells_its_n_and_interval_to_the_pointer(tab, study: Path) -> None:
    page = opened(tab, study).page
    page.hover(".chart[data-chart=solved] svg path[aria-label^='trained, channel open: ']")
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert page.inner_text("#vg-tooltip-element") == (
        "trained, channel open: 86.6 [81.6, 91.6], n = 3 seeds × 200 tasks × 2 chats × 2 seats"
    )


def test_the_viewer_shows_before_and_after_with_every_number_in_its_hand_s_colour(tab, study: Path) -> None:
    page = opened(tab, study, "#chat/heldout/held-out-0/base_open%2Fbase/trained_open%2Fopen-17").page
    first, second = page.locator(".v-pane").all()
    assert "✗ A wrong: 10" in first.inner_text() and "✗ B wrong: no answer" in first.inner_text()
    assert "✓ A right: 30" in second.inner_text() and "✓ B right: 30" in second.inner_text()
    hands = {
        number: page.locator(f".v-hands .n-{seat}").first.evaluate(
            "e => [e.textContent, getComputedStyle(e).color]"
        )
        for seat, number in (("A", "10"), ("B", "20"))
    }
    assert [words for words, _ in hands.values()] == ["10", "20"] and hands["10"][1] != hands["20"][1]
    for number, (_, color) in hands.items():  # said by one seat, used in the answers of both
        found = second.locator(".v-messages .n-hand", has_text=number)
        assert found.count() == 3 and {e.evaluate("e => getComputedStyle(e).color") for e in found.all()} == {
            color
        }
    assert second.locator(".v-messages .n-derived").all_inner_texts() == ["30"] * 4


@pytest.mark.slow
def test_an_invented_number_is_marked(tab, tmp_path: Path) -> None:
    write_study(tmp_path, tasks=2)
    path = tmp_path / "scores/base_open/base.jsonl"
    path.write_text(path.read_text().replace("What do you know?", "I think of 9999."))
    report(tmp_path)
    page = opened(tab, tmp_path).page
    invented = page.locator(".v-pane").first.locator(".n-invented")
    assert invented.count() == 1 and invented.text_content() == "9999 (invented)"
    assert "wavy" in invented.evaluate("e => getComputedStyle(e).textDecorationStyle")


def test_the_viewer_filters_by_condition_seed_outcome_and_text(tab, study: Path) -> None:
    page = opened(tab, study).page
    assert page.inner_text(".v-count") == "40 of 40 tasks"
    # base_open solves tasks 3, 11, 19, 27, 35; trained_open fails 7, 16, 25, 34: all but 9 become better
    page.select_option("select[aria-label=Outcome]", "up")
    assert page.inner_text(".v-count") == f"{40 - 9} of 40 tasks"
    page.select_option("select[aria-label=Outcome]", "0")
    assert page.inner_text(".v-count") == "4 of 40 tasks"
    assert (
        page.inner_text(".v-question .v-who") == "held-out-7" and page.locator(".v-cell:enabled").count() == 4
    )
    page.select_option("select[aria-label=Outcome]", "")
    page.fill(".v-filters input", "has 27 apples")  # task 17: 10 + 17
    assert (
        page.inner_text(".v-count") == "1 of 40 tasks"
        and page.inner_text(".v-question .v-who") == "held-out-17"
    )
    page.fill(".v-filters input", "")
    second = page.locator(".v-pane").nth(1)
    second.locator("select").select_option("trained, channel closed")
    second.locator(".v-steps button", has_text="seed 19").click()
    assert (
        page.locator(".v-pane").nth(1).get_attribute("aria-label")
        == "Second chat: trained, channel closed, seed 19"
    )
    assert "was heard as: (no message)" in page.locator(".v-pane").nth(1).inner_text()


def test_the_viewer_steps_through_training(tab, study: Path) -> None:
    page = opened(tab, study).page
    page.click("text=Through training")
    second = page.locator(".v-pane").nth(1)
    assert second.locator(".v-steps button").all_inner_texts() == [
        f"step {step}" for step in range(0, 51, 10)
    ]
    # solved from step 20 on
    for step, right in ((0, False), (10, False), (20, True)):
        second.locator(".v-steps button", has_text=re.compile(f"^step {step}$")).click()
        assert ("✓ A right" in page.locator(".v-pane").nth(1).inner_text()) is right


@pytest.mark.slow
def test_the_keyboard_moves_through_tasks_seeds_and_views(tab, study: Path) -> None:
    page = opened(tab, study).page
    page.focus("#viewer")
    where = ".v-question .v-who"
    for key, words in (
        ("ArrowRight", "held-out-1"),
        ("j", "held-out-2"),
        ("k", "held-out-1"),
        ("End", "held-out-39"),
    ):
        page.keyboard.press(key)
        assert page.inner_text(where) == words
    page.keyboard.press("]")
    assert page.locator(".v-pane").nth(1).get_attribute("aria-label").endswith("seed 18")
    page.keyboard.press("x")
    assert page.locator(".v-pane").nth(0).get_attribute("aria-label").endswith("seed 18")
    page.keyboard.press("m")
    assert page.inner_text(where) == "dev-0"
    page.keyboard.press("/")
    page.keyboard.type("mj")  # letters in the search box are text
    assert (
        page.input_value(".v-filters input") == "mj" and page.inner_text(".v-turn output") == "no task fits"
    )


@pytest.mark.slow
def test_a_link_leads_to_one_chat(tab, study: Path) -> None:
    page = opened(tab, study).page
    page.locator(".v-cell").nth(5).click()
    page.locator(".v-pane").nth(1).locator(".v-steps button", has_text="seed 18").click()
    link = page.get_attribute(".v-link", "href")
    assert link == "#chat/heldout/held-out-5/base_open%2Fbase/trained_open%2Fopen-18"
    other = opened(tab, study, link).page
    assert other.inner_text(".v-question .v-who") == "held-out-5"
    assert other.locator(".v-pane").nth(1).get_attribute("aria-label").endswith("seed 18")
    assert other.locator("#viewer").evaluate("e => e.getBoundingClientRect().top") < 200  # it is scrolled to
    bad = opened(tab, study, "#chat/heldout/%E0%A4%A/x/y")
    assert bad.page.inner_text(".v-question .v-who") == "held-out-0" and is_quiet(bad)


@pytest.mark.slow
def test_hostile_text_shows_as_text(tab, tmp_path: Path) -> None:
    report(hostile_study(tmp_path))
    found = opened(tab, tmp_path)
    found.page.on("dialog", lambda dialog: pytest.fail(f"a script of the chats ran: {dialog.message}"))
    said = found.page.locator(".v-pane").first.inner_text()
    assert "</script><script>alert(1)</script><img src=x onerror=alert(1)> [U+202E]gnp.exe" in said
    assert "(96,000 more characters)" in said
    assert found.page.locator("#viewer img, #viewer script, main img, main script").count() == 0
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert is_quiet(found)


def test_without_script_every_chart_is_a_still_picture(tab, study: Path) -> None:
    found = tab(java_script_enabled=False)
    found.page.goto((study / "report.html").resolve().as_uri())
    assert found.page.locator("noscript svg").count() == found.page.locator(".chart[data-chart]").count()
    assert all(each.bounding_box()["height"] > 50 for each in found.page.locator("noscript svg").all())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_usable_at_400_pixels(tab, study: Path, scheme: str) -> None:
    found = opened(tab, study, viewport={"width": 400, "height": 800}, color_scheme=scheme)
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 400
    assert (
        found.page.locator(".chart[data-chart=solved] svg").evaluate("e => e.getBoundingClientRect().width")
        <= 400
    )
    first, second = [pane.bounding_box() for pane in found.page.locator(".v-pane").all()]
    assert second["y"] > first["y"] + first["height"] - 1  # one under the other
    assert is_quiet(found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(tab, study: Path, scheme: str) -> None:
    page = opened(tab, study, color_scheme=scheme).page
    page.click("text=Through training")
    faint = page.evaluate(CONTRAST)
    assert faint == []


CONTRAST = """() => {
  const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
  const context = canvas.getContext("2d", {willReadFrequently: true});
  const paint = (colors) => {
    context.clearRect(0, 0, 1, 1);
    for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((c) => c / 255).map((c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [.2126, .7152, .0722][at], 0);
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("script, noscript, svg, :disabled, .hidden, .skip")) continue;
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
    const ground = paint(["white", ...grounds]), ink = paint(["white", ...grounds, getComputedStyle(element).color]);
    const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) faint.push([walker.currentNode.data.trim().slice(0, 40), element.className, ratio.toFixed(2)]);
  }
  return faint;
}"""
