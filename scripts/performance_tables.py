"""Writes the tables of docs/performance.md from what the bench scripts measured (results/bench/*.jsonl, a line a run).

python scripts/performance_tables.py results/bench docs/performance.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
TARGETS = {(32, 1): 2.0, (192, 6): 4.0}  # ms a token, context 600, on one H200
VLLM = {(32, 1): 3.64, (192, 6): 8.66, (384, 12): 10.79}  # 0.22 with multi-LoRA, on such a card


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (columns, ["---"] * len(columns), *rows)]


def decode(found: Json) -> list[str]:
    columns = (
        "rows",
        "adapters",
        "ms a token",
        "tokens/s",
        "memory floor, ms",
        "target",
        "vLLM 0.22, earlier",
    )
    rows = []
    for case in found["cases"]:
        n, adapters, ms = case["rows"], case["adapters"], case["ms"]
        size = n, adapters
        rows.append([n, adapters, f"**{ms:.2f}**", f"{n / ms * 1e3:,.0f}", f"{case['floor_ms']:.2f}",
                     TARGETS.get(size, ""), VLLM.get(size, "")])  # fmt: skip
    peer = found.get("generate_peft_32_rows_ms")
    told = f"transformers `generate` + PEFT in the same run, 32 rows: {peer:.1f} ms a token." if peer else ""
    return [*table(columns, rows), "", told]


def train(found: Json) -> list[str]:
    columns = ("how", "tokens", "ms", "tokens/s", "TFLOP/s", "of the ceiling")
    rows = [
        [c["how"], f"{c['tokens']:,}", f"{c['ms']:.0f}", f"{c['tokens'] / c['ms'] * 1e3:,.0f}", f"{c['tflops']:.0f}",
         f"{c['tflops'] / found['matmul_tflops']:.0%}"]
        for c in found["cases"]
    ]  # fmt: skip
    return table(columns, rows)


def step(found: Json) -> list[str]:
    columns = (
        "runs",
        "view",
        "s a step",
        "engine",
        "training",
        "s a run",
        "times less a run",
        "first ratio",
        "peak GiB",
    )
    peer = found.get("published")
    whole = sum(peer.values()) if peer else 0.0
    rows = []
    for made in found["ours"]:
        each = made["seconds"] / made["runs"]
        ratio = sum(made["ratio_mean"]) / len(made["ratio_mean"])
        rows.append([made["runs"], made["view"], f"**{made['seconds']:.2f}**", f"{made['engine_seconds']:.2f}",
                     f"{made['training_seconds']:.2f}", f"{each:.2f}", f"{whole / each:.0f}" if peer else "",
                     f"{ratio:.4f}", f"{made['peak_gib']:.0f}"])  # fmt: skip
    told = f"The published engine, one run, in the same script: {whole:.1f} s a step" if peer else ""
    if peer:
        told += f" ({peer['sampling_seconds']:.1f} sampling, {peer['training_seconds']:.1f} training)."
    return [*table(columns, rows), "", told]


def study(found: Json) -> list[str]:
    columns = ("lengths", "view", "a step, s", "training, min", "evaluation, min", "set-up, s", "whole, min")
    rows = [
        [" and ".join(map(str, p["lengths"])), p["view"], f"{p['step']['seconds']:.2f}", f"{p['training_minutes']:.1f}",
         f"{p['evaluation_minutes']:.1f}", f"{p['setup_seconds']:.0f}", f"**{p['minutes']:.1f}**"]
        for p in found["parts"]
    ]  # fmt: skip
    return table(columns, rows)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    text = target.read_text(encoding="utf-8")
    for make in (decode, train, step, study):
        begin, end = (f"<!-- {make.__name__}: {edge} -->" for edge in ("begin", "end"))
        path = source / f"{make.__name__}.jsonl"
        if not path.is_file():
            continue
        before, rest = text.split(begin)
        made = [begin]
        for found in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            head = f"{found['date']}, {found['device']}, torch {found['torch']}, {found['shape']}:"
            made += [head, "", *make(found), ""]
        text = f"{before}{chr(10).join(made).rstrip()}\n{end}{rest.split(end)[1]}"
    target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
