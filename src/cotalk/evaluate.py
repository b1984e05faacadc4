"""Conditions -> scores. Who plays with whom, through which channel, on held-out tasks; played once, at the end.

A condition is played in passes: sampled exactly as in training (repeat 0 is the score; more repeats of the base and
of each run in its own channel are for the noise floor) and once greedily. Every pass of one run is one file of chat
lines, `scores/CONDITION/RUN.jsonl`, written whole; a pass that is on disk is not played again. Scores are read back
from these files, never from memory.

    base_open, base_closed          the untrained base in every seat
    skyline                         one seat alone with the full hand
    floor                           each half hand alone (its seats are the halves)
    trained_ARM                     each run in its own channel
    trained_ARM_a_base_b            its A with the untrained base in every other seat
    base_a_trained_ARM_b            the untrained base as A with its other seats

    NAME_perturbed, NAME_unseen     the same on held-out tasks with other numbers, and of unseen templates

The arm called `open` drops its name in the partner conditions (`trained_a_base_b`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cotalk import talk
from cotalk.chat import BASE, Chat, Player, Rules, Seating, converse
from cotalk.config import Config
from cotalk.deal import Deal, full_hand, half_hand
from cotalk.disk import write_atomically
from cotalk.errors import RunFailed
from cotalk.results import Score
from cotalk.run import read_lines
from cotalk.train import Playing, grade
from cotalk.view import ChatFormat

COUNTED = ("outcomes", "strict", "lenient", "parsed")


@dataclass(frozen=True)
class Condition:
    """One way to play. trained: the seats of the run's own players ("" for a condition of the base).

    tasks: the held-out ones, those with other numbers, or those of unseen templates.
    """

    name: str
    label: str
    channel: str
    hand: Literal["dealt", "full", "half"] = "dealt"
    trained: str = ""
    arm: str = ""
    tasks: Literal["heldout", "perturbed", "unseen"] = "heldout"

    def rules(self, config: Config) -> Rules:
        """As in training, but for the channel, and a seat alone where the hand is not dealt."""
        rules = replace(config.rules, channel=self.channel)
        return rules if self.hand == "dealt" else replace(rules, order="A")

    def deals(self, deal: Deal) -> dict[str, Deal]:
        """What is played for one task: {"": the deal}, or one half hand for each seat."""
        if self.hand == "full":
            return {"": full_hand(deal)}
        if self.hand == "half":
            return {seat: half_hand(deal, seat) for seat in deal.hands}
        return {"": deal}

    def players(self, own: dict[str, Player], seats: str) -> dict[str, Player]:
        return {seat: replace(own[seat], learns=False) if seat in self.trained else BASE for seat in seats}


@dataclass(frozen=True)
class Pass:
    """One time through the tasks. repeat: part of the random key; greedy: temperature 0."""

    repeat: int = 0
    chats: int = 2
    greedy: bool = False

    @property
    def suffix(self) -> str:
        return ".greedy" if self.greedy else f".repeat{self.repeat}" if self.repeat else ""


def base_conditions() -> list[Condition]:
    return [
        Condition("base_closed", "untrained, channel closed", "closed"),
        Condition("base_open", "untrained, channel open", "open"),
        Condition("skyline", "untrained, the whole problem in one hand", "open", hand="full"),
        Condition("floor", "untrained, half a hand alone", "closed", hand="half"),
    ]


def arm_conditions(arm: str, config: Config, partners: bool) -> list[Condition]:
    """The conditions of an arm's runs; `partners`: also with the untrained base on either side."""
    seats, channel = config.rules.seats, config.channel
    names = [Condition(f"trained_{arm}", f"trained, {arm}", channel, trained=seats, arm=arm)]
    if partners:
        of = "" if arm == "open" else f"_{arm}"
        said = "" if arm == "open" else f" ({arm})"
        others = seats[1:]
        b = others.lower()
        names += [
            Condition(
                f"trained{of}_a_base_{b}",
                f"trained A{said} with untrained {others}",
                channel,
                trained="A",
                arm=arm,
            ),
            Condition(
                f"base_a_trained{of}_{b}",
                f"untrained A with trained {others}{said}",
                channel,
                trained=others,
                arm=arm,
            ),
        ]
    return names


@dataclass(frozen=True)
class Evaluation:
    """What is needed to play conditions for one run (or for the base): given, so nothing is looked up."""

    directory: Path
    run: str
    seed: int
    config: Config
    heldout: Sequence[Deal]
    form: ChatFormat
    own: dict[str, Player]
    grader: Callable[[str, str], Any] | None = None
    progress: Callable[[str], None] = lambda name: None
    perturbed: Sequence[Deal] = ()
    unseen: Sequence[Deal] = ()

    @property
    def reward(self) -> Literal["strict", "lenient"]:
        """What counts as right here: a run trained on chance is still scored on its answers."""
        return self.config.graded

    def path(self, condition: Condition, once: Pass) -> Path:
        return file_of(self.directory, condition, self.run, once)


def file_of(directory: Path, condition: Condition, run: str, once: Pass) -> Path:
    """Where a pass of a run lies in a study's directory."""
    return directory / "scores" / condition.name / f"{run}{once.suffix}.jsonl"


