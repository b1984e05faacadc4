"""The driver: one engine call serves whoever waits.

Each run is a generator that yields the views it needs answered. The driver asks the engine once for what all of
them wait for, hands out the replies, and goes on until none is left. No async and no coordinator: runs may be at
different steps, turns or in evaluation; one that finished or failed simply waits no more. One that waits for something
else than replies (its grading) asks for none: an empty batch.

An engine that fails is asked again for each run by itself, so that only the runs fail whose views it cannot answer. A
signal (SIGINT, SIGTERM) is held back until all runs wait: nothing is half written then, and each run is told to stop.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from cotalk.chat import Reply, View
from cotalk.engines import Engine
from cotalk.errors import BadInput, Stopped
from cotalk.train import Playing


class Signals:
    """What was asked for by a signal while runs play. number: of the first one, 0 before it."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def hold(self) -> None:
        """From now on the first signal is only noted. One that is ignored stays so (a worker's, a nohup's)."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._note)

    def release(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, _: FrameType | None) -> None:
        self.release()  # a second one ends it at once
        self.number = number
        sys.stderr.write("cotalk: stopping where the runs next wait, with a checkpoint (again: at once)\n")


@contextmanager
def held() -> Iterator[Signals]:
    """While it is open, SIGINT and SIGTERM wait for `drive`. (Python hears signals in its main thread only.)"""
    signals = Signals()
    if threading.current_thread() is threading.main_thread():
        signals.hold()
    try:
        yield signals
    finally:
        signals.release()


def ask_to_stop() -> bool:
    """Has the runs that play in this process stop where they next wait, with a checkpoint; False where none play."""
    playing = isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), Signals)
    if playing:
        signal.raise_signal(signal.SIGTERM)
    return playing


def drive(
    runs: Mapping[str, Playing],
    engine: Engine,
    failed: Callable[[str, Exception], None],
    signals: Signals | None = None,
) -> dict[str, Any]:
    """Plays all runs to their ends. Returns what each returned.

    failed: called with a run's name and error when it raises; its neighbours go on untouched. signals: when one was
    noted, every run is told so where it waits (`Stopped` is raised there), and then the caller.
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
        if signals and signals.number:
            _stop([(name, runs[name]) for name in waiting], 128 + signals.number, failed)
        names = list(waiting)
        batches = [waiting.pop(name) for name in names]
        for name, replies in _replies(engine, names, batches, failed):
            advance(name, replies)
    if signals and signals.number:
        raise Stopped(128 + signals.number)
    return results


def _replies(
    engine: Engine,
    names: Sequence[str],
    batches: Sequence[Sequence[View]],
    failed: Callable[[str, Exception], None],
) -> list[tuple[str, list[Reply]]]:
    """What each run is answered. Those whose views an engine cannot answer, not even alone, have failed."""
    try:
        replies = engine.reply(batches)
    except BadInput:
        raise
    except Exception as error:
        if len(names) == 1:
            failed(names[0], error)
            return []
        alone = zip(names, batches, strict=True)
        return [found for name, batch in alone for found in _replies(engine, [name], [batch], failed)]
    return list(zip(names, replies, strict=True))


def _stop(runs: Sequence[tuple[str, Playing]], code: int, failed: Callable[[str, Exception], None]) -> None:
    """Tells runs that wait to stop; raises Stopped when all have."""
    for name, run in runs:
        try:
            run.throw(Stopped(code))
        except (Stopped, StopIteration):
            continue
        except Exception as error:  # its checkpoint could not be written
            failed(name, error)
    raise Stopped(code)
