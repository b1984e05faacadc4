"""From a study's directory to one HTML file that anybody can open: the verdict, the charts, the chats.

`report` is a pure function of what the directory holds (results.json, runs/*/metrics.jsonl, runs/*/dev.jsonl,
scores/*/*.jsonl): it computes no score and no interval, and the same files give the same page. Whatever is
missing is left out, with a line that says so; half-written lines are skipped. The page needs no server and no
network, and its content-security policy allows none.

    read.py     a directory -> Study          draw.py    Study -> pictures, and their words
    words.py    numbers and texts as words    charts.py  rows -> Vega-Lite
    chats.py    chats -> the viewer's JSON    page.py    all of it -> HTML (side.py: several studies)

    report(Path("runs/quickstart"))      # -> runs/quickstart/report.html
    side_by_side([Path("runs/a"), Path("runs/b")], Path("side-by-side.html"))
    figures(Path("runs/quickstart"))     # -> runs/quickstart/figures/*.{png,svg}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cotalk.errors import BadInput
from cotalk.report import draw, page, side
from cotalk.report.draw import load_charts
from cotalk.report.read import read_study

TOGETHER = {  # parts whose panels are one file, and what stands over them
    "talk": "Hollow: untrained, in the same channel. Full: after training. Whiskers: 95% interval.",
    "curves": "Thin: one run, which is one seed. Thick: the mean over an arm's seeds.",
}


def report(directory: Path | str, price: float | None = None) -> Path:
    """Write `report.html` into a study's directory and return its path. price: of an hour of the device.

    Raises BadInput when the directory is no study's or its results.json cannot be read.
    """
    directory = Path(directory)
    study = read_study(directory)
    return _write(directory / "report.html", page.render(study, load_charts(), price))


def side_by_side(directories: Sequence[Path], out: Path) -> Path:
    """Write one page that sets several studies side by side. Raises BadInput as `report` does."""
    studies = side.named(directories)
    out.parent.mkdir(parents=True, exist_ok=True)
    return _write(out, side.render(studies, load_charts()))


def _write(path: Path, text: str) -> Path:
    """Whole or not at all."""
    aside = path.with_name(f"{path.name}.part")
    aside.write_text(text, encoding="utf-8", newline="\n")
    aside.replace(path)
    return path


def figures(directory: Path | str) -> list[Path]:
    """Write every chart as PNG and SVG under figures/; return the paths.

    Raises BadInput where altair or vl-convert-python is missing, or the directory is no study's.
    """
    study = read_study(Path(directory))
    charts = load_charts()
    if charts is None:
        raise BadInput(
            "figures need altair and vl-convert-python, which are not installed here; expected both. "
            "Type: pip install altair vl-convert-python",
            "package/missing",
        )
    folder = study.directory / "figures"
    folder.mkdir(exist_ok=True)
    drawn = {}
    for part, pictures in draw.pictures(study, charts).items():
        charts_of_part = [picture.at_rest() for picture in pictures]
        if part in TOGETHER:
            drawn[part] = charts.together(charts_of_part, TOGETHER[part])
        else:
            drawn |= {picture.id: chart for picture, chart in zip(pictures, charts_of_part)}
    paths = []
    for name, picture in drawn.items():
        (folder / f"{name}.svg").write_text(charts.svg_file(picture), encoding="utf-8", newline="\n")
        (folder / f"{name}.png").write_bytes(charts.png_file(picture))
        paths += [folder / f"{name}.png", folder / f"{name}.svg"]
    return paths
