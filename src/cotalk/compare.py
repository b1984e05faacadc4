"""`cotalk compare`: the comparisons of a study, of several studies or runs, or of somebody else's numbers.

    compared([Path("runs/quickstart")])                          # those that the study lists, as it wrote them
    compared([Path("runs/quickstart")], margin=0.03)             # the same, judged against a margin
    compared([Path("runs/quickstart")], ["trained_open", "base_closed"])   # two of its conditions
    compared([Path("runs/new"), Path("runs/old")])               # trained_open of each: the first minus each other
    replayed(Path("examples/published_scores.json"))             # scores by seed from a JSON file

A path is a study's directory, its results.json, a directory with outcomes/, or one outcomes/NAME.npz. All of one
call's comparisons are corrected together (Holm). Left out: the statistics (stats.py) and the words (verdict.py).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotalk import results, stats
from cotalk.errors import BadInput
from cotalk.results import Json, Score
from cotalk.verdict import Comparison, outwards

REPLAY_KEYS = ("about", "per_seed", "compare", "base_repeats", "margin")
PAIR_KEYS = ("a", "b", "label_a", "label_b")


@dataclass(frozen=True)
class Side:
    """One condition to compare: its score, its words, and what its study knew (base: its untrained base's repeats)."""

    score: Score
    label: str
    reward: str | None
    base: tuple[tuple[float, ...], ...]


def compared(
    paths: Sequence[Path], conditions: Sequence[str] = (), margin: float | None = None
) -> list[Json]:
    """Rows as in results.json's `comparisons`, for `told` to show.

    Args:
        paths: one study gives the comparisons that it lists. Of several, the first is compared with each other.
        conditions: one name: that condition of every path. As many names as paths: one of each. Several names and
            one path: the first of them with each other. None: trained_open, or the only trained condition.
        margin: the smallest difference that matters; None: each study's own.
    """
    if not paths:
        raise BadInput(
            "compare was given no study; expected one or more, such as: cotalk compare runs/quickstart",
            "compare/sides",
        )
    if len(paths) == 1 and not conditions and not _is_outcomes(paths[0]):
        return _listed(paths[0], margin)
    sides = _sides(paths, conditions)
    if len(sides) < 2:
        raise BadInput(
            f"compare was given one condition ({sides[0].label}); expected another one to compare it with",
            "compare/sides",
        )
    _refuse_other_rewards(sides)
    base = stats.noise_floor(*{row for side in sides for row in side.base})  # a base's own count once
    pairs = [(sides[0], other) for other in sides[1:]]
    found = [
        stats.with_noise(
            results.compare_scores(a.score, b.score, a.label, b.label),
            *(stats.noise_floor(*side.score.repeats) or base for side in (a, b)),
        )
        for a, b in pairs
    ]
    return [
        each.as_json | {"per_seed_a": a.score.seed_means, "per_seed_b": b.score.seed_means}
        for (a, b), each in zip(pairs, results.judge(found, margin), strict=True)
    ]


def replayed(path: Path, margin: float | None = None) -> list[Json]:
    """Rows for the scores by seed in a JSON file (docs/statistics.md says its format).

    Only seeds are known, not tasks: Welch's t on these tasks is all that can be said.
    """
    document = _read_replay(path)
    scores = {name: _by_seed(name, given, path) for name, given in document["per_seed"].items()}
    pairs = [_pair(pair, scores, path) for pair in document.get("compare") or _only_pair(scores, path)]
    repeats = document.get("base_repeats") or []
    floor = stats.noise_floor(list(_by_seed("base_repeats", repeats, path).values())) if repeats else None
    found = [
        stats.compare_arms([*scores[p["a"]].values()], [*scores[p["b"]].values()], p["label_a"], p["label_b"])
        for p in pairs
    ]
    found = [stats.with_noise(each, floor, floor) for each in found]
    judged = results.judge(found, document.get("margin") if margin is None else margin)
    return [
        each.as_json | {"per_seed_a": scores[pair["a"]], "per_seed_b": scores[pair["b"]]}
        for pair, each in zip(pairs, judged, strict=True)
    ]


def told(rows: Sequence[Json]) -> list[str]:
    """Lines for a terminal: a verdict and its sentence, then every seed, then the interval for new tasks."""
    return [line for row in rows for line in _told(row)]


def _told(row: Json) -> Iterator[str]:
    yield f"{row['verdict']}: {row['sentence']}"
    sides = ((row.get("label_a") or row["a"], "per_seed_a"), (row.get("label_b") or row["b"], "per_seed_b"))
    for label, key in sides:
        seeds = row.get(key) or {}
        if len(seeds) > 1:
            yield f"  {label}: " + ", ".join(f"{mean:.3f}" for mean in seeds.values())
    ends = row.get("over_tasks")
    if ends and (
        row["unit"] == "seeds" or ends["method"] == "bootstrap"
    ):  # else it is the interval of the sentence
        yield f"  for new tasks too: {outwards(ends['low'], ends['high'])} (crossed with seeds, {ends['method']})"


# --- studies and runs -------------------------------------------------------------------------------------


def _listed(path: Path, margin: float | None) -> list[Json]:
    """The comparisons that a study lists; judged again where another margin is named."""
    document = results.read(path)
    rows = document["comparisons"]
    if not rows:
        names = ", ".join(document["conditions"])
        raise BadInput(
            f"{path} lists no comparison; expected [[compare]] in its study file, or --conditions: {names}",
            "compare/sides",
        )
    labels = {name: str(each.get("label") or name) for name, each in document["conditions"].items()}
    words = [{"label_a": labels[row["a"]], "label_b": labels[row["b"]]} for row in rows]
    if margin is None:
        return [row | named for row, named in zip(rows, words, strict=True)]
    found = [Comparison.from_json(row, labels[row["a"]], labels[row["b"]]) for row in rows]
    judged = results.judge(found, margin)
    return [
        row | each.as_json | {"a": row["a"], "b": row["b"]} | named
        for row, each, named in zip(rows, judged, words, strict=True)
    ]


def _sides(paths: Sequence[Path], conditions: Sequence[str]) -> list[Side]:
    if len(paths) == 1 and len(conditions) > 1:
        wanted = [(paths[0], name) for name in conditions]
    elif len(conditions) in (0, 1, len(paths)):
        names = conditions if len(conditions) == len(paths) else [*conditions, ""][:1] * len(paths)
        wanted = list(zip(paths, names, strict=True))
    else:
        raise BadInput(
            f"compare was given {len(paths)} paths and {len(conditions)} conditions; expected one condition for all of "
            "them, or one for each",
            "compare/sides",
        )
    return [_side(path, name, name_the_study=len(paths) > 1) for path, name in wanted]


def _side(path: Path, name: str, name_the_study: bool) -> Side:
    if path.suffix == ".npz":
        score = Score.load(path)
        base = score.repeats if score.seeds == (None,) else ()
        return Side(score, f"{path.parent.parent.name}: {score.condition}", None, base)
    directory = path.parent if path.suffix == ".json" else path
    if (path / "config.toml").is_file() and not (path / "outcomes").is_dir():
        raise BadInput(
            f"{path} is a run, which has no held-out score by itself: expected a study or an evaluation. Type: cotalk "
            f"evaluate --adapter {path} --out runs/evaluated, and compare that",
            "compare/sides",
        )
    document = None if _is_outcomes(path) else results.read(path)
    known = sorted(p.stem for p in (directory / "outcomes").glob("*.npz") if not p.stem.endswith(".greedy"))
    name = name or _usual(known, path)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise BadInput(
            f"{path} has no outcomes of {name!r}{hint}; expected one of {', '.join(known) or 'none at all'}",
            "compare/sides",
        )
    score = Score.load(directory / "outcomes" / f"{name}.npz")
    label, reward, base = name.replace("_", " "), None, score.repeats if score.seeds == (None,) else ()
    if document:
        conditions = document["conditions"]
        label = str(conditions.get(name, {}).get("label") or label)
        reward = document["config"].get("run", document["config"]).get("reward")
        base = tuple(tuple(c["repeats"]) for c in conditions.values() if list(c["per_seed"]) == ["base"])
    return Side(score, f"{directory.name}: {label}" if name_the_study else label, reward, base)


def _is_outcomes(path: Path) -> bool:
    """One .npz, or a directory of them without a results.json (an evaluation by itself)."""
    no_results = not (path / "results.json").exists() and (path / "outcomes").is_dir()
    return path.suffix == ".npz" or no_results


def _usual(known: Sequence[str], path: Path) -> str:
    """trained_open where there is one, else the only trained condition, else the only one."""
    trained = [name for name in known if name.startswith("trained_") and "_base_" not in name]
    for names in (["trained_open"] if "trained_open" in known else [], trained, known):
        if len(names) == 1:
            return names[0]
    raise BadInput(
        f"{path} has several conditions; name one of them: --conditions {' '.join(known) or '(none there)'}",
        "compare/sides",
    )


def _refuse_other_rewards(sides: Sequence[Side]) -> None:
    rewards = {side.reward: side.label for side in sides if side.reward}
    if len(rewards) > 1:
        told_rewards = ", ".join(f"{label} by {reward}" for reward, label in rewards.items())
        raise BadInput(
            f"these were scored by different rewards ({told_rewards}); expected one reward for all",
            "compare/unlike",
        )


# --- somebody else's numbers ------------------------------------------------------------------------------


def _read_replay(path: Path) -> Json:
    example = 'expected {"per_seed": {"chat": [0.40, 0.15], "closed": [0.04, 0.03]}, "compare": [{"a": ..., "b": ...}]}'
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(
            f"--replay {path}: not a JSON file that can be read ({error}); {example}", "compare/replay"
        ) from error
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("per_seed"), dict)
        or not document["per_seed"]
    ):
        raise BadInput(f"--replay {path} has no scores by seed; {example}", "compare/replay")
    for key in document.keys() - set(
        REPLAY_KEYS
    ):  # other facts may stand in the file; a slip of the pen may not
        if close := difflib.get_close_matches(key, REPLAY_KEYS, n=1, cutoff=0.75):
            raise BadInput(
                f"--replay {path}: unknown key {key!r} (did you mean {close[0]!r}?)", "compare/replay"
            )
    return document


