"""The stack against PEFT as the oracle, in and out of PEFT's format, and what it must refuse."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import peft
import pytest
import safetensors.torch
import torch
from torch import nn

from conftest import small_model
from cotalk.errors import BadInput, RunFailed
from cotalk.lora import PEFT_PREFIX, Stack, StackedLinear, weights_sha256
from cotalk.sample import generator

IDS = torch.tensor([[1, 50, 60, 70, 4, 2, 99, 3], [1, 51, 61, 71, 4, 2, 98, 3]])  # two rows, two questions


def stack_of(adapters: int = 1, rank: int = 4, alpha: float = 8.0, sha256: str = "ab" * 32, **more) -> Stack:
    """A stack whose adapters are all different from the base and from each other."""
    stack = Stack(small_model(), adapters, rank, alpha, base_name="small", base_sha256=sha256, **more)
    for k in range(1, adapters + 1):
        fill(stack, k)
    return stack


def fill(stack: Stack, k: int) -> None:
    stack.initialise(k, 17, f"adapter {k}")
    with torch.no_grad():
        for name, linear in stack.linears.items():
            drawn = generator("B", k, name).normal(0, 0.4 / stack.rank**0.5, linear.lora_b[k].shape)
            linear.lora_b[k].copy_(torch.from_numpy(drawn))


def logits(stack: Stack, k: int) -> torch.Tensor:
    with stack.serving([(k, 0, len(IDS))]):
        return stack.model(IDS).logits


def generating(stack: Stack, k: int) -> torch.Tensor:
    """As an engine sees it: without gradients, so that merged weights are used where they may be."""
    with torch.no_grad():
        return logits(stack, k)


def peft_twin(stack: Stack, k: int = 1) -> peft.PeftModel:
    """PEFT's model of the same base with the weights of adapter k."""
    config = peft.LoraConfig(
        r=stack.rank, lora_alpha=stack.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    twin = peft.get_peft_model(small_model(), config)
    named = dict(twin.named_parameters())
    with torch.no_grad():
        for name, parameter in stack.parameters(k).items():
            named[PEFT_PREFIX + name.replace(".weight", ".default.weight")].copy_(parameter)
    return twin.eval()


@pytest.mark.parametrize("rank", [2, 4, 32])  # layers are 32 wide: merging pays nowhere, in part, everywhere
@pytest.mark.parametrize("merging", [True, False])
def test_our_lora_equals_peft_in_logits_and_gradients(rank: int, merging: bool) -> None:
    stack = stack_of(rank=rank, alpha=2.0 * rank)
    stack.may_merge = merging
    pays = [linear.merging_pays for linear in stack.linears.values()]
    assert {2: not any(pays), 4: any(pays) and not all(pays), 32: all(pays)}[rank]
    twin = peft_twin(stack)
    weigh = torch.randn(2, 8, 261, generator=torch.Generator().manual_seed(1))

    ours, theirs = logits(stack, 1), twin(IDS).logits
    assert (ours - generating(stack, 0)).abs().max() > 0.1  # the adapter does something
    assert torch.allclose(ours, theirs, atol=1e-5)

    (ours * weigh).sum().backward()
    (theirs * weigh).sum().backward()
    named = dict(twin.named_parameters())
    for name, parameter in stack.parameters(1).items():
        expected = named[PEFT_PREFIX + name.replace(".weight", ".default.weight")].grad
        assert expected.abs().max() > 1e-3
        assert torch.allclose(parameter.grad, expected, atol=1e-5 * float(expected.abs().max().clamp(min=1)))


def test_the_same_layers_have_adapters_as_in_peft() -> None:
    stack = stack_of()
    theirs = {
        n
        for n, m in peft_twin(stack).base_model.model.named_modules()
        if isinstance(m, peft.tuners.lora.Linear)
    }
    assert set(stack.linears) == theirs
    assert len(theirs) == 14  # two layers with q, k, v, o, gate, up, down; not the output head


def test_merged_and_unmerged_ways_agree() -> None:
    stack = stack_of(adapters=2)
    for k in (1, 2):
        merged = generating(stack, k)
        stack.may_merge = False
        beside = generating(stack, k)
        stack.may_merge = True
        assert torch.allclose(merged, beside, atol=1e-5)
        assert not torch.equal(merged, generating(stack, 3 - k))


def test_a_new_adapter_changes_no_bit_of_the_base() -> None:
    stack = Stack(small_model(), 1, rank=32, alpha=64)
    stack.initialise(1, 17, "A")
    untouched = small_model()(IDS).logits
    assert torch.equal(generating(stack, 0), untouched)
    assert torch.equal(generating(stack, 1), untouched)  # B is 0, and W + 0 is W
    assert torch.equal(logits(stack, 1), untouched)


def test_a_new_adapter_is_drawn_by_its_key_wherever_it_lies() -> None:
    stack = Stack(small_model(), 3, rank=4, alpha=8)
    for k, key in ((1, (17, "A")), (2, (17, "B")), (3, (17, "A"))):
        stack.initialise(k, *key)
    first, other, same = (list(stack.parameters(k).values()) for k in (1, 2, 3))
    assert all(torch.equal(a, b) for a, b in zip(first, same))
    assert not any(torch.equal(a, b) for a, b in zip(first[::2], other[::2]))  # every lora_A differs
    for name, parameter in stack.parameters(1).items():
        if "lora_A" in name:
            bound = parameter.shape[1] ** -0.5  # PEFT: kaiming_uniform with a = sqrt(5) is +-1/sqrt(in)
            assert 0.8 * bound < parameter.abs().max() <= bound
        else:
            assert not parameter.any()


# --- stale weights -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [True, False])
def test_merged_weights_are_never_stale_whoever_wrote_the_adapter(foreach: bool) -> None:
    """Nobody calls `changed` here: the parameters' own write counters must be enough."""
    stack = stack_of(adapters=2)
    before = generating(stack, 1)
    neighbour = generating(stack, 2)
    optimiser = torch.optim.AdamW(stack.parameters(1).values(), lr=0.05, foreach=foreach)
    logits(stack, 1).square().mean().backward()
    optimiser.step()
    stepped = generating(stack, 1)
    assert (stepped - before).abs().max() > 0.01
    assert torch.allclose(stepped, peft_twin(stack)(IDS).logits, atol=1e-4)
    with torch.no_grad():
        stack.parameters(1)["model.layers.0.mlp.up_proj.lora_B.weight"][0, 0] += 1.0
    assert (generating(stack, 1) - stepped).abs().max() > 1e-4
    assert torch.equal(generating(stack, 2), neighbour)


def test_a_neighbours_step_makes_no_merged_weight_again() -> None:
    stack = stack_of(adapters=2)
    generating(stack, 2)
    linear = stack.linears["model.layers.1.mlp.down_proj"]
    kept = linear._merged[2][1]
    with torch.no_grad():
        linear.lora_a[1].add_(1.0)
    generating(stack, 2)
    assert linear._merged[2][1] is kept


def test_writes_that_torch_does_not_count_are_told_with_changed() -> None:
    stack = stack_of()
    before = generating(stack, 1)
    stack.linears["model.layers.0.mlp.up_proj"].all_b[1] += 0.5
    stack.changed(1)
    assert not torch.equal(generating(stack, 1), before)


def test_a_bfloat16_base_is_never_merged_and_trains_float32_adapters() -> None:
    stack = Stack(small_model().to(torch.bfloat16), 1, rank=32, alpha=64)
    stack.initialise(1, 17, "A")
    assert not stack.may_merge
    generating(stack, 1)
    logits(stack, 1).float().square().mean().backward()
    assert all(not linear._merged for linear in stack.linears.values())
    grads = [p.grad for n, p in stack.parameters(1).items() if "lora_B" in n]
    assert all(g.dtype == torch.float32 and g.abs().max() > 0 for g in grads)


# --- PEFT's format -------------------------------------------------------------------------------------------


def test_a_saved_adapter_opens_with_peft_and_gives_the_same_logits(tmp_path: Path) -> None:
    stack = stack_of(adapters=2)
    stack.save(2, tmp_path / "adapter")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PEFT warns of unknown keys, missing keys and missing adapters
        opened = peft.PeftModel.from_pretrained(small_model(), tmp_path / "adapter")
    assert torch.allclose(opened(IDS).logits, generating(stack, 2), atol=1e-5)
    assert not torch.allclose(opened(IDS).logits, generating(stack, 1), atol=0.1)


def test_an_adapter_that_peft_saved_loads_here(tmp_path: Path) -> None:
    stack = stack_of(adapters=2)
    twin = peft_twin(stack, 2)
    twin.save_pretrained(tmp_path)
    stack.load(1, tmp_path)
    assert torch.equal(generating(stack, 1), generating(stack, 2))


def test_loading_what_was_saved_is_the_identity(tmp_path: Path) -> None:
    stack = stack_of(adapters=2)
    stack.save(1, tmp_path)
    expected = generating(stack, 1)
    stack.load(2, tmp_path)
    for (name, saved), loaded in zip(stack.parameters(1).items(), stack.parameters(2).values()):
        assert torch.equal(saved, loaded), name
    assert torch.equal(generating(stack, 2), expected)  # and its merged weights are not the old ones
    assert json.loads((tmp_path / "cotalk_adapter.json").read_text()) == {
        "base": "small",
        "base_sha256": "ab" * 32,
    }
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "cotalk_adapter.json",
    ]  # fmt: skip


