"""Several studies on one page: each one's verdict, bars on the same scale, one table, chats of any two, what differs.

It sets side by side and compares nothing: a difference between studies with its interval is `cotalk compare`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from cotalk import checks
from cotalk.errors import BadInput
from cotalk.report import chats as chat_data
from cotalk.report import draw, page, words
from cotalk.report.read import Study, mapping, read_study

SECTIONS = {
    "solved": "Solved",
    "numbers": "Numbers",
    "talk": "Talk",
    "chats-section": "Chats",
    "curves": "Curves",
    "methods": "Seeds",
    "cost": "Cost",
    "settings": "Settings",
}


def named(directories: Sequence[Path]) -> dict[str, Study]:
    """The studies by name; by directory where two have one name. Raises BadInput for a directory given twice."""
    if len({path.resolve() for path in directories}) < len(directories):
        given = " ".join(map(str, directories))
        raise BadInput(f"report was given {given}; expected each study once", "cli/together")
    studies = [read_study(path) for path in directories]
    for told in (
        [study.name for study in studies],
        [study.directory.resolve().name for study in studies],
        [str(study.directory) for study in studies],
    ):
        if len(set(told)) == len(told):
            break
    return {words.shown(name, 60): study for name, study in zip(told, studies)}


def render(studies: dict[str, Study], charts: ModuleType | None) -> str:
    """The page's HTML."""
    pictures = draw.side_by_side(studies, charts) if charts else {}
    chats = [each for name, study in studies.items() for each in chat_data.passes(study, f"{name}: ")]
    viewer = chat_data.show(chats)
    if "heldout" in viewer["start"]:  # the first study's trained team beside the last one's
        last = chat_data.show([each for each in chats if each.id.startswith(f"{list(studies)[-1]}: ")])[
            "start"
        ]
        viewer["start"]["heldout"] = [
            viewer["start"]["heldout"][1],
            last.get("heldout", viewer["start"]["heldout"])[1],
        ]
    conditions = {name: each.label for study in studies.values() for name, each in study.conditions.items()}
    placed = page.place(pictures, charts)
    drawn = {
        name for name, study in studies.items() if any(draw.has_bar(c) for c in study.conditions.values())
    }
    sections = [
        (anchor, title)
        for anchor, title in SECTIONS.items()
        if anchor not in ("talk", "curves", "methods") or anchor in pictures
    ]
    return page.fill(
        "side.html.jinja",
        ", ".join(studies),
        [each for each in sections if each[0] != "chats-section" or viewer["start"]],
        charts,
        placed,
        viewer,
        studies=studies,
        verdicts=[
            (name, page.verdict(study.comparisons[0])) for name, study in studies.items() if study.comparisons
        ],
        alerts=[f"{name}: {alert}" for name, study in studies.items() for alert in page.alerts_of(study)],
        why=[page.stale_parts(study) for study in studies.values()],
        conditions=conditions,
        solved=list(zip([name for name in studies if name in drawn], placed.get("solved", []))),
        legend=page.legend(draw.side_arms(studies, charts), charts) if charts else [],
        about=_about(studies),
        differ=_differ(studies),
    )


def _about(studies: dict[str, Study]) -> list[tuple[str, list[str]]]:
    """Cost, checks and pins: a row each, a cell a study."""
    tiles = [
        {name: f"{value} {more}" for name, value, more in page.tiles_of(study, None)}
        for study in studies.values()
    ]
    rows = list(dict.fromkeys(name for each in tiles for name in each if name != "Price"))
    found = [(row, [each.get(row, "–") for each in tiles]) for row in rows]
    counted = [checks.counts(page.checks_of(study)) for study in studies.values()]
    found.append(
        ("Checks", [", ".join(f"{n} {result}" for result, n in each.items()) or "–" for each in counted])
    )
    pins = [dict(page.pins_of(study)) for study in studies.values()]
    for key in dict.fromkeys(key for each in pins for key in each):
        found.append((key, [each.get(key, "–") for each in pins]))
    return found


def _differ(studies: dict[str, Study]) -> list[tuple[str, list[str]]]:
    settings = [dict(words.settings(mapping(study.results.get("config")))) for study in studies.values()]
    keys = dict.fromkeys(key for each in settings for key in each)
    rows = [(key, [each.get(key, "–") for each in settings]) for key in keys]
    return [(key, cells) for key, cells in rows if len(set(cells)) > 1]
