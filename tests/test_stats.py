"""Intervals and comparisons, against worked-out numbers, scipy, simulation, and a published study."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from cotalk.errors import BadInput
from cotalk.stats import (
    Comparison,
    Rate,
    amount,
    compare_arms,
    compare_checkpoints,
    compare_with_fixed,
    correct,
    exact_permutation_p,
    holm,
    rate_of_values,
    rate_over_evaluations,
    rate_over_seeds,
    rate_over_tasks,
    task_means,
)

PUBLISHED = json.loads((Path(__file__).parent / "data" / "published.json").read_text(encoding="utf-8"))
SEEDS = PUBLISHED["per_seed"]


def one_run(rows: list[list[float]]) -> np.ndarray:
    """rows: a task's four answers each -> (1, tasks, 2 chats, 2 seats)."""
    return np.array(rows, dtype=float).reshape(1, len(rows), 2, 2)


# --- printing and JSON ------------------------------------------------------------------------------------


def test_a_rate_prints_with_its_interval_and_what_it_stands_on() -> None:
    assert str(Rate(0.4025, 0.36, 0.4467, 300, "tasks")) == "0.40 [0.36, 0.45] (300 tasks)"
    assert (
        str(Rate(0.3, 0.09, 0.65, 3, "seeds+tasks", tasks=300)) == "0.30 [0.09, 0.65] (3 seeds x 300 tasks)"
    )
    assert str(Rate(0.3, 0.09, 0.65, 3, "seeds+tasks")) == "0.30 [0.09, 0.65] (3 seeds)"
    assert str(Rate(0.5, 0.0, 1.0, 1, "tasks")) == "0.50 [0.00, 1.00] (1 task)"


def test_a_score_prints_how_many_answers_it_is_and_of_which_seed() -> None:
    one = Rate(0.4025, 0.36, 0.4467, 300, "tasks", answers=4, seed="17")
    assert str(one) == "0.40 [0.36, 0.45] (seed 17: 300 tasks, 1,200 answers)"
    several = Rate(0.3, 0.09, 0.65, 3, "seeds+tasks", tasks=300, answers=4)
    assert str(several) == "0.30 [0.09, 0.65] (3 seeds x 300 tasks x 4 answers)"
    assert rate_over_tasks(np.zeros((1, 300, 2, 2))).of == "300 tasks, 1,200 answers"
    assert rate_over_seeds(np.zeros((3, 300, 2, 2))).of == "3 seeds x 300 tasks x 4 answers"
    assert rate_of_values([0.5, 0.2]).of == "2 tasks"  # a measure of talk is no answer


def test_a_narrow_interval_and_a_length_print_with_the_digits_that_they_need() -> None:
    assert Rate(0.0042, 0.0018, 0.0097, 300, "tasks").brief == "0.004 [0.002, 0.010]"
    assert Rate(570.4, 541.2, 1599.6, 300, "tasks").brief == "570 [541, 1,600]"
    assert Rate(9.04, 8.5, 10.2, 300, "tasks").brief == "9.0 [8.5, 10.2]"


def test_a_rate_as_json_has_exactly_the_five_keys_and_comes_back() -> None:
    rate = Rate(0.3, 0.09, 0.65, 3, "seeds+tasks", tasks=300)
    assert rate.as_json == {"mean": 0.3, "low": 0.09, "high": 0.65, "n": 3, "unit": "seeds+tasks"}
    assert Rate.from_json(json.loads(json.dumps(rate.as_json))) == rate


def test_a_rate_with_an_unknown_unit_or_outside_its_interval_is_refused() -> None:
    with pytest.raises(BadInput, match="expected one of tasks, seeds, seeds"):
        Rate(0.4, 0.3, 0.5, 300, "answers")
    with pytest.raises(BadInput, match="not within"):
        Rate(0.6, 0.3, 0.5, 300, "tasks")
    with pytest.raises(BadInput, match="not within"):
        Rate(math.nan, 0.3, 0.5, 300, "tasks")


# --- one run: the task is the unit ------------------------------------------------------------------------


