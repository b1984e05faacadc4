"""What a directory of studies and runs says of itself, also while it is being written: states, curves, chats.

The terminal (live.py) and the browser (serve.py) show what is told here, so both tell the same. Nothing is written,
no model is loaded, and nothing but whole lines is read: a half-written last line waits for its end, and a line that
is no JSON object is passed over. Only regular files that lie below the root once every symbolic link is followed
are opened.

    watch = Watch(Path("runs"))       # a run, a study, or a directory that holds some
    for study in watch.look():        # reads only what is new in the files of numbers
        study.left, study.runs[0].step, study.runs[0].curves

Left out: statistics (dev scores are curves, never a result) and everything that results.json holds.
"""

from __future__ import annotations

import glob
import json
import os
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from cotalk import causal, evaluate
from cotalk.config import read_toml
from cotalk.errors import BadInput
from cotalk.report.read import is_number, thinned
from cotalk.study import Job, Study, study_from

Json = dict[str, Any]
Phase = Literal["waiting", "training", "evaluating", "done", "failed"]

CURVES = (  # keys of metrics.jsonl that are drawn (docs/methods.md has a line for each)
    "reward", "dev/score", "dev/sends", "dev/uses", "message_tokens", "groups/flat", "cut",
)  # fmt: skip
KEPT = (*CURVES, "step", "seconds", "tokens", "chats")
CURVE_POINTS = 300  # of one curve of one run
RECENT_STEPS = 10  # that a pace is taken from
PASS_WEIGHT = 1.5  # a pass over the held-out tasks against a step, in time
QUIET_SECONDS = 60.0  # without a word, or ten times a run's own step: it no longer counts as working
TAIL_BYTES = 4 << 20  # of a file of chats: its newest ones
MOST_CHATS = 2_000
MOST_STUDIES = 200


# --- lines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cursor:
    """How far a file was read. A resume writes the file anew (another inode): it is read again from 0."""

    inode: int = 0
    offset: int = 0


START = Cursor()


def new_lines(path: Path, cursor: Cursor = START) -> tuple[list[Json], Cursor]:
    """The whole lines after the cursor, and the next cursor; from the beginning when the file is another one."""
    try:
        with path.open("rb") as stream:
            about = os.fstat(stream.fileno())
            same = cursor.inode == about.st_ino and cursor.offset <= about.st_size
            start = cursor.offset if same else 0
            stream.seek(start)
            data = stream.read()
    except OSError:
        return [], START
    whole = data[: data.rfind(b"\n") + 1]
    return list(_objects(whole.split(b"\n"))), Cursor(about.st_ino, start + len(whole))


