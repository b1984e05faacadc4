"""Measures of talk: what was sent, used, asked, invented and agreed, from chats as they stand in chats.jsonl.

For each seat, averaged over the chats of a task (the task is the unit, see stats.py); first the published ones:

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

The published ones need care: `uses` pays a bare list "1. 2. 3. 4. 5.", `sends` is high with the channel closed,
`asks` counts a repeated question. Ours, from two seats on (docs/talk.md has every formula):

    uses_chance         `uses` with the partners' numbers of other tasks in place of theirs: what a list earns
    uses_above          uses - uses_chance
    derives             my last message holds a value that is one operation on a partner's private number
    derives_chance, derives_above    likewise
    requests            of my messages before the last, the share that asks for something: not the task's question
    invented            of the numbers in my messages, the share that is neither known nor one operation (+ - * /)
                        away from known ones; known are all hands, the question, and what was so derived before
    invented_chance     the same messages judged by the facts of other tasks: what pure invention would show
    invented_corrected  invented / invented_chance, at most 1

"sends/A" is over seat A alone; "sends/turn0" (and requests, invented, cut) over that turn of the order alone.
Other tasks are `SHUFFLES` keyed shuffles of the tasks that were given: the same chats give the same values.
Left out: whether a message was *needed* (causal.py replaces it and plays on).

    rates(stack([measures(chats) for chats in runs]))      # {"sends": Rate, "sends/A": Rate, ...}
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cotalk import stats
from cotalk.errors import BadInput
from cotalk.numerals import numbers
from cotalk.stats import Floats, Rate

VERSION = 2  # of the measures: raise it whenever the value of one could change (tests/test_talk.py pins them)
SHUFFLES = 8  # other tasks that stand for chance, each
JUDGES = 4  # of them: for what takes arithmetic (derives, invented)

Json = Mapping[str, Any]
NAN = math.nan
PUBLISHED = ("sends", "uses", "asks", "agrees", "agrees_graded", "cut", "answer_cut")
READING = ("uses_above", "uses_chance", "derives", "derives_above", "derives_chance")
OURS = (*READING, "requests", "invented", "invented_corrected", "invented_chance")
SHARES = (*PUBLISHED, *OURS)
ABOVE = ("uses_above", "derives_above")  # differences: their rates are cut off at 0
AMOUNTS = ("message_chars", "message_tokens", "answer_chars", "answer_tokens")
OF_THE_CHAT = ("agrees", "agrees_graded")
LEAST_CHANCE = 0.05  # below, nearly any number follows from any facts: invention cannot be told


# --- one chat ---------------------------------------------------------------------------------------------


def of_seat(chat: Json, seat: str) -> dict[str, float]:
    """The measures of one seat of one chat line."""
    said = [message for message in chat["messages"] if message["seat"] == seat]
    if not said:
        raise BadInput(
            f"seat {seat!r} never speaks in this chat of task {chat['task']!r}; expected one that does.",
            "results/chats",
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


# --- ours -------------------------------------------------------------------------------------------------


def of_reading(chat: Json, seat: str, others: Sequence[Json]) -> dict[str, float]:
    """What one seat's last message took from its partners, and what it would seem to take by chance.

    others: chats of other tasks. Numbers that this chat's seats hold, or its question, are left out of theirs.
    """
    own = _values([*chat["hands"][seat], chat["question"]])
    theirs = private_numbers(chat, seat)[1]
    held = _values(fact for hand in chat["hands"].values() for fact in hand)
    last = _values([message["said"] for message in chat["messages"] if message["seat"] == seat][-1:])
    strangers = [private_numbers(other, seat)[1] - own - held for other in others if seat in other["hands"]]
    uses, derives = _share(theirs, last), _derives(last, theirs, own)
    uses_chance = _mean(_share(numbers, last) for numbers in strangers)
    derives_chance = _mean(_derives(last, numbers, own) for numbers in strangers[:JUDGES])
    return {
        "uses_above": uses - uses_chance,
        "uses_chance": uses_chance if theirs else NAN,
        "derives": derives,
        "derives_above": derives - derives_chance,
        "derives_chance": derives_chance if theirs else NAN,
    }


def _derives(said: frozenset[float], theirs: frozenset[float], own: frozenset[float]) -> float:
    """1 where `said` holds a value that takes one operation on one of `theirs`, and could not come from `own`."""
    if not theirs:
        return NAN
    known = _shortened(own | theirs)
    mine = _shortened(own)
    new = [value for value in _shortened(said) - known if not _follows(value, mine, mine)]
    return float(any(_follows(value, _shortened(theirs), known) for value in new))


def invented(chat: Json, facts_of: Json) -> list[tuple[int, int]]:
    """For each message of `chat`: how many of its numbers do not follow from the facts of `facts_of`, of how many.

    Known at the start: every hand and the question (a percent also as a hundredth). A number that is one
    operation away from two known ones is known from then on, so that worked solutions invent nothing.
    """
    texts = [*(fact for hand in facts_of["hands"].values() for fact in hand), facts_of["question"]]
    known = set(_shortened(_values(texts) | _hundredths(" ".join(texts))))
    return [_judged(_in_order(message["said"]), known) for message in chat["messages"]]


def holders(chat: Json) -> dict[float, str]:
    """Each number that is dealt or asked about, and who holds it: "A", "AB", or "?" for one of the question."""
    found: dict[float, str] = {}
    for seat in sorted(chat["hands"]):
        for value in _shortened(_values(chat["hands"][seat])):
            found[value] = found.get(value, "") + seat
    return found | dict.fromkeys(_shortened(_values([chat["question"]])), "?")


def origins(chat: Json) -> list[dict[float, str]]:
    """For each message, where each of its numbers comes from (three decimals), as `invented` judges them.

    Its holders; "+" where it follows by one operation from what was known; "!" where it is invented.
    """
    held = holders(chat)
    texts = [*(fact for hand in chat["hands"].values() for fact in hand), chat["question"]]
    known = set(_shortened(_values(texts) | _hundredths(" ".join(texts))))
    return [
        {
            value: "!" if _judged([value], known)[0] else held.get(value, "+")
            for value in _in_order(message["said"])
        }
        for message in chat["messages"]
    ]


def _judged(values: Sequence[float], known: set[float]) -> tuple[int, int]:
    """Invented numbers, numbers; those that follow are added to `known`."""
    made_up = 0
    for value in values:
        if value in known:
            continue
        if _follows(value, known, known):
            known.add(value)
        else:
            made_up += 1
    return made_up, len(values)


def _follows(value: float, some: Set[float], others: Set[float]) -> bool:
    """Whether value is a + b, a - b, b - a, a * b, a / b or b / a, with a of `some` and b of `others`; none below 0."""
    return any(not others.isdisjoint(_partners(value, a)) for a in some)


@lru_cache(maxsize=1 << 17)
def _partners(value: float, a: float) -> tuple[float, ...]:
    """Every b for which `value` is a and b under one operation (three decimals)."""
    pairs = [abs(value - a), value + a, value * a]
    pairs += [value / a] if a else []
    pairs += [a / value] if value else []
    return tuple(round(b, 3) for b in pairs)


def _of_invention(chat: Json, others: Sequence[Json]) -> Iterator[tuple[str, float]]:
    """invented, invented_chance and invented_corrected of each seat; invented of each turn."""
    truth, by_others = invented(chat, chat), [invented(chat, other) for other in others[:JUDGES]]
    for at, message in enumerate(chat["messages"]):
        yield f"invented/turn{message['turn']}", _ratio([truth[at]])
    for seat in _seats(chat):
        mine = [at for at, message in enumerate(chat["messages"]) if message["seat"] == seat]
        share = _ratio([truth[at] for at in mine])
        chance = _mean(_ratio([judged[at] for at in mine]) for judged in by_others)
        corrected = min(1.0, share / chance) if chance >= LEAST_CHANCE else NAN
        named = {"invented": share, "invented_chance": chance, "invented_corrected": corrected}
        for name, value in named.items():
            yield name, value
            yield f"{name}/{seat}", value


def _ratio(counts: Sequence[tuple[int, int]]) -> float:
    of = sum(n for _, n in counts)
    return sum(some for some, _ in counts) / of if of else NAN


ASKS_FOR = re.compile(
    r"\b(?:tell|send|give|show) me\b|\bplease (?:tell|send|give|share|say)\b|\blet me know\b", re.IGNORECASE
)
SAME = 0.8  # of the words: a question that is the task's own


def requests(said: str, question: str) -> bool:
    """Whether a message asks for something: a question that is not the task's own said again, or "tell me ..."."""
    if ASKS_FOR.search(said):
        return True
    asked = [words for text in re.findall(r"[^.?!\n]*\?", said) if (words := _words(text))]
    own = [_words(text) for text in (question, *re.split(r"(?<=[.?!])\s", question))] if asked else []
    return any(not any(_repeats(words, part) for part in own) for words in asked)


