"""Tasks of your own from a Python function: `cotalk deal examples/own_tasks.py:sums`.

A function returns an iterable of `Task`, or of dictionaries in the JSONL form ({"facts", "question", "gold"}
or {"problem", "gold"}). With a parameter named `split` it is asked for "train", "dev" and "heldout" apart and
should answer with different tasks; without one, its tasks are cut into three sets by position. It may go on
for ever.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from cotalk.task import Task

SEEDS = {"train": 1, "dev": 2, "heldout": 3, "test": 3}


def sums(split: str = "train") -> Iterator[Task]:
    """Endless sums of two numbers, one in each hand; each split has a seed of its own."""
    draw = random.Random(SEEDS[split])
    for at in itertools.count():
        apples, pears = draw.randint(1, 99), draw.randint(1, 99)
        yield Task(
            id=f"{split}-{at}",
            facts=(f"Ann picks {apples} apples.", f"Ben picks {pears} pears."),
            question="How many pieces of fruit do Ann and Ben pick together?",
            gold=str(apples + pears),
        )


def two_problems() -> list[dict[str, object]]:
    """The shortest form: a list of dictionaries."""
    return [
        {"problem": "Tom has 3 cats. Each cat has four kittens. How many kittens are there?", "gold": 12},
        {"problem": "A rope is 10 m long. Eva cuts off half of it. How long is the rest?", "gold": 5},
    ]
