"""Keeps a study's results in the repository: results.json, report.html, and outcomes/ to compute every interval again.

    cotalk quickstart
    python scripts/keep_results.py runs/quickstart results/quickstart

Chats, metrics and adapters stay where they are. Refuses a study that `cotalk check` fails, and outcomes over 4 MB.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from cotalk import checks

MOST_BYTES = 4_000_000


def keep(study: Path, target: Path) -> list[Path]:
    """Copies into `target`, in place of what was kept there before, and returns what it wrote."""
    if failed := [each for each in checks.check(study) if each.result == "fail"]:
        raise SystemExit(
            f"{study} fails {failed[0].name}: {failed[0].detail}. Expected a study that passes cotalk check."
        )
    outcomes = sorted((study / "outcomes").glob("*.npz"))
    size = sum(path.stat().st_size for path in outcomes)
    if size > MOST_BYTES:
        raise SystemExit(f"{study}/outcomes holds {size:,} bytes; expected at most {MOST_BYTES:,} to commit.")
    kept = [study / "results.json", study / "report.html", *outcomes]
    if missing := [path.name for path in kept if not path.is_file()]:
        raise SystemExit(
            f"{study} has no {missing[0]}: expected a study that came to its end, with its report."
        )
    shutil.rmtree(target / "outcomes", ignore_errors=True)
    (target / "outcomes").mkdir(parents=True)
    return [Path(shutil.copyfile(path, target / path.relative_to(study))) for path in kept]


if __name__ == "__main__":
    for written in keep(Path(sys.argv[1]), Path(sys.argv[2])):
        print(written)
