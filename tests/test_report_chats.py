"""Chats as the viewer gets them: where every number comes from, which chats are chosen, and that text stays text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotalk import talk
from cotalk.report import chats
from cotalk.report.read import read_study, thinned
from cotalk.report.words import settings, shown, verdict
from test_report import HOSTILE, chat, write_lines, write_study


def said(line: dict) -> list:
    return [message["said"] for message in chats.shown_chat(line)["messages"]]


def test_a_number_carries_the_hand_it_came_from_wherever_it_appears() -> None:
    line = chat(1, True, "x")  # A: 11, B: 22, answer 33
    assert chats.shown_task(line)["hands"] == {
        "A": [["Tom has ", ["11", "A"], " apples."]],
        "B": [["Mia has ", ["22", "B"], " apples."]],
    }
    assert said(line) == [
        ["Tom has ", ["11", "A"], " apples. Please use this."],
        ["Mia has ", ["22", "B"], " apples."],
        [["11", "A"], "+", ["22", "B"], "=", ["33", "+"], ". \\boxed{", ["33", "+"], "}"],
        [["11", "A"], "+", ["22", "B"], "=", ["33", "+"], ". \\boxed{", ["33", "+"], "}"],
    ]


def test_words_count_as_numbers_and_invented_ones_are_marked() -> None:
    line = chat(1, True, "x")
    line["question"] = "They want 90 apples. How many do they have together?"
    line["messages"][0]["said"] = "Eleven of ninety. Or 4567?"
    assert said(line)[0] == [["Eleven", "A"], " of ", ["ninety", "?"], ". Or ", ["4567", "!"], "?"]


def test_a_number_that_two_seats_hold_is_both_hands() -> None:
    line = chat(1, True, "x")
    line["hands"]["B"] = ["Mia has 11 apples."]
    assert said(line)[0] == ["Tom has ", ["11", "AB"], " apples. Please use this."]
    assert chats.shown_chat(line)["trail"] == []  # nobody's alone


def test_the_marks_agree_with_the_measure_of_invention(tmp_path: Path) -> None:
    for line in (chat(3, True, "x"), chat(4, False, "x")):
        marked = [
            len({part[0] for part in message if isinstance(part, list) and part[1] == "!"})
            for message in said(line)
        ]
        assert marked == [made_up for made_up, _ in talk.invented(line, line)]


def test_the_trail_tells_what_became_of_each_private_number() -> None:
    row = {"number": "11", "seat": "A", "said": 1, "heard": 1, "used": ["B"]}
    assert chats.shown_chat(chat(1, True, "x"))["trail"][0] == row
    closed = chats.shown_chat(chat(1, True, "x", channel="closed"))["trail"][0]
    assert closed == row | {"heard": 0}  # said, and yet nobody heard it
    assert chats.shown_chat(chat(1, False, "x"))["trail"][1] == {
        "number": "22", "seat": "B", "said": 0, "heard": 0, "used": [],
    }  # fmt: skip


def test_what_was_heard_is_kept_only_where_it_differs_from_what_was_said() -> None:
    closed = chats.shown_chat(chat(1, False, "x", channel="closed"))["messages"]
    assert [message["heard"] for message in closed] == [["(no message)"]] * 4
    opened = chats.shown_chat(chat(1, False, "x"))["messages"]
    assert not any("heard" in message for message in opened)
    assert [message.get("last", 0) for message in opened] == [0, 0, 1, 1]
    assert [message.get("cut", 0) for message in opened] == [0, 0, 0, 1]


def test_right_is_what_the_reward_counts() -> None:
    line = chat(1, True, "x") | {"rewards": {"A": 0.0, "B": 1.0}}
    answers = chats.shown_chat(line)["answers"]
    assert [answers[seat]["right"] for seat in "AB"] == [0, 1]


def test_the_chats_are_of_the_same_tasks_evenly_spaced_and_chosen_without_looking(tmp_path: Path) -> None:
    found = chats.viewer_of(write_study(tmp_path, tasks=240))
    held_out = [each for each in found["passes"] if each["mode"] == "heldout"]
    assert [each["id"] for each in held_out[:3]] == [
        "base_closed/base",
        "base_open/base",
        "trained_closed/closed-17",
    ]
    # 240 tasks, 60 shown: round(index * 239 / 59) = 0, 4, 8, 12, ...
    names = [f"held-out-{round(index * 239 / 59)}" for index in range(60)]
    assert all(list(each["chats"]) == names for each in held_out)
    assert found["about"]["heldout"].startswith("60 of the 240 held-out tasks")
    assert found["start"]["heldout"] == ["base_open/base", "trained_open/open-17"]
    assert not any("greedy" in each["id"] for each in found["passes"])


def test_a_dev_task_is_there_at_every_recorded_step_of_every_run(tmp_path: Path) -> None:
    found = chats.viewer_of(write_study(tmp_path, tasks=2))
    mine = [each for each in found["passes"] if each["group"] == "open, seed 17"]
    assert [each["label"] for each in mine] == [f"step {step}" for step in range(0, 51, 10)]
    assert all(list(each["chats"]) == ["dev-0", "dev-1"] for each in mine)
    assert found["start"]["training"] == ["open-17/0", "open-17/50"]


def test_long_chats_are_fewer_so_that_the_page_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path)
    whole = len(json.dumps(chats.viewer_of(tmp_path)))
    monkeypatch.setitem(chats.BUDGET, "heldout", 20_000)
    found = chats.viewer_of(tmp_path)
    shown_tasks = {task for each in found["passes"] if each["mode"] == "heldout" for task in each["chats"]}
    assert 1 <= len(shown_tasks) < 20 and len(json.dumps(found)) < whole
    assert found["about"]["heldout"].startswith(f"{len(shown_tasks)} of the 40 held-out tasks")


def test_a_seat_alone_keeps_its_own_hand_and_halves_are_passes_of_their_own(tmp_path: Path) -> None:
    write_study(tmp_path, tasks=2)
    line = chat(0, True, "floor")
    alone = [
        line | {"half": seat, "hands": {"A": line["hands"][seat]}, "messages": line["messages"][2:3]}
        for seat in "AB"
    ]
    write_lines(tmp_path / "scores/floor/base.jsonl", alone)
    passes = {each["id"]: each for each in chats.viewer_of(tmp_path)["passes"]}
    assert passes["floor/base/B"]["label"] == "untrained, B's hand"
    assert passes["floor/base/B"]["chats"]["held-out-0"]["hands"] == {
        "A": [["Mia has ", ["20", "A"], " apples."]]
    }


def test_tasks_of_one_name_and_two_texts_stay_apart(tmp_path: Path) -> None:
    first, second = (
        chats.passes(read_study(write_study(tmp_path / name, tasks=1)), f"{name}: ") for name in "ab"
    )
    for each in second:
        for line in each.lines.values():
            line["question"] = "Another question?"
    found = chats.show([*first, *second])
    assert {"held-out-0", "held-out-0′"} <= set(found["tasks"])
    assert found["tasks"]["held-out-0′"]["question"] == ["Another question?"]


def test_a_line_that_is_no_whole_chat_is_passed_over(tmp_path: Path) -> None:
    write_study(tmp_path, tasks=1)
    path = tmp_path / "scores/base_open/base.jsonl"
    for broken in (
        {"task": "t"},
        chat(5, True, "x") | {"hands": None},
        chat(6, True, "x") | {"messages": [3]},
    ):
        path.write_text(path.read_text() + json.dumps(broken) + "\n")
    passes = {each["id"]: each for each in chats.viewer_of(tmp_path)["passes"]}
    assert list(passes["base_open/base"]["chats"]) == ["held-out-0"]


def test_hostile_text_cannot_leave_the_data() -> None:
    line = chat(0, True, "x")
    line["messages"][0]["said"] = HOSTILE
    text = chats.as_data(chats.shown_chat(line))
    assert not set("<>&") & set(text) and text.isascii() and "\\ud800" not in text
    assert json.loads(text)["messages"][0]["said"][0].startswith("</script><script>alert(")
    line["messages"][0]["said"] = "x" * 100_000
    words = chats.shown_chat(line)["messages"][0]["said"]
    assert words == ["x" * chats.TEXT + "… (96,000 more characters)"]


def test_small_words() -> None:
    assert thinned(list(range(10)), 4) == [0, 3, 6, 9] and thinned([1, 2], 4) == [1, 2]
    assert shown("a\u202eb\x1b") == "a[U+202E]b[U+001B]" and shown("abcdef", 4) == "abcd… (2 more characters)"
    assert verdict("a is better: +0.1 (3 seeds). Look.") == ("A is better: +0.1", "(3 seeds). Look.")
    assert settings({"run": {"lr": 0.0015, "steps": 50}, "seeds": [17]}) == [
        ("run.lr", "0.0015"),
        ("run.steps", "50"),
        ("seeds", "[17]"),
    ]
