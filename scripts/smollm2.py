"""The whole of the SmolLM2 study from a source tree, on a machine that may lack a registry: base, study, what is kept.

    PYTHONPATH=src python scripts/smollm2.py draw  --out problems.jsonl.gz
    PYTHONPATH=src python scripts/smollm2.py base  --out /tmp/run/base --start SmolLM2.gguf --rows problems.jsonl.gz
    PYTHONPATH=src python scripts/smollm2.py study --base /tmp/run/base --out /tmp/run/study
    PYTHONPATH=src python scripts/smollm2.py study --base /tmp/run/base --out /tmp/run/methods --study smollm2-methods
    PYTHONPATH=src python scripts/smollm2.py study --base /tmp/run/base --out /tmp/run/gsm8k --gsm8k data/gsm8k
    PYTHONPATH=src python scripts/smollm2.py keep  /tmp/run/study results/smollm2

`base` and `study` stop cleanly after --minutes (exit code 3): the same command goes on, until it ends with 0. A study
stops where its runs next wait, each with a checkpoint. docs/bases.md has the rest.
"""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cotalk import report, results
from cotalk.bases import make_smollm2, problems
from cotalk.bases.settings import read_settings
from cotalk.errors import BadInput, RunFailed, Stopped
from cotalk.jobs import begin, run_study
from cotalk.preflight import preflight
from cotalk.run import locked
from cotalk.stack import ask_to_stop
from cotalk.study import Study, cores, read_study

TIME_IS_UP = 3  # the exit code: the same command goes on
KEPT_CHATS = 50
console = Console()


class TimeIsUp(BaseException):
    """Not an Exception: it ends a study and not only the run in which it is raised."""


def until(minutes: float) -> float:
    return time.monotonic() + 60 * minutes


def draw(arguments: argparse.Namespace) -> int:
    """Problems with worked solutions, for `base --rows`."""
    table = read_settings(arguments.settings or make_smollm2.SETTINGS, make_smollm2.SETTINGS)["problems"]
    some, tally = problems.draw(arguments.count or table["drawn"], table["others"], cores(), print)
    problems.write(some, arguments.out)
    print(f"{arguments.out}: {tally}")
    return 0


def base(arguments: argparse.Namespace) -> int:
    done = make_smollm2.make(
        arguments.out, arguments.settings, arguments.device, console, start=arguments.start, rows=arguments.rows,
        gsm8k=arguments.gsm8k, until=until(arguments.minutes),
    )  # fmt: skip
    return 0 if done else TIME_IS_UP


def study(arguments: argparse.Namespace) -> int:
    found = the_study(arguments.base, arguments.gsm8k, arguments.set, arguments.seeds, arguments.study)
    try:
        ready = preflight(found)
        with locked(arguments.out):
            for line in begin(found, arguments.out, ready.given, arguments.force):
                print(line)
        told = watch(found, until(arguments.minutes))
        document = run_study(found, arguments.out, arguments.workers, told, ready=ready)
    except (TimeIsUp, Stopped):
        print(f"stopped; the same command goes on with {arguments.out}")
        return TIME_IS_UP
    console.print(results.table(document))
    print(f"wrote {arguments.out / 'results.json'}, {report.report(arguments.out)}")
    if document["failed"]:
        raise RunFailed(f"runs failed: {document['failed']}; the same command tries them again")
    return 0


def the_study(
    base: str,
    gsm8k: str = "",
    changes: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    name: str = "smollm2",
) -> Study:
    """A study of the package on this base; with `gsm8k` (a directory) on the published 300 held-out problems."""
    from cotalk.cli import parse_settings

    overrides: dict[str, Any] = {"base": base} | parse_settings(tuple(changes))
    if not gsm8k:
        return read_study(name, overrides, seeds or None)
    published = {"tasks": gsm8k, "rule": "published", "heldout_tasks": 300}
    found = read_study(name, published | overrides, seeds or None)
    compare = tuple(pair for pair in found.compare if not any(name.endswith("_unseen") for name in pair))
    return replace(found, name=f"{name}-gsm8k", compare=compare, evaluate=replace(found.evaluate, unseen=0))


def watch(found: Study, stop: float) -> Callable[[str, str, int, int, dict[str, Any]], None]:
    """Prints a line now and then, and past `stop` has the study stop, with a checkpoint of every run."""
    every, began = found.config.checkpoint_every, time.monotonic()
    asked: list[str] = []

    def told(job: str, phase: str, step: int, of: int, metrics: dict[str, Any]) -> None:
        trains = phase == "train"
        if not trains or step % every == 0 or step == 1:
            what = f"reward {metrics.get('reward', math.nan):.3f}" if trains else metrics.get("condition", "")
            print(f"{time.monotonic() - began:6.0f} s  {job:12} {phase} {step}/{of} {what}", flush=True)
        if time.monotonic() > stop and not asked:
            if not ask_to_stop():  # worker processes train: whoever ends them asks each of them
                raise TimeIsUp
            asked.append(job)  # once: a second signal would end all at once

    return told


def keep(arguments: argparse.Namespace) -> int:
    """What a repository keeps of a study: scripts/keep_results.py, and the first chats of every condition."""
    from keep_results import keep as kept

    written = kept(arguments.run, arguments.target)
    shutil.rmtree(arguments.target / "chats", ignore_errors=True)
    for scores in sorted((arguments.run / "scores").iterdir()):
        # no repeats, none greedy; `causal` has folders of its own, of chats that are these with a message replaced
        runs = [path for path in sorted(scores.glob("*.jsonl")) if path.name.count(".") == 1]
        if not runs:
            continue
        each = math.ceil(KEPT_CHATS / len(runs))
        lines = [
            line for path in runs for line in path.read_text(encoding="utf-8").split("\n")[:each] if line
        ]
        path = arguments.target / "chats" / f"{scores.name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines[:KEPT_CHATS]), encoding="utf-8")
        written.append(path)
    print("\n".join(map(str, written)))
    return 0


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = whole.add_subparsers(required=True)

    def command(does: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        one = commands.add_parser(does.__name__)
        one.set_defaults(does=does)
        return one

    one = command(draw)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument(
        "--count", type=int, default=0, help="problems; as many as the settings ask for if not given"
    )
    one.add_argument("--settings", type=Path)
    one = command(base)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--start", default="", help="a directory, a .gguf file or a hub name")
    one.add_argument("--rows", type=Path, help="what draw wrote")
    one.add_argument("--gsm8k", default="", help="GSM8K's directory: learn from its train split too")
    one.add_argument("--settings", type=Path)
    one.add_argument("--device", default="auto")
    one.add_argument("--minutes", type=float, default=math.inf)
    one = command(study)
    one.add_argument("--base", required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--study", choices=("smollm2", "smollm2-methods", "smollm2-partners"), default="smollm2")
    one.add_argument("--gsm8k", default="", help="GSM8K's directory: the published held-out problems instead")
    one.add_argument(
        "--force", action="store_true", help="go on with other settings than --out was begun with"
    )
    one.add_argument("--set", nargs="*", default=(), help="KEY=VALUE of the [run] table")
    one.add_argument("--seeds", nargs="*", type=int, default=())
    one.add_argument("--workers", type=int, default=0, help="GPUs to share the runs out over")
    one.add_argument("--minutes", type=float, default=math.inf)
    one = command(keep)
    one.add_argument("run", type=Path)
    one.add_argument("target", type=Path)
    return whole


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        return int(given.does(given))
    except (BadInput, RunFailed) as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # workers are asked to stop, not left
    sys.exit(main())
