"""Worker processes of a study: one thread each on a CPU, one GPU each where there are several.

A CPU's worker takes one job after another; a GPU's has its share of them from the beginning, as one stack. Every job's
files are its own, so that neither who plays a job nor what is played beside it is seen in them (on a GPU up to
rounding), and a study that was begun with some workers goes on with others.

    failures = in_workers(run_jobs, (study, out, tasks), shares(jobs, 2, gpus=True), 2, gpus=True, progress)

Left out: what a job is and how it is played (jobs.py); where processes come from (processes.py).
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cotalk import processes
from cotalk.errors import BadInput, RunFailed, Stopped
from cotalk.study import Job, cores

Progress = Callable[[str, str, int, int, dict[str, Any]], None]  # job, phase, done, of, metrics
Plays = Callable[..., dict[str, str]]  # (*what, jobs, progress) -> failures


def how_many(asked: int, device: str, jobs: int) -> int:
    """Processes that play so many jobs on a device (of `pick_device`): on a CPU one a core, unless fewer are asked for.

    On GPUs one, unless more are asked for. Raises BadInput for more than there are.
    """
    if device == "cpu":
        return max(1, min(asked or cores(), jobs))
    refuse_one_gpu(asked, device)
    if asked > torch.cuda.device_count():
        raise BadInput(
            f"--workers {asked}: torch sees {torch.cuda.device_count()} GPU here, and each worker has one; expected no "
            "more than that",
            "device/workers",
        )
    return max(1, min(asked, jobs))


def refuse_one_gpu(asked: int, device: str) -> None:
    """Raises BadInput where several workers would have to share the one GPU that a device names ("cuda:1")."""
    if asked > 1 and ":" in device:
        raise BadInput(
            f'--workers {asked} with device = "{device}", which is one GPU: expected --workers 1, or device = "cuda" '
            "for the first GPUs that this process sees",
            "device/workers",
        )


def shares(jobs: Sequence[Job], workers: int, gpus: bool) -> list[list[Job]]:
    """What workers take at a time: on a CPU a job; on GPUs all that one plays, every arm's seeds dealt round."""
    if not gpus:
        return [[job] for job in jobs]
    # a stable sort: seeds in their order, and the base's job (of no arm) last
    by_arm = sorted(jobs, key=lambda job: job.arm, reverse=True)
    return [share for i in range(workers) if (share := by_arm[i::workers])]


def in_workers(
    plays: Plays, what: tuple[Any, ...], shared: Sequence[Sequence[Job]], workers: int, gpus: bool, progress: Progress
) -> dict[str, str]:  # fmt: skip
    """plays(*what, share, progress) of every share, in processes; each takes the next one when it is free.

    gpus: each process sees one GPU, the first one the first, and no other. (They are spawned: a process that was forked
    after any module asked torch for a GPU cannot have one.) Returns all failures. Raises what a worker raised, as
    RunFailed where it is no error of ours, and RunFailed when one died.
    """
    context = multiprocessing.get_context("spawn") if gpus else processes.workers(plays.__module__)
    owed, told = context.Queue(), context.Queue()
    for (
        share
    ) in shared:  # with all that it needs: a start would wait until the process has read a large argument
        owed.put((what, share))
    for _ in range(workers):
        owed.put(None)
    started: list[Any] = []
    try:
        for number in range(workers):
            process = context.Process(target=_worker, args=(plays, number, gpus, owed, told))
            with processes.begun_with({"CUDA_VISIBLE_DEVICES": visible_gpu(number)} if gpus else {}):
                process.start()
            started.append(process)
        failures = _listen(started, told, progress)
        for process in started:
            process.join()
        return failures
    finally:
        _end(started)
        for line in (owed, told):  # what a stopped worker left in them is owed again
            line.close()
            line.cancel_join_thread()


def visible_gpu(number: int) -> str:
    """What CUDA_VISIBLE_DEVICES must be for a process that sees only the GPU that has this number here."""
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return seen[number] if number < len(seen) else str(number)


def _end(started: Sequence[Any]) -> None:
    """Until all have ended: those still at work are asked to stop, with a checkpoint; again, and they are killed."""
    for process in started:
        if process.is_alive():
            process.terminate()
    try:
        for process in started:
            process.join()
    except BaseException:
        for process in started:
            process.kill()
        raise


def _listen(processes: Sequence[Any], told: Any, progress: Progress) -> dict[str, str]:
    """Passes progress on until every worker has said its last; one that ends without a word is an error."""
    failures: dict[str, str] = {}
    at_work = set(range(len(processes)))
    while at_work:
        try:
            kind, *what = told.get(timeout=1.0)
        except queue.Empty:
            codes = [processes[number].exitcode for number in sorted(at_work)]
            dead = [code for code in codes if code not in (None, 0)]
            if dead or None not in codes:  # all of them ended with 0, and did not say so
                code = dead[0] if dead else 0
                killed = " (killed from outside, most often because memory ran out)" if code == -9 else ""
                raise RunFailed(
                    f"a worker process ended with exit code {code}{killed}; the same command goes on",
                    "run/worker",
                ) from None
            continue
        if kind == "progress":
            progress(*what)
        elif kind == "failures":
            failures |= what[0]
        elif kind == "end":
            at_work.remove(what[0])
        elif kind == "error":
            raise what[0]
    return failures


def _worker(plays: Plays, number: int, on_gpu: bool, owed: Any, told: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all: the parent asks, with SIGTERM
    processes.end_with_parent()
    try:
        if not on_gpu:
            torch.set_num_threads(1)
        while (given := owed.get()) is not None:
            what, share = given
            told.put(("failures", plays(*what, share, lambda *step: told.put(("progress", *step)))))
        told.put(("end", number))
    except (BadInput, RunFailed) as error:
        told.put(("error", error))
    except Exception as error:
        traceback.print_exc()
        told.put(("error", RunFailed(f"a worker failed: {type(error).__name__}: {error}", "run/worker")))
    except Stopped:
        told.cancel_join_thread()  # the parent listens no more
        raise
