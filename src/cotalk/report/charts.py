"""The report's charts: rows of numbers in, Vega-Lite specifications out, for the page's script or as SVG and PNG.

It leaves out reading a study (read.py) and what a row says (draw.py). `bundle` is the JavaScript that draws
specifications in a page without any network; the page asks it to interpret expressions (`ast: true`), since its
content-security policy forbids `eval`. Needs altair and vl-convert-python; draw.py imports this file only when it
draws, and does without where they are missing.

Colours are written as hexadecimal in the specification (files under figures/ keep them) and become CSS variables in
`page_spec` and `inline_svg`, so that the page decides what light and dark look like. No chart rests on colour alone:
bars carry their names, before is hollow and after is full, lines have dashes, seeds have shapes, cells their number.

    bars = [{"label": "untrained", "mean": 12.0, "low": 8.0, "high": 17.0, "color": BLUE, "opacity": 0.4,
             "value": "12.0", "interval": "[8.0, 17.0]", "hover": "untrained: 12.0", "dots": []}]
    page_spec(spec(lambda width: solved(bars, [], width), CONTAINER))
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode

log = logging.getLogger(__name__)

Row = dict[str, Any]
Width = Any  # a number of pixels, or CONTAINER

CONTAINER = "container"  # as wide as the page's element
INK, SOFT, GRID, PAPER = "#1c2127", "#5b6570", "#d9dee4", "#ffffff"
FONT = "Liberation Sans"  # bundled with vl-convert; Arial and Helvetica are as wide
PAGE_FONT = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
BLUE, ORANGE, GREEN, PINK, GOLD = "#0072b2", "#d55e00", "#009e73", "#b8548f", "#a07800"
VIOLET, SLATE = "#6a4fc3", "#5a6f7c"
OTHER_COLORS = (GREEN, PINK, GOLD, VIOLET, SLATE)  # arms that are neither "open" nor "closed", in order
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2], [10, 2, 2, 2, 2, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
CSS_VARIABLES = {
    PAPER: "var(--paper)",
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    GRID: "var(--line)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    PINK: "var(--pink)",
    GOLD: "var(--gold)",
    VIOLET: "var(--violet)",
    SLATE: "var(--slate)",
}
SVG = "http://www.w3.org/2000/svg"


# --- the charts ---------------------------------------------------------------------------------------------


def solved(bars: list[Row], lines: list[Row], width: Width, narrow: bool = False) -> alt.TopLevelMixin:
    """Horizontal bars out of 100 with whiskers, one dot a seed, and each of `lines` as a dashed vertical.

    bars: label, mean, low, high (None: no whisker), dots, color, opacity, value, interval, hover.
    lines: label, mean, hover. narrow: names stand over their bars.
    """
    shown = [bar | {"zero": 0, "full": 100} for bar in _labelled(bars, 42 if narrow else 36, 2 - narrow)]
    down = 10 if narrow else 0
    y = _band(shown)
    x_scale = alt.Scale(domain=[0, 100], nice=False)
    x = alt.X("mean:Q", title="problems solved out of 100", scale=x_scale, axis=_axis([0, 25, 50, 75, 100]))
    base = _of(shown).encode(y=y)
    color, opacity = alt.Color("color:N", scale=None), alt.Opacity("opacity:Q", scale=None)
    track = base.mark_bar(fill=GRID, opacity=0.35, size=15, yOffset=down, aria=False)
    layers: list[alt.Chart] = [
        track.encode(x=alt.X("zero:Q", scale=x_scale), x2=alt.X2("full:Q")),
        base.mark_bar(aria=False, size=15, yOffset=down).encode(x=x, color=color, opacity=opacity),
    ]
    layers += _whiskers([row for row in shown if row["low"] is not None], y, x_scale, down)
    layers += _level_lines(lines, x_scale, 300 if narrow else 700)
    layers += _seed_dots(shown, y, x_scale, down)
    layers += _columns(shown, y, narrow)
    layers.append(  # the whole row answers to the pointer
        base.mark_bar(
            fillOpacity=0,
        ).encode(
            x=alt.X("zero:Q", scale=x_scale),
            x2=alt.X2("full:Q"),
            description=alt.Description("hover:N"),
            tooltip=alt.Tooltip("hover:N"),
        )
    )
    layers += _seed_dots(shown, y, x_scale, down, answers=True)
    close = len(bars) >= 10 and all(row["lines"] == 1 for row in shown)
    return _sized(alt.layer(*layers), width, len(bars) * (46 if narrow else 25 if close else 34))


def measure(title: str, subtitle: str, rows: list[Row], width: Width) -> alt.TopLevelMixin:
    """One measure of talk from 0 to 1: for each arm a hollow dot before and a full one after, with whiskers.

    rows: label, color, value, hover, and for each of before and after a mapping mean, low, high, hover (or None).
    """
    shown = _labelled(rows, 18, 2)
    y = _band(shown)
    scale = alt.Scale(domain=[0, 1], nice=False)
    axis = _axis([0, 0.25, 0.5, 0.75, 1], ".2~f")
    both = [
        {
            "label": row["label"],
            "from": row["before"]["mean"],
            "to": row["after"]["mean"],
            "color": row["color"],
        }
        for row in shown
        if row["before"] and row["after"]
    ]
    ribbon = _of(both).mark_bar(size=4, opacity=0.3, aria=False)
    layers: list[alt.Chart] = [
        ribbon.encode(
            y=y, x=alt.X("from:Q", scale=scale, title=None, axis=axis), x2=alt.X2("to:Q"),
            color=alt.Color("color:N", scale=None),
        )
    ]  # fmt: skip
    for side, down in (("before", -5), ("after", 5)):
        points = [row[side] | {"label": row["label"], "color": row["color"]} for row in shown if row[side]]
        layers += _whiskers([point for point in points if point["low"] is not None], y, scale, down, cap=6)
        dot = _of(points).mark_point(
            filled=True, size=70, strokeWidth=2, opacity=1, yOffset=down, shape="circle"
        )
        color = alt.Color("color:N", scale=None)
        look = {"fill": color} if side == "after" else {"fill": alt.value(PAPER)}
        place = alt.X("mean:Q", scale=scale, title=None, axis=axis)
        layers.append(
            dot.encode(
                y=y,
                x=place,
                stroke=alt.Stroke("color:N", scale=None),
                description=alt.Description("hover:N"),
                tooltip=alt.Tooltip("hover:N"),
                **look,
            )
        )
    layers += _columns(shown, y, False, gap=10)
    return _sized(alt.layer(*layers), width, len(rows) * 38, _title(title, subtitle))


def curves(
    title: str,
    points: list[Row],
    arms: dict[str, str],
    share: bool,
    width: Width,
    still: bool = False,
    key: bool = False,
) -> alt.TopLevelMixin:
    """One learning curve: a thin line for each run, a thick one for the mean over an arm's seeds.

    points: arm, run, step, value, kind ("run" or "mean"), hover. arms: name -> colour. share: the scale is 0 to 1.
    still: nothing answers to the pointer. key: with a legend.
    """
    names = list(arms)
    legend = alt.Legend(title=None, orient="top", symbolStrokeWidth=2.8, symbolSize=500) if key else None
    color = alt.Color("arm:N", scale=alt.Scale(domain=names, range=list(arms.values())), legend=legend)
    dashes = [DASHES[index % len(DASHES)] for index in range(len(names))]
    dash = alt.StrokeDash("arm:N", legend=legend, scale=alt.Scale(domain=names, range=dashes))
    y_scale = alt.Scale(domain=[0, 1]) if share else alt.Scale(zero=True)
    steps = alt.Axis(tickCount=6, grid=False, domainColor=GRID, ticks=False, tickMinStep=1, format="d")
    base = _of(points).encode(
        x=alt.X("step:Q", title="step", axis=steps),
        y=alt.Y("value:Q", title=None, scale=y_scale, axis=alt.Axis(tickCount=5, domain=False, ticks=False)),
        color=color,
        detail=alt.Detail("run:N"),
    )
    thin = base.transform_filter("datum.kind == 'run'").mark_line(strokeWidth=1.2, opacity=0.55, aria=False)
    thick = base.transform_filter("datum.kind == 'mean'").mark_line(strokeWidth=2.8, aria=False)
    layers = [thin, thick.encode(strokeDash=dash)]
    if not still:
        near = base.mark_point(size=60, opacity=0, filled=True)
        layers.append(near.encode(tooltip=alt.Tooltip("hover:N"), description=alt.Description("hover:N")))
    return _sized(alt.layer(*layers), width, 160, _title(title))


def seeds(rows: list[Row], lines: list[Row], width: Width, narrow: bool = False) -> alt.TopLevelMixin:
    """Methods side by side: every seed a dot with a shape of its own, the mean and its interval.

    rows: label, color, mean, low, high, value, interval, hover, dots (each value, seed, hover).
    """
    shown = [row | {"zero": 0, "full": 100} for row in _labelled(rows, 42 if narrow else 26, 3 - 2 * narrow)]
    down = 16 if narrow else 0
    y = _band(shown)
    scale = alt.Scale(domain=[0, 100], nice=False)
    base = _of(shown).encode(y=y)
    x = alt.X("mean:Q", title="problems solved out of 100", scale=scale, axis=_axis([0, 25, 50, 75, 100]))
    dots = [dot | {"label": row["label"], "color": row["color"]} for row in shown for dot in row["dots"]]
    names = list(dict.fromkeys(dot["seed"] for dot in dots))
    shapes = [SHAPES[index % len(SHAPES)] for index in range(len(names))]
    legend = alt.Legend(
        title="seed", orient="bottom", symbolFillColor=SOFT, symbolStrokeColor=SOFT, columns=6
    )
    layers: list[alt.Chart] = [
        base.mark_bar(fill=GRID, opacity=0.4, size=2, yOffset=down).encode(
            x=alt.X("zero:Q", scale=scale), x2=alt.X2("full:Q")
        ),
        *_whiskers([row for row in shown if row["low"] is not None], y, scale, down + 12),
        base.mark_tick(thickness=3, size=16, yOffset=down + 12, opacity=1).encode(
            x=x,
            color=alt.Color("color:N", scale=None),
            description=alt.Description("hover:N"),
            tooltip=alt.Tooltip("hover:N"),
        ),
        *_level_lines(lines, scale, 300 if narrow else 600),
        *_columns(shown, y, narrow),
    ]
    for index, name in enumerate(names):  # each seed a little lower, so that equal scores do not hide
        mark = _of([dot for dot in dots if dot["seed"] == name]).mark_point(
            filled=True, size=80, opacity=1, stroke=PAPER, strokeWidth=1,
            yOffset=down - 14 + index * min(6, 18 / len(names)),
        )  # fmt: skip
        layers.append(
            mark.encode(
                y=y, x=alt.X("value:Q", scale=scale), fill=alt.Fill("color:N", scale=None),
                shape=alt.Shape("seed:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
                description=alt.Description("hover:N"), tooltip=alt.Tooltip("hover:N"),
            )
        )  # fmt: skip
    return _sized(alt.layer(*layers), width, len(rows) * (74 if narrow else 50))


def differences(
    rows: list[Row], axis: str, width: Width, bars: bool = False, narrow: bool = False
) -> alt.TopLevelMixin:
    """Differences in points with their whiskers around a line at 0; a grey band where evaluating again alone reaches.

    rows: label, mean, low, high, noise (None: unknown), color, value, interval, hover. bars: drawn from 0.
    """
    shown = _labelled(rows, 48 if narrow else 40, 3 - 2 * narrow)
    down = 10 if narrow else 0
    y = _band(shown)
    ends = [row[key] for row in rows for key in ("low", "high", "mean") if row[key] is not None]
    scale = alt.Scale(domain=[min([*ends, -10]), max([*ends, 10])], nice=True)
    base = _of(shown).encode(y=y)
    band = [row | {"from": -row["noise"], "to": row["noise"]} for row in shown if row["noise"]]
    color = alt.Color("color:N", scale=None)
    x = alt.X(
        "mean:Q",
        scale=scale,
        title=axis,
        axis=alt.Axis(tickCount=4 if narrow else 6, domain=False, ticks=False),
    )
    layers: list[alt.Chart] = [
        _of(band)
        .mark_bar(fill=GRID, opacity=0.7, size=22, yOffset=down, aria=False)
        .encode(y=y, x=alt.X("from:Q", scale=scale), x2=alt.X2("to:Q")),
        _of([{"at": 0}])
        .mark_rule(color=SOFT, strokeWidth=1.5, aria=False)
        .encode(x=alt.X("at:Q", scale=scale)),
    ]
    if bars:
        layers.append(base.mark_bar(size=14, opacity=0.75, yOffset=down, aria=False).encode(x=x, color=color))
    layers += _whiskers([row for row in shown if row["low"] is not None], y, scale, down)
    dot = base.mark_point(filled=True, size=80, opacity=0 if bars else 1, shape="diamond", yOffset=down)
    layers.append(
        dot.encode(x=x, color=color, description=alt.Description("hover:N"), tooltip=alt.Tooltip("hover:N"))
    )
    layers += _columns(shown, y, narrow)
    return _sized(alt.layer(*layers), width, len(rows) * (48 if narrow else 42))


def heat(title: str, rows: list[Row], order: Sequence[str], across: Sequence[str], width: Width) -> Any:
    """A table of cells from 0 to 1: darker is more, and each cell says its number.

    rows: down, across, mean, value, hover. order: of the rows; across: of the columns.
    """
    base = _of(rows).encode(
        y=alt.Y("down:N", sort=list(order), title="who sits as A", axis=_names(160)),
        x=alt.X(
            "across:N",
            sort=list(across),
            title="who sits as B",
            axis=_names(110, orient="top", labelAngle=-35),
        ),
    )
    cells = base.mark_rect(fill=BLUE, stroke=PAPER, strokeWidth=1).encode(
        fillOpacity=alt.FillOpacity("mean:Q", scale=alt.Scale(domain=[0, 1], range=[0.05, 1]), legend=None),
        description=alt.Description("hover:N"),
        tooltip=alt.Tooltip("hover:N"),
    )
    ink = alt.condition("datum.mean > 0.78", alt.value(PAPER), alt.value(INK))
    numbers = base.mark_text(fontSize=11, aria=False).encode(text=alt.Text("value:N"), color=ink)
    return _sized(alt.layer(cells, numbers), width, 30 * len(order), _title(title))


# --- their parts --------------------------------------------------------------------------------------------


def _of(rows: Sequence[Row]) -> alt.Chart:
    """An empty chart of these rows. A tuple: altair copies a list at every step."""
    return alt.Chart(alt.Data(values=tuple(rows)))


def _sized(chart: Any, width: Width, height: float, title: Any = None) -> Any:
    room: Row = {"padding": {"left": 2, "top": 4, "bottom": 4, "right": 4}}
    if width == CONTAINER:
        room["autosize"] = {"type": "fit-x", "contains": "padding"}
    return chart.properties(width=width, height=height, **room, **({"title": title} if title else {}))


def _title(title: str, subtitle: str = "") -> alt.TitleParams:
    more: Row = {"subtitle": subtitle, "subtitleColor": SOFT, "subtitleFontSize": 12} if subtitle else {}
    return alt.TitleParams(title, anchor="start", offset=8, **more)


def _axis(values: Sequence[float], form: str | None = None) -> alt.Axis:
    extra: Row = {"format": form} if form else {}
    return alt.Axis(values=list(values), domain=False, ticks=False, **extra)


def _names(limit: int, **extra: Any) -> alt.Axis:
    return alt.Axis(ticks=False, domain=False, labelPadding=6, labelLimit=limit, **extra)


def _band(rows: list[Row]) -> alt.Y:
    """One place for each row; `_columns` writes its name and its numbers."""
    scale = alt.Scale(paddingInner=0.3, paddingOuter=0.2)
    return alt.Y("label:N", title=None, sort=[row["label"] for row in rows], scale=scale, axis=None)


def _columns(rows: list[Row], y: alt.Y, narrow: bool, gap: int = 12) -> list[alt.Chart]:
    """Each row's name to the left of the plot and its numbers to the right; narrow: both over the bar."""
    bold: Row = {"fontWeight": "bold", "fontSize": 12.5, "aria": False}
    plain: Row = bold | {"fontWeight": "normal"}
    edge, start = alt.XValue("width"), alt.value(0)
    base = _of(rows).encode(y=y)
    if narrow:
        behind = base.mark_bar(fill=PAPER, size=15, yOffset=-11, x2Offset=-40, aria=False)
        layers = [behind.encode(x=edge, x2=alt.X2Value("width"))]
        for look in ({"stroke": PAPER, "strokeWidth": 4}, {"color": INK}):  # a halo, since lines cross here
            name = base.mark_text(align="left", yOffset=-11, **plain, **look)
            value = base.mark_text(align="right", yOffset=-11, **bold, **look)
            layers += [
                name.encode(x=start, text=alt.Text("name:N")),
                value.encode(x=edge, text=alt.Text("value:N")),
            ]
        return layers
    value = base.mark_text(align="left", dx=gap, color=INK, **bold).encode(x=edge, text=alt.Text("value:N"))
    interval = base.mark_text(align="left", dx=gap + 40, fontSize=11.5, color=SOFT, aria=False)
    layers = [value, interval.encode(x=edge, text=alt.Text("interval:N"))]
    for lines in sorted({row["lines"] for row in rows}):  # in the middle of its place, however many lines
        some = _of([row for row in rows if row["lines"] == lines]).encode(y=y)
        name = some.mark_text(align="right", dx=-10, dy=-7.5 * (lines - 1), lineHeight=15, color=INK, **plain)
        layers.append(name.encode(x=start, text=alt.Text("name:N")))
    return layers


