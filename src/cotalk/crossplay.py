"""Cross-play: every trained A with every trained B, and both with strangers; and how well a stranger can be met at all.

A matrix's players are the runs of a finished study, the untrained base, and whoever `[evaluate] guests` names (scripts,
other bases). Each cell is played on the first held-out tasks and holds *each seat's own score*: the stranger's answer
says nothing of the learner's. Two scripts with each other are left out. Read off the matrix, for each arm:

    self_play     a run's A with its own B (team score)
    cross_seed    a run's A with the B of another seed of the arm (team score)
    ratio         cross_seed / self_play: what of the skill is more than a habit of the pair
    strangers     with each stranger: the trained A's own score (and that of the trained B with the stranger as A)
    comparisons   of every arm with the study's first: self_play, cross_seed, and A's own score with each stranger

The **oracle ceiling** of a stranger: all scripted A of a frozen list (scripts.ORACLES) meet it on the dev tasks; the
one that does best there plays the held-out ones: its own score is what one fixed way of talking could have had.

Files: `cross/TASKSxCHATS/ROW.jsonl`, a short line a chat, each row of the matrix written whole; what is on disk is not
played again, and every number is read back from there. Intervals: a cell's over tasks; an arm's over seeds and
tasks; cross_seed and ratio by the delete-one jackknife over seeds, since a seed sits in many cells (Efron and Stein,
Annals of Statistics 9 (1981) 586).

Left out: which study plays it (jobs.py), the picture (report.py).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from cotalk import stats
from cotalk.chat import BASE, Player, Rules, Seating, converse
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.disk import write_atomically
from cotalk.engines import Engine
from cotalk.errors import BadInput, RunFailed
from cotalk.lora import Stack
from cotalk.partners import adapters_in, another_base, frozen, read_pool
from cotalk.run import read_lines
from cotalk.scripts import ORACLES, script, with_perfect_sums
from cotalk.stats import Floats, Rate
from cotalk.train import Playing, grade
from cotalk.view import ChatFormat

Json = dict[str, Any]
ORACLE_CHATS = 8  # of each scripted A on each dev task, to choose by


@dataclass(frozen=True)
class Sitter:
    """A row and a column of the matrix: a run (arm and seed), or a stranger."""

    name: str
    kind: str = "run"
    arm: str = ""
    seed: int | None = None
    directory: Path | None = None

    @property
    def as_json(self) -> Json:
        return {"name": self.name, "kind": self.kind, "arm": self.arm, "seed": self.seed}


def sitters(runs: Mapping[str, tuple[str, int, Path]], guests: Sequence[str]) -> list[Sitter]:
    """Everybody of a matrix. runs: {name: (arm, seed, directory)}; guests: pool entries; the base is always there."""
    found = [Sitter(name, "run", arm, seed, path) for name, (arm, seed, path) in runs.items()]
    entries = [entry for text in ("base", *guests) for entry in read_pool(text)]
    if odd := [e.name for e in entries if e.kind not in ("base", "script", "model") or e.seat]:
        raise BadInput(
            f"[evaluate] guests names {odd[0]!r}: expected base, script:NAME or model:DIR", "pool/entry"
        )
    return found + [Sitter(e.name, e.kind) for e in dict.fromkeys(replace(e, weight=1.0) for e in entries)]


def file_name(row: str) -> str:
    """A row's name as a file's; a path gets a digest, so that no two rows share a file."""
    plain = re.sub(r"[:/\\]", "_", row)
    is_plain = plain.count("_") <= row.count("_") + 1 and not set("/\\") & set(row)
    return plain if is_plain else f"{plain[-80:]}-{hashlib.sha256(row.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Matrix:
    """Who plays, what, and where it is written."""

    directory: Path
    sitters: list[Sitter]
    heldout: Sequence[Deal]
    chats: int
    config: Config

    @property
    def folder(self) -> Path:
        return self.directory / "cross" / f"{len(self.heldout)}x{self.chats}"

    def path(self, row: str) -> Path:
        return self.folder / f"{file_name(row)}.jsonl"

    @property
    def size(self) -> str:
        return f"{len(self.heldout)} tasks x {self.chats} chats"

    @property
    def rows(self) -> list[str]:
        """The jobs of a matrix: its rows, by the name of the player in seat A."""
        return [sitter.name for sitter in self.sitters]

    def columns(self, row: str) -> list[Sitter]:
        """Whom the row's player meets: everybody, but a script no script."""
        kinds = {sitter.name: sitter.kind for sitter in self.sitters}
        return [s for s in self.sitters if "script" not in (kinds[row], s.kind) or kinds[row] != s.kind]


