"""The text that the SmolLM2 base learns from: problems, and chats about them by seats that follow habits.

One row a problem. A chat row is one seat's whole chat in the dialogue view, ids exactly as in play; learned is what
that seat says. A message turn follows a habit (send all facts, send some, ask, small talk) whatever comes of it; the
last turn is the worked solution where the seat has heard every fact with a number that it lacks, else a guess. The
seat that it hears has habits of its own (`partner`), talks more, and is never learned. So reading and reckoning are
practised, and nothing rewards sending. Other rows: the whole problem in one hand, and half a hand alone.

    rows, refused = shard(settings, form, problems, seed=(1, 0))

All rates and phrases are data (smollm2.toml, `[text]`). Left out: problems (problems.py), training (finetune.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from cotalk.bases.problems import Problem
from cotalk.bases.rates import Rates, pick
from cotalk.chat import Rules
from cotalk.errors import BadInput
from cotalk.grade import last_box
from cotalk.numerals import has_number, numbers
from cotalk.view import ChatFormat, Line, Scene

KINDS = ("chat", "whole", "half")
HABITS = {
    "message": ("all", "some", "ask", "talk"),
    "asked": ("all", "some", "ask", "talk"),
    "told": ("work", "copy", "guess"),
    "untold": ("work", "copy", "guess"),
}
PHRASES = ("all", "ask", "talk", "guess", "copy")
TOO_LONG = "its worked solution is longer than an answer may be"


@dataclass(frozen=True)
class Settings:
    """`[text]` of smollm2.toml.

    rows: share of each kind of row. orders: of chats, two seats. closed: share of chats with the channel closed.
    habits: seat ("self", "partner") -> situation (HABITS) -> rates. phrases: habit -> texts, "{}" to be filled.
    """

    message_tokens: int
    answer_tokens: int
    closed: float
    rows: Rates
    orders: Rates
    habits: Mapping[str, Mapping[str, Rates]]
    phrases: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        _expect("rows", self.rows, KINDS)
        _expect("habits", self.habits, ("self", "partner"))
        _expect("phrases", self.phrases, PHRASES)
        tables = {"rows": self.rows, "orders": self.orders}
        for seat, situations in self.habits.items():
            _expect(f"habits.{seat}", situations, tuple(HABITS))
            for situation, rates in situations.items():
                _expect(f"habits.{seat}.{situation}", rates, HABITS[situation])
                tables[f"habits.{seat}.{situation}"] = rates
        for name, rates in tables.items():
            if abs(sum(rates.values()) - 1) > 1e-9 or min(rates.values()) < 0:
                raise BadInput(
                    f"[text] {name} = {dict(rates)}: expected shares from 0 on that add up to 1",
                    "make/settings",
                )
        for order in self.orders:
            if Rules(order).seats != "AB":
                raise BadInput(
                    f"[text] orders: {order!r} does not seat A and B; expected orders such as ABAB",
                    "make/settings",
                )
        if not all(self.phrases.values()):
            raise BadInput("[text.phrases]: expected at least one phrase for each habit", "make/settings")

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Settings:
        _expect("", table, tuple(f.name for f in fields(cls)))
        return cls(**table)


def _expect(where: str, table: Mapping[str, Any], names: Sequence[str]) -> None:
    if set(table) != set(names):
        raise BadInput(
            f"[text] {where}: missing {sorted(set(names) - set(table))}, unknown {sorted(set(table) - set(names))}; "
            f"expected {', '.join(names)}",
            "make/settings",
        )


@dataclass(frozen=True)
class Row:
    """Token ids of one row; learned: for each id whether it is a target; kind: "chat", "whole" or "half"."""

    ids: np.ndarray  # (tokens,) int32
    learned: np.ndarray  # (tokens,) bool
    kind: str


def shard(
    settings: Settings, form: ChatFormat, problems: Sequence[Problem], seed: tuple[int, ...]
) -> tuple[list[Row], Counter[str]]:
    """A row for each problem, and how many were refused. The same whoever makes it and when."""
    writer = Writer(settings, form, np.random.default_rng(seed))
    rows = [writer.row(problem) for problem in problems]
    return [row for row in rows if row], Counter({TOO_LONG: rows.count(None)} if None in rows else {})


class Writer:
    """Draws rows from one generator."""

    def __init__(self, settings: Settings, form: ChatFormat, random: np.random.Generator):
        self.settings, self.form, self.random = settings, form, random

    def row(self, problem: Problem) -> Row | None:
        """A row about this problem; None where its solution is longer than an answer may be."""
        kind = pick(self.random, self.settings.rows) if problem.dealt else "whole"
        if (
            len(self.form.text_ids(problem.solution)) >= self.settings.answer_tokens
        ):  # the end token counts too
            return None
        if kind == "chat":
            return self.chat(problem, pick(self.random, self.settings.orders))
        if kind == "whole":
            return self.alone(problem, problem.task.facts, problem.solution, kind)
        held = problem.task.facts[int(self.random.integers(2)) :: 2]
        return self.alone(problem, held, self.answer("self", held, [], False, problem), kind)

    def phrase(self, habit: str, filled: str = "") -> str:
        choices = self.settings.phrases[habit]
        return choices[int(self.random.integers(len(choices)))].replace("{}", filled)

    # --- rows ---

    def alone(self, problem: Problem, held: Sequence[str], text: str, kind: str) -> Row:
        scene = Scene("A", "A", tuple(held), problem.task.question, (), (), True)
        prompt = self.form.prompt_ids(scene, "dialogue")
        said = (*self.form.text_ids(text), self.form.end_id)
        return _row((*prompt, *said), (False,) * len(prompt) + (True,) * len(said), kind)

    def chat(self, problem: Problem, order: str) -> Row:
        """One seat's whole chat. The seat is drawn; the other one has the partner's habits."""
        rules, task = Rules(order), problem.task
        me = "AB"[int(self.random.integers(2))]
        is_open = self.random.random() >= self.settings.closed
        hands = {"A": task.facts[::2], "B": task.facts[1::2]}
        said: list[tuple[str, str]] = []
        own: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = []
        learned: list[bool] = []
        for turn, seat in enumerate(order):
            last = rules.is_last(turn)
            heard = [words for s, words in said if s != seat] if is_open else []
            text = self.reply("self" if seat == me else "partner", last, hands, seat, heard, problem)
            if seat == me:
                lines = tuple(
                    Line(None, w) if s == me else Line(s, w if is_open else self.form.words.no_message)
                    for s, w in said
                )
                scene = Scene(me, "AB", hands[me], task.question, lines, tuple(own), last)
                prompt = self.form.prompt_ids(scene, "dialogue")
                ids = (*self.form.text_ids(text), self.form.end_id)
                learned += [False] * (len(prompt) - len(learned)) + [True] * len(ids)
                own.append((prompt, ids, False))
            said.append((seat, text))
        prompt, ids, _ = own[-1]
        return _row((*prompt, *ids), learned, "chat")

    # --- habits ---

    def reply(
        self, who: str, last: bool, hands: Mapping[str, Sequence[str]], seat: str, heard: Sequence[str],
        problem: Problem,
    ) -> str:  # fmt: skip
        if last:
            lacked = [fact for s, hand in hands.items() if s != seat for fact in hand if _counts(fact)]
            told = all(any(fact in words for words in heard) for fact in lacked)
            return self.answer(who, hands[seat], heard, told, problem)
        asked = bool(heard) and heard[-1] in self.settings.phrases["ask"]
        return self.message(self.settings.habits[who]["asked" if asked else "message"], hands[seat])

    def message(self, rates: Rates, held: Sequence[str]) -> str:
        habit = pick(self.random, rates)
        if habit == "all":
            return self.send(held)
        if habit == "some":  # one fact or more, never all
            chosen = self.random.permutation(len(held))[: self.random.integers(1, max(2, len(held)))]
            return self.send([held[i] for i in sorted(chosen)])
        return self.phrase(habit)

    def send(self, facts: Sequence[str]) -> str:
        """These facts, without the last ones where they do not fit into a message."""
        text = self.phrase("all", " ".join(facts))
        if len(facts) > 1 and len(self.form.text_ids(text)) >= self.settings.message_tokens:
            return self.send(facts[:-1])
        return text

    def answer(
        self, who: str, held: Sequence[str], heard: Sequence[str], told: bool, problem: Problem
    ) -> str:
        habit = pick(self.random, self.settings.habits[who]["told" if told else "untold"])
        if habit == "work":
            return problem.solution
        boxed = [box for words in heard if (box := last_box(words)[0])]
        if habit == "copy" and boxed:
            return self.phrase("copy", boxed[-1])
        return self.phrase("guess", self.guess([*held, *heard]))

    def guess(self, texts: Sequence[str]) -> str:
        """One of the whole numbers that it knows, or the sum of two."""
        known = sorted({int(n) for text in texts for n in _whole(text)}) or [10]
        number = known[int(self.random.integers(len(known)))]
        if self.random.random() < 0.5:
            number += known[int(self.random.integers(len(known)))]
        return str(number)


def _row(ids: Sequence[int], learned: Sequence[bool], kind: str) -> Row:
    return Row(np.array(ids, np.int32), np.array(learned, bool), kind)


@lru_cache(maxsize=1 << 12)
def _counts(fact: str) -> bool:
    return has_number(fact)


@lru_cache(maxsize=1 << 12)
def _whole(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in numbers(text) if n.denominator == 1)
