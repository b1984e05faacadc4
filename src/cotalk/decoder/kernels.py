"""The decoder's steps as Triton kernels. Signatures and meaning are those of twins.py; see there.

Two habits: a program never reads what another one writes in the same launch, and every size that does not change
within a model is a constant of the compiled kernel.
"""

# Triton's language has its own rules: names that look unused, and arguments that are constants.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from cotalk.decoder.twins import PAGE
from cotalk.decoder.weights import Decoder, Fused, Layer

# rows at most -> (rows, columns, warps) of a tile, the fastest of those tried on an H200 (LAB.md)
SILU_TILES = {64: (16, 64, 2), 1024: (32, 128, 2), 1 << 31: (64, 64, 8)}


def _block(width: int) -> int:
    return triton.next_power_of_2(width)


# --- norms, rotation, activation ----------------------------------------------------------------------------


@triton.jit
def _norm(x, weight, out, rstd, width, x_stride, out_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    ok = at < width
    v = tl.load(x + row * x_stride + at, mask=ok, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(v * v) / width + eps)
    n = (v * r).to(out.dtype.element_ty).to(tl.float32)
    w = tl.load(weight + at, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, n * w, mask=ok)
    tl.store(rstd + row, r)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> torch.Tensor:
    rows, width = x.shape
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        _norm[(rows,)](
            x, weight, out, rstd, width, x.stride(0), out.stride(0), eps, BLOCK=_block(width), num_warps=4
        )
    return rstd


@triton.jit
def _norm_backward(dy, x, weight, rstd, into, width, dy_stride, x_stride, into_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    ok = at < width
    r = tl.load(rstd + row)
    n = tl.load(x + row * x_stride + at, mask=ok, other=0.0).to(tl.float32) * r
    w = tl.load(weight + at, mask=ok, other=0.0).to(tl.float32)
    dn = tl.load(dy + row * dy_stride + at, mask=ok, other=0.0).to(tl.float32) * w
    dx = r * (dn - n * (tl.sum(dn * n) / width))
    before = tl.load(into + row * into_stride + at, mask=ok, other=0.0).to(tl.float32)
    tl.store(into + row * into_stride + at, before + dx, mask=ok)


def norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor, into: torch.Tensor
) -> None:
    rows, width = x.shape
    _norm_backward[(rows,)](
        dy,
        x,
        weight,
        rstd,
        into,
        width,
        dy.stride(0),
        x.stride(0),
        into.stride(0),
        BLOCK=_block(width),
        num_warps=4,
    )


@triton.jit
def _rope(
    qkv, positions, cos, sin, stride, sign, HEADS: tl.constexpr, HEADS2: tl.constexpr, HALF: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS2)[:, None]
    at = tl.arange(0, HALF)[None, :]
    ok = (head < HEADS) & (at < HALF)
    position = tl.load(positions + row)
    c = tl.load(cos + position * HALF + at)
    s = tl.load(sin + position * HALF + at) * sign
    first = qkv + row * stride + head * (2 * HALF) + at
    lo = tl.load(first, mask=ok, other=0.0).to(tl.float32)
    hi = tl.load(first + HALF, mask=ok, other=0.0).to(tl.float32)
    tl.store(first, lo * c - hi * s, mask=ok)
    tl.store(first + HALF, hi * c + lo * s, mask=ok)


def rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    inverse: bool,
) -> None:
    _rope[(len(qkv),)](
        qkv, positions, cos, sin, qkv.stride(0), -1.0 if inverse else 1.0, HEADS=heads, HEADS2=_block(heads),
        HALF=cos.shape[1], num_warps=4,
    )  # fmt: skip


