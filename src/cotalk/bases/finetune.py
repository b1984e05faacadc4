"""Trains all weights of a transformers model on rows of token ids, packed without padding.

A pass is one long sequence of rows that do not see each other: attention of variable length (decoder/attention.py;
torch's flash attention on a GPU, an sdpa twin elsewhere) is registered through transformers' AttentionInterface, and
the output head is given the learned places only. Half-precision weights have float32 masters, which the optimisers
change and on which gradients add up. AdamW, or Muon on the layers' matrices; warm-up, then a cosine to 0.

    done = finetune(model, rows, table, state=Path("state.safetensors"), until=time.monotonic() + 500)

The same rows and settings give the same weights on one machine (on a GPU torch is asked for deterministic kernels).
With `until` a call stops in time, writes its state and returns False; the same call goes on. Left out: where rows
come from, several devices.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch.nn import functional as F

from cotalk.bases.make_tiny import Muon
from cotalk.bases.smollm2_text import Row
from cotalk.decoder.attention import Spans, attend, attend_backward
from cotalk.disk import write_atomically
from cotalk.errors import BadInput, Stopped
from cotalk.stack import held

ATTENTION = "cotalk_packed"
Tell = Callable[[int, int, float], None]  # step, of, mean loss of the step


# --- packed attention ---------------------------------------------------------------------------------------


class _Attend(torch.autograd.Function):
    """decoder/attention.py under autograd. q: (tokens, heads, dim); k, v: (tokens, kv heads, dim)."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans) -> torch.Tensor:
        out, kept = attend(q, k, v, spans)
        ctx.save_for_backward(q, k, v, out)
        ctx.kept, ctx.spans = kept, spans
        return out

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor) -> Any:
        q, k, v, out = ctx.saved_tensors
        return *attend_backward(d_out.contiguous(), q, k, v, out, ctx.kept, ctx.spans), None


def packed_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, *, spans: Spans,
    **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """As transformers calls it: (1, heads, tokens, dim) each -> (1, tokens, heads, dim)."""
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    return _Attend.apply(q, k, v, spans)[None], None


