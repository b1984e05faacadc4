"""A study's numbers -> pictures: what each chart shows, in which words, and the rows that charts.py draws.

A `Picture` holds functions that draw at a width, so that the page (as wide as its container, wide and narrow) and the
files under figures/ (fixed) come from the same rows. Every picture has its alt text here.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from cotalk.report.read import (
    LEVELS,
    Condition,
    Json,
    Rate,
    RunCurves,
    Study,
    is_number,
    mapping,
    read_rate,
    thinned,
)
from cotalk.report.words import hundred, listed, shown, signed

log = logging.getLogger(__name__)

CURVE_POINTS = 150  # of one run in one panel
TALK = {  # key in a condition's talk -> (heading, what is counted)
    "sends": ("Sends", "of the numbers only I hold, said before my answer"),
    "uses_above": ("Uses, above chance", "partner's numbers in my answer, less a bare list's"),
    "asks": ("Asks", "first messages with a question mark"),
    "invented": ("Invents", "numbers in nobody's facts that follow from nothing"),
    "agrees": ("Agrees", "both seats' boxes hold the same"),
}
CURVES = {  # key in metrics.jsonl -> (heading, is it a share between 0 and 1)
    "reward": ("Reward in training", True),
    "dev/score": ("Dev score, greedy", True),
    "message_tokens": ("Tokens in a message", False),
    "groups/flat": ("Flat groups: nothing to learn from", True),
    "cut": ("Messages cut off by their budget", True),
}
COLORS_OF_VERDICTS = {"helps": "GREEN", "hurts": "ORANGE", "no different": "BLUE"}


@dataclass(frozen=True)
class Picture:
    """A chart by its width in pixels, or as wide as its container. narrow: another layout for small screens."""

    id: str
    words: str
    draw: Callable[[Any], Any]
    narrow: Callable[[Any], Any] | None = None
    width: int = 620  # of the file, and of the still picture
    still: Callable[[Any], Any] | None = None  # how it is drawn there, where that differs
    title: str = ""  # for the page to set over it, where the chart has none

    def at_rest(self) -> Any:
        """The chart for a file, and for a page without script."""
        return (self.still or self.draw)(self.width)


def load_charts() -> ModuleType | None:
    """charts.py, or None where its libraries are not installed."""
    try:
        return importlib.import_module("cotalk.report.charts")
    except ImportError as error:
        log.warning(
            "report without charts: %s. To have them, type: pip install altair vl-convert-python", error
        )
        return None


def pictures(study: Study, charts: ModuleType) -> dict[str, list[Picture]]:
    """{part of the page: its pictures}; a part without any is left out."""
    colors = arm_colors([study], charts)
    found = {
        "solved": list(_solved(study, charts, colors)),
        "differences": list(_differences(study, charts)),
        "methods": list(_methods(study, charts, colors)),
        "talk": list(_talk(study, charts, colors)),
        "curves": list(_curves(study, charts, colors)),
        "causal": list(_causal(study, charts, colors)),
        "cross": list(_cross_play(study, charts)),
    }
    return {part: drawn for part, drawn in found.items() if drawn}


def arm_colors(studies: list[Study], charts: ModuleType) -> dict[str, str]:
    """A colour for each arm: open blue, closed orange, others in the order in which they come. "" is open."""
    names = [run.arm for study in studies for run in study.runs]
    names += [condition.arm for study in studies for condition in study.conditions.values()]
    colors = {"": charts.BLUE, "open": charts.BLUE, "closed": charts.ORANGE}
    cycle = charts.OTHER_COLORS
    others = [name for name in dict.fromkeys(names) if name not in colors]
    return colors | {name: cycle[index % len(cycle)] for index, name in enumerate(others)}


# --- what was solved ------------------------------------------------------------------------------------------


def _solved(study: Study, charts: ModuleType, colors: dict[str, str], prefix: str = "") -> Iterator[Picture]:
    bars = [
        _bar(condition, colors, condition.score) | {"dots": _dots(condition)}
        for condition in study.conditions.values()
        if has_bar(condition) and condition.score
    ]
    if not bars:
        return
    levels = _levels(study, LEVELS)
    told = [f"{c.label} {c.score.words()}" for c in study.conditions.values() if c.score]
    yield Picture(
        f"{prefix}solved",
        f"Bar chart, problems solved out of 100 with 95% intervals. {'; '.join(told)}.",
        lambda width: charts.solved(bars, levels, width),
        lambda width: charts.solved(bars, levels, width, narrow=True),
        760,
    )


def has_bar(condition: Condition) -> bool:
    return condition.name not in LEVELS and condition.score is not None


def _bar(condition: Condition, colors: dict[str, str], rate: Rate) -> Json:
    low, high = (None if end is None else _within(100 * end, 100) for end in (rate.low, rate.high))
    mixed = bool(condition.arm) and not condition.trained
    return {
        "label": condition.label,
        "mean": _within(100 * rate.mean, 100),
        "low": low,
        "high": high,
        "value": rate.value(),
        "interval": rate.interval(),
        "hover": f"{condition.label}: {rate.words()}, {f'n = {condition.of}' if condition.of else rate.counted}",
        "color": colors["closed" if condition.name == "base_closed" else condition.arm],
        "opacity": 0.65 if mixed else 1.0 if condition.arm else 0.4,
    }


def _dots(condition: Condition) -> list[Json]:
    return [
        {
            "value": _within(100 * mean, 100),
            "seed": shown(seed, 12),
            "hover": shown(f"{condition.label}, seed {seed}: {hundred(mean)}"),
        }
        for seed, mean in condition.per_seed.items()
    ]


def _levels(study: Study, names: tuple[str, ...]) -> list[Json]:
    return [
        {
            "label": f"{'untrained' if name.startswith('base') else name} {hundred(rate.mean)}",
            "mean": _within(100 * rate.mean, 100),
            "hover": f"{study.conditions[name].label}: {rate.words()}, {rate.counted}",
        }
        for name in names
        if name in study.conditions and (rate := study.conditions[name].score)
    ]


def _within(value: float, top: float) -> float:
    return min(max(value, 0.0), top)


# --- differences, methods -------------------------------------------------------------------------------------


def _differences(study: Study, charts: ModuleType) -> Iterator[Picture]:
    rows = [_difference(study, row, charts) for row in study.comparisons if is_number(row.get("difference"))]
    if rows:
        told = "; ".join(row["hover"] for row in rows)
        yield Picture(
            "differences",
            f"Differences between conditions, in problems out of 100, with 95% intervals. {told}.",
            lambda width: charts.differences(rows, "difference, problems out of 100", width),
            lambda width: charts.differences(rows, "difference, problems out of 100", width, narrow=True),
        )


def _difference(study: Study, row: Json, charts: ModuleType) -> Json:
    rate = read_rate({"mean": row["difference"], "low": row.get("low"), "high": row.get("high")})
    assert rate is not None
    names = [
        study.conditions[row[side]].label if row.get(side) in study.conditions else str(row.get(side))
        for side in ("a", "b")
    ]
    verdict = str(row.get("verdict") or "")
    return {
        "label": shown(f"{names[0]} against {names[1]}", 120),
        "mean": 100 * rate.mean,
        "low": None if rate.low is None else 100 * rate.low,
        "high": None if rate.high is None else 100 * rate.high,
        "noise": 100 * row["noise"] if is_number(row.get("noise")) else None,
        "value": signed(rate.mean),
        "interval": shown(verdict, 20),
        "hover": shown(
            f"{names[0]} against {names[1]}: {signed(rate.mean)} {_signed_interval(rate)}, {verdict}", 300
        ),
        "color": getattr(charts, COLORS_OF_VERDICTS.get(verdict, "SOFT")),
    }


def _signed_interval(rate: Rate) -> str:
    return "" if rate.low is None or rate.high is None else f"[{signed(rate.low)}, {signed(rate.high)}]"


def _methods(study: Study, charts: ModuleType, colors: dict[str, str]) -> Iterator[Picture]:
    rows = [
        _bar(arm, colors, arm.score) | {"label": _method_label(study, arm), "dots": _dots(arm)}
        for arm in study.arms
        if arm.score and arm.per_seed
    ]
    if rows:
        yield _seeds(rows, _levels(study, ("base_open", "skyline")), charts)


def _seeds(rows: list[Json], levels: list[Json], charts: ModuleType) -> Picture:
    told = "; ".join(
        f"{row['label']}: {', '.join(dot['hover'].rpartition(', ')[2] for dot in row['dots'])}"
        for row in rows
    )
    return Picture(
        "methods",
        f"Dot plot, every training seed of every arm, problems solved out of 100. {told}.",
        lambda width: charts.seeds(rows, levels, width),
        lambda width: charts.seeds(rows, levels, width, narrow=True),
    )


def _method_label(study: Study, arm: Condition) -> str:
    """open: grpo; the arm alone where it has its method's name."""
    method = study.setting(arm.arm, "method") or "method not recorded"
    return shown(arm.arm if method == arm.arm else f"{arm.arm}: {method}", 80)


