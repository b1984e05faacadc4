"""results.json: one evaluation as arrays (`Score`), and a study's numbers as one JSON file, schema 1.

A `Score` is what evaluating one condition gives: outcomes (runs, tasks, chats, seats), saved as
`outcomes/NAME.npz`, from which every interval of results.json can be computed again. `build` turns scores
into the JSON document, `write` and `read` refuse one that is not well formed, `check` says what is wrong with
it, `stale` which of its values an earlier version's code measured, and `table` shows it in a terminal. The format,
key by key, is in docs/results.md; its shape is results.schema.json, the one source of what `check` expects, and
this file holds only what one value says of another.

It leaves out playing chats (evaluate.py), formulas (stats.py), measures (talk.py) and pictures (report.py).

    results = build("quickstart", scores, compare=[("trained_open", "trained_closed")], config=..., cost=...)
    write(Path("runs/quickstart/results.json"), results)
    rich.print(table(read(Path("runs/quickstart/results.json"))))
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import math
import platform
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cotalk import __version__, stats, talk
from cotalk.disk import read_json, write_atomically
from cotalk.errors import BadInput
from cotalk.stats import Comparison, Floats, NoiseFloor, Rate

log = logging.getLogger(__name__)
Json = dict[str, Any]
SCHEMA = 1
NO_SEED = -1  # how an .npz file writes the seed of what was never trained
RECORDED = (
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "math-verify",
    "reasoning-gym",
)
# Of each measure's code: raised whenever a value of it could change. results.json and outcomes/*.npz carry them.
MEASURES = {"grade": 1, "talk": talk.VERSION, "intervals": stats.VERSION}
TORN = (  # what numpy raises for a file that is pickled, torn, encrypted or no archive
    ValueError, OSError, EOFError, KeyError, TypeError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
SHOWN_TALK = ("sends", "uses")  # in the terminal; the report has them all


# --- one evaluation as arrays -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """The outcomes of one condition.

    outcomes, strict, lenient, parsed: (runs, tasks, chats, seats), 0 or 1; `outcomes` is what the reward
    counts (between 0 and 1 from a grader of your own).
    seeds: one a run, or (None,) for what was never trained. talk: {measure: (runs, tasks)}, NaN where it does
    not apply (talk.stack). repeats: the means of each run's evaluations, this one first, where it was made more than
    once. clusters: each task's template, or None for a task of its own. decoding: "sampled" or "greedy".
    measures: the version of the code that measured it (MEASURES).
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
    repeats: tuple[tuple[float, ...], ...] = ()
    clusters: tuple[str | None, ...] | None = None
    decoding: str = "sampled"
    measures: Mapping[str, int] = field(default_factory=MEASURES.copy)

    def __post_init__(self) -> None:
        expected = (len(self.seeds), len(self.tasks), self.outcomes.shape[2], len(self.seats))
        for name in ("outcomes", "strict", "lenient", "parsed"):
            self._expect(name, getattr(self, name), expected)
        for name, values in self.talk.items():
            self._expect(f"talk {name}", values, expected[:2])
        if self.repeats and [len(row) for row in self.repeats] != [len(self.repeats[0])] * len(self.seeds):
            raise BadInput(
                f"{self.condition} has the repeats {self.repeats}; expected as many for each of its "
                f"{len(self.seeds)} runs, or none.",
                "results/score",
            )
        if len(set(self.seeds)) < len(self.seeds) or (None in self.seeds and len(self.seeds) > 1):
            raise BadInput(
                f"{self.condition} has the seeds {self.seeds}; expected each once, or None alone.",
                "results/score",
            )
        if len(set(self.tasks)) < len(self.tasks):
            raise BadInput(
                f"{self.condition} names a task twice; expected each once, its chats side by side.",
                "results/score",
            )
        if self.decoding not in ("sampled", "greedy"):
            raise BadInput(
                f"{self.condition} has decoding {self.decoding!r}; expected sampled or greedy.",
                "results/score",
            )

    def _expect(self, name: str, values: Floats, shape: tuple[int, ...]) -> None:
        if values.shape != shape or 0 in shape:
            raise BadInput(
                f"{self.condition}: {name} has the shape {values.shape}; expected {shape} after its seeds, "
                "tasks, chats and seats, none of them 0.",
                "results/score",
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
    def repeats_per_seed(self) -> dict[str, list[float]]:
        """{"17": [the mean of each evaluation, this one first], ...}."""
        means = self.seed_means
        rows = self.repeats or [(mean,) for mean in means.values()]
        return {seed: list(row) for seed, row in zip(means, rows, strict=True)}

    @property
    def repeated(self) -> Rate | None:
        """Over evaluations of these very runs; None where too few were made."""
        return stats.rate_over_evaluations(self.repeats)

    @property
    def pass_at_k(self) -> Rate:
        """The share of tasks that any of a task's k chats solved (an outcome of 1): by seat and run, then averaged."""
        solved = (self.outcomes >= 1.0).any(axis=2, keepdims=True)
        return self._rate(np.asarray(solved, dtype=np.float64))

    @property
    def seat_rates(self) -> dict[str, Rate]:
        return {seat: self._rate(self.outcomes[..., [at]]) for at, seat in enumerate(self.seats)}

    @property
    def file_name(self) -> str:
        return f"{self.condition}.npz" if self.decoding == "sampled" else f"{self.condition}.greedy.npz"

    def _rate(self, outcomes: Floats) -> Rate:
        if len(outcomes) == 1:
            seed = None if self.seeds == (None,) else str(self.seeds[0])
            return replace(stats.rate_over_tasks(outcomes, self.clusters), seed=seed)
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
            "measures": np.array(json.dumps(dict(self.measures), sort_keys=True)),
            "clusters": np.array([json.dumps(name) for name in self.clusters or ()], dtype=np.str_),
        } | {f"talk/{name}": values for name, values in self.talk.items()}
        path = directory / self.file_name
        archive = BytesIO()
        np.savez_compressed(archive, **arrays)
        write_atomically(path, archive.getvalue())
        return path

    @classmethod
    def load(cls, path: Path) -> Score:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except FileNotFoundError:
            raise BadInput(
                f"there is no file {path}; expected an outcomes/NAME.npz of a study.", "results/missing"
            ) from None
        except TORN as error:
            raise BadInput(
                f"{path} holds no readable outcomes ({error}); evaluate again.", "results/unreadable"
            ) from error
        missing = {"outcomes", "strict", "lenient", "parsed", "seeds", "tasks", "seats"} - arrays.keys()
        if missing:
            raise BadInput(
                f"{path} lacks {', '.join(sorted(missing))}; expected what Score.save writes.",
                "results/unreadable",
            )
        try:
            return cls._of_arrays(arrays, path.stem)
        except BadInput:
            raise
        except (*TORN, IndexError, AttributeError, OverflowError) as error:
            raise BadInput(
                f"{path} holds other arrays ({error!r}); evaluate again.", "results/unreadable"
            ) from error

    @classmethod
    def _of_arrays(cls, arrays: Mapping[str, Any], condition: str) -> Score:
        clusters = [json.loads(str(name)) for name in arrays.get("clusters", ())]
        repeats = arrays.get("repeats", np.zeros(0)).reshape(len(arrays["seeds"]), -1)
        return cls(
            condition=str(arrays.get("condition", condition)),
            seeds=tuple(None if seed == NO_SEED else int(seed) for seed in arrays["seeds"]),
            tasks=tuple(map(str, arrays["tasks"])),
            seats=tuple(map(str, arrays["seats"])),
            outcomes=arrays["outcomes"],
            strict=arrays["strict"],
            lenient=arrays["lenient"],
            parsed=arrays["parsed"],
            talk={name.removeprefix("talk/"): arrays[name] for name in arrays if name.startswith("talk/")},
            repeats=tuple(tuple(map(float, row)) for row in repeats) if repeats.size else (),
            clusters=tuple(clusters) or None,
            decoding=str(arrays.get("decoding", "sampled")),
            measures=json.loads(str(arrays.get("measures", "{}"))),
        )


