"""Reading a directory while somebody writes it: whole lines only, nothing outside, states and time left."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotalk import watch
from cotalk.errors import BadInput
from cotalk.study import study_from
from cotalk.watch import START, RunState, StudyState, Watch, inside, last_lines, new_lines, time_left


def write(path: Path, *lines: Any, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + end for line in lines))
    return path


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"step": number, "reward": number / 10, "tokens": 100, "seconds": 2.0} | more


# --- lines ------------------------------------------------------------------------------------------------------


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st')
    lines, cursor = new_lines(path)
    assert lines == [{"step": 1}]
    assert new_lines(path, cursor) == ([], cursor)
    with path.open("ab") as stream:
        stream.write(b'ep": 2}\n')
    assert new_lines(path, cursor)[0] == [{"step": 2}]


def test_lines_that_are_no_json_objects_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\nnonsense\n[3]\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"step": 2}\n')
    assert new_lines(path)[0] == [{"step": 1}, {"step": 2}]
    assert last_lines(path) == ([{"step": 1}, {"step": 2}], False)


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert new_lines(tmp_path / "none") == ([], START)
    assert last_lines(tmp_path / "none") == ([], False)


def test_a_file_that_a_resume_wrote_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    """A resume cuts later steps off by writing another file over it, which may be longer when it is seen next."""
    path = write(tmp_path / "metrics.jsonl", {"step": 1}, {"step": 2})
    cursor = new_lines(path)[1]
    aside = write(tmp_path / "aside", {"step": 1}, {"step": 9}, {"step": 10})
    os.replace(aside, path)
    assert new_lines(path, cursor)[0] == [{"step": 1}, {"step": 9}, {"step": 10}]


@given(st.lists(st.integers(0, 10**6), max_size=8), st.data())
def test_however_a_file_grows_every_line_is_read_once(
    tmp_path_factory: Any, numbers: list[int], data: Any
) -> None:
    path = tmp_path_factory.mktemp("grow") / "metrics.jsonl"
    whole = b"".join(json.dumps({"step": n}).encode() + b"\n" for n in numbers)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    found, cursor = [], START
    with path.open("wb") as stream:
        for start, end in zip([0, *cuts], [*cuts, len(whole)]):
            stream.write(whole[start:end])
            stream.flush()
            lines, cursor = new_lines(path, cursor)
            found += lines
    assert [line["step"] for line in found] == numbers


def test_the_newest_lines_of_a_long_file_are_its_last_whole_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", *({"step": i} for i in range(100)))
    assert last_lines(path, most=2) == ([{"step": 98}, {"step": 99}], True)
    # each line is 13 bytes long from step 10 on; 30 bytes hold two whole ones and a piece
    assert last_lines(path, most_bytes=30) == ([{"step": 98}, {"step": 99}], True)
    with path.open("a") as stream:
        stream.write('{"step": 10')
    assert last_lines(path, most=1) == ([{"step": 99}], True)


# --- nothing outside --------------------------------------------------------------------------------------------


def test_links_that_lead_out_and_what_is_no_file_are_not_opened(tmp_path: Path) -> None:
    root = (tmp_path / "root").resolve()
    inner = write(root / "runs" / "a.jsonl", {})
    secret = write(tmp_path / "secret.jsonl", {})
    (root / "out.jsonl").symlink_to(secret)
    (root / "in.jsonl").symlink_to(inner)
    (root / "loop").symlink_to(root / "loop")
    (root / "away").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    assert inside(root, inner) and inside(root, root / "in.jsonl")
    for path in ("out.jsonl", "loop", "away/secret.jsonl", "../secret.jsonl", "pipe", "runs", "absent"):
        assert not inside(root, root / path), path


def test_a_run_behind_a_link_that_leads_out_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path / "other" / "metrics.jsonl", step(1))
    (tmp_path / "other" / "config.toml").write_text("steps = 4\n")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "mine").symlink_to(tmp_path / "other")
    assert Watch(tmp_path / "root").look() == []
    (tmp_path / "root" / "half").mkdir()
    (tmp_path / "root" / "half" / "config.toml").write_text("steps = 4\n")
    (tmp_path / "root" / "half" / "metrics.jsonl").symlink_to(tmp_path / "other" / "metrics.jsonl")
    (found,) = Watch(tmp_path / "root").look()
    assert found.runs[0].phase == "waiting" and found.runs[0].curves == {}


# --- states -----------------------------------------------------------------------------------------------------


def make_study(path: Path, **table: Any) -> Path:
    found = study_from(
        "toy", {"seeds": [17], "run": {"steps": 4}, "arms": {"open": {}}} | table, None, None, "toy.toml"
    )
    path.mkdir(parents=True, exist_ok=True)
    (path / "study.toml").write_text("# study toy, resolved\n" + found.as_toml())
    return path


def only(root: Path) -> StudyState:
    (found,) = Watch(root).look()
    return found


def test_a_study_is_told_from_its_first_moment_to_its_last(tmp_path: Path) -> None:
    """Arm open with seed 17 and the base: 6 passes over the held-out tasks and 8 (tests/test_study.py)."""
    out = make_study(tmp_path / "toy")
    study = only(out)
    assert (study.id, study.name, study.share, study.left) == (".", "toy", 0.0, None)
    assert [(r.name, r.phase, r.steps, r.of_passes) for r in study.runs] == [
        ("open-17", "waiting", 4, 6), ("base", "waiting", 0, 8),
    ]  # fmt: skip

    look = {"step": 0, "dev/score": 0.25, "dev/sends": 0.5}
    write(out / "runs/open-17/metrics.jsonl", look, step(1), step(2, chats=32, **{"groups/flat": 0.5}))
    run = only(out).runs[0]
    assert (run.chats, run.dev_tasks) == (32, 16)
    assert (run.phase, run.step, run.reward, run.dev, run.pace) == ("training", 2, 0.2, 0.25, 2.0)
    assert run.tokens_per_second == 50.0  # 200 tokens in 4 seconds
    assert run.curves == {
        "reward": [(1, 0.1), (2, 0.2)], "dev/score": [(0, 0.25)], "dev/sends": [(0, 0.5)], "groups/flat": [(2, 0.5)],
    }  # fmt: skip
    # 2 steps and 6 passes of 1.5 are owed: 11 steps of 2 seconds
    assert run.left == 22.0
    # the base owes 8 passes, 12 steps; all 23 at the speed of the one run that is at work
    assert only(out).left == 46.0
    assert only(out).share == pytest.approx(2 / (4 + 9 + 12))

    write(out / "runs/open-17/metrics.jsonl", look, *map(step, range(1, 5)))
    write(out / "runs/open-17/done.json", {})
    assert only(out).runs[0].phase == "evaluating"
    for name in ("trained_open/open-17", "trained_a_base_b/open-17", "base_a_trained_b/open-17"):
        write(out / f"scores/{name}.jsonl", {})
    for again in (1, 2):
        write(out / f"scores/trained_open/open-17.repeat{again}.jsonl", {})
    assert (only(out).runs[0].passes, only(out).runs[0].phase) == (5, "evaluating")
    write(out / "scores/trained_open/open-17.greedy.jsonl", {})
    assert only(out).runs[0].phase == "done" and not only(out).finished
    for plan in watch.plans(out, study_from("toy", {"seeds": [17], "arms": {"open": {}}}, None, None, "")):
        for path in plan.passes:
            write(path, {})
    assert only(out).finished and only(out).share == 1.0


def test_knock_outs_are_counted_among_the_passes(tmp_path: Path) -> None:
    """ABAB: turns 0, 1, 2 and A's two together, each replaced by nothing, and the plain pass."""
    study = only(make_study(tmp_path, evaluate={"causal": ["nothing"]}))
    assert [run.of_passes for run in study.runs] == [6 + 5, 8]