# --- talk -------------------------------------------------------------------------------------------------------


def _talk(study: Study, charts: ModuleType, colors: dict[str, str]) -> Iterator[Picture]:
    for key, (heading, counts) in TALK.items():
        rows = [row for arm in study.arms if (row := _before_and_after(study, arm, key, colors))]
        if rows:
            yield _measure(key, heading, counts, rows, charts)


def _measure(key: str, heading: str, counts: str, rows: list[Json], charts: ModuleType) -> Picture:
    return Picture(
        f"talk-{key}",
        f"{heading}: {counts}. {'; '.join(row['hover'] for row in rows)}.",
        lambda width: charts.measure(heading, counts, rows, width),
        width=330,
    )


def _before_and_after(study: Study, arm: Condition, key: str, colors: dict[str, str]) -> Json | None:
    base = study.before(arm)
    before, after = (base.talk.get(key) if base else None), arm.talk.get(key)
    if after is None:
        return None
    told = f"before {before.words(1, 2)} ({before.counted}), " if before else ""
    return {
        "label": shown(arm.arm, 40),
        "color": colors[arm.arm],
        "value": f"{before.value(1, 2)} → {after.value(1, 2)}" if before else after.value(1, 2),
        "before": _end(before, f"{arm.arm}, before") if before else None,
        "after": _end(after, f"{arm.arm}, after"),
        "hover": shown(f"{arm.arm}: {told}after {after.words(1, 2)} ({after.counted})"),
    }


