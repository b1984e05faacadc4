"""Whole runs with `engine = "fast"` on a CPU: alone and in a stack of twelve, killed and resumed, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import small_base
from cotalk.config import Config
from cotalk.decoder.training import PackedScorer
from cotalk.engines import Engine, Table
from cotalk.engines.choose import choose
from cotalk.engines.fast import FastEngine
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.stack import drive
from cotalk.train import Run, train
from toy import SETTINGS, Dying, Killed, everything, play, toy_config, toy_run

KINDS: tuple[dict[str, Any], ...] = (  # four kinds of runs, three seeds each
    dict(),
    dict(channel="closed", chats=2, adapters="per_seat", steps=3),
    dict(order="ABABAB", view="transcript"),
    dict(order="ABABAB", message_tokens=20, problems=1),
)
TWELVE = {f"{i}-{seed}": toy_config(steps=2, seed=seed) for i in range(4) for seed in (17, 18, 19)}
for name in TWELVE:
    kind = KINDS[int(name[0])]
    TWELVE[name] = toy_config(**dict(steps=2, seed=int(name[2:])) | kind)


def adapters_of(config: Config) -> int:
    return 2 if config.adapters == "per_seat" else 1


def fast_run(path: Path, config: Config, stack: Stack, first: int = 1, name: str = "toy") -> Run:
    run = toy_run(path, config, stack, first, name)
    scorer = choose("fast", stack, run.form.end_ids).scorer(config.temperature)
    run.learner = Learner(stack, run.learner.adapters, config, scorer)
    return run


def new_stack(adapters: int) -> Stack:
    return Stack(small_base().model, adapters, SETTINGS["rank"], SETTINGS["alpha"])


def fast_engine(stack: Stack) -> Engine:
    return Table(FastEngine(stack, small_base().form.end_ids))


def play_together(path: Path, names: Sequence[str]) -> Stack:
    stack, runs, at = new_stack(sum(adapters_of(TWELVE[n]) for n in names)), {}, 1
    for name in names:
        runs[name] = fast_run(path / name, TWELVE[name], stack, at, name)
        at += adapters_of(TWELVE[name])

    def failed(name: str, error: Exception) -> None:
        raise error

    drive({name: train(run) for name, run in runs.items()}, fast_engine(stack), failed)
    return stack


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    path = tmp_path_factory.mktemp("twelve")
    stack = play_together(path, list(TWELVE))
    assert stack.adapters == 15
    return {name: everything(path / name) for name in TWELVE}


@pytest.mark.parametrize("name", ["0-17", "1-18", "2-19", "3-17"])
def test_a_run_alone_and_in_a_stack_of_twelve_ends_in_the_same_adapter(
    name: str, stacked: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Adapters, optimiser moments, chats, log-probabilities, metrics: bit for bit."""
    config = TWELVE[name]
    stack = new_stack(adapters_of(config))
    play(fast_run(tmp_path, config, stack, name=name), fast_engine(stack))
    alone = everything(tmp_path)
    assert alone.keys() == stacked[name].keys()
    assert [part for part in alone if alone[part] != stacked[name][part]] == []
    adapters = [part for part in alone if part.endswith("adapter_model.safetensors")]
    assert adapters and all(
        alone[a] not in [other.get(a) for n, other in stacked.items() if n != name] for a in adapters
    )


def test_a_run_learns_the_same_with_fast_as_with_hf(tmp_path: Path) -> None:
    """Same chats token by token; log-probabilities and what is logged agree to rounding."""
    config = toy_config(steps=2)
    stack = new_stack(1)
    play(fast_run(tmp_path / "fast", config, stack), fast_engine(stack))
    play(toy_run(tmp_path / "hf", config))
    fast, hf = everything(tmp_path / "fast"), everything(tmp_path / "hf")
    assert fast["names"] == hf["names"]
    for a, b in zip(fast["chats.jsonl"], hf["chats.jsonl"], strict=True):
        assert [m["said"] for m in a["messages"]] == [m["said"] for m in b["messages"]]
    for a, b in zip(fast["metrics.jsonl"], hf["metrics.jsonl"], strict=True):
        assert a.keys() == b.keys()
        for key in ("grad_norm", "credited_tokens", "ratio/mean"):
            if key in a:
                assert a[key] == pytest.approx(b[key], rel=1e-3)


@pytest.mark.parametrize("kind", [0, 3])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(kind: int, tmp_path: Path) -> None:
    """A new engine has nothing in its cache; what the old one had kept must not have mattered."""
    config = toy_config(**dict(steps=3, checkpoint_every=1, dev_every=2) | KINDS[kind])

    def once(path: Path, at: int) -> int:
        stack = new_stack(1)
        engine = Dying(fast_engine(stack), at)
        play(fast_run(path, config, stack), engine)
        return engine.calls

    calls = once(tmp_path / "whole", 10_000)
    expected = everything(tmp_path / "whole")
    for at in (calls // 3, calls // 2, calls - 2):
        with pytest.raises(Killed):
            once(tmp_path / str(at), at)
        once(tmp_path / str(at), 10_000)
        assert everything(tmp_path / str(at)) == expected


def test_runs_that_differ_in_their_partner_do_not_share_what_they_read(tmp_path: Path) -> None:
    """Two equal runs of one seed, and their untrained partner's rows: equal prompts and replies, cached apart."""
    config = toy_config(order="ABABAB", message_tokens=20)
    paths = [tmp_path / n for n in ("a", "b")]
    stack = new_stack(2)
    runs = {p.name: fast_run(p, config, stack, i + 1, p.name) for i, p in enumerate(paths)}
    drive(
        {name: train(run) for name, run in runs.items()}, fast_engine(stack), lambda _, e: pytest.fail(str(e))
    )
    found = [everything(p) for p in paths]
    assert found[0] == found[1]


def test_the_packed_scorer_is_what_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    gradients = PackedScorer.gradients
    monkeypatch.setattr(
        PackedScorer, "gradients", lambda self, *a: (calls.append(a[0]), gradients(self, *a))[1]
    )
    stack = new_stack(2)
    run = fast_run(tmp_path, toy_config(steps=1, adapters="per_seat"), stack)
    play(run, fast_engine(stack))
    assert set(calls) == {1, 2}
