"""Training one micro-batch, forward and backward of LoRA: packed by hand against padded rows through transformers.

PYTHONPATH=src python bench/train.py --out results/bench/train.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from cotalk import bench
from cotalk.decoder.training import PackedScorer
from cotalk.decoder.weights import Decoder
from cotalk.padded import PaddedScorer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="qwen2.5-1.5b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384, 32768])
    parser.add_argument("--row", type=int, default=1084, help="tokens a row (the published shape)")
    parser.add_argument(
        "--sampled", type=float, default=0.5, help="share of a row's tokens that were sampled"
    )
    parser.add_argument(
        "--peer", action="store_true", help="also time 8 padded rows through transformers + sdpa"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda")
    roof = bench.ceilings(device, torch.bfloat16)
    stack = bench.random_stack(options.shape, 2, device, torch.bfloat16)
    vocabulary = stack.model.get_input_embeddings().weight.shape[0]
    parameters = sum(p.numel() for name, p in stack.model.named_parameters() if "lora_" not in name)
    cases, lines = [], []
    padded = bench.training_rows(8, options.row, 200, options.sampled, vocabulary)
    if options.peer:
        ms = bench.train_ms(PaddedScorer(stack, 0.9), padded)
        cases.append(("padded, sdpa, 8 rows", 8 * options.row, 8 * options.row, ms))
    scorer = PackedScorer(Decoder.of(stack), 0.9)
    cases.append(("packed, the same 8 rows", 8 * options.row, None, bench.train_ms(scorer, padded)))
    for tokens in options.tokens:
        for group, name in ((1, "packed, no shared prompts"), (4, "packed, prompts of 200 shared by 4")):
            rows = bench.training_rows(
                tokens // options.row, options.row, 200, options.sampled, vocabulary, group
            )
            cases.append((name, len(rows) * options.row, None, bench.train_ms(scorer, rows)))
    table = Table(title=f"{options.shape}, LoRA r=32, {torch.cuda.get_device_name()}")
    for column in ("how", "tokens", "ms", "tokens/s", "TFLOP/s", "of the ceiling", "peak GiB so far"):
        table.add_column(column, justify="right")
    for name, tokens, _, ms in cases:
        tflops = bench.train_flops(parameters, tokens) / ms / 1e9
        table.add_row(
            name, f"{tokens:,}", f"{ms:.1f}", f"{tokens / ms * 1e3:,.0f}", f"{tflops:.0f}",
            f"{tflops * 1e12 / roof.flops:.0%}", f"{torch.cuda.max_memory_allocated() / 2**30:.0f}",
        )  # fmt: skip
        lines.append({"how": name, "tokens": tokens, "ms": ms, "tflops": tflops})
    Console(width=130).print(table)
    found = {
        **bench.about("train", options.shape),
        "parameters": parameters,
        "matmul_tflops": roof.flops / 1e12,
        "cases": lines,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
