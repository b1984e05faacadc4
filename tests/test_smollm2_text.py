"""The text of the SmolLM2 base: ids as in play, habits at their rates whatever comes of them, no prompt is learned."""

from __future__ import annotations

import copy
import tomllib
from collections import Counter
from typing import Any

import numpy as np
import pytest

from conftest import small_base
from cotalk.bases.make_smollm2 import SETTINGS
from cotalk.bases.problems import Problem
from cotalk.bases.smollm2_text import TOO_LONG, Row, Settings, Writer, shard
from cotalk.chat import BASE, Reply, Rules, Seating, converse
from cotalk.deal import deal
from cotalk.errors import BadInput
from cotalk.task import Task

TABLE: dict[str, Any] = tomllib.loads(SETTINGS.read_text())["text"]
FORM = small_base().form
TASK = Task("a", "How many are there?", "19", ("Ann has 3 cats.", "Ben has 4.", "It is warm.", "Cid has 12."))
PROBLEM = Problem(TASK, "3 + 4 + 12 = 19\n\\boxed{19}", True)  # A: 3 cats, warm; B: 4, 12


def writer(seed: int = 0, **changes: Any) -> Writer:
    """changes: of [text]; `message={"all": 1.0}` sets a situation of the learned seat."""
    table = copy.deepcopy(TABLE)
    for name, value in changes.items():
        if name in ("message", "asked", "told", "untold"):
            habits = table["habits"]["self"]
            habits[name] = dict.fromkeys(habits[name], 0.0) | value
        else:
            table[name] = value
    return Writer(Settings.read(table), FORM, np.random.default_rng(seed))


def said(row: Row) -> list[str]:
    """The learned stretches of a row, decoded."""
    starts = np.flatnonzero(np.diff(np.concatenate([[0], row.learned.astype(int)])) == 1)
    stops = np.flatnonzero(np.diff(np.concatenate([row.learned.astype(int), [0]])) == -1) + 1
    return [FORM.decode(row.ids[a:b].tolist()) for a, b in zip(starts, stops, strict=True)]


def test_a_chat_row_has_the_ids_that_play_gives() -> None:
    """The two seats' texts are played by `converse`; the learned seat's last prompt and reply are the row."""
    write = writer(orders={"ABAB": 1.0}, closed=0.0)
    replies: list[str] = []
    own = Writer.reply

    def heard(self: Writer, *args: Any) -> str:
        replies.append(own(self, *args))
        return replies[-1]

    for _ in range(12):
        replies.clear()
        write.reply = heard.__get__(write)  # type: ignore[method-assign]
        row = write.chat(PROBLEM, "ABAB")
        game = converse([Seating(deal(TASK), {"A": BASE, "B": BASE}, 0, ())], Rules("ABAB"), FORM)
        views = next(game)
        prompts = []
        for text in replies:
            prompts.append(views[0].ids)
            ids = (*FORM.text_ids(text), FORM.end_id)
            try:
                views = game.send([Reply(ids, (0.0,) * len(ids))])
            except StopIteration:
                break
        turns = (2, 3)  # the last turn of A, of B
        rows = [(*prompts[t], *FORM.text_ids(replies[t]), FORM.end_id) for t in turns]
        assert tuple(row.ids.tolist()) in rows
        mine = rows.index(tuple(row.ids.tolist()))
        assert said(row) == [
            replies[mine],
            replies[mine + 2],
        ]  # both own messages, and nothing else, are learned


def test_the_answer_is_worked_out_only_where_all_that_counts_was_heard() -> None:
    write = writer(told={"work": 1.0}, untold={"guess": 1.0})
    hands = {"A": TASK.facts[::2], "B": TASK.facts[1::2]}
    for heard, works in (
        (["Ben has 4. Cid has 12."], True),
        (["Ben has 4.", "Hello!", "I know this: Cid has 12."], True),
        (["Ben has 4."], False),
        ([], False),
    ):
        text = write.reply("self", True, hands, "A", heard, PROBLEM)
        assert (text == PROBLEM.solution) == works
    # "It is warm." holds no number: B needs Ann's cats only
    assert write.reply("self", True, hands, "B", ["Ann has 3 cats."], PROBLEM) == PROBLEM.solution


def test_habits_come_at_their_rates_and_do_not_know_whether_the_team_is_right() -> None:
    write = writer()
    hands = {"A": TASK.facts[::2], "B": TASK.facts[1::2]}
    seen = {}
    for name, heard in (("message", []), ("asked", [TABLE["phrases"]["ask"][0]])):
        texts = [write.reply("self", False, hands, "B", heard, PROBLEM) for _ in range(2000)]
        seen[name] = Counter(_habit(text) for text in texts)
    for name, counts in seen.items():
        for habit, rate in TABLE["habits"]["self"][name].items():
            assert counts[habit] / 2000 == pytest.approx(rate, abs=0.04), (
                name,
                habit,
            )  # 4 standard errors: .04


