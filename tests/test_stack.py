"""The driver: one engine call serves whoever waits."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotalk.chat import BASE, Reply, View
from cotalk.errors import BadInput, Stopped
from cotalk.stack import Signals, drive, held
from cotalk.view import Scene

SCENE = Scene("A", "AB", (), "", (), (), False)


def a_view(key: int) -> View:
    return View(SCENE, BASE, (1,), 1, key, 1.0)


class Echo:
    """Answers each view with its key plus 1; remembers the shape of every call."""

    def __init__(self):
        self.calls = []

    def reply(self, batches):
        self.calls.append([[view.key for view in batch] for batch in batches])
        return [[Reply((view.key + 1,)) for view in batch] for batch in batches]


def a_run(name: int, rounds: list[int], fails_after: int | None = None):
    """Asks for rounds[i] replies in its i-th round, checks them, returns what it heard."""
    heard = []
    for at, views in enumerate(rounds):
        if at == fails_after:
            raise RuntimeError(f"run {name} broke")
        keys = [1000 * name + 10 * at + i for i in range(views)]
        replies = yield [a_view(k) for k in keys]
        assert [r.ids for r in replies] == [(k + 1,) for k in keys]
        heard += [r.ids[0] for r in replies]
    return heard


def never(name: str, error: Exception) -> None:
    raise AssertionError(f"{name} failed") from error


def test_one_engine_call_serves_all_runs_that_wait():
    # run a waits three times, b once, c twice: three calls, of 3, 2 and 1 batches
    engine = Echo()
    runs = {"a": a_run(1, [2, 1, 1]), "b": a_run(2, [1]), "c": a_run(3, [1, 2])}
    results = drive(runs, engine, never)
    assert engine.calls == [
        [[1000, 1001], [2000], [3000]],
        [[1010], [3010, 3011]],
        [[1020]],
    ]
    assert results == {"a": [1001, 1002, 1011, 1021], "b": [2001], "c": [3001, 3011, 3012]}


def test_a_run_that_raises_does_not_stop_its_neighbours():
    failed = {}
    runs = {
        "a": a_run(1, [1, 1, 1], fails_after=1),
        "b": a_run(2, [1, 1, 1]),
        "c": a_run(3, [1], fails_after=0),
    }
    engine = Echo()
    results = drive(runs, engine, lambda name, error: failed.update({name: str(error)}))
    assert failed == {"a": "run 1 broke", "c": "run 3 broke"}
    assert results == {"b": [2001, 2011, 2021]}
    assert engine.calls == [[[1000], [2000]], [[2010]], [[2020]]]


def test_a_failure_that_the_caller_raises_again_ends_the_drive():
    def failed(name: str, error: Exception) -> None:
        raise error

    def bad():
        raise BadInput("no such thing")
        yield

    with pytest.raises(BadInput, match="no such thing"):
        drive({"a": a_run(1, [1]), "b": bad()}, Echo(), failed)


def test_a_run_that_needs_nobody_returns_without_any_call():
    engine = Echo()
    assert drive({"a": a_run(1, [])}, engine, never) == {"a": []}
    assert engine.calls == []
    assert drive({}, engine, never) == {}


def test_an_engine_that_forgets_a_run_is_an_error():
    class Forgetful(Echo):
        def reply(self, batches):
            return super().reply(batches)[:-1]

    with pytest.raises(ValueError, match="shorter"):
        drive({"a": a_run(1, [1]), "b": a_run(2, [1])}, Forgetful(), never)


def test_an_interrupt_is_not_taken_for_a_runs_failure():
    def interrupted():
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        drive({"a": interrupted()}, Echo(), never)


def test_an_engine_that_fails_is_asked_for_each_run_alone_and_only_those_fail_that_it_cannot_answer():
    class Picky(Echo):
        def reply(self, batches):
            if any(view.key // 1000 == 2 for batch in batches for view in batch):
                raise RuntimeError("not these")
            return super().reply(batches)

    failed = {}
    runs = {"a": a_run(1, [2, 1]), "b": a_run(2, [1, 1]), "c": a_run(3, [1])}
    engine = Picky()
    results = drive(runs, engine, lambda name, error: failed.update({name: str(error)}))
    assert failed == {"b": "not these"}
    assert results == {"a": [1001, 1002, 1011], "c": [3001]}
    assert engine.calls == [[[1000, 1001]], [[3000]], [[1010]]]


def test_a_signal_is_told_to_every_run_where_it_waits_and_then_to_the_caller():
    told = []

    def stoppable(name: int):
        try:
            yield from a_run(name, [1, 1, 1])
        except Stopped as stop:
            told.append((name, stop.code))
            raise

    signals = Signals()

    class Interrupting(Echo):
        def reply(self, batches):
            if len(self.calls) == 1:
                signals.number = signal.SIGTERM
            return super().reply(batches)

    engine = Interrupting()
    with pytest.raises(Stopped) as stopped:
        drive({"a": stoppable(1), "b": stoppable(2), "c": a_run(3, [1])}, engine, never, signals)
    assert stopped.value.code == 143 and told == [(1, 143), (2, 143)]
    assert len(engine.calls) == 2  # the call that was under way was finished


def test_a_run_that_cannot_stop_well_does_not_keep_the_others_from_it():
    def stubborn():
        try:
            yield [a_view(1000)]
        except Stopped:
            raise OSError("disk full") from None

    signals, failed = Signals(), {}
    signals.number = signal.SIGINT
    with pytest.raises(Stopped) as stopped:
        drive({"a": stubborn(), "b": a_run(2, [1])}, Echo(), lambda n, e: failed.update({n: str(e)}), signals)
    assert stopped.value.code == 130 and failed == {"a": "disk full"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_a_second_one_ends_at_once(number, capsys):
    class Ended(Exception):
        pass

    def end(*_):
        raise Ended

    before = signal.signal(number, end)
    try:
        with held() as signals:
            os.kill(os.getpid(), number)
            assert signals.number == number and "again: at once" in capsys.readouterr().err
            with pytest.raises(Ended):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is end
        signal.signal(number, signal.SIG_IGN)  # as in a worker, and under nohup
        with held() as signals:
            os.kill(os.getpid(), number)
            assert signals.number == 0
    finally:
        signal.signal(number, before)


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=5))
def test_each_run_hears_its_own_replies_in_as_few_calls_as_its_longest_run_waits(plans):
    engine = Echo()
    results = drive({str(n): a_run(n, plan) for n, plan in enumerate(plans)}, engine, never)
    alone = {str(n): drive({"x": a_run(n, plan)}, Echo(), never)["x"] for n, plan in enumerate(plans)}
    assert results == alone
    assert len(engine.calls) == max(map(len, plans), default=0)
