"""`cotalk compare`: a study's own comparisons, several studies, and somebody else's numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cotalk import cli
from cotalk.compare import compared, replayed, told
from cotalk.errors import BadInput
from cotalk.results import Score, build, write

ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "tests" / "data" / "published.json"
EXAMPLE = ROOT / "examples" / "published_scores.json"
TASKS = tuple(f"heldout-{i}" for i in range(30))


def score(
    condition: str, *levels: float, seeds: tuple[int | None, ...] = (17, 18, 19), key: int = 0
) -> Score:
    shape = (len(levels), len(TASKS), 2, 2)
    outcomes = (np.random.default_rng(key).random(shape) < np.array(levels)[:, None, None, None]).astype(
        float
    )
    return Score(
        condition=condition, seeds=seeds[: len(levels)], tasks=TASKS, seats=("A", "B"), outcomes=outcomes,
        strict=outcomes, lenient=outcomes, parsed=np.ones(shape),
    )  # fmt: skip


def again(once: Score, *more: float) -> Score:
    """The same score with more evaluations: each run's first, then as far from it as `more` says."""
    return replace(once, repeats=tuple((m, *(m + by for by in more)) for m in once.seed_means.values()))


def study(directory: Path, *levels: float, reward: str = "strict", key: int = 0) -> Path:
    """A study on disk: its arm open with these levels, its arm closed, and the untrained base, three times."""
    scores = [
        again(score("base_open", 0.2, seeds=(None,), key=key), 0.01, 0.005),
        score("trained_open", *levels, key=key + 1),
        score("trained_closed", 0.05, 0.03, 0.04, key=key + 2),
    ]
    document = build(
        directory.name, scores, compare=[("trained_open", "trained_closed"), ("trained_open", "base_open")],
        config={"run": {"reward": reward}}, about={"trained_open": {"label": "trained, open"}},
    )  # fmt: skip
    for each in scores:
        each.save(directory / "outcomes")
    write(directory / "results.json", document)
    return directory


# --- somebody else's numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [FIXTURE, EXAMPLE], ids=["fixture", "example"])
def test_the_published_numbers_are_replayed_as_what_they_carry(path: Path) -> None:
    chat, ada, raft, mixed = told_verdicts(replayed(path))
    assert chat.startswith(
        "cannot tell: Cannot tell from three seeds whether chat differs from closed: +0.269, Welch [-0.07, +0.61] "
        "(3 seeds against 3; p 0.075, 0.30 after Holm's correction, exact p 0.10, which so few seeds cannot take below "
        "0.10)"
    )
    assert "Ada differs from GRPO: +0.085, Welch [-0.25, +0.42]" in ada and "exact p 0.40" in ada
    assert "RAFT differs from GRPO: -0.047" in raft and "exact p 0.60" in raft
    assert mixed.startswith("noise: mixed") and "is +0.007" in mixed and "exact p 1.00" in mixed


def told_verdicts(rows: list[dict[str, Any]]) -> list[str]:
    return [line for line in told(rows) if not line.startswith("  ")]


def test_the_example_holds_the_scores_of_the_fixture() -> None:
    fixture, example = (json.loads(path.read_text(encoding="utf-8")) for path in (FIXTURE, EXAMPLE))
    assert {name: [*seeds.values()] for name, seeds in example["per_seed"].items()} == fixture["per_seed"]
    assert example["base_repeats"] == fixture["base_repeats"]


def test_a_margin_brings_the_seeds_that_would_settle_it() -> None:
    rows = replayed(EXAMPLE, margin=0.1)
    assert rows[0]["margin"] == 0.1 and rows[0]["verdict"] == "cannot tell"
    needed = rows[0]["needed"]
    assert 2 <= needed["fewest"] < needed["most"] and needed["of"] == "seeds"
    assert "To find a true difference of 0.1 4 times in 5 takes" in rows[0]["sentence"]


def test_every_seed_is_shown_under_its_sentence() -> None:
    lines = told(replayed(EXAMPLE))
    assert "  chat: 0.403, 0.145, 0.347" in lines
    assert "  closed: 0.037, 0.025, 0.024" in lines


