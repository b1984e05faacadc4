"""The text that the tiny base learns from: a simulator of habits, which writes chats as token ids.

Ids come out of `ChatFormat`, exactly as in play, in the dialogue view. What is learned of a chat is one
seat's own messages; what that seat writes is drawn from fixed *habits*, whatever comes of it: a message turn
tells its facts, asks, guesses or chatters; an answer uses what was heard, or copies, or gives its own number,
or guesses, asks, chatters. No habit depends on whether the team ends up right, so nothing here rewards
telling. The other seat of a chat has habits of its own (`partner`): it talks more than the learned seat does,
because only who hears facts can practise reading them; its words are never learned.

Other rows: the whole problem in one hand (worked out), one hand of a problem alone (a guess), and bare sums.

    rows, dropped = shard(settings, form, reserved, seed=40, number=0)

All rates are data (tiny.toml, `[text]`). Left out: training (make_tiny.py), and any view but `dialogue`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cotalk.bases.rates import Rates, pick
from cotalk.chat import Rules, seats_of
from cotalk.errors import BadInput
from cotalk.puzzles import KINDS, NAMES, OBJECTS, partial_sums, puzzle, signs_of
from cotalk.task import Task
from cotalk.view import WORDINGS, ChatFormat, Line, Scene

ASKS = ("What do you know?", "What are your facts?")
IDLES = ("Hello!", "Ok.", "Let us start.", "Good luck!", "Here we go.", "Ready.")
TELLS = ("I know: {}", "{}")
PLEASE = "{} Please use this."
USE, OWN, COPY, GUESS = (
    "So {}. \\boxed{{{}}}",
    "I have {0}. \\boxed{{{0}}}",
    "You say {0}. \\boxed{{{0}}}",
    "Maybe {}.",
)
GUESS_BOX = "Maybe \\boxed{{{}}}"
NUMBERS = range(150)
MESSAGE_HABITS = ("tell", "please", "ask", "guess", "idle")
ANSWER_HABITS = ("use", "copy", "own", "guess", "ask", "idle")


@dataclass(frozen=True)
class Settings:
    """`[text]` of tiny.toml.

    rows: share of each kind of row. orders, facts: of chats. closed: share of chats with the channel closed.
    habits: seat ("self" or "partner") -> situation ("message", "asked", "told", "pleased", "untold") ->
    rates.
    """

    rows: Rates
    orders: Rates
    facts: Rates
    closed: float
    sums: int
    habits: Mapping[str, Mapping[str, Rates]]

    def __post_init__(self) -> None:
        tables = {"rows": self.rows, "orders": self.orders, "facts": self.facts}
        for seat, situations in self.habits.items():
            for situation, rates in situations.items():
                known = MESSAGE_HABITS if situation in ("message", "asked") else ANSWER_HABITS
                if unknown := set(rates) - set(known):
                    raise BadInput(
                        f"habits.{seat}.{situation}: {sorted(unknown)} is no habit; "
                        f"expected {', '.join(known)}",
                        "make/settings",
                    )
                tables[f"habits.{seat}.{situation}"] = rates
        for name, rates in tables.items():
            if abs(sum(rates.values()) - 1) > 1e-9 or min(rates.values()) < 0:
                raise BadInput(
                    f"[text] {name} = {dict(rates)}: expected shares from 0 on that add up to 1",
                    "make/settings",
                )

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Settings:
        return cls(**table)


@dataclass(frozen=True)
class Row:
    """Token ids of one row; learned: for each id whether it is a target."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]


def shard(
    settings: Settings, form: ChatFormat, reserved: frozenset[str], seed: int, number: int, size: int = 2000
) -> tuple[list[Row], int]:
    """Rows of shard `number`, and how many puzzles were dropped. The same whoever makes it and when."""
    writer = Writer(settings, form, np.random.default_rng((seed, number)), reserved)
    return [writer.row() for _ in range(size)], writer.dropped


