"""A run's directory: what is on disk, whole or not at all.

    config.toml            the resolved config; it can be run again
    given.json             what was in the files that it names, by digest (a study's runs: beside its study.toml)
    metrics.jsonl          one line a step (docs/methods.md defines every number)
    chats.jsonl            one line a chat of training; dev.jsonl: of the dev tasks, with their step
    tokens/step-000010.npz ids and log-probabilities of a step's chats (the last 10 steps, or all)
    checkpoints/step-000010.safetensors   adapters, optimiser moments, step, config and versions in one;
                           the last two and the best by dev score; stopped-000013: written when a signal came
    dropped/step-000007.json               a step whose numbers were not finite: why, and its messages as data
    adapter/ (or adapter_A/, ...)          the last adapter in PEFT's format
    done.json | failed.json                how it ended

A checkpoint is written aside, synced and renamed, after the lines of its steps. A resume takes the newest whole one
whose steps are whole too, says which ones it passed over, and cuts every later line off, so that what follows is
played again to the same result. Left out: what a step is (train.py).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
import tomllib
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout

from cotalk.chat import Chat
from cotalk.config import RESOLVED, Config, read_toml, toml_table
from cotalk.disk import sync, write_atomically, writing
from cotalk.errors import BadInput, DiskFailed, RunFailed
from cotalk.given import changed, described, read_given, write_given
from cotalk.learner import Learner
from cotalk.results import versions

TOKEN_STEPS = 10  # shards kept with keep_tokens = "last"
KEPT_CHECKPOINTS = 2  # beside the best by dev score
ASIDE = ".aside"  # ends the name of a checkpoint that was not believed
LINES = ("metrics.jsonl", "chats.jsonl", "dev.jsonl")
_THREADS = ThreadPoolExecutor(
    4, "checkpoint"
)  # a checkpoint is hashed and written at a few hundred MB a second


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """While it is open, no other process works in a directory; the lock ends with the process that holds it.

    Raises BadInput, with the other's process id and host, when somebody works there already, and when nothing can be
    written there.
    """
    lock, owned = FileLock(directory / ".lock", timeout=0), directory / ".lock.json"
    owner = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    try:
        with writing(directory / ".lock"):
            directory.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        write_atomically(owned, json.dumps(owner) + "\n")
    except DiskFailed as error:
        lock.release()
        if not isinstance(error.__cause__, Timeout):
            raise BadInput(str(error), "file/not-written") from error
        raise BadInput(
            f"{directory} is in use by {_owner(directory)}: wait for it, stop it, or use another --out",
            "run/in-use",
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the directory may be gone, or have become read-only
            owned.unlink(missing_ok=True)
        lock.release()


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

    def begin(self, config: Config, force: bool = False, given: Mapping[str, str] | None = None) -> str:
        """Writes the config, or, when the run was begun before, refuses another one with what differs.

        force: sets all of that run aside, and begins again. given: what the files hold that the config names
        (given.py); other contents are another run. A directory where nothing was played yet takes any config.
        Returns what was done so, in words.
        """
        path, told = self.path / "config.toml", ""
        if path.is_file():
            try:
                before = tomllib.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise BadInput(
                    f"{path} is not TOML ({error}): expected a run's config. Use another --out",
                    "config/not-toml",
                ) from error
            differ = differences(Config().as_dict() | before, config.as_dict())
            other = changed(read_given(self.path), given or {})
            if not differ and not other:
                if given:
                    write_given(self.path, given)
                return ""
            if self._begun:
                differ += [described(other, config.tasks, config.heldout)] if other else []
                told = self._set_aside(differ, force or not self.stepped)
        if given is not None:
            write_given(self.path, given, fresh=True)
        write_atomically(path, RESOLVED + toml_table(config.as_dict()))
        return told

    @property
    def _begun(self) -> bool:
        return any((self.path / name).exists() for name in (*LINES, "checkpoints", "tokens", "done.json"))

    @property
    def stepped(self) -> bool:
        """Whether a step of training is on disk: before the first, nothing is lost by beginning again."""
        return self.done or any("chats" in line for line in self.lines("metrics.jsonl"))

    def _set_aside(self, differ: Sequence[str], force: bool) -> str:
        told = f"{self.path} holds a run with another config: {'; '.join(differ)}"
        if not force:
            raise BadInput(
                f"{told}. Use another --out, or --force to set that run aside and begin again",
                "run/other-config",
            )
        old = [p for p in sorted(self.path.iterdir()) if p.name not in (".lock", ".lock.json", "set-aside")]
        return f"{told}. All of it is in {set_aside(self.path, old)} now; begins again"

    # --- lines ---

    def append(self, name: str, lines: Iterable[dict[str, Any]]) -> None:
        """Adds whole lines to a JSONL file in one write."""
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        path = self.path / name
        with writing(path), path.open("a", encoding="utf-8", errors="surrogatepass") as stream:
            stream.write(text)

    def lines(self, name: str) -> list[dict[str, Any]]:
        return read_lines(self.path / name)

    def cut_after(self, step: int) -> None:
        """Removes everything of later steps (-1: everything)."""
        for name in LINES:
            self._keep(name, lambda line: line["step"] <= step)
        shards = [*(self.path / "tokens").glob("*-*.npz"), *(self.path / "dropped").glob("*-*.json")]
        for shard in shards:  # of steps and of dev tasks
            if _step_of(shard) > step:
                shard.unlink()
        for part in self.path.rglob(".*.part"):  # what was being written when it was killed
            part.unlink()

    def cut_look(self, step: int) -> None:
        """Removes the dev chats of a step: their metrics were not written."""
        self._keep("dev.jsonl", lambda line: line["step"] != step)

    def _keep(self, name: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        if (self.path / name).is_file():
            kept = [line for line in self.lines(name) if wanted(line)]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
            write_atomically(self.path / name, text.encode("utf-8", "surrogatepass"))

    def recorded(self) -> int:
        """The last step such that it and all before it are whole on disk: their metrics, and all of their chats."""
        chats = Counter(line["step"] for line in self.lines("chats.jsonl"))
        told = {line["step"]: line["chats"] for line in self.lines("metrics.jsonl") if "chats" in line}
        step = 0
        while told.get(step + 1) == chats[step + 1] > 0:
            step += 1
        return step

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
        path = directory / f"{name}-{step:06d}.npz"
        aside = path.with_name(f".{path.stem}.part")
        with writing(path):
            directory.mkdir(exist_ok=True)
            with aside.open("wb") as stream:
                np.savez_compressed(stream, **arrays)
            os.replace(aside, path)
        if keep == "last":
            for shard in directory.glob("step-*.npz"):
                if _step_of(shard) <= step - TOKEN_STEPS:
                    shard.unlink()

    # --- dropped steps ---

    def save_dropped(self, step: int, reason: str, chats: Sequence[Chat]) -> None:
        """A step that changed nothing, for inspection: one message a line, numbers that JSON has not as words.

        All text is escaped to ASCII: it is data, whatever it says.
        """
        lines = []
        for chat in chats:
            for m in chat.messages:
                about = {"task": chat.deal.task.id, "chat": chat.number, "seat": m.seat, "turn": m.turn}
                said = {
                    "said": m.said,
                    "heard": m.heard,
                    "reward": _word(chat.reward),
                    "credit": _word(m.credit),
                }
                told = {"prompt": m.prompt, "ids": m.ids, "logprobs": [_word(p) for p in m.logprobs]}
                lines.append("  " + json.dumps(about | said | told))
        head = json.dumps({"step": step, "reason": reason}, indent=1)[:-2]
        text = head + ',\n "messages": [\n' + ",\n".join(lines) + "\n ]\n}\n"
        write_atomically(self._dropped(step), text)

    def dropped_because(self, step: int) -> str:
        """Why a step was dropped."""
        return str(json.loads(self._dropped(step).read_text(encoding="utf-8"))["reason"])

    def _dropped(self, step: int) -> Path:
        return self.path / "dropped" / f"step-{step:06d}.json"

    # --- checkpoints ---

    def save_checkpoint(self, step: int, learner: Learner) -> None:
        """Writes what training changed. Beside a GPU, which goes on meanwhile, the file is written by a thread."""
        self.wait()
        tensors = learner_tensors(learner)
        if learner.stack.device.type == "cpu":
            self._write_checkpoint(step, tensors, learner.config)
        else:
            self._writer = _THREADS.submit(self._write_checkpoint, step, tensors, learner.config)

    @property
    def writes(self) -> bool:
        """Whether a checkpoint is on its way to the disk."""
        return self._writer is not None

    def wait(self) -> None:
        """Until the last checkpoint is on disk; raises what its writing raised."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.result()

    def rewind(self, step: int, learner: Learner) -> None:
        """Puts the learner down as it was after an earlier step, and drops the checkpoints of later ones."""
        self.save_stopped(step, learner)
        for path in (self.path / "checkpoints").glob("*-*.safetensors"):
            if _step_of(path) > step:
                path.unlink()

    def has_checkpoint(self, step: int) -> bool:
        """Whether the usual one of a step is there."""
        return self._checkpoint(step).is_file()

    def save_stopped(self, step: int, learner: Learner) -> None:
        """When a signal comes: a checkpoint between the usual ones, gone when the next of those is written."""
        self.wait()
        if step and not self.has_checkpoint(step):
            self._write(self._checkpoint(step, "stopped"), step, learner_tensors(learner), learner.config)

    def _write_checkpoint(self, step: int, tensors: dict[str, torch.Tensor], config: Config) -> None:
        self._write(self._checkpoint(step), step, tensors, config)
        old = sorted((self.path / "checkpoints").glob("step-*.safetensors"))
        kept = {*old[-KEPT_CHECKPOINTS:], self._best(old)}
        for path in [*(self.path / "checkpoints").glob("stopped-*.safetensors"), *old]:
            if path not in kept:
                path.unlink()

    def _write(self, path: Path, step: int, tensors: dict[str, torch.Tensor], config: Config) -> None:
        for name in LINES:  # a checkpoint may not be on disk before the steps that led to it
            sync(self.path / name)
        about = {
            "step": step,
            "digest": _digest(step, tensors),
            "versions": versions(),
            "config": config.as_dict(),
        }
        write_atomically(path, safetensors.torch.save(tensors, metadata={"cotalk": json.dumps(about)}))

    def _best(self, paths: Sequence[Path]) -> Path | None:
        """The checkpoint of the highest dev score, the earliest of equals; None where no dev task was played."""
        scores = {m["step"]: m["dev/score"] for m in self.lines("metrics.jsonl") if "dev/score" in m}
        looked = [path for path in paths if _step_of(path) in scores]
        return max(looked, key=lambda path: scores[_step_of(path)], default=None)

    def load_checkpoint(self, learner: Learner) -> int | None:
        """Restores the newest whole checkpoint and changes no file; its step, or None when there is none at all.

        A damaged one is passed over with a warning.
        """
        step, passed = self._newest(learner)
        self._tell([f"{path.name}: {why}" for path, why in passed.items()], step, bool(passed))
        return step

    def resume_from(self, learner: Learner, every: int) -> int | None:
        """The same for a run that goes on. every: steps between checkpoints, which tells which one is missing.

        A checkpoint that is damaged, or whose steps are not whole on disk, is set aside with a warning; the steps
        after the one before it are played again. RunFailed where that would mean all of them.
        """
        recorded = self.recorded()
        step, passed = self._newest(learner, recorded)
        told = [f"{path.name}: {why}" for path, why in passed.items()]
        owed = (recorded - 1) // every * every if recorded else 0  # a later step was played
        if owed > (step or 0) and self._checkpoint(owed) not in passed:
            told.append(f"{self._checkpoint(owed).name} is missing, though step {recorded} was played")
        # beside a GPU the newest is written while the next steps are played: it may be owed, those before it may not
        self._tell(told, step, bool(passed) or owed > every)
        for path in passed:
            os.replace(path, path.with_name(path.name + ASIDE))
        return step

    def _newest(self, learner: Learner, recorded: int | None = None) -> tuple[int | None, dict[Path, str]]:
        """Restores the newest checkpoint that can be used: its step, and why others were passed over."""
        passed: dict[Path, str] = {}
        for path in sorted((self.path / "checkpoints").glob("*-*.safetensors"), key=_step_of, reverse=True):
            if recorded is not None and _step_of(path) > recorded:
                passed[path] = f"the chats and metrics on disk are whole up to step {recorded} only"
                continue
            try:
                step, tensors = _read_checkpoint(path)
            except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
                passed[path] = str(error)
                continue
            restore_learner(learner, tensors)
            return step, passed
        return None, passed

    def _tell(self, told: Sequence[str], step: int | None, were_there: bool) -> None:
        """Warns of checkpoints that are not used; RunFailed when no other is left."""
        if told and step is None and were_there:
            raise RunFailed(
                f"{self.path}: every checkpoint is damaged or lost ({'; '.join(told)}); expected a whole one. "
                "To begin again from step 0, remove that run's directory",
                "run/checkpoints",
            )
        if told:
            warnings.warn(
                f"{self.path}: damaged: {'; '.join(told)}; goes on from step {step or 0}", stacklevel=3
            )

    def _checkpoint(self, step: int, name: str = "step") -> Path:
        return self.path / "checkpoints" / f"{name}-{step:06d}.safetensors"

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


