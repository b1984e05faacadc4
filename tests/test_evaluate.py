"""Conditions: who sits where, through which channel, with which hand; and scores read back from disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import deals, small_base
from cotalk.chat import BASE, Player
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.engines import Engine, Table
from cotalk.engines.hf import HfEngine
from cotalk.errors import RunFailed
from cotalk.evaluate import (
    Condition,
    Evaluation,
    Pass,
    arm_conditions,
    base_conditions,
    evaluate,
    outcomes,
    read_score,
)
from cotalk.lora import Stack
from cotalk.stack import drive
from cotalk.task import Task
from toy import Dying, Killed, pay, toy_config

CLOSED, OPEN, SKYLINE, FLOOR = base_conditions()


def stand(
    path: Path, run: str = "base", seed: int = 0, trained: bool = False, grader: Any = pay, **changes: Any
):
    """An evaluation on three held-out tasks and an engine for it; a trained run sits at adapters 1 and 2."""
    base = small_base()
    stack = Stack(base.model, 2, rank=4, alpha=8.0)
    for k in (1, 2):
        stack.initialise(k, 17, k)
        for p in list(stack.parameters(k).values())[1::2]:
            p.data.fill_(0.05 * k)
        stack.changed(k)
    own = {seat: Player("learner", 1 + i, learns=True) for i, seat in enumerate("AB")} if trained else {}
    config = toy_config(**changes)
    evaluation = Evaluation(path, run, seed, config, deals(3), base.form, own, grader)
    return evaluation, Table(HfEngine(stack, base.form.end_ids))


def run_passes(evaluation: Evaluation, engine: Engine, work: list[tuple[Condition, Pass]]) -> None:
    def failed(_: str, error: Exception) -> None:
        raise error

    drive({"it": evaluate(evaluation, work)}, engine, failed)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def said(lines: list[dict[str, Any]]) -> list[list[str]]:
    return [[m["said"] for m in line["messages"]] for line in lines]


# --- conditions ----------------------------------------------------------------------------------------------


def test_the_conditions_of_the_base_and_of_the_arms_have_the_names_of_the_schema() -> None:
    assert [c.name for c in base_conditions()] == ["base_closed", "base_open", "skyline", "floor"]
    config = Config()
    assert [c.name for c in arm_conditions("open", config, True)] == [
        "trained_open", "trained_a_base_b", "base_a_trained_b",
    ]  # fmt: skip
    assert [c.name for c in arm_conditions("closed", Config(channel="closed"), True)] == [
        "trained_closed", "trained_closed_a_base_b", "base_a_trained_closed_b",
    ]  # fmt: skip
    assert [c.name for c in arm_conditions("open", config, False)] == ["trained_open"]
    three = arm_conditions("open", Config(order="ABCABC"), True)
    assert [(c.name, c.trained) for c in three] == [
        ("trained_open", "ABC"), ("trained_a_base_bc", "A"), ("base_a_trained_bc", "BC"),
    ]  # fmt: skip


def test_players_hands_channels_and_orders_are_those_of_the_condition(tmp_path: Path) -> None:
    """Read off the chat lines: who played, who held what, what was heard."""
    full = ["Ann has 3 apples.", "Bob has 4 apples."]
    both = {"A": full[:1], "B": full[1:]}
    work = [*base_conditions(), *arm_conditions("open", Config(), True)]
    base, engine = stand(tmp_path)
    run_passes(base, engine, [(c, Pass(chats=1)) for c in work[:4]])
    trained, engine = stand(tmp_path, "open-17", 17, trained=True)
    run_passes(trained, engine, [(c, Pass(chats=1)) for c in work[4:]])
    expected = {
        "base_closed": ("ABAB", {"A": "base", "B": "base"}, both, "closed"),
        "base_open": ("ABAB", {"A": "base", "B": "base"}, both, "open"),
        "skyline": ("A", {"A": "base"}, {"A": full}, "open"),
        "floor": ("A", {"A": "base"}, {"A": full[:1]}, "closed"),
        "trained_open": ("ABAB", {"A": "learner", "B": "learner"}, both, "open"),
        "trained_a_base_b": ("ABAB", {"A": "learner", "B": "base"}, both, "open"),
        "base_a_trained_b": ("ABAB", {"A": "base", "B": "learner"}, both, "open"),
    }
    for condition in work:
        run = "open-17" if condition.arm else "base"
        lines = read(tmp_path / "scores" / condition.name / f"{run}.jsonl")
        first = lines[0]
        assert (first["order"], first["players"], first["hands"], first["channel"]) == expected[
            condition.name
        ]
        assert all(line["condition"] == condition.name and line["step"] is None for line in lines)
        heard = {m["heard"] for line in lines for m in line["messages"]}
        assert (heard == {"(no message)"}) == (condition.channel == "closed")
        assert all(m["credit"] is None for line in lines for m in line["messages"])
        tokens = [m["tokens"] for m in first["messages"]]
        assert max(tokens) <= 7 and (len(tokens) == 1 or max(tokens[:2]) <= 5)  # budgets as in training
    halves = read(tmp_path / "scores" / "floor" / "base.jsonl")
    assert [(line["task"], line["half"], line["hands"]["A"]) for line in halves[:2]] == [
        ("sum-0", "A", full[:1]), ("sum-0", "B", full[1:]),
    ]  # fmt: skip
    assert halves[0]["messages"][0]["said"] != halves[1]["messages"][0]["said"]


def test_a_seats_words_come_from_the_adapter_that_sits_there(tmp_path: Path) -> None:
    """A's first message, greedily: the learner's A where A is trained, the base's where it is not."""
    trained, engine = stand(tmp_path, "open-17", 17, trained=True)
    conditions = arm_conditions("open", Config(), True)
    run_passes(trained, engine, [(c, Pass(chats=1, greedy=True)) for c in conditions])
    base, engine = stand(tmp_path)
    run_passes(base, engine, [(OPEN, Pass(chats=1, greedy=True))])

    def opening(condition: str, run: str, turn: int) -> list[str]:
        return [words[turn] for words in said(read(tmp_path / "scores" / condition / f"{run}.greedy.jsonl"))]

    both, a_only, b_only = (opening(c.name, "open-17", 0) for c in conditions)
    untrained = opening("base_open", "base", 0)
    assert both == a_only != untrained == b_only
    # B hears the same A in `trained_open` and in `trained_a_base_b`, and answers with another adapter
    assert opening("trained_open", "open-17", 1) != opening("trained_a_base_b", "open-17", 1)


