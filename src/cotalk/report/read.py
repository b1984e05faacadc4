"""A study's directory as the page needs it. Nothing is computed here, and what is missing is told, not guessed.

The report must work for a study that still runs, that failed, or that an earlier version wrote: half-written lines
are skipped, a value of the wrong kind is left out, and `Study.missing` says which part is not there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotalk import results as document
from cotalk.disk import read_json
from cotalk.errors import BadInput
from cotalk.report import words

Json = dict[str, Any]

MAIN = ("base_closed", "base_open", "trained_closed", "trained_open")
LEVELS = ("skyline", "floor")


@dataclass(frozen=True)
class Rate:
    """A mean with its 95% interval and what was counted; low and high are None where none was given."""

    mean: float
    low: float | None
    high: float | None
    n: int | None
    unit: str

    def words(self, scale: float = 100, digits: int = 1) -> str:
        """87.5 [84.1, 90.2]; without an interval only the mean."""
        return f"{self.value(scale, digits)} {self.interval(scale, digits)}".strip()

    def value(self, scale: float = 100, digits: int = 1) -> str:
        return f"{scale * self.mean:.{digits}f}".replace("-", "−")

    def interval(self, scale: float = 100, digits: int = 1) -> str:
        if self.low is None or self.high is None:
            return ""
        return f"[{scale * self.low:.{digits}f}, {scale * self.high:.{digits}f}]".replace("-", "−")

    @property
    def counted(self) -> str:
        """n = 200 tasks; n = 3 seeds, where the interval speaks of seeds (and tasks)."""
        return "n not recorded" if self.n is None else f"n = {self.n:,} {self.unit.partition('+')[0]}".strip()


@dataclass(frozen=True)
class Condition:
    """One evaluation as results.json tells it; `arm` is "" for what was never trained."""

    name: str
    label: str
    arm: str
    channel: str
    score: Rate | None
    per_seed: dict[str, float]
    per_seat: dict[str, Rate]
    talk: dict[str, Rate]
    greedy: Rate | None
    pass_at: dict[str, Rate]
    repeats: list[float]
    repeated: Rate | None
    size: dict[str, int]

    @property
    def trained(self) -> bool:
        """Whether every seat is trained: an arm's runs in their own channel."""
        return self.name == f"trained_{self.arm}"

    @property
    def of(self) -> str:
        """3 seeds x 200 tasks x 4 answers."""
        names = (("runs", "seeds"), ("tasks", "tasks"), ("chats", "chats"), ("seats", "seats"))
        kept = [(self.size[key], word) for key, word in names if key in self.size]
        counted = [(n, word) for n, word in kept if word != "seeds" or self.per_seed]
        return " × ".join(f"{n:,} {word if n != 1 else word[:-1]}" for n, word in counted)


@dataclass(frozen=True)
class RunCurves:
    """One run's metrics, a dictionary for each step, in order."""

    arm: str
    seed: str
    steps: list[Json]

    @property
    def name(self) -> str:
        return f"{self.arm}, seed {self.seed}"


@dataclass
class Study:
    """All that the page is made of. `missing` collects one sentence for each part that is not there."""

    directory: Path
    results: Json
    conditions: dict[str, Condition]
    runs: list[RunCurves]
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.results.get("study") or self.directory.name)

    @property
    def comparisons(self) -> list[Json]:
        rows = self.results.get("comparisons")
        return (
            [row for row in rows if isinstance(row, dict) and row.get("sentence")]
            if isinstance(rows, list)
            else []
        )

    @property
    def arms(self) -> list[Condition]:
        """Each arm's runs in their own channel: open first, closed last."""
        found = [condition for condition in self.conditions.values() if condition.trained]
        return sorted(found, key=lambda arm: {"open": 0, "closed": 2}.get(arm.arm, 1))

    @property
    def stale(self) -> dict[str, str]:
        """{measure: why its values are not up to date}."""
        measures = mapping(self.results.get("measures"))
        if not self.results.get("conditions"):
            return {}
        lines = document.stale({"measures": measures})
        return {line.partition(" was ")[0]: line for line in lines}

    def before(self, arm: Condition) -> Condition | None:
        """The untrained pair in an arm's own channel."""
        return self.conditions.get("base_closed" if arm.channel == "closed" else "base_open")

    def setting(self, arm: str, name: str) -> Any:
        """A setting of an arm's runs, as the study resolved it; None where it is not recorded."""
        config = mapping(self.results.get("config"))
        own, shared = mapping(mapping(config.get("arms")).get(arm)), mapping(config.get("run"))
        return own.get(name, shared.get(name))


