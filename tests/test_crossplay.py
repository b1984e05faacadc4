"""Cross-play: the matrix on scripts whose results are known, numbers worked out by hand, files that are read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import small_base
from cotalk import crossplay
from cotalk.config import Config
from cotalk.crossplay import Matrix, Players, Sitter, across, comparisons, of_arm, sitters, summary
from cotalk.deal import deal
from cotalk.engines import Table
from cotalk.engines.hf import HfEngine
from cotalk.errors import BadInput, RunFailed
from cotalk.lora import Stack
from cotalk.puzzles import generate
from cotalk.scripts import ORACLES
from cotalk.stack import drive

PUZZLES = [deal(task, "AB") for task in generate(3, 6)]
CONFIG = Config(steps=0, message_tokens=4, answer_tokens=4)


def matrix(path: Path, *guests: str) -> Matrix:
    return Matrix(path, sitters({}, guests), PUZZLES, 2, CONFIG)


def play(found: Matrix, *rows: str, dev: list | None = None) -> None:
    base = small_base()
    stack = Stack(base.model, 1, 4, 8.0)
    players = Players(found, stack)

    def failed(_: str, error: Exception) -> None:
        raise error

    lives: dict[str, Any] = {}
    for row in rows:
        if row.startswith("oracle "):
            name = row.removeprefix("oracle ")
            lives[row] = crossplay.play_oracle(found, name, players, dev or [], base.form)
        else:
            lives[row] = crossplay.play_row(found, row, players, base.form)
    drive(lives, Table(HfEngine(stack, base.form.end_ids), players.engines), failed)


def cells(**means: tuple[float, float]) -> dict[tuple[str, str], np.ndarray]:
    """{"a_b": (A's own, B's own)} -> outcomes of 10 tasks x 1 chat x 2 seats with these means."""
    out = {}
    for name, own in means.items():
        a, b = name.split("_")
        outcomes = np.zeros((10, 1, 2))
        for seat, mean in enumerate(own):
            outcomes[: round(10 * mean), 0, seat] = 1
        out[a, b] = outcomes
    return out


# --- who plays -----------------------------------------------------------------------------------------------


def test_the_base_is_always_there_and_guests_once_each():
    runs = {"open-17": ("open", 17, Path("x"))}
    assert [s.name for s in sitters(runs, ("script:terse", "base", "script:terse*2"))] == [
        "open-17", "base", "script:terse",
    ]  # fmt: skip
    with pytest.raises(BadInput, match="names 'snapshots': expected base, script:NAME or model:DIR"):
        sitters({}, ("snapshots",))


def test_everybody_meets_everybody_but_a_script_no_script(tmp_path):
    found = matrix(tmp_path, "script:terse", "script:silent")
    met = {row: [s.name for s in found.columns(row)] for row in found.rows}
    assert met == {
        "base": ["base", "script:terse", "script:silent"], "script:terse": ["base"], "script:silent": ["base"],
    }  # fmt: skip


# --- playing and reading back --------------------------------------------------------------------------------


def test_a_row_is_written_whole_and_not_played_again(tmp_path):
    found = matrix(tmp_path, "script:terse")
    play(found, *found.rows)
    lines = [json.loads(line) for line in found.path("base").read_text().splitlines()]
    assert len(lines) == 2 * 6 * 2  # columns x tasks x chats
    assert set(lines[0]) == {"a", "b", "task", "chat", "rewards"}
    before = found.path("base").stat().st_mtime_ns
    play(found, *found.rows)
    assert found.path("base").stat().st_mtime_ns == before
    read = crossplay.read_cells(found)
    assert set(read) == {("base", "base"), ("base", "script:terse"), ("script:terse", "base")}
    assert all(outcomes.shape == (6, 2, 2) for outcomes in read.values())


def test_a_row_that_is_missing_or_torn_is_no_result(tmp_path):
    found = matrix(tmp_path)
    with pytest.raises(RunFailed, match="not a whole row of 6 tasks"):
        crossplay.read_cells(found)
    play(found, "base")
    path = found.path("base")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunFailed, match="not a whole row"):
        crossplay.read_cells(found)


def test_the_oracle_is_chosen_on_dev_and_scored_on_held_out(tmp_path):
    """With a stranger that tells only who asks, an asking A is always right, and a telling one never."""
    config = CONFIG.replaced({"message_tokens": 60})  # room for a fact, a token a byte
    found = Matrix(tmp_path, sitters({}, ()), PUZZLES, 2, config)
    found.sitters.append(Sitter("script:on-request", "script"))
    dev = [deal(task, "AB") for task in generate(9, 3)]
    play(found, "oracle script:on-request", dev=dev)
    ceiling = crossplay.ceiling(found, "script:on-request", dev)
    assert set(ceiling["dev"]) == set(ORACLES)
    assert ceiling["dev"]["ask"]["mean"] == 1.0 and ceiling["dev"]["tell"]["mean"] == 0.0
    assert ceiling["script"] == "ask"  # of equals the first of the list
    assert ceiling["heldout"]["mean"] == 1.0 and ceiling["heldout"]["n"] == 6
    assert ceiling["dev"]["ask"]["n"] == 3
    tasks = {
        x["split"]: x["task"]
        for x in map(json.loads, crossplay.oracle_path(found, "script:on-request").open())
    }
    assert tasks["dev"] in {d.task.id for d in dev} and tasks["heldout"] in {d.task.id for d in PUZZLES}


# --- what the matrix says ------------------------------------------------------------------------------------


def test_cross_seed_is_off_the_diagonal_and_its_ratio_is_to_the_diagonal():
    # team scores: self .9, .7, .8 (mean .8); pairs (s,t): .6 .4 / .4 .6 / .6 .4: mean .5; ratio .625
    found = cells(
        x_x=(0.9, 0.9), y_y=(0.7, 0.7), z_z=(0.8, 0.8), x_y=(0.6, 0.6), x_z=(0.4, 0.4), y_x=(0.4, 0.4), y_z=(0.6, 0.6),
        z_x=(0.6, 0.6), z_y=(0.4, 0.4),
    )  # fmt: skip
    crossed, ratio = across(found, ["x", "y", "z"])
    assert crossed["mean"] == pytest.approx(0.5) and ratio["mean"] == pytest.approx(0.625)
    # every pair of seeds has .5 both ways: without x, y or z it is .5: no spread
    assert crossed["low"] == pytest.approx(0.5) == pytest.approx(crossed["high"])
    # without x: .5 / .75 = .6667; without y: .5 / .85 = .5882; without z: .5 / .8 = .625; mean .62663
    # squares .001602 + .001475 + .0000027 = .0030792; x 2/3; root .045307; t(2) 4.3027: half .19494
    assert ratio["high"] - ratio["mean"] == pytest.approx(0.19494, abs=2e-4)
    assert (ratio["n"], ratio["unit"]) == (3, "seeds")


def test_a_ratio_that_one_seed_alone_defines_has_no_interval():
    """Without the one seed that scores in self-play the ratio is 0 / 0: no number for results.json."""
    runs = ["a", "b", "c"]
    nothing = {f"{a}_{b}": (0.0, 0.0) for a in runs for b in runs}
    found = cells(**nothing | {"a_a": (1.0, 1.0), "a_b": (1.0, 1.0)})
    _, ratio = across(found, runs)
    assert ratio["mean"] == pytest.approx(0.5) and ratio["low"] is None and ratio["high"] is None


def test_two_rows_never_share_a_file():
    names = ["base", "script:once", "model:bases/a_b", "model:bases_a/b", "model:bases_a_b", "oracle model:bases/a_b",
             "model:C:/x", "open-17"]  # fmt: skip
    assert len({crossplay.file_name(name) for name in names}) == len(names)
    assert crossplay.file_name("oracle model:stranger") == "oracle model_stranger"
    assert all(
        "/" not in crossplay.file_name(name) and ":" not in crossplay.file_name(name) for name in names
    )


def test_two_seeds_give_no_interval_and_one_gives_no_number():
    found = cells(x_x=(1, 1), y_y=(1, 1), x_y=(0.5, 0.5), y_x=(0.5, 0.5))
    crossed, ratio = across(found, ["x", "y"])
    assert crossed["mean"] == 0.5 and ratio["mean"] == 0.5 and crossed["low"] is ratio["high"] is None
    assert across(found, ["x"]) == (None, None)
    nothing = cells(x_x=(0, 0), y_y=(0, 0), x_y=(0, 0), y_x=(0, 0))
    assert across(nothing, ["x", "y"])[1] is None  # 0 / 0 is no ratio


TWO = [Sitter("g1", "run", "grpo", 1), Sitter("g2", "run", "grpo", 2), Sitter("h1", "run", "host", 1),
       Sitter("h2", "run", "host", 2), Sitter("base", "base")]  # fmt: skip


def a_study() -> tuple[Matrix, dict[tuple[str, str], np.ndarray]]:
    scores = {"g": (0.4, 0.3), "h": (0.7, 0.2)}
    found = {}
    for a in ("g1", "g2", "h1", "h2"):
        for b in ("g1", "g2", "h1", "h2"):
            found |= cells(**{f"{a}_{b}": (0.9, 0.8) if a == b else (0.8, 0.8)})
        off = 0.1 if a.endswith("2") else 0.0
        own, other = scores[a[0]]
        found |= cells(**{f"{a}_base": (own + off, 0.1), f"base_{a}": (0.1, other)})
    return Matrix(Path("x"), TWO, PUZZLES, 1, CONFIG), found


def test_with_a_stranger_each_seats_own_score_counts_and_not_the_strangers():
    found, scores = a_study()
    of = of_arm(found, scores, "grpo", {"base": {"heldout": {"mean": 0.9}}})
    assert of["self_play"]["mean"] == pytest.approx(0.85)
    met = of["strangers"]["base"]
    assert met["A"]["mean"] == pytest.approx(0.45) and met["B"]["mean"] == pytest.approx(0.3)
    assert met["of_ceiling"]["mean"] == pytest.approx(0.5) and met["A"]["unit"] == "seeds+tasks"


def test_every_arm_is_compared_with_the_first_and_corrected_together():
    found, scores = a_study()
    rows = comparisons(found, scores, ["grpo", "host"], margin=0.03)
    by = {row["what"]: row for row in rows}
    assert list(by) == [
        "self_play",
        "A with base",
    ]  # two seeds: how far seeds scatter across cells cannot be told
    assert by["A with base"]["difference"] == pytest.approx(0.3)
    assert by["self_play"]["difference"] == pytest.approx(0.0)
    assert all(row["p_holm"] >= row["p"] for row in rows)
    assert "whether host's A with base differs from grpo's A with base" in by["A with base"]["sentence"]


def test_the_spread_of_cross_seed_is_that_of_seeds_and_not_that_of_their_shared_cells():
    """Cells .5 + g_a + g_b with g = -.1, 0, .1 (seeds x, y, z): pseudo-values must scatter as 2 g does.

    Pairs: xy .4, xz .5, yz .6, mean .5. Without x .6, without y .5, without z .4: 1.5 - 2 x those: .3, .5, .7.
    """
    gain = {"x": -0.1, "y": 0.0, "z": 0.1}
    found = {(a, b): np.full((10, 1, 2), 0.5 + gain[a] + gain[b]) for a in gain for b in gain}
    assert crossplay._pseudo(found, list("xyz")) == pytest.approx([0.3, 0.5, 0.7])


def test_the_summary_of_a_played_matrix_is_fit_for_results_json(tmp_path):
    found = matrix(tmp_path, "script:terse")
    play(found, *found.rows)
    play(found, "oracle base", dev=PUZZLES[:2])
    document = summary(found, dev=PUZZLES[:2])
    json.dumps(document, allow_nan=False)
    assert document["tasks"] == 6 and document["chats"] == 2 and len(document["cells"]) == 3
    cell = document["cells"][0]
    assert set(cell) == {"a", "b", "score", "per_seat"} and set(cell["per_seat"]) == {"A", "B"}
    assert cell["per_seat"]["A"]["n"] == 6 and cell["per_seat"]["A"]["unit"] == "tasks"
    assert list(document["oracle"]) == ["base"]
    from rich.console import Console

    console = Console(record=True, width=160)
    for part in crossplay.tables(document):
        console.print(part)
    text = console.export_text()
    assert "6 tasks x 2 chats" in text and "oracle ceiling with base" in text
