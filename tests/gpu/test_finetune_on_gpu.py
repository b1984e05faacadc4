"""Packed full fine-tuning on a GPU: flash attention in bfloat16 against the CPU's twin, stopping and going on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import small_model
from cotalk.bases import finetune as tuning
from cotalk.bases.finetune import finetune, held_loss
from test_finetune import TABLE, some_rows

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason=f"torch {torch.__version__} sees no CUDA GPU here"
)
SHAPE = dict(hidden_size=128, intermediate_size=256)  # heads of 32, which flash attention takes


def test_loss_and_gradients_are_those_of_the_cpu() -> None:
    rows = some_rows(9)
    found = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        model = small_model(**SHAPE).to(device, dtype)
        with tuning._packed(model):
            loss = tuning.total_loss(model, rows, torch.device(device))
            loss.backward()
        found.append((loss.item(), {n: p.grad.float().cpu() for n, p in model.named_parameters()}))
    (cpu, theirs), (gpu, ours) = found
    assert gpu == pytest.approx(cpu, rel=0.02)
    for name, gradient in theirs.items():
        cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), ours[name].flatten(), dim=0)
        assert float(cosine) > 0.95, name  # bfloat16 on random weights; .98 with the CPU's own


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_training_lowers_the_loss_and_a_stopped_one_goes_on(tmp_path: Path, optimiser: str) -> None:
    rows, table, held = some_rows(160), TABLE | {"optimiser": optimiser}, some_rows(8, seed=1)
    whole = small_model(**SHAPE).to("cuda", torch.bfloat16)
    before = held_loss(whole, held, 64)
    finetune(whole, rows, table)
    assert held_loss(whole, held, 64) < 0.8 * before
    state = tmp_path / "state.safetensors"
    stopped = small_model(**SHAPE).to("cuda", torch.bfloat16)
    assert not finetune(stopped, rows, table, state=state, until=0.0)
    again = small_model(seed=5, **SHAPE).to("cuda", torch.bfloat16)
    assert finetune(again, rows, table, state=state)
    assert held_loss(again, held, 64) == pytest.approx(held_loss(whole, held, 64), rel=0.01)
