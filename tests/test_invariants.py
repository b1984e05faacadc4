"""The three invariants of the design, each under its own name.

1. Tokens are recorded when sampled, and never rebuilt from text.
2. A chat is on disk whole or not at all, and so is a step.
3. One call serves whoever waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import cotalk.run
from conftest import small_base
from cotalk.chat import Reply, View
from cotalk.config import Config
from cotalk.engines import Engine
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.rows import rows_of
from cotalk.run import RunDirectory
from cotalk.single import train_one
from cotalk.stack import drive
from cotalk.study import read_study
from cotalk.train import Run, train
from toy import (
    SETTINGS,
    Dying,
    Killed,
    engine_of,
    everything,
    play,
    toy_base,
    toy_config,
    toy_grader,
    toy_run,
    toy_tasks,
)


class Listening:
    """An engine that remembers what it was asked and what it answered."""

    def __init__(self, engine: Engine):
        self.engine, self.heard = engine, []

    def reply(self, batches):
        replies = self.engine.reply(batches)
        self.heard.append((batches, replies))
        return replies

    @property
    def pairs(self) -> list[tuple[View, Reply]]:
        return [
            (view, reply)
            for batches, replies in self.heard
            for batch, answers in zip(batches, replies, strict=True)
            for view, reply in zip(batch, answers, strict=True)
        ]


# --- 1 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["dialogue", "transcript"])
def test_tokens_are_recorded_when_sampled_and_never_rebuilt_from_text(
    view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine was given and answered is what is on disk and what is trained, id by id.

    The base is random: it says broken UTF-8, and text made of its ids encodes to other ids. An implementation that
    goes through text fails here.
    """
    trained: list[Any] = []
    update = Learner.update
    monkeypatch.setattr(
        Learner, "update", lambda self, chats, lr: (trained.extend(chats), update(self, chats, lr))[1]
    )
    run = toy_run(tmp_path, toy_config(view=view, steps=2, dev_tasks=0))
    engine = Listening(engine_of(run))
    play(run, engine)

    asked = {(v.ids, v.key): r for v, r in engine.pairs}
    assert len(asked) == 2 * 2 * 3 * 4  # steps x problems x chats x turns
    messages = [m for chat in trained for m in chat.messages]
    by_prompt = {(v.ids, r.ids): r.logprobs for v, r in engine.pairs}
    assert all(by_prompt[m.prompt, m.ids] == m.logprobs for m in messages)
    assert len(messages) == len(asked)
    rebuilt = [
        run.form.text_ids(m.said) != tuple(i for i in m.ids if i not in run.form.end_ids) for m in messages
    ]
    assert sum(rebuilt) > len(messages) // 2

    for step in (1, 2):
        with np.load(tmp_path / "tokens" / f"step-{step:06d}.npz") as shard:
            lengths, ids = shard["lengths"], shard["ids"]
            before, prompts = shard["prompt_lengths"], shard["prompts"]
            on_disk = list(
                zip(
                    map(tuple, np.split(prompts, before.cumsum()[:-1])),
                    map(tuple, np.split(ids, lengths.cumsum()[:-1])),
                    strict=True,
                )
            )
        mine = messages[: len(on_disk)] if step == 1 else messages[-len(on_disk) :]
        assert on_disk == [(m.prompt, m.ids) for m in mine]

    for chat in trained:
        for row in rows_of(chat):
            spans = [tuple(row.ids[start : start + len(lp)]) for start, lp, _ in row.spans]
            sampled = [m.ids for m in chat.messages if m.seat == row.seat]
            assert spans == sampled if view == "dialogue" else spans[0] in sampled

    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert first["skipped"] == 0.0 and first["credited_tokens"] > 20
    for name in ("ratio/mean", "ratio/max", "ratio/min"):
        assert first[name] == pytest.approx(1.0, abs=1e-3)


# --- 2 -------------------------------------------------------------------------------------------------------


