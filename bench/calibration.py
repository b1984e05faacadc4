"""Do the intervals and verdicts of cotalk.stats keep their promise? Simulated studies whose truth is known.

Each cell is a kind of study (how seeds scatter, how many seeds and tasks, whether tasks come from templates), drawn
`--repeats` times. Coverage: how often each 95% interval holds the truth. Alarms: how often `helps` or `hurts` is said
of equal arms, and `no different` of arms that differ by exactly the margin.

The model: seed s has a mean m_s; task t a difficulty that every seed of every arm meets, in part (correlation 0.8);
the chance of seed s on task t is beta-distributed over tasks with mean m_s exactly; two chats a task, and seat B
copies seat A's answer four times in five. With templates, half of a task's difficulty is its template's.

The noise floor has cells of its own (`--parts noise`): the same models are evaluated twice, three times over, and the
floor must hold their difference; models that differ must get out of it.

It leaves out Holm (arithmetic). Prints a table a part and one JSON line.

    OMP_NUM_THREADS=1 python bench/calibration.py --repeats 2000 [--parts noise]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy import special

from cotalk import stats
from cotalk.bootstrap import draws

SPREADS = {  # name: (mean, sd between seeds), or (mean of those who learn, of those who do not) two to one
    "even .13": (0.30, 0.13),
    "steady .01": (0.30, 0.01),
    "two in three learn": (0.49, 0.07),
}
TEMPLATES = {30: 10, 100: 20, 300: 30}  # tasks: templates they come from
BIMODAL = "two in three learn"
MARGIN, SHIFT, FIXED, WORDS = 0.03, 0.10, 0.12, 30.0
COVERAGE = ("task", "pair", "arm", "length", "welch", "crossed", "fixed", "figure")
ALARMS = ("alike", "steady", "margin")
HEADINGS = {
    "task": "rate_over_tasks, one run",
    "pair": "compare_checkpoints",
    "arm": "rate_over_seeds",
    "length": "amount, several runs",
    "welch": "compare_arms (Welch), equal arms",
    "crossed": "crossed_difference",
    "fixed": "compare_with_fixed",
    "figure": "its over_tasks",
    "alike": "helps/hurts, two arms of this kind",
    "steady": "helps/hurts, against a steady arm of the same mean",
    "margin": "no different, though they differ by the margin",
}
NOISE = {
    "arms": "over the floor: the same runs evaluated again",
    "base": "over the floor: the base again, as runs against the base",
    "stand-in": "over the floor: as arms, trained_repeats = 1, the base's floor stands in",
    "miss .02": "noise, of runs that score .02 lower",
    "miss .05": "noise, of runs that score .05 lower",
    "alarm": "helps/hurts, two arms alike, without the floor",
    "left": "the same with it",
}
NOISE_SEEDS, NOISE_TASKS, EVALUATIONS = (3, 10), (100, 300), 3
Floats = np.ndarray
stats.MOST_REGROUPINGS = 0  # the exact p decides nothing here and would take most of the time


@dataclass(frozen=True)
class Cell:
    spread: str
    seeds: int
    tasks: int
    templates: bool

    @property
    def clusters(self) -> list[int] | None:
        size = self.tasks // TEMPLATES[self.tasks]
        return [task // size for task in range(self.tasks)] if self.templates else None

    @property
    def mean(self) -> float:
        a, b = SPREADS[self.spread]
        return (2 * a + b) / 3 if self.spread == BIMODAL else a


def simulate(cell: Cell, repeats: int, generator: np.random.Generator) -> dict[str, float]:
    """Coverages and alarm rates of a cell."""
    found: dict[str, list[bool]] = {name: [] for name in (*COVERAGE, *ALARMS)}
    for at in range(0, repeats, 100):
        for study in studies(cell, min(100, repeats - at), generator):
            for name, hit in judge(cell, study).items():
                found[name].append(hit)
    return {name: float(np.mean(hits)) for name, hits in found.items()}


def judge(cell: Cell, study: dict[str, Floats]) -> dict[str, bool]:
    """One simulated study: which intervals hold the truth, which verdicts are false."""
    a, b, lower, clusters = study["a"], study["b"], study["lower"], cell.clusters
    means = {name: study[name].mean((1, 2, 3)).tolist() for name in ("a", "b", "lower", "steady", "margin")}
    alike = stats.compare_arms(means["a"], means["b"])
    at_margin = stats.compare_arms(means["a"], means["margin"])
    p = stats.equivalence_p(at_margin, MARGIN)
    crossed = stats.crossed_difference(a, lower, clusters)
    fixed = stats.compare_with_fixed(a, study["fixed"], clusters=clusters)
    assert crossed is not None and fixed.over_tasks is not None and p is not None
    return {
        "task": holds(stats.rate_over_tasks(a[:1], clusters), study["truth_a"][0]),
        "pair": holds(
            stats.compare_checkpoints(a[:1], b[:1], clusters=clusters),
            study["truth_a"][0] - study["truth_b"][0],
        ),
        "arm": holds(stats.rate_over_seeds(a, clusters), cell.mean),
        "length": holds(stats.amount(study["length"], clusters), WORDS),
        "welch": holds(alike, 0.0),
        "crossed": holds(crossed, SHIFT),
        "fixed": holds(fixed, cell.mean - FIXED),
        "figure": holds(fixed.over_tasks, cell.mean - FIXED),
        "alike": alike.verdict in ("helps", "hurts"),
        "steady": stats.compare_arms(means["a"], means["steady"]).verdict in ("helps", "hurts"),
        "margin": p < 0.05,
    }


def holds(interval: stats.Rate | stats.Comparison | stats.Ends, truth: float) -> bool:
    assert interval.low is not None and interval.high is not None
    return bool(interval.low <= truth <= interval.high)


# --- drawing studies --------------------------------------------------------------------------------------


def studies(cell: Cell, repeats: int, generator: np.random.Generator) -> Iterator[dict[str, Floats]]:
    """Studies of a cell: arms `a` and `b` alike, `lower` by SHIFT, `margin` by MARGIN, one `steady`, one `fixed`."""
    difficulty = generator.standard_normal((repeats, cell.tasks))
    if cell.templates:
        template = generator.standard_normal((repeats, TEMPLATES[cell.tasks]))[:, cell.clusters]
        difficulty = math.sqrt(0.5) * (template + difficulty)
    truths = {
        "a": seed_means(cell, 0.0, repeats, generator),
        "b": seed_means(cell, 0.0, repeats, generator),
        "lower": seed_means(cell, SHIFT, repeats, generator),
        "margin": seed_means(cell, MARGIN, repeats, generator),
        "steady": np.clip(generator.normal(cell.mean, 0.01, (repeats, cell.seeds)), 0.01, 0.99),
        "fixed": np.full((repeats, 1), FIXED),
    }
    outcomes = {name: answers(means, difficulty, generator) for name, means in truths.items()}
    learned = 1 + generator.normal(0, 0.1, (repeats, cell.seeds, 1))
    own = generator.gamma(4.0, 1 / 4, (repeats, cell.seeds, cell.tasks))
    length = WORDS * learned * np.exp(0.3 * difficulty[:, None, :] - 0.045) * own
    for i in range(repeats):
        yield {name: arm[i] for name, arm in outcomes.items()} | {
            "length": length[i],
            "truth_a": truths["a"][i],
            "truth_b": truths["b"][i],
        }


def seed_means(cell: Cell, lower: float, repeats: int, generator: np.random.Generator) -> Floats:
    """(repeats, seeds) with the cell's mean less `lower`, exactly in expectation."""
    shape = repeats, cell.seeds
    mean, sd = SPREADS[cell.spread]
    if cell.spread == BIMODAL:
        scale = (cell.mean - lower) / cell.mean
        return scale * np.where(generator.random(shape) < 2 / 3, mean, sd)
    mean -= lower
    size = mean * (1 - mean) / sd**2 - 1
    return np.clip(generator.beta(mean * size, (1 - mean) * size, shape), 1e-6, 1 - 1e-6)


