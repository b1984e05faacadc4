r"""What the readers of untrusted things do with things made to break them: the grader, the fact dealer, the config
reader, the results reader.

Each target has a maker of inputs (pieces that have broken readers before, strung together; shipped files with letters
and values changed; now and then a sound one) and a judge that says what became of an input: a short word, or a
`Finding`. Whatever a reader raises that is not its own refusal, whatever takes longer than PATIENCE seconds, and
whatever breaks a promise (a study that was read is written and read back equal, dealt facts are the problem's words)
is a finding, counted by its kind and shown once. Inputs are keyed by seed, target and number, so that one can be made
again: `--only config --first 4711 --count 1`.

    PYTHONPATH=src python bench/fuzz.py --count 100000

One process; the grader's Math-Verify runs in one child with a limit of 0.2 s a question.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from cotalk import grade as grading
from cotalk import results
from cotalk.deal import RULES, CannotDeal, deal
from cotalk.errors import REMEDIES, BadInput
from cotalk.grade import FAILURES, MAX_ANSWER, Grade
from cotalk.grade_worker import Workers
from cotalk.numerals import located, numbers
from cotalk.results import Score
from cotalk.study import STUDIES, read_study
from cotalk.task import Task

PATIENCE = 5.0  # seconds for one input
BATCH = 200  # answers graded in one call
KEEP_MESSAGE = 20_000  # letters of a refusal: a message repeats what was given in part only


class Finding(Exception):
    """A promise that an input broke."""


@dataclass
class Outcome:
    """What became of a target's inputs."""

    target: str
    seconds: float = 0.0
    slowest: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[int, str]] = field(
        default_factory=dict
    )  # kind -> (number, the input's beginning)

    @property
    def inputs(self) -> int:
        return self.ends.total() + self.findings.total()


# --- pieces ------------------------------------------------------------------------------------------------

LETTERS = [
    "", " ", "\n", "\t", "\x00", "\x1b[2J", "\u200b", "\u202e", "\u2028", "\ufeff", "\ud800", "é", "李", "😀",
    "½", "٣",
]  # fmt: skip
NUMERALS = [
    "0", "-1", "7", "7.", ".5", "1e999", "1,000", "1/0", "3/4", "9" * 50, "9" * 5000, "١٢", "Infinity",
    "NaN", "-0",
]  # fmt: skip
MATHEMATICS = [
    r"\boxed{", r"\boxed", "}", "{", "$", "$$", r"\frac{", r"\frac", r"\sqrt{", "^", "_", "10^10^10", "9!",
    "!!", r"\text{", " dollars", "%", r"\%", "=", "==", ",", ";", " and ", " or ", r"\left(", r"\right)",
    "(", ")", "[", "]", "\\", r"\\", "|", r"\begin{matrix}", r"\end{matrix}", "&", r"\pi", "x", "i",
    r"\infty", r"\sum_{i=1}^{9}", r"\int", "####", "The answer is ", r"\{", r"\}", "~", r"\,", "{,}", "²",
    "×", "÷", "−", " a day", "million", "half", "dozen",
]  # fmt: skip
SENTENCES = [
    "Ann has 3 cats.", "Mrs. Lee paid $4.50.", "How many are there?", "He left at 3 p.m. on Friday.",
    "St. Ives has 12.", "“Who?” she asked.", '"7 3/4" she wrote.', "A third of the 12 eggs broke.",
    "Twice as many!", "No. 5 is first...", "e.g. 2.", "one hundred and twenty-five thousand",
    "twenty-third", "jar A. Jar B has 9.", "?", "!", ".", "...", "(4 of them", ")", "$5",
    "She asked: how many? He said 9.", "3.She", "10-3", "1 1/2 cups", "5'10\"", "a.m.", "Ms.", "J. Smith",
]  # fmt: skip
TOML = [
    "seeds = [1, 2]", "seeds = [17, 17]", "seeds = [-1]", "seeds = 3", "seeds = [9223372036854775808]",
    "[run]", "[arms.open]", "[arms.closed]", '[arms."../x"]', "[evaluate]", "[[compare]]", "[compare]",
    "[on.tiny]", "[run.x]", 'a = "trained_open"', 'b = "base_open"', "steps = 3", "steps = -1",
    "steps = 0xffffffffffffffffffffffffffffffffffff", "stpes = 3", "lr = nan", "lr = inf", "lr = 1e-4",
    'order = "ABAB"', 'order = ""', 'order = "AC"', 'order = "A"', 'order = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"',
    'channel = "closed"', 'channel = "ajar"', 'method = "ada"', "most_chats = 2", 'paid = "own"',
    'pool = "self*nan, base"', 'pool = "script:x"', 'guests = ["base"]', 'guests = ["x"]',
    'causal = ["nothing"]', "chats = 1", "margin = 2", "cross = 1", "unseen = 3", "greedy = 1",
    'tasks = "puzzles"', 'tasks = "no.jsonl"', "train_tasks = 1", "problems = 2000", "x = " + "[" * 500,
    "x = " + "[" * 100_000, "x = " + "9" * 5000, "x = 0x" + "f" * 5000, "steps = 0x" + "f" * 5000, '"" = 1',
    "x = 1979-05-27", "seed = 3", 'base = "\\u0000"', 'targets = ""', 'symmetries = "roles,x"', "= 3",
    "[[run]]", "[run", "x", '"""', "'''", 'base = "' + "a" * 10_000 + '"', "normaliser = true",
    "normaliser = 0", "temperature = -0.0", "beta1 = 1",
]  # fmt: skip
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    0.5,
    1e308,
    10**400,
    "x",
    "[/x]",
    "\u202e<script>",
    [],
    {},
    "a" * 10_000,
]
JSON = [
    "null", "true", "{}", "[]", '""', "-1", "1e400", "NaN", "0.5", '"x"', "[" * 500 + "]" * 500, "9" * 400,
    '"\\ud800"', "{", "}", ",",
]  # fmt: skip