def _end(rate: Rate, name: str) -> Json:
    low, high = (None if end is None else _within(end, 1) for end in (rate.low, rate.high))
    return {
        "mean": _within(rate.mean, 1),
        "low": low,
        "high": high,
        "hover": shown(f"{name}: {rate.words(1, 2)}, {rate.counted}"),
    }


# --- learning curves --------------------------------------------------------------------------------------------


def _curves(study: Study, charts: ModuleType, colors: dict[str, str]) -> Iterator[Picture]:
    arms = run_arms(study, colors)
    for key, (heading, share) in CURVES.items():
        points = curve_points(study.runs, key)
        if points:
            yield _curve(key, heading, points, arms, share, charts)


def _curve(
    key: str, heading: str, points: list[Json], arms: dict[str, str], share: bool, charts: ModuleType
) -> Picture:
    share = share and all(0 <= point["value"] <= 1 for point in points)
    last = {point["run"]: point for point in points if point["kind"] == "mean"}
    told = "; ".join(f"{point['run']} ends at {point['value']:.3g}" for point in last.values())
    return Picture(
        f"curve-{key.replace('/', '-')}",
        f"Line chart over training steps: {heading}. {told}. The table below holds every run's last value.",
        lambda width: charts.curves(heading, points, arms, share, width),
        width=330,
        still=lambda width: charts.curves(
            heading, points, arms, share, width, still=True, key=key == "reward"
        ),
    )


