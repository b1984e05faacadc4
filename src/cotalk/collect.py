"""results.json out of a study's files: every pass is read back from disk, and every number is computed from them.

    document = collect(study, out, tasks, failures, seconds, workers)

Left out: the statistics and the schema (results.py, stats.py), what is played and by whom (jobs.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from cotalk import causal, results
from cotalk.base import pick_device
from cotalk.checks import git_state
from cotalk.crossplay import Matrix, summary
from cotalk.errors import BadInput, RunFailed
from cotalk.evaluate import read_score
from cotalk.given import read_given
from cotalk.reliability import reliability
from cotalk.results import Score
from cotalk.run import read_lines
from cotalk.split import Tasks
from cotalk.study import Job, Study


def collect(
    study: Study,
    out: Path,
    tasks: Tasks,
    failures: Mapping[str, str],
    seconds: float,
    workers: int,
    price: float | None = None,
    matrix: Matrix | None = None,
) -> results.Json:
    """Reads every pass back from disk, computes every number, writes outcomes/*.npz and results.json.

    Args:
        failures: {job: why it failed for good}; none of its files count.
        seconds, workers, price: what `cost` tells.
        matrix: the cross-play that was played.
    """
    scores = list(read_scores(study, out, tasks, failures))
    if not scores:
        told = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise RunFailed(
            f"every run of study {study.name} failed ({told}). The same command tries them again",
            "run/failed",
        )
    have = {s.condition for s in scores}
    for score in scores:
        score.save(out / "outcomes")
    about = {c.name: {"label": c.label, "arm": c.arm, "channel": c.channel} for c in study.conditions()}
    document = results.build(
        study.name, scores, compare=[pair for pair in study.compare if set(pair) <= have],
        config={"run": study.config.as_dict(), "arms": study.arms, "seeds": list(study.seeds),
                "evaluate": asdict(study.evaluate),
                "sampling": f"temperature {study.config.temperature}, full vocabulary, as in training"},
        cost=cost(study, out, seconds, workers, price), about=about, margin=study.evaluate.margin or None,
    )  # fmt: skip
    document["tasks"] = {name: asdict(tally) for name, tally in tasks.report.items()}
    document["failed"] = dict(failures)
    document["dropped"] = dropped_steps(study, out)
    document["git"] = git_state()
    document["given"] = read_given(out)
    if tasks.perturbed:
        document["perturbed"] = {"dealt": len(tasks.perturbed), "refused": tasks.report["perturbed"].refused}
    document["causal"] = knocked_out(study, out, tasks, failures)
    document["reliability"] = reliability(document["conditions"])
    if matrix:
        document["cross_play"] = summary(matrix, study.evaluate.margin or None, tasks.dev)
    results.write(out / "results.json", document)
    return document


def dropped_steps(study: Study, out: Path) -> dict[str, int]:
    """{run: steps that were dropped since a number in them was not finite}, of those that have any."""
    found = {
        job.name: sum(bool(m.get("dropped")) for m in read_lines(out / "runs" / job.name / "metrics.jsonl"))
        for job in study.jobs()
    }
    return {name: count for name, count in found.items() if count}


def read_scores(study: Study, out: Path, tasks: Tasks, failures: Mapping[str, str]) -> Iterator[Score]:
    clustered = _clustered(study, tasks)
    for condition in study.conditions():
        runs = runs_of(study, condition.arm, failures)
        if not runs:
            continue
        played = getattr(tasks, condition.tasks)
        yield read_score(out, condition, runs, played, repeats=study.repeats(condition), clustered=clustered)
        if study.evaluate.greedy and study.has_greedy(condition):
            yield read_score(out, condition, runs, played, greedy=True, clustered=clustered)


def runs_of(study: Study, arm: str, failures: Mapping[str, str]) -> dict[str, int | None]:
    """{name of a job: its seed} of an arm (or "", the base), without the failed ones."""
    return {j.name: j.seed for j in study.jobs() if j.arm == arm and j.name not in failures}


def _clustered(study: Study, tasks: Tasks) -> bool:
    """Whether templates are a sample: those of the built-in puzzles are all that exist."""
    return study.config.tasks.partition(":")[0] != "puzzles" and any(d.task.template for d in tasks.heldout)


def knocked_out(study: Study, out: Path, tasks: Tasks, failures: Mapping[str, str]) -> results.Json:
    """{condition: the effect of every knock-out}, for the arms whose messages were replaced."""
    found = {}
    names = [deal.task.id for deal in tasks.heldout]
    clusters = [deal.task.template for deal in tasks.heldout] if _clustered(study, tasks) else None
    for arm in study.arms:
        runs, own = runs_of(study, arm, failures), study.own_condition(arm)
        which = study.knockouts(Job(arm, study.seeds[0]))
        if runs and which:
            effects = causal.effects(out, own, runs, names, clusters=clusters, which=which)
            found[own.name] = [effect.as_json for effect in effects]
    return found


def cost(study: Study, out: Path, seconds: float, workers: int, price: float | None = None) -> results.Json:
    """What a study took. seconds: of this call; those of earlier calls are added where they came to their end.

    price: of an hour of the device (one GPU); where none is given now, an earlier call's stays. Each of several GPUs
    counts in `device_seconds`.
    """
    before = _cost_before(out / "results.json")
    device, earlier = pick_device(study.config.device), float(before.get("seconds", 0.0))
    cards = 1 if device == "cpu" else workers
    price = before.get("price_per_hour") if price is None else price
    steps = [line for job in study.jobs() for line in read_lines(out / "runs" / job.name / "metrics.jsonl")]
    return {
        "seconds": round(earlier + seconds, 1),
        "device_seconds": round(float(before.get("device_seconds", earlier)) + cards * seconds, 1),
        "training_seconds": round(sum(line.get("seconds", 0.0) for line in steps), 1),
        "training_tokens_sampled": int(sum(line.get("tokens", 0) for line in steps)),
        "device": device,
        "device_name": "CPU" if device == "cpu" else torch.cuda.get_device_name(),
        "workers": workers,
    } | ({} if price is None else {"price_per_hour": price})


def _cost_before(path: Path) -> results.Json:
    """What an earlier call wrote down; nothing where it left no results.json that this version reads."""
    try:
        return dict(results.read(path)["cost"])
    except BadInput:
        return {}
