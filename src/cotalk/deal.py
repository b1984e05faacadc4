"""Cut a problem into facts and a question, and deal the facts to the seats.

Two rules. `published` is the rule of the published study, kept to the letter so that its tasks come out the
same: it cuts at "Mrs." and sees only digits. `clean`, the default, cuts with a sentence segmenter
(sentencex) and reads number words. Under both, the question is the last sentence that ends in "?", every
other sentence is a fact, facts are dealt round-robin (seat A gets facts 0, 2, 4, ... of two seats), and
every hand must hold a number.

What is left out: judging whether a problem can be solved from one hand alone (the half-hand condition
measures that), and choosing train, dev and held-out (split.py).

    deal(task, seats="AB", rule="clean").hands  ->  {"A": ("She has 3 cats.", ...), "B": (...)}
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from cotalk.errors import BadInput, printable
from cotalk.numerals import has_number, numbers, values
from cotalk.task import SPLITS, Task, doubtful, endless, for_seats, load, split_names, worded

__all__ = [
    "RULES",
    "CannotDeal",
    "Deal",
    "cut",
    "deal",
    "deal_all",
    "full_hand",
    "half_hand",
    "numbers",
    "show",
]

NO_QUESTION = "no sentence ends in a question mark"
TOO_FEW_FACTS = "fewer facts than seats"
NO_NUMBER = "a hand without a number"
TOO_LONG = "a text too long for a problem"
MAX_TEXT = 20_000  # characters of a problem; sentencex takes 12 s for 160,000 opening quotation marks


class CannotDeal(BadInput):
    """This task cannot be dealt; `reason` is one of a few short strings, made to be counted."""

    def __init__(self, task: Task, reason: str, detail: str) -> None:
        where = f"{task.place}: " if task.place else ""
        super().__init__(f"{where}task {task.id!r} cannot be dealt: {reason} ({detail})", "task/not-dealt")
        self.reason = reason


@dataclass(frozen=True)
class Deal:
    """A task whose facts are in the seats' hands."""

    task: Task
    facts: tuple[str, ...]
    question: str
    hands: dict[str, tuple[str, ...]]  # seat -> its facts, in text order

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def gold(self) -> str:
        return self.task.gold

    @property
    def text(self) -> str:
        """Facts and question in a row, white space made equal: the same text is the same problem."""
        return " ".join(" ".join((*self.facts, self.question)).split())

    def lacks(self, seat: str) -> frozenset[Fraction]:
        """The numbers that its partners hold, and neither its own hand nor the question."""
        others = values(fact for other, hand in self.hands.items() if other != seat for fact in hand)
        return others - values((*self.hands[seat], self.question))


# --- cutting ---------------------------------------------------------------------------------------

SIGHT = 60  # letters on each side of a boundary that are looked at
CLOSERS = "\"'”’)]"
PUBLISHED_BOUNDARY = re.compile(r"(?<=[.?!])\s+(?=[A-Z$])")
TITLE = re.compile(r"(?<![\w&])(?:Mr|Mrs|Ms|Mx|Dr|Prof|Messrs|Rev|Gen|Col|Lt|Sgt|Capt|Gov|Sen|Rep|Hon|vs)\.$")
UNSURE = re.compile(
    r"\b(?:St|Mt|Ft|Jr|Sr|Ph|Inc|Co|Ltd|[Nn]o|[Aa]ve|[Aa]pprox|Fig|e\.g|i\.e)\.$"
)  # left to sentencex
UNIT = re.compile(
    r"(?:\b(?:lbs?|oz|ft|yds?|hrs?|mins?|secs?|sq|cu|gal|pts?|qts?|approx)|[0-9] ?in)\.$", re.IGNORECASE
)
UNIT_LETTER = re.compile(r"[0-9] ?[a-z]{1,3}[23]?\.$")  # "125 g."
LABEL = re.compile(r"\b(\w+),? [A-Z]\.$")  # "jar A."
HOUR = re.compile(r"\b[ap]\.m\.$", re.IGNORECASE)
WORD_END = re.compile(r"(?:[A-Za-z'’]{2}|[0-9])\.$|[!?…)]$")
ZONE = re.compile(r"(?:[ECMP][SD]?T|GMT|UTC|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?)\b")
HALF_LETTER = re.compile("[\ud800-\udfff]")
INCH_MARK = re.compile(r"(?<=[0-9])[\"”]")
STOP = re.compile(rf"[.!?…][{re.escape(CLOSERS)}]*(?:(\s+)(?=[\"“(]?[A-Z0-9$])|(?=[A-Z][a-z ]))")  # "3.She"


