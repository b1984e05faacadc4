"""Train, dev and held-out: sets of dealt tasks that share no problem, and of templates that no other set holds.

Held-out is taken first, then train, then dev; where they come from one stream, each goes on where the one
before it stopped. A problem whose facts and question were seen before is dropped and counted, so that no
set repeats another. `unseen` tasks (gsm_symbolic) are of templates that nothing else is drawn from.

    tasks = splits("data/gsm8k", rule="published")     # 1,024 of train, the next 16 of train, 300 of test
    tasks.train, tasks.dev, tasks.heldout              # lists of Deal
    tasks.report["train"].refused                      # {"a hand without a number": ..., ...}

| source | train | dev | held-out |
|---|---|---|---|
| GSM8K (hub or directory) | train split, from its start | train split, after those | test split |
| puzzles, gsm_symbolic, a function with a `split` parameter | its own | its own | its own |
| one file, or a function without `split` | after held-out | after train | from the start |
| any, with `heldout_source` | as above | as above | that source |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from cotalk.deal import CannotDeal, Deal, deal
from cotalk.errors import BadInput
from cotalk.task import Task, doubtful, for_seats, kind_of, load, own_splits, worded

PATIENCE = 20_000  # tasks of an endless source in a row that may be refused or repeated before we give up


@dataclass(frozen=True)
class Tally:
    """What became of the tasks that were read for one set."""

    read: int
    dealt: int
    refused: dict[str, int]  # reason -> tasks
    repeats: dict[str, int]  # set that holds the same problem already -> tasks dropped
    first: str = ""  # why the first of the refused ones was, with its place
    worded: int = 0  # dealt tasks whose gold is words alone

    def __str__(self) -> str:
        parts = [f"{self.dealt:,} dealt of {self.read:,} read"]
        parts += [f"{count:,} not: {reason}" for reason, count in self.refused.items()]
        parts += [f"{count:,} dropped: also in {name}" for name, count in self.repeats.items()]
        parts += [f"golds that are words, graded letter by letter: {self.worded:,}"] if self.worded else []
        return "; ".join(parts)


@dataclass(frozen=True)
class Tasks:
    """The three sets, and a tally for each."""

    train: list[Deal]
    dev: list[Deal]
    heldout: list[Deal]
    report: dict[str, Tally]
    perturbed: list[Deal] = field(
        default_factory=list
    )  # held-out tasks with other numbers, where they were asked for
    unseen: list[Deal] = field(default_factory=list)  # of templates of their own, where they were asked for


def splits(
    source: str,
    heldout_source: str | None = None,
    *,
    train: int = 1024,
    dev: int = 16,
    heldout: int = 300,
    rule: str = "clean",
    seats: str = "AB",
    seed: int = 0,
    unseen: int = 0,
    any_gold: bool = False,
) -> Tasks:
    """Deal `train`, `dev` and `heldout` tasks that share no problem; BadInput when the source has fewer.

    unseen: tasks of templates that none of these holds (gsm_symbolic; BadInput for another source).
    any_gold: take golds too that the built-in grader would read amiss (for a grader of the user's own).
    """
    wanted = {"heldout": heldout} | ({"unseen": unseen} if unseen else {}) | {"train": train, "dev": dev}
    for name, count in wanted.items():
        if count < 0:
            raise BadInput(f"{name} {count} is negative; expected 0 or more tasks", "cli/number")
    source = for_seats(source, seats)
    streams = _streams(source, heldout_source and for_seats(heldout_source, seats), seed)
    if unseen:
        streams["unseen"] = load(source, split="unseen", seed=seed)
    seen: dict[str, str] = {}
    taken = {
        name: _take(streams[name], count, name, seen, (seats, rule), any_gold)
        for name, count in wanted.items()
    }
    for name, (dealt, tally) in taken.items():
        if len(dealt) < wanted[name]:
            origin = heldout_source if name == "heldout" and heldout_source else source
            first = f". The first that cannot be dealt: {tally.first}" if tally.first else ""
            raise BadInput(
                f"source {origin!r} has {len(dealt):,} {name} tasks for seats {seats} under rule {rule}, "
                f"{wanted[name]:,} were asked for ({tally}); give more tasks, or ask for fewer with {name}_tasks "
                f"(--{name}-tasks; of a study --set {name}_tasks=N). Held-out tasks are taken first, then train, "
                f"then dev, each once{first}",
                "task/too-few",
            )
    lists = {name: dealt for name, (dealt, _) in taken.items()}
    return Tasks(**lists, report={name: tally for name, (_, tally) in taken.items()})


def _streams(source: str, heldout_source: str | None, seed: int) -> dict[str, Iterator[Task]]:
    """A stream of tasks for each set; one and the same stream where a source has no splits of its own."""
    first = load(source, split="train", seed=seed)
    if not own_splits(source):
        streams = {"train": first, "dev": first, "heldout": first}
    elif kind_of(source) == "gsm8k":
        streams = {"train": first, "dev": first}
    else:
        streams = {"train": first, "dev": load(source, split="dev", seed=seed)}
    if heldout_source or "heldout" not in streams:
        streams["heldout"] = load(heldout_source or source, split="heldout", seed=seed)
    return streams


def _take(
    tasks: Iterator[Task], count: int, name: str, seen: dict[str, str], how: tuple[str, str], any_gold: bool
) -> tuple[list[Deal], Tally]:
    """The next `count` tasks that can be dealt and are not in `seen`, where they are then entered.

    how: (seats, rule).
    """
    dealt: list[Deal] = []
    refused: Counter[str] = Counter()
    repeats: Counter[str] = Counter()
    read, in_vain, first = 0, 0, ""
    while len(dealt) < count and in_vain < PATIENCE and (task := next(tasks, None)) is not None:
        read, in_vain = read + 1, in_vain + 1
        if not any_gold and (why := doubtful(task.gold)):
            raise BadInput(
                f"{task.place or task.id}: gold {task.gold!r} {why}, and an answer of the number alone would be graded "
                "wrong; expected a number as in 7, 7.5 or 1,000, an expression, or words alone. Or bring a grader of "
                "your own (docs/grading.md)",
                "task/gold",
            )
        try:
            one = deal(task, *how)
        except CannotDeal as error:
            refused[error.reason] += 1
            first = first or str(error)
            continue
        if one.text in seen:
            repeats[seen[one.text]] += 1
            continue
        seen[one.text], in_vain = name, 0
        dealt.append(one)
    words = 0 if any_gold else sum(worded(one.gold) for one in dealt)
    return dealt, Tally(
        read, len(dealt), dict(refused.most_common()), dict(repeats.most_common()), first, words
    )
