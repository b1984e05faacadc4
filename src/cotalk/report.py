"""From a study's directory to one HTML file that anybody can open: the verdict, the charts, the chats.

`report` is a pure function of what the directory holds (results.json, runs/*/metrics.jsonl, runs/*/dev.jsonl,
scores/*/*.jsonl): it computes no score and no interval, and the same files give the same page. Whatever is
missing is left out, with a line that says so; half-written lines are skipped. The page needs no script, no
server and no network, and its content-security policy allows none. What models wrote is never HTML: every
value is escaped, capped in length, and its control characters are shown by their numbers.

It leaves out statistics (stats.py), measures (talk.py) and drawing (charts.py; without altair and vl-convert
the page holds its tables and says that the charts are missing).

    report(Path("runs/quickstart"))      # -> runs/quickstart/report.html
    figures(Path("runs/quickstart"))     # -> runs/quickstart/figures/{solved,talk,curves}.{png,svg}
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import logging
import math
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
from markupsafe import Markup

from cotalk.errors import BadInput

Json = dict[str, Any]
log = logging.getLogger(__name__)

HERE = Path(__file__).parent
SHOWN_CHARACTERS = 1_500  # of any one text; the rest is counted, not shown
CHAT_PAGES = 12  # before-and-after pairs, and steps of one dev task
CURVE_POINTS = 300  # of one run in one panel
MAIN = ("base_closed", "base_open", "trained_closed", "trained_open")
LEVELS = ("skyline", "floor")
TALK_PANELS = {  # key in a condition's talk -> (heading, what is counted)
    "sends": ("Sends", "own numbers put in a message before the answer"),
    "uses": ("Uses", "the partner's numbers found in the answer"),
    "asks": ("Asks", "first messages that ask"),
    "agrees": ("Agrees", "both seats give the same answer"),
}
CURVE_PANELS = {  # key in metrics.jsonl -> (heading, is it a share between 0 and 1)
    "reward": ("Reward in training", True),
    "dev/score": ("Dev score, greedy", True),
    "message_tokens": ("Tokens in a message", False),
    "groups/flat": ("Flat groups (nothing to learn from)", True),
    "cut": ("Messages cut off by their budget", True),
}
BEFORE, AFTER = "base_open", "trained_open"


# ---------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Rate:
    """A mean with its 95% interval and what was counted; low and high are None where none was given."""

    mean: float
    low: float | None
    high: float | None
    n: int | None
    unit: str


@dataclass(frozen=True)
class Condition:
    """One evaluation as results.json tells it; `arm` is "" for what was never trained."""

    name: str
    label: str
    arm: str
    score: Rate | None
    per_seed: dict[str, float]
    per_seat: dict[str, Rate]
    talk: dict[str, Rate]
    greedy: Rate | None
    repeats: list[float]

    @property
    def trained(self) -> bool:
        return self.name.startswith("trained_") and "_base_" not in self.name


@dataclass(frozen=True)
class RunCurves:
    """One run's metrics, a dictionary for each step, in order."""

    arm: str
    seed: str
    steps: list[Json]

    @property
    def name(self) -> str:
        return f"{self.arm}, seed {self.seed}"


@dataclass(frozen=True)
class Page:
    """One page of a chat viewer: chats of the same task, side by side."""

    task: str
    question: str
    gold: str
    hands: Json
    chats: list[Json]  # each with "heading" and "seats"


@dataclass
class Study:
    """All that the page is made of. `missing` collects one sentence for each part that is not there."""

    directory: Path
    results: Json
    conditions: dict[str, Condition]
    runs: list[RunCurves]
    missing: dict[str, str] = field(default_factory=dict)


def read_study(directory: Path) -> Study:
    """Read what is there; raise BadInput when it is no study's directory or results.json is not JSON."""
    path = directory / "results.json"
    if not path.exists() and not (directory / "runs").is_dir():
        raise BadInput(
            f"{directory} holds neither results.json nor runs/; expected the directory of a study. "
            f"Type: cotalk report runs/quickstart"
        )
    missing = {}
    results: Json = {}
    if path.exists():
        results = _results(path)
    else:
        missing["results"] = "There is no results.json yet: the study has not been evaluated."
    conditions = _conditions(_mapping(results.get("conditions")))
    runs = [_run(path) for path in sorted((directory / "runs").glob("*/metrics.jsonl"), key=_natural)]
    return Study(directory, results, conditions, [run for run in runs if run.steps], missing)


