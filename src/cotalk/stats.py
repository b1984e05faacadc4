"""Intervals and comparisons: pure functions on arrays of outcomes.

Scores are arrays (runs, tasks, chats, seats); a run is one training seed. There are two units, and they are
never mixed. *Tasks* are the unit of a claim about one checkpoint: the answers of a task are averaged first,
because they depend on each other (seat B reads seat A's answer). *Seeds* are the unit of a claim about an arm
or a method: one seed never supports one. Tasks are crossed with seeds (every seed meets the same tasks).

    rate_over_tasks(outcomes)        one run        -> 0.40 [0.36, 0.45] (300 tasks, 1,200 answers)
    rate_over_seeds(outcomes)        several runs   -> 0.32 [0.14, 0.57] (3 seeds x 300 tasks x 4 answers)
    rate_of_values(values)           one value a task in [0, 1], NaN where it does not apply
    amount(values)                   the same for lengths: runs x tasks, no upper end
    rate_over_evaluations(repeats)   the same models evaluated again and again -> 0.12 [0.11, 0.14] (3 evaluations)
    compare_arms(a, b)               seed means of two arms: Welch's t decides, an exact p beside it
    compare_with_fixed(runs, fixed)  an arm against something without a training seed (the untrained base)
    compare_checkpoints(a, b)        two single checkpoints on the same tasks, paired
    crossed_difference(a, b)         the interval of two arms' difference for new seeds and new tasks
    noise_floor(repeats)             what evaluating the same model again moves
    with_noise(found, floor, floor)  the noise floor of a difference, from those of its two sides
    with_margin(found, 0.03)         two one-sided tests, and the seeds that would settle it
    correct(comparisons)             Holm's correction over a study's comparisons

What a comparison entitles us to say is in verdict.py, resampling in bootstrap.py; what each interval covers,
measured by simulation, in docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from cotalk import bootstrap
from cotalk.errors import BadInput
from cotalk.verdict import ALPHA, POWER, Comparison, Ends, Needed, count

VERSION = 2  # of these formulas: raise it whenever the value of one could change
UNITS = ("tasks", "seeds", "seeds+tasks", "evaluations")
SEEDS_TO_RESAMPLE = 10  # from here on the crossed bootstrap, below t
TASKS_TO_RESAMPLE = 20  # tasks (or templates); with fewer there is too little to resample
MOST_NEEDED = 1_000_000
MOST_REGROUPINGS = 200_000  # 10 seeds against 10 are 184,756
Floats = NDArray[np.float64]
Clusters = Sequence[Hashable] | None  # each task's template; None: a task of its own


# --- one number with its interval -------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """A mean with its 95% interval, how many units it stands on, and which unit that is.

    `n` counts tasks for the unit `tasks`, seeds for `seeds` and `seeds+tasks` (the scarcer of the two), evaluations of
    the same models for `evaluations`.
    The rest only serves printing: how many `tasks` each of those seeds met, `answers` a task, and the `seed` of a
    single trained run.
    """

    mean: float
    low: float
    high: float
    n: int
    unit: str
    tasks: int | None = field(default=None, compare=False)
    answers: int | None = field(default=None, compare=False)
    seed: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise BadInput(
                f"a rate was given the unit {self.unit!r}; expected one of {', '.join(UNITS)}.",
                "statistics/values",
            )
        if not self.low <= self.mean <= self.high:
            raise BadInput(
                f"a rate was given the mean {self.mean}, not within [{self.low}, {self.high}].",
                "statistics/values",
            )

    @property
    def as_json(self) -> dict[str, float | int | str]:
        """The RATE of results.json: exactly mean, low, high, n, unit."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n, "unit": self.unit}

    @classmethod
    def from_json(
        cls,
        rate: dict[str, Any],
        tasks: int | None = None,
        answers: int | None = None,
        seed: str | None = None,
    ) -> Rate:
        """A RATE read back; `tasks`, `answers` and `seed` complete how it prints."""
        mean, low, high = (float(rate[key]) for key in ("mean", "low", "high"))
        return cls(mean, low, high, int(rate["n"]), str(rate["unit"]), tasks, answers, seed)

    @property
    def of(self) -> str:
        """What it stands on: `seed 17: 300 tasks, 1,200 answers`, `3 seeds x 300 tasks x 4 answers`."""
        if self.unit == "tasks":
            whose = f"seed {self.seed}: " if self.seed else ""
            answers = f", {count(self.n * self.answers, 'answer')}" if self.answers else ""
            return f"{whose}{count(self.n, 'task')}{answers}"
        if self.unit == "evaluations":
            return count(self.n, "evaluation")
        parts = [count(self.n, "seed")]
        if self.tasks and self.unit != "seeds":
            parts += [count(self.tasks, "task")] + ([count(self.answers, "answer")] if self.answers else [])
        return " x ".join(parts)

    @property
    def brief(self) -> str:
        """Without what it stands on: `0.40 [0.36, 0.45]`."""
        digits = self._digits
        return f"{self.mean:,.{digits}f} [{self.low:,.{digits}f}, {self.high:,.{digits}f}]"

    @property
    def _digits(self) -> int:
        if self.high >= 10:
            return 0 if self.mean >= 100 else 1
        return 3 if self.high - self.low < 0.02 else 2

    def __str__(self) -> str:
        return f"{self.brief} ({self.of})"


