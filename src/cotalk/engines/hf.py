"""The `hf` engine: any transformers causal LM with the stack, on a CPU or a GPU. Slow, everywhere, the oracle.

Prefill once for each different prompt, then one token for every row at a time; rows that ended leave the batch when
half of it has. Sampling is keyed (sample.py), so what a row draws depends on its own key and probabilities only.

A run must not depend on its neighbours. On a CPU, where float32 products change bits with the number of rows and
stacking gains nothing (a tiny model is bound by arithmetic), each run's batch is computed by itself: the shapes are
those of the run alone, and equality holds by construction. On a GPU all batches are one.

Left out: CUDA graphs, KV reuse across turns, fused kernels (the `fast` engine).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from cotalk.chat import Reply, View
from cotalk.errors import OutOfMemory
from cotalk.lora import Segment, Stack
from cotalk.sample import KeyedNoise, draw


class RoomyLayer(DynamicLayer):
    """A cache layer with room for all that will come, so that a step writes one column and copies nothing."""

    def __init__(self, room: int):
        super().__init__()
        self.room, self.length = room, 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        shape = list(key_states.shape)
        shape[2] = self.room
        self._k, self._v = (
            key_states.new_empty(shape),
            value_states.new_empty([*shape[:3], value_states.shape[3]]),
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        self._k[:, :, self.length : end] = key_states
        self._v[:, :, self.length : end] = value_states
        self.length = end
        self.keys, self.values = self._k[:, :, :end], self._v[:, :, :end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def choose(self, rows: torch.Tensor) -> None:
        """Goes on with these rows (in this order, repeats allowed)."""
        self._k, self._v = self._k.index_select(0, rows), self._v.index_select(0, rows)
        self.keys, self.values = self._k[:, :, : self.length], self._v[:, :, : self.length]


class HfEngine:
    """Args: stack; end_ids: tokens that end a turn; rows: at most this many in one forward pass."""

    def __init__(self, stack: Stack, end_ids: Sequence[int], rows: int = 512):
        self.stack, self.rows = stack, rows
        self.one_batch = stack.device.type != "cpu"
        self._ends = torch.tensor(list(end_ids), device=stack.device)
        # transformers' own reading of the config: sliding windows and the like need its caches and masks
        self._plain = all(
            type(layer) is DynamicLayer for layer in DynamicCache(config=stack.model.config).layers
        )
        self._vocabulary = stack.model.get_output_embeddings().weight.shape[0]

    def reply(self, batches: Sequence[Sequence[View]]) -> list[list[Reply]]:
        if self.one_batch:
            flat = iter(self._chunks([v for batch in batches for v in batch]))
            return [[next(flat) for _ in batch] for batch in batches]
        return [self._chunks(list(batch)) for batch in batches]

    def _chunks(self, views: list[View]) -> list[Reply]:
        return [r for i in range(0, len(views), self.rows) for r in self._fit(views[i : i + self.rows])]

    def _fit(self, views: list[View]) -> list[Reply]:
        """Answers these views together, or in halves where they do not fit in memory."""
        try:
            return self._generate(views)
        except torch.OutOfMemoryError as error:
            if len(views) == 1:
                tokens = len(views[0].ids) + views[0].max_tokens
                told = f"one row of {tokens:,} tokens does not fit in memory: lower the token budgets"
                raise OutOfMemory(told) from error
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        half = len(views) // 2
        return [*self._fit(views[:half]), *self._fit(views[half:])]

    @torch.no_grad()
    def _generate(self, views: list[View]) -> list[Reply]:
        order = sorted(range(len(views)), key=lambda i: views[i].player.adapter)
        rows = [views[i] for i in order]
        replies = _Decoding(self, rows).run()
        out: list[Reply] = [Reply()] * len(views)
        for place, reply in zip(order, replies, strict=True):
            out[place] = reply
        return out

    def cache(self, room: int) -> Cache:
        config = self.stack.model.config
        if not self._plain:
            return DynamicCache(config=config)
        return Cache(layers=[RoomyLayer(room) for _ in range(config.get_text_config().num_hidden_layers)])


def segments_of(adapters: Sequence[int]) -> list[Segment]:
    """Rows sorted by adapter -> (adapter, first, after the last)."""
    out: list[Segment] = []
    for i, k in enumerate(adapters):
        if out and out[-1][0] == k:
            out[-1] = (k, out[-1][1], i + 1)
        else:
            out.append((k, i, i + 1))
    return out


class _Decoding:
    """One batch from prompt to last token. Rows are sorted by adapter, and stay so as rows leave."""

    def __init__(self, engine: HfEngine, rows: list[View]):
        self.engine, self.rows = engine, rows
        self.device = engine.stack.device
        self.alive = list(range(len(rows)))
        self.adapters = [v.player.adapter for v in rows]
        self.max_tokens = max(v.max_tokens for v in rows)
        self.noise = KeyedNoise([v.key for v in rows], engine._vocabulary, self.device)
        self.temperature = torch.tensor([v.temperature for v in rows], device=self.device)
        self.limits = torch.tensor([v.max_tokens for v in rows], device=self.device)

    def run(self) -> list[Reply]:
        logits = self._prefill()
        tokens_kept, logprobs_kept, alive_kept = [], [], []
        done = torch.zeros(len(self.rows), dtype=torch.bool, device=self.device)
        for position in range(self.max_tokens):
            tokens, logprobs = draw(logits, self.temperature, self.noise.at(position))
            tokens_kept.append(tokens)
            logprobs_kept.append(logprobs)
            alive_kept.append((self.alive, ~done))
            done = done | torch.isin(tokens, self.engine._ends) | (self.limits <= position + 1)
            left = int((~done).sum())
            if left == 0:
                break
            if left <= len(self.alive) // 2:
                keep = (~done).nonzero()[:, 0]
                self._keep(keep)
                tokens, done = tokens[keep], done[keep]
            logits = self._step(tokens)
        return self._collect(tokens_kept, logprobs_kept, alive_kept)

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, adapters: list[int]
    ) -> torch.Tensor:
        with self.engine.stack.serving(segments_of(adapters)):
            out = self.engine.stack.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=self.cache,
                use_cache=True, logits_to_keep=1,
            )  # fmt: skip
        return out.logits[:, -1]

    def _prefill(self) -> torch.Tensor:
        """Every different (adapter, prompt) once, left-padded; then its rows. Returns (rows, vocabulary)."""
        unique: dict[tuple[int, tuple[int, ...]], int] = {}
        index = [unique.setdefault((v.player.adapter, v.ids), len(unique)) for v in self.rows]
        prompts = [ids for _, ids in unique]
        length = max(map(len, prompts))
        ids = torch.zeros(len(prompts), length, dtype=torch.long)
        real = torch.zeros(len(prompts), length, dtype=torch.bool)
        for i, p in enumerate(prompts):
            ids[i, length - len(p) :] = torch.tensor(p)
            real[i, length - len(p) :] = True
        ids, real = ids.to(self.device), real.to(self.device)
        positions = (real.long().cumsum(-1) - 1).clamp_(min=0)
        self.cache = self.engine.cache(length + self.max_tokens)
        mask = _causal(real) if self.engine._plain else real
        logits = self._forward(ids, mask, positions, [k for k, _ in unique])
        self.real, self.position = real, positions[:, -1]
        if len(prompts) < len(self.rows):
            chosen = torch.tensor(index, device=self.device)
            self._choose(chosen)
            logits = logits[chosen]
        return logits

    def _choose(self, chosen: torch.Tensor) -> None:
        self.real, self.position = self.real[chosen], self.position[chosen]
        for layer in self.cache.layers:
            if isinstance(layer, RoomyLayer):
                layer.choose(chosen)
            else:
                layer.batch_select_indices(chosen)  # type: ignore[union-attr]

    def _keep(self, keep: torch.Tensor) -> None:
        places = keep.tolist()
        self.alive = [self.alive[i] for i in places]
        self.adapters = [self.adapters[i] for i in places]
        self.noise.keep(places)
        self.temperature, self.limits = self.temperature[keep], self.limits[keep]
        self._choose(keep)

    def _step(self, tokens: torch.Tensor) -> torch.Tensor:
        self.real = torch.cat([self.real, self.real.new_ones(len(tokens), 1)], dim=1)
        self.position = self.position + 1
        mask = self.real[:, None, None, :] if self.engine._plain else self.real
        return self._forward(tokens[:, None], mask, self.position[:, None], self.adapters)

    def _collect(self, tokens: list, logprobs: list, alive: list) -> list[Reply]:
        ids: list[list[int]] = [[] for _ in self.rows]
        lps: list[list[float]] = [[] for _ in self.rows]
        for t, lp, (who, live) in zip(tokens, logprobs, alive, strict=True):
            for row, token, logprob, on in zip(who, t.tolist(), lp.tolist(), live.tolist(), strict=True):
                if on:
                    ids[row].append(token)
                    lps[row].append(logprob)
        ends = set(self.engine._ends.tolist())
        return [
            Reply(tuple(i), tuple(lp), cut=not i or i[-1] not in ends) for i, lp in zip(ids, lps, strict=True)
        ]


def _causal(real: torch.Tensor) -> torch.Tensor:
    """(rows, tokens) -> (rows, 1, tokens, tokens): causal, padding unseen; padding sees itself (no empty softmax)."""
    n = real.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool, device=real.device).tril()
    self_only = torch.eye(n, dtype=torch.bool, device=real.device)
    return ((causal & real[:, None, :]) | self_only)[:, None]
