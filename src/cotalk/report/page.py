"""From what was read to one HTML file: policy, data, pictures, chats, tables.

The page is a pure function of a study's results.json and of what its runs left on disk; the same files give the same
bytes. Its content-security policy allows nothing from outside: styles and scripts stand in the page and are named by
their digests, and no `eval`. What models wrote is never HTML: the template escapes every value, and the viewer gets
its chats as JSON and makes text nodes of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
from markupsafe import Markup

from cotalk.checks import Check, check
from cotalk.errors import BadInput
from cotalk.report import chats as chat_data
from cotalk.report import draw, words
from cotalk.report.draw import Picture
from cotalk.report.read import Json, Rate, Study, is_number, mapping, read_rate
from cotalk.study import Study as ShippedStudy
from cotalk.study import read_study as shipped_study

HERE = Path(__file__).parent
STYLES = ("theme.css", "viewer.css", "report.css")
SCRIPTS = ("charts.js", "viewer.js", "page.js")
SECTIONS = {
    "solved": "Solved",
    "verdicts": "Verdicts",
    "numbers": "Numbers",
    "talk": "Talk",
    "causal": "Causes",
    "chats-section": "Chats",
    "curves": "Curves",
    "methods": "Seeds",
    "cross": "Partners",
    "cost": "Cost",
    "checks": "Checks",
    "again": "Make it again",
}
NO_CHARTS = (
    "The charts are left out: altair and vl-convert-python are not installed here. "
    "The tables hold the same numbers."
)


def render(study: Study, charts: ModuleType | None, price: float | None = None) -> str:
    """The page's HTML; `charts` is the module charts.py, or None for a page without pictures. price: of an hour."""
    pictures = draw.pictures(study, charts) if charts else {}
    placed = place(pictures, charts)
    viewer = chat_data.viewer(study)
    checks = checks_of(study)
    _note_missing(study, pictures, charts)
    arms = draw.run_arms(study, draw.arm_colors([study], charts)) if charts else {}
    config = mapping(study.results.get("config"))
    causal = mapping(study.results.get("causal"))
    return fill(
        "report.html.jinja",
        study.name,
        list(SECTIONS.items()),
        charts,
        placed,
        viewer,
        study=study,
        facts=facts_of(study),
        headline=_headline(study),
        verdicts=[verdict(row) for row in study.comparisons],
        alerts=alerts_of(study),
        stale_why=stale_parts(study),
        conditions=list(study.conditions.values()),
        talk_names=list(dict.fromkeys(name for c in study.conditions.values() for name in c.talk)),
        pass_at=list(dict.fromkeys(k for c in study.conditions.values() for k in c.pass_at)),
        repeated=any(c.repeated for c in study.conditions.values()),
        seats=list(dict.fromkeys(seat for c in study.conditions.values() for seat in c.per_seat)),
        knocked=[str(mapping(e).get("sentence") or "") for effects in causal.values() for e in effects or []],
        cross=_cross_play(study),
        reliability=_reliability(study),
        legend=legend(arms, charts),
        finals=_last_values(study),
        final_headings=[heading for heading, _ in draw.CURVES.values()],
        tiles=tiles_of(study, price),
        spent=_spent(study),
        checks=checks,
        command=command(study),
        tables={
            "Pins": pins_of(study),
            "Settings": words.settings(config)[:300],
            "Tasks": words.settings(mapping(study.results.get("tasks")))[:100],
        },
    )