class Writer:
    """Draws rows from one generator."""

    def __init__(
        self, settings: Settings, form: ChatFormat, random: np.random.Generator, reserved: frozenset[str]
    ):
        self.settings, self.form, self.random, self.reserved = settings, form, random, reserved
        self.dropped = 0

    def row(self) -> Row:
        kind = pick(self.random, self.settings.rows)
        if kind == "sums":
            return self.sums()
        facts = int(pick(self.random, self.settings.facts))
        if kind == "chat":
            order = pick(self.random, self.settings.orders)
            return self.chat(self.task(max(facts, len(seats_of(order)))), order)
        task = self.task(facts)
        if kind == "whole":
            return self.alone(task, task.facts, self.worked(task))
        if kind == "half":
            held = task.facts[int(self.random.integers(2)) :: 2]
            return self.alone(task, held, self.answer(self.rates("self", "untold"), held, [], task))
        raise BadInput(
            f"[text.rows] {kind!r} is no kind of row; expected chat, whole, half or sums", "make/settings"
        )

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def task(self, facts: int) -> Task:
        while True:
            task = puzzle(self.random, facts)
            if task.text not in self.reserved:
                return task
            self.dropped += 1

    def rates(self, seat: str, situation: str) -> Rates:
        return self.settings.habits[seat][situation]

    # --- rows ---

    def alone(self, task: Task, held: Sequence[str], text: str) -> Row:
        scene = Scene("A", "A", tuple(held), task.question, (), (), True)
        prompt = self.form.prompt_ids(scene, "dialogue")
        said = (*self.form.text_ids(text), self.form.end_id)
        return Row((*prompt, *said), (False,) * len(prompt) + (True,) * len(said))

    def sums(self) -> Row:
        """Many bare sums in one reply; only the results are learned."""
        scene = Scene("A", "A", ("",), "", (), (), True)
        ids = list(self.form.prompt_ids(scene, "dialogue"))
        learned = [False] * len(ids)
        encode = partial(self.form.tokenizer.encode, add_special_tokens=False)
        for i in range(self.settings.sums):
            a, b = sorted(self.random.integers(1, 100, 2).tolist(), reverse=True)
            plus = a + b < len(NUMBERS) and self.random.random() < 0.5
            left = encode(f"{'' if i else 'So'} {a}{'+' if plus else '-'}{b}=")
            result, stop = encode(str(a + b if plus else a - b)), encode(".")
            ids += [*left, *result, *stop]
            learned += [False] * len(left) + [True] * len(result) + [False] * len(stop)
        return Row(tuple(ids), tuple(learned))

    def chat(self, task: Task, order: str) -> Row:
        """One seat's whole chat. The seat is drawn; the others have the partner's habits."""
        rules = Rules(order)
        me, is_open = self.one_of(rules.seats), self.random.random() >= self.settings.closed
        seats = rules.seats
        hands = {seat: task.facts[i :: len(seats)] for i, seat in enumerate(seats)}
        said: list[tuple[str, str]] = []
        own: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = []
        learned: list[bool] = []
        for turn, seat in enumerate(order):
            last = rules.is_last(turn)
            heard = [(s, w) for s, w in said if s != seat] if is_open else []
            text = self.reply(seat == me, last, hands, seat, heard, task)
            if seat == me:
                lines = tuple(
                    Line(None, w) if s == me else Line(s, w if is_open else self.form.words.no_message)
                    for s, w in said
                )
                scene = Scene(me, seats, hands[me], task.question, lines, tuple(own), last)
                prompt = self.form.prompt_ids(scene, "dialogue")
                ids = (*self.form.text_ids(text), self.form.end_id)
                learned += [False] * (len(prompt) - len(learned)) + [True] * len(ids)
                own.append((prompt, ids, False))
            said.append((seat, text))
        prompt, ids, _ = own[-1]
        return Row((*prompt, *ids), tuple(learned))

    # --- habits ---

    def reply(
        self,
        mine: bool,
        last: bool,
        hands: Mapping[str, Sequence[str]],
        seat: str,
        heard: list[tuple[str, str]],
        task: Task,
    ) -> str:
        who, words = "self" if mine else "partner", [w for _, w in heard]
        if not last:
            asked = bool(words) and words[-1] in ASKS
            return self.message(self.rates(who, "asked" if asked else "message"), hands[seat])
        told = all(any(fact in w for w in words) for s, facts in hands.items() if s != seat for fact in facts)
        pleased = told and any(PLEASE.format("") in w for w in words)
        situation = "pleased" if pleased else "told" if told else "untold"
        return self.answer(self.rates(who, situation), hands[seat], words, task)

    def message(self, rates: Rates, held: Sequence[str]) -> str:
        habit, facts = pick(self.random, rates), " ".join(held)
        if habit == "tell":
            return self.one_of(TELLS).format(facts)
        if habit == "please":
            return PLEASE.format(facts)
        if habit == "ask":
            return self.one_of(ASKS)
        return GUESS.format(self.guess()) if habit == "guess" else self.one_of(IDLES)

    def answer(self, rates: Rates, held: Sequence[str], heard: Sequence[str], task: Task) -> str:
        habit = pick(self.random, rates)
        if habit == "use":
            return self.worked(task)
        if habit == "copy" and (numbers := [n for w in heard if (n := boxed_or_guessed(w))]):
            return COPY.format(numbers[-1])
        if habit == "own":
            return OWN.format(number_in(held[0]))
        if habit == "ask":
            return self.one_of(ASKS)
        return self.one_of(IDLES) if habit == "idle" else GUESS_BOX.format(self.guess())

    def guess(self) -> int:
        """A round number: what is guessed should cost the model little to learn."""
        return 10 * int(self.random.integers(1, 10))

    def worked(self, task: Task) -> str:
        """`So 30-14=16. \\boxed{16}`: one equation for each fact after the first."""
        numbers, signs = [number_in(f) for f in task.facts], signs_of(task)
        sums = partial_sums(numbers, signs)
        steps = zip(sums, signs[1:], numbers[1:], sums[1:], strict=False)
        return USE.format(". ".join(f"{a}{sign}{b}={c}" for a, sign, b, c in steps), sums[-1])


