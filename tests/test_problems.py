"""Problems with worked solutions: what is kept, what is refused and counted, and that no study plays them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotalk.bases import problems
from cotalk.bases.problems import Problem, Refused, draw, gsm8k, problem_of, read, reserved, worked, write
from cotalk.errors import BadInput
from cotalk.grade import grade
from cotalk.task import UNSEEN_TEMPLATES, Task, load

needs_gym = pytest.mark.skipif(
    not pytest.importorskip("reasoning_gym"), reason="pip install 'cotalk[gsm-symbolic]'"
)


def test_a_solution_becomes_what_a_seat_says() -> None:
    text = "Let's solve this step by step:\n\n   • She has <<2*3=6>>6.0 cats\n  Then 6.05 + 1.950 = 8.00\n#### 8.0"
    assert worked(text, "8") == "She has 6 cats\nThen 6.05 + 1.950 = 8\n\\boxed{8}"


def test_a_solution_that_does_not_end_in_the_gold_is_refused() -> None:
    for text in ("3 + 4 = 7\n#### 7", "3 + 4 = 7", ""):
        with pytest.raises(Refused, match="does not end in its gold"):
            worked(text, "8")


def test_a_problem_that_two_seats_cannot_be_dealt_is_known_as_such() -> None:
    both = Task("a", "", "7", problem="Ann has 3 cats. Ben has 4. How many cats are there?")
    one = Task("b", "", "6", problem="Ann has 3 cats and twice as many dogs. How many dogs?")
    assert problem_of(both, "#### 7").dealt and not problem_of(one, "#### 6").dealt
    assert problem_of(both, "#### 7").task.facts == ("Ann has 3 cats.", "Ben has 4.")
    with pytest.raises(Refused, match="no question"):
        problem_of(Task("c", "", "7", problem="Add 3 and 4. Give the sum."), "#### 7")


@pytest.mark.slow
@needs_gym
def test_every_worked_solution_ends_in_the_gold_and_no_study_plays_its_problem() -> None:
    some, tally = draw(1000, others=0.25)
    assert all(p.solution.endswith(f"\n\\boxed{{{p.task.gold}}}") for p in some)
    assert all(grade(p.solution, p.task.gold).strict for p in some)
    assert not any("####" in p.solution or "<<" in p.solution for p in some)
    templates = {int(p.task.template) for p in some}
    assert not templates & UNSEEN_TEMPLATES and len(templates) > 60
    assert problems.played(some) == []
    # about a third of all problems cannot be dealt, and a quarter of those was asked for
    assert 0.03 < sum(not p.dealt for p in some) / 1000 < 0.2
    assert tally.kept == 1000 == tally.drawn - sum(tally.refused.values()) - _beyond(tally)
    assert tally.refused["a study plays it"] > 0  # small templates repeat themselves word for word
    assert draw(1000, others=0.25)[0] == some


def _beyond(tally: problems.Tally) -> int:
    """What was kept of the last chunk beyond what was asked for."""
    return tally.drawn - sum(tally.refused.values()) - tally.kept


@needs_gym
def test_what_studies_play_is_reserved_whatever_order_its_sentences_stand_in() -> None:
    heldout = list(load("gsm_symbolic", split="heldout", limit=50))
    unseen = list(load("gsm_symbolic", split="unseen", limit=50))
    assert {" ".join(sorted(task.text.split())) for task in (*heldout, *unseen)} <= reserved()
    facts, question = heldout[0].problem.rsplit(". ", 1)
    turned = Task("x", question, heldout[0].gold, (facts + ".",))
    assert problems.played([Problem(turned, "\\boxed{1}", True)]) == ["x"]


@needs_gym
@pytest.mark.slow
def test_worker_processes_draw_the_same_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    count = problems.CHUNK  # from here on processes share the work
    alone = [p for chunk in range(3) for p in problems._keep(chunk, 0.0, frozenset())[0]][:count]
    monkeypatch.setattr(problems, "reserved", frozenset)
    assert draw(count, others=0.0, workers=2)[0] == alone


def test_problems_are_written_and_read_back_and_are_tasks(tmp_path: Path) -> None:
    task = Task("a", "How many cats are there?", "7", ("Ann has 3 cats.", "Ben has 4."), template="5")
    some = [Problem(task, "3 + 4 = 7\n\\boxed{7}", True)]
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        write(some, tmp_path / name)
        assert read(tmp_path / name) == some
    assert list(load(str(tmp_path / "rows.jsonl"))) == [task]
    with pytest.raises(BadInput, match="holds 1 problems; expected 2"):
        read(tmp_path / "rows.jsonl", 2)


def test_a_row_that_is_no_problem_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"id": "a", "facts": ["It is 7."], "question": "What is it?", "gold": "7", "template": None,
           "solution": "\\boxed{8}", "dealt": False}  # fmt: skip
    for spoilt, told in ((json.dumps(row), "rows.jsonl:1: its solution"), ("{}", "rows.jsonl:1: KeyError"),
                         ("no", "rows.jsonl:1: JSONDecodeError")):  # fmt: skip
        path.write_text(spoilt + "\n")
        with pytest.raises(BadInput, match=told):
            read(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "torn.jsonl.gz").write_bytes(b"\x1f\x8b\x08torn")
    with pytest.raises(BadInput, match="cannot be read"):
        read(tmp_path / "torn.jsonl.gz")


def test_near_copies_of_held_out_problems_are_all_found() -> None:
    held = {
        "h": "Ann has 3 red cats and 4 blue dogs in her very big old house on the hill. How many animals?"
    }
    trained = {
        "same": held["h"],
        "near": held["h"].replace("animals", "pets has she now"),
        "other": "Ben buys 12 pens for 3 dollars each and sells them all. What does he earn on that long day?",
    }
    assert problems._near(trained, held) == {"same", "near"}


def test_gsm8k_gives_its_train_problems_and_none_of_the_test_split(gsm8k: str) -> None:
    some, tally = problems.gsm8k(gsm8k)
    assert tally.drawn == 7473 and tally.kept == len(some) > 7000
    assert sum(p.dealt for p in some) == 4952  # as docs/tasks.md counts them by the clean rule
    words = {problems._words(task.problem) for task in load(gsm8k, split="test")}
    assert len(words) == 1319
    assert not any(problems._words(p.task.text) in words for p in some)
    assert all("<<" not in p.solution for p in some)


def test_gsm8k_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"train\.jsonl and test\.jsonl"):
        gsm8k(str(tmp_path / "none"))
