"""What speeds are measured with: the machine's ceilings, then decoding, reading prompts, training and a whole step.

Weights are random and nothing is downloaded. Times on a GPU are medians between device events after a warm-up. The
scripts in bench/ and `cotalk bench` (machine.py) are made of these pieces.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cotalk.chat import Chat, Player, View
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.decoder.ops import PAGE
from cotalk.decoder.packing import pack
from cotalk.decoder.serving import Cache, Serving, Stretch
from cotalk.decoder.training import PackedScorer
from cotalk.decoder.weights import Decoder
from cotalk.engines import Engine, Table
from cotalk.engines.choose import choose
from cotalk.engines.fast import FastEngine
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.methods import GRPO, Group
from cotalk.rows import Row, rows_of
from cotalk.run import RunDirectory
from cotalk.sample import generator, key
from cotalk.shapes import SHAPES, random_model, word_tokenizer
from cotalk.stack import drive
from cotalk.task import Task
from cotalk.train import Run, train
from cotalk.view import ChatFormat, Scene

NEVER = 1 << 30  # an end token that no row can sample
PROMPT = 110  # tokens: the mean of GSM8K's halves with our words (109; longest 176)
CAPS = (160, 384)  # of a message and an answer, as published
MEANS = (110, 200)  # about those of published talk
NOWHERE = Scene("A", "AB", ("1",), "?", (), (), last=True)


def milliseconds(
    work: Callable[[], Any], device: torch.device, repeats: int = 20, warm_up: int = 3, patience: float = 60.0
) -> float:
    """The median time of one call: of `repeats`, or of those that begin within that many seconds."""
    until = time.perf_counter() + patience
    for _ in range(warm_up):
        if time.perf_counter() < until:
            work()
    times: list[float] = []
    while len(times) < repeats and (not times or time.perf_counter() < until):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            began = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


@dataclass(frozen=True)
class Ceilings:
    """bytes_a_second: of a large copy, read and written; flops: of a large matrix product on random data."""

    bytes_a_second: float
    flops: float


def ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    on_gpu = device.type == "cuda"
    n = 8192 if on_gpu else 1024
    a, b = (torch.randn(n, n, dtype=dtype, device=device) for _ in range(2))
    product = milliseconds(lambda: a @ b, device, repeats=20 if on_gpu else 5)
    numbers = 1 << 24
    if on_gpu:  # an eighth of the card at most
        numbers = min(1 << 30, torch.cuda.get_device_properties(device).total_memory // 64)
    return Ceilings(_copy_speed(numbers, device), 2 * n**3 / product * 1e3)


def _copy_speed(numbers: int, device: torch.device) -> float:
    """Bytes a second, read and written, of copying that many float32."""
    source = torch.randn(numbers, device=device)
    target = torch.empty_like(source)
    return 8 * numbers / milliseconds(lambda: target.copy_(source), device, repeats=10) * 1e3


def random_stack(
    shape: str, adapters: int, device: torch.device, dtype: torch.dtype, rank: int = 32
) -> Stack:
    """A stack over a random model whose adapters are all in use (B is not zero)."""
    stack = Stack(random_model(shape, device, dtype), adapters, rank, 2.0 * rank)
    for linear in stack.linears.values():
        linear.all_a[1:].uniform_(-0.02, 0.02)
        linear.all_b[1:].normal_(0, 0.002)
    for k in range(1, adapters + 1):
        stack.changed(k)
    return stack


def views(rows: int, adapters: int, prompt: int, budget: int, vocabulary: int, turn: int = 0) -> list[View]:
    """Rows with random prompts of their own, shared out over the adapters."""
    out = []
    for i in range(rows):
        ids = generator("bench", i, turn).integers(0, min(vocabulary, 1 << 16), prompt).tolist()
        out.append(
            View(NOWHERE, Player("p", 1 + i % adapters), tuple(ids), budget, key("bench", i, turn), 0.9)
        )
    return out


def decode_ms(engine: FastEngine, rows: int, adapters: int, context: int = 600, steps: int = 32) -> float:
    """Milliseconds for one token of every row."""
    given = views(rows, adapters, context - steps, 2 * steps, engine.decoder.vocabulary)
    step = engine.stepping(given)
    return milliseconds(step, engine.stack.device, repeats=steps - 3)


def reply_ms(
    engine: Engine, rows: int, adapters: int, vocabulary: int, context: int, steps: int = 32
) -> float:
    """The same of any engine: the difference of two lengths of reply. `engine` must know no end of a turn."""

    def seconds(tokens: int) -> float:
        given = views(rows, adapters, context - steps, tokens, vocabulary)
        began = time.perf_counter()
        engine.reply([given])
        return time.perf_counter() - began

    seconds(2)
    times = [(seconds(steps + 2) - seconds(2)) / steps * 1e3 for _ in range(3)]
    return statistics.median(times)


def read_ms(decoder: Decoder, tokens: int, prompt: int, adapters: int) -> float:
    """Milliseconds to read this many tokens in prompts of their own, packed, shared out over the adapters."""
    each, n = -(-prompt // PAGE), tokens // prompt
    cache = Cache(decoder, 1 + n * each)
    ids = [
        generator("bench-read", i).integers(0, min(decoder.vocabulary, 1 << 16), prompt).tolist()
        for i in range(n)
    ]
    stretches = [
        Stretch(1 + i * adapters // n, ids[i], 0, range(1 + i * each, 1 + (i + 1) * each)) for i in range(n)
    ]
    serving = Serving(decoder)
    decoder.refresh()
    return milliseconds(lambda: serving.read(stretches, cache), decoder.device, repeats=10)


def decode_bytes(decoder: Decoder, rows: int, adapters: int, context: int) -> int:
    """The fewest bytes that one such step moves: weights, adapters and the cache, each read once."""
    each = decoder.embedding.element_size()
    weights = sum(f.out * f.width for layer in decoder.layers for f in layer.fused) + decoder.head.numel()
    lora = sum(
        linear.lora_a[0].numel() + linear.lora_b[0].numel() for linear in decoder.stack.linears.values()
    )
    return each * (weights + adapters * lora) + rows * context * decoder.kv_bytes_a_token


def training_rows(
    rows: int, tokens: int, prompt: int, sampled: float, vocabulary: int, group: int = 4
) -> list[Row]:
    """Rows of `tokens` ids, of which a share was sampled; `group` of them share a prompt."""
    out = []
    for i in range(rows):
        ids = generator("bench-prompt", i // group).integers(0, min(vocabulary, 1 << 16), prompt).tolist()
        ids += generator("bench-rest", i).integers(0, min(vocabulary, 1 << 16), tokens - prompt).tolist()
        n = min(int(sampled * tokens), tokens - prompt)
        out.append(Row("A", ids, [(tokens - n, tuple([-1.0] * n), 0.5 if i % 2 else -0.5)]))
    return out


def train_ms(scorer: Any, rows: list[Row], repeats: int = 5) -> float:
    """Milliseconds for the forward and backward of these rows, one micro-batch."""
    device = scorer.decoder.device if isinstance(scorer, PackedScorer) else scorer.stack.device
    return milliseconds(lambda: scorer.gradients(1, rows, 1e4), device, repeats, warm_up=2)


def train_flops(parameters: int, tokens: int) -> float:
    """4 x parameters x tokens: forward and backward through frozen weights, LoRA itself left out."""
    return 4.0 * parameters * tokens


def about(name: str, shape: str) -> dict[str, Any]:
    """What a bench script's line begins with."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "bench": name, "shape": shape, "date": time.strftime("%Y-%m-%d"), "device": device,
        "torch": torch.__version__,
    }  # fmt: skip