def set_aside(directory: Path, files: Iterable[Path]) -> Path:
    """Moves files of a directory to where nothing reads them, set-aside/1 or the next free number; returns that."""
    taken = [int(path.name) for path in (directory / "set-aside").glob("*") if path.name.isdigit()]
    to = directory / "set-aside" / str(max(taken, default=0) + 1)
    for path in files:
        there = to / path.relative_to(directory)
        with writing(there):
            there.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, there)
    return to


def differences(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> list[str]:
    """What differs between two tables of settings, key by key: "lr was 0.1 and is now 0.2"."""
    told = []
    for key in [*now, *(key for key in before if key not in now)]:
        a, b = before.get(key), now.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            told += differences(a, b, f"{where}{key}.")
        elif a != b:
            told.append(f"{where}{key} was {_shown(a)} and is now {_shown(b)}")
    return told


def _shown(value: Any) -> str:
    return "not there" if value is None else repr(value)


def _word(value: float | None) -> float | str | None:
    """A number, or the name of one that JSON has not."""
    return value if value is None or math.isfinite(value) else str(value)


def _step_of(path: Path) -> int:
    """Of step-000010.npz and its like."""
    return int(path.name.split(".")[0].split("-")[1])


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
            tensors[f"{place}.{name}"] = parameter.detach().to("cpu", copy=True)
            for moment, value in learner.optimisers[k].state[parameter].items():
                tensors[f"{place}.{name}.{moment}"] = torch.as_tensor(value).detach().to("cpu", copy=True)
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


def read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of one checkpoint; BadInput where it is not whole."""
    try:
        return _read_checkpoint(path)[1]
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
        raise BadInput(
            f"{path} is no whole checkpoint ({error}); expected one of a run's checkpoints/",
            "run/checkpoints",
        ) from error


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
        values = tensors[name].contiguous().view(-1).view(torch.uint8).numpy()
        digest.update(zlib.crc32(values.data).to_bytes(4, "little"))
    return digest.hexdigest()


# --- the settings of a run that was -----------------------------------------------------------------------------


def config_of(run: Path, what: str) -> Config:
    """The config of a run's directory."""
    path = run / "config.toml"
    if path.is_file():
        return Config().replaced(read_toml(path), where=f"{path}: ")
    inner = sorted(str(p.parent) for p in run.glob("runs/*/config.toml"))
    hint = f"; it is a study: give one of its runs, {', '.join(inner[:6])}" if inner else ""
    raise BadInput(
        f"{what} {run} is no run's directory (no config.toml){hint or '. Train one first: cotalk quickstart'}",
        "run/missing",
    )


def run_of(adapter: Path) -> Path | None:
    """The run's directory that an adapter's directory or a checkpoint lies in (or is); None for any other adapter."""
    near = (adapter, *adapter.absolute().parents[:2])
    return next((place for place in near if _resolved(place / "config.toml")), None)


def _resolved(path: Path) -> bool:
    """Whether a file is the config of one of our runs, and not some other config.toml."""
    return path.is_file() and path.read_bytes().startswith(RESOLVED.encode())
