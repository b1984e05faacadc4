"""A whole training step of six stacked runs at the published caps, against the published engine, on one GPU.

8 problems x 4 chats, order ABAB, every message as long as its budget (random weights), first prompts of about 110
tokens. Steps between the first (which pays for set-up) and the last (which writes checkpoints) are measured. Ours: the
`fast` engine and the packed trainer, all runs in one stack. The published engine, one run: transformers' generate with
PEFT on 32 rows a turn, then padded micro-batches of 8 rows.

    PYTHONPATH=src python bench/step.py --peer --out results/bench/step.jsonl
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable

from cotalk import bench
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.engines import Table
from cotalk.engines.choose import choose
from cotalk.learner import Learner
from cotalk.methods import GRPO, Group
from cotalk.run import RunDirectory
from cotalk.shapes import SHAPES, random_model, word_tokenizer
from cotalk.stack import drive
from cotalk.task import Task
from cotalk.train import Run, train
from cotalk.view import ChatFormat

PROMPT = 110  # tokens: the mean of GSM8K's halves with our words (109; longest 176)
CAPS, MEANS = (
    (160, 384),
    (110, 200),
)  # of a message and an answer; the means are those of published talk, about


class Alternating(GRPO):
    """Pays every other chat, so that a random model has something to learn from."""

    def credit(self, group: Group) -> None:
        for chat in group.chats:
            chat.reward = float(chat.number % 2)
        super().credit(group)


class Timed:
    """An engine that adds up the time of its calls."""

    def __init__(self, engine: Any):
        self.engine, self.seconds = engine, 0.0

    def reply(self, batches: Any) -> Any:
        began = time.perf_counter()
        found = self.engine.reply(batches)
        self.seconds += time.perf_counter() - began
        return found


def deals(n: int, words: int) -> list[Deal]:
    made = []
    for i in range(n):
        facts = tuple(
            " ".join(
                ["Ann", *(f"w{1000 + (97 * i + 13 * j + k) % 20000}" for k in range(words)), f"{i + j}."]
            )
            for j in range(2)
        )
        task = Task(f"t{i}", "How many apples are there?", str(3 * i + 7), facts)
        made.append(Deal(task, facts, task.question, {"A": facts[:1], "B": facts[1:]}))
    return made


def stacked(shape: str, runs: int, view: str, steps: int, lengths: tuple[int, int]) -> dict[str, Any]:
    """Plays and trains `steps` steps of `runs` runs; the first pays for compiling and recording graphs."""
    began = time.perf_counter()
    device = torch.device("cuda")
    form = ChatFormat(word_tokenizer(SHAPES[shape][2]["vocab_size"]), "full")
    config = Config(
        steps=steps, train_tasks=64, dev_tasks=0, view=view, normaliser="sampled", message_tokens=lengths[0],
        answer_tokens=lengths[1],
    )  # fmt: skip
    stack = bench.random_stack(shape, runs, device, torch.bfloat16)
    pair = choose("fast", stack, form.end_ids)
    engine = Timed(pair.engine)
    seen: list[dict[str, Any]] = []
    marks: list[tuple[float, float, float]] = []
    training = 0.0
    loaded = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        lives = {}
        for k in range(1, runs + 1):
            learner = Learner(stack, {"A": k, "B": k}, config, pair.scorer(config.temperature))
            learner.initialise = lambda seed: None  # type: ignore[method-assign]  # adapters in use, not new ones

            def timed(update: Any) -> Any:
                def wrapped(*given: Any) -> Any:
                    nonlocal training
                    start = time.perf_counter()
                    found = update(*given)
                    training += time.perf_counter() - start
                    return found

                return wrapped

            learner.update = timed(learner.update)  # type: ignore[method-assign]

            def told(step: int, metrics: dict[str, Any], k: int = k) -> None:
                seen.append(metrics)
                if k == runs:
                    marks.append((time.perf_counter(), engine.seconds, training))

            lives[f"r{k}"] = train(
                Run(
                    f"r{k}", config.replaced({"seed": k}), deals(64, PROMPT - 60), [], form, learner,
                    Alternating(config), RunDirectory(Path(folder) / f"r{k}"), progress=told,
                )
            )  # fmt: skip

        def failed(_: str, error: Exception) -> None:
            raise error

        began = time.perf_counter()
        drive(lives, Table(engine), failed)
    times = [b[0] - a[0] for a, b in zip([(began, 0.0, 0.0), *marks], marks, strict=False)]
    engines = [b[1] - a[1] for a, b in zip([(began, 0.0, 0.0), *marks], marks, strict=False)]
    trained = [b[2] - a[2] for a, b in zip([(began, 0.0, 0.0), *marks], marks, strict=False)]
    later = slice(1, -1)
    return {
        "view": view, "runs": runs, "lengths": lengths, "seconds": statistics.median(times[later]),
        "engine_seconds": statistics.median(engines[later]), "training_seconds": statistics.median(trained[later]),
        "first_step_seconds": times[0], "load_seconds": loaded,
        "checkpoint_seconds": max(0.0, times[-1] - statistics.median(times[later])),
        "tokens_sampled": sum(m["tokens"] for m in seen[-runs:]),
        "prompt_tokens_read": pair.engine.read_tokens / steps,  # type: ignore[attr-defined]
        "ratio_mean": [m["ratio/mean"] for m in seen], "gap_mean": max(m["logprob_gap/mean"] for m in seen),
        "grad_norm": [m["grad_norm"] for m in seen[-runs:]], "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }  # fmt: skip


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
            made = stacked(options.shape, runs, view, options.steps, lengths)
            found.append(made)
            torch.cuda.empty_cache()
            table.add_row(
                f"{runs}, {view}", f"{made['seconds']:.2f}", f"{made['engine_seconds']:.2f}",
                f"{made['training_seconds']:.2f}", f"{made['seconds'] / runs:.2f}",
                f"{made['first_step_seconds']:.1f}", f"{made['load_seconds']:.1f}",
                f"{statistics.mean(made['ratio_mean']):.4f}", f"{made['peak_gib']:.0f}",
            )  # fmt: skip
    line: dict[str, Any] = {
        "bench": "step", "shape": options.shape, "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "ours": found,
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