def test_the_interval_over_tasks_is_wilsons_at_the_effective_sample_size() -> None:
    # Four tasks with means 1, 1/2, 0, 1/2. Mean 1/2, p(1-p) = 1/4. Variance between tasks:
    # (1/4 + 0 + 1/4 + 0)/3 = 1/6, of the mean 1/24. With one imaginary task that is all or nothing
    # (1/4 / 4 = 1/16): (3 x 1/24 + 1/16)/4 = 3/64. Effective size 1/4 / (3/64) = 16/3 (between 4 and 16).
    # t with 3 degrees of freedom: 3.18245; q = t^2 / (16/3) = 1.89899.
    # middle = (1/2 + q/2)/(1+q) = 1/2; half = sqrt(q/4 + q^2/4)/(1+q) = sqrt(q/(1+q))/2 = 0.404667.
    rate = rate_over_tasks(one_run([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 1]]))
    assert (rate.mean, rate.n, rate.unit) == (0.5, 4, "tasks")
    assert rate.low == pytest.approx(0.5 - 0.404667, abs=1e-5)
    assert rate.high == pytest.approx(0.5 + 0.404667, abs=1e-5)


def test_answers_of_one_task_that_all_agree_count_once() -> None:
    # 100 tasks, 40 of them solved by all four answers: (nearly) the interval of 100 answers, not of 400.
    rate = rate_over_tasks(one_run([[1] * 4] * 40 + [[0] * 4] * 60))
    wilson = scipy_stats.binomtest(40, 100).proportion_ci(method="wilson")
    assert rate.low == pytest.approx(wilson.low, abs=0.003)
    assert rate.high == pytest.approx(wilson.high, abs=0.003)


def test_at_none_and_all_solved_the_number_of_tasks_decides() -> None:
    # All 300 wrong: q = t(299)^2/300 = 1.96793^2/300 = 0.0129092; high = q/(1+q) = 0.0127447.
    none = rate_over_tasks(np.zeros((1, 300, 2, 2)))
    assert (none.mean, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(0.0127447, abs=1e-6)
    every = rate_over_tasks(np.ones((1, 300, 2, 2)))
    assert (every.mean, every.high) == (1.0, 1.0)
    assert every.low == pytest.approx(1 - none.high)


def test_a_single_task_says_nothing_and_two_say_little() -> None:
    one = rate_over_tasks(np.ones((1, 1, 2, 2)))
    assert (one.mean, one.low, one.high) == (1.0, 0.0, 1.0)
    two = rate_over_tasks(np.ones((1, 2, 2, 2)))
    assert 0.0 < two.low < 0.05  # t with one degree of freedom is 12.7


def test_tasks_that_all_score_the_same_do_not_get_an_interval_of_no_width() -> None:
    rate = rate_over_tasks(one_run([[1, 0, 1, 0]] * 5))  # at most as sharp as 20 independent answers
    assert rate.high - rate.low > 0.4
    assert rate_of_values([0.5] * 5).high - 0.5 > 0.1


def test_tasks_from_few_templates_count_as_templates() -> None:
    # 20 tasks from 2 templates, one always solved and one never: two observations, so nothing is known.
    outcomes = one_run([[1] * 4] * 10 + [[0] * 4] * 10)
    clustered = rate_over_tasks(outcomes, clusters=["a"] * 10 + ["b"] * 10)
    assert clustered.n == 20
    assert clustered.low < 0.01 and clustered.high > 0.99
    assert rate_over_tasks(outcomes).low > 0.25


def test_a_cluster_of_its_own_for_each_task_changes_nothing() -> None:
    outcomes = one_run([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 1]])
    assert rate_over_tasks(outcomes, clusters=[None] * 4) == rate_over_tasks(outcomes)
    assert rate_over_tasks(outcomes, clusters=list("abcd")) == rate_over_tasks(outcomes)


def test_values_that_do_not_apply_are_left_out_and_not_counted() -> None:
    rate = rate_of_values([1.0, math.nan, 0.5, math.nan, 0.0])
    assert rate == rate_of_values([1.0, 0.5, 0.0])
    assert (rate.mean, rate.n) == (0.5, 3)
    assert task_means([[[1.0, math.nan], [math.nan, math.nan]]])[0, 0] == 1.0


def test_what_cannot_be_a_rate_is_refused_with_what_to_call_instead() -> None:
    with pytest.raises(BadInput, match="Call rate_over_seeds"):
        rate_over_tasks(np.ones((3, 10, 2, 2)))
    with pytest.raises(BadInput, match="Call rate_over_tasks"):
        rate_over_seeds(np.ones((1, 10, 2, 2)))
    with pytest.raises(BadInput, match=r"expected \(runs, tasks, chats, seats\)"):
        rate_over_tasks(np.ones((1, 0, 2, 2)))
    with pytest.raises(BadInput, match="Lengths go to amount"):
        rate_of_values([12.0, 40.0])
    with pytest.raises(BadInput, match="none has a value"):
        rate_of_values([math.nan, math.nan])
    with pytest.raises(BadInput, match="expected one a task"):
        rate_over_tasks(np.ones((1, 3, 2, 2)), clusters=["a"])


