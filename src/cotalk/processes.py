"""Where worker processes come from: one server that has imported what they need, and forks them.

`spawn` would let every worker import torch and transformers for itself, and waits for each that is handed more than a
pipe holds: 32 workers took five minutes to start on a machine with slow cores. The server runs no torch operation and
never touches a GPU, so that forking it is safe.

    for part in in_order(draw, chunks, 8, "cotalk.bases.problems"): ...

Left out: what workers do (workers.py, bases/).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

from cotalk.errors import RunFailed

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # glibc: keep freed blocks instead of giving them back and faulting them in again at every step
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2 << 30),
}

AHEAD = 2  # jobs a process that are handed out and not yet taken


def in_order(
    do: Callable[[Any], Any],
    jobs: Iterable[Any],
    count: int,
    imports: str,
    remember: Callable[..., None] | None = None,
    state: tuple[Any, ...] = (),
) -> Iterator[Any]:
    """do(job) of every job, in their order, in `count` processes, each of which first calls remember(*state).

    Jobs are taken as results are: whoever stops asking waits for those begun (AHEAD a process at most) and no others.
    (`multiprocessing.Pool` can wait for ever for its own threads when it is left with jobs to do.)

    Raises:
        RunFailed: a process died.
    """
    coming = iter(jobs)
    with ProcessPoolExecutor(count, workers(imports), _begin, (remember, state)) as pool:
        begun: deque[Future[Any]] = deque()
        try:
            while True:
                for job in itertools.islice(coming, AHEAD * count - len(begun)):
                    begun.append(pool.submit(do, job))
                if not begun:
                    return
                yield begun.popleft().result()
        except BrokenProcessPool as error:
            raise RunFailed(
                "a worker process died (most often because memory ran out); the same command begins again",
                "run/worker",
            ) from error
        finally:
            for future in begun:
                future.cancel()


def _begin(remember: Callable[..., None] | None, state: tuple[Any, ...]) -> None:
    end_with_parent()
    if remember:
        remember(*state)


def end_with_parent() -> None:
    """From now on this worker ends when the process that asked for it does, however that ends.

    One that outlived a killed study would write the same files beside the command that goes on.
    """
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def workers(imports: str) -> ForkServerContext | SpawnContext:
    """A multiprocessing context whose processes have the module `imports` imported, with one thread each.

    They have this process's environment as it was at the first call, and ENVIRONMENT. Ctrl-C, which goes to all
    processes of a terminal, does not reach them: whoever started them ends them. Where a system cannot fork they are
    spawned, with this process's environment as it is.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload([imports])
    with begun_with(ENVIRONMENT):
        from multiprocessing.forkserver import ensure_running

        ensure_running()
    return found


@contextmanager
def begun_with(environment: Mapping[str, str]) -> Iterator[None]:
    """These variables, and no Ctrl-C, for what is started inside; this process's own are as before.

    What is started inherits the blocked signal. Here one that comes meanwhile is heard at the end: a process that has
    been started and not been noted yet could be left behind otherwise.
    """
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    in_main = threading.current_thread() is threading.main_thread()  # signals are its matter alone
    came: list[int] = []
    resource_tracker.ensure_running()  # when it starts, it unblocks the signal
    if in_main:
        heard = signal.signal(signal.SIGINT, lambda number, _: came.append(number))  # of other threads
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if in_main:
            signal.signal(signal.SIGINT, heard)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if came:
                signal.raise_signal(signal.SIGINT)
