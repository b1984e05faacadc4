"""Knock-outs: a team that needs a message loses everything without it, and one that does not loses nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import deals, small_base
from cotalk.causal import Effect, Knockout, effects, file_of, knockouts, play
from cotalk.chat import Player
from cotalk.config import Config
from cotalk.engines import Engine, Table
from cotalk.engines.hf import HfEngine
from cotalk.engines.scripted import adder, silent
from cotalk.errors import BadInput, RunFailed
from cotalk.evaluate import Condition, Evaluation
from cotalk.lora import Stack
from cotalk.run import read_lines
from cotalk.stack import drive
from cotalk.view import Scene

TASKS = 12
OPEN = Condition("trained_open", "trained, open", "open", trained="AB", arm="open")
GOLD = {fact: deal.task.gold for deal in deals(TASKS) for fact in deal.facts}


def knows(scene: Scene) -> str:
    """Has the answer whatever it hears (and talks all the same)."""
    return rf"\boxed{{{GOLD[scene.facts[0]]}}}" if scene.last else scene.facts[0]


def scripted(directory: Path, script: Any = adder, run: str = "open-17", **settings: Any) -> Evaluation:
    own = {seat: Player("learner", script=script) for seat in "AB"}
    return Evaluation(directory, run, 17, Config(**settings), deals(TASKS), small_base().form, own)


def run_all(
    evaluation: Evaluation, engine: Engine | None = None, condition: Condition = OPEN, **how: Any
) -> Evaluation:
    def failed(_: str, error: Exception) -> None:
        raise error

    how = {"chats": 1, "base": Player("base", script=silent)} | how
    drive({"causal": play(evaluation, condition, **how)}, engine or Table(None), failed)
    return evaluation


def found(evaluation: Evaluation, condition: Condition = OPEN, **how: Any) -> dict[str, Effect]:
    tasks = [deal.task.id for deal in evaluation.heldout]
    return {
        e.knockout.name: e
        for e in effects(evaluation.directory, condition, {evaluation.run: 17}, tasks, **how)
    }


def test_each_turn_that_somebody_hears_is_knocked_out_and_a_seats_turns_together() -> None:
    assert [k.name for k in knockouts("ABAB", ["nothing"])] == [
        "0.nothing",
        "1.nothing",
        "2.nothing",
        "0+2.nothing",
    ]
    assert [k.turns for k in knockouts("ABCABC", ["base"])] == [(0,), (1,), (2,), (3,), (4,), (0, 3), (1, 4)]
    assert len(knockouts("ABAB")) == 12


def test_a_team_that_depends_on_a_message_loses_everything_without_it(tmp_path: Path) -> None:
    """Adders box their own number plus the partner's first message: A needs turn 1, B turn 0, nobody turn 2."""
    effect = found(run_all(scripted(tmp_path)))
    assert len(effect) == 12
    for by in ("nothing", "another", "base"):
        for turns, listener in {"0": "B", "1": "A", "0+2": "B"}.items():
            e = effect[f"{turns}.{by}"]
            assert (e.plain.mean, e.without.mean, e.change.mean, e.listeners) == (1.0, 0.0, -1.0, listener)
            assert e.change.low == -1.0 and e.change.high < -0.4
            assert (e.change.n, e.change.unit) == (TASKS, "tasks")
        assert effect[f"2.{by}"].change.mean == 0.0


def test_a_team_that_does_not_depend_on_its_messages_loses_nothing(tmp_path: Path) -> None:
    for e in found(run_all(scripted(tmp_path, knows))).values():
        assert (e.plain.mean, e.without.mean, e.change.mean) == (1.0, 1.0, 0.0)
        assert -0.3 < e.change.low < 0 < e.change.high < 0.3


def test_what_is_replaced_is_heard_and_never_said(tmp_path: Path) -> None:
    evaluation = run_all(scripted(tmp_path))
    plain = read_lines(file_of(tmp_path, OPEN, "open-17", None))
    for name, words in {"nothing": "(no message)", "base": "(no message)", "another": None}.items():
        lines = read_lines(file_of(tmp_path, OPEN, "open-17", Knockout((0,), name)))
        assert [line["task"] for line in lines] == [deal.task.id for deal in evaluation.heldout]
        for line, was in zip(lines, plain, strict=True):
            first, before = line["messages"][0], was["messages"][0]
            assert first["said"] == before["said"] == line["hands"]["A"][0]
            assert first["heard"] == words if words else first["heard"] != before["heard"]
            assert line["messages"][2]["said"] == was["messages"][2]["said"]  # A goes on from its own words


def test_another_message_is_one_of_another_task_and_each_is_given_once(tmp_path: Path) -> None:
    run_all(scripted(tmp_path))
    lines = read_lines(file_of(tmp_path, OPEN, "open-17", Knockout((1,), "another")))
    heard = [line["messages"][1]["heard"] for line in lines]
    said = [line["messages"][1]["said"] for line in lines]
    assert sorted(heard) == sorted(said)
    assert all(here != own for here, own in zip(heard, said, strict=True))


def test_the_bases_words_change_nothing_where_the_base_says_the_same(tmp_path: Path) -> None:
    effect = found(run_all(scripted(tmp_path), base=Player("base", script=adder)))
    assert effect["0.base"].change.mean == 0.0 and effect["0.nothing"].change.mean == -1.0