def _seed_name(seed: int | None) -> str:
    return "base" if seed is None else str(seed)


# --- comparing scores -------------------------------------------------------------------------------------


def compare_scores(a: Score, b: Score, label_a: str = "", label_b: str = "") -> Comparison:
    """The comparison that two scores allow: arm with arm, arm with the base, or base with base."""
    if a.tasks != b.tasks:
        raise BadInput(
            f"{a.condition} was scored on {len(a.tasks)} tasks and {b.condition} on {len(b.tasks)}; expected "
            "the same tasks in the same order. Evaluate both on the same tasks.",
            "compare/unlike",
        )
    if a.measures.get("grade") != b.measures.get("grade"):
        raise BadInput(
            f"{a.condition} was graded by version {a.measures.get('grade')} of the grader and {b.condition} by version "
            f"{b.measures.get('grade')}; expected one. Run the older study again in a new directory.",
            "compare/unlike",
        )
    names = (label_a or _words(a.condition), label_b or _words(b.condition))
    if a.seeds == (None,) == b.seeds:
        return stats.compare_checkpoints(a.outcomes, b.outcomes, *names, clusters=a.clusters)
    if b.seeds == (None,):
        return stats.compare_with_fixed(a.outcomes, b.outcomes, *names, clusters=a.clusters)
    if a.seeds == (None,):
        raise BadInput(
            f"{a.condition} was never trained; compare {b.condition} with it, the trained one first.",
            "compare/unlike",
        )
    found = stats.compare_arms(list(a.seed_means.values()), list(b.seed_means.values()), *names)
    return replace(found, over_tasks=stats.crossed_difference(a.outcomes, b.outcomes, a.clusters))


