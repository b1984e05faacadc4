"""`cotalk bench` at toy sizes on a CPU: every part is measured, against ceilings, and a case without room is told."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from cotalk import bench, cli, machine
from cotalk.bench import Ceilings
from cotalk.errors import BadInput, RunFailed
from cotalk.machine import Case, Measured, Sizes, measure, show
from cotalk.shapes import SHAPES, Shape

HERE = torch.device("cpu")
SMALL = Sizes(((2, 1), (4, 2)), 48, 128, 32, 128, 32, 16, (1,), (4, 6), problems=1)
ROOF = Ceilings(1e9, 1e9)


def names(found: Measured) -> list[str]:
    return [f"{case.part}, {case.what}" for case in found.cases]


def shown(found: Measured) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    show(found, console)
    return console.export_text()


@pytest.fixture(scope="module")
def found() -> Iterator[Measured]:
    yield measure("tiny", "cpu", sizes=SMALL)


@pytest.mark.slow
def test_every_part_is_measured_with_its_share_of_a_ceiling(found: Measured) -> None:
    assert names(found) == [
        "decode, rows 2, adapters 1", "decode, rows 4, adapters 2", "decode, rows 4, adapters 2, hf",
        "read, prompts of 32", "train, packed, 16 of 32 shared", "train, packed, 8 x 32", "train, padded, 8 x 32",
        "step, runs 1, caps (4, 6)",
    ]  # fmt: skip
    for case in found.cases:
        assert case.ms and case.flops and case.of_matmul and not case.skipped
        assert case.of_matmul == pytest.approx(case.flops / found.roof.flops)
        assert (case.of_memory is not None) == (case.part == "decode")
        assert case.peak_gib is None  # a GPU's only
    assert found.device == "one CPU thread" and found.dtype == "float32"


def test_tokens_and_operations_are_those_of_the_work(found: Measured) -> None:
    """4 rows: 4 tokens a pass. Packed: 4 rows of 32 share 16, the last id of each predicts nothing: 16 + 4 x 15 = 76.
    Eight padded rows of 32: 256; packed, two groups of four: 2 x 76."""
    tokens = dict(zip(names(found), (case.tokens for case in found.cases)))
    assert tokens["decode, rows 4, adapters 2"] == 4
    assert tokens["read, prompts of 32"] == 128
    assert tokens["train, packed, 16 of 32 shared"] == 76
    assert tokens["train, packed, 8 x 32"] == 2 * 76
    assert tokens["train, padded, 8 x 32"] == 256
    shape = Shape.named("tiny")
    case = next(c for c in found.cases if c.what == "padded, 8 x 32")
    assert case.ms is not None and case.flops == pytest.approx(4 * shape.parameters * 256 / case.ms * 1e3)
    decode = found.cases[1]
    read = 4 * shape.decoded(4, 2, 32, 48)
    assert decode.ms and decode.of_memory == pytest.approx(read / decode.ms * 1e3 / found.roof.bytes_a_second)


def test_the_table_and_the_json_hold_every_case(found: Measured) -> None:
    text = shown(found)
    for name in names(found):
        assert name in text
    assert "GFLOP/s" in text and "copy," in text and "left out" not in text
    assert all(len(line.rstrip()) <= 100 for line in text.splitlines())
    line = json.loads(json.dumps(found.as_json()))
    assert line["shape"] == "tiny" and len(line["cases"]) == 8
    assert line["cases"][0]["tokens_a_second"] == pytest.approx(2 / line["cases"][0]["ms"] * 1e3)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RunFailed])
def test_whatever_says_that_memory_is_full_leaves_a_case_out(error: type[Exception]) -> None:
    def full() -> Any:
        raise error("full")

    found = machine._case("train", "padded", full, ROOF, HERE)
    assert found.ms is None and found.skipped == "full"


@pytest.mark.slow
def test_a_case_without_room_is_left_out_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training runs out of memory: decoding before it and the step after it are measured all the same."""

    def full(*_: Any, **__: Any) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore")

    monkeypatch.setattr(bench, "train_ms", full)
    found = measure("tiny", "cpu", sizes=replace(SMALL, decode=((2, 1),)))
    skipped = [case for case in found.cases if case.skipped]
    assert [case.part for case in skipped] == ["train", "train", "train"]
    assert all(case.ms for case in found.cases if case.part != "train")
    told = shown(found)
    assert "train, padded, 8 x 32: left out, CUDA out of memory. Tried to allocate 9 GiB" in told
    assert "more" not in told


def test_a_shape_whose_weights_do_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(bench, "random_stack", full)
    with pytest.raises(BadInput, match=r"qwen2.5-1.5b does not fit on cpu.*--shape smollm2-135m"):
        measure("qwen2.5-1.5b", "cpu", sizes=SMALL)
    with pytest.raises(BadInput, match=r"shape 'nano' is not known: expected one of"):
        measure("nano", "cpu", sizes=SMALL)


def test_a_cpu_is_measured_on_one_thread_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look(*_: Any) -> Ceilings:
        seen.append(torch.get_num_threads())
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "ceilings", look)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            measure("tiny", "cpu")
        assert seen == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_line_without_numbers_says_so() -> None:
    assert machine._line(Case("train", "padded", skipped="left out"), 1e9) == ["train, padded", "left out"]
    line = machine._line(Case("decode", "x", 2.0, 32, 5e9, 0.5, 0.25, 1.5), 1e9)
    assert line == ["decode, x", "2", "16,000", "5", "50%", "25%", "1.5"]


@pytest.mark.slow
def test_the_command_prints_a_table_or_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "CPU", SMALL)
    assert cli.main(["bench", "--device", "cpu", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)  # nothing else is on stdout
    assert line["shape"] == "tiny" and line["copy_bytes_a_second"] > 0 and line["matmul_flops"] > 0
    assert {case["part"] for case in line["cases"]} == {"decode", "read", "train", "step"}


@pytest.mark.slow
def test_the_command_refuses_an_unknown_shape(tmp_path: Path) -> None:
    source = str(Path(bench.__file__).parents[1])

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cotalk.cli", "bench", "--device", "cpu", *flags], cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": source}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    wrong = run("--shape", "qwen")
    assert wrong.returncode == 2
    assert "shape 'qwen' is not known" in wrong.stderr and all(shape in wrong.stderr for shape in SHAPES)
    assert not list(tmp_path.iterdir())
