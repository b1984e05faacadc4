"""Scores as arrays, and results.json: built, written, read, checked, shown."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from cotalk.errors import BadInput
from cotalk.results import MEASURES, Score, build, check, compare_scores, read, schema, stale, table, write
from cotalk.stats import rate_over_seeds

TASKS = tuple(f"heldout-{i}" for i in range(40))


def score(
    condition: str, *levels: float, seeds: tuple[int | None, ...] | None = None, seats: str = "AB"
) -> Score:
    """A condition whose runs solve these shares of the tasks."""
    generator = np.random.default_rng(len(condition))
    shape = (len(levels), len(TASKS), 2, len(seats))
    outcomes = (generator.random(shape) < np.array(levels)[:, None, None, None]).astype(float)
    talk = {"sends": np.full(shape[:2], 0.75), "message_chars": generator.random(shape[:2]) * 40}
    talk["sends"][:, 0] = np.nan
    return Score(
        condition=condition,
        seeds=seeds or (17, 18, 19)[: len(levels)],
        tasks=TASKS,
        seats=tuple(seats),
        outcomes=outcomes,
        strict=outcomes,
        lenient=np.ones(shape),
        parsed=np.ones(shape),
        talk=talk,
    )


def base(condition: str, level: float, **more: Any) -> Score:
    return score(condition, level, seeds=(None,), **more)


def again(once: Score, *more: float) -> Score:
    """The same score with more evaluations: each run's first, then as far from it as `more` says."""
    return replace(once, repeats=tuple((m, *(m + by for by in more)) for m in once.seed_means.values()))


@pytest.fixture
def results() -> dict[str, Any]:
    """A small study with every kind of condition and both kinds of comparison."""
    trained = again(score("trained_open", 0.9, 0.85, 0.95), -0.01)
    scores = [
        again(base("base_open", 0.15), 0.01, -0.01),
        base("skyline", 0.95, seats="A"),
        trained,
        replace(score("trained_open", 0.95, 0.9, 0.95), decoding="greedy"),
        score("trained_closed", 0.02, 0.0, 0.04),
    ]
    return build(
        "toy",
        scores,
        compare=[("trained_open", "trained_closed"), ("trained_open", "base_open")],
        config={"steps": 50},
        cost={"seconds": 12.5},
        about={"trained_open": {"label": "trained, channel open", "arm": "open"}},
        created="2026-01-02T03:04:05+00:00",
    )


# --- scores -----------------------------------------------------------------------------------------------


def test_a_score_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    saved = replace(score("trained_open", 0.9, 0.5), clusters=tuple([None, "x"] * 20))
    saved = again(saved, 0.01, 0.02)
    path = saved.save(tmp_path / "outcomes")
    back = Score.load(path)
    assert path.name == "trained_open.npz"
    for name in ("condition", "seeds", "tasks", "seats", "repeats", "clusters", "decoding"):
        assert getattr(back, name) == getattr(saved, name)
    np.testing.assert_array_equal(back.outcomes, saved.outcomes)
    np.testing.assert_array_equal(back.talk["sends"], saved.talk["sends"])
    assert (back.rate, back.seat_rates) == (saved.rate, saved.seat_rates)


def test_the_file_is_plain_arrays_and_the_same_score_gives_the_same_bytes(tmp_path: Path) -> None:
    greedy = replace(base("base_open", 0.2), decoding="greedy")
    first, second = greedy.save(tmp_path / "a"), greedy.save(tmp_path / "b")
    assert first.name == "base_open.greedy.npz"
    assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in first.parent.iterdir()] == [first.name]  # no part is left behind
    with np.load(first, allow_pickle=False) as file:
        assert file["outcomes"].shape == (1, 40, 2, 2)
        assert file["seeds"].tolist() == [-1]  # never trained
        assert file["tasks"][0] == "heldout-0"
    assert Score.load(first).seeds == (None,)


