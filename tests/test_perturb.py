"""Other numbers where the source makes its gold again, a refusal where it does not; and a reward that knows nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conftest import deals
from cotalk.chat import BASE, Chat, Rules
from cotalk.errors import BadInput
from cotalk.grade import Grade
from cotalk.numerals import numbers
from cotalk.perturb import (
    NO_SOLUTION,
    NO_SOURCE,
    UNLIKE_GOLD,
    UNSURE,
    CannotPerturb,
    perturb,
    perturb_deals,
    perturb_one,
    random_rewards,
    solutions,
)
from cotalk.puzzles import generate, partial_sums, signs_of
from cotalk.split import splits
from cotalk.task import Task

CLIPS = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did she sell altogether?"
)
SOLVED = "She sold 48/2 = <<48/2=24>>24 clips in May.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"


def gsm(problem: str, solution: str) -> tuple[Task, dict[str, str]]:
    gold = solution.rpartition("####")[2].strip()
    return Task("train-0", "", gold, problem=problem), {problem: solution}


def refusal(task: Task, solved: dict[str, str]) -> str | None:
    """Why a GSM8K task's numbers cannot be changed; None where they can."""
    try:
        perturb_one(task, "gsm8k", solved)
    except CannotPerturb as error:
        return error.reason
    return None


@pytest.mark.parametrize("facts", [2, 3, 4])
def test_a_puzzle_gets_other_numbers_and_their_own_gold(facts: int) -> None:
    tasks = generate(5, 40, facts)
    found = perturb(tasks, "puzzles")
    assert len(found.tasks) == 40 and found.refused == {}
    for old, new in zip(tasks, found.tasks, strict=True):
        held = [int(numbers(fact)[0]) for fact in new.facts]
        assert new.gold == str(partial_sums(held, signs_of(new))[-1]) != old.gold
        assert [re.sub(r"\d+", "#", f) for f in new.facts] == [re.sub(r"\d+", "#", f) for f in old.facts]
        assert (new.id, new.question, new.template) == (f"{old.id}~", old.question, old.template)
    assert perturb(tasks, "puzzles") == found != perturb(tasks, "puzzles", seed=1)  # keyed


def test_a_puzzle_whose_gold_is_not_its_sum_is_refused() -> None:
    [task] = generate(5, 1)
    wrong = Task(task.id, task.question, "1000", task.facts, template=task.template)
    own = Task("own", "How many?", "3", ("I have 3.",), template="12")
    assert perturb([wrong, own], "puzzles").refused == {UNLIKE_GOLD: 1, NO_SOURCE: 1}
    assert perturb([wrong, own], "examples/own_tasks.py:tasks").refused == {
        NO_SOURCE: 2
    }  # a function of yours


def test_gsm_symbolic_draws_the_same_template_again() -> None:
    pytest.importorskip("reasoning_gym")
    from cotalk.task import load

    tasks = list(load("gsm_symbolic", split="heldout", limit=8))
    found = perturb(tasks, "gsm_symbolic")
    assert len(found.tasks) == 8
    for old, new in zip(tasks, found.tasks, strict=True):
        assert new.template == old.template and new.gold != old.gold and new.problem != old.problem
        assert "Give the result" not in new.problem