# --- rates ------------------------------------------------------------------------------------------------


def rate_over_tasks(outcomes: ArrayLike, clusters: Clusters = None) -> Rate:
    """The score of ONE run, (1, tasks, chats, seats) in [0, 1], with an interval over new tasks of this kind.

    Wilson's interval at the effective sample size p(1-p)/v, with v the variance of the mean between tasks and
    a t quantile of tasks - 1 degrees of freedom: Franco, Little, Louis and Slud, "Comparative Study of
    Confidence Intervals for Proportions in Complex Sample Surveys", J. Survey Statistics and Methodology 7
    (2019) 334. Small samples: v is shrunk by one imaginary task that is all or nothing, and the effective
    size stays between the number of tasks and the number of answers. At 0 and 1, where v says nothing, it is
    the number of tasks. `clusters` names each task's template (None: a task of its own); then clusters are
    what vary, degrees of freedom are clusters - 1, and the imaginary one weighs as the square root of both.
    """
    outcomes = _in_unit_interval(outcomes)
    values = task_means(outcomes)
    if len(values) != 1:
        raise BadInput(
            f"rate_over_tasks was given {len(values)} runs and speaks of one checkpoint. "
            "Call rate_over_seeds for several runs, or outcomes[:1] for one of them.",
            "statistics/values",
        )
    rate = _wilson_over_tasks(values[0], clusters, answers=int(np.isfinite(outcomes).sum()))
    return replace(rate, answers=_answers(outcomes))


def rate_of_values(values: ArrayLike, clusters: Clusters = None) -> Rate:
    """The mean of one value a task, (tasks,) in [0, 1]; NaN (does not apply) is left out and not counted.

    The interval is that of `rate_over_tasks`; a task's value is one answer that need not be 0 or 1.
    """
    return _wilson_over_tasks(_in_unit_interval(values), clusters, answers=None)


def rate_over_seeds(outcomes: ArrayLike, clusters: Clusters = None) -> Rate:
    """The score of an ARM: several runs on the same tasks, with an interval over new seeds and new tasks.

    outcomes: (runs, tasks, chats, seats) in [0, 1], at least two runs. The variance of the mean (`_crossed`) adds
    that of the seed means over the number of seeds and that of the task means over the number of tasks, for
    tasks are crossed with seeds. Below 10 seeds (or 20 tasks): Wilson's interval at that variance, with t and
    Satterthwaite's degrees of freedom, Biometrics Bulletin 2 (1946) 110; with 2 or 3 seeds that scatter widely
    it is nearly as wide as [0, 1], and rightly so. From 10 on: the crossed bootstrap (`_resampled`), which
    follows the skewness that seeds and tasks really have. Both stay inside [0, 1].
    """
    outcomes = _in_unit_interval(outcomes)
    values, clusters = _complete(task_means(outcomes), clusters)
    mean = float(values.mean())
    crossed = _crossed(values, clusters, spread=mean * (1 - mean))
    ends = _resampled([values], clusters, crossed)
    if ends is None:
        size = crossed.least
        if crossed.variance > 0:
            size = min(mean * (1 - mean) / crossed.variance, float(np.isfinite(outcomes).sum()))
        low, high = _wilson(mean, size, crossed.df)
    else:
        low, high = min(mean, ends[0]), max(mean, ends[1])
    return Rate(
        mean, low, high, len(values), "seeds+tasks", tasks=values.shape[1], answers=_answers(outcomes)
    )


