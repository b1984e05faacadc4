"""Log-probabilities and LoRA gradients of a packed batch, forward and backward by hand.

The loss is the learner's: - (1 / normaliser) sum of credit x log p, with p at the sampling temperature. Its gradient at
the logits is known the moment they are, so the output head needs no second pass: logits are made in chunks at sampled
places only, and overwritten by their gradient. Everything else is the chain rule of a Llama block, one product a step:

    forward    n = norm(h);  q, k, v = [n, nA'] [W, B]';  h1 = h + attend(q, k, v) (W + BA)'
               n = norm(h1); g, u = [n, nA'] [W, B]';     h2 = h1 + (silu(g) u) (W + BA)'
    backward   d(silu(g) u) = [dh2 B, dh2] [A; W], and so on backwards (weights.py shows the buffers)

Frozen weights get no gradient, so nothing is kept for them; with `recompute` only each block's input is kept, and the
block runs again on the way back.

Source: LoRA, arXiv 2106.09685; the fused loss as in Liger, arXiv 2410.10989. Left out: dropout, and bases whose
weights are float16 (their gradients would underflow).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from cotalk.decoder.attention import attend, attend_backward
from cotalk.decoder.ops import on
from cotalk.decoder.packing import Packed, pack, packed_batches
from cotalk.decoder.weights import Decoder, Fused, Layer
from cotalk.rows import Row

Gradients = dict[str, torch.Tensor]  # by PEFT's names, as in Stack.parameters


@dataclass
class _Kept:
    """What a block's backward needs of its forward."""

    h: torch.Tensor
    rstd_in: torch.Tensor
    x_in: torch.Tensor
    raw: torch.Tensor | None
    qkv: torch.Tensor
    attended: torch.Tensor
    attention: Any
    t_o: torch.Tensor
    h1: torch.Tensor
    rstd_mid: torch.Tensor
    x_mid: torch.Tensor
    gate_up: torch.Tensor
    t_down: torch.Tensor