def read_lines(path: Path) -> Iterator[Json]:
    """The JSON objects of a file, one a line; a line that is half-written or no object is skipped."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:  # half-written: it is owed again by whoever writes
                continue
            if isinstance(value, dict):
                yield value


def _results(path: Path) -> Json:
    try:
        results = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(
            f"{path} is not JSON ({error}); expected a study's results. Type the study's command "
            f"again: it writes the file anew"
        ) from error
    if not isinstance(results, dict) or results.get("schema", 1) != 1:
        raise BadInput(
            f"{path} does not hold results of schema 1; expected a file that this version of cotalk wrote. "
            f"Type the study's command again"
        )
    return results


def _conditions(table: Json) -> dict[str, Condition]:
    """Conditions in the order of the page: the four of the main comparison, other arms, partners, levels."""
    conditions: dict[str, Condition] = {}
    labels: set[str] = set()
    for name in sorted(table, key=_place):
        entry = _mapping(table[name])
        label = str(entry.get("label") or condition_label(name))
        label = label if label not in labels else f"{label} ({name})"
        labels.add(label)
        conditions[name] = Condition(
            name=name,
            label=label,
            arm=str(entry.get("arm") or _arm(name)),
            score=read_rate(entry.get("score")),
            per_seed={
                str(seed): float(mean)
                for seed, mean in _mapping(entry.get("per_seed")).items()
                if seed not in ("base", "null") and _is_number(mean)
            },
            per_seat=_rates(entry.get("per_seat")),
            talk=_rates(entry.get("talk")),
            greedy=read_rate(_mapping(entry.get("greedy")).get("score")),
            repeats=[float(mean) for mean in entry.get("repeats") or [] if _is_number(mean)],
        )
    return conditions


def read_rate(value: Any) -> Rate | None:
    """A RATE of results.json, or None where there is no finite mean."""
    entry = _mapping(value)
    if not _is_number(entry.get("mean")):
        return None
    low, high = (entry[key] if _is_number(entry.get(key)) else None for key in ("low", "high"))
    if low is None or high is None:
        low = high = None
    return Rate(
        float(entry["mean"]),
        low,
        high,
        int(entry["n"]) if _is_number(entry.get("n")) else None,
        str(entry.get("unit") or ""),
    )


def condition_label(name: str) -> str:
    """Human words for a condition's name, for results that give no label."""
    fixed = {
        "base_open": "untrained, channel open",
        "base_closed": "untrained, channel closed",
        "skyline": "skyline: one seat with every fact",
        "floor": "floor: one seat with its own facts",
        "trained_open": "trained, channel open",
        "trained_closed": "trained, channel closed",
    }
    if name in fixed:
        return fixed[name]
    suffix = "" if _arm(name) in ("", "open") else f" ({_arm(name)})"
    if re.fullmatch(r"trained_(.+_)?a_base_b", name):
        return f"trained A, untrained B{suffix}"
    if re.fullmatch(r"base_a_trained_(.+_)?b", name):
        return f"untrained A, trained B{suffix}"
    return f"trained{suffix}" if name.startswith("trained_") else name.replace("_", " ")


def _arm(name: str) -> str:
    for pattern in (
        r"trained_a_base_b|base_a_trained_b",
        r"trained_(.+)_a_base_b",
        r"base_a_trained_(.+)_b",
        r"trained_(.+)",
    ):
        match = re.fullmatch(pattern, name)
        if match:
            return match[1] if match.lastindex else "open"
    return ""


def _place(name: str) -> tuple[int, str]:
    if name in MAIN:
        return MAIN.index(name), ""
    if name in LEVELS:
        return 90 + LEVELS.index(name), ""
    return (20 if name.endswith("_base_b") else 21 if name.startswith("base_a_") else 10), name


def _run(path: Path) -> RunCurves:
    arm, _, seed = path.parent.name.rpartition("-")
    by_step = {line["step"]: line for line in read_lines(path) if _is_number(line.get("step"))}
    return RunCurves(arm or seed, seed, [by_step[step] for step in sorted(by_step)])


