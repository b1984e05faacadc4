"""What a comparison entitles one to say: every verdict, their order, and what each sentence owns up to."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from cotalk.errors import BadInput
from cotalk.stats import (
    NoiseFloor,
    compare_arms,
    compare_checkpoints,
    compare_with_fixed,
    correct,
    equivalence_p,
    noise_between,
    noise_floor,
    with_margin,
    with_noise,
)
from cotalk.verdict import FALSE_ALARMS, VERDICTS, Comparison, Needed

TEN = [0.30, 0.31, 0.29, 0.30, 0.32, 0.28, 0.30, 0.31, 0.29, 0.30]


def found(**more: object) -> Comparison:
    """Ten seeds against ten: +0.01 with a standard error of 0.005."""
    start = Comparison(
        "new",
        "old",
        0.01,
        10,
        10,
        "seeds",
        -0.0005,
        0.0205,
        df=18.0,
        p=0.06,
        error=0.005,
        sd_a=0.0112,
        sd_b=0.0112,
    )
    return replace(start, **more)  # type: ignore[arg-type]


# --- the order --------------------------------------------------------------------------------------------


def test_the_first_verdict_that_fits_is_given() -> None:
    everything = dict(noise=0.02, p_holm=0.01, equivalence_p=0.001, margin=0.03)
    assert found(**everything, p=None).verdict == "one seed"
    assert found(**everything).verdict == "noise"
    assert found(**everything | {"noise": 0.009}).verdict == "helps"
    assert found(**everything | {"noise": 0.009}, difference=-0.01).verdict == "hurts"
    assert found(**everything | {"noise": 0.009, "p_holm": 0.05}).verdict == "no different"
    assert (
        found(**everything | {"noise": 0.009, "p_holm": 0.05, "equivalence_p": 0.05}).verdict == "cannot tell"
    )
    assert VERDICTS == ("one seed", "noise", "helps", "hurts", "no different", "cannot tell")


def test_no_different_needs_a_margin_that_was_named_and_met() -> None:
    shifted = [score + 0.004 for score in TEN]
    alone = compare_arms(shifted, TEN, "new", "old")
    assert alone.verdict == "cannot tell"  # a large p is no evidence of equality
    met = with_margin(alone, 0.03)
    assert met.verdict == "no different"
    assert met.sentence.startswith(
        "new and old differ by less than 0.03, the margin that was named: +0.004, Welch ["
    )
    assert "two one-sided tests p below 0.001" in met.sentence
    assert with_margin(alone, 0.005).verdict == "cannot tell"
    assert with_margin(met, 0.005).verdict == "cannot tell"  # another margin replaces the first


def test_the_two_one_sided_tests_agree_with_scipy() -> None:
    a, b, margin = [0.30, 0.34, 0.29, 0.31], [0.28, 0.30, 0.27], 0.05
    below = scipy_stats.ttest_ind(a, [x + margin for x in b], equal_var=False, alternative="less").pvalue
    above = scipy_stats.ttest_ind(a, [x - margin for x in b], equal_var=False, alternative="greater").pvalue
    assert equivalence_p(compare_arms(a, b), margin) == pytest.approx(max(below, above))


def test_a_margin_that_is_none_is_refused() -> None:
    for margin in (0.0, -0.03, 1.0, True, math.nan):
        with pytest.raises(BadInput, match=r"above 0 and below 1, such as 0\.03"):
            with_margin(found(), margin)
    assert with_margin(found(), None) == found()


def test_several_claims_of_equality_are_corrected_too() -> None:
    one, two = (with_margin(found(error=error), 0.03) for error in (0.0104, 0.011))
    # p 0.035 and 0.043, two of them: 0.070 each, so neither is claimed
    first, second = correct([one, two])
    assert one.equivalent and not first.equivalent
    assert first.equivalence_p_holm == pytest.approx(2 * (one.equivalence_p or 0))
    assert second.equivalence_p_holm == first.equivalence_p_holm


# --- the noise of an evaluation ---------------------------------------------------------------------------


def test_the_noise_floor_is_t_times_the_spread_of_the_bases_repeats() -> None:
    # 0.112, 0.121, 0.120: mean 0.117667, squared deviations 32.11 + 11.11 + 5.44 = 48.67 millionths;
    # half of it, and its root: 0.0049329.
    floor = noise_floor([0.112, 0.121, 0.12])
    assert floor is not None and (floor.df, floor.sd) == (2, pytest.approx(0.0049329, rel=1e-4))
    # t with 2 degrees of freedom is 4.30265: two evaluations differ by up to 4.30265 x 0.0049329 x sqrt(2) = 0.030016
    assert noise_between(floor, floor) == pytest.approx(0.030016, rel=1e-3)
    assert noise_between(floor, floor, 3, 3) == pytest.approx(0.030016 / math.sqrt(3), rel=1e-3)


def test_the_noise_of_two_models_adds_up_with_satterthwaites_degrees_of_freedom() -> None:
    # variances .0009 of one evaluation and .0003 of a mean of three: .0012; df .0012^2 / (.0009^2/2 + .0003^2/6) = 3.43
    wide, tight = NoiseFloor(0.03, 2), NoiseFloor(0.03, 6)
    df = 0.0012**2 / (0.0009**2 / 2 + 0.0003**2 / 6)
    assert noise_between(wide, tight, 1, 3) == pytest.approx(scipy_stats.t.ppf(0.975, df) * math.sqrt(0.0012))
    assert noise_between(wide, NoiseFloor(0.0, 2)) == pytest.approx(
        scipy_stats.t.ppf(0.975, 2) * 0.03
    )  # a steady partner
    assert noise_between(NoiseFloor(0.0, 2), NoiseFloor(0.0, 6)) == 0.0


def test_the_noise_floor_is_met_when_nothing_but_chance_differs() -> None:
    """Two models of the same score, one evaluated 3 times, the other 3 seeds x 2: 1 in 20 lies beyond the floor."""
    draw, beyond = np.random.default_rng(5), 0
    for _ in range(2000):
        one, other = draw.normal(0.1, 0.02, 3), draw.normal(0.1, 0.01, (3, 2))
        floors = noise_floor(list(one)), noise_floor(*map(list, other))
        assert floors[0] and floors[1]
        beyond += abs(one[0] - other[:, 0].mean()) > noise_between(*floors, 1, 3)
    assert beyond / 2000 == pytest.approx(0.05, abs=0.03)


def test_repeats_of_two_conditions_are_pooled_and_single_ones_say_nothing() -> None:
    # (0.1, 0.2) and (0.4, 0.4, 0.4): sums of squares 0.005 + 0 over 1 + 2 degrees of freedom
    pooled = noise_floor([0.1, 0.2], [0.4, 0.4, 0.4], [0.9])
    assert pooled is not None and (pooled.df, pooled.sd) == (3, pytest.approx(math.sqrt(0.005 / 3)))
    assert noise_floor([0.1], []) is noise_floor([0.1, 0.2], [0.3]) is None  # one difference is no spread
    assert with_noise(found(), None, None) == with_noise(found(), pooled, None) == found()


def test_a_difference_inside_the_noise_is_no_claim_in_either_direction() -> None:
    floor = noise_floor([0.112, 0.121, 0.12])
    small = with_noise(
        compare_arms([0.205, 0.4592, 0.2525], [0.4025, 0.145, 0.3475], "mixed", "GRPO"), floor, floor
    )
    assert small.verdict == "noise"
    assert small.sentence.startswith(
        "mixed minus GRPO is +0.007, inside the evaluation's own noise: evaluating unchanged models again moves as "
        "much (up to 0.018). The difference may still be anything in [-0.30, +0.32] (3 seeds against 3;"
    )
    # three lucky seeds that agree: Welch alone would claim it
    lucky = compare_arms([0.1131, 0.113, 0.1132], [0.1102, 0.1101, 0.11], "new", "old")
    assert lucky.verdict == "helps"
    assert with_noise(lucky, floor, floor).verdict == "noise"
    assert with_noise(compare_arms([0.4], [0.4]), floor, floor).verdict == "one seed"


def test_an_evaluation_that_always_gives_the_same_has_no_noise_to_hide_in() -> None:
    floor = noise_floor([0.0, 0.0, 0.0])
    assert with_noise(compare_arms([0.5, 0.5], [0.5, 0.5]), floor, floor).verdict == "cannot tell"


# --- how many seeds ---------------------------------------------------------------------------------------


def test_the_seeds_needed_are_those_that_find_the_margin_four_times_in_five() -> None:
    judged = with_margin(compare_arms([0.2, 0.3, 0.4], [0.1, 0.2, 0.3], "x", "y"), 0.1)
    # Both sides have sd 0.1 with 2 + 2 degrees of freedom. chi-square at .975 and .025 with 4: 11.1433 and 0.484419,
    # so the sd may be 0.1 x sqrt(4/11.1433) = 0.059914 or 0.1 x sqrt(4/0.484419) = 0.287356.
    assert judged.needed is not None and judged.needed.of == "seeds"
    for n, sd in ((judged.needed.fewest, 0.059914), (judged.needed.most, 0.287356)):
        assert n is not None
        assert power(n, sd, 0.1) >= 0.8 > power(n - 1, sd, 0.1)
    assert (judged.needed.fewest, judged.needed.most) == (7, 131)
    assert "To find a true difference of 0.1 4 times in 5 takes 7 to 140 seeds an arm" in judged.sentence


def power(n: int, sd: float, margin: float) -> float:
    shift, df = margin / (sd * math.sqrt(2 / n)), 2 * (n - 1)
    return float(scipy_stats.nct.sf(scipy_stats.t.ppf(0.975, df), df, shift))


def test_the_seeds_needed_do_not_depend_on_the_difference_that_was_seen() -> None:
    near = with_margin(compare_arms([0.2, 0.3, 0.4], [0.21, 0.31, 0.41]), 0.05)
    far = with_margin(compare_arms([0.2, 0.3, 0.4], [0.35, 0.45, 0.55]), 0.05)
    assert near.needed == far.needed is not None  # never post-hoc power


def test_without_a_margin_no_number_of_seeds_is_told() -> None:
    alone = compare_arms([0.2, 0.3, 0.4], [0.1, 0.2, 0.3])
    assert alone.needed is None and "takes" not in alone.sentence


def test_where_the_tasks_leave_too_much_open_no_number_of_seeds_is_enough() -> None:
    generator = np.random.default_rng(0)
    runs, base = (
        generator.random((n, 12)) for n in (3, 1)
    )  # twelve tasks: their part alone has an error of 0.1
    judged = with_margin(compare_with_fixed(runs, base, "trained", "base"), 0.03)
    assert judged.needed == Needed(None, None, "seeds")
    assert (
        "No number of seeds on these tasks would find a true difference of 0.03: more tasks"
        in judged.sentence
    )


def test_two_checkpoints_are_told_how_many_tasks_they_need() -> None:
    generator = np.random.default_rng(1)
    judged = with_margin(compare_checkpoints(*(generator.random((1, 50)) for _ in range(2))), 0.05)
    assert judged.needed is not None and judged.needed.of == "tasks"
    assert judged.needed.fewest is not None and judged.needed.most is not None
    assert 100 < judged.needed.fewest < judged.needed.most < 2000


# --- what a sentence owns up to ---------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_a_claim_from_few_seeds_says_how_often_such_a_claim_is_false(seeds: int) -> None:
    even, uneven = FALSE_ALARMS[seeds]
    claim = compare_arms([0.9 + 0.001 * i for i in range(seeds)], [0.1 + 0.001 * i for i in range(seeds)])
    assert claim.verdict == "helps"
    assert (
        f"up to {round(100 * uneven)} times in 100 where some seeds learn and others do not" in claim.sentence
    )
    assert f"up to {round(100 * even)} where they scatter evenly" in claim.sentence


def test_twenty_seeds_need_no_warning() -> None:
    assert compare_arms(np.linspace(0.8, 0.9, 20).tolist(), TEN * 2).sentence.count(".") < 12
    assert "times in 100" not in compare_arms(np.linspace(0.8, 0.9, 20).tolist(), TEN * 2).sentence


def test_a_comparison_comes_back_from_json_as_it_was() -> None:
    floor = noise_floor([0.1, 0.11, 0.1])
    whole = with_margin(with_noise(compare_arms([0.2, 0.3, 0.4], [0.1, 0.2, 0.3]), floor, floor), 0.05)
    row = json.loads(json.dumps(whole.as_json, allow_nan=False))
    assert Comparison.from_json(row) == whole
    assert Comparison.from_json(row, "open", "closed").sentence.count("open") >= 1