def _labelled(rows: list[Row], width: int, most: int) -> list[Row]:
    """The rows with names broken into at most `most` lines, and numbered labels, so that no two are the same."""
    found = []
    for index, row in enumerate(rows):
        lines = textwrap.wrap(row["label"], width) or [""]
        lines = lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: width - 1] + "…"]
        name = {"label": f"{index:03d}", "name": lines if len(lines) > 1 else lines[0], "lines": len(lines)}
        found.append(row | name | {"interval": row.get("interval", "")})
    return found


def _whiskers(rows: list[Row], y: alt.Y, scale: alt.Scale, down: float, cap: int = 9) -> list[alt.Chart]:
    """A rule from `low` to `high` with a short cap at each end, on a pale ground, so that it shows on any bar."""
    base = _of(rows).encode(y=y)
    low, high = alt.X("low:Q", scale=scale), alt.X("high:Q", scale=scale)
    ground = base.mark_rule(color=PAPER, strokeWidth=5, opacity=0.6, aria=False, yOffset=down, y2Offset=down)
    rule = base.mark_rule(color=INK, strokeWidth=1.5, aria=False, yOffset=down, y2Offset=down)
    tick = base.mark_tick(thickness=1.5, size=cap, color=INK, aria=False, opacity=1, yOffset=down)
    lines = [each.encode(x=low, x2=alt.X2("high:Q")) for each in (ground, rule)]
    return [*lines, tick.encode(x=low), tick.encode(x=high)]


