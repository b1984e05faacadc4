"""A study shared out over two GPUs: every run and condition is there, as one GPU has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cotalk.jobs import run_study
from cotalk.study import study_from

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"two GPUs are needed, torch sees {torch.cuda.device_count()}"
)  # fmt: skip


def test_two_gpus_play_what_one_plays(tmp_path: Path) -> None:
    run = dict(
        base="tiny", tasks="puzzles", steps=2, problems=2, chats=4, train_tasks=16, dev_tasks=2, heldout_tasks=30,
        message_tokens=28, answer_tokens=36, dtype="float32",
    )  # fmt: skip
    evaluate = dict(chats=1, repeats=1, partners=True, cross=10, oracle=True, guests=["model:stranger"])
    table = {
        "seeds": [1, 2],
        "run": run,
        "arms": {"open": {}, "host": {"method": "host"}},
        "evaluate": evaluate,
    }
    study = study_from("two", table, None, None, "two.toml")
    one, two = (run_study(study, tmp_path / str(n), n) for n in (1, 2))
    assert (one["failed"], two["failed"], two["cost"]["workers"]) == ({}, {}, 2)
    assert list(one["conditions"]) == list(two["conditions"])
    for name, each in one["conditions"].items():  # two steps from the base: only sampling's ties can differ
        assert two["conditions"][name]["score"]["mean"] == pytest.approx(each["score"]["mean"], abs=0.1), name
    for path in sorted((tmp_path / "1" / "runs").glob("*/chats.jsonl")):
        ours, theirs = (
            [json.loads(line)["task"] for line in p.read_text().split("\n") if line]
            for p in (path, tmp_path / "2" / path.relative_to(tmp_path / "1"))
        )
        assert ours == theirs
    assert len(two["cross_play"]["oracle"]) == len(one["cross_play"]["oracle"])
