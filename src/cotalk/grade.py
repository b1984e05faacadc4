r"""Grading: what a seat answered, and whether it is right.

A seat's last message goes through three hands. **Cut**: our own code takes the last balanced `\boxed{...}`
out of it and drops what is not the value (a unit word, thousands separators, the left side of an equation).
**Compare**: two plain numbers are compared exactly, here, in microseconds. **Math-Verify** reads everything
else, in a process of its own with a limit (grade_worker.py), and never sees more than that one piece.

*Strict* is the verdict on the box. *Lenient* is the same if there is a box, else Math-Verify's verdict on the
whole text. Both are always computed, and what could not be read (`failure`) is kept apart from what is wrong.

    grade(r"30-14=16. \boxed{16}", "16").strict               # True
    grade("the order is $29.00.", "29")                       # strict False, lenient True, failure "no box"
    grade_many([(text, gold), ...])                           # a batch: several processes, equal pairs once
    grade_many(pairs, load_grader("my_grader.py:judge"))      # judge(text, gold) -> bool | float in [0, 1]
    team_reward({"A": grade_a, "B": grade_b}, "strict")       # ({"A": 1.0, "B": 0.0}, 0.5)

Left out: what each message is paid for the reward (methods.py). Importing this file imports neither torch nor
Math-Verify.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Literal

from cotalk.errors import BadInput, RunFailed
from cotalk.grade_worker import (
    CRASHED,
    MISSING,
    RIGHT,
    TIMEOUT,
    UNREADABLE,
    WRONG,
    Question,
    Workers,
)

MAX_TEXT = 8_000  # characters of a message that are read: its last ones
MAX_ANSWER = 500  # characters of a box, or of a gold answer; longer ones are no answer

FAILURES = ("no box", "long", UNREADABLE, TIMEOUT, CRASHED, MISSING)

UserGrader = Callable[[str, str], "bool | float"]


@dataclass(frozen=True)
class Grade:
    """One seat's answer.

    Notes are countable words. How it was read: "boxes" (more than one), "unclosed" (a box that never ends),
    "capped", "equation", "unit", "percent", "sum". Why there is no answer: the words in `FAILURES`.
    """

    strict: bool
    lenient: bool
    parsed: bool  # a box was found
    answer: str  # what was cut out of the box, without its unit; "" if there is no box
    notes: tuple[str, ...] = ()
    boxes: int = 0  # balanced boxes that held something
    score: float | None = None  # what a user's grader gave; None for our own

    @property
    def failure(self) -> str:
        """Why there was no answer to compare ("" if there was one, right or wrong)."""
        return next((note for note in self.notes if note in FAILURES), "")


@dataclass(frozen=True)
class Reading:
    """A message before Math-Verify: the grade as far as our own code goes, and what is left to ask."""

    grade: Grade
    verdict: str = ""
    question: Question | None = None


# One message, many messages -----------------------------------------------------------------------

_workers = Workers()


def grade(text: str, gold: str) -> Grade:
    """Grade one message against the gold answer."""
    return grade_many([(text, gold)])[0]


def grade_many(pairs: Sequence[tuple[str, str]], grader: UserGrader | None = None) -> list[Grade]:
    """Grade (text, gold) pairs, in order; equal pairs once.

    With a `grader` (see `load_grader`) its score decides, and a full score counts as right. If it raises, or
    returns anything outside [0, 1], that is a `RunFailed` that names its file.
    """
    readings = {pair: read(*pair) for pair in dict.fromkeys(pairs)}
    if grader is not None:
        scored = {pair: _score(grader, pair, reading.grade) for pair, reading in readings.items()}
        return [scored[pair] for pair in pairs]
    questions = list(dict.fromkeys(r.question for r in readings.values() if r.question))
    verdicts = dict(zip(questions, _workers.ask(questions), strict=True)) if questions else {}
    graded = {pair: _settle(reading, verdicts) for pair, reading in readings.items()}
    return [graded[pair] for pair in pairs]


def read(text: str, gold: str) -> Reading:
    """Cut the answer out of a message, and compare it if no library is needed for that."""
    message = text[-MAX_TEXT:]
    box, boxes, notes = last_box(message)
    if len(text) > MAX_TEXT:
        notes += ("capped",)
    known = read_gold(gold)
    if not boxes:
        return _read_whole(message, known, notes)
    if len(box) > MAX_ANSWER:
        return Reading(Grade(False, False, True, box[:MAX_ANSWER], notes, boxes), "long")
    answer = read_answer(box)
    grade = Grade(False, False, True, answer.text, notes + answer.notes, boxes)
    verdict = compare(answer, known)
    return Reading(grade, verdict, None if verdict else ("box", answer.text, known.text))


def _read_whole(message: str, gold: Answer, notes: tuple[str, ...]) -> Reading:
    """A message without a box: no answer (strict); lenient asks Math-Verify, if it holds anything to read."""
    grade = Grade(False, False, False, "", (*notes, "no box"))
    if len(gold.text) > MAX_ANSWER or not _MATHEMATICS.search(message):
        return Reading(grade, WRONG)
    return Reading(grade, question=("text", message, gold.text))


def _settle(reading: Reading, verdicts: Mapping[Question, str]) -> Grade:
    """The reading with the verdict on it, ours or Math-Verify's."""
    verdict = verdicts[reading.question] if reading.question else reading.verdict
    grade = reading.grade
    right = verdict == RIGHT
    silent = (RIGHT, WRONG) if grade.parsed else (RIGHT, WRONG, UNREADABLE)  # "no box" has said it already
    notes = grade.notes if verdict in silent else (*grade.notes, verdict)
    return Grade(right and grade.parsed, right, grade.parsed, grade.answer, notes, grade.boxes)