def test_a_closed_channel_delivers_no_replacement_either(tmp_path: Path) -> None:
    closed = replace(OPEN, channel="closed")
    evaluation = run_all(scripted(tmp_path), condition=closed, which=[Knockout((0,), "another")])
    [effect] = found(evaluation, closed, which=[Knockout((0,), "another")]).values()
    assert effect.plain.mean == effect.change.mean == 0.0
    lines = read_lines(file_of(tmp_path, closed, "open-17", Knockout((0,), "another")))
    assert {m["heard"] for line in lines for m in line["messages"]} == {"(no message)"}


def test_a_pass_that_is_on_disk_is_not_played_again_and_a_lost_one_comes_out_the_same(tmp_path: Path) -> None:
    evaluation = run_all(scripted(tmp_path))
    path = file_of(tmp_path, OPEN, "open-17", Knockout((0,), "another"))
    before = path.read_bytes()

    class Closed:
        def reply(self, batches: Any) -> Any:
            raise AssertionError("nothing is owed")

    run_all(evaluation, Closed())
    path.unlink()
    run_all(evaluation)
    assert path.read_bytes() == before


def test_plain_chats_of_other_tasks_or_without_the_bases_words_are_refused(tmp_path: Path) -> None:
    evaluation = run_all(scripted(tmp_path), which=[Knockout((0,), "nothing")])
    with pytest.raises(RunFailed, match="no words of the base at turn 1"):
        run_all(evaluation, which=[Knockout((1,), "base")])
    with pytest.raises(RunFailed, match="not those of 12 tasks x 2 chats"):
        run_all(evaluation, which=[Knockout((1,), "nothing")], chats=2)
    with pytest.raises(RunFailed, match="no chats are on disk"):
        found(evaluation)


def test_knock_outs_that_cannot_be_are_refused_with_words() -> None:
    evaluation = scripted(Path("nowhere"))
    for turns, words in {
        (3,): "nobody hears turn 3",
        (0, 1): "turns of one seat",
        (9,): "turns of one seat",
    }.items():
        with pytest.raises(BadInput, match=words):
            next(play(evaluation, OPEN, [Knockout(turns, "nothing")]))
    with pytest.raises(BadInput, match="expected one of nothing, another, base"):
        Knockout((0,), "noise")
    with pytest.raises(BadInput, match="at least one turn"):
        Knockout((), "base")
    with pytest.raises(BadInput, match="seats one player"):
        next(play(evaluation, Condition("skyline", "alone", "open", hand="full")))


def test_several_runs_give_the_change_over_seeds_and_tasks(tmp_path: Path) -> None:
    which = [Knockout((0,), "nothing")]
    for run, script in {"open-17": adder, "open-18": knows, "open-19": adder}.items():
        run_all(scripted(tmp_path, script, run), which=which)
    tasks = [deal.task.id for deal in deals(TASKS)]
    [effect] = effects(tmp_path, OPEN, {"open-17": 17, "open-18": 18, "open-19": 19}, tasks, which=which)
    assert effect.change.mean == pytest.approx(-2 / 3)
    assert (effect.change.n, effect.change.unit, effect.plain.mean) == (3, "seeds+tasks", 1.0)
    assert effect.change.low == -1.0 or effect.change.low < -2 / 3 < effect.change.high
    assert "Seat A's turn 0 replaced by nothing: seat B goes from 1.00 to 0.33" in effect.sentence
    assert json.loads(json.dumps(effect.as_json))["change"]["n"] == 3


# --- with a model ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> tuple[Evaluation, Evaluation]:
    """A trained pair (an adapter pushed off its start) and an untrained one (the base itself in every seat)."""
    base = small_base()
    stack = Stack(base.model, 1, 4, 8.0)
    for at, parameter in enumerate(stack.parameters(1).values()):
        parameter.data += 0.05 * (1 + at % 3)
    config = Config(message_tokens=6, answer_tokens=8, temperature=1.0)
    pairs = []
    for name, adapter in (("trained", 1), ("untrained", 0)):
        own = {seat: Player(name, adapter) for seat in "AB"}
        directory = tmp_path_factory.mktemp(name)
        evaluation = Evaluation(directory, "open-17", 17, config, deals(3), base.form, own)
        pairs.append(run_all(evaluation, Table(HfEngine(stack, base.form.end_ids)), base=Player("base")))
    return pairs[0], pairs[1]


def chats_of(evaluation: Evaluation, knockout: Knockout | None) -> list[list[dict[str, Any]]]:
    return [line["messages"] for line in read_lines(file_of(evaluation.directory, OPEN, "open-17", knockout))]


def test_a_models_chat_is_the_plain_one_up_to_the_replaced_turn_and_another_after_it(team: Any) -> None:
    evaluation, _ = team
    plain = chats_of(evaluation, None)
    for turn in (0, 1):
        changed = 0
        for now, was in zip(chats_of(evaluation, Knockout((turn,), "nothing")), plain, strict=True):
            assert now[:turn] == was[:turn]
            assert now[turn]["said"] == was[turn]["said"] and now[turn]["logprob"] == was[turn]["logprob"]
            assert now[turn]["heard"] == "(no message)"
            changed += now[turn + 1]["said"] != was[turn + 1]["said"]
        assert changed  # the prompt differs, and the random model is sharp enough to show it


def test_the_base_in_place_of_itself_changes_nothing(team: Any) -> None:
    """The untrained pair's messages replaced by what the base would say there: prompts, keys and weights are equal."""
    trained, untrained = team
    plain = chats_of(untrained, None)
    for turns in ((0,), (1,), (0, 2)):
        assert chats_of(untrained, Knockout(turns, "base")) == plain
    assert chats_of(trained, Knockout((0,), "base")) != chats_of(trained, None)