# --- playing ------------------------------------------------------------------------------------------------------


class Players:
    """The matrix's players: rows of a stack that holds every run's adapters, scripts, and other bases' engines."""

    def __init__(self, matrix: Matrix, stack: Stack):
        self.engines: dict[str, Engine] = {}
        self._seats, first = matrix.config.rules.seats, 1
        self._players: dict[str, dict[str, Player]] = {}
        for sitter in matrix.sitters:
            if sitter.directory is not None:
                self._players[sitter.name] = frozen(sitter.name, sitter.directory, self._seats, stack, first)
                first += len(adapters_in(sitter.directory, self._seats))
            else:
                self._players[sitter.name] = dict.fromkeys(self._seats, self._stranger(sitter, stack))

    def _stranger(self, sitter: Sitter, stack: Stack) -> Player:
        if sitter.kind == "base":
            return BASE
        of = sitter.name.partition(":")[2]
        if sitter.kind == "script":
            return Player(sitter.name, script=script(of))
        player, self.engines[sitter.name] = another_base(of, sitter.name, str(stack.device))
        return player

    def seat(self, a: str, b: str) -> dict[str, Player]:
        """The one as A, the other in every further seat."""
        return {seat: self._players[a if seat == "A" else b][seat] for seat in self._seats}


def rows_needed(matrix: Matrix) -> int:
    """Rows of a stack that hold all adapters of a matrix."""
    seats = matrix.config.rules.seats
    return sum(len(adapters_in(s.directory, seats)) for s in matrix.sitters if s.directory is not None)


def play_row(
    matrix: Matrix, row: str, players: Players, form: ChatFormat, grader: Any = None
) -> Playing:  # fmt: skip
    """Plays one row of the matrix, all its columns in one batch, and writes it whole; not if all of it is on disk."""
    met = {line["b"] for line in read_lines(matrix.path(row))}
    if met >= {column.name for column in matrix.columns(row)}:  # a run that failed before may be new
        return
    places = [
        (b.name, deal, n) for b in matrix.columns(row) for deal in matrix.heldout for n in range(matrix.chats)
    ]
    seatings = [
        Seating(deal, players.seat(row, b), n, (0, "eval", f"cross:{row}:{b}", 0, None, deal.task.id))
        for b, deal, n in places
    ]
    lines = yield from _played(matrix.config, seatings, form, grader)
    about = [{"a": row, "b": b} for b, _, _ in places]
    _write(matrix.path(row), [first | line for first, line in zip(about, lines, strict=True)])


def play_oracle(
    matrix: Matrix, stranger: str, players: Players, dev: Sequence[Deal], form: ChatFormat, grader: Any = None
) -> Playing:
    """All scripted A with one stranger on the dev tasks; then the best of them on the held-out tasks."""
    path = oracle_path(matrix, stranger)
    if path.is_file():
        return

    def seatings(name: str, split: str, deals: Sequence[Deal], chats: int) -> list[Seating]:
        met = players.seat(stranger, stranger)
        key = (0, "eval", f"oracle:{stranger}:{split}:{name}", 0, None)
        return [
            Seating(deal, met | {"A": Player(name, script=oracle)}, n, (*key, deal.task.id))
            for deal in deals
            for oracle in (with_perfect_sums(ORACLES[name], deal, "A"),)
            for n in range(chats)
        ]

    trials = [seating for name in ORACLES for seating in seatings(name, "dev", dev, ORACLE_CHATS)]
    lines = yield from _played(matrix.config, trials, form, grader)
    names = [seating.players["A"].name for seating in trials]
    found = [{"script": n, "split": "dev"} | line for n, line in zip(names, lines, strict=True)]
    best = best_of(found)
    chosen = seatings(best, "heldout", matrix.heldout, max(2, matrix.chats))
    lines = yield from _played(matrix.config, chosen, form, grader)
    _write(path, found + [{"script": best, "split": "heldout"} | line for line in lines])


