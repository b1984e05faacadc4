"""`cotalk bench`: what this machine can do with a named shape, each speed beside its share of a measured ceiling.

Ceilings first (a large copy, a large matrix product), then decoding one token of every row, reading prompts, training
a micro-batch packed and padded, and a whole step. A case that does not fit in memory is left out with a line that says
so. Left out: other systems to compare with (bench/).

    show(measure("tiny", "cpu"), Console())
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cotalk import bench
from cotalk.bench import NEVER, Ceilings, peak_gib
from cotalk.decoder.packing import pack
from cotalk.decoder.training import PackedScorer
from cotalk.decoder.weights import Decoder
from cotalk.engines.fast import FastEngine
from cotalk.engines.hf import HfEngine
from cotalk.errors import BadInput, RunFailed
from cotalk.learner import Scorer
from cotalk.lora import Stack
from cotalk.padded import PaddedScorer
from cotalk.shapes import Shape


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    decode: tuple[tuple[int, int], ...]  # rows, adapters
    context: int  # tokens of every row that decodes
    read: int  # prompt tokens in one pass
    prompt: int  # tokens of each
    train: int  # tokens of the packed micro-batch
    row: int  # tokens of a training row, half of them sampled
    first: int  # of these, shared by four rows
    runs: tuple[int, ...]  # of the stacks that play a whole step
    lengths: tuple[int, int]  # budgets in it, of a message and an answer
    problems: int = 8  # in it, 4 chats each


GPU = Sizes(((1, 1), (32, 1), (192, 6), (384, 12)), 600, 16384, 256, 16384, 1084, 200, (1, 6), bench.CAPS)
CPU = Sizes(((1, 1), (32, 1)), 100, 2048, 64, 2048, 128, 32, (1,), (28, 36))


@dataclass(frozen=True)
class Case:
    """One line of the table. ms: of one pass, or of one token of every row; tokens: in that time; flops: operations a
    second; shares are of the ceilings measured in the same run. skipped: why there are no numbers."""

    part: str
    what: str
    ms: float | None = None
    tokens: float | None = None
    flops: float | None = None
    of_memory: float | None = None
    of_matmul: float | None = None
    peak_gib: float | None = None
    skipped: str = ""

    @property
    def tokens_a_second(self) -> float | None:
        return self.tokens / self.ms * 1e3 if self.tokens and self.ms else None


@dataclass(frozen=True)
class Measured:
    shape: str
    device: str
    dtype: str
    sizes: Sizes
    roof: Ceilings
    cases: list[Case]

    def as_json(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "device": self.device, "dtype": self.dtype, "torch": torch.__version__,
            "sizes": asdict(self.sizes),
            "copy_bytes_a_second": self.roof.bytes_a_second, "matmul_flops": self.roof.flops,
            "cases": [asdict(case) | {"tokens_a_second": case.tokens_a_second} for case in self.cases],
        }  # fmt: skip


@dataclass(frozen=True)
class _Speed:
    """What a case found: milliseconds, tokens in that time, operations and the fewest bytes moved (0: not told)."""

    ms: float
    tokens: float
    flops: float
    moved: float = 0.0


def measure(shape: str, device: str, console: Console | None = None, sizes: Sizes | None = None) -> Measured:
    """Measures everything of a shape on a device ("cpu", "cuda", "cuda:1"). A CPU computes on one thread, as a study's
    worker does. Raises BadInput when the shape is unknown or its weights do not fit."""
    Shape.named(shape)
    on = torch.device(device)
    dtype = torch.float32 if on.type == "cpu" else torch.bfloat16
    sizes = sizes or (CPU if on.type == "cpu" else GPU)
    with _one_thread(on), _progress(console) as progress:
        bar = progress.add_task("ceilings: copy and matrix product", total=None)
        roof = bench.ceilings(on, dtype)
        cases = []
        work = list(_work(shape, on, dtype, sizes))
        progress.update(bar, total=len(work))
        for part, what, speed in work:
            progress.update(bar, description=f"{part}: {what}")
            cases.append(_case(part, what, speed, roof, on))
            progress.advance(bar)
    name = torch.cuda.get_device_name(on) if on.type == "cuda" else "one CPU thread"
    return Measured(shape, name, str(dtype).removeprefix("torch."), sizes, roof, cases)


def _case(part: str, what: str, speed: Callable[[], _Speed], roof: Ceilings, device: torch.device) -> Case:
    """Runs one case; what it held is given back before the next."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        found = speed()
    except (torch.OutOfMemoryError, MemoryError, RunFailed) as error:
        return Case(part, what, skipped=(str(error).splitlines() or ["out of memory"])[0])
    finally:
        _tidy(device)
    seconds = found.ms / 1e3
    return Case(
        part, what, found.ms, found.tokens, found.flops / seconds,
        found.moved / seconds / roof.bytes_a_second if found.moved else None, found.flops / seconds / roof.flops,
        peak_gib(device),
    )  # fmt: skip


def _tidy(device: torch.device) -> None:
    gc.collect()  # a stack and its decoder know each other
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _progress(console: Console | None) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=console is None, transient=True)


def _work(
    shape: str, device: torch.device, dtype: torch.dtype, sizes: Sizes
) -> Iterator[tuple[str, str, Callable[[], _Speed]]]:
    """(part, case, what measures it), in order. The parts share a stack, which the whole steps replace."""
    held = _Held(shape, device, dtype, sizes)
    for rows, adapters in sizes.decode:
        yield "decode", f"rows {rows}, adapters {adapters}", partial(held.decode, rows, adapters)
    if device.type == "cpu":  # what a study uses there
        yield "decode", f"rows {rows}, adapters {adapters}, hf", partial(held.decode_hf, rows, adapters)
    yield "read", f"prompts of {sizes.prompt}", held.read
    yield (
        "train",
        f"packed, {sizes.first} of {sizes.row} shared",
        partial(held.train, sizes.train, packed=True),
    )
    yield "train", f"packed, 8 x {sizes.row}", partial(held.train, 8 * sizes.row, packed=True)
    yield "train", f"padded, 8 x {sizes.row}", partial(held.train, 8 * sizes.row, packed=False)
    for runs in sizes.runs:
        yield "step", f"runs {runs}, caps {sizes.lengths}", partial(held.step, runs)


