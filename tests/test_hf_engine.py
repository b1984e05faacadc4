"""The `hf` engine against transformers' own generate, against itself alone, and against the trainer's score."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from conftest import deals, small_base, small_model
from cotalk.chat import BASE, Player, Reply, Rules, Seating, View, converse
from cotalk.config import Config
from cotalk.engines import hf
from cotalk.engines.hf import HfEngine, segments_of
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.rows import rows_of
from cotalk.sample import generator, key
from cotalk.view import Scene

NOWHERE = Scene("A", "AB", ("1",), "?", (), (), last=False)
SHAPE = dict(
    vocab_size=261, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=512, initializer_range=0.3, pad_token_id=0,
    bos_token_id=1, eos_token_id=4,
)  # fmt: skip
WINDOWS = dict(sliding_window=6, layer_types=["sliding_attention", "full_attention"])
FAMILIES: dict[str, PreTrainedConfig | None] = {
    "llama": None,
    "qwen2": Qwen2Config(**SHAPE),  # biases on q, k, v
    "qwen3": Qwen3Config(**SHAPE),  # norms on q and k
    "mistral": MistralConfig(**SHAPE, sliding_window=6),  # a window on every layer, and no layer_types
    "gemma3": Gemma3TextConfig(**SHAPE, **WINDOWS, tie_word_embeddings=False),  # windows on some layers
}


def model_of(family: str):
    config = FAMILIES[family]
    if config is None:
        return small_model()
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def filled(stack: Stack) -> Stack:
    """Every adapter is different, and different enough from the base to change what is said."""
    for k in range(1, stack.adapters + 1):
        stack.initialise(k, 17, k)
        for name, linear in stack.linears.items():
            drawn = generator("B", k, name).normal(0, 0.2, linear.lora_b[k].shape)
            with torch.no_grad():
                linear.lora_b[k].copy_(torch.from_numpy(drawn))
    return stack


def prompts(*lengths: int) -> list[tuple[int, ...]]:
    return [tuple(generator("prompt", i, n).integers(5, 261, n).tolist()) for i, n in enumerate(lengths)]


def view(
    ids: Sequence[int], adapter: int = 0, budget: int = 64, temperature: float = 0.0, name: int = 0
) -> View:
    return View(NOWHERE, Player("p", adapter), tuple(ids), budget, key("test", name), temperature)


def same(ours: Reply, theirs: Reply, atol: float = 1e-5) -> bool:
    close = torch.allclose(torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), rtol=1e-5, atol=atol)
    return ours.ids == theirs.ids and ours.cut == theirs.cut and close


# --- against transformers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_generate_token_by_token(family: str) -> None:
    """Prompts of 1 to 40 tokens in one left-padded batch; generate sees each alone, without padding."""
    model = model_of(family)
    given = prompts(1, 3, 9, 17, 40)
    expected = []
    for ids in given:
        out = model.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False, eos_token_id=None)
        expected.append(tuple(out[0, len(ids) :].tolist()))
    engine = HfEngine(Stack(model, 1, rank=2, alpha=4), end_ids=[260_000])
    replies = engine.reply([[view(ids) for ids in given]])[0]
    assert [len(ids) for ids in expected] == [64] * 5
    assert len({t for ids in expected for t in ids}) > 20  # not the same few tokens over and over
    for reply, ids in zip(replies, expected, strict=True):
        assert reply.ids == ids


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_equal_one_forward_pass_over_the_whole_row(family: str) -> None:
    model = model_of(family)
    given = prompts(2, 5, 30)
    engine = HfEngine(Stack(model, 1, rank=2, alpha=4), end_ids=[260_000])
    replies = engine.reply([[view(ids, budget=24, temperature=0.7, name=i) for i, ids in enumerate(given)]])[
        0
    ]
    for ids, reply in zip(given, replies, strict=True):
        whole = torch.tensor([[*ids, *reply.ids]])
        with torch.no_grad():
            scores = torch.log_softmax(model(whole).logits[0, len(ids) - 1 : -1] / 0.7, -1)
        expected = scores.gather(1, torch.tensor(reply.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(reply.logprobs), expected, atol=1e-4)


# --- ends, budgets, compaction -------------------------------------------------------------------------------


def test_rows_end_at_their_end_token_or_their_own_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked out from endless replies: cut after the first end token, else at the budget."""
    given = prompts(4, 6, 8, 10, 12, 14, 16, 18)
    budgets = [64, 1, 20, 33, 64, 7, 12, 64]
    stack = Stack(small_model(), 1, rank=2, alpha=4)
    endless = [r.ids for r in HfEngine(stack, [260_000]).reply([[view(ids) for ids in given]])[0]]
    ends = {
        endless[0][11],
        endless[2][19],
        endless[4][30],
    }  # row 2's is the last token that its budget allows

    kept = []
    keep = hf._Decoding._keep
    monkeypatch.setattr(
        hf._Decoding, "_keep", lambda self, rows: (kept.append(len(rows)), keep(self, rows))[1]
    )
    views = [view(ids, budget=budget) for ids, budget in zip(given, budgets, strict=True)]
    replies = HfEngine(stack, sorted(ends)).reply([views])[0]

    for ids, budget, reply in zip(endless, budgets, replies, strict=True):
        at = next((i for i, token in enumerate(ids[:budget]) if token in ends), None)
        assert reply.ids == (ids[:budget] if at is None else ids[: at + 1])
        assert reply.cut == (at is None)
        assert len(reply.logprobs) == len(reply.ids)
    assert [r.cut for r in replies].count(True) >= 2 and [r.cut for r in replies].count(False) >= 2
    assert len({len(r.ids) for r in replies}) >= 5
    assert len(kept) >= 2 and kept == sorted(kept, reverse=True)  # the batch shrank on the way