SHORT = dict(
    steps=3, dev_every=2, checkpoint_every=2, problems=1, chats=3, train_tasks=5, dev_tasks=1, message_tokens=2,
    answer_tokens=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], int]:
    """What a short run leaves behind when nothing happens to it, and how many calls it makes."""
    path = tmp_path_factory.mktemp("whole")
    run = toy_run(path, toy_config(**SHORT))
    engine = Dying(engine_of(run), at=10_000)
    play(run, engine)
    found = everything(path)
    assert [line["step"] for line in found["metrics.jsonl"]] == [0, 1, 2, 2, 3, 3]
    assert (
        len({str(t) for n, t in found.items() if n.startswith("checkpoints")}) == 2
    )  # the adapter does change
    return found, engine.calls


def killed_then_again(path: Path, at: int) -> dict[str, Any]:
    run = toy_run(path, toy_config(**SHORT))
    with pytest.raises(Killed):
        play(run, Dying(engine_of(run), at))
    play(toy_run(path, toy_config(**SHORT)))  # a new process: new stack, new learner, nothing remembered
    return everything(path)


@pytest.mark.parametrize("at", [0, 3, 9, 12, 16, 17, 23])
def test_a_step_is_on_disk_whole_or_not_at_all_when_killed_at_any_engine_call(
    at: int, uninterrupted: tuple[dict[str, Any], int], tmp_path: Path
) -> None:
    """Calls 0-3 look at step 0, 4-7 are step 1, 8-11 step 2, 12-15 look, (checkpoint), 16-19 step 3, 20-23 look."""
    expected, calls = uninterrupted
    assert calls == 24
    assert killed_then_again(tmp_path, at) == expected