def amount(values: ArrayLike, clusters: Clusters = None) -> Rate:
    """The mean of a length, (runs, tasks), not bounded by 1: mean +- t x standard error, cut off at 0.

    One run: over tasks (at least two). Several: over seeds and tasks, as `rate_over_seeds`, with t below 10 seeds
    and the crossed bootstrap from there on.
    """
    means = task_means(values)
    if len(means) == 1:
        kept, kept_clusters = _applicable(means[0], clusters)
        mean, n, unit = float(kept.mean()), len(kept), "tasks"
        variance, df, _ = _task_variance(kept, kept_clusters, spread=0.0)
    else:
        kept, kept_clusters = _complete(means, clusters)
        mean, n, unit = float(kept.mean()), len(kept), "seeds+tasks"
        crossed = _crossed(kept, kept_clusters, spread=0.0)
        variance, df = crossed.variance, crossed.df
        if (ends := _resampled([kept], kept_clusters, crossed)) is not None:
            return Rate(mean, min(mean, ends[0]), max(mean, ends[1]), n, unit, tasks=kept.shape[-1])
    if not df > 0:
        raise BadInput(
            "amount was given a single task (or template); an interval needs at least two.",
            "statistics/values",
        )
    half = _t(df) * math.sqrt(variance)
    return Rate(mean, max(0.0, mean - half), mean + half, n, unit, tasks=kept.shape[-1])


def rate_over_evaluations(repeats: Sequence[Sequence[float]]) -> Rate | None:
    """The mean score of unchanged models over evaluations, (runs, evaluations) of means; None without a `noise_floor`.

    mean +- t x floor / sqrt(runs x evaluations), within [0, 1]: what these very models score on these very tasks, were
    they evaluated without end. It speaks of no new seed and no new task, and only shows how far one evaluation reaches.
    """
    floor = noise_floor(*repeats)
    if floor is None:
        return None
    means = np.asarray(repeats, dtype=np.float64)  # (runs, evaluations)
    mean, half = float(means.mean()), _t(floor.df) * floor.sd / math.sqrt(means.size)
    return Rate(mean, max(0.0, mean - half), min(1.0, mean + half), means.shape[1], "evaluations")


def task_means(outcomes: ArrayLike) -> Floats:
    """(runs, tasks, ...) -> (runs, tasks): each task's answers averaged, NaN ones left out."""
    values = np.asarray(outcomes, dtype=np.float64)
    if values.ndim < 2 or values.size == 0:
        raise BadInput(
            f"outcomes of shape {values.shape} were given; expected (runs, tasks, chats, seats).",
            "statistics/values",
        )
    values = values.reshape(*values.shape[:2], -1)
    counted = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(counted, values, 0.0).sum(-1) / counted.sum(-1), dtype=np.float64)


def _answers(outcomes: Floats) -> int | None:
    """Answers a task, where every task has the same number of them."""
    if outcomes.ndim < 3 or not np.isfinite(outcomes).all():
        return None
    return math.prod(outcomes.shape[2:])