def test_a_file_that_holds_no_score_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file"):
        Score.load(tmp_path / "nothing.npz")
    torn = tmp_path / "torn.npz"
    torn.write_bytes(base("base_open", 0.2).save(tmp_path).read_bytes()[:300])
    with pytest.raises(BadInput, match="no readable outcomes"):
        Score.load(torn)
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(BadInput, match="lacks lenient, outcomes"):
        Score.load(tmp_path / "other.npz")
    np.savez(tmp_path / "pickle.npz", x=np.array([{}], dtype=object))
    with pytest.raises(BadInput, match="no readable outcomes"):
        Score.load(tmp_path / "pickle.npz")


def test_a_score_whose_parts_do_not_fit_is_refused() -> None:
    good = score("trained_open", 0.9, 0.5)
    with pytest.raises(BadInput, match="strict has the shape"):
        replace(good, strict=np.ones((2, 40, 2, 1)))
    with pytest.raises(BadInput, match="talk sends has the shape"):
        replace(good, talk={"sends": np.ones((1, 40))})
    with pytest.raises(BadInput, match="expected each once"):
        replace(good, seeds=(17, 17))
    with pytest.raises(BadInput, match="None alone"):
        replace(good, seeds=(17, None))
    with pytest.raises(BadInput, match="names a task twice"):
        replace(good, tasks=TASKS[:-1] + TASKS[:1])


def test_one_run_is_rated_over_tasks_and_several_over_seeds() -> None:
    assert (base("base_open", 0.2).rate.n, base("base_open", 0.2).rate.unit) == (40, "tasks")
    assert score("trained_open", 0.9).rate.of == "seed 17: 40 tasks, 160 answers"
    several = score("trained_open", 0.9, 0.5)
    assert (several.rate.n, several.rate.unit, several.rate.tasks) == (2, "seeds+tasks", 40)
    assert list(several.seed_means) == ["17", "18"]
    assert list(base("base_open", 0.2).seed_means) == ["base"]
    np.testing.assert_allclose(several.seat_rates["B"].mean, several.outcomes[..., 1].mean())


def test_pass_at_k_counts_a_task_that_any_of_its_chats_solved() -> None:
    """Seat A solves one of task 0's two chats, seat B none: (1 + 0) / 2 there, and 0 of every other task."""
    outcomes = np.zeros((1, len(TASKS), 2, 2))
    outcomes[0, 0] = [[1.0, 0.5], [0.0, 0.5]]  # half a point of a grader of one's own is not solved
    one = replace(base("base_open", 0.2), outcomes=outcomes)
    assert one.pass_at_k.mean == pytest.approx(0.5 / 40)
    assert (one.pass_at_k.n, one.pass_at_k.unit) == (40, "tasks")
    several = score("trained_open", 0.9, 0.5)
    expected = np.maximum(several.outcomes[:, :, 0], several.outcomes[:, :, 1])
    assert several.pass_at_k == rate_over_seeds(expected[:, :, None])


def test_two_scores_are_compared_in_the_unit_that_they_allow() -> None:
    open_, closed = score("trained_open", 0.9, 0.8), score("trained_closed", 0.1, 0.0)
    assert compare_scores(open_, closed).unit == "seeds"
    assert compare_scores(open_, base("base_open", 0.1)).unit == "seeds+tasks"
    assert compare_scores(base("base_open", 0.9), base("base_closed", 0.1)).unit == "tasks"
    assert compare_scores(score("trained_open", 0.9), score("trained_closed", 0.1)).verdict == "one seed"
    with pytest.raises(BadInput, match="the trained one first"):
        compare_scores(base("base_open", 0.1), open_)
    with pytest.raises(BadInput, match="same tasks in the same order"):
        compare_scores(open_, replace(closed, tasks=TASKS[::-1]))


# --- building ---------------------------------------------------------------------------------------------


