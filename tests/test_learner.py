"""From chats to rows to gradients to steps: which tokens train, by how much, and what can never matter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import byte_tokenizer, deals, small_model
from cotalk.chat import Chat, Message, Player, Reply, Rules, Seating, converse
from cotalk.config import Config
from cotalk.errors import NotFinite, RunFailed
from cotalk.learner import Learner
from cotalk.lora import Stack, weights_sha256
from cotalk.padded import PaddedScorer, micro_batches
from cotalk.rows import Row, rows_of
from cotalk.view import ChatFormat

END = 4  # <|end|> of the byte tokenizer
SHARED, PER_SEAT = {"A": 1, "B": 1}, {"A": 1, "B": 2}


def learner_of(adapters: dict[str, int] | None = None, **settings) -> Learner:
    """A learner on two-layer base with B nonzero, so that gradients reach every parameter."""
    adapters = adapters or SHARED
    config = Config(**({"temperature": 0.7, "clip": 0.0, "lr": 0.01} | settings))
    stack = Stack(small_model(), 3, rank=4, alpha=8.0)
    for k in (1, 2, 3):
        stack.initialise(k, k, "A")
        with torch.no_grad():
            for i, linear in enumerate(stack.linears.values()):
                drawn = torch.randn(
                    linear.lora_b[k].shape, generator=torch.Generator().manual_seed(100 * k + i)
                )
                linear.lora_b[k].copy_(0.1 * drawn)
    return Learner(stack, adapters, config)


def message(seat: str, prompt: Sequence[int], ids: Sequence[int], credit: float | None, **more) -> Message:
    logprobs = tuple(-1.0 - i / 8 for i in range(len(ids)))
    fields = dict(cut=False, learns=True, logprobs=logprobs) | more
    return Message(seat, 0, "", "", tuple(prompt), tuple(ids), credit=credit, **fields)


def chat_of(*messages: Message) -> Chat:
    return Chat(deals(1)[0], Rules(), {}, 0, list(messages))


def some_chats(n: int = 5) -> list[Chat]:
    """Chats with prompts of 3 to 30 ids and replies of 1 to 9, credits of both signs, some without."""
    random = torch.Generator().manual_seed(n)
    chats = []
    for i in range(n):
        messages = []
        for turn in range(4):
            prompt = torch.randint(5, 261, (3 + 7 * ((i + turn) % 4),), generator=random).tolist()
            ids = torch.randint(5, 261, (1 + (3 * i + turn) % 9,), generator=random).tolist()
            credit = [0.75, -0.25, None, 0.5, 0.0][(i + turn) % 5]
            messages.append(message("AB"[turn % 2], prompt, ids, credit))
        chats.append(chat_of(*messages))
    return chats


def gradient(learner: Learner, chats: Sequence[Chat], k: int = 1) -> dict[str, torch.Tensor]:
    rows = [row for chat in chats for row in rows_of(chat) if learner.adapters[row.seat] == k]
    learner._backward(k, [row.credited for row in rows if row.credited.spans], learner.normaliser(rows))
    found = {name: p.grad.clone() for name, p in learner.stack.parameters(k).items()}
    learner.optimisers[k].zero_grad(set_to_none=True)
    return found


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], within: float = 1e-6) -> bool:
    size = max(float(g.abs().max()) for g in a.values())
    assert size > 1e-3  # two empty gradients would be equal too
    return a.keys() == b.keys() and all((a[n] - b[n]).abs().max() <= within * max(1.0, size) for n in a)


def weights(stack: Stack) -> dict[int, list[torch.Tensor]]:
    return {k: [p.detach().clone() for p in stack.parameters(k).values()] for k in range(stack.adapters + 1)}


def unchanged(stack: Stack, before: dict[int, list[torch.Tensor]], k: int) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before[k], stack.parameters(k).values(), strict=True))


# --- rows and masks ------------------------------------------------------------------------------------------


def test_a_dialogue_is_one_row_a_seat_and_its_spans_are_the_sampled_ids() -> None:
    """Worked out. A says 20 21 and is cut (END is appended), then 22 END; B says 30 END, then 31 END.

    A: 10 11 | 20 21 | END 3 13 | 22 END        ids
        .  .    x  x     .  . .    x  x         trained: 2..3 and 7..8
    B: 12 | 30 END | 3 14 | 31 END
        .    x  x     . .    x  x               trained: 1..2 and 5..6
    """
    chat = chat_of(
        message("A", [10, 11], [20, 21], 0.5, cut=True),
        message("B", [12], [30, END], 0.5),
        message("A", [10, 11, 20, 21, END, 3, 13], [22, END], 0.5),
        message("B", [12, 30, END, 3, 14], [31, END], None),
    )
    logprobs = (-1.0, -1.125)
    assert rows_of(chat) == [
        Row("A", [10, 11, 20, 21, END, 3, 13, 22, END], [(2, logprobs, 0.5), (7, logprobs, 0.5)]),
        Row("B", [12, 30, END, 3, 14, 31, END], [(1, logprobs, 0.5), (5, logprobs, None)]),
    ]
    assert rows_of(chat)[1].credited.spans == [(1, logprobs, 0.5)]


def test_a_transcript_is_one_row_a_message() -> None:
    chat = chat_of(
        message("A", [10, 11], [20, 21], 0.5, cut=True),
        message("B", [12], [30, END], 0.5),
        message("A", [10, 15, 20, 30, 13], [22, END], 0.5),
    )
    assert [(row.seat, row.ids, [start for start, _, _ in row.spans]) for row in rows_of(chat)] == [
        ("A", [10, 11, 20, 21], [2]),  # the appended end token of a cut message is nowhere
        ("B", [12, 30, END], [1]),
        ("A", [10, 15, 20, 30, 13, 22, END], [5]),
    ]


@pytest.mark.parametrize("view", ["dialogue", "transcript"])
def test_in_a_played_chat_exactly_the_sampled_ids_are_in_spans(view: str) -> None:
    """Through `converse` and a real template; B is the base, whose words stand in A's row and must not train."""
    said = ["7 cats", "and 9", "16", "no"]
    form = ChatFormat(byte_tokenizer(), "short")
    players = {"A": Player("learner", 1, learns=True), "B": Player("base")}
    playing = converse([Seating(deals(1)[0], players, 0, (1,))], Rules(view=view), form)
    next(playing)
    for turn, words in enumerate(said):
        ids = form.text_ids(words) + (() if turn == 0 else (END,))  # the first one is cut
        try:
            playing.send([Reply(ids, (-0.5,) * len(ids), cut=turn == 0)])
        except StopIteration as end:
            chat = end.value[0]
    rows = rows_of(chat)
    assert len(rows) == (1 if view == "dialogue" else 2)
    assert {row.seat for row in rows} == {"A"}
    spans = [row.ids[start : start + len(lp)] for row in rows for start, lp, _ in row.spans]
    assert spans == [list(form.text_ids("7 cats")), [*form.text_ids("16"), END]]
    if view == "dialogue":
        first = rows[0].spans[0][0]
        assert rows[0].ids[first + 6] == END  # appended after the cut, in the row, in no span
        assert rows[0].ids[: len(chat.messages[2].prompt)] == list(chat.messages[2].prompt)
    text = form.tokenizer.decode(rows[-1].ids)
    assert "Partner: and 9" in text


