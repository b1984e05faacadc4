"""Intervals and comparisons: pure functions on arrays of outcomes.

Scores are arrays (runs, tasks, chats, seats); a run is one training seed. There are two units, and they are
never mixed. *Tasks* are the unit of a claim about one checkpoint: the answers of a task are averaged first,
because they depend on each other (seat B reads seat A's answer). *Seeds* are the unit of a claim about an arm
or a method: one seed never supports one. Tasks are crossed with seeds (every seed meets the same tasks).

    rate_over_tasks(outcomes)        one run        -> 0.40 [0.36, 0.45] (300 tasks)
    rate_over_seeds(outcomes)        several runs   -> 0.32 [0.14, 0.57] (3 seeds x 300 tasks)
    rate_of_values(values)           one value a task in [0, 1], NaN where it does not apply
    amount(values)                   the same for lengths: runs x tasks, no upper end
    compare_arms(a, b)               seed means of two arms: Welch's t decides, an exact p beside it
    compare_with_fixed(runs, fixed)  an arm against something without a training seed (the untrained base)
    compare_checkpoints(a, b)        two single checkpoints on the same tasks, paired

Left out on purpose: the noise floor and `no different`, which need what an array of outcomes does not hold.
What each interval covers, measured by simulation, is in docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from cotalk.errors import BadInput

UNITS = ("tasks", "seeds", "seeds+tasks")
LEVEL = 0.95
ALPHA = 1 - LEVEL
SEEDS_TO_TRUST_WELCH = (
    20  # below, its false alarms exceed 1 in 20 where seeds are bimodal (docs/statistics.md)
)
MOST_REGROUPINGS = 200_000  # 10 seeds against 10 are 184,756
Floats = NDArray[np.float64]
Clusters = Sequence[Hashable] | None  # each task's template; None: a task of its own


# --- one number with its interval -------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """A mean with its 95% interval, how many units it stands on, and which unit that is.

    `n` counts tasks for the unit `tasks` and seeds for `seeds` and `seeds+tasks` (the scarcer of the two).
    `tasks` only serves printing: how many tasks each of those seeds met.
    """

    mean: float
    low: float
    high: float
    n: int
    unit: str
    tasks: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise BadInput(f"a rate was given the unit {self.unit!r}; expected one of {', '.join(UNITS)}.")
        if not self.low <= self.mean <= self.high:
            raise BadInput(f"a rate was given the mean {self.mean}, not within [{self.low}, {self.high}].")

    @property
    def as_json(self) -> dict[str, float | int | str]:
        """The RATE of results.json: exactly mean, low, high, n, unit."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n, "unit": self.unit}

    @classmethod
    def from_json(cls, rate: dict[str, Any], tasks: int | None = None) -> Rate:
        """A RATE read back; `tasks` completes how `seeds+tasks` prints."""
        mean, low, high = (float(rate[key]) for key in ("mean", "low", "high"))
        return cls(mean, low, high, int(rate["n"]), str(rate["unit"]), tasks)

    @property
    def of(self) -> str:
        """What it stands on: `300 tasks`, `3 seeds x 300 tasks`."""
        if self.unit == "tasks":
            return _count(self.n, "task")
        seeds = _count(self.n, "seed")
        return f"{seeds} x {_count(self.tasks, 'task')}" if self.tasks and self.unit != "seeds" else seeds

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


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


# --- rates ------------------------------------------------------------------------------------------------