def test_the_document_has_the_shape_of_schema_1(results: dict[str, Any]) -> None:
    assert list(results) == [
        "schema",
        "study",
        "created",
        "versions",
        "measures",
        "config",
        "conditions",
        "comparisons",
        "cost",
    ]
    assert results["schema"] == 1
    assert {"python", "numpy", "scipy"} <= results["versions"].keys()
    trained = results["conditions"]["trained_open"]
    assert {"score", "per_seed", "per_seat", "talk", "greedy", "repeats", "label", "arm"} <= trained.keys()
    assert trained["score"].keys() == {"mean", "low", "high", "n", "unit"}
    assert (trained["score"]["n"], trained["score"]["unit"]) == (3, "seeds+tasks")
    assert list(trained["per_seed"]) == ["17", "18", "19"]
    assert trained["greedy"]["score"]["mean"] > 0.8
    untrained = results["conditions"]["base_open"]
    mean = untrained["score"]["mean"]
    assert untrained["repeats"] == pytest.approx([mean, mean + 0.01, mean - 0.01])
    assert untrained["repeats_per_seed"] == {"base": untrained["repeats"]}
    assert trained["repeats"] == pytest.approx([trained["score"]["mean"], trained["score"]["mean"] - 0.01])
    assert trained["repeats_per_seed"]["17"] == pytest.approx(
        [trained["per_seed"]["17"], trained["per_seed"]["17"] - 0.01]
    )
    assert results["conditions"]["trained_closed"]["repeats"] == pytest.approx(
        [results["conditions"]["trained_closed"]["score"]["mean"]]
    )
    assert results["conditions"]["base_open"]["greedy"] is None
    assert list(results["conditions"]["skyline"]["per_seat"]) == ["A"]


def test_pass_at_k_stands_beside_the_mean_of_every_pass_of_several_chats(results: dict[str, Any]) -> None:
    for condition in results["conditions"].values():
        (k,) = condition["pass_at"]
        assert k == "2" and condition["pass_at"]["2"]["mean"] > condition["score"]["mean"]
        assert condition["pass_at"]["2"].keys() == condition["score"].keys()
    assert results["conditions"]["trained_open"]["pass_at"]["2"]["unit"] == "seeds+tasks"
    once = base("base_open", 0.2)
    single = {n: getattr(once, n)[:, :, :1] for n in ("outcomes", "strict", "lenient", "parsed")}
    assert build("toy", [replace(once, **single)])["conditions"]["base_open"]["pass_at"] == {}


def test_evaluations_made_again_have_a_mean_with_an_interval_and_their_n(results: dict[str, Any]) -> None:
    """The base: m, m + .01, m - .01 has the mean m, an sd of .01 and df 2: m +- 4.30265 x .01 / sqrt(3)."""
    untrained = results["conditions"]["base_open"]
    found, half = untrained["repeated"], 4.30265 * 0.01 / 3**0.5
    assert (found["n"], found["unit"]) == (3, "evaluations")
    assert found["mean"] == pytest.approx(untrained["score"]["mean"])
    assert found["high"] - found["mean"] == pytest.approx(half, abs=1e-6)
    assert results["conditions"]["trained_open"]["repeated"]["n"] == 2  # of each of its three runs
    assert results["conditions"]["skyline"]["repeated"] is None  # played once


def test_talk_counts_only_the_tasks_that_a_measure_applies_to(results: dict[str, Any]) -> None:
    assert results["conditions"]["base_open"]["talk"]["sends"]["n"] == 39
    assert results["conditions"]["base_open"]["talk"]["message_chars"]["mean"] > 1


def test_comparisons_are_corrected_together_and_carry_every_seed(results: dict[str, Any]) -> None:
    arms, against_base = results["comparisons"]
    assert (arms["a"], arms["b"], arms["unit"], arms["verdict"]) == (
        "trained_open",
        "trained_closed",
        "seeds",
        "helps",
    )
    assert arms["sentence"].startswith("trained, channel open scores better than trained closed: +0.")
    assert list(arms["per_seed_a"]) == ["17", "18", "19"]
    assert arms["p_holm"] >= arms["p"]
    assert (against_base["unit"], against_base["checkpoints"]) == ("seeds+tasks", None)


