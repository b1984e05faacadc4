"""The whole talk-to-solve study on one GPU, from its parts: measured steps and evaluation, times their numbers.

Base evaluations, 2 arms x 3 seeds x 80 steps, every evaluation and partner condition of studies/talk-to-solve.toml,
random weights, every message forced to a length: about the published means, or the caps. One step of all six runs, the
last checkpoint of each and one round of evaluation are measured, and steps and rounds multiplied by how often the study
does them. Earlier checkpoints are written by threads while the GPU works; what they take of the host is not in it.

    PYTHONPATH=src python bench/study.py --out results/bench/study.jsonl
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable
from step import stacked

from cotalk import bench
from cotalk.bench import CAPS, MEANS, PROMPT, deals
from cotalk.chat import Player, Rules, Seating, converse
from cotalk.engines import Table
from cotalk.engines.choose import choose
from cotalk.shapes import SHAPES, word_tokenizer
from cotalk.stack import drive
from cotalk.study import Study, read_study
from cotalk.view import ChatFormat

PUBLISHED_MINUTES = 567.8  # seven containers on H100s


def chats_of(study: Study) -> int:
    """Chats that the study's evaluations play, greedy ones and looks at the dev tasks included."""
    config = study.config
    looks = (len(study.jobs()) - 1) * (config.steps // config.dev_every + 1)
    passes = sum(played.chats for job in study.jobs() for _, played in study.work(job))
    return config.heldout_tasks * passes + config.dev_tasks * looks


def evaluation_seconds(shape: str, view: str, lengths: tuple[int, int], tasks: int) -> tuple[float, int]:
    """Seconds for six adapters and the base to play these tasks, two chats each, and how many chats that is."""
    vocabulary = SHAPES[shape][2]["vocab_size"]
    form = ChatFormat(word_tokenizer(vocabulary), "full")
    stack = bench.random_stack(shape, 6, torch.device("cuda"), torch.bfloat16)
    engine = Table(choose("fast", stack, form.end_ids).engine)
    rules = Rules(view=view, message_tokens=lengths[0], answer_tokens=lengths[1])

    def play(number: int, tasks: int) -> float:
        lives = {
            f"r{k}": converse(
                [
                    Seating(d, {s: Player("p", k) for s in "AB"}, c, ("eval", k, number, d.task.id))
                    for d in deals(tasks, PROMPT - 60, vocabulary)
                    for c in range(2)
                ],
                rules,
                form,
            )
            for k in range(7)
        }

        def failed(_: str, error: Exception) -> None:
            raise error

        began = time.perf_counter()
        drive(lives, engine, failed)
        return time.perf_counter() - began

    play(0, tasks)  # compiles, and records the graphs
    return play(1, tasks), 7 * tasks * 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="qwen2.5-1.5b")
    parser.add_argument("--views", nargs="+", default=["dialogue", "transcript"])
    parser.add_argument("--lengths", nargs="+", choices=("caps", "means"), default=["means", "caps"])
    parser.add_argument("--tasks", type=int, default=36, help="held-out tasks in the measured round")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    study = read_study("talk-to-solve")
    chats, steps = chats_of(study), study.config.steps
    table = RichTable(
        title=f"talk-to-solve, {options.shape}, {steps} steps of 6 runs, {chats:,} evaluation chats; extrapolated"
    )
    for column in (
        "lengths, view",
        "a step, s",
        "training, min",
        "evaluation, min",
        "set-up, s",
        "whole, min",
        "times less",
    ):
        table.add_column(column, justify="right")
    found: list[dict[str, Any]] = []
    for name in options.lengths:
        lengths = CAPS if name == "caps" else MEANS
        for view in options.views:
            step = stacked(options.shape, 6, view, 3, lengths)
            round_seconds, round_chats = evaluation_seconds(options.shape, view, lengths, options.tasks)
            gc.collect()
            torch.cuda.empty_cache()
            setup = step["load_seconds"] + max(0.0, step["first_step_seconds"] - step["seconds"])
            training = steps * step["seconds"] + step["checkpoint_seconds"]  # the last; others meanwhile
            evaluation = chats * round_seconds / round_chats
            whole = (setup + training + evaluation) / 60
            found.append({
                "lengths": lengths, "view": view, "step": step, "round_seconds": round_seconds,
                "round_chats": round_chats, "chats": chats, "minutes": whole, "setup_seconds": setup,
                "training_minutes": training / 60, "evaluation_minutes": evaluation / 60,
            })  # fmt: skip
            print(json.dumps({k: v for k, v in found[-1].items() if k != "step"}), flush=True)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(
                    json.dumps({**bench.about("study", options.shape), "parts": found}) + "\n"
                )
            table.add_row(
                f"{name}, {view}", f"{step['seconds']:.2f}", f"{training / 60:.1f}", f"{evaluation / 60:.1f}",
                f"{setup:.0f}", f"{whole:.1f}", f"{PUBLISHED_MINUTES / whole:.0f}",
            )  # fmt: skip
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
