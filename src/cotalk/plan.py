"""What a study will take, before anything runs: runs, tokens, memory and expected cost.

Tokens are exact at the caps (every message as long as its budget), each arm with its own settings; dev tasks count as
evaluation. Memory is arithmetic over the base's shape, of all worker processes together. Time is expected from the
measured speeds below, so it is an estimate of the right size, not a promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cotalk.base import TINY, pick_device
from cotalk.config import Config
from cotalk.errors import BadInput
from cotalk.evaluate import Condition, Pass
from cotalk.study import Study, cores

# Speeds of the `hf` engine and of padded training, measured (LAB.md): a GPU of the H200 class, and one CPU core.
GPU_MS_A_LAYER = 3.3  # decoding one token of every row: bound by launches, whatever the rows
GPU_TRAIN_FLOPS = 150e12  # padded rows, forward and backward of LoRA, 4 x parameters x tokens
CPU_FLOPS = 60e9  # one core, small products
PROMPT_TOKENS = 300  # of a word problem with its instructions (messages of the chat come on top)
LOGIT_BYTES = 4  # per token and vocabulary entry
ACTIVATION_BYTES = 81  # per token, layer and hidden unit, kept for the backward pass (bfloat16)

KNOWN = {  # shapes of bases whose config may be out of reach when a study is planned
    "Qwen/Qwen2.5-1.5B-Instruct": dict(
        num_hidden_layers=28, hidden_size=1536, num_attention_heads=12, num_key_value_heads=2, head_dim=128,
        intermediate_size=8960, vocab_size=151936, tie_word_embeddings=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, as its config names them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    tied: bool

    @property
    def linears(self) -> list[tuple[int, int]]:
        """(in, out) of one layer's seven linear maps."""
        h, q, kv = self.hidden, self.heads * self.head, self.kv_heads * self.head
        return [(h, q), (h, kv), (h, kv), (q, h), (h, self.mlp), (h, self.mlp), (self.mlp, h)]

    @property
    def parameters(self) -> int:
        body = self.layers * sum(i * o for i, o in self.linears)
        return body + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        return self.layers * sum(rank * (i + o) for i, o in self.linears)


@dataclass(frozen=True)
class Plan:
    """All numbers of a plan; `lines` shows them."""

    study: str
    runs: int
    steps: tuple[int, ...]
    rows: int
    sampled_tokens: int
    evaluation_tokens: int
    memory: dict[str, float]
    minutes: float | None
    price: float | None
    device: str
    workers: int

    def lines(self) -> list[tuple[str, str]]:
        out = [
            ("runs", f"{self.runs} (arms x seeds), {' or '.join(map(str, self.steps))} steps each"),
            ("rows of a training step", f"{self.rows:,} chats in all runs"),
            (
                "tokens sampled at most",
                f"{self.sampled_tokens:,} in training, {self.evaluation_tokens:,} in evaluation",
            ),
        ]
        if self.memory:
            parts = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in self.memory.items())
            out.append(("memory at the caps", f"{sum(self.memory.values()) / 2**30:.1f} GiB: {parts}"))
        else:
            out.append(("memory", "unknown: the base's config is not here (its shape decides)"))
        where = f"{self.workers} workers on a CPU" if self.device == "cpu" else "one GPU of the H200 class"
        if self.minutes is not None:
            cost = f", {self.minutes / 60 * self.price:.2f} at {self.price:.2f} an hour" if self.price else ""
            out.append(
                ("expected", f"about {self.minutes:,.0f} minutes on {where}{cost} (messages half their caps)")
            )
        return out


def plan(study: Study, price: float | None = None, device: str | None = None, workers: int = 0) -> Plan:
    """Plans a study on a device ("cpu" or "cuda"); None: what the study would use here."""
    if price is not None and not 0 <= price < float("inf"):
        raise BadInput(f"--price {price}: expected the price of an hour, 0 or more")
    config, jobs = study.config, study.jobs()
    configs = [study.job_config(job) for job in jobs if job.arm]
    evaluation = sum(_dev_tokens(c) for c in configs)
    evaluation += sum(_pass_tokens(study.job_config(job), c, p) for job in jobs for c, p in study.work(job))
    shape = shape_of(config.base)
    device = device or ("cuda" if config.base in KNOWN else pick_device(config.device))
    workers = min(workers or cores(), len(jobs)) if device == "cpu" else 1
    return Plan(
        study=study.name,
        runs=len(configs),
        steps=tuple(sorted({c.steps for c in configs})),
        rows=sum(c.problems * c.chats for c in configs),
        sampled_tokens=sum(c.steps * c.problems * c.chats * _budgets(c) for c in configs),
        evaluation_tokens=evaluation,
        memory=_memory(study, shape, device, workers) if shape else {},
        minutes=_minutes(study, shape, evaluation, device, workers) if shape else None,
        price=price,
        device=device,
        workers=workers,
    )