def _in_unit_interval(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    wrong = array[(array < 0) | (array > 1)]
    if wrong.size:
        raise BadInput(
            f"a rate was given the value {wrong[0]:g}; expected 0 to 1. Lengths go to amount().",
            "statistics/values",
        )
    return array


def _applicable(values: Floats, clusters: Clusters) -> tuple[Floats, Sequence[Hashable] | None]:
    """The tasks that have a value, and their clusters."""
    if values.ndim != 1:
        raise BadInput(
            f"values of shape {values.shape} were given; expected one value a task.", "statistics/values"
        )
    there = np.isfinite(values)
    if not there.any():
        raise BadInput(
            f"{len(values)} tasks were given and none has a value: there is nothing to average.",
            "statistics/values",
        )
    return values[there], _kept(clusters, there)


def _complete(values: Floats, clusters: Clusters) -> tuple[Floats, Clusters]:
    """(runs, tasks) and clusters: only the tasks that every run has a value for; at least two runs."""
    if len(values) < 2:
        raise BadInput(
            "rate_over_seeds was given one run: an arm needs at least two seeds. "
            "Call rate_over_tasks for a claim about this checkpoint.",
            "statistics/values",
        )
    there = np.asarray(np.isfinite(values).all(0))
    if not there.any():
        raise BadInput(
            f"{len(values)} runs share no task that has a value: there is nothing to average.",
            "statistics/values",
        )
    return values[:, there], _kept(clusters, there)


def _kept(clusters: Clusters, there: NDArray[np.bool_]) -> Clusters:
    """The clusters of the tasks that are there."""
    if clusters is None:
        return None
    if len(clusters) != len(there):
        raise BadInput(
            f"{len(clusters)} clusters were given for {len(there)} tasks; expected one a task.",
            "statistics/values",
        )
    return [name for name, keep in zip(clusters, there, strict=True) if keep]


def _wilson_over_tasks(values: Floats, clusters: Clusters, answers: int | None) -> Rate:
    values, clusters = _applicable(values, clusters)
    mean = float(values.mean())
    spread = mean * (1 - mean)
    variance, df, least = _task_variance(values, clusters, spread)
    size = max(spread / variance, least) if variance > 0 else least
    if answers is not None:
        size = min(size, answers)
    low, high = _wilson(mean, size, df)
    return Rate(mean, low, high, len(values), "tasks")


def _task_variance(values: Floats, clusters: Clusters, spread: float) -> tuple[float, float, float]:
    """The variance of the mean of `values` (tasks,), its degrees of freedom, and the least effective size.

    Clusters: the linearised (ratio) estimator, G/(G-1) sum of squared cluster totals of residuals / n^2
    (Cochran, "Sampling Techniques", 1977, section 9A). The least size is Kish's n^2 / sum of squared sizes.
    The variance is a mean of (groups - 1) observed parts and one imaginary part: a task that is all or nothing,
    or a cluster between that and as many tasks as it has (the geometric mean; chosen by simulation).
    """
    codes = _cluster_codes(clusters, len(values))
    sizes = np.bincount(codes)
    groups, n = len(sizes), len(values)
    least = n**2 / float((sizes**2).sum())
    if groups < 2:
        return spread / least, 0.0, least
    totals = np.bincount(codes, weights=values - values.mean())
    observed = groups / (groups - 1) * float((totals**2).sum()) / n**2
    if spread == 0.0:
        return observed, groups - 1.0, least
    return ((groups - 1) * observed + spread / math.sqrt(least * n)) / groups, groups - 1.0, least


def _cluster_codes(clusters: Clusters, n: int) -> NDArray[np.int64]:
    """One small integer a task, equal within a cluster; a task without a cluster is its own."""
    if clusters is None:
        return np.arange(n)
    known: dict[object, int] = {}
    keys = [("own", i) if name is None else ("named", name) for i, name in enumerate(clusters)]
    return np.array([known.setdefault(key, len(known)) for key in keys])


@dataclass(frozen=True)
class _Crossed:
    """A variance of a mean (or a difference) over seeds and tasks; `left`: its part that more seeds do not lessen."""

    variance: float
    df: float
    least: float
    groups: int
    left: float


def _crossed(values: Floats, clusters: Clusters, spread: float) -> _Crossed:
    """The variance of the grand mean of (runs, tasks) when seeds and tasks are both draws."""
    of_seeds = float(values.mean(1).var(ddof=1)) / len(values)
    return _add(
        of_seeds,
        len(values) - 1.0,
        _task_variance(values.mean(0), clusters, spread),
        _residual_variance(values, clusters),
    )


def _crossed_difference(a: Floats, b: Floats, clusters: Clusters) -> _Crossed:
    """The same for the difference of two arms on the same tasks: what tasks do to both arms alike drops out."""
    parts = [float(x.mean(1).var(ddof=1)) / len(x) for x in (a, b)]
    of_seeds = sum(parts)
    df = of_seeds**2 / sum(v**2 / (len(x) - 1) for v, x in zip(parts, (a, b))) if of_seeds > 0 else 1.0
    residual = _residual_variance(a, clusters) + _residual_variance(b, clusters)
    return _add(of_seeds, df, _task_variance(a.mean(0) - b.mean(0), clusters, spread=0.0), residual)


def _add(of_seeds: float, seed_df: float, of_tasks: tuple[float, float, float], residual: float) -> _Crossed:
    """Seeds' part + tasks' part - what is random in single answers, which both parts hold; never below either.

    The two-way random-effects estimate (Searle, Casella and McCulloch, "Variance Components", 1992, section 4.6).
    Degrees of freedom: Satterthwaite, Biometrics Bulletin 2 (1946) 110, over the two parts. Small samples: when
    three seeds happen to lie close, tasks seem to decide and their many degrees of freedom make the interval
    shorter than t on the seeds alone; then the seeds' own variance and degrees of freedom are taken.
    """
    tasks_part, task_df, least = of_tasks
    variance = max(of_seeds, tasks_part, of_seeds + tasks_part - residual)
    groups, both, left = int(task_df) + 1, of_seeds + tasks_part, variance - of_seeds
    if task_df == 0 or both == 0:
        return _Crossed(variance, task_df, least, groups, left)
    df = both**2 / (of_seeds**2 / seed_df + tasks_part**2 / task_df)
    if _t(seed_df) ** 2 * of_seeds > _t(df) ** 2 * variance:
        variance, df = of_seeds, seed_df
    return _Crossed(variance, df, least, groups, left)


def _residual_variance(values: Floats, clusters: Clusters) -> float:
    """What neither the seed nor the task explains, as a variance of the grand mean of (runs, tasks)."""
    runs, tasks = values.shape
    left = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    codes = _cluster_codes(clusters, tasks)
    groups = int(codes.max()) + 1
    if groups < 2:
        return 0.0
    totals = bootstrap.cluster_sums(left, codes)
    return groups / (groups - 1) * float((totals**2).sum()) / (tasks**2 * runs * (runs - 1))


def _resampled(arms: Sequence[Floats], clusters: Clusters, crossed: _Crossed) -> tuple[float, float] | None:
    """The crossed bootstrap's interval of one arm's mean, or of the difference of two; None below 10 seeds.

    Percentiles at the level where a normal spread would be as wide as t x the standard error of `_crossed`: plain
    95% percentiles are too narrow with ten seeds (Hesterberg, The American Statistician 69 (2015) 371), and
    resampling answers counts their own noise three times (Owen 2007). None too where nothing varies.
    """
    if min(map(len, arms)) < SEEDS_TO_RESAMPLE or crossed.groups < TASKS_TO_RESAMPLE or crossed.variance <= 0:
        return None
    codes = _cluster_codes(clusters, arms[0].shape[1])
    drawn = bootstrap.crossed_means(arms, codes)
    of_interest = drawn[0] - drawn[1] if len(arms) == 2 else drawn[0]
    spread = float(of_interest.std(ddof=1))
    if spread <= 1e-9:
        return None
    level = float(special.ndtr(-_t(crossed.df) * math.sqrt(crossed.variance) / spread))
    low, high = np.quantile(of_interest, [level, 1 - level])
    return float(low), float(high)


def _t(df: float) -> float:
    return float(special.stdtrit(df, 1 - ALPHA / 2))


def _wilson(p: float, size: float, df: float) -> tuple[float, float]:
    """Wilson's interval, J. American Statistical Association 22 (1927) 209, with t in place of z."""
    if not df > 0:
        return 0.0, 1.0
    q = _t(df) ** 2 / size
    if not math.isfinite(q):
        return 0.0, 1.0
    middle = (p + q / 2) / (1 + q)
    half = math.sqrt(q * p * (1 - p) + q**2 / 4) / (1 + q)
    return max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))


