"""Grading: what is cut out of a message, what is compared exactly, and what Math-Verify is asked."""

import importlib
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotalk import grade_worker
from cotalk.errors import BadInput, RunFailed
from cotalk.grade import (
    FAILURES,
    MAX_ANSWER,
    MAX_TEXT,
    FileGrader,
    Grade,
    compare,
    grade,
    grade_many,
    last_box,
    load_grader,
    read,
    read_answer,
    read_gold,
    team_reward,
)
from cotalk.grade_worker import CRASHED, MISSING, RIGHT, TIMEOUT, UNREADABLE, WRONG, Workers

grading = importlib.import_module("cotalk.grade")
EXAMPLE = Path(__file__).parents[1] / "examples" / "grader_close.py"


@pytest.fixture(scope="module")
def workers():
    """Processes of the tests' own, to ask Math-Verify what it says of what our own code also reads."""
    own = Workers(count=1)
    yield own
    own.close()


@pytest.fixture(scope="module")
def impatient():
    """The same with less patience than users get, so that the tests take seconds."""
    own = Workers(count=1, limit_s=0.25)
    yield own
    own.close()


@pytest.fixture
def without_math_verify(monkeypatch, tmp_path):
    """Grading on a machine where `import math_verify` fails."""
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError(\"No module named 'math_verify'\")")
    monkeypatch.setattr(grading, "_workers", Workers(environment={"PYTHONPATH": str(tmp_path)}))


@pytest.fixture
def no_worker(monkeypatch):
    """Grading that must not need Math-Verify: asking it is an error."""

    class Nobody:
        def ask(self, questions):
            raise AssertionError(f"asked Math-Verify {questions}")

    monkeypatch.setattr(grading, "_workers", Nobody())


# The rows of published bug reports, each as (text, gold, strict, lenient, notes).

CASES = [
    ("the order is $29.00.", "29", False, True, ("no box",)),
    (r"\boxed{8,000}", "8000", True, True, ()),
    (r"\boxed{8{,}000}", "8000", True, True, ()),
    (r"\boxed{8{,}000}", "0", False, False, ()),
    (r"\boxed{800 ml}", "800", True, True, ("unit",)),
    (r"\boxed{800\text{ ml}}", "800", True, True, ("unit",)),
    ("Could be 5, 6, 7, 800", "800", False, True, ("no box",)),
    (r"\boxed{5} … \boxed{800}", "800", True, True, ("boxes",)),
    (r"\boxed{5} … \boxed{800}", "5800", False, False, ("boxes",)),
    (r"\boxed{5} … \boxed{800}", "5", False, False, ("boxes",)),
    (r"\boxed{18 dollars}", "18", True, True, ("unit",)),
    (r"\boxed{5=800}", "800", True, True, ("equation",)),
    (r"\boxed{5=800}", "5", False, False, ("equation",)),
    (r"\boxed{30-14}", "16", True, True, ("sum",)),
    ("The answer is 800. She burns 1600 calories.", "800", False, True, ("no box",)),
    ("The answer is 800. She burns 1600 calories.", "1600", False, False, ("no box",)),
    (r"\boxed{800}", "First 5 * 100 = 500, then 300 more.\n#### 800", True, True, ()),
    (r"\boxed{1600}", "5 * 320 is $1,600\n#### $1,600", True, True, ()),
]


@pytest.mark.parametrize("text, gold, strict, lenient, notes", CASES)
def test_a_case_that_went_wrong_elsewhere_is_graded_right(text, gold, strict, lenient, notes):
    found = grade(text, gold)
    assert (found.strict, found.lenient, found.notes) == (strict, lenient, notes)


def test_a_huge_reply_ends_in_a_process_of_its_own_even_when_asked_from_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(grade("so " * 70_000 + "it is $ 800 $", "800")))
    thread.start()
    thread.join(10)
    assert found[0].lenient and found[0].notes == ("capped", "no box")


# Cutting


