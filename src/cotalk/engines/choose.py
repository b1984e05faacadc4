"""Which engine answers, and what trains beside it: `fast` and the packed trainer for the Llama family on a GPU, `hf`
and padded rows through transformers' modules for everything else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cotalk.decoder.training import PackedScorer
from cotalk.decoder.weights import Decoder, Unsupported
from cotalk.engines import Engine
from cotalk.engines.fast import FastEngine
from cotalk.engines.hf import HfEngine
from cotalk.errors import BadInput
from cotalk.learner import Scorer
from cotalk.lora import Stack
from cotalk.padded import PaddedScorer

HOST_THREADS = 4  # of torch on the host, beside a GPU


@dataclass(frozen=True)
class Pair:
    """engine: answers views; scorer: makes what scores and differentiates rows sampled at a temperature."""

    engine: Engine
    scorer: Callable[[float], Scorer]


def choose(name: str, stack: Stack, end_ids: Sequence[int]) -> Pair:
    """The engine and trainer that `engine = name` means on this stack's device.

    auto: `fast` on a GPU where the model allows it (one line says why where not), else `hf`. Raises BadInput when
    `fast` was asked for by name and the model is of another kind.
    """
    if stack.device.type == "cuda":  # what is left for the host is small: many threads wait for each other
        torch.set_num_threads(min(HOST_THREADS, torch.get_num_threads()))
    if name == "fast" or (name == "auto" and stack.device.type == "cuda"):
        try:
            engine = FastEngine(stack, end_ids)
        except Unsupported as reason:
            if name == "fast":
                raise BadInput(
                    f'engine = "fast" cannot run this base: {reason}. Use --engine hf', "base/not-fast"
                ) from reason
            warnings.warn(f"engine hf, not fast, for this base: {reason}", stacklevel=2)
        else:
            return Pair(engine, lambda temperature: PackedScorer(Decoder.of(stack), temperature))
    return Pair(HfEngine(stack, end_ids), lambda temperature: PaddedScorer(stack, temperature))
