"""Causal talk: replace a message by something else, play on, and see whether the partner's answer changes.

`sends` and `uses` say what was said; this says whether it mattered. A condition that was evaluated is played once
more as it is (*plain*), and then once for each `Knockout`: at its turns the other seats hear something else, the
speaker keeps its own words, and all later turns are played again.

    nothing    the words for no message
    another    what was heard at this turn of another task's plain chat (a keyed shuffle of the tasks)
    base       what the untrained base would have said at this turn of this very chat

All of them share their random keys (purpose "causal"), so that a chat is the plain one up to the replaced turn,
and what differs afterwards is the message's doing: the comparison is paired on tasks. Change = the score of those
who heard it (every seat but the speakers) after the knock-out minus before, per task, with a 95% interval.

    yield from play(evaluation, condition)                      # writes what is owed, like evaluate.evaluate
    effects(directory, condition, {"open-17": 17}, task_ids)    # [Effect(...), ...], from the files

Files, one line a chat, each written whole: scores/causal/CONDITION/RUN.plain.jsonl (with `base_says`, by turn) and
RUN.0.nothing.jsonl, RUN.0+2.base.jsonl, ... On a GPU two passes may differ by rounding; on a CPU they do not.
Left out: which conditions a study replaces (study.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cotalk.chat import BASE, Chat, Player, Rules, Seating, View, converse
from cotalk.disk import write_atomically
from cotalk.errors import BadInput, RunFailed
from cotalk.evaluate import Condition, Evaluation, Pass, expect_finite
from cotalk.run import read_lines
from cotalk.sample import generator, key
from cotalk.stats import Clusters, Floats, Rate, rate_over_seeds, rate_over_tasks
from cotalk.talk import signed_rate
from cotalk.train import Playing, grade
from cotalk.view import one_line

REPLACEMENTS = ("nothing", "another", "base")
Json = dict[str, Any]


@dataclass(frozen=True)
class Knockout:
    """Turns of one seat, and what is heard in their place."""

    turns: tuple[int, ...]
    by: str

    def __post_init__(self) -> None:
        if self.by not in REPLACEMENTS:
            raise BadInput(
                f"a message cannot be replaced by {self.by!r}: expected one of {', '.join(REPLACEMENTS)}",
                "talk/replacement",
            )
        if not self.turns:
            raise BadInput(
                "a knock-out without turns was given: expected at least one turn, from 0 on",
                "talk/replacement",
            )

    @property
    def name(self) -> str:
        return f"{'+'.join(map(str, self.turns))}.{self.by}"


def knockouts(order: str, by: Sequence[str] = REPLACEMENTS) -> list[Knockout]:
    """Each turn that somebody hears before answering, alone; then all of a seat's, where there are several.

    "ABAB" -> turns 0, 1, 2 (nobody hears the last one), and 0 with 2; times each of `by`.
    """
    heard = [turn for turn, seat in enumerate(order) if set(order[turn + 1 :]) - {seat}]
    alone = [(turn,) for turn in heard]
    of_seats = [tuple(t for t in heard if order[t] == seat) for seat in sorted(set(order))]
    return [Knockout(turns, what) for turns in alone + [t for t in of_seats if len(t) > 1] for what in by]


# --- playing ----------------------------------------------------------------------------------------------


def play(
    evaluation: Evaluation,
    condition: Condition,
    which: Sequence[Knockout] | None = None,
    *,
    chats: int = 2,
    greedy: bool = False,
    base: Player = BASE,
) -> Playing:
    """Plays the plain pass and every knock-out that is not on disk yet.

    which: `knockouts` of the order if not given. base: who stands in for the untrained base (tests: a script).
    """
    rules = condition.rules(evaluation.config)
    if len(rules.seats) < 2:
        raise BadInput(
            f"condition {condition.name!r} seats one player: expected one where somebody hears a message",
            "talk/replacement",
        )
    which = knockouts(rules.order) if which is None else which
    for knockout in which:
        _refuse_turns(knockout, rules.order)
    rules = replace(rules, temperature=0.0) if greedy else rules
    once = Pass(chats=chats, greedy=greedy)
    path = file_of(evaluation.directory, condition, evaluation.run, None, greedy)
    if not path.is_file():
        yield from _play_plain(evaluation, condition, rules, once, path, which=which, base=base)
    plain = read_lines(path)
    for knockout in which:
        path = file_of(evaluation.directory, condition, evaluation.run, knockout, greedy)
        if not path.is_file():
            yield from _play_replaced(
                evaluation, condition, rules, once, path, knockout=knockout, plain=plain
            )
        evaluation.progress(f"{condition.name} without {knockout.name}")


def _refuse_turns(knockout: Knockout, order: str) -> None:
    speakers = {order[turn] for turn in knockout.turns if 0 <= turn < len(order)}
    if len(speakers) != 1 or not all(0 <= turn < len(order) for turn in knockout.turns):
        raise BadInput(
            f"turns {list(knockout.turns)} of order {order!r}: expected turns of one seat, from 0 on",
            "talk/replacement",
        )
    if not set(order[min(knockout.turns) + 1 :]) - speakers:
        raise BadInput(
            f"nobody hears turn {min(knockout.turns)} of order {order!r}: expected an earlier one",
            "talk/replacement",
        )


def _seatings(evaluation: Evaluation, condition: Condition, rules: Rules, once: Pass) -> list[Seating]:
    """One for each chat, with the same keys whatever is replaced."""
    players = condition.players(evaluation.own, rules.seats)
    return [
        Seating(
            deal,
            players,
            number,
            (evaluation.seed, "causal", condition.name, once.repeat, None, deal.task.id),
        )
        for deal in evaluation.heldout
        for number in range(once.chats)
    ]


def _play_plain(
    evaluation: Evaluation, condition: Condition, rules: Rules, once: Pass, path: Path, *, which: Sequence[Knockout],
    base: Player,
) -> Playing:  # fmt: skip
    seatings = _seatings(evaluation, condition, rules, once)
    chats: list[Chat] = yield from converse(seatings, rules, evaluation.form)
    turns = sorted({turn for knockout in which if knockout.by == "base" for turn in knockout.turns})
    said: list[dict[str, str]] = [{} for _ in chats]
    for turn in turns:
        words = yield from _base_says(chats, seatings, turn, evaluation, base)
        for found, text in zip(said, words, strict=True):
            found[str(turn)] = text
    _write(evaluation, condition, chats, path, [{"knockout": None, "base_says": found} for found in said])


def _base_says(
    chats: Sequence[Chat], seatings: Sequence[Seating], turn: int, evaluation: Evaluation, base: Player
) -> Playing:
    """What the base would say at this turn of each chat: the same prompt, budget and random key."""
    views = []
    for chat, seating in zip(chats, seatings, strict=True):
        scene, rules = chat.scene(turn), chat.rules
        ids = () if base.script else evaluation.form.prompt_ids(scene, rules.view)
        draw = key(*seating.key, chat.number, turn)
        views.append(View(scene, base, ids, rules.budget(turn), draw, rules.temperature))
    replies = yield views
    texts = [evaluation.form.decode(r.ids) if r.text is None else r.text for r in replies]
    return [one_line(text) for text in texts]


def _play_replaced(
    evaluation: Evaluation, condition: Condition, rules: Rules, once: Pass, path: Path, *, knockout: Knockout,
    plain: Sequence[Json],
) -> Playing:  # fmt: skip
    words = replacements(plain, knockout)
    seatings = _seatings(evaluation, condition, rules, once)
    if set(words) != {(s.deal.task.id, s.number) for s in seatings}:
        raise RunFailed(
            f"{path.parent}: the plain chats on disk are not those of {len(evaluation.heldout)} tasks x {once.chats} "
            "chats; remove that directory",
            "results/chats",
        )
    seatings = [replace(s, replaced=words[s.deal.task.id, s.number]) for s in seatings]
    chats: list[Chat] = yield from converse(seatings, rules, evaluation.form)
    _write(evaluation, condition, chats, path, [{"knockout": knockout.name}] * len(chats))


def _write(
    evaluation: Evaluation, condition: Condition, chats: list[Chat], path: Path, about: Sequence[Json]
) -> None:
    expect_finite(chats, str(path))
    grade(chats, evaluation.reward, evaluation.grader)
    first = {"step": None, "condition": condition.name, "repeat": 0}
    lines = [first | chat.as_json() | of for chat, of in zip(chats, about, strict=True)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(path, text.encode("utf-8", "surrogatepass"))


def replacements(plain: Sequence[Json], knockout: Knockout) -> dict[tuple[str, int], dict[int, str]]:
    """What is heard instead: {(task, chat number): {turn: words}}; no words are heard as no message."""
    donors = _others(plain) if knockout.by == "another" else {}
    found: dict[tuple[str, int], dict[int, str]] = {}
    for line in plain:
        here = line["task"], line["chat"]
        if knockout.by == "nothing":
            found[here] = dict.fromkeys(knockout.turns, "")
        elif knockout.by == "another":
            found[here] = {turn: donors[here]["messages"][turn]["said"] for turn in knockout.turns}
        else:
            missing = [turn for turn in knockout.turns if str(turn) not in line["base_says"]]
            if missing:
                raise RunFailed(
                    f"the plain chats hold no words of the base at turn {missing[0]}: they were played for other "
                    "knock-outs. Remove their file (scores/causal/.../RUN.plain.jsonl); the same command plays it "
                    "again",
                    "results/chats",
                )
            found[here] = {turn: line["base_says"][str(turn)] for turn in knockout.turns}
    return found


def _others(plain: Sequence[Json]) -> dict[tuple[str, int], Json]:
    """For each chat, the chat of the same number of the task that follows in a keyed shuffle: never its own task."""
    lines = {(line["task"], line["chat"]): line for line in plain}
    tasks = sorted({task for task, _ in lines})
    if len(tasks) < 2:
        raise BadInput(
            f"{len(tasks)} task was given: expected at least two, to hear another task's message",
            "talk/replacement",
        )
    order = [tasks[i] for i in generator("causal", "another").permutation(len(tasks))]
    after = dict(zip(order, [*order[1:], order[0]], strict=True))
    return {(task, number): lines[after[task], number] for task, number in lines}


def file_of(
    directory: Path, condition: Condition, run: str, knockout: Knockout | None, greedy: bool = False
) -> Path:
    name = "plain" if knockout is None else knockout.name
    return (
        directory / "scores" / "causal" / condition.name / f"{run}.{name}{'.greedy' if greedy else ''}.jsonl"
    )


# --- reading back -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """What a knock-out did. listeners: the seats that did not speak at its turns; `change` is of their score."""

    knockout: Knockout
    seat: str
    listeners: str
    plain: Rate
    without: Rate
    change: Rate

    @property
    def as_json(self) -> Json:
        about = {"turns": list(self.knockout.turns), "by": self.knockout.by, "seat": self.seat}
        rates = {name: getattr(self, name).as_json for name in ("plain", "without", "change")}
        return about | {"listeners": self.listeners} | rates | {"sentence": self.sentence}

    @property
    def sentence(self) -> str:
        turns = " and ".join(str(turn) for turn in self.knockout.turns)
        words = {"nothing": "nothing", "another": "another task's message", "base": "the untrained base's"}
        mean, low, high = (
            round(value, 4) + 0.0 for value in (self.change.mean, self.change.low, self.change.high)
        )
        spoken = f"turn{'s' * (len(self.knockout.turns) > 1)} {turns}"
        return (
            f"Seat {self.seat}'s {spoken} replaced by {words[self.knockout.by]}: seat {self.listeners} goes from "
            f"{self.plain.mean:.2f} to {self.without.mean:.2f}, {mean:+.2f} [{low:+.2f}, {high:+.2f}] "
            f"({self.change.of})."
        )


def effects(
    directory: Path,
    condition: Condition,
    runs: Mapping[str, int | None],
    tasks: Sequence[str],
    *,
    clusters: Clusters = None,
    which: Sequence[Knockout] | None = None,
    greedy: bool = False,
) -> list[Effect]:
    """The effect of every knock-out of a condition, from its files; RunFailed where one is missing.

    runs: {name of a run: its seed}. One run: intervals over tasks, of this checkpoint. Several: over seeds and tasks.
    """
    if not runs:
        raise BadInput(
            f"no run of condition {condition.name!r} was given; expected at least one", "results/chats"
        )
    plain = [_read(file_of(directory, condition, run, None, greedy)) for run in runs]
    order = plain[0][0]["order"]
    found = []
    for knockout in knockouts(order) if which is None else which:
        replaced = [_read(file_of(directory, condition, run, knockout, greedy)) for run in runs]
        seat = order[knockout.turns[0]]
        later = set(order[min(knockout.turns) + 1 :]) - {seat}
        seats = "".join(sorted(later))
        before = np.stack([_scores(lines, tasks, seats) for lines in plain])
        after = np.stack([_scores(lines, tasks, seats) for lines in replaced])
        change = signed_rate((after - before).mean(axis=(2, 3)), clusters)
        found.append(Effect(knockout, seat, seats, _rate(before, clusters), _rate(after, clusters), change))
    return found


def _rate(scores: Floats, clusters: Clusters) -> Rate:
    return rate_over_tasks(scores, clusters) if len(scores) == 1 else rate_over_seeds(scores, clusters)


def _read(path: Path) -> list[Json]:
    lines = read_lines(path)
    if not lines:
        raise RunFailed(
            f"{path}: no chats are on disk; expected those of a knock-out that was played to its end",
            "results/chats",
        )
    return lines


def _scores(lines: Sequence[Json], tasks: Sequence[str], seats: str) -> Floats:
    """Rewards of some seats: (tasks, chats, seats)."""
    chats = max(line["chat"] for line in lines) + 1
    place = {task: at for at, task in enumerate(tasks)}
    found = np.full((len(tasks), chats, len(seats)), np.nan)
    for line in lines:
        if line["task"] not in place:
            raise RunFailed(
                f"a chat of task {line['task']!r} is on disk, which is none of the {len(tasks)} given",
                "results/chats",
            )
        found[place[line["task"]], line["chat"]] = [line["rewards"][seat] for seat in seats]
    if np.isnan(found).any():
        raise RunFailed(
            f"the chats on disk are not those of {len(tasks)} tasks x {chats} chats; remove their file",
            "results/chats",
        )
    return found
