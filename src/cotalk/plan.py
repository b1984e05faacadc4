"""What a study will take, before anything runs: runs, rows, tokens, memory against the card, minutes and cost.

Tokens sampled at the caps (every message as long as its budget) are exact, each arm with its own settings. Memory is
arithmetic over the base's shape. Minutes come from speeds measured on one H200 and on CPU cores (speeds.py): right in
size, not a promise; for another machine, `cotalk bench` says how it compares.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cotalk.base import TINY
from cotalk.config import Config
from cotalk.decoder.ops import PAGE
from cotalk.decoder.weights import FAMILIES
from cotalk.errors import BadInput, printable
from cotalk.shapes import HUB, Shape
from cotalk.speeds import ENGINE_ROWS, Cpu, Fast, Hf
from cotalk.study import Job, Study, cores, stackable
from cotalk.workers import refuse_one_gpu, shares
from cotalk.workload import (
    Play,
    adapters_of,
    dev_looks,
    dev_play,
    draws_more,
    evaluation_plays,
    matrix_play,
    step_play,
    steps_of,
    words_of,
)

GIB = 2**30
H200_GIB = 139.8  # as torch counts it
SETUP_SECONDS = 7  # of a stack on a GPU: load, compile, record graphs
HOST_SECONDS = 0.2  # a run and step: prompts, grading, packing, files


@dataclass(frozen=True)
class Card:
    """The GPU that is planned for. here: it is in this machine."""

    name: str
    bytes: float
    here: bool


@dataclass(frozen=True)
class Step:
    """Seconds of one step of all runs."""

    engine: float
    training: float
    host: float

    @property
    def seconds(self) -> float:
        return self.engine + self.training + self.host


@dataclass(frozen=True)
class Tokens:
    """At the caps."""

    sampled: int
    read: int


@dataclass(frozen=True)
class Plan:
    """All numbers of a plan; `lines` shows them. Pairs are (with usual lengths, at the caps)."""

    study: str
    runs: int
    steps: tuple[int, ...]
    stacks: int
    rows: int
    training_rows: int
    evaluation_rows: int
    training: Tokens
    evaluation: Tokens
    usual: float
    device: str
    workers: int
    price: float | None
    engine: str
    card: Card | None = None
    memory: dict[str, float] | None = None
    kv_needed: float = 0.0
    more: tuple[str, ...] = ()
    fitting_tokens: int | None = None
    step: tuple[Step, Step] | None = None
    minutes: tuple[float, float] | None = None

    def lines(self) -> list[tuple[str, str]]:
        several = f", in {self.stacks} stacks one after the other" if self.stacks > 1 else ""
        together = "in one call" if self.device == "cuda" else "each run's in calls of its own"
        if self.device == "cuda" and self.workers > 1:
            together = "in one call a GPU"
        return [
            ("runs", f"{self.runs} (arms x seeds), {' or '.join(map(str, self.steps))} steps each{several}"),
            (
                "rows",
                f"{self.rows:,} chats in a step of all runs, answered {together}, {self.training_rows:,} training "
                f"rows; up to {self.evaluation_rows:,} chats in an evaluation; {ENGINE_ROWS} decode at once",
            ),
            ("tokens in training", _told(self.training)),
            ("tokens in evaluation", _told(self.evaluation)),
            ("memory at the caps", self._memory()),
            *self._time(),
            *([("not counted", self._more())] if self.more else []),
        ]

    def _more(self) -> str:
        return f"what the methods of {', '.join(self.more)} draw or play again beyond `chats` chats a problem"

    def _memory(self) -> str:
        if not self.memory:
            return "unknown: the base's config is not here (its shape decides)"
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.memory.items() if size)
        total = sum(self.memory.values())
        if self.card is None:
            return f"{total / GIB:.1f} GiB: {parts}"
        where = "" if self.card.here else " (no GPU is here; --card-gib for another)"
        told = f"{total / GIB:.1f} of {self.card.bytes / GIB:.1f} GiB of {self.card.name}{where}: {parts}"
        if self.kv_needed != self.memory["KV cache"]:
            told += f" (the caps use {self.kv_needed / GIB:.2f} of it at once)"
        if total <= self.card.bytes:
            return told
        if self.fitting_tokens:
            return f"{told}. MORE THAN THE CARD HOLDS: --set batch_tokens={self.fitting_tokens} fits"
        return f"{told}. MORE THAN THE CARD HOLDS, whatever batch_tokens is: lower the budgets, or take a smaller base"

    def _time(self) -> list[tuple[str, str]]:
        if self.step is None or self.minutes is None:
            return []
        (usual, caps), (minutes, most) = self.step, self.minutes
        where = (
            f"{self.workers} workers on a CPU"
            if self.device == "cpu"
            else f"{self._cards()} with engine {self.engine}"
        )
        words = f"messages {self.usual:.0%} of their caps"
        return [
            (
                "a step of all runs",
                f"about {usual.seconds:.1f} s ({words}), {caps.seconds:.1f} s at the caps: engine {caps.engine:.1f}, "
                f"training {caps.training:.1f}, host {caps.host:.1f}",
            ),
            (
                "expected",
                f"about {_minutes(minutes)} minutes on {where}{self._cost(minutes)}; {_minutes(most)} at the caps"
                f"{self._cost(most)}",
            ),
        ]

    def _cards(self) -> str:
        """Speeds were measured on an H200: of another card that is planned for, the plan knows its memory alone."""
        other = self.card is not None and not self.card.here and abs(self.card.bytes / GIB - H200_GIB) > 1
        if other:
            return (
                "a card as fast as an H200"
                if self.workers == 1
                else f"{self.workers} cards as fast as an H200"
            )
        return "one H200" if self.workers == 1 else f"{self.workers} H200"

    def _cost(self, minutes: float) -> str:
        cards = 1 if self.device == "cpu" else self.workers
        each = " a GPU" if cards > 1 else ""
        return (
            f", {cards * minutes / 60 * self.price:.2f} at {self.price:.2f} an hour{each}"
            if self.price
            else ""
        )


def _told(tokens: Tokens) -> str:
    return f"{tokens.sampled:,} sampled and {tokens.read:,} of prompts read, at the caps"


def _minutes(minutes: float) -> str:
    return f"{minutes:,.0f}" if minutes >= 9.5 else f"{minutes:.1f}"


def plan(
    study: Study,
    price: float | None = None,
    device: str | None = None,
    workers: int = 0,
    card_gib: float | None = None,
) -> Plan:
    """Plans a study.

    Args:
        price: of an hour.
        device: "cpu" or "cuda"; None: what the study would use here, or an H200 for a base that belongs on one.
        workers: on a CPU, 0: one a core; or as many GPUs as are planned for, 0: one.
        card_gib: memory of the GPU that is planned for, where it is not in this machine.
    """
    for flag, given in (("--price", price), ("--card-gib", card_gib)):
        if given is not None and not 0 <= given < float("inf"):
            raise BadInput(f"{flag} {given}: expected a number from 0 on", "cli/number")
    config, jobs = study.config, study.jobs()
    device = device or _device(config, card_gib)
    if device != "cpu":
        refuse_one_gpu(workers, config.device)
    most = cores() if device == "cpu" else len(jobs)  # more processes than cores are no faster
    workers = max(1, min(workers or (cores() if device == "cpu" else 1), most, len(jobs)))
    shape = shape_of(config.base)
    engine = _engine(config, shape, device)
    reuse = engine is not None and engine.packed
    configs = [study.job_config(job) for job in jobs if job.arm]
    steps, evaluations = [step_play(c) for c in configs], [evaluation_plays(study, job) for job in jobs]
    looked = [(play, 1) for plays in evaluations for play in plays]
    looked += [(dev_play(c), dev_looks(c)) for c in configs]
    looked += [(matrix, 1)] if (matrix := matrix_play(study)) else []
    known: dict[str, Any] = {}
    if engine:
        known = _known(study, engine, device, workers, card_gib)
    return Plan(
        study=study.name,
        runs=len(configs),
        steps=tuple(sorted({steps_of(c) for c in configs})),
        stacks=max(len(list(stackable(study, share))) for share in _shares(study, device, workers)),
        rows=sum(play.chats for play in steps),
        training_rows=sum(play.rows for play in steps),
        evaluation_rows=sum(max(play.chats for play in plays) for plays in evaluations),
        training=_tokens([(play, steps_of(c)) for play, c in zip(steps, configs)], reuse),
        evaluation=_tokens(looked, reuse),
        usual=words_of(config).usual,
        device=device,
        workers=workers,
        price=price,
        engine=engine.name if engine else config.engine,
        more=tuple(arm for arm in study.arms if draws_more(study.arm(arm))),
        **known,
    )


def _device(config: Config, card_gib: float | None) -> str:
    if card_gib:
        return "cuda"
    if config.device != "auto":
        return "cpu" if config.device == "cpu" else "cuda"
    return "cuda" if torch.cuda.is_available() or config.base in HUB else "cpu"


def _tokens(plays: Sequence[tuple[Play, int]], reuse: bool) -> Tokens:
    return Tokens(
        sampled=round(sum(times * play.sampled() for play, times in plays)),
        read=round(sum(times * play.read(1.0, reuse) for play, times in plays)),
    )


def shape_of(base: str) -> Shape | None:
    """A base's shape from its config on disk, or from the known ones; None when neither has it."""
    from transformers import AutoConfig

    where = TINY if base == "tiny" else Path(base).expanduser()
    if (where / "config.json").is_file():
        found = AutoConfig.from_pretrained(where, trust_remote_code=False).get_text_config()
        return Shape.of(found.to_dict())
    return Shape.named(HUB[base]) if base in HUB else None


