"""One evaluation by itself: what `cotalk evaluate` prints and returns."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cotalk.results import Score
from cotalk.single import evaluate_one
from toy import toy_base, toy_config, toy_grader, toy_tasks


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