def curve_points(runs: list[RunCurves], key: str) -> list[Json]:
    """Every run's values of one metric, and each arm's mean at the steps where all of its runs have one."""
    rows = []
    for arm in dict.fromkeys(run.arm for run in runs):
        series = {
            run.name: {line["step"]: line[key] for line in run.steps if is_number(line.get(key))}
            for run in runs
            if run.arm == arm
        }
        series = {name: values for name, values in series.items() if values}
        if not series:
            continue
        for name, values in series.items():
            rows += [
                _point(arm, name, "run", step, values[step]) for step in thinned(list(values), CURVE_POINTS)
            ]
        common = sorted(set.intersection(*(set(values) for values in series.values())))
        rows += [
            _point(
                arm,
                f"{arm}, mean of {len(series)} seeds",
                "mean",
                step,
                sum(values[step] for values in series.values()) / len(series),
            )
            for step in thinned(common, CURVE_POINTS)
        ]
    return rows


def _point(arm: str, run: str, kind: str, step: float, value: float) -> Json:
    run = shown(run, 60)
    return {
        "arm": shown(arm, 40),
        "run": run,
        "kind": kind,
        "step": step,
        "value": round(value, 5),
        "hover": f"{run}, step {step:g}: {value:.3g}",
    }


def run_arms(study: Study, colors: dict[str, str]) -> dict[str, str]:
    """The arms that have curves, with their colours, in the order of their line styles: closed last."""
    known = list(colors)
    names = sorted({run.arm for run in study.runs}, key=lambda arm: (arm == "closed", known.index(arm)))
    return {shown(name, 40): colors[name] for name in names}


# --- several studies --------------------------------------------------------------------------------------------


def side_by_side(studies: dict[str, Study], charts: ModuleType) -> dict[str, list[Picture]]:
    """The pictures of several studies, by name: bars for each, and the rest drawn together, a colour a study."""
    colors = study_colors(studies, charts)
    found: dict[str, list[Picture]] = {"solved": [], "methods": [], "talk": [], "curves": []}
    for at, study in enumerate(studies.values()):
        found["solved"] += _solved(study, charts, arm_colors([study], charts), f"study-{at}-")
    rows = []
    for name, study in studies.items():
        mine = {arm.arm: colors[name] for arm in study.arms}
        rows += [
            _bar(arm, mine, arm.score) | {"label": f"{name}, {_method_label(study, arm)}", "dots": _dots(arm)}
            for arm in study.arms
            if arm.score and arm.per_seed
        ]
    if rows:
        found["methods"] = [_seeds(rows, [], charts)]
    for key, (heading, counts) in TALK.items():
        ends = [
            row | {"label": shown(f"{name}: {row['label']}", 60)}
            for name, study in studies.items()
            for arm in study.arms
            if (row := _before_and_after(study, arm, key, {arm.arm: colors[name]}))
        ]
        found["talk"] += [_measure(key, heading, counts, ends, charts)] if ends else []
    runs = [
        RunCurves(f"{name}: {run.arm}", run.seed, run.steps)
        for name, study in studies.items()
        for run in study.runs
    ]
    arms = side_arms(studies, charts)
    for key, (heading, share) in CURVES.items():
        points = curve_points(runs, key)
        found["curves"] += [_curve(key, heading, points, arms, share, charts)] if points else []
    return {part: drawn for part, drawn in found.items() if drawn}


def study_colors(studies: dict[str, Study], charts: ModuleType) -> dict[str, str]:
    cycle = (charts.BLUE, charts.ORANGE, *charts.OTHER_COLORS)
    return {name: cycle[at % len(cycle)] for at, name in enumerate(studies)}


def side_arms(studies: dict[str, Study], charts: ModuleType) -> dict[str, str]:
    """{"study: arm": its study's colour}; the place in the order gives each its own dashes."""
    colors = study_colors(studies, charts)
    return {
        shown(f"{name}: {arm}", 40): colors[name]
        for name, study in studies.items()
        for arm in dict.fromkeys(run.arm for run in study.runs)
    }


# --- knock-outs, cross-play -------------------------------------------------------------------------------------


PLACES = ("down", "across")
CHANGE = "change of the listener's score, out of 100"
REPLACED = {"nothing": "nothing", "another": "another task's message", "base": "an untrained message"}