def fill(
    template: str,
    title: str,
    sections: Sequence[tuple[str, str]],
    charts: ModuleType | None,
    placed: dict[str, list[Json]],
    viewer: Json,
    **values: Any,
) -> str:
    """Fills a template that extends layout.html.jinja. placed: what `place` makes."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {"hundred": words.hundred, "rate": _rate}
    style = "".join((HERE / name).read_text(encoding="utf-8") for name in STYLES)
    scripts = ["\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)]
    specs = {each["id"]: each["specs"] for many in placed.values() for each in many}
    if charts and specs:
        scripts.insert(0, f"(() => {{{charts.bundle()}\n}})();")
    return environment.get_template(template).render(
        title=title,
        sections=sections,
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        policy=policy([style], scripts),
        specs=Markup(chat_data.as_data(specs)) if specs else "",
        chats=Markup(chat_data.as_data(viewer)) if viewer["start"] else "",
        pictures=placed,
        **values,
    )


def policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """The content-security policy: nothing but these styles and scripts, by their digests."""
    style, script = (" ".join(f"'sha256-{_digest(text)}'" for text in texts) for texts in (styles, scripts))
    only = "img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {style}; script-src {script}; {only}"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _finalize(value: Any) -> Any:
    """Every value that the template writes goes through here, so that none can be forgotten."""
    return value if isinstance(value, Markup) else words.shown(str(value), 4_000)


def _rate(rate: Rate | None) -> str:
    return rate.words() if rate else "not measured"


def place(pictures: dict[str, list[Picture]], charts: ModuleType | None) -> dict[str, list[Json]]:
    """Every picture as the template and the script need it; each layout is drawn once."""
    return {part: [_placed(each, charts) for each in drawn] for part, drawn in pictures.items() if charts}


def _placed(picture: Picture, charts: ModuleType) -> Json:
    wide = charts.spec(picture.draw, charts.CONTAINER)
    still = (
        charts.spec(picture.still, picture.width) if picture.still else charts.at_width(wide, picture.width)
    )
    specs = {"wide": charts.page_spec(wide)}
    if picture.narrow:
        specs["narrow"] = charts.page_spec(charts.spec(picture.narrow, charts.CONTAINER))
    svg = Markup(charts.inline_svg(still, picture.words))
    return {"id": picture.id, "title": picture.title, "words": picture.words, "still": svg, "specs": specs}


# --- words of the page ------------------------------------------------------------------------------------------


def verdict(row: Json) -> Json:
    says, stands_on = words.verdict(str(row["sentence"]))
    return {"says": says, "stands_on": stands_on, "verdict": str(row.get("verdict") or "")}


def facts_of(study: Study) -> list[str]:
    """What the study is, in a few words each; only what is recorded."""
    config = mapping(study.results.get("config"))
    run, seeds = mapping(config.get("run")), config.get("seeds")
    facts = []
    base = run.get("base") or config.get("base")
    if base:
        facts.append(f"base {base}")
    if run.get("tasks"):
        facts.append(f"tasks: {run['tasks']}")
    if isinstance(seeds, list) and config.get("arms"):
        facts.append(f"{len(mapping(config['arms']))} arms × {len(seeds)} seeds")
    if is_number(run.get("steps")):
        facts.append(f"{run['steps']} steps")
    if study.results.get("created"):
        facts.append(str(study.results["created"])[:10])
    return facts


def _headline(study: Study) -> list[Json]:
    """Before and after of the arm that the first comparison is about, and of the arm that it is compared with."""
    pair = [study.comparisons[0].get(side) for side in ("a", "b")] if study.comparisons else []
    arms = [arm for name in pair for arm in study.arms if arm.name == name] or study.arms[:1]
    return [
        {"arm": arm.arm, "before": before.score, "after": arm.score}
        for arm in arms
        if arm.score and (before := study.before(arm)) and before.score
    ]


def alerts_of(study: Study) -> list[str]:
    failed = [f"{name} failed: {reason}" for name, reason in mapping(study.results.get("failed")).items()]
    dropped = [
        f"{name}: {count} steps were dropped, since a number in them was not finite"
        for name, count in mapping(study.results.get("dropped")).items()
    ]
    return [*failed, *dropped, *(f"Not up to date: {line}" for line in study.stale.values())]


def stale_parts(study: Study) -> Json:
    """{part of the page: why its numbers are not up to date}."""
    stale = study.stale
    parts = {"scores": ("grade", "intervals"), "talk": ("talk", "intervals")}
    return {
        part: "; ".join(stale[name] for name in measures if name in stale) for part, measures in parts.items()
    }


def checks_of(study: Study) -> list[Check]:
    """`cotalk check` of the directory; of results.json alone where the chats do not lie beside it."""
    whole = (study.directory / "runs").is_dir() and (study.directory / "study.toml").is_file()
    path = study.directory if whole else study.directory / "results.json"
    try:
        return check(path)
    except (
        Exception
    ) as error:  # of a study that is broken, or that still writes, the page must open all the same
        study.missing["checks"] = (
            f"No checks: {type(error).__name__}: {error}. Type: cotalk check {study.directory.name}"
        )
        return []


def _cross_play(study: Study) -> Json:
    """What a cross-play matrix says of each arm, as a table; the ceilings with strangers; the verdicts."""
    table = mapping(study.results.get("cross_play"))
    arms = {str(arm): mapping(of) for arm, of in mapping(table.get("arms")).items()}
    strangers = list(dict.fromkeys(name for of in arms.values() for name in mapping(of.get("strangers"))))
    rows = []
    for arm, of in arms.items():
        cells = [_lines(of.get(key)) for key in ("self_play", "cross_seed")]
        cells.append(_lines(of.get("ratio"), 1, 2))
        for name in strangers:
            met = mapping(mapping(of.get("strangers")).get(name))
            ceiling = read_rate(met.get("of_ceiling"))
            cells.append(
                _lines(met.get("A")) + ([f"{ceiling.words(1, 2)} of the ceiling"] if ceiling else [])
            )
        rows.append((arm, cells))
    oracles = {str(name): mapping(each) for name, each in mapping(table.get("oracle")).items()}
    return {
        "size": f"{table.get('tasks')} tasks × {table.get('chats')} chat{'s' * (table.get('chats') != 1)} a cell"
        if table.get("tasks")
        else "",
        "players": len(table.get("players") or []),
        "headings": ["self-play", "across seeds", "across / self", *(f"A with {name}" for name in strangers)],
        "rows": rows,
        "oracles": [
            f"{name}: {_told(each.get('heldout'))}, {each.get('script')}" for name, each in oracles.items()
        ],
        "verdicts": [verdict(row) for row in table.get("comparisons") or [] if mapping(row).get("sentence")],
    }


def _lines(value: Any, scale: float = 100, digits: int = 1) -> list[str]:
    """A rate as a cell's lines: with its interval, and what was counted."""
    rate = read_rate(value)
    return ["–"] if rate is None else [rate.words(scale, digits), rate.counted]


