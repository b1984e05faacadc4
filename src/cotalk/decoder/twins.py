"""The decoder's steps in plain torch: what runs on a CPU, and what the kernels are tested against.

Each function has the signature of its kernel in kernels.py. Products are added up in float32 and rounded to the
model's type where the kernel stores.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from cotalk.decoder.weights import Decoder, Fused, Layer
from cotalk.sample import KeyedNoise, draw

PAGE = 64  # tokens of a page of the KV cache


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> torch.Tensor:
    """RMS norm (arXiv 1910.07467) of (rows, width) into `out`; returns 1 / rms, (rows,) float32."""
    wide = x.float()
    rstd = torch.rsqrt(wide.pow(2).mean(-1) + eps)
    out.copy_((wide * rstd[:, None]).to(out.dtype) * weight)
    return rstd


def norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor, into: torch.Tensor
) -> None:
    """Adds the gradient of a norm's input to `into` (rows, width)."""
    n = x.float() * rstd[:, None]
    dn = dy.float() * weight.float()
    into.add_((rstd[:, None] * (dn - n * (dn * n).mean(-1, keepdim=True))).to(into.dtype))


def rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    inverse: bool,
) -> None:
    """Rotates the first `heads` heads of (tokens, ...) in place (arXiv 2104.09864); inverse: back, for gradients."""
    half = cos.shape[1]
    turned = qkv[:, : heads * 2 * half].view(len(qkv), heads, 2, half)
    c, s = cos[positions][:, None], sin[positions][:, None] * (-1 if inverse else 1)
    lo, hi = turned[:, :, 0].float(), turned[:, :, 1].float()
    new_lo = lo * c - hi * s
    turned[:, :, 1] = hi * c + lo * s
    turned[:, :, 0] = new_lo


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """silu(gate) * up of (rows, 2 mlp) into (rows, mlp)."""
    gate, up = gate_up.float().chunk(2, -1)
    out.copy_((F.silu(gate) * up).to(out.dtype))


def silu_mul_backward(gate_up: torch.Tensor, d_act: torch.Tensor) -> None:
    """In place: gate_up becomes its gradient, and d_act becomes silu(gate) * up again."""
    gate, up = gate_up.float().chunk(2, -1)
    sigmoid = torch.sigmoid(gate)
    silu, dy = gate * sigmoid, d_act.float()
    gradient = torch.cat([dy * up * (sigmoid + silu * (1 - sigmoid)), dy * silu], -1)
    d_act.copy_((silu * up).to(d_act.dtype))
    gate_up.copy_(gradient.to(gate_up.dtype))


def log_probability(
    logits: torch.Tensor, targets: torch.Tensor, coefficient: torch.Tensor, temperature: float
) -> torch.Tensor:
    """log p(target) of (places, entries) at a temperature, (places,) float32.

    In place, the logits become coefficient * d log p / d logits.
    """
    logp = torch.log_softmax(logits.float() / temperature, -1)
    chosen = logp.gather(1, targets[:, None])[:, 0]
    gradient = -logp.exp_()
    gradient.scatter_add_(1, targets[:, None], torch.ones_like(chosen)[:, None])
    logits.copy_((gradient * (coefficient / temperature)[:, None]).to(logits.dtype))
    return chosen


# --- serving: rows of different adapters --------------------------------------------------------------------


def product(x: torch.Tensor, fused: Fused, adapters: torch.Tensor) -> torch.Tensor:
    """x (W + B A)' of each row's own adapter, (rows, out) float32. Rows are sorted by adapter.

    No shape depends on the size of the stack or on an adapter without rows here, so that a run's bits are its own.
    """
    if adapters[0] == adapters[-1]:
        return _product_of_one(x, fused, int(adapters[0]))
    found, counts = adapters.unique_consecutive(return_counts=True)
    parts = zip(x.split(counts.tolist()), found.tolist(), strict=True)
    return torch.cat([_product_of_one(part, fused, k) for part, k in parts])


def _product_of_one(x: torch.Tensor, fused: Fused, k: int) -> torch.Tensor:
    if k == 0 or fused.merging_pays:
        return F.linear(x, fused.merged(k), fused.bias).float()
    y, a = F.linear(x, fused.weight, fused.bias).float(), fused.served_a(k)
    for i, start, end, _ in fused.parts():
        y[:, start:end] += (x @ a[i].T).float() @ fused.b[k, start:end].float().T
    return y


