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
from cotalk.methods import (
    GRPO,
    METHODS,
    RAFT,
    Ada,
    AdaPublished,
    Group,
    Host,
    LeaveOneOut,
    Mixed,
    MixedPublished,
    RAFTPublished,
    informed,
    method,
    pool_of,
)
from cotalk.partners import Cast, Entry, Guest

LEARNER = Player("learner", 1, learns=True)
OWN = {"A": LEARNER, "B": LEARNER}
EXAMPLE = Path(__file__).parent.parent / "examples" / "my_method.py"


def a_chat(reward: float, learners: str = "AB", order: str = "ABAB") -> Chat:
    players = {seat: LEARNER if seat in learners else BASE for seat in "AB"}
    chat = Chat(deals(1)[0], Rules(order), players, 0, reward=reward)
    chat.rewards = {"A": reward, "B": reward}
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
    assert GRPO(Config()).seat(a_group(), 0, Cast(OWN)) == OWN


# --- what is paid: per seat, per turn ---


def seats_group(*rewards: tuple[float, float], learners: str = "AB", order: str = "ABAB") -> Group:
    """A chat for each (A's reward, B's reward), numbered."""
    chats = []
    for number, (a, b) in enumerate(rewards):
        chat = a_chat((a + b) / 2, learners, order)
        chat.number, chat.rewards = number, {"A": a, "B": b}
        chats.append(chat)
    return Group(deals(1)[0], chats)


def test_paid_own_a_message_is_paid_its_seats_reward_against_that_seats_mean():
    # A: 1, 0 (mean .5); B: 1, 1 (mean 1): B's messages earn nothing, whatever the team's reward (1, .5) says
    group = seats_group((1, 1), (0, 1))
    GRPO(Config(paid="own")).credit(group)
    assert credits(group) == [[0.5, 0, 0.5, 0], [-0.5, 0, -0.5, 0]]


def test_paid_later_a_message_is_not_paid_answers_that_stood_before_it():
    # ABAB: A answers at turn 2, B at turn 3. Team rewards .5, .5; B's half alone: 0, .5 (mean .25)
    group = seats_group((1, 0), (0, 1))
    GRPO(Config(paid="later")).credit(group)
    assert credits(group) == [[0, 0, 0, -0.25], [0, 0, 0, 0.25]]


def test_paid_later_every_turn_up_to_the_first_answer_is_paid_the_teams_reward():
    # ABABAB: A answers at turn 4. Rewards (1, 1), (0, 0): team 1, 0; turn 5 is paid B's half: .5, 0
    group = seats_group((1, 1), (0, 0), order="ABABAB")
    GRPO(Config(paid="later")).credit(group)
    assert credits(group) == [[0.5] * 5 + [0.25], [-0.5] * 5 + [-0.25]]


def test_scaled_rewards_are_divided_by_the_groups_deviation():
    # rewards 1, 0: mean .5, deviation sqrt((.25 + .25) / 1) = .70711; .5 / (.70711 + .0001) = .70701
    group = a_group(1.0, 0.0)
    GRPO(Config(scale_rewards=True)).credit(group)
    assert credits(group)[0] == pytest.approx([0.70701] * 4, abs=1e-5)


@pytest.mark.parametrize("rewards", [(1.0,), (0.0,), (0.5,), (0.1,) * 3, (1.0,) * 4])
@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith("raft")])
def test_scaled_or_not_a_group_without_a_difference_earns_exactly_nothing(name, rewards):
    for scaled in (False, True):
        group = a_group(*rewards)
        method(Config(method=name, scale_rewards=scaled)).credit(group)
        assert {credit for chat in credits(group) for credit in chat} <= {0.0, None}


@pytest.mark.parametrize("name", METHODS)
def test_no_method_ever_credits_a_strangers_message(name):
    for learners in ("A", "B", ""):
        group = a_group(1.0, 0.5, 0.0, 0.0, learners=learners)
        method(Config(method=name)).credit(group)
        for chat in group.chats:
            assert all(m.credit is None for m in chat.messages if m.seat not in learners)


# --- RAFT ---


def test_raft_trains_on_chats_that_every_seat_got_right_and_on_nothing_else():
    # rewards 1, .5, 0, 0: a half-right chat is no win
    group = a_group(1.0, 0.5, 0.0, 0.0)
    RAFT(Config()).credit(group)
    assert credits(group) == [[1.0] * 4, [None] * 4, [None] * 4, [None] * 4]


