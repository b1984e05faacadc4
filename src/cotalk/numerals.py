"""Read the numbers in an English text, digits and words alike.

What counts: digits with thousands commas, decimals (`.5` too), fractions (`1/2`, `1 1/2`, `1½`), percents,
number words ("twenty-five", "two hundred and six", "5 million"), parts and multiples ("half", "two thirds",
"twice", "a dozen"). A percent is the number that is written: "25%" is 25. What is left out on purpose:
signs (in "10-3" nobody can tell), ordinal words ("second" is also a unit of time), and "one" where it
counts nothing ("no one", "the red one", "one another").

Use `numbers("She eats half of the 12 eggs.")`, which is `[Fraction(1, 2), Fraction(12)]`. Values are exact,
in text order, and whole ones compare and hash like integers. The grammar is one regular expression, built
below from named pieces; no text raises, and the time is linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

MAX_DIGITS = 40  # a longer run of digits is no number of a word problem


def _numbered(words: str, start: int, step: int = 1) -> dict[str, int]:
    return {word: start + step * at for at, word in enumerate(words.split())}


UNITS = _numbered("one two three four five six seven eight nine", 1)
TEENS = _numbered("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen", 10)
TENS = _numbered("twenty thirty forty fifty sixty seventy eighty ninety", 20, 10)
BIG = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
SCALES = BIG | {"hundred": 100, "dozen": 12}
VALUES = {"zero": 0, "a": 1, "an": 1} | UNITS | TEENS | TENS
FRACTIONAL = _numbered("third fourth fifth sixth seventh eighth ninth tenth", 3) | {
    "twelfth": 12,
    "twentieth": 20,
}
PARTS = {"half": 2, "quarter": 4} | FRACTIONAL
MULTIPLES: dict[str, Fraction] = {
    **dict.fromkeys(("twice", "double", "doubles", "doubled", "couple of"), Fraction(2)),
    **dict.fromkeys(("thrice", "triple", "triples", "tripled"), Fraction(3)),
    **dict.fromkeys(("quadruple", "quadruples", "quadrupled"), Fraction(4)),
    "once": Fraction(1),
    "halved": Fraction(1, 2),
}
GLYPHS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅛": "1/8"}


def _any(words: Iterable[str]) -> str:
    return f"(?:{'|'.join(words)})"


ORDINALS = "first|second|third|fourth|fifth|sixth|seventh|eighth|ninth"
NO_ORDINAL = rf"\b(?!-(?:{ORDINALS})\b)"  # "twenty-third" counts nothing
LOW = rf"(?:{_any(TENS)}(?:[- ]{_any(UNITS)}\b|{NO_ORDINAL})|(?:{_any(TEENS)}|{_any(UNITS)}|zero)\b)"
HUNDREDS = rf"(?:(?:{LOW}|an?)[ -])?hundred\b(?:(?: and)?[ -]{LOW}(?![ -](?:hundred|dozen)\b))?"
BELOW_1000 = rf"(?:{HUNDREDS}|{LOW})"
CARDINAL = (
    rf"(?:(?:(?:{BELOW_1000}|an?)[ -])?{_any(BIG)}\b(?:(?: and)? {BELOW_1000}(?:[ -]{_any(BIG)}\b)?){{0,3}}"
    rf"|{BELOW_1000}|(?:an? )?dozen\b)"
)
DECIMAL = (
    r"(?:(?:[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?|(?<![0-9A-Za-z])\.[0-9]++)"
)
# "two quarters" are coins, "three quarters" are a part
COUNTED_PARTS = rf"(?:(?:{_any(UNITS)}|{_any(TEENS)})[ -]{_any(FRACTIONAL)}s|three[ -]quarters)"
OF = r"(?= (?:of|as|more|less|fewer|the)\b)"  # "a third of" is a part, "a third friend" is not
ONE_PART = rf"(?:one[ -]{_any(PARTS)}|an?[ -](?:half|quarter)|an?[ -]{_any(PARTS)}{OF})"
ANY_PART = rf"(?:{COUNTED_PARTS}|(?:one|an?)[ -]{_any(PARTS)})\b"
SCALE_AND_PART = rf"(?:[ -](?P<scale>{_any(SCALES)})\b)?(?: and (?P<and_part>{ANY_PART}))?"

NUMBER = re.compile(
    "|".join(
        [
            r"(?:(?P<whole>[0-9]++)[ -])?(?P<top>[0-9]++)/(?P<bottom>[0-9]++)(?:rds?|ths?)?",
            rf"(?<![A-Za-z])(?P<part>{COUNTED_PARTS}|{ONE_PART})\b",
            rf"(?<![A-Za-z])(?P<half>half)\b(?:[ -](?:a )?(?P<half_scale>{_any(SCALES)})\b)?",
            rf"(?<![A-Za-z])(?P<multiple>{_any(MULTIPLES)})\b",
            rf"(?:(?P<digits>{DECIMAL})|(?<![A-Za-z])(?P<words>{CARDINAL})){SCALE_AND_PART}",
        ]
    ),
    re.IGNORECASE,
)
TIDY = str.maketrans(
    {"\u2019": "'", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\u2014": "-", "\u2044": "/"}
)
GLYPH = re.compile(rf"(?<=[0-9])[ ]?([{''.join(GLYPHS)}])|([{''.join(GLYPHS)}])")
ONE_BEFORE = re.compile(r"\b(?:no|each|every|any|which|the|that|this|other|another|some)[ -]$", re.IGNORECASE)
ONE_AFTER = re.compile(r"(?: another\b|'s\b|-(?:time|way|on)\b)", re.IGNORECASE)
THE_RED_BEFORE = re.compile(r"\b(?:the|this|that|a|an|each|every) [a-z]+ $", re.IGNORECASE)
THE_RED_AFTER = re.compile(
    r"(?:[.,;:?!)]|$| (?:is|was|has|had|can|could|will|that|who|which|costs?|but|and)\b)"
)
ONE_DAY = re.compile(r" (?:day|morning|afternoon|evening|night|weekend|summer|winter)\b")
ONCE_AFTER = re.compile(r" (?:an?|per|every|each)\b", re.IGNORECASE)


def numbers(text: str) -> list[Fraction]:
    """The values of all numbers in `text`, in text order, exact."""
    tidy = " ".join(text.translate(TIDY).split())
    tidy = GLYPH.sub(lambda found: f" {GLYPHS[found[1] or found[2]]}", tidy)
    return [value for match in NUMBER.finditer(tidy) for value in _values(match, tidy)]


def values(texts: Iterable[str]) -> frozenset[Fraction]:
    """The numbers that stand in any of these texts."""
    return frozenset().union(*map(_in_one, texts))


@lru_cache(maxsize=1 << 14)
def _in_one(text: str) -> frozenset[Fraction]:
    return frozenset(numbers(text))


def located(text: str) -> list[tuple[int, int, list[Fraction]]]:
    """Where each number of `text` stands and what it is worth: (start, end, values); together, `numbers(text)`."""
    tidy, places = _placed(text)
    return [
        (places[match.start()], places[match.end() - 1] + 1, values)
        for match in NUMBER.finditer(tidy)
        if (values := _values(match, tidy))
    ]


def _placed(text: str) -> tuple[str, list[int]]:
    """The text as `numbers` reads it, and for each of its characters the place in `text` that it stands for."""
    letters: list[str] = []
    places: list[int] = []
    for word in re.finditer(r"\S+", text.translate(TIDY)):
        if letters:
            letters.append(" ")
            places.append(word.start() - 1)
        letters += word[0]
        places += range(*word.span())
    tidy: list[str] = []
    told: list[int] = []
    last = 0
    for glyph in GLYPH.finditer("".join(letters)):
        fraction = f" {GLYPHS[glyph[1] or glyph[2]]}"
        tidy += [*letters[last : glyph.start()], fraction]
        told += places[last : glyph.start()] + [places[glyph.end() - 1]] * len(fraction)
        last = glyph.end()
    return "".join([*tidy, *letters[last:]]), told + places[last:]


def has_number(text: str) -> bool:
    """Whether `text` holds a number, in digits or in words."""
    return any("0" <= letter <= "9" for letter in text) or bool(numbers(text))


def _values(match: re.Match[str], text: str) -> list[Fraction]:
    """What one match is worth; nothing for a "one" or "once" that counts nothing, and for endless digits."""
    if match["top"]:
        return _written_fraction(match["whole"], match["top"], match["bottom"])
    if match["part"]:
        return [_part(match["part"])]
    if match["half"]:
        return [Fraction(SCALES.get((match["half_scale"] or "").lower(), 1), 2)]
    if match["multiple"]:
        counts = match["multiple"].lower() != "once" or ONCE_AFTER.match(text, match.end())
        return [MULTIPLES[match["multiple"].lower()]] if counts else []
    value = _decimal(match["digits"]) if match["digits"] else Fraction(_cardinal(match["words"]))
    if value is None or (match["words"] and not _counts(match, text)):
        return []
    value *= SCALES.get((match["scale"] or "").lower(), 1)
    return [value + _part(match["and_part"]) if match["and_part"] else value]


def _written_fraction(whole: str | None, top: str, bottom: str) -> list[Fraction]:
    """`3/4`, `1 3/4`; two numbers where it cannot be one (`5 8/2`, `1/0`)."""
    parts = [_decimal(digits) for digits in (whole, top, bottom) if digits]
    if any(part is None for part in parts):
        return []
    known = [part for part in parts if part is not None]
    if known[-1] == 0:
        return known
    ratio = known[-2] / known[-1]
    if whole and ratio < 1:
        return [known[0] + ratio]
    return [*known[:-2], ratio]


def _decimal(digits: str) -> Fraction | None:
    plain = digits.replace("{,}", "").replace(",", "")
    return Fraction(plain) if len(plain) <= MAX_DIGITS else None


def _part(words: str) -> Fraction:
    """ "two-thirds" -> 2/3, "a quarter" -> 1/4."""
    top, name = re.split("[ -]", words.lower())
    return Fraction(VALUES[top], PARTS[name] if name in PARTS else PARTS[name.removesuffix("s")])


def _cardinal(words: str) -> int:
    """Number words that make one number: "two hundred and six" -> 206."""
    total, current = 0, 0
    for word in re.split("[ -]", words.lower()):
        if word == "and":
            continue
        if word in BIG:
            total, current = total + max(current, 1) * BIG[word], 0
        elif word in SCALES:  # hundred, dozen
            current = max(current, 1) * SCALES[word]
        else:
            current += VALUES[word]
    return total + current


def _counts(match: re.Match[str], text: str) -> bool:
    """Whether the words are a quantity; "one" is none in "no one", "the red one", "One day, ..."."""
    if match.group().lower() != "one":
        return True
    before = text[max(0, match.start() - 30) : match.start()]
    if ONE_BEFORE.search(before) or ONE_AFTER.match(text, match.end()):
        return False
    if THE_RED_BEFORE.search(before) and THE_RED_AFTER.match(text, match.end()):
        return False
    return not (match.group() == "One" and ONE_DAY.match(text, match.end()))