def with_adapters(y: torch.Tensor, fused: Fused, adapters: torch.Tensor) -> torch.Tensor:
    """(rows, out) float32: the base's product and each row's own adapter's.

    y: (rows, out + N extra), x @ served', as the kernels take it; or `product`, which is whole.
    """
    total = y[:, : fused.out].float()
    if y.shape[1] == fused.out:
        return total
    if fused.bias is not None:
        total = total + fused.bias.float()
    for k in adapters.unique().tolist():
        if k == 0:
            continue
        mine = (adapters == k).nonzero()[:, 0]
        t = y[mine, fused.out + (k - 1) * fused.extra : fused.out + k * fused.extra].float()
        start, parts = 0, []
        for i, end in enumerate(fused.ends):
            parts.append(t[:, i * fused.rank : (i + 1) * fused.rank] @ fused.b[k, start:end].float().T)
            start = end
        total = total.index_add(0, mine, torch.cat(parts, 1))
    return total


def place(
    y: torch.Tensor, adapters: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, decoder: Decoder,
    layer: Layer, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
) -> None:  # fmt: skip
    """q, k, v of (rows, ...) with their adapters, normed (Qwen3) and rotated: q into `q`, k and v into the cache.

    slots: (rows,) int64, page * PAGE + place. Caches: (pages * PAGE, kv heads, head dim).
    """
    heads, kv, dim = decoder.heads, decoder.kv_heads, decoder.head_dim
    total = with_adapters(y, layer.qkv, adapters).to(y.dtype).view(len(y), heads + 2 * kv, dim)
    if layer.q_norm is not None and layer.k_norm is not None:
        parts = ((total[:, :heads], layer.q_norm), (total[:, heads : heads + kv], layer.k_norm))
        for part, weight in parts:
            wide = part.float()
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + decoder.eps)
            part.copy_(wide.to(y.dtype) * weight)
    flat = total.view(len(y), -1)
    rope(flat, positions, decoder.cos, decoder.sin, heads + kv, inverse=False)
    q.copy_(total[:, :heads])
    k_cache[slots], v_cache[slots] = total[:, heads : heads + kv], total[:, heads + kv :]


def add_lora(h: torch.Tensor, y: torch.Tensor, fused: Fused, adapters: torch.Tensor) -> None:
    """h += the product with its adapters."""
    h.copy_((h.float() + with_adapters(y, fused, adapters)).to(h.dtype))


def silu_lora(y: torch.Tensor, fused: Fused, adapters: torch.Tensor, out: torch.Tensor) -> None:
    """silu(gate) * up with their adapters, into (rows, mlp)."""
    silu_mul(with_adapters(y, fused, adapters), out)


def attend_pages(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Attention of one new token a row over its pages. q: (rows, heads, dim) -> (rows, heads * dim)."""
    longest = int(positions.max()) + 1
    pages = table[:, : -(-longest // PAGE)]
    k, v = (
        cache.view(-1, PAGE * cache[0].numel())
        .index_select(0, pages.flatten())
        .view(len(q), -1, *cache.shape[1:])[:, :longest]
        .transpose(1, 2)
        for cache in (k_cache, v_cache)
    )
    seen = torch.arange(longest, device=q.device) <= positions[:, None]
    out = F.scaled_dot_product_attention(
        q[:, :, None], k, v, attn_mask=seen[:, None, None], enable_gqa=q.shape[1] != k_cache.shape[1]
    )
    return out.flatten(1)


def choose_and_advance(logits: torch.Tensor, state: dict[str, torch.Tensor], ends: torch.Tensor) -> None:
    """Samples every row's next token by sample.py's rule, and writes what follows from it into the state.

    state, a line a row: token, position, slot, count (sampled so far), limit, done, low and high (the key's words),
    temperature, line (where its results go), table (pages); by line: tokens, logprobs, counts.
    """
    s = state
    words = [s[name].cpu().numpy().view(np.uint32).astype(np.uint64) for name in ("low", "high")]
    keys = (words[0] | words[1] << np.uint64(32)).tolist()
    noise = KeyedNoise(keys, logits.shape[1], logits.device).at(int(s["count"].max()))
    tokens, logprobs = draw(logits, s["temperature"], noise)
    live = (s["done"] == 0).nonzero()[:, 0]
    chosen, n, line = tokens[live].int(), s["count"][live], s["line"][live].long()
    s["tokens"][line, n.long()] = chosen
    s["logprobs"][line, n.long()] = logprobs[live]
    s["count"][live] = n + 1
    s["counts"][line] = n + 1
    ended = (n + 1 >= s["limit"][live]) | torch.isin(chosen, ends.int())
    s["done"][live] = ended.int()
    on = live[~ended]
    position = s["position"][on] + 1
    s["token"][on], s["position"][on] = chosen[~ended], position
    page = s["table"][on, position.long() // PAGE].long()
    s["slot"][on] = page * PAGE + position.long() % PAGE