def test_published_raft_leaves_losers_in_with_0_where_a_sampled_normaliser_counts_them():
    group = a_group(1.0, 0.5, 0.0, 0.0)
    RAFTPublished(Config()).credit(group)
    assert credits(group) == [[1.0] * 4, [0.0] * 4, [0.0] * 4, [0.0] * 4]


def test_raft_trains_on_a_group_with_one_chat_and_on_one_that_won_everything():
    for rewards in ((1.0,), (1.0,) * 4):
        group = a_group(*rewards)
        RAFT(Config()).credit(group)
        assert credits(group) == [[1.0] * 4] * len(rewards)


def test_raft_refuses_a_normaliser_that_would_shrink_its_step_with_its_win_rate():
    with pytest.raises(BadInput, match='expected normaliser = "credited", or method "raft_published"'):
        RAFT(Config(normaliser="sampled"))


# --- Reinforce-Ada ---


def test_ada_draws_rounds_until_enough_right_and_wrong_were_seen():
    ada = Ada(Config(chats=4))
    assert ada.wants(a_group()) == 8
    assert ada.wants(a_group(*[1.0] + [0.0] * 7)) == 8  # right 1: fewer than 4 / 2
    assert ada.wants(a_group(*[1.0, 1.0] + [0.0] * 6)) == 0
    assert ada.wants(a_group(*[1.0] * 7 + [0.0])) == 8  # wrong 1: as much too few
    assert ada.wants(a_group(*[0.0] * 32)) == 0  # the budget


def test_to_ada_a_half_right_chat_is_half_a_right_one_and_half_a_wrong_one():
    # four times .5: right 2, wrong 2; but three times: right 1.5
    ada = Ada(Config(chats=4, round_chats=1))
    assert ada.wants(a_group(0.5, 0.5, 0.5)) == 1
    assert ada.wants(a_group(0.5, 0.5, 0.5, 0.5)) == 0


def test_ada_draws_no_more_than_its_budget_even_in_its_last_round():
    assert Ada(Config(chats=4, most_chats=12)).wants(a_group(*[0.0] * 8)) == 4


def test_ada_trains_on_the_two_best_and_two_worst_against_the_mean_of_all_it_drew():
    # rewards 0 1 0 .5 1 0 0 0: mean 2.5 / 8 = .3125; best: chats 1 and 4; worst: the last two, 6 and 7
    group = seats_group(*[(r, r) for r in (0, 1, 0, 0.5, 1, 0, 0, 0)])
    Ada(Config(chats=4)).credit(group)
    paid = [chat[0] for chat in credits(group)]
    assert paid == [None, 0.6875, None, None, 0.6875, None, -0.3125, -0.3125]


def test_published_ada_plays_four_more_while_all_scored_the_same_and_at_most_three_rounds():
    ada = AdaPublished(Config(chats=4))
    assert [ada.wants(a_group(*[0.0] * n)) for n in (0, 4, 8, 12)] == [4, 4, 4, 0]
    assert ada.wants(a_group(1.0, 1.0, 1.0, 1.0)) == 4  # replays what it can already do
    assert ada.wants(a_group(0.5, 0.0, 0.0, 0.0)) == 0  # any disagreement is enough


def test_published_ada_credits_two_and_two_against_the_mean_of_every_chat_drawn():
    # five rounds would be: 0 x 4, then 1 0 0 0: mean .125; the best two are the 1 and the first 0
    group = seats_group(*[(r, r) for r in (0, 0, 0, 0, 1, 0, 0, 0)])
    AdaPublished(Config(chats=4)).credit(group)
    assert [chat[0] for chat in credits(group)] == [-0.125, None, None, None, 0.875, None, -0.125, -0.125]


# --- mixed partners ---


def tables(*rewards: float, strange: str) -> Group:
    """A group whose chats were played with a learner in B ("-") or the base there ("b")."""
    return Group(
        deals(1)[0], [a_chat(r, "AB" if s == "-" else "A") for r, s in zip(rewards, strange, strict=True)]
    )


