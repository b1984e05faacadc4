"""Packed full fine-tuning: the same loss and gradients as rows alone, masters, schedule, stopping and going on."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from conftest import small_model
from cotalk.bases import finetune as tuning
from cotalk.bases.finetune import Masters, Pass, finetune, held_loss, learned_in, optimisers, passes, rate
from cotalk.bases.smollm2_text import Row
from cotalk.errors import BadInput, Stopped

TABLE = {
    "batch": 4, "tokens": 64, "optimiser": "adamw", "lr": 5e-3, "muon_lr": 0.01, "weight_decay": 0.0, "beta2": 0.95,
    "warmup": 2, "clip": 1.0,
}  # fmt: skip
CPU = torch.device("cpu")


def some_rows(n: int = 12, seed: int = 0) -> list[Row]:
    """Rows of 5 to 30 ids that count upwards from a random start, the first three not learned."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        length = int(random.integers(5, 31))
        ids = (random.integers(5, 200) + np.arange(length)).astype(np.int32)
        rows.append(Row(ids, np.arange(length) >= 3, "chat"))
    return rows


def weights(model) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def plain_loss(model, row: Row) -> torch.Tensor:
    """The summed loss of one row by itself, through transformers' own attention."""
    ids = torch.from_numpy(row.ids).long()[None]
    logits = model(input_ids=ids).logits[0, :-1]
    at = torch.from_numpy(row.learned)[1:]
    return F.cross_entropy(logits[at].float(), ids[0, 1:][at], reduction="sum")


def test_rows_stand_one_after_the_other_and_only_what_is_learned_is_a_target() -> None:
    # row 1: ids 7 8 9, learned 9; row 2: ids 4 5, both learned: nothing foretells its first
    rows = [Row(np.array([7, 8, 9], np.int32), np.array([False, False, True]), "chat"),
            Row(np.array([4, 5], np.int32), np.array([True, True]), "chat")]  # fmt: skip
    one = Pass.of(rows, CPU)
    assert one.ids.tolist() == [[7, 8, 9, 4, 5]] and one.positions.tolist() == [[0, 1, 2, 0, 1]]
    assert one.where.tolist() == [1, 3] and one.targets.tolist() == [9, 5]
    assert one.spans.q_ends.tolist() == [0, 3, 5] and learned_in(rows) == 2


def test_passes_hold_no_more_than_their_tokens_but_for_a_row_that_is_longer() -> None:
    rows = [Row(np.zeros(n, np.int32), np.ones(n, bool), "chat") for n in (3, 4, 9, 2, 2)]
    assert [[len(row.ids) for row in some] for some in passes(rows, 8)] == [[3, 4], [9], [2, 2]]


def test_packed_rows_have_the_loss_and_the_gradients_of_rows_alone() -> None:
    model, rows = small_model(), some_rows(5)
    with tuning._packed(model):
        packed = tuning.total_loss(model, rows, CPU)
        packed.backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    alone = sum(plain_loss(model, row) for row in rows)
    alone.backward()
    assert packed.item() == pytest.approx(alone.item(), rel=1e-5)
    for name, p in model.named_parameters():
        assert torch.allclose(got[name], p.grad, atol=1e-4 * float(p.grad.abs().max())), name
    assert held_loss(model, rows, 40) == pytest.approx(alone.item() / learned_in(rows), rel=1e-5)


def test_how_rows_are_cut_into_passes_does_not_change_the_step() -> None:
    steps = []
    for tokens in (16, 1000):
        model = small_model()
        finetune(model, some_rows(4), TABLE | {"tokens": tokens, "warmup": 1})
        steps.append(weights(model))
    moved = weights(small_model())
    for name, p in steps[0].items():
        assert torch.allclose(p, steps[1][name], atol=1e-4) and not torch.equal(p, moved[name])


def test_training_lowers_the_loss_on_rows_that_it_never_saw_with_either_optimiser() -> None:
    for optimiser in ("adamw", "muon"):
        model, held = small_model(), some_rows(8, seed=1)
        before = held_loss(model, held, 64)
        assert finetune(model, some_rows(160), TABLE | {"optimiser": optimiser})
        assert held_loss(model, held, 64) < 0.8 * before
        assert model.config._attn_implementation == "sdpa"  # as it was


