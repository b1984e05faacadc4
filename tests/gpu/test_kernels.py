"""Every Triton kernel against its plain-torch twin, on fresh random inputs, in float32 and bfloat16."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from cotalk.decoder import twins
from cotalk.decoder.attention import Spans, _twin, attend, attend_backward
from cotalk.decoder.ops import on
from cotalk.decoder.twins import PAGE
from cotalk.decoder.weights import Decoder
from cotalk.lora import Stack
from cotalk.sample import bits

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason=f"torch {torch.__version__} sees no CUDA GPU here"
)

TYPES = [torch.float32, torch.bfloat16]
WITHIN = {torch.float32: 2e-5, torch.bfloat16: 1.5e-2}
SIZES = dict(
    vocab_size=501, hidden_size=96, intermediate_size=208, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, initializer_range=0.3,
)  # fmt: skip
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}


def decoder_of(family: str, dtype: torch.dtype, adapters: int = 4) -> Decoder:
    torch.manual_seed(3)
    kind, config = MODELS[family]
    with torch.device("cuda"):
        model = kind(config(**SIZES, attn_implementation="sdpa")).to(dtype).eval()
        for name, p in model.named_parameters():
            if "norm" in name or "bias" in name:
                p.data.normal_(0.8, 0.3)
    stack = Stack(model, adapters, rank=8, alpha=16)
    for linear in stack.linears.values():
        linear.all_a.normal_(0, 0.2)
        linear.all_b.normal_(0, 0.2)
        linear.all_a[0] = linear.all_b[0] = 0
    for k in range(1, adapters + 1):
        stack.changed(k)
    decoder = Decoder.of(stack)
    decoder.refresh()
    return decoder


def close(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> bool:
    gap = (a.float() - b.float()).norm() / b.float().norm()
    return bool(gap < WITHIN[dtype])  # NaN is not close


def rows_of_adapters(n: int) -> torch.Tensor:
    """Sorted, with the base, one adapter without rows, and several in one tile."""
    return torch.tensor([(0, 0, 1, 1, 1, 3, 4)[i % 7] for i in range(n)]).sort().values.int().cuda()


@pytest.mark.parametrize("dtype", TYPES)
def test_norms_rotation_and_activation(dtype: torch.dtype) -> None:
    ops = on(torch.device("cuda"))
    x, dy = (torch.randn(37, 96, device="cuda").to(dtype) for _ in range(2))
    w = torch.rand(96, device="cuda").to(dtype)
    out = [torch.full((37, 112), float("nan"), device="cuda").to(dtype) for _ in range(2)]
    rstd = [m.norm(x, w, 1e-5, o[:, :96]) for m, o in zip((ops, twins), out, strict=True)]
    assert close(out[0][:, :96], out[1][:, :96], dtype) and close(rstd[0], rstd[1], torch.float32)
    assert out[0][:, 96:].isnan().all()
    into = [torch.ones(37, 100, device="cuda").to(dtype)[:, 4:] for _ in range(2)]
    for m, d in zip((ops, twins), into, strict=True):
        m.norm_backward(dy, x, w, rstd[1], d)
    assert close(into[0], into[1], dtype)
    angle = torch.rand(64, 16, device="cuda") * 6
    at = torch.randint(0, 64, (37,), device="cuda")
    for inverse in (False, True):
        turned = [x.clone() for _ in range(2)]
        for m, t in zip((ops, twins), turned, strict=True):
            m.rope(t, at, angle.cos(), angle.sin(), 2, inverse)
        assert close(turned[0], turned[1], dtype) and not torch.equal(turned[0], x)
    gate_up, d_act = (
        torch.randn(37, 5000, device="cuda").to(dtype),
        torch.randn(37, 2500, device="cuda").to(dtype),
    )
    acts = [torch.full_like(d_act, float("nan")) for _ in range(2)]
    changed = [(gate_up.clone(), d_act.clone()) for _ in range(2)]
    for m, act, (g, d) in zip((ops, twins), acts, changed, strict=True):
        m.silu_mul(gate_up, act)
        m.silu_mul_backward(g, d)
    assert close(acts[0], acts[1], dtype)
    assert all(close(a, b, dtype) for a, b in zip(*changed, strict=True))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probability_and_its_gradient(dtype: torch.dtype, temperature: float) -> None:
    ops = on(torch.device("cuda"))
    logits = (4 * torch.randn(19, 10_007, device="cuda")).to(dtype)
    targets, credit = torch.randint(0, 10_007, (19,), device="cuda"), torch.randn(19, device="cuda")
    both = [logits.clone() for _ in range(2)]
    logp = [
        m.log_probability(x, targets, credit, temperature) for m, x in zip((ops, twins), both, strict=True)
    ]
    assert (logp[0] - logp[1]).abs().max() < 1e-4
    assert close(both[0], both[1], dtype)


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [5, 96, 1100])
def test_rows_of_different_adapters(family: str, dtype: torch.dtype, n: int) -> None:
    d, ops = decoder_of(family, dtype), on(torch.device("cuda"))
    layer, adapters = d.layers[1], rows_of_adapters(n)

    def product(fused) -> torch.Tensor:
        return torch.randn(n, fused.width, device="cuda").to(dtype) @ fused.served.T

    y = product(layer.qkv)
    positions = torch.randint(0, 1000, (n,), device="cuda").int()
    slots = torch.randperm(40 * PAGE, device="cuda")[:n]
    found = []
    for m in (ops, twins):
        q = torch.full((n, d.heads, d.head_dim), float("nan"), device="cuda").to(dtype)
        caches = [torch.zeros(40 * PAGE, d.kv_heads, d.head_dim, device="cuda").to(dtype) for _ in range(2)]
        m.place(y, adapters, positions, slots, d, layer, q, *caches)
        found.append((q, *caches))
    assert all(close(a, b, dtype) for a, b in zip(*found, strict=True))
    y, start = product(layer.down), torch.randn(n, d.hidden, device="cuda").to(dtype)
    sums = [start.clone() for _ in range(2)]
    for m, h in zip((ops, twins), sums, strict=True):
        m.add_lora(h, y, layer.down, adapters)
    assert close(*sums, dtype)
    y = product(layer.gate_up)
    acts = [torch.full((n, d.mlp), float("nan"), device="cuda").to(dtype) for _ in range(2)]
    for m, act in zip((ops, twins), acts, strict=True):
        m.silu_lora(y, layer.gate_up, adapters, act)
    assert close(*acts, dtype)
    other = torch.zeros_like(adapters)  # a wrong adapter would be seen
    ops.silu_lora(y, layer.gate_up, other, acts[0])
    assert not close(*acts, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [3, 40, 300])
def test_attention_over_pages(dtype: torch.dtype, n: int) -> None:
    ops = on(torch.device("cuda"))
    pages = 12 * n + 1
    k, v = (torch.randn(pages * PAGE, 2, 64, device="cuda").to(dtype) for _ in range(2))
    q = torch.randn(n, 12, 64, device="cuda").to(dtype)
    table = torch.randperm(12 * n, device="cuda").view(n, 12).int() + 1
    positions = torch.randint(0, 12 * PAGE, (n,), device="cuda").int()
    positions[0], positions[-1] = 0, 12 * PAGE - 1
    assert close(
        ops.attend_pages(q, k, v, table, positions), twins.attend_pages(q, k, v, table, positions), dtype
    )


@pytest.mark.parametrize("dim", [32, 64, 128])
def test_packed_attention_reads_its_prefix_and_nothing_later(dim: int) -> None:
    spans = Spans.of([5, 1, 130, 64], [5, 33, 200, 64], torch.device("cuda"))
    q, k, v = (torch.randn(n, h, dim, device="cuda").bfloat16() for n, h in ((200, 6), (302, 2), (302, 2)))
    out, kept = attend(q, k, v, spans)
    assert close(out, _twin(q.float(), k.float(), v.float(), spans), torch.bfloat16)
    d = torch.randn_like(out)
    ours = attend_backward(d, q, k, v, out, kept, spans)
    theirs = attend_backward(d.float(), q.float(), k.float(), v.float(), out, None, spans)
    assert [x.shape for x in ours] == [q.shape, k.shape, v.shape]
    assert all(close(a, b, torch.bfloat16) for a, b in zip(ours, theirs, strict=True))


def test_random_bits_are_those_of_the_numpy_twin() -> None:
    from cotalk.decoder.kernels import random_bits

    keys = [0, 1, 2**63 + 12345, 2**64 - 1, 0xDEADBEEF12345678]
    words = [torch.tensor([(k >> s) & 0xFFFFFFFF for k in keys]).to(torch.int32).cuda() for s in (0, 32)]
    import numpy as np

    for position in (0, 1, 2, 383, 100_000):
        ours = random_bits(words[0], words[1], position, 5000).cpu().numpy().view(np.uint32)
        assert (ours == bits(np.array(keys, dtype=np.uint64), position, 5000)).all()
