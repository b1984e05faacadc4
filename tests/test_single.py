"""One evaluation by itself: what `cotalk evaluate` prints and returns."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotalk.cli import _settings_before, main
from cotalk.config import Config
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


def test_another_evaluation_in_the_same_place_sets_the_first_aside(tmp_path: Path) -> None:
    config = toy_config(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")),
        grade=toy_grader(tmp_path / "grader.py"), device="cpu",
    )  # fmt: skip
    console = Console(file=StringIO(), width=140, color_system=None)
    out = tmp_path / "out"
    evaluate_one(config, None, out, console, chats=1, repeats=1, greedy=False)
    first = (out / "scores" / "evaluate" / "base.jsonl").read_bytes()
    assert "set-aside" not in console.file.getvalue()  # type: ignore[attr-defined]
    evaluate_one(replace(config, seed=3), None, out, console, chats=2, repeats=1, greedy=False)
    assert (out / "set-aside" / "1" / "scores" / "evaluate" / "base.jsonl").read_bytes() == first
    assert (out / "scores" / "evaluate" / "base.jsonl").read_bytes() != first
    assert "set-aside/1" in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_evaluation_tells_other_settings_than_its_runs_and_tasks_that_were_trained_on(
    tmp_path: Path,
) -> None:
    config = toy_config(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")), steps=1,
        grade=toy_grader(tmp_path / "grader.py"), device="cpu", dev_tasks=1,
    )  # fmt: skip
    run = tmp_path / "run"
    train_one(config, run, Console(file=StringIO()))

    def played(changed: Config) -> tuple[dict[str, Any], str]:
        console = Console(file=StringIO(), width=300, color_system=None)
        found = evaluate_one(changed, run, tmp_path / "out", console, chats=1, repeats=1, greedy=False)
        return found, console.file.getvalue()  # type: ignore[attr-defined]

    found, text = played(config)
    assert "trained_on" not in found and "not as in" not in text
    found, text = played(replace(config, temperature=0.5))
    assert "temperature was 1.0 and is now 0.5" in text and "trained_on" not in found
    found, text = played(
        replace(config, heldout_tasks=8)
    )  # from the start of one file: five of them were for training
    assert found["trained_on"] == 5
    assert "heldout_tasks was 3 and is now 8" in text and "5 of these 8 tasks were trained on" in text


@pytest.mark.parametrize("more", [["--chats-per-task", "4"], ["--repeats", "2"]])
def test_greedy_chats_are_all_the_same_so_that_more_of_them_are_refused(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--greedy", *more]) == 2
    assert "greedy chats of a task are all the same" in " ".join(capsys.readouterr().err.split())


def test_a_base_brings_the_budgets_that_it_was_made_for(tmp_path: Path) -> None:
    assert (_settings_before(["train"]).message_tokens, _settings_before(["train"]).answer_tokens) == (28, 36)
    assert _settings_before(["evaluate", "--base=stranger"]).steps == 0
    assert _settings_before(["evaluate", "--base=stranger"]).answer_tokens == 36
    assert _settings_before(["train", "--base", "Qwen/Qwen2.5-1.5B-Instruct"]) == Config()
    base = toy_base(tmp_path / "base")
    (base / "cotalk_base.json").write_text('{"budgets": {"message_tokens": "many"}}')
    with pytest.raises(BadInput, match="expected whole numbers"):
        _settings_before(["train", "--base", str(base)])
