"""What a plan says before anything runs, worked out by hand, and `--plan` on the command line."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from conftest import small_model
from cotalk import bench
from cotalk import plan as plan_module
from cotalk.decoder.packing import pack
from cotalk.decoder.training import PackedScorer
from cotalk.decoder.weights import Decoder
from cotalk.engines.fast import FastEngine
from cotalk.engines.hf import HfEngine
from cotalk.errors import BadInput
from cotalk.lora import Stack
from cotalk.plan import GIB, plan, shape_of, step_of
from cotalk.shapes import Shape, known
from cotalk.speeds import ENGINE_ROWS, Cpu, Fast, Hf
from cotalk.study import Study, read_study, study_from
from cotalk.workload import FULL, Play, Words, step_play
from toy import toy_config

QWEN = Shape.named("qwen2.5-1.5b")
RUN = dict(
    steps=10, problems=2, chats=3, train_tasks=8, dev_tasks=4, heldout_tasks=20, order="ABAB", message_tokens=10,
    answer_tokens=30, dev_every=4, rank=4, alpha=8.0,
)  # fmt: skip


def made(**changes: Any) -> Study:
    table = {"seeds": [1, 2, 3], "run": RUN, "arms": {"open": {}, "closed": {"channel": "closed"}}}
    return study_from("toy", table | changes, None, None, "toy.toml")


def saved(path: Path) -> str:
    small_model().save_pretrained(path)
    return str(path)


# --- tokens and rows -----------------------------------------------------------------------------------------


def test_runs_rows_and_tokens_worked_out() -> None:
    """A chat is at most 10 + 10 + 30 + 30 = 80 tokens. 6 runs x 10 steps x 2 x 3 chats x 80 = 28,800.

    Dev: at 0, 4, 8 and 10, so 4 looks x 4 tasks x 80 x 6 runs                                 = 7,680
    An arm's run on 20 tasks: own channel 3 times, two partner conditions (2 chats each), one greedy:
        20 x (2 x 3 + 2 + 2 + 1) x 80 x 6 runs                                                 = 105,600
    The base: open 3 times, closed (2 chats each), both greedy: 20 x (2 x 4 + 2) x 80          = 16,000
    Skyline: one seat, 20 x 2 x 30 = 1,200; floor: two halves, 20 x 2 x 2 x 30 = 2,400          = 3,600
    Waiting at once: 40 chats of each of the six runs, 80 half hands of the base.
    """
    found = plan(made(), device="cpu", workers=2)
    assert (found.runs, found.steps, found.rows) == (6, (10,), 6 * 2 * 3)
    assert found.training.sampled == 28_800
    assert found.evaluation.sampled == 7_680 + 105_600 + 16_000 + 3_600
    assert found.training_rows == 6 * 2 * 3 * 2  # dialogue: a row a seat
    assert found.evaluation_rows == 6 * 40 + 80
    transcript = plan(made(run=RUN | {"view": "transcript"}), device="cpu")
    assert transcript.training_rows == 6 * 2 * 3 * 4  # a row a message


def test_every_arm_counts_with_its_own_settings() -> None:
    """One arm with twice the steps and twice the chats: 3 runs x (10 x 6 + 20 x 12) x 80."""
    found = plan(made(arms={"open": {}, "long": {"steps": 20, "chats": 6}}), device="cpu")
    assert found.steps == (10, 20) and found.rows == 3 * 6 + 3 * 12
    assert found.training.sampled == 3 * (10 * 6 + 20 * 12) * 80
    assert "10 or 20 steps" in dict(found.lines())["runs"]


def test_what_is_not_evaluated_costs_nothing() -> None:
    once = {"chats": 1, "repeats": 1, "trained_repeats": 1, "greedy": False, "partners": False}
    less = made(evaluate=once, run=RUN | {"dev_tasks": 0})
    found = plan(less, device="cpu")
    # 6 runs once, base open and closed once, skyline, floor
    nothing_more = 20 * 80 * 6 + 20 * 80 * 2 + 20 * 30 + 2 * 20 * 30
    assert found.evaluation.sampled == nothing_more
    knocked = made(evaluate=once | {"causal": ["nothing", "base"]}, run=RUN | {"dev_tasks": 0})
    # open runs: the plain pass, turns 0, 1 and 2 as the base would say them (10, 10, 30), turns 0, 1, 2 and 0 + 2 x 2
    assert plan(knocked, device="cpu").evaluation.sampled == nothing_more + 3 * 20 * (80 + 50 + 8 * 80)


def test_a_cross_play_matrix_counts_each_of_its_cells() -> None:
    """Three open runs (a closed one plays another game), the base and a script: 5 x 5 cells less the script with
    itself, 5 tasks x 2 chats x 80 tokens each."""
    once = {"cross": 5, "cross_chats": 2, "guests": ["script:terse"]}
    more, less = (plan(made(evaluate=e), device="cpu").evaluation.sampled for e in (once, {}))
    assert more - less == 24 * 5 * 2 * 80


def test_a_run_whose_chats_are_counted_ends_with_them_and_a_method_that_draws_more_is_named() -> None:
    """20 chats of 6 a step: 4 steps of the 10."""
    arms = {
        "plain": {},
        "few": {"samples": 20},
        "ada": {"method": "ada"},
        "again": {"method": "leave_one_out"},
    }
    found = plan(made(arms=arms, run=RUN | {"channel": "open"}), device="cpu")
    assert found.steps == (4, 10)
    assert found.training.sampled == 3 * (10 + 4 + 10 + 10) * 6 * 80
    assert found.more == ("ada", "again")
    assert "ada, again" in dict(found.lines())["not counted"]
    assert "not counted" not in dict(plan(made(), device="cpu").lines())


WORDS = Words(prompt=100, line=5, turn=7, usual=0.5)


def chats(view: str = "dialogue", channel: str = "open", **changes: Any) -> Play:
    rules = toy_config(order="ABAB", view=view, channel=channel, message_tokens=10, answer_tokens=30).rules
    return replace(Play(rules, 12, 3, 1, WORDS), **changes)


def test_prompt_tokens_read_worked_out() -> None:
    """Twelve chats, three a task. A's first prompt is read once a task; of all others a page of 64 is.

    dialogue: B hears 10 + 5; A then hears 10 + 5 in a new turn of 7 (its own message is in the cache); B 30 + 5 + 7.
    transcript: messages of 10, 10, 30 and 5 around each: 15, 30 and 65 told.
    """
    assert chats().read(1.0, reuse=True) == 4 * 100 + (4 * 64 + 12 * (36 + 15)) + 12 * 22 + 12 * 42
    assert chats("transcript").read(1.0, reuse=True) == 4 * 100 + 3 * 4 * 64 + 12 * (3 * 36 + 15 + 30 + 65)
    # without reuse: all but A's first prompts are read whole, 15, 10 + 22 and 15 + 10 + 42 told
    assert chats().read(1.0, reuse=False) == 4 * 100 + 12 * (115 + 132 + 167)
    # closed: B's first prompt is the same in a task's chats, since it heard nothing (5 around it)
    assert chats(channel="closed").read(1.0, reuse=True) == 4 * 100 + 4 * 105 + 12 * 12 + 12 * 12
    assert chats().read(0.5, reuse=True) == 4 * 100 + (4 * 64 + 12 * (36 + 10)) + 12 * 17 + 12 * 27
    assert chats(only=(1, 2)).sampled() == 12 * (10 + 30)


def test_trained_tokens_worked_out() -> None:
    """dialogue: a row a seat, A 10 + 22 + 30, B 15 + 10 + 42 + 30, first prompts shared by a task's three chats.

    transcript: a row a message, 10, 25, 60 and 95 after the first prompt.
    """
    assert chats().trained(1.0, packed=True) == 12 * (62 + 97) + 2 * 4 * 100
    assert chats("transcript").trained(1.0, packed=True) == 12 * (10 + 25 + 60 + 95) + 2 * 4 * 100
    assert chats().trained(1.0, packed=False) == pytest.approx(1.2 * 12 * (62 + 97 + 200))
    assert chats("transcript").trained(1.0, packed=False) == pytest.approx(1.2 * 12 * (190 + 400))
    assert chats().longest == 100 + 67 + 30


@pytest.mark.parametrize("view", ["dialogue", "transcript"])
def test_a_played_step_reads_and_trains_what_was_planned(view: str) -> None:
    """A real step of a random model through the fast engine, one token a word, nearly every message at its budget:
    what the engine and the packed scorer count, against the plan's arithmetic."""
    found = bench.whole_step(
        "tiny", 1, view, 3, (16, 24), torch.device("cpu"), torch.float32, "fast", problems=2
    )  # fmt: skip
    lengths = {"view": view, "message_tokens": 16, "answer_tokens": 24, "problems": 2}
    config = read_study("talk-to-solve", lengths).arm("open")
    planned = step_play(config)
    assert found["tokens_sampled"] == pytest.approx(planned.sampled(), rel=0.1)
    assert found["prompt_tokens_read"] == pytest.approx(planned.read(1.0, reuse=True), rel=0.15)
    assert found["tokens_trained"] == pytest.approx(planned.trained(1.0, packed=True), rel=0.15)