class _Held:
    """A stack and its engine, made for the first case and kept for the next ones."""

    def __init__(self, shape: str, device: torch.device, dtype: torch.dtype, sizes: Sizes):
        self.name, self.shape, self.sizes = shape, Shape.named(shape), sizes
        self.device, self.dtype = device, dtype
        self._stack: Stack | None = None
        self._engine: FastEngine | None = None

    @property
    def stack(self) -> Stack:
        if self._stack is None:
            try:
                adapters = max(adapters for _, adapters in self.sizes.decode)
                self._stack = bench.random_stack(self.name, adapters, self.device, self.dtype)
            except torch.OutOfMemoryError as error:
                raise BadInput(
                    f"shape {self.name} does not fit on {self.device}; expected a smaller one, such as --shape "
                    f"{'tiny' if self.name == 'smollm2-135m' else 'smollm2-135m'}",
                    "memory/full",
                ) from error
        return self._stack

    @property
    def engine(self) -> FastEngine:
        if self._engine is None:
            self._engine = FastEngine(self.stack, [NEVER])
        return self._engine

    def decode(self, rows: int, adapters: int) -> _Speed:
        return self._decoded(bench.decode_ms(self.engine, rows, adapters, self.sizes.context), rows, adapters)

    def decode_hf(self, rows: int, adapters: int) -> _Speed:
        engine = HfEngine(self.stack, [NEVER])
        ms = bench.reply_ms(engine, rows, adapters, self.shape.vocabulary, self.sizes.context)
        return self._decoded(ms, rows, adapters)

    def _decoded(self, ms: float, rows: int, adapters: int) -> _Speed:
        read = bench.decode_bytes(Decoder.of(self.stack), rows, adapters, self.sizes.context)
        return _Speed(ms, rows, 2.0 * self.shape.parameters * rows, read)

    def read(self) -> _Speed:
        tokens, prompt = self.sizes.read, self.sizes.prompt
        adapters = min(6, self.stack.adapters)
        ms = bench.read_ms(Decoder.of(self.stack), tokens, prompt, adapters)
        return _Speed(ms, tokens, 2.0 * self.shape.body * tokens)

    def train(self, tokens: int, packed: bool) -> _Speed:
        self._engine = None  # its cache
        _tidy(self.device)
        rows = bench.training_rows(
            tokens // self.sizes.row, self.sizes.row, self.sizes.first, 0.5, self.shape.vocabulary
        )
        scorer: Scorer = (
            PackedScorer(Decoder.of(self.stack), 0.9) if packed else PaddedScorer(self.stack, 0.9)
        )
        counted = len(pack(rows, torch.device("cpu")).ids) if packed else len(rows) * self.sizes.row
        return _Speed(
            bench.train_ms(scorer, rows), counted, bench.train_flops(self.shape.parameters, counted)
        )

    def step(self, runs: int) -> _Speed:
        self._stack = self._engine = None
        _tidy(self.device)
        sizes = self.sizes
        found = bench.whole_step(
            self.name, runs, "dialogue", 3, sizes.lengths, self.device, self.dtype, problems=sizes.problems
        )
        forward = found["tokens_sampled"] + (found["prompt_tokens_read"] or 0)
        flops = 2.0 * self.shape.parameters * forward + bench.train_flops(
            self.shape.parameters, found["tokens_trained"]
        )
        return _Speed(1e3 * found["seconds"], found["tokens_sampled"], flops)


def show(found: Measured, console: Console) -> None:
    small = found.roof.flops < 1e12
    unit, name = (1e9, "G") if small else (1e12, "T")
    table = Table(
        title=f"{found.shape}, {found.dtype}, {found.device}, context {found.sizes.context}",
        title_justify="left",
    )
    table.add_column("what")
    columns = ["ms", "tokens/s", f"{name}FLOP/s", "of copy", "of product"]
    for column in [*columns, "peak GiB"] if any(case.peak_gib for case in found.cases) else columns:
        table.add_column(column, justify="right")
    roof = found.roof
    table.add_row(f"copy, {roof.bytes_a_second / unit:.3g} {name}B/s", "", "", "", "100%")
    table.add_row("matrix product", "", "", f"{roof.flops / unit:.3g}", "", "100%", end_section=True)
    for case in found.cases:
        table.add_row(*_line(case, unit))
    console.print(table)
    for case in found.cases:
        if case.skipped:
            console.print(
                f"{case.part}, {case.what}: left out, {case.skipped}", highlight=False, markup=False
            )


def _line(case: Case, unit: float) -> list[str]:
    if case.ms is None or case.flops is None:
        return [f"{case.part}, {case.what}", "left out"]
    numbers = [
        (case.ms, "{:.3g}" if case.ms < 100 else "{:,.0f}"),
        (case.tokens_a_second, "{:,.0f}"),
        (case.flops / unit, "{:.3g}"),
        (case.of_memory, "{:.0%}"),
        (case.of_matmul, "{:.0%}"),
    ]
    told = ["" if value is None else form.format(value) for value, form in numbers]
    return [f"{case.part}, {case.what}", *told, *([f"{case.peak_gib:.1f}"] if case.peak_gib else [])]
