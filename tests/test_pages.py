"""Pages of the KV cache: every page is free or owned, never both, whatever is taken, shared, kept and dropped."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from cotalk.decoder.twins import PAGE
from cotalk.engines.pages import Entry, Pool


def test_page_0_is_never_given_away() -> None:
    pool = Pool(4)
    assert sorted(pool.take(3)) == [1, 2, 3] and pool.free == 0
    with pytest.raises(MemoryError, match="1 pages of the KV cache are needed and 0 are free"):
        pool.take(1)


def test_a_shared_page_comes_back_with_its_last_owner() -> None:
    pool = Pool(3)
    pages = pool.take(2)
    pool.share(pages[:1])
    pool.release(pages)
    assert pool.free == 1
    pool.release(pages[:1])
    assert pool.free == 2


def test_a_kept_prefix_holds_the_pages_of_its_length_only() -> None:
    for length, pages in ((0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2), (3 * PAGE, 3)):
        pool = Pool(4)
        pool.keep((1, 7), Entry(tuple(pool.take(3)), length))
        assert pool.free == 3 - pages and len(pool.find((1, 7)).pages) == pages


def test_the_oldest_prefixes_give_way_and_no_more_than_needed() -> None:
    pool = Pool(7)
    for n in range(3):
        pool.keep((n, n), Entry(tuple(pool.take(2)), 2 * PAGE))
    pool.take(3)
    assert [pool.find((n, n)) is None for n in range(3)] == [True, True, False] and pool.free == 1


def test_a_prefix_that_gives_way_while_its_pages_are_in_use_leaves_them_in_use() -> None:
    pool = Pool(4)
    pages = pool.take(2)
    pool.keep((1, 1), Entry(tuple(pages), 2 * PAGE))
    pool.share(pages)
    assert pool.take(1) not in ([p] for p in pages)
    with pytest.raises(MemoryError):
        pool.take(1)
    assert pool.find((1, 1)) is None
    pool.release(pages)
    assert pool.free == 2


def test_an_adapters_prefixes_are_dropped_and_no_others() -> None:
    pool = Pool(9)
    for name in ((0, 1), (1, 1), (1, 2), (2, 1)):
        pool.keep(name, Entry(tuple(pool.take(1)), 1))
    pool.drop_adapter(1)
    assert [pool.find(n) is not None for n in ((0, 1), (1, 1), (1, 2), (2, 1))] == [True, False, False, True]
    assert pool.free == 6


class Pages(RuleBasedStateMachine):
    """A pool beside a model of it: who owns what, as plain lists."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(5)
        self.owned: list[tuple[int, ...]] = []  # one entry for each owner
        self.kept: dict[tuple[int, int], tuple[int, ...]] = {}
        self.names = 0

    def sync(self) -> None:
        """Kept prefixes may have given way: the oldest first."""
        names = list(self.kept)
        gone = [n for n in names if self.pool.find(n) is None]
        assert gone == names[: len(gone)]
        for n in gone:
            del self.kept[n]

    @rule(target=held, n=st.integers(0, 4))
    def take(self, n: int):
        room = self.pool.size - 1 - len({p for pages in self.owned for p in pages})
        try:
            pages = tuple(self.pool.take(n))
        except MemoryError:
            self.sync()
            assert n > room and not self.kept  # everything that could give way had
            return ()
        self.sync()
        assert len(set(pages)) == n <= room
        assert not {*pages} & {p for other in [*self.owned, *self.kept.values()] for p in other}
        self.owned.append(pages)
        return pages

    @rule(target=held, pages=held)
    def share(self, pages: tuple[int, ...]):
        self.pool.share(pages)
        self.owned.append(pages)
        return pages

    @rule(pages=consumes(held))
    def release(self, pages: tuple[int, ...]) -> None:
        if pages in self.owned:
            self.owned.remove(pages)
            self.pool.release(pages)

    @rule(pages=consumes(held), adapter=st.integers(0, 2), spare=st.integers(0, 2 * PAGE))
    def keep(self, pages: tuple[int, ...], adapter: int, spare: int) -> None:
        if pages not in self.owned:
            return
        self.owned.remove(pages)
        self.names += 1
        length = max(0, len(pages) * PAGE - spare)
        self.pool.keep((adapter, self.names), Entry(pages, length))
        self.kept[adapter, self.names] = pages[: -(-length // PAGE)]
        assert self.pool.find((adapter, self.names)).length == length

    @rule(which=st.integers(0, 5))
    def drop(self, which: int) -> None:
        name = ([*self.kept] or [(9, 9)])[which % max(1, len(self.kept))]
        self.pool.drop(name)
        self.kept.pop(name, None)

    @rule(adapter=st.integers(0, 2))
    def drop_adapter(self, adapter: int) -> None:
        self.pool.drop_adapter(adapter)
        self.kept = {n: p for n, p in self.kept.items() if n[0] != adapter}

    @rule(more=st.integers(0, 3))
    def grow(self, more: int) -> None:
        if self.pool.size < 16:
            self.pool.grow(self.pool.size + more)

    @invariant()
    def every_page_is_free_or_owned_by_as_many_as_it_says(self) -> None:
        owners = [0] * self.pool.size
        for pages in [*self.owned, *self.kept.values()]:
            for page in pages:
                owners[page] += 1
        assert self.pool._owners == owners
        assert sorted(self.pool._free) == [p for p in range(1, self.pool.size) if not owners[p]]
        assert {n: e.pages for n, e in self.pool._kept.items()} == self.kept


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