class PackedScorer:
    """Scores and differentiates training rows of one adapter. Args: chunk: places whose logits exist at a time."""

    def __init__(self, decoder: Decoder, temperature: float, chunk: int = 4096, recompute: bool = False):
        self.decoder, self.temperature = decoder, temperature or 1.0
        self.chunk, self.recompute = chunk, recompute
        self.ops = on(decoder.device)

    def batches(self, rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
        return packed_batches(rows, budget)

    @torch.no_grad()
    def gradients(
        self, k: int, rows: Sequence[Row], normaliser: float
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
        """Log-probability now minus when sampled, (sampled tokens,), and the gradients of adapter k's parameters."""
        packed = pack(rows, self.decoder.device)
        self.decoder.prepare_training(k)
        h, kept = self._forward(packed)
        logp, d = self._head(h, packed, -packed.credit / normaliser)
        found = self._backward(d, kept, packed)
        return logp - packed.sampled, [found.get(name) for name in self.decoder.stack.parameters(k)]

    @torch.no_grad()
    def score(self, k: int, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probabilities of sampled tokens, (tokens,) each: now, when sampled, credit."""
        packed = pack(rows, self.decoder.device)
        self.decoder.prepare_training(k)
        h, _ = self._forward(packed, keep=False)
        logp, _ = self._head(h, packed, torch.zeros_like(packed.credit))
        return logp, packed.sampled, packed.credit

    # --- forward ---

    def _forward(self, packed: Packed, keep: bool = True) -> tuple[torch.Tensor, list[Any]]:
        h = self.decoder.embedding[packed.ids]
        kept: list[Any] = []
        for layer in self.decoder.layers:
            before = h
            h, everything = self._block(layer, h, packed)
            if keep:
                kept.append(before if self.recompute else everything)
        return h, kept

    def _block(self, layer: Layer, h: torch.Tensor, packed: Packed) -> tuple[torch.Tensor, _Kept]:
        x_in, rstd_in = self._normed(h, layer.norm_in, layer.qkv)
        qkv = F.linear(x_in, layer.qkv.forward_rows, layer.qkv.bias)
        raw = self._norm_heads(layer, qkv)
        self._rotate(qkv, packed)
        q, k, v = self._split(qkv, packed)
        attended, attention = attend(q, k, v, packed.spans)
        flat = attended.reshape(len(h), -1)
        h1, t_o = self._added(h, flat, layer.o)
        x_mid, rstd_mid = self._normed(h1, layer.norm_mid, layer.gate_up)
        gate_up = F.linear(x_mid, layer.gate_up.forward_rows)
        act = gate_up.new_empty(len(h), self.decoder.mlp)
        self.ops.silu_mul(gate_up, act)
        h2, t_down = self._added(h1, act, layer.down)
        return h2, _Kept(
            h, rstd_in, x_in, raw, qkv, attended, attention, t_o, h1, rstd_mid, x_mid, gate_up, t_down
        )

    def _normed(
        self, h: torch.Tensor, weight: torch.Tensor, fused: Fused
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[norm(h), norm(h) A'] in one tensor, (tokens, width + extra), and 1 / rms."""
        x = h.new_empty(len(h), fused.width + fused.extra)
        rstd = self.ops.norm(h, weight, self.decoder.eps, x[:, : fused.width])
        torch.mm(x[:, : fused.width], fused.a_training.T, out=x[:, fused.width :])
        return x, rstd

    def _added(self, h: torch.Tensor, x: torch.Tensor, fused: Fused) -> tuple[torch.Tensor, torch.Tensor]:
        """h + x (W + BA)', and x A'."""
        t = x @ fused.a_training.T
        out = torch.addmm(h, x, fused.weight.T)
        return out.addmm_(t, _b(fused).T), t

    def _rotate(self, qkv: torch.Tensor, packed: Packed, inverse: bool = False) -> None:
        d = self.decoder
        self.ops.rope(qkv, packed.positions, d.cos, d.sin, d.heads + d.kv_heads, inverse)

    def _split(self, qkv: torch.Tensor, packed: Packed) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries of the tokens; keys and values that the sequences read."""
        d = self.decoder
        q, k, v = qkv.view(len(qkv), -1, d.head_dim).split([d.heads, d.kv_heads, d.kv_heads], 1)
        if packed.keys is not None:
            k, v = k[packed.keys], v[packed.keys]
        return q, k, v

    def _norm_heads(self, layer: Layer, qkv: torch.Tensor) -> torch.Tensor | None:
        """Qwen3's norms of q and k, in place; returns what was there before (for the way back)."""
        if layer.q_norm is None or layer.k_norm is None:
            return None
        d = self.decoder
        heads = qkv.view(len(qkv), -1, d.head_dim)[:, : d.heads + d.kv_heads]
        raw = heads.clone()
        heads.copy_(_head_norm(raw, self._head_gain(layer), d.eps))
        return raw

    def _head_gain(self, layer: Layer) -> torch.Tensor:
        d = self.decoder
        assert layer.q_norm is not None and layer.k_norm is not None
        return torch.cat([layer.q_norm.expand(d.heads, -1), layer.k_norm.expand(d.kv_heads, -1)])

    # --- the output head, forward and backward at once ---

    def _head(
        self, h: torch.Tensor, packed: Packed, coefficient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """log p of the sampled tokens, and the gradient at the last block's output in the right part of (tokens,
        rank + hidden): its left part has room for a product that the blocks need."""
        d, rank = self.decoder, self.decoder.layers[0].o.rank
        at = h[packed.where]
        n = torch.empty_like(at)
        rstd = self.ops.norm(at, d.norm_out, d.eps, n)
        logp, dn = [], torch.empty_like(n)
        for first in range(0, len(n), self.chunk):
            part = slice(first, first + self.chunk)
            logits = n[part] @ d.head.T
            logp.append(
                self.ops.log_probability(logits, packed.targets[part], coefficient[part], self.temperature)
            )
            torch.mm(logits, d.head, out=dn[part])
        d_at = torch.zeros_like(at)
        self.ops.norm_backward(dn, at, d.norm_out, rstd, d_at)
        gradient = h.new_zeros(len(h), rank + d.hidden)
        gradient[:, rank:].index_add_(0, packed.where, d_at)
        return torch.cat(logp), gradient

    # --- backward ---

    def _backward(self, d: torch.Tensor, kept: list[Any], packed: Packed) -> Gradients:
        found: Gradients = {}
        for i in reversed(range(len(kept))):
            layer, saved = self.decoder.layers[i], kept.pop()
            if self.recompute:
                saved = self._block(layer, saved, packed)[1]
            self._block_backward(layer, saved, d, packed, found)
        return found

    def _block_backward(
        self, layer: Layer, kept: _Kept, d: torch.Tensor, packed: Packed, found: Gradients
    ) -> None:
        """d: (tokens, rank + hidden), the residual's gradient in its right part, changed in place."""
        dh = d[:, layer.o.rank :]
        d_act = self._out_backward(layer.down, d, kept.t_down, found)
        self.ops.silu_mul_backward(kept.gate_up, d_act)  # gate_up is now its gradient, d_act the activation
        self._a_gradient(layer.down, d[:, : layer.down.rank], d_act, found)
        del d_act
        dn = self._in_backward(layer.gate_up, kept.gate_up, kept.x_mid, found)
        self.ops.norm_backward(dn, kept.h1, layer.norm_mid, kept.rstd_mid, dh)
        d_attended = self._out_backward(layer.o, d, kept.t_o, found)
        self._a_gradient(layer.o, d[:, : layer.o.rank], kept.attended.reshape(len(d), -1), found)
        d_qkv = self._attention_backward(layer, kept, d_attended, packed)
        dn = self._in_backward(layer.qkv, d_qkv, kept.x_in, found)
        self.ops.norm_backward(dn, kept.h, layer.norm_in, kept.rstd_in, dh)

    def _out_backward(self, fused: Fused, d: torch.Tensor, t: torch.Tensor, found: Gradients) -> torch.Tensor:
        """The gradient of the input of o or down; d's left part becomes that of x A'."""
        dh = d[:, fused.rank :]
        torch.mm(dh, _b(fused), out=d[:, : fused.rank])
        self._b_gradient(fused, dh, t, found)
        return d @ fused.backward_rows

    def _in_backward(self, fused: Fused, dy: torch.Tensor, x: torch.Tensor, found: Gradients) -> torch.Tensor:
        """The gradient of norm(h), (tokens, width), from that of qkv or gate_up."""
        both = dy @ fused.forward_rows
        dn, dt = both[:, : fused.width], both[:, fused.width :]
        dn.addmm_(dt, fused.a_training)
        self._a_gradient(fused, dt, x[:, : fused.width], found)
        self._b_gradient(fused, dy, x[:, fused.width :], found)
        return dn

    def _attention_backward(
        self, layer: Layer, kept: _Kept, d_attended: torch.Tensor, packed: Packed
    ) -> torch.Tensor:
        d, tokens = self.decoder, len(kept.qkv)
        q, k, v = self._split(kept.qkv, packed)
        shaped = d_attended.view(tokens, d.heads, d.head_dim)
        dq, dk, dv = attend_backward(shaped, q, k, v, kept.attended, kept.attention, packed.spans)
        if packed.keys is not None:
            dk, dv = (_gathered(x, packed.keys, tokens) for x in (dk, dv))
        d_qkv = torch.cat([dq, dk, dv], 1).view(tokens, -1)
        self._rotate(d_qkv, packed, inverse=True)
        if kept.raw is not None:
            heads = d_qkv.view(tokens, -1, d.head_dim)[:, : d.heads + d.kv_heads]
            with torch.enable_grad():
                raw = kept.raw.detach().requires_grad_()
                normed = _head_norm(raw, self._head_gain(layer), d.eps)
                heads.copy_(torch.autograd.grad(normed, raw, heads.clone())[0])
        return d_qkv

    def _a_gradient(self, fused: Fused, dt: torch.Tensor, x: torch.Tensor, found: Gradients) -> None:
        whole = dt.T @ x
        for i, _, _, linear in fused.parts():
            start = i * fused.rank
            found[f"{linear.name}.lora_A.weight"] = whole[start : start + fused.stack.rank].float()

    def _b_gradient(self, fused: Fused, dy: torch.Tensor, t: torch.Tensor, found: Gradients) -> None:
        """B's own gradient: the buffer holds B x scale."""
        for i, start, end, linear in fused.parts():
            part = dy[:, start:end].T @ t[:, i * fused.rank : i * fused.rank + fused.stack.rank]
            found[f"{linear.name}.lora_B.weight"] = part.float() * fused.stack.scale


def _b(fused: Fused) -> torch.Tensor:
    """B of the adapter in training, scaled: (out, extra)."""
    return fused.forward_rows[:, fused.width :]


def _gathered(x: torch.Tensor, keys: torch.Tensor, tokens: int) -> torch.Tensor:
    """Adds up, for every token, the gradients of all places that read it, in float32."""
    out = torch.zeros(tokens, *x.shape[1:], dtype=torch.float32, device=x.device)
    return out.index_add_(0, keys, x.float()).to(x.dtype)


def _head_norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * gain
