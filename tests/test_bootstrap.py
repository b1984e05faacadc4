"""The crossed bootstrap: the same tasks for every seed of every arm, fast, and the interval that is made of it."""

from __future__ import annotations

import numpy as np
import pytest

from cotalk.bootstrap import crossed_means, draws
from cotalk.stats import compare_with_fixed, crossed_difference, rate_over_seeds


def test_every_resample_draws_as_many_units_as_there_are() -> None:
    counted = draws(7, 50, 0, 0)
    assert counted.shape == (50, 7)
    assert (counted.sum(1) == 7).all() and counted.min() >= 0
    assert (counted == draws(7, 50, 0, 0)).all()  # the same key, the same draws
    assert (counted != draws(7, 50, 1, 0)).any() and (counted != draws(7, 50, 0, 1)).any()


def test_a_resample_is_the_mean_over_the_drawn_seeds_and_tasks() -> None:
    values = np.arange(12, dtype=float).reshape(3, 4)
    of_tasks, of_seeds = draws(4, 20, 0, 5), draws(3, 20, 1, 5)
    by_hand = [
        np.repeat(np.repeat(values, s.astype(int), 0), t.astype(int), 1).mean()
        for s, t in zip(of_seeds, of_tasks, strict=True)
    ]
    assert crossed_means([values], np.arange(4), 20, 5)[0] == pytest.approx(by_hand, rel=1e-6)


def test_two_arms_meet_the_same_tasks() -> None:
    # Tasks alone make the score here, and both arms score alike on each: their difference never varies.
    hard = np.random.default_rng(0).random(50)
    a, b = np.tile(hard, (10, 1)), np.tile(hard, (12, 1)) - 0.25
    drawn = crossed_means([a, b], np.arange(50), 500)
    assert drawn[0].std() > 0.02
    assert (drawn[0] - drawn[1]) == pytest.approx(np.full(500, 0.25), abs=1e-5)


def test_tasks_of_one_template_are_drawn_together() -> None:
    values = np.tile([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], (10, 1))  # template 0: two tasks, template 1: four
    drawn = crossed_means([values], np.array([0, 0, 1, 1, 1, 1]), 400)[0]
    assert set(np.round(drawn, 4)) == {0.0, round(4 / 6, 4), 1.0}  # 0 twice, one of each, 1 twice


def test_the_interval_resamples_from_ten_seeds_and_twenty_tasks_on() -> None:
    generator = np.random.default_rng(1)
    ten, nine = generator.random((10, 40)), generator.random((9, 40))
    difference = crossed_difference(ten, ten[::-1] * 0.9)
    assert difference is not None and difference.method == "bootstrap"
    for a, b in ((ten, nine), (ten[:, :19], ten[:, :19])):
        ends = crossed_difference(a, b)
        assert ends is not None and ends.method == "t"
    with_base = compare_with_fixed(ten, generator.random((1, 40))).over_tasks
    assert with_base is not None and with_base.method == "bootstrap"


def test_resampling_and_t_agree_where_nothing_is_skewed() -> None:
    generator = np.random.default_rng(2)
    means = 0.5 + generator.normal(0, 0.05, (10, 1)) + generator.normal(0, 0.1, (1, 200))
    values = np.clip(means + generator.normal(0, 0.1, (10, 200)), 0, 1)
    resampled, by_t = rate_over_seeds(values), rate_over_seeds(values[:9])
    assert resampled.high - resampled.low == pytest.approx(by_t.high - by_t.low, rel=0.35)
    assert resampled.low <= resampled.mean <= resampled.high


def test_ten_seeds_that_never_solve_anything_fall_back_on_the_number_of_tasks() -> None:
    rate = rate_over_seeds(np.zeros((10, 300, 2, 2)))
    assert rate.low == 0.0 and 0.01 < rate.high < 0.02
    assert rate_over_seeds(np.ones((10, 300, 2, 2))).low == pytest.approx(1 - rate.high)


def test_no_mean_lies_outside_its_values_however_it_is_rounded() -> None:
    """Ten runs of 199 tasks, all right but for one answer: some resamples are all ones, and none may pass 1."""
    values = np.ones((10, 199))
    values[3, 7] = 0.5
    drawn = crossed_means([values], np.arange(199))
    assert drawn.max() == 1.0
    assert drawn.min() >= 0.5