def test_half_precision_weights_follow_their_float32_masters() -> None:
    model = small_model().bfloat16()
    masters = Masters(model)
    chosen = optimisers(masters.masters, TABLE | {"lr": 1e-5})
    start, name = weights(model), "model.layers.0.mlp.up_proj.weight"
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        masters.add_gradients()
        masters.add_gradients()  # nothing is left to be added twice
        assert float(masters.masters[name].grad.min()) == float(masters.masters[name].grad.max()) == 1.0
        chosen[0].step()
        chosen[0].zero_grad(set_to_none=True)
        masters.write_back()
    # 3 steps of 1e-5 are lost in bfloat16 (8 bits) for weights near .3, and not in the masters
    assert torch.equal(model.get_parameter(name), masters.masters[name].bfloat16())
    assert (masters.masters[name] - start[name].float()).mean().item() == pytest.approx(-3e-5, rel=1e-2)


def test_a_half_precision_model_is_trained_too() -> None:
    model, held = small_model().bfloat16(), some_rows(8, seed=1)
    before = held_loss(model, held, 64)
    finetune(model, some_rows(160), TABLE)
    assert model.dtype == torch.bfloat16 and held_loss(model, held, 64) < 0.8 * before


def test_the_rate_warms_up_and_falls_as_a_cosine() -> None:
    assert [rate(step, 10, 2) for step in (1, 2)] == [0.5, 1.0]
    assert rate(6, 9, 2) == pytest.approx(0.5)  # half of the way from 2 to 10
    assert 0 < rate(10, 10, 2) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_training_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, optimiser: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, table = some_rows(20), TABLE | {"optimiser": optimiser}
    whole = small_model().to(dtype)
    assert finetune(whole, rows, table)
    state = tmp_path / "state.safetensors"
    clock = iter(range(100))
    stopped = small_model().to(dtype)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: float(next(clock)))
        assert not finetune(stopped, rows, table, state=state, until=2.5)  # asked before steps 1, 2, 3, 4
    told: list[int] = []
    again = small_model(seed=5).to(dtype)  # whatever it held is replaced
    assert finetune(again, rows, table, state=state, tell=lambda step, of, loss: told.append(step))
    assert told == [4, 5] and state.exists()  # until the model is written: then whoever wrote it removes this
    for name, p in whole.named_parameters():
        assert torch.equal(p, again.get_parameter(name)), name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_that_a_signal_stops_goes_on_to_the_same_weights(tmp_path: Path, number: int) -> None:
    rows, state = some_rows(20), tmp_path / "state.safetensors"
    whole, stopped, again = small_model(), small_model(), small_model(seed=5)
    assert finetune(whole, rows, TABLE)
    heard = signal.getsignal(number)

    def tell(step: int, of: int, loss: float) -> None:
        if step == 2:
            signal.raise_signal(number)

    with pytest.raises(Stopped) as error:
        finetune(stopped, rows, TABLE, state=state, tell=tell)
    assert error.value.code == 128 + number and state.is_file() and signal.getsignal(number) is heard
    assert finetune(again, rows, TABLE, state=state)
    for name, p in whole.named_parameters():
        assert torch.equal(p, again.get_parameter(name)), name


def test_the_state_of_another_training_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    assert not finetune(small_model(), some_rows(), TABLE, state=state, until=-math.inf)
    with pytest.raises(BadInput, match="other rows or settings"):
        finetune(small_model(), some_rows(seed=3), TABLE, state=state)
    with pytest.raises(BadInput, match="other rows or settings"):
        finetune(small_model(), some_rows(), TABLE | {"lr": 1e-3}, state=state)


def test_an_unknown_optimiser_is_refused() -> None:
    with pytest.raises(BadInput, match='"adamw" or "muon"'):
        finetune(small_model(), some_rows(), TABLE | {"optimiser": "sgd"})
