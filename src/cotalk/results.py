"""results.json: one evaluation as arrays (`Score`), and a study's numbers as one JSON file, schema 1.

A `Score` is what evaluating one condition gives: outcomes (runs, tasks, chats, seats), saved as
`outcomes/NAME.npz`, from which every interval of results.json can be computed again. `build` turns scores
into the JSON document, `write` and `read` refuse one that is not well formed, `check` says what is wrong with
it, and `table` shows it in a terminal. The format, key by key, is in docs/results.md.

It leaves out playing chats (evaluate.py), formulas (stats.py), measures (talk.py) and pictures (report.py).

    results = build("quickstart", scores, compare=[("trained_open", "trained_closed")], config=..., cost=...)
    write(Path("runs/quickstart/results.json"), results)
    rich.print(table(read(Path("runs/quickstart/results.json"))))
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cotalk import stats, talk
from cotalk.errors import BadInput
from cotalk.stats import Comparison, Floats, Rate

Json = dict[str, Any]
SCHEMA = 1
NO_SEED = -1  # how an .npz file writes the seed of what was never trained
RECORDED = ("cotalk", "torch", "transformers", "peft", "numpy", "scipy", "math-verify", "reasoning-gym")
VERDICTS = ("one seed", "noise", "helps", "hurts", "no different", "cannot tell")
ENDS = ("mean", "low", "high")
SHOWN_TALK = ("sends", "uses", "asks", "agrees")


# --- one evaluation as arrays -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """The outcomes of one condition.

    outcomes, strict, lenient, parsed: (runs, tasks, chats, seats), 0 or 1; `outcomes` is what the reward
    counts (between 0 and 1 from a grader of your own).
    seeds: one a run, or (None,) for what was never trained. talk: {measure: (runs, tasks)}, NaN where it does
    not apply (talk.stack). repeats: the mean of each evaluation, this one first, where it was made more than
    once. clusters: each task's template, or None for a task of its own. decoding: "sampled" or "greedy".
    """

    condition: str
    seeds: tuple[int | None, ...]
    tasks: tuple[str, ...]
    seats: tuple[str, ...]
    outcomes: Floats
    strict: Floats
    lenient: Floats
    parsed: Floats
    talk: Mapping[str, Floats] = field(default_factory=dict)
    repeats: tuple[float, ...] = ()
    clusters: tuple[str | None, ...] | None = None
    decoding: str = "sampled"

    def __post_init__(self) -> None:
        expected = (len(self.seeds), len(self.tasks), self.outcomes.shape[2], len(self.seats))
        for name in ("outcomes", "strict", "lenient", "parsed"):
            self._expect(name, getattr(self, name), expected)
        for name, values in self.talk.items():
            self._expect(f"talk {name}", values, expected[:2])
        if len(set(self.seeds)) < len(self.seeds) or (None in self.seeds and len(self.seeds) > 1):
            raise BadInput(f"{self.condition} has the seeds {self.seeds}; expected each once, or None alone.")
        if len(set(self.tasks)) < len(self.tasks):
            raise BadInput(
                f"{self.condition} names a task twice; expected each once, its chats side by side."
            )
        if self.decoding not in ("sampled", "greedy"):
            raise BadInput(f"{self.condition} has decoding {self.decoding!r}; expected sampled or greedy.")

    def _expect(self, name: str, values: Floats, shape: tuple[int, ...]) -> None:
        if values.shape != shape or 0 in shape:
            raise BadInput(
                f"{self.condition}: {name} has the shape {values.shape}; expected {shape} after its seeds, "
                "tasks, chats and seats, none of them 0."
            )

    @property
    def rate(self) -> Rate:
        """Over tasks for one run, over seeds and tasks for several."""
        return self._rate(self.outcomes)

    @property
    def seed_means(self) -> dict[str, float]:
        """{"17": mean, ...}, or {"base": mean} for what was never trained."""
        means = stats.task_means(self.outcomes).mean(1)
        return {_seed_name(seed): float(mean) for seed, mean in zip(self.seeds, means, strict=True)}

    @property
    def seat_rates(self) -> dict[str, Rate]:
        return {seat: self._rate(self.outcomes[..., [at]]) for at, seat in enumerate(self.seats)}

    @property
    def file_name(self) -> str:
        return f"{self.condition}.npz" if self.decoding == "sampled" else f"{self.condition}.greedy.npz"

    def _rate(self, outcomes: Floats) -> Rate:
        if len(outcomes) == 1:
            return stats.rate_over_tasks(outcomes, self.clusters)
        return stats.rate_over_seeds(outcomes, self.clusters)

    def save(self, directory: Path) -> Path:
        """Write `directory`/NAME.npz, whole or not at all; the same score gives the same bytes."""
        arrays: dict[str, Any] = {
            "outcomes": self.outcomes,
            "strict": self.strict,
            "lenient": self.lenient,
            "parsed": self.parsed,
            "seeds": np.array([NO_SEED if seed is None else seed for seed in self.seeds], dtype=np.int64),
            "tasks": np.array(self.tasks),
            "seats": np.array(self.seats),
            "condition": np.array(self.condition),
            "decoding": np.array(self.decoding),
            "repeats": np.array(self.repeats, dtype=np.float64),
            "clusters": np.array([json.dumps(name) for name in self.clusters or ()], dtype=np.str_),
        } | {f"talk/{name}": values for name, values in self.talk.items()}
        path = directory / self.file_name
        archive = BytesIO()
        np.savez_compressed(archive, **arrays)
        _write_whole(path, archive.getvalue())
        return path

    @classmethod
    def load(cls, path: Path) -> Score:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except FileNotFoundError:
            raise BadInput(f"there is no file {path}; expected an outcomes/NAME.npz of a study.") from None
        except (
            ValueError,
            OSError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:  # numpy: pickled, torn, or not an archive
            raise BadInput(f"{path} holds no readable outcomes ({error}); evaluate again.") from error
        missing = {"outcomes", "strict", "lenient", "parsed", "seeds", "tasks", "seats"} - arrays.keys()
        if missing:
            raise BadInput(f"{path} lacks {', '.join(sorted(missing))}; expected what Score.save writes.")
        clusters = [json.loads(str(name)) for name in arrays.get("clusters", ())]
        return cls(
            condition=str(arrays.get("condition", path.stem)),
            seeds=tuple(None if seed == NO_SEED else int(seed) for seed in arrays["seeds"]),
            tasks=tuple(map(str, arrays["tasks"])),
            seats=tuple(map(str, arrays["seats"])),
            outcomes=arrays["outcomes"],
            strict=arrays["strict"],
            lenient=arrays["lenient"],
            parsed=arrays["parsed"],
            talk={name.removeprefix("talk/"): arrays[name] for name in arrays if name.startswith("talk/")},
            repeats=tuple(map(float, arrays.get("repeats", ()))),
            clusters=tuple(clusters) or None,
            decoding=str(arrays.get("decoding", "sampled")),
        )


def _seed_name(seed: int | None) -> str:
    return "base" if seed is None else str(seed)


# --- comparing scores -------------------------------------------------------------------------------------


def compare_scores(a: Score, b: Score, label_a: str = "", label_b: str = "") -> Comparison:
    """The comparison that two scores allow: arm with arm, arm with the base, or base with base."""
    if a.tasks != b.tasks:
        raise BadInput(
            f"{a.condition} was scored on {len(a.tasks)} tasks and {b.condition} on {len(b.tasks)}; expected "
            "the same tasks in the same order. Evaluate both on the same tasks."
        )
    names = (label_a or _words(a.condition), label_b or _words(b.condition))
    if a.seeds == (None,) == b.seeds:
        return stats.compare_checkpoints(a.outcomes, b.outcomes, *names, clusters=a.clusters)
    if b.seeds == (None,):
        return stats.compare_with_fixed(a.outcomes, b.outcomes, *names, clusters=a.clusters)
    if a.seeds == (None,):
        raise BadInput(
            f"{a.condition} was never trained; compare {b.condition} with it, the trained one first."
        )
    return stats.compare_arms(list(a.seed_means.values()), list(b.seed_means.values()), *names)


def _checkpoints(a: Score, b: Score) -> Json | None:
    """For one run against one: how far these two checkpoints lie apart, over tasks."""
    if len(a.seeds) > 1 or len(b.seeds) > 1:
        return None
    found = stats.compare_checkpoints(a.outcomes, b.outcomes, clusters=a.clusters)
    ends = {"low": found.low, "high": found.high}
    return {"mean": found.difference} | ends | {"n": found.n_a, "unit": "tasks"}


def _words(condition: str) -> str:
    return condition.replace("_", " ")


# --- building ---------------------------------------------------------------------------------------------


def build(
    study: str,
    scores: Iterable[Score],
    *,
    compare: Sequence[tuple[str, str]] = (),
    config: Mapping[str, Any] | None = None,
    cost: Mapping[str, Any] | None = None,
    about: Mapping[str, Mapping[str, Any]] | None = None,
    created: str | None = None,
) -> Json:
    """The document of a study.

    Args:
        scores: sampled and greedy ones in any order; a condition's greedy score goes under its `greedy`.
        compare: pairs of condition names; all of them are corrected together (Holm).
        about: more keys for a condition: {"trained_open": {"label": "trained, channel open", "arm": "open"}}.
        created: when, ISO 8601; now if not given.
    """
    given = list(scores)
    sampled, greedy = (_by_condition(given, decoding) for decoding in ("sampled", "greedy"))
    if alone := sorted(greedy.keys() - sampled.keys()):
        raise BadInput(f"greedy scores of {', '.join(alone)} came without the sampled ones; expected both.")
    about = about or {}
    labels = {name: str(about.get(name, {}).get("label") or _words(name)) for name in sampled}
    return {
        "schema": SCHEMA,
        "study": study,
        "created": created or datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "config": dict(config or {}),
        "conditions": {
            name: dict(about.get(name, {})) | _condition(score, greedy.get(name))
            for name, score in sampled.items()
        },
        "comparisons": _comparisons(sampled, labels, compare),
        "cost": dict(cost or {}),
    }


def versions() -> dict[str, str]:
    """Python, the platform, and the libraries that a result depends on (those that are installed)."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in RECORDED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # optional, or not installed
            continue
    return found


