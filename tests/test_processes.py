"""Worker processes: forked from one server, one thread each, in an environment of their own."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from cotalk import processes


def seen(name: str) -> tuple[str | None, bool, int]:
    return os.environ.get(name), "cotalk.puzzles" in sys.modules, os.getppid()


def test_workers_have_one_thread_each_and_this_process_keeps_its_environment():
    before = dict(os.environ)
    with processes.workers("cotalk.puzzles").Pool(2) as pool:
        found = pool.map(seen, ["OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"])
    assert [value for value, _, _ in found] == ["1", str(2 << 30)]
    assert dict(os.environ) == before


def test_workers_come_from_a_server_that_has_imported_what_they_need():
    context = processes.workers("cotalk.puzzles")
    with context.Pool(2) as pool:
        found = pool.map(seen, ["PATH"] * 4)
    parents = {parent for _, _, parent in found}
    assert context.get_start_method() == "forkserver" and parents != {os.getpid()} and len(parents) == 1
    assert all(imported for _, imported, _ in found)


def interrupted(_: int) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "goes on"


def test_ctrl_c_does_not_reach_workers_and_reaches_this_process_as_before():
    heard = signal.getsignal(signal.SIGINT)
    with processes.workers("cotalk.puzzles").Pool(1) as pool:
        assert pool.map(interrupted, [1]) == ["goes on"]
    assert signal.getsignal(signal.SIGINT) is heard


def test_without_a_server_workers_are_spawned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert processes.workers("cotalk.puzzles").get_start_method() == "spawn"