def judge(found: Iterable[Comparison], margin: float | None) -> list[Comparison]:
    """The comparisons of one study with the user's margin, and Holm's correction over them all."""
    judged = [stats.with_margin(each, margin) for each in found]
    return stats.correct(judged) if len(judged) > 1 else judged


def noise_floors(repeats: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, NoiseFloor | None]:
    """The floor of one evaluation in each condition: its own where it was played again, else the untrained base's.

    repeats: {condition: {seed: means}}, as in `repeats_per_seed`.
    """
    base = stats.noise_floor(*(rows["base"] for rows in repeats.values() if "base" in rows))
    return {name: stats.noise_floor(*rows.values()) or base for name, rows in repeats.items()}


def checkpoints(a: Score, b: Score) -> Json | None:
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
    margin: float | None = None,
    created: str | None = None,
) -> Json:
    """The document of a study.

    Args:
        scores: sampled and greedy ones in any order; a condition's greedy score goes under its `greedy`.
        compare: pairs of condition names; all of them are corrected together (Holm).
        about: more keys for a condition: {"trained_open": {"label": "trained, channel open", "arm": "open"}}.
        margin: the smallest difference that matters to the user, such as 0.03; without one, no comparison can end
            in `no different`, and none says how many seeds would settle it.
        created: when, ISO 8601; now if not given.
    """
    given = list(scores)
    for score in given:
        if dict(score.measures) != MEASURES:
            raise BadInput(
                f"{score.condition} was measured by {_told(score.measures)}, and this is {_told(MEASURES)}. "
                "Read it from its chats again: the study's command does so.",
                "results/stale",
            )
    sampled, greedy = (_by_condition(given, decoding) for decoding in ("sampled", "greedy"))
    if alone := sorted(greedy.keys() - sampled.keys()):
        raise BadInput(
            f"greedy scores of {', '.join(alone)} came without the sampled ones; expected both.",
            "results/score",
        )
    about = about or {}
    labels = {name: str(about.get(name, {}).get("label") or _words(name)) for name in sampled}
    conditions = {
        name: dict(about.get(name, {})) | numbers_of(score, greedy.get(name))
        for name, score in sampled.items()
    }
    return {
        "schema": SCHEMA,
        "study": study,
        "created": created or datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "measures": dict(MEASURES),
        "config": dict(config or {}),
        "conditions": conditions,
        "comparisons": _comparisons(sampled, labels, compare, margin),
        "cost": dict(cost or {}),
    }


