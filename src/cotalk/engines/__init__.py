"""Engines turn views into replies. The protocol, and the table that sends each view to whoever answers it.

`hf` runs any transformers causal LM with the stack (everywhere; the oracle), `scripted` runs scripts. A faster
engine is another class with the same `reply`; nothing else in the package changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cotalk.chat import Reply, View
from cotalk.engines.scripted import ScriptedEngine


class Engine(Protocol):
    """Answers what every waiting run asks for, in one call.

    batches: one list of views for each run that waits. Returns the replies in the same shape and order. A run's
    replies do not depend on the other batches of the call.
    """

    def reply(self, batches: Sequence[Sequence[View]]) -> list[list[Reply]]: ...


class Table:
    """Sends scripted views to the scripts and all others to one engine, keeping their places."""

    def __init__(self, engine: Engine | None):
        self._engine, self._scripts = engine, ScriptedEngine()

    def reply(self, batches: Sequence[Sequence[View]]) -> list[list[Reply]]:
        spoken = [[v for v in batch if v.player.script is None] for batch in batches]
        scripted = [[v for v in batch if v.player.script is not None] for batch in batches]
        answers = [iter(replies) for replies in self._ask(spoken)]
        lines = [iter(replies) for replies in self._scripts.reply(scripted)]
        return [
            [next(lines[i]) if v.player.script is not None else next(answers[i]) for v in batch]
            for i, batch in enumerate(batches)
        ]

    def _ask(self, batches: list[list[View]]) -> list[list[Reply]]:
        """The engine's replies, one a view; the engine is left alone when nobody waits for it."""
        if not any(batches):
            return [[] for _ in batches]
        if self._engine is None:
            names = sorted({v.player.name for batch in batches for v in batch})
            raise ValueError(f"players {names} need a model, but this table was given no engine")
        replies = self._engine.reply(batches)
        asked, given = [len(batch) for batch in batches], [len(batch) for batch in replies]
        if asked != given:
            raise ValueError(
                f"the engine was asked for {asked} replies and gave {given}: expected one a view"
            )
        return replies
