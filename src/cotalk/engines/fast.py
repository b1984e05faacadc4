"""The `fast` engine: Llama-family decoders with the stack, one batch for all who wait. `hf` is its oracle.

A call becomes replies in three steps:

    1. plan     every different prompt once; what of it an earlier turn or another chat has already read
    2. read     the rest of every prompt, packed, into pages of the KV cache (serving.Serving.read)
    3. decode   one token for every row at a time (Serving.step), sampled on the device with the row's own key

Nothing in step 3 waits for the host: a token, its log-probability and whether its row has ended are written into the
state on the device, the host looks every few tokens, and rows that ended leave the batch. On a GPU a step is one CUDA
graph for each number of rows, all from one pool of memory. On a CPU each run's batch is answered by itself, as in `hf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cotalk.chat import Reply, View
from cotalk.decoder.ops import PAGE, on
from cotalk.decoder.serving import Cache, Serving, Stretch
from cotalk.decoder.weights import Decoder
from cotalk.engines.pages import Entry, Pool
from cotalk.errors import OutOfMemory, RunFailed
from cotalk.lora import Stack

BUCKETS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
LOOK_EVERY = 4  # tokens between two looks of the host at who has ended
READ_TOKENS = 16384  # of prompts in one packed pass
KV_SHARE = 0.25  # of a GPU's memory, for the cache

Prompt = tuple[int, tuple[int, ...]]  # adapter, token ids


@dataclass
class _Row:
    """A view on its way to a reply. pages: own or shared, in order; copied: (from, to), once prompts are read."""

    view: View
    place: int
    pages: list[int] = field(default_factory=list)
    copied: list[tuple[int, int]] = field(default_factory=list)

    @property
    def adapter(self) -> int:
        return self.view.player.adapter

    @property
    def length(self) -> int:
        return len(self.view.ids) + self.view.max_tokens


class FastEngine:
    """Args: stack; end_ids: tokens that end a turn; rows: at most this many decode at once; kv_bytes: of the cache at
    most (a share of the GPU's memory when not given; it grows as it is needed). Raises `weights.Unsupported`."""

    def __init__(self, stack: Stack, end_ids: Sequence[int], rows: int = 512, kv_bytes: int | None = None):
        self.stack, self.rows = stack, rows
        self.decoder = Decoder.of(stack)
        self.on_gpu = stack.device.type == "cuda"
        self.one_batch = self.on_gpu
        self._ends = torch.tensor(list(end_ids), dtype=torch.int32, device=stack.device)
        self._end_ids = frozenset(end_ids)
        self._serving, self._ops = Serving(self.decoder), on(stack.device)
        if kv_bytes is None and self.on_gpu:
            kv_bytes = int(KV_SHARE * torch.cuda.get_device_properties(stack.device).total_memory)
        page_bytes = PAGE * self.decoder.kv_bytes_a_token
        self._page_limit = max(2, kv_bytes // page_bytes) if kv_bytes else None
        self._cache = Cache(self.decoder, min(64, self._page_limit or 64))
        self._pool = Pool(self._cache.pages)
        self._versions = self.decoder.refresh()
        self._state: _State | None = None
        self.read_tokens = 0  # of prompts, in all calls: what prefixes did not save

    def reply(self, batches: Sequence[Sequence[View]]) -> list[list[Reply]]:
        self._refresh()
        if self.one_batch:
            flat = iter(self._answer([v for batch in batches for v in batch]))
            return [[next(flat) for _ in batch] for batch in batches]
        return [self._answer(list(batch)) for batch in batches]

    def _refresh(self) -> None:
        """Takes over adapters that were written, and forgets what they had read before."""
        now = self.decoder.refresh()
        for k, (before, version) in enumerate(zip(self._versions, now, strict=True)):
            if before != version:
                self._pool.drop_adapter(k)
        self._versions = now

    def _answer(self, views: list[View]) -> list[Reply]:
        rows = sorted((_Row(v, i) for i, v in enumerate(views)), key=lambda r: (r.adapter, r.view.max_tokens))
        out: list[Reply] = [Reply()] * len(views)
        for i in range(0, len(rows), self.rows):
            for row, reply in zip(rows[i : i + self.rows], self._fit(rows[i : i + self.rows]), strict=True):
                out[row.place] = reply
        return out

    def _fit(self, rows: list[_Row]) -> list[Reply]:
        """Answers these rows together, or in halves where they do not fit in memory."""
        longest = max(r.length for r in rows)
        room = len(self.decoder.cos)
        if longest > room:
            raise RunFailed(
                f"a row may need {longest:,} tokens and the base holds {room:,}: lower the token budgets",
                "base/context",
            )
        if self._make_room(sum(-(-r.length // PAGE) + 1 for r in rows)):
            try:
                return self._generate(rows)
            except torch.OutOfMemoryError as error:  # of activations, beside the cache
                if len(rows) == 1:
                    told = f"one row of {longest:,} tokens does not fit in memory: lower the token budgets"
                    raise OutOfMemory(told) from error
                self._give_back(rows)
        elif len(rows) == 1:
            raise OutOfMemory(
                f"a row of {longest:,} tokens does not fit in the KV cache of {self._pool.size * PAGE:,} tokens: lower "
                "the token budgets",
                "memory/full",
            )
        half = len(rows) // 2
        return [*self._fit(rows[:half]), *self._fit(rows[half:])]

    def _give_back(self, rows: list[_Row]) -> None:
        """After a batch that did not fit: its pages, its graphs and their memory."""
        for row in rows:
            self._pool.release(row.pages)
            row.pages, row.copied = [], []
        self._state = None
        torch.cuda.empty_cache()

    def _make_room(self, pages: int) -> bool:
        """Whether that many pages can be had. A cache that is too small is made larger, then kept prefixes give way.

        On a CPU without a limit they never do: what a run reads again must not depend on its neighbours.
        """
        if self.on_gpu and self._pool.size <= pages < (limit := self._page_limit or 4 * pages):
            # a copy would need both at once: begin anew (no row is on its way; prefixes are read again)
            self._state = None
            del self._cache
            torch.cuda.empty_cache()
            size = min(4 * pages, limit)  # room for what other turns keep
            self._cache, self._pool = Cache(self.decoder, size), Pool(size)
        elif not self.on_gpu and (lacking := pages - self._pool.free) > 0:
            size = max(self._pool.size + lacking, 2 * self._pool.size)
            size = min(size, self._page_limit or size)
            self._cache = self._cache.grown(self.decoder, size)
            self._pool.grow(size)
        return pages < self._pool.size

    @torch.no_grad()
    def _generate(self, rows: list[_Row]) -> list[Reply]:
        for stretches in self._plan(rows):
            self._read(stretches)
        pairs = [pair for row in rows for pair in row.copied]
        self._cache.copy([a for a, _ in pairs], [b for _, b in pairs])
        replies = self._decode(rows)
        for row, reply in zip(rows, replies, strict=True):
            self._leave(row, reply)
        return replies

    @torch.no_grad()
    def stepping(self, views: Sequence[View]) -> Callable[[], None]:
        """Reads these prompts and returns a call that decodes one token of every row (for measuring)."""
        rows = sorted((_Row(v, i) for i, v in enumerate(views)), key=lambda r: r.adapter)
        self._refresh()
        self._make_room(sum(-(-r.length // PAGE) + 1 for r in rows))
        for stretches in self._plan(rows):
            self._read(stretches)
        state = self._state_for(rows)
        live = state._fill(rows)
        size = state._size(live, live)
        for row in rows:
            self._pool.release(row.pages)
        return lambda: state._step(size)

    # --- 1. plan ---

    def _plan(self, rows: list[_Row]) -> tuple[list[Stretch], list[Stretch]]:
        """Gives every row its pages. Returns what is to be read into them: first what prompts share, then the rest."""
        prompts: dict[Prompt, list[_Row]] = {}
        for row in rows:
            prompts.setdefault((row.adapter, row.view.ids), []).append(row)
        known = self._known(rows)
        stems, stem_of = self._stems([prompt for prompt in prompts if prompt not in known])
        rest: list[Stretch] = []
        tails: list[tuple[int, int]] = []
        for prompt, group in prompts.items():
            (adapter, ids), length = prompt, len(prompt[1]) - 1
            entry = known.get(prompt) or stem_of.get(prompt) or Entry((), 0)
            pages, tail = self._prompt_pages(entry, length)
            tails += tail
            rest.append(Stretch(adapter, ids[entry.length : -1], entry.length, pages))
            self._deal(group, pages, length)
        self._cache.copy([a for a, _ in tails], [b for _, b in tails])
        for entry in known.values():
            self._pool.release(entry.pages)
        for stem in stems:
            self._pool.release(stem.pages)
        return stems, [s for s in rest if s.ids]

    def _stems(self, prompts: list[Prompt]) -> tuple[list[Stretch], dict[Prompt, Entry]]:
        """What several prompts of one adapter begin with, in whole pages: read once, shared by all of them."""
        stems: list[Stretch] = []
        stem_of: dict[Prompt, Entry] = {}
        for cluster, length in _clusters(sorted(prompts)):
            adapter, ids = cluster[0]
            pages = self._pool.take(length // PAGE)
            stems.append(Stretch(adapter, ids[:length], 0, pages))
            stem_of |= dict.fromkeys(cluster, Entry(tuple(pages), length))
        return stems, stem_of

    def _known(self, rows: list[_Row]) -> dict[Prompt, Entry]:
        """What the rows' own last turns left in the cache, of the prompts that go on from it; the caller owns it.

        It is found by the very reply that the engine gave, not by equal ids: another run that said the same is not
        this run. Nobody goes on from a turn twice, so it is kept no longer (a transcript never does).
        """
        known: dict[Prompt, Entry] = {}
        for row in rows:
            if not row.view.scene.own_ids:
                continue
            before, ids, _ = row.view.scene.own_ids[-1]
            name, prompt = (row.adapter, id(ids)), (row.adapter, row.view.ids)
            entry = self._pool.find(name)
            if entry and prompt not in known and row.view.ids[: len(before) + len(ids)] == (*before, *ids):
                self._pool.share(entry.pages)
                known[prompt] = entry
            self._pool.drop(name)
        return known

    def _prompt_pages(self, entry: Entry, length: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Pages for a prompt's first `length` tokens: the entry's full ones shared, its last one to be copied."""
        full, rest = divmod(entry.length, PAGE)
        self._pool.share(entry.pages[:full])
        new = self._pool.take(-(-length // PAGE) - full)
        return [*entry.pages[:full], *new], [(entry.pages[full], new[0])] if rest else []

    def _deal(self, group: list[_Row], prompt: list[int], length: int) -> None:
        """The rows of one prompt: full pages shared, the last one the first row's own and copied for the others."""
        full, rest = divmod(length, PAGE)
        group[0].pages = [*prompt, *self._pool.take(-(-group[0].length // PAGE) - len(prompt))]
        for row in group[1:]:
            self._pool.share(prompt[:full])
            row.pages = [*prompt[:full], *self._pool.take(-(-row.length // PAGE) - full)]
            if rest:
                row.copied = [(prompt[full], row.pages[full])]

    # --- 2. read ---

    def _read(self, stretches: Sequence[Stretch]) -> None:
        batch: list[Stretch] = []
        tokens = 0
        for s in stretches:
            if batch and tokens + len(s.ids) > READ_TOKENS:
                self._serving.read(batch, self._cache)
                batch, tokens = [], 0
            batch.append(s)
            tokens += len(s.ids)
            self.read_tokens += len(s.ids)
        if batch:
            self._serving.read(batch, self._cache)

    # --- 3. decode ---

    def _decode(self, rows: list[_Row]) -> list[Reply]:
        return self._state_for(rows).decode(rows)

    def _state_for(self, rows: list[_Row]) -> _State:
        pages, new = max(len(r.pages) for r in rows), max(r.view.max_tokens for r in rows)
        state = self._state
        if state is None or not state.holds(len(rows), pages, new):
            state = self._state = _State(self, max(len(rows), min(self.rows, 64)), pages, new, state)
        return state

    def _leave(self, row: _Row, reply: Reply) -> None:
        """Keeps what was read of a message that is not its seat's last, and gives the rest back."""
        if row.view.scene.last or not reply.ids:
            self._pool.release(row.pages)
            return
        read = len(row.view.ids) + len(reply.ids) - 1  # the last token was sampled, not read
        self._pool.keep((row.adapter, id(reply.ids)), Entry(tuple(row.pages), read, reply.ids))


def _clusters(prompts: Sequence[Prompt]) -> Iterator[tuple[list[Prompt], int]]:
    """Neighbours in a sorted list that all begin with the same whole pages, and how many tokens these hold."""
    cluster: list[Prompt] = []
    shared = 0
    for prompt in prompts:
        alike = _alike(cluster[-1], prompt) if cluster else 0
        if alike and (len(cluster) == 1 or alike == shared):
            cluster, shared = [*cluster, prompt], alike
            continue
        if len(cluster) > 1:
            yield cluster, shared
        cluster, shared = [prompt], 0
    if len(cluster) > 1:
        yield cluster, shared


def _alike(a: Prompt, b: Prompt) -> int:
    """The tokens of the whole pages that both begin with; a prompt's last token is never among them."""
    (adapter, x), (other, y) = a, b
    at, most = 0, min(len(x), len(y)) - 1
    while adapter == other and at + PAGE <= most and x[at : at + PAGE] == y[at : at + PAGE]:
        at += PAGE
    return at


class _State:
    """The rows that decode, as tensors on the device at fixed addresses, and the graphs that step them.

    Rows stay sorted by adapter. A bucket's unused rows are done, and write to the scratch page.
    """

    def __init__(self, engine: FastEngine, rows: int, pages: int, new: int, before: _State | None):
        self.engine = engine
        if before is not None:
            rows, pages, new = max(rows, before.rows), max(pages, before.pages), max(new, before.new)
        if engine.on_gpu:
            rows, pages, new = bucket(max(rows, engine.rows)), max(pages, 32), max(new, 512)
        self.rows: int = rows
        self.pages: int = pages
        self.new: int = new
        device = engine.stack.device

        def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        names = ("token", "position", "count", "limit", "done", "low", "high", "line", "adapter")
        self.by_row = {name: ints(rows) for name in names}
        self.by_row |= {
            "slot": ints(rows, dtype=torch.int64),
            "temperature": ints(rows, dtype=torch.float32),
            "table": ints(rows, pages),
        }
        self.by_line = {
            "tokens": ints(rows, new),
            "logprobs": ints(rows, new, dtype=torch.float32),
            "counts": ints(rows),
        }
        self.all = self.by_row | self.by_line
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.memory: Any = torch.cuda.graph_pool_handle() if engine.on_gpu else None

    def holds(self, rows: int, pages: int, new: int) -> bool:
        return rows <= self.rows and pages <= self.pages and new <= self.new

    def decode(self, rows: list[_Row]) -> list[Reply]:
        live = size = self._fill(rows)
        size = self._size(live, size)
        longest, stepped = max(r.view.max_tokens for r in rows), 0
        look_every = LOOK_EVERY if self.engine.on_gpu else 1
        while live:
            for _ in range(min(look_every, longest - stepped)):
                self._step(size)
                stepped += 1
            live = int((self.all["done"][:size] == 0).sum())
            if live and self._size(live, size) < size:
                size = self._compact(size, live)
        return self._collect(rows)

    def _size(self, live: int, now: int) -> int:
        """Rows in a step: the next bucket on a GPU; on a CPU the rows themselves, shed by halves."""
        if self.engine.on_gpu:
            return min(bucket(live), self.rows)
        return live if live <= now // 2 else now

    def _fill(self, rows: list[_Row]) -> int:
        views, n = [r.view for r in rows], len(rows)
        last = [len(v.ids) - 1 for v in views]
        values = {
            "token": [v.ids[-1] for v in views],
            "position": last,
            "count": [0] * n,
            "limit": [v.max_tokens for v in views],
            "done": [0] * n,
            "low": [_signed(v.key) for v in views],
            "high": [_signed(v.key >> 32) for v in views],
            "line": list(range(n)),
            "adapter": [r.adapter for r in rows],
            "slot": [r.pages[at // PAGE] * PAGE + at % PAGE for r, at in zip(rows, last, strict=True)],
            "temperature": [v.temperature for v in views],
            "table": [[*r.pages, *[0] * (self.pages - len(r.pages))] for r in rows],
        }
        for name, given in values.items():
            place = self.by_row[name]
            place[:n].copy_(torch.tensor(given, dtype=place.dtype))
        self._idle(n, rows[-1].adapter)
        self.by_line["counts"].zero_()
        return n

    def _idle(self, start: int, adapter: int) -> None:
        """Rows from `start` on do nothing; they name the last adapter, so that rows stay sorted."""
        for name, value in (("done", 1), ("position", 0), ("slot", 0), ("token", 0), ("adapter", adapter)):
            self.by_row[name][start:] = value
        self.by_row["table"][start:] = 0

    def _step(self, size: int) -> None:
        if not self.engine.on_gpu:
            return self._compute(size)
        if size not in self.graphs:
            self._capture(size)
        self.graphs[size].replay()

    def _compute(self, size: int) -> None:
        e = self.engine
        logits = e._serving.step(self.all, e._cache, size)
        shown = {name: t[:size] for name, t in self.by_row.items()}
        e._ops.choose_and_advance(logits, shown | self.by_line, e._ends)

    def _capture(self, size: int) -> None:
        """Records a step as a graph; kernels are compiled by a step on the side that is taken back."""
        before = {name: t.clone() for name, t in self.all.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._compute(size)
        torch.cuda.current_stream().wait_stream(side)
        for name, t in before.items():
            self.all[name].copy_(t)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.memory):
            self._compute(size)
        self.graphs[size] = graph

    def _compact(self, size: int, live: int) -> int:
        """Rows that go on move to the front, in their order."""
        keep = (self.by_row["done"][:size] == 0).nonzero()[:, 0]
        for t in self.by_row.values():
            t[:live] = t[keep]
        self._idle(live, int(self.by_row["adapter"][live - 1]))
        return self._size(live, size)

    def _collect(self, rows: list[_Row]) -> list[Reply]:
        n = len(rows)
        counts = self.by_line["counts"][:n].tolist()
        longest = max(counts)
        tokens = self.by_line["tokens"][:n, :longest].tolist()
        logprobs = self.by_line["logprobs"][:n, :longest].tolist()
        ends = self.engine._end_ids
        return [
            Reply(tuple(t[:c]), tuple(lp[:c]), cut=not c or t[c - 1] not in ends)
            for t, lp, c in zip(tokens, logprobs, counts, strict=True)
        ]


def bucket(rows: int) -> int:
    """The least number of rows for which there is a graph, and that holds these."""
    return next((b for b in BUCKETS if b >= rows), -(-rows // 128) * 128)


def _signed(word: int) -> int:
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >= 1 << 31 else word
