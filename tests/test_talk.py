"""Measures of talk on scripted chats whose truth is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotalk.errors import BadInput
from cotalk.talk import AMOUNTS, means, measures, of_chat, of_seat, private_numbers, rates, stack

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
