"""Decoding one token of every row: the fast engine against transformers' generate with PEFT, on one GPU.

PYTHONPATH=src python bench/decode.py --out results/bench/decode.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from cotalk import bench
from cotalk.engines.fast import FastEngine
from cotalk.shapes import random_model

NEVER = 1 << 30  # an end token that no row can sample
CASES = ((32, 1), (192, 6), (384, 12), (512, 12))


def peer_ms(shape: str, rows: int, context: int) -> float:
    """transformers' generate with a PEFT adapter, milliseconds a token: the difference of two lengths."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        random_model(shape, "cuda", torch.bfloat16),
        LoraConfig(r=32, lora_alpha=64, target_modules="all-linear"),
    )
    ids = torch.randint(0, 1000, (rows, context - 48), device="cuda")

    def run(tokens: int) -> float:
        return bench.milliseconds(
            lambda: model.generate(input_ids=ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True),
            torch.device("cuda"), repeats=2, warm_up=1,
        )  # fmt: skip

    return (run(64) - run(32)) / 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="qwen2.5-1.5b")
    parser.add_argument("--context", type=int, default=600)
    parser.add_argument(
        "--peer", action="store_true", help="also time transformers generate + PEFT (a minute)"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda")
    roof = bench.ceilings(device, torch.bfloat16)
    stack = bench.random_stack(options.shape, 12, device, torch.bfloat16)
    engine = FastEngine(stack, [NEVER])
    table = Table(title=f"{options.shape}, context {options.context}, {torch.cuda.get_device_name()}")
    for column in ("rows", "adapters", "ms a token", "tokens/s", "memory floor, ms", "of the floor"):
        table.add_column(column, justify="right")
    lines = []
    for rows, adapters in CASES:
        ms = bench.decode_ms(engine, rows, adapters, options.context)
        floor = (
            bench.decode_bytes(engine.decoder, rows, adapters, options.context) / roof.bytes_a_second * 1e3
        )
        table.add_row(
            str(rows),
            str(adapters),
            f"{ms:.2f}",
            f"{rows / ms * 1e3:,.0f}",
            f"{floor:.2f}",
            f"{floor / ms:.0%}",
        )
        lines.append({"rows": rows, "adapters": adapters, "ms": ms, "floor_ms": floor})
    peer = peer_ms(options.shape, 32, options.context) if options.peer else None
    Console(width=110).print(table)
    found = {
        **bench.about("decode", options.shape),
        "context": options.context,
        "copy_tb_s": roof.bytes_a_second / 1e12,
        "matmul_tflops": roof.flops / 1e12,
        "cases": lines,
        "generate_peft_32_rows_ms": peer,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