@pytest.mark.parametrize(
    "text, box, count, notes",
    [
        (r"\boxed{5}", "5", 1, ()),
        (r"$\boxed{\frac{1}{2}}$", r"\frac{1}{2}", 1, ()),
        (r"\boxed {5}", "5", 1, ()),
        (r"\\boxed{5}", "5", 1, ()),  # a backslash too many, as JSON-minded models write it
        (r"a\\\boxed{5}", "5", 1, ()),  # after a line break
        (r"\boxed{5} or \boxed{6}. \boxed{7}", "7", 3, ("boxes",)),
        (r"\boxed{5 \boxed{6}}", "6", 2, ("boxes",)),
        (r"\boxed{\{1\}}", r"\{1\}", 1, ()),
        (r"{ \boxed{5}", "5", 1, ()),
        (r"} \boxed{5}", "5", 1, ()),
        (r"\boxed{5", "", 0, ("unclosed",)),
        (r"\boxed{5} then \boxed{6", "5", 1, ("unclosed",)),
        (r"\boxed{5 \boxed{6}", "6", 1, ("unclosed",)),
        (r"\boxed{5} as in \boxed{}", "5", 1, ()),
        (r"\boxed{ }", "", 0, ()),
        (r"\boxed 5", "", 0, ()),
        ("boxed{5}", "", 0, ()),
        ("no box", "", 0, ()),
    ],
)
def test_the_last_balanced_box_is_cut_out(text, box, count, notes):
    assert last_box(text) == (box, count, notes)


@given(st.text(alphabet="\\{}boxed5 ", max_size=60))
def test_a_box_that_is_cut_out_was_there_and_is_balanced(text):
    box, count, _ = last_box(text)
    assert (count > 0) == bool(box)
    assert box in text
    assert last_box(r"\boxed{" + box + "}")[0] == box or not box  # closes nothing but itself


@pytest.mark.parametrize(
    "piece, value, notes",
    [
        ("16 dollars", "16", ("unit",)),
        (r"\$16", "16", ()),
        ("$16.50", "16.50", ()),
        ("€1,234,567.50", "1234567.50", ()),
        (r"8\,000", "8000", ()),
        (r"8,\!000", "8000", ()),
        ("8 000", "8000", ()),
        ("\u22125", "-5", ()),
        ("5.", "5", ()),
        (r"\text{16}", "16", ()),
        (r"\mathbf{16}", "16", ()),
        ("60 miles per hour", "60", ("unit",)),
        ("60 km/h", "60", ("unit",)),
        ("16 dollars a day", "16", ("unit",)),
        ("12 cm^2", "12", ("unit",)),
        (r"12\ \mathrm{cm}^{2}", "12", ("unit",)),
        ("5kg", "5", ("unit",)),
        ("5 g", "5", ("unit",)),
        ("5x", "5x", ()),
        ("5 x", "5 x", ()),
        ("2xy^2", "2xy^2", ()),
        ("5 or 6 apples", "5 or 6", ("unit",)),
        ("5 plus two", "5 plus two", ()),
        ("5 million", "5000000", ("unit",)),
        ("1.5 million dollars", "1500000", ("unit",)),
        (r"2\text{ dozen}", "24", ("unit",)),
        (r"2\text{ and a half}", "2  and a half", ()),
        ("50%", "50%", ("percent",)),
        ("50 percent", r"50\%", ("percent",)),
        (r"x = 5", "5", ("equation",)),
        (r"5+11=16=16\text{ apples}", "16", ("equation", "unit")),
        (r"x=5 \text{ or } x=3", r"x=5 \text{ or } x=3", ()),
        ("x=1, y=2", "x=1, y=2", ()),
        (r"\sum_{i=1}^{4} i", r"\sum_{i=1}^{4} i", ()),
        ("x <= 5", "x <= 5", ()),
        ("800 =", "800 =", ()),
        ("30-14", "30-14", ("sum",)),
        (r"2\times 8", r"2\times 8", ("sum",)),
        (r"\frac{5+3}{2}", r"\frac{5+3}{2}", ("sum",)),
        ("3+5 apples", "3+5", ("unit", "sum")),
        ("-14", "-14", ()),
        ("1/2", "1/2", ()),
        ("3 1/2", r"3\frac{1}{2}", ()),
        ("1,2", "1,2", ()),
        ("1,00", "1,00", ()),
    ],
)
def test_what_is_not_the_value_is_dropped(piece, value, notes):
    found = read_answer(piece)
    assert (found.text, found.notes) == (value, notes)


def test_a_gold_is_cut_like_an_answer():
    # "3 + 2 = 5\n#### $1,005 dollars" -> after the last ####, without money sign, comma and unit
    assert read_gold("3 + 2 = 5\n#### $1,005 dollars").value == Fraction(1005)
    assert read_gold(r"so it is \boxed{7}").value == Fraction(7)


# Comparing


