"""Training rows -> one packed batch in which what rows share at their beginning stands once.

The chats of a task begin with the same prompt, and so do a seat's rows in the transcript view. Rows become a tree: a
node is a stretch of tokens, its children go on from it. Each node is one sequence whose queries are its own tokens and
whose keys are all tokens on the way to it, so a shared token is computed once, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from cotalk.decoder.attention import Spans
from cotalk.decoder.ops import to_device
from cotalk.rows import Row

WORTH_SHARING = 16  # tokens; a shorter common stretch costs more as a sequence of its own than it saves


@dataclass
class Packed:
    """ids, positions: (tokens,) int64. keys: (keys,) int64, tokens that the sequences read, or None where these are
    the tokens themselves. where: (sampled tokens,) the token that predicts each; targets, sampled, credit alike."""

    ids: torch.Tensor
    positions: torch.Tensor
    spans: Spans
    keys: torch.Tensor | None
    where: torch.Tensor
    targets: torch.Tensor
    sampled: torch.Tensor
    credit: torch.Tensor


@dataclass
class _Tree:
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    q_lengths: list[int] = field(default_factory=list)
    k_lengths: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    of_row: dict[int, list[int]] = field(default_factory=dict)  # row -> the token at each of its places

    def grow(self, rows: Sequence[tuple[list[int], int]], start: int, path: list[int]) -> None:
        """rows: (ids, number), sorted by ids, alike before `start`, whose tokens are `path`."""
        first, last = rows[0][0], rows[-1][0]
        common = start
        shortest = min(len(ids) for ids, _ in rows)
        while common < shortest and first[common] == last[common]:
            common += 1
        if common - start >= WORTH_SHARING or len(rows) == 1:
            path = self._node(first[start:common], start, path)
            start = common
        ended = [r for r in rows if len(r[0]) == start]
        for _, number in ended:
            self.of_row[number] = path
        for branch in _branches([r for r in rows if len(r[0]) > start], common):
            self.grow(branch, start, path)

    def _node(self, ids: list[int], start: int, path: list[int]) -> list[int]:
        if not ids:
            return path
        own = range(len(self.ids), len(self.ids) + len(ids))
        self.ids += ids
        self.positions += range(start, start + len(ids))
        path = [*path, *own]
        self.q_lengths.append(len(ids))
        self.k_lengths.append(len(path))
        self.keys += path
        return path


def _branches(rows: Sequence[tuple[list[int], int]], at: int) -> Iterator[list[tuple[list[int], int]]]:
    """Rows (sorted) by their token at a place; a row that ends before it is a branch of its own."""
    branch: list[tuple[list[int], int]] = []
    token: int | None = None
    for row in rows:
        now = row[0][at] if len(row[0]) > at else None
        if branch and (now is None or now != token):
            yield branch
            branch = []
        branch.append(row)
        token = now
    if branch:
        yield branch


def pack(rows: Sequence[Row], device: torch.device) -> Packed:
    """The packed batch of some rows; a row's last id predicts nothing and is left out."""
    tree = _tree(rows)
    where: list[int] = []
    targets: list[int] = []
    sampled: list[float] = []
    credit: list[float] = []
    for number, row in enumerate(rows):
        place = tree.of_row[number]
        for start, logprobs, earned in row.spans:
            stop = start + len(logprobs)
            where += place[start - 1 : stop - 1]  # place p predicts id p + 1
            targets += row.ids[start:stop]
            sampled += logprobs
            credit += [earned or 0.0] * len(logprobs)

    def whole(values: list[int]) -> torch.Tensor:
        return to_device(values, torch.long, device)

    return Packed(
        whole(tree.ids), whole(tree.positions), Spans.of(tree.q_lengths, tree.k_lengths, device),
        None if len(tree.keys) == len(tree.ids) else whole(tree.keys), whole(where), whole(targets),
        to_device(sampled, torch.float32, device), to_device(credit, torch.float32, device),
    )  # fmt: skip


def _tree(rows: Sequence[Row]) -> _Tree:
    tree = _Tree()
    tree.grow(sorted((row.ids[:-1], number) for number, row in enumerate(rows)), 0, [])
    return tree


def packed_batches(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    """Rows that begin alike together, at most `budget` tokens a batch; a longer row goes alone.

    What rows share is counted once, even where it is too short for a sequence of its own and is repeated.
    """
    batch: list[Row] = []
    size = 0
    before: list[int] = []
    for row in sorted(rows, key=lambda r: r.ids):
        new = len(row.ids) - _alike(before, row.ids)
        if batch and size + new > budget:
            yield batch
            batch, size, new = [], 0, len(row.ids)
        batch.append(row)
        size, before = size + new, row.ids
    if batch:
        yield batch


def _alike(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return n
