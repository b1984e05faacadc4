"""Faults, each made to happen: numbers that are not finite, a disk that refuses, a clock, memory, lost checkpoints.

What is promised stands in docs/reliability.md. Signals and kill -9 are in test_killed.py.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import small_base
from cotalk import jobs, results
from cotalk.cli import main
from cotalk.engines.hf import HfEngine
from cotalk.errors import DiskFailed, OutOfMemory, RunFailed, Stopped
from cotalk.lora import Stack
from cotalk.padded import PaddedScorer
from cotalk.run import RunDirectory, read_lines
from cotalk.stack import Signals, drive
from cotalk.train import Run, train
from faults import CHANGES, READ_ONLY, Clock, Disk, Failing, Refusing, SickScorer
from toy import (
    SETTINGS,
    Dying,
    Killed,
    differing,
    engine_of,
    everything,
    left,
    play,
    together,
    toy_base,
    toy_config,
    toy_grader,
    toy_run,
    toy_study,
    toy_tasks,
)


def metrics(path: Path) -> list[dict[str, Any]]:
    return [line for line in RunDirectory(path).lines("metrics.jsonl") if "reward" in line]


def sick_run(path: Path, sick: set[int], stack: Stack | None = None, first: int = 1, **settings: Any) -> Run:
    """A toy run whose gradients are NaN in some steps."""
    run = toy_run(path, toy_config(**settings), stack, first=first, name="sick")
    run.learner.scorer = SickScorer(run.learner.scorer, first, sick, lambda: run.step)
    return run


def weights(path: Path, step: int) -> Any:
    return everything(path)[f"checkpoints/step-{step:06d}.safetensors"]


# --- numbers that are not finite ------------------------------------------------------------------------------


def test_a_step_that_is_not_finite_changes_nothing_is_counted_and_kept(tmp_path: Path) -> None:
    run = sick_run(tmp_path, {2}, steps=2, checkpoint_every=1)
    play(run)
    assert [m.get("dropped") for m in metrics(tmp_path)] == [None, 1.0]
    assert weights(tmp_path, 1) == weights(tmp_path, 2)
    kept = json.loads((tmp_path / "dropped" / "step-000002.json").read_text())
    assert kept["step"] == 2 and "adapter 1's gradient is nan" in kept["reason"]
    assert len(kept["messages"]) == 2 * 3 * 4  # problems x chats x turns
    said = [
        m["said"]
        for line in RunDirectory(tmp_path).lines("chats.jsonl")
        if line["step"] == 2
        for m in line["messages"]
    ]
    assert [m["said"] for m in kept["messages"]] == said
    assert all(len(m["ids"]) == len(m["logprobs"]) > 0 and m["prompt"] for m in kept["messages"])


def test_a_run_goes_on_after_a_dropped_step_as_if_its_update_had_not_been(tmp_path: Path) -> None:
    """Step 2 is dropped: step 3 trains with step 1's moments, and its rate is the schedule's third."""
    play(sick_run(tmp_path, {2}, steps=3, checkpoint_every=1, dev_tasks=0))
    assert weights(tmp_path, 3) != weights(tmp_path, 2)
    found = everything(tmp_path)["checkpoints/step-000003.safetensors"]
    (moment, *_) = [v for k, v in found.items() if k.endswith(".step")]
    assert (
        torch.frombuffer(bytearray(moment), dtype=torch.float32).item() == 2.0
    )  # two updates in three steps
    assert metrics(tmp_path)[2]["lr"] == pytest.approx(0.02 / 3)


def test_text_of_a_dropped_step_is_escaped_to_ascii_and_read_back_as_it_was(tmp_path: Path) -> None:
    run = toy_run(tmp_path, toy_config(steps=1))
    hostile = '\u202e</script>\x00\x1b[2J"\n\ud800 \u200b<|im_end|>'
    chats: list[Any] = []
    update = run.learner.update
    run.learner.update = lambda given, lr: (chats.extend(given), update(given, lr))[1]  # type: ignore[method-assign]
    play(run)
    chats[0].messages[0].said = hostile
    chats[0].messages[0].credit = math.inf
    run.directory.save_dropped(7, hostile, chats)
    data = (tmp_path / "dropped" / "step-000007.json").read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in data)
    found = json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["reason"] == found["messages"][0]["said"] == hostile
    assert found["messages"][0]["credit"] == "inf"


@pytest.mark.slow
def test_after_so_many_in_a_row_the_run_fails_and_its_neighbours_go_on_to_the_same_bits(
    tmp_path: Path,
) -> None:
    """Steps 2, 4, 5 and 6 are sick, limit 3: it fails in step 6. Beside it two runs, against a stack without it."""
    config = dict(steps=8, drop_limit=3)
    others = {"open": dict(steps=7), "closed": dict(steps=8, channel="closed", seed=18)}

    def stack(where: Path, steps: set[int]) -> dict[str, Exception]:
        shared = Stack(small_base().model, 3, SETTINGS["rank"], SETTINGS["alpha"])
        runs = {"sick": sick_run(where / "sick", steps, shared, first=2, **config)}
        for first, (name, settings) in zip((1, 3), others.items(), strict=True):
            runs[name] = toy_run(where / name, toy_config(**settings), shared, first=first, name=name)
        failures: dict[str, Exception] = {}
        drive({n: train(r) for n, r in runs.items()}, engine_of(runs["sick"]), failures.__setitem__)
        return failures

    assert stack(tmp_path / "well", set()) == {}
    failures = stack(tmp_path / "fault", {2, 4, 5, 6})
    assert list(failures) == ["sick"] and isinstance(failures["sick"], RunFailed)
    told = str(failures["sick"])
    assert "step 6 is the last of 3 in a row" in told and "gradient is nan" in told and "dropped" in told
    assert [m["step"] for m in metrics(tmp_path / "fault" / "sick") if m.get("dropped")] == [2, 4, 5, 6]
    for name in others:
        assert differing(everything(tmp_path / "fault" / name), everything(tmp_path / "well" / name)) == []


def test_the_row_of_dropped_steps_is_counted_across_a_kill(tmp_path: Path) -> None:
    settings = dict(steps=6, checkpoint_every=1, dev_tasks=0, drop_limit=3)
    run = sick_run(tmp_path, {2, 3, 4}, **settings)
    with pytest.raises(Killed):
        play(run, Dying(engine_of(run), 12))  # four calls a step: in step 4
    again = sick_run(tmp_path, {2, 3, 4}, **settings)
    with pytest.raises(RunFailed, match="step 4 is the last of 3 in a row"):
        play(again)
    assert [m["step"] for m in metrics(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(("every", "first"), [(1, 3), (2, 1), (50, 3)])
def test_a_run_that_failed_so_tries_the_dropped_steps_again(every: int, first: int, tmp_path: Path) -> None:
    """Once the fault is gone, it ends as a run that never had it: also where each checkpoint is of a dropped step."""
    settings = dict(steps=6, checkpoint_every=every, drop_limit=3)
    run = sick_run(tmp_path / "failed", {first, first + 1, first + 2}, **settings)
    for again in (run, sick_run(tmp_path / "failed", {first, first + 1, first + 2}, **settings)):
        with pytest.raises(RunFailed, match=f"step {first + 2} is the last of 3 in a row"):
            play(again)
    repaired = sick_run(tmp_path / "failed", set(), **settings)
    with pytest.raises(Killed):  # and is killed once more, in the second step of those
        play(repaired, Dying(engine_of(repaired), 5))
    play(sick_run(tmp_path / "failed", set(), **settings))
    play(sick_run(tmp_path / "well", set(), **settings))
    assert differing(everything(tmp_path / "failed"), everything(tmp_path / "well")) == []


def test_a_run_with_a_dropped_step_that_is_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    play(sick_run(tmp_path / "whole", {2, 3}, steps=4))
    run = sick_run(tmp_path / "killed", {2, 3}, steps=4)
    with pytest.raises(Killed):
        play(run, Dying(engine_of(run), 21))
    assert (tmp_path / "killed" / "dropped" / "step-000003.json").is_file()
    play(sick_run(tmp_path / "killed", {2, 3}, steps=4))
    assert differing(everything(tmp_path / "killed"), everything(tmp_path / "whole")) == []
    names = [p.name for p in sorted((tmp_path / "killed" / "dropped").iterdir())]
    assert names == ["step-000002.json", "step-000003.json"]
    assert (tmp_path / "killed/dropped" / names[1]).read_bytes() == (
        tmp_path / "whole/dropped" / names[1]
    ).read_bytes()


class NotANumber:
    """An engine whose log-probabilities are NaN from a call on: what a model with broken weights says."""

    def __init__(self, engine: Any, at: int):
        self.engine, self.at, self.calls = engine, at, 0

    def reply(self, batches: Any) -> Any:
        self.calls += 1
        found = self.engine.reply(batches)
        if self.calls > self.at:
            for batch in found:
                for i, reply in enumerate(batch):
                    batch[i] = reply.__class__(reply.ids, (math.nan,) * len(reply.ids), cut=reply.cut)
        return found


def test_a_model_that_says_nan_fails_its_run_even_where_no_group_has_credit(tmp_path: Path) -> None:
    """Flat rewards: without this every step would be skipped, to the end, in silence."""
    run = toy_run(tmp_path, toy_config(steps=9, dev_tasks=0, drop_limit=2))
    run.grader = lambda text, gold: 0.0
    with pytest.raises(RunFailed, match=r"last of 2 in a row.*sampled log-probabilities are not finite"):
        play(run, NotANumber(engine_of(run), 4))
    assert [m.get("dropped") for m in metrics(tmp_path)] == [None, 1.0, 1.0]
    for name in ("metrics.jsonl", "chats.jsonl"):
        for line in (tmp_path / name).read_text().splitlines():
            json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


# --- a study: one run fails, the others finish, the same command tries it alone --------------------------------


@pytest.fixture(scope="module")
def toml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    """All jobs as one stack in this process, as on a GPU: faults are made here."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "in_workers", together)
        yield


