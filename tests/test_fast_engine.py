"""The `fast` engine on its plain-torch twins: against transformers' generate, against `hf`, and against itself alone.

What a GPU does with one batch for all is shown here too (`one_batch`): prefixes kept between turns, pages, halving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from conftest import deals, small_base, small_model
from cotalk.chat import Chat, Player, Reply, Rules, Seating, View, converse
from cotalk.decoder.serving import Cache, Serving
from cotalk.decoder.twins import PAGE
from cotalk.engines import fast
from cotalk.engines.fast import FastEngine, _State, bucket
from cotalk.engines.hf import HfEngine
from cotalk.errors import RunFailed
from cotalk.lora import Stack
from families import FAMILIES, model_of, stack_of
from test_hf_engine import filled, prompts, same, view

NEVER = [260_000]  # an end token that is in no vocabulary


def together(stack: Stack, end_ids: Sequence[int] = (4,), **how: int) -> FastEngine:
    """An engine that answers all batches in one, as on a GPU."""
    engine = FastEngine(stack, end_ids, **how)
    engine.one_batch = True
    return engine


def all_returned(engine: FastEngine) -> bool:
    """Whether every page is free, or belongs to as many kept prefixes as it has owners."""
    pool = engine._pool
    kept = Counter(page for entry in pool._kept.values() for page in entry.pages)
    owners = {page: n for page, n in enumerate(pool._owners) if n}
    return sorted([*pool._free, *kept]) == list(range(1, pool.size)) and kept == owners


def like(ours: Sequence[Reply], theirs: Sequence[Reply], atol: float = 1e-4) -> bool:
    return len(ours) == len(theirs) and all(same(a, b, atol) for a, b in zip(ours, theirs, strict=True))


# --- against transformers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_generate_token_by_token(family: str) -> None:
    """Prompts of 1 to 130 tokens in one batch; generate sees each alone."""
    model = model_of(family)
    given = prompts(1, 3, 9, 17, 40, 63, 64, 65, 130)
    expected = []
    for ids in given:
        out = model.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False, eos_token_id=None)
        expected.append(tuple(out[0, len(ids) :].tolist()))
    assert {len(ids) for ids in expected} == {64}
    assert len({t for ids in expected for t in ids}) > 20  # not the same few tokens over and over
    replies = FastEngine(Stack(model, 1, rank=2, alpha=4), NEVER).reply([[view(ids) for ids in given]])[0]
    assert [r.ids for r in replies] == expected and all(r.cut for r in replies)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_of_several_adapters_equal_those_of_a_peft_model(family: str) -> None:
    """Adapters 1 and 3 and the base in one batch, adapter 2 has no rows; PEFT sees each row alone."""
    from peft import LoraConfig, get_peft_model

    given = list(zip(prompts(5, 40, 5, 17, 64, 1), (3, 0, 1, 1, 3, 0), strict=True))
    replies = FastEngine(stack_of(family, 3), NEVER).reply([[view(ids, k) for ids, k in given]])[0]
    for k in (0, 1, 3):
        model = model_of(family)
        if k:
            peft = LoraConfig(r=4, lora_alpha=8.0, target_modules="all-linear")
            model = get_peft_model(model, peft).eval()
            named = dict(model.named_parameters())
            for name, p in stack_of(family, 3).parameters(k).items():
                named[f"base_model.model.{name.replace('.weight', '.default.weight')}"].data.copy_(p)
        for (ids, asked), reply in zip(given, replies, strict=True):
            if asked == k:
                out = model.generate(
                    input_ids=torch.tensor([ids]), max_new_tokens=64, do_sample=False, eos_token_id=None
                )
                assert reply.ids == tuple(out[0, len(ids) :].tolist())
    assert len({r.ids for r in replies}) == 6


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_equal_one_forward_pass_over_the_whole_row(family: str) -> None:
    model = model_of(family)
    given = prompts(2, 5, 30, 70)
    views = [view(ids, budget=24, temperature=0.7, name=i) for i, ids in enumerate(given)]
    replies = FastEngine(Stack(model, 1, rank=2, alpha=4), NEVER).reply([views])[0]
    fresh = model_of(family)
    for ids, reply in zip(given, replies, strict=True):
        whole = torch.tensor([[*ids, *reply.ids]])
        with torch.no_grad():
            scores = torch.log_softmax(fresh(whole).logits[0, len(ids) - 1 : -1] / 0.7, -1)
        expected = scores.gather(1, torch.tensor(reply.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(reply.logprobs), expected, rtol=0, atol=1e-4)


# --- against the hf engine -----------------------------------------------------------------------------------


def mixed_views(n: int = 24, temperature: float = 0.9) -> list[View]:
    """Adapters 0, 1, 3, 4 in no order (2 has none), shared prompts, budgets from 1 on."""
    given = prompts(3, 70, 18, 64, 33, 129)
    adapters = (3, 0, 1, 4, 0, 3, 1)
    return [view(given[i % 6], adapters[i % 7], 1 + (7 * i) % 37, temperature, name=i) for i in range(n)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_mixed_batch_equals_the_hf_engines_replies(family: str, temperature: float) -> None:
    views = mixed_views(temperature=temperature)
    ends = [4, *range(80, 90)]
    theirs = HfEngine(stack_of(family, 4), ends).reply([views])[0]
    ours = FastEngine(stack_of(family, 4), ends).reply([views])[0]
    assert like(ours, theirs)
    assert 0 < sum(r.cut for r in ours) < len(ours)


@pytest.mark.parametrize("rank", [1, 16, 17, 32])
def test_ranks_that_are_padded_and_ranks_that_are_not(rank: int) -> None:
    def stack() -> Stack:
        return stack_of("llama", 2, rank)

    views = [view(ids, 1 + i % 2, 12, 1.0, name=i) for i, ids in enumerate(prompts(4, 9, 66))]
    assert like(FastEngine(stack(), [4]).reply([views])[0], HfEngine(stack(), [4]).reply([views])[0])


@pytest.mark.parametrize("targets", [["q_proj"], ["v_proj", "up_proj"], ["o_proj", "down_proj"]])
def test_adapters_on_some_linear_layers_only(targets: list[str]) -> None:
    def stack() -> Stack:
        return stack_of("qwen2, biases", 2, 4, targets)

    views = [view(ids, i % 3, 12, 1.0, name=i) for i, ids in enumerate(prompts(4, 9, 66))]
    assert like(FastEngine(stack(), [4]).reply([views])[0], HfEngine(stack(), [4]).reply([views])[0])


def test_a_base_of_another_size_where_merging_does_not_pay() -> None:
    """Width 32 and rank 2: the thin products stand beside the base's."""
    views = mixed_views(12)
    ours, theirs = (filled(Stack(small_model(), 4, rank=2, alpha=4)) for _ in range(2))
    assert not any(linear.merging_pays for linear in ours.linears.values())
    assert like(FastEngine(ours, [4]).reply([views])[0], HfEngine(theirs, [4]).reply([views])[0])