def rate_over_tasks(outcomes: ArrayLike, clusters: Clusters = None) -> Rate:
    """The score of ONE run, (1, tasks, chats, seats) in [0, 1], with an interval over new tasks of this kind.

    Wilson's interval at the effective sample size p(1-p)/v, with v the variance of the mean between tasks and
    a t quantile of tasks - 1 degrees of freedom: Franco, Little, Louis and Slud, "Comparative Study of
    Confidence Intervals for Proportions in Complex Sample Surveys", J. Survey Statistics and Methodology 7
    (2019) 334. Small samples: v is shrunk by one imaginary task that is all or nothing, and the effective
    size stays between the number of tasks and the number of answers. At 0 and 1, where v says nothing, it is
    the number of tasks. `clusters` names each task's template (None: a task of its own); then clusters are
    what vary, and degrees of freedom are clusters - 1.
    """
    outcomes = _in_unit_interval(outcomes)
    values = task_means(outcomes)
    if len(values) != 1:
        raise BadInput(
            f"rate_over_tasks was given {len(values)} runs and speaks of one checkpoint. "
            "Call rate_over_seeds for several runs, or outcomes[:1] for one of them."
        )
    return _wilson_over_tasks(values[0], clusters, answers=int(np.isfinite(outcomes).sum()))


def rate_of_values(values: ArrayLike, clusters: Clusters = None) -> Rate:
    """The mean of one value a task, (tasks,) in [0, 1]; NaN (does not apply) is left out and not counted.

    The interval is that of `rate_over_tasks`; a task's value is one answer that need not be 0 or 1.
    """
    return _wilson_over_tasks(_in_unit_interval(values), clusters, answers=None)


def rate_over_seeds(outcomes: ArrayLike, clusters: Clusters = None) -> Rate:
    """The score of an ARM: several runs on the same tasks, with an interval over new seeds and new tasks.

    outcomes: (runs, tasks, chats, seats) in [0, 1], at least two runs. The variance of the mean is that of
    the seed means over the number of seeds plus that of the task means over the number of tasks (tasks are
    crossed with seeds; what both hold is counted twice, on the safe side), with degrees of freedom by
    Satterthwaite, Biometrics Bulletin 2 (1946) 110. The interval is Wilson's at that variance and those
    degrees of freedom (see `rate_over_tasks`), so it stays inside [0, 1]. Small samples: with 2 or 3 seeds
    that scatter widely it is nearly as wide as [0, 1], and rightly so.
    """
    outcomes = _in_unit_interval(outcomes)
    values, clusters = _complete(task_means(outcomes), clusters)
    mean = float(values.mean())
    crossed = _crossed(values, clusters, spread=mean * (1 - mean))
    if crossed.variance > 0:
        size = min(mean * (1 - mean) / crossed.variance, float(np.isfinite(outcomes).sum()))
    else:
        size = crossed.least
    low, high = _wilson(mean, size, crossed.df)
    return Rate(mean, low, high, len(values), "seeds+tasks", tasks=values.shape[1])


def amount(values: ArrayLike, clusters: Clusters = None) -> Rate:
    """The mean of a length, (runs, tasks), not bounded by 1: mean +- t x standard error, cut off at 0.

    One run: over tasks (at least two). Several: over seeds and tasks, as `rate_over_seeds`.
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
    if not df > 0:
        raise BadInput("amount was given a single task (or template); an interval needs at least two.")
    half = _t(df) * math.sqrt(variance)
    return Rate(mean, max(0.0, mean - half), mean + half, n, unit, tasks=kept.shape[-1])


def task_means(outcomes: ArrayLike) -> Floats:
    """(runs, tasks, ...) -> (runs, tasks): each task's answers averaged, NaN ones left out."""
    values = np.asarray(outcomes, dtype=np.float64)
    if values.ndim < 2 or values.size == 0:
        raise BadInput(f"outcomes of shape {values.shape} were given; expected (runs, tasks, chats, seats).")
    values = values.reshape(*values.shape[:2], -1)
    counted = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(counted, values, 0.0).sum(-1) / counted.sum(-1), dtype=np.float64)