def _by_seed(name: str, given: Any, path: Path) -> dict[str, float]:
    """{"17": 0.4, ...} or [0.4, ...] -> {seed or place: score}."""
    scores = {str(at): score for at, score in enumerate(given, start=1)} if isinstance(given, list) else given
    good = (
        isinstance(scores, Mapping)
        and scores
        and all(type(s) in (int, float) and 0 <= s <= 1 for s in scores.values())
    )
    if not good:
        raise BadInput(
            f"--replay {path}: {name} is {given!r}; expected a score between 0 and 1 for each seed",
            "compare/replay",
        )
    return {str(seed): float(score) for seed, score in scores.items()}


def _pair(pair: Any, scores: Mapping[str, Any], path: Path) -> dict[str, str]:
    if isinstance(pair, list) and len(pair) == 2:
        pair = {"a": pair[0], "b": pair[1]}
    if not isinstance(pair, dict) or not {"a", "b"} <= pair.keys() <= set(PAIR_KEYS):
        raise BadInput(
            f'--replay {path}: compare holds {pair!r}; expected {{"a": ARM, "b": ARM}}, perhaps with label_a, label_b',
            "compare/replay",
        )
    for name in (pair["a"], pair["b"]):
        if name not in scores:
            raise BadInput(
                f"--replay {path}: compare names {name!r}; expected one of {', '.join(scores)}",
                "compare/replay",
            )
    return {"label_a": str(pair["a"]), "label_b": str(pair["b"])} | {
        key: str(value) for key, value in pair.items()
    }


def _only_pair(scores: Mapping[str, Any], path: Path) -> list[list[str]]:
    if len(scores) != 2:
        raise BadInput(
            f'--replay {path} has {len(scores)} arms and no "compare"; expected a list of {{"a": ..., "b": ...}}',
            "compare/replay",
        )
    return [list(scores)]