def test_identical_prompts_are_read_once_and_answered_as_if_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = filled(Stack(small_model(), 2, rank=4, alpha=8))
    engine = HfEngine(stack, [4])
    short, long = prompts(5, 11)
    asked = [(long, 1), (short, 0), (long, 1), (long, 2), (short, 0), (long, 1), (short, 1)]
    views = [view(ids, k, 16, 1.0, name=i) for i, (ids, k) in enumerate(asked)]
    apart = [engine.reply([[v]])[0][0] for v in views]

    shapes = []
    forward = type(stack.model).forward
    monkeypatch.setattr(
        type(stack.model), "forward",
        lambda self, *a, **k: (shapes.append(tuple(k["input_ids"].shape)), forward(self, *a, **k))[1],
    )  # fmt: skip
    together = engine.reply([views])[0]
    assert shapes[0] == (4, 11)  # (long, 1), (short, 0), (long, 2), (short, 1)
    assert shapes[1] == (7, 1)
    assert all(same(a, b) for a, b in zip(together, apart, strict=True))
    assert len({r.ids for r in together}) == 7  # each by its own key, though prompts are the same


# --- adapters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_row_of_a_mixed_batch_equals_the_row_served_alone_by_its_adapter(temperature: float) -> None:
    """Adapters 1, 3, 4 and the base in one batch, in no order; adapter 2 has no rows."""
    adapters = [3, 0, 1, 4, 0, 3, 1, 1]
    stack = filled(Stack(small_model(), 4, rank=4, alpha=8))
    engine = HfEngine(stack, [4])
    given = prompts(7, 7, 3, 12, 20, 9, 7, 5)
    views = [view(ids, k, 24, temperature, name=i) for i, (ids, k) in enumerate(zip(given, adapters))]
    mixed = engine.reply([views])[0]
    for v, reply in zip(views, mixed, strict=True):
        only = filled(Stack(small_model(), 4, rank=4, alpha=8))
        assert same(reply, HfEngine(only, [4]).reply([[v]])[0][0])
    swapped = engine.reply([[view(ids, (k + 1) % 5, 24, temperature) for ids, k in zip(given, adapters)]])[0]
    assert all(a.ids != b.ids for a, b in zip(mixed, swapped))  # a wrong adapter would be seen


def test_replies_come_in_the_order_and_shape_that_was_asked() -> None:
    stack = filled(Stack(small_model(), 2, rank=4, alpha=8))
    engine = HfEngine(stack, [4])
    views = [
        view(ids, k, 8, 1.0, name=i) for i, (ids, k) in enumerate(zip(prompts(3, 4, 5, 6), (2, 0, 1, 0)))
    ]
    alone = [engine.reply([[v]])[0][0] for v in views]
    for split in ([views], [views[:1], [], views[1:]], [[v] for v in views]):
        replies = engine.reply(split)
        assert [len(batch) for batch in replies] == [len(batch) for batch in split]
        assert all(same(a, b) for a, b in zip([r for batch in replies for r in batch], alone, strict=True))
    assert engine.reply([]) == []