def _seed_dots(
    bars: list[Row], y: alt.Y, scale: alt.Scale, down: float, answers: bool = False
) -> list[alt.Chart]:
    """One dot a seed, each seed a little lower than the one before, so that equal scores do not hide.

    answers: the unseen twins that lie on top and answer to the pointer.
    """
    most = max((len(bar["dots"]) for bar in bars), default=0)
    layers = []
    for index in range(most):
        dots = [bar["dots"][index] | {"label": bar["label"]} for bar in bars if index < len(bar["dots"])]
        offset = down + (index - (most - 1) / 2) * min(5, 14 / most)
        mark = _of(dots).mark_point(
            filled=True, size=110 if answers else 38, fill=PAPER, stroke=INK, strokeWidth=1.4,
            opacity=0 if answers else 1, yOffset=offset, aria=answers,
        )  # fmt: skip
        told: Row = (
            {"description": alt.Description("hover:N"), "tooltip": alt.Tooltip("hover:N")} if answers else {}
        )
        layers.append(mark.encode(y=y, x=alt.X("value:Q", scale=scale), **told))
    return layers


def _level_lines(lines: list[Row], scale: alt.Scale, width: float) -> list[alt.Chart]:
    """Dashed verticals with their names above the bars; a name that would run into another goes above it."""
    layers = []
    collide = len(lines) > 1 and abs(lines[0]["mean"] - lines[1]["mean"]) * width / 100 < 180
    for index, line in enumerate(lines):
        base = _of([line]).encode(x=alt.X("mean:Q", scale=scale))
        rule = base.mark_rule(color=SOFT, strokeDash=[4, 3], strokeWidth=1.5)
        layers.append(rule.encode(description=alt.Description("hover:N"), tooltip=alt.Tooltip("hover:N")))
        right = line["mean"] > 50
        name = base.mark_text(
            color=SOFT, fontSize=12, baseline="bottom", align="right" if right else "left", dx=4 if right else -4,
            dy=-4 - 15 * index * collide, aria=False,
        )  # fmt: skip
        layers.append(name.encode(y=alt.value(0), text=alt.Text("label:N")))
    return layers