def versions() -> dict[str, str]:
    """What a result depends on: Python, the platform, and libraries (those that are installed).

    Determinism is claimed for one machine type and one set of these.
    """
    found = {"cotalk": __version__, "python": platform.python_version(), "platform": platform.platform()}
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
        raise BadInput(
            f"two {decoding} scores were given for {', '.join(twice)}; expected all runs in one.",
            "results/score",
        )
    return dict(zip(names, chosen, strict=True))


def numbers_of(score: Score, greedy: Score | None) -> Json:
    """All that a condition of the document holds, but for its words."""
    again = score.repeats_per_seed
    return _measured(score) | {
        "greedy": None if greedy is None else _measured(greedy),
        "repeats": [float(np.mean(means)) for means in zip(*again.values(), strict=True)],
        "repeats_per_seed": again,
        "repeated": None if score.repeated is None else score.repeated.as_json,
    }


def _measured(score: Score) -> Json:
    return {
        "score": score.rate.as_json,
        "per_seed": score.seed_means,
        "per_seat": {seat: rate.as_json for seat, rate in score.seat_rates.items()},
        "pass_at": {str(chats): score.pass_at_k.as_json} if (chats := score.outcomes.shape[2]) > 1 else {},
        "talk": {name: rate.as_json for name, rate in talk.rates(score.talk, score.clusters).items()},
        "graded": {name: float(np.nanmean(getattr(score, name))) for name in ("strict", "lenient", "parsed")},
        "size": _size(score),
    }


def _size(score: Score) -> Json:
    runs, tasks, chats, seats = score.outcomes.shape
    return {"runs": runs, "tasks": tasks, "chats": chats, "seats": seats}


def _comparisons(
    sampled: Mapping[str, Score],
    labels: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
    margin: float | None,
) -> list[Json]:
    for name in (name for pair in pairs for name in pair):
        if name not in sampled:
            raise BadInput(
                f"a comparison names {name!r}; expected one of {', '.join(sampled)}.", "compare/sides"
            )
    floors = noise_floors({name: score.repeats_per_seed for name, score in sampled.items()})
    found = [
        stats.with_noise(compare_scores(sampled[a], sampled[b], labels[a], labels[b]), floors[a], floors[b])
        for a, b in pairs
    ]
    return [
        comparison.as_json
        | {"a": a, "b": b, "per_seed_a": sampled[a].seed_means, "per_seed_b": sampled[b].seed_means}
        | {"checkpoints": checkpoints(sampled[a], sampled[b])}
        for (a, b), comparison in zip(pairs, judge(found, margin), strict=True)
    ]


# --- writing, reading, checking ---------------------------------------------------------------------------


def write(path: Path, results: Json) -> None:
    """Write results.json whole or not at all; refuse what `check` finds wrong."""
    _refuse(f"results for {path}", check(results))
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, text.encode("utf-8"))


def read(path: Path) -> Json:
    """Read a results.json of schema 1; BadInput says what is wrong with any other file."""
    path = path / "results.json" if path.is_dir() else path
    if not path.exists():
        raise BadInput(
            f"there is no file {path}; expected a results.json, written when a study ends.", "results/missing"
        )
    results = read_json(path, "a study's results.json", "results/unreadable")
    _refuse(str(path), check(results))
    return dict(results)


