"""Faults, made to happen: a file system that fails, an engine and a trainer that do, a clock, and kill -9.

Used by tests only; nothing in the package knows of it. `Disk` stands between the package and every file that it
writes: before each operation (open for writing, mkdir, write, fsync, replace, unlink) a function of the test decides
what happens. `Commands` starts the real command line over and over without paying for its imports each time: a helper
process imports everything once and forks, and worker processes are forked instead of spawned. It is also the program
that it starts: `python faults.py` reads commands from stdin.
"""

from __future__ import annotations

import atexit
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# --- a file system --------------------------------------------------------------------------------------------


class Disk:
    """All writing under a directory, told to `each(operation, path)` before it happens; what that raises happens.

    A write that is refused, or that the process does not survive, leaves half of its data behind.
    """

    def __init__(self, patch: pytest.MonkeyPatch, under: Path, each: Callable[[str, Path], None]):
        self.under, self.each = under, each
        self._open = io.open
        patch.setattr(io, "open", self.open)
        for name in ("replace", "unlink", "mkdir", "fsync"):
            patch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(first: Any, *rest: Any, **more: Any) -> Any:
            target = rest[0] if name == "replace" else first
            path = Path(os.readlink(f"/proc/self/fd/{first}") if name == "fsync" else target)
            if path.is_relative_to(self.under):
                self._tell(name, path)
            return real(first, *rest, **more)

        return watched

    def _tell(self, operation: str, path: Path) -> None:
        try:
            self.each(operation, path)
        except Kill:
            kill_all()

    def open(self, file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        ours = isinstance(file, (str, Path)) and Path(file).is_relative_to(self.under)
        if not ours or not set(mode) & set("wax+"):
            return self._open(file, mode, *rest, **more)
        self._tell("open", Path(file))
        return Watched(self._open(file, mode, *rest, **more), Path(file), self.each)


@dataclass
class Watched:
    """A file open for writing, whose writes are told first."""

    stream: Any
    path: Path
    each: Callable[[str, Path], None]

    def write(self, data: Any) -> Any:
        try:
            self.each("write", self.path)
        except BaseException as error:
            self.stream.write(data[: len(data) // 2])
            self.stream.flush()
            if isinstance(error, Kill):
                kill_all()
            raise
        return self.stream.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stream.close()


@dataclass
class Refusing:
    """Refuses operations with an errno: those that `when(operation, path)` names, from the `after`-th of them on."""

    number: int
    when: Callable[[str, Path], bool] = lambda operation, path: True
    after: int = 0
    seen: int = 0

    def __call__(self, operation: str, path: Path) -> None:
        if self.when(operation, path):
            self.seen += 1
            if self.seen > self.after:
                raise OSError(self.number, os.strerror(self.number), str(path))


READ_ONLY = (errno.EROFS, errno.EACCES)
CHANGES = ("open", "replace", "unlink", "mkdir")  # what a read-only directory refuses


# --- an engine and a trainer ------------------------------------------------------------------------------------


@dataclass
class Failing:
    """An engine that raises `error` whenever it is asked for views of adapter `k`, from its call `at` on."""

    engine: Any
    k: int
    error: Exception
    at: int = 0
    calls: int = 0

    def reply(self, batches: Sequence[Sequence[Any]]) -> Any:
        self.calls += 1
        asked = {view.player.adapter for batch in batches for view in batch}
        if self.calls > self.at and self.k in asked:
            raise self.error
        return self.engine.reply(batches)


@dataclass
class SickScorer:
    """A scorer whose gradients of adapter `k` hold `value` in the steps `when` (from 1, counted by `step`)."""

    scorer: Any
    k: int
    when: set[int]
    step: Callable[[], int]
    value: float = float("nan")

    def batches(self, rows: Any, budget: int) -> Any:
        return self.scorer.batches(rows, budget)

    def gradients(self, k: int, rows: Any, normaliser: float) -> Any:
        gaps, gradients = self.scorer.gradients(k, rows, normaliser)
        if k == self.k and self.step() in self.when:
            for gradient in gradients:
                if gradient is not None:
                    gradient.view(-1)[0] = self.value
        return gaps, gradients


# --- a clock ------------------------------------------------------------------------------------------------------


@dataclass
class Clock:
    """time.time that goes back an hour with every look at it."""

    now: float = field(default_factory=time.time)

    def __call__(self) -> float:
        self.now -= 3600
        return self.now


# --- kill -9, and other signals, at the real command line -----------------------------------------------------------


@dataclass
class Started:
    """A command that runs. log: what it printed."""

    pid: int
    log: Path
    commands: Commands

    def signal(self, number: int, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.pid, number)

    def wait(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        return int(self.commands.ask({"wait": self.pid})["status"])

    def wait_for(self, there: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not there():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.002)


class Commands:
    """Starts `cotalk ...` in processes of their own, each the leader of its session."""

    def __init__(self) -> None:
        source = str(Path(__file__).parents[1] / "src")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source, "COLUMNS": "300"}
        self.server = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self.server.stdin and self.server.stdout
        self.server.stdin.write(json.dumps(what) + "\n")
        self.server.stdin.flush()
        return dict(json.loads(self.server.stdout.readline()))

    def start(
        self, *arguments: str, log: Path, kill: tuple[str, int] | None = None, under: Path | None = None
    ) -> Started:
        """kill: (kind, n): kill -9 to all its processes in the n-th moment of a kind; see `Moments`."""
        asked = {"start": arguments, "log": str(log), "kill": kill, "under": str(under or "/nowhere")}
        return Started(int(self.ask(asked)["pid"]), log, self)

    def close(self) -> None:
        assert self.server.stdin and self.server.stdout
        self.server.stdin.close()
        self.server.wait(timeout=30)
        self.server.stdout.close()


KINDS = ("generating", "line", "checkpoint", "between")


class Kill(BaseException):
    """Asked for by a `Moments`: ends all processes of the session, after half of a write."""


class Moments:
    """Counts moments by their kind, in all processes that are forked from here, and asks for a kill in one of them.

    generating: an engine call. line: half of a line of a run's JSONL file. checkpoint: an operation on one (opened,
    half written, before the sync, before the rename, before an old one goes). between: one on any other file.
    """

    def __init__(self, kind: str, at: int):
        import multiprocessing

        self.kind, self.at, self.seen = kind, at, multiprocessing.Array("i", len(KINDS))

    def __call__(self, kind: str) -> None:
        self.seen[KINDS.index(kind)] += 1
        if (kind, self.seen[KINDS.index(kind)]) == (self.kind, self.at):
            raise Kill

    def file(self, operation: str, path: Path) -> None:
        if "checkpoints" in path.parts:
            self("checkpoint")
        elif path.suffix != ".jsonl" or path.name.startswith(".") or "runs" not in path.parts:
            self("between")
        elif operation == "write":
            self("line")

    def engine(self) -> None:
        try:
            self("generating")
        except Kill:
            kill_all()


def kill_all() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)
    time.sleep(60)


def _serve() -> None:
    """The helper process: one JSON line in, one out."""
    import multiprocessing

    from cotalk import cli, jobs, live, report, single  # noqa: F401 (imported once, for all that are forked)

    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment,return-value]
    live.Live.__enter__ = lambda self: self  # type: ignore[method-assign] (no thread beside a fork)
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _command(asked)
        print(json.dumps({"pid": pid}), flush=True)


def _command(asked: dict[str, Any]) -> None:
    """A forked child: the command line, as `cotalk` runs it."""
    os.setsid()
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from rich.console import Console

    from cotalk import cli
    from cotalk.engines.hf import HfEngine

    cli.console = Console()
    moments = Moments(*(asked["kill"] or ("", 0)))
    if asked["kill"]:
        reply, patch = HfEngine.reply, pytest.MonkeyPatch()
        Disk(patch, Path(asked["under"]), moments.file)
        patch.setattr(HfEngine, "reply", lambda self, batches: (moments.engine(), reply(self, batches))[1])
    code = cli.main(list(asked["start"]))
    print("moments", json.dumps(list(moments.seen)), flush=True)
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    _serve()
