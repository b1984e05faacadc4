"""The report's charts: rows of numbers in, Vega-Lite specifications out, rendered to SVG or PNG.

It leaves out reading a study (report.py does) and any script: a chart is a still picture, so that a page with
a strict content-security policy can hold it and a disk without internet can show it. Needs the libraries
altair and vl-convert-python; report.py imports this file only when it draws, and does without where they are
missing.

Colours are written as hexadecimal in the specification (files under figures/ keep them) and become CSS
variables in `inline_svg`, so that the page decides what light and dark look like. No chart rests on colour
alone: bars carry their names, lines their dash.

    bars = [{"label": "untrained", "mean": 12.0, "low": 8.0, "high": 17.0, "color": BLUE, "opacity": 0.4,
             "hover": "untrained: 12.0", "dots": [{"value": 12.0, "hover": "seed 17: 12.0"}]}]
    inline_svg(solved(bars, lines=[], width=620), "Problems solved: untrained 12")
"""

from __future__ import annotations

import json
import textwrap
from typing import Any
from xml.etree import ElementTree

import altair as alt
import vl_convert

Row = dict[str, Any]

INK, SOFT, GRID, PAPER = "#1c2127", "#5b6570", "#d9dee4", "#ffffff"
FONT = (
    "Liberation Sans"  # bundled with vl-convert; Arial and Helvetica, which the page names too, are as wide
)
BLUE, ORANGE, GREEN, PINK, GOLD = "#0072b2", "#d55e00", "#009e73", "#b8548f", "#a07800"
OTHER_COLORS = (GREEN, PINK, GOLD)  # arms that are neither "open" nor "closed", in order
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4])
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
}
LABEL = "split(slice(datum.label, 3), '\\n')"  # what _labelled wrote, without its number
SVG = "http://www.w3.org/2000/svg"


def solved(bars: list[Row], lines: list[Row], width: int) -> alt.TopLevelMixin:
    """Horizontal bars out of 100 with whiskers, one dot a seed, and each of `lines` as a dashed vertical.

    bars: label, mean, low, high (None: no whisker), dots, color, opacity, hover. lines: label, mean, hover.
    """
    narrow = width < 400
    shown = _labelled(bars, 17, 3) if narrow else _labelled(bars, 30, 2)
    y = alt.Y(
        "label:N",
        title=None,
        sort=[bar["label"] for bar in shown],
        scale=alt.Scale(paddingInner=0.35, paddingOuter=0.25),
        axis=alt.Axis(
            labelExpr=LABEL,
            labelLimit=400,
            domain=False,
            ticks=False,
            labelPadding=8,
            grid=False,
            labelFontSize=12,
        ),
    )
    x_scale = alt.Scale(domain=[0, 100], nice=False)
    x = alt.X(
        "mean:Q",
        title="problems solved out of 100",
        scale=x_scale,
        axis=alt.Axis(values=list(range(0, 101, 25 if narrow else 20)), domain=False, ticks=False),
    )
    base = alt.Chart(alt.Data(values=shown)).encode(y=y)
    layers: list[alt.Chart] = [
        base.mark_bar(aria=False).encode(
            x=x, color=alt.Color("color:N", scale=None), opacity=alt.Opacity("opacity:Q", scale=None)
        )
    ]
    layers += _whiskers([row for row in shown if row["low"] is not None], y, "y", x_scale)
    layers.append(
        base.mark_text(align="left", dx=7, fontWeight="bold", fontSize=12, color=INK, aria=False).encode(
            x=alt.X("end:Q", scale=x_scale), text="value:N"
        )
    )
    layers.append(  # the whole row answers to the pointer
        base.mark_bar(fillOpacity=0).encode(
            x=alt.X("zero:Q", scale=x_scale), x2="full:Q", description="hover:N"
        )
    )
    layers += _level_lines(lines, x_scale, width)
    layers += _seed_dots(shown, y, x_scale)
    return alt.layer(*layers).properties(width=width, height=alt.Step(40 if narrow else 36))