def best_of(lines: Sequence[Json]) -> str:
    """The script with the highest own score; of equals the first of the list."""
    return max(ORACLES, key=lambda name: sum(x["rewards"]["A"] for x in lines if x["script"] == name))


def oracle_path(matrix: Matrix, stranger: str) -> Path:
    return matrix.path(f"oracle {stranger}")


def _played(config: Config, seatings: Sequence[Seating], form: ChatFormat, grader: Any) -> Playing:
    """Plays and grades; returns a short line a chat."""
    rules: Rules = config.rules
    chats = yield from converse(seatings, rules, form)
    grade(chats, config.graded, grader)
    return [{"task": c.deal.task.id, "chat": c.number, "rewards": c.rewards} for c in chats]


def _write(path: Path, lines: Sequence[Json]) -> None:
    write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


# --- reading back -------------------------------------------------------------------------------------------------


def read_cells(matrix: Matrix) -> dict[tuple[str, str], Floats]:
    """{(A, B): outcomes (tasks, chats, seats)} of every cell, from the files; RunFailed where one is missing."""
    found = {}
    for row in matrix.rows:
        lines = read_lines(matrix.path(row))
        for column in matrix.columns(row):
            mine = [line for line in lines if line["b"] == column.name]
            found[row, column.name] = _outcomes(mine, matrix.heldout, matrix.path(row), matrix.config)
    return found


def _outcomes(lines: Sequence[Json], tasks: Sequence[Deal], where: Path, config: Config) -> Floats:
    place = {deal.task.id: i for i, deal in enumerate(tasks)}
    chats = max((line["chat"] for line in lines), default=0) + 1
    seats = config.rules.seats
    found = np.full((len(tasks), chats, len(seats)), np.nan)
    for line in lines:
        if line["task"] in place:
            found[place[line["task"]], line["chat"]] = [line["rewards"][seat] for seat in seats]
    if np.isnan(found).any():
        raise RunFailed(
            f"{where}: not a whole row of {len(tasks)} tasks x {chats} chats; remove it, and type it again",
            "results/chats",
        )
    return found


def summary(matrix: Matrix, margin: float | None = None, dev: Sequence[Deal] = ()) -> Json:
    """`cross_play` of results.json: players, cells, arms, comparisons and oracle ceilings (docs/results.md)."""
    cells = read_cells(matrix)
    ceilings = {
        s.name: ceiling(matrix, s.name, dev)
        for s in matrix.sitters
        if s.kind in ("base", "model") and oracle_path(matrix, s.name).is_file()
    }
    arms = list(dict.fromkeys(s.arm for s in matrix.sitters if s.arm))
    of_arms = {arm: of_arm(matrix, cells, arm, ceilings) for arm in arms}
    return {
        "tasks": len(matrix.heldout),
        "chats": matrix.chats,
        "players": [s.as_json for s in matrix.sitters],
        "cells": [_cell(matrix, a, b, outcomes) for (a, b), outcomes in cells.items()],
        "arms": of_arms,
        "comparisons": comparisons(matrix, cells, arms, margin),
        "oracle": ceilings,
    }


def _cell(matrix: Matrix, a: str, b: str, outcomes: Floats) -> Json:
    seats = {
        seat: stats.rate_over_tasks(outcomes[None, ..., [i]]).as_json
        for i, seat in enumerate(matrix.config.rules.seats)
    }
    return {"a": a, "b": b, "score": stats.rate_over_tasks(outcomes[None]).as_json, "per_seat": seats}


def of_arm(
    matrix: Matrix, cells: Mapping[tuple[str, str], Floats], arm: str, ceilings: Mapping[str, Json]
) -> Json:
    """What the matrix says of an arm."""
    runs = [s.name for s in matrix.sitters if s.arm == arm]
    own = _rate(np.stack([cells[run, run] for run in runs]))
    crossed, ratio = across(cells, runs)
    strangers: Json = {}
    for s in matrix.sitters:
        if s.kind != "run":
            a = _rate(np.stack([cells[run, s.name][..., [0]] for run in runs]))
            b = _rate(np.stack([cells[s.name, run][..., 1:] for run in runs]))
            met: Json = {"A": a.as_json, "B": b.as_json}
            strangers[s.name] = met
            if s.name in ceilings:
                met["of_ceiling"] = _over(a, ceilings[s.name]["heldout"]["mean"])
    found = {
        "runs": runs,
        "self_play": own.as_json,
        "cross_seed": crossed,
        "ratio": ratio,
        "strangers": strangers,
    }
    return found


