"""The driver: one engine call serves whoever waits.

Each run is a generator that yields the views it needs answered. The driver asks the engine once for what all of
them wait for, hands out the replies, and goes on until none is left. No async and no coordinator: runs may be at
different steps, turns or in evaluation; one that finished or failed simply waits no more. One that waits for something
else than replies (its grading) asks for none: an empty batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cotalk.chat import View
from cotalk.engines import Engine
from cotalk.train import Playing


def drive(
    runs: Mapping[str, Playing], engine: Engine, failed: Callable[[str, Exception], None]
) -> dict[str, Any]:
    """Plays all runs to their ends. Returns what each returned.

    failed: called with a run's name and error when it raises; its neighbours go on untouched.
    """
    results: dict[str, Any] = {}
    waiting: dict[str, list[View]] = {}

    def advance(name: str, replies: Any) -> None:
        try:
            waiting[name] = runs[name].send(replies)
        except StopIteration as end:
            results[name] = end.value
        except Exception as error:  # a run's failure, whatever it is, must not end its neighbours
            failed(name, error)

    for name in runs:
        advance(name, None)
    while waiting:
        names = list(waiting)
        batches = [waiting.pop(name) for name in names]
        for name, replies in zip(names, engine.reply(batches), strict=True):
            advance(name, replies)
    return results
