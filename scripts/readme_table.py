"""Writes the README's table of a study from its results.json, between the two marks that bear the directory's name.

python scripts/readme_table.py results/quickstart/results.json README.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from cotalk import results
from cotalk.stats import Rate

SHOWN = ("base_closed", "base_open", "trained_closed", "trained_open", "trained_a_base_b", "base_a_trained_b",
         "skyline", "floor")  # fmt: skip
TALK = ("sends", "uses")


def table(document: results.Json) -> str:
    lines = [
        "| condition | solved, 95% interval | every seed | n | " + " | ".join(TALK) + " |",
        "|---|---|---|---|" + "---|" * len(TALK),
    ]
    for name in SHOWN:
        condition = document["conditions"].get(name)
        if condition is None:
            continue
        size, seeds = condition["size"], condition["per_seed"]
        trained = list(seeds) != ["base"]
        of = [size["runs"]] * trained + [size["tasks"], size["chats"] * size["seats"]]
        spoken = [Rate.from_json(condition["talk"][t]).brief if t in condition["talk"] else "" for t in TALK]
        cells = [
            condition["label"], Rate.from_json(condition["score"]).brief,
            " ".join(f"{mean:.2f}" for mean in seeds.values()) if trained else "",
            " x ".join(map(str, of)), *spoken,
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    text = target.read_text(encoding="utf-8")
    begin, end = (f"<!-- {source.parent.name}: {edge} -->" for edge in ("begin", "end"))
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    made = f"{before}{begin}\n{table(results.read(source))}\n{end}{after}"
    target.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
