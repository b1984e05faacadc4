"""Symmetries: what is drawn, and that the answer stays."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import deals
from cotalk.chat import Player, Seating
from cotalk.deal import deal
from cotalk.errors import BadInput
from cotalk.puzzles import FACT_COUNTS, NAMES, generate, partial_sums, signs_of
from cotalk.sample import generator
from cotalk.symmetry import renamed, rephrased, vary

A, B = Player("a", 1, learns=True), Player("b", 2, learns=True)


def seating() -> Seating:
    return Seating(deal(generate(5, 1)[0], "AB"), {"A": A, "B": B}, 0, (1,))


def test_without_symmetries_a_seating_is_as_it_was():
    one = seating()
    assert vary(one, (), 1) is one


def test_roles_shift_the_players_and_dealing_the_hands():
    one = seating()
    drawn = [vary(one, ("roles", "dealing"), step) for step in range(40)]
    assert {tuple(s.players[seat].name for seat in "AB") for s in drawn} == {("a", "b"), ("b", "a")}
    assert {s.deal.hands["A"] for s in drawn} == set(one.deal.hands.values())
    assert all(set(s.deal.hands.values()) == set(one.deal.hands.values()) for s in drawn)


def test_the_same_key_draws_the_same():
    one, every = seating(), ("roles", "dealing", "names", "phrasing")
    assert vary(one, every, 17, 3, "task", 1) == vary(one, every, 17, 3, "task", 1)
    assert len({str(vary(one, every, 17, 3, "task", n)) for n in range(8)}) == 8


@given(st.integers(0, 10_000), st.sampled_from(FACT_COUNTS))
def test_another_telling_of_a_puzzle_has_the_same_numbers_signs_and_answer(seed, facts):
    (task,) = generate(seed, 1, facts)
    other = rephrased(renamed(task, generator("n", seed)), generator("p", seed))
    numbers = [[int(n) for n in re.findall(r"\d+", fact)] for fact in other.facts]
    assert numbers == [[int(n) for n in re.findall(r"\d+", fact)] for fact in task.facts]
    assert signs_of(other) == signs_of(task) and other.gold == task.gold
    assert str(partial_sums([n for (n,) in numbers], signs_of(other))[-1]) == other.gold


def test_two_persons_never_become_one():
    for task in generate(1, 100):
        other = renamed(task, generator("n", task.id))
        before, after = (
            {w for w in re.findall(r"[A-Z][a-z]+", " ".join((*t.facts, t.question))) if w in NAMES}
            for t in (task, other)
        )
        assert len(before) == len(after)


def test_every_phrasing_of_a_kind_comes_up():
    (task,) = generate(1, 1)
    told = {rephrased(task, generator(n)).template for n in range(200)}
    kind = (task.template or "").split("/")[0]
    sizes = {
        "gives": 2 * 3 * 2,
        "finds": 2 * 3 * 2,
        "total": 2 * 2 * 2,
        "more": 2 * 1 * 1,
        "fewer": 2 * 1 * 1,
    }
    assert len(told) == sizes[kind]


def test_names_and_phrasing_of_other_tasks_are_refused():
    one = Seating(deals(1)[0], {"A": A, "B": B}, 0, (1,))
    for drawn in ("names", "phrasing"):
        with pytest.raises(BadInput, match=r'expected tasks = "puzzles" .* --symmetries roles,dealing'):
            vary(one, (drawn,), 1)
