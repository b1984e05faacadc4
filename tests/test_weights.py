"""Fused weights: one copy, shared with transformers' model, which computes as before; who is refused, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from conftest import small_model
from cotalk.decoder.weights import Decoder, Unsupported, why_not
from cotalk.lora import Stack, weights_sha256
from families import FAMILIES, model_of, stack_of
from test_hf_engine import SHAPE

IDS = torch.arange(5, 45)[None]


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_model_computes_the_same_after_its_weights_became_views(family: str) -> None:
    plain, stack = model_of(family), stack_of(family, 3)
    before = weights_sha256(stack.model)
    with torch.no_grad():
        with stack.serving([(2, 0, 1)]):
            adapted = stack.model(IDS).logits
        Decoder.of(stack)
        assert torch.allclose(stack.model(IDS).logits, plain(IDS).logits, rtol=0, atol=1e-5)
        with stack.serving([(2, 0, 1)]):
            assert torch.allclose(stack.model(IDS).logits, adapted, rtol=0, atol=1e-5)
    assert not torch.allclose(adapted, plain(IDS).logits, atol=0.1)
    assert weights_sha256(stack.model) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_there_is_no_second_copy_of_the_weights(family: str) -> None:
    stack = stack_of(family)
    decoder = Decoder.of(stack)
    buffers = {f.buffer.untyped_storage().data_ptr() for layer in decoder.layers for f in layer.fused}
    assert len(buffers) == 4 * 2
    model = stack.model
    for name, p in model.named_parameters():
        if name.endswith("proj.base.weight"):
            assert p.untyped_storage().data_ptr() in buffers, name
    assert decoder.embedding.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert decoder.head.data_ptr() == model.get_output_embeddings().weight.data_ptr()
    assert decoder.norm_out.data_ptr() == model.model.norm.weight.data_ptr()
    with torch.no_grad():  # one memory: what transformers' module writes, the decoder reads
        model.model.layers[1].mlp.up_proj.base.weight[3, 5] = 77.0
    fused = decoder.layers[1].gate_up
    assert fused.weight[fused.ends[0] + 3, 5] == 77.0


def test_a_stack_has_one_decoder() -> None:
    stack = stack_of("llama")
    assert Decoder.of(stack) is Decoder.of(stack)
    assert Decoder.of(stack) is not Decoder.of(stack_of("llama"))


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "up_proj"]])
def test_adapters_are_saved_and_loaded_as_before(targets: Any, tmp_path: Path) -> None:
    """The files are those of a stack that never had a decoder, byte by byte, and are read back into it."""
    stack, plain = stack_of("llama", 2, 4, targets), stack_of("llama", 2, 4, targets)
    decoder = Decoder.of(stack)
    decoder.prepare_training(1)
    decoder.refresh()
    stack.save(1, tmp_path / "ours")
    plain.save(1, tmp_path / "theirs")
    for file in sorted((tmp_path / "theirs").iterdir()):
        assert (tmp_path / "ours" / file.name).read_bytes() == file.read_bytes()
    stack.load(2, tmp_path / "theirs")
    for name, p in stack.parameters(2).items():
        assert torch.equal(p, plain.parameters(1)[name])


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.25])
def test_what_is_served_is_the_base_with_the_adapter(scale: float) -> None:
    """W + scale B A of every layer, by the stack's own parameters; adapter 0 is the base's weight itself."""
    stack = Stack(small_model(), 2, rank=4, alpha=4 * scale)
    for linear in stack.linears.values():
        linear.all_a[1:].normal_()
        linear.all_b[1:].normal_()
    for k in (1, 2):
        stack.changed(k)
    decoder = Decoder.of(stack)
    decoder.refresh()
    for layer in decoder.layers:
        for fused in layer.fused:
            assert fused.merged(0).data_ptr() == fused.weight.data_ptr()
            for k in (1, 2):
                for _, start, end, linear in fused.parts():
                    expected = linear.base.weight + scale * linear.all_b[k] @ linear.all_a[k]
                    assert torch.allclose(fused.merged(k)[start:end], expected, atol=1e-5)


def test_versions_change_with_the_adapter_that_was_written_and_no_other() -> None:
    stack = stack_of("llama", 3)
    decoder = Decoder.of(stack)
    before = decoder.refresh()
    assert decoder.refresh() == before
    stack.initialise(2, 5)
    after = decoder.refresh()
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]


def test_merged_weights_are_made_again_after_a_change() -> None:
    stack = stack_of("llama", 2, 32)
    decoder = Decoder.of(stack)
    decoder.refresh()
    fused = decoder.layers[0].o
    before = [fused.merged(k).clone() for k in (1, 2)]
    stack.initialise(1, 5)  # B is zero
    decoder.refresh()
    assert torch.equal(fused.merged(1), fused.weight) and not torch.equal(before[0], fused.weight)
    assert torch.equal(fused.merged(2), before[1])


# --- who is refused ------------------------------------------------------------------------------------------

WINDOWS = dict(sliding_window=6, layer_types=["sliding_attention", "full_attention"])
REFUSED: dict[str, tuple[PreTrainedConfig, str]] = {
    "gemma3": (
        Gemma3TextConfig(**SHAPE, **WINDOWS, tie_word_embeddings=False),
        "architecture is gemma3_text",
    ),
    "mistral with a window": (MistralConfig(**SHAPE, sliding_window=6), "see a sliding window only"),
    "qwen2 with windows": (
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=6, max_window_layers=1),
        "see a sliding window only",
    ),
    "qwen3 with windows": (
        Qwen3Config(**SHAPE, use_sliding_window=True, sliding_window=6, max_window_layers=0),
        "see a sliding window only",
    ),
    "biases on o": (LlamaConfig(**SHAPE, attention_bias=True), "beyond q, k and v have biases"),
    "biases of the mlp": (LlamaConfig(**SHAPE, mlp_bias=True), "beyond q, k and v have biases"),
    "gelu": (LlamaConfig(**SHAPE, hidden_act="gelu"), "its activation is gelu, not silu"),
    "dynamic rotation": (
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "of type dynamic, which depend on the length",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_the_decoder_cannot_run_is_refused_and_left_as_it_was(kind: str) -> None:
    config, told = REFUSED[kind]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    pointers = [p.data_ptr() for p in model.parameters()]
    assert told in why_not(model)
    with pytest.raises(Unsupported, match=told):
        Decoder.of(Stack(model, 1, rank=2, alpha=4))
    assert [p.data_ptr() for n, p in model.named_parameters() if "lora_" not in n] == pointers


def test_float16_is_refused_and_bfloat16_is_not() -> None:
    assert "float16" in why_not(small_model().half())
    assert why_not(small_model().bfloat16()) == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_of_these_tests_are_not_refused(family: str) -> None:
    assert why_not(model_of(family)) == ""