@given(
    st.integers(1, 4),
    st.integers(1, 30),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 3]),
)
@settings(max_examples=150, deadline=None)
def test_every_interval_stays_inside_0_and_1_and_holds_its_mean(
    runs: int, tasks: int, p: float, seed: int, templates: int
) -> None:
    generator = np.random.default_rng(seed)
    outcomes = (generator.random((runs, tasks, 2, 2)) < p).astype(float)
    clusters = [str(name) for name in generator.integers(0, templates, tasks)] if templates else None
    rate = (rate_over_tasks if runs == 1 else rate_over_seeds)(outcomes, clusters)
    assert 0 <= rate.low <= rate.mean <= rate.high <= 1
    assert rate.low < rate.high
    mirrored = (rate_over_tasks if runs == 1 else rate_over_seeds)(1 - outcomes, clusters)
    assert mirrored.low == pytest.approx(1 - rate.high) and mirrored.high == pytest.approx(1 - rate.low)


def test_evaluations_made_again_speak_of_these_models_and_hold_their_score_19_times_in_20() -> None:
    """Of the runs .10 .12 .14 and .50 .50 .50: pooled variance .0008 / 4, so .31 +- 2.77645 x .0141421 / sqrt(6)."""
    rate = rate_over_evaluations([(0.10, 0.12, 0.14), (0.50, 0.50, 0.50)])
    assert rate is not None and str(rate) == "0.31 [0.29, 0.33] (3 evaluations)"
    assert rate.high - rate.mean == pytest.approx(2.776445 * 0.0141421 / 6**0.5, abs=1e-6)
    assert (
        rate_over_evaluations([(0.1, 0.2)]) is rate_over_evaluations([]) is None
    )  # known from one difference
    assert rate_over_evaluations([(0.0, 0.0, 0.01)]).low == 0.0  # type: ignore[union-attr]
    generator, hits = np.random.default_rng(0), 0
    for _ in range(2000):  # three runs of true score .3, .5, .9, each evaluated three times on 800 answers
        scores = generator.binomial(800, [[0.3], [0.5], [0.9]], (3, 3)) / 800
        found = rate_over_evaluations(scores.tolist())
        assert found is not None
        hits += found.low <= (0.3 + 0.5 + 0.9) / 3 <= found.high
    assert 0.935 <= hits / 2000 <= 0.965  # standard error .005


# --- several runs: seeds are crossed with tasks -----------------------------------------------------------


def test_the_interval_over_seeds_adds_the_variance_of_seeds_and_of_tasks() -> None:
    # Two seeds x three tasks: rows 1, 1/2, 0 and 1/2, 0, 1/4. Seed means 1/2, 1/4; mean 3/8; p(1-p) = 15/64.
    # Seeds: variance 1/32, of the mean 1/64. Task means 3/4, 1/4, 1/8: squared deviations (9 + 1 + 4)/64,
    # variance 7/64, of the mean 7/192; with the imaginary task: (2 x 7/192 + 15/192)/3 = 29/576.
    # Left over by seeds and tasks: +-(1/8, 1/8, -1/4), 12/64 squared and summed; as a variance of the mean
    # 3/2 x 12/64 / (9 x 2 x 1) = 1/64. Together 9/576 + 29/576 - 9/576 = 29/576.
    # Degrees of freedom: (38/576)^2 / ((9/576)^2/1 + (29/576)^2/2) = 1444/501.5 = 2.87936, t 3.26: 10.6 x 29/576 is
    # less than the seeds alone give with one degree of freedom, 161 x 9/576: the seeds are taken.
    # Effective size 15/64 / (1/64) = 15, of 12 answers: 12.
    rate = rate_over_seeds(np.array([[[1, 1], [1, 0], [0, 0]], [[1, 0], [0, 0], [0.5, 0]]])[:, :, None, :])
    assert (rate.mean, rate.n, rate.unit, rate.tasks) == (0.375, 2, "seeds+tasks", 3)
    assert (rate.low, rate.high) == wilson(3 / 8, (15 / 64) / 12, 1.0)