def _budgets(config: Config) -> int:
    """Tokens of one chat at the caps."""
    return sum(config.rules.budget(turn) for turn in range(len(config.order)))


def _dev_tokens(config: Config) -> int:
    """Dev tasks are played once each at step 0, every `dev_every` and at the last step."""
    looks = 1 + -(-config.steps // config.dev_every)
    return looks * config.dev_tasks * _budgets(config)


def _pass_tokens(config: Config, condition: Condition, once: Pass) -> int:
    chats = config.heldout_tasks * once.chats
    if condition.hand == "dealt":
        return chats * _budgets(config)
    return chats * config.answer_tokens * (len(config.rules.seats) if condition.hand == "half" else 1)


def shape_of(base: str) -> Shape | None:
    """A base's shape from its config on disk, or from the table of known ones; None when neither has it."""
    from transformers import AutoConfig

    found: Any = None
    where = TINY if base == "tiny" else Path(base).expanduser()
    if (where / "config.json").is_file():
        found = AutoConfig.from_pretrained(where, trust_remote_code=False).get_text_config().to_dict()
    elif base in KNOWN:
        found = KNOWN[base]
    if not found or not found.get("num_hidden_layers") or not found.get("intermediate_size"):
        return None
    heads = found["num_attention_heads"]
    return Shape(
        found["num_hidden_layers"], found["hidden_size"], heads, found.get("num_key_value_heads") or heads,
        found.get("head_dim") or found["hidden_size"] // heads, found["intermediate_size"], found["vocab_size"],
        bool(found.get("tie_word_embeddings")),
    )  # fmt: skip


def _prompt(config: Config) -> int:
    return 64 if config.base == "tiny" else PROMPT_TOKENS


def _memory(study: Study, s: Shape, device: str, workers: int) -> dict[str, float]:
    """Bytes, of all workers together. On a GPU all runs lie in one stack; a worker holds one at a time."""
    config = study.config
    wide = 2 if device != "cpu" else 4
    each = len(config.rules.seats) if config.adapters == "per_seat" else 1
    runs = len(study.jobs()) - 1 if device != "cpu" else 1
    chats = max(runs * config.problems * config.chats, 2 * config.heldout_tasks * study.evaluate.chats)
    context = _prompt(config) + _budgets(config)
    tokens = min(config.batch_tokens, config.problems * config.chats * len(config.rules.seats) * context)
    merged = each * s.layers * sum(i * o for i, o in s.linears) * wide if device == "cpu" else 0
    sizes = {
        "base": s.parameters * wide + merged,
        "adapters and optimisers": runs * each * s.adapter(config.rank) * 4 * 4,
        "KV cache": min(512, chats) * context * s.layers * 2 * s.kv_heads * s.head * wide,
        "one micro-batch": tokens
        * (s.layers * s.hidden * ACTIVATION_BYTES * wide / 2 + s.vocabulary * LOGIT_BYTES),
    }
    return {name: size * workers for name, size in sizes.items()}


def _minutes(study: Study, s: Shape, evaluation: int, device: str, workers: int) -> float:
    config, runs = study.config, len(study.jobs()) - 1
    prompt, budgets, chats = _prompt(config), _budgets(config), config.problems * config.chats
    read = (
        chats * len(config.order) * (prompt + budgets / 4)
    )  # prompt tokens of a step, messages half their caps
    trained = (
        read if config.view == "transcript" else chats * len(config.rules.seats) * (prompt + budgets / 2)
    )
    passes = sum(len(study.work(job)) for job in study.jobs())
    if device == "cpu":
        step = 2 * s.parameters * (read + chats * budgets / 2) + 6 * s.parameters * trained
        ratio = evaluation / max(1, chats * budgets)
        whole = runs * config.steps * step + ratio * 2 * s.parameters * (read + chats * budgets / 2)
        return whole / CPU_FLOPS / workers / 60
    decode = budgets / 1.3 * s.layers * GPU_MS_A_LAYER / 1e3  # the longest row of a batch is near its cap
    training = 4 * s.parameters * trained * 1.2 / GPU_TRAIN_FLOPS
    calls = passes * max(1, config.heldout_tasks * study.evaluate.chats // 512)
    return (config.steps * (decode + runs * training) + calls * decode) / 60


def show(what: Plan, console: Console) -> None:
    table = Table(title=f"plan of {what.study}", show_header=False, title_justify="left")
    for name, text in what.lines():
        table.add_row(name, text)
    console.print(table)