def test_players_who_do_not_learn_leave_no_rows() -> None:
    chat = chat_of(message("A", [10], [20], 1.0, learns=False), message("B", [12], [30], 1.0))
    assert [row.seat for row in rows_of(chat)] == ["B"]


# --- the gradient --------------------------------------------------------------------------------------------


def reference(learner: Learner, chats: Sequence[Chat], normaliser: float) -> dict[str, torch.Tensor]:
    """The formula of learner.py, message by message: no rows, no padding, full logits, one loss."""
    stack, terms = learner.stack, []
    for m in (m for chat in chats for m in chat.messages if m.credit):
        ids = torch.tensor([[*m.prompt, *m.ids]])
        with stack.serving([(1, 0, 1)]):
            logits = stack.model(ids).logits[0] / learner.config.temperature
        for i, token in enumerate(m.ids):
            terms.append(m.credit * torch.log_softmax(logits[len(m.prompt) + i - 1], -1)[token])
    (-torch.stack(terms).sum() / normaliser).backward()
    found = {name: p.grad.clone() for name, p in stack.parameters(1).items()}
    learner.optimisers[1].zero_grad(set_to_none=True)
    return found


def test_the_gradient_is_that_of_the_formula_token_by_token() -> None:
    """So the first token of a reply trains, the last one too, and nothing else does."""
    learner, chats = learner_of(), some_chats()
    tokens = sum(len(m.ids) for c in chats for m in c.messages if m.credit)
    assert same(gradient(learner, chats), reference(learner, chats, tokens), 2e-6)


