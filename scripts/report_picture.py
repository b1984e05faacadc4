"""Writes the README's picture of a report: its top and one pair of chats, in a real browser (Debian's chromium).

python scripts/report_picture.py results/quickstart/report.html docs/images/report.png
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH = 1160
CHAT = "#chat/heldout/heldout-10/base_open%2Fbase/trained_open%2Fopen-17"
ONLY = """() => {
  const kept = ".hero, #solved, #chats-section";
  for (const each of document.querySelectorAll("main > section")) each.hidden = !each.matches(kept);
  const left = ".bar, footer, figcaption, .v-filters, .v-turn, .v-keys, .v-trail";
  for (const each of document.querySelectorAll(left)) each.style.display = "none";
}"""


def picture(report: Path, out: Path, fragment: str = CHAT) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH, "height": 800},
            reduced_motion="reduce",
            color_scheme="light",
            device_scale_factor=1.5,
        )
        page.goto(report.resolve().as_uri() + fragment)
        page.wait_for_selector(".chart[data-chart=solved] svg")
        page.evaluate(ONLY)
        end = page.locator("#viewer").bounding_box()
        assert end, f"{report} holds no chats; expected the report of a study whose chats lay beside it"
        clip = {
            "x": 0,
            "y": 0,
            "width": WIDTH,
            "height": page.evaluate("scrollY") + end["y"] + end["height"] + 24,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=out, clip=clip, full_page=True)
        browser.close()


if __name__ == "__main__":
    picture(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
