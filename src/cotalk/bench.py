"""What this machine can do with a named shape: its ceilings first, then decoding, reading, training and a whole step.

Weights are random and nothing is downloaded. Times on a GPU are medians between device events after a warm-up; each
speed stands beside the share of a ceiling that was measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cotalk.chat import Player, View
from cotalk.decoder.training import PackedScorer
from cotalk.decoder.weights import Decoder
from cotalk.engines.fast import FastEngine
from cotalk.lora import Stack
from cotalk.rows import Row
from cotalk.sample import generator, key
from cotalk.shapes import random_model
from cotalk.view import Scene

NOWHERE = Scene("A", "AB", ("1",), "?", (), (), last=True)


def milliseconds(work: Callable[[], Any], device: torch.device, repeats: int = 20, warm_up: int = 3) -> float:
    """The median time of one call."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
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
    product = milliseconds(lambda: a @ b, device)
    return Ceilings(_copy_speed(1 << (30 if on_gpu else 24), device), 2 * n**3 / product * 1e3)


def _copy_speed(numbers: int, device: torch.device) -> float:
    """Bytes a second, read and written, of copying that many float32."""
    source = torch.randn(numbers, device=device)
    target = torch.empty_like(source)
    return 8 * numbers / milliseconds(lambda: target.copy_(source), device) * 1e3


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
