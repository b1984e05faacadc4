"""The terminal while a study runs: a table with a row a run, and what is left of all.

It shows what the files say (watch.py), as `cotalk view` does, so it can also be drawn from another terminal.
Left out: anything that is kept (metrics.jsonl has it all).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live as Screen
from rich.progress_bar import ProgressBar
from rich.table import Table

from cotalk.watch import Phase, RunState, StudyState, Watch

STYLES: dict[Phase, str] = {
    "waiting": "dim",
    "training": "",
    "evaluating": "cyan",
    "done": "green",
    "failed": "red",
}


class Live:
    """A context manager that draws a study's directory once a second while it is open."""

    def __init__(self, out: Path, console: Console):
        self._watch = Watch(out)
        self._screen = Screen(self, console=console, refresh_per_second=1, vertical_overflow="ellipsis")

    def __enter__(self) -> Live:
        self._screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._screen.stop()
        if not self._screen.console.is_terminal:  # there rich ends the table's last line itself
            self._screen.console.line()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for study in self._watch.look():
            yield table(study)


def table(study: StudyState) -> Table:
    """One study as a table: run, step, passes, reward, dev, tokens a second, time left; the last row is all of it."""
    found = Table(title_justify="left", show_footer=len(study.runs) > 1, box=None, pad_edge=False)
    left = "" if study.finished else duration(study.left)
    speed = sum(run.tokens_per_second or 0 for run in study.runs if run.working and run.phase == "training")
    for heading, footer in (
        ("run", "all"), ("", f"{100 * study.share:.0f}%"), ("step", ""), ("held-out", ""), ("reward", ""), ("dev", ""),
        ("tokens/s", f"{speed:,.0f}" if speed else ""), ("left", left),
    ):  # fmt: skip
        words = heading in ("run", "")
        found.add_column(heading, footer, justify="left" if words else "right", no_wrap=True)
    for run in study.runs:
        found.add_row(*_row(run), style=STYLES[run.phase])
    return found


def _row(run: RunState) -> Iterable[str | ProgressBar]:
    yield run.name
    yield ProgressBar(total=max(run.total, 1e-9), completed=min(run.done, run.total), width=12)
    yield f"{run.step}/{run.steps}" if run.steps else ""
    yield f"{run.passes}/{run.of_passes}" if run.of_passes else ""
    yield "" if run.reward is None else f"{run.reward:.2f}"
    yield "" if run.dev is None else f"{run.dev:.2f}"
    yield "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}"
    yield duration(run.left) if run.phase in ("training", "evaluating") else run.phase


def duration(seconds: float | None) -> str:
    """40 s, 3 min 20 s, 2 h 05 min; "-" where nothing can be said."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