# --- rows and batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_row_of_a_mixed_batch_equals_the_row_served_alone(temperature: float) -> None:
    views = mixed_views(14, temperature)
    mixed = FastEngine(stack_of("llama", 4), [4]).reply([views])[0]
    alone = [FastEngine(stack_of("llama", 4), [4]).reply([[v]])[0][0] for v in views]
    assert like(mixed, alone)
    others = [replace(v, player=Player("p", (v.player.adapter + 1) % 5)) for v in views]
    swapped = FastEngine(stack_of("llama", 4), [4]).reply([others])[0]
    assert sum(a.ids != b.ids for a, b in zip(mixed, swapped, strict=True)) > 10  # a wrong adapter is seen


def test_replies_come_in_the_order_and_shape_that_was_asked() -> None:
    engine = FastEngine(stack_of("llama"), [4])
    views = [
        view(ids, k, 8, 1.0, name=i) for i, (ids, k) in enumerate(zip(prompts(3, 4, 5, 6), (2, 0, 1, 0)))
    ]
    alone = [engine.reply([[v]])[0][0] for v in views]
    for one_batch in (False, True):
        engine.one_batch = one_batch
        for split in ([views], [views[:1], [], views[1:]], [[v] for v in views], [[], views]):
            replies = engine.reply(split)
            assert [len(batch) for batch in replies] == [len(batch) for batch in split]
            assert like([r for batch in replies for r in batch], alone)
        assert engine.reply([]) == [] and engine.reply([[], []]) == [[], []]