# Cutting ------------------------------------------------------------------------------------------

_BRACES = re.compile(r"\\{1,2}boxed\s*\{|\\.|[{}]", re.DOTALL)
_MATHEMATICS = re.compile(r"[\d\\$\[]")  # without one of these Math-Verify finds nothing in a text


def last_box(text: str) -> tuple[str, int, tuple[str, ...]]:
    r"""The inside of the last balanced `\boxed{...}`, how many there are, and notes ("boxes", "unclosed").

    Of nested boxes the inner one is the last. Escaped braces (`\{`) do not count. An empty box is no box, and
    neither is one without braces (`\boxed 5`, which TeX ends after one sign) or one that is never closed.
    """
    if "boxed" not in text:
        return "", 0, ()
    opened: list[tuple[bool, int]] = []
    start, last, boxes = -1, "", 0
    for mark in _BRACES.finditer(text):
        token = mark.group()
        if token == "}" and opened:
            is_box, inside = opened.pop()
            content = text[inside : mark.start()].strip() if is_box else ""
            boxes += bool(content)
            if content and inside > start:
                start, last = inside, content
        elif token[-1] == "{" and (token == "{" or "boxed" in token):
            opened.append((token != "{", mark.end()))
    unclosed = any(is_box for is_box, _ in opened)
    return last, boxes, ("boxes",) * (boxes > 1) + ("unclosed",) * unclosed


@dataclass(frozen=True)
class Answer:
    """A value as it will be compared: the piece, how it was cut, and its number if it is a plain one."""

    text: str
    notes: tuple[str, ...] = ()
    value: Fraction | None = None
    percent: bool = False


_PLAIN = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_WRAPPERS = r"\\(?:text|textrm|textbf|textit|textnormal|mathrm|mathbf|mathit|mathsf|mbox|operatorname)\s*"
_WRAPPED = re.compile(_WRAPPERS + r"\{([^{}]*)\}")
_THIN_SEPARATOR = re.compile(r"(?<=[0-9])(?:\{,\}|,?\\[,!])\s*(?=[0-9]{3}(?![0-9]))")
_SPACE = re.compile(r"\\[,;:! ]|~|\s+")
_MONEY = re.compile(r"\\\$|[$€£¥]|\\[()]")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_SPACED_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?")
_MIXED = re.compile(r"([+-]?[0-9]+) ([0-9]+)/([0-9]+)")
_PERCENT = re.compile(r"(.*[0-9)}])\s*(?:\\?%)")
_LIST = re.compile(r"[,;]|\b(?:and|or)\b")
_EQUALS = re.compile(r"(?<![<>!:=\\])=(?!=)")
_FRACTIONS = re.compile(r"\\(?:[dtc]?frac|left|right)(?![A-Za-z])")
_TIMES = re.compile(r"\\(?:times|cdot|div)(?![A-Za-z])")
_ARITHMETIC = re.compile(r"[-+*/×÷·^(){}0-9. ]+")
_OPERATOR = re.compile(r"[0-9)}.]\s*[-+*×÷·^]")


def read_answer(piece: str) -> Answer:
    """The inside of a box as a value, without separators, money signs, left side of an equation and unit."""
    if _PLAIN.fullmatch(piece):
        return _valued(piece, ())
    piece, notes = _right_hand_side(_tidy(piece), ())
    piece, notes = _without_unit(piece, notes)
    if _SPACED_THOUSANDS.fullmatch(piece):
        piece = piece.replace(" ", "")
    piece = _MIXED.sub(r"\1\\frac{\2}{\3}", piece) if _MIXED.fullmatch(piece) else piece
    return _valued(piece, notes + ("sum",) * _is_sum(piece))