def test_seeds_that_agree_leave_the_interval_to_the_tasks() -> None:
    # Rows 1, 1/2, 0 and 1, 0, 1/2: both seeds 1/2, so their part is 0. Task means 1, 1/4, 1/4: variance 3/16, of the
    # mean 1/16; with the imaginary task (1/4 / 3): (2 x 1/16 + 1/12)/3 = 5/72, with 2 degrees of freedom.
    rate = rate_over_seeds(np.array([[[1, 1], [1, 0], [0, 0]], [[1, 1], [0, 0], [1, 0]]])[:, :, None, :])
    assert (rate.low, rate.high) == wilson(1 / 2, 5 / 72, 2.0)


def wilson(p: float, variance: float, df: float) -> tuple[Any, Any]:
    q = scipy_stats.t.ppf(0.975, df) ** 2 * variance / (p * (1 - p))
    middle, half = (p + q / 2) / (1 + q), math.sqrt(q * p * (1 - p) + q * q / 4) / (1 + q)
    return pytest.approx(middle - half), pytest.approx(middle + half)


def test_three_seeds_that_scatter_like_the_published_ones_have_a_wide_interval() -> None:
    # .4025, .145, .3475: a t interval on three seeds alone is 0.298 +- 0.337. One seed alone claims +- 0.05.
    generator = np.random.default_rng(0)
    outcomes = (generator.random((3, 300, 2, 2)) < np.array(SEEDS["grpo"])[:, None, None, None]).astype(float)
    rate = rate_over_seeds(outcomes)
    assert rate.high - rate.low > 0.45
    assert rate_over_tasks(outcomes[:1]).high - rate_over_tasks(outcomes[:1]).low < 0.11


def test_three_seeds_that_never_solve_anything_are_as_sure_as_their_tasks() -> None:
    rate = rate_over_seeds(np.zeros((3, 300, 2, 2)))
    assert rate.high == pytest.approx(rate_over_tasks(np.zeros((1, 300, 2, 2))).high)


def test_lengths_get_a_plain_t_interval_over_tasks_or_over_seeds_and_tasks() -> None:
    values = [12.0, 20.0, 16.0, 40.0]
    rate = amount([values])
    expected = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (rate.low, rate.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert (rate.mean, rate.n, rate.unit) == (22.0, 4, "tasks")
    several = amount([values, [14.0, 22.0, 18.0, 42.0]])
    assert (several.mean, several.n, several.unit) == (23.0, 2, "seeds+tasks")
    assert 0 < several.low < 23.0 < several.high
    with pytest.raises(BadInput, match="at least two"):
        amount([[12.0]])


# --- coverage, by simulation ------------------------------------------------------------------------------


def dependent_answers(generator: np.random.Generator, chance: np.ndarray) -> np.ndarray:
    """(runs, tasks) chances -> (runs, tasks, 2 chats, 2 seats); seat B copies seat A four times in five."""
    shape = (*chance.shape, 2)
    a, b = (generator.random(shape) < chance[..., None] for _ in range(2))
    return np.stack([a, np.where(generator.random(shape) < 0.8, a, b)], -1).astype(float)


@pytest.mark.parametrize(("tasks", "mean"), [(30, 0.3), (100, 0.9), (300, 0.03)])
def test_the_interval_over_tasks_covers_the_truth_19_times_in_20(tasks: int, mean: float) -> None:
    generator = np.random.default_rng(tasks)
    rates = [
        rate_over_tasks(dependent_answers(generator, generator.beta(mean, 1 - mean, (1, tasks))))
        for _ in range(600)
    ]
    # 600 repeats: standard error 0.009, so the bounds are about three of them around 0.95
    assert 0.92 <= np.mean([rate.low <= mean <= rate.high for rate in rates]) <= 0.98


@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.13), (3, 0.01), (5, 0.13), (10, 0.01)])
def test_the_interval_over_seeds_covers_the_truth_19_times_in_20(seeds: int, spread: float) -> None:
    generator, mean, tasks = np.random.default_rng(seeds), 0.4, 100
    covered = []
    for _ in range(500):
        hard = generator.normal(0, 0.15, (1, tasks)) + generator.normal(0, 0.05, (seeds, tasks))
        chance = np.clip(generator.normal(mean, spread, (seeds, 1)) + hard, 0, 1)
        rate = rate_over_seeds(dependent_answers(generator, chance))
        covered.append(rate.low <= mean <= rate.high)
    assert 0.92 <= np.mean(covered) <= 0.99


