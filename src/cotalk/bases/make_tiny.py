"""Makes the tiny base from nothing: tokenizer, text, training, measurements, model card (`cotalk base tiny`).

Everything that decides the result stands in tiny.toml. The steps:

1. tokenizer: byte-level BPE over the list of words and of the numbers 0..149, so that each of them is one
   token (with and without the space before it) and any other text still encodes;
2. text: rows from tiny_text.py, each seen once;
3. training: next-token loss on what the learned seat says, a warm-up, then the rate falls linearly to 0;
   every batch is a fair mixture of all kinds of rows, packed (rows of like length together were far worse);
4. measurements: the base plays puzzles of a seed of its own, sampled at temperature 1, alone and in chats;
5. a directory that transformers' Auto classes open, with a model card that holds those measurements.

The same seeds and machine give the same bytes; another machine meets the same marks, not the same bytes.
Left out: half precision, several devices, resuming (it takes minutes).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import cotalk
from cotalk import processes
from cotalk.base import pick_device
from cotalk.bases.settings import read_settings
from cotalk.bases.tiny_card import ANSWER_TOKENS, MESSAGE_TOKENS, card, measure
from cotalk.bases.tiny_text import NUMBERS, Settings, shard, words
from cotalk.errors import BadInput
from cotalk.puzzles import TEXT_SEED, reserved
from cotalk.stats import Rate
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


def make(out: Path, settings: Path | None, device: str, console: Any) -> None:
    """`cotalk base tiny`: makes the base and writes it to `out`, telling the console how it goes."""
    table = read_settings(settings or SETTINGS, SETTINGS)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(
            f"--out {out} is not empty: expected a new or empty directory; remove it, or give another --out",
            "make/not-empty",
        )
    build(table, out, pick_device(device), lambda line: console.print(line, highlight=False, markup=False))


def build(
    table: dict[str, Any], out: Path, device: str, say: Say, workers: int | None = None, tasks: int = 400
) -> dict[str, Rate]:
    """All five steps. Returns the measurements."""
    began = time.monotonic()
    settings, seed = Settings.read(table["text"]), table["seed"]
    tokenizer = make_tokenizer()
    form = ChatFormat(tokenizer, "short")
    say(f"tokenizer: {len(tokenizer)} entries")
    text, dropped = make_text(settings, form, table["training"]["rows"], workers or os.cpu_count() or 1, say)
    say(f"text: {len(text):,} rows, {dropped} puzzles dropped (they are of train, dev or held-out)")
    model = make_model(table["model"], tokenizer, seed).to(device)
    a_step = pretrain(model, text, table["training"], seed, say)
    seconds = time.monotonic() - began
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    say("measuring")
    measured = measure(model, form, MEASURE_SEED, tasks)
    about = {
        "wording": "short",
        "view": "dialogue",
        "budgets": {"message_tokens": MESSAGE_TOKENS, "answer_tokens": ANSWER_TOKENS},
        "made_by": f"cotalk {cotalk.__version__}, `cotalk base tiny`",
        "sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        "seed": seed,
        "text_seed": TEXT_SEED,
        "measure_seed": MEASURE_SEED,
        "rows": len(text),
        "tokens": int(sum(len(ids) for ids, _ in text)),
        "dropped_puzzles": dropped,
        "parameters": sum(p.numel() for p in model.parameters()),
        "made_on": torch.cuda.get_device_name()
        if device.startswith("cuda")
        else f"{os.cpu_count()} CPU cores",
        "seconds": round(seconds),
        "seconds_a_step": round(a_step, 4),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "measured": {
            name: [round(x, 4) for x in (r.mean, r.low, r.high)] + [r.n] for name, r in measured.items()
        },
    }
    (out / "cotalk_base.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    (out / "README.md").write_text(card(about, table, measured), encoding="utf-8")
    say(f"wrote {out} after {time.monotonic() - began:.0f} s")
    return measured


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
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def _word_list(pre_tokenizer: Any) -> list[str]:
    """Each different piece of the texts once, and each number with and without a space."""
    cut = {text[a:b] for text in words() for _, (a, b) in pre_tokenizer.pre_tokenize_str(text)}
    return sorted(cut | {f"{space}{n}" for n in NUMBERS for space in ("", " ")})


# --- text ---


def make_text(settings: Settings, form: ChatFormat, rows: int, workers: int, say: Say) -> tuple[list, int]:
    """All rows as (ids, learned) arrays in order, and how many puzzles were dropped."""
    out, dropped = [], 0
    for number, (part, lost) in enumerate(_shards(settings, form, math.ceil(rows / SHARD), workers), start=1):
        out += part
        dropped += lost
        if number % 20 == 0:
            say(f"text: {len(out):,} rows")
    return out[:rows], dropped


def _shards(settings: Settings, form: ChatFormat, shards: int, workers: int) -> Iterator:
    state = (settings, form, reserved())
    if workers < 2:
        yield from (_arrays(*state, number) for number in range(shards))
        return
    yield from processes.in_order(_remembered_arrays, range(shards), workers, __name__, _remember, state)


_state: dict[str, tuple] = {}  # of a worker process


def _remember(*state: Any) -> None:
    torch.set_num_threads(1)
    _state["arguments"] = state


def _remembered_arrays(number: int) -> tuple[list, int]:
    settings, form, kept_back = _state["arguments"]
    return _arrays(settings, form, kept_back, number)


def _arrays(settings: Settings, form: ChatFormat, kept_back: frozenset[str], number: int) -> tuple[list, int]:
    rows, dropped = shard(settings, form, kept_back, TEXT_SEED, number, SHARD)
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
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    start_embedding(model, tokenizer, table["embedding_std"], table["number_noise"], seed)
    decoding = model.generation_config  # plain sampling: nothing that training does not have
    decoding.do_sample, decoding.temperature, decoding.top_k, decoding.top_p = True, 1.0, 0, 1.0
    decoding.max_new_tokens = 64
    return model


@torch.no_grad()
def start_embedding(model: Any, tokenizer: Any, std: float, noise: float, seed: int) -> None:
    """Embeddings start wide, so that logits can be sharp; a number's starts as its digits' sum.

    With "37" = three tens + seven units + a little of its own, sums of pairs never seen together come out
    right early: there are 100 pairs of digits to learn, not 10,000 pairs of numbers.
    """
    embedding = model.get_input_embeddings().weight
    random = torch.Generator().manual_seed(seed)
    embedding.copy_(torch.randn(embedding.shape, generator=random) * std)
    units, tens, spaced = (torch.randn(n, embedding.shape[1], generator=random) * std for n in (10, 15, 1))
    for n in NUMBERS:
        for text in (f"{n}", f" {n}"):
            (token,) = tokenizer.encode(text, add_special_tokens=False)
            start = units[n % 10] + tens[n // 10] + (0.5 * spaced[0] if text[0] == " " else 0)
            embedding[token] = start + noise * embedding[token]


class Muon(torch.optim.Optimizer):
    """Momentum, then the nearest half-orthogonal matrix (Jordan et al. 2024); one shape, one product.

    torch.optim.Muon with the same rule takes them one by one, which on a CPU costs as much as the backward
    pass.
    """

    def __init__(
        self, matrices: Sequence[torch.nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95
    ):
        shapes: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
        for matrix in matrices:
            shapes.setdefault(tuple(matrix.shape), []).append(matrix)
        groups = [{"params": alike} for alike in shapes.values()]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            gradients = torch.stack([p.grad for p in group["params"]])  # (matrices, out, in)
            mean = self.state[group["params"][0]].setdefault("mean", torch.zeros_like(gradients))
            mean.lerp_(gradients, 1 - group["momentum"])
            update = orthogonal(gradients.lerp(mean, group["momentum"]))  # Nesterov
            rows, columns = update.shape[1:]
            rate = group["lr"] * max(1, rows / columns) ** 0.5
            for parameter, direction in zip(group["params"], update, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=rate)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz iterations (Muon's) towards U V^T of each of (matrices, out, in); bfloat16 inside."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def optimisers(model: Any, table: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """Muon on the layers' matrices; AdamW on embedding and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        Muon(matrices, table["muon_lr"], table["weight_decay"]),
        torch.optim.AdamW(rest, lr=table["lr"], betas=(0.9, 0.98), weight_decay=0.0),
    ]