def test_one_seed_an_arm_gives_no_claim_but_says_how_the_two_checkpoints_differ() -> None:
    built = build(
        "toy",
        [score("trained_open", 0.9), score("trained_closed", 0.1)],
        compare=[("trained_open", "trained_closed")],
    )
    found = built["comparisons"][0]
    assert (found["verdict"], found["p"], found["low"]) == ("one seed", None, None)
    assert found["checkpoints"]["unit"] == "tasks" and found["checkpoints"]["n"] == 40
    assert found["checkpoints"]["low"] > 0.5
    assert check(built) == []


def test_every_number_of_the_document_can_be_computed_again_from_its_outcomes(tmp_path: Path) -> None:
    scores = [
        again(base("base_open", 0.15), 0.01, -0.01),
        again(score("trained_open", 0.9, 0.85, 0.95), -0.01),
        replace(score("trained_open", 0.95, 0.9, 0.95), decoding="greedy"),
        score("trained_closed", 0.02, 0.0, 0.04),
    ]
    more: dict[str, Any] = {
        "compare": [("trained_open", "trained_closed"), ("trained_open", "base_open")],
        "margin": 0.03,
        "created": "2026-01-02T03:04:05+00:00",
    }
    written = build("toy", scores, **more)
    assert build("toy", [Score.load(each.save(tmp_path)) for each in scores], **more) == written


def test_what_cannot_be_built_is_refused() -> None:
    open_ = score("trained_open", 0.9)
    with pytest.raises(BadInput, match="expected one of trained_open"):
        build("toy", [open_], compare=[("trained_open", "trained_shut")])
    with pytest.raises(BadInput, match="two sampled scores were given for trained_open"):
        build("toy", [open_, open_])
    with pytest.raises(BadInput, match="without the sampled ones"):
        build("toy", [replace(open_, decoding="greedy")])


# --- writing, reading, checking ---------------------------------------------------------------------------


