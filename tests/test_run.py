"""A run's directory: what is written can be read back to the bit, and what is damaged is never believed."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import small_model
from cotalk import run as run_module
from cotalk.config import Config
from cotalk.disk import write_atomically
from cotalk.errors import BadInput, DiskFailed, RunFailed
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.run import RunDirectory, learner_tensors, locked, read_lines
from test_learner import counted, some_chats
from toy import Killed, play, toy_config, toy_run


def learner_at(*places: int, steps: int = 0, adapters: int = 4) -> Learner:
    """A learner of one adapter or one a seat, at some places of a stack, after some steps."""
    own = {"A": places[0], "B": places[-1]}
    learner = Learner(Stack(small_model(), adapters, rank=4, alpha=8.0), own, Config(temperature=0.7))
    learner.initialise(17)
    for step in range(steps):
        learner.update(some_chats(3 + step), 0.01)
    return learner


def tensors_equal(a: Learner, b: Learner) -> bool:
    x, y = learner_tensors(a), learner_tensors(b)
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


# --- config --------------------------------------------------------------------------------------------------


def test_the_resolved_config_can_be_run_again(tmp_path: Path) -> None:
    config = toy_config(tasks='a "quoted" \\ path', normaliser=12.5, adapters="per_seat")
    RunDirectory(tmp_path).begin(config)
    assert Config(**tomllib.loads((tmp_path / "config.toml").read_text())) == config
    RunDirectory(tmp_path).begin(config)  # again: nothing to say


def test_another_config_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    RunDirectory(tmp_path).begin(toy_config())
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "chats": 4}\n')
    with pytest.raises(BadInput) as refused:
        RunDirectory(tmp_path).begin(toy_config(lr=0.5, view="transcript"))
    told = str(refused.value)
    assert "lr was 0.02 and is now 0.5" in told and "view was 'dialogue' and is now 'transcript'" in told
    assert "steps" not in told and "--out" in told


def test_other_contents_of_a_file_are_refused_too_and_what_was_not_begun_takes_any(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(toy_config(), given={"train tasks": "a", "grader g.py:pay": "x"})
    run.begin(
        toy_config(lr=0.5), given={"train tasks": "b", "grader g.py:pay": "x"}
    )  # nothing was played yet
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "chats": 4}\n')
    run.begin(toy_config(lr=0.5), given={"train tasks": "b", "grader g.py:pay": "x", "base": "new"})
    with pytest.raises(BadInput, match=r"other contents of grader g\.py:pay\. Use another --out") as refused:
        run.begin(toy_config(lr=0.5), given={"train tasks": "b", "grader g.py:pay": "y"})
    assert "train tasks" not in str(refused.value)
    told = run.begin(toy_config(lr=0.5), True, {"train tasks": "b", "grader g.py:pay": "y"})
    assert "set-aside/1" in told and not (tmp_path / "metrics.jsonl").exists()
    run.begin(toy_config(lr=0.5))  # as a study's run does, whose study knows what was given


def test_a_kill_while_the_config_is_written_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(Killed):
        RunDirectory(tmp_path).begin(toy_config())
    monkeypatch.undo()
    assert not (tmp_path / "config.toml").exists()
    RunDirectory(tmp_path).begin(toy_config())


def test_a_config_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("lr = ")
    with pytest.raises(BadInput, match="not TOML"):
        RunDirectory(tmp_path).begin(toy_config())


# --- lines ---------------------------------------------------------------------------------------------------


@given(texts=st.lists(st.text(), min_size=1, max_size=5), cut=st.integers(0, 400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_torn_last_line_is_owed_again_and_the_others_are_whole(
    texts: list[str], cut: int, tmp_path: Path
) -> None:
    """Cut anywhere, a file gives back exactly the lines whose newline is still there."""
    path = tmp_path / "lines.jsonl"
    path.unlink(missing_ok=True)
    RunDirectory(tmp_path).append("lines.jsonl", [{"step": i, "said": text} for i, text in enumerate(texts)])
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    assert (
        read_lines(path) == [{"step": i, "said": text} for i, text in enumerate(texts)][: data.count(b"\n")]
    )


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2\n{"step": 3}\n')
    with pytest.raises(RunFailed, match=r"chats\.jsonl, line 2 is damaged"):
        read_lines(path)
    assert read_lines(tmp_path / "missing.jsonl") == []


def test_everything_of_later_steps_is_cut_off(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step in range(5):
        run.append("chats.jsonl", [{"step": step, "chat": i} for i in range(2)])
        run.append("metrics.jsonl", [{"step": step}])
        run.append("dev.jsonl", [{"step": step}])
        run.save_tokens(step, [counted()], "all")
        run.save_tokens(step, [counted()], "all", name="dev")
    with (tmp_path / "chats.jsonl").open("a") as stream:
        stream.write('{"step": 5, "cha')
    run.cut_after(2)
    assert [line["step"] for line in run.lines("chats.jsonl")] == [0, 0, 1, 1, 2, 2]
    assert [line["step"] for line in run.lines("metrics.jsonl")] == [0, 1, 2]
    assert [line["step"] for line in run.lines("dev.jsonl")] == [0, 1, 2]
    assert sorted(p.name for p in (tmp_path / "tokens").iterdir()) == [
        f"{kind}-00000{step}.npz" for kind in ("dev", "step") for step in (0, 1, 2)
    ]
    run.append("chats.jsonl", [{"step": 3}])  # the torn line is gone: a new one does not stick to it
    assert [line["step"] for line in run.lines("chats.jsonl")] == [0, 0, 1, 1, 2, 2, 3]
    run.cut_after(-1)
    assert run.lines("chats.jsonl") == [] and not list((tmp_path / "tokens").iterdir())


def test_a_line_of_a_chat_holds_what_is_needed_and_no_ids(tmp_path: Path) -> None:
    play(toy_run(tmp_path, toy_config(steps=1)))
    lines = (tmp_path / "chats.jsonl").read_text().splitlines()
    assert len(lines) == 6  # 2 problems x 3 chats
    for text in lines:
        line = json.loads(text)
        assert line.keys() >= {
            "step", "condition", "repeat", "task", "chat", "order", "channel", "view", "question", "gold", "hands",
            "players", "messages", "answers", "rewards", "reward",
        }  # fmt: skip
        assert line["step"] == 1 and line["condition"] == "train"
        assert [m["seat"] for m in line["messages"]] == list("ABAB")
        for m in line["messages"]:
            assert m.keys() >= {"seat", "turn", "said", "heard", "credit", "cut", "tokens", "logprob"}
            assert 1 <= m["tokens"] <= 7 and m["logprob"] < 0 and isinstance(m["credit"], float)
        assert 1000 < len(text) < 3000
        assert not any(
            isinstance(v, list) and v and isinstance(v[0], int) for m in line["messages"] for v in m.values()
        )


# --- tokens --------------------------------------------------------------------------------------------------


def test_a_shard_holds_every_id_and_log_probability_as_recorded(tmp_path: Path) -> None:
    chats = some_chats(2)
    RunDirectory(tmp_path).save_tokens(7, chats, "last")
    with np.load(tmp_path / "tokens" / "step-000007.npz", allow_pickle=False) as shard:
        found = {name: shard[name] for name in shard.files}
    messages = [(i, m) for i, chat in enumerate(chats) for m in chat.messages]
    at, before = 0, 0
    for place, (i, m) in enumerate(messages):
        n, p = found["lengths"][place], found["prompt_lengths"][place]
        assert found["chat"][place] == i and found["turn"][place] == m.turn
        assert tuple(found["ids"][at : at + n]) == m.ids
        assert tuple(found["prompts"][before : before + p]) == m.prompt
        assert found["logprobs"][at : at + n].tolist() == list(m.logprobs)
        at, before = at + n, before + p
    assert (at, before) == (len(found["ids"]), len(found["prompts"]))


@pytest.mark.parametrize(("keep", "left"), [("last", range(3, 13)), ("all", range(1, 13))])
def test_shards_are_kept_for_the_last_ten_steps_or_for_all(keep: str, left: range, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step in range(1, 13):
        run.save_tokens(step, [counted()], keep)
        if step % 4 == 0:
            run.save_tokens(step, [counted()], "all", name="dev")
    names = {p.name for p in (tmp_path / "tokens").iterdir()}
    assert names == {f"step-{n:06d}.npz" for n in left} | {f"dev-{n:06d}.npz" for n in (4, 8, 12)}


# --- checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [(1,), (1, 2)])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_checkpoint_restores_adapters_and_moments_to_the_bit(
    places: tuple, steps: int, tmp_path: Path
) -> None:
    """Also at another place of another stack; and the next step from it is the same step."""
    learner = learner_at(*places, steps=steps)
    run = RunDirectory(tmp_path)
    run.save_checkpoint(steps, learner)
    again = learner_at(*(p + 2 for p in places))
    with torch.no_grad():  # something else was there
        for k in again.optimisers:
            for p in again.stack.parameters(k).values():
                p.add_(1.0)
    assert run.load_checkpoint(again) == steps
    assert tensors_equal(learner, again)
    moments = [name for name in learner_tensors(again) if name.endswith(("exp_avg", "exp_avg_sq", ".step"))]
    assert len(moments) == (3 * 28 * len(places) if steps else 0)
    for one in (learner, again):
        one.update(some_chats(9), 0.02)
    assert tensors_equal(learner, again)
    fresh = learner_at(*places)
    fresh.update(some_chats(9), 0.02)
    assert steps == 0 or not tensors_equal(learner, fresh)


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path).load_checkpoint(learner_at(1)) is None


def two_checkpoints(path: Path) -> tuple[RunDirectory, dict[int, Learner], Path]:
    run = RunDirectory(path)
    learners = {step: learner_at(1, steps=step) for step in (1, 2)}
    for step, learner in learners.items():
        run.save_checkpoint(step, learner)
    return run, learners, path / "checkpoints" / "step-000002.safetensors"


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    run, learner = RunDirectory(tmp_path), learner_at(1)
    for step in (1, 2, 3, 4):
        run.save_checkpoint(step, learner)
    assert sorted(p.stem for p in (tmp_path / "checkpoints").iterdir()) == ["step-000003", "step-000004"]


def test_the_best_by_dev_is_kept_too_the_earliest_of_equals(tmp_path: Path) -> None:
    """Dev scores of steps 2, 4, 6: .5, .5, .1; step 3 and 5 were not looked at."""
    run, learner = RunDirectory(tmp_path), learner_at(1)
    scores = {2: 0.5, 4: 0.5, 6: 0.1, 8: 0.9}
    kept = {}
    for step in range(1, 9):
        if step in scores:
            run.append("metrics.jsonl", [{"step": step, "dev/score": scores[step]}])
        run.save_checkpoint(step, learner)
        kept[step] = [int(p.stem[-1]) for p in sorted((tmp_path / "checkpoints").iterdir())]
    assert kept == {
        1: [1],
        2: [1, 2],
        3: [2, 3],
        4: [2, 3, 4],
        5: [2, 4, 5],
        6: [2, 5, 6],
        7: [2, 6, 7],
        8: [7, 8],
    }


def test_a_checkpoint_of_a_stop_goes_when_the_next_usual_one_is_written(tmp_path: Path) -> None:
    run, learner = RunDirectory(tmp_path), learner_at(1, steps=1)
    run.save_stopped(0, learner)  # nothing was trained: the first adapter is drawn from the seed
    assert not (tmp_path / "checkpoints").exists()
    run.save_checkpoint(2, learner)
    run.save_stopped(2, learner)  # there is one of that step
    run.save_stopped(3, learner)
    names = lambda: [p.name.split(".")[0] for p in sorted((tmp_path / "checkpoints").iterdir())]  # noqa: E731
    assert names() == ["step-000002", "stopped-000003"]
    again = learner_at(1)
    assert run.load_checkpoint(again) == 3 and tensors_equal(learner, again)
    run.save_checkpoint(4, learner)
    assert names() == ["step-000002", "step-000004"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, dict[int, Learner]]:
    _, learners, newest = two_checkpoints(tmp_path_factory.mktemp("two"))
    return newest, newest.read_bytes(), learners


@given(data=st.data(), where=st.sampled_from(["header", "metadata", "tensors"]), flip=st.integers(1, 255))
@settings(max_examples=80, deadline=None)
def test_a_flipped_byte_is_never_believed(data: st.DataObject, where: str, flip: int, saved: tuple) -> None:
    """Anywhere: in the length and header, in the recorded step and digest, in the numbers."""
    newest, whole, learners = saved
    size = 8 + int.from_bytes(whole[:8], "little")
    spans = {
        "header": (0, size),
        "metadata": (8, 8 + whole[8:].index(b"versions")),
        "tensors": (size, len(whole)),
    }
    at = data.draw(st.integers(spans[where][0], spans[where][1] - 1))
    newest.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    learner = learner_at(1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step = RunDirectory(newest.parent.parent).load_checkpoint(learner)
    assert step in (1, 2)
    assert tensors_equal(learner, learners[step])
    assert bool(told) == (step == 1)
    if where == "tensors":
        assert step == 1


@given(cut=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_a_cut_off_checkpoint_is_passed_over_with_a_warning(cut: int, saved: tuple) -> None:
    newest, whole, learners = saved
    newest.write_bytes(whole[: len(whole) * cut // 10_001])
    learner = learner_at(1)
    with pytest.warns(UserWarning, match=r"step-000002.*goes on from step 1"):
        assert RunDirectory(newest.parent.parent).load_checkpoint(learner) == 1
    assert tensors_equal(learner, learners[1])


def test_a_checkpoint_whose_step_was_altered_is_not_believed(tmp_path: Path) -> None:
    run, _, newest = two_checkpoints(tmp_path)
    whole = newest.read_bytes()
    assert whole.count(b'\\"step\\": 2') == 1
    newest.write_bytes(whole.replace(b'\\"step\\": 2', b'\\"step\\": 3'))
    with pytest.warns(UserWarning, match="digest"):
        assert run.load_checkpoint(learner_at(1)) == 1


def test_when_every_checkpoint_is_damaged_the_run_fails_and_says_what_to_do(tmp_path: Path) -> None:
    run, _, newest = two_checkpoints(tmp_path)
    for path in newest.parent.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    learner = learner_at(1, steps=1)
    before = learner_tensors(learner)
    with pytest.raises(RunFailed, match=r"every checkpoint is damaged.*remove that run's directory"):
        run.load_checkpoint(learner)
    assert all(torch.equal(before[n], t) for n, t in learner_tensors(learner).items())


@pytest.mark.parametrize("when", ["before the rename", "half written"])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, learners, newest = two_checkpoints(tmp_path)

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(run_module.os, "replace" if when == "before the rename" else "fsync", die)
    with pytest.raises(Killed):
        run.save_checkpoint(3, learner_at(1, steps=3))
    monkeypatch.undo()
    learner = learner_at(1)
    assert run.load_checkpoint(learner) == 2 and tensors_equal(learner, learners[2])
    run.save_checkpoint(3, learner)
    assert newest.exists() and not (newest.parent / "step-000001.safetensors").exists()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    write_atomically(path, "first")
    monkeypatch.setattr(run_module.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(DiskFailed, match="file could not be written: disk full"):
        write_atomically(path, "second")
    assert path.read_text() == "first"


# --- the end -------------------------------------------------------------------------------------------------


def test_a_finished_run_has_its_adapters_and_no_failure(tmp_path: Path) -> None:
    run, learner = RunDirectory(tmp_path), learner_at(1, 2, steps=1)
    run.fail("ValueError: no luck")
    assert json.loads((tmp_path / "failed.json").read_text()) == {"reason": "ValueError: no luck"}
    assert not run.done
    run.finish(learner)
    assert run.done and not (tmp_path / "failed.json").exists()
    again = learner_at(3, 4)
    for seat in "AB":
        again.stack.load(again.adapters[seat], tmp_path / f"adapter_{seat}")
        for a, b in zip(
            *(x.stack.parameters(x.adapters[seat]).values() for x in (learner, again)), strict=True
        ):
            assert torch.equal(a, b)
    RunDirectory(tmp_path / "shared").finish(learner_at(1))
    assert (tmp_path / "shared" / "adapter" / "adapter_model.safetensors").is_file()


# --- one process a directory ---------------------------------------------------------------------------------

HOLDER = """
import sys, time
from pathlib import Path
from cotalk.run import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_on_a_directory_is_refused_with_the_firsts_pid_and_host(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        told = rf"in use by process {holder.pid} on {platform.node()} \(since 20.*another --out"
        with pytest.raises(BadInput, match=told), locked(tmp_path):
            pass
        holder.kill()
    with locked(tmp_path):  # a crash leaves no lock behind
        assert (tmp_path / ".lock.json").is_file()
    assert not (tmp_path / ".lock.json").exists()


def test_a_lock_is_given_back_when_the_work_fails(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError), locked(tmp_path):
            raise RuntimeError
