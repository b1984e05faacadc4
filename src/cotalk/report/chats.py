"""Chats for the viewer: the lines that a study left on disk -> plain JSON that a script can show without computing.

Every text becomes SEGMENTS: plain strings and [number, tag] pairs in the order of the text. A tag says where the number
comes from, as `cotalk.talk.origins` judges it: the seats that hold it ("A", "AB"), "?" the question, "+" one operation
away from known ones, "!" invented. Control characters are made visible and lengths are capped here; whoever shows the
JSON must only keep it text.

Which chats: those of the same tasks for every condition and run, evenly spaced through the evaluation's own order and
never chosen by outcome; as many as fit in `BUDGET` bytes.

    viewer(read_study(Path("runs/quickstart")))    # {"tasks", "passes", "start", "about"}; viewer.js shows it
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from cotalk import numerals, talk
from cotalk.report.read import Json, Study, is_number, mapping, natural, read_lines, read_study, thinned
from cotalk.report.words import condition_label, more, shown

TEXT = 4_000  # characters of one message
BUDGET = {"heldout": 1_400_000, "training": 700_000}  # bytes of JSON
TASKS = {"heldout": 60, "training": 16}  # at most
STEPS = 12  # of one run

Lines = dict[str, Json]  # task -> its first chat line


# --- one chat -------------------------------------------------------------------------------------------------


def is_chat(line: Json) -> bool:
    """Whether a line can be shown: it may come from a run that still writes, or from another version."""
    return (
        isinstance(line.get("task"), str)
        and isinstance(line.get("messages"), list)
        and all(isinstance(m, dict) and isinstance(m.get("said"), str) for m in line["messages"])
        and isinstance(line.get("hands"), dict)
        and all(isinstance(hand, list) for hand in line["hands"].values())
    )


def shown_task(line: Json) -> Json:
    """A chat line's question, gold and hands."""
    chat = _tidy(line)
    held = talk.holders(chat)
    return {
        "name": shown(line["task"], 80),
        "question": segments(chat["question"], held),
        "gold": shown(str(line.get("gold") or ""), 200),
        "hands": _hands(chat, held),
    }


def shown_chat(line: Json) -> Json:
    """A chat line's messages with the origin of every number, its answers, and what became of each private number."""
    chat = _tidy(line)
    origins, held = talk.origins(chat), talk.holders(chat)
    last = {message["seat"]: at for at, message in enumerate(chat["messages"])}
    messages = []
    for at, (message, origin) in enumerate(zip(chat["messages"], origins)):
        one: Json = {"seat": message["seat"], "said": segments(message["said"], origin)}
        heard = message["heard"]
        if heard is not None and heard.strip() != message["said"].strip():
            one["heard"] = segments(heard, origin | held)
        if message["cut"]:
            one["cut"] = 1
        if last[message["seat"]] == at:
            one["last"] = 1
        messages.append(one)
    players = {str(seat): shown(str(player), 40) for seat, player in mapping(line.get("players")).items()}
    return {
        "messages": messages,
        "answers": _answers(line),
        "players": players,
        "trail": _trail(chat),
    }


@lru_cache(4096)
def located(text: str) -> tuple[tuple[int, int, list[Fraction]], ...]:
    """`numerals.located`, once a text: every chat of a task has the same facts, and the trail looks again and again."""
    return tuple(numerals.located(text))


def segments(text: str, tags: dict[float, str]) -> list[str | list[str]]:
    """A text in pieces, each number with its tag (untagged where it is in none of `tags`)."""
    kept = text[:TEXT]
    parts: list[str | list[str]] = []
    at = 0
    for start, end, values in located(kept):
        found = [tags.get(round(float(value), 3), "") for value in values]
        tag = next((t for t in found if t == "!"), found[0])
        if tag:
            parts += [shown(kept[at:start]), [shown(kept[start:end], 80), tag]]
            at = end
    parts.append(shown(kept[at:], TEXT) + (more(len(text) - TEXT) if len(text) > TEXT else ""))
    return [part for part in parts if part]


def _tidy(line: Json) -> Json:
    """A chat line with every text a text, so that `talk` can read it."""
    messages = [
        {
            "seat": shown(str(message.get("seat", "?")), 8),
            "said": message["said"],
            "heard": message.get("heard") if isinstance(message.get("heard"), str) else None,
            "cut": bool(message.get("cut")),
        }
        for message in line["messages"]
    ]
    hands = {shown(str(seat), 8): [str(fact) for fact in hand] for seat, hand in line["hands"].items()}
    return {"question": str(line.get("question") or ""), "hands": hands, "messages": messages}