def test_results_come_back_as_they_were_written_whole_or_not_at_all(
    results: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "study" / "results.json"
    write(path, results)
    assert read(path) == read(path.parent) == json.loads(json.dumps(results))
    spoiled = copy.deepcopy(results)
    spoiled["conditions"]["base_open"]["score"]["mean"] = float("nan")
    with pytest.raises(BadInput, match="expected finite numbers"):
        write(path, spoiled)
    assert read(path)["conditions"]["base_open"]["score"] == results["conditions"]["base_open"]["score"]
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


def test_a_file_that_is_no_results_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(BadInput, match="there is no file"):
        read(path)
    path.write_text('{"schema": 1, "stu', encoding="utf-8")
    with pytest.raises(BadInput, match="is not JSON"):
        read(path)
    path.write_text('{"schema": 2}', encoding="utf-8")
    with pytest.raises(BadInput, match="schema is 2; expected 1"):
        read(path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(BadInput, match="expected an object"):
        read(path)


SPOILED = [
    ("study", None, "study is missing; expected a text"),
    ("created", "yesterday", "expected an ISO 8601 time"),
    ("config", {"lr": float("inf")}, "config.lr is inf"),
    ("cost.price_per_hour", -1, "the price of an hour of the device, 0 or more"),
    ("cost.seconds", "long", "cost.seconds is"),
    ("conditions", {}, "at least one condition"),
    ("comparisons", {}, "comparisons is an object; expected a list"),
    ("conditions.base_open", 3, "conditions.base_open is the number 3; expected an object"),
    ("conditions.base_open.score", 0.4, "conditions.base_open.score is the number 0.4"),
    ("conditions.base_open.score.high", 0.0, "expected low <= mean <= high"),
    ("conditions.base_open.score.high", 1.2, "expected a number between 0 and 1"),
    ("conditions.base_open.score.mean", None, "score.mean is missing; expected a number"),
    ("measures", {}, "expected the version of each measure's code"),
    ("conditions.base_open.score.n", 0, "at least 1"),
    ("conditions.base_open.score.unit", "seeds", "expected tasks"),
    ("conditions.trained_open.score.unit", "tasks", "expected seeds or seeds"),
    ("conditions.trained_open.score.n", 300, "expected 3, the number of seeds"),
    ("conditions.trained_open.per_seed.17", 0.1, "expected the same"),
    ("conditions.trained_open.per_seed.first", 0.9, 'expected seeds such as "17"'),
    ("conditions.trained_open.per_seed", {}, "expected a mean between 0 and 1 for each seed"),
    ("conditions.trained_open.talk.sends.mean", True, "expected a number"),
    ("conditions.trained_open.talk", None, "talk is missing"),
    ("conditions.trained_open.greedy.score.low", -0.1, "trained_open.greedy.score"),
    ("conditions.trained_open.greedy", 1, "null where it was not played"),
    ("conditions.base_open.repeats", [1.5], "repeats[0] is the number 1.5; expected a mean"),
    ("conditions.base_open.repeats", [0.1], "the means of repeats_per_seed"),
    ("conditions.trained_open.repeats_per_seed.17", [0.1, 0.2], "first, its score"),
    ("conditions.trained_open.repeats_per_seed.17", [0.1], "expected as many means for each of 17, 18, 19"),
    ("conditions.trained_open.repeats_per_seed.18", [1.5], "repeats_per_seed.18[0] is the number 1.5"),
    ("conditions.trained_open.repeats_per_seed.20", [0.9, 0.9], "as many means for each of 17, 18, 19"),
    ("conditions.trained_open.pass_at", {"4": "2 chats"}, "pass_at.4 is '2 chats'; expected a rate"),
    ("conditions.trained_open.pass_at.2.n", 40, "pass_at.2.n is 40; expected 3"),
    ("conditions.trained_open.size.chats", 3, "expected 3 alone, the chats a task in size"),
    ("conditions.base_open.repeated.mean", 0.5, "base_open.repeated is"),
    ("conditions.base_open.repeated.n", 2, "repeated.n is 2; expected 3"),
    ("conditions.base_open.repeated.unit", "tasks", "expected evaluations"),
    ("comparisons.0.a", "gone", "expected the name of a condition"),
    ("comparisons.0.verdict", "proves", "expected one of one seed"),
    ("comparisons.0.sentence", "", "the verdict in words"),
    ("comparisons.0.n_a", 1, "with one seed on a side"),
    ("comparisons.0.difference", None, "difference is missing"),
    ("comparisons.0.difference", 0.1, "that of its seeds' means"),
    ("comparisons.0.verdict", "no different", "which follows from its numbers"),
    ("comparisons.0.p", 0.9, "p_holm of trained_open against trained_closed is"),
    ("comparisons.0.p_holm", 0.9, "expected 'cannot tell', which follows"),
    ("comparisons.0.per_seed_a.17", 0.1, "expected that of conditions.trained_open"),
    ("comparisons.0.needed", {"fewest": 3}, "comparisons[0].needed"),
]


def spoil(results: dict[str, Any], where: str, value: object) -> None:
    *parents, last = where.split(".")
    target: Any = results
    for key in parents:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[last] = value


@pytest.mark.parametrize(("where", "value", "fault"), SPOILED, ids=[where for where, _, _ in SPOILED])
def test_the_check_finds_what_was_spoiled(
    results: dict[str, Any], where: str, value: object, fault: str
) -> None:
    assert check(results) == []
    spoil(results, where, value)
    assert any(fault in line for line in check(results)), check(results)


@pytest.mark.parametrize("depth", [500, 900, 980, 100_000])
def test_a_document_that_is_nested_without_end_is_refused(tmp_path: Path, depth: int) -> None:
    (tmp_path / "results.json").write_text('{"schema": 1, "x": ' + "[" * depth + "]" * depth + "}")
    with pytest.raises(BadInput, match=r"expected|not JSON"):
        read(tmp_path / "results.json")


def test_a_document_without_sizes_and_with_markup_in_its_names_is_shown(results: dict[str, Any]) -> None:
    results["study"] = "[/x] [bold"
    for condition in results["conditions"].values():
        condition["size"].pop("runs")
    assert check(results) == []
    assert "[/x] [bold: tasks solved" in shown(results)


def test_many_faults_are_told_as_ten_and_a_count(results: dict[str, Any], tmp_path: Path) -> None:
    for condition in results["conditions"].values():
        condition["talk"] = dict.fromkeys("abcd")
    with pytest.raises(BadInput, match="and 6 more"):
        write(tmp_path / "results.json", results)


# --- the schema, and the versions of measures -------------------------------------------------------------


def test_the_shipped_schema_is_itself_a_valid_schema_and_its_words_complete_expected() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    nodes = [node for node in _nodes(schema()) if {"type", "enum", "const"} & node.keys()]
    assert len(nodes) > 60
    assert [node for node in nodes if not node.get("description")] == [IF_PLAYED]


IF_PLAYED = {
    "type": "object",
    "minProperties": 1,
}  # the `if` of a greedy pass: it is never what a fault names


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema; `properties` holds names, not schemas."""
    if isinstance(value, dict):
        yield value
        for key, child in value.items():
            yield from _nodes(
                list(child.values()) if key in ("properties", "$defs", "patternProperties") else child
            )
    for child in value if isinstance(value, list) else ():
        yield from _nodes(child)


@pytest.mark.parametrize(("where", "value"), [row[:2] for row in SPOILED], ids=[row[0] for row in SPOILED])
def test_without_jsonschema_the_relations_are_still_checked_and_nothing_crashes(
    results: dict[str, Any], where: str, value: object, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)  # import_module then raises ModuleNotFoundError
    assert check(results) == []
    assert "jsonschema is missing (pip install jsonschema)" in caplog.text
    spoil(results, where, value)
    assert all(isinstance(line, str) for line in check(results))


def test_a_document_of_another_shape_is_refused_even_without_jsonschema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    assert any("pip install jsonschema says where" in line for line in check({"schema": 1}))


def test_lengths_may_exceed_1_and_shares_may_not(results: dict[str, Any]) -> None:
    measured = results["conditions"]["base_open"]["talk"]
    measured["answer_tokens/turn3"] = measured["message_chars/A"] = dict(
        measured["message_chars"], mean=30, high=40
    )
    assert check(results) == []
    measured["sends/A"] = measured["message_chars"]
    assert any("sends/A.high is the number" in line and "between 0 and 1" in line for line in check(results))


def test_a_value_of_an_earlier_measure_is_never_shown_as_fresh(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert results["measures"] == MEASURES and stale(results) == []
    old = replace(base("base_open", 0.2), measures=MEASURES | {"talk": 0})
    assert Score.load(old.save(tmp_path)).measures == MEASURES | {"talk": 0}
    with pytest.raises(BadInput, match=r"measured by .*talk 0, and this is .*the study's command does so"):
        build("toy", [old])
    monkeypatch.setitem(MEASURES, "talk", MEASURES["talk"] + 1)  # the code moves on; the file stays as it was
    (line,) = stale(results)
    assert line.startswith(
        f"talk was measured by version {MEASURES['talk'] - 1} of its code, and this is version"
    )
    assert "not up to date: talk was measured by version" in shown(results)


def test_scores_graded_by_different_versions_are_not_compared() -> None:
    old = replace(score("trained_closed", 0.1, 0.0), measures=MEASURES | {"grade": 0})
    with pytest.raises(BadInput, match="expected one"):
        compare_scores(score("trained_open", 0.9, 0.8), old)


def test_a_study_with_a_margin_and_repeats_of_its_base_judges_by_both() -> None:
    alike = [score("trained_open", 0.5, 0.52, 0.51), score("trained_closed", 0.52, 0.5, 0.51)]
    noisy = replace(base("base_open", 0.15), repeats=((0.10, 0.16, 0.13),))
    row = build("toy", [*alike, noisy], compare=[("trained_open", "trained_closed")], margin=0.1)[
        "comparisons"
    ][0]
    # sd of .10, .16, .13 is .03: the floor of three seeds against three is 4.30265 x .03 x sqrt(2/3) = 0.10539
    assert row["noise"] == pytest.approx(0.10539, abs=1e-5)
    assert (row["verdict"], row["margin"]) == ("noise", 0.1)
    assert row["needed"]["of"] == "seeds" and row["over_tasks"]["method"] == "t"
    alone = build("toy", alike, compare=[("trained_open", "trained_closed")])["comparisons"][0]
    assert (alone["noise"], alone["margin"], alone["needed"]) == (None, None, None)


def test_each_side_of_a_difference_brings_the_noise_of_its_own_models() -> None:
    """The base has an sd of .03 (df 2). Of the trained: squared deviations (0.02^2)/2 a seed, three seeds, df 3."""
    untrained = replace(base("base_open", 0.15), repeats=((0.10, 0.16, 0.13),))
    trained = again(score("trained_open", 0.9, 0.85, 0.95), -0.02)
    closed = score("trained_closed", 0.02, 0.0, 0.04)
    pairs = [
        ("trained_open", "base_open"),
        ("trained_open", "trained_closed"),
        ("trained_closed", "base_open"),
    ]
    found = {
        (row["a"], row["b"]): row["noise"]
        for row in build("toy", [untrained, trained, closed], compare=pairs)["comparisons"]
    }
    own, of_base = 0.02**2 / 2, 0.03**2
    # trained against the base: variances own/3 and of_base/1, their degrees of freedom by Satterthwaite's formula
    parts = own / 3, of_base
    df = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    assert found["trained_open", "base_open"] == pytest.approx(stats.t.ppf(0.975, df) * sum(parts) ** 0.5)
    # the closed runs were played once: the base's floor stands for them
    parts = own / 3, of_base / 3
    df = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    assert found["trained_open", "trained_closed"] == pytest.approx(
        stats.t.ppf(0.975, df) * sum(parts) ** 0.5
    )
    assert found["trained_closed", "base_open"] == pytest.approx(
        stats.t.ppf(0.975, 2) * 0.03 * (4 / 3) ** 0.5
    )


def test_repeats_that_are_not_of_every_run_are_refused() -> None:
    with pytest.raises(BadInput, match="expected as many for each of its 2 runs"):
        replace(score("trained_open", 0.9, 0.8), repeats=((0.9, 0.8),))
    with pytest.raises(BadInput, match="expected as many for each of its 2 runs"):
        replace(score("trained_open", 0.9, 0.8), repeats=((0.9, 0.8), (0.9,)))


# --- the terminal -----------------------------------------------------------------------------------------


def shown(results: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=140, color_system=None)
    console.print(table(results))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_shows_every_seed_and_every_rate_with_its_n_and_interval(results: dict[str, Any]) -> None:
    text = shown(results)
    for name, condition in results["conditions"].items():
        assert str(condition.get("label") or name) in text
        if list(condition["per_seed"]) != ["base"]:
            assert " ".join(f"{mean:.2f}" for mean in condition["per_seed"].values()) in text
        rate = condition["score"]
        assert f"{rate['mean']:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]" in text
    assert "3 x 40 x 4" in text  # seeds x tasks x answers
    assert "40 x 4" in text.replace("3 x 40 x 4", "")  # the untrained base: two chats, two seats
    assert "pass@2" in text and "3 evaluations" in text
    for rate in (each["pass_at"]["2"] for each in results["conditions"].values()):
        assert f"{rate['mean']:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]" in text
    assert "39 tasks" in text  # sends, where one task has no private number
    assert results["comparisons"][0]["sentence"][:60] in text


def test_a_label_in_brackets_is_shown_and_not_taken_for_markup(results: dict[str, Any]) -> None:
    results["conditions"]["base_open"]["label"] = "[bold]my base[/bold]"
    assert "[bold]my base[/bold]" in shown(results)