def _by_condition(scores: Sequence[Score], decoding: str) -> dict[str, Score]:
    chosen = [score for score in scores if score.decoding == decoding]
    names = [score.condition for score in chosen]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"two {decoding} scores were given for {', '.join(twice)}; expected all runs in one.")
    return dict(zip(names, chosen, strict=True))


def _condition(score: Score, greedy: Score | None) -> Json:
    return _measured(score) | {
        "greedy": None if greedy is None else _measured(greedy),
        "repeats": list(score.repeats) or [score.rate.mean],
        "size": _size(score),
    }


def _measured(score: Score) -> Json:
    return {
        "score": score.rate.as_json,
        "per_seed": score.seed_means,
        "per_seat": {seat: rate.as_json for seat, rate in score.seat_rates.items()},
        "talk": {name: rate.as_json for name, rate in talk.rates(score.talk, score.clusters).items()},
        "graded": {name: float(np.nanmean(getattr(score, name))) for name in ("strict", "lenient", "parsed")},
    }


def _size(score: Score) -> Json:
    runs, tasks, chats, seats = score.outcomes.shape
    return {"runs": runs, "tasks": tasks, "chats": chats, "seats": seats}


def _comparisons(
    sampled: Mapping[str, Score], labels: Mapping[str, str], pairs: Sequence[tuple[str, str]]
) -> list[Json]:
    for name in (name for pair in pairs for name in pair):
        if name not in sampled:
            raise BadInput(f"a comparison names {name!r}; expected one of {', '.join(sampled)}.")
    found = [compare_scores(sampled[a], sampled[b], labels[a], labels[b]) for a, b in pairs]
    corrected = stats.correct(found) if len(found) > 1 else found
    return [
        comparison.as_json
        | {"a": a, "b": b, "per_seed_a": sampled[a].seed_means, "per_seed_b": sampled[b].seed_means}
        | {"checkpoints": _checkpoints(sampled[a], sampled[b])}
        for (a, b), comparison in zip(pairs, corrected, strict=True)
    ]