def test_the_gradient_of_a_dialogue_is_that_of_its_messages_apart() -> None:
    """One row with two spans against two rows with one span each: the same tokens after the same tokens."""
    learner = learner_of()
    first = message("A", [10, 11], [20, 21], 0.5, cut=True)
    second = message("A", [10, 11, 20, 21, END, 3, 13], [22, 23, END], -1.0)
    assert len(rows_of(chat_of(first, second))) == 1
    apart = [chat_of(first), chat_of(second)]
    assert same(gradient(learner, [chat_of(first, second)]), gradient(learner, apart), 2e-6)
    assert same(gradient(learner, apart), reference(learner, apart, 5), 2e-6)


def test_one_big_batch_and_its_micro_batches_have_one_gradient() -> None:
    """At worst one row a batch, so that padding cannot matter either: alone, a row has none."""
    chats = some_chats()
    whole = gradient(learner_of(), chats)
    for budget in (1, 40, 100, 250):
        batches = list(micro_batches([r for c in chats for r in rows_of(c)], budget))
        assert len(batches) > 1
        assert same(gradient(learner_of(batch_tokens=budget), chats), whole)


def test_the_order_of_the_chats_cannot_matter() -> None:
    chats = some_chats()
    assert same(gradient(learner_of(), chats[::-1]), gradient(learner_of(), chats))


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30), budget=st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    rows = [Row("A", list(range(n))) for n in lengths]
    batches = list(micro_batches(rows, budget))
    assert sorted(map(id, (r for b in batches for r in b))) == sorted(map(id, rows))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(len(r.ids) for r in batch) <= budget
    padded = [max(len(r.ids) for r in batch) for batch in batches]
    assert padded == sorted(padded, reverse=True)  # of like length together, the longest first


def test_nothing_is_computed_where_there_is_no_credit_so_a_nan_there_cannot_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nan = (float("nan"),) * 2
    rest = message("A", [10, 11, 20, 21, END, 3, 13], [22, END], 0.5)
    plain = chat_of(message("A", [10, 11], [20, 21], None), rest)
    spoilt = chat_of(message("A", [10, 11], [20, 21], None, logprobs=nan), rest)
    asked, logits = [], PaddedScorer._logits
    monkeypatch.setattr(
        PaddedScorer, "_logits", lambda self, i, w: (asked.append(w.tolist()), logits(self, i, w))[1]
    )
    expected = gradient(learner_of(), [plain])
    assert same(gradient(learner_of(), [spoilt]), expected, 0.0)
    assert asked == [
        [6, 7],
        [6, 7],
    ]  # the places before ids 7 and 8; never 1 and 2, whose reply has no credit
    logged = learner_of().update([spoilt], 0.01)
    assert logged["ratio/mean"] == logged["ratio/mean"]  # not NaN
    zero = chat_of(message("A", [10, 11], [20, 21], 0.0, logprobs=nan), rest)
    assert same(gradient(learner_of(), [zero]), expected, 0.0)