def _rate(outcomes: Floats) -> Rate:
    """Of one run over tasks, of several over seeds and tasks: (runs, tasks, chats, seats)."""
    return stats.rate_over_tasks(outcomes) if len(outcomes) == 1 else stats.rate_over_seeds(outcomes)


def _over(rate: Rate, ceiling: float) -> Json | None:
    """A score as a part of a ceiling, which is taken as given (its own interval stands beside it)."""
    if ceiling <= 0:
        return None
    return {"mean": rate.mean / ceiling, "low": rate.low / ceiling, "high": rate.high / ceiling, "n": rate.n}


def across(cells: Mapping[tuple[str, str], Floats], runs: Sequence[str]) -> tuple[Json | None, Json | None]:
    """Team score over all pairs of different seeds, and its ratio to self-play; each None below two seeds.

    Intervals by the delete-one jackknife over seeds with t of seeds - 1 degrees of freedom; `null` below three seeds.
    """
    if len(runs) < 2:
        return None, None
    means = _means(cells, runs)

    def ratio(kept: list[int]) -> float:
        alone = float(means[kept, kept].mean())
        return _off_diagonal(means, kept) / alone if alone > 0 else math.nan

    score = _jackknifed(partial(_off_diagonal, means), len(runs))
    if score and score["low"] is not None:  # a score's interval ends where scores do
        score |= {"low": max(0.0, score["low"]), "high": min(1.0, score["high"])}
    return score, _jackknifed(ratio, len(runs))


def _means(cells: Mapping[tuple[str, str], Floats], runs: Sequence[str]) -> Floats:
    """Team scores of all pairs of these runs: (runs, runs)."""
    return np.array([[float(cells[a, b].mean()) for b in runs] for a in runs])


def _off_diagonal(means: Floats, kept: Sequence[int]) -> float:
    """The mean over pairs of different runs among those that are kept."""
    part = means[np.ix_(kept, kept)]
    return float(part[~np.eye(len(kept), dtype=bool)].mean())


def _jackknifed(statistic: Any, n: int) -> Json | None:
    """{"mean", "low", "high", "n", "unit": "seeds"} of a statistic of seeds; None where it is not defined."""
    everybody = list(range(n))
    mean = statistic(everybody)
    if not math.isfinite(mean):
        return None
    found: Json = {"mean": mean, "low": None, "high": None, "n": n, "unit": "seeds"}
    left_out = np.array([statistic([i for i in everybody if i != out]) for out in everybody if n >= 3])
    if n >= 3 and np.isfinite(left_out).all():
        error = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
        half = stats._t(n - 1) * error
        found |= {"low": mean - half, "high": mean + half}
    return found


def comparisons(
    matrix: Matrix, cells: Mapping[tuple[str, str], Floats], arms: Sequence[str], margin: float | None
) -> list[Json]:
    """Every further arm against the first: in self-play, across seeds (three or more), A's own with each stranger."""
    runs = {arm: [s.name for s in matrix.sitters if s.arm == arm] for arm in arms}
    measures: dict[str, dict[str, list[float]]] = {
        "self_play": {arm: [float(cells[run, run].mean()) for run in names] for arm, names in runs.items()}
    }
    if all(len(names) > 2 for names in runs.values()):
        measures["cross_seed"] = {arm: _pseudo(cells, names) for arm, names in runs.items()}
    for s in matrix.sitters:
        if s.kind != "run":
            measures[f"A with {s.name}"] = {
                arm: [float(cells[run, s.name][..., 0].mean()) for run in names]
                for arm, names in runs.items()
            }
    rows = [(what, arm) for what in measures for arm in arms[1:]]
    found = [
        stats.with_margin(
            stats.compare_arms(
                measures[what][arm], measures[what][arms[0]], _in_words(what, arm), _in_words(what, arms[0])
            ),
            margin,
        )
        for what, arm in rows
    ]
    judged = stats.correct(found) if len(found) > 1 else found
    return [
        c.as_json | {"what": what, "arm": arm, "against": arms[0]}
        for (what, arm), c in zip(rows, judged, strict=True)
    ]