def check(results: object) -> list[str]:
    """What is wrong with a results document, a line a fault; an empty list where nothing is.

    First the shape, by results.schema.json; where that is right, what one value says of another.
    """
    if not isinstance(results, dict):
        return [f"the document is {_kind(results)}; expected an object"]
    if results.get("schema") != SCHEMA or results.get("schema") is True:
        return [f"schema is {results.get('schema')!r}; expected {SCHEMA}, all that this version reads"]
    try:
        return misshapen(results) or list(_relation_faults(results))
    except RecursionError:
        return ["the document is nested too deep; expected the shape of results.schema.json"]
    except (
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        ArithmeticError,
    ) as error:  # only where the shape could not be checked
        return [
            f"the document has not the shape of results.schema.json ({error!r}); pip install jsonschema says where"
        ]


def misshapen(results: Json) -> list[str]:
    """Where the document departs from results.schema.json, or holds what JSON has not."""
    return [*_finite_faults(results, ""), *_shape_faults(results)]


def stale(results: Json) -> list[str]:
    """What in this document was measured by another version of the code than this one, a line a measure."""
    then = results.get("measures") or {}
    return [
        f"{name} was measured by version {then.get(name, 'unknown')} of its code, and this is version {now}: type the "
        "study's command again to measure its chats anew"
        for name, now in MEASURES.items()
        if then.get(name) != now
    ]


def _refuse(what: str, faults: Sequence[str]) -> None:
    if faults:
        shown = "\n  ".join(faults[:10])
        more = f"\n  and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise BadInput(
            f"{what}: not a well-formed results.json (docs/results.md).\n  {shown}{more}",
            "results/not-well-formed",
        )


@lru_cache(maxsize=1)
def schema() -> Json:
    """The JSON Schema of results.json, as shipped."""
    return dict(json.loads((Path(__file__).parent / "results.schema.json").read_text(encoding="utf-8")))


def _shape_faults(results: Json) -> Iterator[str]:
    """Where the document departs from the schema; each description there completes the sentence `expected ...`."""
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ModuleNotFoundError:
        log.warning(
            "the shape of results.json is not checked: jsonschema is missing (pip install jsonschema)"
        )
        return
    for error in jsonschema.Draft202012Validator(schema()).iter_errors(results):
        where = _place(error.absolute_path)
        if error.validator == "required":
            name = error.message.split("'")[1]
            expected = (
                error.schema.get("properties", {}).get(name, {}).get("description", "it in every document")
            )
            yield f"{f'{where}.' * bool(where)}{name} is missing; expected {expected}"
        else:
            yield f"{where} is {_kind(error.instance)}; expected {error.schema.get('description', error.message)}"


def _place(path: Iterable[object]) -> str:
    """conditions.trained_open.repeats[0]"""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def _relation_faults(results: Json) -> Iterator[str]:
    yield from _time_faults(results["created"])
    for name, condition in results["conditions"].items():
        yield from _measured_faults(condition, f"conditions.{name}")
        yield from _repeat_faults(condition, f"conditions.{name}")
        if condition["greedy"]:
            yield from _measured_faults(condition["greedy"], f"conditions.{name}.greedy")
    for at, comparison in enumerate(results["comparisons"]):
        yield from _comparison_faults(comparison, results["conditions"], f"comparisons[{at}]")
    tested = [row for row in results["comparisons"] if row["p"] is not None and row.get("p_holm") is not None]
    for row, p in zip(tested, stats.holm([row["p"] for row in tested]), strict=True):
        if abs(row["p_holm"] - p) > 1e-9:
            yield f"comparisons: p_holm of {row['a']} against {row['b']} is {row['p_holm']}; expected {p}"


def _time_faults(created: str) -> Iterator[str]:
    try:
        datetime.fromisoformat(created)
    except ValueError:
        yield f"created is {created!r}; expected an ISO 8601 time"


def _finite_faults(value: object, where: str) -> Iterator[str]:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where} is {value}; expected finite numbers only (JSON has no others)"
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, child in value.items() if isinstance(value, Mapping) else ():
        yield from _finite_faults(child, f"{where}.{key}" if where else str(key))


