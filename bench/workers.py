"""A study on one CPU worker against two: how much faster, and whether the results are the same bits.

Runs the quickstart's study twice in fresh directories (fewer steps and tasks unless told otherwise), compares every
adapter, chat line and outcome, and prints a table and one JSON line. Run it on an idle machine.

    PYTHONPATH=src python bench/workers.py --steps 10 --heldout-tasks 60
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cotalk.jobs import run_study
from cotalk.study import read_study


def digests(out: Path) -> dict[str, str]:
    """What must be equal: adapters, chats and outcomes (metrics hold seconds)."""
    found = [
        *out.rglob("adapter_model.safetensors"),
        *out.rglob("chats.jsonl"),
        *out.rglob("scores/*/*.jsonl"),
    ]
    return {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--heldout-tasks", type=int, default=60)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    study = read_study(
        "quickstart", {"steps": options.steps, "heldout_tasks": options.heldout_tasks, "device": "cpu"}
    )
    seconds, files = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for workers in options.workers:
            out = Path(folder) / str(workers)
            began = time.monotonic()
            run_study(study, out, workers)
            seconds[workers], files[workers] = time.monotonic() - began, digests(out)
    first = options.workers[0]
    same = all(files[w] == files[first] for w in options.workers)
    table = Table(
        title=f"quickstart, {options.steps} steps, {options.heldout_tasks} held-out tasks",
        title_justify="left",
    )
    for column in ("workers", "seconds", "times faster than the first"):
        table.add_column(column)
    for workers, took in seconds.items():
        table.add_row(str(workers), f"{took:.1f}", f"{seconds[first] / took:.2f}")
    console = Console()
    console.print(table)
    console.print(f"{len(files[first])} files compared: {'the same bytes' if same else 'THEY DIFFER'}")
    print(json.dumps({"bench": "workers", "seconds": seconds, "same": same, "files": len(files[first])}))
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
