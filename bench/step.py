"""A whole training step of six stacked runs at the published caps, against the published engine, on one GPU.

8 problems x 4 chats, order ABAB, every message as long as its budget (random weights), first prompts of about 110
tokens. Steps between the first (which pays for set-up) and the last (which writes checkpoints) are measured. Ours: the
`fast` engine and the packed trainer, all runs in one stack. The published engine, one run: transformers' generate with
PEFT on 32 rows a turn, then padded micro-batches of 8 rows.

    PYTHONPATH=src python bench/step.py --peer --out results/bench/step.jsonl
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable

from cotalk import bench
from cotalk.bench import CAPS, MEANS, PROMPT
from cotalk.shapes import random_model


def stacked(
    shape: str, runs: int, view: str, steps: int, lengths: tuple[int, int], engine: str = "fast"
) -> dict[str, Any]:
    """`bench.whole_step` with an engine on the GPU; what it held is given back."""
    found = bench.whole_step(shape, runs, view, steps, lengths, torch.device("cuda"), torch.bfloat16, engine)
    gc.collect()  # a stack and its decoder know each other
    torch.cuda.empty_cache()
    return found


def published(shape: str, lengths: tuple[int, int]) -> dict[str, float]:
    """One step of one run as the published stack does it. Seconds of sampling and of training."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        random_model(shape, "cuda", torch.bfloat16),
        LoraConfig(r=32, lora_alpha=64, target_modules="all-linear"),
    )
    message, answer = lengths
    prompts = [PROMPT, PROMPT + message, PROMPT + 2 * message, PROMPT + 2 * message + answer]
    budgets = [message, message, answer, answer]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for prompt, budget in zip(prompts, budgets, strict=True):
        ids = torch.randint(5, 1000, (32, prompt), device="cuda")
        model.generate(
            input_ids=ids, max_new_tokens=budget, min_new_tokens=budget, do_sample=True, temperature=0.9
        )
    torch.cuda.synchronize()
    sampling = time.perf_counter() - began
    began = time.perf_counter()
    for prompt, budget in zip(prompts, budgets, strict=True):  # one row a message: the transcript view
        for _ in range(4):
            ids = torch.randint(5, 1000, (8, prompt + budget), device="cuda")
            logits = model(input_ids=ids).logits[:, prompt - 1 : -1].float() / 0.9
            logp = torch.log_softmax(logits, -1).gather(2, ids[:, prompt:, None])
            (-logp.sum() / 1e4).backward()
            del logits, logp
    torch.cuda.synchronize()
    return {"sampling_seconds": sampling, "training_seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="qwen2.5-1.5b")
    parser.add_argument("--runs", type=int, nargs="+", default=[6])
    parser.add_argument("--views", nargs="+", default=["dialogue", "transcript"])
    parser.add_argument("--lengths", choices=("caps", "means"), default="caps")
    parser.add_argument("--engine", choices=("fast", "hf"), default="fast")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--peer", action="store_true", help="also one step of the published engine (a minute)"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lengths = CAPS if options.lengths == "caps" else MEANS
    table = RichTable(title=f"{options.shape}, {options.lengths} {lengths}, {torch.cuda.get_device_name()}")
    for column in (
        "runs, view",
        "s a step",
        "engine",
        "training",
        "s a run",
        "first step",
        "load",
        "ratio",
        "peak GiB",
    ):
        table.add_column(column, justify="right")
    found: list[dict[str, Any]] = []
    for view in options.views:
        for runs in options.runs:
            made = stacked(options.shape, runs, view, options.steps, lengths, options.engine)
            found.append(made)
            print(
                json.dumps({k: v for k, v in made.items() if k not in ("ratio_mean", "grad_norm")}),
                flush=True,
            )
            table.add_row(
                f"{runs}, {view}", f"{made['seconds']:.2f}", f"{made['engine_seconds']:.2f}",
                f"{made['training_seconds']:.2f}", f"{made['seconds'] / runs:.2f}",
                f"{made['first_step_seconds']:.1f}", f"{made['load_seconds']:.1f}",
                f"{statistics.mean(made['ratio_mean']):.4f}", f"{made['peak_gib']:.0f}",
            )  # fmt: skip
    line: dict[str, Any] = {
        **bench.about("step", options.shape),  "ours": found,
    }  # fmt: skip
    if options.peer:
        line["published"] = published(options.shape, lengths)
        whole = sum(line["published"].values())
        table.add_row(
            "1, published engine", f"{whole:.1f}", f"{line['published']['sampling_seconds']:.1f}",
            f"{line['published']['training_seconds']:.1f}", f"{whole:.1f}",
        )  # fmt: skip
        line["times_less_a_run"] = [whole * made["runs"] / made["seconds"] for made in found]
    Console(width=130).print(table)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(line) + "\n")
    print(json.dumps({k: v for k, v in line.items() if k != "ours"}))


if __name__ == "__main__":
    main()