# --- the shape -----------------------------------------------------------------------------------------------


def test_a_shape_counts_the_parameters_of_the_model_and_of_an_adapter(tmp_path: Path) -> None:
    shape = shape_of(saved(tmp_path))
    model = small_model()
    norms = sum(p.numel() for n, p in model.named_parameters() if "norm" in n)
    assert shape is not None and shape.parameters == sum(p.numel() for p in model.parameters()) - norms
    stack = Stack(model, 1, rank=4, alpha=8.0)
    assert shape.adapter(4) == sum(p.numel() for p in stack.parameters(1).values())


def small_stack(family: str) -> Stack:
    if family == "llama":
        return Stack(small_model(), 3, rank=20, alpha=8.0)
    config = Qwen3Config(
        vocab_size=261, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False, attn_implementation="sdpa",
    )  # fmt: skip
    return Stack(Qwen3ForCausalLM(config).eval(), 3, rank=20, alpha=8.0)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_copies_of_adapters_and_what_training_keeps_are_those_of_the_decoder(family: str) -> None:
    """Rank 20 lies padded to 32. Every tensor that a block keeps is counted, but its two float32 scales."""
    stack = small_stack(family)
    shape = Shape.of(stack.model.config.to_dict())
    assert shape is not None
    weights = sum(linear.base.weight.numel() for linear in stack.linears.values())
    decoder = Decoder.of(stack)
    held = sum(f.buffer.numel() + f.b.numel() for layer in decoder.layers for f in layer.fused)
    assert shape.copies(3, 20) == held - weights
    assert shape.body == weights
    rows = bench.training_rows(4, 40, 10, 0.5, 261)
    packed = pack(rows, decoder.device)
    _, kept = PackedScorer(decoder, 1.0)._forward(packed)
    for block in kept:
        tensors = [t for t in vars(block).values() if isinstance(t, torch.Tensor)]
        numbers = sum(t.numel() for t in tensors) - block.rstd_in.numel() - block.rstd_mid.numel()
        assert numbers == len(packed.ids) * shape.kept(20)
    assert shape.decoded(8, 2, 20, 100) * 4 == bench.decode_bytes(decoder, 8, 2, 100)