def test_a_batch_that_does_not_fit_in_memory_is_halved_and_the_gradient_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chats = some_chats()
    whole = gradient(learner_of(), chats)
    score, sizes = PaddedScorer.score, []

    def scarce(self, k, rows):
        sizes.append(len(rows))
        found = score(self, k, rows)
        if len(rows) > 3:
            raise torch.OutOfMemoryError("no room")
        return found

    monkeypatch.setattr(PaddedScorer, "score", scarce)
    learner = learner_of()
    assert same(gradient(learner, chats), whole)
    assert max(sizes) > 3 and sum(n for n in sizes if n <= 3) == max(sizes)  # each row counted once
    monkeypatch.setattr(
        PaddedScorer, "score", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no room"))
    )
    with pytest.raises(RunFailed, match=r"one row of \d+ tokens does not fit"):
        gradient(learner, chats)


# --- the normaliser ------------------------------------------------------------------------------------------


def counted() -> Chat:
    """A: 2 tokens with credit 0.5, 3 with -0.5, 4 with 0; B: 1 without credit, 5 with 0.25."""
    return chat_of(
        message("A", [10], [20, 21], 0.5),
        message("B", [12], [30], None),
        message("A", [13], [20, 21, 22], -0.5),
        message("B", [14], [30, 31, 32, 33, 34], 0.25),
        message("A", [15], [20, 21, 22, 23], 0.0),
    )


@pytest.mark.parametrize(
    ("rule", "shared", "a", "b"),
    [
        ("credited", 10, 5, 5),  # 2 + 3 + 5; within A 2 + 3; within B 5
        ("sampled", 15, 9, 6),  # 2 + 1 + 3 + 5 + 4; within A 2 + 3 + 4; within B 1 + 5
        (64.0, 64, 64, 64),
    ],
)
def test_the_normaliser_counts_what_its_name_says(rule: str | float, shared: int, a: int, b: int) -> None:
    rows = rows_of(counted())
    learner = learner_of(normaliser=rule)
    assert learner.normaliser(rows) == shared
    assert learner.normaliser([r for r in rows if r.seat == "A"]) == a
    assert learner.normaliser([r for r in rows if r.seat == "B"]) == b
    unit = gradient(learner_of(normaliser=1.0), [counted()])
    found = gradient(learner, [counted()])
    assert same({n: g * shared for n, g in found.items()}, unit, 1e-5)
    split = learner_of(PER_SEAT, normaliser=rule)
    unit = gradient(learner_of(PER_SEAT, normaliser=1.0), [counted()], k=2)
    assert same({n: g * b for n, g in gradient(split, [counted()], k=2).items()}, unit, 1e-5)


# --- steps ---------------------------------------------------------------------------------------------------


def test_a_step_changes_its_own_adapter_and_no_other_bit() -> None:
    learner = learner_of({"A": 2, "B": 2})
    frozen = {n: p.clone() for n, p in learner.stack.model.named_parameters() if "lora" not in n}
    before, sha = weights(learner.stack), weights_sha256(learner.stack.model)
    logged = learner.update(some_chats(), 0.01)
    assert logged["skipped"] == 0.0 and logged["grad_norm"] > 0
    assert not any(torch.equal(a, b) for a, b in zip(before[2], learner.stack.parameters(2).values()))
    assert weights_sha256(learner.stack.model) != sha
    for other in (0, 1, 3):
        assert unchanged(learner.stack, before, other)
    assert len(frozen) == 20  # embedding, final norm, 2 x (7 linears and 2 norms)
    assert all(torch.equal(p, dict(learner.stack.model.named_parameters())[n]) for n, p in frozen.items())


def test_one_adapter_for_all_seats_or_one_a_seat() -> None:
    chats = [counted()]
    shared, split = learner_of(SHARED), learner_of(PER_SEAT)
    assert list(shared.optimisers) == [1] and list(split.optimisers) == [1, 2]
    only_a = [chat_of(*[m for m in counted().messages if m.seat == "A"])]
    alone = learner_of(PER_SEAT)
    before = weights(alone.stack)
    alone.update(only_a, 0.01)
    assert unchanged(alone.stack, before, 2)  # B said nothing that had credit: its adapter does not move
    split.update(chats, 0.01)
    assert unchanged(split.stack, weights(alone.stack), 1)  # A's step is the same, whatever B said
    assert not unchanged(split.stack, before, 2)
    shared.update(chats, 0.01)
    assert not unchanged(shared.stack, weights(alone.stack), 1)  # both seats' rows in one gradient