# --- comparisons ------------------------------------------------------------------------------------------


def compare_arms(
    a_seed_means: Sequence[float], b_seed_means: Sequence[float], a: str = "a", b: str = "b"
) -> Comparison:
    """Two arms by their seeds' means: Welch's t over seeds decides, the exact permutation p stands beside it.

    The interval is Welch's (Biometrika 34 (1947) 28) and speaks of new seeds on these tasks. Small samples:
    one seed on either side gives no interval, no p, and the verdict `one seed`. Where no seed differs from
    the others of its arm there is no spread to judge by; Welch's limit is taken, as scipy does (p is 0, or 1
    for equal means).
    """
    first, second = _seed_means(a_seed_means, a), _seed_means(b_seed_means, b)
    difference = float(first.mean() - second.mean())
    found = Comparison(a, b, difference, len(first), len(second), "seeds")
    if min(len(first), len(second)) < 2:
        return found
    low, high, df, p, error = _welch(first, second)
    if min(first.min(), second.min()) >= 0 and max(first.max(), second.max()) <= 1:
        low, high = max(-1.0, low), min(1.0, high)  # two shares cannot lie further apart
    exact_p, least = exact_permutation_p(first, second)
    sd_a, sd_b = float(first.std(ddof=1)), float(second.std(ddof=1))
    found = replace(found, low=low, high=high, df=df, p=p, error=error, sd_a=sd_a, sd_b=sd_b)
    return replace(found, exact_p=exact_p, exact_p_least=least)