def _habit(text: str) -> str:
    if text in TABLE["phrases"]["ask"]:
        return "ask"
    sent = [fact in text for fact in TASK.facts[1::2]]
    return "all" if all(sent) else "some" if any(sent) else "talk"


def test_nothing_depends_on_who_hears_a_message() -> None:
    """The learned seat's first message is drawn before anything else is known: the same with the channel closed."""
    texts = []
    for closed in (0.0, 1.0):
        rows = [
            writer(seed, closed=closed, orders={"ABAB": 1.0}).chat(PROBLEM, "ABAB") for seed in range(200)
        ]
        texts.append([said(row)[0] for row in rows])
    same = sum(a == b for a, b in zip(*texts, strict=True))
    assert same >= 150  # those of B after a question may differ: it was not heard


def test_with_the_channel_closed_nothing_is_worked_out() -> None:
    rows = [writer(seed, closed=1.0).chat(PROBLEM, "ABAB") for seed in range(60)]
    assert not any(PROBLEM.solution in said(row) for row in rows)
    assert all("(no message)" in FORM.tokenizer.decode(row.ids.tolist()) for row in rows)


def test_a_message_never_says_more_than_its_budget() -> None:
    # 12 bytes: "Ben has 4." is 10 and its end token 1, and with " Cid has 12." it would be 22
    write = writer(message={"all": 1.0}, message_tokens=12)
    write.settings.phrases["all"][:] = ["{}"]
    assert write.message({"all": 1.0}, TASK.facts[1::2]) == "Ben has 4."


def test_a_guess_is_a_number_that_was_known_or_the_sum_of_two() -> None:
    write = writer()
    known = {3, 4, 12}
    sums = {a + b for a in known for b in known}
    guesses = {int(write.guess(["Ann has 3 cats.", "Ben has 4.", "Cid has 12."])) for _ in range(300)}
    assert guesses <= known | sums and known <= guesses
    assert int(write.guess(["Hello!"])) in (10, 20)


def test_a_copy_says_the_partners_box() -> None:
    write = writer(untold={"copy": 1.0})
    text = write.answer("self", ["It is warm."], ["Hello!", "It is 5.\n\\boxed{5}"], False, PROBLEM)
    assert text == "My partner says 5.\n\\boxed{5}"
    assert write.answer("self", ["I have 8."], ["Hello!"], False, PROBLEM).endswith(
        ("{8}", "{16}")
    )  # none: a guess


def test_whole_and_half_rows_are_those_of_a_seat_alone() -> None:
    row = writer(rows={"chat": 0.0, "whole": 1.0, "half": 0.0}).row(PROBLEM)
    assert row is not None and row.kind == "whole" and said(row) == [PROBLEM.solution]
    text = FORM.tokenizer.decode(row.ids.tolist())
    assert all(fact in text for fact in TASK.facts) and "Solve it alone." in text
    half = writer(rows={"chat": 0.0, "whole": 0.0, "half": 1.0}).row(PROBLEM)
    assert half is not None and half.kind == "half"
    told = FORM.tokenizer.decode(half.ids.tolist())
    assert ("Ann has 3" in told) != ("Ben has 4" in told)


def test_a_problem_that_cannot_be_dealt_is_a_whole_row_and_a_long_solution_none() -> None:
    alone = Problem(TASK, PROBLEM.solution, False)
    assert all(writer(seed).row(alone).kind == "whole" for seed in range(20))
    settings = Settings.read(TABLE | {"answer_tokens": len(FORM.text_ids(PROBLEM.solution))})
    assert shard(settings, FORM, [PROBLEM] * 3, (1,)) == ([], Counter({TOO_LONG: 3}))
    settings = Settings.read(TABLE | {"answer_tokens": len(FORM.text_ids(PROBLEM.solution)) + 1})
    assert len(shard(settings, FORM, [PROBLEM] * 3, (1,))[0]) == 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rows": {"chat": 0.5, "whole": 0.5, "half": 0.5}}, "add up to 1"),
        ({"rows": {"chat": 1.0}}, "missing"),
        ({"orders": {"ABC": 1.0}}, "does not seat A and B"),
        ({"message": {"shout": 1.0}}, "unknown"),
        ({"phrases": TABLE["phrases"] | {"ask": []}}, "at least one phrase"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        writer(**changes)
