"""results.json computed again from its outcomes: a sound one comes out as it stands, a changed number does not."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cotalk.errors import BadInput
from cotalk.recompute import WITHIN, recompute
from cotalk.results import Score, build, check
from test_results import again, base, score, spoil

COMPARE = [("trained_open", "trained_closed"), ("trained_open", "base_open")]


def a_study() -> list[Score]:
    greedy = replace(score("trained_open", 0.9, 0.8, 0.9), decoding="greedy")
    trained = [again(score("trained_open", 0.7, 0.5, 0.9), -0.01), score("trained_closed", 0.3, 0.2, 0.5)]
    return [again(base("base_open", 0.2), 0.01, -0.01), base("skyline", 0.9, seats="A"), *trained, greedy]


@pytest.fixture
def scores(tmp_path: Path) -> list[Score]:
    """Read back from their files, as a check reads them."""
    return [Score.load(each.save(tmp_path)) for each in a_study()]


@pytest.fixture
def document() -> dict[str, Any]:
    """Through JSON, as a check reads it."""
    return dict(json.loads(json.dumps(build("toy", a_study(), compare=COMPARE, margin=0.05))))


def test_a_sound_document_comes_out_as_it_stands(document: dict[str, Any], scores: list[Score]) -> None:
    found = recompute(document, scores)
    assert (found.faults, found.wording, found.left) == ((), (), ())
    # four conditions and a greedy pass: score, pass@2, seats (2, or 1 of the skyline), sends and message_chars; two
    # were evaluated again; two comparisons, each with its interval and the one for new tasks
    assert (found.intervals, found.of) == ((5 * 4 + 4 * 2 + 1) + 2 + 4, 35)
    assert found.comparisons == 2 and found.numbers > 5 * found.intervals


SPOILED = [
    ("conditions.trained_open.score.low", 0.01),
    ("conditions.trained_open.greedy.score.high", 0.001),
    ("conditions.trained_open.per_seat.B.low", 1e-8),
    ("conditions.trained_open.pass_at.2.mean", -0.01),
    ("conditions.base_open.repeated.high", 0.01),
    ("conditions.base_open.talk.message_chars.high", 1.0),
    ("conditions.skyline.talk.sends.n", -1),
    ("conditions.trained_closed.graded.strict", 0.02),
    ("comparisons.0.low", 0.02),
    ("comparisons.0.p", 1e-7),
    ("comparisons.0.p_holm", 1e-7),
    ("comparisons.0.exact_p", 0.1),
    ("comparisons.0.df", 1),
    ("comparisons.0.over_tasks.low", 0.01),
    ("comparisons.0.noise", -0.001),
    ("comparisons.0.equivalence_p", 0.001),
    ("comparisons.0.needed.fewest", 1),
    ("comparisons.1.error", 0.001),
    ("comparisons.1.task_error", 0.001),
    ("comparisons.1.over_tasks.high", 0.01),
]


def value_at(document: Any, where: str) -> Any:
    for key in where.split("."):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


@pytest.mark.parametrize(("where", "by"), SPOILED, ids=[where for where, _ in SPOILED])
def test_a_number_that_was_changed_is_found_and_named(
    document: dict[str, Any], scores: list[Score], where: str, by: float
) -> None:
    assert abs(by) > WITHIN
    before = value_at(document, where)
    spoil(document, where, before + by)
    (fault,) = recompute(document, scores).faults
    assert fault == f"{where} is {before + by}, and comes out as {before}"


def test_many_spoiled_numbers_pass_the_schema_and_are_found_only_here(document: dict[str, Any]) -> None:
    """Else there were nothing new in it: of these the relations between values say nothing."""
    unseen = 0
    for where, by in SPOILED:
        spoiled = copy.deepcopy(document)
        spoil(spoiled, where, value_at(document, where) + by)
        unseen += not check(spoiled)
    assert unseen >= 15


def test_a_number_that_was_taken_out_of_a_comparison_is_found(
    document: dict[str, Any], scores: list[Score]
) -> None:
    noise = document["comparisons"][0].pop("noise")
    assert recompute(document, scores).faults == (f"comparisons.0.noise is None, and comes out as {noise}",)
    document["comparisons"][0]["noise"] = None
    assert len(recompute(document, scores).faults) == 1


def test_outcomes_that_were_changed_are_found_where_they_count(
    document: dict[str, Any], scores: list[Score]
) -> None:
    turned = scores[0].outcomes.copy()
    turned[0, 0] = 1 - turned[0, 0]
    found = recompute(document, [replace(scores[0], outcomes=turned), *scores[1:]]).faults
    for where in (
        "conditions.base_open.score.mean",
        "conditions.base_open.per_seat.A.low",
        "comparisons.1.p",
    ):
        assert any(fault.startswith(f"{where} is") for fault in found), where
    assert not [fault for fault in found if fault.startswith(("conditions.trained", "comparisons.0.p is"))]
    assert any(
        fault.startswith("comparisons.0.p_holm is") for fault in found
    )  # corrected together with the other


def test_without_outcomes_the_tests_of_arms_come_from_their_seeds(document: dict[str, Any]) -> None:
    found = recompute(document, [])
    assert (found.intervals, found.comparisons, found.faults) == (1, 1, ())
    assert (
        len(found.left) == 4 + 1 + 2
    )  # four conditions, a greedy pass, an interval for new tasks, the base's
    p, holm = document["comparisons"][0]["p"], document["comparisons"][0]["p_holm"]
    for key, value in {"p": p * 1.01, "p_holm": holm * 1.01, "exact_p": 0.9, "high": 1.0}.items():
        spoiled = copy.deepcopy(document)
        spoiled["comparisons"][0][key] = value
        (fault,) = recompute(spoiled, []).faults
        assert fault.startswith(f"comparisons.0.{key} is {value}, and comes out as")


def test_what_no_outcomes_give_is_counted_and_named(document: dict[str, Any], scores: list[Score]) -> None:
    rate = dict(document["conditions"]["base_open"]["score"])
    document["conditions"]["trained_open"]["talk"]["magic"] = rate
    document["causal"] = {"trained_open": [{"plain": rate, "change": rate}]}
    found = recompute(document, scores[:-1])  # nor the greedy pass
    assert (found.intervals, found.of) == (35 - 6, 35 + 3)
    assert set(found.left) == {
        "conditions.trained_open",
        "conditions.trained_open.greedy",
        "causal.trained_open",
    }


def test_a_sentence_that_its_numbers_do_not_say_is_pointed_at(
    document: dict[str, Any], scores: list[Score]
) -> None:
    document["comparisons"][1]["sentence"] = "Talking always helps."
    found = recompute(document, scores)
    assert (found.wording, found.faults) == (("trained_open against base_open",), ())


def test_a_document_without_the_newer_keys_is_computed_again_as_far_as_it_goes(
    document: dict[str, Any], scores: list[Score]
) -> None:
    for condition in document["conditions"].values():
        for key in ("pass_at", "repeated", "repeats_per_seed"):
            del condition[key]
    found = recompute(document, scores)
    assert (
        found.faults == () and found.intervals == found.of == 35 - 5 - 2 + 1
    )  # the greedy pass keeps its pass@2


def test_the_resampled_ends_of_ten_seeds_come_out_too() -> None:
    seeds = tuple(range(10))
    levels = np.linspace(0.3, 0.8, 10)
    arms = [score("trained_open", *levels, seeds=seeds), score("trained_closed", *(levels / 2), seeds=seeds)]
    document = build("toy", arms, compare=COMPARE[:1])
    assert document["comparisons"][0]["over_tasks"]["method"] == "bootstrap"
    assert recompute(document, arms).faults == ()
    document["conditions"]["trained_open"]["score"]["low"] += 1e-4
    document["conditions"]["trained_open"]["score"]["mean"] += 1e-8
    assert len(recompute(document, arms).faults) == 2


def test_outcomes_on_other_tasks_are_refused(document: dict[str, Any], scores: list[Score]) -> None:
    other = [
        replace(each, tasks=each.tasks[::-1]) if each.condition == "base_open" else each for each in scores
    ]
    with pytest.raises(BadInput, match="same tasks in the same order"):
        recompute(document, other)