def compare_with_fixed(
    runs: ArrayLike, fixed: ArrayLike, a: str = "a", b: str = "b", clusters: Clusters = None
) -> Comparison:
    """An arm, (runs, tasks, ...), against a score without a seed, (1, tasks, ...), on the same tasks.

    Paired on tasks: the differences are a crossed design, with the variance and the degrees of freedom of
    `rate_over_seeds` and a plain t interval; `over_tasks` is the same, from 10 seeds on the crossed bootstrap's.
    Both speak of new seeds and new tasks. One run: `one seed`.
    """
    differences, clusters = _paired(_in_unit_interval(runs), _in_unit_interval(fixed), clusters)
    found = Comparison(a, b, float(differences.mean()), len(differences), None, "seeds+tasks")
    if len(differences) < 2:
        return found
    crossed = _crossed(differences, clusters, spread=0.0)
    over_tasks = _ends(found.difference, [differences], clusters, crossed)
    sd_a, task_error = float(differences.mean(1).std(ddof=1)), math.sqrt(crossed.left)
    found = replace(found, sd_a=sd_a, task_error=task_error, over_tasks=over_tasks)
    return _t_test(found, crossed.variance, crossed.df)


def compare_checkpoints(
    outcomes_a: ArrayLike, outcomes_b: ArrayLike, a: str = "a", b: str = "b", clusters: Clusters = None
) -> Comparison:
    """Two single checkpoints, (1, tasks, ...) each on the same tasks: a paired t over tasks.

    It speaks of new tasks for *these two checkpoints*, never of the arms that they came from.
    """
    differences, clusters = _paired(_in_unit_interval(outcomes_a), _in_unit_interval(outcomes_b), clusters)
    if len(differences) != 1:
        raise BadInput(
            f"compare_checkpoints was given {len(differences)} runs; expected one on each side.",
            "statistics/values",
        )
    variance, df, _ = _task_variance(differences[0], clusters, spread=0.0)
    n = differences.shape[1]
    found = Comparison(a, b, float(differences.mean()), n, n, "tasks", sd_a=math.sqrt(variance * n))
    return _t_test(found, variance, df)


def crossed_difference(
    outcomes_a: ArrayLike, outcomes_b: ArrayLike, clusters: Clusters = None
) -> Ends | None:
    """The interval of the difference of two arms for new seeds AND new tasks; (runs, tasks, ...) on the same tasks.

    `compare_arms` decides, on these tasks; this is for figures. Below 10 seeds an arm (or 20 tasks): t with
    Satterthwaite's degrees of freedom over both arms' seeds and the paired tasks; from there on the crossed
    bootstrap, one draw of tasks for all seeds of both arms. None where an arm has one seed, or tasks do not vary.
    """
    a, b = task_means(_in_unit_interval(outcomes_a)), task_means(_in_unit_interval(outcomes_b))
    if a.shape[1] != b.shape[1]:
        raise BadInput(
            f"arms on {a.shape[1]} and {b.shape[1]} tasks were given; expected the same tasks.",
            "statistics/values",
        )
    there = np.asarray(np.isfinite(a).all(0) & np.isfinite(b).all(0))
    if min(len(a), len(b)) < 2 or not there.any():
        return None
    a, b, clusters = a[:, there], b[:, there], _kept(clusters, there)
    crossed = _crossed_difference(a, b, clusters)
    return _ends(float(a.mean() - b.mean()), [a, b], clusters, crossed)


def _ends(difference: float, arms: Sequence[Floats], clusters: Clusters, crossed: _Crossed) -> Ends | None:
    """The interval of a difference for new seeds and new tasks; None where tasks cannot say how they vary."""
    if (ends := _resampled(arms, clusters, crossed)) is not None:
        return Ends(*ends, "bootstrap")
    if not crossed.df > 0:
        return None
    half = _t(crossed.df) * math.sqrt(crossed.variance)
    return Ends(max(-1.0, difference - half), min(1.0, difference + half), "t")


@dataclass(frozen=True)
class NoiseFloor:
    """How far one evaluation of an unchanged model lies from the next: its standard deviation, and how well known."""

    sd: float
    df: float


def noise_floor(*repeats: Sequence[float]) -> NoiseFloor | None:
    """The floor from the scores of models evaluated again and again (each argument: one model, one condition).

    Variances are pooled with their degrees of freedom. None from fewer than three evaluations of one model, or two
    of each of two: the floor would be 12.7 standard deviations, known from one difference.
    """
    again = [np.asarray(scores, dtype=np.float64) for scores in repeats if len(scores) > 1]
    df = float(sum(len(scores) - 1 for scores in again))
    if df < 2:
        return None
    return NoiseFloor(math.sqrt(sum(float(scores.var(ddof=0)) * len(scores) for scores in again) / df), df)