# --- out of them --------------------------------------------------------------------------------------------


@cache
def bundle() -> str:
    """The JavaScript that draws specifications: vega, vega-lite and vega-embed as vl-convert holds them.

    Putting it together takes seconds, so it is kept in the user's cache, with its digest before it.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return _bundle()
    path = home / "cotalk" / f"vega-of-vl-convert-{version('vl-convert-python')}.js"
    digest, _, text = path.read_text(encoding="utf-8").partition("\n") if path.is_file() else ("", "", "")
    if digest == _digest(text):
        return text
    text = _bundle()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{_digest(text)}\n{text}", encoding="utf-8", newline="\n")
    except OSError as error:
        log.info("%s is not kept (%s): the next report takes a little longer", path, error)
    return text


def _bundle() -> str:
    return vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default


def _digest(text: str) -> str:
    return f"// sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def spec(draw: Callable[[Width], alt.TopLevelMixin], width: Width) -> Row:
    """The bare specification of a chart; altair's checks of it take most of the time, and are left to the tests."""
    with debug_mode(False):
        return draw(width).to_dict(validate=False)


def at_width(bare: Row, width: float) -> Row:
    """A specification that was made for a container, at a width of its own."""
    return {key: value for key, value in bare.items() if key != "autosize"} | {"width": width}


