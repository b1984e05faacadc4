"""Which engine answers and what trains beside it, for every name, device and architecture."""

from __future__ import annotations

import warnings
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, MistralConfig

from conftest import byte_tokenizer
from cotalk.config import Config
from cotalk.decoder.training import PackedScorer
from cotalk.engines.choose import choose
from cotalk.engines.fast import FastEngine
from cotalk.engines.hf import HfEngine
from cotalk.errors import BadInput
from cotalk.lora import Stack
from cotalk.padded import PaddedScorer
from cotalk.single import train_one
from families import stack_of
from test_hf_engine import SHAPE, prompts, same, view
from toy import SETTINGS, toy_tasks


def windowed() -> Stack:
    config = MistralConfig(**SHAPE, sliding_window=6)
    return Stack(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval(), 1, 2, 4)


@pytest.mark.parametrize(
    ("name", "engine", "scorer"),
    [("auto", HfEngine, PaddedScorer), ("hf", HfEngine, PaddedScorer), ("fast", FastEngine, PackedScorer)],
)
def test_on_a_cpu_auto_is_hf_and_fast_is_for_who_asks(name: str, engine: type, scorer: type) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair = choose(name, stack_of("llama"), [4])
    assert type(pair.engine) is engine
    made = pair.scorer(0.0), pair.scorer(0.7)
    assert [type(s) for s in made] == [scorer] * 2 and [s.temperature for s in made] == [1.0, 0.7]


def test_both_engines_of_one_stack_answer_alike() -> None:
    stack = stack_of("qwen3, head norms")
    views = [view(ids, k, 20, 0.9, name=k) for k, ids in enumerate(prompts(4, 9, 70))]
    fast, hf = (choose(name, stack, [4]).engine.reply([views])[0] for name in ("fast", "hf"))
    assert all(same(a, b, atol=1e-4) for a, b in zip(fast, hf, strict=True))


def test_a_base_that_fast_cannot_run_is_refused_when_fast_was_asked_for() -> None:
    with pytest.raises(
        BadInput, match=r'engine = "fast" cannot run this base: .*sliding window.* --engine hf'
    ):
        choose("fast", windowed(), [4])


def test_on_a_gpu_auto_falls_back_to_hf_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = windowed()
    monkeypatch.setattr(stack, "device", torch.device("cuda"))
    monkeypatch.setattr("cotalk.engines.choose.HfEngine", lambda stack, ends: "hf")
    with pytest.warns(UserWarning, match="engine hf, not fast, for this base: .*sliding window") as told:
        pair = choose("auto", stack, [4])
    assert len(told) == 1 and pair.engine == "hf" and type(pair.scorer(1.0)) is PaddedScorer


def test_an_engine_that_is_not_known_is_refused_by_the_config() -> None:
    assert Config().engine == "auto"
    for name in ("auto", "fast", "hf"):
        assert Config(engine=name).engine == name
    with pytest.raises(BadInput, match="engine"):
        Config(engine="fasst")


def test_a_refused_base_leaves_no_run_behind(tmp_path: Path) -> None:
    """`--engine fast` with a base that it cannot run ends before anything is played."""
    base = tmp_path / "base"
    windowed_config = MistralConfig(**SHAPE | dict(max_position_embeddings=2048), sliding_window=6)
    AutoModelForCausalLM.from_config(windowed_config).save_pretrained(base)
    byte_tokenizer().save_pretrained(base)
    (base / "cotalk_base.json").write_text('{"wording": "short"}')
    config = Config(
        **SETTINGS
        | dict(base=str(base), tasks=str(toy_tasks(tmp_path / "t.jsonl")), engine="fast", device="cpu")
    )
    with pytest.raises(BadInput, match='engine = "fast" cannot run this base'):
        train_one(config, tmp_path / "out", Console(file=StringIO()))
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