def _tidy(piece: str) -> str:
    """The same value in plainer signs."""
    piece = _THIN_SEPARATOR.sub(",", piece.replace("\u2212", "-"))
    piece = _MONEY.sub("", _SPACE.sub(" ", piece)).strip().rstrip(".").strip()
    wrapped = _WRAPPED.fullmatch(piece)
    piece = wrapped.group(1).strip() if wrapped else piece
    return _THOUSANDS.sub(lambda number: number.group().replace(",", ""), piece)


def _right_hand_side(piece: str, notes: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """`5=800` is 800. Not inside braces (a sum's limits), and not where several things are listed."""
    if "=" not in piece or _LIST.search(piece):
        return piece, notes
    signs = [sign.start() for sign in _EQUALS.finditer(piece)]
    outside = [at for at in signs if piece.count("{", 0, at) == piece.count("}", 0, at)]
    right = piece[outside[-1] + 1 :].strip() if outside else ""
    return (right, (*notes, "equation")) if right else (piece, notes)


def _valued(piece: str, notes: tuple[str, ...]) -> Answer:
    """The piece with its number, if it is a plain one that Math-Verify, too, compares exactly.

    Math-Verify rounds what has a point to six places, so more places than that, or more than 15 digits with a
    point, are left to it.
    """
    percent = _PERCENT.fullmatch(piece)
    notes += ("percent",) * bool(percent)
    digits = percent.group(1) if percent else piece
    places = len(digits) - digits.find(".") - 1 if "." in digits else 0
    if not _PLAIN.fullmatch(digits) or places > 6 or (places and len(digits) > 15):
        return Answer(piece, notes)
    return Answer(piece, notes, Fraction(digits), bool(percent))


def _is_sum(piece: str) -> bool:
    """Whether it is arithmetic left undone: `30-14`, `2*8`, `2^3`; not `1/2`, which may be a value."""
    flat = _TIMES.sub("*", _FRACTIONS.sub("", piece))
    return bool(_ARITHMETIC.fullmatch(flat) and _OPERATOR.search(flat))


# Units --------------------------------------------------------------------------------------------

_UNIT = re.compile(
    r"(?P<value>.*[0-9)}%])(?P<space>\s*)"
    rf"(?:{_WRAPPERS}\{{(?P<wrapped>[^{{}}\\0-9]*)\}}|(?P<bare>[A-Za-z][A-Za-z./' -]*))"
    r"(?:\^\{?[23]\}?|[²³])?\.?"
)
_WORD = re.compile(r"[A-Za-z]+")
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9}
_KNOWN_UNITS = """
    g m s h l ml cl dl kg mg cm mm km lb lbs oz ft in mph kph hr hrs min mins sec am pm kcal cal usd
"""
_NOT_UNITS = """
    and or to of from than times plus minus more less over by not is equals
    half halves third thirds quarter quarters fourth fifth
    dozen hundred thousand million billion trillion bn mn
    zero one two three four five six seven eight nine ten eleven twelve
    pi sqrt sin cos tan log ln exp inf infinity
"""
_STUCK, _REFUSED = frozenset(_KNOWN_UNITS.split()), frozenset(_NOT_UNITS.split())


