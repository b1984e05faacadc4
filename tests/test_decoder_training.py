"""The packed trainer on its plain-torch twins, against peft's own LoRA: one row at a time, by autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from conftest import deals, small_base
from cotalk.chat import Player, Seating, converse
from cotalk.config import Config
from cotalk.decoder.packing import pack
from cotalk.decoder.training import PackedScorer
from cotalk.decoder.weights import Decoder
from cotalk.engines.fast import FastEngine
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.padded import PaddedScorer
from cotalk.rows import Row, rows_of
from cotalk.sample import generator
from families import FAMILIES, model_of, stack_of
from test_hf_engine import filled

NORMALISER = 37.0


def ids_of(n: int, *name: int) -> list[int]:
    return generator("row", *name).integers(5, 261, n).tolist()


def row(ids: Sequence[int], *spans: tuple[int, int, float | None]) -> Row:
    """spans: (first place, tokens, credit); the log-probabilities when sampled are not those of now."""
    return Row("A", list(ids), [(s, tuple([-5.0 - s / 100] * n), c) for s, n, c in spans])


def some_rows() -> list[Row]:
    """A prompt that four share, in which two end; identical rows with other credit; three rows that part at the same
    token, right after the prompt; one that shares nothing; spans without credit."""
    prompt, first = ids_of(40, 0), ids_of(20, 1)
    long = [*prompt, *first, *ids_of(9, 2), *ids_of(12, 3)]
    return [
        row(long, (40, 20, 0.75), (69, 12, -0.5)),
        row(long, (40, 20, -0.25), (69, 12, None)),
        row(long[:60], (40, 20, 1.5)),
        row(long[:35], (18, 17, -1.0)),
        row([*prompt, 7, 8], (40, 2, 0.5)),
        row([*prompt, 9, 10, 11], (40, 3, -0.75)),
        row([*prompt, 9, 10, 12], (40, 3, 0.25)),
        row(ids_of(33, 4), (5, 4, 1.0), (20, 13, 0.5)),
        row([50, 51], (1, 1, -2.0)),
    ]


def reference(
    family: str, stack: Stack, k: int, rows: Sequence[Row], temperature: float, targets: Any = "all-linear"
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probabilities of the sampled tokens and the loss's gradients, by peft's own model, one row at a time."""
    lora = LoraConfig(r=stack.rank, lora_alpha=stack.alpha, lora_dropout=0.0, target_modules=targets)
    model = get_peft_model(model_of(family), lora).eval()
    named = dict(model.named_parameters())
    theirs = {
        name: named[f"base_model.model.{name.replace('.weight', '.default.weight')}"]
        for name in stack.parameters(k)
    }
    assert {n for n, p in named.items() if p.requires_grad} == {
        f"base_model.model.{n.replace('.weight', '.default.weight')}" for n in theirs
    }
    for name, p in stack.parameters(k).items():
        theirs[name].data.copy_(p)
    logprobs = []
    for r in rows:
        ids = torch.tensor([r.ids])
        scores = torch.log_softmax(model(input_ids=ids).logits[0].float() / temperature, -1)
        for start, old, credit in r.spans:
            places = torch.arange(start, start + len(old))
            chosen = scores[places - 1, ids[0, places]]
            logprobs.append(chosen.detach())
            if credit:
                (-credit * chosen.sum() / NORMALISER).backward(retain_graph=True)
    return torch.cat(logprobs), {name: p.grad for name, p in theirs.items()}


def close(ours: torch.Tensor | None, theirs: torch.Tensor, within: float = 1e-5) -> bool:
    return ours is not None and bool((ours - theirs).norm() <= within * theirs.norm() + 1e-9)


