"""A short version of bench/calibration.py: the promises of docs/statistics.md, and the ones it does not make."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cotalk import stats
from cotalk.verdict import FALSE_ALARMS

REPEATS = 200  # standard error of a coverage of 0.95: 0.0154


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    most = stats.MOST_REGROUPINGS
    path = Path(__file__).parents[1] / "bench" / "calibration.py"
    spec = importlib.util.spec_from_file_location("calibration", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["calibration"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    yield module
    stats.MOST_REGROUPINGS = most
    del sys.modules["calibration"]


@pytest.mark.parametrize(
    ("spread", "seeds", "tasks", "templates"),
    [
        ("steady .01", 3, 100, False),
        ("even .13", 5, 100, True),
        ("even .13", 10, 30, False),
        ("steady .01", 10, 100, True),
    ],
)
def test_intervals_hold_the_truth_and_equal_arms_are_rarely_told_apart(
    bench: ModuleType, spread: str, seeds: int, tasks: int, templates: bool
) -> None:
    found = bench.simulate(bench.Cell(spread, seeds, tasks, templates), REPEATS, np.random.default_rng(1))
    for name in ("task", "pair", "arm", "welch", "crossed", "fixed"):
        assert found[name] >= 0.90, (name, found)  # 0.95 less three standard errors
    assert found["crossed"] <= 0.99 and found["arm"] <= 0.995  # nor by being as wide as it likes
    assert max(found["alike"], found["steady"], found["margin"]) <= 0.10


def test_three_seeds_of_which_some_do_not_learn_deceive_as_often_as_the_sentence_says(
    bench: ModuleType,
) -> None:
    found = bench.simulate(bench.Cell(bench.BIMODAL, 3, 100, False), REPEATS, np.random.default_rng(2))
    assert found["steady"] == pytest.approx(FALSE_ALARMS[3][1], abs=0.1)
    assert found["arm"] < 0.8  # no interval from three such seeds is to be trusted, and the docs say so


def test_simulated_studies_have_the_mean_that_is_called_their_truth(bench: ModuleType) -> None:
    for spread in bench.SPREADS:
        cell = bench.Cell(spread, 10, 30, True)
        means = [study["a"].mean() for study in bench.studies(cell, 400, np.random.default_rng(3))]
        assert np.mean(means) == pytest.approx(cell.mean, abs=4 * np.std(means) / 20)


def test_the_answers_of_one_simulated_task_depend_on_each_other(bench: ModuleType) -> None:
    study = next(bench.studies(bench.Cell("steady .01", 3, 300, False), 1, np.random.default_rng(4)))
    a, b = study["a"][..., 0].ravel(), study["a"][..., 1].ravel()
    assert np.corrcoef(a, b)[0, 1] > 0.7  # seat B copies seat A four times in five
    first, other = study["a"][0].mean((1, 2)), study["a"][1].mean((1, 2))
    assert np.corrcoef(first, other)[0, 1] > 0.3  # seeds meet the same tasks


@pytest.mark.parametrize(
    ("spread", "seeds", "tasks"), [("even .13", 3, 100), ("two in three learn", 10, 100)]
)
def test_the_noise_floor_holds_evaluations_of_unchanged_models_and_lets_larger_differences_out(
    bench: ModuleType, spread: str, seeds: int, tasks: int
) -> None:
    found = bench.simulate_noise(bench.Cell(spread, seeds, tasks, False), REPEATS, np.random.default_rng(5))
    assert max(found["arms"], found["base"]) <= 0.10, found  # 0.05 and three standard errors
    assert found["arms"] + found["base"] > 0.0  # nor by being as wide as it likes
    assert found["miss .05"] < found["miss .02"]
    assert found["miss .05"] <= (0.05 if seeds == 10 else 0.5)
    assert found["left"] <= found["alarm"]  # the floor only takes alarms away


def test_evaluations_of_one_simulated_model_differ_only_by_chance(bench: ModuleType) -> None:
    """The same chances again: 400 differences average 0, and those of lowered models what they are lowered by."""
    played = bench.evaluations(bench.Cell("even .13", 3, 300, False), 400, np.random.default_rng(6))
    score = {name: arm[:, 0].mean((1, 2)) for name, arm in played.items()}  # (repeats,)
    for name, lower in (("again", 0.0), (".02", 0.02), (".05", 0.05)):
        difference = score["a"] - score[name]
        assert difference.mean() == pytest.approx(lower, abs=4 * difference.std() / 20)
    assert (score["a"] - score["again"]).std() < 0.3 * (score["a"] - score["b"]).std()
    alike = [
        np.corrcoef(played["untrained"][:, 0, 0].ravel(), played[n][:, 0, 0].ravel())[0, 1]
        for n in ("base", "a")
    ]
    assert alike[0] > alike[1] + 0.1  # the runs that the base plays are the base, task by task