def test_the_published_base_has_the_measured_size() -> None:
    shape = shape_of("Qwen/Qwen2.5-1.5B-Instruct")
    assert shape == QWEN
    assert shape.parameters == pytest.approx(1.54e9, rel=0.01)
    assert shape.adapter(32) == pytest.approx(36.9e6, rel=0.01)  # measured: 36.9M parameters an adapter
    assert 2 * shape.kept(32) == pytest.approx(56e3, rel=0.01)
    with pytest.raises(BadInput, match=r"qwen.*expected one of qwen2.5-1.5b"):
        known("qwen")


# --- memory --------------------------------------------------------------------------------------------------


def test_memory_is_that_of_all_workers_together_on_a_cpu_and_of_one_stack_on_a_gpu(tmp_path: Path) -> None:
    run = RUN | {"base": saved(tmp_path)}
    one, two = (plan(made(run=run), device="cpu", workers=n).memory for n in (1, 2))
    assert one and two == {name: 2 * size for name, size in one.items()}
    adapter = 4 * shape_of(run["base"]).adapter(4)  # type: ignore[union-attr]  # bytes
    # a worker: the base's place and the adapter, two moments, gradients held twice
    assert one["adapters and optimisers"] == adapter * (2 + 2 + 2)
    gpu = plan(made(run=run), device="cuda").memory
    assert gpu and gpu["adapters and optimisers"] == adapter * (7 + 12 + 2)
    split = plan(made(run=run | {"adapters": "per_seat"}), device="cuda").memory
    assert split and split["adapters and optimisers"] == adapter * (13 + 24 + 4)