# --- a whole step --------------------------------------------------------------------------------------------


class Alternating(GRPO):
    """Pays every other chat, so that a random model has something to learn from."""

    def credit(self, group: Group) -> None:
        for chat in group.chats:
            chat.reward = float(chat.number % 2)
        super().credit(group)


class Timed:
    """An engine that adds up the time of its calls."""

    def __init__(self, engine: Engine):
        self.engine, self.seconds = engine, 0.0

    def reply(self, batches: Any) -> Any:
        began = time.perf_counter()
        found = self.engine.reply(batches)
        self.seconds += time.perf_counter() - began
        return found


class TimedLearner(Learner):
    """A learner that adds up the time of its updates and remembers the last one's chats. Its adapters are in use from
    the start."""

    seconds = 0.0
    chats: Sequence[Chat] = ()

    def initialise(self, seed: int) -> None:
        pass

    def update(self, chats: Sequence[Chat], lr: float) -> dict[str, float]:
        began = time.perf_counter()
        found = super().update(chats, lr)
        self.seconds += time.perf_counter() - began
        self.chats = chats
        return found

    @property
    def trained_tokens(self) -> int:
        """Of the last update, as its scorer computes them: shared ones once, or padding included."""
        rows = [row.credited for chat in self.chats for row in rows_of(chat) if row.credited.spans]
        batches = list(self.scorer.batches(rows, self.config.batch_tokens))
        if isinstance(self.scorer, PackedScorer):
            return sum(len(pack(batch, torch.device("cpu")).ids) for batch in batches)
        return sum(len(batch) * max(len(row.ids) for row in batch) for batch in batches)