def page_spec(bare: Row) -> Row:
    """A specification for the page's script: its colours are the page's."""
    dressed = _dressed(bare, "transparent", PAGE_FONT)
    dressed.pop("$schema", None)
    text = json.dumps(dressed)
    for color, variable in CSS_VARIABLES.items():
        text = text.replace(f'"{color}"', f'"{variable}"')
    return json.loads(text)


def inline_svg(bare: Row, alt_text: str) -> str:
    """The chart as a still SVG element for a page without script: titles to hover over, alt text."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(vl_convert.vegalite_to_svg(_dressed(bare, "transparent", FONT)))
    for element in root.iter():
        for paint in ("fill", "stroke"):
            if paint in element.attrib:
                element.set(paint, CSS_VARIABLES.get(element.get(paint, ""), element.get(paint, "")))
        hover = element.attrib.pop("aria-label", None)
        if hover and element.tag != f"{{{SVG}}}g":
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = hover
            element.insert(0, title)
        for name in ("role", "aria-roledescription", "aria-hidden", "font-family"):
            element.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", alt_text)
    return ElementTree.tostring(root, encoding="unicode")


def swatch(arms: dict[str, str], arm: str) -> str:
    """A short piece of the arm's line, for a legend in the page."""
    index = list(arms).index(arm)
    dash = " ".join(map(str, DASHES[index % len(DASHES)])) if index else "none"
    return (
        f'<svg width="34" height="6" aria-hidden="true"><line x1="0" y1="3" x2="34" y2="3" stroke-width="3" '
        f'stroke="{CSS_VARIABLES[arms[arm]]}" stroke-dasharray="{dash}"/></svg>'
    )


