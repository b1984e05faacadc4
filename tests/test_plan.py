"""What a plan says before anything runs, worked out by hand, and `--plan` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import small_model
from cotalk import plan as plan_module
from cotalk.errors import BadInput
from cotalk.lora import Stack
from cotalk.plan import plan, shape_of
from cotalk.study import Study, read_study, study_from

RUN = dict(
    steps=10, problems=2, chats=3, train_tasks=8, dev_tasks=4, heldout_tasks=20, order="ABAB", message_tokens=10,
    answer_tokens=30, dev_every=4, rank=4, alpha=8.0,
)  # fmt: skip


def made(**changes: Any) -> Study:
    table = {"seeds": [1, 2, 3], "run": RUN, "arms": {"open": {}, "closed": {"channel": "closed"}}}
    return study_from("toy", table | changes, None, None, "toy.toml")


def saved(path: Path) -> str:
    small_model().save_pretrained(path)
    return str(path)


def test_runs_rows_and_tokens_worked_out() -> None:
    """A chat is at most 10 + 10 + 30 + 30 = 80 tokens. 6 runs x 10 steps x 2 x 3 chats x 80 = 28,800.

    Dev: at 0, 4, 8 and 10, so 4 looks x 4 tasks x 80 x 6 runs                                 = 7,680
    An arm's run on 20 tasks: own channel 3 times, two partner conditions (2 chats each), one greedy:
        20 x (2 x 3 + 2 + 2 + 1) x 80 x 6 runs                                                 = 105,600
    The base: open 3 times, closed (2 chats each), both greedy: 20 x (2 x 4 + 2) x 80          = 16,000
    Skyline: one seat, 20 x 2 x 30 = 1,200; floor: two halves, 20 x 2 x 2 x 30 = 2,400          = 3,600
    """
    found = plan(made(), device="cpu", workers=2)
    assert (found.runs, found.steps, found.rows) == (6, (10,), 6 * 2 * 3)
    assert found.sampled_tokens == 28_800
    assert found.evaluation_tokens == 7_680 + 105_600 + 16_000 + 3_600


def test_every_arm_counts_with_its_own_settings() -> None:
    """One arm with twice the steps and twice the chats: 3 runs x (10 x 6 + 20 x 12) x 80."""
    found = plan(made(arms={"open": {}, "long": {"steps": 20, "chats": 6}}), device="cpu")
    assert found.steps == (10, 20) and found.rows == 3 * 6 + 3 * 12
    assert found.sampled_tokens == 3 * (10 * 6 + 20 * 12) * 80
    assert "10 or 20 steps" in dict(found.lines())["runs"]


def test_what_is_not_evaluated_costs_nothing() -> None:
    once = {"chats": 1, "repeats": 1, "trained_repeats": 1, "greedy": False, "partners": False}
    less = made(evaluate=once, run=RUN | {"dev_tasks": 0})
    found = plan(less, device="cpu")
    # 6 runs once, base open and closed once, skyline, floor
    assert found.evaluation_tokens == 20 * 80 * 6 + 20 * 80 * 2 + 20 * 30 + 2 * 20 * 30


def test_a_shape_counts_the_parameters_of_the_model_and_of_an_adapter(tmp_path: Path) -> None:
    shape = shape_of(saved(tmp_path))
    model = small_model()
    norms = sum(p.numel() for n, p in model.named_parameters() if "norm" in n)
    assert shape is not None and shape.parameters == sum(p.numel() for p in model.parameters()) - norms
    stack = Stack(model, 1, rank=4, alpha=8.0)
    assert shape.adapter(4) == sum(p.numel() for p in stack.parameters(1).values())


def test_the_published_base_has_the_measured_size() -> None:
    shape = shape_of("Qwen/Qwen2.5-1.5B-Instruct")
    assert shape is not None
    assert shape.parameters == pytest.approx(1.54e9, rel=0.01)
    assert shape.adapter(32) == pytest.approx(36.9e6, rel=0.01)  # MEASURED: 36.9M parameters an adapter


def test_memory_is_that_of_all_workers_together_on_a_cpu_and_of_one_stack_on_a_gpu(tmp_path: Path) -> None:
    run = RUN | {"base": saved(tmp_path)}
    one, two = (plan(made(run=run), device="cpu", workers=n).memory for n in (1, 2))
    assert two == {name: 2 * size for name, size in one.items()}
    adapter = shape_of(run["base"]).adapter(4)
    assert one["adapters and optimisers"] == adapter * 16  # weights, gradients, two moments: 4 x 4 bytes
    gpu = plan(made(run=run), device="cuda").memory
    assert gpu["adapters and optimisers"] == 6 * adapter * 16
    split = plan(made(run=run | {"adapters": "per_seat"}), device="cuda").memory
    assert split["adapters and optimisers"] == 12 * adapter * 16


def test_more_work_takes_longer_and_more_workers_take_less(tmp_path: Path) -> None:
    run = RUN | {"base": saved(tmp_path)}

    def minutes(workers: int = 1, **changes: Any) -> float:
        found = plan(made(run=run | changes), device="cpu", workers=workers).minutes
        assert found is not None and found > 0
        return found

    assert minutes(steps=20) > minutes() > minutes(steps=5)
    assert minutes(workers=2) == pytest.approx(minutes() / 2)
    gpu = plan(made(run=run), 4.0, device="cuda")
    assert (
        gpu.minutes is not None
        and f"{gpu.minutes / 60 * 4:.2f} at 4.00 an hour" in dict(gpu.lines())["expected"]
    )


def test_a_base_that_is_not_here_is_planned_without_memory_and_time() -> None:
    found = plan(made(run=RUN | {"base": "some/unknown-model"}), device="cuda")
    assert found.memory == {} and found.minutes is None
    assert "unknown" in dict(found.lines())["memory"]


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_that_is_none_is_refused(price: float) -> None:
    with pytest.raises(BadInput, match="--price"):
        plan(made(), price)


def test_the_published_study_is_planned_for_a_gpu_with_its_settings() -> None:
    """8 problems x 4 chats x 80 steps x 6 runs x (160 + 160 + 384 + 384) tokens."""
    found = plan(read_study("talk-to-solve"), 4.0)
    assert found.device == "cuda" and found.runs == 6 and found.steps == (80,)
    assert found.sampled_tokens == 8 * 4 * 80 * 6 * 1088
    assert 20 < sum(found.memory.values()) / 2**30 < 141  # it fits on the card that it is planned for
    assert found.minutes is not None and 10 < found.minutes < 600


def test_plan_prints_and_starts_nothing(tmp_path: Path) -> None:
    toml = tmp_path / "toy.toml"
    run = "\n".join(f"{k} = {json.dumps(v)}" for k, v in (RUN | {"base": saved(tmp_path / "base")}).items())
    toml.write_text(f"seeds = [1, 2]\n[run]\n{run}\n[arms.open]\n")
    source = str(Path(plan_module.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "cotalk.cli", "study", str(toml), "--plan", "--price", "3", "--set", "steps=7"],
        env=os.environ | {"PYTHONPATH": source, "COLUMNS": "200"}, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for part in (
        "plan of toy",
        "2 (arms x seeds), 7 steps each",
        "6,720 in training",
        "memory",
        "at 3.00 an hour",
    ):
        assert part in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "toy.toml"]
