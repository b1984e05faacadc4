"""Pools: what a line of text means, who is drawn, and that every guest is a row of the stack that never trains."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import deals, small_base
from cotalk.chat import BASE, Player, Rules, Seating, converse
from cotalk.engines import Table
from cotalk.engines.hf import HfEngine
from cotalk.errors import BadInput
from cotalk.learner import Learner, rows_of
from cotalk.lora import Stack
from cotalk.methods import method, pool_of
from cotalk.partners import (
    KEPT_SNAPSHOTS,
    Cast,
    Entry,
    Guest,
    Guests,
    Snapshots,
    adapters_in,
    another_base,
    read_pool,
    rows_of_pool,
    seated,
    strangers,
)  # fmt: skip
from cotalk.run import RunDirectory
from cotalk.stack import drive
from cotalk.train import Run, train
from toy import Dying, Killed, everything, pay, toy_base, toy_config

OWN = {"A": Player("learner", 1, learns=True), "B": Player("learner", 2, learns=True)}


def guests(*found: Guest) -> dict[str, tuple[Guest, ...]]:
    return {"A": found, "B": found}


def pooled_run(path: Path, pool: str, **settings: Any) -> tuple[Run, Table]:
    """A run with a pool on a stack of its own, and the table that it is played at."""
    config = toy_config(adapters="per_seat", pool=pool, **settings)
    base, own, how = small_base(), {"A": 1, "B": 2}, method(config)
    entries = pool_of(how, config)
    stack = Stack(
        base.model, 2 + rows_of_pool(entries, own), config.rank, config.alpha, base_sha256=base.sha256
    )
    found = Guests(entries, own, stack, 3, config.snapshot_every, path)
    tasks = deals(config.train_tasks + config.dev_tasks)
    run = Run(
        "pooled", config, tasks[: config.train_tasks], tasks[config.train_tasks :], base.form,
        Learner(stack, own, config), how, RunDirectory(path), pay, guests=found,
    )  # fmt: skip
    return run, Table(HfEngine(stack, base.form.end_ids), found.engines)


def test_runs_of_one_stack_load_another_base_once(tmp_path):
    toy_base(tmp_path / "other")
    pool = read_pool(f"self, model:{tmp_path / 'other'}")
    stack, others = Stack(small_base().model, 4, 4, 8.0), {}
    found = [Guests(pool, {"A": at, "B": at}, stack, 3, 20, tmp_path, others) for at in (1, 2)]
    assert len(others) == 1
    (one,), (two,) = (guests.engines.values() for guests in found)
    assert one is two


def finish(run: Run, table: Any) -> None:
    def failed(_: str, error: Exception) -> None:
        raise error

    drive({run.name: train(run)}, table, failed)


# --- the line of text ----------------------------------------------------------------------------------------


def test_a_pool_is_read_from_a_line_of_text():
    text = "self*2, base, B=script:terse*0.5, A=adapter:runs/one, snapshots, model:bases/x"
    assert read_pool(text) == (
        Entry("self", weight=2.0),
        Entry("base"),
        Entry("script", "terse", 0.5, "B"),
        Entry("adapter", "runs/one", 1.0, "A"),
        Entry("snapshots"),
        Entry("model", "bases/x"),
    )
    assert read_pool("") == read_pool("  ") == ()


@pytest.mark.parametrize(
    "text",
    ["bass", "script", "base:x", "self*0", "self*-1", "self*two", "b=base", "self,,base", "self*nan", "*2"],
)
def test_a_pool_that_cannot_be_read_is_refused_with_an_example(text):
    with pytest.raises(BadInput, match="expected self, base, snapshots, script:NAME"):
        read_pool(text)


# --- drawing -------------------------------------------------------------------------------------------------


def test_without_a_pool_the_learners_sit_everywhere():
    assert seated(Cast(OWN), 1) is OWN
    assert seated(Cast(OWN, guests(Guest("self", 1.0))), 1) is OWN


@given(st.integers(0, 10_000))
def test_every_draw_leaves_a_learner_at_the_table(seed):
    players = seated(Cast(OWN, guests(Guest("base", 1.0, dict.fromkeys("AB", BASE)))), seed)
    assert sorted(player.name for player in players.values()) == ["base", "learner"]


def test_a_guest_of_one_seat_sits_there_only():
    cast = Cast(OWN, {"A": (), "B": (Guest("base", 1.0, dict.fromkeys("AB", BASE)),)})
    assert {strangers(seated(cast, n)) for n in range(50)} == {(("B", "base"),)}


def test_guests_are_drawn_by_weight():
    # self 3, base 1: a quarter of 2,000 draws, 500; standard deviation sqrt(2000 x .25 x .75) = 19; six of them
    cast = Cast(OWN, guests(Guest("self", 3.0), Guest("base", 1.0, dict.fromkeys("AB", BASE))))
    drawn = Counter(strangers(seated(cast, n)) for n in range(2000))
    assert abs(2000 - drawn[()] - 500) < 120
    assert abs(drawn[(("A", "base"),)] - drawn[(("B", "base"),)]) < 6 * (500**0.5)


# --- rows of one stack ---------------------------------------------------------------------------------------


def trained(path: Path, value: float) -> None:
    """A run's directory with two adapters whose B is `value`."""
    base = small_base()
    stack = Stack(base.model, 2, 4, 8.0, base_sha256=base.sha256)
    for k, seat in ((1, "A"), (2, "B")):
        stack.initialise(k, 1, seat)
        for p in list(stack.parameters(k).values())[1::2]:
            p.data.fill_(value * k)
        stack.save(k, path / f"adapter_{seat}")