def measure(title: str, subtitle: str, bars: list[Row], width: int) -> alt.TopLevelMixin:
    """One measure of talk: a column for each condition with its whisker, on a scale from 0 to 1.

    bars: label, mean, low, high, color, opacity, hover.
    """
    shown = _labelled(bars, 16, 3)
    x = alt.X(
        "label:N",
        title=None,
        sort=[bar["label"] for bar in shown],
        scale=alt.Scale(paddingInner=0.4, paddingOuter=0.2),
        axis=alt.Axis(
            labelExpr=LABEL,
            labelAngle=0,
            labelLimit=200,
            ticks=False,
            domainColor=GRID,
            labelPadding=6,
        ),
    )
    y_scale = alt.Scale(domain=[0, 1.15], nice=False)  # room for the number over a full column
    base = alt.Chart(alt.Data(values=shown)).encode(x=x)
    y = alt.Y(
        "mean:Q",
        title=None,
        scale=y_scale,
        axis=alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2~f", domain=False, ticks=False),
    )
    layers = [
        base.mark_bar(aria=False).encode(
            y=y, color=alt.Color("color:N", scale=None), opacity=alt.Opacity("opacity:Q", scale=None)
        )
    ]
    layers += _whiskers([row for row in shown if row["low"] is not None], x, "x", y_scale)
    layers.append(
        base.mark_text(dy=-9, fontWeight="bold", fontSize=11, color=INK, aria=False).encode(
            y=alt.Y("end:Q", scale=y_scale), text="value:N"
        )
    )
    layers.append(
        base.mark_bar(fillOpacity=0).encode(
            y=alt.Y("zero:Q", scale=y_scale), y2="full:Q", description="hover:N"
        )
    )
    heading = alt.TitleParams(
        title, subtitle=subtitle, subtitleColor=SOFT, subtitleFontSize=12, anchor="start", offset=6
    )
    return alt.layer(*layers).properties(width=width, height=150, title=heading)


def curves(title: str, points: list[Row], arms: dict[str, str], share: bool, width: int) -> alt.TopLevelMixin:
    """One learning curve: a thin line for each run, a thick one for the mean over an arm's seeds.

    points: arm, run, step, value, kind ("run" or "mean"). arms: name -> colour. share: the scale is 0 to 1.
    """
    names = list(arms)
    color = alt.Color("arm:N", scale=alt.Scale(domain=names, range=list(arms.values())), legend=None)
    dash = alt.StrokeDash(
        "arm:N",
        legend=None,
        scale=alt.Scale(domain=names, range=[DASHES[index % len(DASHES)] for index in range(len(names))]),
    )
    y_scale = alt.Scale(domain=[0, 1]) if share else alt.Scale(zero=True)
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X(
            "step:Q",
            title="step",
            axis=alt.Axis(tickCount=6, grid=False, domainColor=GRID, ticks=False, tickMinStep=1, format="d"),
        ),
        y=alt.Y("value:Q", title=None, scale=y_scale, axis=alt.Axis(tickCount=5, domain=False, ticks=False)),
        color=color,
        detail="run:N",
        description="run:N",
    )
    thin = base.transform_filter("datum.kind == 'run'").mark_line(strokeWidth=1.2, opacity=0.5)
    thick = base.transform_filter("datum.kind == 'mean'").mark_line(strokeWidth=3).encode(strokeDash=dash)
    heading = alt.TitleParams(title, anchor="start", offset=8)
    return alt.layer(thin, thick).properties(width=width, height=150, title=heading)


def swatch(arms: dict[str, str], arm: str) -> str:
    """A short piece of the arm's line, for a legend in the page."""
    index = list(arms).index(arm)
    dash = " ".join(map(str, DASHES[index % len(DASHES)])) if index else "none"
    return (
        f'<svg width="34" height="6" aria-hidden="true"><line x1="0" y1="3" x2="34" y2="3" stroke-width="3" '
        f'stroke="{CSS_VARIABLES[arms[arm]]}" stroke-dasharray="{dash}"/></svg>'
    )


def together(panels: list[Any], columns: int = 2) -> alt.ConcatChart:
    """Several panels as one picture, for a file."""
    return alt.concat(*panels, columns=columns)


