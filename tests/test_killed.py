"""The real command line, stopped: by kill -9 at any moment, by Ctrl-C, by SIGTERM. The same command goes on.

All that a study leaves is compared but its times: in results.json `created`, `git`, and of `cost` the seconds and
workers; in metrics.jsonl `seconds`; and report.html, which tells them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults import KINDS, Commands, Started
from toy import SETTINGS, differing, everything, left, toy_base, toy_grader, toy_study, toy_tasks

STEPS = 4


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    found = Commands()
    yield found
    found.close()


@pytest.fixture(scope="module")
def toml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_study(tmp_path_factory.mktemp("study"), steps=STEPS)


def arguments(toml: Path, out: Path, workers: int = 1) -> list[str]:
    return ["study", str(toml), "--out", str(out), "--workers", str(workers)]


@pytest.fixture(scope="module")
def whole(
    commands: Commands, toml: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, int], float]:
    """What nothing interrupted leaves; how many moments of each kind it has; and its seconds."""
    out = tmp_path_factory.mktemp("whole") / "out"
    began = time.monotonic()
    started = commands.start(*arguments(toml, out), log=out.parent / "log", kill=("", 0), under=out)
    assert started.wait() == 0, started.log.read_text()
    seconds = time.monotonic() - began
    counts = json.loads(started.log.read_text().split("moments ")[-1])
    return left(out), dict(zip(KINDS, counts, strict=True)), seconds


def goes_on(commands: Commands, toml: Path, out: Path, expected: dict[str, Any], workers: int = 1) -> None:
    again = commands.start(*arguments(toml, out, workers), log=out.parent / "again")
    assert again.wait() == 0, again.log.read_text()
    assert differing(left(out), expected) == []


RANDOM = random.Random(int(os.environ.get("COTALK_KILL_SEED", "8")))  # other moments: another number
EACH = 4
KILLS = [(kind, (i + RANDOM.random()) / EACH) for kind in (*KINDS, "by the clock") for i in range(EACH)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "share"), KILLS, ids=[f"{kind}-{share:.2f}" for kind, share in KILLS])
def test_a_study_killed_at_a_random_moment_goes_on_to_the_same_bits(
    kind: str, share: float, commands: Commands, toml: Path, whole: tuple[Any, ...], tmp_path: Path
) -> None:
    """share: how far into all moments of that kind, or into the time that the whole takes (two workers then)."""
    expected, moments, seconds = whole
    out = tmp_path / "out"
    if kind == "by the clock":
        started = commands.start(*arguments(toml, out, 2), log=tmp_path / "log")
        end = time.monotonic() + share * seconds / 2
        started.wait_for(lambda: time.monotonic() > end or (out / "results.json").exists())
        started.signal(signal.SIGKILL, group=True)
    else:
        at = 1 + int(share * moments[kind])
        started = commands.start(*arguments(toml, out), log=tmp_path / "log", kill=(kind, at), under=out)
    assert started.wait() == -signal.SIGKILL, started.log.read_text()
    goes_on(commands, toml, out, expected, workers=2 if kind == "by the clock" else 1)
    assert not list(out.rglob("*.part"))


def stopped(commands: Commands, toml: Path, out: Path, number: int, group: bool) -> Started:
    """A study of two workers that was sent a signal after its third step."""
    started = commands.start(*arguments(toml, out, 2), log=out.parent / "log")
    metrics = out / "runs" / "open-17" / "metrics.jsonl"
    started.wait_for(lambda: metrics.is_file() and b'"step": 3' in metrics.read_bytes())
    started.signal(number, group)
    return started


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "group", "code"), [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)]
)
def test_a_signal_ends_a_study_with_its_code_whole_lines_and_a_way_to_go_on(
    number: int,
    group: bool,
    code: int,
    commands: Commands,
    toml: Path,
    whole: tuple[Any, ...],
    tmp_path: Path,
) -> None:
    """SIGINT as a terminal sends it, to all processes at once; SIGTERM as `kill` does, to one."""
    out = tmp_path / "out"
    started = stopped(commands, toml, out, number, group)
    assert started.wait() == code
    assert "the same command goes on where it stopped" in started.log.read_text()
    assert "Traceback" not in started.log.read_text()
    for path in out.rglob("*.jsonl"):
        assert path.read_bytes()[-1:] in (b"", b"\n")
    goes_on(commands, toml, out, whole[0], workers=2)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_one_run_writes_a_checkpoint_of_its_last_step(
    number: int, code: int, commands: Commands, tmp_path: Path
) -> None:
    """Checkpoints are due every 50 steps: without one of its own, the stop would lose all of them."""
    settings = SETTINGS | dict(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")), device="cpu", steps=60,
        grade=toy_grader(tmp_path / "grader.py"), message_tokens=3, answer_tokens=4, problems=1, dev_every=3,
        checkpoint_every=50,
    )  # fmt: skip
    flags = [part for k, v in settings.items() for part in (f"--{k.replace('_', '-')}", str(v))]
    train = ["train", *flags, "--out"]
    out, metrics = tmp_path / "out", tmp_path / "out" / "metrics.jsonl"
    started = commands.start(*train, str(out), log=tmp_path / "log")
    started.wait_for(lambda: metrics.is_file() and b'"step": 5,' in metrics.read_bytes())
    started.signal(number)
    assert started.wait() == code, started.log.read_text()
    told = started.log.read_text()
    assert (
        "stopping where the runs next wait, with a checkpoint" in told and "the same command goes on" in told
    )
    (kept,) = (out / "checkpoints").iterdir()
    last = [json.loads(line)["step"] for line in metrics.read_text().splitlines()][-1]
    assert kept.name == f"stopped-{last:06d}.safetensors" and 5 <= last < 50
    before = os.stat(out / "tokens" / f"step-{last:06d}.npz").st_mtime_ns

    assert commands.start(*train, str(out), log=tmp_path / "again").wait() == 0
    assert (
        os.stat(out / "tokens" / f"dev-{last // 3 * 3:06d}.npz").st_mtime_ns <= before
    )  # nothing was played again
    assert commands.start(*train, str(tmp_path / "whole"), log=tmp_path / "other").wait() == 0
    assert differing(everything(out), everything(tmp_path / "whole")) == []
