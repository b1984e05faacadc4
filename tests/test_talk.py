"""Measures of talk on scripted chats whose truth is known."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import small_base
from cotalk import talk
from cotalk.chat import Player, Rules, Seating, converse
from cotalk.deal import Deal
from cotalk.engines import Table
from cotalk.engines.scripted import SCRIPTS, Habit, adder, silent
from cotalk.errors import BadInput
from cotalk.sample import generator
from cotalk.stack import drive
from cotalk.stats import Rate
from cotalk.talk import (
    AMOUNTS,
    invented,
    means,
    measures,
    of_chat,
    of_reading,
    of_seat,
    others_of,
    private_numbers,
    rates,
    requests,
    signed_rate,
    stack,
)
from cotalk.task import Task
from cotalk.view import Scene

HANDS = {"A": ["Ann has 14 cats and 3 dogs."], "B": ["Ben has twenty cats.", "He sells 1/2 of his 9 hens."]}
QUESTION = "How many cats do the 2 have? Ann has 3 dogs."
# Private: A holds 14 (3 is in the question). B holds 20, 1/2 and 9.


def answer(text: str, right: bool = False, parsed: bool = True) -> dict[str, Any]:
    return {"answer": text, "strict": right and parsed, "lenient": right, "parsed": parsed, "notes": []}


def chat(
    *said: str, task: str = "t", order: str = "ABAB", hands: dict[str, list[str]] | None = None, **more: Any
) -> dict[str, Any]:
    """A chat line in which the seats of `order` say these texts."""
    messages = [
        {"seat": seat, "turn": turn, "said": text, "heard": text, "cut": False, "tokens": len(text.split())}
        for turn, (seat, text) in enumerate(zip(order, said, strict=True))
    ]
    return {
        "task": task,
        "question": QUESTION,
        "hands": hands or HANDS,
        "messages": messages,
        "answers": {},
    } | more


def test_private_numbers_are_mine_without_my_partners_and_the_questions() -> None:
    line = chat("", "", "", "")
    assert private_numbers(line, "A") == (frozenset({14.0}), frozenset({20.0, 0.5, 9.0}))
    assert private_numbers(line, "B") == (frozenset({20.0, 0.5, 9.0}), frozenset({14.0}))


def test_sends_is_the_share_of_my_private_numbers_that_i_said_before_my_last_message() -> None:
    line = chat("I have 14 cats.", "I have 20 cats, and 9 hens.", r"\boxed{34}", "half of 9")
    assert of_seat(line, "A")["sends"] == 1.0
    assert of_seat(line, "B")["sends"] == pytest.approx(2 / 3)  # "half" came in the last message: too late


def test_uses_is_the_share_of_my_partners_private_numbers_in_my_last_message() -> None:
    line = chat(
        "I have 14 cats.", "I have 20 cats.", r"14 + 20 = 34. \boxed{34}", r"fourteen and 20: \boxed{34}"
    )
    assert of_seat(line, "A")["uses"] == pytest.approx(1 / 3)  # 20, of 20, 1/2 and 9
    assert of_seat(line, "B")["uses"] == 1.0  # 14, written in words


def test_a_number_counts_by_its_value_however_it_is_written() -> None:
    line = chat("", "Twenty, 0.5 and 9.0", "", "")
    assert of_seat(line, "B")["sends"] == 1.0


def test_asks_looks_for_a_question_mark_in_the_first_message_only() -> None:
    line = chat("What do you know?", "I have 20.", "ok", "why?")
    assert (of_seat(line, "A")["asks"], of_seat(line, "B")["asks"]) == (1.0, 0.0)


def test_agrees_compares_boxed_strings_as_published_and_agrees_graded_their_values() -> None:
    def of(*answers: dict[str, Any]) -> tuple[float, float]:
        found = of_chat({"answers": dict(zip("ABC", answers, strict=False))})
        return found["agrees"], found["agrees_graded"]

    assert of(answer("34"), answer("34")) == (1, 1)
    assert of(answer("34"), answer("34.0")) == (0, 1)
    assert of(answer("34"), answer("35")) == (0, 0)
    assert of(answer("-5"), answer("5")) == (0, 0)
    assert of(answer("x + y"), answer("x +  y")) == (0, 1)
    assert of(answer("", right=True, parsed=False), answer("34", right=True)) == (
        0,
        1,
    )  # stopped boxing, both right
    assert of(answer("34", right=True), answer("", parsed=False)) == (0, 0)
    assert of(answer("", parsed=False), answer("", parsed=False)) == (0, 0)  # two silences are no agreement
    assert of(answer("30-14", right=True), answer("16", right=True)) == (0, 1)
    assert of(answer("7"), answer("7"), answer("7")) == (1, 1)
    assert of(answer("7"), answer("7"), answer("8")) == (0, 0)
    assert all(math.isnan(value) for value in of(answer("7")))


def test_lengths_and_cut_off_shares_are_of_messages_and_of_answers_apart() -> None:
    line = chat("one two", "x", "one two three four", "y")
    line["messages"][2]["cut"] = True
    a = of_seat(line, "A")
    assert (a["message_chars"], a["message_tokens"], a["answer_chars"], a["answer_tokens"]) == (7, 2, 18, 4)
    assert (a["cut"], a["answer_cut"]) == (0.5, 1.0)
    assert of_seat(line, "B")["cut"] == 0.0


def test_with_three_seats_the_partners_are_all_the_others() -> None:
    hands = {"A": ["There are 5 cups."], "B": ["There are 7 cups."], "C": ["There are 5 cups and 11 pots."]}
    line = chat("5", "7", "11", "7", "5, 11", "7", order="ABCABC", hands=hands)
    assert private_numbers(line, "A") == (frozenset(), frozenset({7.0, 11.0}))  # C holds 5 too
    assert math.isnan(of_seat(line, "A")["sends"]) and of_seat(line, "A")["uses"] == 0.5
    assert of_seat(line, "B")["uses"] == 1.0
    assert of_seat(line, "C")["uses"] == 1.0  # of 7 alone: 5 is in its own hand


def test_a_seat_alone_has_answers_but_neither_messages_nor_partners() -> None:
    line = chat(r"14 + 20 = 34. \boxed{34}?", order="A", hands={"A": HANDS["A"] + HANDS["B"]})
    alone = of_seat(line, "A")
    missing = {name for name, value in alone.items() if math.isnan(value)}
    assert missing == {"sends", "uses", "asks", "message_chars", "message_tokens"}
    assert set(rates(stack([measures([line])]))) == {
        "cut",
        "cut/A",
        "answer_cut",
        "answer_cut/A",
    }  # one task: no lengths


def test_lengths_from_a_single_template_have_no_interval_and_are_left_out() -> None:
    talk = {"sends": np.array([[0.5, 1.0]]), "message_chars": np.array([[10.0, 14.0]])}
    assert set(rates(talk, ["one", "one"])) == {"sends"}
    assert set(rates(talk, ["one", None])) == set(rates(talk)) == {"sends", "message_chars"}


def test_a_seat_that_never_speaks_is_refused() -> None:
    with pytest.raises(BadInput, match="never speaks"):
        of_seat(chat("", "", "", ""), "C")


def test_chats_of_a_task_are_averaged_and_tasks_keep_their_order() -> None:
    sender = chat("14", "20, 1/2, 9", "", "", task="late")
    silent = chat("", "", "", "", task="late")
    asker = chat("Yes?", "No?", "", "", task="early")
    found = measures([sender, silent, asker], tasks=["early", "late", "never"])
    assert found["sends"].tolist()[:2] == [0.0, 0.5]
    assert found["asks"].tolist()[:2] == [1.0, 0.0]
    assert np.isnan(found["sends"][2])
    assert measures([sender, asker])["asks"].tolist() == [0.0, 1.0]
    assert means([sender, silent, asker])["sends"] == 0.25
    assert "agrees" not in means([sender])  # nothing was graded
    with pytest.raises(BadInput, match="expected one of the 1 tasks"):
        measures([sender], tasks=["early"])


def test_measures_over_all_seats_come_first_and_then_each_seats() -> None:
    names = list(measures([chat("14", "20", "", "", answers={"A": answer("1"), "B": answer("1")})]))
    assert names[:3] == ["sends", "uses", "asks"]
    assert (
        names.index("agrees")
        < names.index("sends/A")
        < names.index("answer_tokens/A")
        < names.index("sends/B")
    )
    assert "agrees/A" not in names


def scripted(generator: np.random.Generator, task: int, send: float, use: float) -> dict[str, Any]:
    """A team that sends each private number with chance `send` and uses each of the partner's with `use`.

    Hands hold four numbers each, all different and over 100, so that no other number is mistaken for one.
    """
    numbers = generator.permutation(np.arange(100, 999))[:8].tolist()
    held = {"A": numbers[:4], "B": numbers[4:]}
    hands = {seat: [f"There are {value} cups." for value in values] for seat, values in held.items()}

    def some(values: list[int], chance: float) -> str:
        return " ".join(str(value) for value in values if generator.random() < chance) or "nothing"

    a, b = some(held["A"], send), some(held["B"], send)
    return chat(a, b, some(held["B"], use), some(held["A"], use), task=str(task), hands=hands)


@pytest.mark.parametrize(("send", "use"), [(0.9, 0.2), (0.25, 0.75)])
def test_a_scripted_teams_rates_are_recovered_within_their_intervals(send: float, use: float) -> None:
    generator = np.random.default_rng(7)
    found = rates(stack([measures(scripted(generator, task, send, use) for task in range(150))]))
    for name, truth in {"sends": send, "uses": use, "sends/A": send, "uses/B": use}.items():
        assert found[name].low <= truth <= found[name].high
        assert found[name].high - found[name].low < 0.12
        assert (found[name].n, found[name].unit) == (150, "tasks")


def test_a_parrot_that_lists_numbers_is_paid_by_uses_as_published() -> None:
    # The published measure cannot tell a list from reading: kept under its name, and documented.
    hands = {"A": ["Ann has 4 cats."], "B": ["Ben has 5 cats."]}
    line = chat("", "", "1. 2. 3. 4. 5.", "1. 2. 3. 4. 5.", hands=hands, question="How many cats?")
    assert of_seat(line, "A")["uses"] == of_seat(line, "B")["uses"] == 1.0


def test_several_runs_give_rates_over_seeds_and_tasks() -> None:
    generator = np.random.default_rng(8)
    runs = [measures(scripted(generator, task, send, 0.5) for task in range(30)) for send in (0.3, 0.5, 0.7)]
    found = rates(stack(runs))
    assert (found["sends"].n, found["sends"].unit, found["sends"].tasks) == (3, "seeds+tasks", 30)
    assert found["sends"].low < 0.35 and found["sends"].high > 0.65
    assert found["message_chars"].unit == "seeds+tasks" and found["message_chars"].high > 1
    with pytest.raises(BadInput, match="same tasks"):
        stack([runs[0], {"sends": np.zeros(3)}])
    with pytest.raises(BadInput, match="at least one"):
        stack([])


TEXTS = st.text(alphabet=st.sampled_from("0123456789 .,/%?aAhlfwenty{}\\-½"), max_size=25) | st.text(
    max_size=12
)


@given(st.lists(TEXTS, min_size=6, max_size=6), st.lists(TEXTS, min_size=3, max_size=3))
@settings(max_examples=80, deadline=None)
def test_any_text_gives_shares_between_0_and_1_or_nothing(said: list[str], facts: list[str]) -> None:
    hands = {seat: [fact] for seat, fact in zip("ABC", facts, strict=True)}
    answers = {seat: answer(text) for seat, text in zip("ABC", said, strict=False)}
    found = measures([chat(*said, order="ABCABC", hands=hands, answers=answers)])
    for name, values in found.items():
        assert np.isnan(values).all() or values[0] >= 0
        assert name.split("/")[0] in AMOUNTS or np.isnan(values).all() or values[0] <= 1


# --- ours: chance, derivation, invention, requests --------------------------------------------------------

Script = Callable[[Scene], str]


def dealt(numbers: list[int], name: str) -> Deal:
    """Half of the numbers to A, half to B, a fact each; the question holds none."""
    facts = tuple(f"Box {letter} holds {n} cups." for letter, n in zip("jklmnopqrstu", numbers, strict=False))
    task = Task(name, "How many cups are there?", str(sum(numbers)), facts)
    half = len(facts) // 2
    return Deal(task, facts, task.question, {"A": facts[:half], "B": facts[half:]})


def played(
    a: Script, b: Script, *, tasks: int = 120, low: int = 100, high: int = 999, held: int = 8
) -> list[dict[str, Any]]:
    """A scripted team on tasks with different numbers in low..high, as chat lines."""
    deals = [
        dealt(generator("test", at).permutation(np.arange(low, high + 1))[:held].tolist(), f"t{at}")
        for at in range(tasks)
    ]
    players = {"A": Player("a", script=a), "B": Player("b", script=b)}
    seatings = [Seating(one, players, 0, ("test", one.task.id)) for one in deals]

    def failed(_: str, error: Exception) -> None:
        raise error

    playing = converse(seatings, Rules(), small_base().form)
    return [found.as_json() for found in drive({"play": playing}, Table(None), failed)["play"]]


def talked(a: Script, b: Script, **how: Any) -> dict[str, Rate]:
    return rates(stack([measures(played(a, b, **how))]))


def holds(rate: Rate, truth: float, width: float = 0.2) -> bool:
    return rate.low <= truth <= rate.high and rate.high - rate.low < width


@pytest.mark.parametrize(("send", "use"), [(1.0, 0.3), (0.6, 1.0), (0.8, 0.5)])
def test_a_players_habits_of_sending_and_using_are_recovered_within_their_intervals(
    send: float, use: float
) -> None:
    found = talked(Habit(send=send, use=use, seed=1), Habit(send=send, use=use, seed=2))
    assert holds(found["sends"], send) and holds(found["sends/turn0"], send) and holds(found["sends/B"], send)
    assert holds(found["uses"], send * use)  # a number that was never sent cannot be used
    assert holds(found["uses_above"], send * use)  # over 100, hardly a number is met by chance
    assert found["uses_chance"].mean < 0.01
    assert found["uses_above"].n == 120


def test_a_parrots_list_is_worth_nothing_above_chance() -> None:
    # Numbers 1..12, two a hand: the list 1..5 holds a partner's number 5 times in 12, whoever it listens to.
    found = talked(SCRIPTS["parrot"], SCRIPTS["parrot"], low=1, high=12, held=4)
    assert found["uses"].low < 5 / 12 < found["uses"].high
    assert found["uses_chance"].mean == pytest.approx(5 / 12, abs=0.04)
    assert found["uses_above"].low == 0 and found["uses_above"].mean < 0.04
    assert found["sends"].mean == pytest.approx(5 / 12, abs=0.06)


def test_a_reader_among_small_numbers_is_told_from_the_list_that_it_recites() -> None:
    # It lists 1..5 whatever it heard, and uses each number that it heard with chance .6: u = above / (1 - chance).
    def both(scene: Scene) -> str:
        return f"{SCRIPTS['parrot'](scene)} {Habit(use=0.6)(scene)}" if scene.last else Habit()(scene)

    found = talked(both, both, low=1, high=12, held=4, tasks=200)
    above, chance = found["uses_above"], found["uses_chance"].mean
    assert 0.35 < chance < 0.6
    assert above.low / (1 - chance) <= 0.6 <= above.high / (1 - chance)


def test_a_number_that_is_no_ones_is_no_chance_of_its_own_task() -> None:
    # The other task's B holds 20, 1/2 and 8; 20 and 1/2 are held here too, so that only 8 tells of chance.
    other = chat("", "", "", "", task="o", hands={"A": ["It has 77."], "B": ["20 cats, half of 8 hens."]})
    line = chat("", "", "20 and 8", "")
    assert of_reading(line, "A", [other])["uses_chance"] == 1.0
    assert of_reading(line, "A", [other])["uses_above"] == pytest.approx(1 / 3 - 1)
    assert math.isnan(of_reading(line, "A", [])["uses_above"])  # one task alone: nothing to shuffle


def test_a_derived_value_counts_as_derived_when_a_partners_number_is_in_it() -> None:
    def derives(last: str) -> float:
        return of_reading(chat("", "", last, ""), "A", [])["derives"]

    # A holds 14 and 3; the question 2 and 3; B 20, 1/2 and 9
    assert derives(r"\boxed{34}") == 1.0  # 14 + 20
    assert derives("thirty-four") == 1.0
    assert derives("20") == 0.0  # repeated, not derived
    assert derives("17") == 0.0  # 14 + 3: from its own hand alone
    assert derives("4.5") == 1.0  # half of 9
    assert derives("1000") == 0.0


@pytest.mark.parametrize("use", [0.25, 0.8])
def test_a_team_that_adds_its_partners_number_now_and_then_derives_at_that_rate(use: float) -> None:
    def sometimes(scene: Scene) -> str:
        adds = generator("adds", *scene.facts).random() < use
        return adder(scene) if adds or not scene.last else f"\\boxed{{{scene.facts[0]}}}"

    found = talked(sometimes, sometimes, held=2, tasks=200)
    assert holds(found["derives"], use)
    assert holds(found["derives_above"], use, 0.25)


def test_a_worked_solution_invents_nothing_and_a_made_up_number_is_seen() -> None:
    hands = {"A": ["She has 48 clips."], "B": ["Half as many in May, and 25% of 80 more."]}
    line = chat(
        "I have 48.",
        "half",
        r"48/2 = 24, 48 + 24 = 72, 72 + 20 = 92. \boxed{92}",
        "48, 613 and 24",
        hands=hands,
    )  # 48/2 reads as 24 = 48 * 1/2; 72 = 48 + 24; 20 = .25 * 80; only 613 comes from nowhere
    assert invented(line, line) == [(0, 1), (0, 1), (0, 5), (1, 3)]
    judged = [list(each.values()) for each in talk.origins(line)]  # the same, number by number
    assert [(tags.count("!"), len(tags)) for tags in judged] == invented(line, line)
    found = measures([line])
    assert (found["invented/A"][0], found["invented/B"][0]) == (0.0, 0.25)
    assert found["invented/turn3"][0] == pytest.approx(1 / 3)


@pytest.mark.parametrize("lie", [0.0, 0.3, 0.8])
def test_a_liars_rate_is_recovered_by_invention_corrected_for_chance(lie: float) -> None:
    found = talked(Habit(lie=lie, seed=1), Habit(lie=lie, seed=2), tasks=150)
    assert holds(found["invented_corrected"], lie)
    assert found["invented_chance"].mean > 0.7  # a made-up number is seldom a sum of known ones by luck


def test_invention_that_cannot_be_told_from_chance_is_left_out() -> None:
    # Facts of 1..12 lead to every number of the list by one operation: nothing can be said, and nothing is.
    found = talked(SCRIPTS["parrot"], SCRIPTS["parrot"], low=1, high=12, held=12)
    assert "invented_corrected" not in found and found["invented_chance"].mean < 0.05


@pytest.mark.parametrize("ask", [0.2, 0.7])
def test_an_asker_is_recovered_and_a_repeated_question_is_no_request(ask: float) -> None:
    found = talked(Habit(ask=ask, seed=1), Habit(ask=ask, seed=2))
    assert (
        holds(found["requests"], ask)
        and holds(found["asks"], ask)
        and holds(found["requests/turn1"], ask, 0.3)
    )
    again = talked(lambda scene: scene.question, silent)
    assert again["asks/A"].mean == 1.0 and again["requests/A"].mean == 0.0


@pytest.mark.parametrize(
    ("said", "asks"),
    [
        ("What do you know?", True),
        ("How many cats do you have?", True),
        ("Please send your numbers.", True),
        ("Tell me your facts.", True),
        (QUESTION, False),
        ("how many cats do the two have", False),
        ("How many cats do the 2 have?", False),
        ("How many cats do the two have?", False),
        ("So: how many cats do the 2 have? What are your facts?", True),
        ("?", False),
        ("I have 14 cats.", False),
        ("", False),
    ],
)
def test_a_request_asks_for_something_that_the_task_does_not(said: str, asks: bool) -> None:
    assert requests(said, QUESTION) is asks


def test_turns_are_told_apart() -> None:
    line = chat("I have 14 cats.", "What do you know?", "14", "20")
    line["messages"][2]["cut"] = True
    found = measures([line])
    assert [found[f"cut/turn{turn}"][0] for turn in range(4)] == [0, 0, 1, 0]
    assert (found["sends/turn0"][0], found["sends/turn1"][0]) == (1.0, 0.0)
    assert (found["requests/turn0"][0], found["requests/turn1"][0]) == (0.0, 1.0)
    assert "sends/turn2" not in found  # a last message comes too late to send
    assert list(found)[-1].endswith("turn3")


def test_other_tasks_are_keyed_and_do_not_depend_on_the_order_of_the_chats() -> None:
    found = others_of(["a", "b", "c", "d", "e"])
    assert found == others_of(["e", "b", "a", "d", "c"])
    assert all(name not in others and len(set(others)) == len(others) for name, others in found.items())
    assert others_of(["a"]) == {"a": []}
    lines = played(Habit(use=0.5), Habit(use=0.5), tasks=12)
    forth, back = measures(lines), measures(lines[::-1])
    for name, values in forth.items():
        np.testing.assert_array_equal(values, back[name][::-1])


def test_a_change_of_a_measure_raises_the_version() -> None:
    """If this fails, a measure's code gives other values than before: raise talk.VERSION, then pin the new digest."""
    lines = played(Habit(0.7, 0.5, 0.3, 0.2), SCRIPTS["parrot"], tasks=30, low=2, high=40, held=6)
    found = measures(lines)
    text = repr([(name, np.round(values, 9).tolist()) for name, values in found.items()])
    assert (talk.VERSION, hashlib.sha256(text.encode()).hexdigest()[:16]) == (2, "11a830c6c8def286")


def test_a_signed_rate_behaves_at_its_ends_and_for_several_seeds() -> None:
    lost, same = signed_rate(np.full((1, 100), -1.0)), signed_rate(np.zeros((1, 100)))
    assert lost.mean == lost.low == -1 and -1 < lost.high < -0.9
    assert same.mean == 0 and -0.05 < same.low < 0 < same.high < 0.05
    several = signed_rate(np.array([[-0.5, 0.0, -1.0, 0.0], [-1.0, 0.0, -0.5, 0.5]]))
    assert several.mean == pytest.approx(-0.3125) and (several.n, several.unit) == (2, "seeds+tasks")
    assert several.low < -0.3125 < several.high
    wide = signed_rate(np.array([[1.0, 1.0], [0.8, 1.0]]))
    assert wide.high == 1.0  # a share cannot rise by more than all of it