def noise_between(a: NoiseFloor, b: NoiseFloor, n_a: int = 1, n_b: int = 1) -> float:
    """The difference between means of n_a and of n_b evaluations of unchanged models that 19 of 20 stay within.

    t x sqrt(sd_a^2 / n_a + sd_b^2 / n_b), with Satterthwaite's degrees of freedom, or those of the one floor that
    both sides share.
    """
    parts = a.sd**2 / n_a, b.sd**2 / n_b
    if a == b or not sum(parts):
        return _t(a.df) * math.sqrt(sum(parts))
    df = sum(parts) ** 2 / (parts[0] ** 2 / a.df + parts[1] ** 2 / b.df)
    return _t(df) * math.sqrt(sum(parts))


def with_noise(found: Comparison, a: NoiseFloor | None, b: NoiseFloor | None) -> Comparison:
    """The comparison with the noise floor of its difference, from its sides' floors: each seed was evaluated once."""
    if a is None or b is None or found.p is None:
        return found
    n_a, n_b = (1, 1) if found.unit == "tasks" else (found.n_a, found.n_b or 1)
    return replace(found, noise=noise_between(a, b, n_a, n_b))


def with_margin(found: Comparison, margin: float | None) -> Comparison:
    """The comparison judged against the smallest difference that matters to the user, such as 0.03.

    Adds the p of two one-sided t tests (Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15 (1987) 657: the
    larger of the two) with the error and degrees of freedom of the deciding test, and the units needed
    (`_needed`). Never uses the difference that was seen to say how many seeds it takes.
    """
    if margin is None:
        return found
    if isinstance(margin, bool) or not 0 < margin < 1:
        raise BadInput(
            f"margin = {margin}: expected a difference of scores above 0 and below 1, such as 0.03",
            "statistics/margin",
        )
    found = replace(found, margin=float(margin), equivalence_p=None, equivalence_p_holm=None, needed=None)
    return replace(found, equivalence_p=equivalence_p(found, margin), needed=_needed(found, margin))


def equivalence_p(found: Comparison, margin: float) -> float | None:
    """The larger p of the two one-sided tests that the difference lies inside the margin; None from one seed."""
    if found.p is None or found.error is None or not found.df:
        return None
    if found.error <= 1e-12:
        return 0.0 if abs(found.difference) < margin else 1.0
    return float(special.stdtr(found.df, (abs(found.difference) - margin) / found.error))


def _needed(found: Comparison, margin: float) -> Needed | None:
    """Units an arm that find a true difference of `margin` with power 0.8 at 0.05, as a range.

    The range is over the 95% chi-square interval of the standard deviation seen between units. Power: noncentral
    t. For `seeds+tasks` the tasks' part stays as it is, for `tasks` the pairs are what is added.
    """
    a, b = (found.sd_a or 0.0) ** 2, (found.sd_b or 0.0) ** 2
    if not found.error or not found.df or a + b == 0:
        return None
    if found.unit == "seeds":
        assert found.n_b is not None
        sd_df = (a + b) ** 2 / (a**2 / (found.n_a - 1) + b**2 / (found.n_b - 1))
        shape, fixed = (a + b) ** 2 / (a**2 + b**2), 0.0
    else:
        sd_df = found.df if found.unit == "tasks" else found.n_a - 1.0
        shape, fixed = 1.0, (found.task_error or 0.0) ** 2
    ends = [sd_df / float(stats.chi2.ppf(level, sd_df)) for level in (1 - ALPHA / 2, ALPHA / 2)]
    fewest, most = (_least(margin, scale * (a + b), shape, fixed) for scale in ends)
    return Needed(fewest, most, "tasks" if found.unit == "tasks" else "seeds")


