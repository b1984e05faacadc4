"""Reliability: how many of an arm's seeds learned at all, with an exact interval.

A mean over seeds hides that one seed in three learns nothing. A run *learned* when its held-out score is above half the
skyline (what the untrained base scores with the whole problem in one hand). The share of seeds that learned has
Clopper and Pearson's interval, Biometrika 26 (1934) 404: exact, and wide where seeds are few (3 of 3 seeds: from .29).

    reliability(document["conditions"])   -> {"open": {"mean": 1.0, "low": .29, "high": 1.0, "n": 3, ...}}

Left out: everything else about scores (results.py, stats.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scipy import stats

Json = dict[str, Any]
PART = 0.5  # of the skyline


def share(learned: int, n: int) -> tuple[float, float]:
    """The exact 95% interval of a share, `learned` of `n` seeds."""
    found = stats.binomtest(learned, n).proportion_ci(0.95, method="exact")
    return float(found.low), float(found.high)


def reliability(conditions: Mapping[str, Json]) -> Json:
    """{arm: share of seeds that learned}, with n and its exact interval; {} where there is no skyline."""
    if "skyline" not in conditions:
        return {}
    threshold = PART * conditions["skyline"]["score"]["mean"]
    found = {}
    for name, condition in conditions.items():
        arm = condition.get("arm")
        if arm and name == f"trained_{arm}":
            scores = list(condition["per_seed"].values())
            learned = sum(score > threshold for score in scores)
            low, high = share(learned, len(scores))
            found[arm] = {
                "mean": learned / len(scores), "low": low, "high": high, "n": len(scores), "unit": "seeds",
                "learned": learned, "threshold": threshold,
            }  # fmt: skip
    return found


def told(found: Mapping[str, Json]) -> list[str]:
    """A line an arm: `grpo: 10 of 10 seeds learned, 1.00 [0.69, 1.00] (above 0.49)`."""
    return [
        f"{arm}: {of['learned']} of {of['n']} seeds learned, {of['mean']:.2f} [{of['low']:.2f}, {of['high']:.2f}] "
        f"(above {of['threshold']:.2f}, half the skyline)"
        for arm, of in found.items()
    ]