def test_two_arms_need_no_list_and_seeds_need_no_names(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text(
        '{"per_seed": {"new": [0.9, 0.91, 0.92], "old": [0.1, 0.11, 0.12]}, "margin": 0.05, "source": "a paper"}'
    )
    (row,) = replayed(path)
    assert (row["a"], row["b"], row["verdict"], row["margin"]) == ("new", "old", "helps", 0.05)
    assert row["p_holm"] is None  # a single comparison needs no correction


WRONG = [
    ("[1]", "has no scores by seed"),
    ("{", "not a JSON file"),
    ('{"per_seed": {"a": [0.1], "b": [40.2]}}', "expected a score between 0 and 1 for each seed"),
    ('{"per_seed": {"a": [], "b": [0.1]}}', "expected a score between 0 and 1"),
    ('{"per_seed": {"a": [0.1], "b": [0.2], "c": [0.3]}}', 'has 3 arms and no "compare"'),
    (
        '{"per_seed": {"a": [0.1], "b": [0.2]}, "compare": [{"a": "a", "b": "d"}]}',
        "compare names 'd'; expected one of a, b",
    ),
    ('{"per_seed": {"a": [0.1], "b": [0.2]}, "compare": [{"a": "a"}]}', "compare holds"),
    ('{"per_seed": {"a": [0.1], "b": [0.2]}, "base_repeat": [0.1]}', "did you mean 'base_repeats'"),
    (
        '{"per_seed": {"a": [0.1, 0.2], "b": [0.2, 0.3]}, "margin": 3}',
        "expected a difference of scores above 0",
    ),
]


@pytest.mark.parametrize(("text", "fault"), WRONG, ids=[fault for _, fault in WRONG])
def test_a_replay_file_that_is_wrong_says_what_was_expected(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "scores.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=fault):
        replayed(path)


# --- studies and runs -------------------------------------------------------------------------------------


def test_one_study_tells_the_comparisons_that_it_lists(tmp_path: Path) -> None:
    path = study(tmp_path / "mine", 0.9, 0.85, 0.8)
    rows = compared([path])
    assert [(row["a"], row["b"]) for row in rows] == [
        ("trained_open", "trained_closed"),
        ("trained_open", "base_open"),
    ]
    assert rows == compared([path / "results.json"])
    assert rows[0]["noise"] > 0 and rows[0]["needed"] is None
    lines = told(rows)
    assert any(line.startswith("  trained, open: 0.") for line in lines)
    assert any(line.startswith("  for new tasks too: [+0.") for line in lines)


def test_a_margin_named_afterwards_judges_the_same_numbers_again(tmp_path: Path) -> None:
    path = study(tmp_path / "mine", 0.06, 0.2, 0.05)
    before, after = compared([path])[0], compared([path], margin=0.05)[0]
    assert before["verdict"] == after["verdict"] == "cannot tell"
    for key in ("difference", "low", "high", "p", "p_holm", "noise", "per_seed_a", "over_tasks"):
        assert before[key] == after[key]
    assert after["needed"]["of"] == "seeds" and "To find a true difference of 0.05" in after["sentence"]


def test_conditions_that_the_study_does_not_list_can_be_compared(tmp_path: Path) -> None:
    (row,) = compared([study(tmp_path / "mine", 0.9, 0.85, 0.8)], ["trained_closed", "base_open"])
    assert (row["a"], row["b"], row["unit"]) == ("trained closed", "base open", "seeds+tasks")
    with pytest.raises(BadInput, match="did you mean 'base_open'"):
        compared([tmp_path / "mine"], ["trained_closed", "base_opne"])


def test_of_several_studies_the_first_is_compared_with_each_other(tmp_path: Path) -> None:
    paths = [study(tmp_path / name, *levels, key=key) for key, (name, levels) in enumerate(STUDIES.items())]
    better, worse = compared(paths, margin=0.03)
    assert (better["a"], better["b"]) == ("new: trained, open", "old: trained, open")
    assert (better["verdict"], worse["verdict"]) == ("helps", "helps")
    assert better["p_holm"] is not None  # two comparisons are corrected together
    assert better["per_seed_a"].keys() == {"17", "18", "19"}
    (closed,) = compared(paths[:2], ["trained_closed"])
    assert closed["a"] == "new: trained closed" and closed["verdict"] != "helps"
    (crossed,) = compared(paths[:2], ["trained_open", "trained_closed"])
    assert crossed["b"] == "old: trained closed"


STUDIES = {"new": (0.9, 0.91, 0.92), "old": (0.3, 0.35, 0.32), "older": (0.1, 0.12, 0.11)}


def test_evaluations_by_themselves_are_compared_over_tasks(tmp_path: Path) -> None:
    for name, level in (("first", 0.9), ("second", 0.1)):
        score("evaluate", level, seeds=(None,), key=len(name)).save(tmp_path / name / "outcomes")
    (row,) = compared([tmp_path / "first", tmp_path / "second" / "outcomes" / "evaluate.npz"])
    assert (row["unit"], row["verdict"], row["n_a"]) == ("tasks", "helps", 30)
    assert row["sentence"].endswith("not of how they were trained.")


def test_evaluations_that_were_repeated_bring_their_own_noise(tmp_path: Path) -> None:
    """Three of each: sd .02 and .01, variances .0004 + .0001; Satterthwaite: .0005^2 / (.0004^2/2 + .0001^2/2)."""
    for name, by in (("first", 0.02), ("second", 0.01)):
        once = score("evaluate", 0.5, seeds=(None,), key=len(name))
        again(once, by, -by).save(tmp_path / name / "outcomes")
    paths = [tmp_path / "first", tmp_path / "second"]
    (row,) = compared(paths)
    df = 0.0005**2 / (0.0004**2 / 2 + 0.0001**2 / 2)
    assert row["noise"] == pytest.approx(stats.t.ppf(0.975, df) * 0.0005**0.5)
    score("evaluate", 0.5, seeds=(None,), key=9).save(tmp_path / "second" / "outcomes")
    (row,) = compared(paths)  # the second was played once: the other's floor, of both
    assert row["noise"] == pytest.approx(stats.t.ppf(0.975, 2) * 0.02 * 2**0.5)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    mine, lenient = (
        study(tmp_path / "mine", 0.9, 0.8, 0.7),
        study(tmp_path / "other", 0.9, 0.8, 0.7, reward="lenient"),
    )
    with pytest.raises(BadInput, match="cotalk compare runs/quickstart"):
        compared([])
    with pytest.raises(BadInput, match="different rewards"):
        compared([mine, lenient])
    with pytest.raises(BadInput, match="one condition for all of them, or one for each"):
        compared([mine, mine], ["trained_open", "trained_closed", "base_open"])
    with pytest.raises(BadInput, match="expected another one to compare it with"):
        compared([mine], ["trained_open"])
    other = replace(score("trained_open", 0.9, 0.8, 0.7), measures={"grade": 99})
    other.save(tmp_path / "graded" / "outcomes")
    with pytest.raises(BadInput, match=r"graded by version 1 of the grader and .* by version 99"):
        compared([mine, tmp_path / "graded"])


def test_the_command_prints_sentences_or_json_and_refuses_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", "--replay", str(EXAMPLE)]) == 0
    assert "whether chat differs from closed: +0.269, Welch [-0.07, +0.61]" in " ".join(
        capsys.readouterr().out.split()
    )
    path = study(tmp_path / "mine", 0.9, 0.85, 0.8)
    assert cli.main(["compare", str(path), "--margin", "0.03", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["margin"] == 0.03
    assert cli.main(["compare", str(path), "--replay", str(EXAMPLE)]) == 2
    assert cli.main(["compare"]) == 2
    assert "such as: cotalk compare runs/quickstart" in " ".join(capsys.readouterr().err.split())