def test_shared_seats_begin_as_seat_a_and_each_of_two_adapters_as_its_own() -> None:
    shared, split = learner_of(SHARED), learner_of(PER_SEAT)
    shared.initialise(17)
    split.initialise(17)
    assert unchanged(shared.stack, weights(split.stack), 1)
    assert not torch.equal(
        *(split.stack.parameters(k)["model.layers.0.mlp.up_proj.lora_A.weight"] for k in (1, 2))
    )


@pytest.mark.parametrize("credits", [(None, None), (0.0, 0.0), (None, 0.0)])
def test_a_step_without_credit_is_skipped_and_counted_and_momentum_does_not_move_it(credits: tuple) -> None:
    learner = learner_of()
    learner.update([counted()], 0.01)  # momentum is there
    before = weights(learner.stack)
    state = {id(p): s["step"].item() for p, s in learner.optimisers[1].state.items()}
    chat = chat_of(message("A", [10], [20, 21], credits[0]), message("B", [12], [30], credits[1]))
    logged = learner.update([chat], 0.01)
    assert (logged["skipped"], logged["credited_tokens"], logged["grad_norm"]) == (1.0, 0, 0.0)
    assert "ratio/mean" not in logged
    assert unchanged(learner.stack, before, 1)
    assert {id(p): s["step"].item() for p, s in learner.optimisers[1].state.items()} == state
    assert learner.update([], 0.01)["skipped"] == 1.0


def test_a_new_adams_first_step_moves_no_weight_by_more_than_the_rate_it_is_given() -> None:
    """Adam's first step is lr * g / (|g| + eps), so the largest change is lr; the config's own lr is not used."""
    for lr in (1e-2, 1e-3):
        learner = learner_of(lr=0.5)
        before = weights(learner.stack)[1]
        assert learner.update(some_chats(), lr)["lr"] == lr
        moved = max(
            float((a - b.detach()).abs().max()) for a, b in zip(before, learner.stack.parameters(1).values())
        )
        assert moved == pytest.approx(lr, rel=1e-3)


def test_each_adapters_gradient_is_clipped_by_its_own_norm() -> None:
    """A's credits are 1,000 times B's: clipped together, B's part would all but vanish."""
    learner = learner_of(PER_SEAT, clip=0.5, normaliser=1.0)
    a = chat_of(message("A", [10, 11], [20, 21], 1000.0), message("B", [12], [30, 31], 1.0))
    rows = rows_of(a)
    for k, seat in ((1, "A"), (2, "B")):
        learner._backward(k, [r for r in rows if r.seat == seat], 1.0)
    norms = learner._clip([1, 2])
    after = [
        torch.cat([p.grad.flatten() for p in learner.stack.parameters(k).values()]).norm().item()
        for k in (1, 2)
    ]
    assert norms[0] > 100 * norms[1] > 50
    assert after == pytest.approx([0.5, 0.5], rel=1e-4)
    assert learner_of(PER_SEAT, clip=0.5, normaliser=1.0).update([a], 0.01)["grad_norm"] == pytest.approx(
        norms[0]
    )


def test_clip_zero_leaves_the_gradient_and_a_small_one_is_left_too() -> None:
    for clip in (0.0, 1e6):
        learner = learner_of(clip=clip)
        rows = rows_of(counted())
        learner._backward(1, [r.credited for r in rows if r.credited.spans], 1.0)
        before = [p.grad.clone() for p in learner.stack.parameters(1).values()]
        learner._clip([1])
        assert all(torch.equal(a, p.grad) for a, p in zip(before, learner.stack.parameters(1).values()))