def test_the_cache_is_a_share_of_the_card_and_the_plan_says_what_of_it_the_caps_use() -> None:
    found = plan(read_study("talk-to-solve"), card_gib=80)
    assert found.card is not None and found.memory is not None
    assert found.memory["KV cache"] == 0.25 * 80 * GIB
    tiny = plan(read_study("quickstart"), card_gib=80)
    assert tiny.memory is not None and tiny.memory["KV cache"] == 4 * tiny.kv_needed < 0.25 * 80 * GIB
    # 512 rows, each at its longest: 110, then 160 + 160 + 384 told with 3 around each, and 384 sampled: 19 pages of 64
    assert found.kv_needed == 512 * 19 * 64 * QWEN.kv * 2
    assert "of a GPU of 80 GiB" in dict(found.lines())["memory at the caps"]


def test_the_measured_peak_of_six_runs_is_planned() -> None:
    """68 GiB on an H200 in the dialogue view (bench/step.py, 16,384 tokens a micro-batch)."""
    found = plan(read_study("talk-to-solve", {"view": "dialogue"}), card_gib=139.8)
    assert found.memory is not None
    assert sum(found.memory.values()) / GIB == pytest.approx(68, rel=0.05)


def test_a_card_that_is_too_small_is_told_what_to_type() -> None:
    small = plan(read_study("talk-to-solve"), card_gib=24)
    told = dict(small.lines())["memory at the caps"]
    assert "MORE THAN THE CARD HOLDS: --set batch_tokens=4096 fits" in told
    again = plan(read_study("talk-to-solve", {"batch_tokens": 4096}), card_gib=24)
    assert sum(again.memory.values()) < 24 * GIB  # type: ignore[union-attr]
    assert "MORE THAN" not in dict(again.lines())["memory at the caps"]
    tiny = plan(read_study("talk-to-solve"), card_gib=4)
    assert "whatever batch_tokens is" in dict(tiny.lines())["memory at the caps"]


# --- time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view, seconds", [("dialogue", 11.9), ("transcript", 13.6)])
def test_the_measured_step_of_six_runs_is_planned_within_a_quarter(view: str, seconds: float) -> None:
    """bench/step.py on one H200: 8 problems x 4 chats, all caps reached, channel open; prompt tokens read 162,000 and
    276,000, sampled 208,896."""
    study = read_study("talk-to-solve", {"view": view})
    configs = [study.job_config(job) for job in study.jobs() if job.arm == "open"] * 2
    plays = [step_play(c) for c in configs]
    assert sum(play.sampled() for play in plays) == 208_896
    read = {"dialogue": 162_000, "transcript": 276_000}[view]
    assert sum(play.read(1.0, reuse=True) for play in plays) == pytest.approx(read, rel=0.02)
    assert step_of(configs, Fast(QWEN, 2), 1.0).seconds == pytest.approx(seconds, rel=0.25)


@pytest.mark.parametrize(
    "rows, adapters, ms", [(32, 1, 2.32), (192, 6, 3.88), (384, 12, 5.81), (512, 12, 7.12)]
)
def test_measured_decode_speeds_are_planned_within_a_twentieth(rows: int, adapters: int, ms: float) -> None:
    """One turn at context 600: a prompt of 580 with 40 tokens sampled has 600 on average."""
    rules = replace(toy_config().rules, order="A", message_tokens=40, answer_tokens=40)
    turn = Play(rules, rows, 1, adapters, Words(580, 0, 0, 1.0))
    engine = Fast(QWEN, 2)
    assert engine._decode_seconds([turn], 32, 1.0) == pytest.approx(40 * ms / 1e3, rel=0.05)
    # half as long on average: as many steps, with half of the rows in the mean
    halved = engine._decode_seconds([turn], 32, 0.5)
    assert 0.4 * 40 * ms / 1e3 < halved < 40 * ms / 1e3