def count_writes(path: Path, monkeypatch: pytest.MonkeyPatch, at: int, half: bool) -> int:
    """Plays a run that is killed at its write number `at` (of any file), half of it done. Returns the writes."""
    writes = [0]

    def dying(write: Callable[..., Any], partly: Callable[..., Any]) -> Callable[..., Any]:
        def once(*args: Any, **kwargs: Any) -> Any:
            writes[0] += 1
            if writes[0] > at:
                if half:
                    partly(*args, **kwargs)
                raise Killed
            return write(*args, **kwargs)

        return once

    def half_a_text(self: RunDirectory, name: str, lines: Any) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with (self.path / name).open("a") as stream:
            stream.write(text[: len(text) // 2])

    def half_a_file(path: Path, data: bytes | str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".{path.name}.1.part").write_bytes(
            data[: len(data) // 2] if isinstance(data, bytes) else b""
        )

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append", dying(RunDirectory.append, half_a_text))
        patch.setattr(RunDirectory, "save_tokens", dying(RunDirectory.save_tokens, lambda *_, **__: None))
        patch.setattr(cotalk.run, "write_atomically", dying(cotalk.run.write_atomically, half_a_file))
        run = toy_run(path, toy_config(**SHORT))
        with contextlib.suppress(Killed):
            play(run)
    return writes[0]


@pytest.mark.slow
@pytest.mark.parametrize(("half", "killed"), [(False, (0, 3, 7, 12, 14, 20)), (True, (1, 5, 11, 13, 17, 19))])
def test_a_chat_is_on_disk_whole_or_not_at_all_when_killed_at_any_write(
    half: bool,
    killed: tuple[int, ...],
    uninterrupted: tuple[dict[str, Any], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The config, each look 3 times, each step 3 times, 2 checkpoints, 1 end: 1 + 9 + 9 + 2 + 1 = 22 writes."""
    expected, _ = uninterrupted
    assert count_writes(tmp_path / "all", monkeypatch, 10_000, half) == 22
    for at in killed:
        path = tmp_path / str(at)
        assert count_writes(path, monkeypatch, at, half) == at + 1
        play(toy_run(path, toy_config(**SHORT)))
        assert everything(path) == expected, f"killed at write {at}"


def test_a_run_killed_again_and_again_ends_as_if_nothing_had_happened(
    uninterrupted: tuple[dict[str, Any], int], tmp_path: Path
) -> None:
    for at in (2, 11, 7, 14, 1, 3):
        run = toy_run(tmp_path, toy_config(**SHORT))
        with contextlib.suppress(Killed):
            play(run, Dying(engine_of(run), at))
    play(toy_run(tmp_path, toy_config(**SHORT)))
    assert everything(tmp_path) == uninterrupted[0]
    play(toy_run(tmp_path, toy_config(**SHORT)))  # and one that is done stays as it is
    assert everything(tmp_path) == uninterrupted[0]


@pytest.mark.slow
def test_a_run_killed_with_kill_9_goes_on_to_the_same_result(tmp_path: Path) -> None:
    """A real process, killed soon after step 5 of 16; the same command is then run to its end."""
    settings = SETTINGS | dict(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")), steps=16,
        grade=toy_grader(tmp_path / "grader.py"), checkpoint_every=2, device="cpu",
    )  # fmt: skip
    config, out = Config(**settings), tmp_path / "killed"
    flags = [part for k, v in settings.items() for part in (f"--{k.replace('_', '-')}", str(v))]
    source = str(Path(cotalk.run.__file__).parents[1])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}
    process = subprocess.Popen(
        [sys.executable, "-m", "cotalk.cli", "train", "--out", str(out), *flags],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    metrics = out / "metrics.jsonl"
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.is_file() and b'"step": 5,' in metrics.read_bytes():
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert not (out / "done.json").exists() and (out / "checkpoints").is_dir()

    train_one(config, out, Console(file=StringIO()))
    train_one(config, tmp_path / "whole", Console(file=StringIO()))
    killed, whole = everything(out), everything(tmp_path / "whole")
    assert killed.keys() == whole.keys()
    assert [name for name in whole if killed[name] != whole[name]] == []


# --- 3 -------------------------------------------------------------------------------------------------------

ARMS = {  # three runs that differ in length, method's group size, adapters, view and channel
    "open": dict(steps=2),
    "closed": dict(steps=3, channel="closed", chats=2, adapters="per_seat"),
    "long": dict(steps=2, seed=18, order="ABABAB", view="transcript", dev_tasks=0),
}


def stack_of(path: Path, names: list[str]) -> tuple[Stack, dict[str, Run]]:
    stack = Stack(small_base().model, 4, SETTINGS["rank"], SETTINGS["alpha"])
    runs, at = {}, 1
    for name in names:
        runs[name] = toy_run(path / name, toy_config(**ARMS[name]), stack, first=at, name=name)
        at += len(runs[name].learner.optimisers)
    return stack, runs


def play_together(path: Path, names: list[str]) -> Listening:
    _, runs = stack_of(path, names)
    engine = Listening(engine_of(next(iter(runs.values()))))

    def failed(name: str, error: Exception) -> None:
        raise error

    drive({name: train(run) for name, run in runs.items()}, engine, failed)
    return engine


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, int]]:
    """Each run by itself on a stack of its own: what it left on disk, and its engine calls."""
    found, calls = {}, {}
    for name, settings in ARMS.items():
        path = tmp_path_factory.mktemp(name)
        run = toy_run(path, toy_config(**settings), name=name)
        engine = Listening(engine_of(run))
        play(run, engine)
        found[name], calls[name] = everything(path), len(engine.heard)
    assert calls == {"open": 16, "closed": 24, "long": 12}
    return found, calls


def test_one_call_serves_whoever_waits(alone: tuple[dict[str, Any], dict[str, int]], tmp_path: Path) -> None:
    """As many calls as the longest run makes alone: 12 for three runs, 4 more for two, 8 for the last one."""
    engine = play_together(tmp_path, list(ARMS))
    waiting = [len(batches) for batches, _ in engine.heard]
    assert waiting == [3] * 12 + [2] * 4 + [1] * 8
    assert max(alone[1].values()) == len(waiting)


@pytest.mark.parametrize(
    "names", [["open", "closed", "long"], ["long", "open", "closed"], ["closed", "long", "open"]]
)
def test_a_run_alone_equals_itself_in_the_stack_bit_for_bit_in_any_order(
    names: list[str], alone: tuple[dict[str, Any], dict[str, int]], tmp_path: Path
) -> None:
    """Adapters, optimiser moments, chats, log-probabilities, metrics."""
    play_together(tmp_path, names)
    for name in names:
        together = everything(tmp_path / name)
        assert together.keys() == alone[0][name].keys()
        for part in together:
            if not part.startswith("adapter"):
                assert together[part] == alone[0][name][part], f"{name}: {part}"
        adapters = [p for p in together if p.endswith("adapter_model.safetensors")]
        assert adapters and all(together[p] == alone[0][name][p] for p in adapters)


@pytest.mark.slow
def test_a_run_alone_equals_itself_in_the_stack_at_the_quickstarts_real_size(tmp_path: Path) -> None:
    """The shape of the tiny base, rank 32, 32 chats a step, the quickstart's caps: products are large enough here for
    other kernels, whose bits depend on the number of rows."""
    shape = dict(hidden_size=128, intermediate_size=320, num_hidden_layers=3, num_key_value_heads=4)
    config = replace(read_study("quickstart").config, base="small", steps=3, train_tasks=16, dev_tasks=2)
    arms = {"open": config, "closed": replace(config, channel="closed"), "seed": replace(config, seed=18)}
    stack = Stack(small_base(**shape).model, 6, config.rank, config.alpha)
    together = {
        name: toy_run(tmp_path / "stack" / name, arm, stack, first=1 + 2 * i, name=name, **shape)
        for i, (name, arm) in enumerate(arms.items())
    }
    errors: dict[str, Exception] = {}
    drive(
        {name: train(run) for name, run in together.items()}, engine_of(together["open"]), errors.__setitem__
    )
    assert not errors
    for name, arm in arms.items():
        play(toy_run(tmp_path / "alone" / name, arm, name=name, **shape))
        stacked, alone = everything(tmp_path / "stack" / name), everything(tmp_path / "alone" / name)
        assert [part for part in alone if stacked[part] != alone[part]] == []


def test_a_run_that_fails_and_one_that_resumes_do_not_touch_their_neighbours(
    alone: tuple[dict[str, Any], dict[str, int]], tmp_path: Path
) -> None:
    """`long` fails at its second step, `closed` was killed before and joins; `open` must not notice."""
    run = toy_run(tmp_path / "closed", toy_config(**ARMS["closed"]))
    with pytest.raises(Killed):
        play(run, Dying(engine_of(run), 14))
    _, runs = stack_of(tmp_path, ["long", "open", "closed"])
    credit, calls = runs["long"].method.credit, []

    def sick(group: Any) -> None:
        calls.append(group)
        if len(calls) > SETTINGS["problems"]:
            raise ZeroDivisionError("no luck")
        credit(group)

    runs["long"].method.credit = sick
    failures: dict[str, Exception] = {}
    drive(
        {name: train(run) for name, run in runs.items()},
        engine_of(runs["open"]),
        lambda name, error: failures.update({name: error}),
    )
    assert list(failures) == ["long"] and isinstance(failures["long"], ZeroDivisionError)
    for name in ("open", "closed"):
        assert everything(tmp_path / name) == alone[0][name]
    assert [line["step"] for line in RunDirectory(tmp_path / "long").lines("metrics.jsonl")] == [1]


def test_a_step_of_one_run_leaves_every_other_adapter_as_it_was(tmp_path: Path) -> None:
    stack, runs = stack_of(tmp_path, ["open", "closed", "long"])
    for run in runs.values():
        run.learner.initialise(5)
    before = {k: [p.detach().clone() for p in stack.parameters(k).values()] for k in range(5)}
    play(runs["closed"])
    own = set(runs["closed"].learner.optimisers)
    assert own == {2, 3}
    for k in range(5):
        now = list(stack.parameters(k).values())
        assert all(torch.equal(a, b) for a, b in zip(before[k], now)) == (k not in own)
