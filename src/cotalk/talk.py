"""Measures of talk: what was sent, used, asked and agreed, from chats as they stand in chats.jsonl.

For each seat, averaged over the chats of a task (the task is the unit, see stats.py):

    sends           of the numbers that only I hold, the share that I said before my last message
    uses            of the numbers that only my partners hold, the share that is in my last message
    asks            my first message holds a question mark
    message_chars, message_tokens    length of a message before my last one
    answer_chars, answer_tokens      length of my last message
    cut, answer_cut                  share of all my messages, and of my last ones, cut off by their budget

and for the chat: `agrees` (every seat has a box and the boxed strings are equal: the published form) and
`agrees_graded` (the answers are equal as graded: all right, or the same value). Private numbers are my
hand's minus my partners' and minus the question's; partners are all other seats, so that any number of seats
works. A number is a value (`cotalk.numerals`): "five", "5" and "5.0" are one. What does not apply is NaN:
sends for a hand without a private number, messages where a seat speaks once.

Read them with care: `uses` pays a bare list "1. 2. 3. 4. 5.", `sends` is high with the channel closed, `asks`
counts a repeated question. Chance correction, invented numbers and causal tests are left out here.

    rates(stack([measures(chats) for chats in runs]))      # {"sends": Rate, "sends/A": Rate, ...}
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotalk import stats
from cotalk.errors import BadInput
from cotalk.numerals import numbers
from cotalk.stats import Floats, Rate

Json = Mapping[str, Any]
NAN = math.nan
SHARES = ("sends", "uses", "asks", "agrees", "agrees_graded", "cut", "answer_cut")
AMOUNTS = ("message_chars", "message_tokens", "answer_chars", "answer_tokens")
OF_THE_CHAT = ("agrees", "agrees_graded")


# --- one chat ---------------------------------------------------------------------------------------------


def of_seat(chat: Json, seat: str) -> dict[str, float]:
    """The measures of one seat of one chat line."""
    said = [message for message in chat["messages"] if message["seat"] == seat]
    if not said:
        raise BadInput(
            f"seat {seat!r} never speaks in this chat of task {chat['task']!r}; expected one that does."
        )
    before, last = said[:-1], said[-1]
    mine, theirs = private_numbers(chat, seat)
    sent = _values(message["said"] for message in before)
    return {
        "sends": _share(mine, sent) if before else NAN,
        "uses": _share(theirs, _values([last["said"]])),
        "asks": float("?" in before[0]["said"]) if before else NAN,
        "cut": _mean(float(message["cut"]) for message in said),
        "answer_cut": float(last["cut"]),
        "message_chars": _mean(len(message["said"]) for message in before),
        "message_tokens": _mean(message.get("tokens", NAN) for message in before),
        "answer_chars": float(len(last["said"])),
        "answer_tokens": float(last.get("tokens", NAN)),
    }


def of_chat(chat: Json) -> dict[str, float]:
    """`agrees` and `agrees_graded` of one chat line: 1, 0, or NaN where fewer than two seats were graded."""
    answers = list(chat.get("answers", {}).values())
    if len(answers) < 2:
        return dict.fromkeys(OF_THE_CHAT, NAN)
    boxed = {answer["answer"].strip() for answer in answers}
    same_box = all(answer["parsed"] for answer in answers) and len(boxed) == 1
    return {"agrees": float(same_box), "agrees_graded": float(_graded_alike(answers))}


def private_numbers(chat: Json, seat: str) -> tuple[frozenset[float], frozenset[float]]:
    """The numbers that only this seat holds, and those that only its partners hold; never the question's."""
    own = _values(chat["hands"][seat])
    partners = _values(fact for other, hand in chat["hands"].items() if other != seat for fact in hand)
    known = _values([chat["question"]])
    return own - partners - known, partners - own - known


def _graded_alike(answers: Sequence[Json]) -> bool:
    """All right, or all parsed to one value. A right and a wrong answer never agree."""
    right = [bool(answer["strict"] or answer["lenient"]) for answer in answers]
    if any(right):
        return all(right)
    parsed = all(answer["parsed"] for answer in answers)
    return parsed and len({_answer_value(answer["answer"]) for answer in answers}) == 1


def _answer_value(answer: str) -> float | str:
    """`16`, `16.0` and `sixteen` are one value; whatever is not one number is compared as it is written."""
    values = _numbers_in(answer)
    sign = -1.0 if answer.strip().startswith("-") else 1.0
    return sign * next(iter(values)) if len(values) == 1 else " ".join(answer.split())