def test_more_rows_than_decode_at_once_take_turns() -> None:
    for engine in (FastEngine, HfEngine):
        assert inspect.signature(engine).parameters["rows"].default == ENGINE_ROWS
    rules = replace(toy_config().rules, order="A")
    one, three = (Play(rules, n * ENGINE_ROWS, 1, n, FULL) for n in (1, 3))
    for engine in (Fast(QWEN, 2), Hf(QWEN, 2)):
        assert engine.play_seconds([three], 32, 1.0) == pytest.approx(3 * engine.play_seconds([one], 32, 1.0))


def test_the_measured_hf_step_is_planned_within_a_quarter() -> None:
    """bench/step.py --engine hf: 109 s for one run of the published step on an H200, 93 ms a token (LAB.md)."""
    config = read_study("talk-to-solve").arm("open")
    assert step_of([config], Hf(QWEN, 2), 1.0).seconds == pytest.approx(109, rel=0.25)


def test_the_quickstart_is_planned_within_a_quarter_of_what_it_took() -> None:
    """LAB.md: 1 min 51 s with two workers, .52 s a step of one run on one core."""
    study = read_study("quickstart")
    found = plan(study, device="cpu", workers=2)
    assert found.minutes is not None and found.minutes[0] == pytest.approx(1.85, rel=0.25)
    tiny = shape_of("tiny")
    assert tiny is not None
    step = step_of([study.arm("open")], Cpu(tiny, 4), plan_module.words_of(study.config).usual)
    assert step.seconds == pytest.approx(0.52, rel=0.25)


def test_two_gpus_take_half_the_runs_each_and_hold_no_more() -> None:
    study = read_study("talk-to-solve", {"base": "Qwen/Qwen2.5-1.5B-Instruct", "tasks": "gsm_symbolic"})
    one, two = (plan(study, device="cuda", workers=n, card_gib=139.8) for n in (0, 2))
    assert (one.workers, two.workers) == (1, 2)
    assert one.minutes and two.minutes and one.step and two.step
    assert (
        0.5 < two.minutes[0] / one.minutes[0] < 0.7
    )  # loading and the few rows of a small batch do not halve
    assert 0.5 < two.step[0].seconds / one.step[0].seconds < 0.7
    assert two.memory["base"] == one.memory["base"]
    assert two.memory["adapters and optimisers"] < one.memory["adapters and optimisers"]
    assert "2 H200 with engine fast" in dict(two.lines())["expected"]
    priced = plan(study, 4.0, device="cuda", workers=2, card_gib=139.8)
    assert priced.minutes is not None
    told = f"{2 * priced.minutes[0] / 60 * 4:.2f} at 4.00 an hour a GPU"
    assert told in dict(priced.lines())["expected"]
    assert "in one call a GPU" in dict(two.lines())["rows"]
    with pytest.raises(BadInput, match='device = "cuda:1", which is one GPU'):
        plan(replace(study, config=study.config.replaced({"device": "cuda:1"})), device="cuda", workers=2)
    assert (one.training, one.evaluation, one.rows) == (two.training, two.evaluation, two.rows)


@pytest.mark.slow
def test_more_work_takes_longer_and_more_workers_take_less(tmp_path: Path) -> None:
    run = RUN | {"base": saved(tmp_path)}

    def minutes(device: str = "cpu", workers: int = 1, **changes: Any) -> float:
        found = plan(made(run=run | changes), device=device, workers=workers).minutes
        assert found is not None and 0 < found[0] < found[1]
        return found[0]

    assert minutes(steps=20) > minutes() > minutes(steps=5)
    assert minutes(workers=2) == pytest.approx(minutes() / 2)
    for engine in ("fast", "hf"):
        assert minutes("cuda", engine=engine, steps=20) > minutes("cuda", engine=engine)
    assert minutes("cuda", engine="fast") < minutes("cuda", engine="hf")
    gpu = plan(made(run=run), 4.0, device="cuda")
    assert gpu.minutes is not None and gpu.engine == "fast"
    assert f"{gpu.minutes[0] / 60 * 4:.2f} at 4.00 an hour" in dict(gpu.lines())["expected"]


