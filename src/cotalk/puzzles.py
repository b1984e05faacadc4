"""The built-in puzzles: endless small word problems from a seed, for whoever has no data.

A puzzle holds its facts as sentences of its own, and every fact holds one number. Kinds: somebody gives away
or finds some (`gives`, `finds`), two persons together (`total`), more or fewer than another (`more`,
`fewer`), and with three or four facts `total3`, `changes3`, `total4`. Each comes in several phrasings.
Numbers are whole, answers lie in 5..99.

The numbers of a puzzle are uniform over all allowed pairs, so that one fact tells little about the answer:
the best guess from one hand is right about once in forty.

    generate(seed=7, n=1000)            -> 1000 puzzles with two facts, no two with the same text
    generate(seed=7, n=10, facts=3)     -> for three seats

Left out: dealing (deal.py) and any use of puzzles (task.py reads them as the source "puzzles"). Two seeds may
meet in a puzzle by chance: whoever needs disjoint sets drops repeats by `Task.text`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cotalk.errors import BadInput
from cotalk.task import CHUNK, Task, stream_seed

# The streams of task.py's source "puzzles", and the one that the tiny base's text is made from.
TRAIN_SEED, DEV_SEED, HELDOUT_SEED, TEXT_SEED = (
    stream_seed(s, 0) for s in ("train", "dev", "heldout", "base")
)

NAMES = tuple("Tom Mia Ben Amy Leo Eva Max Zoe Sam Ida Dan Lea Jim Kay Rob Sue Tim Una Vic Pam".split())
OBJECTS = tuple(
    "apples books coins cards eggs pens cups shells stones stamps cakes keys balls hats plums beads".split()
)

HAS = ("{x} has {a} {o}.", "{x} holds {a} {o}.")
HAD = ("{x} has {a} {o}.", "{x} starts with {a} {o}.")
TOGETHER = ("How many {o} do {x} and {y} have together?", "How many {o} do {x} and {y} have in all?")
NOW = ("How many {o} does {x} have now?", "How many {o} does {x} have at the end?")
LEAST, MOST = 5, 99  # of a number that is drawn; of an answer


@dataclass(frozen=True)
class Kind:
    """A sort of puzzle.

    facts: for each fact its phrasings; questions: phrasings; signs: of each number in the sum that is the
    answer, as "+" or "-"; the first is always "+".
    """

    name: str
    facts: tuple[tuple[str, ...], ...]
    questions: tuple[str, ...]
    signs: str


KINDS = (
    Kind("gives", (HAD, ("{x} gives away {b} {o}.", "{x} loses {b} {o}.", "{x} sells {b} {o}.")), NOW, "+-"),
    Kind("finds", (HAD, ("{x} finds {b} {o}.", "{x} buys {b} {o}.", "{x} gets {b} {o}.")), NOW, "++"),
    Kind("total", (HAS, tuple(s.replace("{x}", "{y}").replace("{a}", "{b}") for s in HAS)), TOGETHER, "++"),
    Kind("more", (HAS, ("{y} has {b} more {o} than {x}.",)), ("How many {o} does {y} have?",), "++"),
    Kind("fewer", (HAS, ("{y} has {b} fewer {o} than {x}.",)), ("How many {o} does {y} have?",), "+-"),
    Kind(
        "total3",
        (("{x} has {a} {o}.",), ("{y} has {b} {o}.",), ("{z} has {c} {o}.",)),
        ("How many {o} do {x}, {y} and {z} have together?",),
        "+++",
    ),
    Kind("changes3", (HAD, ("{x} gives away {b} {o}.",), ("{x} finds {c} {o}.",)), NOW, "+-+"),
    Kind(
        "total4",
        (("{x} has {a} {o}.",), ("{y} has {b} {o}.",), ("{z} has {c} {o}.",), ("{w} has {d} {o}.",)),
        ("How many {o} do {x}, {y}, {z} and {w} have together?",),
        "++++",
    ),
)
FACT_COUNTS = tuple(sorted({len(k.facts) for k in KINDS}))


def generate(seed: int, n: int, facts: int = 2) -> list[Task]:
    """`n` puzzles, all texts different. A longer list of a seed begins with the shorter one."""
    if seed < 0 or n < 0:
        raise BadInput(
            f"puzzles from seed {seed}, {n} of them: expected whole numbers from 0 on", "task/puzzles"
        )
    if facts not in FACT_COUNTS:
        raise BadInput(
            f"puzzles with {facts} facts: expected one of {', '.join(map(str, FACT_COUNTS))}", "task/puzzles"
        )
    random = np.random.default_rng((seed, facts))
    out: dict[str, Task] = {}
    while len(out) < n:
        task = puzzle(random, facts, f"puzzle-{seed}-{len(out)}")
        out.setdefault(task.text, task)
    return list(out.values())


def puzzle(random: np.random.Generator, facts: int, task_id: str = "puzzle") -> Task:
    """One puzzle, drawn from a generator."""
    kinds = [k for k in KINDS if len(k.facts) == facts]
    kind = kinds[random.integers(len(kinds))]
    numbers = _numbers(random, kind.signs)
    names = [NAMES[i] for i in random.choice(len(NAMES), 4, replace=False)]
    words = dict(zip("xyzw", names, strict=True), o=OBJECTS[random.integers(len(OBJECTS))])
    words |= {letter: str(value) for letter, value in zip("abcd", numbers, strict=False)}
    chosen = [int(random.integers(len(p))) for p in (*kind.facts, kind.questions)]
    *told, question = (
        p[i].format(**words) for p, i in zip((*kind.facts, kind.questions), chosen, strict=True)
    )
    gold = str(partial_sums(numbers, kind.signs)[-1])
    return Task(task_id, question, gold, tuple(told), template=f"{kind.name}/{''.join(map(str, chosen))}")


def _numbers(random: np.random.Generator, signs: str) -> list[int]:
    """Uniform over all numbers from LEAST on whose partial sums lie in LEAST..MOST (drawn until they do)."""
    while True:
        numbers = random.integers(LEAST, MOST + 1, len(signs)).tolist()
        if all(LEAST <= s <= MOST for s in partial_sums(numbers, signs)):
            return numbers


def partial_sums(numbers: list[int], signs: str) -> list[int]:
    """30, 14, 5 with "+-+" -> 30, 16, 21."""
    sums = [numbers[0]]
    for number, sign in zip(numbers[1:], signs[1:], strict=True):
        sums.append(sums[-1] + number if sign == "+" else sums[-1] - number)
    return sums


def signs_of(task: Task) -> str:
    """The signs of a puzzle's numbers, in the order of its facts ("+-": the first less the second)."""
    name = (task.template or "").split("/")[0]
    for kind in KINDS:
        if kind.name == name:
            return kind.signs
    raise BadInput(
        f"task {task.id!r} has template {task.template!r}: expected a puzzle of puzzles.py", "task/puzzles"
    )


def reserved() -> frozenset[str]:
    """Texts of the first puzzles of train, dev and held-out: the tiny base's text holds none of them."""
    return frozenset(t.text for seed in (TRAIN_SEED, DEV_SEED, HELDOUT_SEED) for t in generate(seed, CHUNK))