def test_speeds_of_runs_side_by_side_add_up() -> None:
    """Two runs of 2 s a step owe 10 steps each; a third has not begun and owes 10: 30 steps at 1 a second."""
    a = RunState("a", Path(), phase="training", step=10, steps=20, pace=2.0, quiet=1.0)
    b = RunState("b", Path(), phase="training", step=10, steps=20, pace=2.0, quiet=1.0)
    c = RunState("c", Path(), steps=10)
    assert time_left([a, b, c]) == 30.0
    assert time_left([a]) == 20.0
    assert time_left([c]) is None


def test_a_run_that_fell_silent_is_not_counted_as_working() -> None:
    silent = RunState("a", Path(), phase="training", step=1, steps=20, pace=2.0, quiet=61.0)
    slow = RunState("b", Path(), phase="training", step=1, steps=20, pace=100.0, quiet=900.0)
    assert not silent.working and time_left([silent]) is None
    assert slow.working  # ten of its own steps have not gone by


def test_a_failed_run_says_why_until_it_is_tried_again(tmp_path: Path) -> None:
    out = make_study(tmp_path)
    metrics = write(out / "runs/open-17/metrics.jsonl", step(1))
    failed = write(out / "runs/open-17/failed.json", {"reason": "ValueError: no luck\nTraceback ..."})
    now = time.time()
    os.utime(metrics, (now - 20, now - 20))
    os.utime(failed, (now - 10, now - 10))
    assert (only(out).runs[0].phase, only(out).runs[0].reason) == ("failed", "ValueError: no luck")
    os.utime(metrics, (now, now))  # the same command was given again
    assert (only(out).runs[0].phase, only(out).runs[0].reason) == ("training", "")


