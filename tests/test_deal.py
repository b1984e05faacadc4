"""Cutting and dealing: the published check values, the clean rule's sentences, and what no text may break."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotalk.deal import (
    NO_NUMBER,
    NO_QUESTION,
    RULES,
    TOO_FEW_FACTS,
    TOO_LONG,
    CannotDeal,
    Deal,
    cut,
    deal,
    deal_all,
    full_hand,
    half_hand,
    show,
)
from cotalk.errors import BadInput
from cotalk.numerals import has_number
from cotalk.split import splits
from cotalk.task import Task, load

EXAMPLES = Path(__file__).parent.parent / "examples"
GSM8K = os.environ.get("COTALK_GSM8K", "")
needs_gsm8k = pytest.mark.skipif(
    not GSM8K, reason="set COTALK_GSM8K to a directory with GSM8K's train.jsonl, test.jsonl"
)
CATS = "Ann has 3 cats. Ben has twice as many. They meet. How many cats are there?"


def problem(text: str, name: str = "t") -> Task:
    return Task(name, "", "1", problem=text)


def words(texts: tuple[str, ...]) -> list[str]:
    return sorted(" ".join(texts).split())


# --- the published rule, on real data --------------------------------------------------------------


@needs_gsm8k
def test_the_published_rule_gives_the_published_tasks() -> None:
    train, _ = deal_all(load(GSM8K, split="train"), "AB", "published")
    test, _ = deal_all(load(GSM8K, split="test"), "AB", "published")
    assert (len(train), len(test)) == (3782, 693)
    assert (train[1023].id, test[299].id) == ("train-2046", "test-555")
    by_id = {dealt.id: dealt for dealt in test}
    assert "Hannah" in by_id["test-3"].hands["A"][0]
    assert by_id["test-3"].gold == "800"
    assert "Bethany" in by_id["test-4"].hands["A"][0]
    assert by_id["test-4"].gold == "5"


@needs_gsm8k
def test_the_published_sets_follow_each_other() -> None:
    tasks = splits(GSM8K, rule="published")
    assert (tasks.train[-1].id, tasks.dev[0].id, tasks.heldout[-1].id) == (
        "train-2046",
        "train-2049",
        "test-555",
    )
    assert (len(tasks.train), len(tasks.dev), len(tasks.heldout)) == (1024, 16, 300)
    assert tasks.report["train"].read == 2047  # indices 0..2046
    assert all(not tally.repeats for tally in tasks.report.values())  # GSM8K repeats no problem


@needs_gsm8k
def test_the_clean_rule_deals_more_and_leaves_no_fragment() -> None:
    began = time.perf_counter()
    train, _ = deal_all(load(GSM8K, split="train"), "AB", "clean")
    assert time.perf_counter() - began < 10  # 0.7 s here
    assert len(train) > 4900  # 1.3 times the published rule's 3,782
    facts = [fact for dealt in train for fact in dealt.facts]
    assert not [fact for fact in facts if fact.endswith((" Mr.", " Mrs.", " Ms.", " Dr."))]
    assert {fact for fact in facts if len(fact.split()) < 3} == {"They agree.", "(24-hr time)"}
    assert len(deal_all(load(GSM8K, split="train"), "ABC", "clean")[0]) > 1900


# --- the published rule, to the letter -------------------------------------------------------------


def test_the_published_rule_cuts_before_a_capital_or_a_dollar_and_nowhere_else() -> None:
    text = "Mrs. Lee has 3. $5 is left! 7 remain. he goes. Why? How many?  It is odd."
    assert cut(text, "published") == (
        ("Mrs.", "Lee has 3.", "$5 is left! 7 remain. he goes.", "Why?", "It is odd."),
        "How many?",
    )


def test_the_published_rule_sees_digits_only() -> None:
    with pytest.raises(CannotDeal) as told:
        deal(problem(CATS), "AB", "published")  # "twice" is no digit
    assert told.value.reason == NO_NUMBER


# --- the clean rule --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Mrs. Lee and Mr. Jones have 3. Go.", ["Mrs. Lee and Mr. Jones have 3.", "Go."]),
        ("In Ms. Leech's class are 30. Go.", ["In Ms. Leech's class are 30.", "Go."]),
        ("He ate M&Ms. He left.", ["He ate M&Ms.", "He left."]),
        ("It is open from 8 a.m. to 5 p.m. daily. Go.", ["It is open from 8 a.m. to 5 p.m. daily.", "Go."]),
        ("He left at 5 p.m. She stayed.", ["He left at 5 p.m.", "She stayed."]),
        ("It starts at 4 P.M. Kath pays.", ["It starts at 4 P.M.", "Kath pays."]),
        ("He left at 6:00 a.m. ET on Monday. Go.", ["He left at 6:00 a.m. ET on Monday.", "Go."]),
        ("It costs $2.50 or $.50. Go.", ["It costs $2.50 or $.50.", "Go."]),
        (
            "She has 3. 5 are big. she likes them. $5 is left.",
            ["She has 3.", "5 are big.", "she likes them.", "$5 is left."],
        ),
        ("He has 3.She has 4.", ["He has 3.", "She has 4."]),
        ("Angie bought 3 lbs. of coffee. Go.", ["Angie bought 3 lbs. of coffee.", "Go."]),
        ("He weighs 30 lbs. She weighs 20.", ["He weighs 30 lbs.", "She weighs 20."]),
        ("A bar weighs 125 g. A box weighs 2 kg.", ["A bar weighs 125 g.", "A box weighs 2 kg."]),
        ("Jar B has 12 more than jar A. Jar C has 3.", ["Jar B has 12 more than jar A.", "Jar C has 3."]),
        (
            "Machine B is slower than Machine A. Machine C stops.",
            ["Machine B is slower than Machine A.", "Machine C stops."],
        ),
        ("It was written by J. Smith. Go.", ["It was written by J. Smith.", "Go."]),
        ("She is older than Jan. Greg is 5.", ["She is older than Jan.", "Greg is 5."]),
        ('It is 24" long. She cuts 2" off. Go.', ['It is 24" long.', 'She cuts 2" off.', "Go."]),
        ('He said, "I have 5. You have 3." Go.', ['He said, "I have 5. You have 3."', "Go."]),
        ("They are equal (twins.) Each has 3.", ["They are equal (twins.)", "Each has 3."]),
        ("He has 3  \n\n cats. Go.", ["He has 3 cats.", "Go."]),
    ],
)
def test_the_clean_rule_cuts_where_a_reader_would(text: str, sentences: list[str]) -> None:
    facts, question = cut(text, "clean")
    assert list(facts) == sentences
    assert question == ""


def test_the_question_is_the_last_sentence_that_asks() -> None:
    text = "Why? Ann has 3. If Ben has 4, how many are there? (A dozen is 12.)"
    assert cut(text) == (("Why?", "Ann has 3.", "(A dozen is 12.)"), "If Ben has 4, how many are there?")
    assert cut('Ann has 3. She asks: "How many?"')[1] == 'She asks: "How many?"'


# --- dealing ---------------------------------------------------------------------------------------


def test_facts_go_round_the_table() -> None:
    task = Task("t", "How many?", "10", facts=("1 a.", "2 b.", "3 c.", "4 d."))
    assert deal(task, "AB").hands == {"A": ("1 a.", "3 c."), "B": ("2 b.", "4 d.")}
    assert deal(task, "ABC").hands == {"A": ("1 a.", "4 d."), "B": ("2 b.",), "C": ("3 c.",)}
    assert deal(task, "BA").hands["B"] == ("1 a.", "3 c.")
    assert (deal(task).id, deal(task).gold, deal(task).question) == ("t", "10", "How many?")


def test_number_words_make_a_hand_worth_having() -> None:
    assert deal(problem(CATS)).hands == {
        "A": ("Ann has 3 cats.", "They meet."),
        "B": ("Ben has twice as many.",),
    }


def test_the_skyline_holds_everything_and_the_floor_one_hand() -> None:
    dealt = deal(problem(CATS))
    assert full_hand(dealt).hands == {"A": ("Ann has 3 cats.", "Ben has twice as many.", "They meet.")}
    assert half_hand(dealt, "B").hands == {"A": ("Ben has twice as many.",)}
    with pytest.raises(BadInput, match="seat 'C' has no hand"):
        half_hand(dealt, "C")


@pytest.mark.parametrize(
    ("text", "seats", "reason"),
    [
        ("Ann has 3. Ben has 4.", "AB", NO_QUESTION),
        ("", "AB", NO_QUESTION),
        ("Ann has 3 and Ben 4. How many?", "AB", TOO_FEW_FACTS),
        ("Ann has 3. Ben has 4. How many?", "ABC", TOO_FEW_FACTS),
        ("Ann has 3. Ben has some. How many?", "AB", NO_NUMBER),
        ("Ann has 3. No one has more. How many?", "AB", NO_NUMBER),
    ],
)
def test_what_cannot_be_dealt_is_refused_with_a_reason_to_count(text: str, seats: str, reason: str) -> None:
    with pytest.raises(CannotDeal) as told:
        deal(problem(text, "the-id"), seats)
    assert told.value.reason == reason
    assert "'the-id'" in str(told.value)


def test_reasons_are_counted_and_the_limit_counts_deals() -> None:
    tasks = [
        problem("No question."),
        problem(CATS, "1"),
        problem("One? Two?"),
        problem(CATS, "2"),
        problem(CATS, "3"),
    ]
    dealt, refused = deal_all(tasks, limit=2)
    assert [one.id for one in dealt] == ["1", "2"]
    assert refused == {NO_QUESTION: 1, TOO_FEW_FACTS: 1}
    assert deal_all(tasks, limit=0) == ([], {})


@pytest.mark.parametrize("seats", ["", "ABAB", "A B", "A1", "ÄB"])
def test_seats_are_different_letters(seats: str) -> None:
    with pytest.raises(BadInput, match="expected one letter a seat"):
        deal(problem(CATS), seats)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(BadInput, match="rule 'dirty' is not known; expected one of published, clean"):
        cut(CATS, "dirty")


# --- any text --------------------------------------------------------------------------------------

STOPS = st.sampled_from(
    [". ", "? ", "! ", " ", ".", '"', "“", "”", "(", ")", "\n", "Mr. ", "a.m. ", "lbs. ", "A. ", "… "]
)
TEXTS = st.text() | st.lists(STOPS | st.sampled_from(["Ann", "has", "3", "cats", "$2.50", "Half", "é"])).map(
    "".join
)


@given(TEXTS, st.sampled_from(sorted(RULES)))
def test_cutting_keeps_every_letter_and_its_order(text: str, rule: str) -> None:
    facts, question = cut(text, rule)
    parts = list(facts)
    if question:
        # put the question back where it was: one of the places gives the text again
        whole = [
            "".join("".join([*parts[:at], question, *parts[at:]]).split()) for at in range(len(parts) + 1)
        ]
        assert "".join(text.split()) in whole
        assert question.rstrip("\"'”’)]").endswith("?")
    else:
        assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(part.strip() == part and part for part in parts)


@given(TEXTS, st.sampled_from(["AB", "ABC", "A"]), st.sampled_from(sorted(RULES)))
def test_hands_share_out_the_facts_and_invent_nothing(text: str, seats: str, rule: str) -> None:
    try:
        dealt = deal(problem(text), seats, rule)
    except CannotDeal:
        return
    assert list(dealt.hands) == list(seats)
    assert sorted(fact for hand in dealt.hands.values() for fact in hand) == sorted(dealt.facts)
    for at, fact in enumerate(dealt.facts):
        assert dealt.hands[seats[at % len(seats)]][at // len(seats)] == fact
    assert "".join(sorted("".join(words((*dealt.facts, dealt.question))))) == "".join(
        sorted("".join(text.split()))
    )
    assert all(any(map(has_number, hand)) for hand in dealt.hands.values())


@pytest.mark.parametrize(
    "piece", ["Mr. ", "A. B ", "(", '"', "3 lbs. of ", "? ", "a.m. ET ", "x", "1. ", "He. She"]
)
def test_a_huge_text_is_cut_in_a_moment(piece: str) -> None:
    began = time.perf_counter()
    cut(piece * 20_000)
    assert time.perf_counter() - began < 5


# --- train, dev, held-out --------------------------------------------------------------------------


def own(path: Path, *texts: str) -> str:
    path.write_text("".join(json.dumps({"problem": text, "gold": 1}) + "\n" for text in texts))
    return str(path)


def numbered(first: int, last: int) -> list[str]:
    return [f"Ann has {at} cats. Ben has 2. How many?" for at in range(first, last)]


def first_numbers(dealt: list[Deal]) -> list[int]:
    return [int(one.facts[0].split()[2]) for one in dealt]


def test_one_file_is_cut_by_position_held_out_first(tmp_path: Path) -> None:
    texts = numbered(0, 10)
    texts.insert(2, "No question here.")
    texts.insert(5, "Ann  has 0 cats. Ben has 2. How many?")  # the first again, but for a space
    tasks = splits(own(tmp_path / "m.jsonl", *texts), train=4, dev=2, heldout=3)
    assert first_numbers(tasks.heldout) == [0, 1, 2]
    assert first_numbers(tasks.train) == [3, 4, 5, 6]
    assert first_numbers(tasks.dev) == [7, 8]
    assert tasks.report["heldout"].refused == {NO_QUESTION: 1}
    assert tasks.report["train"].repeats == {"heldout": 1}


def test_a_held_out_file_of_its_own_is_never_trained_on(tmp_path: Path) -> None:
    mine = own(tmp_path / "mine.jsonl", *numbered(0, 6), *numbered(0, 2))
    other = own(tmp_path / "other.jsonl", *numbered(2, 4))
    tasks = splits(mine, other, train=3, dev=1, heldout=2)
    assert (first_numbers(tasks.heldout), first_numbers(tasks.train), first_numbers(tasks.dev)) == (
        [2, 3],
        [0, 1, 4],
        [5],
    )
    assert tasks.report["train"].repeats == {"heldout": 2}


def test_too_few_tasks_are_told_with_their_counts(tmp_path: Path) -> None:
    source = own(tmp_path / "m.jsonl", *numbered(0, 5), "No question.", *numbered(0, 1))
    with pytest.raises(BadInput) as told:
        splits(source, train=4, dev=1, heldout=2)
    assert "has 3 train tasks for seats AB under rule clean, 4 were asked for" in str(told.value)
    assert f"1 not: {NO_QUESTION}; 1 dropped: also in heldout" in str(told.value)
    assert "--train" in str(told.value)


def test_a_file_without_any_task_that_can_be_dealt_is_told_with_the_first_line_and_why(
    tmp_path: Path,
) -> None:
    source = own(tmp_path / "m.jsonl", "Ann has cats.", "Ben has 4. How many?", "What?")
    with pytest.raises(BadInput) as told:
        splits(source, train=2, dev=0, heldout=1)
    assert "has 0 heldout tasks" in str(told.value) and "0 dealt of 3 read" in str(told.value)
    assert f"The first that cannot be dealt: {source}:1: task 'm-1' cannot be dealt: {NO_QUESTION}" in str(
        told.value
    )
    assert told.value.code == "task/too-few"


@pytest.mark.parametrize("piece", ["“", "‘a ", "«", "`", "x", "3 cats. "])
def test_a_text_too_long_for_a_problem_is_refused_at_once_whatever_it_holds(piece: str) -> None:
    before = time.monotonic()
    for rule in ("clean", "published"):
        with pytest.raises(CannotDeal) as told:
            deal(Task("t", "", "7", problem=piece * (2_000_000 // len(piece))), rule=rule)
        assert told.value.reason == TOO_LONG and "at most 20,000" in str(told.value)
    assert time.monotonic() - before < 10
    with pytest.raises(CannotDeal):  # the longest that is read: a quarter of a second
        deal(Task("t", "", "7", problem=(piece * 20_000)[:20_000]))
    assert time.monotonic() - before < 20  # a minute and more, if a million marks were cut


def test_a_task_with_half_a_letter_is_dealt_like_any_other() -> None:
    # only a function of one's own can bring one: files are refused
    found = deal(Task("t", "", "7", problem="Ann has 3 \ud800 cats. Ben has 4. How many?"))
    assert found.hands["A"] == ("Ann has 3 \ud800 cats.",)


@pytest.mark.parametrize("source", ["puzzles", f"{EXAMPLES / 'own_tasks.py'}:sums"])
def test_the_three_sets_share_no_problem(source: str) -> None:
    tasks = splits(source, train=200, dev=16, heldout=100)
    texts = [dealt.text for dealt in (*tasks.train, *tasks.dev, *tasks.heldout)]
    assert len(texts) == len(set(texts)) == 316
    assert splits(source, train=200, dev=16, heldout=100) == tasks


def test_puzzles_get_a_fact_for_every_seat() -> None:
    tasks = splits("puzzles", train=3, dev=1, heldout=3, seats="ABC")
    assert all(len(hand) == 1 for dealt in tasks.train for hand in dealt.hands.values())


def test_a_source_that_never_deals_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import itertools\n"
        "def bad(): return ({'problem': f'It is {n}.', 'gold': n} for n in itertools.count())\n"
    )
    with pytest.raises(BadInput, match="has 0 heldout tasks"):
        splits(f"{path}:bad", train=1, dev=0, heldout=1)


def test_unseen_tasks_share_neither_problem_nor_template_with_the_others() -> None:
    pytest.importorskip("reasoning_gym")
    tasks = splits("gsm_symbolic", train=60, dev=5, heldout=30, unseen=20)
    assert len(tasks.unseen) == tasks.report["unseen"].dealt == 20
    others = [*tasks.train, *tasks.dev, *tasks.heldout]
    assert not {one.task.template for one in tasks.unseen} & {one.task.template for one in others}
    assert splits("gsm_symbolic", train=60, dev=5, heldout=30).heldout == tasks.heldout
    with pytest.raises(BadInput, match="keeps no templates back"):
        splits("puzzles", train=1, dev=0, heldout=1, unseen=1)


# --- the command -----------------------------------------------------------------------------------


def test_dealt_tasks_are_shown_counted_written_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = own(tmp_path / "m.jsonl", CATS, "No question.", *numbered(0, 3))
    out = tmp_path / "dealt.jsonl"
    (summary,) = show(source, out=str(out))
    assert (summary["read"], summary["dealt"], summary["refused"]) == (5, 4, {NO_QUESTION: 1})
    shown = capsys.readouterr().out
    assert "Ben has twice as many." in shown
    assert "4 of 5 train tasks can be dealt to AB by rule clean" in shown
    assert f"1 not: {NO_QUESTION}" in shown
    again, _ = deal_all(load(str(out)))
    assert [(one.id, one.hands, one.question) for one in again] == [
        (one.id, one.hands, one.question) for one in deal_all(load(source))[0]
    ]


def test_a_quiet_show_prints_nothing_and_endless_sources_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("puzzles", quiet=True)[0]["dealt"] == 100
    assert show(f"{EXAMPLES / 'own_tasks.py'}:sums", limit=3, quiet=True)[0]["stopped"]
    assert capsys.readouterr().out == ""


def test_a_task_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(own(tmp_path / "m.jsonl", "Ann has 3 \x1b[31mred\x07 [bold]cats[/]. Ben has 4. How many?"))
    shown = capsys.readouterr().out
    assert "\x1b[31mred" not in shown
    assert "\x07" not in shown
    assert "[bold]cats" in shown


def test_an_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        show(own(tmp_path / "m.jsonl", CATS), out=str(tmp_path / "no" / "such.jsonl"), quiet=True)
