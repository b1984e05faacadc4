"""The charts: rows stand where the numbers say, in hexadecimal for files and in the page's colours for the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cotalk.report import draw
from cotalk.report.read import RunCurves, read_study
from cotalk.report.words import condition_label
from test_report import CROSS_PLAY, RESULTS, SEEDS, write_study

charts = pytest.importorskip("cotalk.report.charts")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict:
    directory = write_study(tmp_path_factory.mktemp("study"), RESULTS | {"cross_play": CROSS_PLAY}, tasks=1)
    found = draw.pictures(read_study(directory), charts)
    return {picture.id: picture for many in found.values() for picture in many}


def drawn(picture: draw.Picture) -> dict:
    return charts.spec(picture.still or picture.draw, picture.width)


def titles(picture: draw.Picture) -> list[str]:
    svg = ElementTree.fromstring(charts.inline_svg(drawn(picture), picture.words))
    return [title.text or "" for title in svg.iter(f"{{{charts.SVG}}}title")]


def test_the_bars_stand_where_results_say(pictures: dict) -> None:
    picture = ElementTree.fromstring(charts.inline_svg(charts.spec(pictures["solved"].draw, 200), "words"))
    # The chart is 200 units wide for 100 problems: 12.1 -> 24.2, 86.6 -> 173.2, 43.0 -> 86, 52.0 -> 104.
    bars = [
        path.get("d", "")
        for path in picture.iter(f"{{{charts.SVG}}}path")
        if path.get("fill") in ("var(--blue)", "var(--orange)") and path.get("fill-opacity") != "0"
    ]
    widths = [float(re.search(r"h(-?[\d.]+)", bar)[1]) for bar in bars if re.match(r"M0,[\d.]+h", bar)]
    assert widths == pytest.approx([2.4, 24.2, 2.6, 173.2, 86, 104], abs=0.05)


def test_every_row_and_every_seed_tells_itself_to_the_pointer(pictures: dict) -> None:
    told = titles(pictures["solved"])
    assert "trained, channel open: 86.6 [81.6, 91.6], n = 3 seeds × 200 tasks × 2 chats × 2 seats" in told
    assert "trained, channel open, seed 18: 84.1" in told
    assert len([words for words in told if "seed 1" in words]) == 4 * len(SEEDS)  # bases have none
    assert "skyline: one seat with every fact: 98.5 [93.5, 103.5], n = 200 tasks" in told


def test_before_and_after_of_talk_are_of_one_channel(pictures: dict) -> None:
    told = titles(pictures["talk-sends"])
    for words in ("open, before: 0.20", "open, after: 0.97", "closed, before: 0.20", "closed, after: 0.30"):
        assert any(each.startswith(words) for each in told)
    assert (
        "open: before 0.20 [0.17, 0.23] (n = 200 tasks), after 0.97 [0.94, 1.00]"
        in pictures["talk-sends"].words
    )


def test_replaced_messages_and_cross_play_have_their_pictures(pictures: dict) -> None:
    spec = json.dumps(
        charts.page_spec(charts.spec(pictures["causal-trained_open"].draw, 300)), ensure_ascii=False
    )
    assert "A's turn 0 → nothing" in spec and "−40.0" in spec
    assert "A open-17 with B open-18: 80.0 [77.0, 83.0], n = 50 tasks" in titles(pictures["cross-A"])
    assert "A open-17 with B base: 20.0 [17.0, 23.0], n = 50 tasks" in titles(pictures["cross-B"])
    assert not any("base with B open-18" in words for words in titles(pictures["cross-A"]))  # was not played


def test_an_arm_s_seeds_stand_together_in_the_heat_map_and_strangers_last(tmp_path: Path) -> None:
    """A study's runs come seed by seed: open-17, host-17, open-18, host-18."""
    runs = [
        {"name": f"{arm}-{seed}", "kind": "run", "arm": arm} for seed in (17, 18) for arm in ("open", "host")
    ]
    players = [{"name": "base", "kind": "base", "arm": ""}, *runs]
    rate = RESULTS["conditions"]["base_open"]["score"]
    cells = [{"a": a["name"], "b": b["name"], "score": rate} for a in players for b in players]
    write_study(tmp_path, RESULTS | {"cross_play": {"players": players, "cells": cells}}, tasks=1)
    [picture] = draw.pictures(read_study(tmp_path), charts)["cross"]
    encoding = charts.spec(picture.draw, 300)["layer"][0]["encoding"]
    order = ["open-17", "open-18", "host-17", "host-18", "base"]
    assert encoding["x"]["sort"] == encoding["y"]["sort"] == order


