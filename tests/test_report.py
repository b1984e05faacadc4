"""The report: the page says what the files say, without script, and nothing a model wrote can disturb it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cotalk import report as module
from cotalk.errors import BadInput
from cotalk.report import (
    before_and_after,
    command,
    condition_label,
    figures,
    read_study,
    report,
    settings,
    shown,
    thinned,
    through_training,
)

SEEDS = (17, 18, 19)
NAMES = {"A": ("Tom", "apples"), "B": ("Mia", "apples")}


def rate(mean: float, half: float = 0.03, n: int = 200, unit: str = "tasks") -> dict:
    return {"mean": mean, "low": round(mean - half, 4), "high": round(mean + half, 4), "n": n, "unit": unit}


def condition(
    mean: float, per_seed: tuple[float, ...] = (), talk: tuple[float, ...] = (0.2, 0.25, 0.3, 0.1)
) -> dict:
    unit, n = ("seeds", len(per_seed)) if per_seed else ("tasks", 200)
    names = ("sends", "uses", "asks", "agrees")
    return {
        "score": rate(mean, 0.05, n, unit),
        "per_seat": {"A": rate(mean - 0.01), "B": rate(mean + 0.01)},
        "per_seed": dict(zip(map(str, SEEDS), per_seed, strict=True)) if per_seed else {"base": mean},
        "talk": {name: rate(value) for name, value in zip(names, talk, strict=True)}
        | {"message_tokens": rate(9.25, 1.0)},
        "greedy": {"score": rate(mean + 0.02)},
        "repeats": [] if per_seed else [mean, mean + 0.01, mean - 0.01],
    }


RESULTS = {
    "schema": 1,
    "study": "quickstart",
    "created": "2025-11-29T16:20:00Z",
    "versions": {"cotalk": "0.1.0", "torch": "2.13.0", "transformers": "5.17.0", "python": "3.11.2"},
    "config": {
        "base": "tiny",
        "run": {"steps": 50, "lr": 0.0015, "order": "ABAB", "reward": "strict"},
        "seeds": [17, 18, 19],
    },
    "conditions": {
        "base_open": condition(0.121),
        "base_closed": condition(0.012),
        "skyline": condition(0.985),
        "floor": condition(0.021),
        "trained_open": condition(0.866, (0.883, 0.841, 0.874), (0.97, 0.93, 0.02, 0.9)),
        "trained_closed": condition(0.013, (0.01, 0.02, 0.009), (0.3, 0.01, 0.3, 0.02)),
        "trained_a_base_b": condition(0.43, (0.41, 0.47, 0.41)),
        "base_a_trained_b": condition(0.52, (0.5, 0.57, 0.49)),
    },
    "comparisons": [
        {
            "a": "trained_open",
            "b": "trained_closed",
            "sentence": "With the channel open, training took the team from 12.1 to 86.6 problems out of "
            "100; the same training with the channel closed took it to 1.3. "
            "Difference over 3 seeds: +85.3 [+79.9, +90.7].",
        },
        {"sentence": "Untrained, talking helps by +10.9 problems out of 100 [+8.6, +13.2]."},
    ],
    "cost": {"wall_minutes": 6.4, "core_minutes": 12.1, "tokens": 1812345, "dollars": 0},
}


def chat(task: int, solved: bool, condition: str, step: int | None = None, channel: str = "open") -> dict:
    """One chat line as evaluation writes it: A knows a, B knows b, the answer is a + b."""
    a, b = 10 + task, 20 + 2 * task
    hands = {
        seat: [f"{name} has {number} {thing}."]
        for (seat, (name, thing)), number in zip(NAMES.items(), (a, b), strict=True)
    }
    talk = (
        (f"{hands['A'][0]} Please use this.", hands["B"][0])
        if solved
        else ("Hello, how are you?", "What do you know?")
    )
    last = [f"{a}+{b}={a + b}. \\boxed{{{a + b}}}"] * 2 if solved else [f"\\boxed{{{a}}}", "I do not know."]
    messages = [
        {
            "seat": "AB"[turn % 2],
            "turn": turn,
            "said": said,
            "heard": said if channel == "open" else "(no message)",
            "credit": 0.25,
            "cut": turn == 3 and not solved,
            "tokens": 9,
            "logprob": -4.2,
        }
        for turn, said in enumerate((*talk, *last))
    ]
    answers = {
        "A": {
            "answer": str(a + b if solved else a),
            "strict": solved,
            "lenient": solved,
            "parsed": True,
            "notes": [],
        },
        "B": {
            "answer": str(a + b) if solved else "",
            "strict": solved,
            "lenient": solved,
            "parsed": solved,
            "notes": [],
        },
    }
    return {
        "step": step,
        "condition": condition,
        "repeat": 0,
        "task": f"held-out-{task}",
        "chat": 0,
        "order": "ABAB",
        "channel": channel,
        "view": "dialogue",
        "question": "How many apples do Tom and Mia have together?",
        "gold": str(a + b),
        "hands": hands,
        "players": {"A": "learner", "B": "learner"},
        "messages": messages,
        "answers": answers,
        "rewards": {seat: float(solved) for seat in "AB"},
        "reward": float(solved),
    }


def metrics(arm: str, seed: int) -> list[dict]:
    """Fifty made-up steps: an S-shaped reward in the open arm, next to nothing in the closed one."""
    draw, lines = random.Random(f"{arm}-{seed}"), []
    for step in range(51):
        top = 0.88 if arm == "open" else 0.03
        skill = 0.12 * (arm == "open") + (top - 0.12 * (arm == "open")) / (
            1 + math.exp(-(step - 22 - seed % 3 * 3) / 5)
        )
        line = {
            "step": step,
            "reward": min(1, max(0, skill + draw.gauss(0, 0.04))),
            "message_tokens": 9 + skill,
            "groups/flat": min(1, max(0, 0.6 - 2 * abs(skill - 0.5) * 0.3 + draw.gauss(0, 0.05))),
            "cut": 0.05 * (1 - skill),
        }
        lines.append(line | ({"dev/score": round(skill * 16) / 16} if step % 10 == 0 else {}))
    return lines


def write_lines(path: Path, lines: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_study(directory: Path) -> Path:
    """A small fake study, complete: results, two arms of three runs, evaluation chats of 40 tasks."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(RESULTS))
    for arm in ("open", "closed"):
        for seed in SEEDS:
            run = directory / "runs" / f"{arm}-{seed}"
            write_lines(run / "metrics.jsonl", metrics(arm, seed))
            write_lines(
                run / "dev.jsonl",
                [
                    chat(task, step >= 20 and arm == "open", "dev", step, arm)
                    for step in range(0, 51, 10)
                    for task in range(2)
                ],
            )
    for arm in ("open", "closed"):
        write_lines(
            directory / f"scores/base_{arm}/base.jsonl",
            [chat(task, task % 8 == 3 and arm == "open", f"base_{arm}", channel=arm) for task in range(40)],
        )
        for seed in SEEDS:
            lines = [
                chat(task, task % 9 != 7 and arm == "open", f"trained_{arm}", 50, arm) for task in range(40)
            ]
            write_lines(directory / f"scores/trained_{arm}/{seed}.jsonl", lines)
            write_lines(directory / f"scores/trained_{arm}/{seed}.greedy.jsonl", lines)
    return directory


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text outside <style>."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.html, self.elements, self.texts, self.open = path.read_text(encoding="utf-8"), [], [], []
        self.feed(self.html)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.elements.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    def tags(self, name: str) -> list[dict]:
        return [attributes for tag, attributes in self.elements if tag == name]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def page(study: Path) -> Page:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    return Page(report(study))