# --- comparisons ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("chat_vs_closed", "grpo", "grpo_closed"),
        ("ada_vs_grpo", "reinforce_ada", "grpo"),
        ("raft_vs_grpo", "raft", "grpo"),
        ("mixed_vs_grpo", "mixed", "grpo"),
    ],
)
def test_the_published_comparisons_over_seeds_come_out_as_computed_by_others(
    name: str, a: str, b: str
) -> None:
    expected = PUBLISHED["honest_deltas"][name]
    found = compare_arms(SEEDS[a], SEEDS[b], a, b)
    assert found.difference == pytest.approx(expected["mean_delta"], abs=6e-4)
    assert found.exact_p == pytest.approx(expected["exact_permutation_p"])
    assert found.exact_p_least == pytest.approx(0.1)
    assert found.verdict == "cannot tell"
    if "welch95" in expected:  # theirs is up to 0.01 wider than Welch's own, which scipy confirms below
        assert (found.low, found.high) == (pytest.approx(expected["welch95"], abs=0.01))


def test_the_published_headline_is_cannot_tell_from_three_seeds_and_says_so() -> None:
    found = compare_arms(SEEDS["grpo"], SEEDS["grpo_closed"], "chat", "closed")
    assert found.sentence == (
        "Cannot tell from three seeds whether chat differs from closed: +0.269, Welch [-0.07, +0.61] "
        "(3 seeds against 3; p 0.075, exact p 0.10, which so few seeds cannot take below 0.10)."
    )


def test_one_seed_never_supports_a_claim_about_an_arm() -> None:
    # The published +0.365 "across three seeds" was seed 17 minus seed 17.
    found = compare_arms(SEEDS["grpo"][:1], SEEDS["grpo_closed"][:1], "chat", "closed")
    assert found.difference == pytest.approx(PUBLISHED["published_deltas"]["chat_vs_closed"]["delta"])
    assert (found.verdict, found.low, found.high, found.p, found.exact_p) == (
        "one seed",
        None,
        None,
        None,
        None,
    )
    assert found.sentence.startswith(
        "One seed cannot carry a claim about an arm: chat minus closed is +0.365"
    )
    assert compare_arms(SEEDS["grpo"], [0.0]).verdict == "one seed"
    assert compare_arms([0.9], SEEDS["grpo_closed"]).verdict == "one seed"