# --- writing, reading, checking ---------------------------------------------------------------------------


def write(path: Path, results: Json) -> None:
    """Write results.json whole or not at all; refuse what `check` finds wrong."""
    _refuse(f"results for {path}", check(results))
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    _write_whole(path, text.encode("utf-8"))


def read(path: Path) -> Json:
    """Read a results.json of schema 1; BadInput says what is wrong with any other file."""
    path = path / "results.json" if path.is_dir() else path
    if not path.exists():
        raise BadInput(f"there is no file {path}; expected a results.json, written when a study ends.")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is not JSON ({error}); expected a study's results.json.") from error
    _refuse(str(path), check(results))
    return dict(results)


def check(results: object) -> list[str]:
    """What is wrong with a results document, a line a fault; an empty list where nothing is."""
    if not isinstance(results, dict):
        return [f"the document is {_kind(results)}; expected an object"]
    if results.get("schema") != SCHEMA or results.get("schema") is True:
        return [f"schema is {results.get('schema')!r}; expected {SCHEMA}, all that this version reads"]
    return list(_document_faults(results))


def _write_whole(path: Path, data: bytes) -> None:
    """Whole or not at all: beside it, to the disk, then in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _refuse(what: str, faults: Sequence[str]) -> None:
    if faults:
        shown = "\n  ".join(faults[:10])
        more = f"\n  and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise BadInput(f"{what}: not a well-formed results.json (docs/results.md).\n  {shown}{more}")


def _document_faults(results: Json) -> Iterator[str]:
    for key, kind in {"study": str, "created": str, "versions": dict, "config": dict, "cost": dict}.items():
        if not isinstance(results.get(key), kind):
            yield f"{key} is {_kind(results.get(key))}; expected {_kind(kind())}"
    yield from _time_faults(results.get("created"))
    yield from _finite_faults({key: results.get(key) for key in ("versions", "config", "cost")}, "")
    conditions, comparisons = results.get("conditions"), results.get("comparisons")
    if not isinstance(conditions, dict) or not conditions:
        yield f"conditions is {_kind(conditions)}; expected an object with at least one condition"
        conditions = {}
    for name, condition in conditions.items():
        yield from _condition_faults(condition, f"conditions.{name}")
    if not isinstance(comparisons, list):
        yield f"comparisons is {_kind(comparisons)}; expected a list"
        comparisons = []
    for at, comparison in enumerate(comparisons):
        yield from _comparison_faults(comparison, conditions, f"comparisons[{at}]")


def _time_faults(created: object) -> Iterator[str]:
    try:
        if isinstance(created, str):
            datetime.fromisoformat(created)
    except ValueError:
        yield f"created is {created!r}; expected an ISO 8601 time"


def _finite_faults(value: object, where: str) -> Iterator[str]:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where} is {value}; expected a finite number"
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, child in value.items() if isinstance(value, Mapping) else ():
        yield from _finite_faults(child, f"{where}.{key}" if where else str(key))


def _condition_faults(condition: object, where: str) -> Iterator[str]:
    if not isinstance(condition, dict):
        yield f"{where} is {_kind(condition)}; expected an object"
        return
    yield from _measured_faults(condition, where)
    greedy = condition.get("greedy")
    if isinstance(greedy, dict) and greedy:
        yield from _measured_faults(greedy, f"{where}.greedy")
    elif greedy is not None and greedy != {}:
        yield f"{where}.greedy is {_kind(greedy)}; expected an object, or null where it was not played"
    repeats = condition.get("repeats")
    if not isinstance(repeats, list) or not all(_is_share(mean) for mean in repeats):
        yield f"{where}.repeats is {repeats!r}; expected a list of means between 0 and 1"


def _measured_faults(measured: Json, where: str) -> Iterator[str]:
    seeds = measured.get("per_seed")
    if not isinstance(seeds, dict) or not seeds or not all(_is_share(mean) for mean in seeds.values()):
        yield f"{where}.per_seed is {seeds!r}; expected a mean between 0 and 1 for each seed"
        return
    yield from _seed_faults(list(seeds), where)
    yield from _rate_faults(measured.get("score"), f"{where}.score", len(seeds), bounded=True)
    yield from _stale_faults(measured.get("score"), list(seeds.values()), where)
    for group in ("per_seat", "talk"):
        rates = measured.get(group)
        if not isinstance(rates, dict):
            yield f"{where}.{group} is {_kind(rates)}; expected an object of rates"
            continue
        for name, rate in rates.items():
            bounded = name.split("/")[0] not in talk.AMOUNTS
            yield from _rate_faults(rate, f"{where}.{group}.{name}", len(seeds), bounded)


def _seed_faults(names: Sequence[str], where: str) -> Iterator[str]:
    if list(names) != ["base"] and not all(name.isdecimal() for name in names):
        yield f'{where}.per_seed has the keys {list(names)}; expected seeds such as "17", or "base" alone'


def _rate_faults(rate: object, where: str, runs: int, bounded: bool) -> Iterator[str]:
    """A RATE; its unit follows from the number of runs, so that seeds and tasks are never mixed up."""
    keys = {"mean", "low", "high", "n", "unit"}
    if not isinstance(rate, dict) or rate.keys() != keys:
        yield f"{where} is {sorted(rate) if isinstance(rate, dict) else _kind(rate)}; expected {sorted(keys)}"
        return
    if not all(_is_number(rate[key]) for key in ENDS):
        yield f"{where}: mean, low and high are {[rate[key] for key in ENDS]}; expected finite numbers"
    elif not 0 <= rate["low"] <= rate["mean"] <= rate["high"] <= (1 if bounded else math.inf):
        order = "0 <= low <= mean <= high" + " <= 1" * bounded
        yield f"{where}: {rate['mean']} [{rate['low']}, {rate['high']}]; expected {order}"
    if type(rate["n"]) is not int or rate["n"] < 1:
        yield f"{where}.n is {rate['n']!r}; expected a whole number, at least 1"
    units = ("tasks",) if runs == 1 else ("seeds", "seeds+tasks")
    if rate["unit"] not in units:
        yield f"{where}.unit is {rate['unit']!r} in per_seed of {runs}; expected {' or '.join(units)}"
    elif runs > 1 and rate["n"] != runs:
        yield f"{where}.n is {rate['n']!r}; expected {runs}, the number of seeds in per_seed"


def _stale_faults(score: object, seed_means: Sequence[float], where: str) -> Iterator[str]:
    mean: Any = score.get("mean") if isinstance(score, dict) else None
    expected = sum(seed_means) / len(seed_means)
    if _is_number(mean) and abs(mean - expected) > 1e-6:
        yield f"{where}.score has the mean {mean} and its per_seed the mean {expected}; expected the same"


def _comparison_faults(comparison: object, conditions: Json, where: str) -> Iterator[str]:
    if not isinstance(comparison, dict):
        yield f"{where} is {_kind(comparison)}; expected an object"
        return
    for side in ("a", "b"):
        if comparison.get(side) not in conditions:
            yield f"{where}.{side} is {comparison.get(side)!r}; expected the name of a condition"
    if not _is_number(comparison.get("difference")):
        yield f"{where}.difference is {comparison.get('difference')!r}; expected a number"
    if comparison.get("unit") not in stats.UNITS:
        yield f"{where}.unit is {comparison.get('unit')!r}; expected one of {', '.join(stats.UNITS)}"
    verdict, sentence = comparison.get("verdict"), comparison.get("sentence")
    if verdict not in VERDICTS:
        yield f"{where}.verdict is {verdict!r}; expected one of {', '.join(VERDICTS)}"
    if not isinstance(sentence, str) or not sentence:
        yield f"{where}.sentence is {sentence!r}; expected the verdict in words"
    seeds = [comparison.get(key) for key in ("n_a", "n_b") if comparison.get(key) is not None]
    if comparison.get("unit") != "tasks" and 1 in seeds and verdict != "one seed":
        yield f"{where}.verdict is {verdict!r} with one seed on a side; expected one seed"
    yield from _finite_faults(comparison, where)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and 0 <= value <= 1


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "missing", bool: "true or false"}
    return names.get(type(value), f"the number {value}")


# --- the terminal -----------------------------------------------------------------------------------------


def table(results: Json) -> RenderableType:
    """Scores with every seed, seats and talk as tables, then a sentence a comparison; for rich to print."""
    conditions = results["conditions"]
    parts: list[RenderableType] = [_score_table(results["study"], conditions)]
    seats = {name: each["per_seat"] for name, each in conditions.items() if len(each["per_seat"]) > 1}
    spoken = {name: each["talk"] for name, each in conditions.items()}
    for title, rates in (("Each seat", seats), ("Talk, over all seats", spoken)):
        parts += _rate_table(title, conditions, rates)
    parts += [Text(f"{row['verdict']}: {row['sentence']}") for row in results["comparisons"]]
    return Group(*parts)


def _score_table(study: str, conditions: Json) -> Table:
    grid = Table(title=f"{study}: tasks solved, with 95% intervals", title_justify="left")
    grid.add_column("condition", overflow="fold")
    for heading in ("score", "every seed", "greedy"):
        grid.add_column(heading, no_wrap=True)
    for name, condition in conditions.items():
        greedy = condition.get("greedy") or {}
        grid.add_row(
            Text(str(condition.get("label") or name)),
            Text(_cell(condition["score"], condition)),
            Text("\n".join(f"{seed}: {mean:.3f}" for seed, mean in condition["per_seed"].items())),
            Text(_cell(greedy["score"], condition) if greedy else ""),
        )
    return grid


def _rate_table(title: str, conditions: Json, rates: Mapping[str, Json]) -> list[Table]:
    """A row a condition, a column a rate; no table where there is nothing to show."""
    found = dict.fromkeys(name for row in rates.values() for name in row)
    names = [name for name in found if name in SHOWN_TALK or len(name) == 1]
    if not names:
        return []
    grid = Table(title=title, title_justify="left")
    grid.add_column("condition", overflow="fold")
    for name in names:
        grid.add_column(name)
    for condition, row in rates.items():
        cells = [Text(_cell(row[name], conditions[condition]) if name in row else "") for name in names]
        grid.add_row(Text(str(conditions[condition].get("label") or condition)), *cells)
    return [grid]


def _cell(rate: Json, condition: Json) -> str:
    """`0.40 [0.36, 0.45]`, and under it what it stands on."""
    tasks = condition.get("size", {}).get("tasks") if rate["unit"] == "seeds+tasks" else None
    read_back = Rate.from_json(rate, tasks)
    return f"{read_back.brief}\n{read_back.of}"
