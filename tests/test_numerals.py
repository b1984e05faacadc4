"""Reading numbers: every form by an example worked out, and any text by hypothesis."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotalk.numerals import has_number, located, numbers

HALF = Fraction(1, 2)
SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def spoken(number: int) -> str:
    """A number below a billion in words; the inverse that the parser is held against."""
    for scale, name in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= scale:
            rest = f" {spoken(number % scale)}" if number % scale else ""
            return f"{spoken(number // scale)} {name}{rest}"
    if number < 20:
        return SMALL[number]
    return TENS[number // 10] + (f"-{SMALL[number % 10]}" if number % 10 else "")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,000 and 10,20", [1000, 10, 20]),
        ("1,234,567.5", [Fraction(2469135, 2)]),
        (r"8{,}000", [8000]),
        ("$2.50, $.50 and .5", [Fraction(5, 2), HALF, HALF]),
        ("the rest is over.30 remain", [30]),
        ("3/4, 2/3rds, 1 1/2 and 1½", [Fraction(3, 4), Fraction(2, 3), Fraction(3, 2), Fraction(3, 2)]),
        ("1/0 and 5 8/2", [1, 0, 5, 4]),
        ("25% or twenty-five percent", [25, 25]),
        ("10-3, 5kg, x2, 5:30", [10, 3, 5, 2, 5, 30]),
        ("twenty-five thirty-pound bags", [25, 30]),
        ("five ten-pound bags; one two three", [5, 10, 1, 2, 3]),
        ("two hundred and six; a hundred and five; twenty five hundred", [206, 105, 2500]),
        ("three hundred and two hundred", [300, 200]),
        ("two million three hundred thousand five", [2300005]),
        ("5 million, 1.5 million, 3 hundred", [5000000, 1500000, 300]),
        ("a dozen, two dozen, 3 dozen, half a dozen", [12, 24, 36, 6]),
        ("half an hour, half-hour, one-half", [HALF, HALF, HALF]),
        ("two-thirds; a third of them; three quarters", [Fraction(2, 3), Fraction(1, 3), Fraction(3, 4)]),
        ("two and a half, 2 and a quarter", [Fraction(5, 2), Fraction(9, 4)]),
        ("six quarters and a dime", [6]),  # coins
        ("twice as many, thrice, tripled, a couple of, once a week", [2, 3, 3, 2, 1]),
        ("TWENTY Two", [22]),
        ("“fifty” — sixty", [50, 60]),
    ],
)
def test_each_form_of_a_number_is_read(text: str, values: list[Fraction]) -> None:
    assert numbers(text) == values


@pytest.mark.parametrize(
    "text",
    [
        "No one knows; each one; which one?",
        "The red one is broken.",
        "One day, he met one another's one-time friend.",
        "Once he arrived, someone was alone.",
        "the first, the second and a third friend; the twenty-third",
        "dozens and hundreds of them",
        "phone, often, tent, weight, attend",
        "",
    ],
)
def test_words_that_count_nothing_are_no_numbers(text: str) -> None:
    assert numbers(text) == []
    assert not has_number(text)


def test_one_counts_where_it_is_a_quantity() -> None:
    assert numbers("one of them has one egg") == [1, 1]


@given(st.integers(1, 10**9 - 1))
def test_a_number_in_words_has_the_value_of_its_digits(number: int) -> None:
    assert numbers(spoken(number)) == numbers(f"{number:,}") == numbers(str(number)) == [number]


@given(st.text())
def test_no_text_makes_the_reader_fail(text: str) -> None:
    assert all(isinstance(value, Fraction) and value >= 0 for value in numbers(text))


@pytest.mark.parametrize(
    "piece", ["9", "1,000", "one ", "1 ", "1/", "hundred and ", "thousand one ", "twenty-", " "]
)
def test_a_huge_text_takes_time_in_proportion(piece: str) -> None:
    began = time.perf_counter()
    numbers(piece * 20_000)
    assert time.perf_counter() - began < 5  # 0.1 to 0.3 s here; a quadratic reader would take minutes


def test_a_run_of_digits_too_long_to_be_a_number_is_passed_over() -> None:
    assert numbers("7 and " + "9" * 5000 + " and 8") == [7, 8]


def test_each_number_is_found_where_it_stands() -> None:
    text = "½ of  the 1½ dozen\n and 3 1/2 - twenty–five, 1,200 or two  hundred"
    found = [(text[start:end], *map(str, values)) for start, end, values in located(text)]
    assert found == [
        ("½", "1/2"),
        ("1½", "3/2"),
        ("dozen", "12"),
        ("3 1/2", "7/2"),
        ("twenty–five", "25"),
        ("1,200", "1200"),
        ("two  hundred", "200"),
    ]


@given(st.text(alphabet="0123456789 \n,./-½¾abcdeghilnorstuwy–%"))
def test_the_numbers_that_are_located_are_the_numbers_that_are_read(text: str) -> None:
    found = located(text)
    assert [value for *_, values in found for value in values] == numbers(text)
    ends = [0, *(place for start, end, _ in found for place in (start, end)), len(text)]
    assert ends == sorted(ends)
