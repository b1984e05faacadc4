"""Worker processes: forked from one server, one thread each, in an environment of their own."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cotalk import processes
from cotalk.errors import RunFailed


def seen(name: str) -> tuple[str | None, bool, int]:
    return os.environ.get(name), "cotalk.puzzles" in sys.modules, os.getppid()


def test_workers_have_one_thread_each_and_this_process_keeps_its_environment():
    before = dict(os.environ)
    found = list(processes.in_order(seen, ["OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"], 2, "cotalk.puzzles"))
    assert [value for value, _, _ in found] == ["1", str(2 << 30)]
    assert dict(os.environ) == before


def test_workers_come_from_a_server_that_has_imported_what_they_need():
    context = processes.workers("cotalk.puzzles")
    found = list(processes.in_order(seen, ["PATH"] * 4, 2, "cotalk.puzzles"))
    parents = {parent for _, _, parent in found}
    assert context.get_start_method() == "forkserver" and parents != {os.getpid()} and len(parents) == 1
    assert all(imported for _, imported, _ in found)


def interrupted(_: int) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "goes on"


def test_ctrl_c_does_not_reach_workers_and_reaches_this_process_as_before():
    heard = signal.getsignal(signal.SIGINT)
    assert list(processes.in_order(interrupted, [1], 1, "cotalk.puzzles")) == ["goes on"]
    assert signal.getsignal(signal.SIGINT) is heard


def test_ctrl_c_while_something_is_started_is_heard_when_it_has_been():
    reached = []
    with pytest.raises(KeyboardInterrupt), processes.begun_with({}):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        reached.append(True)
    assert reached and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_without_a_server_workers_are_spawned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert processes.workers("cotalk.puzzles").get_start_method() == "spawn"


def large(number: int) -> tuple[int, bytes]:
    return number, bytes(300_000)


def test_results_come_in_order_and_whoever_has_enough_stops_asking():
    taken = iter(range(10**9))  # without an end
    some = itertools.islice(processes.in_order(large, taken, 2, "cotalk.puzzles"), 5)
    assert [number for number, _ in some] == [0, 1, 2, 3, 4]
    assert next(taken) <= 5 + 2 * processes.AHEAD


_told: list[str] = []  # of a worker process


def remember(word: str) -> None:
    _told.append(word)


def remembered(job: int) -> tuple[int, list[str]]:
    return job, _told


def test_a_process_remembers_what_it_was_told_first():
    found = list(processes.in_order(remembered, [7], 1, "cotalk.puzzles", remember, ("a word",)))
    assert found == [(7, ["a word"])] and _told == []


def died(_: int) -> None:
    os._exit(3)


def test_a_process_that_dies_is_an_error_and_no_endless_wait():
    with pytest.raises(RunFailed, match="a worker process died"):
        list(processes.in_order(died, [1, 2, 3], 2, "cotalk.puzzles"))


def slow(number: int) -> int:
    time.sleep(60)
    return number


PARENT = """
from cotalk import processes
from test_processes import slow
print("begun", flush=True)
list(processes.in_order(slow, range(4), 2, "test_processes"))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells whose children live")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_when_the_process_that_asked_for_them_is_killed(number: int):
    where = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=os.environ | {"PYTHONPATH": where}, text=True,
                              stdout=subprocess.PIPE, start_new_session=True)  # fmt: skip
    assert parent.stdout is not None and parent.stdout.readline() == "begun\n"
    group, until = os.getpgid(parent.pid), time.monotonic() + 60
    while len(members(group)) < 4 and time.monotonic() < until:  # itself, the server, two workers, a tracker
        time.sleep(0.1)
    time.sleep(0.5)
    assert len(members(group)) >= 4
    parent.send_signal(number)
    parent.wait()
    while members(group) and time.monotonic() < until:
        time.sleep(0.1)
    assert members(group) == []


def members(group: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[3]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found
