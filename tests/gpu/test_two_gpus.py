"""A study shared out over two GPUs: every run and condition is there, as one GPU has them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from cotalk.jobs import run_study
from cotalk.study import study_from
from cotalk.workers import in_workers

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"two GPUs are needed, torch sees {torch.cuda.device_count()}"
)  # fmt: skip


def which(out: Path, share: list[str], progress: object) -> dict[str, str]:
    """Writes down the GPU of its process, and waits for the other one."""
    (out / share[0]).write_text(
        str(torch.cuda.get_device_properties(torch.ones(1, device="cuda").device).uuid)
    )
    deadline = time.monotonic() + 120
    while len(list(out.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    return {}


def test_two_workers_have_two_gpus(tmp_path: Path) -> None:
    in_workers(which, (tmp_path,), [["one"], ["two"]], 2, True, lambda *_: None)
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 2


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
    for part in ("players", "arms", "oracle"):
        assert list(two["cross_play"][part]) == list(one["cross_play"][part])
    cells = [{(c["a"], c["b"]): c["score"]["mean"] for c in d["cross_play"]["cells"]} for d in (one, two)]
    assert cells[0].keys() == cells[1].keys() and len(cells[0]) > 30
    assert all(
        cells[1][pair] == pytest.approx(score, abs=0.3) for pair, score in cells[0].items()
    )  # of 10 chats
