"""Word problems with worked solutions, to prepare a base on: gsm_symbolic's own, and GSM8K's train split.

A problem is kept when it can be cut into facts and a question (rule "clean"), its worked solution ends in its gold,
and no study plays it: the first 4,096 rows of gsm_symbolic's train, dev, held-out and unseen streams (and of the
stream that the model card is measured on) are reserved, in whatever order their words stand, and so is GSM8K's whole
test split, near copies included.
Whatever is not kept is counted by its reason. Chunks of rows are drawn by worker processes; which process draws
what decides nothing.

    problems, tally = draw(60_000, others=0.25, workers=16)
    write(problems, Path("problems.jsonl.gz"))        # JSON lines, that `cotalk.task.load` reads too
    problems = read(Path("problems.jsonl.gz"))
    solved, tally = gsm8k("data/gsm8k")

Left out: what is written about them (smollm2_text.py).
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as counting
from itertools import islice
from pathlib import Path
from typing import Any

from cotalk import processes
from cotalk.checks import overlap
from cotalk.deal import CannotDeal, cut, deal
from cotalk.errors import BadInput
from cotalk.grade import grade
from cotalk.perturb import solutions
from cotalk.sample import key
from cotalk.task import CHUNK, Task, load, symbolic_chunk

CARD_SEED = 9  # of the streams that a model card is measured on: no study's
SEATS = "AB"
NO_QUESTION = "no facts, or no question"
UNLIKE_GOLD = "its worked solution does not end in its gold"
PLAYED = "a study plays it"
LEFT_OUT = "cannot be dealt to two seats, and left out by lot"
NEAR = "GSM8K's test split holds it, or nearly"

CALCULATION = re.compile(r"<<[^<>]*>>")
POINT_ZERO = re.compile(r"(?<=\d)\.0+(?!\d)")
BULLET = re.compile(r"^\s*[•-]\s+", re.MULTILINE)
HEADING = re.compile(r"^let's (?:solve|break) .*:$", re.IGNORECASE)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Problem:
    """A task with facts, its solution (which ends in the gold in a box), and whether two seats can be dealt it."""

    task: Task
    solution: str
    dealt: bool


@dataclass(frozen=True)
class Tally:
    """What became of the rows that were drawn."""

    drawn: int
    kept: int
    refused: dict[str, int]
    repeats: int  # among those kept: problems that stand more than once, each time after the first

    def __str__(self) -> str:
        parts = [f"{self.kept:,} problems of {self.drawn:,} drawn"]
        parts += [f"{count:,} not: {reason}" for reason, count in self.refused.items()]
        return "; ".join([*parts, f"{self.repeats:,} of them repeat another"])


class Refused(BadInput):
    """This problem is not kept, for this reason."""


def worked(text: str, gold: str) -> str:
    r"""A solution that ends in "#### 42" as what a seat says: its lines, without calculator marks, and `\boxed{42}`."""
    body, mark, end = text.rpartition("####")
    if not mark or not grade(f"\\boxed{{{end.strip()}}}", gold).strict:
        raise Refused(UNLIKE_GOLD)
    plain = POINT_ZERO.sub("", BULLET.sub("", CALCULATION.sub("", body)))
    lines = [" ".join(line.split()) for line in plain.splitlines()]
    said = "\n".join([line for line in lines if line and not HEADING.match(line)] + [f"\\boxed{{{gold}}}"])
    if not grade(said, gold).strict:
        raise Refused(UNLIKE_GOLD)
    return said


def problem_of(task: Task, text: str) -> Problem:
    """A task with its facts cut; Refused where it cannot be read or its solution does not end in its gold."""
    facts, question = cut(task.problem)
    if not facts or not question:
        raise Refused(NO_QUESTION)
    whole = Task(task.id, question, task.gold, facts, template=task.template)
    try:
        deal(whole, SEATS)
    except CannotDeal:
        return Problem(whole, worked(text, task.gold), False)
    return Problem(whole, worked(text, task.gold), True)


# --- gsm_symbolic -----------------------------------------------------------------------------------------


def reserved() -> frozenset[str]:
    """The words, in alphabetical order, of each problem that studies and model cards play of gsm_symbolic."""
    streams = [(split, 0) for split in ("train", "dev", "heldout", "unseen")]
    streams += [("heldout", CARD_SEED), ("unseen", CARD_SEED)]
    return frozenset(_words(task.text) for split, seed in streams for task, _ in _chunk(split, 0, seed))


def played(problems: Iterable[Problem]) -> list[str]:
    """The ids of the problems that studies or model cards play, whatever order their words stand in."""
    kept_back = reserved()
    return [problem.task.id for problem in problems if _words(problem.task.text) in kept_back]


def _words(text: str) -> str:
    return " ".join(sorted(text.split()))


def _chunk(split: str, chunk: int, seed: int = 0) -> Iterator[tuple[Task, str]]:
    return symbolic_chunk(reasoning_gym().create_dataset, split, chunk, seed)


def reasoning_gym() -> Any:
    """The library, or a BadInput that says how to get it."""
    try:
        import reasoning_gym as library
    except ImportError as error:
        raise BadInput(
            "problems are drawn by reasoning-gym, and bases measured on them: pip install reasoning-gym==0.1.25",
            "package/missing",
        ) from error
    return library


def draw(
    count: int, others: float, workers: int = 1, say: Say = lambda _: None
) -> tuple[list[Problem], Tally]:
    """The first `count` problems of gsm_symbolic's base stream that are kept, in order.

    others: share of the problems that two seats cannot be dealt (one fact alone) which are kept all the same.
    """
    keep = functools.partial(_keep, others=others, kept_back=reserved())
    kept: list[Problem] = []
    refused: Counter[str] = Counter()
    drawn = 0
    for number, (some, lost) in enumerate(_in_processes(keep, count, workers), start=1):
        kept, refused, drawn = kept + some, refused + lost, drawn + len(some) + lost.total()
        say(f"problems: {len(kept):,} of {count:,} after {number} chunks")
        if len(kept) >= count:
            break
    kept = kept[:count]
    return kept, Tally(drawn, len(kept), dict(refused.most_common()), repeats(kept))


def _keep(chunk: int, others: float, kept_back: frozenset[str]) -> tuple[list[Problem], Counter[str]]:
    """What is kept of one chunk, and what is not, by reason."""
    kept: list[Problem] = []
    refused: Counter[str] = Counter()
    for task, text in _chunk("base", chunk):
        if _words(task.text) in kept_back:
            refused[PLAYED] += 1
            continue
        try:
            found = problem_of(task, text)
        except Refused as error:
            refused[str(error)] += 1
            continue
        if found.dealt or key("others", task.id) < others * 2**64:
            kept.append(found)
        else:
            refused[LEFT_OUT] += 1
    return kept, refused


def _in_processes(keep: Callable[[int], Any], count: int, workers: int) -> Iterator[Any]:
    """keep(0), keep(1), ... in order; a chunk keeps about half of its rows."""
    if workers < 2 or count < CHUNK:
        yield from map(keep, counting())
        return
    yield from processes.in_order(keep, counting(), min(workers, 1 + 2 * count // CHUNK), __name__)


def repeats(problems: Sequence[Problem]) -> int:
    """How many repeat an earlier one, word for word."""
    return len(problems) - len({problem.task.text for problem in problems})


# --- GSM8K ------------------------------------------------------------------------------------------------


def gsm8k(source: str) -> tuple[list[Problem], Tally]:
    """The problems of GSM8K's train split (a directory of train.jsonl and test.jsonl, or "gsm8k") that are kept."""
    if source != "gsm8k" and not Path(source).is_dir():
        raise BadInput(
            f"--gsm8k {source}: expected GSM8K's directory (train.jsonl and test.jsonl), or gsm8k",
            "task/unknown-source",
        )
    texts = solutions(source)
    trained = {task.id: task for task in load(source, split="train")}
    near = _near({name: task.problem for name, task in trained.items()},
                 {task.id: task.problem for task in load(source, split="test")})  # fmt: skip
    kept: list[Problem] = []
    refused: Counter[str] = Counter({NEAR: len(near)} if near else {})
    for name, task in trained.items():
        if name in near:
            continue
        try:
            kept.append(problem_of(task, texts[task.problem]))
        except Refused as error:
            refused[str(error)] += 1
    return kept, Tally(len(trained), len(kept), dict(refused.most_common()), repeats(kept))


