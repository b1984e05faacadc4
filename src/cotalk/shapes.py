"""Shapes of decoders: sizes counted by arithmetic (`Shape`), and models of a known shape with random weights for
measuring on a machine, without a download.

A random model all but never ends its message, so every turn is as long as its budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from cotalk.errors import BadInput

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2.5-1.5b": (Qwen2ForCausalLM, Qwen2Config, dict(
        vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
        num_key_value_heads=2, max_position_embeddings=32768, rope_theta=1e6, tie_word_embeddings=True,
    )),
    "qwen2.5-0.5b": (Qwen2ForCausalLM, Qwen2Config, dict(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, max_position_embeddings=32768, rope_theta=1e6, tie_word_embeddings=True,
    )),
    "smollm2-135m": (LlamaForCausalLM, LlamaConfig, dict(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rope_theta=1e5, tie_word_embeddings=True,
    )),
    "tiny": (LlamaForCausalLM, LlamaConfig, dict(
        vocab_size=800, hidden_size=128, intermediate_size=320, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=4096, tie_word_embeddings=True,
    )),
}  # fmt: skip
HUB = {  # names of bases whose config may be out of reach when a study is planned
    "Qwen/Qwen2.5-1.5B-Instruct": "qwen2.5-1.5b",
    "Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5-0.5b",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m",
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, as its config names them. Counts are of numbers, not bytes."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    tied: bool
    family: str

    @staticmethod
    def of(config: Mapping[str, Any]) -> Shape | None:
        """From a transformers config as a dictionary; None when it is no plain decoder's."""
        if not config.get("num_hidden_layers") or not config.get("intermediate_size"):
            return None
        heads = config["num_attention_heads"]
        return Shape(
            config["num_hidden_layers"], config["hidden_size"], heads,
            config.get("num_key_value_heads") or heads,
            config.get("head_dim") or config["hidden_size"] // heads, config["intermediate_size"],
            config["vocab_size"], bool(config.get("tie_word_embeddings")), str(config.get("model_type")),
        )  # fmt: skip

    @staticmethod
    def named(shape: str) -> Shape:
        """Of a name in SHAPES."""
        _, config, sizes = known(shape)
        found = Shape.of(config(**sizes).to_dict())
        assert found is not None
        return found

    @property
    def fused(self) -> list[tuple[int, list[int]]]:
        """(in, outs) of one layer's linear maps, those of one input together (decoder/weights.py)."""
        h, q, kv = self.hidden, self.heads * self.head, self.kv_heads * self.head
        return [(h, [q, kv, kv]), (q, [h]), (h, [self.mlp, self.mlp]), (self.mlp, [h])]

    @property
    def body(self) -> int:
        """Of all layers' linear maps."""
        return self.layers * sum(width * sum(outs) for width, outs in self.fused)

    @property
    def parameters(self) -> int:
        return self.body + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        """Of one adapter on all linear maps."""
        return self.layers * sum(rank * (width + out) for width, outs in self.fused for out in outs)

    @property
    def kv(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head

    def decoded(self, rows: float, adapters: float, rank: int, context: float) -> float:
        """What one token of every row must read: weights and adapters once, each row's keys and values."""
        return (
            self.body
            + self.vocabulary * self.hidden
            + adapters * self.adapter(rank)
            + rows * context * self.kv
        )

    def copies(self, adapters: int, rank: int) -> int:
        """The adapters' places in `weights.Fused` buffers, beside the base's own weights."""
        r = padded(rank)
        found = 0
        for width, outs in self.fused:
            out, extra = sum(outs), len(outs) * r
            found += (out + (adapters + 1) * extra) * (width + extra) - out * width + (adapters + 1) * out * r
        return self.layers * found

    def kept(self, rank: int) -> int:
        """What a layer's way back needs of one token in packed training (`decoder.training._Kept`; its two
        float32 scales left out)."""
        r, q, kv = padded(rank), self.heads * self.head, self.kv_heads * self.head
        inputs = (self.hidden + 3 * r) + (self.hidden + 2 * r)  # normed, each with its product with A
        raw = q + kv if self.family == "qwen3" else 0
        return 2 * self.hidden + inputs + raw + (q + 2 * kv) + q + 2 * self.mlp + 2 * r


def padded(rank: int) -> int:
    """A rank as the kernels' tiles hold it."""
    return max(16, 1 << (rank - 1).bit_length())


def known(shape: str) -> tuple[Any, Any, dict[str, Any]]:
    """A line of SHAPES. Raises BadInput for a name that is not there."""
    if shape not in SHAPES:
        raise BadInput(f"shape {shape!r} is not known: expected one of {', '.join(SHAPES)}", "config/choice")
    return SHAPES[shape]


def random_model(shape: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model of a shape in SHAPES, weights drawn with seed 0."""
    kind, config, sizes = known(shape)
    torch.manual_seed(0)
    with torch.device(device):
        return kind(config(**sizes, attn_implementation="sdpa")).to(dtype).eval()


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token a word, for every id of a vocabulary: what a random model says is as long when it is heard."""
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>", "?"]
    words = {w: i for i, w in enumerate(special)} | {f"w{i}": i for i in range(len(special), vocabulary)}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(special[:3])
    return _wrapped(made)


def _wrapped(made: Tokenizer) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<|pad|>", eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    return fast