@contextmanager
def _packed(model: Any) -> Iterator[None]:
    """The model with packed attention, and its own again afterwards."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, packed_attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@dataclass(frozen=True)
class Pass:
    """Rows one after the other. ids, positions: (1, tokens); where: places whose next id is learned; targets: it."""

    ids: torch.Tensor
    positions: torch.Tensor
    spans: Spans
    where: torch.Tensor
    targets: torch.Tensor

    @staticmethod
    def of(rows: Sequence[Row], device: torch.device) -> Pass:
        ids = torch.cat([torch.from_numpy(row.ids) for row in rows]).long()
        learned = torch.cat([torch.from_numpy(row.learned) for row in rows])
        lengths = [len(row.ids) for row in rows]
        positions = torch.cat([torch.arange(n) for n in lengths])
        at = torch.nonzero(learned & (positions > 0))[:, 0]  # nothing foretells a row's first id
        moved = (t.to(device) for t in (ids[None], positions[None], at - 1, ids[at]))
        ids, positions, where, targets = moved
        return Pass(ids, positions, Spans.of(lengths, lengths, device), where, targets)


def passes(rows: Sequence[Row], tokens: int) -> Iterator[list[Row]]:
    """Rows in order, at most `tokens` together (a longer row goes alone)."""
    batch: list[Row] = []
    held = 0
    for row in rows:
        if batch and held + len(row.ids) > tokens:
            yield batch
            batch, held = [], 0
        batch.append(row)
        held += len(row.ids)
    if batch:
        yield batch


def total_loss(model: Any, rows: Sequence[Row], device: torch.device) -> torch.Tensor:
    """Summed next-token loss of what is learned in these rows, packed (the model must be under `_packed`)."""
    one = Pass.of(rows, device)
    states = model.get_decoder()(
        input_ids=one.ids, position_ids=one.positions, use_cache=False, spans=one.spans
    ).last_hidden_state[0]
    logits = model.get_output_embeddings()(states[one.where])  # (learned, vocabulary)
    return F.cross_entropy(logits.float(), one.targets, reduction="sum")


@torch.no_grad()
def held_loss(model: Any, rows: Sequence[Row], tokens: int) -> float:
    """Mean loss of a learned token of rows that are not trained on."""
    device = next(model.parameters()).device
    with _packed(model):
        summed = sum(float(total_loss(model, some, device)) for some in passes(rows, tokens))
    return summed / learned_in(rows)


def learned_in(rows: Sequence[Row]) -> int:
    """How many ids are learned."""
    return sum(int(row.learned[1:].sum()) for row in rows)


# --- weights and optimisers ---------------------------------------------------------------------------------


class Masters:
    """What optimisers change: float32 copies of a model's weights, or the weights themselves where they are float32."""

    def __init__(self, model: Any):
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}  # tied ones once
        self.masters = {
            name: p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float())
            for name, p in self.weights.items()
        }

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Adds the weights' gradients to the masters', and forgets them."""
        pairs = [(w, m) for w, m in self.apart if w.grad is not None]
        for _, master in pairs:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        if pairs:
            into: Any = [m.grad for _, m in pairs]
            torch._foreach_add_(into, [w.grad.float() for w, _ in pairs])  # type: ignore[misc, union-attr]
        for weight, _ in pairs:
            weight.grad = None

    @torch.no_grad()
    def write_back(self) -> None:
        if self.apart:
            torch._foreach_copy_([w for w, _ in self.apart], [m for _, m in self.apart])

    @property
    def apart(self) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        """(weight, its master) where they are two tensors."""
        return [(w, self.masters[name]) for name, w in self.weights.items() if self.masters[name] is not w]


def optimisers(masters: Mapping[str, torch.nn.Parameter], table: Mapping[str, Any]) -> list[Any]:
    """AdamW for all, or Muon for the layers' matrices and AdamW for the rest."""
    if table["optimiser"] not in ("adamw", "muon"):
        raise BadInput(
            f'[training] optimiser = {table["optimiser"]!r}: expected "adamw" or "muon"', "make/settings"
        )
    muon = table["optimiser"] == "muon"
    matrices = [p for name, p in masters.items() if muon and p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in masters.items() if not any(p is m for m in matrices)]
    adamw = torch.optim.AdamW(
        rest, lr=table["lr"], betas=(0.9, table["beta2"]), weight_decay=table["weight_decay"],
        fused=rest[0].is_cuda,
    )  # fmt: skip
    return [adamw, *([Muon(matrices, table["muon_lr"], table["weight_decay"])] if matrices else [])]


def rate(step: int, steps: int, warmup: int) -> float:
    """Share of the peak learning rate at update `step` (from 1): linear warm-up, then a cosine that ends at 0."""
    if step <= warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup + 1)))


# --- training -----------------------------------------------------------------------------------------------


def finetune(
    model: Any, rows: Sequence[Row], table: Mapping[str, Any], *, state: Path | None = None,
    until: float = math.inf, steps: int | None = None, tell: Tell = lambda *_: None,
) -> bool:  # fmt: skip
    """Trains the model on rows in their order, once through; True when it is done.

    Args:
        table: [training] of smollm2.toml.
        state: where an unfinished training is kept; one of other rows or settings is refused. The caller removes it.
        until: of time.monotonic(); past it, the state is written and False returned.
        steps: at most so many in all (with the schedule of the whole), for a look.

    Raises Stopped after SIGINT or SIGTERM, with the state written.
    """
    device = next(model.parameters()).device
    masters = Masters(model)
    chosen = optimisers(masters.masters, table)
    peaks = [group["lr"] for o in chosen for group in o.param_groups]
    total = math.ceil(len(rows) / table["batch"])
    named = fingerprint(rows, table)
    step = load_state(state, masters, chosen, named) if state else 0
    model.train()
    last: tuple[int, torch.Tensor] | None = None  # told while the device works on the next step
    with held() as signals, _packed(model), _deterministic(device):
        while step < min(total, steps or total):
            if state and (signals.number or time.monotonic() > until):
                save_state(state, step, masters, chosen, named)
                if signals.number:
                    raise Stopped(128 + signals.number)
                return False
            step += 1
            batch = rows[(step - 1) * table["batch"] : step * table["batch"]]
            share = rate(step, total, table["warmup"])
            for group, peak in zip((g for o in chosen for g in o.param_groups), peaks, strict=True):
                group["lr"] = peak * share
            loss = _update(model, masters, chosen, batch, table, device)
            if last:
                tell(last[0], total, float(last[1]))
            last = step, loss
    if last:
        tell(last[0], total, float(last[1]))
    model.eval()
    return True


