"""The terminal while a study runs: one bar a job, with its step, reward and the time left over all.

Left out: anything that is kept (metrics.jsonl has it all).
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cotalk.study import Study

EVALUATION_WEIGHT = 1.5  # a pass over the held-out tasks against a step, in bar lengths


class Live:
    """Called as a study's `progress`; a context manager that draws while it is open."""

    def __init__(self, study: Study, console: Console):
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(), TimeRemainingColumn(compact=True), console=console, refresh_per_second=2,
        )  # fmt: skip
        self._passes = {job.name: len(study.work(job)) for job in study.jobs()}
        self._steps = {job.name: study.job_config(job).steps if job.arm else 0 for job in study.jobs()}
        self._tasks: dict[str, TaskID] = {}
        total = sum(self._size(name) for name in self._passes)
        self._all = self._progress.add_task("all", total=total, now=f"{len(self._passes)} jobs")
        self._at = dict.fromkeys(self._passes, 0.0)

    def _size(self, name: str) -> float:
        return self._steps.get(name, 0) + EVALUATION_WEIGHT * self._passes.get(name, 1)

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, job: str, phase: str, done: int, of: int, metrics: dict[str, Any]) -> None:
        if job not in self._tasks:
            self._tasks[job] = self._progress.add_task(job, total=self._size(job), now="")
        training = phase == "train"
        at = done if training else self._steps.get(job, 0) + EVALUATION_WEIGHT * done
        now = f"step {done}/{of}  reward {metrics['reward']:.2f}" if training else f"held-out {done}/{of}"
        self._at[job] = max(self._at.get(job, 0.0), at)
        self._progress.update(self._tasks[job], completed=at, now=now)
        self._progress.update(self._all, completed=sum(self._at.values()))