def grads(
    scorer: PackedScorer | PaddedScorer, k: int, rows: Sequence[Row]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    stack = scorer.decoder.stack if isinstance(scorer, PackedScorer) else scorer.stack
    gap, found = scorer.gradients(k, rows, NORMALISER)
    return gap, dict(zip(stack.parameters(k), found, strict=True))


# --- gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_and_log_probabilities_equal_pefts_row_by_row(family: str) -> None:
    stack, rows = stack_of(family, 3), some_rows()
    scorer = PackedScorer(Decoder.of(stack), 0.8)
    logprobs, expected = reference(family, stack, 2, rows, 0.8)
    gap, ours = grads(scorer, 2, rows)
    sampled = torch.tensor([lp for r in rows for _, lps, _ in r.spans for lp in lps])
    assert torch.allclose(gap, logprobs - sampled, rtol=0, atol=1e-4)
    assert all(close(ours[name], g) for name, g in expected.items()), family
    assert all(g.norm() > 1e-4 for g in expected.values())
    now, then, credit = scorer.score(2, rows)
    assert torch.equal(now - then, gap) and torch.equal(then, sampled)
    assert credit.tolist() == [c or 0.0 for r in rows for _, lps, c in r.spans for _ in lps]
    assert len(pack(rows, stack.device).ids) < sum(len(r.ids) - 1 for r in rows) - 150  # they do share


@pytest.mark.parametrize("rank", [1, 16, 17, 32])
def test_gradients_of_ranks_that_are_padded_and_of_ranks_that_are_not(rank: int) -> None:
    stack, rows = stack_of("llama", 2, rank), some_rows()
    _, expected = reference("llama", stack, 1, rows, 1.0)
    _, ours = grads(PackedScorer(Decoder.of(stack), 1.0), 1, rows)
    assert all(close(ours[name], g) for name, g in expected.items())


@pytest.mark.parametrize(
    "targets", [["q_proj", "v_proj"], ["k_proj", "gate_proj"], ["o_proj", "down_proj"], ["up_proj"]]
)
def test_gradients_of_adapters_on_some_linear_layers_only(targets: list[str]) -> None:
    stack, rows = stack_of("qwen2, biases", 2, 4, targets), some_rows()
    _, expected = reference("qwen2, biases", stack, 1, rows, 1.0, targets)
    _, ours = grads(PackedScorer(Decoder.of(stack), 1.0), 1, rows)
    assert ours.keys() == expected.keys() and len(ours) == 2 * 2 * len(targets)
    assert all(close(ours[name], g) for name, g in expected.items())


@pytest.mark.parametrize("family", ["llama", "qwen2, biases", "qwen3, head norms"])
@pytest.mark.parametrize(("recompute", "chunk"), [(True, 4096), (False, 1), (True, 7), (False, 50)])
def test_recomputing_and_chunks_do_not_change_the_gradient(family: str, recompute: bool, chunk: int) -> None:
    decoder, rows = Decoder.of(stack_of(family)), some_rows()
    gap, expected = grads(PackedScorer(decoder, 0.8), 1, rows)
    other_gap, ours = grads(PackedScorer(decoder, 0.8, chunk, recompute), 1, rows)
    assert torch.allclose(gap, other_gap, rtol=0, atol=1e-5)
    assert all(close(ours[name], g) for name, g in expected.items())


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_packed_scorer_equals_the_padded_one(family: str, temperature: float) -> None:
    """Temperature 0 (greedy) is scored at 1 by both. The padded one runs on the same, shared weights."""
    stack, rows = stack_of(family), some_rows()
    gap, ours = grads(PackedScorer(Decoder.of(stack), temperature), 2, rows)
    padded_gap, theirs = grads(PaddedScorer(stack, temperature), 2, rows)
    assert torch.allclose(gap, padded_gap, rtol=0, atol=1e-4)
    assert all(close(ours[name], g) for name, g in theirs.items())


def test_each_adapter_is_trained_as_itself_whoever_came_before() -> None:
    stack, rows = stack_of("llama", 3), some_rows()
    scorer = PackedScorer(Decoder.of(stack), 1.0)
    first = grads(scorer, 1, rows)
    grads(scorer, 3, rows)
    again = grads(scorer, 1, rows)
    assert torch.equal(first[0], again[0]) and all(torch.equal(a, again[1][n]) for n, a in first[1].items())
    other = grads(scorer, 2, rows)
    assert not torch.allclose(first[0], other[0], atol=0.1)


def test_training_one_adapter_leaves_what_is_served_alone() -> None:
    """Both lie around one matrix."""
    from test_hf_engine import prompts, view

    stack = stack_of("llama", 3)
    engine, scorer = FastEngine(stack, [260_000]), PackedScorer(Decoder.of(stack), 1.0)
    views = [view(ids, k, 12) for k, ids in enumerate(prompts(5, 6, 7, 8))]
    before = engine.reply([views])
    grads(scorer, 2, some_rows())
    assert engine.reply([views]) == before


def test_a_row_without_any_credit_moves_nothing() -> None:
    stack = stack_of("llama")
    _, found = grads(PackedScorer(Decoder.of(stack), 1.0), 1, [row(ids_of(30, 1), (10, 20, None))])
    assert all(float(g.abs().max()) == 0 for g in found.values())


def test_memory_that_holds_numbers_of_others_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers are made empty and then written: what lay there before (here NaN) must not get through."""
    stack, rows = stack_of("qwen3, head norms"), some_rows()
    expected = grads(PackedScorer(Decoder.of(stack), 1.0), 1, rows)
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda self, *a, **k: empty(self, *a, **k).fill_(float("nan"))
    )
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, float("nan")))
    found = grads(PackedScorer(Decoder.of(stack), 1.0), 1, rows)
    assert torch.equal(found[0], expected[0])
    assert all(torch.equal(g, expected[1][n]) for n, g in found[1].items())


# --- batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 60, 100, 120, 10_000])
def test_how_rows_share_batches_does_not_change_the_gradient(budget: int) -> None:
    stack, rows = stack_of("llama"), some_rows()
    scorer = PackedScorer(Decoder.of(stack), 1.0)
    _, expected = grads(scorer, 1, rows)
    batches = list(scorer.batches(rows, budget))
    assert {1: len(rows), 10_000: 1}.get(budget, 2) <= len(batches) <= len(rows)
    total = {name: torch.zeros_like(g) for name, g in expected.items()}
    for batch in batches:
        for name, g in grads(scorer, 1, batch)[1].items():
            total[name] += g
    assert all(close(total[name], g) for name, g in expected.items())


def chats_of(stack: Stack, config: Config) -> list[Any]:
    """Three chats of two learning seats, with credit on most messages."""
    base = small_base()
    engine = FastEngine(stack, base.form.end_ids)
    players = {seat: Player("learner", k, learns=True) for seat, k in (("A", 1), ("B", 2))}
    seatings = [Seating(d, players, n, (1, d.task.id)) for d in deals(3) for n in range(2)]
    playing = converse(seatings, config.rules, base.form)
    views = next(playing)
    while True:
        try:
            views = playing.send(engine.reply([views])[0])
        except StopIteration as end:
            chats = end.value
            break
    for i, message in enumerate(m for chat in chats for m in chat.messages):
        message.credit = [0.5, -1.0, None, 0.25, 0.0][i % 5]
    return chats


@pytest.mark.parametrize("view", ["dialogue", "transcript"])
def test_an_update_of_real_chats_equals_the_padded_trainers(view: str) -> None:
    """Same chats, same learner, two scorers: log-probabilities are those of sampling, adapters move alike."""
    config = Config(
        message_tokens=12, answer_tokens=20, temperature=0.9, view=view, rank=4, alpha=8.0, clip=0.1
    )
    moved = []
    for kind in ("packed", "padded"):
        stack = filled(Stack(small_base().model, 2, rank=4, alpha=8.0))
        chats = chats_of(stack, config)
        scorer = PackedScorer(Decoder.of(stack), 0.9) if kind == "packed" else PaddedScorer(stack, 0.9)
        learner = Learner(stack, {"A": 1, "B": 2}, config, scorer)
        before = [p.detach().clone() for p in stack.parameters(1).values()]
        logged = learner.update(chats, lr=1e-2)
        assert logged["ratio/min"] == pytest.approx(1, abs=1e-3) == logged["ratio/max"]
        after = [p.detach() for k in (1, 2) for p in stack.parameters(k).values()]
        assert any(not torch.equal(a, b) for a, b in zip(before, after))
        moved.append((logged, after))
    assert moved[0][0]["credited_tokens"] == moved[1][0]["credited_tokens"] > 50
    assert moved[0][0]["grad_norm"] == pytest.approx(moved[1][0]["grad_norm"], rel=1e-4)
    # Adam's first step is lr x sign(gradient): entries whose gradient is nothing but rounding may differ
    off = sum(int(((a - b).abs() > 1e-5).sum()) for a, b in zip(moved[0][1], moved[1][1], strict=True))
    assert off < 0.002 * sum(a.numel() for a in moved[0][1])


@pytest.mark.parametrize("view", ["dialogue", "transcript"])
def test_the_engines_log_probabilities_are_the_trainers(view: str) -> None:
    config = Config(message_tokens=12, answer_tokens=20, temperature=0.7, view=view)
    stack = filled(Stack(small_base().model, 2, rank=4, alpha=8.0))
    rows = [r for chat in chats_of(stack, config) for r in rows_of(chat)]
    scorer = PackedScorer(Decoder.of(stack), 0.7)
    for seat, k in (("A", 1), ("B", 2)):
        mine = [r for r in rows if r.seat == seat]
        now, sampled, _ = scorer.score(k, mine)
        other, _, _ = scorer.score(3 - k, mine)
        assert len(now) > 50
        assert torch.allclose(now, sampled, rtol=0, atol=1e-4)
        assert ((now - sampled).exp() - 1).abs().max() < 1e-3  # the on-policy ratio
        assert ((other - sampled).exp() - 1).abs().max() > 0.1  # another adapter's would be seen


def test_a_batch_that_does_not_fit_is_halved_and_the_gradient_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = filled(Stack(small_base().model, 2, rank=4, alpha=8.0))
    config = Config(message_tokens=12, answer_tokens=20, rank=4, alpha=8.0, normaliser=NORMALISER)
    rows, scorer = some_rows(), PackedScorer(Decoder.of(stack), 0.9)
    learner = Learner(stack, {"A": 1, "B": 2}, config, scorer)
    _, expected = grads(scorer, 1, rows)
    forward, tried = PackedScorer._forward, []

    def small(self: PackedScorer, packed: Any, keep: bool = True) -> Any:
        tried.append(len(packed.ids))
        if len(packed.ids) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, packed, keep)

    monkeypatch.setattr(PackedScorer, "_forward", small)
    gaps = learner._backward(1, rows, NORMALISER)
    assert sum(map(len, gaps)) == sum(len(lps) for r in rows for _, lps, _ in r.spans)
    assert max(tried) > 100 and len(tried) >= 3
    for name, p in stack.parameters(1).items():
        assert close(p.grad, expected[name]), name