def _measured_faults(measured: Json, where: str) -> Iterator[str]:
    seeds = measured["per_seed"]
    if "base" in seeds and len(seeds) > 1:
        yield f'{where}.per_seed has the keys {list(seeds)}; expected seeds such as "17", or "base" alone'
    yield from _rate_faults(measured["score"], f"{where}.score", len(seeds))
    mean, expected = measured["score"]["mean"], sum(seeds.values()) / len(seeds)
    if abs(mean - expected) > 1e-6:
        yield f"{where}.score has the mean {mean} and its per_seed the mean {expected}; expected the same"
    for group in ("per_seat", "talk", "pass_at"):
        for name, rate in measured.get(group, {}).items():
            yield from _rate_faults(rate, f"{where}.{group}.{name}", len(seeds))
    k, chats = [*measured.get("pass_at", {})], measured.get("size", {}).get("chats")
    if k and chats and k != [str(chats)]:
        yield f"{where}.pass_at has the keys {k}; expected {chats} alone, the chats a task in size"


def _repeat_faults(condition: Json, where: str) -> Iterator[str]:
    """Each run's first evaluation is its score, and `repeats` are the means over the runs."""
    again, seeds = condition.get("repeats_per_seed"), condition["per_seed"]
    if again is None:
        return
    if again.keys() != seeds.keys() or len({len(row) for row in again.values()}) != 1:
        yield f"{where}.repeats_per_seed is {again}; expected as many means for each of {', '.join(seeds)}"
        return
    for seed, row in again.items():
        if not row or abs(row[0] - seeds[seed]) > 1e-6:
            yield f"{where}.repeats_per_seed.{seed} is {row}; expected {seeds[seed]} first, its score"
    means = [sum(each) / len(each) for each in zip(*again.values(), strict=True)]
    told = condition["repeats"]
    if len(means) != len(told) or any(abs(a - b) > 1e-6 for a, b in zip(means, told, strict=True)):
        yield f"{where}.repeats is {told}; expected {means}, the means of repeats_per_seed"
    if rate := condition.get("repeated"):
        if (
            not rate["low"] <= rate["mean"] <= rate["high"]
            or abs(rate["mean"] - sum(means) / len(means)) > 1e-6
        ):
            yield f"{where}.repeated is {rate}; expected the mean of repeats within its interval"
        if rate["n"] != len(means):
            yield f"{where}.repeated.n is {rate['n']}; expected {len(means)}, the evaluations in repeats"


def _rate_faults(rate: Json, where: str, runs: int) -> Iterator[str]:
    """A RATE; its unit follows from the number of runs, so that seeds and tasks are never mixed up."""
    if not rate["low"] <= rate["mean"] <= rate["high"]:
        yield f"{where}: {rate['mean']} [{rate['low']}, {rate['high']}]; expected low <= mean <= high"
    units = ("tasks",) if runs == 1 else ("seeds", "seeds+tasks")
    if rate["unit"] not in units:
        yield f"{where}.unit is {rate['unit']!r} in per_seed of {runs}; expected {' or '.join(units)}"
    elif runs > 1 and rate["n"] != runs:
        yield f"{where}.n is {rate['n']!r}; expected {runs}, the number of seeds in per_seed"


def _comparison_faults(row: Json, conditions: Json, where: str) -> Iterator[str]:
    """Names conditions, has their seeds, and its verdict follows from its numbers: none of it is out of date."""
    for side in ("a", "b"):
        if row[side] not in conditions:
            yield f"{where}.{side} is {row[side]!r}; expected the name of a condition"
            continue
        seeds = row.get(f"per_seed_{side}")
        if seeds is not None and seeds != conditions[row[side]]["per_seed"]:
            yield f"{where}.per_seed_{side} is {seeds}; expected that of conditions.{row[side]}"
    units = [row["n_a"], row["n_b"]]
    if row["unit"] != "tasks" and 1 in units and row["verdict"] != "one seed":
        yield f"{where}.verdict is {row['verdict']!r} with one seed on a side; expected one seed"
    elif row["verdict"] != (follows := Comparison.from_json(row).verdict):
        yield f"{where}.verdict is {row['verdict']!r}; expected {follows!r}, which follows from its numbers"
    if row["unit"] == "seeds" and {"per_seed_a", "per_seed_b"} <= row.keys():
        a, b = (sum(row[key].values()) / len(row[key]) for key in ("per_seed_a", "per_seed_b"))
        if abs(a - b - row["difference"]) > 1e-6:
            yield f"{where}.difference is {row['difference']}; expected {a - b}, that of its seeds' means"


