"""Packing: whatever rows come, every one can be read back from the batch, and what they share stands once."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cotalk.decoder.packing import WORTH_SHARING, Packed, pack, packed_batches
from cotalk.rows import Row
from cotalk.sample import generator

CPU = torch.device("cpu")


def row(ids: list[int], *spans: tuple[int, int, float | None]) -> Row:
    """spans: (start, length, credit); the log-probability of the token at place p is -p."""
    return Row("A", ids, [(s, tuple(-float(p) for p in range(s, s + n)), c) for s, n, c in spans])


def ids_of(n: int, name: int = 0) -> list[int]:
    return generator("ids", name).integers(0, 1000, n).tolist()


def reads(packed: Packed) -> list[list[int]]:
    """For every token of the batch: the tokens that it sees, itself last, by the spans and keys."""
    keys = torch.arange(len(packed.ids)) if packed.keys is None else packed.keys
    q, k = packed.spans.q_ends.tolist(), packed.spans.k_ends.tolist()
    seen: list[list[int]] = [[] for _ in packed.ids]
    for s in range(len(q) - 1):
        mine = keys[k[s] : k[s + 1]].tolist()
        for token in range(q[s], q[s + 1]):
            seen[token] = mine[: len(mine) - (q[s + 1] - 1 - token)]
            assert seen[token][-1] == token
    return seen


def check(rows: list[Row]) -> Packed:
    """Reads every sampled token's own past out of the batch, and compares it with the row's."""
    packed = pack(rows, CPU)
    seen = reads(packed)
    ids, positions = packed.ids.tolist(), packed.positions.tolist()
    sampled = [(r, p, lp, c) for r in rows for s, lps, c in r.spans for p, lp in enumerate(lps, start=s)]
    assert len(sampled) == len(packed.where) == len(packed.targets)
    for (r, place, logprob, credit), where, target, old, earned in zip(
        sampled, packed.where.tolist(), packed.targets.tolist(), packed.sampled.tolist(), packed.credit.tolist(),
        strict=True,
    ):  # fmt: skip
        path = seen[where]
        assert [ids[t] for t in path] == r.ids[:place]
        assert [positions[t] for t in path] == list(range(place))
        assert (target, old, earned) == (r.ids[place], logprob, credit or 0.0)
    assert packed.spans.longest_q == max(packed.spans.q_ends.diff())
    assert packed.spans.longest_k == max(packed.spans.k_ends.diff())
    return packed


# --- small cases, worked out ----------------------------------------------------------------------------------


def test_rows_that_share_nothing_are_put_one_after_the_other() -> None:
    packed = check([row([1, 2, 3, 4], (2, 2, 0.5)), row([5, 6], (1, 1, None))])
    # the last id of a row predicts nothing: 1 2 3, 5
    assert packed.ids.tolist() == [1, 2, 3, 5] and packed.positions.tolist() == [0, 1, 2, 0]
    assert packed.where.tolist() == [1, 2, 3] and packed.targets.tolist() == [3, 4, 6]
    assert packed.credit.tolist() == [0.5, 0.5, 0.0] and packed.sampled.tolist() == [-2.0, -3.0, -1.0]
    assert packed.keys is None and packed.spans.q_ends.tolist() == packed.spans.k_ends.tolist() == [0, 3, 4]


def test_a_shared_prompt_stands_once_and_its_last_token_predicts_for_all_who_go_on() -> None:
    prompt = ids_of(40)
    packed = check([row([*prompt, n, 8, 9], (40, 3, 1.0)) for n in (3, 2, 1)])
    # 40 of the prompt; every row has two more of its own (n, 8); 9 is only predicted
    assert len(packed.ids) == 40 + 3 * 2
    assert packed.where.tolist()[::3] == [39, 39, 39] and packed.targets.tolist()[::3] == [3, 2, 1]
    assert packed.spans.k_ends.diff().tolist() == [40, 42, 42, 42]


def test_identical_rows_stand_once() -> None:
    ids = ids_of(40)
    packed = check([row(ids, (30, 10, 1.0)), row(ids, (30, 10, -1.0)), row(ids, (20, 2, None), (35, 5, 2.0))])
    assert len(packed.ids) == 39 and len(packed.where) == 27


def test_a_row_that_ends_inside_another_is_part_of_it() -> None:
    ids = ids_of(60)
    packed = check([row(ids, (50, 10, 1.0)), row(ids[:30], (20, 10, 1.0)), row(ids[:50], (44, 1, None))])
    assert len(packed.ids) == 59


def test_a_short_common_stretch_is_not_worth_a_sequence_of_its_own() -> None:
    for common, expected in ((WORTH_SHARING - 1, 2), (WORTH_SHARING, 1)):
        stem = ids_of(common)
        packed = check([row([*stem, 1, 2, 3], (common, 3, 1.0)), row([*stem, 4, 5, 6], (common, 3, 1.0))])
        assert len(packed.ids) == expected * common + 2 * 2


def test_three_levels_of_sharing() -> None:
    """A task's prompt, a seat's first message, and what came after it."""
    a, b, c = ids_of(50, 1), ids_of(20, 2), ids_of(20, 3)
    rows = [
        row([*a, *b, *ids_of(10, 4)], (50, 20, 1.0), (70, 10, 2.0)),
        row([*a, *b, *ids_of(12, 5)], (50, 20, 1.0), (70, 12, -1.0)),
        row([*a, *c], (50, 20, 0.5)),
    ]
    assert len(check(rows).ids) == 50 + 20 + 9 + 11 + 19


# --- any rows -------------------------------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> list[Row]:
    """Rows that go on from one another at any place, tokens few enough to meet by chance, with spans anywhere."""
    token = st.integers(0, draw(st.sampled_from([1, 3, 500])))
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 7))):
        stem: list[int] = []
        if rows and draw(st.booleans()):
            other = draw(st.sampled_from(rows)).ids
            stem = other[: draw(st.integers(0, len(other)))]
        own = draw(st.lists(token, min_size=0, max_size=8)) * draw(st.sampled_from([1, 1, 5]))
        ids = [*stem, *own] or [0]
        ids += [draw(token)] * (2 - len(ids))
        spans: list[tuple[int, int, float | None]] = []
        at = 1
        while at < len(ids) and (not spans or draw(st.booleans())):
            start = draw(st.integers(at, len(ids) - 1))
            length = draw(st.integers(0, len(ids) - start))
            spans.append((start, length, draw(st.sampled_from([None, 0.0, 1.0, -0.5]))))
            at = start + length + 1
        rows.append(row(ids, *spans))
    return rows


@given(trees())
def test_every_row_can_be_read_back_from_the_batch(rows: list[Row]) -> None:
    packed = check(rows)
    assert len(packed.ids) <= sum(len(r.ids) - 1 for r in rows)


@given(trees())
def test_no_stretch_worth_sharing_stands_twice(rows: list[Row]) -> None:
    """At most WORTH_SHARING - 1 tokens a row are repeated at each place where rows part."""
    packed = pack(rows, CPU)
    different = {tuple(r.ids[:n]) for r in rows for n in range(1, len(r.ids))}
    assert len(different) <= len(packed.ids) <= len(different) + len(rows) ** 2 * (WORTH_SHARING - 1)
    seen = reads(packed)
    ids = packed.ids.tolist()
    stands: dict[tuple[int, ...], int] = {}
    for path in seen:
        past = tuple(ids[t] for t in path)
        stands[past] = stands.get(past, 0) + 1
    assert stands.keys() == different


@given(trees(), st.integers(1, 60))
def test_batches_hold_every_row_once_and_nearly_keep_to_the_budget(rows: list[Row], budget: int) -> None:
    """A row adds one leaf and at most one branching, and each repeats less than WORTH_SHARING tokens."""
    batches = list(packed_batches(rows, budget))
    assert sorted(id(r) for b in batches for r in b) == sorted(map(id, rows))
    for batch in batches:
        assert len(batch) == 1 or len(pack(batch, CPU).ids) <= budget + 2 * (WORTH_SHARING - 1) * len(batch)


def test_rows_that_begin_alike_share_a_batch() -> None:
    """Four prompts of 100 tokens, three rows each, mixed: 100 + 3 x 11 a prompt, so that two prompts fit in 270."""
    rows = [row([*ids_of(100, n % 4), *ids_of(11, 10 + n)], (100, 11, 1.0)) for n in range(12)]
    batches = list(packed_batches(rows, 270))
    assert [len({tuple(r.ids[:100]) for r in b}) for b in batches] == [2, 2]
    assert [len(pack(b, CPU).ids) for b in batches] == [2 * (100 + 30)] * 2