def cut(text: str, rule: str = "clean") -> tuple[tuple[str, ...], str]:
    """The facts of a problem in text order, and its question ("" where no sentence ends in "?")."""
    sentences = _rule(rule).sentences(text)
    asking = [at for at, sentence in enumerate(sentences) if _rule(rule).asks(sentence)]
    if not asking:
        return tuple(sentences), ""
    last = asking[-1]
    return tuple(sentences[:last] + sentences[last + 1 :]), sentences[last]


def _published_sentences(text: str) -> list[str]:
    parts = (part.strip() for part in PUBLISHED_BOUNDARY.split(text))
    return [part for part in parts if part]


def _clean_sentences(text: str) -> list[str]:
    """sentencex, with the boundaries put right that it misses or invents in word problems."""
    flat = " ".join(text.split())
    masked = INCH_MARK.sub("″", flat)  # a lone inch mark would open a quotation that never ends
    masked = HALF_LETTER.sub("\ufffd", masked)  # sentencex takes UTF-8 only
    sentences: list[str] = []
    end = 0
    for piece in _segment(masked):
        for part in _missed_boundaries(piece):
            start, end = end, end + len(part)
            sentence = flat[start:end].strip()
            if sentences and _belongs_together(sentences[-1][-SIGHT:], sentence[:SIGHT]):
                sentences[-1] = f"{sentences[-1]} {sentence}"
            elif sentence:
                sentences.append(sentence)
    return sentences


def _segment(text: str) -> list[str]:
    try:
        import sentencex
    except ImportError as error:
        raise BadInput(
            'rule "clean" cuts sentences with the package sentencex, which is not installed here; '
            "type: pip install sentencex",
            "package/missing",
        ) from error
    return list(sentencex.segment("en", text))


def _missed_boundaries(piece: str) -> list[str]:
    """`piece` cut once more, outside quotations and brackets, where a sentence plainly ends."""
    cuts = [0]
    depth, quoted, read = 0, False, 0
    for stop in STOP.finditer(piece):
        spaces = len(stop[1] or "")
        for letter in piece[read : stop.end() - spaces]:
            depth = max(0, depth + (letter == "(") - (letter == ")"))
            quoted = {"“": True, "”": False, '"': not quoted}.get(letter, quoted)
        read = stop.end() - spaces
        if (
            not depth
            and not quoted
            and _ends_here(piece[max(cuts[-1], read - SIGHT) : read], piece[stop.end() : stop.end() + SIGHT])
        ):
            cuts.append(stop.end())
    return [piece[start:end] for start, end in zip(cuts, [*cuts[1:], len(piece)], strict=True)]


def _ends_here(before: str, after: str) -> bool:
    """Whether a sentence ends between `before`, which ends in a stop, and `after`."""
    if TITLE.search(before) or UNSURE.search(before):
        return False
    if HOUR.search(before):
        return not ZONE.match(after)
    label = LABEL.search(before)
    if label:  # "than jar A. Jar C has": a label; "by J. Smith": an initial
        noun = label[1]
        return noun not in ("by", "named", "called") and (noun.islower() or noun in after.split()[:3])
    capital = after.lstrip('"“(')[:1].isalpha()
    return capital and bool(WORD_END.search(before) or UNIT_LETTER.search(before))


def _belongs_together(before: str, after: str) -> bool:
    """Whether `after` only looks like a new sentence: "in Ms." + "Leech's class", "3 lbs." + "of coffee"."""
    if not any(letter.isalnum() for letter in after) or before.rstrip(".").isdigit():
        return True  # stray punctuation; the number of a list item
    if TITLE.search(before) or (HOUR.search(before) and ZONE.match(after)):
        return True
    return (bool(UNIT.search(before)) and after[:1].islower()) or bool(re.match(r"[ap]\.?m\b", after))