def _told(value: Any) -> str:
    rate = read_rate(value)
    return "–" if rate is None else f"{rate.words()} ({rate.counted})"


def _reliability(study: Study) -> list[tuple[str, str, str]]:
    """Of each arm: how many of its seeds learned, the share with its exact interval, the threshold."""
    rows = []
    for arm, of in mapping(study.results.get("reliability")).items():
        rate = read_rate(of)
        if rate and rate.n:
            threshold = f"above {words.hundred(of['threshold'])}" if is_number(of.get("threshold")) else "–"
            rows.append(
                (str(arm), f"{round(rate.mean * rate.n)} of {rate.n}", f"{rate.words(1, 2)}; {threshold}")
            )
    return rows


def _note_missing(study: Study, pictures: dict[str, list[Picture]], charts: ModuleType | None) -> None:
    missing, conditions = study.missing, study.conditions.values()
    if charts is None:
        missing["charts"] = NO_CHARTS
    if not any(condition.score for condition in conditions):
        missing["scores"] = "No scores: results.json holds no condition with a score."
    if not any(condition.talk for condition in conditions):
        missing["talk"] = "No measures of talk: results.json holds none."
    if not study.runs:
        missing["curves"] = "No learning curves: runs/<arm>-<seed>/metrics.jsonl holds no step."
    else:
        lacking = [
            heading for key, (heading, _) in draw.CURVES.items() if not draw.curve_points(study.runs, key)
        ]
        if lacking:
            missing["panels"] = f"Not recorded by any run: {', '.join(lacking)}."
    if not mapping(study.results.get("causal")):
        missing["causal"] = (
            "Not played in this study. To replace messages at test time, give it "
            '[evaluate] causal = ["nothing", "another", "base"].'
        )
    if charts and "cross" not in pictures:
        missing["cross"] = (
            "No cross-play matrix in this study. The conditions above show trained seats with the untrained base "
            "as partner."
        )
    if charts and "methods" not in pictures:
        missing["methods"] = "No arm with training seeds in results.json."
    if not study.results.get("cost"):
        missing["cost"] = "Cost: not recorded in results.json."


def legend(arms: dict[str, str], charts: ModuleType | None) -> list[tuple[str, Markup]]:
    """Arms with curves and a piece of their line."""
    return [(arm, Markup(charts.swatch(arms, arm))) for arm in arms] if charts else []


