"""A run's directory: what is on disk, whole or not at all.

    config.toml            the resolved config; it can be run again
    metrics.jsonl          one line a step (docs/methods.md defines every number)
    chats.jsonl            one line a chat of training; dev.jsonl: of the dev tasks, with their step
    tokens/step-000010.npz ids and log-probabilities of a step's chats (the last 10 steps, or all)
    checkpoints/step-000010.safetensors   adapters, optimiser moments, step and versions: one file, one digest
    adapter/ (or adapter_A/, ...)          the last adapter in PEFT's format
    done.json | failed.json                how it ended

A checkpoint is written aside, synced and renamed. A resume takes the newest whole one and cuts every later line off,
so that what follows is played again to the same result. Left out: what a step is (train.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout

import cotalk
from cotalk.chat import Chat
from cotalk.config import Config
from cotalk.disk import write_atomically
from cotalk.errors import BadInput, RunFailed
from cotalk.learner import Learner

TOKEN_STEPS = 10  # shards kept with keep_tokens = "last"
KEPT_CHECKPOINTS = 2
_THREADS = ThreadPoolExecutor(
    2, "checkpoint"
)  # a checkpoint is hashed and written at a few hundred MB a second


def versions() -> dict[str, str]:
    """What a result depends on: determinism is claimed for one machine type and one set of these."""
    found = {"cotalk": cotalk.__version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "transformers", "peft", "tokenizers", "numpy", "safetensors", "math-verify"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """While it is open, no other process works in a directory; the lock ends with the process that holds it.

    Raises BadInput, with the other's process id and host, when somebody works there already.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / ".lock", timeout=0)
        with lock:
            owner = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            write_atomically(directory / ".lock.json", json.dumps(owner) + "\n")
            try:
                yield
            finally:
                (directory / ".lock.json").unlink(missing_ok=True)
    except Timeout as error:
        raise BadInput(
            f"{directory} is in use by {_owner(directory)}: wait for it, stop it, or use another --out",
            "run/in-use",
        ) from error


