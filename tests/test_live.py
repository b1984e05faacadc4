"""The terminal's table: what it says of runs that wait, train, are evaluated, are done or failed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from cotalk.live import Live, duration, table
from cotalk.watch import RunState, StudyState
from test_watch import make_study, step, write


def words(thing: object, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(thing)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_the_table_has_a_row_a_run_and_the_time_left_of_all() -> None:
    runs = (
        RunState("open-17", Path(), phase="training", step=10, steps=20, of_passes=4, reward=0.5, dev=0.25,
                 tokens_per_second=1234.0, pace=2.0, quiet=1.0, left=32.0),
        RunState("open-18", Path(), phase="done", step=20, steps=20, passes=4, of_passes=4),
        RunState("open-19", Path(), phase="failed", step=3, steps=20, of_passes=4),
        RunState("base", Path(), of_passes=8),
    )  # fmt: skip
    found = words(table(StudyState("x", "x", Path(), runs)))
    assert found[0].split() == ["run", "step", "held-out", "reward", "dev", "tokens/s", "left"]
    assert found[1].replace("━", "").replace("╸", "").split() == [
        "open-17", "10/20", "0/4", "0.50", "0.25", "1,234", "32", "s",
    ]  # fmt: skip
    assert (
        found[2].split()[-1] == "done"
        and found[3].split()[-1] == "failed"
        and found[4].split()[-1] == "waiting"
    )
    # done: 10 + 26 + 3 of 3 x (20 + 6) + 12 = 90. Owed: 10 steps and 6 of open-17, 12 of the base, at 2 seconds each
    assert found[5].split() == ["all", "43%", "1,234", "56", "s"]
    assert max(map(len, found)) <= 80


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_a_duration_is_said_in_two_units_at_most(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def test_the_table_is_drawn_anew_from_the_files(tmp_path: Path) -> None:
    live = Live(make_study(tmp_path), Console(file=io.StringIO()))
    assert any("waiting" in line for line in words(live))
    write(tmp_path / "runs/open-17/metrics.jsonl", step(3))
    assert any("3/4" in line and "0.30" in line for line in words(live))


def test_where_there_is_no_terminal_the_last_table_is_printed_once(tmp_path: Path) -> None:
    make_study(tmp_path)
    console = Console(file=io.StringIO(), width=80)
    with Live(tmp_path, console):
        pass
    assert console.file.getvalue().count("open-17") == 1  # type: ignore[attr-defined]