def inline_svg(chart: alt.TopLevelMixin, alt_text: str) -> str:
    """The chart as an SVG element for a page: titles to hover over, the page's colours, alt text."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(vl_convert.vegalite_to_svg(_spec(chart, "transparent")))
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


def svg_file(chart: alt.TopLevelMixin) -> str:
    """The chart as a file of its own, on white."""
    return vl_convert.vegalite_to_svg(_spec(chart, "white"))


def png_file(chart: alt.TopLevelMixin) -> bytes:
    """The chart as a PNG of twice its nominal size, on white."""
    return vl_convert.vegalite_to_png(_spec(chart, "white"), scale=2)


def _spec(chart: alt.TopLevelMixin, background: str) -> str:
    axis = {
        "labelColor": INK,
        "titleColor": SOFT,
        "gridColor": GRID,
        "titleFontWeight": "normal",
        "aria": False,
        "labelFontSize": 11,
        "titleFontSize": 12,
    }
    spec = chart.to_dict(validate=False)  # the parts were checked when they were made
    spec["background"] = background
    spec["config"] = {
        "view": {"stroke": None},
        "axis": axis,
        "title": {"color": INK, "fontSize": 13, "aria": False},
        "font": FONT,
    }
    return json.dumps(spec)


def _labelled(bars: list[Row], width: int, most: int) -> list[Row]:
    """The bars with labels broken into at most `most` lines and numbered, so that no two are the same."""
    rows = []
    for index, bar in enumerate(bars):
        lines = textwrap.wrap(bar["label"], width)
        lines = lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: width - 1] + "…"]
        rows.append(bar | {"label": f"{index:03d}" + "\n".join(lines)})
    return rows


def _whiskers(rows: list[Row], band: alt.X | alt.Y, axis: str, scale: alt.Scale) -> list[alt.Chart]:
    """A rule from `low` to `high` with a short cap at each end. `axis` holds the categories."""
    along, position = ("x", alt.X) if axis == "y" else ("y", alt.Y)
    categories: Row = {axis: band}
    low: Row = {along: position("low:Q", scale=scale)}
    high: Row = {along: position("high:Q", scale=scale)}
    end: Row = {along + "2": "high:Q"}
    turned: Any = "vertical" if axis == "y" else "horizontal"
    base = alt.Chart(alt.Data(values=rows)).encode(**categories)
    cap = base.mark_tick(thickness=1.5, size=11, color=INK, aria=False, orient=turned, opacity=1)
    rule = base.mark_rule(color=INK, strokeWidth=1.5, aria=False).encode(**low, **end)
    return [rule, cap.encode(**low), cap.encode(**high)]


def _seed_dots(bars: list[Row], y: alt.Y, scale: alt.Scale) -> list[alt.Chart]:
    """One dot a seed, each seed a little lower than the one before, so that equal scores do not hide."""
    most = max((len(bar["dots"]) for bar in bars), default=0)
    layers = []
    for index in range(most):
        dots = [bar["dots"][index] | {"label": bar["label"]} for bar in bars if index < len(bar["dots"])]
        offset = (index - (most - 1) / 2) * min(6, 18 / most)
        mark = alt.Chart(alt.Data(values=dots)).mark_point(
            filled=True, size=40, fill=PAPER, stroke=INK, strokeWidth=1.5, opacity=1, yOffset=offset
        )
        layers.append(mark.encode(y=y, x=alt.X("value:Q", scale=scale), description="hover:N"))
    return layers


def _level_lines(lines: list[Row], scale: alt.Scale, width: int) -> list[alt.Chart]:
    """Dashed verticals with their names above the bars; a name that would run into another goes above it."""
    layers = []
    collide = len(lines) > 1 and abs(lines[0]["mean"] - lines[1]["mean"]) * width / 100 < 180
    for index, line in enumerate(lines):
        base = alt.Chart(alt.Data(values=[line])).encode(x=alt.X("mean:Q", scale=scale))
        layers.append(
            base.mark_rule(color=SOFT, strokeDash=[4, 3], strokeWidth=1.5).encode(description="hover:N")
        )
        right = line["mean"] > 50
        layers.append(
            base.mark_text(
                color=SOFT,
                fontSize=12,
                baseline="bottom",
                align="right" if right else "left",
                dx=4 if right else -4,
                dy=-4 - 15 * index * collide,
                aria=False,
            ).encode(y=alt.value(0), text="label:N")
        )
    return layers
