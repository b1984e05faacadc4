"""Toy runs and studies: the two-layer base, sums as tasks, a grader that pays what a text happens to hold.

The base is random, so that it solves nothing; a grader of our own spreads the rewards, so that groups are not flat
and every step trains. Shared by the tests of runs, training, studies and the invariants.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from conftest import deals, small_base
from cotalk.chat import Reply, View
from cotalk.config import Config
from cotalk.engines import Engine, Table
from cotalk.engines.hf import HfEngine
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.methods import method
from cotalk.run import RunDirectory
from cotalk.stack import drive
from cotalk.train import Run, train

FILES = ("metrics.jsonl", "chats.jsonl", "dev.jsonl")
GRADER = """
def pay(text, gold):
    return (sum(text.encode("utf-8", "surrogatepass")) % 5) / 4
"""
SETTINGS: dict[str, Any] = dict(
    steps=4, problems=2, chats=3, train_tasks=8, dev_tasks=2, heldout_tasks=3, message_tokens=5, answer_tokens=7,
    temperature=1.0, rank=4, alpha=8.0, lr=0.02, dev_every=2, checkpoint_every=2,
)  # fmt: skip


def pay(text: str, gold: str) -> float:
    """0, 0.25, ... 1 by the bytes of a text."""
    return (sum(text.encode("utf-8", "surrogatepass")) % 5) / 4


def toy_config(**settings: Any) -> Config:
    return Config(**(SETTINGS | settings))


def toy_run(
    path: Path, config: Config, stack: Stack | None = None, first: int = 1, name: str = "toy", **shape: int
) -> Run:
    """A run on a stack (its own if none is given) from adapter `first` on. shape: of another base."""
    base = small_base(**shape)
    seats = config.rules.seats
    own = {seat: first + (i if config.adapters == "per_seat" else 0) for i, seat in enumerate(seats)}
    stack = stack or Stack(base.model, max(own.values()), config.rank, config.alpha, base_sha256=base.sha256)
    tasks = deals(config.train_tasks + config.dev_tasks)
    return Run(
        name, config, tasks[: config.train_tasks], tasks[config.train_tasks :], base.form,
        Learner(stack, own, config), method(config), RunDirectory(path), pay,
    )  # fmt: skip


def engine_of(run: Run) -> Engine:
    return Table(HfEngine(run.learner.stack, run.form.end_ids))


def play(run: Run, engine: Engine | None = None) -> Run:
    """Trains a run to its end; its error is raised here."""

    def failed(_: str, error: Exception) -> None:
        raise error

    drive({run.name: train(run)}, engine or engine_of(run), failed)
    return run


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


class Dying:
    """An engine that is killed at its call number `at` (from 0)."""

    def __init__(self, engine: Engine, at: int):
        self.engine, self.at, self.calls = engine, at, 0

    def reply(self, batches: Sequence[Sequence[View]]) -> list[list[Reply]]:
        self.calls += 1
        if self.calls > self.at:
            raise Killed
        return self.engine.reply(batches)


def everything(path: Path) -> dict[str, Any]:
    """What a run left on disk: lines (seconds apart), token arrays, adapters, checkpoints; what may differ is out."""
    found: dict[str, Any] = {}
    for file in FILES:
        if (path / file).is_file():
            lines = [json.loads(line) for line in (path / file).read_bytes().split(b"\n")[:-1]]
            found[file] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    for file in sorted(path.rglob("*.npz")):
        found[str(file.relative_to(path))] = {k: v.tolist() for k, v in np.load(file).items()}
    for file in sorted(path.rglob("*.safetensors")):
        tensors = safetensors.numpy.load_file(file)
        found[str(file.relative_to(path))] = {k: v.tobytes() for k, v in tensors.items()}
    found["names"] = sorted(
        str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and p.suffix != ".part"
    )
    return found


def toy_base(path: Path) -> Path:
    """The two-layer base as a directory, as `--base` takes it."""
    base = small_base()
    base.model.save_pretrained(path)
    base.tokenizer.save_pretrained(path)
    (path / "cotalk_base.json").write_text('{"wording": "short"}')
    return path


def toy_tasks(path: Path, n: int = 20) -> Path:
    """The sums of conftest as JSON lines."""
    lines = [
        {"id": d.task.id, "facts": d.facts, "question": d.question, "gold": d.task.gold} for d in deals(n)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def toy_grader(path: Path) -> str:
    path.write_text(GRADER)
    return f"{path}:pay"


def toy_study(path: Path, **settings: Any) -> Path:
    """A study with every kind of file: an arm with an adapter a seat, one with guests and snapshots, dev looks, greedy
    and repeated passes, knock-outs, a cross-play matrix, a comparison."""
    settings = SETTINGS | dict(
        base=str(toy_base(path / "base")), tasks=str(toy_tasks(path / "tasks.jsonl")), device="cpu", chats=4,
        grade=toy_grader(path / "grader.py"), message_tokens=3, answer_tokens=4, problems=1, heldout_tasks=2,
        dev_tasks=1, snapshot_every=2,
    ) | settings  # fmt: skip
    run = "\n".join(f"{k} = {json.dumps(v)}" for k, v in settings.items())
    (path / "toy.toml").write_text(
        f"seeds = [17]\n[run]\n{run}\n[arms.open]\nmethod = 'mixed'\npool = 'self, snapshots'\n"
        "[arms.closed]\nchannel = 'closed'\nadapters = 'per_seat'\n"
        "[evaluate]\nchats = 1\nrepeats = 2\ntrained_repeats = 1\npartners = false\ncausal = ['nothing']\ncross = 1\n"
        "[[compare]]\na = 'trained_open'\nb = 'trained_closed'\n"
    )
    return path / "toy.toml"


def left(out: Path) -> dict[str, Any]:
    """All that a study leaves behind, without the times."""
    runs = {p.name: everything(p) for p in sorted((out / "runs").iterdir()) if any(p.iterdir())}
    folders = ("scores", "cross", "outcomes")
    files = {
        str(p.relative_to(out)): p.read_bytes() for f in folders for p in (out / f).rglob("*") if p.is_file()
    }
    document = json.loads((out / "results.json").read_text())
    cost = {k: v for k, v in document["cost"].items() if "seconds" not in k and k != "workers"}
    results = {k: v for k, v in document.items() if k not in ("created", "cost", "git")} | {"cost": cost}
    return {"runs": runs, "files": files, "results": results, "study": (out / "study.toml").read_text()}


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    found = []
    for key in sorted({*a, *b}):
        if isinstance(a.get(key), dict) and isinstance(b.get(key), dict):
            found += [f"{key}/{part}" for part in differing(a[key], b[key])]
        elif a.get(key) != b.get(key):
            found.append(key)
    return found


def together(plays: Any, what: Any, shared: Any, workers: int, gpus: bool, progress: Any) -> dict[str, str]:
    """What workers would be given, in this process and as one stack."""
    found: dict[str, str] = plays(*what, [job for share in shared for job in share], progress)
    return found