def last_lines(path: Path, most: int = MOST_CHATS, most_bytes: int = TAIL_BYTES) -> tuple[list[Json], bool]:
    """The newest whole lines of a file, oldest first, and whether there are older ones that were left out."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            start = max(0, size - most_bytes)
            stream.seek(start)
            data = stream.read(most_bytes)
    except OSError:
        return [], False
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[
        :-1
    ]  # the first may be the end of one, which is no object
    return list(_objects(lines[-most:])), bool(start) or len(lines) > most


def _objects(lines: Iterable[bytes]) -> Iterable[Json]:
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def inside(root: Path, path: Path) -> bool:
    """Whether a path is a regular file that lies below `root` (resolved), wherever symbolic links lead."""
    try:
        real = path.resolve(strict=True)
        return real.is_relative_to(root) and stat.S_ISREG(real.stat().st_mode)
    except (OSError, RuntimeError):
        return False


# --- states -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunState:
    """One run (or "base") as its files tell it.

    passes: of the held-out tasks on disk. reward: of the last step's `chats`; dev: of the last look at `dev_tasks`.
    pace: seconds a step, None until one is done. quiet: seconds since it last wrote. left: seconds.
    """

    name: str
    path: Path
    arm: str = ""
    phase: Phase = "waiting"
    step: int = 0
    steps: int = 0
    passes: int = 0
    of_passes: int = 0
    reward: float | None = None
    chats: int = 0
    dev: float | None = None
    dev_tasks: int = 0
    tokens_per_second: float | None = None
    pace: float | None = None
    quiet: float | None = None
    left: float | None = None
    reason: str = ""
    curves: Json = field(default_factory=dict)

    @property
    def done(self) -> float:
        """Work that is done, in steps."""
        return self.step + PASS_WEIGHT * self.passes

    @property
    def total(self) -> float:
        return self.steps + PASS_WEIGHT * self.of_passes

    @property
    def working(self) -> bool:
        """Whether it wrote lately and has something left to do."""
        wait = max(QUIET_SECONDS, 10 * (self.pace or 0))
        return self.phase in ("training", "evaluating") and self.quiet is not None and self.quiet < wait


@dataclass(frozen=True)
class StudyState:
    """A study, or a run that stands alone (`alone`). id: its path below the root, "." for the root itself."""

    id: str
    name: str
    path: Path
    runs: tuple[RunState, ...]
    alone: bool = False
    problem: str = ""

    @property
    def share(self) -> float:
        """Of the work that is done, 0 to 1."""
        total = sum(run.total for run in self.runs)
        return min(1.0, sum(run.done for run in self.runs) / total) if total else 0.0

    @property
    def left(self) -> float | None:
        """Seconds until all is done, at the pace of the runs that are at work; None when none is."""
        return time_left(self.runs)

    @property
    def finished(self) -> bool:
        return bool(self.runs) and all(run.phase in ("done", "failed") for run in self.runs)

    @property
    def has_report(self) -> bool:
        return (self.path / "report.html").is_file()


def time_left(runs: Sequence[RunState]) -> float | None:
    """Work left / speed, both in steps: speeds of runs that work side by side add up.

    A run without a step of its own (the base) is taken to be as fast as the median of those that have one.
    """
    paces = [run.pace for run in runs if run.pace]
    working = [run for run in runs if run.working]
    if not paces or not working:
        return None
    usual = median(paces)
    speed = sum(1 / (run.pace or usual) for run in working)
    owed = sum(max(0.0, run.total - run.done) for run in runs if run.phase not in ("done", "failed"))
    return owed / speed


class Watch:
    """Looks at a directory again and again. Threads may share one."""

    def __init__(self, root: Path):
        self.root = root.resolve()
        if not self.root.is_dir():
            raise BadInput(
                f"{root} is no directory; expected a study's or a run's. Type: cotalk view runs/quickstart",
                "run/missing",
            )
        self._plans: dict[Path, tuple[tuple[int, ...], list[Plan]]] = {}
        self._numbers: dict[Path, tuple[Cursor, list[dict[str, float]]]] = {}
        self._lock = threading.Lock()

    def look(self) -> list[StudyState]:
        """Every study and lone run at the root, below it, or one level deeper."""
        with self._lock:
            return [self._study(path) for path in self._found()]

    def _found(self) -> list[Path]:
        level, found = [self.root], []
        for _ in range(3):
            found += [p for p in level if self._is_study(p) or self._is_run(p)]
            rest = [p for p in level if p not in found]
            level = [child for p in rest for child in _directories(p)]
        return found[:MOST_STUDIES]

    def _is_study(self, path: Path) -> bool:
        return inside(self.root, path / "study.toml")

    def _is_run(self, path: Path) -> bool:
        return inside(self.root, path / "config.toml")

    def _id(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _study(self, path: Path) -> StudyState:
        problem = ""
        alone = not self._is_study(path)
        try:
            runs = [self._run(plan) for plan in ([_lone(path)] if alone else self._plan(path))]
        except (BadInput, OSError, ValueError) as error:  # written by another version, or by hand
            runs, problem = [], str(error)
        return StudyState(self._id(path), path.name, path, tuple(_with_left(r) for r in runs), alone, problem)

    def _plan(self, path: Path) -> list[Plan]:
        """What a study means to do; its file is read again only when it changes."""
        about = (path / "study.toml").stat()
        version = (about.st_ino, about.st_mtime_ns, about.st_size)
        before, found = self._plans.get(path, ((), []))
        if before != version:
            table = read_toml(path / "study.toml")
            found = plans(path, study_from(path.name, table, None, None, str(path / "study.toml")))
            self._plans[path] = version, found
        return found

    def _run(self, plan: Plan) -> RunState:
        path, steps, passes = plan.path, plan.steps, plan.passes
        lines = self._lines(path / "metrics.jsonl")
        trained = [line for line in lines if "reward" in line]
        looked = [line for line in lines if "dev/score" in line]
        played = sum(inside(self.root, p) for p in passes)
        step = int(trained[-1]["step"]) if trained else 0
        recent = [line for line in trained[-RECENT_STEPS:] if line.get("seconds", 0) > 0]
        seconds = [line["seconds"] for line in recent]
        tokens = sum(line.get("tokens", 0) for line in recent)
        quiet = _quiet([path / "metrics.jsonl", *passes])
        failed = inside(self.root, path / "failed.json") and not _tried_again(path / "failed.json", quiet)
        ended = inside(self.root, path / "done.json") if steps else True
        began = bool(lines) or played > 0
        phase: Phase = "failed" if failed else _phase(began, ended, played < len(passes))
        return RunState(
            plan.name, path, plan.arm, phase, step, steps, played, len(passes),
            reward=trained[-1]["reward"] if trained else None,
            chats=int(trained[-1].get("chats", 0)) if trained else 0,
            dev=looked[-1]["dev/score"] if looked else None,
            dev_tasks=plan.dev_tasks,
            tokens_per_second=tokens / sum(seconds) if seconds else None,
            pace=median(seconds) if seconds else None,
            quiet=quiet,
            reason=self._reason(path / "failed.json") if failed else "",
            curves={key: curve for key in CURVES if (curve := _curve(lines, key))},
        )  # fmt: skip

    def _lines(self, path: Path) -> list[dict[str, float]]:
        """All numbers of a run, in order of steps; only what is new is read."""
        if not inside(self.root, path):
            self._numbers.pop(path, None)
            return []
        cursor, kept = self._numbers.get(path, (START, []))
        lines, after = new_lines(path, cursor)
        if after.inode != cursor.inode or after.offset < cursor.offset:
            kept = []
        kept = kept + [_numbers(line) for line in lines if number(line.get("step")) is not None]
        self._numbers[path] = after, kept
        return kept

    def _reason(self, path: Path) -> str:
        try:
            told = json.loads(path.read_bytes())["reason"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "failed"
        return str(told).splitlines()[0] if str(told).strip() else "failed"

    # --- chats ---

    def chat_files(self, study: StudyState, run: RunState) -> dict[str, Path]:
        """{what was played: its file} of one run: "dev", "train", then held-out conditions such as "trained_open"."""
        found = {"dev": run.path / "dev.jsonl", "train": run.path / "chats.jsonl"}
        if not study.alone:
            for path in sorted((study.path / "scores").glob(f"*/{glob.escape(run.name)}.jsonl")):
                found[path.parent.name] = path
        return {name: path for name, path in found.items() if inside(self.root, path)}


@dataclass(frozen=True)
class Plan:
    """What a run means to do: its steps, and the files that its passes over the held-out tasks will be."""

    name: str
    path: Path
    arm: str
    steps: int
    dev_tasks: int
    passes: list[Path]


def plans(out: Path, study: Study) -> list[Plan]:
    """One for each job of a study."""
    return [
        Plan(
            job.name, out / "runs" / job.name, job.arm, study.job_config(job).steps if job.arm else 0,
            study.config.dev_tasks, _pass_files(out, study, job),
        )
        for job in study.jobs()
    ]  # fmt: skip


def _pass_files(out: Path, study: Study, job: Job) -> list[Path]:
    files = [evaluate.file_of(out, condition, job.name, once) for condition, once in study.work(job)]
    if knocked := study.knockouts(job):
        own = study.own_condition(job.arm)
        files += [causal.file_of(out, own, job.name, knockout) for knockout in (None, *knocked)]
    return files


def _lone(path: Path) -> Plan:
    table = read_toml(path / "config.toml")
    steps, dev_tasks = table.get("steps"), table.get("dev_tasks", 0)
    if type(steps) is not int or type(dev_tasks) is not int:
        raise BadInput(
            f"{path / 'config.toml'}: steps = {steps!r}, dev_tasks = {dev_tasks!r}; expected whole numbers",
            "config/type",
        )
    return Plan(path.name, path, "", steps, dev_tasks, [])


def _phase(began: bool, ended: bool, owed: bool) -> Phase:
    if not began:
        return "waiting"
    if not ended:
        return "training"
    return "evaluating" if owed else "done"


def _with_left(run: RunState) -> RunState:
    return replace(run, left=time_left([run]))


def _quiet(files: Iterable[Path]) -> float | None:
    """Seconds since the newest of the files was written."""
    written = []
    for path in files:
        try:
            written.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(0.0, time.time() - max(written)) if written else None


def _tried_again(mark: Path, quiet: float | None) -> bool:
    """Whether a run wrote something after it had failed (the mark goes when it succeeds)."""
    since = _quiet([mark])
    return quiet is not None and since is not None and quiet < since


def _curve(lines: Sequence[dict[str, float]], key: str) -> list[tuple[float, float]]:
    """(step, value) of every line that has the key, in order of steps, at most CURVE_POINTS of them."""
    points = {line["step"]: line[key] for line in lines if key in line}
    return thinned(sorted(points.items()), CURVE_POINTS)


def _numbers(line: Json) -> dict[str, float]:
    """What is kept of a line of metrics.jsonl: the finite numbers that are shown."""
    return {key: value for key in KEPT if (value := number(line.get(key))) is not None}


def number(value: Any) -> float | None:
    """A finite number, or None for anything else that JSON may hold."""
    return value if is_number(value) else None


def _directories(path: Path) -> list[Path]:
    """The directories in a directory by name, without links and hidden ones."""
    try:
        with os.scandir(path) as entries:
            names = [
                e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
            ]
    except OSError:
        return []
    return [path / name for name in sorted(names)[:MOST_STUDIES]]