@pytest.fixture(scope="module")
def whole(here: None, toml: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the study leaves when nothing happens to it."""
    out = tmp_path_factory.mktemp("whole")
    assert study(toml, out) == 0
    return left(out)


def study(toml: Path, out: Path, *more: str) -> int:
    return main(["study", str(toml), "--out", str(out), *more])


def told(capsys: pytest.CaptureFixture[str]) -> str:
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    return " ".join((found.out + found.err).split())


@pytest.mark.slow
def test_a_run_that_is_not_finite_fails_alone_and_the_same_command_tries_it_alone(
    toml: Path,
    whole: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gradients = PaddedScorer.gradients

    def sick(self: PaddedScorer, k: int, rows: Any, normaliser: float) -> Any:
        gaps, found = gradients(self, k, rows, normaliser)
        return gaps, [None if g is None else g * (math.nan if k == 1 else 1.0) for g in found]

    monkeypatch.setattr(PaddedScorer, "gradients", sick)  # row 1 of the stack is open-17's
    assert study(toml, tmp_path) == 1
    assert "open-17: 3 steps were dropped" in told(capsys)
    document = results.read(tmp_path / "results.json")
    assert list(document["failed"]) == ["open-17"] and document["dropped"] == {"open-17": 3}
    assert "step 3 is the last of 3 in a row" in document["failed"]["open-17"]
    assert "trained_open" not in document["conditions"] and "trained_closed" in document["conditions"]
    before = everything(tmp_path / "runs" / "closed-17")
    when = (tmp_path / "runs" / "closed-17" / "chats.jsonl").stat().st_mtime_ns

    monkeypatch.setattr(PaddedScorer, "gradients", gradients)
    scores = {p: p.stat().st_mtime_ns for p in (tmp_path / "scores").rglob("*.jsonl")}
    assert study(toml, tmp_path) == 0
    assert when and before == everything(tmp_path / "runs" / "closed-17")
    assert all(
        p.stat().st_mtime_ns == at for p, at in scores.items()
    )  # nobody else's passes were played again
    assert results.read(tmp_path / "results.json")["dropped"] == {}
    assert differing(left(tmp_path), whole) == []


def test_an_evaluation_of_a_model_that_says_nan_is_refused_not_scored(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = HfEngine.reply
    monkeypatch.setattr(
        HfEngine, "reply", lambda self, batches: NotANumber(Asked(self, reply), 0).reply(batches)
    )
    assert study(toml, tmp_path) == 1
    reason = json.loads((tmp_path / "runs" / "base" / "failed.json").read_text())["reason"]
    assert "base_closed of base: the log-probabilities of 8 of 8 messages are not finite" in reason
    assert not list((tmp_path / "scores").rglob("base*.jsonl"))


class Asked:
    """An engine through its plain method, where the class's own is patched."""

    def __init__(self, engine: Any, reply: Callable[..., Any]):
        self.reply = lambda batches: reply(engine, batches)


def test_an_engine_that_cannot_answer_one_run_fails_that_one_alone(tmp_path: Path) -> None:
    stack = Stack(small_base().model, 2, SETTINGS["rank"], SETTINGS["alpha"])
    runs = {
        n: toy_run(tmp_path / n, toy_config(), stack, first=k, name=n) for k, n in ((1, "well"), (2, "ill"))
    }
    failures: dict[str, Exception] = {}
    engine = Failing(engine_of(runs["well"]), 2, RunFailed("no answer"), at=9)
    drive({n: train(r) for n, r in runs.items()}, engine, failures.__setitem__)
    assert {n: str(e) for n, e in failures.items()} == {"ill": "no answer"}
    play(toy_run(tmp_path / "alone", toy_config(), name="well"))
    assert differing(everything(tmp_path / "well"), everything(tmp_path / "alone")) == []


# --- a stop ------------------------------------------------------------------------------------------------------


class Stopping:
    """An engine during whose call number `at` a signal comes."""

    def __init__(self, engine: Any, signals: Signals, at: int):
        self.engine, self.signals, self.at, self.calls = engine, signals, at, 0

    def reply(self, batches: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            self.signals.number = signal.SIGTERM
        return self.engine.reply(batches)


@pytest.mark.parametrize("at", [1, 3, 5, 9, 12, 13, 15, 17, 20, 25, 28])
def test_a_run_stopped_at_any_wait_keeps_its_last_step_and_ends_as_one_that_was_not(
    at: int, unharmed: dict[str, Any], tmp_path: Path
) -> None:
    """Calls 1-4 look at step 0, 5-8 are step 1, 9-12 step 2, 13-16 look, 17-20 step 3, 21-24 step 4, 25-28 look."""
    run, signals = toy_run(tmp_path, toy_config(**SHORT)), Signals()
    with pytest.raises(Stopped):
        drive({"toy": train(run)}, Stopping(engine_of(run), signals, at), fail, signals)
    done = {1: 0, 3: 0, 5: 0, 9: 1, 12: 2, 13: 2, 15: 2, 17: 2, 20: 3, 25: 4, 28: 4}[at]
    assert last_good(tmp_path) == done
    again = toy_run(tmp_path, toy_config(**SHORT))
    engine = Dying(engine_of(again), 10_000)
    play(again, engine)
    assert (
        engine.calls <= 28 - at + 8
    )  # at most the wait's own turns, a look or a step of four, are played again
    assert differing(everything(tmp_path), unharmed) == []


def fail(name: str, error: Exception) -> None:
    raise error


# --- memory --------------------------------------------------------------------------------


@pytest.mark.slow
def test_when_nothing_fits_in_memory_the_plans_arithmetic_is_told(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    score = PaddedScorer.score

    def none(self: PaddedScorer, k: int, rows: Any) -> Any:
        if k == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return score(self, k, rows)

    monkeypatch.setattr(PaddedScorer, "score", none)
    assert study(toml, tmp_path) == 1
    reason = results.read(tmp_path / "results.json")["failed"]["open-17"]
    assert "does not fit in memory: lower the token budgets. What the plan counts: " in reason
    assert all(
        part in reason for part in ("GiB: base", "adapters and optimisers", "KV cache", "one micro-batch")
    )
    capsys.readouterr()
    train = ["train", *flags(tmp_path, "base", "tasks.jsonl", "grader.py"), "--out", str(tmp_path / "one")]
    assert main(train) == 1
    assert "What the plan counts: " in told(capsys)


def flags(path: Path, base: str, tasks: str, grader: str) -> list[str]:
    settings = SETTINGS | dict(
        base=str(toy_base(path / base)), tasks=str(toy_tasks(path / tasks)), device="cpu",
        grade=toy_grader(path / grader), message_tokens=3, answer_tokens=4, problems=1,
    )  # fmt: skip
    return [part for k, v in settings.items() for part in (f"--{k.replace('_', '-')}", str(v))]


def test_an_engine_halves_what_does_not_fit_and_answers_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = toy_run(tmp_path / "plain", toy_config(steps=1))
    play(run)
    generate, sizes = HfEngine._generate, []

    def scarce(self: HfEngine, views: Any) -> Any:
        sizes.append(len(views))
        if len(views) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(self, views)

    monkeypatch.setattr(HfEngine, "_generate", scarce)
    play(toy_run(tmp_path / "scarce", toy_config(steps=1)))
    assert max(sizes) == 6 and 3 in sizes
    said = [[m["said"] for c in RunDirectory(tmp_path / n).lines("chats.jsonl") for m in c["messages"]]
            for n in ("plain", "scarce")]  # fmt: skip
    assert said[0] == said[1]
    monkeypatch.setattr(HfEngine, "_generate", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.raises(OutOfMemory, match=r"one row of \d+ tokens does not fit in memory"):
        play(toy_run(tmp_path / "none", toy_config(steps=1)))


# --- the disk --------------------------------------------------------------------------------

SHORT = dict(steps=4, dev_every=2, checkpoint_every=2, problems=1, train_tasks=5, dev_tasks=1)
PLACES: dict[str, Callable[[str, Path], bool]] = {
    "a chat line": lambda op, path: op == "write" and path.name == "chats.jsonl",
    "a metrics line": lambda op, path: op == "write" and path.name == "metrics.jsonl",
    "a dev line": lambda op, path: op == "write" and path.name == "dev.jsonl",
    "token ids": lambda op, path: op == "write" and "tokens" in path.parts,
    "a checkpoint": lambda op, path: op == "write" and "checkpoints" in path.parts,
    "a checkpoint's sync": lambda op, path: (
        op == "fsync" and path.suffix == ".part" and "checkpoints" in path.parts
    ),
    "an adapter": lambda op, path: op == "write" and "adapter" in path.parts,
    "the end": lambda op, path: op == "write" and "done.json" in path.name,
    "the config": lambda op, path: op == "write" and "config.toml" in path.name,
}


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("unharmed")
    play(toy_run(path, toy_config(**SHORT)))
    return everything(path)


def last_good(path: Path) -> int:
    """The step that a resume would go on from; its checkpoint is whole."""
    run = toy_run(path, toy_config(**SHORT))
    return RunDirectory(path).load_checkpoint(run.learner) or 0


@pytest.mark.parametrize("place", PLACES)
def test_a_full_disk_is_told_with_its_path_and_the_run_goes_on_when_there_is_room(
    place: str, unharmed: dict[str, Any], tmp_path: Path
) -> None:
    """From some write on there is no space, and half of that write is left: on a full disk every write fails."""
    once = place in ("an adapter", "the end", "the config")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DiskFailed) as failed:
        refusing = Refusing(errno.ENOSPC, PLACES[place], after=0 if once else 1)
        Disk(patch, tmp_path, refusing)
        play(toy_run(tmp_path, toy_config(**SHORT)))
    assert "could not be written: the disk is full" in str(failed.value) and "MiB free" in str(failed.value)
    assert str(tmp_path) in str(failed.value) and "free some space, and the same command goes on" in str(
        failed.value
    )
    expected = {"a checkpoint": 2, "a checkpoint's sync": 2, "an adapter": 4, "the end": 4}
    assert last_good(tmp_path) == expected.get(place, 0)
    play(toy_run(tmp_path, toy_config(**SHORT)))
    assert differing(everything(tmp_path), unharmed) == []
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("number", READ_ONLY)
@pytest.mark.parametrize("after", [0, 9, 30])
def test_a_directory_that_becomes_read_only_is_told_and_the_run_goes_on(
    number: int, after: int, unharmed: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DiskFailed) as failed:
        Disk(patch, tmp_path, Refusing(number, lambda op, path: op in CHANGES, after))
        play(toy_run(tmp_path, toy_config(**SHORT)))
    why = {errno.EROFS: "it is read-only", errno.EACCES: "you may not write there"}[number]
    assert why in str(failed.value) and "make it writable" in str(failed.value)
    play(toy_run(tmp_path, toy_config(**SHORT)))
    assert differing(everything(tmp_path), unharmed) == []


@pytest.mark.parametrize("number", READ_ONLY)
def test_a_read_only_directory_is_bad_input_before_anything_runs(
    number: int,
    toml: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    Disk(monkeypatch, out, Refusing(number, lambda op, path: op in CHANGES))
    assert study(toml, out) == 2
    assert f"{out}/.lock could not be written" in told(capsys)


def test_a_directory_that_vanishes_is_told_and_begun_again(unharmed: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = toy_run(out, toy_config(**SHORT))
    run.progress = lambda step, _: shutil.rmtree(out) if step == 3 else None
    with pytest.raises(DiskFailed, match=r"its directory is gone \(removed, or unmounted\?\).*bring it back"):
        play(run)
    play(toy_run(out, toy_config(**SHORT)))
    assert differing(everything(out), unharmed) == []


def test_a_directory_that_comes_back_is_gone_on_with(unharmed: dict[str, Any], tmp_path: Path) -> None:
    """As with a file system that is unmounted, and mounted again."""
    out, away = tmp_path / "out", tmp_path / "away"
    run = toy_run(out, toy_config(**SHORT))
    run.progress = lambda step, _: os.replace(out, away) if step == 3 else None
    with pytest.raises(DiskFailed, match="is gone"):
        play(run)
    shutil.rmtree(out, ignore_errors=True)
    os.replace(away, out)
    assert last_good(out) == 2
    play(toy_run(out, toy_config(**SHORT)))
    assert differing(everything(out), unharmed) == []


@pytest.mark.parametrize("after", [0, pytest.param(60, marks=pytest.mark.slow), 200])
def test_a_study_on_a_full_disk_ends_with_one_clear_error_and_goes_on(
    after: int, toml: Path, whole: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything under the study's directory is refused from some write on, failed.json and results.json too."""
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, tmp_path, Refusing(errno.ENOSPC, lambda op, path: op == "write", after))
        assert study(toml, tmp_path) == (1 if after else 2)
    said = told(capsys)
    assert "the disk is full" in said and "free some space, and the same command goes on" in said
    assert study(toml, tmp_path) == 0
    assert differing(left(tmp_path), whole) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 200 kB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(path)]
    if not shutil.which("mount") or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here; the same with injected errors is tested above")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_real_disk_that_is_full_is_told_and_the_run_goes_on_elsewhere(
    small_disk: Path, unharmed: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(DiskFailed, match="the disk is full"):
        play(toy_run(small_disk / "run", toy_config(**SHORT)))
    moved = tmp_path / "moved"
    shutil.copytree(small_disk / "run", moved)
    play(toy_run(moved, toy_config(**SHORT)))
    assert differing(everything(moved), unharmed) == []


# --- the clock --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_clock_that_jumps_back_changes_nothing(
    toml: Path, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", Clock())
    assert study(toml, tmp_path) == 0
    assert differing(left(tmp_path), whole) == []
    assert results.read(tmp_path / "results.json")["cost"]["seconds"] >= 0


def test_the_newest_checkpoint_is_known_by_its_step_not_by_the_clock(
    unharmed: dict[str, Any], tmp_path: Path
) -> None:
    run = toy_run(tmp_path, toy_config(**SHORT | dict(checkpoint_every=1)))
    with pytest.raises(Killed):
        play(run, Dying(engine_of(run), 18))
    newest, older = sorted((tmp_path / "checkpoints").iterdir(), reverse=True)[:2]
    os.utime(newest, (0, 0))
    os.utime(older, (2e9, 2e9))
    assert RunDirectory(tmp_path).load_checkpoint(run.learner) == int(newest.stem[-6:])


# --- checkpoints that are lost --------------------------------------------------------------------------------


def halfway(path: Path, calls: int = 47, **settings: Any) -> Any:
    """A run of 12 steps, checkpoints every 2, killed: four calls a step, so 47 calls are eleven steps and a bit."""
    config = toy_config(**(SHORT | dict(steps=12, dev_tasks=0) | settings))
    run = toy_run(path, config)
    with pytest.raises(Killed):
        play(run, Dying(engine_of(run), calls))
    return lambda: toy_run(path, config)


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("twelve")
    play(toy_run(path, toy_config(**SHORT | dict(steps=12, dev_tasks=0))))
    return everything(path)


def without_aside(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"names": [name for name in found["names"] if not name.endswith(".aside")]}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut to half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a flipped byte": lambda path: path.write_bytes(
        path.read_bytes()[:-9] + b"\x55" + path.read_bytes()[-8:]
    ),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_missing_checkpoint_is_told_and_the_one_before_it_is_used(
    damage: str, twelve: dict[str, Any], tmp_path: Path
) -> None:
    again = halfway(tmp_path)
    newest = tmp_path / "checkpoints" / "step-000010.safetensors"
    DAMAGES[damage](newest)
    with pytest.warns(UserWarning, match=r"step-000010\.safetensors.*goes on from step 8"):
        play(again())
    assert (tmp_path / "checkpoints" / "step-000010.safetensors.aside").is_file() == (damage != "missing")
    assert differing(without_aside(everything(tmp_path)), twelve) == []


@pytest.mark.slow
def test_when_the_last_two_are_damaged_the_best_by_dev_is_still_there(tmp_path: Path) -> None:
    again = halfway(tmp_path, calls=60, dev_tasks=1)
    kept = sorted(int(p.stem[-6:]) for p in (tmp_path / "checkpoints").iterdir())
    scores = {
        m["step"]: m["dev/score"] for m in RunDirectory(tmp_path).lines("metrics.jsonl") if "dev/score" in m
    }
    best = max((s for s in scores if 0 < s <= kept[-1]), key=lambda s: (scores[s], -s))
    assert kept == sorted({best, *kept[-2:]})
    for step in kept[-2:]:
        (tmp_path / "checkpoints" / f"step-{step:06d}.safetensors").write_bytes(b"")
    if best in kept[-2:]:
        with pytest.raises(RunFailed, match="every checkpoint is damaged or lost"):
            play(again())
    else:
        with pytest.warns(UserWarning, match=f"goes on from step {best}"):
            play(again())


def test_a_run_whose_checkpoints_are_all_gone_is_not_begun_again_in_silence(tmp_path: Path) -> None:
    again = halfway(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    before = everything(tmp_path)
    with pytest.raises(RunFailed, match=r"step-000010\.safetensors is missing.*remove that run's directory"):
        play(again())
    assert everything(tmp_path) == before


def test_a_checkpoint_whose_chats_are_lost_is_not_used(twelve: dict[str, Any], tmp_path: Path) -> None:
    """As after a power cut: the checkpoint of step 10 is on disk, and the chats only up to the middle of step 9."""
    again = halfway(tmp_path)
    lines = (tmp_path / "chats.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "chats.jsonl").write_bytes(b"".join(lines[: 8 * 3 + 1]))
    with pytest.warns(UserWarning, match=r"step-000010.*whole up to step 8 only; goes on from step 8"):
        play(again())
    assert differing(without_aside(everything(tmp_path)), twelve) == []


@pytest.mark.slow
def test_a_warning_of_a_damaged_checkpoint_reaches_the_terminal(
    toml: Path, whole: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, tmp_path, Refusing(errno.ENOSPC, lambda op, path: "done.json" in path.name))
        assert study(toml, tmp_path) == 1
    newest = tmp_path / "runs" / "open-17" / "checkpoints" / "step-000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"runs/open-17: damaged: step-000004.*goes on from step 2"):
        assert study(toml, tmp_path) == 0


def test_any_checkpoint_can_be_evaluated_the_best_among_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last one is what the run's own adapter is; an earlier one says other things; half of one is refused."""
    given, out = flags(tmp_path, "base", "tasks.jsonl", "grader.py"), tmp_path / "out"
    assert main(["train", *given, "--adapters", "per_seat", "--out", str(out)]) == 0
    said = {}
    for name in ("", "checkpoints/step-000004.safetensors", "checkpoints/step-000002.safetensors"):
        where = tmp_path / "evaluated" / str(len(said))
        assert main(["evaluate", *given, "--adapter", str(out / name), "--out", str(where)]) == 0
        said[name] = (where / "scores/evaluate/adapter.jsonl").read_text()
        again = tmp_path / "again" / str(len(said))  # as its run had it, whatever is not typed
        assert main(["evaluate", "--adapter", str(out / name), "--out", str(again)]) == 0
        assert (again / "scores/evaluate/adapter.jsonl").read_text() == said[name]
    run, last, earlier = said.values()
    assert run == last != earlier
    inside = str(out / "adapter_A")
    assert (
        main(["evaluate", f"--adapter={inside}", "--heldout-tasks", "2", "--out", str(tmp_path / "two")]) == 0
    )
    assert len(read_lines(tmp_path / "two/scores/evaluate/adapter.jsonl")) == 4
    capsys.readouterr()
    assert main(["evaluate", "--adapter", str(out), "--chats", "9", "--out", str(tmp_path / "x")]) == 2
    assert "given --chats 9, which only training reads" in told(capsys)
    half = out / "checkpoints" / "half.safetensors"
    half.write_bytes((out / "checkpoints/step-000004.safetensors").read_bytes()[:900])
    capsys.readouterr()
    assert main(["evaluate", *given, "--adapter", str(half), "--out", str(tmp_path / "x")]) == 2
    assert "is no whole checkpoint" in told(capsys)
    whole = str(out / "checkpoints/step-000004.safetensors")
    assert main(["evaluate", *given, "--rank", "2", "--adapter", whole, "--out", str(tmp_path / "x")]) == 2
    assert "does not fit this base, --rank and --targets" in told(capsys)


# --- other settings --------------------------------------------------------------------------------


@pytest.mark.slow
def test_other_settings_of_a_study_are_refused_and_with_force_only_what_they_touch_is_done_again(
    toml: Path, whole: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert study(toml, out) == 0
    base = everything(out / "runs" / "closed-17")
    when = {
        p: p.stat().st_mtime_ns
        for p in (out / "scores").rglob("*.jsonl")
        if p.name.startswith(("base", "closed"))
    }
    capsys.readouterr()
    changed = tmp_path / "toy.toml"
    changed.write_text(toml.read_text().replace("[arms.open]\n", "[arms.open]\nlr = 0.03\n"))
    assert study(changed, out) == 2
    said = told(capsys)
    assert (
        "arms.open.lr was not there and is now 0.03" in said
        and "--force sets aside" in said
        and "open-17" in said
    )
    assert "closed-17" not in said
    assert differing(left(out), whole) == []  # nothing was touched

    assert study(changed, out, "--force") == 0
    said = told(capsys)
    assert "arms.open.lr was not there and is now 0.03" in said and f"is in {out}/set-aside/1 now" in said
    assert everything(out / "runs" / "closed-17") == base
    assert {p: p.stat().st_mtime_ns for p in when} == when
    assert (out / "set-aside/1/runs/open-17/done.json").is_file() and (
        out / "set-aside/1/study.toml"
    ).is_file()
    fresh = tmp_path / "fresh"
    assert study(changed, fresh) == 0
    assert differing(left(out), left(fresh)) == []
    assert study(changed, out, "--force") == 0  # nothing differs any more
    assert not (out / "set-aside" / "2").exists()


@pytest.mark.slow
def test_settings_that_nothing_done_depends_on_are_taken_with_force_and_nothing_is_set_aside(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, changed = tmp_path / "out", tmp_path / "toy.toml"
    assert study(toml, out) == 0
    changed.write_text(
        toml.read_text().replace("seeds = [17]", "seeds = [17, 18]").replace("repeats = 2", "repeats = 3")
    )
    assert study(changed, out) == 2
    assert "--force goes on: nothing that is there depends on them" in told(capsys)
    assert study(changed, out, "--force") == 0
    assert not (out / "set-aside").exists()
    fresh = tmp_path / "fresh"
    assert study(changed, fresh) == 0
    assert differing(left(out), left(fresh)) == []


def test_another_config_of_a_run_sets_it_aside_with_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = flags(tmp_path, "base", "tasks.jsonl", "grader.py"), tmp_path / "out"
    assert main(["train", *given, "--out", str(out)]) == 0
    assert main(["train", *given, "--out", str(out), "--rank", "2"]) == 2
    assert "rank was 4 and is now 2. Use another --out, or --force" in told(capsys)
    assert main(["train", *given, "--out", str(out), "--rank", "2", "--force"]) == 0
    assert f"All of it is in {out}/set-aside/1 now" in told(capsys)
    assert main(["train", *given, "--out", str(tmp_path / "fresh"), "--rank", "2"]) == 0
    found = {n: p for n, p in everything(out).items() if "set-aside" not in n}
    found["names"] = [n for n in found["names"] if "set-aside" not in n]
    assert differing(found, everything(tmp_path / "fresh")) == []


def test_a_run_of_an_older_version_goes_on_with_the_defaults_of_what_it_did_not_know(tmp_path: Path) -> None:
    RunDirectory(tmp_path).begin(toy_config())
    path = tmp_path / "config.toml"
    path.write_text("".join(x for x in path.read_text().splitlines(keepends=True) if "drop_limit" not in x))
    RunDirectory(tmp_path).begin(toy_config())