def _sick_scores(score):
    """Scores of adapter 2 that are NaN, with gradients that are finite."""

    def scored(self, k, rows):
        now, sampled, credit = score(self, k, rows)
        return now, sampled + (float("nan") if k == 2 else 0.0), credit

    return scored


SICK: dict[
    str, tuple[float, float | None, str]
] = {  # credit of B's message, its log-probability, what is said
    "a credit that is NaN": (float("nan"), -1.0, "the credit of 1 messages is not finite"),
    "a log-probability when sampled": (1.0, float("-inf"), "1 sampled log-probabilities are not finite"),
    "the same without effect on the loss": (0.0, float("nan"), "1 sampled log-probabilities are not finite"),
    "an infinite loss": (3e38, -1.0, "the norm of adapter 2's gradient is (inf|nan)"),
    "a log-probability now": (
        1.0,
        None,
        "the log-probabilities of 1 tokens are not finite under the trained",
    ),
}


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("what", SICK)
def test_a_step_with_a_number_that_is_not_finite_is_dropped_whole(what: str, clip: float) -> None:
    """B's adapter is the sick one; A's, which is computed first, must not have moved either."""
    credit, logprob, told = SICK[what]
    learner = learner_of(PER_SEAT, clip=clip)
    before = weights(learner.stack)
    sick = chat_of(
        message("A", [10], [20], 1.0),
        message("B", [12], [30], credit, logprobs=(-1.0 if logprob is None else logprob,)),
    )
    with pytest.MonkeyPatch.context() as patch, pytest.raises(NotFinite, match=told):
        if logprob is None:
            patch.setattr(PaddedScorer, "score", _sick_scores(PaddedScorer.score))
        learner.update([sick], 0.01)
    assert all(unchanged(learner.stack, before, k) for k in range(4))
    assert all(p.grad is None for k in (1, 2) for p in learner.stack.parameters(k).values())
    assert not learner.optimisers[1].state and not learner.optimisers[2].state


def test_the_ratio_is_logged_from_trained_tokens_only() -> None:
    """Recorded log-probabilities off by 0.1 on the trained message, by 5 on the one without credit."""
    learner = learner_of()
    rows = rows_of(chat_of(message("A", [10], [20, 21], 1.0), message("B", [12], [30], None)))
    with torch.no_grad():
        now, _, _ = learner.scorer.score(1, rows)
    a, b = now[:2], now[2:]
    chat = chat_of(
        message("A", [10], [20, 21], 1.0, logprobs=tuple((a - 0.1).tolist())),
        message("B", [12], [30], None, logprobs=tuple((b - 5).tolist())),
    )
    logged = learner.update([chat], 0.01)
    assert logged["ratio/mean"] == pytest.approx(1.10517, abs=1e-4)  # e^0.1
    assert logged["ratio/max"] == pytest.approx(1.10517, abs=1e-4)
    assert logged["logprob_gap/max"] == pytest.approx(0.1, abs=1e-4)
    assert logged["credited_tokens"] == 2


def test_a_positive_credit_makes_a_message_likelier_and_a_negative_one_less_likely() -> None:
    good, bad = message("A", [10, 11], [20, 21], 1.0), message("A", [12, 13], [30, 31], -1.0)
    learner = learner_of(normaliser="credited")
    rows = rows_of(chat_of(good, bad))
    with torch.no_grad():
        before, _, _ = learner.scorer.score(1, rows)
    learner.update([chat_of(good, bad)], 1e-3)
    with torch.no_grad():
        after, _, _ = learner.scorer.score(1, rows)
    assert (after - before)[:2].sum() > 0.01 and (after - before)[2:].sum() < -0.01


def test_scoring_needs_the_temperature_it_was_sampled_at() -> None:
    row = rows_of(counted())
    hot, cold = learner_of(temperature=1.0), learner_of(temperature=0.5)
    with torch.no_grad():
        assert (hot.scorer.score(1, row)[0] - cold.scorer.score(1, row)[0]).abs().max() > 0.1