def _in_words(what: str, arm: str) -> str:
    """`self_play`, `A with base` -> `host in self-play`, `host's A with base`."""
    words = {"self_play": f"{arm} in self-play", "cross_seed": f"{arm} across seeds"}
    return words.get(what, f"{arm}'s {what}")


def _pseudo(cells: Mapping[tuple[str, str], Floats], runs: Sequence[str]) -> list[float]:
    """The jackknife's pseudo-values of cross_seed, one a seed: n x all - (n - 1) x all but this seed.

    Their mean is cross_seed and their spread that of seeds: a seed sits in many cells, so that the plain means of its
    cells lie far closer together than seeds do (by half and more), and would make any test too sure.
    """
    means, n = _means(cells, runs), len(runs)
    whole = n * _off_diagonal(means, range(n))
    return [whole - (n - 1) * _off_diagonal(means, [i for i in range(n) if i != out]) for out in range(n)]


def ceiling(matrix: Matrix, stranger: str, dev: Sequence[Deal]) -> Json:
    """The oracle ceiling of a stranger: A's own held-out score of the script chosen on dev; and the dev trials."""
    path = oracle_path(matrix, stranger)
    lines = read_lines(path)
    trials = {
        name: _a_score(
            [x for x in lines if x["script"] == name and x["split"] == "dev"], dev, path, matrix.config
        )
        for name in ORACLES
    }
    held = [line for line in lines if line["split"] == "heldout"]
    return {
        "script": held[0]["script"],
        "heldout": _a_score(held, matrix.heldout, path, matrix.config),
        "dev": trials,
    }


def _a_score(lines: Sequence[Json], tasks: Sequence[Deal], where: Path, config: Config) -> Json:
    outcomes = _outcomes(lines, tasks, where, config)
    return stats.rate_over_tasks(outcomes[None, ..., [0]]).as_json


# --- the terminal -------------------------------------------------------------------------------------------------


def tables(found: Json) -> Iterator[Table | str]:
    """The matrix (A's own / B's own), a line an arm, the ceilings, and the verdicts; for rich to print."""
    yield matrix_table(found)
    yield arm_table(found)
    for name, oracle in found["oracle"].items():
        rate = Rate.from_json(oracle["heldout"])
        yield f"oracle ceiling with {name}: {oracle['script']}, A's own score {rate}"
    for row in found["comparisons"]:
        yield f"{row['verdict']}: {row['sentence']}"


def matrix_table(found: Json) -> Table:
    """Problems solved out of 100, A's own above B's own; columns are the players' numbers, so that a page holds it."""
    names = [player["name"] for player in found["players"]]
    size = f"{found['tasks']} tasks x {found['chats']} chats a cell; intervals and a heat map in the report"
    grid = Table(
        title=f"cross-play: A's own score out of 100, below it B's own ({size})",
        title_justify="left",
        box=None,
    )
    grid.add_column("A (row), B", no_wrap=True)
    for number in range(1, len(names) + 1):
        grid.add_column(str(number), justify="right", no_wrap=True, min_width=3)
    cells = {(cell["a"], cell["b"]): cell["per_seat"] for cell in found["cells"]}
    for number, a in enumerate(names, start=1):
        shown = [cells.get((a, b)) for b in names]
        each = ("" if c is None else "\n".join(f"{100 * r['mean']:.0f}" for r in c.values()) for c in shown)
        grid.add_row(f"{number} {a}", *each)
    return grid


def arm_table(found: Json) -> Table:
    grid = Table(title="what of the skill travels, with 95% intervals (n: seeds)", title_justify="left")
    strangers = [player["name"] for player in found["players"] if player["kind"] != "run"]
    for name in ("arm", "self-play", "cross-seed", "cross / self", *(f"A with {name}" for name in strangers)):
        grid.add_column(name, overflow="fold")
    for arm, of in found["arms"].items():
        rates = [
            of["self_play"],
            of["cross_seed"],
            of["ratio"],
            *(of["strangers"][name]["A"] for name in strangers),
        ]
        grid.add_row(arm, *(_shown(rate) for rate in rates))
    return grid


def _shown(rate: Json | None) -> str:
    if rate is None:
        return ""
    ends = "" if rate["low"] is None else f" [{rate['low']:.2f}, {rate['high']:.2f}]"
    return f"{rate['mean']:.2f}{ends} n {rate['n']}"