def test_a_pass_that_is_on_disk_is_not_played_again_and_one_that_is_not_is_whole(tmp_path: Path) -> None:
    evaluation, engine = stand(tmp_path)
    work = [(CLOSED, Pass(chats=2)), (OPEN, Pass(chats=2)), (SKYLINE, Pass(chats=2))]
    with pytest.raises(Killed):
        run_passes(evaluation, Dying(engine, 6), work)  # 4 calls for the first; killed in the second
    assert [p.name for p in (tmp_path / "scores").iterdir()] == ["base_closed"]
    first = (tmp_path / "scores" / "base_closed" / "base.jsonl").read_bytes()
    again = Dying(stand(tmp_path)[1], 10_000)
    run_passes(evaluation, again, work)
    assert again.calls == 4 + 1
    run_passes(evaluation, Dying(engine, 0), work)  # nothing is owed: not one call
    assert (tmp_path / "scores" / "base_closed" / "base.jsonl").read_bytes() == first
    whole, engine = stand(tmp_path / "whole")
    run_passes(whole, engine, work)
    for path in (tmp_path / "whole" / "scores").rglob("*.jsonl"):
        assert path.read_bytes() == (tmp_path / path.relative_to(tmp_path / "whole")).read_bytes()


def test_repeats_conditions_and_seeds_draw_other_numbers_and_the_same_ones_draw_the_same(
    tmp_path: Path,
) -> None:
    evaluation, engine = stand(tmp_path)
    run_passes(evaluation, engine, [(OPEN, Pass(i)) for i in range(3)])
    lines = [read(evaluation.path(OPEN, Pass(i))) for i in range(3)]
    assert [line["repeat"] for some in lines for line in some] == [0] * 6 + [1] * 6 + [2] * 6
    first = [words[0] for some in lines for words in said(some)]
    assert len(set(first)) == 18  # 3 repeats x 3 tasks x 2 chats
    other, engine = stand(tmp_path / "seed", seed=1)
    run_passes(other, engine, [(OPEN, Pass())])
    assert said(read(other.path(OPEN, Pass()))) != said(lines[0])
    same, engine = stand(tmp_path / "same")
    run_passes(same, engine, [(OPEN, Pass())])
    assert read(same.path(OPEN, Pass())) == lines[0]
    again = Condition("base_again", "", "open")
    run_passes(same, engine, [(again, Pass())])
    assert said(read(same.path(again, Pass()))) != said(lines[0])