def pretrain(
    model: Any, text: Sequence, table: dict[str, Any], seed: int, say: Say, steps: int | None = None
) -> float:
    """Trains the model on the text, once through (or so many steps of it). Returns seconds a step."""
    device = next(model.parameters()).device
    total = math.ceil(len(text) / table["batch"])
    chosen = optimisers(model, table)
    peaks = [group["lr"] for o in chosen for group in o.param_groups]
    model.train()
    began, shown = time.monotonic(), []
    for step in range(1, (steps or total) + 1):
        rows = text[(step - 1) * table["batch"] : step * table["batch"]]
        rate = min(step / table["warmup"], (total - step + 1) / (total - table["warmup"]))
        for group, peak in zip((g for o in chosen for g in o.param_groups), peaks, strict=True):
            group["lr"] = peak * rate
        loss = loss_of(model, rows, table["window"], device)
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
    model.eval()
    return (time.monotonic() - began) / step


def loss_of(model: Any, rows: Sequence, window: int, device: Any) -> torch.Tensor:
    """Mean next-token loss of what is learned; rows are packed into windows and do not see each other."""
    packed = pack(rows, window)
    ids, learned, row, position = (
        torch.from_numpy(array).to(device) for array in packed
    )  # (windows, tokens) each
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=device).tril()
    mask = (row[:, :, None] == row[:, None, :]) & causal
    states = model.model(input_ids=ids, attention_mask=mask[:, None], position_ids=position, use_cache=False)
    targets = learned[:, 1:]
    logits = model.lm_head(states.last_hidden_state[:, :-1][targets])  # only where there is a loss
    return F.cross_entropy(logits.float(), ids[:, 1:][targets])


def pack(rows: Sequence, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows into windows, longest first, each into the first that has room (a longer row widens them all).

    Returns ids, learned, number of the row (0: padding), position in the row; (windows, tokens) each.
    """
    window = max(window, *(len(ids) for ids, _ in rows))
    used: list[int] = []
    places = []
    for number in sorted(range(len(rows)), key=lambda i: -len(rows[i][0])):
        size = len(rows[number][0])
        at = next((w for w, n in enumerate(used) if n + size <= window), len(used))
        if at == len(used):
            used.append(0)
        places.append((number, at, used[at], used[at] + size))
        used[at] += size
    ids, row, position = (np.zeros((len(used), window), np.int64) for _ in range(3))
    learned = np.zeros((len(used), window), bool)
    for number, at, start, stop in places:
        ids[at, start:stop], learned[at, start:stop] = rows[number]
        row[at, start:stop], position[at, start:stop] = number + 1, np.arange(stop - start)
    return ids, learned, row, position