def answers(means: Floats, difficulty: Floats, generator: np.random.Generator) -> Floats:
    """Seed means (repeats, seeds) and difficulties (repeats, tasks) -> (repeats, seeds, tasks, 2 chats, 2 seats)."""
    return play(chances(means, ranks(means.shape[1], difficulty, generator)), generator)


def ranks(seeds: int, difficulty: Floats, generator: np.random.Generator) -> Floats:
    """How hard each task is for each seed, uniform: (repeats, seeds, tasks)."""
    shape = len(difficulty), seeds, difficulty.shape[1]
    own = generator.standard_normal(shape, dtype=np.float32)
    return np.asarray(special.ndtr(math.sqrt(0.8) * difficulty[:, None, :] + math.sqrt(0.2) * own))


def chances(means: Floats, rank: Floats) -> Floats:
    """Models: the chance of each seed on each task, beta(m / (1 - m), 1), whose mean is m."""
    return np.asarray(rank ** ((1 - means) / means)[..., None])


def play(chance: Floats, generator: np.random.Generator) -> Floats:
    """One evaluation of these models: (repeats, seeds, tasks) -> (repeats, seeds, tasks, 2 chats, 2 seats)."""
    a, b, copied = (generator.random((*chance.shape, 2), dtype=np.float32) for _ in range(3))
    first = a < chance[..., None]
    return np.stack([first, np.where(copied < 0.8, first, b < chance[..., None])], -1).astype(float)