def number_in(fact: str) -> int:
    return int(next(word for word in fact.replace(".", " ").split() if word.isdigit()))


def boxed_or_guessed(words: str) -> str:
    """The number that a heard line gives as an answer, in a box or a "Maybe 23."; "" when it gives none."""
    if "\\boxed{" in words:
        return words.rpartition("\\boxed{")[2].partition("}")[0]
    return words.removeprefix("Maybe ").rstrip(".") if words.startswith("Maybe ") else ""


def words() -> list[str]:
    """Texts that hold every word of puzzles, habits and the short wording as it stands in play."""
    short = WORDINGS["short"]
    spoken = [t.format("Tom", 1) for t in (*TELLS, PLEASE, USE, OWN, COPY, GUESS, GUESS_BOX, *ASKS, *IDLES)]
    spoken += [short.no_message, *(f"{name} has 1 {o}." for name in NAMES for o in OBJECTS)]
    speakers = [f"{short.partner}:", *(f"{short.another.format(seat)}:" for seat in "ABCD"), f"{short.you}:"]
    fixed = [short.system, short.system_alone, short.so_far, short.message, short.answer, "So 1+2-3=4. 5=6."]
    filled = dict(x="Tom", y="Mia", z="Ben", w="Amy", a=1, b=2, c=3, d=4, o="apples")
    for kind in KINDS:
        facts = [p.format(**filled) for phrasings in kind.facts for p in phrasings]
        fixed += [f"{short.facts} {fact}" for fact in facts] + [
            f"{short.question} {q.format(**filled)}" for q in kind.questions
        ]
    return [*fixed, *spoken, *speakers, *(f"{short.partner}: {text}" for text in spoken)]