@pytest.mark.parametrize(
    "text, gold, strict, notes",
    [
        (r"\boxed{16}", "16.0", True, ()),
        (r"\boxed{+16}", "16", True, ()),
        (r"\boxed{016}", "16", True, ()),
        (r"\boxed{-16}", "16", False, ()),
        (r"\boxed{.5}", "0.50", True, ()),
        (r"\boxed{100000000000000000001}", "100000000000000000000", False, ()),
        (r"\boxed{50\%}", "50", True, ("percent",)),
        (r"\boxed{50\%}", "0.5", True, ("percent",)),
        (r"\boxed{12.5\%}", "12.5", True, ("percent",)),
        (r"\boxed{50\%}", "5", False, ("percent",)),
        (r"\boxed{0.5\%}", "50%", False, ("percent",)),
        (r"\boxed{sixteen}", "16", False, (UNREADABLE,)),
        (r"\boxed{I do not know.}", "16", False, (UNREADABLE,)),
        (r"\boxed{tuesday}", "Tuesday", True, ()),
        (r"\boxed{\text{Tuesday}.}", "Tuesday", True, ()),
        (r"\boxed{act}", "cat", False, ()),  # as letters times letters they would be equal
        (r"\boxed{.}", "16", False, (UNREADABLE,)),
        (r"\boxed{$}", "$", False, (UNREADABLE,)),
    ],
)
def test_plain_numbers_and_words_are_compared_without_any_library(no_worker, text, gold, strict, notes):
    found = grade(text, gold)
    assert (found.strict, found.lenient, found.parsed, found.notes) == (strict, strict, True, notes)


@pytest.mark.parametrize(
    "text, gold, strict, failure",
    [
        (r"\boxed{\frac{1}{2}}", "0.5", True, ""),
        (r"\boxed{1/2}", "0.5", True, ""),
        (r"\boxed{3 1/2 cups}", "3.5", True, ""),
        (r"\boxed{2\sqrt{4}}", "4", True, ""),
        (r"\boxed{x+1}", "1+x", True, ""),
        (r"\boxed{x+1}", "2+x", False, ""),
        (r"\boxed{16 and 5}", "16", False, ""),
        (r"\boxed{5x}", "5", False, ""),
        (r"\boxed{0.3333333}", "1/3", True, ""),
        (r"\boxed{800 of 5}", "5", False, ""),
        (
            r"\boxed{???}",
            "???",
            False,
            UNREADABLE,
        ),  # so a gold that nothing can be compared with fails itself
        (r"\boxed{16 ???}", "16", False, UNREADABLE),
    ],
)
def test_everything_else_is_read_by_math_verify(text, gold, strict, failure):
    found = grade(text, gold)
    assert (found.strict, found.lenient, found.failure) == (strict, strict, failure)


NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.integers(-30, 30).map(str),
    st.decimals(-(10**6), 10**6, places=3).map(str),
    st.integers(0, 999).map(lambda n: f"{n}.0"),
    st.integers(0, 99).map(lambda n: f"+{n}.50"),
    st.integers(0, 99).map(lambda n: f".{n}"),
    st.integers(0, 99).map(lambda n: f"0{n}"),
)
NEAR = st.tuples(st.integers(-50, 50), st.integers(1, 6)).map(lambda p: f"{p[0] / 10 ** p[1]:.{p[1]}f}")


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.tuples(NUMBERS, NUMBERS), st.tuples(NEAR, NEAR), NUMBERS.map(lambda n: (n, n))))
def test_the_fast_path_agrees_with_math_verify_on_plain_numbers(workers, pair):
    said, gold = map(read_answer, pair)
    assert said.value is not None and gold.value is not None  # ours alone: no library was asked
    assert compare(said, gold) == workers.ask([("box", said.text, gold.text)])[0]


def test_numbers_that_math_verify_would_round_are_left_to_it():
    assert read_answer("0.1234567").value is None  # seven places
    assert read_answer("1234567890123.125").value is None  # 16 digits and a point
    assert grade(r"\boxed{0.1234561}", "0.1234562").strict  # it rounds to six places


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_characters="\\$[", exclude_categories=["Nd"]), max_size=80))
def test_a_text_that_is_not_sent_to_math_verify_has_nothing_that_it_could_read(text):
    from math_verify import parse

    assert read(text, "5").question is None
    assert parse(text, parsing_timeout=None) == []


# Never raises, never hangs


HOSTILE = st.lists(
    st.sampled_from(
        [r"\boxed{", "}", "{", "5", "=", ",", " ml", r"\frac", "^", "%", "$", r"\text{", "9!", "(", "["]
    )
    | st.text(max_size=6),
    max_size=25,
).map("".join)