def together(panels: list[Any], caption: str = "", columns: int = 2) -> alt.ConcatChart:
    """Several panels as one picture, for a file; the caption stands over them."""
    bare = [panel.copy() for panel in panels]
    for panel in bare:
        panel.padding = alt.Undefined
    told: Row = {"color": SOFT, "fontSize": 12, "fontWeight": "normal", "anchor": "start", "offset": 12}
    more: Row = {"title": alt.TitleParams(caption, **told)} if caption else {}
    return alt.concat(*bare, columns=columns, spacing=40, **more)


def svg_file(chart: alt.TopLevelMixin) -> str:
    """The chart as a file of its own, on white."""
    return vl_convert.vegalite_to_svg(_dressed(chart.to_dict(), "white", FONT))


def png_file(chart: alt.TopLevelMixin) -> bytes:
    """The chart as a PNG of twice its nominal size, on white."""
    return vl_convert.vegalite_to_png(_dressed(chart.to_dict(), "white", FONT), scale=2)


def _dressed(bare: Row, background: str, font: str) -> Row:
    """With the ground, the font and the colours of what is no data."""
    axis = {
        "labelColor": INK,
        "titleColor": SOFT,
        "gridColor": GRID,
        "titleFontWeight": "normal",
        "aria": False,
        "labelFontSize": 11,
        "labelFlush": False,
        "titleFontSize": 12,
    }
    config = {
        "view": {"stroke": None},
        "axis": axis,
        "legend": {"labelColor": INK, "titleColor": SOFT, "titleFontWeight": "normal", "aria": False},
        "title": {"color": INK, "fontSize": 14, "aria": False},
        "font": font,
    }
    return bare | {"background": background, "config": config}
