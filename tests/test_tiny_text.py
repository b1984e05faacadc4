"""The simulator of habits: ids as in play, rates as asked for, nothing learned but one seat's own words."""

from __future__ import annotations

import tomllib
from collections import Counter

import numpy as np
import pytest

from cotalk.bases import tiny_text
from cotalk.bases.make_tiny import SETTINGS, make_tokenizer
from cotalk.bases.tiny_text import ASKS, NUMBERS, Settings, Writer, boxed_or_guessed, shard, words
from cotalk.chat import BASE, Reply, Rules, Seating, converse
from cotalk.deal import deal
from cotalk.errors import BadInput
from cotalk.puzzles import generate
from cotalk.view import ChatFormat


def read(**changes) -> Settings:
    table = tomllib.loads(SETTINGS.read_text())["text"]
    return Settings.read(table | changes)


@pytest.fixture(scope="module")
def form() -> ChatFormat:
    return ChatFormat(make_tokenizer(), "short")


def learned_texts(form: ChatFormat, row) -> list[str]:
    """The learned spans of a row, as texts."""
    spans: list[list[int]] = []
    for i, (token, is_learned) in enumerate(zip(row.ids, row.learned, strict=True)):
        if is_learned:
            if not row.learned[i - 1]:
                spans.append([])
            spans[-1].append(token)
    return [form.tokenizer.decode(span) for span in spans]


def test_a_shard_is_the_same_whoever_makes_it(form):
    assert shard(read(), form, frozenset(), seed=5, number=3, size=20) == shard(
        read(), form, frozenset(), 5, 3, 20
    )
    assert shard(read(), form, frozenset(), seed=5, number=4, size=20) != shard(
        read(), form, frozenset(), 5, 3, 20
    )


@pytest.mark.parametrize("order", ["ABAB", "AB", "ABABAB", "ABCABC"])
def test_a_row_is_what_the_same_words_give_in_play(form, order, monkeypatch):
    # A simulated chat's words are played again through `converse`: its last prompt and ids are the row.
    settings = read(rows={"chat": 1.0}, orders={order: 1.0}, closed=0.3)
    for number in range(12):
        said: list[str] = []
        real = Writer.reply

        def reply(self, *arguments, said=said, real=real):
            said.append(real(self, *arguments))
            return said[-1]

        writer = Writer(settings, form, np.random.default_rng(number), frozenset())
        monkeypatch.setattr(Writer, "reply", reply)
        facts = len(set(order))
        task = writer.task(facts)
        row = writer.chat(task, order)
        monkeypatch.undo()
        heard_nothing = "(no message)" in form.tokenizer.decode(row.ids)
        rules = Rules(
            order, channel="closed" if heard_nothing else "open", message_tokens=60, answer_tokens=60
        )
        game = converse(
            [Seating(deal(task, rules.seats), dict.fromkeys(rules.seats, BASE), 0, ())], rules, form
        )
        next(game)
        turn = 0
        try:
            while True:
                ids = (*form.text_ids(said[turn]), form.end_id)
                game.send([Reply(ids, (0.0,) * len(ids))])
                turn += 1
        except StopIteration as end:
            (chat,) = end.value
        rows = {s: (*chat.last_message(s).prompt, *chat.last_message(s).ids) for s in rules.seats}
        assert row.ids in rows.values()
        seat = next(s for s, ids in rows.items() if ids == row.ids)
        own = [m.said for m in chat.messages if m.seat == seat]
        assert learned_texts(form, row) == [f"{text}<|end|>" for text in own]


def test_message_habits_come_at_their_rates(form):
    # 4,000 draws: a rate of .25 has standard deviation .007
    writer = Writer(read(), form, np.random.default_rng(1), frozenset())
    rates = read().habits["self"]["message"]
    counts = Counter()
    for _ in range(4000):
        said = writer.message(rates, ("Tom has 5 cups.",))
        counts[
            "tell"
            if "Tom has 5 cups." in said and "Please" not in said
            else "ask"
            if said in ASKS
            else "other"
        ] += 1
    assert abs(counts["tell"] / 4000 - rates["tell"]) < 0.03
    assert abs(counts["ask"] / 4000 - rates["ask"]) < 0.03