def test_a_cross_play_without_seats_shows_the_team(tmp_path: Path) -> None:
    cells = [{"a": "open-17", "b": "open-18", "score": RESULTS["conditions"]["base_open"]["score"]}]
    write_study(tmp_path, RESULTS | {"cross_play": CROSS_PLAY | {"cells": cells}}, tasks=1)
    assert [each.id for each in draw.pictures(read_study(tmp_path), charts)["cross"]] == ["cross-score"]


def test_every_seed_has_a_shape_of_its_own(pictures: dict) -> None:
    spec = charts.page_spec(charts.spec(pictures["methods"].draw, 300))
    scales = [layer["encoding"]["shape"]["scale"] for layer in spec["layer"] if "shape" in layer["encoding"]]
    assert all(scale["domain"] == ["17", "18", "19"] and len(set(scale["range"])) == 3 for scale in scales)


def test_the_page_s_colours_are_variables_and_a_file_s_are_not(pictures: dict) -> None:
    for picture in pictures.values():
        page = json.dumps(charts.page_spec(charts.spec(picture.draw, charts.CONTAINER)))
        left = [color for color in charts.CSS_VARIABLES if f'"{color}"' in page]
        assert not left and "var(--" in page, picture.id
        assert "var(--" not in charts.svg_file(picture.at_rest())


def test_the_mean_line_is_over_steps_that_every_run_of_the_arm_has() -> None:
    runs = [
        RunCurves("open", "17", [{"step": 0, "reward": 0.25}, {"step": 1, "reward": 0.5}]),
        RunCurves("open", "18", [{"step": 0, "reward": 0.75}]),
    ]
    mean = [point for point in draw.curve_points(runs, "reward") if point["kind"] == "mean"]
    assert [(point["step"], point["value"]) for point in mean] == [
        (0, 0.5)
    ]  # (0.25 + 0.75) / 2; step 1 has one run


def test_conditions_without_a_label_have_words() -> None:
    assert condition_label("trained_a_base_b") == "trained A, untrained B"
    assert condition_label("base_a_trained_ada_b") == "untrained A, trained B (ada)"
    assert condition_label("trained_ada") == "trained (ada)"


def test_the_bundle_draws_without_asking_for_anything() -> None:
    script = charts.bundle()
    assert "vegaEmbed" in script and "</script" not in script


def test_the_bundle_is_kept_and_made_again_where_what_was_kept_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(charts, "_bundle", lambda: made.append(1) or "draw()")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bundle = charts.bundle.__wrapped__  # without what this process keeps
    assert [bundle(), bundle()] == ["draw()"] * 2 and len(made) == 1
    [kept] = (tmp_path / "cotalk").glob("*.js")
    kept.write_text(kept.read_text().replace("draw()", "stolen()"))
    assert bundle() == "draw()" and len(made) == 2
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # nothing can be kept there
    assert bundle() == "draw()" and len(made) == 3


@pytest.mark.slow
def test_a_chart_drawn_without_checks_is_the_one_that_altair_finds_well_formed(pictures: dict) -> None:
    for picture in pictures.values():
        for draw_at in filter(None, (picture.draw, picture.narrow, picture.still)):
            checked = draw_at(charts.CONTAINER).to_dict(validate=True)
            assert charts.spec(draw_at, charts.CONTAINER) == checked


def test_a_chart_made_for_the_page_becomes_the_still_one(pictures: dict) -> None:
    for picture in pictures.values():
        wide = charts.spec(picture.draw, charts.CONTAINER)
        assert charts.at_width(wide, picture.width) == charts.spec(picture.draw, picture.width)
