"""The fast engine and the packed trainer on a GPU against `hf`, generate and padded training."""

from __future__ import annotations

import pytest
import torch
from test_kernels import MODELS, SIZES, decoder_of
from transformers import AutoModelForCausalLM

from cotalk.decoder.training import PackedScorer
from cotalk.decoder.weights import Decoder
from cotalk.engines.fast import FastEngine
from cotalk.engines.hf import HfEngine
from cotalk.lora import Stack
from cotalk.padded import PaddedScorer
from cotalk.rows import Row
from cotalk.run import read_lines
from cotalk.sample import generator
from test_hf_engine import prompts, same, view

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason=f"torch {torch.__version__} sees no CUDA GPU here"
)


@pytest.mark.parametrize("family", MODELS)
def test_greedy_tokens_equal_generate_in_float32(family: str) -> None:
    d = decoder_of(family, torch.float32)
    model, given = d.stack.model, prompts(2, 9, 17, 70)
    replies = FastEngine(d.stack, [260_000], kv_bytes=1 << 28).reply([[view(ids) for ids in given]])[0]
    assert len({t for r in replies for t in r.ids}) > 20
    for ids, reply in zip(given, replies, strict=True):
        out = model.generate(
            torch.tensor([ids], device="cuda"), max_new_tokens=64, do_sample=False, eos_token_id=None
        )
        assert reply.ids == tuple(out[0, len(ids) :].tolist())


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_mixed_batch_equals_the_hf_engine_row_by_row(family: str, temperature: float) -> None:
    """70 rows of four adapters and the base, prompts shared by some, budgets that empty the batch step by step."""
    d = decoder_of(family, torch.float32)
    given = prompts(*[3 + 5 * (i % 9) for i in range(20)], 200)
    views = [view(given[i % 21], (3 * i) % 5, 4 + (7 * i) % 60, temperature, name=i) for i in range(70)]
    theirs = HfEngine(d.stack, [4, 77]).reply([views])[0]
    engine = FastEngine(d.stack, [4, 77], kv_bytes=1 << 28)
    ours = engine.reply([views])[0]
    assert all(same(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))
    assert len(engine._state.graphs) > 2
    again = engine.reply([views])[0]
    assert [r.ids for r in again] == [r.ids for r in ours]
    engine.rows = 16
    parts = engine.reply([views])[0]
    assert all(same(a, b, atol=1e-4) for a, b in zip(parts, theirs, strict=True))