@settings(max_examples=100, deadline=None)
@given(HOSTILE, HOSTILE | st.just("5"))
def test_no_text_makes_our_own_code_raise(text, gold):
    found = read(text, gold)
    assert isinstance(found.grade, Grade) and len(found.grade.answer) <= MAX_ANSWER
    assert (found.verdict == "") != (found.question is None)


@settings(max_examples=25, deadline=None)
@given(HOSTILE)
def test_no_text_makes_grading_raise_or_hang(text):
    began = time.monotonic()
    found = grade(text, "5")
    assert found.strict <= found.lenient
    assert found.parsed or not found.strict
    assert time.monotonic() - began < 12  # ten limits and a new process, on the busiest of machines


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{10^10^10}",
        r"\boxed{" + r"\frac{1}{" * 1000 + "2" + "}" * 1001,  # too long to be read at all
        r"\boxed{" + r"\frac1{" * 60 + "2" + "}" * 61,  # short enough to be tried
        "[" * 200_000,
        "{" * 200_000,
        r"\boxed{" * 30_000,
        r"\boxed{" + "[" * 200_000,
        r"\[" * 100_000,
        r"\boxed{800",
        "\ud800" + r"\boxed{16 \ud800}",
        "\u202e\u200b" + r"\boxed{8\u200b00}",
        r"\boxed{__import__('os').system('touch /tmp/x')}",
    ],
)
def test_hostile_text_is_no_answer_within_the_limit(impatient, monkeypatch, text):
    monkeypatch.setattr(grading, "_workers", impatient)
    began = time.process_time()
    found = grade(text, "5")
    assert not found.strict and not found.lenient
    assert time.process_time() - began < 0.5  # our own process; the child's is bounded by the kernel


def test_an_answer_that_takes_longer_than_the_limit_is_no_answer_and_the_next_one_is_graded(impatient):
    impatient.ask([("box", "30-17", "16")])
    (first,) = impatient.pids()
    began = time.monotonic()
    power = ("box", "10^{10^{10}}", "5")
    assert impatient.ask([power, ("box", "30-14", "15")]) == [TIMEOUT, WRONG]
    assert 0.25 <= time.monotonic() - began < 10
    assert impatient.pids() != [first]  # killed, and another one started
    began = time.monotonic()
    assert impatient.ask([power]) == [TIMEOUT]
    assert time.monotonic() - began < 0.1  # known by now


def test_fractions_a_thousand_deep_end_in_the_process_even_if_they_are_sent_there(impatient):
    deep = r"\frac{1}{" * 1000 + "2" + "}" * 1000
    assert impatient.ask([("box", deep, "5"), ("box", "30-14", "16")]) in (
        [TIMEOUT, RIGHT],
        [UNREADABLE, RIGHT],
    )


def test_a_child_that_sleeps_instead_of_working_is_killed_too(workers, monkeypatch):
    assert workers.ask([("box", "30-14", "16")]) == [RIGHT]
    monkeypatch.setattr(workers._children[0], "wall_s", 0.3)
    os.kill(workers.pids()[0], signal.SIGSTOP)
    assert workers.ask([("box", "2^2", "5")]) == [TIMEOUT]


def test_timeouts_are_noted_and_kept_apart_from_wrong_answers():
    found = grade(r"\boxed{10^{10^{10}}}", "5")
    assert (found.parsed, found.strict, found.lenient) == (True, False, False)
    assert found.failure == "timeout" and found.notes == ("sum", "timeout")
    assert grade(r"\boxed{6}", "5").failure == ""


# The processes


def test_the_grading_processes_import_no_torch_and_neither_does_this_module():
    # the child says so itself in its first line
    child = subprocess.run(
        [sys.executable, "-P", grade_worker.__file__, "1.0"], input=b"", capture_output=True, check=True
    )
    assert json.loads(child.stdout) == {"ready": True, "torch": False}
    code = "import sys, cotalk.grade; print('torch' in sys.modules, 'math_verify' in sys.modules)"
    ours = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=_environment())
    assert ours.stdout.split() == [b"False", b"False"]


def _environment():
    return {**os.environ, "PYTHONPATH": str(Path(grading.__file__).parents[1])}


def test_nothing_is_started_until_a_library_is_needed():
    workers = Workers()
    assert workers.pids() == []
    assert workers.ask([]) == [] and workers.pids() == []