def _engine(config: Config, shape: Shape | None, device: str) -> Fast | Hf | None:
    """What will answer and train; None when the base's shape is unknown."""
    if shape is None:
        return None
    if device == "cpu":
        return Cpu(shape, 4)
    each = 4 if config.dtype == "float32" else 2
    fast = config.engine == "fast" or (config.engine == "auto" and shape.family in FAMILIES)
    return Fast(shape, each) if fast else Hf(shape, each)


def _known(
    study: Study, engine: Fast | Hf, device: str, workers: int, card_gib: float | None
) -> dict[str, Any]:
    """What follows from the base's shape: memory and time."""
    card = _card(card_gib) if device == "cuda" else None
    found: dict[str, Any] = {"card": card}
    stacks = _stacks(study, device, workers)
    fullest = max(
        (_memory(study, jobs, engine, card) for jobs in stacks), key=lambda memory: sum(memory.values())
    )
    in_one_memory = workers if device == "cpu" else 1  # each GPU has its own
    found["memory"] = {name: size * in_one_memory for name, size in fullest.items()}
    found["kv_needed"] = max(_kv_needed(study, jobs, engine.shape) for jobs in stacks) * engine.each
    if card:
        found["fitting_tokens"] = _fitting(study, engine, fullest, card)
    usual, caps = words_of(study.config).usual, 1.0
    if device == "cpu":  # runs wait for the next free worker
        configs = [study.job_config(job) for job in study.jobs() if job.arm]
        steps = [step_of(configs, engine, share) for share in (usual, caps)]
        found["step"] = tuple(Step(s.engine / workers, s.training / workers, 0.0) for s in steps)
        found["minutes"] = tuple(_seconds(study, engine, share) / workers / 60 for share in (usual, caps))
        return found
    sides = _shares(study, device, workers)
    found["step"] = tuple(
        max((_side_step(study, side, engine, share) for side in sides), key=lambda s: s.seconds)
        for share in (usual, caps)
    )
    found["minutes"] = tuple(_seconds(study, engine, share, sides) / 60 for share in (usual, caps))
    return found


