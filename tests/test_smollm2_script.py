"""scripts/smollm2.py: the study as the issue of record has it, stopped in time and gone on with, and what is kept."""

from __future__ import annotations

import importlib.util
import json
import math
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from cotalk import results
from cotalk.bases import problems
from cotalk.stack import held
from cotalk.study import Study, read_study
from toy import toy_base

ROOT = Path(__file__).parents[1]
TOY = ["steps=3", "problems=1", "chats=2", "train_tasks=4", "dev_tasks=1", "heldout_tasks=2", "message_tokens=3",
       "answer_tokens=4", "rank=4", "alpha=8.0", "checkpoint_every=2", 'device="cpu"']  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("smollm2_script", ROOT / "scripts" / "smollm2.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_study_is_five_seeds_open_and_closed_with_every_control() -> None:
    found = read_study("smollm2")
    assert len(found.seeds) == 5 and set(found.arms) == {"open", "closed"}
    c = found.config
    assert (c.steps, c.problems, c.chats, c.order, c.message_tokens, c.answer_tokens) == (
        80,
        8,
        4,
        "ABAB",
        96,
        224,
    )
    assert (c.rank, c.alpha, c.lr, c.temperature, c.normaliser, c.rule) == (
        32,
        64.0,
        2e-4,
        0.9,
        "sampled",
        "clean",
    )
    assert found.evaluate.repeats == 3 and found.evaluate.unseen == 100 and found.evaluate.greedy
    names = {condition.name for condition in found.conditions()}
    assert {"skyline", "floor", "trained_a_base_b", "base_a_trained_b", "trained_open_unseen"} <= names


def test_gsm8k_is_played_on_the_published_problems_without_unseen_templates(
    script: ModuleType, tmp_path: Path
) -> None:
    found = script.the_study("bases/smollm2", str(tmp_path), ("steps=4",), (17, 18, 19))
    assert found.config.tasks == str(tmp_path) and found.config.rule == "published"
    assert found.config.heldout_tasks == 300 and found.config.steps == 4 and found.seeds == (17, 18, 19)
    assert not any(name.endswith("_unseen") for pair in found.compare for name in pair)
    assert found.evaluate == replace(read_study("smollm2").evaluate, unseen=0)


def test_when_time_is_up_workers_are_ended_and_a_stack_is_asked_to_stop(script: ModuleType) -> None:
    found = read_study("smollm2")
    script.watch(found, math.inf)("open-17", "train", 11, 80, {})
    with pytest.raises(script.TimeIsUp):  # nobody here holds signals: worker processes train
        script.watch(found, -math.inf)("open-17", "train", 11, 80, {})
    late = script.watch(found, -math.inf)
    with held() as signals:
        late("open-17", "train", 11, 80, {})
        late("open-17", "train", 12, 80, {})  # asked once: a second signal would end all at once
        assert signals.number == signal.SIGTERM


@pytest.mark.slow
def test_a_study_that_was_stopped_goes_on_with_the_same_command(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("reasoning_gym")
    whole = script.the_study

    def smaller(*arguments: object) -> Study:
        found = whole(*arguments)
        quick = replace(found.evaluate, unseen=2, repeats=1, chats=1, greedy=False, causal=())
        return replace(found, evaluate=quick)

    monkeypatch.setattr(script, "the_study", smaller)
    base = str(toy_base(tmp_path / "base"))
    for name in ("one", "two"):
        command = [
            "study",
            "--base",
            base,
            "--out",
            str(tmp_path / name),
            "--seeds",
            "17",
            "18",
            "--set",
            *TOY,
        ]
        if name == "two":
            assert script.main([*command, "--minutes", "0"]) == script.TIME_IS_UP
            assert not (tmp_path / name / "results.json").exists()
        assert script.main(command) == 0
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert results.check(two) == [] and two["failed"] == {}
    assert one["conditions"] == two["conditions"] and "trained_open_unseen" in two["conditions"]
    assert (tmp_path / "two" / "report.html").is_file()


def test_problems_are_drawn_once_for_a_machine_without_the_library(
    script: ModuleType, tmp_path: Path
) -> None:
    pytest.importorskip("reasoning_gym")
    out = tmp_path / "problems.jsonl.gz"
    assert script.main(["draw", "--out", str(out), "--count", "30"]) == 0
    assert len(problems.read(out)) == 30


def test_the_first_chats_of_every_condition_are_kept(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, lines in (("open-17.jsonl", 40), ("open-18.jsonl", 40), ("open-17.greedy.jsonl", 5)):
        path = tmp_path / "run" / "scores" / "trained_open" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'{{"of": "{name}"}}\n' for _ in range(lines)))

    def kept(run: Path, target: Path) -> list[Path]:
        target.mkdir()
        return []

    monkeypatch.setattr("keep_results.keep", kept)
    assert script.main(["keep", str(tmp_path / "run"), str(tmp_path / "kept")]) == 0
    lines = (tmp_path / "kept" / "chats" / "trained_open.jsonl").read_text().splitlines()
    assert len(lines) == script.KEPT_CHATS and not any("greedy" in line for line in lines)
    assert {json.loads(line)["of"] for line in lines} == {"open-17.jsonl", "open-18.jsonl"}


def test_bad_input_ends_with_2(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert script.main(["base", "--out", str(tmp_path / "full")]) == 2
    assert "not empty" in capsys.readouterr().err
