"""Studies: one TOML file, arms x seeds, worker processes or one stack, failures that stay where they are."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cotalk import cli, collect, jobs, results, study, workers
from cotalk.config import Config
from cotalk.errors import BadInput, RunFailed
from cotalk.evaluate import Pass
from cotalk.given import read_given
from cotalk.jobs import begin, run_jobs, run_study
from cotalk.preflight import prepare
from cotalk.results import Score
from cotalk.study import Evaluate, Job, Study, read_study, study_from
from cotalk.task import UNSEEN_TEMPLATES
from toy import SETTINGS, everything, together, toy_base, toy_config, toy_grader, toy_tasks

TABLE: dict[str, Any] = {
    "seeds": [17, 18],
    "run": {"steps": 2},
    "arms": {"open": {}, "closed": {"channel": "closed"}},
    "compare": [{"a": "trained_open", "b": "trained_closed"}],
}


def made(changes: Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None) -> Study:
    return study_from("toy", TABLE | (changes or {}), overrides, None, "toy.toml")


# --- the matrix ---


def test_a_matrix_seats_the_runs_of_one_game() -> None:
    arms = {"open": {}, "again": {"lr": 1e-3}, "closed": {"channel": "closed"}, "long": {"order": "ABABAB"}}
    found = made({"arms": arms, "compare": []})
    assert [job.name for job in found.crossed] == ["open-17", "again-17", "open-18", "again-18"]


@pytest.mark.parametrize(
    ("evaluate", "arms", "told"),
    [
        ({"cross": 2, "guests": ["script:tersee"]}, {}, "tersee"),
        ({"cross": 2, "guests": [1]}, {}, "guests holds 1: expected a list of words"),
        ({"causal": [0.5]}, {}, "causal holds 0.5: expected a list of words"),
        ({"cross": 2}, {"open": {}, "low": {"rank": 8}}, "differ in rank, alpha or targets"),
    ],
)
def test_a_mistake_in_a_matrixs_settings_is_told_before_anything_runs(
    evaluate: dict[str, Any], arms: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        made({"evaluate": evaluate, "compare": []} | ({"arms": arms} if arms else {}))


def test_arms_that_no_matrix_seats_may_have_a_rank_of_their_own() -> None:
    arms = {"open": {}, "closed": {"channel": "closed", "rank": 8}}
    assert len(made({"arms": arms, "evaluate": {"cross": 2}}).crossed) == 2


def test_a_guests_model_that_is_nowhere_is_told_before_anything_is_trained(
    tmp_path: Path, here: None
) -> None:
    found = made({"evaluate": {"cross": 2, "guests": ["model:models/nowhere"]}, "run": SETTINGS})
    with pytest.raises(BadInput, match="models/nowhere"):
        run_study(found, tmp_path / "out")
    assert not (tmp_path / "out" / "runs").exists()


def test_messages_are_replaced_at_the_turns_of_the_arms_own_order() -> None:
    arms = {"open": {}, "long": {"order": "ABABAB"}}
    found = made({"arms": arms, "evaluate": {"causal": ["nothing"]}, "compare": []})
    assert {k.turns for k in found.knockouts(Job("open", 17))} == {(0,), (1,), (2,), (0, 2)}
    assert {k.turns for k in found.knockouts(Job("long", 17))} >= {(3,), (4,), (0, 2, 4)}


# --- reading -------------------------------------------------------------------------------------------------


def test_a_study_is_arms_times_seeds_and_the_base() -> None:
    found = made()
    assert [job.name for job in found.jobs()] == ["open-17", "closed-17", "open-18", "closed-18", "base"]
    plain = Config(
        steps=2, message_tokens=28, answer_tokens=36
    )  # the budgets that the tiny base was made for
    assert found.job_config(Job("closed", 18)) == replace(plain, channel="closed", seed=18)
    assert found.job_config(Job()) == plain
    assert found.compare == (("trained_open", "trained_closed"),)


def test_what_each_job_plays_on_the_held_out_tasks() -> None:
    once, greedy = Pass(chats=2), Pass(chats=1, greedy=True)
    found = made()
    assert [(c.name, p) for c, p in found.work(Job("open", 17))] == [
        ("trained_open", once), ("trained_a_base_b", once), ("base_a_trained_b", once),
        ("trained_open", Pass(1, 2)), ("trained_open", Pass(2, 2)), ("trained_open", greedy),
    ]  # fmt: skip
    assert [(c.name, p) for c, p in found.work(Job())] == [
        ("base_closed", once), ("base_open", once), ("skyline", once), ("floor", once),
        ("base_open", Pass(1, 2)), ("base_open", Pass(2, 2)), ("base_closed", greedy), ("base_open", greedy),
    ]  # fmt: skip
    less = made(
        {"evaluate": {"chats": 1, "repeats": 1, "trained_repeats": 2, "greedy": False, "partners": False}}
    )
    assert [(c.name, p.repeat) for c, p in less.work(Job("closed", 17))] == [
        ("trained_closed", 0), ("trained_closed", 1),
    ]  # fmt: skip
    assert len(less.work(Job())) == 4
    assert [less.repeats(c) for c in less.conditions() if c.name.startswith("base_")] == [1, 1]


def test_runs_on_other_numbers_and_with_partners_are_played_once() -> None:
    found = made({"evaluate": {"perturbed": True}})
    again = {c.name for c in found.conditions() if found.repeats(c) > 1}
    assert again == {"base_open", "trained_open", "trained_closed"}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a key at the top": ({"arm": {}}, r"unknown key 'arm' \(did you mean 'arms'\?\)"),
    "a key of [run]": ({"run": {"step": 3}}, r"\[run\] unknown key 'step' \(did you mean 'steps'\?\)"),
    "a key of an arm": ({"arms": {"open": {"chanel": "open"}}}, r"\[arms\.open\] unknown key 'chanel'.*'channel'"),
    "a key of [evaluate]": ({"evaluate": {"repeat": 3}}, r"unknown key 'repeat' \(did you mean 'repeats'\?\)"),
    "a key of [[compare]]": ({"compare": [{"a": "base_open", "c": "floor"}]}, "unknown key 'c'"),
    "half a comparison": ({"compare": [{"a": "base_open"}]}, "expected a and b"),
    "a number to compare": ({"compare": [{"a": 3, "b": 4}]}, "names of conditions"),
    "a comparison that is no list": ({"compare": {"a": "x", "b": "y"}}, r"expected \[\[compare\]\]"),
    "a condition that is not there": (
        {"compare": [{"a": "trained_opn", "b": "base_open"}]}, r"'trained_opn' \(did you mean 'trained_open'\?\)"),
    "the base before the trained": ({"compare": [{"a": "base_open", "b": "trained_open"}]}, "the trained one as a"),
    "a seed twice": ({"seeds": [17, 18, 17]}, "stands twice"),
    "a seed below 0": ({"seeds": [-1]}, "from 0 on"),
    "a seed that is no number": ({"seeds": ["17"]}, "list of whole numbers"),
    "a seed that is true": ({"seeds": [True]}, "list of whole numbers"),
    "one seed without a list": ({"seeds": 17}, "list of whole numbers"),
    "no seeds": ({"seeds": []}, "at least one each"),
    "no arms": ({"arms": {}}, "at least one each"),
    "a seed in [run]": ({"run": {"seed": 3}}, r"seeds = \[\.\.\.\]"),
    "a method that is not there": ({"run": {"method": "grop"}}, r"'grop' is not known \(did you mean 'grpo'\?\)"),
    "a method that refuses it": ({"arms": {"open": {"method": "ada", "most_chats": 2}}}, "at least chats = 4"),
    "a pool of another table": ({"run": {"pool": "self, C=base"}}, "pool names the seat C"),
    "a seed for a base": ({"on": {"tiny": {"seed": 3}}}, r"seeds = \[\.\.\.\]"),
    "a misspelt setting for another base": (
        {"on": {"other": {"stpes": 3}}}, r"\[on\.other\]: unknown key 'stpes' \(did you mean 'steps'\?\)"),
    "a pool of 100,000 letters": ({"run": {"pool": "x" * 100_000}}, r"pool entry 'x+\.\.\. \(100,002 characters\)"),
    "a seed in an arm": ({"arms": {"open": {"seed": 3}}}, r"\[arms\.open\] sets seed"),
    "a base in an arm": ({"arms": {"open": {"base": "tiny"}}}, r"sets base, which belongs to the whole study"),
    "tasks in an arm": ({"arms": {"open": {"tasks": "gsm8k"}}}, r"sets tasks, which belongs to the whole study"),
    "another table size": ({"arms": {"open": {"order": "ABCABC"}}}, "same seats in every arm"),
    "an arm's name": ({"arms": {"my arm": {}}}, "letters, digits and underscores"),
    "two conditions of one name": ({"arms": {"open": {}, "a_base_b": {}}}, "one name; rename an arm"),
    "an arm that is no table": ({"arms": {"open": 3}}, r"\[arms\.open\] is 3"),
    "[run] that is no table": ({"run": 3}, r"\[run\] is 3"),
    "a value of [run]": ({"run": {"lr": -1.0}}, "lr = -1.0"),
    "a value of an arm": ({"arms": {"open": {"channel": "ajar"}}}, r"\[arms\.open\] channel = 'ajar'"),
    "words for a number": ({"evaluate": {"chats": "two"}}, "chats = 'two': expected a whole number"),
    "a number for true": ({"evaluate": {"greedy": 1}}, "greedy = 1: expected true or false"),
    "no chats": ({"evaluate": {"chats": 0}}, "at least 1"),
    "two seeds that are one": ({"seeds": [17, 17]}, "stands twice"),
    "a seed that no file can hold": ({"seeds": [2**63]}, "from 0 on"),
    "a seed of 5,000 bits": ({"seeds": [2**5000]}, "from 0 on"),
    "a setting that an arm's method does not read": (
        {"arms": {"open": {"most_chats": 9}}}, r"\[arms\.open\] most_chats = 9 changes nothing .* method ada"),
    "a setting that no arm reads": ({"run": {"replay_share": 0.1}}, r"\[run\] replay_share = 0\.1 changes nothing"),
    "an order without seats": ({"run": {"order": ""}}, "order '' cannot be played"),
    "an order with a gap": ({"run": {"order": "AC"}}, "order 'AC' cannot be played"),
    "a seat alone": ({"run": {"order": "A"}}, "at least two seats in training"),
    "a long name": ({"arms": {"a" * 65: {}}}, "at most 64 letters"),
    "guests at no table": (
        {"evaluate": {"guests": ["script:once"], "oracle": True}}, "sets oracle and guests, but cross = 0"),
    "an oracle without dev tasks": (
        {"run": {"dev_tasks": 0}, "evaluate": {"oracle": True, "cross": 5}}, "oracle = true, but dev_tasks = 0"),
    "no trained evaluation": ({"evaluate": {"trained_repeats": 0}}, "trained_repeats = 0: expected at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_study_that_cannot_be_run_is_refused_before_it_starts(fault: str) -> None:
    changes, told = FAULTS[fault]
    with pytest.raises(BadInput, match=told):
        made({"compare": []} | changes)


def test_a_setting_that_one_arm_reads_may_stand_in_run() -> None:
    assert made(
        {"run": {"most_chats": 9}, "arms": {"open": {}, "ada": {"method": "ada"}}, "compare": []}
    ).arms


def test_more_seats_than_a_task_has_facts_are_refused_with_the_first_of_them(tmp_path: Path) -> None:
    tasks = toy_tasks(tmp_path / "sums.jsonl")  # two facts each
    config = toy_config(tasks=str(tasks), order="ABCABC")
    with pytest.raises(
        BadInput, match=r"seats ABC .* not: fewer facts than seats.*sums\.jsonl:1: task 'sum-0'"
    ) as told:
        prepare(config)
    assert told.value.code == "task/too-few"


def test_files_that_are_no_study_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"expected one of.*quickstart.*talk-to-solve"):
        read_study("quickstrat")
    (tmp_path / "bad.toml").write_text("seeds = [17")
    with pytest.raises(BadInput, match="not TOML"):
        read_study(str(tmp_path / "bad.toml"))
    with pytest.raises(BadInput, match=r"absent\.toml"):
        read_study(str(tmp_path / "absent.toml"))


def test_overrides_and_seeds_of_the_command_line_go_over_the_file() -> None:
    assert made(overrides={"steps": 9}).arm("open").steps == 9
    assert read_study("quickstart", {"lr": 0.5}, [1, 2]).seeds == (1, 2)
    with pytest.raises(BadInput, match="--seeds"):
        made(overrides={"seed": 3})
    with pytest.raises(BadInput, match="did you mean 'steps'"):
        made(overrides={"stepps": 3})


def test_the_shipped_studies_can_be_read_and_written_back(tmp_path: Path) -> None:
    for path in sorted(study.STUDIES.glob("*.toml")):
        found = read_study(path.stem)
        again = tmp_path / path.name
        again.write_text(found.as_toml())
        assert read_study(str(again)) == found


def test_another_study_in_the_same_directory_is_refused_with_what_differs(tmp_path: Path) -> None:
    begin(made(), tmp_path, {})
    begin(made(), tmp_path, {})
    (tmp_path / "runs" / "open-17").mkdir(parents=True)  # something was done
    with pytest.raises(BadInput, match=r"run\.lr was 0\.0001 and is now 0\.5.*--out"):
        begin(made({"run": {"steps": 2, "lr": 0.5}}), tmp_path, {})
    with pytest.raises(BadInput, match=r"seeds was \[17, 18\] and is now \[17\]"):
        begin(made({"seeds": [17]}), tmp_path, {})
    with pytest.raises(BadInput, match=r"arms\.open\.lr was not there and is now 0\.5"):
        begin(made({"arms": {"open": {"lr": 0.5}, "closed": {"channel": "closed"}}}), tmp_path, {})


def test_a_study_of_which_nothing_was_done_takes_other_settings(tmp_path: Path) -> None:
    begin(made(), tmp_path, {"train tasks": "a"})
    other = made({"run": {"steps": 2, "lr": 0.5}})
    assert begin(other, tmp_path, {"train tasks": "b"}) == []
    assert read_study(str(tmp_path / "study.toml")).config.lr == 0.5
    assert read_given(tmp_path) == {"train tasks": "b"}


def test_runs_of_another_rank_or_layers_get_a_stack_of_their_own() -> None:
    found = made({"arms": {"open": {}, "closed": {"channel": "closed"}, "wide": {"rank": 64}}})
    groups = [[job.name for job in group] for group in jobs.stackable(found, found.jobs())]
    assert groups == [["open-17", "closed-17", "open-18", "closed-18", "base"], ["wide-17", "wide-18"]]


# --- running -------------------------------------------------------------------------------------------------


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """A study of two arms and two seeds on the toy base, as a file."""
    settings = SETTINGS | dict(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")), device="cpu",
        grade=toy_grader(tmp_path / "grader.py"), steps=2, message_tokens=3, answer_tokens=4,
    )  # fmt: skip
    path = tmp_path / "toy.toml"
    run = "\n".join(f"{k} = {json.dumps(v)}" for k, v in settings.items())
    path.write_text(
        f"seeds = [17, 18]\n[run]\n{run}\n[arms.open]\n[arms.closed]\nchannel = 'closed'\nadapters = 'per_seat'\n"
        "[evaluate]\nrepeats = 2\ntrained_repeats = 3\n[[compare]]\na = 'trained_open'\nb = 'trained_closed'\n"
        "[[compare]]\na = 'trained_open'\nb = 'base_open'\n"
    )
    return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs as one stack in this process, as on a GPU: no workers are started."""
    monkeypatch.setattr(jobs, "in_workers", together)


