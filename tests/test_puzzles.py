"""The built-in puzzles: right, distinct, repeatable, and not to be guessed from one hand."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotalk import puzzles
from cotalk.deal import deal
from cotalk.errors import BadInput
from cotalk.puzzles import FACT_COUNTS, KINDS, LEAST, MOST, generate, partial_sums, reserved, signs_of
from cotalk.task import load


def number_in(fact: str) -> int:
    (number,) = re.findall(r"\d+", fact)
    return int(number)


def test_a_puzzle_is_what_its_words_say():
    # read by eye: "Una has 31 cards." + "Una finds 19 cards." -> 50
    task = generate(seed=7, n=1)[0]
    assert (task.facts, task.question, task.gold) == (
        ("Una has 31 cards.", "Una finds 19 cards."), "How many cards does Una have now?", "50",
    )  # fmt: skip
    assert task.template == "finds/000" and task.id == "puzzle-7-0"


def test_partial_sums_follow_the_signs():
    assert partial_sums([30, 14, 5], "+-+") == [30, 16, 21]


@given(st.integers(0, 10**9), st.sampled_from(FACT_COUNTS))
@settings(max_examples=60, deadline=None)
def test_every_fact_holds_one_number_and_the_gold_is_their_sum(seed, facts):
    for task in generate(seed, 5, facts):
        numbers = [number_in(fact) for fact in task.facts]
        signs = signs_of(task)
        assert len(numbers) == facts == len(signs)
        expected = sum(n if sign == "+" else -n for n, sign in zip(numbers, signs, strict=True))
        assert task.gold == str(expected) and LEAST <= expected <= MOST
        assert "{" not in task.text


def test_a_longer_list_begins_with_the_shorter_one():
    assert generate(3, 50)[:20] == generate(3, 20)
    assert generate(3, 20) != generate(4, 20)


def test_no_text_comes_twice_within_a_call():
    texts = [t.text for t in generate(5, 3000)]
    assert len(set(texts)) == 3000


def test_all_kinds_and_phrasings_come_out_evenly():
    # five kinds of two facts: 2,000 of 10,000 each, standard deviation 40
    counts = Counter(t.template.split("/")[0] for t in generate(5, 10_000))
    assert set(counts) == {k.name for k in KINDS if len(k.facts) == 2}
    assert all(1800 < n < 2200 for n in counts.values())
    assert {len(t.facts) for t in generate(5, 30, facts=3)} == {3}


@pytest.mark.slow
def test_one_hand_hardly_tells_the_answer():
    # Uniform over P pairs with V values of the first number: the best guess is right V / P of the time.
    # Sums: a, b >= 5, a + b <= 99: V = 90, P = 90 * 91 / 2, so 2 / 91 = 0.022. Counted here on 60,000 puzzles
    # of five kinds, where the best guess profits from chance too (12,000 of a kind over 90 values: 133 each,
    # spread over some 45 answers of about 3, of which it takes the largest), so the bound is wider.
    tasks = generate(11, 60_000)
    for seat in (0, 1):
        seen: dict[tuple[str, int], Counter] = {}
        for task in tasks:
            seen.setdefault((task.template.split("/")[0], number_in(task.facts[seat])), Counter())[
                task.gold
            ] += 1
        right = sum(max(answers.values()) for answers in seen.values()) / len(tasks)
        assert right < 0.055


def test_every_puzzle_can_be_dealt_to_as_many_seats_as_it_has_facts():
    for facts in FACT_COUNTS:
        for task in generate(9, 20, facts):
            hands = deal(task, "ABCD"[:facts]).hands
            assert all(len(hand) == 1 for hand in hands.values())


def test_the_seeds_are_those_of_the_source_puzzles():
    for split, seed in (
        ("train", puzzles.TRAIN_SEED),
        ("dev", puzzles.DEV_SEED),
        ("heldout", puzzles.HELDOUT_SEED),
        ("base", puzzles.TEXT_SEED),
    ):
        first = next(iter(load("puzzles", split=split, limit=1)))
        assert first.text == generate(seed, 1)[0].text


def test_reserved_holds_what_training_and_evaluation_use():
    kept = reserved()
    for split in ("train", "dev", "heldout"):
        assert {t.text for t in load("puzzles", split=split, limit=300)} <= kept


@pytest.mark.parametrize("arguments", [(-1, 5), (0, -1), (0, 5, 9), (0, 5, 1)])
def test_bad_arguments_say_what_was_expected(arguments):
    with pytest.raises(BadInput, match="expected"):
        generate(*arguments)
