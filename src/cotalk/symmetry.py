"""Symmetries of a task, drawn anew for each chat: what is the same problem should be the same problem to the learner.

Other-Play (Hu et al. 2020, arXiv 2003.02979): a convention that rests on what could as well be otherwise (who starts,
which hand holds which facts, how people are called) breaks with a partner who has another one; training under
symmetries drawn at random leaves only what survives them.

    roles      who sits where: players (learners and guests) are shifted round the table, so that each comes to start
    dealing    which hand lies where: the hands are shifted round the table
    names      who the puzzle is about: each person gets another name of puzzles.NAMES
    phrasing   how the puzzle is told: every fact and the question in another of its kind's phrasings

The answer stays. Names and phrasing are known for the built-in puzzles only: for other tasks they are refused.
The same key draws the same. Left out: when they are drawn (train.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cotalk.chat import Seating
from cotalk.deal import Deal
from cotalk.errors import BadInput
from cotalk.puzzles import KINDS, NAMES
from cotalk.sample import generator
from cotalk.task import Task


def vary(seating: Seating, drawn: Sequence[str], *key: str | int) -> Seating:
    """The seating under symmetries drawn with a key: other players a seat, other hands, the puzzle told otherwise."""
    if not drawn:
        return seating
    deal, players = seating.deal, seating.players
    if "names" in drawn:
        deal = _told(deal, renamed(deal.task, generator("names", *key)))
    if "phrasing" in drawn:
        deal = _told(deal, rephrased(deal.task, generator("phrasing", *key)))
    seats = sorted(players)
    if "dealing" in drawn:
        by = int(generator("dealing", *key).integers(len(seats)))
        hands = {seat: deal.hands[seats[(i + by) % len(seats)]] for i, seat in enumerate(seats)}
        deal = replace(deal, hands=hands)
    if "roles" in drawn:
        by = int(generator("roles", *key).integers(len(seats)))
        players = {seat: players[seats[(i + by) % len(seats)]] for i, seat in enumerate(seats)}
    return replace(seating, deal=deal, players=players)


def _told(deal: Deal, task: Task) -> Deal:
    """The same deal with its facts in other words."""
    other = dict(zip(deal.facts, task.facts, strict=True))
    hands = {seat: tuple(other[fact] for fact in facts) for seat, facts in deal.hands.items()}
    return Deal(task, task.facts, task.question, hands)


def renamed(task: Task, random: np.random.Generator) -> Task:
    """The puzzle with every person's name another one (a shuffle of the names, so that two never become one)."""
    _kind(task)
    names = dict(zip(NAMES, (NAMES[i] for i in random.permutation(len(NAMES))), strict=True))

    def put(text: str) -> str:
        return re.sub(r"\b[A-Z][a-z]+\b", lambda found: names.get(found[0], found[0]), text)

    return replace(task, facts=tuple(map(put, task.facts)), question=put(task.question))


def rephrased(task: Task, random: np.random.Generator) -> Task:
    """The puzzle with each sentence in a drawn phrasing of its kind."""
    kind, chosen = _kind(task)
    told = [*kind.facts, kind.questions]
    words: dict[str, str] = {}
    for sentence, phrasings, i in zip((*task.facts, task.question), told, chosen, strict=True):
        words |= _words(sentence, phrasings[i])
    new = [int(random.integers(len(phrasings))) for phrasings in told]
    *facts, question = (phrasings[i].format(**words) for phrasings, i in zip(told, new, strict=True))
    name = f"{kind.name}/{''.join(map(str, new))}"
    return replace(task, facts=tuple(facts), question=question, template=name)


def _words(sentence: str, phrasing: str) -> dict[str, str]:
    """What stands in a phrasing's braces."""
    pattern = re.escape(phrasing).replace(r"\{", "{").replace(r"\}", "}")
    seen: set[str] = set()

    def group(found: re.Match[str]) -> str:
        letter = found[1]
        again = letter in seen
        seen.add(letter)
        return f"(?P={letter})" if again else f"(?P<{letter}>\\w+)"

    found = re.fullmatch(re.sub(r"\{(\w)\}", group, pattern), sentence)
    if found is None:
        raise BadInput(
            f"the puzzle's sentence {sentence!r} is not its template's {phrasing!r}: expected a puzzle as made",
            "task/puzzles",
        )
    return found.groupdict()


def _kind(task: Task) -> tuple[Any, list[int]]:
    name, _, chosen = (task.template or "").partition("/")
    for kind in KINDS:
        if kind.name == name:
            return kind, [int(digit) for digit in chosen]
    raise BadInput(
        f'task {task.id!r} is no built-in puzzle: expected tasks = "puzzles" for the symmetries names and phrasing; '
        "leave them out with --symmetries roles,dealing",
        "task/puzzles",
    )