# --- the noise floor --------------------------------------------------------------------------------------


def simulate_noise(cell: Cell, repeats: int, generator: np.random.Generator) -> dict[str, float]:
    """How often a difference of unchanged models exceeds its floor, and how often one of other models does not."""
    found: dict[str, list[bool]] = {name: [] for name in NOISE}
    for at in range(0, repeats, 100):
        played = evaluations(cell, min(100, repeats - at), generator)
        for i in range(len(played["a"])):
            for name, hit in judge_noise({name: arm[i] for name, arm in played.items()}).items():
                found[name].append(hit)
    return {name: float(np.mean(hits)) for name, hits in found.items()}


def evaluations(cell: Cell, repeats: int, generator: np.random.Generator) -> dict[str, Floats]:
    """Arms evaluated three times: {name: (repeats, 3 evaluations, seeds, tasks)}, each task's answers averaged.

    `a`, and `again`: the very same models. `.02` and `.05`: each model lowered by the same factor, so that the
    arm's mean is so much lower. `b`: other seeds of the same kind. `base`, and `untrained`: that base as runs.
    """
    difficulty = generator.standard_normal((repeats, cell.tasks))
    means = seed_means(cell, 0.0, repeats, generator)
    rank = ranks(cell.seeds, difficulty, generator)
    base = chances(np.full((repeats, 1), FIXED), ranks(1, difficulty, generator))
    models = {"a": chances(means, rank), "again": chances(means, rank)}
    for lower in (0.02, 0.05):
        factor = np.maximum(1 - lower / means.mean(1, keepdims=True), 0.01)
        models[f".{100 * lower:02.0f}"] = chances(means * factor, rank)
    other = seed_means(cell, 0.0, repeats, generator)
    models["b"] = chances(other, ranks(cell.seeds, difficulty, generator))
    models |= {"base": base, "untrained": np.repeat(base, cell.seeds, axis=1)}
    return {
        name: np.stack([play(chance, generator).mean((-1, -2)) for _ in range(EVALUATIONS)], 1)
        for name, chance in models.items()
    }


def judge_noise(study: dict[str, Floats]) -> dict[str, bool]:
    """One simulated study: study[name] is (evaluations, seeds, tasks); the first evaluation is the score."""
    means = {name: arm.mean(-1) for name, arm in study.items()}  # (evaluations, seeds)
    floors = {name: stats.noise_floor(*rows.T.tolist()) for name, rows in means.items()}

    def compared(a: str, b: str) -> stats.Comparison:
        if b == "base":
            found = stats.compare_with_fixed(study[a][0], study[b][0])
        else:
            found = stats.compare_arms(means[a][0].tolist(), means[b][0].tolist())
        return stats.with_noise(found, floors[a], floors[b])

    stand_in = stats.with_noise(compared("a", "again"), floors["base"], floors["base"])
    alike = compared("a", "b")
    return {
        "arms": compared("a", "again").verdict != "noise",
        "base": compared("untrained", "base").verdict != "noise",
        "stand-in": stand_in.verdict != "noise",
        "miss .02": compared("a", ".02").verdict == "noise",
        "miss .05": compared("a", ".05").verdict == "noise",
        "alarm": replace(alike, noise=None).verdict in ("helps", "hurts"),
        "left": alike.verdict in ("helps", "hurts"),
    }


# --- what not to do, and the speed ------------------------------------------------------------------------