def test_runs_that_end_earlier_leave_the_others_a_smaller_step() -> None:
    """Steps 10 and 20: ten steps of both, then ten of the longer one; one look at dev tasks fewer than in 20 and 20."""
    base = {"base": "Qwen/Qwen2.5-1.5B-Instruct", "dev_tasks": 0}
    mixed, long, short = (
        plan(made(seeds=[1], run=RUN | base, arms={"a": {"steps": a}, "b": {"steps": b}}), device="cuda").minutes
        for a, b in ((10, 20), (20, 20), (10, 10))
    )  # fmt: skip
    assert mixed and long and short and short[1] < mixed[1] < long[1]


def test_ranks_that_differ_run_in_stacks_one_after_the_other(tmp_path: Path) -> None:
    run = RUN | {"base": saved(tmp_path)}
    found = plan(made(run=run, arms={"open": {}, "wide": {"rank": 8}}), device="cuda")
    assert found.stacks == 2 and "in 2 stacks one after the other" in dict(found.lines())["runs"]
    alone = plan(made(run=run, arms={"open": {}}), device="cuda")
    assert found.minutes and alone.minutes and found.minutes[0] > alone.minutes[0] + 7 / 60


def test_a_base_that_is_not_here_is_planned_without_memory_and_time() -> None:
    found = plan(made(run=RUN | {"base": "some/unknown-model"}), device="cuda")
    assert found.memory is None and found.minutes is None
    assert "unknown" in dict(found.lines())["memory at the caps"]
    assert found.training.sampled == 28_800


def test_another_architecture_is_planned_for_hf(tmp_path: Path) -> None:
    model = small_model()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "olmo2"}))
    assert plan(made(run=RUN | {"base": str(tmp_path)}), device="cuda").engine == "hf"


# --- the flags -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [-1.0, float("nan"), float("inf")])
def test_a_price_or_a_card_that_is_none_is_refused(given: float) -> None:
    with pytest.raises(BadInput, match="--price"):
        plan(made(), given)
    with pytest.raises(BadInput, match="--card-gib"):
        plan(made(), card_gib=given)


def test_the_published_study_is_planned_for_a_gpu_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 problems x 4 chats x 80 steps x 6 runs x (160 + 160 + 384 + 384) tokens."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = plan(read_study("talk-to-solve"), 4.0)
    assert found.device == "cuda" and found.engine == "fast" and found.runs == 6 and found.steps == (80,)
    assert found.training.sampled == 8 * 4 * 80 * 6 * 1088
    assert sum(found.memory.values()) / GIB < 139.8  # type: ignore[union-attr]
    assert found.minutes is not None and 10 < found.minutes[0] < 25
    assert "no GPU is here" in dict(found.lines())["memory at the caps"]
    assert plan(read_study("talk-to-solve", {"device": "cpu"})).device == "cpu"
    assert plan(read_study("quickstart")).device == "cpu"
    assert plan(read_study("quickstart"), card_gib=24).device == "cuda"


@pytest.mark.slow
def test_plan_prints_and_starts_nothing(tmp_path: Path) -> None:
    toml = tmp_path / "toy.toml"
    run = "\n".join(f"{k} = {json.dumps(v)}" for k, v in (RUN | {"base": saved(tmp_path / "base")}).items())
    toml.write_text(f"seeds = [1, 2]\n[run]\n{run}\n[arms.open]\n")
    source = str(Path(plan_module.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "cotalk.cli", "study", str(toml), "--plan", "--price", "3", "--card-gib", "24",
         "--set", "steps=7"],
        env=os.environ | {"PYTHONPATH": source, "COLUMNS": "400"}, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for part in (
        "plan of toy",
        "2 (arms x seeds), 7 steps each",
        "12 chats in a step of all runs, answered in one call, 24 training rows",
        "6,720 sampled and",
        "of 24.0 GiB of a GPU of 24 GiB: base",
        "one H200 with engine fast",
        "at 3.00 an hour",
    ):
        assert part in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "toy.toml"]
