"""What is looked at before a run or a study writes its first file, so that a mistake costs seconds and leaves nothing.

    ready = preflight(study)              # BadInput for whatever would be refused later
    ready.tasks                           # dealt
    ready.given                           # {"train tasks": digest, "method my.py:Mine": digest, "base": digest, ...}

Left out: what is in a config itself (config.py, study.py), and the modules that a user's own file imports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cotalk.base import is_here, peek, refuse_path, require, weights_here
from cotalk.config import Config
from cotalk.crossplay import sitters
from cotalk.errors import BadInput
from cotalk.given import digest_of_deals, digest_of_files
from cotalk.grade import load_grader
from cotalk.methods import method, pool_of
from cotalk.partners import Entry, adapters_in
from cotalk.perturb import perturb_deals
from cotalk.split import Tally, Tasks, splits
from cotalk.study import Study


@dataclass(frozen=True)
class Ready:
    """What may begin. tasks: dealt. given: what was in the files that it names (given.py)."""

    tasks: Tasks
    given: dict[str, str]


def prepare(config: Config, perturbed: bool = False, unseen: int = 0, heldout_only: bool = False) -> Tasks:
    """Loads and deals the three disjoint sources of a config.

    perturbed: also the held-out with other numbers. unseen: also so many tasks of unseen templates. heldout_only: the
    same held-out tasks, without the others (an evaluation needs none).
    """
    train, dev = (0, 0) if heldout_only else (config.train_tasks, config.dev_tasks)
    tasks = splits(
        config.tasks, config.heldout or None, train=train, dev=dev,
        heldout=config.heldout_tasks, rule=config.rule, seats=config.rules.seats, unseen=unseen,
        any_gold=bool(config.grade),
    )  # fmt: skip
    if not perturbed:
        return tasks
    deals, found = perturb_deals(tasks.heldout, config.heldout or config.tasks, config.rule)
    tally = Tally(len(tasks.heldout), len(deals), found.refused, {})
    if not deals:
        raise BadInput(
            f"[evaluate] perturbed = true, but no held-out task of {config.tasks!r} could be given other numbers "
            f"({tally}); expected puzzles, gsm_symbolic or GSM8K, whose gold can be made again",
            "task/not-perturbed",
        )
    return replace(tasks, perturbed=deals, report={**tasks.report, "perturbed": tally})


def preflight(study: Study) -> Ready:
    """Looks at all that a study names. Raises BadInput for what would be refused later; writes nothing."""
    evaluation = study.evaluate
    guests = sitters({}, evaluation.guests if evaluation.cross else ())
    for guest in guests:
        if guest.kind == "model":
            require(guest.name.partition(":")[2])
    tasks = prepare(study.config, evaluation.perturbed, evaluation.unseen)
    return _ready([study.arm(name) for name in study.arms], tasks)


def preflight_run(config: Config) -> Ready:
    """The same for one run."""
    return _ready([config], prepare(config))


def refusal(study: Study) -> str:
    """Why a study would be refused as things are here, "" if it would not; asks no hub."""
    online = [name for name in (study.config.tasks, study.config.heldout) if name == "gsm8k"]
    try:
        if not is_here(study.config.base):
            refuse_path(study.config.base)
        elif not online:
            preflight(study)
    except BadInput as error:
        return str(error)
    return ""


def _ready(arms: Sequence[Config], tasks: Tasks) -> Ready:
    config, given = arms[0], _tasks(tasks)
    base = peek(config.base, config.wording)
    for arm in arms:
        if arm.grade:
            load_grader(arm.grade)
        pool = pool_of(method(arm), arm)  # a mistake in a file of the user's is told now
        given |= {name: digest_of_files([path]) for name, path in _own_files(arm).items()}
        for entry in pool:
            given |= _partner(entry, arm)
        if base:
            base.warn(arm.rules)
            base.check(arm.rules, [*tasks.train, *tasks.dev, *tasks.heldout, *tasks.unseen])
    if files := weights_here(config.base):
        given["base"] = digest_of_files(files)
    return Ready(tasks, given)


def given_now(arms: Sequence[Config], evaluation: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """What those files hold now that can be looked at without running anything of anybody, and what is not there.

    Built-in sources and hubs are not asked: a source of tasks is dealt again where it is a file or a directory.
    """
    found: dict[str, str] = {}
    gone: list[str] = []
    config = arms[0]
    for arm in arms:
        for name, path in _own_files(arm).items():
            if path.is_file():
                found[name] = digest_of_files([path])
            else:
                gone.append(name)
    if files := weights_here(config.base):
        found["base"] = digest_of_files(files)
    sources = [source for source in (config.tasks, config.heldout) if source]
    if all(Path(source).exists() for source in sources):
        try:
            tasks = prepare(config, bool(evaluation.get("perturbed")), int(evaluation.get("unseen", 0)))
        except BadInput:
            return found, gone
        found |= _tasks(tasks)
    elif any(source.endswith(".jsonl") for source in sources):
        gone += ["train tasks", "dev tasks", "held-out tasks"]
    return found, gone


def given_to_evaluation(config: Config, tasks: Tasks) -> dict[str, str]:
    """Of what an evaluation reads: its tasks and its grader."""
    files = {name: path for name, path in _own_files(config).items() if name.startswith("grader ")}
    return _tasks(tasks) | {name: digest_of_files([path]) for name, path in files.items() if path.is_file()}


def _tasks(tasks: Tasks) -> dict[str, str]:
    sets = {"train": tasks.train, "dev": tasks.dev, "held-out": tasks.heldout}
    sets |= {"unseen": tasks.unseen, "perturbed": tasks.perturbed}
    return {f"{name} tasks": digest_of_deals(deals) for name, deals in sets.items() if deals}


def _own_files(arm: Config) -> dict[str, Path]:
    """The files of a user's own grader and method, by the names that they have in `given`."""
    own = {"grader": arm.grade, "method": arm.method if ".py" in arm.method else ""}
    return {f"{what} {name}": Path(name.rpartition(":")[0]) for what, name in own.items() if name}


def _partner(entry: Entry, arm: Config) -> dict[str, str]:
    if entry.kind == "model":
        require(entry.of)
    if entry.kind != "adapter":
        return {}
    places = adapters_in(Path(entry.of), arm.rules.seats)
    return {
        f"partner {entry.name}": digest_of_files([p for d in places for p in sorted(d.glob("adapter_*"))])
    }