def test_a_batch_keeps_its_order_and_asks_equal_questions_once():
    workers = Workers(count=2)
    asked = [("box", f"{n % 20}+1", str(n % 10 + 1)) for n in range(40)]
    # the answer is n % 20 + 1, the gold n % 10 + 1: right for n % 20 < 10
    try:
        assert workers.ask(asked) == [RIGHT if n % 20 < 10 else WRONG for n in range(40)]
        assert len(workers.pids()) == 2  # 20 different questions are worth two processes
        assert workers.ask(asked[::-1]) == [RIGHT if n % 20 < 10 else WRONG for n in range(39, -1, -1)]
    finally:
        workers.close()
    assert workers.pids() == []


def test_grades_come_back_in_the_order_of_the_pairs():
    pairs = [(rf"\boxed{{{n}}}", "3") for n in (1, 3, 2, 3)] + [("It is 3.", "3"), (r"\boxed{1+2}", "3")]
    assert [found.strict for found in grade_many(pairs)] == [False, True, False, True, False, True]
    assert [found.lenient for found in grade_many(pairs)] == [False, True, False, True, True, True]
    assert grade_many([]) == []


def test_a_grading_process_killed_from_outside_costs_no_answer(workers):
    workers.ask([("box", "1+1", "2")])
    os.kill(workers.pids()[0], signal.SIGKILL)
    assert workers.ask([("box", "1+2", "3")]) == [RIGHT]


def test_an_answer_that_kills_two_processes_is_noted_as_crashed(workers, monkeypatch):
    give, asked = grade_worker._Child.give, ("box", "1+7", "8")

    def give_and_kill(child, question):
        os.kill(child.process.pid, signal.SIGKILL)
        give(child, question)

    monkeypatch.setattr(grade_worker._Child, "give", give_and_kill)
    assert workers.ask([asked]) == [CRASHED]
    assert asked not in workers._known  # the next time it is tried again


def test_an_interrupted_batch_leaves_no_verdict_for_the_next_one(workers, monkeypatch):
    workers.ask([("box", "1+1", "2")])

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "_heard_from", interrupt)
    with pytest.raises(KeyboardInterrupt):
        workers.ask([("box", "1+1", "3")])
    monkeypatch.undo()
    assert workers.ask([("box", "1+4", "5")]) == [RIGHT]


