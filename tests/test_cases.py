"""tests/README.md: every case that went wrong elsewhere has an id of its own and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
KINDS = {"tokens": 6, "masks": 10, "adapters": 6, "groups": 7, "answers": 9, "seeds": 6, "memory": 6}
CASE = re.compile(r"\| ([a-z]+-[0-9]+) \| ([^|]+) \| (.+) \|")
TEST = re.compile(r"`(test_[a-z0-9_]+\.py)::(test_[a-z0-9_]+)`")


def cases() -> dict[str, list[tuple[str, str]]]:
    """{id: [(file, test), ...]} as the table has them."""
    lines = (TESTS / "README.md").read_text(encoding="utf-8").split("\n")
    rows = [CASE.fullmatch(line) for line in lines if re.match(r"\| [a-z]+-[0-9]+ ", line)]
    assert all(rows)
    assert len({row[1] for row in rows if row}) == len(rows)
    return {row[1]: TEST.findall(row[3]) for row in rows if row}


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_case_has_an_id_and_tests_that_exist() -> None:
    found = cases()
    assert set(found) == {f"{kind}-{n}" for kind, count in KINDS.items() for n in range(1, count + 1)}
    for case, named in found.items():
        assert named, case
        for file, test in named:
            assert test in names_in(file), f"{case} names {file}::{test}"


def test_nothing_in_the_table_but_tests_is_in_code_marks() -> None:
    # a misspelt reference would be passed over by the search for tests
    text = (TESTS / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.split("\n") if CASE.fullmatch(line)]
    assert all(len(re.findall("`[^`]*`", row.split("|")[3])) == len(TEST.findall(row)) for row in rows)