def _least(margin: float, variance: float, shape: float, fixed: float) -> int | None:
    """The least n with power 0.8 where the difference has the variance `variance`/n + fixed; None beyond 1e6."""

    def enough(n: int) -> bool:
        total = variance / n + fixed
        df = min(
            (n - 1) * shape * (total * n / variance) ** 2, 1e9
        )  # Satterthwaite: only the seeds' part is uncertain
        return _power(margin / math.sqrt(total), df) >= POWER

    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_NEEDED:
            return None
    low = max(2, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def _power(shift: float, df: float) -> float:
    """How often a two-sided t test at 0.05 sees a true difference of `shift` standard errors, in its direction."""
    if shift > 30:
        return 1.0
    if df > 1e4:
        return float(special.ndtr(shift - _t(df)))
    return float(1 - special.nctdtr(df, shift, _t(df)))


def exact_permutation_p(a: ArrayLike, b: ArrayLike) -> tuple[float | None, float]:
    """The two-sided exact p of the difference of means over all regroupings, and the least it could be.

    3 against 3 have 20 regroupings, of which two are as extreme as can be: never below 0.10. None where
    there are more than 200,000 regroupings.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    pooled = np.concatenate([first, second])
    regroupings = math.comb(len(pooled), len(first))
    least = (2 if len(first) == len(second) else 1) / regroupings
    if regroupings > MOST_REGROUPINGS:
        return None, least
    chosen = _regroupings(len(pooled), len(first))
    sums = pooled[chosen].sum(1)
    differences = sums / len(first) - (pooled.sum() - sums) / len(second)
    slack = 1e-9 * max(1.0, float(np.abs(pooled).max()))
    extreme = np.abs(differences) >= abs(first.mean() - second.mean()) - slack
    return float(extreme.mean()), least


@lru_cache(maxsize=4)
def _regroupings(seeds: int, of_a: int) -> NDArray[np.int8]:
    """(regroupings, seeds of a)."""
    flat = chain.from_iterable(combinations(range(seeds), of_a))
    return np.fromiter(flat, dtype=np.int8, count=math.comb(seeds, of_a) * of_a).reshape(-1, of_a)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, Scandinavian J. Statistics 6 (1979) 65: (0.01, 0.04) -> (0.02, 0.04)."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(p_values))
    so_far = 0.0
    for rank, index in enumerate(order):
        so_far = max(so_far, (len(p_values) - rank) * p_values[index])
        corrected[index] = min(1.0, so_far)
    return [float(p) for p in corrected]


def correct(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """The comparisons of one study, corrected together; those of one seed test nothing and do not count."""
    given = list(comparisons)
    corrected = iter(holm([found.p for found in given if found.p is not None]))
    given = [found if found.p is None else replace(found, p_holm=next(corrected)) for found in given]
    inside = iter(holm([found.equivalence_p for found in given if found.equivalence_p is not None]))
    return [
        found if found.equivalence_p is None else replace(found, equivalence_p_holm=next(inside))
        for found in given
    ]


def _seed_means(means: Sequence[float], name: str) -> Floats:
    values = np.asarray(means, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise BadInput(
            f"{name} was given the seed means {means}; expected one finite number a seed.",
            "statistics/values",
        )
    return values


def _paired(runs: ArrayLike, fixed: ArrayLike, clusters: Clusters) -> tuple[Floats, Clusters]:
    """Differences (runs, tasks) on the tasks that all have a value for, and these tasks' clusters."""
    left, right = task_means(runs), task_means(fixed)
    if len(right) != 1 or left.shape[1] != right.shape[1]:
        raise BadInput(
            f"scores of shapes {left.shape} and {right.shape} (runs, tasks) were given; "
            "expected one run on the right and the same tasks on both sides.",
            "statistics/values",
        )
    differences = left - right
    there = np.asarray(np.isfinite(differences).all(0))
    if not there.any():
        raise BadInput(
            "the two sides share no task that has a value: there is nothing to compare.", "statistics/values"
        )
    return differences[:, there], _kept(clusters, there)


def _welch(a: Floats, b: Floats) -> tuple[float, float, float, float, float]:
    """low, high, degrees of freedom, two-sided p and the standard error."""
    difference = float(a.mean() - b.mean())
    of_a, of_b = (float(x.var(ddof=1)) / len(x) if np.ptp(x) > 1e-12 else 0.0 for x in (a, b))
    if of_a + of_b == 0:
        equal = abs(difference) <= 1e-12
        return difference, difference, len(a) + len(b) - 2.0, 1.0 if equal else 0.0, 0.0
    df = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    error = math.sqrt(of_a + of_b)
    half = _t(df) * error
    p = float(2 * special.stdtr(df, -abs(difference) / error))
    return difference - half, difference + half, df, p, error


def _t_test(found: Comparison, variance: float, df: float) -> Comparison:
    """The comparison with a plain t interval and its p; the limit where nothing varies."""
    if df == 0:
        return replace(found, low=-1.0, high=1.0, df=df, p=1.0, error=math.sqrt(variance))
    error = math.sqrt(variance)
    if error <= 1e-12:
        p = 1.0 if abs(found.difference) <= 1e-12 else 0.0
        return replace(found, low=found.difference, high=found.difference, df=df, p=p, error=0.0)
    half = _t(df) * error
    p = float(2 * special.stdtr(df, -abs(found.difference) / error))
    low, high = max(-1.0, found.difference - half), min(1.0, found.difference + half)
    return replace(found, low=low, high=high, df=df, p=p, error=error)