def _near(trained: dict[str, str], held: dict[str, str]) -> set[str]:
    """The trained texts that a held one equals or nearly equals; one a held text is found at a time, so: until none."""
    near: set[str] = set()
    while True:
        found = overlap({name: text for name, text in trained.items() if name not in near}, held)
        more = {name for _, name in (*found.exact, *found.near)}
        if not more:
            return near
        near |= more


# --- files ------------------------------------------------------------------------------------------------


def write(problems: Iterable[Problem], path: Path) -> None:
    """JSON lines (packed where the name ends in .gz): {"id", "facts", "question", "gold", "template", "solution"}."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(aside, "wt", path.suffix == ".gz") as file:
        file.writelines(json.dumps(_row(problem), ensure_ascii=False) + "\n" for problem in problems)
    os.replace(aside, path)


def _opened(path: Path, mode: str, packed: bool) -> Any:
    return gzip.open(path, mode, encoding="utf-8") if packed else path.open(mode, encoding="utf-8")


def _row(problem: Problem) -> dict[str, Any]:
    task = problem.task
    return {"id": task.id, "facts": list(task.facts), "question": task.question, "gold": task.gold,
            "template": task.template, "solution": problem.solution, "dealt": problem.dealt}  # fmt: skip


def read(path: Path, count: int | None = None) -> list[Problem]:
    """The first `count` problems of what `write` wrote. BadInput names file and line of what is not so."""
    problems = []
    try:
        with _opened(path, "rt", path.suffix == ".gz") as file:
            for number, line in enumerate(islice(file, count), start=1):
                problems.append(_problem(line, f"{path}:{number}"))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise BadInput(
            f"rows {path} cannot be read ({error}); expected what --draw writes", "make/rows"
        ) from error
    if count is not None and len(problems) < count:
        raise BadInput(
            f"rows {path} holds {len(problems):,} problems; expected {count:,}: draw more", "make/rows"
        )
    return problems


def _problem(line: str, place: str) -> Problem:
    try:
        row = json.loads(line)
        task = Task(row["id"], row["question"], row["gold"], tuple(row["facts"]), template=row["template"])
        problem = Problem(task, row["solution"], row["dealt"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{place}: {error!r}; expected a problem with its solution, as --draw writes", "make/rows"
        ) from error
    if not grade(problem.solution, task.gold).strict:
        raise BadInput(f"{place}: its solution does not end in its gold {task.gold!r}", "make/rows")
    return problem