def read_study(directory: Path) -> Study:
    """Read what is there; raise BadInput when it is no study's directory or results.json is not JSON."""
    path = directory / "results.json"
    if not path.exists() and not (directory / "runs").is_dir():
        raise BadInput(
            f"{directory} holds neither results.json nor runs/; expected the directory of a study. "
            f"Type: cotalk report runs/quickstart",
            "results/missing",
        )
    missing = {}
    results: Json = {}
    if path.exists():
        results = _results(path)
    else:
        missing["results"] = "There is no results.json yet: the study has not been evaluated."
    conditions = _conditions(mapping(results.get("conditions")))
    runs = [_run(path) for path in sorted((directory / "runs").glob("*/metrics.jsonl"), key=natural)]
    return Study(directory, results, conditions, [run for run in runs if run.steps], missing)


def read_lines(path: Path) -> Iterator[Json]:
    """The JSON objects of a file, one a line; a line that is half-written or no object is skipped."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):  # half-written: it is owed again by whoever writes
                continue
            if isinstance(value, dict):
                yield value


def _results(path: Path) -> Json:
    again = "Type the study's command again: it writes the file anew"
    results = read_json(path, f"a study's results. {again}", "results/unreadable")
    if not isinstance(results, dict) or results.get("schema", 1) != 1:
        raise BadInput(
            f"{path} does not hold results of schema 1; expected a file that this version of cotalk wrote. "
            f"Type the study's command again",
            "results/unreadable",
        )
    return results


def _conditions(table: Json) -> dict[str, Condition]:
    """Conditions in the order of the page: the four of the main comparison, other arms, partners, levels."""
    conditions: dict[str, Condition] = {}
    labels: set[str] = set()
    for name in sorted(table, key=_place):  # the sort is stable: within a place, the study's own order
        entry = mapping(table[name])
        label = words.shown(str(entry.get("label") or words.condition_label(name)), 80)
        label = label if label not in labels else words.shown(f"{label} ({name})", 160)
        labels.add(label)
        conditions[name] = Condition(
            name=name,
            label=label,
            arm=str(entry.get("arm") or words.arm_of(name)),
            channel=str(entry.get("channel") or ("closed" if name.endswith("closed") else "open")),
            score=read_rate(entry.get("score")),
            per_seed={
                str(seed): float(mean)
                for seed, mean in mapping(entry.get("per_seed")).items()
                if seed not in ("base", "null") and is_number(mean)
            },
            per_seat=_rates(entry.get("per_seat")),
            talk=_rates(entry.get("talk")),
            greedy=read_rate(mapping(entry.get("greedy")).get("score")),
            pass_at=_rates(entry.get("pass_at")),
            repeats=[float(mean) for mean in entry.get("repeats") or [] if is_number(mean)],
            repeated=read_rate(entry.get("repeated")),
            size={key: int(n) for key, n in mapping(entry.get("size")).items() if is_number(n)},
        )
    return conditions


def read_rate(value: Any) -> Rate | None:
    """A RATE of results.json, or None where there is no finite mean."""
    entry = mapping(value)
    if not is_number(entry.get("mean")):
        return None
    low, high = (entry[key] if is_number(entry.get(key)) else None for key in ("low", "high"))
    if low is None or high is None:
        low = high = None
    return Rate(
        float(entry["mean"]),
        low,
        high,
        int(entry["n"]) if is_number(entry.get("n")) else None,
        str(entry.get("unit") or ""),
    )


def _place(name: str) -> int:
    if name in MAIN:
        return MAIN.index(name)
    if name in LEVELS:
        return 90 + LEVELS.index(name)
    return 20 if name.endswith("_base_b") else 21 if name.startswith("base_a_") else 10


def _run(path: Path) -> RunCurves:
    arm, _, seed = path.parent.name.rpartition("-")
    by_step = {line["step"]: line for line in read_lines(path) if is_number(line.get("step"))}
    return RunCurves(arm or seed, seed, [by_step[step] for step in sorted(by_step)])


def _rates(table: Any) -> dict[str, Rate]:
    rates = {str(name): read_rate(value) for name, value in mapping(table).items()}
    return {name: rate for name, rate in rates.items() if rate is not None}


def mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold: JSON may hold NaN, and whole numbers beyond every float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def natural(path: Path) -> list[tuple[bool, int | str]]:
    """A sort key by which seed 9 comes before seed 10."""
    return [
        (not part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", str(path))
    ]


def thinned(items: list[Any], most: int) -> list[Any]:
    """At most `most` of the items, evenly spaced, first and last among them."""
    if len(items) <= most:
        return items
    if most == 1:
        return items[:1]
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]
