"""Models of a known shape with random weights: for measuring on a machine, without a download.

A random model all but never ends its message, so every turn is as long as its budget.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
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


def random_model(shape: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model of a shape in SHAPES, weights drawn with seed 0."""
    if shape not in SHAPES:
        raise BadInput(f"shape {shape!r} is not known: expected one of {', '.join(SHAPES)}")
    kind, config, sizes = SHAPES[shape]
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


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte."""
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    letters = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    return _wrapped(made)


def _wrapped(made: Tokenizer) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<|pad|>", eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    return fast