def test_on_a_cpu_a_batch_does_not_see_its_neighbours_by_a_single_bit() -> None:
    stack = filled(Stack(small_model(), 2, rank=32, alpha=64))
    engine = HfEngine(stack, [4])
    mine = [view(ids, 1, 20, 1.0, name=i) for i, ids in enumerate(prompts(3, 9, 9))]
    others = [view(ids, 2, 40, 1.0, name=i) for i, ids in enumerate(prompts(50, 2, 7, 30, 31))]
    alone = engine.reply([mine])[0]
    assert engine.reply([others, mine])[1] == alone  # log-probabilities too, exactly
    assert engine.reply([mine, others])[0] == alone


def test_one_batch_for_all_runs_gives_the_same_tokens() -> None:
    """What a GPU does: everything in one batch. In other shapes bits differ, tokens do not."""
    stack = filled(Stack(small_model(), 2, rank=4, alpha=8))
    engine = HfEngine(stack, [4])
    mine = [view(ids, 1, 20, 1.0, name=i) for i, ids in enumerate(prompts(3, 9, 9))]
    others = [view(ids, 2, 30, 1.0, name=i) for i, ids in enumerate(prompts(50, 2, 7))]
    apart = engine.reply([mine, others])
    engine.one_batch = True
    together = engine.reply([mine, others])
    assert all(same(a, b) for x, y in zip(together, apart) for a, b in zip(x, y, strict=True))
    engine.rows = 2  # and a call for more rows than fit is made in parts
    parts = engine.reply([mine, others])
    assert all(same(a, b) for x, y in zip(parts, apart) for a, b in zip(x, y, strict=True))


def test_sampling_settings_that_come_with_a_base_change_nothing() -> None:
    # generation_config.json of a hub model often cuts the distribution, which the trainer's log-probabilities do not
    plain, cut = small_base(), small_base()
    cut.model.generation_config.update(
        top_k=1, top_p=0.1, temperature=0.1, repetition_penalty=5.0, do_sample=True
    )
    said = []
    for base in (plain, cut):
        engine = HfEngine(Stack(base.model, 1, rank=2, alpha=4), base.form.end_ids)
        players = dict.fromkeys("AB", BASE)
        playing = converse([Seating(d, players, 0, (1, d.task.id)) for d in deals(3)], Rules("AB"), base.form)
        said.append(engine.reply([next(playing)]))
    assert said[0] == said[1]


def test_rows_sorted_by_adapter_become_segments() -> None:
    assert segments_of([0, 0, 2, 5, 5, 5]) == [(0, 0, 2), (2, 2, 3), (5, 3, 6)]
    assert segments_of([1]) == [(1, 0, 1)]


# --- against the trainer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize(
    ("view_name", "dropout"), [("dialogue", 0.0), ("transcript", 0.0), ("dialogue", 0.5)]
)
def test_log_probabilities_equal_the_trainers_score_of_the_same_ids(
    temperature: float, view_name: str, dropout: float
) -> None:
    """The engine reads a prompt in a left-padded batch with a cache; the trainer reads whole right-padded rows.

    dropout: of the base's attention; it would make them two different networks.
    """
    base = small_base(attention_dropout=dropout)
    config = Config(message_tokens=12, answer_tokens=20, temperature=temperature, view=view_name)
    stack = filled(Stack(base.model, 2, rank=4, alpha=8))
    engine, learner = HfEngine(stack, base.form.end_ids), Learner(stack, {"A": 1, "B": 2}, config)
    players = {seat: Player("learner", k, learns=True) for seat, k in learner.adapters.items()}
    playing = converse([Seating(d, players, 0, (1, d.task.id)) for d in deals(3)], config.rules, base.form)
    views = next(playing)
    while True:
        try:
            views = playing.send(engine.reply([views])[0])
        except StopIteration as end:
            chats = end.value
            break
    rows = [row for chat in chats for row in rows_of(chat)]
    for seat, k in learner.adapters.items():
        with torch.no_grad():
            now, sampled, _ = learner.scorer.score(k, [r for r in rows if r.seat == seat])
            other, _, _ = learner.scorer.score(3 - k, [r for r in rows if r.seat == seat])
        assert len(now) > 50
        assert torch.allclose(now, sampled, rtol=0, atol=1e-4)
        assert ((now - sampled).exp() - 1).abs().max() < 1e-3  # the on-policy ratio
        assert ((other - sampled).exp() - 1).abs().max() > 0.1  # another adapter's would be seen