def test_a_gsm8k_problem_gets_other_numbers_through_its_annotated_steps() -> None:
    task, solved = gsm(CLIPS, SOLVED)
    new = perturb_one(task, "gsm8k", solved)
    april = int(numbers(new.problem)[0])
    assert new.problem == CLIPS.replace("48", str(april)) and april != 48
    assert april % 2 == 0 and new.gold == str(april + april // 2)  # half of it stays whole, as 24 was


@pytest.mark.parametrize(
    ("problem", "solution", "reason"),
    [
        (CLIPS, SOLVED.replace("=24>>", "=25>>"), UNLIKE_GOLD),  # a step that is wrong
        (CLIPS, SOLVED.replace("#### 72", "#### 73"), UNLIKE_GOLD),  # steps that lead elsewhere
        (CLIPS, "It is 72.\n#### 72", UNLIKE_GOLD),  # no steps
        (CLIPS, "<<48+24=72>>72\n#### 72", UNSURE),  # 24 was worked out in the head
        ("He has 9 cats and 9 dogs. How many?", "<<9+9=18>>18\n#### 18", UNSURE),  # which 9?
        ("A 60 foot rope and a 55 foot rope: how long?", "<<60+55=115>>115\n#### 115", None),
        (
            "He works 60 minutes, 7 days a week, not an hour. How long?",
            "<<60*7=420>>420\n#### 420",
            UNSURE,
        ),  # constants
        (
            "After 3 years at $2 a year, how much?",
            "<<3*2=6>>6\n#### 6",
            UNSURE,
        ),  # small numbers may count the story
        (
            "12 by 5 feet at $60, 20 times?",
            "<<12*5=60>>60 <<60*60=3600>>3600 <<3600*20=72000>>\n#### 72000",
            UNSURE,
        ),
        (
            "Of 40 eggs he eats 15 and sees 33 hens. How many are left?",
            "<<40-15=25>>25\n#### 25",
            UNSURE,
        ),  # 33?
    ],
)
def test_what_is_not_plain_is_refused_with_a_reason(problem: str, solution: str, reason: str | None) -> None:
    task, solved = gsm(problem, solution)
    assert refusal(task, solved) == reason


def test_percents_fractions_and_decimals_stay_as_they_are() -> None:
    task, solved = gsm(
        "Of 80 hens 25% are red, 1/2 of the rest sold at $1.50 each. How much is that?",
        "<<25/100*80=20>> <<80-20=60>> <<60*1/2=30>> <<30*1.5=45>>\n#### 45",
    )
    assert refusal(task, solved) == UNSURE  # 60 and 30 are constants too
    task, solved = gsm(
        "Of 88 hens 25% are red. The others lay 1.5 eggs each. How many eggs?",
        "<<25/100*88=22>> <<88-22=66>> <<66*1.5=99>>\n#### 99",
    )
    new = perturb_one(task, "gsm8k", solved)
    hens = int(numbers(new.problem)[0])
    assert re.sub("Of [0-9]+ hens", "Of 88 hens", new.problem) == task.problem
    assert float(new.gold) == hens * 0.75 * 1.5


def test_a_problem_that_the_source_does_not_solve_is_refused() -> None:
    task, _ = gsm(CLIPS, SOLVED)
    with pytest.raises(CannotPerturb, match=NO_SOLUTION):
        perturb_one(task, "gsm8k", {})
    with pytest.raises(CannotPerturb, match=NO_SOURCE):
        perturb_one(task, "function")
    with pytest.raises(BadInput, match="no GSM8K file"):
        solutions("nowhere")


def test_dealt_tasks_are_dealt_again_to_the_same_seats(tmp_path: Path) -> None:
    dealt = splits("puzzles", train=2, dev=1, heldout=10).heldout
    again, told = perturb_deals(dealt, "puzzles")
    assert [d.task.id for d in again] == [f"{d.task.id}~" for d in dealt] and len(told.tasks) == 10
    assert all(set(new.hands) == set(old.hands) for new, old in zip(again, dealt, strict=True))
    file = tmp_path / "train.jsonl"
    rows = [{"question": CLIPS.replace("in April", "in April. She met 31 more"), "answer": SOLVED}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert solutions(str(tmp_path)) == {rows[0]["question"]: SOLVED}


def test_real_gsm8k_reproduces_its_gold_before_a_number_is_changed(gsm8k: str) -> None:
    from cotalk.task import load

    tasks = list(load(gsm8k, split="test"))
    found = perturb(tasks, gsm8k)
    assert len(tasks) == 1319 == len(found.tasks) + sum(found.refused.values())
    assert len(found.tasks) > 250


def test_a_random_reward_is_paid_by_the_key_alone_and_half_of_the_time() -> None:
    def chats(right: bool) -> list[Chat]:
        made = [Chat(d, Rules(), {"A": BASE, "B": BASE}, n) for d in deals(100) for n in range(4)]
        for chat in made:
            chat.answers = {seat: Grade(right, right, True, "7") for seat in "AB"}
        return made

    some, others = chats(True), chats(False)[::-1]
    random_rewards(some, (17, "train", 3))
    random_rewards(others, (17, "train", 3))
    paid = [chat.reward for chat in some]
    assert paid == [chat.reward for chat in others[::-1]]  # nothing of the answers, nothing of the order
    assert all(chat.rewards == {"A": chat.reward, "B": chat.reward} for chat in some)
    assert all(chat.answers["A"].strict for chat in some)  # the grades stay
    assert 160 < sum(paid) < 240  # of 400: four standard deviations either way
    random_rewards(others, (17, "train", 4))
    assert paid != [chat.reward for chat in others[::-1]]
