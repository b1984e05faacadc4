"""Who owns which page of the KV cache: a free list, counted owners, and prefixes kept for later turns.

Left out: the pages' contents (decoder/serving.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotalk.decoder.ops import PAGE

Name = tuple[int, int]  # of a kept prefix: its adapter, and a number that is its own


@dataclass(frozen=True)
class Entry:
    """A prefix that was read: its first `length` tokens lie in `pages`. end: its last ids, as the reply holds them."""

    pages: tuple[int, ...]
    length: int
    end: tuple[int, ...] = ()


class Pool:
    """Pages 1 .. pages - 1 (0 is scratch). Kept prefixes give their pages back, oldest first, when others need them."""

    def __init__(self, pages: int):
        self._free = list(range(pages - 1, 0, -1))
        self._owners = [0] * pages
        self._kept: OrderedDict[Name, Entry] = OrderedDict()

    @property
    def size(self) -> int:
        return len(self._owners)

    @property
    def free(self) -> int:
        return len(self._free)

    def grow(self, pages: int) -> None:
        self._free = [*range(pages - 1, self.size - 1, -1), *self._free]
        self._owners += [0] * (pages - self.size)

    def take(self, n: int) -> list[int]:
        """n pages, each with one owner. Raises MemoryError when they cannot be had."""
        while len(self._free) < n and self._kept:
            self.release(self._kept.popitem(last=False)[1].pages)
        if len(self._free) < n:
            raise MemoryError(f"{n} pages of the KV cache are needed and {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(n)]
        for page in taken:
            self._owners[page] = 1
        return taken

    def share(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._owners[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._owners[page] -= 1
            if not self._owners[page]:
                self._free.append(page)

    # --- prefixes ---

    def keep(self, name: Name, entry: Entry) -> None:
        """Keeps a prefix, whose pages the caller owned until now; those beyond its length are given back."""
        needed = -(-entry.length // PAGE)
        self.release(entry.pages[needed:])
        self._kept[name] = replace(entry, pages=entry.pages[:needed])

    def find(self, name: Name) -> Entry | None:
        return self._kept.get(name)

    def drop(self, name: Name) -> None:
        if entry := self._kept.pop(name, None):
            self.release(entry.pages)

    def drop_adapter(self, adapter: int) -> None:
        """Forgets what an adapter read before it was changed."""
        for name in [n for n in self._kept if n[0] == adapter]:
            self.drop(name)