def test_mixed_compares_a_chat_with_those_that_met_the_same_partner():
    # self-play 1, .5: mean .75; with the base .5, 0: mean .25
    group = tables(1.0, 0.5, 0.5, 0.0, strange="--bb")
    Mixed(Config()).credit(group)
    assert credits(group) == [[0.25] * 4, [-0.25] * 4, [0.25, None, 0.25, None], [-0.25, None, -0.25, None]]


def test_published_mixed_punishes_meeting_a_stranger():
    # one mean, .5, over all four: the better of the two chats with the base earns 0, the worse -.5
    group = tables(1.0, 0.5, 0.5, 0.0, strange="--bb")
    MixedPublished(Config()).credit(group)
    assert [chat[0] for chat in credits(group)] == [0.5, 0.0, 0.0, -0.5]


def test_published_mixed_seats_the_base_last_in_the_second_half_of_a_group():
    mixed = MixedPublished(Config(chats=4))
    seated = [mixed.seat(a_group(), n, Cast(OWN)) for n in range(4)]
    assert seated == [OWN, OWN, {"A": LEARNER, "B": BASE}, {"A": LEARNER, "B": BASE}]


BOTH = {seat: (Guest("self", 1.0), Guest("base", 1.0, dict.fromkeys("AB", BASE))) for seat in "AB"}


def test_mixed_draws_a_partner_for_every_two_chats_and_host_one_for_a_group():
    cast, mixed, host = Cast(OWN, BOTH), Mixed(Config(chats=8)), Host(Config(chats=8))
    pairs, groups = set(), set()
    for step in range(40):
        group = Group(deals(1)[0], step=step)
        seats = [mixed.seat(group, n, cast) for n in range(8)]
        assert all(seats[n] == seats[n + 1] for n in (0, 2, 4, 6))
        pairs.add(seats[0] == seats[2])
        whole = [host.seat(group, n, cast) for n in range(8)]
        assert all(one == whole[0] for one in whole)
        groups.add(tuple(sorted((seat, player.name) for seat, player in whole[0].items())))
    assert pairs == {True, False}
    assert groups == {  # both seats meet the base, and nobody is left without a learner
        (("A", "learner"), ("B", "learner")), (("A", "base"), ("B", "learner")), (("A", "learner"), ("B", "base")),
    }  # fmt: skip


def test_mixed_wants_an_even_group():
    with pytest.raises(BadInput, match="expected an even number"):
        Mixed(Config(chats=3))


# --- leave one out ---


def test_leave_one_out_replays_messages_that_are_heard_before_an_answer():
    # ABAB: turns 0 and 1 (2 and 3 are answers), of half of four chats
    group = seats_group((1, 1), (0, 1), (0, 0), (0, 0))
    assert LeaveOneOut(Config()).replays(group) == [(0, 0, ""), (0, 1, ""), (1, 0, ""), (1, 1, "")]
    assert LeaveOneOut(Config(replay_share=0.0)).replays(group) == []
    strangers = seats_group((1, 1), learners="A")
    assert LeaveOneOut(Config()).replays(strangers) == [(0, 0, "")]


def test_leave_one_out_can_put_another_chats_message_in_the_place():
    group = seats_group((1, 1), (0, 1))
    for chat in group.chats:
        for message in chat.messages:
            message.said = f"chat {chat.number} turn {message.turn}"
    found = LeaveOneOut(Config(replay_by="another", replay_share=1.0)).replays(group)
    assert found == [
        (0, 0, "chat 1 turn 0"), (0, 1, "chat 1 turn 1"), (1, 0, "chat 0 turn 0"), (1, 1, "chat 0 turn 1"),
    ]  # fmt: skip


def test_leave_one_out_pays_a_message_what_is_lost_without_it():
    # chat 0 scored 1; without turn 0 it scores .5, without turn 1 it scores 1 (turn 1 did nothing).
    # its answers and chat 1 keep what `later` pays: turn 2 team 1, 0 (mean .5), turn 3 B's half .5, 0 (mean .25)
    group = seats_group((1, 1), (0, 0))
    group.replays = {(0, 0): a_chat(0.5), (0, 1): a_chat(1.0)}
    LeaveOneOut(Config()).credit(group)
    assert credits(group) == [[0.5, 0.0, 0.5, 0.25], [-0.5, -0.5, -0.5, -0.25]]


# --- host ---