def test_a_process_that_cannot_start_says_what_to_type(tmp_path):
    (tmp_path / "math_verify.py").write_text("raise SystemExit(3)")
    workers = Workers(count=1, environment={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(RunFailed, match=r"status 3 before it was ready.*import math_verify"):
        workers.ask([("box", "1+1", "2")])


def _grade_in_a_worker(results):
    results.put(grade(r"\boxed{1+15}", "16").strict)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_grading_works_inside_a_daemonic_worker_and_leaves_the_parents_processes_alone(start):
    assert grade(r"\boxed{1+14}", "15").strict  # so that there is a process to inherit
    before = grading._workers.pids()
    context = multiprocessing.get_context(start)
    results = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads of other tests
        process = context.Process(target=_grade_in_a_worker, args=(results,), daemon=True)
        process.start()
    assert results.get(timeout=60) is True
    process.join(10)
    assert process.exitcode == 0
    assert grade(r"\boxed{1+13}", "14").strict
    assert grading._workers.pids() == before


@pytest.mark.parametrize("end", ["pass", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_grading_processes_end_with_the_one_that_started_them(end):
    code = rf"""
import importlib
g = importlib.import_module('cotalk.grade')
assert g.grade(r'\boxed{{1+1}}', '2').strict
print(g._workers.pids()[0], flush=True)
{end}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=_environment(), check=False)
    pid = int(done.stdout)
    for _ in range(100):
        if not _alive(pid):
            return
        time.sleep(0.05)  # a killed parent is noticed when its end of the pipe closes
    raise AssertionError(f"grading process {pid} is still there")


def _alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# Without Math-Verify


def test_without_math_verify_plain_numbers_are_graded_and_the_rest_is_counted(without_math_verify):
    pairs = [(r"\boxed{8,000 ml}", "8000"), (r"\boxed{1+1}", "2"), ("It is 2.", "2"), ("I do not know.", "2")]
    with pytest.warns(UserWarning, match=r"pip install math-verify"):
        number, total, prose, nothing = grade_many(pairs)
    assert number.strict and number.failure == ""
    assert (total.strict, total.lenient, total.notes) == (False, False, ("sum", MISSING))
    assert (prose.lenient, prose.notes) == (False, ("no box", MISSING))
    assert nothing.notes == ("no box",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert grade(r"\boxed{1+2}", "3").failure == MISSING


# Caps


def test_a_long_message_is_read_by_its_last_characters():
    long = r"\boxed{1}" + "x" * MAX_TEXT
    assert grade(long, "1").notes == ("capped", "no box")
    assert grade(long + r"\boxed{2}", "2").strict


def test_a_long_box_and_a_long_gold_are_no_answer():
    found = grade(r"\boxed{" + "1+" * MAX_ANSWER + "1}", "5")
    assert (found.parsed, found.strict, found.failure, len(found.answer)) == (True, False, "long", MAX_ANSWER)
    assert grade(r"\boxed{5}", "1+" * MAX_ANSWER + "1").failure == "long"


def test_every_failure_is_told_apart_from_a_wrong_answer():
    assert set(FAILURES) == {"no box", "long", "unreadable", "timeout", "crashed", "needs math-verify"}
    assert grade(r"\boxed{5}", "6") == Grade(False, False, True, "5", (), 1)
    assert grade("It is 5.", "6") == Grade(False, False, False, "", ("no box",), 0)


# A user's grader


def test_the_example_grader_gives_full_half_and_no_points():
    close = load_grader(f"{EXAMPLE}:close")
    assert isinstance(close, FileGrader)
    pairs = [(r"\boxed{100}", "100"), ("It is 95.", "100"), ("It is 80.", "100"), ("nothing", "100")]
    found = grade_many(pairs, close)
    assert [g.score for g in found] == [1.0, 0.5, 0.0, 0.0]  # 95 is within 10 of 100, 80 is not
    assert [g.strict for g in found] == [True, False, False, False]
    assert [g.parsed for g in found] == [True, False, False, False]
    assert team_reward({"A": found[0], "B": found[1]}, "strict") == ({"A": 1.0, "B": 0.5}, 0.75)


def test_a_grader_may_give_a_bool():
    found = grade_many([("yes", "no"), ("yes", "yes")], lambda text, gold: text == gold)
    assert [g.score for g in found] == [0.0, 1.0]


@pytest.mark.parametrize(
    "body, match",
    [
        ("raise KeyError('apples')", r"judge\.py:judge raised KeyError: 'apples'.*'the text'.*'7'"),
        ("return 1.5", r"judge\.py:judge returned 1\.5.*expected a bool or a float in \[0, 1\]"),
        ("return None", r"judge\.py:judge returned None"),
        ("return float('nan')", r"judge\.py:judge returned nan"),
    ],
)
def test_what_a_users_grader_does_wrong_is_reported_with_its_file(tmp_path, body, match):
    file = tmp_path / "judge.py"
    file.write_text(f"def judge(text, gold):\n    {body}\n")
    with pytest.raises(RunFailed, match=match):
        grade_many([("the text", "7")], load_grader(f"{file}:judge"))


@pytest.mark.parametrize(
    "spec, match",
    [
        ("judge", "expected grade = file.py:function"),
        ("{}/none.py:judge", r"there is no file .*none\.py"),
        ("{}/empty.py:judge", r"empty\.py has no function 'judge'"),
        ("{}/broken.py:judge", r"broken\.py: importing it raised ZeroDivisionError"),
        ("{}/notes.txt:judge", r"notes\.txt: expected a Python file"),
        ("{}/empty.py:two words", "expected grade = file.py:function"),
    ],
)
def test_a_grader_that_cannot_be_loaded_is_refused_before_anything_runs(tmp_path, spec, match):
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "notes.txt").write_text("judge")
    with pytest.raises(BadInput, match=match):
        load_grader(spec.format(tmp_path))


# The team


def test_the_team_reward_is_the_mean_over_seats():
    right, wrong, unboxed = (grade(t, "7") for t in (r"\boxed{7}", r"\boxed{8}", "It is 7."))
    seats, team = team_reward({"A": right, "B": wrong, "C": unboxed}, "strict")
    assert seats == {"A": 1.0, "B": 0.0, "C": 0.0} and math.isclose(team, 1 / 3)
    seats, team = team_reward({"A": right, "B": wrong, "C": unboxed}, "lenient")
    assert seats == {"A": 1.0, "B": 0.0, "C": 1.0} and math.isclose(team, 2 / 3)


def test_a_misspelt_reward_and_an_empty_team_are_refused():
    with pytest.raises(BadInput, match=r'reward = .loose.: expected "strict" or "lenient"'):
        team_reward({"A": grade(r"\boxed{7}", "7")}, "loose")
    with pytest.raises(BadInput, match="no seats"):
        team_reward({}, "strict")