def soup(r: random.Random, pieces: list[str], most: int = 12) -> str:
    """Pieces in a row; now and then one of them many times over."""
    found = [r.choice(pieces if r.random() < 0.85 else LETTERS + NUMERALS) for _ in range(r.randint(0, most))]
    if found and r.random() < 0.02:
        at = r.randrange(len(found))
        found[at] *= min(r.choice([100, 1000, 20_000]), 50_000 // max(1, len(found[at])))
    return r.choice(["", " "]).join(found)


def spoiled(r: random.Random, text: str, pieces: list[str]) -> str:
    """A sound text with a few letters or lines changed."""
    for _ in range(r.randint(1, 4)):
        at, to = sorted(r.randint(0, len(text)) for _ in range(2))
        to = min(to, at + r.choice([0, 1, 3, 40]))
        text = text[:at] + r.choice(["", r.choice(pieces), r.choice(LETTERS), r.choice(NUMERALS)]) + text[to:]
    return text


# --- the grader --------------------------------------------------------------------------------------------


def an_answer(r: random.Random) -> tuple[str, str]:
    number = r.choice(["7", "-3", "0.5", "1000", "3/4", "12.50"])
    text = soup(r, MATHEMATICS + NUMERALS)
    if r.random() < 0.4:
        text += r"\boxed{" + r.choice([number, soup(r, MATHEMATICS, 4), r.choice(NUMERALS)]) + "}"
    return text, r.choice([number, number, soup(r, MATHEMATICS, 3), r.choice(NUMERALS)])


def graded(inputs: list[tuple[str, str]]) -> Iterator[Callable[[], str]]:
    """One call for all of them; where it fails, each is graded alone, so that the one to blame is told."""
    try:
        grades: list[Grade] | None = grading.grade_many(inputs)
    except Exception:
        grades = None
    for at, (text, gold) in enumerate(inputs):
        yield lambda at=at, text=text, gold=gold: judged(
            text, gold, grades[at] if grades else grading.grade(text, gold)
        )


def judged(text: str, gold: str, found: Grade) -> str:
    if found.strict and not (found.parsed and found.lenient):
        raise Finding("right without a box, or strict and not lenient")
    if len(found.answer) > MAX_ANSWER:
        raise Finding("a long answer")
    if found.failure and found.lenient and found.failure != "no box":
        raise Finding(f"right, and no answer ({found.failure})")
    said, true = plain(found.answer), plain(gold)
    if found.parsed and said is not None and true is not None and found.strict != (said == true):
        raise Finding("a plain number against a plain number")
    if found.failure and found.failure not in FAILURES:
        raise Finding("an unknown failure")
    return "right" if found.strict else found.failure or "wrong"


def plain(text: str) -> Fraction | None:
    """A number that nobody can read in two ways."""
    short = len(text) < 12 and text.isascii() and text.lstrip("-").isdigit() and text.count("-") <= 1
    return Fraction(int(text)) if short else None


# --- the fact dealer ---------------------------------------------------------------------------------------


def a_problem(r: random.Random) -> tuple[Task, str, str]:
    text = soup(r, SENTENCES, 14)
    if r.random() < 0.3:
        text = spoiled(r, "Ann has 3 cats. Ben has 4 dogs. Cleo found 5. How many are there?", SENTENCES)
    task = Task("t", "", "7", problem=text)
    if r.random() < 0.2:
        task = Task(
            "t", soup(r, SENTENCES, 3), "7", tuple(soup(r, SENTENCES, 2) for _ in range(r.randint(0, 5)))
        )
    return task, r.choice(["AB", "ABC", "A", "ABCDEFG"]), r.choice([*RULES])


def dealt(inputs: list[tuple[Task, str, str]]) -> Iterator[Callable[[], str]]:
    return ((lambda one=one: deals(*one)) for one in inputs)


def deals(task: Task, seats: str, rule: str) -> str:
    values = [value for _, _, found in located(task.text) for value in found]
    if values != numbers(task.text):
        raise Finding("numbers that are located are not those that are read")
    try:
        found = deal(task, seats, rule)
    except CannotDeal as error:
        return error.reason
    if sorted(f for hand in found.hands.values() for f in hand) != sorted(found.facts) or set(
        found.hands
    ) != set(seats):
        raise Finding("hands that are not the facts")
    words = Counter(" ".join((*found.facts, found.question)).split())
    if words != Counter((task.problem or " ".join((*task.facts, task.question))).split()):
        before, after = "".join(task.text.split()), "".join((*found.facts, found.question))
        if sorted(before) != sorted("".join(after.split())):
            raise Finding("facts and question that are not the problem's letters")
    return "dealt"


# --- the config reader -------------------------------------------------------------------------------------


def a_config(r: random.Random) -> bytes:
    if r.random() < 0.5:
        text = "\n".join(r.choice(TOML) for _ in range(r.randint(0, 12)))
        if r.random() < 0.5:
            text = "seeds = [1]\n[arms.open]\n" + "\n".join(r.sample(TOML, 2))
    else:
        path = r.choice(sorted(STUDIES.glob("*.toml")))
        text = path.read_text(encoding="utf-8")
        if r.random() < 0.9:
            text = spoiled(r, text, TOML)
    data = text.encode("utf-8", "surrogatepass" if r.random() < 0.1 else "replace")
    return spoiled_bytes(r, data) if r.random() < 0.1 else data


def spoiled_bytes(r: random.Random, data: bytes) -> bytes:
    at = r.randint(0, len(data))
    return (
        data[:at]
        + r.choice([b"", b"\xff", b"\x00", b"\xed\xa0\x80", data[:50]])
        + data[at + r.randint(0, 3) :]
    )


def configured(inputs: list[bytes]) -> Iterator[Callable[[], str]]:
    path = scratch() / "study.toml"
    return ((lambda one=one: configures(path, one)) for one in inputs)


def configures(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    try:
        found = read_study(str(path))
    except BadInput as error:
        return refused(error)
    path.write_text(found.as_toml(), encoding="utf-8")
    if read_study(str(path)) != found:
        raise Finding("a study that does not read back equal")
    return "read"


def refused(error: BadInput) -> str:
    if error.code not in REMEDIES:
        raise Finding(f"the code {error.code!r} has no remedy")
    if not 10 < len(str(error)) < KEEP_MESSAGE:
        raise Finding(f"a message of {len(str(error)):,} letters")
    return error.code


# --- the results reader ------------------------------------------------------------------------------------


@cache
def a_score(condition: str, *seeds: int | None) -> Score:
    drawn = np.random.default_rng(len(condition))
    shape = (len(seeds), 6, 2, 2)
    values = (drawn.random(shape) < 0.6).astype(float)
    talk = {"sends": drawn.random(shape[:2])}
    return Score(condition, seeds, tuple("abcdef"), ("A", "B"), values, values, values, np.ones(shape), talk)


@cache
def sound_results() -> str:
    scores = [
        a_score("trained_open", 1, 2, 3),
        a_score("trained_closed", 1, 2, 3),
        a_score("base_open", None),
    ]
    made = results.build(
        "fuzz", scores, compare=[("trained_open", "trained_closed")], created="2026-01-01T00:00:00+00:00"
    )
    return json.dumps(made)


@cache
def sound_outcomes() -> bytes:
    return a_score("trained_open", 1, 2, 3).save(scratch()).read_bytes()


def a_document(r: random.Random) -> tuple[str, bytes]:
    if r.random() < 0.2:
        return "npz", spoiled_bytes(r, sound_outcomes()) if r.random() < 0.95 else sound_outcomes()
    if r.random() < 0.1:
        return "json", soup(r, JSON, 6).encode("utf-8", "surrogatepass")
    text = sound_results()
    if r.random() < 0.4:
        text = spoiled(r, text, JSON)
    elif r.random() < 0.95:
        document = json.loads(text)
        for _ in range(r.randint(1, 3)):
            change(r, document)
        text = json.dumps(document)
    return "json", text.encode("utf-8", "surrogatepass")


def change(r: random.Random, value: Any) -> None:
    """Somewhere in a document a value becomes another one, or goes, or a key that nobody knows comes."""
    while isinstance(value, (dict, list)) and value:
        at = r.choice([*value]) if isinstance(value, dict) else r.randrange(len(value))
        inner = value[at]
        if isinstance(inner, (dict, list)) and inner and r.random() < 0.8:
            value = inner
            continue
        if r.random() < 0.15:
            del value[at]
        elif r.random() < 0.15 and isinstance(value, dict):
            value[r.choice(["x", "__proto__", "", "seeds"])] = inner
        else:
            value[at] = r.choice([*VALUES, [inner], {"x": inner}])
        return


def looked_at(inputs: list[tuple[str, bytes]]) -> Iterator[Callable[[], str]]:
    return ((lambda one=one: reads(*one)) for one in inputs)


def reads(kind: str, data: bytes) -> str:
    path = scratch() / ("outcomes.npz" if kind == "npz" else "results.json")
    path.write_bytes(data)
    try:
        if kind == "npz":
            Score.load(path)
            return "outcomes read"
        found = results.read(path)
    except BadInput as error:
        return refused(error)
    results.stale(found)
    Console(file=Nowhere(), width=100).print(results.table(found))
    return "read and shown"


class Nowhere:
    def write(self, text: str) -> int:
        text.encode("utf-8", "surrogatepass")
        return len(text)

    def flush(self) -> None: ...


# --- all of them -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    make: Callable[[random.Random], Any]
    judge: Callable[[list[Any]], Iterator[Callable[[], str]]]


TARGETS = {
    "grader": Target(an_answer, graded),
    "dealer": Target(a_problem, dealt),
    "config": Target(a_config, configured),
    "results": Target(a_document, looked_at),
}


@cache
def scratch() -> Path:
    directory = tempfile.TemporaryDirectory(
        prefix="cotalk-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    )
    _kept.append(directory)
    return Path(directory.name)


_kept: list[Any] = []


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Whatever is going on ends after so many seconds, as a finding."""

    def slow(*_: object) -> None:
        raise Finding(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, slow)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(name: str, count: int, seed: int = 0, first: int = 0) -> Outcome:
    """Inputs `first`, ... of a target, `count` of them."""
    target, found = TARGETS[name], Outcome(name)
    started = time.perf_counter()
    for begin in range(first, first + count, BATCH):
        numbers_ = range(begin, min(begin + BATCH, first + count))
        inputs = [target.make(random.Random(f"{seed} {name} {n}")) for n in numbers_]
        judges = target.judge(inputs)
        for n, given in zip(numbers_, inputs):
            _one(found, n, given, judges)
    found.seconds = time.perf_counter() - started
    return found


def _one(found: Outcome, n: int, given: Any, judges: Iterator[Callable[[], str]]) -> None:
    before = time.perf_counter()
    try:
        with patience(PATIENCE + BATCH):  # the first of a batch of answers waits for all of them
            judge = next(judges)
        before = time.perf_counter()
        with patience(PATIENCE):
            found.ends[judge()] += 1
    except Exception as error:
        kind = _kind(error)
        found.findings[kind] += 1
        found.examples.setdefault(kind, (n, repr(given)[:300]))
    found.slowest = max(found.slowest, time.perf_counter() - before)


def _kind(error: Exception) -> str:
    """What went wrong and where in the package."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/cotalk/" in f.filename]
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
    told = str(error) if isinstance(error, Finding) else type(error).__name__
    return f"{told}{where}"


def show(outcomes: list[Outcome], console: Console) -> None:
    table = RichTable(
        "reader",
        "inputs",
        "seconds",
        "slowest",
        "what became of them",
        "findings",
        title="fuzz",
        title_justify="left",
    )
    for one in outcomes:
        ends = ", ".join(f"{end} {count:,}" for end, count in one.ends.most_common(6))
        ends += f", {len(one.ends) - 6} more kinds" if len(one.ends) > 6 else ""
        table.add_row(
            one.target, f"{one.inputs:,}", f"{one.seconds:.0f}", f"{1000 * one.slowest:.0f} ms", ends,
            "\n".join(f"{kind}: {count:,}" for kind, count in one.findings.most_common()) or "none",
        )  # fmt: skip
    console.print(table)
    for one in outcomes:
        for kind, (n, given) in one.examples.items():
            console.print(f"{one.target} {n}, {kind}: {given}", highlight=False, markup=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="inputs for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", choices=[*TARGETS], help="one reader")
    told = parser.parse_args()
    sys.modules["cotalk.grade"]._workers = Workers(count=1, limit_s=0.2)  # type: ignore[attr-defined]
    outcomes = [
        fuzz(name, told.count, told.seed, told.first) for name in ([told.only] if told.only else TARGETS)
    ]
    show(outcomes, Console(width=160))
    print(json.dumps({one.target: {"inputs": one.inputs, "seconds": round(one.seconds, 1), "ends": dict(one.ends),
                                   "findings": dict(one.findings)} for one in outcomes}))  # fmt: skip
    return 1 if any(one.findings for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