def _rates(table: Any) -> dict[str, Rate]:
    rates = {str(name): read_rate(value) for name, value in _mapping(table).items()}
    return {name: rate for name, rate in rates.items() if rate is not None}


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _natural(path: Path) -> list[tuple[bool, int | str]]:
    return [
        (not part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", str(path))
    ]


# ---------------------------------------------------------------------------------------------- words


def shown(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """Text that cannot disturb the page: cut at `limit`, control characters shown as [U+202E]."""
    rest = len(text) - limit
    text = "".join(_visible(character) for character in text[:limit])
    return text if rest <= 0 else f"{text}… ({rest:,} more characters)"


def _visible(character: str) -> str:
    kind = unicodedata.category(character)
    if character in "\n\t\u200c\u200d" or kind not in ("Cc", "Cf", "Cs", "Co", "Cn"):
        return character
    return f"[U+{ord(character):04X}]"


def hundred(value: float | None) -> str:
    """A share as a number out of 100, one decimal: 0.875 -> 87.5."""
    return "–" if value is None else f"{100 * value:.1f}"


def rate_words(rate: Rate | None, scale: float = 100, digits: int = 1) -> str:
    """87.5 [84.1, 90.2]; without an interval only the mean."""
    if rate is None:
        return "not measured"
    mean = f"{scale * rate.mean:.{digits}f}"
    if rate.low is None or rate.high is None:
        return mean
    return f"{mean} [{scale * rate.low:.{digits}f}, {scale * rate.high:.{digits}f}]"


def counted(rate: Rate | None) -> str:
    """n = 200 tasks."""
    return "n not recorded" if rate is None or rate.n is None else f"n = {rate.n:,} {rate.unit}".strip()


def command(results: Json) -> str:
    """What to type to make this study again."""
    study = str(results.get("study") or "")
    if results.get("command"):
        return str(results["command"])
    if study in ("", "quickstart"):
        return "cotalk quickstart"
    base = _mapping(results.get("config")).get("base") or _mapping(
        _mapping(results.get("config")).get("run")
    ).get("base")
    return f"cotalk study {shlex.quote(study)}" + (f" --base {shlex.quote(str(base))}" if base else "")


def settings(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """A nested configuration as rows of (dotted name, value)."""
    if isinstance(value, dict) and value:
        return [
            row
            for key, inner in value.items()
            for row in settings(inner, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(value, float):
        return [(prefix, f"{value:,.10g}")]
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [(prefix, words)] if prefix else []


# ---------------------------------------------------------------------------------------------- charts


@dataclass(frozen=True)
class Drawing:
    """The charts of a study as altair objects; a list is empty where there is nothing to draw."""

    solved: Callable[[int], Any] | None  # width -> chart
    talk: list[Any]
    curves: list[Any]


def load_charts() -> ModuleType | None:
    """charts.py, or None where its libraries are not installed."""
    try:
        return importlib.import_module("cotalk.charts")
    except ImportError as error:
        log.warning(
            "report without charts: %s. To have them, type: pip install altair vl-convert-python", error
        )
        return None


def draw(study: Study, charts: ModuleType) -> Drawing:
    """Turn the study's numbers into charts."""
    colors = arm_colors(study, charts)
    bars = [
        _bar(condition, colors, condition.score, 100, 1) | {"dots": _dots(condition)}
        for condition in study.conditions.values()
        if condition.name not in LEVELS and condition.score
    ]
    levels = [
        {
            "label": f"{name} {hundred(rate.mean)}",
            "mean": _within(100 * rate.mean, 100),
            "hover": shown(f"{study.conditions[name].label}: {rate_words(rate)}, {counted(rate)}"),
        }
        for name in LEVELS
        if name in study.conditions and (rate := study.conditions[name].score)
    ]
    talk = []
    for key, (heading, counts) in TALK_PANELS.items():
        columns = [
            _bar(study.conditions[name], colors, rate, 1, 2)
            for name in MAIN
            if name in study.conditions and (rate := study.conditions[name].talk.get(key))
        ]
        talk += [charts.measure(heading, counts, columns, 380)] if columns else []
    arms = run_arms(study, colors)
    panels = [
        charts.curves(heading, points, arms, share and _all_within_one(points), 290)
        for key, (heading, share) in CURVE_PANELS.items()
        if (points := _curve_points(study.runs, key))
    ]
    return Drawing((lambda width: charts.solved(bars, levels, width)) if bars else None, talk, panels)


def arm_colors(study: Study, charts: ModuleType) -> dict[str, str]:
    """A colour for each arm: open blue, closed orange, others in the order in which they come. "" is open."""
    names = [run.arm for run in study.runs] + [c.arm for c in study.conditions.values()]
    colors = {"": charts.BLUE, "open": charts.BLUE, "closed": charts.ORANGE}
    cycle = charts.OTHER_COLORS
    others = [name for name in dict.fromkeys(names) if name not in colors]
    return colors | {name: cycle[index % len(cycle)] for index, name in enumerate(others)}


def _bar(condition: Condition, colors: dict[str, str], rate: Rate, scale: int, digits: int) -> Json:
    low, high = (None if end is None else _within(scale * end, scale) for end in (rate.low, rate.high))
    mean = _within(scale * rate.mean, scale)
    dots = [100 * value for value in condition.per_seed.values()] if scale == 100 else []
    words = f"{condition.label}: {rate_words(rate, scale, digits)}, {counted(rate)}"
    return {
        "label": shown(condition.label, 80),
        "mean": mean,
        "low": low,
        "high": high,
        "zero": 0,
        "full": scale,
        "end": max([mean, high or 0, *dots]),
        "value": f"{scale * rate.mean:.{digits}f}",
        "hover": shown(words),
        "color": colors["closed" if condition.name == "base_closed" else condition.arm],
        "opacity": 1.0 if condition.trained else 0.7 if condition.arm else 0.45,
    }


def _dots(condition: Condition) -> list[Json]:
    return [
        {
            "value": _within(100 * mean, 100),
            "hover": shown(f"{condition.label}, seed {seed}: {hundred(mean)}"),
        }
        for seed, mean in condition.per_seed.items()
    ]


def _within(value: float, top: float) -> float:
    return min(max(value, 0.0), top)


def _curve_points(runs: list[RunCurves], key: str) -> list[Json]:
    """Every run's values of one metric, and each arm's mean at the steps where all of its runs have one."""
    rows = []
    for arm in dict.fromkeys(run.arm for run in runs):
        series = {
            run.name: {line["step"]: line[key] for line in run.steps if _is_number(line.get(key))}
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
    return {"arm": shown(arm, 40), "run": shown(run, 60), "kind": kind, "step": step, "value": value}


def run_arms(study: Study, colors: dict[str, str]) -> dict[str, str]:
    """The arms that have curves, with their colours, in the order of their line styles."""
    names = sorted({run.arm for run in study.runs}, key=list(colors).index)
    return {shown(name, 40): colors[name] for name in names}


def _all_within_one(points: list[Json]) -> bool:
    return all(0 <= point["value"] <= 1 for point in points)


def thinned(items: list[Any], most: int) -> list[Any]:
    """At most `most` of the items, evenly spaced, first and last among them."""
    if len(items) <= most:
        return items
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


# ---------------------------------------------------------------------------------------------- chats


def before_and_after(study: Study) -> list[Page]:
    """Pairs of chats about the same task: the untrained pair, and a trained one (seeds take turns).

    Tasks are evenly spaced through the evaluation's own order and not chosen by outcome.
    """
    scores = study.directory / "scores"
    before = _first_chats(scores / BEFORE / "base.jsonl")
    after = {
        path.stem: _first_chats(path)
        for path in sorted((scores / AFTER).glob("*.jsonl"), key=_natural)
        if not path.name.endswith(".greedy.jsonl")
    }
    seeds = [seed for seed, chats in after.items() if chats]
    if not before or not seeds:
        lacking = f"scores/{BEFORE}/base.jsonl" if not before else f"scores/{AFTER}/<seed>.jsonl"
        study.missing["chats"] = f"No chats before and after: {lacking} holds none."
        return []
    tasks = [task for task in before if all(task in after[seed] for seed in seeds)]
    if not tasks:
        study.missing["chats"] = "No chats before and after: the two evaluations have no task in common yet."
    pages = []
    for index, task in enumerate(thinned(tasks, CHAT_PAGES)):
        seed = seeds[index % len(seeds)]
        pages.append(
            _page(
                [
                    _chat(before[task], "Before: untrained"),
                    _chat(after[seed][task], f"After: trained, seed {seed}"),
                ]
            )
        )
    return pages


def through_training(study: Study) -> list[Page]:
    """The first dev task of the first run (an open one where there is one), at every recorded step."""
    paths = sorted(
        (study.directory / "runs").glob("*/dev.jsonl"),
        key=lambda path: (not path.parent.name.startswith("open-"), _natural(path)),
    )
    for path in paths:
        chats = [chat for chat in read_lines(path) if _is_chat(chat) and _is_number(chat.get("step"))]
        if chats:
            by_step = {chat["step"]: chat for chat in reversed(chats) if chat["task"] == chats[0]["task"]}
            steps = thinned(sorted(by_step), CHAT_PAGES)
            return [_page([_chat(by_step[step], f"{path.parent.name}, step {step}")]) for step in steps]
    study.missing["training"] = "No chats of the dev tasks: runs/<arm>-<seed>/dev.jsonl holds none."
    return []


def _first_chats(path: Path) -> dict[str, Json]:
    """The first chat of every task, in the file's order."""
    chats: dict[str, Json] = {}
    for chat in read_lines(path):
        if _is_chat(chat):
            chats.setdefault(chat["task"], chat)
    return chats


def _is_chat(value: Json) -> bool:
    return isinstance(value.get("task"), str) and isinstance(value.get("messages"), list)


def _page(chats: list[Json]) -> Page:
    first = chats[0]
    return Page(
        first["task"],
        str(first.get("question") or ""),
        str(first.get("gold") or ""),
        _mapping(first.get("hands")),
        chats,
    )


def _chat(line: Json, heading: str) -> Json:
    """A chat line with what the template asks of it: a heading, messages and answers that are complete."""
    rewards = _mapping(line.get("rewards"))
    messages: list[Json] = [
        {
            "seat": str(message.get("seat", "?")),
            "said": str(message.get("said") or ""),
            "heard": message.get("heard"),
            "cut": bool(message.get("cut")),
        }
        for message in line["messages"]
        if isinstance(message, dict)
    ]
    answers = []
    for seat, grade in _mapping(line.get("answers")).items():
        answer = _mapping(grade)
        right = rewards[seat] > 0 if _is_number(rewards.get(seat)) else bool(answer.get("strict"))
        answers.append(
            {
                "seat": seat,
                "answer": str(answer.get("answer") or ""),
                "right": right,
                "parsed": bool(answer.get("parsed", True)),
            }
        )
    last = {message["seat"]: index for index, message in enumerate(messages)}
    for index, message in enumerate(messages):
        message["final"] = last[message["seat"]] == index
        heard = message["heard"]
        message["altered"] = (
            heard if isinstance(heard, str) and heard.strip() != message["said"].strip() else None
        )
    return line | {"heading": heading, "messages": messages, "graded": answers, "seats": sorted(last)}


# ---------------------------------------------------------------------------------------------- the page


def report(directory: Path | str) -> Path:
    """Write `report.html` into a study's directory and return its path.

    Raises BadInput when the directory is no study's or its results.json cannot be read.
    """
    directory = Path(directory)
    study = read_study(directory)
    charts = load_charts()
    page = render(study, charts)
    path = directory / "report.html"
    temporary = path.with_name("report.html.part")
    temporary.write_text(page, encoding="utf-8", newline="\n")
    temporary.replace(path)
    return path


def render(study: Study, charts: ModuleType | None) -> str:
    """The page's HTML; `charts` is the module charts.py, or None for a page without pictures."""
    drawing = draw(study, charts) if charts else Drawing(None, [], [])
    if charts is None:
        study.missing["charts"] = (
            "The charts are left out: altair and vl-convert-python are not installed here. "
            "The tables hold the same numbers."
        )
    style = (HERE / "report.css").read_text(encoding="utf-8")
    pairs, steps = before_and_after(study), through_training(study)
    _note_missing(study)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
    )
    environment.filters |= {"hundred": hundred, "rate": rate_words, "counted": counted}
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    results = study.results
    comparisons = [
        row for row in results.get("comparisons") or [] if isinstance(row, dict) and row.get("sentence")
    ]
    return environment.get_template("report.html.jinja").render(
        style=Markup(style),
        style_hash=f"sha256-{digest}",
        study=study,
        results=results,
        name=str(results.get("study") or study.directory.name),
        conditions=list(study.conditions.values()),
        sentences=[_headline(str(row["sentence"])) for row in comparisons],
        pictures=_pictures(study, drawing, charts),
        talk_names=list(dict.fromkeys(name for c in study.conditions.values() for name in c.talk)),
        seats=list(dict.fromkeys(seat for c in study.conditions.values() for seat in c.per_seat)),
        legend=_legend(study, charts),
        finals=_last_values(study),
        final_headings=[heading for heading, _ in CURVE_PANELS.values()],
        pairs=pairs,
        steps=steps,
        missing=study.missing,
        command=command(results),
        tables={
            "Settings": settings(_mapping(results.get("config")))[:300],
            "Versions": settings(_mapping(results.get("versions")))[:100],
            "Cost": settings(_mapping(results.get("cost")))[:100],
        },
    )


def _headline(sentence: str) -> tuple[str, str]:
    """A verdict's sentence as what it says and what it stands on: "... [+0.97, +0.99]" and "(3 seeds against 3 ...".

    The first letter becomes a capital; not a word is left out.
    """
    says, bracket, stands_on = sentence.partition(" (")
    return says[:1].upper() + says[1:], bracket.strip() + stands_on


def _finalize(value: Any) -> Any:
    """Every value that the template writes goes through here, so that none can be forgotten."""
    return value if isinstance(value, Markup) else shown(str(value))


def _note_missing(study: Study) -> None:
    conditions = study.conditions.values()
    if not any(condition.score for condition in conditions):
        study.missing["scores"] = "No scores: results.json holds no condition with a score."
    if not any(condition.talk for condition in conditions):
        study.missing["talk"] = "No measures of talk: results.json holds none."
    if not study.runs:
        study.missing["curves"] = "No learning curves: runs/<arm>-<seed>/metrics.jsonl holds no step."
    else:
        lacking = [
            heading for key, (heading, _) in CURVE_PANELS.items() if not _curve_points(study.runs, key)
        ]
        if lacking:
            study.missing["panels"] = f"Not recorded by any run: {', '.join(lacking)}."


def _legend(study: Study, charts: ModuleType | None) -> list[tuple[str, Markup]]:
    """Arms with curves and a piece of their line."""
    if charts is None:
        return []
    arms = run_arms(study, arm_colors(study, charts))
    return [(arm, Markup(charts.swatch(arms, arm))) for arm in arms]


def _last_values(study: Study) -> list[tuple[str, int, list[str]]]:
    """Each run's last step and the last recorded value of each curve."""
    rows = []
    for run in study.runs:
        last = {key: value for line in run.steps for key, value in line.items() if _is_number(value)}
        rows.append(
            (run.name, last["step"], [f"{last[key]:.3g}" if key in last else "–" for key in CURVE_PANELS])
        )
    return rows


def _pictures(study: Study, drawing: Drawing, charts: ModuleType | None) -> Json:
    """Inline SVG for the page: the main chart wide and narrow, a list of panels for talk and for curves."""
    if charts is None:
        return {"solved": [], "talk": [], "curves": []}
    scores = [f"{c.label} {rate_words(c.score)}" for c in study.conditions.values() if c.score]
    words = shown("Bar chart, problems solved out of 100 with 95% intervals. " + "; ".join(scores) + ".")
    solved = (
        [
            (kind, Markup(charts.inline_svg(drawing.solved(width), words)))
            for kind, width in (("wide", 760), ("narrow", 210))
        ]
        if drawing.solved
        else []
    )
    return {
        "solved": solved,
        **{
            part: [
                Markup(
                    charts.inline_svg(
                        panel, f"{what}: {panel.title.text}. The table below holds the numbers."
                    )
                )
                for panel in panels
            ]
            for part, what, panels in (
                ("talk", "Column chart before and after training", drawing.talk),
                ("curves", "Line chart over training steps", drawing.curves),
            )
        },
    }


def figures(directory: Path | str) -> list[Path]:
    """Write figures/solved, talk and curves as PNG and SVG; return the paths of those that could be drawn.

    Raises BadInput where altair or vl-convert-python is missing, or the directory is no study's.
    """
    study = read_study(Path(directory))
    charts = load_charts()
    if charts is None:
        raise BadInput(
            "figures need altair and vl-convert-python, which are not installed here; expected both. "
            "Type: pip install altair vl-convert-python"
        )
    drawing = draw(study, charts)
    folder = study.directory / "figures"
    folder.mkdir(exist_ok=True)
    pictures = {
        "solved": drawing.solved(760) if drawing.solved else None,
        "talk": charts.together(drawing.talk) if drawing.talk else None,
        "curves": charts.together(drawing.curves) if drawing.curves else None,
    }
    paths = []
    for name, picture in pictures.items():
        if picture is not None:
            (folder / f"{name}.svg").write_text(charts.svg_file(picture), encoding="utf-8", newline="\n")
            (folder / f"{name}.png").write_bytes(charts.png_file(picture))
            paths += [folder / f"{name}.png", folder / f"{name}.svg"]
    return paths