def _without_unit(piece: str, notes: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    r"""`800 ml`, `800\text{ ml}`, `60 miles per hour` are their number; `5 million` is 5000000."""
    found = _UNIT.fullmatch(piece)
    if not found or not re.search(r"[0-9]", found["value"]):
        return piece, notes
    wrapped, bare, value = found["wrapped"], found["bare"], found["value"].strip()
    words = _WORD.findall((wrapped or bare or "").lower())
    words = words[:1] + [word for word in words[1:] if word != "a"]  # dollars a day
    if words and words[0] == "percent":
        return value + r"\%", notes
    if words and words[0] in _SCALES and _PLAIN.fullmatch(value):
        value, words = _plain(Fraction(value) * _SCALES[words[0]]), words[1:]
    attached = bool(bare and not found["space"])
    if len(words) <= 4 and all(_is_unit(word, attached) for word in words):
        return value, (*notes, "unit")
    return (piece if bare else f"{value} {wrapped}"), notes  # words in \text Math-Verify would ignore


def _is_unit(word: str, attached: bool) -> bool:
    """Any longer word that is no number word; a single letter, or one stuck to its number, only if known."""
    return word in _STUCK if attached or len(word) == 1 else word not in _REFUSED


def _plain(number: Fraction) -> str:
    """`5000000`, or `0.5` (a decimal of at most nine places ends there)."""
    return str(number) if number.denominator == 1 else f"{float(number):.9f}".rstrip("0")


# Comparing ----------------------------------------------------------------------------------------

_WORDS_ONLY = re.compile(r"[A-Za-z]{3,}(?:[ '-]+[A-Za-z]+)*")
_NO_NUMBER = re.compile(r"[A-Za-z .,;:!?'\"]*")


@functools.lru_cache(maxsize=4_096)
def read_gold(gold: str) -> Answer:
    """The gold answer as a value: after the last `####`, out of its box if it has one, cut like an answer."""
    gold = gold.rsplit("####", 1)[-1].strip()
    box, boxes, _ = last_box(gold)
    return read_answer(box if boxes else gold) if len(gold) <= MAX_ANSWER else Answer(gold)


def compare(answer: Answer, gold: Answer) -> str:
    """A verdict where none but our own code is needed, else ""."""
    if not answer.text:
        return UNREADABLE
    if len(gold.text) > MAX_ANSWER:
        return "long"
    if answer.value is not None and gold.value is not None:
        return RIGHT if _same_number(answer, gold) else WRONG
    if gold.value is not None and _NO_NUMBER.fullmatch(answer.text):
        return UNREADABLE
    if _WORDS_ONLY.fullmatch(gold.text):  # as letters times letters "act" would equal "cat"
        return RIGHT if answer.text.casefold() == gold.text.casefold() else WRONG
    return ""


def _same_number(answer: Answer, gold: Answer) -> bool:
    """Exactly equal; where only one is a percentage, 50% is both 50 and 0.5 (as Math-Verify has it)."""
    if answer.value == gold.value:
        return True
    if answer.percent == gold.percent or answer.value is None or gold.value is None:
        return False
    return answer.value / 100 == gold.value if answer.percent else answer.value == gold.value / 100


# A user's grader, and the team --------------------------------------------------------------------


@dataclass(frozen=True)
class FileGrader:
    """A grader out of a file; calls like the function, and remembers where it came from."""

    spec: str  # "file.py:function"
    function: UserGrader

    def __call__(self, text: str, gold: str) -> bool | float:
        return self.function(text, gold)


def load_grader(spec: str) -> FileGrader:
    """`file.py:function` as a grader: `function(text, gold)` gives a bool, or a float in [0, 1]."""
    file, _, name = spec.rpartition(":")
    expected = "expected grade = file.py:function with `def function(text: str, gold: str) -> bool | float`"
    path = Path(file)
    if not file or not name.isidentifier():
        raise BadInput(f"grader {spec!r}: {expected}", "grader/not-loaded")
    if not path.is_file():
        raise BadInput(f"grader {spec!r}: there is no file {path}; {expected}", "grader/not-loaded")
    function = getattr(_import_file(path), name, None)
    if not callable(function):
        raise BadInput(f"grader {spec!r}: {path} has no function {name!r}; {expected}", "grader/not-loaded")
    return FileGrader(spec, function)


def _import_file(path: Path) -> ModuleType:
    """Run a Python file as a module of its own."""
    name = f"cotalk_grader_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise BadInput(f"grader file {path}: expected a Python file (*.py)", "grader/not-loaded")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise BadInput(
            f"grader file {path}: importing it raised {type(error).__name__}: {error}", "grader/not-loaded"
        ) from error
    return module


def _score(grader: UserGrader, pair: tuple[str, str], ours: Grade) -> Grade:
    """The grade a user's grader gives; the box is still looked for, so that parse rates stay comparable."""
    where = grader.spec if isinstance(grader, FileGrader) else _where(grader)
    try:
        given = grader(*pair)
    except Exception as error:
        raise RunFailed(
            f"grader {where} raised {type(error).__name__}: {error}, on text {pair[0][-200:]!r} "
            f"and gold {pair[1][:200]!r}; expected a bool or a float in [0, 1]",
            "grader/failed",
        ) from error
    try:
        score = float(given)
    except (TypeError, ValueError):
        score = math.nan
    if not 0.0 <= score <= 1.0:
        raise RunFailed(
            f"grader {where} returned {given!r} on text {pair[0][-200:]!r} and gold {pair[1][:200]!r}; "
            "expected a bool or a float in [0, 1]",
            "grader/failed",
        )
    return replace(ours, strict=score == 1.0, lenient=score == 1.0, score=score)


def _where(function: UserGrader) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{function.__name__}" if code else repr(function)


def team_reward(
    grades: Mapping[str, Grade], kind: Literal["strict", "lenient"]
) -> tuple[dict[str, float], float]:
    """What each seat earned (1.0 for right, or a user's grader's score), and the mean over seats."""
    if kind not in ("strict", "lenient"):
        raise BadInput(f'reward = {kind!r}: expected "strict" or "lenient"', "config/choice")
    if not grades:
        raise BadInput(
            "team reward of no seats: expected a grade for each seat that answered", "grader/no-seats"
        )
    seats = {seat: float(getattr(g, kind)) if g.score is None else g.score for seat, g in grades.items()}
    return seats, sum(seats.values()) / len(seats)