def nested_coverage(repeats: int, generator: np.random.Generator) -> float:
    """Coverage where tasks are drawn anew for each seed: 10 seeds of sd .01, 100 tasks, 95% percentiles."""
    cell, hits, n = Cell("steady .01", 10, 100, False), 0, 1000
    for at in range(0, repeats, 100):
        for study in studies(cell, 100, generator):
            values = study["a"].mean((2, 3))
            of_run = np.stack([draws(100, n, 50 + run, at) @ values[run] / 100 for run in range(10)], 1)
            drawn = (of_run * draws(10, n, 49, at)).sum(1) / 10
            low, high = np.quantile(drawn, [0.025, 0.975])
            hits += bool(low <= cell.mean <= high)
    return hits / repeats


def seconds_of_a_comparison() -> float:
    """Two arms of 10 seeds x 300 tasks, everything, with cold caches: 10,000 resamples and the exact p."""
    generator = np.random.default_rng(0)
    a, b = (generator.random((10, 300, 2, 2)) for _ in range(2))
    draws.cache_clear()
    stats.MOST_REGROUPINGS = 200_000
    began = time.perf_counter()
    stats.with_margin(stats.compare_arms(a.mean((1, 2, 3)).tolist(), b.mean((1, 2, 3)).tolist()), MARGIN)
    stats.rate_over_seeds(a), stats.rate_over_seeds(b), stats.crossed_difference(a, b)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--key", type=int, default=0, help="of the random numbers")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 5, 10], help="of the intervals' cells")
    parser.add_argument("--parts", nargs="+", choices=("intervals", "noise"), default=["intervals", "noise"])
    arguments = parser.parse_args()
    found: dict[str, object] = {"repeats": arguments.repeats, "numpy": np.__version__}
    found["machine"] = platform.processor() or platform.machine()
    if "intervals" in arguments.parts:
        found |= intervals(arguments.repeats, arguments.key, arguments.seeds)
    if "noise" in arguments.parts:
        found["noise"] = noise(arguments.repeats, arguments.key)
    print(json.dumps(found))


def noise(repeats: int, key: int) -> list[dict[str, object]]:
    """Prints the table of the noise floor and returns its rows."""
    stats.MOST_REGROUPINGS = 0
    rows = []
    print("; ".join(f"{name}: {heading}" for name, heading in NOISE.items()))
    print(f"{'seeds scatter':<20}{'seeds':>6}{'tasks':>6} | " + " ".join(f"{name:>8}" for name in NOISE))
    for spread, seeds, tasks in product(SPREADS, NOISE_SEEDS, NOISE_TASKS):
        generator = np.random.default_rng((key, 1, *map(ord, spread), seeds, tasks))
        rates = simulate_noise(Cell(spread, seeds, tasks, False), repeats, generator)
        rows.append({"spread": spread, "seeds": seeds, "tasks": tasks} | rates)
        print(
            f"{spread:<20}{seeds:>6}{tasks:>6} | " + " ".join(f"{rate:8.3f}" for rate in rates.values()),
            flush=True,
        )
    return rows


def intervals(repeats: int, key: int, of_seeds: list[int]) -> dict[str, object]:
    """Prints the table of intervals and alarms, and returns its rows."""
    seconds = seconds_of_a_comparison()
    stats.MOST_REGROUPINGS = 0
    rows = []
    names = [*COVERAGE, *ALARMS]
    print("; ".join(f"{name}: {HEADINGS[name]}" for name in names))
    print(
        f"{'seeds scatter':<20}{'seeds':>6}{'tasks':>6}{'templates':>10} | "
        + " ".join(f"{n:>7}" for n in names)
    )
    for spread, seeds, tasks, templates in product(SPREADS, of_seeds, TEMPLATES, (False, True)):
        cell = Cell(spread, seeds, tasks, templates)
        generator = np.random.default_rng((key, *map(ord, spread), seeds, tasks, templates))
        found = simulate(cell, repeats, generator)
        rows.append({"spread": spread, "seeds": seeds, "tasks": tasks, "templates": templates} | found)
        told = TEMPLATES[tasks] if templates else "-"
        numbers = " ".join(f"{found[name]:7.3f}" for name in names)
        print(f"{spread:<20}{seeds:>6}{tasks:>6}{told:>10} | {numbers}", flush=True)
    nested = nested_coverage(max(100, repeats // 100 * 100), np.random.default_rng(key))
    print(f"nested resampling, 10 seeds of sd .01, 100 tasks: {nested:.3f}")
    print(f"two arms of 10 seeds x 300 tasks, 10,000 resamples, exact p: {seconds:.2f} s")
    return {"cells": rows, "nested": nested, "seconds": seconds}


if __name__ == "__main__":
    main()
