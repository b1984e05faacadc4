"""Methods: who is credited with what, on groups that are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import deals
from cotalk.chat import BASE, Chat, Message, Player, Rules
from cotalk.config import Config
from cotalk.errors import BadInput
from cotalk.methods import GRPO, Group, method

LEARNER = Player("learner", 1, learns=True)
EXAMPLE = Path(__file__).parent.parent / "examples" / "my_method.py"


def a_chat(reward: float, learners: str = "AB", order: str = "ABAB") -> Chat:
    players = {seat: LEARNER if seat in learners else BASE for seat in "AB"}
    chat = Chat(deals(1)[0], Rules(order), players, 0, reward=reward)
    for turn, seat in enumerate(order):
        chat.messages.append(Message(seat, turn, "x", "x", (), (5,), (-1.0,), False, players[seat].learns))
    return chat


def a_group(*rewards: float, learners: str = "AB") -> Group:
    return Group(deals(1)[0], [a_chat(r, learners) for r in rewards])


def credits(group: Group) -> list[list[float | None]]:
    return [[message.credit for message in chat.messages] for chat in group.chats]


def test_grpo_pays_every_message_of_a_chat_its_reward_less_the_groups_mean():
    # rewards 1, .5, 0, 0: mean .375
    group = a_group(1.0, 0.5, 0.0, 0.0)
    GRPO(Config()).credit(group)
    assert credits(group) == [[0.625] * 4, [0.125] * 4, [-0.375] * 4, [-0.375] * 4]


def test_grpos_baseline_is_over_chats_and_not_over_messages():
    # a chat of 6 turns with reward 1 and one of 2 with 0: mean .5 (over messages it would be .75)
    group = Group(deals(1)[0], [a_chat(1.0, order="ABABAB"), a_chat(0.0, order="AB")])
    GRPO(Config()).credit(group)
    assert credits(group) == [[0.5] * 6, [-0.5] * 2]


def test_grpo_does_not_divide_by_the_deviation():
    # rewards .5, 0: credit +-.25; divided by the deviation (.25 or .354) it would be 1 or .707
    group = a_group(0.5, 0.0)
    GRPO(Config()).credit(group)
    assert credits(group) == [[0.25] * 4, [-0.25] * 4]


def test_a_partners_turns_have_no_credit_which_is_not_zero_credit():
    group = a_group(1.0, 0.0, learners="A")
    GRPO(Config()).credit(group)
    assert credits(group) == [[0.5, None, 0.5, None], [-0.5, None, -0.5, None]]


@pytest.mark.parametrize(
    "rewards", [(1.0,), (0.0,), (0.1,) * 3, (0.7,) * 6, (1 / 3,) * 4, (0.0,) * 4, (1.0,) * 4]
)
def test_a_group_whose_rewards_are_all_equal_earns_exactly_nothing(rewards):
    # sum of three 0.1 is 0.30000000000000004: a plain mean would leave a credit of -1.4e-17, which trains
    group = a_group(*rewards)
    GRPO(Config()).credit(group)
    assert credits(group) == [[0.0] * 4] * len(rewards)
    assert group.flat


def test_a_chat_that_scored_its_groups_mean_earns_exactly_nothing():
    # .9, .6, .3: the mean is .6, in floating point .6 + 1e-16
    group = a_group(0.9, 0.6, 0.3)
    GRPO(Config()).credit(group)
    assert credits(group)[1] == [0.0] * 4
    assert not group.flat


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1 / 3, 2 / 3]), min_size=1, max_size=12))
def test_grpos_credits_sum_to_nothing_and_keep_the_order_of_the_rewards(rewards):
    group = a_group(*rewards)
    GRPO(Config()).credit(group)
    paid = [chat[0] for chat in credits(group)]
    assert sum(paid) == pytest.approx(0, abs=1e-9)
    assert all(
        (a > b) == (x > y)
        for a, x in zip(paid, rewards, strict=True)
        for b, y in zip(paid, rewards, strict=True)
    )
    assert group.flat == (len(set(rewards)) == 1) == (not any(paid))


def test_grpo_wants_the_configs_chats_and_then_no_more():
    grpo = GRPO(Config(chats=4))
    assert [grpo.wants(a_group(*[0.0] * n)) for n in (0, 1, 4)] == [4, 3, 0]


def test_grpo_seats_the_learners_everywhere():
    learners = {"A": LEARNER, "B": LEARNER}
    assert GRPO(Config()).seat(a_group(), 0, learners) == learners


# --- a user's own ---


def test_the_example_method_compares_a_chat_with_the_others():
    # rewards 1, .5, 0, 0: others' means .1667, .3333, .5, .5
    mine = method(Config(method=f"{EXAMPLE}:LeaveOneOut"))
    group = a_group(1.0, 0.5, 0.0, 0.0, learners="A")
    assert mine.wants(Group(group.deal)) == 4 and mine.wants(group) == 0
    mine.credit(group)
    paid = credits(group)
    assert [chat[0] for chat in paid] == pytest.approx([5 / 6, 1 / 6, -0.5, -0.5])
    assert all(chat[1] is None for chat in paid)


def test_the_example_methods_errors_arrive():
    with pytest.raises(BadInput, match="expected at least 2"):
        method(Config(method=f"{EXAMPLE}:LeaveOneOut", chats=1))


def test_grpo_is_the_default():
    assert isinstance(method(Config()), GRPO)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "grpp",
            r"method 'grpp' is not known \(did you mean 'grpo'\?\): expected one of grpo, or file.py:Class",
        ),
        ("", "method '' is not known: expected one of grpo"),
        ("mine.txt:Mine", "expected one of grpo, or file.py:Class"),
        ("nowhere.py:Mine", "there is no file 'nowhere.py'; expected file.py:Class"),
    ],
)
def test_a_method_that_is_not_there_is_refused(name, says):
    with pytest.raises(BadInput, match=says):
        method(Config(method=name))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("class Other: ...", "has no 'Mine'"),
        ("class Mine(", "could not be imported"),
        ("import nothing_like_this", "could not be imported"),
        ("Mine = 3", "expected a class whose constructor takes the Config"),
        (
            "class Mine:\n def __init__(self, config): ...\n def seat(self, *a): ...",
            "has no wants, no credit: expected seat",
        ),
    ],
)
def test_a_file_without_a_whole_method_is_refused(tmp_path, code, says):
    file = tmp_path / "mine.py"
    file.write_text(code)
    with pytest.raises(BadInput, match=says):
        method(Config(method=f"{file}:Mine"))