def deals(n: int, words: int, vocabulary: int) -> list[Deal]:
    """Tasks of two facts, each of so many words (one token each with `word_tokenizer`) and a few more."""
    first, many = min(1000, vocabulary // 4), min(20000, vocabulary // 2)
    made = []
    for i in range(n):
        facts = tuple(
            " ".join(
                ["Ann", *(f"w{first + (97 * i + 13 * j + k) % many}" for k in range(words)), f"{i + j}."]
            )
            for j in range(2)
        )
        task = Task(f"t{i}", "How many apples are there?", str(3 * i + 7), facts)
        made.append(Deal(task, facts, task.question, {"A": facts[:1], "B": facts[1:]}))
    return made


def whole_step(
    shape: str,
    runs: int,
    view: str,
    steps: int,
    lengths: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    engine: str = "auto",
    problems: int = 8,
) -> dict[str, Any]:
    """Plays and trains `steps` steps (3 or more) of stacked runs, each `problems` x 4 chats, order ABAB.

    Every message is as long as its budget, lengths[0] or in a last turn lengths[1]. The first step pays for compiling
    and recording graphs and the last one writes checkpoints; `seconds` is the median of those between.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    form = ChatFormat(word_tokenizer(SHAPES[shape][2]["vocab_size"]), "full")
    config = Config(
        steps=steps, train_tasks=64, dev_tasks=0, view=view, problems=problems, normaliser="sampled",  # type: ignore[arg-type]
        message_tokens=lengths[0], answer_tokens=lengths[1],
    )  # fmt: skip
    stack = random_stack(shape, runs, device, dtype)
    pair = choose(engine, stack, form.end_ids)
    timed = Timed(pair.engine)
    learners = {
        k: TimedLearner(stack, {"A": k, "B": k}, config, pair.scorer(config.temperature))
        for k in range(1, runs + 1)
    }
    seen: list[dict[str, Any]] = []
    loaded = time.perf_counter() - began
    marks = [(time.perf_counter(), 0.0, 0.0)]  # now, in the engine, in training; after each step of all runs

    def told(step: int, metrics: dict[str, Any]) -> None:
        seen.append(metrics)
        if len(seen) % runs == 0:
            marks.append((time.perf_counter(), timed.seconds, sum(x.seconds for x in learners.values())))

    def failed(_: str, error: Exception) -> None:
        raise error

    with tempfile.TemporaryDirectory() as folder:
        lives = {
            f"r{k}": train(Run(
                f"r{k}", config.replaced({"seed": k}), deals(64, PROMPT - 60, SHAPES[shape][2]["vocab_size"]), [],
                form, learner, Alternating(config), RunDirectory(Path(folder) / f"r{k}"), progress=told,
            )) for k, learner in learners.items()
        }  # fmt: skip
        drive(lives, Table(timed), failed)
    each = [[b - a for a, b in zip(before, after)] for before, after in itertools.pairwise(marks)]
    seconds, engine_seconds, training_seconds = map(statistics.median, zip(*each[1:-1]))
    return {
        "view": view, "runs": runs, "lengths": lengths, "seconds": seconds, "engine_seconds": engine_seconds,
        "training_seconds": training_seconds, "first_step_seconds": each[0][0], "load_seconds": loaded,
        "checkpoint_seconds": max(0.0, each[-1][0] - seconds),
        "tokens_sampled": sum(m["tokens"] for m in seen[-runs:]),
        "tokens_trained": sum(learner.trained_tokens for learner in learners.values()),
        "prompt_tokens_read": pair.engine.read_tokens / steps if isinstance(pair.engine, FastEngine) else None,
        "ratio_mean": [m["ratio/mean"] for m in seen], "gap_mean": max(m["logprob_gap/mean"] for m in seen),
        "grad_norm": [m["grad_norm"] for m in seen[-runs:]], "peak_gib": peak_gib(device),
    }  # fmt: skip


def peak_gib(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