def _update(
    model: Any, masters: Masters, chosen: Sequence[Any], batch: Sequence[Row], table: Mapping[str, Any],
    device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """One step on these rows: their mean loss (a scalar on the device), which is returned."""
    learned = learned_in(batch)
    summed = torch.zeros((), device=device)
    for some in passes(batch, table["tokens"]):
        loss = total_loss(model, some, device) / learned
        loss.backward()
        masters.add_gradients()
        summed += loss.detach()
    torch.nn.utils.clip_grad_norm_(masters.masters.values(), table["clip"])
    for optimiser in chosen:
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    masters.write_back()
    return summed


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    if device.type == "cpu":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    fills: Any = torch.utils.deterministic
    filled, fills.fill_uninitialized_memory = fills.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        fills.fill_uninitialized_memory = filled


# --- an unfinished training on disk -------------------------------------------------------------------------


def fingerprint(rows: Sequence[Row], table: Mapping[str, Any]) -> str:
    """Of rows and settings: what a training must agree on to be gone on with. How it is cut into passes is free."""
    kept = {key: value for key, value in table.items() if key != "tokens"}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    for row in rows:
        digest.update(row.ids.tobytes())
        digest.update(row.learned.tobytes())
    return digest.hexdigest()


def _moments(masters: Masters, chosen: Sequence[Any]) -> Iterator[tuple[str, Any, str, Any]]:
    """(name, parameter, moment's name, optimiser) of all that optimisers remember."""
    names = {id(p): name for name, p in masters.masters.items()}
    for optimiser in chosen:
        for parameter, moments in optimiser.state.items():
            for moment in moments:
                yield f"{names[id(parameter)]}/{moment}", parameter, moment, optimiser


def save_state(path: Path, step: int, masters: Masters, chosen: Sequence[Any], named: str) -> None:
    tensors = {name: p.detach().cpu().contiguous() for name, p in masters.masters.items()}
    for name, parameter, moment, optimiser in _moments(masters, chosen):
        tensors[name] = torch.as_tensor(optimiser.state[parameter][moment]).detach().cpu().clone()
    about = {"step": str(step), "of": named}
    write_atomically(path, safetensors.torch.save(tensors, metadata=about))


def load_state(path: Path, masters: Masters, chosen: Sequence[Any], named: str) -> int:
    """Takes up an unfinished training; its step, or 0 where there is none. BadInput for one of other rows."""
    if not path.is_file():
        return 0
    with safetensors.safe_open(path, "pt") as stream:
        about = stream.metadata()
        if about["of"] != named:
            raise BadInput(
                f"{path} is of a training with other rows or settings; expected the same. Remove it, or use another "
                "--out",
                "make/state",
            )
        of = {id(p): optimiser for optimiser in chosen for g in optimiser.param_groups for p in g["params"]}
        for name in stream.keys():  # noqa: SIM118
            parameter, _, moment = name.partition("/")
            value, master = stream.get_tensor(name), masters.masters[parameter]
            if not moment:
                with torch.no_grad():
                    master.copy_(value)
            else:
                stays = moment == "step" and not master.is_cuda  # fused AdamW keeps its step on the device
                of[id(master)].state[master][moment] = value if stays else value.to(master.device)
    masters.write_back()
    return int(about["step"])
