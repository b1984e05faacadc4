"""Whether a long study grows: 2,000 toy steps of six runs in one stack, its memory and open files as they go.

The runs are those of the tests (a two-layer base, sums as tasks): open and closed, one adapter or one a seat, the
built-in grader (processes of its own) and a function, dev looks and checkpoints every ten steps. The package's bounded
caches (texts already encoded, answers already graded) are made small, and the tokenizer's own (10,000 texts) is filled
first, so that all are full before the warm-up ends: what grows after it is a leak. Memory is what the process holds
once the allocator has given back what it can. Prints a table and one JSON line; exit code 1 when memory (by more than
GROWTH_MIB) or open files grew after the warm-up. Linux (/proc, glibc).

    PYTHONPATH=src OMP_NUM_THREADS=1 python bench/soak.py --steps 2000
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from rich.console import Console
from rich.table import Table

from conftest import small_base
from cotalk import grade_worker, view
from cotalk.lora import Stack
from cotalk.run import RunDirectory
from cotalk.stack import drive
from cotalk.train import Run, train
from toy import engine_of, toy_config, toy_run

ARMS = (
    dict(),
    dict(channel="closed"),
    dict(adapters="per_seat"),
    dict(view="transcript"),
    dict(seed=18),
    dict(seed=18, adapters="per_seat", channel="closed"),
)
CACHED = 200  # entries of each bounded cache
TOKENIZED = 20_000  # texts that fill the tokenizer's: 0.7 kB each, for 10,000 of them
OWN_GRADER = 2  # of the runs: the last ones are graded by the package's own processes
GROWTH_MIB = (
    8.0  # after the warm-up; noise of the allocator is within it, a leak of 1 kB a step and run is not
)


@dataclass(frozen=True)
class Sample:
    """What the process holds after a step of all runs. objects: that Python's collector knows of."""

    step: int
    seconds: float
    rss_mib: float
    files: int
    objects: int


def sample(step: int, began: float) -> Sample:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    rss = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return Sample(step, time.monotonic() - began, rss, files, len(gc.get_objects()))


def soak(out: Path, steps: int, every: int) -> list[Sample]:
    """Plays six runs of so many steps in one stack; a sample each `every` steps of the first one."""
    settings = dict(
        steps=steps, order="AB", problems=1, chats=2, message_tokens=2, answer_tokens=3, train_tasks=64, dev_tasks=2,
        dev_every=10, checkpoint_every=10, lr=0.001, decay="constant",
    )  # fmt: skip
    configs = [toy_config(**(settings | arm)) for arm in ARMS]
    rows = [2 if config.adapters == "per_seat" else 1 for config in configs]
    stack = Stack(small_base().model, sum(rows), configs[0].rank, configs[0].alpha)
    runs: list[Run] = []
    for i, config in enumerate(configs):
        runs.append(toy_run(out / str(i), config, stack, first=1 + sum(rows[:i]), name=str(i)))
    for run in runs[-OWN_GRADER:]:
        run.grader = None
    found: list[Sample] = []
    began = time.monotonic()

    def told(step: int, _: object) -> None:
        if step % every == 0:
            found.append(sample(step, began))

    form = runs[0].form
    for run in runs:
        run.form = form  # one tokenizer for all runs, as in a study
    for n in range(TOKENIZED):
        form.tokenizer.encode(f"text {n} of none", add_special_tokens=False)
    runs[0].progress = told
    view._TEXTS_KEPT = grade_worker.KNOWN_ANSWERS = CACHED
    failures: dict[str, Exception] = {}
    drive({run.name: train(run) for run in runs}, engine_of(runs[0]), failures.__setitem__)
    assert not failures, failures
    assert all(RunDirectory(out / run.name).done and run.step == steps for run in runs)
    return found


def grew(samples: list[Sample], warm_up: int) -> list[str]:
    """What grew between the end of the warm-up and the end, in words; empty when nothing did."""
    first, last = next(s for s in samples if s.step >= warm_up), samples[-1]
    told = []
    if last.rss_mib - first.rss_mib > GROWTH_MIB:
        told.append(
            f"memory grew by {last.rss_mib - first.rss_mib:.1f} MiB from step {first.step} to {last.step}"
        )
    if last.files > first.files:
        told.append(f"open files grew from {first.files} to {last.files}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples = soak(Path(folder), options.steps, options.every)
    table = Table(title=f"{len(ARMS)} runs in one stack, {options.steps} steps each", title_justify="left")
    for column in ("step", "seconds", "memory (RSS), MiB", "open files", "Python objects"):
        table.add_column(column, justify="right")
    for s in samples:
        table.add_row(f"{s.step:,}", f"{s.seconds:.0f}", f"{s.rss_mib:.1f}", str(s.files), f"{s.objects:,}")
    Console().print(table)
    told = grew(samples, options.warm_up)
    first = next(found for found in samples if found.step >= options.warm_up)
    more = samples[-1].rss_mib - first.rss_mib
    within = f"memory {more:+.1f} MiB after step {first.step}, a leak is {GROWTH_MIB} or more"
    print("; ".join(told) or f"{within}; no more open files")
    print(json.dumps({"bench": "soak", "grew": told, "samples": [asdict(s) for s in samples]}))
    raise SystemExit(1 if told else 0)


if __name__ == "__main__":
    main()