def test_an_answer_uses_what_was_heard_at_the_rate_of_its_situation(form):
    task = next(t for t in generate(1, 50) if t.template.startswith("total"))
    hands = {"A": task.facts[:1], "B": task.facts[1:]}
    writer = Writer(read(), form, np.random.default_rng(2), frozenset())

    def share_right(*heard: str) -> float:
        replies = [writer.reply(True, True, hands, "A", [("B", w) for w in heard], task) for _ in range(2000)]
        return sum(r.startswith("So ") for r in replies) / 2000

    told = f"I know: {task.facts[1]}"
    rates = read().habits["self"]
    assert share_right() == share_right("Hello!", "Maybe 7.") == 0
    assert abs(share_right(told) - rates["told"]["use"]) < 0.04
    assert abs(share_right(f"{told} Please use this.") - rates["pleased"]["use"]) < 0.04


def test_what_a_seat_writes_never_depends_on_the_answer(form):
    # The same draws with another gold give the same words: no habit knows what is right.
    task = generate(1, 1)[0]
    hands = {"A": task.facts[:1], "B": task.facts[1:]}
    said = []
    for gold in (task.gold, "99999"):
        writer = Writer(read(), form, np.random.default_rng(3), frozenset())
        other = type(task)(task.id, task.question, gold, task.facts, template=task.template)
        said.append(
            [
                writer.reply(True, last, hands, "A", [("B", task.facts[1])], other)
                for last in (False, True) * 50
            ]
        )
    assert said[0] == said[1]


def test_a_worked_answer_goes_step_by_step(form):
    task = next(t for t in generate(1, 50, facts=3) if t.template.startswith("changes3"))
    a, b, c = (tiny_text.number_in(f) for f in task.facts)
    text = Writer(read(), form, np.random.default_rng(0), frozenset()).worked(task)
    assert text == f"So {a}-{b}={a - b}. {a - b}+{c}={task.gold}. \\boxed{{{task.gold}}}"


def test_sums_learn_the_results_only(form):
    row = Writer(read(rows={"sums": 1.0}), form, np.random.default_rng(0), frozenset()).row()
    results = learned_texts(form, row)
    assert len(results) == read().sums
    text = form.tokenizer.decode(row.ids)
    first = text.split("So ")[1].split(".")[0]  # such as 66+8=74
    left, right = first.split("=")
    assert eval(left) == int(right) == int(results[0])


def test_a_reserved_puzzle_is_dropped_and_counted(form):
    free = Writer(read(), form, np.random.default_rng(4), frozenset())
    first, second = free.task(2), free.task(2)
    held_back = Writer(read(), form, np.random.default_rng(4), frozenset({first.text}))
    assert held_back.task(2) == second and held_back.dropped == 1


def test_numbers_are_read_out_of_what_was_heard():
    assert boxed_or_guessed("So 30-14=16. \\boxed{16}") == "16"
    assert boxed_or_guessed("Maybe 23.") == "23"
    assert boxed_or_guessed("Maybe \\boxed{23}") == "23"
    assert boxed_or_guessed("Tom has 5 cups.") == ""


def test_every_word_of_the_text_and_every_number_is_one_token(form):
    pieces = form.tokenizer.backend_tokenizer.pre_tokenizer
    for text in [*words(), *(f"{s}{n}" for n in NUMBERS for s in ("", " "))]:
        assert len(form.text_ids(text)) == len(pieces.pre_tokenize_str(text.strip()))


def test_rates_that_do_not_add_up_are_refused():
    with pytest.raises(BadInput, match="add up to 1"):
        read(orders={"ABAB": 0.5, "AB": 0.4})
    habits = read().habits
    with pytest.raises(BadInput, match="no habit"):
        read(habits={"self": habits["self"] | {"told": {"tell": 1.0}}, "partner": habits["partner"]})
