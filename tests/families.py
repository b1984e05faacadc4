"""Two-layer random models of every kind that the hand-written decoder runs, with norms and biases that matter."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from cotalk.lora import Stack
from test_hf_engine import SHAPE, filled

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
WIDE = SHAPE | dict(head_dim=16)  # heads x head_dim is not the hidden size


def configs() -> dict[str, PreTrainedConfig]:
    return {
        "llama": LlamaConfig(**SHAPE, tie_word_embeddings=True),
        "llama, untied, one kv head": LlamaConfig(**SHAPE | dict(num_key_value_heads=1)),
        "llama3 rotation": LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
        "mistral, wide heads, no groups": MistralConfig(
            **WIDE | dict(num_key_value_heads=4), sliding_window=None
        ),
        "qwen2, biases": Qwen2Config(**SHAPE, tie_word_embeddings=True),
        "qwen3, head norms": Qwen3Config(**WIDE),
    }


FAMILIES = list(configs())


def model_of(family: str) -> Any:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(configs()[family], attn_implementation="sdpa").eval()
    for name, p in model.named_parameters():
        if "norm" in name or "bias" in name:
            p.data.normal_(1.0 if "norm" in name else 0.0, 0.4)
    return model


def stack_of(family: str, adapters: int = 2, rank: int = 4, targets: Any = "all-linear") -> Stack:
    return filled(Stack(model_of(family), adapters, rank, 2.0 * rank, targets))