def test_on_a_cpu_a_batch_does_not_see_its_neighbours_by_a_single_bit() -> None:
    mine = [view(ids, 1, 20, 1.0, name=i) for i, ids in enumerate(prompts(3, 9, 9, 80))]
    others = [view(ids, 2, 40, 1.0, name=i) for i, ids in enumerate(prompts(50, 2, 7, 30, 31, 200))]
    for rank in (2, 32):  # beside the base's product, and merged
        alone = FastEngine(stack_of("llama", 2, rank), [4]).reply([mine])[0]
        engine = FastEngine(stack_of("llama", 2, rank), [4])
        assert engine.reply([others, mine])[1] == alone  # log-probabilities too, exactly
        assert engine.reply([mine, others])[0] == alone


@pytest.mark.parametrize("rank", [2, 32])
def test_on_a_cpu_the_size_of_the_stack_does_not_change_a_single_bit(rank: int) -> None:
    """The same adapter as the second of 2 and of 12: no product's shape may depend on who else is there."""
    shape = dict(hidden_size=128, intermediate_size=320, num_hidden_layers=2, num_key_value_heads=4)
    given = prompts(3, 9, 9, 80, 41, 17, 5, 23)
    mine = [view(ids, 2 * (i % 2), 20, 1.0, name=i) for i, ids in enumerate(given)]

    def answers(adapters: int) -> list[Reply]:
        return FastEngine(filled(Stack(small_model(**shape), adapters, rank, 2.0 * rank)), [4]).reply([mine])[
            0
        ]

    assert answers(2) == answers(12)


def test_one_batch_for_all_runs_gives_the_same_tokens() -> None:
    mine = [view(ids, 1, 20, 1.0, name=i) for i, ids in enumerate(prompts(3, 9, 9))]
    others = [view(ids, 2, 30, 1.0, name=i) for i, ids in enumerate(prompts(50, 2, 7))]
    apart = FastEngine(stack_of("llama"), [4]).reply([mine, others])
    for replies in (
        together(stack_of("llama")).reply([mine, others]),
        together(stack_of("llama"), rows=2).reply([mine, others]),  # in parts
        together(stack_of("llama"), rows=1).reply([mine, others]),
    ):
        assert all(like(a, b) for a, b in zip(replies, apart, strict=True))


def test_rows_end_at_their_end_token_or_their_own_budget_and_leave() -> None:
    """Worked out from endless replies: cut after the first end token, else at the budget. The batch shrinks."""
    given = prompts(4, 6, 8, 10, 12, 14, 16, 18)
    budgets = [64, 1, 20, 33, 64, 7, 12, 64]
    endless = [r.ids for r in FastEngine(stack_of("llama"), NEVER).reply([[view(i) for i in given]])[0]]
    ends = {
        endless[0][11],
        endless[2][19],
        endless[4][30],
    }  # row 2's is the last token that its budget allows
    engine = FastEngine(stack_of("llama"), sorted(ends))
    sizes = []
    step = engine._serving.step
    engine._serving.step = lambda state, cache, rows: (sizes.append(rows), step(state, cache, rows))[1]
    views = [view(ids, budget=budget) for ids, budget in zip(given, budgets, strict=True)]
    replies = engine.reply([views])[0]
    for ids, budget, reply in zip(endless, budgets, replies, strict=True):
        at = next((i for i, token in enumerate(ids[:budget]) if token in ends), None)
        assert reply.ids == (ids[:budget] if at is None else ids[: at + 1])
        assert reply.cut == (at is None) and len(reply.logprobs) == len(reply.ids)
    assert [r.cut for r in replies].count(True) >= 2 and [r.cut for r in replies].count(False) >= 2
    assert sizes[0] == 8 and sizes == sorted(sizes, reverse=True) and len(set(sizes)) >= 3
    assert len(sizes) == max(len(r.ids) for r in replies)  # not one step too many


def test_a_long_call_leaves_nothing_behind_for_a_short_one() -> None:
    """The state's tensors are used again: wider and longer calls before and after must not be seen."""
    engine = FastEngine(stack_of("llama"), [4])
    small = [view(ids, 1, 6, 1.0, name=i) for i, ids in enumerate(prompts(9, 70))]
    large = [view(ids, i % 3, 50, 1.0, name=i) for i, ids in enumerate(prompts(*range(100, 140, 4)))]
    first = engine.reply([small])[0]
    engine.reply([large])
    assert engine.reply([small])[0] == first