def _side_step(study: Study, jobs: Sequence[Job], engine: Fast | Hf, share: float) -> Step:
    return step_of([study.job_config(job) for job in jobs if job.arm], engine, share)


def _card(card_gib: float | None) -> Card:
    if card_gib:
        return Card(f"a GPU of {card_gib:g} GiB", card_gib * GIB, here=True)
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        return Card(found.name, found.total_memory, here=True)
    return Card("an H200", H200_GIB * GIB, here=False)


# --- memory --------------------------------------------------------------------------------------------------


def _shares(study: Study, device: str, workers: int) -> list[list[Job]]:
    """What is played side by side on several GPUs; all jobs on one, and on a CPU (where each waits for a worker)."""
    return shares(study.jobs(), 1 if device == "cpu" else workers, gpus=True)


def _stacks(study: Study, device: str, workers: int) -> list[list[Job]]:
    """The jobs that are in memory together: a stack on a GPU, one job at a time in a CPU's worker."""
    if device == "cpu":
        return [[job] for job in study.jobs()]
    return [jobs for share in _shares(study, device, workers) for jobs in stackable(study, share)]


def _memory(study: Study, jobs: Sequence[Job], engine: Fast | Hf, card: Card | None) -> dict[str, float]:
    """Bytes of one stack. Adapters and their two moments are float32; only the run in training has gradients, held
    twice for a moment."""
    s = engine.shape
    config = study.job_config(jobs[0])
    runs = [study.job_config(job) for job in jobs if job.arm]
    adapters = max(1, sum(map(adapters_of, runs)))
    own = max(map(adapters_of, runs), default=0)
    trained = adapters if runs else 0
    needed = engine.each * _kv_needed(study, jobs, s)
    return {
        "base": engine.each * s.parameters,
        "adapters and optimisers": 4 * s.adapter(config.rank) * ((1 + adapters) + 2 * trained + 2 * own),
        "adapters' copies": engine.copies(adapters, config.rank),
        "KV cache": engine.kv_bytes(needed, card.bytes if card else 0),
        "one micro-batch": max(
            (engine.batch_bytes(_batch_tokens(c, engine), c.rank) for c in runs), default=0.0
        ),
    }