@lru_cache(maxsize=1 << 16)
def _numbers_in(text: str) -> frozenset[float]:
    return frozenset(round(float(value), 6) for value in numbers(text))


def _values(texts: Iterable[str]) -> frozenset[float]:
    return frozenset().union(*(_numbers_in(text) for text in texts))


def _share(wanted: frozenset[float], found: frozenset[float]) -> float:
    return len(wanted & found) / len(wanted) if wanted else NAN


def _mean(values: Iterable[float]) -> float:
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else NAN


# --- many chats -------------------------------------------------------------------------------------------


def measures(chats: Iterable[Json], tasks: Sequence[str] | None = None) -> dict[str, Floats]:
    """The chats of ONE run -> {measure: (tasks,)}, each task's chats averaged.

    "sends" is over all seats, "sends/A" over seat A alone. Tasks come in the order of `tasks`, else in the
    order in which the chats name them; a task without a chat is NaN. Chats of several runs are an error that
    cannot be seen here: give one run's.
    """
    by_task: dict[str, list[Json]] = {} if tasks is None else {task: [] for task in tasks}
    for chat in chats:
        if tasks is not None and chat["task"] not in by_task:
            raise BadInput(
                f"a chat of task {chat['task']!r} was given; expected one of the {len(tasks)} tasks."
            )
        by_task.setdefault(chat["task"], []).append(chat)
    rows = [_of_task(chats_of_task) for chats_of_task in by_task.values()]
    names = sorted({name for row in rows for name in row}, key=_place)
    return {name: np.array([row.get(name, NAN) for row in rows], dtype=np.float64) for name in names}


def means(chats: Iterable[Json]) -> dict[str, float]:
    """One plain number a measure, for a learning curve: the mean over tasks, where it applies at all."""
    found = {name: _mean(values.tolist()) for name, values in measures(chats).items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def stack(runs: Sequence[Mapping[str, NDArray[np.float64]]]) -> dict[str, Floats]:
    """The measures of several runs on the same tasks -> {measure: (runs, tasks)}."""
    if not runs:
        raise BadInput("no run's measures were given; expected at least one.")
    sizes = {len(values) for run in runs for values in run.values()}
    if len(sizes) > 1:
        raise BadInput(f"runs with {sorted(sizes)} tasks were given; expected the same tasks in every run.")
    size = sizes.pop() if sizes else 0
    names = sorted({name for run in runs for name in run}, key=_place)
    return {name: np.stack([run.get(name, np.full(size, NAN)) for run in runs]) for name in names}


def rates(
    talk: Mapping[str, NDArray[np.float64]], clusters: Sequence[Hashable] | None = None
) -> dict[str, Rate]:
    """{measure: (runs, tasks)} -> {measure: Rate}: over tasks for one run, over seeds and tasks for several.

    Measures that apply nowhere are left out, and so are lengths on a single task or template (no interval).
    """
    found = {name: _rate(name, values, clusters) for name, values in talk.items()}
    return {name: rate for name, rate in found.items() if rate is not None}


def _rate(name: str, values: Floats, clusters: Sequence[Hashable] | None) -> Rate | None:
    shared = np.flatnonzero(np.isfinite(values).all(0)).tolist()  # tasks where every run has a value
    if not shared:
        return None
    if name.split("/", maxsplit=1)[0] in AMOUNTS:
        apart = {task if clusters is None or clusters[task] is None else clusters[task] for task in shared}
        return stats.amount(values, clusters) if len(apart) > 1 else None
    if len(values) == 1:
        return stats.rate_of_values(values[0], clusters)
    return stats.rate_over_seeds(values, clusters)


def _of_task(chats: Sequence[Json]) -> dict[str, float]:
    collected: dict[str, list[float]] = {}
    for chat in chats:
        for name, value in _of_one(chat):
            collected.setdefault(name, []).append(value)
    return {name: _mean(values) for name, values in collected.items()}


def _of_one(chat: Json) -> Iterable[tuple[str, float]]:
    yield from of_chat(chat).items()
    for seat in sorted({message["seat"] for message in chat["messages"]}):
        for name, value in of_seat(chat, seat).items():
            yield name, value
            yield f"{name}/{seat}", value


def _place(name: str) -> tuple[str, int]:
    """Measures over all seats first, in the order of the docstring; then seat by seat."""
    measure, _, seat = name.partition("/")
    return seat, (SHARES + AMOUNTS).index(measure)