def test_more_rows_than_the_engine_holds_are_answered_in_parts() -> None:
    views = mixed_views(23)
    whole = FastEngine(stack_of("llama", 4), [4]).reply([views])[0]
    engine = FastEngine(stack_of("llama", 4), [4], rows=5)
    sizes = []
    step = engine._serving.step
    engine._serving.step = lambda state, cache, rows: (sizes.append(rows), step(state, cache, rows))[1]
    assert like(engine.reply([views])[0], whole)
    assert max(sizes) == 5


# --- what is read --------------------------------------------------------------------------------------------


def test_identical_prompts_are_read_once_and_answered_as_if_apart() -> None:
    """Read: every different (adapter, prompt) without its last token, which the first step reads."""
    short, long = prompts(5, 75)
    asked = [(long, 1), (short, 0), (long, 1), (long, 2), (short, 0), (long, 1), (short, 1)]
    views = [view(ids, k, 16, 1.0, name=i) for i, (ids, k) in enumerate(asked)]
    engine = FastEngine(stack_of("llama"), [4])
    replies = engine.reply([views])[0]
    assert engine.read_tokens == 74 + 4 + 74 + 4
    assert like(replies, [FastEngine(stack_of("llama"), [4]).reply([[v]])[0][0] for v in views])
    assert len({r.ids for r in replies}) == 7  # each by its own key, though prompts are the same
    assert all_returned(engine)


def test_what_prompts_begin_with_is_read_once_in_whole_pages() -> None:
    """Of 150 common tokens, 128 are whole pages. Two others share one page, of which the last token is not read."""
    (stem,), (other,) = prompts(150), prompts(64, 2)[:1]
    given = [(*stem, *end) for end in prompts(3, 80, 1)] + [(*other, 8), (*other, 9)]
    views = [view(ids, 1, 16, 1.0, name=i) for i, ids in enumerate(given)]
    views.append(view(given[0], 2, 16, 1.0, name=9))  # another adapter shares nothing
    engine = FastEngine(stack_of("llama"), [4])
    replies = engine.reply([views])[0]
    assert engine.read_tokens == 128 + (24 + 101 + 22) + 64 + 0 + 0 + 152
    assert like(replies, [FastEngine(stack_of("llama"), [4]).reply([[v]])[0][0] for v in views])
    assert all_returned(engine)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 192])
@pytest.mark.parametrize("budget", [1, 63, 64, 65])
def test_prompts_and_budgets_that_end_at_a_pages_border(length: int, budget: int) -> None:
    """Two rows of one prompt and a third that goes on from it, all of length and budget near a page's 64 tokens."""
    (ids,), stack = prompts(length), stack_of("llama")
    views = [view(ids, 1, budget, 1.0, name=0), view(ids, 1, budget, 1.0, name=1)]
    views.append(view((*ids, 99), 1, budget, 1.0, name=2))
    engine = FastEngine(stack, NEVER)
    replies = engine.reply([views])[0]
    assert like(replies, HfEngine(stack_of("llama"), NEVER).reply([views])[0])
    assert [len(r.ids) for r in replies] == [budget] * 3 and all_returned(engine)


# --- prefixes kept between turns -----------------------------------------------------------------------------


def next_turn(first: View, reply: Reply, heard: Sequence[int], budget: int, name: int = 1) -> View:
    """The view of a seat that said `reply`, and has heard these ids since."""
    ids = (*first.ids, *reply.ids, *heard)
    scene = replace(first.scene, own_ids=((first.ids, reply.ids, reply.cut),))
    return replace(view(ids, first.player.adapter, budget, 1.0, name), scene=scene)


