"""results.json computed again from the outcomes beside it, number by number.

    found = recompute(document, scores)      # scores: those of outcomes/*.npz that are there
    found.intervals, found.of                # how many of the intervals that it tells could be computed again
    found.faults                             # a line a number that comes out otherwise

A condition needs its outcomes. A comparison of two arms needs only its seeds' means (difference, Welch's interval,
degrees of freedom, p, exact p, Holm's p, noise, margin); with outcomes its interval for new tasks comes too. What an
outcome cannot give (`causal` and `cross_play` are of other chats) counts as told and not computed again. The functions
are those that wrote the document, on what is on disk: it finds numbers that were changed, spoilt or left over, not
wrong formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotalk import results, stats
from cotalk.reliability import reliability
from cotalk.results import Json, Score
from cotalk.verdict import Comparison

WITHIN = 1e-9
WITHIN_RESAMPLED = 1e-5  # ends from 10 seeds on: resampled in float32, whose last bits are the machine's


@dataclass(frozen=True)
class Recomputed:
    """intervals, numbers, comparisons: how many were computed again; `of`: the intervals that the document tells.

    faults: numbers that come out otherwise. wording: comparisons whose sentence does. left: places of intervals
    that could not be computed again, such as `conditions.floor`.
    """

    intervals: int
    of: int
    numbers: int
    comparisons: int
    faults: tuple[str, ...]
    wording: tuple[str, ...]
    left: tuple[str, ...]


def recompute(document: Json, scores: Iterable[Score]) -> Recomputed:
    """Computes what it can of a well-shaped document again; BadInput where outcomes do not fit each other."""
    given = list(scores)
    sampled = {score.condition: score for score in given if score.decoding == "sampled"}
    greedy = {score.condition: score for score in given if score.decoding == "greedy"}
    conditions = {
        name: results.numbers_of(sampled[name], greedy.get(name)) if name in sampled else {}
        for name in document["conditions"]
    }
    rows = list(_comparisons(document, sampled))
    again: Json = {"conditions": conditions, "comparisons": rows}
    if "reliability" in document:
        again["reliability"] = reliability(document["conditions"])
    told, now = dict(_leaves(document)), dict(_leaves(again))
    seeds = max(len(each["per_seed"]) for each in document["conditions"].values())
    faults = [
        f"{where} is {told.get(where)}, and comes out as {value}"
        for where, value in now.items()
        if (where in told or where.startswith("comparisons"))
        and _differs(where, told.get(where), value, seeds)
    ]
    intervals = [where for where, value in told.items() if where.endswith(".low") and value is not None]
    return Recomputed(
        intervals=len(now.keys() & set(intervals)),
        of=len(intervals),
        numbers=len(told.keys() & now.keys()),
        comparisons=sum(bool(row) for row in rows),
        faults=tuple(faults),
        wording=tuple(
            f"{before['a']} against {before['b']}"
            for before, row in zip(document["comparisons"], rows, strict=True)
            if row and before["sentence"] != row["sentence"]
        ),
        left=tuple(dict.fromkeys(_place(where) for where in intervals if where not in now)),
    )


def _comparisons(document: Json, sampled: Mapping[str, Score]) -> Iterator[Json]:
    """The comparisons again, corrected together; {} for one that has neither outcomes nor its arms' seeds."""
    rows, conditions = document["comparisons"], document["conditions"]
    floors = results.noise_floors(
        {
            name: sampled[name].repeats_per_seed if name in sampled else each.get("repeats_per_seed", {})
            for name, each in conditions.items()
        }
    )
    found = [
        stats.with_noise(_found(row, conditions, sampled), floors[row["a"]], floors[row["b"]]) for row in rows
    ]
    judged = results.judge(found, rows[0].get("margin") if rows else None)
    for row, each in zip(rows, judged, strict=True):
        if {row["a"], row["b"]} <= sampled.keys():
            yield each.as_json | {"checkpoints": results.checkpoints(sampled[row["a"]], sampled[row["b"]])}
        elif _of_seeds(row):
            yield {key: value for key, value in each.as_json.items() if key != "over_tasks"}
        else:
            yield {}


def _found(row: Json, conditions: Json, sampled: Mapping[str, Score]) -> Comparison:
    a, b = (str(conditions[row[side]].get("label") or row[side].replace("_", " ")) for side in ("a", "b"))
    if {row["a"], row["b"]} <= sampled.keys():
        return results.compare_scores(sampled[row["a"]], sampled[row["b"]], a, b)
    if _of_seeds(row):
        return stats.compare_arms([*row["per_seed_a"].values()], [*row["per_seed_b"].values()], a, b)
    return Comparison.from_json(row)  # as it was told: its p counts in Holm's correction of the others


def _of_seeds(row: Json) -> bool:
    return row["unit"] == "seeds" and {"per_seed_a", "per_seed_b"} <= row.keys()


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, float | None]]:
    """Every number, and every null, with its place: ("conditions.base_open.score.low", 0.36)."""
    children: Sequence[tuple[object, Any]] = ()
    if isinstance(value, Mapping):
        children = list(value.items())
    elif isinstance(value, (list, tuple)):
        children = list(enumerate(value))
    elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        yield where, value
    for key, child in children:
        yield from _leaves(child, f"{where}.{key}" if where else str(key))


def _place(where: str) -> str:
    """conditions.base_open.greedy.score.low -> conditions.base_open.greedy"""
    steps = where.split(".")
    return ".".join(steps[: 3 if steps[2:3] == ["greedy"] else 2])


def _differs(where: str, told: float | None, now: float | None, seeds: int) -> bool:
    if told is None or now is None:
        return told is not now
    resampled = seeds >= stats.SEEDS_TO_RESAMPLE and where.endswith((".low", ".high"))
    return abs(told - now) > (WITHIN_RESAMPLED if resampled else WITHIN)