def test_no_two_replies_of_an_evaluation_share_a_random_key(tmp_path: Path) -> None:
    """Open three times and closed: 4 passes of 6 chats of 4 turns; skyline 6 chats and floor 12, of one turn."""
    evaluation, engine = stand(tmp_path)
    asked: list[int] = []

    class Listening:
        def reply(self, batches: Any) -> Any:
            asked.extend(view.key for batch in batches for view in batch)
            return engine.reply(batches)

    work = [(c, Pass()) for c in base_conditions()] + [(OPEN, Pass(i)) for i in (1, 2)]
    run_passes(evaluation, Listening(), work)
    assert len(asked) == 4 * 6 * 4 + 6 + 12
    assert len(set(asked)) == len(asked)


def test_a_greedy_pass_is_one_chat_a_task_at_temperature_0(tmp_path: Path) -> None:
    for seed in (0, 1):
        evaluation, engine = stand(tmp_path / str(seed), seed=seed)
        run_passes(evaluation, engine, [(OPEN, Pass(chats=1, greedy=True))])
    paths = [tmp_path / str(seed) / "scores" / "base_open" / "base.greedy.jsonl" for seed in (0, 1)]
    assert len(read(paths[0])) == 3
    assert said(read(paths[0])) == said(read(paths[1]))  # no random number is in it


# --- reading back --------------------------------------------------------------------------------------------


def line(task: str, chat: int, half: str = "", **seats: tuple[float, bool, bool, bool]) -> dict[str, Any]:
    answers = {
        s: {"answer": "", "strict": x, "lenient": y, "parsed": z, "notes": []}
        for s, (_, x, y, z) in seats.items()
    }
    found = {"task": task, "chat": chat, "answers": answers, "rewards": {s: v[0] for s, v in seats.items()}}
    return found | ({"half": half} if half else {})


RIGHT, BARE, WRONG = (1.0, True, True, True), (0.0, False, True, False), (0.0, False, False, True)


def test_outcomes_worked_out() -> None:
    """Two tasks, two chats, two seats, the lines in no order."""
    lines = [
        line("t1", 1, A=WRONG, B=RIGHT),
        line("t0", 0, A=RIGHT, B=BARE),
        line("t1", 0, A=BARE, B=BARE),
        line("t0", 1, B=WRONG, A=(0.25, False, False, False)),  # a grader's fraction
    ]
    found = outcomes(lines, ["t0", "t1"], Path("x"))
    assert found["seats"] == ["A", "B"]
    assert found["outcomes"].tolist() == [[[1, 0], [0.25, 0]], [[0, 0], [0, 1]]]
    assert found["strict"].tolist() == [[[1, 0], [0, 0]], [[0, 0], [0, 1]]]
    assert found["lenient"].tolist() == [[[1, 1], [0, 0]], [[1, 1], [0, 1]]]
    assert found["parsed"].tolist() == [[[1, 0], [0, 1]], [[0, 0], [1, 1]]]


def test_half_hands_are_the_seats_of_the_floor() -> None:
    lines = [line("t0", 0, "A", A=RIGHT), line("t0", 0, "B", A=WRONG)]
    found = outcomes(lines, ["t0"], Path("x"))
    assert found["seats"] == ["A", "B"] and found["outcomes"].tolist() == [[[1, 0]]]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "no chats"),
        ([line("t0", 0, A=RIGHT, B=RIGHT)], "2 tasks x 1 chats"),
        ([line("t0", 0, A=RIGHT), line("t1", 1, A=RIGHT)], "2 tasks x 2 chats"),
        ([line("t0", 0, A=RIGHT), line("t9", 0, A=RIGHT)], "'t9'"),
    ],
)
def test_a_pass_with_missing_or_foreign_chats_is_refused(lines: list, told: str) -> None:
    with pytest.raises(RunFailed, match=told):
        outcomes(lines, ["t0", "t1"], Path("x"))