def test_the_page_opens_with_the_sentence_of_the_main_comparison(page: Page) -> None:
    heading = re.search(r"<h1>(.*?)</h1>", page.html, re.DOTALL)
    assert heading and heading[1] == RESULTS["comparisons"][0]["sentence"]
    assert page.html.index("<h1>") < page.html.index("<svg") < page.html.index("<table")


def test_the_table_holds_every_condition_with_interval_n_seeds_and_seats(page: Page) -> None:
    # trained_open: 0.866 +- 0.05 over 3 seeds; seats 0.856 and 0.876 +- 0.03; greedy 0.886 +- 0.03
    for words in (
        "86.6 [81.6, 91.6]",
        "17: 88.3",
        "18: 84.1",
        "19: 87.4",
        "85.6 [82.6, 88.6]",
        "87.6 [84.6, 90.6]",
        "88.6 [85.6, 91.6]",
        "repeated: 12.1, 13.1, 11.1",
    ):
        assert words in page.text
    for name in RESULTS["conditions"]:
        assert f"<code>{name}</code>" in page.html


def test_the_bars_stand_where_results_say(study: Path) -> None:
    charts = pytest.importorskip("cotalk.charts")
    drawing = module.draw(read_study(study), charts)
    picture = ElementTree.fromstring(charts.inline_svg(drawing.solved(200), "words"))
    # The chart is 200 units wide for 100 problems: 12.1 -> 24.2, 86.6 -> 173.2, 43.0 -> 86, 52.0 -> 104.
    bars = [
        path.get("d", "")
        for path in picture.iter(f"{{{charts.SVG}}}path")
        if path.get("fill", "").startswith("var(") and path.get("fill-opacity") != "0"
    ]
    widths = [float(re.search(r"h(-?[\d.]+)", bar)[1]) for bar in bars if re.match(r"M0,[\d.]+h", bar)]
    assert widths == pytest.approx([2.4, 24.2, 2.6, 173.2, 86, 104], abs=0.05)
    titles = [title.text for title in picture.iter(f"{{{charts.SVG}}}title")]
    assert "trained, channel open: 86.6 [81.6, 91.6], n = 3 seeds" in titles
    assert "trained, channel open, seed 18: 84.1" in titles
    assert len([title for title in titles if "seed 1" in title]) == 4 * len(
        SEEDS
    )  # every seed is a dot, bases have none