def _has_digit(text: str) -> bool:
    return any("0" <= letter <= "9" for letter in text)


@dataclass(frozen=True)
class Rule:
    """How a text is cut, what a question looks like, and what counts as holding a number."""

    sentences: Callable[[str], list[str]]
    asks: Callable[[str], bool]
    has_number: Callable[[str], bool]


RULES = {
    "published": Rule(_published_sentences, lambda sentence: sentence.endswith("?"), _has_digit),
    "clean": Rule(_clean_sentences, lambda sentence: sentence.rstrip(CLOSERS).endswith("?"), has_number),
}


def _rule(name: str) -> Rule:
    if name not in RULES:
        raise BadInput(f"rule {name!r} is not known; expected one of {', '.join(RULES)}", "config/choice")
    return RULES[name]


# --- dealing ---------------------------------------------------------------------------------------


def deal(task: Task, seats: str = "AB", rule: str = "clean") -> Deal:
    """Cut `task` by `rule`, unless it brings its own facts, and deal the facts round-robin to `seats`.

    Raises CannotDeal where the text is too long, there is no question, fewer facts than seats, or a hand without a
    number.
    """
    if not seats.isalpha() or not seats.isascii() or len(set(seats)) != len(seats):
        raise BadInput(
            f"seats {seats!r}; expected one letter a seat, each once, such as AB or ABC", "order/seats"
        )
    if len(task.text) > MAX_TEXT:
        raise CannotDeal(task, TOO_LONG, f"{len(task.text):,} characters, at most {MAX_TEXT:,}")
    facts, question = (task.facts, task.question) if task.facts else cut(task.problem, rule)
    if not question:
        raise CannotDeal(task, NO_QUESTION, f"it ends in {task.text[-40:]!r}")
    if len(facts) < max(len(seats), 1):
        raise CannotDeal(task, TOO_FEW_FACTS, f"{len(facts)} for {len(seats)}")
    hands = {seat: facts[at :: len(seats)] for at, seat in enumerate(seats)}
    for seat, hand in hands.items():
        if not any(map(_rule(rule).has_number, hand)):
            raise CannotDeal(task, NO_NUMBER, f"seat {seat} would hold {' '.join(hand)[:60]!r}")
    return Deal(task, facts, question, hands)


def full_hand(dealt: Deal) -> Deal:
    """The same task with all its facts in one hand: the skyline."""
    return replace(dealt, hands={"A": dealt.facts})


def half_hand(dealt: Deal, seat: str) -> Deal:
    """The same task with only the facts of `seat`, alone at the table: the floor."""
    if seat not in dealt.hands:
        raise BadInput(
            f"seat {seat!r} has no hand in task {dealt.id!r}; expected one of {', '.join(dealt.hands)}",
            "order/seats",
        )
    return replace(dealt, hands={"A": dealt.hands[seat]})


def deal_all(
    tasks: Iterable[Task], seats: str = "AB", rule: str = "clean", limit: int | None = None
) -> tuple[list[Deal], Counter[str]]:
    """The first `limit` tasks that can be dealt, and how many could not be, by reason."""
    dealt: list[Deal] = []
    refused: Counter[str] = Counter()
    for task in tasks if limit is None or limit > 0 else ():
        try:
            dealt.append(deal(task, seats, rule))
        except CannotDeal as error:
            refused[error.reason] += 1
        if len(dealt) == limit:
            break
    return dealt, refused


# --- the command `cotalk deal` ---------------------------------------------------------------------

FIRST = (300, 1024)  # the published study's held-out and train counts: show says where they end
ENDLESS_LIMIT = 100  # tasks dealt of an endless source when no limit is given