def test_at_a_table_with_a_guest_all_is_paid_the_own_answer():
    # A learns, B is a stranger. A's own 1, 0: worth 1, 0 at turn 0 and at turn 2, whatever B's answers are
    group = seats_group((1, 0), (0, 1), learners="A")
    Host(Config()).credit(group)
    assert credits(group) == [[0.5, None, 0.5, None], [-0.5, None, -0.5, None]]


def test_a_learner_in_the_last_seat_is_paid_its_own_answer_too():
    group = seats_group((1, 1), (1, 0), learners="B")
    Host(Config()).credit(group)
    assert credits(group) == [[None, 0.5, None, 0.5], [None, -0.5, None, -0.5]]


def test_among_learners_a_host_learns_its_answers_alone_and_the_others_as_later_pays():
    ours, theirs = seats_group((1, 0), (0, 1)), seats_group((1, 0), (0, 1))
    host = Host(Config())
    assert host.hosts == {"A"}  # guests sit in seat B
    host.credit(ours)
    GRPO(Config(paid="later")).credit(theirs)
    assert credits(ours) == [[None, *each[1:]] for each in credits(theirs)]


@pytest.mark.parametrize("pool", ["self, base", "self, A=base, B=base", "self"])
def test_where_guests_may_take_any_seat_all_learn_from_each_other(pool: str):
    ours, theirs = seats_group((1, 0), (0, 1)), seats_group((1, 0), (0, 1))
    host = Host(Config(pool=pool))
    assert host.hosts == set()
    host.credit(ours)
    GRPO(Config(paid="later")).credit(theirs)
    assert credits(ours) == credits(theirs)


def test_where_roles_are_drawn_a_host_is_compared_at_its_own_table_alone():
    """Two chats of a group, the guest once in B and once in A: each is alone at its table, nothing to learn from."""
    one, two = seats_group((1, 0), learners="A"), seats_group((0, 1), learners="B")
    both = seats_group((1, 0), (0, 1))
    both.chats[:] = [one.chats[0], two.chats[0]]
    host = Host(Config(symmetries="roles"))
    assert host.hosts == set()  # a guest may take any seat then
    host.credit(both)
    assert credits(both) == [[0.0, None, 0.0, None], [None, 0.0, None, 0.0]]


def test_a_hosts_answer_is_compared_with_those_of_chats_that_had_heard_as_much():
    # told and right 1, told and wrong 0: +-.5; not told, so wrong: 0 and not -.33 (the mean of all three is .33)
    group = seats_group((1, 0), (0, 0), (0, 0), learners="A")
    lacks = group.deal.lacks("A")
    assert lacks
    for chat, told in zip(group.chats, (True, True, False), strict=True):
        chat.messages[1].said = " ".join(map(str, lacks)) if told else "Maybe."
    assert [informed(chat, chat.messages[2]) for chat in group.chats] == [True, True, False]
    assert not any(informed(chat, chat.messages[0]) for chat in group.chats)
    Host(Config()).credit(group)
    assert [chat.messages[2].credit for chat in group.chats] == [0.5, -0.5, 0.0]
    assert [chat.messages[0].credit for chat in group.chats] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


# --- defaults, pools ---


def test_the_defaults_are_the_ones_that_were_tested():
    config = Config()
    assert (config.method, config.paid, config.scale_rewards, config.chats) == ("grpo", "team", False, 4)
    assert (config.round_chats, config.most_chats, config.samples) == (8, 32, 0)
    assert (config.replay_share, config.replay_by) == (0.5, "nothing")
    assert (config.pool, config.snapshot_every, config.symmetries) == ("", 20, "")
    assert Mixed.POOL == "self, base" and AdaPublished.ROUNDS == 3


def test_a_methods_own_pool_gives_way_to_the_configs():
    assert pool_of(GRPO(Config()), Config()) == ()
    assert pool_of(Mixed(Config()), Config()) == (Entry("self"), Entry("base"))
    config = Config(pool="B=base*3")
    assert pool_of(Mixed(config), config) == (Entry("base", weight=3.0, seat="B"),)
    config = Config(pool="C=base")
    with pytest.raises(BadInput, match="pool names the seat C: expected one of A, B"):
        pool_of(GRPO(config), config)


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
            r"method 'grpp' is not known \(did you mean 'grpo'\?\): expected one of grpo, raft, raft_published",
        ),
        ("", "method '' is not known: expected one of grpo"),
        ("mine.txt:Mine", "expected one of grpo, raft, raft_published"),
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
