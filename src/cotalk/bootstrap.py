"""The crossed bootstrap: tasks are drawn once for all seeds of all arms, seeds within each arm.

Resampling tasks anew for each seed (nested) forgets that every seed meets the same tasks: with ten steady seeds its
95% interval covers about two times in three. Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1 (2007)
386, which errs on the wide side by the noise of single answers; stats.py sets the level so that the width is right.
A resample is a pair of weight vectors (how often each seed and each task was drawn), so all resamples are two matrix
products: 10,000 of two arms of 10 seeds x 300 tasks take a fraction of a second. Left out: intervals (stats.py).

    drawn = crossed_means([a, b], codes)        # (2, resamples): a's and b's means under the same draws of tasks
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 10_000
TASKS = 0  # the stream of the draws of tasks; arm i draws its seeds from stream 1 + i


def crossed_means(
    arms: Sequence[Floats], clusters: NDArray[np.int64], resamples: int = RESAMPLES, key: int = 0
) -> Floats:
    """Means of arms, each (runs, tasks), under `resamples` draws -> (arms, resamples).

    clusters: one small integer a task; tasks of one cluster are drawn together. The same key gives the same draws.
    """
    sizes = np.bincount(clusters)
    tasks = draws(len(sizes), resamples, TASKS, key)  # (resamples, clusters)
    totals = tasks @ sizes.astype(np.float32)  # how many tasks a resample holds
    found = np.empty((len(arms), resamples))
    for i, values in enumerate(arms):
        runs = len(values)
        sums = cluster_sums(values, clusters)
        weighted = draws(runs, resamples, 1 + i, key) @ (sums / runs).astype(
            np.float32
        )  # (resamples, clusters)
        means = np.einsum("bc,bc->b", weighted, tasks) / totals
        found[i] = np.clip(means, values.min(), values.max())  # a mean lies there; float32 rounds past it
    return found


def cluster_sums(values: Floats, clusters: NDArray[np.int64]) -> Floats:
    """(runs, tasks) -> (runs, clusters)."""
    return np.stack([np.bincount(clusters, weights=row) for row in values])


@lru_cache(maxsize=6)
def draws(n: int, resamples: int, stream: int, key: int) -> NDArray[np.float32]:
    """How often each of n units was drawn, in each resample of n: (resamples, n)."""
    generator = np.random.default_rng((key, stream, n, resamples))
    chosen = generator.integers(0, n, (resamples, n), dtype=np.int32)
    chosen += n * np.arange(resamples, dtype=np.int32)[:, None]
    counted = np.bincount(chosen.ravel(), minlength=n * resamples).reshape(resamples, n).astype(np.float32)
    counted.setflags(write=False)
    return counted
