"""bench/fuzz.py: a slice of it on every change, and that it does find what is broken."""

from __future__ import annotations

import importlib.util
import io
import random
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from cotalk.errors import BadInput
from cotalk.grade_worker import Workers

SCRIPT = Path(__file__).parent.parent / "bench" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_script", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_script"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", ["grader", "dealer", "config", "results"])
def test_inputs_made_to_break_a_reader_are_read_or_refused(fuzz, monkeypatch, target):
    workers = Workers(count=1, limit_s=0.2)
    monkeypatch.setattr(sys.modules["cotalk.grade"], "_workers", workers)
    found = fuzz.fuzz(target, 120, seed=7)
    workers.close()
    assert found.inputs == 120
    assert found.findings == {}, found.examples
    assert len(found.ends) > 2  # some were read, some refused


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (lambda path: 1 / 0, "ZeroDivisionError"),
        (lambda path: time.sleep(1), "more than 0.2 s"),
        (
            lambda path: (_ for _ in ()).throw(BadInput("that is no such study", "no/such-code")),
            "has no remedy",
        ),
        (
            lambda path: (_ for _ in ()).throw(BadInput("x" * 50_000, "study/seeds")),
            "a message of 50,000 letters",
        ),
    ],
)
def test_a_reader_that_breaks_is_a_finding_with_its_kind_and_an_input(fuzz, monkeypatch, broken, kind):
    monkeypatch.setattr(fuzz, "read_study", broken)
    monkeypatch.setattr(fuzz, "PATIENCE", 0.2)
    monkeypatch.setattr(fuzz, "BATCH", 2)
    found = fuzz.fuzz("config", 3, first=1)
    assert found.inputs == 3 and found.ends == {}
    ((told, count),) = found.findings.items()
    assert kind in told and count == 3
    shown = io.StringIO()
    fuzz.show([found], Console(file=shown, width=200))
    assert kind in shown.getvalue() and "config 1, " in shown.getvalue()


def test_an_input_can_be_made_again_by_its_number(fuzz):
    for target in fuzz.TARGETS.values():
        assert target.make(random.Random("0 x 4711")) == target.make(random.Random("0 x 4711"))