def show(
    source: str,
    *,
    rule: str = "clean",
    seats: str = "AB",
    split: str = "all",
    limit: int | None = None,
    out: str | None = None,
    seed: int = 0,
    rows: int = 10,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Deal a source; print the first `rows` tasks of each split, and the counts of refusals by reason.

    Args:
        split: "all", or one of the source's own ("train", "test", ...).
        limit: stop after so many dealt tasks a split (100 for a source that may be endless).
        out: a .jsonl file for the dealt tasks, in the form that `load` reads.
        quiet: print nothing.

    Returns one object a split: what was read, dealt and refused (for --json).
    """
    source = for_seats(source, seats)
    if out is not None and _reads(source, Path(out)):
        raise BadInput(
            f"--out {out} is what is dealt from: expected another file (what is written has facts and a question, and "
            "not the problem's own text)",
            "file/own-source",
        )
    if limit is None and endless(source):
        limit = ENDLESS_LIMIT
    most = max(10_000, 100 * limit) if limit is not None and endless(source) else None
    all_dealt: list[Deal] = []
    summaries = []
    for name in split_names(source) if split == "all" else (split,):
        dealt, refused = deal_all(load(source, split=name, limit=most, seed=seed), seats, rule, limit)
        all_dealt += dealt
        marks = {str(count): dealt[count - 1].id for count in FIRST if len(dealt) >= count}
        summaries.append(
            {
                "source": source,
                "split": name,
                "rule": rule,
                "seats": seats,
                "read": len(dealt) + refused.total(),
                "dealt": len(dealt),
                "refused": dict(refused.most_common()),
                "ends": marks,
                "stopped": len(dealt) == limit,
                "worded": sum(worded(one.gold) for one in dealt),
                "doubtful": next(
                    (f"{d.id}: gold {d.gold!r} {why}" for d in dealt if (why := doubtful(d.gold))), ""
                ),
            }
        )
        if not quiet:
            _print_split(dealt[:rows], summaries[-1])
    if out is not None:
        _write(all_dealt, Path(out))
        if not quiet:
            print(f"{len(all_dealt):,} dealt tasks written to {out}")
    return summaries


def _reads(source: str, out: Path) -> bool:
    """Whether dealing a source reads the file that would be written."""
    path = Path(source.rpartition(":")[0] if ".py:" in source else source)
    return path.exists() and out.resolve() in (
        path.resolve(),
        *(path.resolve() / f"{n}.jsonl" for n in SPLITS),
    )


def _print_split(dealt: list[Deal], summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "task",
        "gold",
        "hands and question",
        title=printable(f"{summary['source']}, {summary['split']}"),
        show_lines=True,
    )
    for one in dealt:
        held = Text("\n").join(
            Text(printable(f"{seat}  {fact}")) for seat, hand in one.hands.items() for fact in hand
        )
        lines = held + Text(printable(f"\n?  {one.question}"), style="italic")
        table.add_row(Text(printable(one.id)), Text(printable(one.gold)), lines)
    console = Console()
    if dealt:
        console.print(table)
    console.print(
        f"{summary['dealt']:,} of {summary['read']:,} {summary['split']} tasks can be dealt "
        f"to {summary['seats']} by rule {summary['rule']}",
        highlight=False,
    )
    if summary["stopped"]:
        console.print(f"  stopped at {summary['dealt']:,} dealt: --limit says how many", highlight=False)
    for reason, count in summary["refused"].items():
        console.print(f"  {count:,} not: {reason}", highlight=False)
    if summary["worded"]:
        console.print(
            f"  golds that are words, graded letter by letter: {summary['worded']:,}", highlight=False
        )
    if summary["doubtful"]:
        told = f"  {summary['doubtful']}: training refuses it, unless you bring a grader of your own"
        console.print(Text(printable(told), style="yellow"))
    for count, task_id in summary["ends"].items():
        console.print(Text(printable(f"  the first {int(count):,} end with {task_id}")))


def as_row(dealt: Deal) -> dict[str, Any]:
    """The JSONL row that `load` reads back as a task with the same facts."""
    row = {"id": dealt.id, "facts": list(dealt.facts), "question": dealt.question, "gold": dealt.gold}
    return row if dealt.task.template is None else row | {"template": dealt.task.template}


def _write(dealt: list[Deal], path: Path) -> None:
    """All rows or none: the file appears under its name when it is whole."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(as_row(one), ensure_ascii=False) + "\n" for one in dealt)
        os.replace(part, path)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written ({error.strerror}); expected a file in a directory that exists",
            "file/not-written",
        ) from error