def _kind(value: object) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "...")
    names = {dict: "an object", list: "a list", type(None): "missing", bool: "true or false"}
    return names.get(type(value), f"the number {value}")


def _told(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(versions.items())) or "an unknown version"


# --- the terminal -----------------------------------------------------------------------------------------


def table(results: Json) -> RenderableType:
    """Scores, pass@k, seats, evaluations made again, talk; then a sentence a comparison. For rich to print."""
    conditions = results["conditions"]
    parts: list[RenderableType] = [_score_table(results["study"], conditions)]
    seats = {name: each["per_seat"] for name, each in conditions.items() if len(each["per_seat"]) > 1}
    once = {
        name: {"mean": each["score"]} | {f"pass@{k}": rate for k, rate in each["pass_at"].items()}
        for name, each in conditions.items()
        if each.get("pass_at")
    }
    again = {
        name: {"mean of all": rate} for name, each in conditions.items() if (rate := each.get("repeated"))
    }
    spoken = {
        name: {key: rate for key, rate in each["talk"].items() if key in SHOWN_TALK}
        for name, each in conditions.items()
    }
    parts += _rate_table("pass@k: tasks that any of their k chats solved, beside the mean", conditions, once)
    parts += _rate_table("each seat's own answer", conditions, seats)
    parts += _rate_table("the same models evaluated again, on the same tasks", conditions, again)
    parts += _rate_table("talk, over all seats", conditions, {n: row for n, row in spoken.items() if row})
    parts += [Text(f"{row['verdict']}: {row['sentence']}") for row in results["comparisons"]]
    parts += [Text(f"not up to date: {line}") for line in stale(results)]
    return Group(*parts)


def _score_table(study: str, conditions: Json) -> Table:
    grid = Table(title=Text(f"{study}: tasks solved, with 95% intervals"), title_justify="left")
    grid.add_column("condition", min_width=22)
    for heading, width in (("score", 20), ("n", 11), ("every seed", 14)):
        grid.add_column(heading, min_width=width)
    grid.caption = "n: seeds x tasks x answers; the untrained base has no seeds"
    for name, condition in conditions.items():
        size, seeds = condition.get("size", {}), condition["per_seed"]
        trained = list(seeds) != ["base"]
        whole = {"runs", "tasks", "chats", "seats"} <= size.keys()
        of = [size["runs"]] * trained + [size["tasks"], size["chats"] * size["seats"]] if whole else []
        grid.add_row(
            Text(str(condition.get("label") or name)),
            Text(Rate.from_json(condition["score"]).brief),
            Text(" x ".join(map(str, of))),
            Text(" ".join(f"{mean:.2f}" for mean in seeds.values()) if trained else ""),
        )
    return grid


def _rate_table(title: str, conditions: Json, rates: Mapping[str, Json]) -> list[Table]:
    """A row a condition, a column a rate; no table where there is nothing to show."""
    names = list(dict.fromkeys(name for row in rates.values() for name in row))
    if not names:
        return []
    grid = Table(title=title, title_justify="left")
    grid.add_column("condition", min_width=22)
    for name in names:
        grid.add_column(Text(name), min_width=20)
    for condition, row in rates.items():
        cells = [Text(_cell(row[name], conditions[condition]) if name in row else "") for name in names]
        grid.add_row(Text(str(conditions[condition].get("label") or condition)), *cells)
    return [grid]


def _cell(rate: Json, measured: Json) -> str:
    """`0.40 [0.36, 0.45]`, and under it what it stands on."""
    read_back = Rate.from_json(rate, measured.get("size", {}).get("tasks"))
    return f"{read_back.brief}\n{read_back.of}"