def _last_values(study: Study) -> list[tuple[str, int, list[str]]]:
    """Each run's last step and the last recorded value of each curve."""
    rows = []
    for run in study.runs:
        last = {key: value for line in run.steps for key, value in line.items() if is_number(value)}
        shown = [f"{last[key]:.3g}" if key in last else "–" for key in draw.CURVES]
        rows.append((run.name, last["step"], shown))
    return rows


def tiles_of(study: Study, price: float | None) -> list[tuple[str, str, str]]:
    """Time, tokens and price; what is not recorded is left out, and a missing price is said."""
    cost = mapping(study.results.get("cost"))
    tiles = []
    on_gpu = cost.get("device") not in (None, "cpu")
    device = str(cost.get("device_name") or cost.get("device") or "")
    spent: Any = cost.get("device_seconds", cost.get("seconds"))  # each of several GPUs counts
    if is_number(spent):
        name = "GPU minutes" if on_gpu else "Minutes on the CPU"
        workers = cost.get("workers")
        several = is_number(workers) and (workers != 1 or not on_gpu)
        noun = "GPUs" if on_gpu else "worker" if workers == 1 else "workers"
        shared = f", {workers} {noun}" if several else ""
        told = f"{device}{shared}"
        tiles.append((name, f"{spent / 60:.1f}", f"all calls that ended, {told}".rstrip(", ")))
    if is_number(cost.get("training_seconds")):
        # on a GPU a step of the stack counts for every run in it
        counted = "summed over runs, though they shared the card" if on_gpu else "summed over runs"
        tiles.append(("Training alone", words.minutes(cost["training_seconds"]), counted))
    if is_number(cost.get("training_tokens_sampled")):
        tiles.append(("Tokens sampled", f"{cost['training_tokens_sampled']:,}", "in training"))
    price = price if price is not None else cost.get("price_per_hour")
    if is_number(price) and is_number(spent):
        tiles.append(("Price", f"{spent / 3600 * price:.2f}", f"at {price:.2f} an hour of the device"))
    elif tiles:
        tiles.append(("Price", "not given", "type: cotalk report DIRECTORY --price 4"))
    return tiles


def _spent(study: Study) -> list[tuple[str, int, str, str]]:
    rows = []
    for run in study.runs:
        seconds, tokens = (
            sum(line[key] for line in run.steps if is_number(line.get(key))) for key in ("seconds", "tokens")
        )
        rows.append((run.name, int(run.steps[-1]["step"]), f"{seconds:,.0f}", f"{tokens:,.0f}"))
    return rows


def command(study: Study) -> str:
    """What to type to make this study again: by its name where a shipped study says just this, else by its file."""
    config = mapping(study.results.get("config"))
    base = mapping(config.get("run")).get("base")
    if re.fullmatch(r"[a-z0-9-]+", study.name):
        for overrides in ({}, {"base": base}):
            try:
                shipped = shipped_study(study.name, overrides)
            except BadInput:
                continue
            if _recorded(shipped) == {key: config.get(key) for key in ("run", "arms", "seeds", "evaluate")}:
                words_of_base = f" --base {shlex.quote(str(base))}" if overrides else ""
                return (
                    "cotalk quickstart"
                    if study.name == "quickstart" and not overrides
                    else f"cotalk study {study.name}{words_of_base}"
                )
    return "cotalk study study.toml --out runs/again"


def _recorded(study: ShippedStudy) -> Json:
    """A study's settings as results.json holds them."""
    config = {
        "run": study.config.as_dict(),
        "arms": study.arms,
        "seeds": study.seeds,
        "evaluate": asdict(study.evaluate),
    }
    return json.loads(json.dumps(config))


def pins_of(study: Study) -> list[tuple[str, str]]:
    """What the numbers depend on: seeds, versions of libraries and measures, git state, device."""
    results = study.results
    config = mapping(results.get("config"))
    found: Json = {"seeds": config["seeds"]} if "seeds" in config else {}
    found |= mapping(results.get("versions"))
    found |= {
        f"measure {name}": f"version {number}" for name, number in mapping(results.get("measures")).items()
    }
    git = mapping(results.get("git"))
    if git:
        found["git commit"] = f"{git.get('commit')}{', with changed files' if git.get('dirty') else ''}"
    cost = mapping(results.get("cost"))
    if cost.get("device_name"):
        found["device"] = cost["device_name"]
    return words.settings(found)[:100]