def _hands(chat: Json, held: dict[float, str]) -> Json:
    return {seat: [segments(fact, held) for fact in hand] for seat, hand in chat["hands"].items()}


def _answers(line: Json) -> Json:
    """Of each seat: what it answered, whether that is right (as the reward counts it), whether it was in a box."""
    rewards = mapping(line.get("rewards"))
    found: Json = {}
    for seat, grade in mapping(line.get("answers")).items():
        answer = mapping(grade)
        right = rewards[seat] > 0 if is_number(rewards.get(seat)) else bool(answer.get("strict"))
        found[shown(str(seat), 8)] = {
            "answer": shown(str(answer.get("answer") or ""), 200),
            "right": int(right),
            "parsed": int(bool(answer.get("parsed", True))),
        }
    return found


def _trail(chat: Json) -> list[Json]:
    """For each number that only one seat holds: was it said by that seat, heard, used in another's answer?"""
    if len(chat["hands"]) < 2:
        return []
    last = {message["seat"]: at for at, message in enumerate(chat["messages"])}
    rows = []
    for seat, hand in chat["hands"].items():
        mine, _ = talk.private_numbers(chat, seat)
        written = {
            round(float(value), 6): fact[a:b]
            for fact in hand
            for a, b, values in located(fact)
            for value in values
        }
        before = [m for at, m in enumerate(chat["messages"]) if m["seat"] == seat and at != last.get(seat)]
        answers = {m["seat"]: m["said"] for at, m in enumerate(chat["messages"]) if at == last[m["seat"]]}
        for value in [v for v in written if v in mine]:
            heard = [m["said"] if m["heard"] is None else m["heard"] for m in before]
            rows.append(
                {
                    "number": shown(written[value], 40),
                    "seat": seat,
                    "said": int(any(_holds(m["said"], value) for m in before)),
                    "heard": int(any(_holds(text, value) for text in heard)),
                    "used": [
                        other for other, text in answers.items() if other != seat and _holds(text, value)
                    ],
                }
            )
    return rows


def _holds(text: str, value: float) -> bool:
    return any(value == round(float(v), 6) for _, _, values in located(text) for v in values)


# --- many chats -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """One time through the tasks: a choice in the viewer. group and label are what its two selectors say."""

    id: str
    mode: str
    group: str
    label: str
    lines: Lines


def passes(study: Study, prefix: str = "") -> list[Pass]:
    """Every pass of a study that lies on disk, in the order of the page. prefix: of ids and groups."""
    return [*_heldout(study, prefix), *_training(study, prefix)]


def _heldout(study: Study, prefix: str) -> Iterator[Pass]:
    folders = {path.name: path for path in sorted((study.directory / "scores").glob("*")) if path.is_dir()}
    folders.pop("causal", None)
    names = [
        *(name for name in study.conditions if name in folders),
        *(n for n in folders if n not in study.conditions),
    ]
    for name in names:
        known = study.conditions.get(name)
        group = known.label if known else shown(condition_label(name), 80)
        for path in sorted(folders[name].glob("*.jsonl"), key=natural):
            if "." in path.stem:  # .greedy and .repeat1: further passes over the same tasks
                continue
            yield from _passes_of(
                path, f"{prefix}{name}/{path.stem}", f"{prefix}{group}", _seed_label(path.stem)
            )


def _passes_of(path: Path, name: str, group: str, label: str) -> Iterator[Pass]:
    """A file's pass; one for each half hand where the seats played alone."""
    halves: dict[str, Lines] = {}
    for line in read_lines(path):
        if is_chat(line):
            halves.setdefault(str(line.get("half") or ""), {}).setdefault(line["task"], line)
    for half, lines in halves.items():
        told = f"{label}, {half}'s hand" if half else label
        yield Pass(name + (f"/{half}" if half else ""), "heldout", group, shown(told, 60), lines)


def _seed_label(stem: str) -> str:
    seed = stem.rpartition("-")[2]
    return f"seed {seed}" if seed.isdigit() else "untrained" if stem == "base" else stem


