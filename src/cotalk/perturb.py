r"""Two controls of a result: the same tasks with other numbers, and a reward that is no reward.

**Perturbed numbers.** A model that knows a benchmark by heart, or a habit that fits its numbers, fails on the same
problem with other numbers. Numbers are changed only where the source itself can make the gold again:

    puzzles        new numbers into the same sentences; the gold is their signed sum (puzzles.py)
    gsm_symbolic   the same template drawn again by reasoning-gym (names change with the numbers)
    GSM8K          its solutions hold every step as <<48/2=24>>: a number of the problem is changed where it is
                   plain which numbers of the steps are meant, and all steps are computed again

Whatever is not plain is refused and counted: steps that do not reproduce the gold, a number that
could be two things, no other numbers for which all steps stay whole.

    perturb(tasks, "data/gsm8k")                    # Perturbed(tasks=[...], refused={"reason": count})
    perturb_deals(deals, "puzzles", rule="clean")   # the same for dealt tasks, dealt again

**Random reward** (Spurious Rewards, arXiv 2506.10947): each chat is paid 0 or 1 by its key alone. An arm that gains
under it gains without having learned anything from its answers.

Left out: how an evaluation plays these tasks, and what an arm's reward is (train.py, study.py).
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from cotalk import puzzles
from cotalk.chat import Chat
from cotalk.deal import CannotDeal, Deal, deal
from cotalk.errors import BadInput
from cotalk.numerals import numbers
from cotalk.sample import generator, key
from cotalk.task import SYMBOLIC_FORM, Task, kind_of

TRIES = 400
NO_SOURCE = "its source cannot make its gold again"
NO_SOLUTION = "no solution of the source belongs to it"
UNLIKE_GOLD = "the source's own steps do not give the gold"
UNSURE = "no number of which it is plain what it stands for"
NO_OTHERS = "no other numbers for which every step stays whole"
SUFFIX = "~"  # of a perturbed task's id


@dataclass(frozen=True)
class Perturbed:
    """Tasks with other numbers, in order, and how many were refused, by reason."""

    tasks: list[Task]
    refused: dict[str, int]

    def __str__(self) -> str:
        parts = [f"{len(self.tasks):,} with other numbers"]
        return "; ".join(parts + [f"{count:,} not: {reason}" for reason, count in self.refused.items()])


class CannotPerturb(BadInput):
    """This task's numbers cannot be changed; `reason` is short, and made to be counted."""

    def __init__(self, task: Task, reason: str) -> None:
        super().__init__(f"task {task.id!r} cannot be perturbed: {reason}")
        self.reason = reason


def perturb(tasks: Iterable[Task], source: str, seed: int = 0) -> Perturbed:
    """The tasks of a source with other numbers and golds; ids end in "~". The same seed gives the same numbers."""
    kind = kind_of(source)
    solved = solutions(source) if kind in ("gsm8k", "file") else {}
    done: list[Task] = []
    refused: Counter[str] = Counter()
    for task in tasks:
        try:
            done.append(perturb_one(task, kind, solved, seed))
        except CannotPerturb as error:
            refused[error.reason] += 1
    return Perturbed(done, dict(refused.most_common()))


def perturb_one(task: Task, kind: str, solved: Mapping[str, str] | None = None, seed: int = 0) -> Task:
    """One task with other numbers; CannotPerturb says why not.

    kind: of its source (`task.kind_of`). solved: {problem: worked solution}, for GSM8K.
    """
    random = generator("perturb", seed, task.id, task.text)
    if kind == "puzzles":
        changed = _puzzle(task, random)
    elif kind == "gsm_symbolic":
        changed = _symbolic(task, random)
    elif kind in ("gsm8k", "file") and task.problem:
        changed = _solved(task, solved or {}, random)
    else:
        raise CannotPerturb(task, NO_SOURCE)
    return replace(changed, id=task.id + SUFFIX)


