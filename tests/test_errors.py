"""Error codes: each failure that the sources raise has one, each one has a remedy, and docs/errors.md is that table."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

import cotalk
from cotalk.cli import main
from cotalk.config import Config
from cotalk.errors import (
    OWN,
    REMEDIES,
    BadInput,
    DiskFailed,
    NotFinite,
    OutOfMemory,
    RunFailed,
    printable,
    remedies_table,
)

SOURCES = Path(cotalk.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"
CODE_AT = {"BadInput": 1, "RunFailed": 1, "read_json": 2}  # which argument the code is
PASSED_ON = ("error.code", "code")  # named where it came from


def raised_codes(path: Path) -> list[tuple[str, str]]:
    """(place, code) of every BadInput and RunFailed that a file makes; "" where it names none."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        at = CODE_AT.get(ast.unparse(node.func))
        if ast.unparse(node.func) == "super().__init__" and path.name == "deal.py":
            at = 1  # CannotDeal hands its one code to the class that it is made of
        if at is not None:
            code = node.args[at] if len(node.args) > at else None
            named = code.value if isinstance(code, ast.Constant) else ""
            if code is None or ast.unparse(code) not in PASSED_ON:
                found.append((f"{path.name}:{node.lineno}", named))
    return found


def test_every_failure_that_the_sources_raise_has_a_code_with_a_remedy_and_every_remedy_a_failure():
    raised = [each for path in SOURCES.rglob("*.py") for each in raised_codes(path)]
    assert len(raised) > 200  # the search found them
    assert [place for place, code in raised if code not in REMEDIES] == []
    by_class = {each.CODE for each in (DiskFailed, NotFinite, OutOfMemory)}  # which need not be given one
    assert set(REMEDIES) - {code for _, code in raised} - by_class == {OWN}


def test_the_search_sees_a_failure_without_a_code(tmp_path):
    path = tmp_path / "new.py"
    path.write_text(
        'raise BadInput("x")\nraise RunFailed("y", "run/failed")\nraise BadInput("z", error.code)'
    )
    assert raised_codes(path) == [("new.py:1", ""), ("new.py:2", "run/failed")]


def test_the_page_of_errors_holds_the_table():
    assert (DOCS / "errors.md").read_text(encoding="utf-8").endswith(f"\n{remedies_table()}\n")


def test_a_failure_carries_its_code_beside_its_message_also_between_processes():
    error = pickle.loads(pickle.dumps(RunFailed("it burns", "run/failed")))
    assert (str(error), error.code) == ("it burns", "run/failed")
    assert isinstance(error, RuntimeError)
    assert (BadInput("no").code, isinstance(BadInput("no"), ValueError)) == (OWN, True)


def test_a_mistake_in_a_table_keeps_its_code_when_its_place_is_told():
    with pytest.raises(BadInput) as refused:
        Config().replaced({"steps": -1}, where="my.toml [run] ")
    assert refused.value.code == "config/range"


def test_the_command_line_tells_the_code_and_no_control_character(tmp_path, capsys):
    path = tmp_path / "a\x1b[31m.jsonl"
    path.write_bytes(b'{"problem": "\xff"}\n')
    assert main(["deal", str(path)]) == 2
    told = capsys.readouterr().err
    assert "byte 14 is not UTF-8" in told
    assert "[task/not-utf8]" in told
    assert "\x1b[31m.jsonl" not in told


def test_what_is_printed_holds_no_mark_that_steers_a_terminal():
    assert printable("a\x1b[2J\u202eb\u200b\nc é") == "a\ufffd[2J\ufffdb\ufffd\nc é"
