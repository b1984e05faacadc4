"""How a chat is played: who speaks when, what each seat knows, and that no two chats are ever mixed up."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import PLAIN, byte_tokenizer, deals
from cotalk.chat import BASE, Chat, Player, Reply, Rules, Seating, converse, seats_of
from cotalk.deal import Deal
from cotalk.engines.scripted import ScriptedEngine, sender
from cotalk.errors import BadInput
from cotalk.grade import Grade
from cotalk.sample import key
from cotalk.task import Task
from cotalk.view import ChatFormat

FORM = ChatFormat(byte_tokenizer(PLAIN), "short")


def a_deal(name: str, seats: str = "AB") -> Deal:
    hands = {seat: (f"{name} {seat} holds {i + 3}.",) for i, seat in enumerate(seats)}
    facts = tuple(fact for hand in hands.values() for fact in hand)
    return Deal(Task(name, f"{name}?", "7", facts), facts, f"{name}?", hands)


def scripts(seats: str, script=sender) -> dict[str, Player]:
    return {seat: Player(f"script {seat}", script=script) for seat in seats}


def play(seatings: list[Seating], rules: Rules) -> list[Chat]:
    """Plays scripted seatings to the end."""
    playing, engine = converse(seatings, rules, FORM), ScriptedEngine()
    try:
        views = next(playing)
        while True:
            views = playing.send(engine.reply([views])[0])
    except StopIteration as end:
        return end.value


def one_chat(order: str, script=sender, channel: str = "open", view: str = "dialogue") -> Chat:
    seats = seats_of(order)
    return play([Seating(a_deal("t", seats), scripts(seats, script), 0, ())], Rules(order, view, channel))[0]


# --- orders ---


@pytest.mark.parametrize(
    ("order", "seats"),
    [("A", "A"), ("AB", "AB"), ("BA", "AB"), ("ABABAB", "AB"), ("ABCABC", "ABC"), ("AAB", "AB")],
)
def test_an_order_names_its_seats(order, seats):
    assert seats_of(order) == seats


@pytest.mark.parametrize("order", ["", "AC", "a", "ab", "A1", "A B", "B", "AÄ", "ABD"])
def test_an_order_with_a_gap_or_other_letters_is_refused_with_an_example(order):
    with pytest.raises(BadInput, match=r"expected capital letters from A on without a gap, such as \"ABAB\""):
        Rules(order)


@pytest.mark.parametrize(
    ("order", "last"),
    [
        ("A", [0]),
        ("AB", [0, 1]),
        ("ABAB", [2, 3]),
        ("ABABAB", [4, 5]),
        ("ABCABC", [3, 4, 5]),
        ("AAB", [1, 2]),
        ("ABA", [1, 2]),
    ],
)
def test_each_seats_last_turn_is_its_answer_and_has_the_answers_budget(order, last):
    rules = Rules(order, message_tokens=5, answer_tokens=9)
    assert [turn for turn in range(len(order)) if rules.is_last(turn)] == last
    assert [rules.budget(turn) for turn in range(len(order))] == [
        9 if t in last else 5 for t in range(len(order))
    ]


@pytest.mark.parametrize("order", ["AB", "ABAB", "ABABAB", "ABCABC", "ABCCBA", "A"])
def test_seats_speak_in_the_order_and_each_answers_last(order):
    asked = []
    chat = one_chat(order, script=lambda scene: asked.append((scene.seat, scene.last)) or "x")
    assert [m.seat for m in chat.messages] == list(order)
    assert [m.turn for m in chat.messages] == list(range(len(order)))
    assert asked == [(seat, chat.rules.is_last(turn)) for turn, seat in enumerate(order)]
    assert chat.last_message(order[-1]) is chat.messages[-1]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (dict(view="monologue"), "view 'monologue' is not known"),
        (dict(channel="half"), "channel 'half' is not known"),
        (dict(message_tokens=0), "message_tokens=0"),
        (dict(answer_tokens=-1), "answer_tokens=-1"),
        (dict(temperature=-0.1), "temperature=-0.1"),
        (dict(temperature=float("nan")), "temperature=nan"),
        (dict(temperature=float("inf")), "temperature=inf"),
    ],
)
def test_rules_that_cannot_be_played_are_refused(bad, says):
    with pytest.raises(BadInput, match=says):
        Rules(**bad)


# --- what each seat knows ---


def test_a_seat_knows_its_own_facts_its_own_words_and_what_it_heard_and_nothing_else():
    scenes = []
    one_chat("ABCABC", script=lambda scene: scenes.append(scene) or f"{scene.seat} said\nthis")
    last_of_b = scenes[4]
    assert last_of_b.facts == ("t B holds 4.",)
    assert [(line.speaker, line.words) for line in last_of_b.lines] == [
        ("A", "A said this"),
        (None, "B said\nthis"),  # its own words stay as it said them
        ("C", "C said this"),
        ("A", "A said this"),
    ]


def test_a_closed_channel_changes_words_only_and_a_speaker_keeps_its_own():
    seen: dict[str, list] = {"open": [], "closed": []}
    for channel, scenes in seen.items():
        one_chat(
            "ABCABC",
            channel=channel,
            script=lambda scene, kept=scenes: kept.append(scene) or " ".join(scene.facts),
        )
    for heard, cut in zip(seen["open"], seen["closed"], strict=True):
        assert [line.speaker for line in heard.lines] == [line.speaker for line in cut.lines]
        assert {line.words for line in cut.lines if line.speaker} <= {"(no message)"}
        assert [line.words for line in heard.lines if not line.speaker] == [
            line.words for line in cut.lines if not line.speaker
        ]
        for view in ("dialogue", "transcript"):
            shape = [[line.split(":")[0] for line in text.splitlines()] for text in FORM.turns(heard, view)]
            assert [
                [line.split(":")[0] for line in text.splitlines()] for text in FORM.turns(cut, view)
            ] == shape
    assert any("holds" in line.words for scene in seen["open"] for line in scene.lines if line.speaker)


def test_with_the_channel_closed_a_prompt_holds_nothing_of_the_partner():
    replies = [Reply((*FORM.text_ids(f"secret{i}"), 4), (-1.0,) * 8) for i in range(4)]
    for view in ("dialogue", "transcript"):
        playing = converse(
            [Seating(a_deal("t"), {s: BASE for s in "AB"}, 0, ())], Rules("ABAB", view, "closed"), FORM
        )
        prompts = [FORM.tokenizer.decode(next(playing)[0].ids)]
        prompts += [FORM.tokenizer.decode(playing.send([reply])[0].ids) for reply in replies[:3]]
        own = ["", "", "secret0", "secret1"]
        for prompt, mine in zip(prompts, own, strict=True):
            assert [f"secret{i}" for i in range(4) if f"secret{i}" in prompt] == [mine] * bool(mine)
        assert "Partner: (no message)" in prompts[3]


def test_what_is_heard_obeys_the_speakers_own_budget_and_says_when_it_was_shortened():
    deal = a_deal("t")
    long = Player("long", script=lambda scene: "0123456789\n0123456789")
    [chat] = play(
        [Seating(deal, {"A": long, "B": long}, 0, ())], Rules("ABAB", message_tokens=15, answer_tokens=100)
    )
    first, *_, last = chat.messages
    assert (first.said, first.heard, first.heard_cut) == ("0123456789\n0123456789", "0123456789 0123", True)
    assert (last.heard, last.heard_cut) == ("0123456789 0123456789", False)
    assert [m["heard_cut"] for m in chat.as_json()["messages"]] == [True, True, False, False]


@given(st.lists(st.integers(0, 260), max_size=12), st.integers(1, 12))
def test_whatever_was_sampled_is_heard_within_the_budget(ids, budget):
    ids = ids[:budget]
    playing = converse(
        [Seating(a_deal("t"), {s: BASE for s in "AB"}, 0, ())],
        Rules("AB", "dialogue", "open", 1, budget),
        FORM,
    )
    next(playing)
    playing.send([Reply(tuple(ids), (-1.0,) * len(ids))])
    with pytest.raises(StopIteration) as end:
        playing.send([Reply((4,), (-1.0,))])
    heard = end.value.value[0].messages[0].heard
    assert len(FORM.text_ids(heard)) <= max(budget, len("(no message)"))
    assert heard == "(no message)" or len(FORM.text_ids(heard)) <= budget
    assert len(heard.splitlines()) == 1


def test_a_message_keeps_ids_prompts_and_log_probabilities_as_they_were_and_has_no_credit_yet():
    players = {"A": Player("learner", 3, learns=True), "B": BASE}
    playing = converse([Seating(a_deal("t"), players, 0, ())], Rules("AB"), FORM)
    [view] = next(playing)
    assert view.player.adapter == 3
    playing.send([Reply((69, 4), (-0.5, -0.25))])
    with pytest.raises(StopIteration) as end:
        playing.send([Reply((70, 4), (-0.125, -0.125))])
    [chat] = end.value.value
    first, second = chat.messages
    assert (first.prompt, first.ids, first.logprobs) == (view.ids, (69, 4), (-0.5, -0.25))
    assert (first.learns, second.learns) == (True, False)
    assert (first.credit, second.credit) == (None, None)


def test_a_replaced_message_changes_only_what_is_heard_and_the_speaker_keeps_its_own_words():
    scenes = []
    players = scripts("AB", lambda scene: scenes.append(scene) or f"{scene.seat} said this")
    [chat] = play([Seating(a_deal("t"), players, 0, (), {0: "something\nelse"})], Rules("ABAB"))
    assert [m.said for m in chat.messages] == ["A said this", "B said this"] * 2
    assert [m.heard for m in chat.messages] == ["something else", "B said this", "A said this", "B said this"]
    assert [line.words for line in scenes[2].lines] == ["A said this", "B said this"]
    assert [line.words for line in scenes[3].lines] == ["something else", "B said this", "A said this"]


# --- many chats at once ---


def echo(scene) -> str:
    """Known behaviour: says its facts, and which tasks it has heard of."""
    heard = sorted({line.words.split()[0] for line in scene.lines if line.speaker})
    return f"{scene.question[:-1]} {scene.seat} {' '.join(scene.facts)} heard {' '.join(heard)}"


@given(st.permutations(range(6)), st.sampled_from(["ABAB", "ABCABC", "AB"]))
def test_converse_never_mixes_up_chats(places, order):
    seats = seats_of(order)
    everybody = scripts(seats, echo)
    seatings = [Seating(a_deal(f"task{i // 2}", seats), everybody, i % 2, (i // 2,)) for i in places]
    chats = play(seatings, Rules(order, answer_tokens=200, message_tokens=200))
    for seating, chat in zip(seatings, chats, strict=True):
        name = seating.deal.task.id
        assert (chat.deal, chat.number) == (seating.deal, seating.number)
        for turn, message in enumerate(chat.messages):
            heard = name if len(set(order[:turn]) - {message.seat}) else ""
            assert (
                message.said == f"{name} {message.seat} {seating.deal.hands[message.seat][0]} heard {heard}"
            )


def test_every_reply_of_every_chat_has_a_random_key_of_its_own():
    rules, keys = Rules("ABAB"), []
    seatings = [
        Seating(d, {s: BASE for s in "AB"}, n, (17, "train", "", 0, 3, d.task.id))
        for d in deals(3)
        for n in range(4)
    ]
    playing = converse(seatings, rules, FORM)
    views = next(playing)
    try:
        while True:
            keys.append([view.key for view in views])
            views = playing.send([Reply((4,), (-1.0,))] * len(views))
    except StopIteration:
        pass
    assert len({k for turn in keys for k in turn}) == 3 * 4 * 4
    assert keys[2][5] == key(
        17, "train", "", 0, 3, "sum-1", 1, 2
    )  # the sixth chat: the second task's chat 1, turn 2


def test_a_wrong_number_of_replies_is_an_error_and_not_a_shift():
    playing = converse(
        [Seating(a_deal("t"), {s: BASE for s in "AB"}, n, ()) for n in range(2)], Rules("AB"), FORM
    )
    next(playing)
    with pytest.raises(ValueError, match="shorter"):
        playing.send([Reply((4,), (-1.0,))])


@pytest.mark.parametrize(
    ("dealt_to", "played_by", "order", "says"),
    [
        ("AB", "AB", "ABCABC", "order 'ABCABC' seats ABC, but task 't' was dealt to AB"),
        ("ABC", "ABC", "ABAB", "seats AB, but task 't' was dealt to ABC"),
        ("AC", "AB", "ABAB", "was dealt to AC"),  # as many hands as seats, and yet not theirs
        ("AB", "A", "ABAB", "is played by A"),
        ("AB", "", "ABAB", "is played by nobody"),
    ],
)
def test_hands_players_and_seats_must_agree_before_anything_is_played(dealt_to, played_by, order, says):
    seating = Seating(a_deal("t", dealt_to), scripts(played_by), 0, ())
    with pytest.raises(BadInput, match=says):
        next(converse([seating], Rules(order), FORM))


# --- the line on disk ---


def test_a_chat_is_one_json_line_with_everything_but_ids():
    [chat] = play([Seating(a_deal("t"), scripts("AB"), 2, ())], Rules("ABAB", "transcript", "closed"))
    chat.answers = {s: Grade(s == "A", s == "A", True, "7") for s in "AB"}
    chat.rewards, chat.reward = {"A": 1.0, "B": 0.0}, 0.5
    chat.messages[0].credit = 0.125
    line = json.loads(json.dumps(chat.as_json()))
    assert {k: line[k] for k in ("task", "chat", "order", "channel", "view", "question", "gold", "reward")} == {
        "task": "t", "chat": 2, "order": "ABAB", "channel": "closed", "view": "transcript", "question": "t?",
        "gold": "7", "reward": 0.5,
    }  # fmt: skip
    assert line["hands"] == {"A": ["t A holds 3."], "B": ["t B holds 4."]}
    assert line["players"] == {"A": "script A", "B": "script B"}
    assert line["messages"][0] == {
        "seat": "A", "turn": 0, "said": "t A holds 3.", "heard": "(no message)", "credit": 0.125, "cut": False,
        "heard_cut": False, "tokens": 0, "logprob": 0,
    }  # fmt: skip
    assert [m["credit"] for m in line["messages"]] == [0.125, None, None, None]
    assert line["answers"]["B"] == {
        "answer": "7",
        "strict": False,
        "lenient": False,
        "parsed": True,
        "notes": [],
    }