def _causal(study: Study, charts: ModuleType, colors: dict[str, str]) -> Iterator[Picture]:
    for name, effects in mapping(study.results.get("causal")).items():
        arm = study.conditions[name].arm if name in study.conditions else ""
        rows = [
            row for effect in effects or [] if (row := knocked(mapping(effect), colors.get(arm, charts.BLUE)))
        ]
        if rows:
            told = "; ".join(row["hover"] for row in rows)
            label = study.conditions[name].label if name in study.conditions else shown(str(name), 80)
            yield _knocked(
                name, label, f"Bar chart, what replacing messages costs ({label}). {told}.", rows, charts
            )


def _knocked(name: str, label: str, words: str, rows: list[Json], charts: ModuleType) -> Picture:
    return Picture(
        f"causal-{name}",
        shown(words, 4_000),
        lambda width: charts.differences(rows, CHANGE, width, bars=True),
        lambda width: charts.differences(rows, CHANGE, width, bars=True, narrow=True),
        title=label,
    )


def knocked(effect: Json, color: str) -> Json | None:
    """An effect of results.json's `causal` as a row of the chart."""
    change = read_rate(effect.get("change"))
    if change is None:
        return None
    turns = [str(turn) for turn in effect.get("turns") or []]
    by = REPLACED.get(str(effect.get("by")), str(effect.get("by")))
    return {
        "label": shown(f"{effect.get('seat')}'s turn{'s' * (len(turns) > 1)} {listed(turns)} → {by}", 120),
        "mean": 100 * change.mean,
        "low": None if change.low is None else 100 * change.low,
        "high": None if change.high is None else 100 * change.high,
        "noise": None,
        "value": signed(change.mean),
        "interval": _signed_interval(change),
        "hover": shown(str(effect.get("sentence") or ""), 400),
        "color": color,
    }


def _cross_play(study: Study, charts: ModuleType) -> Iterator[Picture]:
    """One map for each seat's own answer; the team's score where seats are not told apart.

    An arm's seeds stand together, and strangers come last.
    """
    table = mapping(study.results.get("cross_play"))
    seated = [mapping(player) for player in table.get("players") or []]
    arms = list(dict.fromkeys(str(player.get("arm") or "") for player in seated))
    seated.sort(key=lambda player: (not player.get("arm"), arms.index(str(player.get("arm") or ""))))
    players = [shown(str(player.get("name")), 40) for player in seated]
    cells = [mapping(cell) for cell in table.get("cells") or []]
    seats = list(dict.fromkeys(seat for cell in cells for seat in mapping(cell.get("per_seat"))))
    for seat in seats or ["score"]:
        rates = [
            (cell, mapping(cell.get("per_seat")).get(seat) if seats else cell.get("score")) for cell in cells
        ]
        rows = [row for cell, rate in rates if (row := _cell(cell, read_rate(rate)))]
        if rows:
            down, across = (
                [name for name in players if any(name == row[key] for row in rows)] for key in PLACES
            )
            yield _map(
                seat, f"{seat}'s own answer" if seats else "the team's score", rows, down, across, charts
            )


def _map(
    seat: str, what: str, rows: list[Json], down: list[str], across: list[str], charts: ModuleType
) -> Picture:
    words = f"Heat map of cross-play, {what}, out of 100. {'; '.join(row['hover'] for row in rows)}."
    return Picture(
        f"cross-{seat}",
        shown(words, 6_000),
        lambda width: charts.heat(f"{what}, out of 100", rows, down, across, width),
        width=44 * max(4, len(across)),
    )


def _cell(cell: Json, rate: Rate | None) -> Json | None:
    if rate is None:
        return None
    a, b = shown(str(cell.get("a")), 40), shown(str(cell.get("b")), 40)
    return {
        "down": a,
        "across": b,
        "mean": _within(rate.mean, 1),
        "value": f"{100 * rate.mean:.0f}",
        "hover": f"A {a} with B {b}: {rate.words()}, {rate.counted}",
    }