def test_a_pool_of_every_kind_is_rows_of_one_stack_scripts_and_another_table(tmp_path):
    trained(tmp_path / "other", 0.5)
    toy_base(tmp_path / "base")
    pool = f"self, base, script:terse, adapter:{tmp_path / 'other'}, snapshots, model:{tmp_path / 'base'}"
    run, _ = pooled_run(tmp_path / "run", pool)
    assert run.learner.stack.adapters == 2 + 2 + 2 * KEPT_SNAPSHOTS
    found = {guest.name: guest.players for guest in run.cast.guests["B"]}
    assert list(found) == [
        "self",
        "base",
        "script:terse",
        f"adapter:{tmp_path / 'other'}",
        f"model:{tmp_path / 'base'}",
    ]
    assert found["self"] == {} and found["base"] == {"A": BASE, "B": BASE}
    other = found[f"adapter:{tmp_path / 'other'}"]
    assert {seat: player.adapter for seat, player in other.items()} == {"A": 3, "B": 4}
    loaded = list(run.learner.stack.parameters(4).values())[1]
    assert torch.equal(loaded, torch.full_like(loaded, 1.0))
    assert not any(player.learns for players in found.values() for player in players.values())


def test_strangers_never_train_and_their_rows_stay_as_they_were(tmp_path):
    """Their turns are in no row, so that their log-probabilities have no gradient, and frozen rows keep every bit."""
    trained(tmp_path / "other", 0.5)
    run, table = pooled_run(tmp_path / "run", f"base, script:terse, adapter:{tmp_path / 'other'}", steps=3)
    stack = run.learner.stack
    frozen = {k: [p.detach().clone() for p in stack.parameters(k).values()] for k in (3, 4)}
    finish(run, table)
    for k, before in frozen.items():
        assert all(torch.equal(a, b) for a, b in zip(before, stack.parameters(k).values(), strict=True))
    assert all(p.grad is None for k in (0, 3, 4) for p in stack.parameters(k).values())
    learned = [p for k in (1, 2) for p in list(stack.parameters(k).values())[1::2]]
    assert all(p.abs().max() > 0 for p in learned)  # B starts at 0: both own adapters moved
    met = {p for c in run.directory.lines("chats.jsonl") for p in c["players"].values()}
    assert met == {"learner", "base", "script:terse", f"adapter:{tmp_path / 'other'}"}
    for chat in run.directory.lines("chats.jsonl"):
        for message in chat["messages"]:
            assert (message["credit"] is None) == (chat["players"][message["seat"]] != "learner")


def test_a_strangers_turns_have_zero_gradient_even_if_a_method_credits_them(tmp_path):
    """rows_of leaves them out, so no credit can reach them: the update is the same with any credit on them."""
    updated = []
    for credit in (None, 100.0):
        run, table = pooled_run(tmp_path / str(credit), "B=base", steps=1)
        run.learner.initialise(17)
        seatings = [Seating(d, OWN | {"B": BASE}, 0, (1, d.task.id)) for d in run.train[:2]]

        def failed(_: str, error: Exception) -> None:
            raise error

        playing = converse(seatings, run.config.rules, run.form)
        chats = drive({"it": playing}, table, failed)["it"]
        for i, chat in enumerate(chats):
            for message in chat.messages:
                message.credit = (1.0 - 2 * i) if message.learns else credit
        assert {row.seat for chat in chats for row in rows_of(chat)} == {"A"}
        run.learner.update(chats, 0.1)
        updated.append([p.detach().clone() for k in (1, 2) for p in run.learner.stack.parameters(k).values()])
    assert all(torch.equal(a, b) for a, b in zip(*updated, strict=True))