def some_rows(n: int = 12) -> list[Row]:
    random = generator("rows", n)
    rows = []
    for i in range(n):
        prompt = generator("prompt", i // 4).integers(5, 501, 40).tolist()
        row = Row("A", prompt)
        for turn in range(2):
            ids = random.integers(5, 501, int(random.integers(1, 30))).tolist()
            credit = [0.75, -0.5, None, 0.25][(i + turn) % 4]
            row.spans.append((len(row.ids), tuple([-6.0] * len(ids)), credit))
            row.ids += [*ids, *random.integers(5, 501, 6 * (1 - turn)).tolist()]
        rows.append(row)
    return rows


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("recompute", [False, True])
def test_packed_gradients_equal_padded_ones_in_float32(family: str, recompute: bool) -> None:
    d, rows = decoder_of(family, torch.float32), some_rows()
    gap, theirs = PaddedScorer(d.stack, 0.8).gradients(2, rows, 50.0)
    our_gap, ours = PackedScorer(d, 0.8, chunk=100, recompute=recompute).gradients(2, rows, 50.0)
    assert torch.allclose(gap, our_gap, atol=1e-4)
    for name, a, b in zip(d.stack.parameters(2), ours, theirs, strict=True):
        assert (a - b).norm() < 3e-5 * b.norm(), name


@pytest.mark.parametrize("family", MODELS)
def test_bfloat16_sampling_and_training_agree_on_average(family: str) -> None:
    torch.manual_seed(5)
    kind, config = MODELS[family]
    with torch.device("cuda"):
        model = kind(config(**SIZES | dict(initializer_range=0.06, hidden_size=192))).bfloat16().eval()
    stack = Stack(model, 2, rank=8, alpha=16)
    for k in (1, 2):
        stack.initialise(k, 17, k)
        for linear in stack.linears.values():
            linear.lora_b[k].data.normal_(0, 0.02)
        stack.changed(k)
    d = Decoder.of(stack)
    views = [view(ids, 1, 60, 0.9, name=i) for i, ids in enumerate(prompts(*[40] * 24))]
    replies = FastEngine(stack, [260_000], kv_bytes=1 << 28).reply([views])[0]
    rows = [
        Row("A", [*v.ids, *r.ids], [(len(v.ids), r.logprobs, 1.0)])
        for v, r in zip(views, replies, strict=True)
    ]
    now, sampled, _ = PackedScorer(d, 0.9).score(1, rows)
    ratio = (now - sampled).exp()
    assert len(ratio) == 24 * 60
    assert 0.99 < ratio.mean() < 1.01 and (now - sampled).abs().mean() < 0.03
    other, _, _ = PackedScorer(d, 0.9).score(2, rows)
    assert (other - sampled).abs().mean() > 3 * (now - sampled).abs().mean()


def test_an_unsupported_architecture_is_named() -> None:
    from transformers import Gemma3TextConfig

    from cotalk.decoder.weights import why_not

    shape = {k: v for k, v in SIZES.items() if k != "initializer_range"}
    model = AutoModelForCausalLM.from_config(Gemma3TextConfig(**shape, tie_word_embeddings=False))
    assert "gemma3" in why_not(model)


def toy_runs(path, names: str, dtype: str, steps: int) -> dict:
    """Runs on one stack on the GPU, played to their ends; {name: adapter's tensors}."""
    from conftest import small_base
    from cotalk.engines import Table
    from cotalk.engines.choose import choose
    from cotalk.learner import Learner
    from cotalk.run import learner_tensors
    from cotalk.stack import drive
    from cotalk.train import train
    from toy import toy_config, toy_run

    base = small_base(hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    model = base.model.to("cuda", getattr(torch, dtype))
    stack = Stack(model, len(names), 4, 8.0)
    pair = choose("auto", stack, base.form.end_ids)
    assert isinstance(pair.engine, FastEngine)
    runs = {}
    for k, name in enumerate(names, start=1):
        config = toy_config(steps=steps, seed=ord(name), lr=0.002)
        run = toy_run(path / name, config, stack, first=k)
        run.learner = Learner(stack, {"A": k, "B": k}, config, pair.scorer(config.temperature))
        runs[name] = run

    def failed(_: str, error: Exception) -> None:
        raise error

    drive({name: train(run) for name, run in runs.items()}, Table(pair.engine), failed)
    return {name: learner_tensors(run.learner) for name, run in runs.items()}


def test_a_run_alone_and_in_a_stack_ends_in_the_same_adapter_within_1e_3(tmp_path) -> None:
    """float32, 6 steps: other row counts change the last bits of a product, never the tokens here."""
    alone = toy_runs(tmp_path / "alone", "b", "float32", 6)["b"]
    stacked = toy_runs(tmp_path / "stacked", "abcd", "float32", 6)["b"]
    said = [
        [m["said"] for chat in read_lines(tmp_path / where / "b" / file) for m in chat["messages"]]
        for where in ("alone", "stacked")
        for file in ("chats.jsonl", "dev.jsonl")
    ]
    assert said[:2] == said[2:] and len(said[0]) == 6 * 6 * 4
    moved = [name for name in alone if "lora_" in name and not name.endswith(("step", "avg", "avg_sq"))]
    assert len(moved) == 28
    for name in moved:
        assert (alone[name] - stacked[name]).norm() <= 1e-3 * alone[name].norm().clamp(min=1e-3), name


def test_a_run_on_a_gpu_resumes_from_its_checkpoint(tmp_path) -> None:
    whole = toy_runs(tmp_path / "whole", "a", "float32", 4)["a"]
    toy_runs(tmp_path / "parts", "a", "float32", 4)
    parts = tmp_path / "parts/a"
    for path in (parts / "done.json", parts / "checkpoints/step-000004.safetensors"):
        path.unlink()
    again = toy_runs(tmp_path / "parts", "a", "float32", 4)["a"]
    assert again.keys() == whole.keys()
    for name in whole:
        assert torch.allclose(again[name].float(), whole[name].float(), rtol=1e-3, atol=1e-5), name
