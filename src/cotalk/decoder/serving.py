"""The forward pass of tokens whose rows name their adapters, over a paged KV cache: reading prompts, and one step.

A page holds PAGE tokens of one sequence, keys and values of every layer; a row's table lists its pages. Full pages can
be shared: the chats of a task read the same prompt. A prompt is read without its last token; the step takes that
one as its first input, so that only steps ever make logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cotalk.decoder.attention import Spans, attend
from cotalk.decoder.ops import PAGE, on, to_device
from cotalk.decoder.weights import Decoder, Layer


@dataclass(frozen=True)
class Stretch:
    """Tokens of one sequence to be read: `ids` from place `start` on, into (and after what is in) `pages`."""

    adapter: int
    ids: Sequence[int]
    start: int
    pages: Sequence[int]


class Cache:
    """Keys and values of every layer. k(layer), v(layer): (pages * PAGE, kv heads, head dim). Page 0 is scratch."""

    def __init__(self, decoder: Decoder, pages: int):
        shape = (len(decoder.layers), 2, pages * PAGE, decoder.kv_heads, decoder.head_dim)
        self.pages = pages
        self.data = torch.zeros(shape, dtype=decoder.dtype, device=decoder.device)

    def k(self, layer: int) -> torch.Tensor:
        return self.data[layer, 0]

    def v(self, layer: int) -> torch.Tensor:
        return self.data[layer, 1]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole pages."""
        if sources:
            paged = self.data.view(*self.data.shape[:2], self.pages, -1)
            chosen = torch.tensor([*sources], device=self.data.device)
            paged[:, :, torch.tensor([*targets], device=self.data.device)] = paged[:, :, chosen]

    def grown(self, decoder: Decoder, pages: int) -> Cache:
        larger = Cache(decoder, pages)
        larger.data[:, :, : self.data.shape[2]] = self.data
        return larger


class Serving:
    """The layers of a decoder for mixed rows."""

    def __init__(self, decoder: Decoder):
        self.decoder, self.ops = decoder, on(decoder.device)

    @torch.no_grad()
    def read(self, stretches: Sequence[Stretch], cache: Cache) -> None:
        """Writes the keys and values of these tokens (sequences sorted by adapter) into their pages."""
        d = self.decoder
        adapters: list[int] = []
        ids: list[int] = []
        positions: list[int] = []
        slots: list[torch.Tensor] = []
        own: list[torch.Tensor] = []
        for s in stretches:
            end = s.start + len(s.ids)
            at = torch.arange(end)
            places = torch.tensor(s.pages)[at // PAGE] * PAGE + at % PAGE
            slots.append(places)
            own.append(places[s.start :])
            ids += s.ids
            positions += range(s.start, end)
            adapters += [s.adapter] * len(s.ids)
        on_device = [to_device(x, torch.int32, d.device) for x in (adapters, positions)]
        spans = Spans.of([len(s.ids) for s in stretches], [len(x) for x in slots], d.device)
        keys, mine = (to_device(torch.cat(x), torch.long, d.device) for x in (slots, own))
        h = d.embedding[to_device(ids, torch.long, d.device)]
        for i, layer in enumerate(d.layers):
            q = self._placed(layer, h, on_device[0], on_device[1], mine, cache, i)
            if i + 1 == len(d.layers):
                return  # nothing reads the last layer's output
            out, _ = attend(q, cache.k(i)[keys], cache.v(i)[keys], spans)
            self._finish(layer, h, out.flatten(1), on_device[0])

    def step(self, state: dict[str, torch.Tensor], cache: Cache, rows: int) -> torch.Tensor:
        """Logits (rows, entries) of the next token of the state's first rows; their keys and values are cached."""
        d = self.decoder
        adapters, positions = state["adapter"][:rows], state["position"][:rows]
        slots, table = state["slot"][:rows], state["table"][:rows]
        h = torch.index_select(d.embedding, 0, state["token"][:rows])
        for i, layer in enumerate(d.layers):
            q = self._placed(layer, h, adapters, positions, slots, cache, i)
            out = self.ops.attend_pages(q, cache.k(i), cache.v(i), table, positions)
            self._finish(layer, h, out, adapters)
        n = torch.empty_like(h)
        self.ops.norm(h, d.norm_out, d.eps, n)
        return n @ d.head.T

    def _placed(
        self, layer: Layer, h: torch.Tensor, adapters: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor,
        cache: Cache, i: int,
    ) -> torch.Tensor:  # fmt: skip
        d = self.decoder
        q = h.new_empty(len(h), d.heads, d.head_dim)
        y = self.ops.product(self._normed(h, layer.norm_in), layer.qkv, adapters)
        self.ops.place(y, adapters, positions, slots, d, layer, q, cache.k(i), cache.v(i))
        return q

    def _finish(self, layer: Layer, h: torch.Tensor, attended: torch.Tensor, adapters: torch.Tensor) -> None:
        """The rest of a block after its attention; h is changed in place."""
        self.ops.add_lora(h, self.ops.product(attended, layer.o, adapters), layer.o, adapters)
        y = self.ops.product(self._normed(h, layer.norm_mid), layer.gate_up, adapters)
        act = h.new_empty(len(h), self.decoder.mlp)
        self.ops.silu_lora(y, layer.gate_up, adapters, act)
        self.ops.add_lora(h, self.ops.product(act, layer.down, adapters), layer.down, adapters)

    def _normed(self, h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        n = torch.empty_like(h)
        self.ops.norm(h, weight, self.decoder.eps, n)
        return n