def _repeats(words: list[str], question: list[str]) -> bool:
    """Whether these are the question's words, or four or more of them in a row."""
    inside = len(words) > 3 and f" {' '.join(words)} " in f" {' '.join(question)} "
    return inside or difflib.SequenceMatcher(None, words, question, autojunk=False).ratio() >= SAME


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def others_of(tasks: Sequence[str]) -> dict[str, list[str]]:
    """For each task, the `SHUFFLES` other tasks that stand after it in as many keyed shuffles (fewer, once each).

    In a shuffle every task follows once, and none follows itself; the order of `tasks` does not matter.
    """
    from cotalk.sample import generator  # brings torch with it: not for those who only read rates

    names = sorted(set(tasks))
    found: dict[str, list[str]] = {name: [] for name in names}
    for shuffle in range(SHUFFLES if len(names) > 1 else 0):
        order = generator("talk", "others", shuffle).permutation(len(names)).tolist()
        for at, place in enumerate(order):
            found[names[place]].append(names[order[(at + 1) % len(names)]])
    return {name: list(dict.fromkeys(others)) for name, others in found.items()}


def _seats(chat: Json) -> list[str]:
    return sorted({message["seat"] for message in chat["messages"]})


def _of_turns(chat: Json) -> Iterator[tuple[str, float]]:
    """sends, requests and cut of each turn (sends and requests: before a seat's last one)."""
    last = {message["seat"]: message["turn"] for message in chat["messages"]}
    for message in chat["messages"]:
        seat, turn = message["seat"], message["turn"]
        yield f"cut/turn{turn}", float(message["cut"])
        if turn != last[seat]:
            yield f"sends/turn{turn}", _share(private_numbers(chat, seat)[0], _values([message["said"]]))
            yield f"requests/turn{turn}", float(requests(message["said"], chat["question"]))