def test_a_score_is_read_from_disk_runs_by_tasks_by_chats_by_seats(tmp_path: Path) -> None:
    condition = arm_conditions("open", Config(), False)[0]
    for seed in (17, 18):
        evaluation, engine = stand(tmp_path, f"open-{seed}", seed, trained=True)
        run_passes(evaluation, engine, [(condition, Pass()), (condition, Pass(chats=1, greedy=True))])
    runs: dict[str, int | None] = {"open-17": 17, "open-18": 18}
    score = read_score(tmp_path, condition, runs, deals(3))
    assert score.outcomes.shape == (2, 3, 2, 2) and score.seeds == (17, 18) and score.seats == ("A", "B")
    assert score.tasks == ("sum-0", "sum-1", "sum-2") and score.repeats == () and score.decoding == "sampled"
    for at, run in enumerate(runs):
        for chat in read(tmp_path / "scores" / "trained_open" / f"{run}.jsonl"):
            place = score.tasks.index(chat["task"])
            assert score.outcomes[at, place, chat["chat"]].tolist() == [
                chat["rewards"]["A"],
                chat["rewards"]["B"],
            ]
    assert {0.25, 0.5, 0.75} & set(score.outcomes.ravel())  # a grader's fractions stay fractions
    assert score.talk["sends"].shape == (2, 3)
    greedy = read_score(tmp_path, condition, runs, deals(3), greedy=True)
    assert greedy.outcomes.shape == (2, 3, 1, 2) and greedy.decoding == "greedy"
    with pytest.raises(RunFailed, match="trained_open"):
        read_score(tmp_path, condition, {"open-19": 19}, deals(3))


def test_repeats_are_the_means_of_each_evaluation_the_first_one_first(tmp_path: Path) -> None:
    evaluation, engine = stand(tmp_path)
    run_passes(evaluation, engine, [(OPEN, Pass(i)) for i in range(3)])
    score = read_score(tmp_path, OPEN, {"base": None}, deals(3), repeats=3)
    expected = [np.mean([line["reward"] for line in read(evaluation.path(OPEN, Pass(i)))]) for i in range(3)]
    assert score.repeats == (pytest.approx(expected),) and len(set(expected)) == 3
    assert score.outcomes.mean() == pytest.approx(expected[0]) and score.seeds == (None,)


def test_each_run_has_repeats_of_its_own_and_the_score_is_the_first_pass_alone(tmp_path: Path) -> None:
    condition = arm_conditions("open", Config(), False)[0]
    runs: dict[str, int | None] = {"open-17": 17, "open-18": 18}
    expected = {}
    for run, seed in runs.items():
        evaluation, engine = stand(tmp_path, run, seed or 0, trained=True)
        run_passes(evaluation, engine, [(condition, Pass(i)) for i in range(2)])
        expected[run] = [
            np.mean([line["reward"] for line in read(evaluation.path(condition, Pass(i)))]) for i in range(2)
        ]
    once = read_score(tmp_path, condition, runs, deals(3))
    again = read_score(tmp_path, condition, runs, deals(3), repeats=2)
    assert again.repeats == tuple(pytest.approx(means) for means in expected.values())
    assert len({mean for means in expected.values() for mean in means}) > 1
    for name in ("outcomes", "strict", "lenient", "parsed"):
        np.testing.assert_array_equal(getattr(once, name), getattr(again, name))
    with pytest.raises(RunFailed, match=r"open-17\.repeat2"):
        read_score(tmp_path, condition, runs, deals(3), repeats=3)


def test_templates_are_clusters_only_where_they_are_asked_for(tmp_path: Path) -> None:
    facts = ("Ann has 3 apples.", "Bob has 4 apples.")
    tasks = [Task(f"t{i}", "How many?", "7", facts, template=f"kind {i % 2}") for i in range(3)]
    heldout = [Deal(task, facts, task.question, {"A": facts[:1], "B": facts[1:]}) for task in tasks]
    evaluation, engine = stand(tmp_path)
    evaluation = Evaluation(**{**vars(evaluation), "heldout": heldout})
    run_passes(evaluation, engine, [(OPEN, Pass())])
    assert read_score(tmp_path, OPEN, {"base": None}, heldout).clusters is None
    clustered = read_score(tmp_path, OPEN, {"base": None}, heldout, clustered=True)
    assert clustered.clusters == ("kind 0", "kind 1", "kind 0")


def test_who_is_not_trained_is_the_base_and_nobody_learns_in_an_evaluation() -> None:
    own = {"A": Player("learner", 5, learns=True), "B": Player("learner", 6, learns=True)}
    a, b = Player("learner", 5), Player("learner", 6)
    team, left, right = arm_conditions("open", Config(), True)
    assert team.players(own, "AB") == {"A": a, "B": b}
    assert left.players(own, "AB") == {"A": a, "B": BASE}
    assert right.players(own, "AB") == {"A": BASE, "B": b}
    assert SKYLINE.players({}, "A") == FLOOR.players({}, "A") == {"A": BASE}
