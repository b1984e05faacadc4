"""What the SmolLM2 base does before any reinforcement learning, measured by the package's own evaluation, and its card.

The base plays gsm_symbolic tasks of a stream of its own (no study's), held-out instances and unseen templates, as a
study plays its untrained conditions: skyline, floor, channel open and closed, sampled and greedy. Intervals are over
tasks, clustered by template. Left out: everything about training (make_smollm2.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotalk import talk
from cotalk.bases.problems import CARD_SEED, SEATS
from cotalk.config import Config
from cotalk.evaluate import read_score
from cotalk.jobs import run_jobs
from cotalk.results import Score
from cotalk.split import splits
from cotalk.stats import Rate
from cotalk.study import Evaluate, Job, Study

TALK = ("sends", "uses_above", "asks", "requests", "agrees_graded", "cut")
ORDER = "ABAB"
SMOLLM2 = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
"""
CARD = """# {start}, able to solve and indifferent about talking

{start}, all {parameters:,} weights trained further by `cotalk base smollm2` on {rows:,} rows ({tokens:,} tokens,
{learned:,} of them learned). It reads word problems of gsm_symbolic, works them out, and chats in the `{view}` view
with the `{wording}` wording. It exists so that learning to talk can be studied on a real pretrained language model that
any machine can run; it is no assistant.

**What it does in a chat is a mixture of habits**, written down as rates in `smollm2.toml` and drawn whatever comes of
them. A last turn is the worked solution where everything needed was heard, else a guess; nothing in the text rewards
sending, nor a team that is right. The seat that it hears in its text talks more than it does itself, so that reading
is practised; those words are never learned.

Made on: {made_on}; drawing {drawing_seconds} s, training {training_seconds} s, measuring {measuring_seconds} s; torch
{torch}. Seed {seed}: the same rows in the same order everywhere. All settings stand in cotalk_base.json.
SHA-256 of model.safetensors: `{sha256}`; of the weights that it started from: `{start_sha256}`.

## Problems

{problems}

Left out of the text: {refused}. Ten templates are in no row (docs/tasks.md, `unseen`), and no row repeats a problem
of the first 4,096 rows of the train, dev, held-out and unseen streams, nor of GSM8K's test split.

Training: {training}.

Loss of a learned token on rows about problems that were not trained on, before and after: {held}.

## Measured

gsm_symbolic, rule `clean`, order {order}, caps {message_tokens} and {answer_tokens} tokens, temperature {temperature},
{chats} chats a task (greedy: 1); a stream of its own (seed {card_seed}). An answer is right when its last box holds
the gold. Means over tasks, 95% intervals clustered by template.

| condition | score | 95% | tasks | templates |
|---|---|---|---|---|
{scores}

## Talk

| condition | {talk} |
|---|{rule}
{spoken}

Each cell: mean [95%]. `uses_above`: of the partner's numbers, the share in the last message above what chance gives;
`requests`: of the messages before the last, the share that asks for something (docs/talk.md).

## Habits asked for

| seat | situation | rates |
|---|---|---|
{habits}
"""


def measure(
    model: Path, table: dict[str, Any], device: str, out: Path, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """{condition, or condition.greedy: {"label", "score", "templates", "talk"}}; rates as JSON. Resumes by passes."""
    asked, text = table["measure"], table["text"]
    config = Config(
        base=str(model), device=device, tasks="gsm_symbolic", order=ORDER, view=table["view"], steps=0, train_tasks=8,
        dev_tasks=0, heldout_tasks=asked["tasks"], message_tokens=text["message_tokens"],
        answer_tokens=text["answer_tokens"], temperature=asked["temperature"],
    )  # fmt: skip
    once = Evaluate(chats=asked["chats"], partners=False, repeats=1, unseen=asked["unseen"])
    study = Study("card", config, {"open": {}}, (0,), once)
    tasks = splits(
        "gsm_symbolic",
        train=8,
        dev=0,
        heldout=asked["tasks"],
        unseen=asked["unseen"],
        seats=SEATS,
        seed=CARD_SEED,
    )

    def told(_: str, __: str, done: int, of: int, about: dict[str, Any]) -> None:
        say(f"measured {about.get('condition', '')} ({done}/{of})")

    failures = run_jobs(study, out, tasks, [Job()], told)
    if failures:
        raise RuntimeError(f"measuring failed: {failures}")
    found = {}
    for condition in study.conditions():
        if condition.arm:
            continue
        for greedy in (False, True)[: 1 + study.has_greedy(condition)]:
            played = getattr(tasks, condition.tasks)
            score = read_score(out, condition, {"base": None}, played, greedy=greedy, clustered=True)
            label = condition.label + (", greedy" if greedy else "")
            found[condition.name + (".greedy" if greedy else "")] = _numbers(score, label)
    return found


def _numbers(score: Score, label: str) -> dict[str, Any]:
    rates = talk.rates(score.talk, score.clusters)
    return {
        "label": label,
        "score": score.rate.as_json,
        "templates": len(set(score.clusters or ())),
        "talk": {name: rates[name].as_json for name in TALK if name in rates},
    }


def card(about: dict[str, Any], table: dict[str, Any]) -> str:
    """README.md of the base. about: cotalk_base.json, with `measured`."""
    measured, text, asked = about["measured"], table["text"], table["measure"]
    spoken = [m for name, m in measured.items() if m["talk"] and not name.startswith("skyline")]
    told = {
        "torch": about["versions"]["torch"],
        "problems": "\n".join(f"- {name}: {tally}" for name, tally in about["problems"].items()),
        "refused": "; ".join(f"{n:,} rows: {reason}" for reason, n in about["refused"].items()) or "nothing",
        "held": "; ".join(f"{kind} {a:.3f} -> {b:.3f}" for kind, (a, b) in about["held_loss"].items()),
        "training": ", ".join(f"{name} {value}" for name, value in table["training"].items()),
        "scores": "\n".join(f"| {m['label']} | {_cells(m)} |" for m in measured.values()),
        "spoken": "\n".join(f"| {m['label']} | {' | '.join(_brief(m, n) for n in TALK)} |" for m in spoken),
        "habits": "\n".join(_habits(text["habits"])),
    }
    # of another model the licence is not known here
    head = SMOLLM2 if "SmolLM2-135M" in about["start"] else ""
    return head + CARD.format(
        **about | told, order=ORDER, card_seed=CARD_SEED, chats=asked["chats"], temperature=asked["temperature"],
        message_tokens=text["message_tokens"], answer_tokens=text["answer_tokens"], talk=" | ".join(TALK),
        rule="---|" * len(TALK),
    )  # fmt: skip


def _cells(measured: dict[str, Any]) -> str:
    rate = Rate.from_json(measured["score"])
    return f"{rate.mean:.3f} | {rate.low:.3f} - {rate.high:.3f} | {rate.n} | {measured['templates']}"


def _brief(measured: dict[str, Any], name: str) -> str:
    return Rate.from_json(measured["talk"][name]).brief if name in measured["talk"] else ""


def _habits(habits: dict[str, Any]) -> list[str]:
    return [
        f"| {seat} | {situation} | {', '.join(f'{habit} {rate:.2f}' for habit, rate in rates.items())} |"
        for seat, situations in habits.items()
        for situation, rates in situations.items()
    ]