def test_in_another_seat_a_learners_words_train_the_adapter_that_spoke(tmp_path):
    """With the symmetry `roles` adapter A may sit in seat B."""
    run, table = pooled_run(tmp_path, "", steps=2, symmetries="roles")
    run.learner.initialise(17)
    seatings = [Seating(d, {"A": OWN["B"], "B": OWN["A"]}, 0, (1, d.task.id)) for d in run.train[:2]]

    def failed(_: str, error: Exception) -> None:
        raise error

    chats = drive({"it": converse(seatings, run.config.rules, run.form)}, table, failed)["it"]
    assert {(row.seat, row.adapter) for chat in chats for row in rows_of(chat)} == {("A", 2), ("B", 1)}
    for chat in chats:
        for message in chat.messages:
            message.credit = 1.0 if message.seat == "A" else 0.0
    before = {k: [p.detach().clone() for p in run.learner.stack.parameters(k).values()] for k in (1, 2)}
    run.learner.update(chats, 0.1)
    same = {
        k: all(
            torch.equal(a, b)
            for a, b in zip(before[k], run.learner.stack.parameters(k).values(), strict=True)
        )
        for k in (1, 2)
    }
    assert same == {1: True, 2: False}
    finish(run, table)  # and a whole run plays


# --- snapshots -----------------------------------------------------------------------------------------------


def test_snapshots_are_the_learner_as_it_was_and_the_newest_take_the_oldests_rows(tmp_path):
    stack, own = Stack(small_base().model, 2 + 2 * KEPT_SNAPSHOTS, 4, 8.0), {"A": 1, "B": 2}
    snapshots = Snapshots(stack, 3, own, 10, tmp_path)
    for k in (1, 2):
        stack.initialise(k, k)
    for step in range(1, 61):
        for k in (1, 2):
            next(iter(stack.parameters(k).values())).data.fill_(step * k)
            stack.changed(k)
        snapshots.take(step)
    assert snapshots.steps == [30, 40, 50, 60]
    for step in snapshots.steps:
        players = snapshots.players()[f"snapshot:{step}"]
        held = {
            seat: next(iter(stack.parameters(p.adapter).values()))[0, 0].item() for seat, p in players.items()
        }
        assert held == {"A": step, "B": 2 * step}
    rows = {p.adapter for players in snapshots.players().values() for p in players.values()}
    assert rows == set(range(3, 3 + 2 * KEPT_SNAPSHOTS))


@pytest.mark.slow
def test_a_run_with_snapshots_that_is_killed_ends_as_one_that_was_not(tmp_path):
    pool, settings = "self, snapshots*3", dict(steps=6, snapshot_every=2, checkpoint_every=3)
    whole, table = pooled_run(tmp_path / "whole", pool, **settings)
    finish(whole, table)
    met = {p for c in whole.directory.lines("chats.jsonl") for p in c["players"].values()}
    assert {"snapshot:2", "snapshot:4"} <= met
    for at in (14, 26):  # engine calls: in the second step, and after the first checkpoint
        run, table = pooled_run(tmp_path / "killed", pool, **settings)
        with pytest.raises(Killed):
            finish(run, Dying(table, at))
    run, table = pooled_run(tmp_path / "killed", pool, **settings)
    finish(run, table)
    assert everything(tmp_path / "whole") == everything(tmp_path / "killed")


# --- another base --------------------------------------------------------------------------------------------


def test_another_base_plays_with_its_own_template_at_the_same_table(tmp_path):
    toy_base(tmp_path / "other")
    player, engine = another_base(str(tmp_path / "other"), "model:other", "cpu")
    base = small_base(seed=3)
    table = Table(HfEngine(Stack(base.model, 1, 4, 8.0), base.form.end_ids), {"model:other": engine})
    seatings = [Seating(d, {"A": BASE, "B": player}, 0, (1, d.task.id)) for d in deals(2)]
    alone = [Seating(d, {"A": BASE, "B": BASE}, 0, (1, d.task.id)) for d in deals(2)]

    def failed(_: str, error: Exception) -> None:
        raise error

    rules = Rules(message_tokens=6, answer_tokens=6)
    mixed = drive({"it": converse(seatings, rules, base.form)}, table, failed)["it"]
    plain = drive({"it": converse(alone, rules, base.form)}, table, failed)["it"]
    assert [c.messages[0].said for c in mixed] == [
        c.messages[0].said for c in plain
    ]  # A speaks first, and is the same
    assert [c.messages[1].said for c in mixed] != [c.messages[1].said for c in plain]  # B is another model


def test_a_table_without_that_base_says_so():
    player = Player("model:x", model="model:x")
    seatings = [Seating(d, {"A": player, "B": BASE}, 0, (1,)) for d in deals(1)]
    form = small_base().form
    views = next(converse(seatings, Rules(), form))
    with pytest.raises(ValueError, match="need a model, but this table was given no engine"):
        Table(None).reply([views])


def test_a_directory_without_an_adapter_is_refused(tmp_path):
    with pytest.raises(BadInput, match="expected a directory in PEFT's format"):
        adapters_in(tmp_path, "AB")
