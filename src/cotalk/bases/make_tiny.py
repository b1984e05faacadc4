"""Makes the tiny base from nothing: tokenizer, text, training, measurements, model card. `cotalk base tiny [--out DIR]`.

Everything that decides the result stands in tiny.toml. The steps:

1. tokenizer: byte-level BPE over the list of words and of the numbers 0..149, so that each of them is one token (with
   and without the space before it) and any other text still encodes;
2. text: rows from tiny_text.py, each seen once;
3. training: next-token loss on what the learned seat says, a warm-up, then the rate falls linearly to 0;
4. measurements: the base plays puzzles of a seed of its own, sampled at temperature 1, alone and in chats;
5. a directory that transformers' Auto classes open, with a model card that holds those measurements.

The same seeds and machine give the same bytes; another machine meets the same marks, not the same bytes.
Left out: half precision, several devices, resuming (it takes minutes).
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from cotalk.bases import tiny_text
from cotalk.bases.tiny_text import NUMBERS, Settings, shard, words
from cotalk.errors import BadInput
from cotalk.puzzles import TEXT_SEED, generate, reserved
from cotalk.task import Task
from cotalk.view import ChatFormat

SETTINGS = Path(__file__).parent / "tiny.toml"
SPECIALS = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PIECES = r" ?\\boxed\{| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s+"
MEASURE_SEED = TEXT_SEED + 9_000_000  # puzzles that the card's numbers are measured on
SHARD = 2000

Say = Callable[[str], None]


# --- tokenizer ---


def make_tokenizer() -> Any:
    """The tokenizer, as transformers' PreTrainedTokenizerFast."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        min_frequency=1,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_word_list(tokenizer.pre_tokenizer), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def _word_list(pre_tokenizer: Any) -> list[str]:
    """Each different piece of the texts once, and each number with and without a space."""
    cut = {text[a:b] for text in words() for _, (a, b) in pre_tokenizer.pre_tokenize_str(text)}
    return sorted(cut | {f"{space}{n}" for n in NUMBERS for space in ("", " ")})


# --- text ---


def make_text(settings: Settings, form: ChatFormat, rows: int, workers: int, say: Say) -> tuple[list, int]:
    """All rows as (ids, learned) arrays, in order, and the number of dropped puzzles. Workers change nothing but time."""
    kept_back, jobs = reserved(), range(math.ceil(rows / SHARD))
    out, dropped = [], 0
    for number, (part, lost) in enumerate(_shards(settings, form, kept_back, jobs, workers), start=1):
        out += part
        dropped += lost
        if number % 20 == 0:
            say(f"text: {len(out):,} rows")
    return out[:rows], dropped


def _shards(settings: Settings, form: ChatFormat, kept_back: frozenset[str], jobs: range, workers: int) -> Iterator:
    state = (settings, form, kept_back)
    if workers < 2:
        yield from (_arrays(*state, job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=_remember, initargs=state) as pool:
        yield from pool.imap(_remembered_arrays, jobs)


_state: tuple = ()


def _remember(*state: Any) -> None:
    global _state
    torch.set_num_threads(1)
    _state = state


def _remembered_arrays(job: int) -> tuple[list, int]:
    return _arrays(*_state, job)


def _arrays(settings: Settings, form: ChatFormat, kept_back: frozenset[str], job: int) -> tuple[list, int]:
    rows, dropped = shard(settings, form, kept_back, TEXT_SEED, job, SHARD)
    return [(np.array(r.ids, np.int16), np.array(r.learned, bool)) for r in rows], dropped


# --- model and training ---


def make_model(table: dict[str, Any], tokenizer: Any, seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8 * math.ceil(len(tokenizer) / 8),
        hidden_size=table["width"],
        num_hidden_layers=table["layers"],
        num_attention_heads=table["heads"],
        num_key_value_heads=table["heads"],
        intermediate_size=table["mlp"],
        max_position_embeddings=table["positions"],
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config.do_sample, model.generation_config.max_new_tokens = True, 64
    return model


def batches(text: Sequence, size: int, seed: int) -> Iterator[list]:
    """Each row once: rows of like length together (a batch is padded to its longest), batches in a drawn order."""
    random = np.random.default_rng((seed, len(text)))
    order = random.permutation(len(text))
    blocks = []
    for start in range(0, len(order), 32 * size):
        block = sorted(order[start : start + 32 * size], key=lambda i: len(text[i][0]))
        parts = [block[i : i + size] for i in range(0, len(block), size)]
        blocks += [parts[i] for i in random.permutation(len(parts))]
    return ([text[i] for i in block] for block in blocks)


def optimisers(model: Any, table: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) on the layers' matrices and AdamW on embedding and norms, or AdamW on all."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    decay = table["weight_decay"]
    if table["optimiser"] == "adamw":
        return [torch.optim.AdamW(matrices + rest, lr=table["lr"], betas=(0.9, 0.98), weight_decay=decay)]
    if table["optimiser"] != "muon":
        raise BadInput(f'[training] optimiser = {table["optimiser"]!r}: expected "muon" or "adamw"')
    return [
        torch.optim.Muon(matrices, lr=table["muon_lr"], weight_decay=decay),
        torch.optim.AdamW(rest, lr=table["lr"], betas=(0.9, 0.98), weight_decay=0.0),
    ]


def pretrain(model: Any, text: Sequence, table: dict[str, Any], seed: int, say: Say, steps: int | None = None) -> float:
    """Trains the model on the text, once through (or so many steps of it). Returns seconds a step."""
    device = next(model.parameters()).device
    total = math.ceil(len(text) / table["batch"])
    chosen = optimisers(model, table)
    peaks = [group["lr"] for o in chosen for group in o.param_groups]
    model.train()
    began, shown = time.monotonic(), []
    for step, rows in enumerate(batches(text, table["batch"], seed), start=1):
        rate = min(step / table["warmup"], (total - step + 1) / (total - table["warmup"]))
        for group, peak in zip((g for o in chosen for g in o.param_groups), peaks, strict=True):
            group["lr"] = peak * rate
        loss = loss_of(model, rows, table["prompt_loss"], device)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in chosen:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        shown.append(loss.detach())
        if step % 100 == 0 or step == total:
            mean = torch.stack(shown).mean().item()
            say(f"step {step:,}/{total:,} loss {mean:.4f} {time.monotonic() - began:.0f} s")
            shown = []
        if step == steps:
            break
    model.eval()
    return (time.monotonic() - began) / step


def loss_of(model: Any, rows: Sequence, prompt_weight: float, device: Any) -> torch.Tensor:
    """Mean next-token loss of what is learned, plus `prompt_weight` times that of what is given."""
    length = max(len(ids) for ids, _ in rows)
    ids, weight = np.zeros((len(rows), length), np.int64), np.zeros((len(rows), length), np.float32)
    for i, (row, learned) in enumerate(rows):
        ids[i, : len(row)] = row
        weight[i, : len(row)] = np.where(learned, 1.0, prompt_weight)
    tokens, weights = torch.from_numpy(ids).to(device), torch.from_numpy(weight).to(device)
    states = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state  # (rows, length - 1, width)
    wanted = weights[:, 1:] > 0
    logits = model.lm_head(states[wanted])  # only where there is a loss
    losses = F.cross_entropy(logits.float(), tokens[:, 1:][wanted], reduction="none")
    chosen = weights[:, 1:][wanted]
    return (losses * chosen).sum() / (chosen == 1).sum()