def test_studies_and_lone_runs_are_found_at_three_levels(tmp_path: Path) -> None:
    make_study(tmp_path / "a" / "deep")
    make_study(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.toml").write_text("steps = 4\n")
    (tmp_path / ".hidden").mkdir()
    make_study(tmp_path / ".hidden" / "study")
    found = Watch(tmp_path).look()
    assert [(s.id, s.alone) for s in found] == [("b", False), ("c", True), ("a/deep", False)]
    assert [run.name for run in found[1].runs] == ["c"]


def test_a_study_that_cannot_be_read_is_a_problem_of_its_own(tmp_path: Path) -> None:
    make_study(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "study.toml").write_text("[run]\nstepz = 3\n")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "study.toml").write_text("seeds = [1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("steps = 'many'\n")
    bad, good, run, torn = Watch(tmp_path).look()
    assert "did you mean 'steps'" in bad.problem and bad.runs == ()
    assert good.problem == "" and len(good.runs) == 2
    assert "expected whole numbers" in run.problem and torn.problem


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cotalk view"):
        Watch(tmp_path / "none")


def test_a_watch_reads_only_what_is_new_and_tells_the_same_as_a_new_one(tmp_path: Path) -> None:
    out = make_study(tmp_path)
    path = write(out / "runs/open-17/metrics.jsonl", step(1))
    seen = Watch(out)
    seen.look()
    with path.open("a") as stream:
        stream.write(json.dumps(step(2)) + "\n" + '{"step": 3, "rew')
    assert [r.curves for r in seen.look()[0].runs] == [r.curves for r in only(out).runs]
    os.replace(write(tmp_path / "aside", step(1, reward=0.9)), path)  # cut by a resume
    assert seen.look()[0].runs[0].curves == {"reward": [(1, 0.9)]}


def test_numbers_that_are_none_leave_a_gap_and_long_curves_are_thinned(tmp_path: Path) -> None:
    out = make_study(tmp_path)
    path = write(
        out / "runs/open-17/metrics.jsonl", *(step(i, reward=0.5, cut=float("nan")) for i in range(1, 1001))
    )
    with path.open("a") as stream:
        stream.write('{"step": "x", "reward": 1}\n{"step": 1001, "reward": true}\n')
        stream.write('{"step": 1002, "reward": 1' + "0" * 400 + "}\n")
    curves = only(out).runs[0].curves
    assert "cut" not in curves
    assert len(curves["reward"]) == 300 and (curves["reward"][0], curves["reward"][-1]) == (
        (1, 0.5),
        (1000, 0.5),
    )


def test_what_was_played_is_listed_by_name(tmp_path: Path) -> None:
    out = make_study(tmp_path)
    for name in (
        "runs/open-17/dev",
        "runs/open-17/chats",
        "scores/trained_open/open-17",
        "scores/trained_open/open-170",
    ):
        write(out / f"{name}.jsonl", {})
    seen = Watch(out)
    study = seen.look()[0]
    assert list(seen.chat_files(study, study.runs[0])) == ["dev", "train", "trained_open"]
    assert list(seen.chat_files(study, study.runs[1])) == []
