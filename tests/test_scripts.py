"""Scripted partners and scripted A: what each says, and that they solve what they were told."""

from __future__ import annotations

import pytest

from conftest import small_base
from cotalk.chat import Player, Rules, Seating, converse
from cotalk.deal import Deal, deal
from cotalk.engines import Table
from cotalk.errors import BadInput
from cotalk.puzzles import generate
from cotalk.scripts import ORACLES, SCRIPTS, UNSEEN, script, solve, told, with_perfect_sums
from cotalk.stack import drive
from cotalk.task import Task
from cotalk.train import grade
from cotalk.view import Line, Scene

PUZZLES = [deal(task, "AB") for task in generate(3, 60)]


def scene(*heard: str, facts: tuple[str, ...] = ("Tom has 30 eggs.",), own: tuple[str, ...] = ()) -> Scene:
    lines = tuple(Line("B", words) for words in heard) + tuple(Line(None, words) for words in own)
    return Scene("A", "AB", facts, "How many?", lines, (), False)


def play(a: str, b: str, order: str = "ABABAB", oracle: bool = False) -> list:
    """60 puzzles between two scripts."""
    first = ORACLES[a] if oracle else SCRIPTS[a]
    players = {"A": Player(a, script=first), "B": Player(b, script=SCRIPTS[b])}
    seatings = [Seating(d, players, 0, (1, d.task.id)) for d in PUZZLES]

    def failed(_: str, error: Exception) -> None:
        raise error

    playing = converse(seatings, Rules(order), small_base().form)
    chats = drive({"it": playing}, Table(None), failed)["it"]
    grade(chats, "strict")
    return chats


def mean(chats: list, seat: str) -> float:
    return sum(chat.rewards[seat] for chat in chats) / len(chats)


@pytest.mark.parametrize(
    ("own", "heard", "answer"),
    [
        ("Tom has 30 eggs.", "Tom gives away 14 eggs.", "16"),
        (
            "Tom loses 14 eggs.",
            "I know: Tom has 30 eggs.",
            "16",
        ),  # the sign stands in the words, not in the order
        ("Tom has 30 eggs.", "Mia has 14 fewer eggs than Tom.", "16"),
        ("Tom has 30 eggs.", "Mia has 14 more eggs than Tom. Please use this.", "44"),
        ("Tom has 30 eggs.", "Maybe 90.", "30"),  # a guess is no fact
        ("Tom has 30 eggs.", "So 1+2=3. \\boxed{3}", "30"),
    ],
)
def test_a_script_adds_what_it_was_told_and_takes_away_where_the_words_say_so(own, heard, answer):
    assert solve(scene(heard, facts=(own,))) == f"So {answer}. \\boxed{{{answer}}}"


def test_what_was_told_counts_once_and_ones_own_facts_not_at_all():
    assert told(scene("I know: Mia has 4 eggs.", "Mia has 4 eggs. Please use this.", "Tom has 30 eggs.")) == [
        "Mia has 4 eggs."
    ]


def test_two_terse_partners_solve_every_puzzle():
    chats = play("terse", "terse", "ABAB")
    assert mean(chats, "A") == mean(chats, "B") == 1.0


def test_who_must_be_asked_tells_a_terse_partner_nothing_and_an_asking_one_everything():
    assert mean(play("terse", "on-request"), "A") < 0.1
    assert mean(play("ask", "on-request", oracle=True), "A") == 1.0
    assert mean(play("tell", "on-request", oracle=True), "A") < 0.1


def test_a_slow_partner_must_be_asked_at_its_second_message():
    assert mean(play("ask-again", "slow", oracle=True), "A") == 1.0
    assert mean(play("ask", "slow", "ABAB", oracle=True), "A") < 0.1


def test_a_liars_facts_lead_to_wrong_answers():
    assert mean(play("ask-again", "liar", oracle=True), "A") < 0.1


def test_the_oracles_are_at_least_six_and_hold_the_best_one_of_the_first_measurements():
    assert len(ORACLES) >= 6
    first = ORACLES["ask-and-please"](scene())
    assert first == "What do you know? Tom has 30 eggs. Please use this."
    assert list(ORACLES) == [
        "tell", "please", "ask", "ask-other", "ask-then-tell", "tell-then-ask", "tell-and-ask", "ask-and-please",
        "ask-again", "ask-both-ways", "tell-then-ask-again",
    ]  # fmt: skip


def test_unseen_partners_are_scripts_that_no_methods_own_pool_holds():
    from cotalk.methods import Host, Mixed

    assert set(UNSEEN) <= set(SCRIPTS)
    assert not any(name in pool for name in UNSEEN for pool in (Host.POOL, Mixed.POOL))


def test_an_unknown_script_is_refused():
    with pytest.raises(BadInput, match="script 'ters' is not known: expected one of silent, terse"):
        script("ters")


def heard_by_b(words: str) -> list[Scene]:
    """B's first turn in 60 puzzles, after these words of A's."""
    heard = (Line("A", words),)
    return [Scene("B", "AB", d.hands["B"], d.task.question, heard, (), False) for d in PUZZLES]


def test_moody_tells_who_asks_more_often_than_not_and_never_without_being_asked():
    asked = [SCRIPTS["moody"](scene) == " ".join(scene.facts) for scene in heard_by_b("What do you know?")]
    assert 0.4 < sum(asked) / 60 < 0.8
    unasked = [SCRIPTS["moody"](scene) for scene in heard_by_b("Hello!")]
    assert not any(fact in said for said, s in zip(unasked, heard_by_b(""), strict=True) for fact in s.facts)
    assert len(set(unasked)) > 15


def test_once_guesses_any_number_where_it_has_told_already():
    guesses = [SCRIPTS["once"](scene) for scene in heard_by_b("Hello!")]
    numbers = {said for said in guesses if said.startswith("Maybe ")}
    assert len(numbers) > 25 and set(guesses) - numbers <= {"Ready.", "Ok.", "Let us start."}


def test_an_oracle_is_right_where_it_was_told_every_number_that_it_lacks_whatever_the_task():
    dealt = Deal(
        Task("t", "How many eggs in all?", "120", ("A box has 4 rows of 5 eggs.", "There are six boxes.")),
        ("A box has 4 rows of 5 eggs.", "There are six boxes."),
        "How many eggs in all?",
        {"A": ("There are six boxes.",), "B": ("A box has 4 rows of 5 eggs.",)},
    )
    speak = with_perfect_sums(ORACLES["ask"], dealt, "A")

    def answer(*heard: str) -> str:
        lines = tuple(Line("B", words) for words in heard)
        return speak(Scene("A", "AB", dealt.hands["A"], dealt.task.question, lines, (), True))

    assert (
        speak(Scene("A", "AB", dealt.hands["A"], dealt.task.question, (), (), False)) == "What do you know?"
    )
    assert answer("Four rows, 5 in each.") == "\\boxed{120}"
    assert answer("4 rows.", "Ok.", "Of 5 eggs") == "\\boxed{120}"
    assert "120" not in answer("There are 4 rows.") and "120" not in answer()