def play(
    engine: FastEngine | HfEngine, rules: Rules, adapters: dict[str, int], chats: int = 3, split: bool = False
) -> list[Chat]:
    """`chats` chats of each of two tasks. split: as two batches of one call."""
    base = small_base()
    players = {seat: Player("p", k, learns=True) for seat, k in adapters.items()}
    seatings = [Seating(d, players, n, (1, d.task.id)) for d in deals(2) for n in range(chats)]
    playing = converse(seatings, rules, base.form)
    views = next(playing)
    while True:
        batches = [views[: len(views) // 2], views[len(views) // 2 :]] if split else [views]
        try:
            views = playing.send([r for batch in engine.reply(batches) for r in batch])
        except StopIteration as end:
            return end.value


def said(chats: Sequence[Chat]) -> list[Reply]:
    return [Reply(m.ids, m.logprobs, m.cut) for chat in chats for m in chat.messages]


@pytest.mark.parametrize("order", ["ABAB", "ABABAB", "AABB"])
@pytest.mark.parametrize("message_tokens", [1, 12, 64])
def test_a_dialogue_goes_on_from_what_it_has_read(order: str, message_tokens: int) -> None:
    """Every token of a chat is read or stepped once: all that is new in a turn's prompt, but its last token."""
    rules = Rules(order, "dialogue", "open", message_tokens, 20, 1.0)
    adapters = {"A": 1, "B": 2}
    engine = together(stack_of("llama"))
    chats = play(engine, rules, adapters)
    assert like(said(chats), said(play(HfEngine(stack_of("llama"), [4]), rules, adapters)))
    owed = 0
    new_prompts: set[tuple[int, ...]] = set()
    for chat in chats:
        own: dict[str, int] = {}
        for m in chat.messages:
            if m.seat not in own:
                if m.prompt not in new_prompts:
                    owed += len(m.prompt) - 1
                new_prompts.add(m.prompt)
            else:
                owed += len(m.prompt) - 1 - own[m.seat]
            own[m.seat] = len(m.prompt) + len(m.ids) - 1  # the last one was sampled, not read
    assert engine.read_tokens <= owed  # less where prompts of a task begin with the same pages
    assert not engine._pool._kept and engine._pool.free == engine._pool.size - 1


def test_a_transcript_keeps_nothing_for_ever() -> None:
    """Its prompts begin anew, so that no earlier turn is gone on from: what was kept for one is given back."""
    rules = Rules("ABABAB", "transcript", "open", 12, 20, 1.0)
    engine = together(stack_of("llama"))
    chats = play(engine, rules, {"A": 1, "B": 2})
    assert like(said(chats), said(play(HfEngine(stack_of("llama"), [4]), rules, {"A": 1, "B": 2})))
    assert not engine._pool._kept and engine._pool.free == engine._pool.size - 1


@pytest.mark.parametrize("extra", range(-2, 3))
def test_a_message_that_ends_at_a_pages_border_is_gone_on_from(extra: int) -> None:
    """Prompt + message = 128 + extra tokens, whose last one is not read yet."""
    (ids,) = prompts(100)
    first = view(ids, 1, 28 + extra, 1.0)
    engine, oracle = together(stack_of("llama"), NEVER), HfEngine(stack_of("llama"), NEVER)
    reply = engine.reply([[first]])[0][0]
    assert len(reply.ids) == 28 + extra and engine.read_tokens == 99
    for more in ((), (7,), prompts(63)[0], prompts(64)[0], prompts(65)[0]):
        reply = engine.reply([[first]])[0][0]
        engine.read_tokens = 0
        next_view = next_turn(first, reply, more, 9)
        assert like(engine.reply([[next_view]])[0], oracle.reply([[next_view]])[0])
        assert engine.read_tokens == len(more)
        assert all_returned(engine)


def test_several_chats_go_on_from_one_prefix_each_with_pages_of_its_own() -> None:
    """Greedy twins said the same; what they heard differs, or does not."""
    (ids,), heard = prompts(70), prompts(5, 5, 90)
    heard.append(heard[0])
    firsts = [view(ids, 1, 10, 0.0, name=i) for i in range(4)]
    engine, oracle = together(stack_of("llama"), NEVER), HfEngine(stack_of("llama"), NEVER)
    replies = engine.reply([firsts])[0]
    assert len({r.ids for r in replies}) == 1
    seconds = [next_turn(firsts[0], r, h, 30, name=i) for i, (r, h) in enumerate(zip(replies, heard))]
    engine.read_tokens = 0
    assert like(engine.reply([seconds])[0], oracle.reply([seconds])[0])
    assert engine.read_tokens == 5 + 5 + 90  # the last token of the message instead of the prompt's own
    assert all_returned(engine)


def test_an_adapter_that_changed_forgets_what_it_had_read() -> None:
    """Adapter 1 is changed between two turns; adapter 2 is not, and goes on."""
    (ids,) = prompts(70)
    firsts = [view(ids, k, 10, 1.0, name=k) for k in (0, 1, 2)]

    def change(stack: Stack) -> None:
        for linear in stack.linears.values():
            with torch.no_grad():
                linear.lora_b[1].mul_(-1)

    stack = stack_of("llama")
    engine = together(stack, NEVER)
    replies = engine.reply([firsts])[0]
    seconds = [next_turn(v, r, (9, 9), 20) for v, r in zip(firsts, replies, strict=True)]
    other = stack_of("llama")
    before = HfEngine(other, NEVER).reply([seconds])[0]
    change(stack)
    change(other)
    engine.read_tokens = 0
    ours = engine.reply([seconds])[0]
    assert like(ours, HfEngine(other, NEVER).reply([seconds])[0])
    assert engine.read_tokens == 2 + (70 + 10 + 2 - 1) + 2
    assert ours[1].ids != before[1].ids and like(ours[::2], before[::2])


@pytest.mark.parametrize("way", ["load", "initialise", "changed", "optimiser"])
def test_every_way_of_changing_an_adapter_is_seen(way: str, tmp_path) -> None:
    stack = stack_of("llama")
    stack.save(2, tmp_path)
    engine = FastEngine(stack, NEVER)
    v = [view(prompts(20)[0], 1, 20)]
    before = engine.reply([v])[0]
    if way == "load":
        stack.load(1, tmp_path)
    elif way == "initialise":
        stack.initialise(1, 5)
    elif way == "changed":
        for linear in stack.linears.values():
            linear.all_b[1] *= -1
        stack.changed(1)
    else:
        parameters = list(stack.parameters(1).values())
        optimiser = torch.optim.AdamW(parameters, lr=0.1)
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimiser.step()
    after = engine.reply([v])[0]
    assert after[0].ids != before[0].ids
    assert like(after, HfEngine(stack, NEVER).reply([v])[0])


def test_two_engines_of_one_stack_both_see_a_change() -> None:
    """The second one is told although the first one looked before it."""
    stack = stack_of("llama")
    engines = [together(stack, NEVER), together(stack, NEVER)]
    (ids,) = prompts(70)
    first = view(ids, 1, 10, 1.0)
    seconds = [next_turn(first, e.reply([[first]])[0][0], (9,), 20) for e in engines]
    stack.initialise(1, 99)
    engines[0].stepping([seconds[0]])()  # looks at the adapters too
    answers = [e.reply([[s]])[0] for e, s in zip(engines, seconds, strict=True)]
    answers.append(HfEngine(stack, NEVER).reply([seconds[:1]])[0])
    assert like(answers[0], answers[2]) and like(answers[1], answers[2])


# --- when memory is short ------------------------------------------------------------------------------------


def bytes_of(engine: FastEngine, pages: int) -> int:
    return pages * PAGE * engine.decoder.kv_bytes_a_token


@pytest.mark.parametrize("pages", [4, 5, 7, 12, 30, 100])
def test_a_small_cache_changes_no_reply(pages: int) -> None:
    """Chats of up to 3 pages a row, 6 rows: halves, kept prefixes that give way, everything given back."""
    rules = Rules("ABABAB", "dialogue", "open", 30, 40, 1.0)
    stack = stack_of("llama")
    limit = bytes_of(FastEngine(stack, [4]), pages)
    free = play(together(stack_of("llama")), rules, {"A": 1, "B": 2})
    longest = max(len(m.prompt) for c in free for m in c.messages) + 40
    assert longest > 2 * PAGE
    engine = together(stack, kv_bytes=limit)
    if -(-longest // PAGE) + 1 >= pages:
        with pytest.raises(RunFailed, match=r"a row of \d+ tokens does not fit in the KV cache of"):
            play(engine, rules, {"A": 1, "B": 2})
        return
    assert like(said(play(engine, rules, {"A": 1, "B": 2})), said(free))
    assert engine._pool.size <= pages and all_returned(engine)


def test_kept_prefixes_give_way_to_rows_that_need_their_pages() -> None:
    stack = stack_of("llama")
    engine = together(stack, NEVER, kv_bytes=bytes_of(FastEngine(stack, [4]), 12))
    for i in range(12):
        v = view(prompts(*[60 + i] * (i + 1))[-1], i % 3, 30, 1.0, name=i)
        assert like(engine.reply([[v]])[0], HfEngine(stack_of("llama"), NEVER).reply([[v]])[0])
        assert all_returned(engine)
    assert 1 <= len(engine._pool._kept) <= 5


def test_a_row_that_cannot_fit_says_what_to_lower() -> None:
    stack = stack_of("llama")
    limit = bytes_of(FastEngine(stack, [4]), 4)
    with pytest.raises(
        RunFailed, match=r"a row of 264 tokens does not fit in the KV cache of 256 tokens: lower"
    ):
        FastEngine(stack, [4], kv_bytes=limit).reply([[view(prompts(200)[0], budget=64)]])
    with pytest.raises(
        RunFailed, match=r"may need 564 tokens and the base holds 512: lower the token budgets"
    ):
        FastEngine(stack, [4]).reply([[view(prompts(500)[0], budget=64)]])


def test_rows_are_answered_in_halves_where_they_do_not_fit() -> None:
    """Eight rows of three pages in a cache of ten."""
    views = [view(ids, i % 3, 40, 1.0, name=i) for i, ids in enumerate(prompts(*range(100, 108)))]
    whole = FastEngine(stack_of("llama"), [4]).reply([views])[0]
    stack = stack_of("llama")
    engine = FastEngine(stack, [4], kv_bytes=bytes_of(FastEngine(stack, [4]), 14))
    sizes = []
    step = engine._serving.step
    engine._serving.step = lambda state, cache, rows: (sizes.append(rows), step(state, cache, rows))[1]
    assert like(engine.reply([views])[0], whole)
    assert max(sizes) == 2 and all_returned(engine)  # 8 -> 4 -> 2 rows of 3 + 1 pages in 13


def test_a_batch_that_runs_out_of_memory_is_answered_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    views = mixed_views(10)
    engine = together(stack_of("qwen2, biases", 4))
    expected = engine.reply([views])[0]
    step, sizes = Serving.step, []

    def scarce(self: Serving, state: dict, cache: Cache, rows: int) -> torch.Tensor:
        sizes.append(rows)
        if rows > 3:
            raise torch.OutOfMemoryError("no room")
        return step(self, state, cache, rows)

    monkeypatch.setattr(Serving, "step", scarce)
    engine = together(stack_of("qwen2, biases", 4))
    assert like(engine.reply([views])[0], expected)
    assert sizes[:2] == [10, 5] and all_returned(engine)
    monkeypatch.setattr(Serving, "step", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no room")))
    with pytest.raises(RunFailed, match=r"one row of \d+ tokens does not fit in memory"):
        engine.reply([views[:2]])


def test_prompts_are_read_in_passes_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    views = mixed_views(24)
    whole = FastEngine(stack_of("llama", 4), [4]).reply([views])[0]
    monkeypatch.setattr(fast, "READ_TOKENS", 100)
    engine = FastEngine(stack_of("llama", 4), [4])
    passes = []
    read = engine._serving.read
    engine._serving.read = lambda batch, cache: (
        passes.append([len(s.ids) for s in batch]),
        read(batch, cache),
    )[1]
    assert like(engine.reply([views])[0], whole)
    assert len(passes) > 5 and all(len(p) == 1 or sum(p) <= 100 for p in passes)


# --- buckets, as on a GPU ------------------------------------------------------------------------------------


def test_a_bucket_is_the_least_number_of_rows_that_holds_these() -> None:
    assert [bucket(n) for n in (1, 4, 5, 33, 1024, 1025)] == [4, 4, 8, 48, 1024, 1152]


def test_rows_of_a_bucket_that_nobody_uses_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a step has as many rows as the next bucket: the rest are done, and write to the scratch page."""
    monkeypatch.setattr(_State, "_size", lambda self, live, now: min(bucket(live), self.rows))
    views = mixed_views(21)
    engine = together(stack_of("llama", 4))
    assert like(engine.reply([views])[0], HfEngine(stack_of("llama", 4), [4]).reply([views])[0])
    assert all_returned(engine)