def files(out: Path) -> dict[str, Any]:
    """Everything that must not depend on how the jobs were shared out."""
    runs = {p.name: everything(p) for p in sorted((out / "runs").iterdir())}
    scores = {str(p.relative_to(out)): p.read_bytes() for p in sorted((out / "scores").rglob("*.jsonl"))}
    arrays = {p.name: p.read_bytes() for p in sorted((out / "outcomes").glob("*.npz"))}
    document = json.loads((out / "results.json").read_text())
    return {"runs": runs, "scores": scores, "arrays": arrays} | {
        k: document[k] for k in ("conditions", "comparisons", "failed", "config")
    }


CONDITIONS = {
    "base_open", "base_closed", "skyline", "floor", "trained_open", "trained_closed", "trained_a_base_b",
    "base_a_trained_b", "trained_closed_a_base_b", "base_a_trained_closed_b",
}  # fmt: skip


GREEDY = {"base_open", "base_closed", "trained_open", "trained_closed"}


@pytest.mark.slow
def test_two_workers_give_what_one_stack_of_all_runs_gives(toml: Path, tmp_path: Path) -> None:
    """Real processes, two of them, against all runs and the base in one stack: every file, every number."""
    found = read_study(str(toml))
    told: list[tuple] = []
    run_study(found, tmp_path / "two", 2, lambda *what: told.append(what[:4]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "in_workers", together)
        run_study(found, tmp_path / "one", 1)
    two, one = files(tmp_path / "two"), files(tmp_path / "one")
    for part in two:
        assert two[part] == one[part], part
    assert {"open-17", "closed-17", "open-18", "closed-18"} == set(two["runs"])
    assert ("closed-18", "train", 2, 2) in told and ("base", "evaluate", 7, 7) in told
    assert ("closed-18", "evaluate", 6, 6) in told  # three conditions, two repeats, one greedy
    _check_results(tmp_path / "two")


def _check_results(out: Path) -> None:
    """The document has issue 2's keys, and its numbers are those of the arrays beside it."""
    document = results.read(out)  # refuses what is not well formed
    assert document["schema"] == 1 and document["study"] == "toy" and document["failed"] == {}
    assert set(document["conditions"]) == CONDITIONS
    for name, condition in document["conditions"].items():
        assert condition.keys() >= {"score", "per_seed", "per_seat", "talk", "greedy", "repeats", "label"}
        assert condition["score"].keys() >= {"mean", "low", "high", "n", "unit"}
        seeds = {"17", "18"} if "trained" in name else {"base"}
        assert set(condition["per_seed"]) == seeds
        assert set(condition["per_seat"]) == ({"A"} if name == "skyline" else {"A", "B"})
        assert (condition["greedy"] is not None) == (name in GREEDY)
        with np.load(out / "outcomes" / f"{name}.npz") as arrays:
            shape = (len(seeds), 3, 2, len(condition["per_seat"]))
            assert arrays["outcomes"].shape == arrays["strict"].shape == arrays["parsed"].shape == shape
            assert list(arrays["tasks"]) == ["sum-0", "sum-1", "sum-2"]
            assert condition["score"]["mean"] == pytest.approx(arrays["outcomes"].mean())
        often = {"base_open": 2, "trained_open": 3, "trained_closed": 3}.get(name, 1)
        assert len(condition["repeats"]) == often
        assert condition["repeats"][0] == pytest.approx(condition["score"]["mean"])
        for seed, row in condition["repeats_per_seed"].items():
            assert len(row) == often and row[0] == pytest.approx(condition["per_seed"][seed])
    # the repeats are the means of what was played again, and the score is not their mean
    for run in ("open-17", "open-18"):
        passes = [out / "scores/trained_open" / f"{run}{part}.jsonl" for part in ("", ".repeat1", ".repeat2")]
        means = [np.mean([json.loads(line)["reward"] for line in p.read_text().splitlines()]) for p in passes]
        assert document["conditions"]["trained_open"]["repeats_per_seed"][run[-2:]] == pytest.approx(means)
        assert len({p.read_text() for p in passes}) == 3
    assert [(c["a"], c["b"]) for c in document["comparisons"]] == [
        ("trained_open", "trained_closed"), ("trained_open", "base_open"),
    ]  # fmt: skip
    assert document["cost"]["workers"] == 2 and document["cost"]["training_tokens_sampled"] > 0


@pytest.mark.slow
def test_a_study_with_cross_play_fills_its_matrix_and_evaluate_cross_fills_the_whole_one(
    toml: Path, tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = "[evaluate]\ncross = 2\noracle = true\nguests = ['script:terse']"
    toml.write_text(toml.read_text().replace("[evaluate]", evaluate))
    out = tmp_path / "out"
    assert cli.main(["study", str(toml), "--out", str(out)]) == 0
    assert "cross-play: A's own score out of 100" in " ".join(capsys.readouterr().out.split())
    document = results.read(out)
    found = document["cross_play"]
    names = ["open-17", "open-18", "base", "script:terse"]  # a closed run plays another game
    assert [player["name"] for player in found["players"]] == names
    assert (found["tasks"], found["chats"], len(found["cells"])) == (
        2,
        1,
        15,
    )  # 16, less a script with itself
    assert set(found["arms"]) == {"open"} and set(found["oracle"]) == {"base"}
    assert found["comparisons"] == []
    assert set(document["reliability"]) == {"open", "closed"}
    assert cli.main(["evaluate", "--cross", str(out), "--chats-per-task", "2", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["tasks"], whole["chats"]) == (3, 2)
    assert results.read(out)["cross_play"] == whole


@pytest.mark.slow
def test_a_matrix_has_the_rank_of_the_runs_that_it_seats(toml: Path, tmp_path: Path, here: None) -> None:
    """The study's first arm plays another game, with adapters of another rank: no row of the matrix's stack."""
    text = toml.read_text().replace(
        "[arms.open]", "[arms.apart]\nchannel = 'closed'\nrank = 2\n\n[arms.open]"
    )
    toml.write_text(text.replace("[evaluate]", "[evaluate]\ncross = 2"))
    found = run_study(read_study(str(toml)), tmp_path / "out")["cross_play"]
    assert [player["name"] for player in found["players"]] == ["open-17", "open-18", "base"]


@pytest.mark.slow
def test_cross_play_of_a_run_that_failed_is_played_when_it_succeeds(
    toml: Path, tmp_path: Path, here: None
) -> None:
    method = tmp_path / "sometimes.py"
    method.write_text(FAILING)
    (tmp_path / "trouble").touch()
    text = toml.read_text().replace("[arms.open]", f"[arms.open]\nmethod = '{method}:Sometimes'")
    toml.write_text(text.replace("[evaluate]", "[evaluate]\ncross = 2"))
    study = read_study(str(toml))
    found = run_study(study, tmp_path / "out")["cross_play"]
    assert "open-18" not in [player["name"] for player in found["players"]]
    (tmp_path / "trouble").unlink()
    found = run_study(study, tmp_path / "out")["cross_play"]
    assert len(found["players"]) == 3 and len(found["cells"]) == 9


def test_evaluate_cross_wants_a_study_that_was_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", "--cross", str(tmp_path)]) == 2
    assert "expected the directory of a study that was run" in " ".join(capsys.readouterr().err.split())


def test_settings_of_a_base_are_laid_over_run_where_the_base_is_that_one() -> None:
    table = {"run": {"base": "big", "steps": 2, "lr": 0.1}, "on": {"tiny": {"lr": 0.5, "tasks": "puzzles"}}}
    assert made(table).config.lr == 0.1
    small = made(table, {"base": "tiny"})
    assert (small.config.base, small.config.lr, small.config.steps) == ("tiny", 0.5, 2)
    assert made(table, {"base": "tiny", "lr": 0.7}).config.lr == 0.7  # the command line has the last word
    with pytest.raises(BadInput, match=r"\[on\.tiny\]: unknown key 'lrr' \(did you mean 'lr'"):
        made({"on": {"tiny": {"lrr": 1}}}, {"base": "tiny"})


def test_a_study_that_goes_on_adds_to_what_it_cost_and_keeps_its_price(tmp_path: Path) -> None:
    found = read_study("quickstart")
    first = collect.cost(found, tmp_path, 100.0, 2, price=3.0)
    assert (first["seconds"], first["price_per_hour"]) == (100.0, 3.0)
    assert "price_per_hour" not in collect.cost(found, tmp_path, 100.0, 2)
    document = json.loads(Path("results/quickstart/results.json").read_text())
    results.write(tmp_path / "results.json", document | {"cost": first})
    again = collect.cost(found, tmp_path, 1.5, 2)
    assert (again["seconds"], again["price_per_hour"]) == (101.5, 3.0)
    assert collect.cost(found, tmp_path, 1.5, 2, price=0.0)["price_per_hour"] == 0.0
    (tmp_path / "results.json").write_text("{")
    assert collect.cost(found, tmp_path, 1.5, 2)["seconds"] == 1.5


def test_each_of_several_gpus_counts_in_what_a_study_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call on one GPU, then one on three; two workers of a CPU are one machine."""
    found = read_study("quickstart")
    assert collect.cost(found, tmp_path, 100.0, 2)["device_seconds"] == 100.0
    monkeypatch.setattr(collect, "pick_device", lambda device: "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    document = json.loads(Path("results/quickstart/results.json").read_text())
    results.write(tmp_path / "results.json", document | {"cost": collect.cost(found, tmp_path, 100.0, 1)})
    both = collect.cost(found, tmp_path, 50.0, 3)
    assert (both["seconds"], both["device_seconds"]) == (150.0, 250.0)


FAILING = """
from pathlib import Path

from cotalk.methods import GRPO

class Sometimes(GRPO):
    def __init__(self, config):
        super().__init__(config)
        self.seed, self.credits = config.seed, 0

    def credit(self, group):
        self.credits += 1
        if self.seed == 18 and self.credits == 3 and Path(__file__).with_name("trouble").exists():  # its second step
            raise ZeroDivisionError("no luck")
        super().credit(group)
"""


@pytest.mark.slow
def test_a_run_that_fails_is_marked_and_retried_alone_while_the_others_finish(
    toml: Path, tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    method = tmp_path / "sometimes.py"
    method.write_text(FAILING)
    (tmp_path / "trouble").touch()
    toml.write_text(toml.read_text().replace("[arms.open]", f"[arms.open]\nmethod = '{method}:Sometimes'"))
    out = tmp_path / "out"
    assert cli.main(["study", str(toml), "--out", str(out)]) == 1
    shown = capsys.readouterr()
    assert "ZeroDivisionError: no luck" in shown.err and "open-18" in shown.err

    document = results.read(out)
    why = f"method '{method}:Sometimes': its credit failed: ZeroDivisionError: no luck ({method}, line 14)"
    assert document["failed"] == {"open-18": why}
    assert set(document["conditions"]["trained_open"]["per_seed"]) == {"17"}
    assert set(document["conditions"]["trained_closed"]["per_seed"]) == {"17", "18"}
    reason = json.loads((out / "runs" / "open-18" / "failed.json").read_text())["reason"]
    assert "no luck" in reason and "sometimes.py" in reason  # with the traceback
    assert not (out / "runs" / "open-18" / "done.json").exists()
    before = {name: everything(out / "runs" / name) for name in ("open-17", "closed-17", "closed-18")}

    (tmp_path / "trouble").unlink()  # the command is the same, and what it names
    told: list[tuple] = []
    document = run_study(read_study(str(toml)), out, 1, lambda *what: told.append(what[:4]))
    assert document["failed"] == {} and not list(out.rglob("failed.json"))
    assert [what for what in told if what[1] == "train"] == [
        ("open-18", "train", 1, 2),
        ("open-18", "train", 2, 2),
    ]
    assert {name: everything(out / "runs" / name) for name in before} == before
    assert set(document["conditions"]["trained_open"]["per_seed"]) == {"17", "18"}


@pytest.mark.slow
def test_an_evaluation_that_fails_is_marked_and_its_mark_goes_when_it_succeeds(
    toml: Path, tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base has no training that could take the mark away."""
    play_pass = jobs.evaluate

    def sick(evaluation: Any, work: Any) -> Any:
        if evaluation.run == "base":
            raise OSError("disk full")
        return play_pass(evaluation, work)

    monkeypatch.setattr(jobs, "evaluate", sick)
    document = run_study(read_study(str(toml)), tmp_path / "out")
    assert document["failed"] == {"base": "OSError: disk full"}
    assert (tmp_path / "out" / "runs" / "base" / "failed.json").is_file()
    assert "base_open" not in document["conditions"] and len(document["comparisons"]) == 1
    monkeypatch.setattr(jobs, "evaluate", play_pass)
    assert run_study(read_study(str(toml)), tmp_path / "out")["failed"] == {}
    assert not list((tmp_path / "out").rglob("failed.json"))


def test_when_every_run_fails_the_study_fails_with_the_reasons(
    toml: Path, tmp_path: Path, here: None
) -> None:
    (tmp_path / "grader.py").write_text("def pay(text, gold):\n    raise ValueError('no grade')\n")
    with pytest.raises(RunFailed, match=r"every run of study toy failed.*no grade"):
        run_study(read_study(str(toml)), tmp_path / "out")


@pytest.mark.parametrize("key", ["method", "grade"])
def test_a_file_that_is_not_there_is_bad_input_not_six_failed_runs(
    key: str, toml: Path, tmp_path: Path, here: None
) -> None:
    name = str(tmp_path / "absent.py") + ":Class"
    with pytest.raises(BadInput, match=r"absent\.py"):
        run_study(read_study(str(toml), {key: name}), tmp_path / "out")


def test_held_out_train_and_dev_share_no_task(toml: Path) -> None:
    tasks = prepare(read_study(str(toml)).config)
    names = [{d.task.id for d in part} for part in (tasks.heldout, tasks.train, tasks.dev)]
    assert [len(n) for n in names] == [3, 8, 2]
    assert len(set.union(*names)) == 13


# --- workers -------------------------------------------------------------------------------------------------


def process(exitcode: int | None) -> Any:
    return SimpleNamespace(exitcode=exitcode)


class Told:
    """A queue of what workers say; then silence."""

    def __init__(self, *what: tuple):
        self.what = list(what)

    def get(self, timeout: float) -> tuple:
        if not self.what:
            raise queue.Empty
        return self.what.pop(0)


def test_a_worker_that_dies_without_a_word_ends_the_study() -> None:
    with pytest.raises(RunFailed, match="exit code -9"):
        workers._listen([process(-9), process(None)], Told(("end", 1)), lambda *_: None)
    with pytest.raises(RunFailed, match="exit code 0"):
        workers._listen([process(0), process(0)], Told(("end", 0)), lambda *_: None)


def test_how_a_worker_ends_after_its_last_word_fails_nothing() -> None:
    """An interpreter may crash as it is taken down, with all its work on disk."""

    class Slow(Told):
        def get(self, timeout: float) -> tuple:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked == 2:
                raise queue.Empty
            return super().get(timeout)

    assert workers._listen([process(-11), process(None)], Slow(("end", 0), ("end", 1)), lambda *_: None) == {}


def test_what_workers_say_is_passed_on() -> None:
    seen: list[tuple] = []
    told = Told(
        ("progress", "open-17", "train"),
        ("failures", {"a": "x"}),
        ("end", 0),
        ("failures", {"b": "y"}),
        ("end", 1),
    )
    assert workers._listen([process(None)] * 2, told, lambda *what: seen.append(what)) == {"a": "x", "b": "y"}
    assert seen == [("open-17", "train")]
    with pytest.raises(BadInput, match="no such base"):
        workers._listen([process(None)], Told(("error", BadInput("no such base"))), lambda *_: None)


GPU_SHARES = [
    (Job("open", 1), Job("open", 3), Job("closed", 2), Job()),
    (Job("open", 2), Job("closed", 1), Job("closed", 3)),
]


def test_several_gpus_share_the_seeds_of_every_arm_and_a_cpus_workers_take_job_after_job() -> None:
    found = study_from(
        "toy", {"seeds": [1, 2, 3], "arms": {"open": {}, "closed": {}}}, None, None, "toy.toml"
    ).jobs()
    assert [tuple(share) for share in workers.shares(found, 2, gpus=True)] == GPU_SHARES
    assert len(workers.shares(found, 9, gpus=True)) == 7  # a GPU without a job is none
    assert workers.shares(found, 2, gpus=False) == [[job] for job in found]


def test_how_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 4)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [workers.how_many(asked, "cpu", 3) for asked in (0, 2, 9)] == [3, 2, 3]
    assert [workers.how_many(asked, "cuda", 3) for asked in (0, 1, 2)] == [1, 1, 2]
    assert workers.how_many(1, "cuda:1", 3) == 1
    with pytest.raises(BadInput, match="--workers 3: torch sees 2 GPU"):
        workers.how_many(3, "cuda", 7)
    with pytest.raises(BadInput, match='device = "cuda:1", which is one GPU'):
        workers.how_many(2, "cuda:1", 7)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [(None, ["0", "1"]), ("", ["0", "1"]), ("2, 5", ["2", "5"]), ("GPU-8f2a,GPU-77", ["GPU-8f2a", "GPU-77"])],
)
def test_each_gpu_worker_sees_one_gpu(
    monkeypatch: pytest.MonkeyPatch, seen: str | None, expected: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    assert [workers.visible_gpu(number) for number in (0, 1)] == expected


def sees(out: Path, share: list[Any], progress: Any) -> dict[str, str]:
    """Waits for the other process, so that each has a share."""
    (out / str(share[0])).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
    deadline = time.monotonic() + 120
    while len(list(out.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    progress("job", "train", 1, 1, {})
    return {str(share[0]): "a failure"}


def falls(out: Path, share: list[Any], progress: Any) -> dict[str, str]:
    raise ValueError("no such thing")


def test_gpu_workers_are_processes_that_see_a_gpu_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes, without a GPU: what they see, say and bring back."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    told: list[tuple] = []
    large = b"x" * 300_000  # more than a pipe holds: no start waits for it to be read
    shared = [["one", large], ["two", large]]
    found = workers.in_workers(sees, (tmp_path,), shared, 2, True, lambda *what: told.append(what))
    assert found == {"one": "a failure", "two": "a failure"} and len(told) == 2
    assert {path.read_text() for path in tmp_path.iterdir()} == {"4", "7"}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"


def test_what_a_worker_could_not_foresee_is_told_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="a worker failed: ValueError: no such thing"):
        workers.in_workers(falls, (tmp_path,), [["one"]], 1, True, lambda *_: None)


def test_one_gpu_is_one_stack_of_this_process_and_two_are_two_shares(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which way a study goes on GPUs; what is played there, tests/gpu has."""
    ways: list[Any] = []
    monkeypatch.setattr(jobs, "pick_device", lambda device: "cuda")
    monkeypatch.setattr(jobs, "run_jobs", lambda s, o, t, owed, p: ways.append(("here", owed)) or {})
    monkeypatch.setattr(
        jobs, "in_workers", lambda do, what, shared, n, gpus, p: ways.append((n, gpus, shared)) or {}
    )
    found = read_study(str(toml))
    tasks = prepare(found.config)
    for count in (1, 2, 9):
        jobs._shared_out(found, tmp_path, tasks, found.jobs(), count, lambda *_: None)
    assert ways[0] == ("here", found.jobs())
    assert [way[:2] for way in ways[1:]] == [(2, True), (5, True)]  # four runs and the base
    for _, _, shared in ways[1:]:
        assert sorted(str(job) for share in shared for job in share) == sorted(map(str, found.jobs()))


@pytest.mark.slow
def test_shares_in_two_processes_give_what_one_stack_gives(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack a process, as on two GPUs, here on a CPU; begun so, and ended by the study's command."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the processes: the same bits
    found = read_study(str(toml))
    tasks = prepare(found.config)
    jobs.begin(found, tmp_path / "shared", {})
    shared = workers.shares(found.jobs(), 2, gpus=True)
    assert {len(share) for share in shared} == {2, 3}
    what = (found, tmp_path / "shared", tasks)
    assert workers.in_workers(run_jobs, what, shared, 2, True, lambda *_: None) == {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "in_workers", together)
        run_study(found, tmp_path / "shared", 1)
        run_study(found, tmp_path / "one", 1)
    two, one = files(tmp_path / "shared"), files(tmp_path / "one")
    for part in two:
        assert two[part] == one[part], part


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.is_file() else []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")
def test_a_study_killed_with_kill_9_leaves_no_worker_behind_and_goes_on_to_the_same_result(
    toml: Path, tmp_path: Path
) -> None:
    """A worker that lived on would write the same files beside those of the next command."""
    found = read_study(str(toml), {"steps": 24})
    source = str(Path(study.__file__).parents[1])
    command = ["study", str(toml), "--out", str(tmp_path / "killed"), "--set", "steps=24"]
    parent = subprocess.Popen(
        [sys.executable, "-m", "cotalk.cli", *command],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list((tmp_path / "killed").rglob("step-000004.safetensors")):
        time.sleep(0.01)
    workers = children(parent.pid)
    assert len(workers) >= 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    time.sleep(3)  # far less than the work that is left to them
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not (tmp_path / "killed" / "results.json").exists()
    run_study(found, tmp_path / "killed", 2)
    run_study(found, tmp_path / "whole", 1)
    killed, whole = files(tmp_path / "killed"), files(tmp_path / "whole")
    for part in whole:
        assert killed[part] == whole[part], part


def test_the_evaluate_table_has_the_settings_of_the_published_evaluation_by_default() -> None:
    assert Evaluate() == Evaluate(chats=2, repeats=3, trained_repeats=3, greedy=True, partners=True)


# --- controls: chance rewards, other numbers, replaced messages --------------------------------------------------


@pytest.mark.slow
def test_the_controls_of_a_study_are_one_switch_each(here: None, tmp_path: Path) -> None:
    """An arm paid by chance, held-out puzzles with other numbers, and messages replaced, down to results.json."""
    run = {
        "base": str(toy_base(tmp_path / "base")), "tasks": "puzzles", "device": "cpu", "steps": 2, "problems": 1,
        "train_tasks": 4, "dev_tasks": 1, "heldout_tasks": 3, "message_tokens": 3, "answer_tokens": 4,
        "rank": 4, "alpha": 8.0,
    }  # fmt: skip
    table = {
        "seeds": [17, 18],
        "run": run,
        "arms": {"open": {}, "random": {"reward": "random"}},
        "evaluate": {"partners": False, "perturbed": True, "causal": ["nothing"], "margin": 0.1},
        "compare": [{"a": "trained_open", "b": "trained_random"}],
    }
    found = study_from("controls", table, None, None, "controls.toml")
    document = run_study(found, tmp_path / "out", 1)
    assert results.check(document) == [] and document["failed"] == {}
    assert {"trained_random", "trained_open_perturbed", "base_open_perturbed"} <= set(document["conditions"])
    assert document["perturbed"] == {"dealt": 3, "refused": {}}
    # ABAB: turns 0, 1, 2 and A's two together; of each arm, the effects of "nothing"
    for arm in ("open", "random"):
        effects = document["causal"][f"trained_{arm}"]
        assert [e["turns"] for e in effects] == [[0], [1], [2], [0, 2]]
        assert {e["by"] for e in effects} == {"nothing"}
    assert document["comparisons"][0]["margin"] == 0.1
    # chance pays whole chats 0 or 1, whatever was answered; evaluation is still graded on answers
    lines = [
        json.loads(line) for line in (tmp_path / "out/runs/random-17/chats.jsonl").read_text().splitlines()
    ]
    assert {line["reward"] for line in lines} == {0.0, 1.0}
    assert not any(answer["strict"] for line in lines for answer in line["answers"].values())
    assert document["conditions"]["trained_random"]["score"]["mean"] == 0.0
    # other numbers: the same tasks by name, other facts
    plain = (tmp_path / "out/scores/trained_open/open-17.jsonl").read_text().splitlines()
    other = (tmp_path / "out/scores/trained_open_perturbed/open-17.jsonl").read_text().splitlines()
    for a, b in zip(map(json.loads, plain), map(json.loads, other), strict=True):
        assert b["task"].startswith(a["task"]) and a["hands"] != b["hands"]


def test_unseen_templates_are_played_beside_the_held_out_tasks(here: None, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    run = {
        "base": str(toy_base(tmp_path / "base")), "tasks": "gsm_symbolic", "device": "cpu", "steps": 1, "problems": 1,
        "train_tasks": 4, "dev_tasks": 0, "heldout_tasks": 3, "message_tokens": 3, "answer_tokens": 4,
        "chats": 2, "rank": 4, "alpha": 8.0,
    }  # fmt: skip
    evaluation = {
        "partners": False, "unseen": 4, "repeats": 1, "trained_repeats": 1, "chats": 1, "greedy": False,
    }  # fmt: skip
    table = {"seeds": [17, 18], "run": run, "arms": {"open": {}}, "evaluate": evaluation}
    document = run_study(study_from("unseen", table, None, None, "u.toml"), tmp_path / "out", 1)
    assert results.check(document) == [] and document["failed"] == {}
    other = {n: c["size"]["tasks"] for n, c in document["conditions"].items() if n.endswith("_unseen")}
    names = ("base_open_unseen", "base_closed_unseen", "skyline_unseen", "trained_open_unseen")
    assert other == dict.fromkeys(names, 4)
    assert document["conditions"]["trained_open"]["size"]["tasks"] == 3
    played = Score.load(tmp_path / "out/outcomes/trained_open_unseen.npz")
    unseen = {str(index) for index in UNSEEN_TEMPLATES}
    assert set(played.clusters) <= unseen  # intervals are clustered by template
    assert not set(Score.load(tmp_path / "out/outcomes/trained_open.npz").clusters) & unseen
    assert document["tasks"]["unseen"]["dealt"] == 4


@pytest.mark.parametrize(
    ("evaluation", "told"),
    [
        ({"unseen": -1}, "unseen = -1: expected at least 0"),
        ({"causal": ["silence"]}, "replaced by 'silence'"),
        ({"causal": True}, "a list of words"),
        ({"margin": 1.5}, "margin = 1.5: expected at least 0 and below 1"),
        ({"margin": "big"}, "a number"),
        ({"perturbed": 1}, "true or false"),
    ],
)
def test_a_control_that_is_misspelt_is_refused(evaluation: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        made({"evaluate": evaluation})


def test_conditions_on_other_tasks_are_not_compared() -> None:
    pair = [{"a": "trained_open_perturbed", "b": "trained_closed"}]
    with pytest.raises(BadInput, match="both on the same tasks"):
        made({"evaluate": {"perturbed": True}, "compare": pair})
