"""A whole training step of a Qwen2.5-1.5B-shaped model with random weights through the `hf` engine, on a GPU.

Nothing is downloaded: the shape is built, with a byte tokenizer and a ChatML-like template. A random model never ends
its message, so every turn is as long as its cap: the worst case of the published step (8 problems x 4 chats, ABAB,
160/160/384/384 tokens). Prints a table and one JSON line.

    PYTHONPATH=src python bench/hf_step.py --steps 2
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table as RichTable

from cotalk.bench import Alternating
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.engines import Table
from cotalk.engines.hf import HfEngine
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.run import RunDirectory
from cotalk.shapes import SHAPES, byte_tokenizer, random_model
from cotalk.stack import drive
from cotalk.task import Task
from cotalk.train import Run, train
from cotalk.view import ChatFormat


def deals(n: int) -> list[Deal]:
    made = []
    for i in range(n):
        facts = (
            f"Ann has {i + 3} apples and gives half of them away.",
            f"Bob finds {2 * i + 4} apples more.",
        )
        task = Task(f"t{i}", "How many apples are there?", str(3 * i + 7), facts)
        made.append(Deal(task, facts, task.question, {"A": facts[:1], "B": facts[1:]}))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--view", default="transcript")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.device != "cpu" else torch.float32
    model = random_model(options.shape, options.device, dtype)
    form = ChatFormat(byte_tokenizer(), "full")
    config = Config(steps=options.steps, train_tasks=64, dev_tasks=0, view=options.view, normaliser="sampled")
    stack = Stack(model, 1, config.rank, config.alpha)
    seen: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        run = Run(
            "bench", config, deals(64), [], form, Learner(stack, {"A": 1, "B": 1}, config), Alternating(config),
            RunDirectory(Path(folder)), progress=lambda step, metrics: seen.append(metrics),
        )  # fmt: skip

        def failed(_: str, error: Exception) -> None:
            raise error

        began = time.monotonic()
        drive({"bench": train(run)}, Table(HfEngine(stack, form.end_ids)), failed)
        seconds = time.monotonic() - began
    table = RichTable(title=f"{options.shape}, {options.view}, {options.device}", title_justify="left")
    for column in (
        "step",
        "seconds",
        "tokens sampled",
        "ratio mean",
        "ratio min..max",
        "gap mean",
        "grad norm",
    ):
        table.add_column(column)
    for m in seen:
        table.add_row(
            str(m["step"]), f"{m['seconds']:.1f}", f"{m['tokens']:,}", f"{m['ratio/mean']:.4f}",
            f"{m['ratio/min']:.3f}..{m['ratio/max']:.3f}", f"{m['logprob_gap/mean']:.4f}", f"{m['grad_norm']:.3f}",
        )  # fmt: skip
    Console().print(table)
    peak = torch.cuda.max_memory_allocated() / 2**30 if options.device != "cpu" else None
    name = torch.cuda.get_device_name() if options.device != "cpu" else "CPU"
    print(json.dumps({"shape": options.shape, "view": options.view, "device": name, "seconds": seconds,
                      "peak_gib": peak, "steps": seen}))  # fmt: skip


if __name__ == "__main__":
    main()