def perturb_deals(
    deals: Sequence[Deal], source: str, rule: str = "clean", seed: int = 0
) -> tuple[list[Deal], Perturbed]:
    """Dealt tasks with other numbers, dealt again to the same seats by the same rule."""
    found = perturb([one.task for one in deals], source, seed)
    seats = {one.task.id + SUFFIX: "".join(one.hands) for one in deals}
    dealt: list[Deal] = []
    kept: list[Task] = []
    refused = Counter(found.refused)
    for task in found.tasks:
        try:
            dealt.append(deal(task, seats[task.id], rule))
            kept.append(task)
        except CannotDeal as error:
            refused[error.reason] += 1
    return dealt, Perturbed(kept, dict(refused.most_common()))


# --- puzzles ----------------------------------------------------------------------------------------------


def _puzzle(task: Task, random: Any) -> Task:
    if (task.template or "").partition("/")[0] not in {kind.name for kind in puzzles.KINDS}:
        raise CannotPerturb(task, NO_SOURCE)
    signs = puzzles.signs_of(task)
    held = [re.findall(r"\d+", fact) for fact in task.facts]
    if [len(found) for found in held] != [1] * len(signs):
        raise CannotPerturb(task, UNSURE)
    old = [int(found[0]) for found in held]
    if str(puzzles.partial_sums(old, signs)[-1]) != task.gold:
        raise CannotPerturb(task, UNLIKE_GOLD)
    for _ in range(TRIES):
        new = random.integers(puzzles.LEAST, puzzles.MOST + 1, len(signs)).tolist()
        sums = puzzles.partial_sums(new, signs)
        if all(puzzles.LEAST <= s <= puzzles.MOST for s in sums) and str(sums[-1]) != task.gold:
            facts = tuple(re.sub(r"\d+", str(n), fact) for n, fact in zip(new, task.facts, strict=True))
            return replace(task, facts=facts, gold=str(sums[-1]))
    raise CannotPerturb(task, NO_OTHERS)


# --- gsm_symbolic -----------------------------------------------------------------------------------------


