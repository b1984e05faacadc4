"""Who owns which page of the KV cache: a free list, counted owners, and prefixes kept for later turns.

Left out: the pages' contents (decoder/serving.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from cotalk.decoder.ops import PAGE

Prefix = tuple[int, tuple[int, ...]]  # adapter, token ids


@dataclass(frozen=True)
class Entry:
    """A prefix that was read: its first `length` tokens lie in `pages`."""

    pages: tuple[int, ...]
    length: int


class Pool:
    """Pages 1 .. pages - 1 (0 is scratch). Kept prefixes give their pages back, oldest first, when others need them."""

    def __init__(self, pages: int):
        self._free = list(range(pages - 1, 0, -1))
        self._owners = [0] * pages
        self._kept: OrderedDict[Prefix, Entry] = OrderedDict()

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

    def keep(self, prefix: Prefix, pages: Sequence[int], length: int) -> None:
        """Keeps a prefix's pages, which the caller owned until now."""
        needed = -(-length // PAGE)
        if prefix in self._kept:
            self.release(pages)
            return
        self.release(pages[needed:])
        self._kept[prefix] = Entry(tuple(pages[:needed]), length)

    def find(self, prefix: Prefix) -> Entry | None:
        return self._kept.get(prefix)

    def drop(self, prefix: Prefix) -> None:
        if entry := self._kept.pop(prefix, None):
            self.release(entry.pages)

    def drop_adapter(self, adapter: int) -> None:
        """Forgets what an adapter read before it was changed."""
        for prefix in [p for p in self._kept if p[0] == adapter]:
            self.drop(prefix)