def _training(study: Study, prefix: str) -> Iterator[Pass]:
    """The dev tasks of each run at each recorded step; an open arm's runs come first."""
    paths = sorted(
        (study.directory / "runs").glob("*/dev.jsonl"),
        key=lambda path: (not path.parent.name.startswith("open-"), natural(path)),
    )
    for path in paths:
        run = path.parent.name
        arm, _, seed = run.rpartition("-")
        steps: dict[int, Lines] = {}
        for line in read_lines(path):
            if is_chat(line) and is_number(line.get("step")):
                steps.setdefault(int(line["step"]), {})[line["task"]] = line
        for step in thinned(sorted(steps), STEPS):
            group = f"{prefix}{arm}, seed {seed}" if arm else f"{prefix}{run}"
            yield Pass(f"{prefix}{run}/{step}", "training", shown(group, 80), f"step {step}", steps[step])


def viewer(study: Study) -> Json:
    """The viewer's JSON for one study; notes in `study.missing` which chats are not there."""
    found = passes(study)
    told = {
        "heldout": "No chats of the evaluation: scores/<condition>/<run>.jsonl holds none.",
        "training": "No chats of the dev tasks: runs/<arm>-<seed>/dev.jsonl holds none.",
    }
    for mode, sentence in told.items():
        if not any(each.mode == mode for each in found):
            study.missing[mode] = sentence
    return show(found)


def viewer_of(directory: Path) -> Json:
    """The viewer's JSON for a study's directory, also while the study writes."""
    return viewer(read_study(directory))


def show(found: Sequence[Pass]) -> Json:
    """Passes as the viewer's JSON: tasks, passes, which two to start with, and a sentence on what was chosen."""
    tasks: Json = {}
    told, shown_passes = {}, []
    for mode, budget in BUDGET.items():
        mine = [each for each in found if each.mode == mode]
        names = list(dict.fromkeys(task for each in mine for task in each.lines))
        if not names:
            continue
        chosen = thinned(names, TASKS[mode])
        rows = [_shown_pass(each, chosen, tasks) for each in mine]
        size = len(json.dumps(rows, ensure_ascii=False).encode("utf-8", "replace"))
        if size > budget:
            chosen = thinned(names, max(1, int(len(chosen) * budget / size)))
            rows = [_shown_pass(each, chosen, tasks) for each in mine]
        shown_passes += rows
        what = "held-out tasks" if mode == "heldout" else "dev tasks, played greedily during training"
        which = "all" if len(chosen) == len(names) else f"{len(chosen)} of the {len(names)}"
        told[mode] = (
            f"{which} {what}, the first chat of each; "
            + ("" if len(chosen) == len(names) else "evenly spaced through their order, ")
            + "not chosen by outcome"
        )
    used = {task for row in shown_passes for task in row["chats"]}
    return {
        "tasks": {task: tasks[task] for task in tasks if task in used},
        "passes": shown_passes,
        "start": {mode: start for mode in told if (start := _start(shown_passes, mode))},
        "about": told,
    }


def _shown_pass(each: Pass, chosen: Sequence[str], tasks: Json) -> Json:
    """One pass over the chosen tasks. Adds the tasks to `tasks`; a chat with other hands than its task keeps them."""
    chats: Json = {}
    for name in chosen:
        line = each.lines.get(name)
        if line is None:
            continue
        task = shown_task(line)
        key = shown(name, 400)
        while (
            key in tasks and tasks[key]["question"] != task["question"]
        ):  # another study's task of the same name
            key += "′"
        chats[key] = shown_chat(line)
        if key not in tasks:
            tasks[key] = task
        elif tasks[key]["hands"] != task["hands"]:
            chats[key]["hands"] = task["hands"]
    return {"id": each.id, "mode": each.mode, "group": each.group, "label": each.label, "chats": chats}


def _start(rows: Sequence[Json], mode: str) -> list[str]:
    """Before on the left, after on the right: the base and the first trained run, or a run's first and last step."""
    mine = [row for row in rows if row["mode"] == mode]
    if mode == "training":
        first = [row for row in mine if row["group"] == mine[0]["group"]]
        return [first[0]["id"], first[-1]["id"]]
    names = [row["id"] for row in mine]
    before = next((n for n in names if "base_open/" in n), names[0])
    after = next((n for n in names if "trained_open/" in n), None) or next(
        (n for n in names if "trained_" in n and "_base_" not in n and "base_a_" not in n), names[-1]
    )
    return [before, after]


def as_data(value: Any) -> str:
    """JSON for a <script type="application/json">: no character of it can end the element or start markup."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