@functools.cache
def _generators() -> dict[int, Any]:
    """reasoning-gym's generator of each template."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise BadInput(
            "gsm_symbolic needs reasoning-gym: pip install reasoning-gym==0.1.25", "package/missing"
        ) from error
    found: dict[int, Any] = reasoning_gym.create_dataset("gsm_symbolic", size=1, seed=0).generators
    return found


def _symbolic(task: Task, random: Any) -> Task:
    template = task.template or ""
    make = _generators().get(int(template)) if template.isdecimal() else None
    if make is None:
        raise CannotPerturb(task, NO_SOURCE)
    for _ in range(TRIES):
        row = make(Random(int(random.integers(2**31))), 1.0)
        problem, gold = row["question"].removesuffix(SYMBOLIC_FORM), str(row["answer"]).strip()
        if gold != task.gold:
            return replace(task, problem=problem, gold=gold)
    raise CannotPerturb(task, NO_OTHERS)


# --- GSM8K ------------------------------------------------------------------------------------------------

STEP = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
LITERAL = re.compile(r"(?:\d[\d,]*)?\.?\d+")
SUM = re.compile(r"[-+*/(). \d]+")
WHOLE = re.compile(
    r"(?<![\d.,/:-])(?:\d{1,3}(?:,\d{3})+|\d+)(?![\d/:%]|,\d|\.\d|-\d| ?percent)"  # not of 1/2, 25%, 10:30, 1.50
)
SMALL = 5  # below, a number often counts parts of the story itself ("after 3 years", each of them told)
CONSTANTS = {  # numbers that a step may use though the problem does not hold them, and the words that call for them
    1: "",
    2: r"half|halv|twice|doubl|pairs?\b|both|couple|averag|dozen|fortnight|opposite|round trip",
    3: r"third|thrice|tripl|yard|averag",
    4: r"quarter|square|month|quadrupl|averag|legs?\b",
    7: r"week|dai?ly?",
    10: r"decade|dime",
    12: r"dozen|month|year|inch|f[eo]{1,2}t\b|annual",
    24: r"hour|day",
    30: r"month",
    31: r"month",
    52: r"week|year",
    60: r"hour|minute|second",
    100: r"%|percent|cents?\b|centimet|cm\b|meter|penn|\$|dollar",
    365: r"year|day",
    1000: r"kilo|kg\b|km\b|lit|gram|mill|\bml\b|ton|mm\b|thousand",
}


def solutions(source: str) -> dict[str, str]:
    """{problem: worked solution} of GSM8K: a directory of train.jsonl and test.jsonl, one such file, or "gsm8k"."""
    if source == "gsm8k":
        from cotalk.task import _gsm8k_hub  # the same rows that `load` reads

        rows = [row for name in ("train", "test") for row in _gsm8k_hub(name)]
    else:
        path = Path(source)
        files = [path / "train.jsonl", path / "test.jsonl"] if path.is_dir() else [path]
        there = [file for file in files if file.is_file()]
        if not there:
            raise BadInput(
                f"source {source!r} holds no GSM8K file; expected train.jsonl or test.jsonl",
                "task/unknown-source",
            )
        lines = [line for file in there for line in file.read_text(encoding="utf-8").split("\n")]
        rows = [json.loads(line) for line in lines if line.strip()]
    return {row["question"]: row["answer"] for row in rows if "question" in row and "answer" in row}


def _solved(task: Task, solved: Mapping[str, str], random: Any) -> Task:
    """A GSM8K problem with new numbers where its annotated steps make the gold again."""
    if task.problem not in solved:
        raise CannotPerturb(task, NO_SOLUTION)
    steps = [(left.replace(" ", ""), _value(right)) for left, right in STEP.findall(solved[task.problem])]
    values = [value for _, value in steps]
    if not steps or [_compute(left) for left, _ in steps] != values or values[-1] != _value(task.gold):
        raise CannotPerturb(task, UNLIKE_GOLD)
    olds = _plain_numbers(task.problem, steps)
    if not olds:
        raise CannotPerturb(task, UNSURE)
    for _ in range(TRIES):
        new = {old: Fraction(int(random.integers(max(2, old // 2), 2 * int(old) + 1))) for old in olds}
        results = _recomputed(steps, new)
        gold = _written(results[-1])
        if (
            all(map(_alike, values, results))
            and len(set(new.values())) == len(new)
            and gold not in ("", task.gold)
        ):
            return replace(task, problem=_rewritten(task.problem, new), gold=gold)
    raise CannotPerturb(task, NO_OTHERS)


def _alike(old: Fraction | None, new: Fraction) -> bool:
    """Whether a new result may stand for an old one: above 0, and whole where that one was."""
    return new > 0 and (new.denominator == 1 or (old is not None and old.denominator > 1))


def _plain_numbers(problem: str, steps: Sequence[tuple[str, Fraction | None]]) -> list[Fraction]:
    """The whole numbers of a problem of which it is plain where the steps use them; none where a step is unclear.

    A number is plain when it stands in the problem once, is used by the steps, is not small, and is neither a
    constant that the words call for (60 minutes), nor the result of a step, nor (in words, percents, fractions)
    something else there. A step is unclear when it uses a number that nothing gave, serves no later step, or
    gives a number that stands for something else too.
    """
    results = [value for _, value in steps]
    told = Counter(numbers(problem))
    written = Counter(_value(found) for found in WHOLE.findall(problem))
    constants = {Fraction(n) for n, words in CONSTANTS.items() if re.search(words, problem, re.IGNORECASE)}
    known: set[Fraction | None] = {*told, *(value / 100 for value in told), *constants}
    used: Counter[Fraction | None] = Counter()
    for at, (left, _) in enumerate(steps):
        literals = [_value(found) for found in LITERAL.findall(left)]
        if any(literal not in known and literal not in results[:at] for literal in literals):
            return []  # something was worked out in the head
        used.update(literals)
    last: set[Fraction | None] = set()
    for at, value in enumerate(results[:-1]):  # every step but the last must serve a later one
        if any(value in map(_value, LITERAL.findall(left)) for left, _ in steps[at + 1 :]):
            last.add(value)
    if last != set(results[:-1]) or len(set(results)) < len(results) or last & {*told, *constants}:
        return []
    unclear = {*results, *constants, *(100 * value for value in used if value is not None)}
    if any(value is not None and value >= SMALL and not used[value] for value in written):
        return []  # it stands in the problem and in no step: nobody knows what it must agree with
    safe = [value for value, count in written.items() if value is not None and count == 1 == told[value]]
    return [value for value in safe if used[value] and value >= SMALL and value not in unclear]


def _recomputed(
    steps: Sequence[tuple[str, Fraction | None]], new: Mapping[Fraction, Fraction]
) -> list[Fraction]:
    """Each step's result with new numbers in place of the old ones, and new results in place of the old."""
    values: dict[Fraction, Fraction] = dict(new)
    results = []
    for left, old in steps:
        result = _compute(LITERAL.sub(lambda found: _exact(values, found.group()), left))
        results.append(Fraction(-1) if result is None else result)
        if old is not None:
            values[old] = results[-1]
    return results


