"""Attention of packed sequences of different lengths, forward and backward.

Sequence s has queries q[q_ends[s]:q_ends[s+1]] and keys k[k_ends[s]:k_ends[s+1]], and its last query stands at its
last key: with more keys than queries, the earlier keys are a prefix that is read and not asked again (a cached
prompt, or one that several rows share). On a GPU in half precision this is torch's flash attention of variable length
(arXiv 2307.08691), elsewhere an sdpa twin over padded sequences.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from cotalk.decoder.ops import to_device

FLASH = torch.ops.aten


@dataclass
class Spans:
    """Where sequences begin and end. q_ends, k_ends: (sequences + 1,) int32, from 0; longest_*: in tokens."""

    q_ends: torch.Tensor
    k_ends: torch.Tensor
    longest_q: int
    longest_k: int

    @staticmethod
    def of(q_lengths: list[int], k_lengths: list[int], device: torch.device) -> Spans:
        def ends(lengths: list[int]) -> torch.Tensor:
            return to_device([0, *itertools.accumulate(lengths)], torch.int32, device)

        return Spans(ends(q_lengths), ends(k_lengths), max(q_lengths), max(k_lengths))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans) -> tuple[torch.Tensor, Any]:
    """q: (queries, heads, dim); k, v: (keys, kv heads, dim) -> (queries, heads, dim), and what the way back needs."""
    if not _flash(q):
        return _twin(q, k, v, spans), None
    out, log_sum, seed, offset, _ = FLASH._flash_attention_forward(
        q,
        k,
        v,
        spans.q_ends,
        spans.k_ends,
        spans.longest_q,
        spans.longest_k,
        0.0,
        True,
        False,
        scale=q.shape[2] ** -0.5,
    )
    return out, (log_sum, seed, offset)


def attend_backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    kept: Any,
    spans: Spans,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v."""
    if kept is None:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            dq, dk, dv = torch.autograd.grad(_twin(leaves[0], leaves[1], leaves[2], spans), leaves, d_out)
        return dq, dk, dv
    log_sum, seed, offset = kept
    return FLASH._flash_attention_backward(
        d_out, q, k, v, out, log_sum, spans.q_ends, spans.k_ends, spans.longest_q, spans.longest_k, 0.0, True, seed,
        offset, scale=q.shape[2] ** -0.5,
    )  # fmt: skip


def _flash(q: torch.Tensor) -> bool:
    return q.is_cuda and q.dtype != torch.float32


def _twin(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans) -> torch.Tensor:
    """All sequences padded to the longest, with a mask; padded queries see everything (no empty softmax)."""
    q_at, q_real, q_length = _padding(spans.q_ends, spans.longest_q)
    k_at, k_real, k_length = _padding(spans.k_ends, spans.longest_k)
    place = torch.arange(spans.longest_q, device=q.device) + (k_length - q_length)[:, None]
    seen = (torch.arange(spans.longest_k, device=q.device) <= place[:, :, None]) & k_real[:, None]
    mask = (seen | ~q_real[:, :, None])[:, None]
    out = F.scaled_dot_product_attention(
        q[q_at].transpose(1, 2), k[k_at].transpose(1, 2), v[k_at].transpose(1, 2), attn_mask=mask,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    return out.transpose(1, 2)[q_real]


def _padding(ends: torch.Tensor, longest: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row of the packed tensor for every padded place, which places are real, and the lengths."""
    wide = ends.long()
    lengths = wide[1:] - wide[:-1]
    at = torch.arange(longest, device=ends.device)
    real = at < lengths[:, None]
    return torch.where(real, wide[:-1, None] + at, 0), real, lengths
