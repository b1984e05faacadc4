"""Engines turn views into replies. The protocol, and the table that sends each view to whoever answers it.

`fast` runs the Llama family by hand, `hf` any transformers causal LM with the stack (everywhere; the oracle),
`scripted` runs scripts. Another engine is another class with the same `reply`; nothing else in the package changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cotalk.chat import Reply, View
from cotalk.engines.scripted import ScriptedEngine


class Engine(Protocol):
    """Answers what every waiting run asks for, in one call.

    batches: one list of views for each run that waits. Returns the replies in the same shape and order. A run's
    replies do not depend on the other batches of the call.
    """

    def reply(self, batches: Sequence[Sequence[View]]) -> list[list[Reply]]: ...


SCRIPTS = "scripts"  # whom a table asks for scripted views


class Table:
    """Sends scripted views to the scripts, those of other bases to their engines, all others to one engine.

    others: engines of other bases, by the name that a player has in `model`.
    """

    def __init__(self, engine: Engine | None, others: Mapping[str, Engine] | None = None):
        self._engines: dict[str, Engine | None] = {"": engine, SCRIPTS: ScriptedEngine(), **(others or {})}

    def reply(self, batches: Sequence[Sequence[View]]) -> list[list[Reply]]:
        replies: list[list[Reply | None]] = [[None] * len(batch) for batch in batches]
        for name in sorted({_who(view) for batch in batches for view in batch}):
            places = [[i for i, view in enumerate(batch) if _who(view) == name] for batch in batches]
            asked = [[batch[i] for i in at] for batch, at in zip(batches, places, strict=True)]
            for given, at, found in zip(replies, places, self._ask(name, asked), strict=True):
                for i, reply in zip(at, found, strict=True):
                    given[i] = reply
        return [[reply for reply in batch if reply is not None] for batch in replies]

    def _ask(self, name: str, batches: list[list[View]]) -> list[list[Reply]]:
        """The replies of one engine, one a view."""
        engine = self._engines.get(name)
        if engine is None:
            names = sorted({v.player.name for batch in batches for v in batch})
            raise ValueError(f"players {names} need a model, but this table was given no engine for them")
        replies = engine.reply(batches)
        asked, given = [len(batch) for batch in batches], [len(batch) for batch in replies]
        if asked != given:
            raise ValueError(
                f"the engine was asked for {asked} replies and gave {given}: expected one a view"
            )
        return replies


def _who(view: View) -> str:
    """Who answers a view: the scripts, another base by its name, or "" (the run's own engine)."""
    return SCRIPTS if view.player.script is not None else view.player.model