def test_the_page_needs_no_script_no_network_and_allows_none(page: Page) -> None:
    assert not page.tags("script") and not page.tags("link") and not page.tags("img")
    assert not [
        name
        for _, attributes in page.elements
        for name in attributes
        if name == "style" or name.startswith("on")
    ]
    targets = [
        attributes.get(name, "#") for _, attributes in page.elements for name in ("href", "src", "xlink:href")
    ]
    assert all(target.startswith("#") for target in targets)
    policy = next(
        meta["content"] for meta in page.tags("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    )
    style = re.search(r"<style>(.*?)</style>", page.html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; style-src 'sha256-" + digest + "'")
    assert "script-src" not in policy and "unsafe" not in policy
    assert len(page.html.encode()) < 2_000_000


def test_every_picture_has_words_and_ids_are_unique(page: Page) -> None:
    pictures = [svg for svg in page.tags("svg") if svg.get("aria-hidden") != "true"]
    assert len(pictures) == 2 + 4 + 5 and all(svg["role"] == "img" and svg["aria-label"] for svg in pictures)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"][1:] for attributes in page.tags("a")} <= set(ids)


def test_the_same_files_give_the_same_bytes(study: Path, page: Page) -> None:
    assert report(study).read_text(encoding="utf-8") == page.html


def test_chats_before_and_after_are_of_the_same_task_and_chosen_without_looking(study: Path) -> None:
    pages = before_and_after(read_study(study))
    # 40 tasks, 12 shown: round(index * 39 / 11) = 0, 4, 7, 11, ...; seeds take turns.
    assert [page.task for page in pages[:4]] == ["held-out-0", "held-out-4", "held-out-7", "held-out-11"]
    assert [page.chats[1]["heading"][-2:] for page in pages[:4]] == ["17", "18", "19", "17"]
    assert [answer["right"] for answer in pages[1].chats[0]["graded"]] == [False, False]
    assert [answer["right"] for answer in pages[1].chats[1]["graded"]] == [True, True]


def test_a_dev_task_is_shown_at_every_recorded_step_of_an_open_run(study: Path) -> None:
    pages = through_training(read_study(study))
    assert [page.chats[0]["heading"] for page in pages] == [
        f"open-17, step {step}" for step in range(0, 51, 10)
    ]
    assert {page.task for page in pages} == {"held-out-0"}


def test_what_was_heard_is_shown_where_it_differs_from_what_was_said(study: Path) -> None:
    closed = module._chat(chat(1, False, "trained_closed", channel="closed"), "closed")
    assert [message["altered"] for message in closed["messages"]] == ["(no message)"] * 4
    opened = module._chat(chat(1, False, "trained_open"), "open")
    assert [message["altered"] for message in opened["messages"]] == [None] * 4
    assert [message["final"] for message in opened["messages"]] == [False, False, True, True]


HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)> \u202egnp.exe {{ 7 * 7 }} \x00 \ud800"
)


def test_hostile_text_is_shown_as_text_everywhere(tmp_path: Path) -> None:
    write_study(tmp_path)
    results = json.loads(json.dumps(RESULTS))
    results["conditions"]["trained_open"]["label"] = HOSTILE
    results["conditions"][HOSTILE] = condition(0.5, (0.4, 0.5, 0.6))
    results["conditions"]["base_open"]["talk"][HOSTILE] = rate(0.5)
    results["conditions"]["trained_closed"]["per_seed"][HOSTILE] = 0.4
    results["comparisons"][0]["sentence"] = results["study"] = results["created"] = HOSTILE
    results["config"][HOSTILE] = results["versions"][HOSTILE] = results["cost"][HOSTILE] = HOSTILE
    (tmp_path / "results.json").write_text(json.dumps(results))
    lines = [chat(0, True, "base_open")]
    lines[0] |= {"task": HOSTILE, "question": HOSTILE, "gold": HOSTILE, "hands": {HOSTILE: [HOSTILE]}}
    lines[0]["messages"][0] |= {"said": HOSTILE, "heard": HOSTILE, "seat": HOSTILE}
    lines[0]["messages"][1] |= {"said": "x" * 100_000, "heard": HOSTILE}
    lines[0]["answers"] = {HOSTILE: {"answer": HOSTILE, "strict": True}}
    for path in ("scores/base_open/base.jsonl", "scores/trained_open/17.jsonl", "runs/open-17/dev.jsonl"):
        write_lines(tmp_path / path, [line | {"step": 0} for line in lines])
    for seed in (18, 19):
        (tmp_path / f"scores/trained_open/{seed}.jsonl").unlink()
    page = Page(report(tmp_path))
    assert not page.tags("script") and not page.tags("img")
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "\u202e" not in page.html and "\x00" not in page.html
    assert "[U+202E]gnp.exe {{ 7 * 7 }} [U+0000] [U+D800]" in page.text
    assert "(98,500 more characters)" in page.text and "x" * 1_501 not in page.html
    assert len(page.html.encode()) < 1_000_000


def test_what_is_missing_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    text = Page(report(tmp_path)).text
    for words in (
        "No comparison has been made yet.",
        "No scores:",
        "No measures of talk:",
        "No learning curves:",
        "No chats before and after:",
        "No chats of the dev tasks:",
        "Cost: not recorded",
    ):
        assert words in text
    (tmp_path / "results.json").unlink()
    write_lines(
        tmp_path / "runs/open-17/metrics.jsonl", [{"step": 1, "reward": 0.5}, {"step": 0, "reward": 0.25}]
    )
    text = Page(report(tmp_path)).text
    assert "There is no results.json yet" in text
    assert "Not recorded by any run: Dev score, greedy" in text


def test_strange_numbers_do_not_stop_the_page(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(
        json.dumps(
            {
                "conditions": {
                    "base_open": {
                        "score": {"mean": 0.1, "low": None, "high": None, "n": None, "unit": "tasks"}
                    },
                    "trained_open": {
                        "score": {"mean": 0.5, "low": -0.2, "high": 1.2, "n": 2, "unit": "seeds"},
                        "per_seed": {"17": 0.5},
                    },
                    "trained_closed": {
                        "score": {"mean": math.nan, "low": 0, "high": 1, "n": 0, "unit": "seeds"}
                    },
                    "floor": {"score": None, "per_seat": None, "talk": None, "greedy": None, "repeats": None},
                },
                "comparisons": [None],
            }
        )
    )
    text = Page(report(tmp_path)).text
    assert "50.0 [-20.0, 120.0]" in text  # the table keeps what the whisker cannot show
    assert "not measured" in text


def test_half_written_lines_are_skipped(tmp_path: Path) -> None:
    write_study(tmp_path)
    for path in [*tmp_path.glob("runs/*/*.jsonl"), *tmp_path.glob("scores/*/*.jsonl")]:
        path.write_bytes(path.read_bytes() + b'{"step": 51, "rew\n[1, 2]\n\xff\xfe\n{"step": 52, "task": ')
    whole, torn = write_study(tmp_path / "whole"), tmp_path
    assert read_study(torn).runs == read_study(whole).runs
    assert before_and_after(read_study(torn)) == before_and_after(read_study(whole))


def test_a_directory_that_is_no_study_is_refused_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cotalk report"):
        report(tmp_path)
    (tmp_path / "results.json").write_text('{"conditions": {')
    with pytest.raises(BadInput, match="not JSON"):
        report(tmp_path)
    (tmp_path / "results.json").write_text('{"schema": 2}')
    with pytest.raises(BadInput, match="schema 1"):
        report(tmp_path)


def test_without_the_drawing_libraries_the_tables_stay(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str) -> None:
        raise ImportError("No module named 'altair'")

    monkeypatch.setattr(module.importlib, "import_module", refuse)
    write_study(tmp_path)
    page = Page(report(tmp_path))
    assert not page.tags("svg") and "The charts are left out" in page.text
    assert "86.6 [81.6, 91.6]" in page.text and "pip install altair" in caplog.text
    with pytest.raises(BadInput, match="pip install altair"):
        figures(tmp_path)


def test_figures_are_saved_as_png_and_svg(tmp_path: Path) -> None:
    pytest.importorskip("cotalk.charts")
    paths = figures(write_study(tmp_path))
    assert [path.name for path in paths] == [
        "solved.png",
        "solved.svg",
        "talk.png",
        "talk.svg",
        "curves.png",
        "curves.svg",
    ]
    assert paths[0].read_bytes().startswith(b"\x89PNG") and "<svg" in paths[1].read_text()


def test_the_mean_line_is_over_steps_that_every_run_of_the_arm_has() -> None:
    runs = [
        module.RunCurves("open", "17", [{"step": 0, "reward": 0.25}, {"step": 1, "reward": 0.5}]),
        module.RunCurves("open", "18", [{"step": 0, "reward": 0.75}]),
    ]
    mean = [point for point in module._curve_points(runs, "reward") if point["kind"] == "mean"]
    assert [(point["step"], point["value"]) for point in mean] == [
        (0, 0.5)
    ]  # (0.25 + 0.75) / 2; step 1 has one run


def test_small_words() -> None:
    assert thinned(list(range(10)), 4) == [0, 3, 6, 9] and thinned([1, 2], 4) == [1, 2]
    assert shown("a\u202eb\x1b") == "a[U+202E]b[U+001B]" and shown("abcdef", 4) == "abcd… (2 more characters)"
    assert condition_label("trained_a_base_b") == "trained A, untrained B"
    assert condition_label("base_a_trained_ada_b") == "untrained A, trained B (ada)"
    assert condition_label("trained_ada") == "trained (ada)"
    assert settings({"run": {"lr": 0.0015, "steps": 50}, "seeds": [17]}) == [
        ("run.lr", "0.0015"),
        ("run.steps", "50"),
        ("seeds", "[17]"),
    ]
    assert command({"study": "quickstart"}) == "cotalk quickstart"
    assert (
        command({"study": "talk-to-solve", "config": {"base": "a b"}})
        == "cotalk study talk-to-solve --base 'a b'"
    )