def _in_unit_interval(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    wrong = array[(array < 0) | (array > 1)]
    if wrong.size:
        raise BadInput(f"a rate was given the value {wrong[0]:g}; expected 0 to 1. Lengths go to amount().")
    return array


def _applicable(values: Floats, clusters: Clusters) -> tuple[Floats, Sequence[Hashable] | None]:
    """The tasks that have a value, and their clusters."""
    if values.ndim != 1:
        raise BadInput(f"values of shape {values.shape} were given; expected one value a task.")
    there = np.isfinite(values)
    if not there.any():
        raise BadInput(f"{len(values)} tasks were given and none has a value: there is nothing to average.")
    return values[there], _kept(clusters, there)


def _complete(values: Floats, clusters: Clusters) -> tuple[Floats, Clusters]:
    """(runs, tasks) and clusters: only the tasks that every run has a value for; at least two runs."""
    if len(values) < 2:
        raise BadInput(
            "rate_over_seeds was given one run: an arm needs at least two seeds. "
            "Call rate_over_tasks for a claim about this checkpoint."
        )
    there = np.asarray(np.isfinite(values).all(0))
    if not there.any():
        raise BadInput(f"{len(values)} runs share no task that has a value: there is nothing to average.")
    return values[:, there], _kept(clusters, there)


def _kept(clusters: Clusters, there: NDArray[np.bool_]) -> Clusters:
    """The clusters of the tasks that are there."""
    if clusters is None:
        return None
    if len(clusters) != len(there):
        raise BadInput(f"{len(clusters)} clusters were given for {len(there)} tasks; expected one a task.")
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
    The variance is a mean of (groups - 1) observed parts and one part `spread` / least.
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
    return ((groups - 1) * observed + spread / least) / groups, groups - 1.0, least


def _cluster_codes(clusters: Clusters, n: int) -> NDArray[np.int64]:
    """One small integer a task, equal within a cluster; a task without a cluster is its own."""
    if clusters is None:
        return np.arange(n)
    known: dict[object, int] = {}
    keys = [("own", i) if name is None else ("named", name) for i, name in enumerate(clusters)]
    return np.array([known.setdefault(key, len(known)) for key in keys])


@dataclass(frozen=True)
class _Crossed:
    variance: float
    df: float
    least: float


def _crossed(values: Floats, clusters: Clusters, spread: float) -> _Crossed:
    """The variance of the grand mean of (runs, tasks) when seeds and tasks are both draws; Satterthwaite."""
    runs = len(values)
    of_seeds = float(values.mean(1).var(ddof=1)) / runs
    of_tasks, task_df, least = _task_variance(values.mean(0), clusters, spread)
    variance = of_seeds + of_tasks
    if task_df == 0:
        return _Crossed(variance, 0.0, least)
    if variance == 0:
        return _Crossed(variance, task_df, least)
    df = variance**2 / (of_seeds**2 / (runs - 1) + of_tasks**2 / task_df)
    return _Crossed(variance, df, least)


def _t(df: float) -> float:
    return float(stats.t.ppf(1 - ALPHA / 2, df))


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


@dataclass(frozen=True)
class Comparison:
    """The difference a - b, what it stands on, and what it entitles us to say.

    unit `seeds`: two arms. `seeds+tasks`: an arm against something without a seed (`n_b` is None).
    `tasks`: two checkpoints. low, high, df and p are None where one seed cannot give them. `exact_p` is None
    where it does not apply or would need too many regroupings; `exact_p_least` is the least it could be.
    """

    a: str
    b: str
    difference: float
    n_a: int
    n_b: int | None
    unit: str
    low: float | None = None
    high: float | None = None
    df: float | None = None
    p: float | None = None
    p_holm: float | None = None
    exact_p: float | None = None
    exact_p_least: float | None = None

    @property
    def verdict(self) -> str:
        """`one seed`, `helps`, `hurts` or `cannot tell`, in this order of precedence."""
        if self.p is None:
            return "one seed"
        if self.deciding_p >= ALPHA:
            return "cannot tell"
        return "helps" if self.difference > 0 else "hurts"

    @property
    def deciding_p(self) -> float:
        """Holm's value where several comparisons were corrected together, else the p of the test itself."""
        if self.p is None:
            raise BadInput(f"{self.a} against {self.b} rests on one seed: there is no p.")
        return self.p if self.p_holm is None else self.p_holm

    @property
    def sentence(self) -> str:
        """The verdict as one honest sentence."""
        if self.verdict == "one seed":
            return (
                f"One seed cannot carry a claim about an arm: {self.a} minus {self.b} is "
                f"{_signed(self.difference)} ({self.of}). Train at least three seeds."
            )
        numbers = f"{self.interval} ({self.of}; {self._tests})"
        if self.verdict == "cannot tell":
            return f"Cannot tell whether {self.a} differs from {self.b}: {numbers}.{self._caution}"
        better = "better" if self.verdict == "helps" else "worse"
        return f"{self.a} scores {better} than {self.b}: {numbers}.{self._caution}"

    @property
    def interval(self) -> str:
        """`+0.27 [-0.07, +0.61]`, the ends rounded outwards: it never prints more than was found."""
        if self.low is None or self.high is None:
            return _signed(self.difference)
        low, high = math.floor(self.low * 100 + 1e-9) / 100, math.ceil(self.high * 100 - 1e-9) / 100
        return f"{_signed(self.difference)} [{_signed(low)}, {_signed(high)}]"

    @property
    def of(self) -> str:
        """What it stands on: `3 seeds against 3`, `300 tasks, paired`, `3 seeds against a fixed score`."""
        if self.unit == "tasks":
            return f"{_count(self.n_a, 'task')}, paired"
        return f"{_count(self.n_a, 'seed')} against {'a fixed score' if self.n_b is None else self.n_b}"

    @property
    def _tests(self) -> str:
        parts = [f"{'Welch ' if self.unit == 'seeds' else ''}p {_p(self.p)}"]
        if self.p_holm is not None and self.p_holm != self.p:
            parts.append(f"{_p(self.p_holm)} after Holm's correction")
        if self.exact_p is not None:
            parts.append(f"exact p {_p(self.exact_p)}")
            if self.exact_p_least is not None and self.exact_p_least >= 0.01:
                parts.append(f"which so few seeds cannot take below {_p(self.exact_p_least)}")
        return ", ".join(parts)

    @property
    def _caution(self) -> str:
        seeds = min(n for n in (self.n_a, self.n_b) if n is not None)
        if self.unit == "tasks":
            return " This speaks of these two checkpoints, not of how they were trained."
        if seeds >= SEEDS_TO_TRUST_WELCH or self.verdict == "cannot tell":
            return ""
        return (
            " With so few seeds this errs more often than 1 in 20 where some seeds learn and others do not."
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """All fields, the verdict and the sentence, ready for results.json."""
        numbers = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return numbers | {"verdict": self.verdict, "sentence": self.sentence}


def _signed(value: float) -> str:
    return f"{value + 0.0:+.2f}"


def _p(p: float | None) -> str:
    if p is None:
        return "unknown"
    return "below 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


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
    low, high, df, p = _welch(first, second)
    if min(first.min(), second.min()) >= 0 and max(first.max(), second.max()) <= 1:
        low, high = max(-1.0, low), min(1.0, high)  # two shares cannot lie further apart
    exact_p, least = exact_permutation_p(first, second)
    return replace(found, low=low, high=high, df=df, p=p, exact_p=exact_p, exact_p_least=least)


def compare_with_fixed(
    runs: ArrayLike, fixed: ArrayLike, a: str = "a", b: str = "b", clusters: Clusters = None
) -> Comparison:
    """An arm, (runs, tasks, ...), against a score without a seed, (1, tasks, ...), on the same tasks.

    Paired on tasks: the differences are a crossed design, with the variance and the degrees of freedom of
    `rate_over_seeds` and a plain t interval. It speaks of new seeds and new tasks. One run: `one seed`.
    """
    differences, clusters = _paired(_in_unit_interval(runs), _in_unit_interval(fixed), clusters)
    found = Comparison(a, b, float(differences.mean()), len(differences), None, "seeds+tasks")
    if len(differences) < 2:
        return found
    crossed = _crossed(differences, clusters, spread=0.0)
    return _t_test(found, crossed.variance, crossed.df)


def compare_checkpoints(
    outcomes_a: ArrayLike, outcomes_b: ArrayLike, a: str = "a", b: str = "b", clusters: Clusters = None
) -> Comparison:
    """Two single checkpoints, (1, tasks, ...) each on the same tasks: a paired t over tasks.

    It speaks of new tasks for *these two checkpoints*, never of the arms that they came from.
    """
    differences, clusters = _paired(_in_unit_interval(outcomes_a), _in_unit_interval(outcomes_b), clusters)
    if len(differences) != 1:
        raise BadInput(f"compare_checkpoints was given {len(differences)} runs; expected one on each side.")
    variance, df, _ = _task_variance(differences[0], clusters, spread=0.0)
    n = differences.shape[1]
    return _t_test(Comparison(a, b, float(differences.mean()), n, n, "tasks"), variance, df)


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
    chosen = np.array(list(combinations(range(len(pooled)), len(first))))  # (regroupings, seeds of a)
    sums = pooled[chosen].sum(1)
    differences = sums / len(first) - (pooled.sum() - sums) / len(second)
    slack = 1e-9 * max(1.0, float(np.abs(pooled).max()))
    extreme = np.abs(differences) >= abs(first.mean() - second.mean()) - slack
    return float(extreme.mean()), least


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
    return [found if found.p is None else replace(found, p_holm=next(corrected)) for found in given]


def _seed_means(means: Sequence[float], name: str) -> Floats:
    values = np.asarray(means, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise BadInput(f"{name} was given the seed means {means}; expected one finite number a seed.")
    return values


def _paired(runs: ArrayLike, fixed: ArrayLike, clusters: Clusters) -> tuple[Floats, Clusters]:
    """Differences (runs, tasks) on the tasks that all have a value for, and these tasks' clusters."""
    left, right = task_means(runs), task_means(fixed)
    if len(right) != 1 or left.shape[1] != right.shape[1]:
        raise BadInput(
            f"scores of shapes {left.shape} and {right.shape} (runs, tasks) were given; "
            "expected one run on the right and the same tasks on both sides."
        )
    differences = left - right
    there = np.asarray(np.isfinite(differences).all(0))
    if not there.any():
        raise BadInput("the two sides share no task that has a value: there is nothing to compare.")
    return differences[:, there], _kept(clusters, there)


def _welch(a: Floats, b: Floats) -> tuple[float, float, float, float]:
    """low, high, degrees of freedom and two-sided p."""
    difference = float(a.mean() - b.mean())
    of_a, of_b = (float(x.var(ddof=1)) / len(x) if np.ptp(x) > 1e-12 else 0.0 for x in (a, b))
    if of_a + of_b == 0:
        equal = abs(difference) <= 1e-12
        return difference, difference, len(a) + len(b) - 2.0, 1.0 if equal else 0.0
    df = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    error = math.sqrt(of_a + of_b)
    half = _t(df) * error
    return difference - half, difference + half, df, float(2 * stats.t.sf(abs(difference) / error, df))


def _t_test(found: Comparison, variance: float, df: float) -> Comparison:
    """The comparison with a plain t interval and its p; the limit where nothing varies."""
    if df == 0:
        return replace(found, low=-1.0, high=1.0, df=df, p=1.0)
    error = math.sqrt(variance)
    if error <= 1e-12:
        p = 1.0 if abs(found.difference) <= 1e-12 else 0.0
        return replace(found, low=found.difference, high=found.difference, df=df, p=p)
    half = _t(df) * error
    p = float(2 * stats.t.sf(abs(found.difference) / error, df))
    low, high = max(-1.0, found.difference - half), min(1.0, found.difference + half)
    return replace(found, low=low, high=high, df=df, p=p)