def _kv_needed(study: Study, jobs: Sequence[Job], shape: Shape) -> float:
    """Numbers in the cache when as many rows decode as may, each at its longest."""
    plays = [step_play(study.job_config(job)) for job in jobs if job.arm]
    waiting = sum(max(play.chats for play in evaluation_plays(study, job)) for job in jobs)
    rows = min(ENGINE_ROWS, max(waiting, sum(play.chats for play in plays)))
    longest = max((play.longest for play in plays), default=step_play(study.config).longest)
    return rows * -(-longest // PAGE) * PAGE * shape.kv


def _batch_tokens(config: Config, engine: Fast | Hf) -> float:
    """Tokens of a run's largest micro-batch: the budget, or all there are; a row longer than it goes alone."""
    play = step_play(config)
    return max(play.longest, min(config.batch_tokens, play.trained(1.0, engine.packed)))


def _fitting(study: Study, engine: Fast | Hf, memory: dict[str, float], card: Card) -> int | None:
    """The largest halving of batch_tokens that fits the card; None when none does."""
    config = study.config
    longest = max(step_play(study.job_config(job)).longest for job in study.jobs() if job.arm)
    room = card.bytes - sum(size for name, size in memory.items() if name != "one micro-batch")
    tokens = config.batch_tokens
    while tokens >= longest:
        if engine.batch_bytes(tokens, config.rank) <= room:
            return tokens
        tokens //= 2
    return None


# --- time ----------------------------------------------------------------------------------------------------


def step_of(configs: Sequence[Config], engine: Fast | Hf, share: float) -> Step:
    """Seconds of one step of these runs, together in one stack."""
    plays = [step_play(c) for c in configs]
    return Step(
        engine=engine.play_seconds(plays, max(c.rank for c in configs), share),
        training=sum(engine.train_seconds(play, share) for play in plays),
        host=0.0 if isinstance(engine, Cpu) else HOST_SECONDS * len(configs),
    )


def _seconds(
    study: Study, engine: Fast | Hf, share: float, sides: Sequence[Sequence[Job]] | None = None
) -> float:
    """All stacks, one after the other, and the cross-play matrix.

    sides: jobs that are played side by side; the longest one's time counts, and an equal part of the matrix.
    """
    sides = sides or [study.jobs()]
    longest = max(
        sum(_stack_seconds(study, jobs, engine, share) for jobs in stackable(study, side)) for side in sides
    )
    matrix = matrix_play(study)
    return longest + (engine.play_seconds([matrix], study.config.rank, share) / len(sides) if matrix else 0.0)


def _stack_seconds(study: Study, jobs: Sequence[Job], engine: Fast | Hf, share: float) -> float:
    configs = [study.job_config(job) for job in jobs if job.arm]
    rank = study.job_config(jobs[0]).rank
    seconds = 0.0 if isinstance(engine, Cpu) else float(SETUP_SECONDS)
    done = 0
    for upto in sorted({steps_of(c) for c in configs}):
        seconds += (upto - done) * step_of([c for c in configs if steps_of(c) >= upto], engine, share).seconds
        done = upto
    looks = [(dev_play(c), dev_looks(c)) for c in configs]
    for look in range(max((n for _, n in looks), default=0)):
        seconds += engine.play_seconds([play for play, n in looks if n > look], rank, share)
    for waiting in itertools.zip_longest(*(evaluation_plays(study, job) for job in jobs)):
        seconds += engine.play_seconds([play for play in waiting if play], rank, share)
    return seconds


def needs(study: Study) -> str:
    """What a study takes of memory, for an error that says it did not fit."""
    found = plan(study)
    return f"What the plan counts: {dict(found.lines())['memory at the caps']}"


def show(what: Plan, console: Console, refused: str = "") -> None:
    """refused: why the study would not begin as things are here."""
    table = Table(title=f"plan of {what.study}", show_header=False, title_justify="left")
    for name, text in what.lines():
        table.add_row(name, text)
    if refused:
        table.add_row("would be refused", Text(printable(refused), style="red"))
    console.print(table)