@triton.jit
def _silu_mul(gate_up, out, width, in_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = at < width
    gate = tl.load(gate_up + row * in_stride + at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * in_stride + width + at, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, gate * tl.sigmoid(gate) * up, mask=ok)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    rows, width = out.shape
    _silu_mul[(rows, triton.cdiv(width, 2048))](
        gate_up, out, width, gate_up.stride(0), out.stride(0), BLOCK=2048, num_warps=8
    )


@triton.jit
def _silu_mul_backward(gate_up, d_act, width, in_stride, act_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = at < width
    gate_at, up_at = gate_up + row * in_stride + at, gate_up + row * in_stride + width + at
    gate = tl.load(gate_at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(up_at, mask=ok, other=0.0).to(tl.float32)
    dy = tl.load(d_act + row * act_stride + at, mask=ok, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    tl.store(d_act + row * act_stride + at, silu * up, mask=ok)
    tl.store(gate_at, dy * up * (sigmoid + silu * (1 - sigmoid)), mask=ok)
    tl.store(up_at, dy * silu, mask=ok)


def silu_mul_backward(gate_up: torch.Tensor, d_act: torch.Tensor) -> None:
    rows, width = d_act.shape
    _silu_mul_backward[(rows, triton.cdiv(width, 2048))](
        gate_up, d_act, width, gate_up.stride(0), d_act.stride(0), BLOCK=2048, num_warps=8
    )


@triton.jit
def _log_probability(logits, targets, coefficient, chosen, entries, stride, inverse, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    at = tl.arange(0, BLOCK)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, entries, BLOCK):
        ok = first + at < entries
        v = tl.load(start + first + at, mask=ok, other=float("-inf")).to(tl.float32) * inverse
        new = tl.maximum(high, v)
        keep = tl.where(new == float("-inf"), 0.0, tl.exp(high - new))
        total = total * keep + tl.where(ok, tl.exp(v - new), 0.0)
        high = new
    top = tl.max(high)
    log_sum = top + tl.log(tl.sum(total * tl.exp(high - top)))
    target = tl.load(targets + row)
    tl.store(chosen + row, tl.load(start + target).to(tl.float32) * inverse - log_sum)
    tl.debug_barrier()  # the target's logit was read by all threads before any of them writes it
    scale = tl.load(coefficient + row) * inverse
    for first in range(0, entries, BLOCK):
        ok = first + at < entries
        v = tl.load(start + first + at, mask=ok, other=float("-inf")).to(tl.float32) * inverse
        gradient = tl.where(first + at == target, 1.0, 0.0) - tl.exp(v - log_sum)
        tl.store(start + first + at, gradient * scale, mask=ok)


def log_probability(
    logits: torch.Tensor, targets: torch.Tensor, coefficient: torch.Tensor, temperature: float
) -> torch.Tensor:
    chosen = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _log_probability[(len(logits),)](
        logits, targets, coefficient, chosen, logits.shape[1], logits.stride(0), 1.0 / temperature, BLOCK=4096,
        num_warps=8,
    )  # fmt: skip
    return chosen


# --- serving ------------------------------------------------------------------------------------------------


@triton.jit
def _low_rank(
    total, y, b, adapters, rows, live, columns, column_ok, y_stride, out, extra, part,
    RANK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """total + t @ B' of each row's own adapter. Rows are sorted by adapter, so a tile meets few of them."""
    k = tl.load(adapters + rows, mask=live, other=-1)
    last = tl.max(k)
    first = tl.maximum(tl.min(tl.where(live, k, 1 << 30)), 1)
    at = tl.arange(0, RANK)
    for a in range(first, last + 1):
        mine = k == a
        t = tl.load(
            y + rows[:, None].to(tl.int64) * y_stride + out + (a - 1) * extra + part * RANK + at[None, :],
            mask=mine[:, None], other=0.0,
        )  # fmt: skip
        weight = tl.load(
            b + a.to(tl.int64) * (out * RANK) + columns[None, :] * RANK + at[:, None],
            mask=column_ok[None, :], other=0.0,
        )  # fmt: skip
        total += tl.dot(t, weight, input_precision=PRECISION)
    return total


@triton.jit
def _place(
    y, b, bias, adapters, positions, slots, cos, sin, q_norm, k_norm, q, k_cache, v_cache, n, y_stride, extra, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr,
    BIAS: tl.constexpr, NORM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    out: tl.constexpr = (HEADS + 2 * KV) * 2 * HALF
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    live = rows < n
    part = tl.where(head < HEADS, 0, tl.where(head < HEADS + KV, 1, 2))
    at = tl.arange(0, HALF)
    columns = head * (2 * HALF) + at
    everything = at < HALF
    wide = rows.to(tl.int64)
    first = y + wide[:, None] * y_stride + columns[None, :]
    lo = tl.load(first, mask=live[:, None], other=0.0).to(tl.float32)
    hi = tl.load(first + HALF, mask=live[:, None], other=0.0).to(tl.float32)
    if BIAS:
        lo += tl.load(bias + columns).to(tl.float32)[None, :]
        hi += tl.load(bias + columns + HALF).to(tl.float32)[None, :]
    lo = _low_rank(
        lo, y, b, adapters, rows, live, columns, everything, y_stride, out, extra, part, RANK, PRECISION
    )
    hi = _low_rank(
        hi,
        y,
        b,
        adapters,
        rows,
        live,
        columns + HALF,
        everything,
        y_stride,
        out,
        extra,
        part,
        RANK,
        PRECISION,
    )
    kind = q.dtype.element_ty
    lo, hi = lo.to(kind).to(tl.float32), hi.to(kind).to(tl.float32)
    if NORM:  # noqa: SIM102 (a constant of the compiled kernel, which `part` is not)
        if part < 2:
            r = tl.rsqrt((tl.sum(lo * lo, 1) + tl.sum(hi * hi, 1)) / (2 * HALF) + eps)
            gain = q_norm if part == 0 else k_norm
            lo = ((lo * r[:, None]).to(kind).to(tl.float32) * tl.load(gain + at).to(tl.float32)[None, :]).to(
                kind
            )
            hi = (
                (hi * r[:, None]).to(kind).to(tl.float32) * tl.load(gain + HALF + at).to(tl.float32)[None, :]
            ).to(kind)
            lo, hi = lo.to(tl.float32), hi.to(tl.float32)
    position = tl.load(positions + rows, mask=live, other=0)
    turned = (part < 2) & live[:, None] & (at >= 0)[None, :]
    c = tl.load(cos + position[:, None] * HALF + at[None, :], mask=turned, other=1.0)
    s = tl.load(sin + position[:, None] * HALF + at[None, :], mask=turned, other=0.0)
    new_lo, new_hi = lo * c - hi * s, hi * c + lo * s
    if part == 0:
        where = q + wide[:, None] * (HEADS * 2 * HALF) + head * (2 * HALF) + at[None, :]
        tl.store(where, new_lo, mask=live[:, None])
        tl.store(where + HALF, new_hi, mask=live[:, None])
    else:
        slot = tl.load(slots + rows, mask=live, other=0)
        cache = k_cache if part == 1 else v_cache
        inner = (head - HEADS) % KV
        where = cache + slot[:, None] * (KV * 2 * HALF) + inner * (2 * HALF) + at[None, :]
        tl.store(where, new_lo, mask=live[:, None])
        tl.store(where + HALF, new_hi, mask=live[:, None])


def _precision(x: torch.Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def product(x: torch.Tensor, fused: Fused, adapters: torch.Tensor) -> torch.Tensor:
    """x @ [W; A_1; ...; A_N]', (rows, out + N extra): what the next kernel finishes with each row's own B."""
    return x @ fused.served.T


def _rows_a_tile(rows: int) -> int:
    return 16 if rows <= 1024 else 64


def place(
    y: torch.Tensor, adapters: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, decoder: Decoder,
    layer: Layer, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
) -> None:  # fmt: skip
    fused, n = layer.qkv, len(y)
    tile = _rows_a_tile(n)
    unused = y
    _place[(triton.cdiv(n, tile), decoder.heads + 2 * decoder.kv_heads)](
        y, fused.b, unused if fused.bias is None else fused.bias, adapters, positions, slots, decoder.cos, decoder.sin,
        unused if layer.q_norm is None else layer.q_norm, unused if layer.k_norm is None else layer.k_norm,
        q, k_cache, v_cache, n, y.stride(0), fused.extra, decoder.eps, HEADS=decoder.heads, KV=decoder.kv_heads,
        HALF=decoder.head_dim // 2, RANK=fused.rank, ROWS=tile, BIAS=fused.bias is not None,
        NORM=layer.q_norm is not None, PRECISION=_precision(y), num_warps=4,
    )  # fmt: skip


@triton.jit
def _add_lora(
    h, y, b, adapters, n, width, h_stride, y_stride, extra,
    RANK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live, column_ok = rows < n, columns < width
    ok = live[:, None] & column_ok[None, :]
    wide = rows.to(tl.int64)[:, None]
    total = tl.load(y + wide * y_stride + columns[None, :], mask=ok, other=0.0).to(tl.float32)
    total += tl.load(h + wide * h_stride + columns[None, :], mask=ok, other=0.0).to(tl.float32)
    total = _low_rank(
        total, y, b, adapters, rows, live, columns, column_ok, y_stride, width, extra, 0, RANK, PRECISION
    )
    tl.store(h + wide * h_stride + columns[None, :], total, mask=ok)


def add_lora(h: torch.Tensor, y: torch.Tensor, fused: Fused, adapters: torch.Tensor) -> None:
    n, tile = len(h), _rows_a_tile(len(h))
    block = 64
    _add_lora[(triton.cdiv(n, tile), triton.cdiv(fused.out, block))](
        h, y, fused.b, adapters, n, fused.out, h.stride(0), y.stride(0), fused.extra, RANK=fused.rank, ROWS=tile,
        BLOCK=block, PRECISION=_precision(y), num_warps=4 if tile > 16 else 2,
    )  # fmt: skip


@triton.jit
def _silu_lora(
    y, b, adapters, result, n, mlp, y_stride, extra,
    RANK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live, column_ok = rows < n, columns < mlp
    ok = live[:, None] & column_ok[None, :]
    wide = rows.to(tl.int64)[:, None]
    out = 2 * mlp
    gate = tl.load(y + wide * y_stride + columns[None, :], mask=ok, other=0.0).to(tl.float32)
    up = tl.load(y + wide * y_stride + mlp + columns[None, :], mask=ok, other=0.0).to(tl.float32)
    gate = _low_rank(
        gate, y, b, adapters, rows, live, columns, column_ok, y_stride, out, extra, 0, RANK, PRECISION
    )
    up = _low_rank(
        up, y, b, adapters, rows, live, columns + mlp, column_ok, y_stride, out, extra, 1, RANK, PRECISION
    )
    tl.store(result + wide * mlp + columns[None, :], gate * tl.sigmoid(gate) * up, mask=ok)


def silu_lora(y: torch.Tensor, fused: Fused, adapters: torch.Tensor, out: torch.Tensor) -> None:
    n, mlp = out.shape
    tile, block, warps = next(shape for most, shape in SILU_TILES.items() if n <= most)
    _silu_lora[(triton.cdiv(n, tile), triton.cdiv(mlp, block))](
        y, fused.b, adapters, out, n, mlp, y.stride(0), fused.extra, RANK=fused.rank, ROWS=tile, BLOCK=block,
        PRECISION=_precision(y), num_warps=warps,
    )  # fmt: skip


@triton.jit
def _attend_pages(
    q, k_cache, v_cache, table, positions, part_out, part_high, part_sum, table_stride, scale,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, GROUP2: tl.constexpr, PAGE: tl.constexpr,
    SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One row, one KV head, one stretch of its pages: the group's queries against it (arXiv 2205.14135)."""
    row, kv, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = HEADS // KV
    length = tl.load(positions + row) + 1
    pages = (length + PAGE - 1) // PAGE
    each = (pages + SPLITS - 1) // SPLITS
    start, stop = split * each, tl.minimum(split * each + each, pages)
    g, at, token = tl.arange(0, GROUP2), tl.arange(0, DIM), tl.arange(0, PAGE)
    heads = kv * group + g
    mine = (g < group)[:, None] & (at < DIM)[None, :]
    queries = tl.load(q + row * (HEADS * DIM) + heads[:, None] * DIM + at[None, :], mask=mine, other=0.0)
    high = tl.full((GROUP2,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP2,), tl.float32)
    out = tl.zeros((GROUP2, DIM), tl.float32)
    for page in range(start, stop):
        slots = tl.load(table + row * table_stride + page).to(tl.int64) * PAGE + token
        where = slots[:, None] * (KV * DIM) + kv * DIM + at[None, :]
        keys = tl.load(k_cache + where)
        values = tl.load(v_cache + where)
        seen = page * PAGE + token < length
        score = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        new = tl.maximum(high, tl.max(score, 1))
        p = tl.exp(score - new[:, None])
        keep = tl.exp(high - new)
        total = total * keep + tl.sum(p, 1)
        values = tl.where(seen[:, None], values, 0.0)
        out = out * keep[:, None] + tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
        high = new
    place = (row * HEADS + heads) * SPLITS + split
    tl.store(part_out + place[:, None] * DIM + at[None, :], out, mask=mine)
    tl.store(part_high + place, high, mask=g < group)
    tl.store(part_sum + place, total, mask=g < group)


@triton.jit
def _join_parts(part_out, part_high, part_sum, out, DIM: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    s, at = tl.arange(0, SPLITS), tl.arange(0, DIM)
    high = tl.load(part_high + head * SPLITS + s)
    top = tl.max(high)
    weight = tl.exp(high - top)
    total = tl.sum(tl.load(part_sum + head * SPLITS + s) * weight)
    parts = tl.load(part_out + (head * SPLITS + s[:, None]) * DIM + at[None, :])
    tl.store(out + head * DIM + at, tl.sum(parts * weight[:, None], 0) / total)


def attend_pages(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    rows, heads, dim = q.shape
    kv = k_cache.shape[1]
    splits = max(1, min(16, triton.next_power_of_2(triton.cdiv(396, rows * kv))))
    part_out = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=q.device)
    part_high = torch.empty(rows, heads, splits, dtype=torch.float32, device=q.device)
    part_sum = torch.empty_like(part_high)
    _attend_pages[(rows, kv, splits)](
        q, k_cache, v_cache, table, positions, part_out, part_high, part_sum, table.stride(0), dim**-0.5, HEADS=heads,
        KV=kv, DIM=dim, GROUP2=max(16, _block(heads // kv)), PAGE=PAGE, SPLITS=splits, PRECISION=_precision(q),
        num_warps=4, num_stages=3,
    )  # fmt: skip
    out = torch.empty(rows, heads * dim, dtype=q.dtype, device=q.device)
    _join_parts[(rows * heads,)](part_out, part_high, part_sum, out, DIM=dim, SPLITS=splits, num_warps=1)
    return out


# --- sampling: sample.py's hash and rule, the third twin -----------------------------------------------------


@triton.jit
def _mix32(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _noise_bits(low, high, position, entry):
    """32 random bits of (key, token's position, vocabulary entry): `sample.bits`."""
    token = _mix32(position.to(tl.uint32) * 0x9E3779B9 + 1)
    return _mix32(_mix32(entry.to(tl.uint32) * 0x9E3779B9 + _mix32(low ^ token)) ^ _mix32(high + token))


@triton.jit(do_not_specialize=["position"])
def _random_bits(low, high, position, out, entries, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    found = _noise_bits(
        tl.load(low + row).to(tl.uint32, bitcast=True),
        tl.load(high + row).to(tl.uint32, bitcast=True),
        position,
        at,
    )
    tl.store(out + row * entries + at, found.to(tl.int32, bitcast=True), mask=at < entries)


def random_bits(low: torch.Tensor, high: torch.Tensor, position: int, entries: int) -> torch.Tensor:
    """The hash alone, for the test of the twins: (rows, entries) int32 that holds uint32."""
    out = torch.empty(len(low), entries, dtype=torch.int32, device=low.device)
    at = torch.tensor(position, dtype=torch.int32).item()
    _random_bits[(len(low), triton.cdiv(entries, 1024))](low, high, at, out, entries, BLOCK=1024)
    return out


@triton.jit
def _choose(
    logits, low, high, count, temperature, best_score, best_value, best_at, part_high, part_sum, entries, stride,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    key_low = tl.load(low + row).to(tl.uint32, bitcast=True)
    key_high = tl.load(high + row).to(tl.uint32, bitcast=True)
    position = tl.load(count + row)
    heat = tl.load(temperature + row)
    greedy = heat == 0.0
    divisor = tl.where(greedy, 1.0, heat)
    each = tl.cdiv(tl.cdiv(entries, SPLITS), BLOCK) * BLOCK
    at = tl.arange(0, BLOCK)
    top_score = tl.full((BLOCK,), float("-inf"), tl.float32)
    top_value = tl.full((BLOCK,), float("-inf"), tl.float32)
    top_at = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.float32)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(split * each, tl.minimum(split * each + each, entries), BLOCK):
        entry = first + at
        ok = entry < entries
        value = tl.load(logits + row * stride + entry, mask=ok, other=float("-inf")).to(tl.float32) / divisor
        u = (_noise_bits(key_low, key_high, position, entry).to(tl.float32) + 0.5) * 2.3283064365386963e-10
        u = tl.minimum(u, 0.99999994039535522)
        score = value - tl.where(greedy, 0.0, tl.log(-_log1p(-u)))
        better = ok & (score > top_score)
        top_score = tl.where(better, score, top_score)
        top_value = tl.where(better, value, top_value)
        top_at = tl.where(better, entry, top_at)
        new = tl.maximum(most, value)
        total = tl.where(ok, total * tl.exp(most - new) + tl.exp(value - new), total)
        most = tl.where(ok, new, most)
    where = row * SPLITS + split
    peak = tl.max(top_score)
    # the lowest entry among equals, as argmax
    winner = tl.min(tl.where(top_score == peak, top_at, 1 << 30))
    tl.store(best_score + where, peak)
    tl.store(best_at + where, winner)
    tl.store(
        best_value + where,
        tl.max(tl.where((top_at == winner) & (top_score == peak), top_value, float("-inf"))),
    )
    highest = tl.max(most)
    tl.store(part_high + where, highest)
    tl.store(part_sum + where, tl.sum(tl.where(most == float("-inf"), 0.0, total * tl.exp(most - highest))))


@triton.jit
def _log1p(x):
    """log(1 + x) that is exact near 0 (Kahan's rule), where the winners of the Gumbel race are."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@triton.jit
def _advance(
    best_score, best_value, best_at, part_high, part_sum, token, position, slot, count, limit, done, line, table,
    ends, tokens, logprobs, counts, table_stride, capacity,
    SPLITS: tl.constexpr, ENDS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, SPLITS)
    score = tl.load(best_score + row * SPLITS + s)
    at = tl.load(best_at + row * SPLITS + s)
    peak = tl.max(score)
    chosen = tl.min(tl.where(score == peak, at, 1 << 30))
    mine = (score == peak) & (at == chosen)
    value = tl.max(tl.where(mine, tl.load(best_value + row * SPLITS + s), float("-inf")))
    high = tl.load(part_high + row * SPLITS + s)
    top = tl.max(high)
    log_sum = top + tl.log(tl.sum(tl.load(part_sum + row * SPLITS + s) * tl.exp(high - top)))
    if tl.load(done + row) == 0:
        n = tl.load(count + row)
        where = tl.load(line + row).to(tl.int64)
        tl.store(tokens + where * capacity + n, chosen)
        tl.store(logprobs + where * capacity + n, value - log_sum)
        tl.store(counts + where, n + 1)
        tl.store(count + row, n + 1)
        ended = n + 1 >= tl.load(limit + row)
        for i in range(ENDS):
            ended = ended | (chosen == tl.load(ends + i))
        tl.store(done + row, ended.to(tl.int32))
        next_position = tl.load(position + row) + 1
        if not ended:
            tl.store(token + row, chosen)
            tl.store(position + row, next_position)
            page = tl.load(table + row * table_stride + next_position // PAGE)
            tl.store(slot + row, page.to(tl.int64) * PAGE + next_position % PAGE)


def choose_and_advance(logits: torch.Tensor, state: dict[str, torch.Tensor], ends: torch.Tensor) -> None:
    """Samples every row's next token and writes it, its log-probability and what follows into the state."""
    rows, entries = logits.shape
    splits = 16 if rows <= 64 else 8
    f32 = [torch.empty(rows, splits, dtype=torch.float32, device=logits.device) for _ in range(4)]
    best_at = torch.empty(rows, splits, dtype=torch.int32, device=logits.device)
    s = state
    _choose[(rows, splits)](
        logits, s["low"], s["high"], s["count"], s["temperature"], f32[0], f32[1], best_at, f32[2], f32[3], entries,
        logits.stride(0), SPLITS=splits, BLOCK=1024, num_warps=8,
    )  # fmt: skip
    _advance[(rows,)](
        f32[0], f32[1], best_at, f32[2], f32[3], s["token"], s["position"], s["slot"], s["count"], s["limit"],
        s["done"], s["line"], s["table"], ends, s["tokens"], s["logprobs"], s["counts"], s["table"].stride(0),
        s["tokens"].shape[1], SPLITS=splits, ENDS=len(ends), PAGE=PAGE, num_warps=1,
    )  # fmt: skip