def _of_requests(chat: Json, seat: str) -> float:
    said = [message["said"] for message in chat["messages"] if message["seat"] == seat]
    return _mean(float(requests(text, chat["question"])) for text in said[:-1])


# --- numbers ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def _numbers_in(text: str) -> frozenset[float]:
    return frozenset(round(float(value), 6) for value in numbers(text))


@lru_cache(maxsize=1 << 14)
def _in_order(text: str) -> tuple[float, ...]:
    """Each number of a text once, where it stands first; three decimals, so that 1/3 of 3 is 1."""
    return tuple(dict.fromkeys(round(float(value), 3) for value in numbers(text)))


@lru_cache(maxsize=1 << 14)
def _shortened(values: frozenset[float]) -> frozenset[float]:
    return frozenset(round(value, 3) for value in values)


PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:%|percent\b)")


@lru_cache(maxsize=1 << 14)
def _hundredths(text: str) -> frozenset[float]:
    return frozenset(round(float(found) / 100, 6) for found in PERCENT.findall(text) if len(found) < 40)


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

    "sends" is over all seats, "sends/A" over seat A alone, "sends/turn0" over a turn. Tasks come in the order of
    `tasks`, else in the order in which the chats name them; a task without a chat is NaN. Chats of several runs
    are an error that cannot be seen here: give one run's.
    """
    by_task: dict[str, list[Json]] = {} if tasks is None else {task: [] for task in tasks}
    for chat in chats:
        if tasks is not None and chat["task"] not in by_task:
            raise BadInput(
                f"a chat of task {chat['task']!r} was given; expected one of the {len(tasks)} tasks.",
                "results/chats",
            )
        by_task.setdefault(chat["task"], []).append(chat)
    first = {task: chats_of_task[0] for task, chats_of_task in by_task.items() if chats_of_task}
    others = {task: [first[name] for name in names] for task, names in others_of(list(first)).items()}
    rows = [_of_task(chats_of_task, others.get(task, [])) for task, chats_of_task in by_task.items()]
    names = sorted({name for row in rows for name in row}, key=_place)
    return {name: np.array([row.get(name, NAN) for row in rows], dtype=np.float64) for name in names}


def means(chats: Iterable[Json]) -> dict[str, float]:
    """One plain number a measure, for a learning curve: the mean over tasks, where it applies at all."""
    found = {name: _mean(values.tolist()) for name, values in measures(chats).items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def stack(runs: Sequence[Mapping[str, NDArray[np.float64]]]) -> dict[str, Floats]:
    """The measures of several runs on the same tasks -> {measure: (runs, tasks)}."""
    if not runs:
        raise BadInput("no run's measures were given; expected at least one.", "results/chats")
    sizes = {len(values) for run in runs for values in run.values()}
    if len(sizes) > 1:
        raise BadInput(
            f"runs with {sorted(sizes)} tasks were given; expected the same tasks in every run.",
            "results/chats",
        )
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
    measure = name.split("/", maxsplit=1)[0]
    if measure in AMOUNTS:
        apart = {task if clusters is None or clusters[task] is None else clusters[task] for task in shared}
        return stats.amount(values, clusters) if len(apart) > 1 else None
    if measure in ABOVE:
        rate = signed_rate(values, clusters)
        mean, low, high = (max(0.0, value) for value in (rate.mean, rate.low, rate.high))
        return Rate(mean, low, high, rate.n, rate.unit, rate.tasks)
    if len(values) == 1:
        return stats.rate_of_values(values[0], clusters)
    return stats.rate_over_seeds(values, clusters)


def signed_rate(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Rate:
    """The mean of differences, (runs, tasks) between -1 and 1, NaN where one does not apply; low may be below 0.

    One run: the interval of `stats.rate_of_values`, stretched from 0..1 to -1..1. Several: the t interval of
    `stats.compare_with_fixed`, over seeds and tasks, on the tasks that every run has.
    """
    halves = (np.asarray(values, dtype=np.float64) + 1) / 2
    if len(halves) == 1:
        rate = stats.rate_of_values(halves[0], clusters)
        mean, low, high = (2 * value - 1 for value in (rate.mean, rate.low, rate.high))
        return Rate(mean, low, high, rate.n, rate.unit)
    found = stats.compare_with_fixed(halves, np.full((1, halves.shape[1]), 0.5), clusters=clusters)
    mean, tasks = 2 * found.difference, int(np.isfinite(halves).all(0).sum())
    low, high = 2 * (found.low or 0.0), 2 * (found.high or 0.0)
    return Rate(mean, max(-1.0, min(mean, low)), min(1.0, max(mean, high)), len(halves), "seeds+tasks", tasks)


def _of_task(chats: Sequence[Json], others: Sequence[Json]) -> dict[str, float]:
    collected: dict[str, list[float]] = {}
    for chat in chats:
        for name, value in _of_one(chat, others):
            collected.setdefault(name, []).append(value)
    return {name: _mean(values) for name, values in collected.items()}


def _of_one(chat: Json, others: Sequence[Json]) -> Iterator[tuple[str, float]]:
    yield from of_chat(chat).items()
    seats = _seats(chat)
    for seat in seats:
        found = of_seat(chat, seat)
        if len(seats) > 1:
            found |= of_reading(chat, seat, others) | {"requests": _of_requests(chat, seat)}
        for name, value in found.items():
            yield name, value
            yield f"{name}/{seat}", value
    if len(seats) > 1:
        yield from _of_turns(chat)
        yield from _of_invention(chat, others)


def _place(name: str) -> tuple[int, str, int]:
    """Measures over all seats first, in the order of the docstring; then seat by seat, then turn by turn."""
    measure, _, where = name.partition("/")
    return len(where), where, (SHARES + AMOUNTS).index(measure)