def _owner(directory: Path) -> str:
    try:
        owner = json.loads((directory / ".lock.json").read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
    except (OSError, ValueError, KeyError, TypeError):  # it has just begun
        return "another process"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; a torn last line is left out (it is owed again)."""
    if not path.is_file():
        return []
    out = []
    for number, line in enumerate(
        path.read_bytes().split(b"\n")[:-1], 1
    ):  # after the last newline: torn or empty
        try:
            out.append(json.loads(line))
        except ValueError as error:
            told = f"{path}, line {number} is damaged ({error}): expected a JSON object; remove that line"
            raise RunFailed(told, "run/line") from error
    return out


class RunDirectory:
    """Reads and writes one run's files. Nothing is created before `begin`."""

    def __init__(self, path: Path):
        self.path = path
        self._writer: Future[None] | None = None

    # --- config ---

    def begin(self, config: Config) -> None:
        """Writes the config, or, when the run was begun before, refuses another one."""
        path = self.path / "config.toml"
        if path.is_file():
            try:
                before = tomllib.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise BadInput(
                    f"{path} is not TOML ({error}): expected a run's config. Use another --out",
                    "config/not-toml",
                ) from error
            differ = {k: (before.get(k), v) for k, v in config.as_dict().items() if before.get(k) != v}
            if differ:
                told = ", ".join(f"{k} was {a!r} and is now {b!r}" for k, (a, b) in differ.items())
                raise BadInput(
                    f"{self.path} holds a run with another config: {told}. Use another --out, or remove it",
                    "run/other-config",
                )
            return
        self.path.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        config.save(aside)
        os.replace(aside, path)

    # --- lines ---

    def append(self, name: str, lines: Iterable[dict[str, Any]]) -> None:
        """Adds whole lines to a JSONL file in one write."""
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with (self.path / name).open("a", encoding="utf-8", errors="surrogatepass") as stream:
            stream.write(text)

    def lines(self, name: str) -> list[dict[str, Any]]:
        return read_lines(self.path / name)

    def cut_after(self, step: int) -> None:
        """Removes everything of later steps (-1: everything)."""
        for name in ("metrics.jsonl", "chats.jsonl", "dev.jsonl"):
            if (self.path / name).is_file():
                kept = [line for line in self.lines(name) if line["step"] <= step]
                text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
                write_atomically(self.path / name, text.encode("utf-8", "surrogatepass"))
        for shard in (self.path / "tokens").glob("*-*.npz"):  # of steps and of dev tasks
            if int(shard.stem.split("-")[1]) > step:
                shard.unlink()

    # --- tokens ---

    def save_tokens(self, step: int, chats: Sequence[Chat], keep: str, name: str = "step") -> None:
        """The recorded ids of a step's messages: one flat array each, with offsets; no pickles."""
        messages = [(i, m) for i, chat in enumerate(chats) for m in chat.messages]
        arrays: dict[str, Any] = {
            "chat": np.array([i for i, _ in messages], dtype=np.int32),
            "turn": np.array([m.turn for _, m in messages], dtype=np.int32),
            "prompt_lengths": np.array([len(m.prompt) for _, m in messages], dtype=np.int32),
            "lengths": np.array([len(m.ids) for _, m in messages], dtype=np.int32),
            "prompts": np.array([t for _, m in messages for t in m.prompt], dtype=np.int32),
            "ids": np.array([t for _, m in messages for t in m.ids], dtype=np.int32),
            "logprobs": np.array([p for _, m in messages for p in m.logprobs], dtype=np.float32),
        }
        directory = self.path / "tokens"
        directory.mkdir(exist_ok=True)
        aside = directory / f".{name}-{step:06d}.part"
        with aside.open("wb") as stream:
            np.savez_compressed(stream, **arrays)
        os.replace(aside, directory / f"{name}-{step:06d}.npz")
        if keep == "last":
            for shard in directory.glob("step-*.npz"):
                if int(shard.stem.split("-")[1]) <= step - TOKEN_STEPS:
                    shard.unlink()

    # --- checkpoints ---

    def save_checkpoint(self, step: int, learner: Learner) -> None:
        """Writes what training changed. Beside a GPU, which goes on meanwhile, the file is written by a thread."""
        self.wait()
        tensors = learner_tensors(learner)
        if learner.stack.device.type == "cpu":
            self._write_checkpoint(step, tensors)
        else:
            self._writer = _THREADS.submit(self._write_checkpoint, step, tensors)

    def wait(self) -> None:
        """Until the last checkpoint is on disk; raises what its writing raised."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.result()

    def _write_checkpoint(self, step: int, tensors: dict[str, torch.Tensor]) -> None:
        about = {"step": step, "digest": _digest(step, tensors), "versions": versions()}
        path = self._checkpoint(step)
        write_atomically(path, safetensors.torch.save(tensors, metadata={"cotalk": json.dumps(about)}))
        for old in sorted(path.parent.glob("step-*.safetensors"))[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def load_checkpoint(self, learner: Learner) -> int | None:
        """Restores the newest whole checkpoint; its step, or None when there is none at all.

        A damaged one is passed over with a warning: the steps after the one before it are played again.
        """
        damaged = []
        for path in sorted((self.path / "checkpoints").glob("step-*.safetensors"), reverse=True):
            try:
                step, tensors = _read_checkpoint(path)
            except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
                damaged.append(f"{path.name}: {error}")
                continue
            if damaged:
                warnings.warn(
                    f"{self.path}: damaged: {'; '.join(damaged)}; goes on from step {step}", stacklevel=2
                )
            restore_learner(learner, tensors)
            return step
        if damaged:
            raise RunFailed(
                f"{self.path}: every checkpoint is damaged ({'; '.join(damaged)}); expected a whole one. "
                "To begin again from step 0, remove that run's directory",
                "run/checkpoints",
            )
        return None

    def _checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:06d}.safetensors"

    # --- the end ---

    @property
    def done(self) -> bool:
        return (self.path / "done.json").is_file()

    def finish(self, learner: Learner) -> None:
        """Saves the adapters in PEFT's format and marks the training as done."""
        self.wait()
        for name, k in adapter_directories(learner).items():
            learner.stack.save(k, self.path / name)
        write_atomically(self.path / "done.json", json.dumps({"versions": versions()}, indent=2) + "\n")
        self.succeed()

    def succeed(self) -> None:
        """Takes back what `fail` said: it was tried again, and went well."""
        (self.path / "failed.json").unlink(missing_ok=True)

    def fail(self, reason: str) -> None:
        """Says why the run, or its evaluation, could not go on."""
        write_atomically(self.path / "failed.json", json.dumps({"reason": reason}, indent=2) + "\n")


def adapter_directories(learner: Learner) -> dict[str, int]:
    """Where each adapter of a run is saved: `adapter` when the seats share one, else `adapter_A`, ..."""
    if len(set(learner.adapters.values())) == 1:
        return {"adapter": next(iter(learner.adapters.values()))}
    return {f"adapter_{seat}": k for seat, k in learner.adapters.items()}


def learner_tensors(learner: Learner) -> dict[str, torch.Tensor]:
    """Everything that training changes, by names that do not depend on the place in the stack."""
    tensors = {}
    for place, k in enumerate(sorted(learner.optimisers)):
        for name, parameter in learner.stack.parameters(k).items():
            tensors[f"{place}.{name}"] = parameter.detach().cpu().clone()
            for moment, value in learner.optimisers[k].state[parameter].items():
                tensors[f"{place}.{name}.{moment}"] = torch.as_tensor(value).detach().cpu().clone()
    return tensors


def restore_learner(learner: Learner, tensors: dict[str, torch.Tensor]) -> None:
    for place, k in enumerate(sorted(learner.optimisers)):
        optimiser = learner.optimisers[k]
        for name, parameter in learner.stack.parameters(k).items():
            with torch.no_grad():
                parameter.copy_(tensors[f"{place}.{name}"])
            optimiser.state[parameter] = {}
            for moment in ("step", "exp_avg", "exp_avg_sq"):
                saved = tensors.get(f"{place}.{name}.{moment}")
                if saved is not None:
                    keep_on_cpu = moment == "step" and not optimiser.defaults["fused"]
                    optimiser.state[parameter][moment] = (
                        saved.clone() if keep_on_cpu else saved.to(parameter.device)
                    )
            if not optimiser.state[parameter]:
                del optimiser.state[parameter]
        learner.stack.changed(k)


def _read_checkpoint(path: Path) -> tuple[int, dict[str, torch.Tensor]]:
    """A checkpoint's step and tensors, if it is what was written."""
    with safetensors.safe_open(path, "pt") as stream:
        about = json.loads(stream.metadata()["cotalk"])
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    if _digest(about["step"], tensors) != about["digest"]:
        raise ValueError("its digest differs")
    return int(about["step"]), tensors


def _digest(step: int, tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.blake2b(f"step {step}".encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