def evaluate(evaluation: Evaluation, work: Sequence[tuple[Condition, Pass]]) -> Playing:
    """Plays every pass that is not on disk yet."""
    for condition, once in work:
        if not evaluation.path(condition, once).is_file():
            yield from play_pass(evaluation, condition, once)
        evaluation.progress(condition.name + once.suffix)


def play_pass(evaluation: Evaluation, condition: Condition, once: Pass) -> Playing:
    """One pass through the held-out tasks, graded and written whole."""
    rules = condition.rules(evaluation.config)
    if once.greedy:
        rules = replace(rules, temperature=0.0)
    seatings, halves = [], []
    for task in getattr(evaluation, condition.tasks):
        for half, deal in condition.deals(task).items():
            key = (evaluation.seed, "eval", condition.name + half, once.repeat, None, task.task.id)
            players = condition.players(evaluation.own, rules.seats)
            seatings += [Seating(deal, players, number, key) for number in range(once.chats)]
            halves += [half] * once.chats
    chats: list[Chat] = yield from converse(seatings, rules, evaluation.form)
    expect_finite(chats, f"{condition.name}{once.suffix} of {evaluation.run}")
    grade(chats, evaluation.reward, evaluation.grader)
    about = {"step": None, "condition": condition.name, "repeat": once.repeat}
    lines = [
        about | ({"half": half} if half else {}) | chat.as_json()
        for chat, half in zip(chats, halves, strict=True)
    ]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(evaluation.path(condition, once), text.encode("utf-8", "surrogatepass"))


def expect_finite(chats: Sequence[Chat], where: str) -> None:
    """RunFailed when a model's own log-probabilities are NaN or infinite: what it said is no evidence of anything."""
    said = [m for chat in chats for m in chat.messages]
    wrong = sum(not all(map(math.isfinite, m.logprobs)) for m in said)
    if wrong:
        raise RunFailed(
            f"{where}: the log-probabilities of {wrong} of {len(said)} messages are not finite; expected numbers. "
            "Try a wider --dtype (bfloat16 for float16, float32 for both)",
            "run/not-finite",
        )


# --- reading back --------------------------------------------------------------------------------------------


def read_score(
    directory: Path, condition: Condition, runs: dict[str, int | None], tasks: Sequence[Deal],
    greedy: bool = False, repeats: int = 1, clustered: bool = False,
) -> Score:  # fmt: skip
    """The score of a condition from its files.

    Args:
        runs: {name of a run: its seed, None for the base}.
        repeats: sampled passes of each run; all but the first only give `Score.repeats`.
        clustered: tasks of one template are not independent and the templates are a sample (not the puzzles').
    """
    folder = directory / "scores" / condition.name
    suffix = ".greedy" if greedy else ""
    names = [deal.task.id for deal in tasks]

    def read(file: str) -> dict[str, Any]:
        return outcomes(read_lines(folder / file), names, folder / file)

    arrays = [read(f"{run}{suffix}.jsonl") for run in runs]
    again = [
        [a, *(read(f"{run}.repeat{i}.jsonl") for i in range(1, repeats))] for run, a in zip(runs, arrays)
    ]
    seats = tuple(arrays[0]["seats"])
    stacked = {name: np.stack([a[name] for a in arrays]) for name in COUNTED}
    spoken = {} if condition.hand == "half" else talk.stack(
        [talk.measures(read_lines(folder / f"{run}{suffix}.jsonl"), names) for run in runs]
    )  # fmt: skip
    return Score(
        condition=condition.name,
        seeds=tuple(runs.values()),
        tasks=tuple(names),
        seats=seats,
        outcomes=stacked["outcomes"],
        strict=stacked["strict"],
        lenient=stacked["lenient"],
        parsed=stacked["parsed"],
        talk=spoken,
        repeats=tuple(tuple(float(a["outcomes"].mean()) for a in row) for row in again)
        if repeats > 1
        else (),
        clusters=tuple(deal.task.template for deal in tasks) if clustered else None,
        decoding="greedy" if greedy else "sampled",
    )


def outcomes(lines: Sequence[dict[str, Any]], tasks: Sequence[str], where: Path) -> dict[str, Any]:
    """Chat lines of one pass -> outcomes (rewards), strict, lenient, parsed: (tasks, chats, seats), and the seats."""
    if not lines:
        raise RunFailed(
            f"{where}: no chats of this pass are on disk; expected an evaluation that ran to its end",
            "results/chats",
        )
    seats = sorted({line.get("half") or seat for line in lines for seat in line["answers"]})
    place = {task: i for i, task in enumerate(tasks)}
    chats = max(line["chat"] for line in lines) + 1
    found = {name: np.full((len(tasks), chats, len(seats)), np.nan) for name in COUNTED}
    for line in lines:
        if line["task"] not in place:
            raise RunFailed(
                f"{where}: a chat of task {line['task']!r} is on disk, which is not held out here; remove that file",
                "results/chats",
            )
        for seat, answer in line["answers"].items():
            at = place[line["task"]], line["chat"], seats.index(line.get("half") or seat)
            for name, values in found.items():
                values[at] = line["rewards"][seat] if name == "outcomes" else answer[name]
    if any(np.isnan(values).any() for values in found.values()):
        raise RunFailed(
            f"{where}: the chats on disk are not those of {len(tasks)} tasks x {chats} chats; remove that file",
            "results/chats",
        )
    return found | {"seats": seats}
