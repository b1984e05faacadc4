"""One evaluation by itself: what `cotalk evaluate` prints and returns."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cotalk.errors import BadInput
from cotalk.results import Score
from cotalk.single import evaluate_one, train_one
from toy import toy_base, toy_config, toy_grader, toy_tasks


def test_the_progress_of_training_tells_reward_and_flat_share_and_never_the_loss_alone(
    tmp_path: Path,
) -> None:
    # on-policy the loss is about 0 whatever is learned: it would be taken for a broken run
    config = toy_config(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")), steps=1,
        grade=toy_grader(tmp_path / "grader.py"), device="cpu",
    )  # fmt: skip
    console = Console(file=StringIO(), width=160, color_system=None, force_terminal=True)
    train_one(config, tmp_path / "out", console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"step 1: reward [0-9.]+, flat [0-9.]+, cut [0-9.]+", text)
    assert "loss" not in text


def test_a_setting_that_nothing_reads_is_refused_before_the_run_begins(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="most_chats = 16 changes nothing with method = 'grpo'"):
        train_one(toy_config(most_chats=16), tmp_path / "out", Console(file=StringIO()))
    assert not (tmp_path / "out" / "config.toml").exists()


def test_an_evaluation_shows_pass_at_k_and_what_was_evaluated_again_beside_its_score(tmp_path: Path) -> None:
    config = toy_config(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")),
        grade=toy_grader(tmp_path / "grader.py"), device="cpu",
    )  # fmt: skip
    console = Console(file=StringIO(), width=140, color_system=None)
    found = evaluate_one(config, None, tmp_path / "out", console, chats=2, repeats=3, greedy=False)
    score = Score.load(tmp_path / "out" / "outcomes" / "evaluate.npz")
    assert found["pass@2"] == score.pass_at_k.as_json
    assert found["pass@2"]["mean"] == pytest.approx((score.outcomes >= 1).any(2).mean())
    assert (found["repeated"]["n"], found["repeated"]["unit"]) == (3, "evaluations")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "pass@2" in text and "(3 evaluations)" in text
    once = evaluate_one(config, None, tmp_path / "greedy", console, chats=2, repeats=3, greedy=True)
    assert not {"pass@1", "pass@2", "repeated"} & once.keys()  # one chat a task, one evaluation