def rewrite(directory: Path, **keys) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def edit_tensors(directory: Path, change) -> None:
    path = directory / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)


LAST = PEFT_PREFIX + "model.layers.1.mlp.down_proj.lora_B.weight"
FAULTS = {
    "rank": (lambda d: rewrite(d, r=8), "r=8"),
    "alpha": (lambda d: rewrite(d, lora_alpha=16), "lora_alpha=16"),
    "alpha a text": (lambda d: rewrite(d, lora_alpha="many"), "lora_alpha=many"),
    "alpha missing": (lambda d: rewrite(d, lora_alpha=None), "lora_alpha=None"),
    "another base by a number": (lambda d: (d / "cotalk_adapter.json").write_text('{"base_sha256": 5}'), "--base"),
    "config without end": (lambda d: (d / "adapter_config.json").write_text("[" * 100_000), "not JSON"),
    "config not UTF-8": (lambda d: (d / "adapter_config.json").write_bytes(b"\xff"), "not JSON"),
    "rank-stabilised": (lambda d: rewrite(d, use_rslora=True), "use_rslora"),
    "ranks by layer": (lambda d: rewrite(d, rank_pattern={"q_proj": 2}), "rank_pattern"),
    "another kind": (lambda d: rewrite(d, peft_type="IA3"), "IA3"),
    "config torn": (lambda d: (d / "adapter_config.json").write_text('{"r": '), "not JSON"),
    "config a list": (lambda d: (d / "adapter_config.json").write_text("[]"), "list"),
    "another base": (lambda d: (d / "cotalk_adapter.json").write_text('{"base_sha256": "cdcd"}'), "--base"),
    "a layer missing": (lambda d: edit_tensors(d, lambda t: t.pop(LAST)), "1 tensors"),
    "a layer more": (lambda d: edit_tensors(d, lambda t: t.update(extra=torch.ones(1))), "extra"),
    "another shape": (lambda d: edit_tensors(d, lambda t: t.update({LAST: torch.ones(31, 4)})), "(31, 4)"),
    "not finite": (lambda d: edit_tensors(d, lambda t: t[LAST].fill_(float("nan"))), "finite"),
    "weights torn": (lambda d: (d / "adapter_model.safetensors").write_bytes(b"\x10" + b"\0" * 9), "cannot be read"),
    "only a pickle": (
        lambda d: (d / "adapter_model.safetensors").rename(d / "adapter_model.bin"), "safetensors only"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(fault: str, tmp_path: Path) -> None:
    stack = stack_of(adapters=2)
    stack.save(1, tmp_path)
    before = [p.clone() for p in stack.parameters(2).values()]
    spoil, told = FAULTS[fault]
    spoil(tmp_path)
    with pytest.raises(BadInput, match=told.replace("(", r"\(").replace(")", r"\)")):
        stack.load(2, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(before, stack.parameters(2).values()))


def test_the_base_itself_is_never_initialised_loaded_or_saved_as_an_adapter(tmp_path: Path) -> None:
    stack = stack_of()
    for act in (
        lambda: stack.initialise(0, 1),
        lambda: stack.load(0, tmp_path),
        lambda: stack.save(0, tmp_path),
    ):
        with pytest.raises(ValueError, match="expected 1 to 1"):
            act()
    assert not stack.linears["model.layers.0.mlp.up_proj"].all_a[0].any()


# --- layers and rows -----------------------------------------------------------------------------------------


def test_targets_choose_the_layers() -> None:
    stack = Stack(small_model(), 1, rank=2, targets=["q_proj", "v_proj"])
    assert sorted({name.rsplit(".", 1)[-1] for name in stack.linears}) == ["q_proj", "v_proj"]
    assert len(stack.linears) == 4
    with pytest.raises(BadInput, match="q_prj"):
        Stack(small_model(), 1, targets=["q_prj"])


def test_each_row_goes_through_the_adapter_of_its_segment() -> None:
    stack = stack_of(adapters=2)
    apart = {k: generating(stack, k) for k in (0, 1, 2)}
    for first, second in [(0, 1), (1, 2), (2, 0)]:
        with torch.no_grad(), stack.serving([(first, 0, 1), (second, 1, 2)]):
            mixed = stack.model(IDS).logits
        assert torch.allclose(mixed[0], apart[first][0], atol=1e-5)
        assert torch.allclose(mixed[1], apart[second][1], atol=1e-5)
    assert stack.segments == [(0, 0, 0)]  # outside, every row is the base's


def test_a_layer_that_regroups_rows_is_refused_rather_than_served_by_a_wrong_adapter() -> None:
    stack = stack_of(adapters=2)
    layer = StackedLinear(nn.Linear(4, 4), stack, "experts.up")
    with (
        stack.serving([(1, 0, 1), (2, 1, 2)]),
        pytest.raises(RunFailed, match=r"experts\.up was given 6 rows"),
    ):
        layer(torch.zeros(6, 4))


def test_the_hash_of_weights_tells_any_change_and_only_changes() -> None:
    model = small_model()
    before = weights_sha256(model)
    assert before == weights_sha256(small_model()) != weights_sha256(small_model(seed=1))
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] += 1e-4
    assert weights_sha256(model) != before
    scalar = nn.Module()
    scalar.register_buffer("one", torch.tensor(1.0))
    assert len(weights_sha256(scalar)) == 64
