"""What engines and trainers take: seconds and bytes of given work, from measured speeds and a base's shape.

    Fast    engine `fast` with packed training on a GPU
    Hf      engine `hf` with padded training on a GPU
    Cpu     the same on one CPU core

The figures under the constants were measured (LAB.md, docs/performance.md). Left out: what the work is (workload.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cotalk.engines.fast import KV_SHARE
from cotalk.shapes import Shape
from cotalk.workload import Play, Turn

ENGINE_ROWS = 512  # that an engine decodes at once, at most

# Engine `fast` and packed training on one H200, Qwen2.5-1.5B shape, bfloat16. Decoding is a line through 32, 192, 384
# and 512 rows of 1, 6, 12 and 12 adapters at context 600 (2.32, 3.88, 5.81, 7.12 ms; within 3%).
DECODE_SECONDS_A_LAYER = 13e-6
DECODE_BYTES_A_SECOND = 1.9e12
READ_FLOPS = 510e12  # 2 x parameters of the layers x prompt tokens
TRAIN_FLOPS = 430e12  # 4 x parameters x tokens, shared prompts counted once
LOGIT_PLACES = 4096  # whose logits exist at a time

# Engine `hf` and padded training: on the same GPU, and on one CPU core.
HF_SECONDS_A_LAYER = 3.3e-3  # decoding one token of every row: bound by launches, whatever the rows
HF_FLOPS = 150e12  # padded rows, 4 x parameters x tokens in training, 2 x in reading
HF_ACTIVATIONS = 81  # numbers of 2 bytes for each token, layer and two hidden units, kept for the way back
CPU_FLOPS = 60e9  # small products


class Fast:
    """Seconds and memory of engine `fast` with packed training on a GPU. each: bytes of a number."""

    name, packed = "fast", True

    def __init__(self, shape: Shape, each: int):
        self.shape, self.each = shape, each

    def play_seconds(self, plays: Sequence[Play], rank: int, share: float) -> float:
        """Of plays whose turns go through the engine together."""
        read = sum(play.read(share, reuse=True) for play in plays)
        return 2 * self.shape.body * read / READ_FLOPS + self._decode_seconds(plays, rank, share)

    def _decode_seconds(self, plays: Sequence[Play], rank: int, share: float) -> float:
        """Some row is as long as its budget; a step is a line in its rows, so the mean of those left is enough."""
        seconds = 0.0
        for turns in _together(plays, share):
            rows = sum(play.chats for play, _ in turns)
            calls = max(1.0, rows / ENGINE_ROWS)
            adapters = sum(play.adapters for play, _ in turns) / calls
            context = sum(p.chats * (t.first + t.told + t.sampled / 2) for p, t in turns) / rows
            left = sum(play.chats * turn.sampled / turn.budget for play, turn in turns) / calls
            bytes_read = self.each * self.shape.decoded(left, adapters, rank, context)
            a_token = DECODE_SECONDS_A_LAYER * self.shape.layers + bytes_read / DECODE_BYTES_A_SECOND
            seconds += calls * max(turn.budget for _, turn in turns) * a_token
        return seconds

    def train_seconds(self, play: Play, share: float) -> float:
        return 4 * self.shape.parameters * play.trained(share, packed=True) / TRAIN_FLOPS

    def kv_bytes(self, needed: float, card: float) -> float:
        """The cache grows to four times what a call needs, and to a share of the card at most."""
        return min(KV_SHARE * card, 4 * needed)

    def copies(self, adapters: int, rank: int) -> int:
        return self.each * self.shape.copies(adapters, rank)

    def batch_bytes(self, tokens: float, rank: int) -> float:
        """One micro-batch: what every layer keeps, one more layer's worth on the way back, and a chunk of logits."""
        s = self.shape
        return self.each * (tokens * (s.layers + 1) * s.kept(rank) + min(tokens, LOGIT_PLACES) * s.vocabulary)


class Hf:
    """The same of engine `hf` with padded training on a GPU."""

    name, packed = "hf", False

    def __init__(self, shape: Shape, each: int):
        self.shape, self.each = shape, each

    def play_seconds(self, plays: Sequence[Play], rank: int, share: float) -> float:
        read = sum(play.read(share, reuse=False) for play in plays)
        seconds = 2 * self.shape.parameters * read / HF_FLOPS
        for turns in _together(plays, share):
            calls = max(1.0, sum(play.chats for play, _ in turns) / ENGINE_ROWS)
            steps = max(turn.budget for _, turn in turns)
            seconds += calls * steps * self.shape.layers * HF_SECONDS_A_LAYER
        return seconds

    def train_seconds(self, play: Play, share: float) -> float:
        return 4 * self.shape.parameters * play.trained(share, packed=False) / HF_FLOPS

    def kv_bytes(self, needed: float, card: float) -> float:
        return needed

    def copies(self, adapters: int, rank: int) -> int:
        return 0

    def batch_bytes(self, tokens: float, rank: int) -> float:
        """Autograd's activations, and float32 logits of sampled places."""
        s = self.shape
        return tokens * (s.layers * s.hidden * HF_ACTIVATIONS * self.each / 2 + s.vocabulary * 4)


class Cpu(Hf):
    """The same on one CPU core: bound by arithmetic, and an adapter is merged into copies of the weights."""

    def play_seconds(self, plays: Sequence[Play], rank: int, share: float) -> float:
        tokens = sum(play.read(share, reuse=False) + play.sampled(share) for play in plays)
        return 2 * self.shape.parameters * tokens / CPU_FLOPS

    def train_seconds(self, play: Play, share: float) -> float:
        return 6 * self.shape.parameters * play.trained(share, packed=False) / CPU_FLOPS

    def copies(self, adapters: int, rank: int) -> int:
        return self.each * adapters * self.shape.body


def _together(plays: Sequence[Play], share: float) -> list[list[tuple[Play, Turn]]]:
    """The turns that wait at the same time: all plays' first ones, then the second ones, and so on."""
    columns = itertools.zip_longest(*([(play, turn) for turn in play.turns(share)] for play in plays))
    return [[pair for pair in column if pair] for column in columns]