@given(
    st.lists(st.integers(0, 1200), min_size=2, max_size=5),
    st.lists(st.integers(0, 1200), min_size=2, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_welch_agrees_with_scipy(a_right: list[int], b_right: list[int]) -> None:
    a, b = [right / 1200 for right in a_right], [right / 1200 for right in b_right]
    if len(set(a)) == 1 and len(set(b)) == 1:
        return
    found = compare_arms(a, b)
    with warnings.catch_warnings():  # scipy warns when one side's seeds are all equal; its numbers are right
        warnings.simplefilter("ignore", RuntimeWarning)
        theirs = scipy_stats.ttest_ind(a, b, equal_var=False)
        ends = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue, abs=1e-6)
    assert found.df == pytest.approx(theirs.df, rel=1e-6)
    assert found.low == pytest.approx(max(-1, ends.low), abs=1e-6)  # two shares lie at most 1 apart
    assert found.high == pytest.approx(min(1, ends.high), abs=1e-6)


def test_an_arm_that_learned_on_every_seed_helps_and_the_reverse_hurts() -> None:
    helps = compare_arms([0.88, 0.91, 0.90], [0.01, 0.005, 0.0], "open", "closed")
    hurts = compare_arms([0.01, 0.005, 0.0], [0.88, 0.91, 0.90], "closed", "open")
    assert (helps.verdict, hurts.verdict) == ("helps", "hurts")
    assert hurts.difference == -helps.difference
    assert helps.sentence.startswith("open scores better than closed: +0.892, Welch [+0.8")
    assert (
        "times in 100 where some seeds learn" in helps.sentence
    )  # three seeds: what Welch cannot promise is said


def test_seeds_without_any_spread_take_the_limit_of_the_test() -> None:
    assert compare_arms([1.0, 1.0], [0.0, 0.0]).verdict == "helps"
    assert compare_arms([0.5, 0.5], [0.5, 0.5]).verdict == "cannot tell"
    assert compare_arms([0.9, 0.8], [0.0, 0.0]).df == pytest.approx(1.0)  # only one side has a variance


def test_the_exact_p_counts_regroupings_and_knows_its_least_value() -> None:
    assert exact_permutation_p([3, 4, 5], [0, 1, 2]) == (pytest.approx(2 / 20), pytest.approx(2 / 20))
    assert exact_permutation_p([1, 2], [0, 3]) == (pytest.approx(1.0), pytest.approx(2 / 6))
    # 1 against 3: four regroupings, only the given one is as far apart as 9 - 1
    assert exact_permutation_p([9], [0, 1, 2]) == (pytest.approx(1 / 4), pytest.approx(1 / 4))
    assert exact_permutation_p(range(20), range(20)) == (None, pytest.approx(2 / math.comb(40, 20)))


@given(
    st.lists(st.integers(0, 40), min_size=3, max_size=4), st.lists(st.integers(0, 40), min_size=3, max_size=3)
)
@settings(max_examples=60, deadline=None)
def test_the_exact_p_is_never_below_its_least_and_blind_to_which_side_is_which(
    a: list[int], b: list[int]
) -> None:
    p, least = exact_permutation_p(a, b)
    assert p is not None and least - 1e-12 <= p <= 1
    assert exact_permutation_p(b, a)[0] == pytest.approx(p)


def test_holm_multiplies_by_how_many_are_left_and_never_goes_down() -> None:
    # sorted .01 x 3 = .03, .03 x 2 = .06, .04 x 1 = .04 -> .06 (never below the one before)
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_correction_can_take_a_verdict_back_and_both_values_are_shown() -> None:
    alone = compare_arms([0.50, 0.54, 0.58], [0.40, 0.44, 0.44], "x", "y")
    assert alone.verdict == "helps" and alone.p is not None and 0.01 < alone.p < 0.05
    one_seed = compare_arms([0.9], [0.1])
    weak = compare_arms([0.5, 0.6, 0.7], [0.5, 0.6, 0.71])
    together, untouched, _ = correct([alone, one_seed, weak])
    assert together.p_holm == pytest.approx(2 * alone.p)  # two tests: one seed tests nothing
    assert together.verdict == ("helps" if 2 * alone.p < 0.05 else "cannot tell")
    assert "after Holm's correction" in together.sentence
    assert untouched == one_seed


def test_an_arm_against_the_base_is_paired_on_tasks_and_needs_two_seeds() -> None:
    generator = np.random.default_rng(3)
    hard = generator.random((1, 200))
    base = (generator.random((1, 200)) < 0.2 * hard).astype(float)
    runs = (generator.random((3, 200)) < 0.9 - 0.2 * hard).astype(float)
    found = compare_with_fixed(runs, base, "trained", "untrained")
    assert (found.verdict, found.unit, found.n_a, found.n_b) == ("helps", "seeds+tasks", 3, None)
    assert "3 seeds against a fixed score" in found.sentence
    assert compare_with_fixed(runs[:1], base).verdict == "one seed"
    with pytest.raises(BadInput, match="the same tasks on both sides"):
        compare_with_fixed(runs, base[:, :100])


def test_two_checkpoints_are_compared_over_tasks_and_the_sentence_claims_no_more() -> None:
    generator = np.random.default_rng(4)
    a, b = (generator.random((1, 100)) for _ in range(2))
    found = compare_checkpoints(a, b, "seed 17 open", "seed 17 closed")
    theirs = scipy_stats.ttest_rel(a[0], b[0])
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.low == pytest.approx(theirs.confidence_interval().low)
    assert found.unit == "tasks"
    assert found.sentence.endswith("not of how they were trained.")
    assert compare_checkpoints(a[:, :1], b[:, :1]).verdict == "cannot tell"


def test_printed_intervals_of_differences_are_rounded_outwards() -> None:
    found = Comparison("a", "b", 0.2694, 3, 3, "seeds", low=0.0011, high=0.6001, df=2.0, p=0.04)
    assert found.interval == "+0.269, Welch [+0.00, +0.61]"


def test_a_comparison_as_json_holds_its_verdict_and_no_nan() -> None:
    for found in (compare_arms([0.9], [0.1]), compare_arms([0.9, 0.8], [0.1, 0.2])):
        text = json.dumps(found.as_json, allow_nan=False)
        assert json.loads(text)["verdict"] == found.verdict