def _exact(values: Mapping[Fraction, Fraction], literal: str) -> str:
    value = _value(literal)
    new = values.get(value, value) if value is not None else None
    return literal if new is None else f"({new.numerator}/{new.denominator})"


def _rewritten(problem: str, new: Mapping[Fraction, Fraction]) -> str:
    def other(found: re.Match[str]) -> str:
        value = _value(found.group())
        if value is None or value not in new:
            return found.group()
        return f"{new[value].numerator:,}" if "," in found.group() else str(new[value].numerator)

    return WHOLE.sub(other, problem)


def _value(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", "").replace("$", "").strip().rstrip("."))
    except (ValueError, ZeroDivisionError):
        return None


def _compute(left: str) -> Fraction | None:
    """A sum of + - * / and brackets, exactly; None for anything else."""
    text = left.replace(",", "")
    if not SUM.fullmatch(text) or "**" in text or "//" in text or len(text) > 400:
        return None
    try:
        return _evaluated(text)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _evaluated(text: str) -> Fraction:
    import ast

    def of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return Fraction(str(node.value))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -of(node.operand)
        if isinstance(node, ast.BinOp):
            a, b = of(node.left), of(node.right)
            kinds = {
                ast.Add: lambda: a + b,
                ast.Sub: lambda: a - b,
                ast.Mult: lambda: a * b,
                ast.Div: lambda: a / b,
            }
            if type(node.op) in kinds:
                return kinds[type(node.op)]()
        raise ValueError(f"{ast.dump(node)[:60]} is no sum")

    return of(ast.parse(re.sub(r"(?<![\d.])0+(?=\d)", "", text), mode="eval").body)


def _written(value: Fraction) -> str:
    """A number as a gold: whole or with at most two decimals; "" for any other."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.2f}".rstrip("0") if (value * 100).denominator == 1 else ""


# --- a reward that is no reward ---------------------------------------------------------------------------


def random_rewards(chats: Sequence[Chat], of: Sequence[str | int | None]) -> None:
    """Pays each chat 1 or 0, each with chance 1/2, by its key alone: (*of, task id, chat number).

    Every seat of a chat is paid the same. Answers stay graded as they are, so that `strict` and `lenient` can be
    read beside a reward that knows nothing of them.
    """
    for chat in chats:
        paid = float(key("random reward", *of, chat.deal.task.id, chat.number) >> 63)
        chat.rewards = dict.fromkeys(chat.answers, paid)
        chat.reward = paid
