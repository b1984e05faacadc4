"""Reliability: how many seeds learned, with an exact interval."""

from __future__ import annotations

import pytest
from scipy.stats import beta

from cotalk.reliability import reliability, share, told


def condition(arm: str, *scores: float) -> dict:
    return {"arm": arm, "per_seed": {str(17 + i): s for i, s in enumerate(scores)}}


SKYLINE = {"score": {"mean": 0.8}}


def test_a_seed_has_learned_above_half_the_skyline():
    # half of .8 is .4: .4 itself has not
    found = reliability({"skyline": SKYLINE, "trained_open": condition("open", 0.41, 0.40, 0.9)})
    assert found["open"]["learned"] == 2 and found["open"]["n"] == 3
    assert found["open"]["mean"] == pytest.approx(2 / 3) and found["open"]["threshold"] == pytest.approx(0.4)


@pytest.mark.parametrize(("learned", "n"), [(0, 3), (3, 3), (7, 10), (10, 10)])
def test_the_interval_is_clopper_and_pearsons(learned, n):
    # quantiles of beta distributions: an independent form of the same interval
    low = beta.ppf(0.025, learned, n - learned + 1) if learned else 0.0
    high = beta.ppf(0.975, learned + 1, n - learned) if learned < n else 1.0
    assert share(learned, n) == pytest.approx((low, high), abs=1e-9)


def test_only_an_arms_own_condition_counts_and_without_a_skyline_nothing_does():
    conditions = {"trained_open": condition("open", 0.9), "trained_a_base_b": condition("open", 0.1)}
    assert list(reliability(conditions | {"skyline": SKYLINE})) == ["open"]
    assert reliability(conditions) == {}


def test_it_is_told_in_a_line():
    found = reliability({"skyline": SKYLINE, "trained_grpo": condition("grpo", *[0.9] * 10)})
    assert told(found) == ["grpo: 10 of 10 seeds learned, 1.00 [0.69, 1.00] (above 0.40, half the skyline)"]
