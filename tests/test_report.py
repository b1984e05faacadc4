"""The report: the page says what the files say, allows nothing from outside, and no text of a model disturbs it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cotalk import cli
from cotalk import report as module
from cotalk.errors import BadInput
from cotalk.report import draw, figures, page, report
from cotalk.report.read import is_number, read_study

SEEDS = (17, 18, 19)
NAMES = {"A": ("Tom", "apples"), "B": ("Mia", "apples")}


def rate(mean: float, half: float = 0.03, n: int = 200, unit: str = "tasks") -> dict:
    return {"mean": mean, "low": round(mean - half, 4), "high": round(mean + half, 4), "n": n, "unit": unit}


def condition(
    mean: float, per_seed: tuple[float, ...] = (), talk: tuple[float, ...] = (0.2, 0.25, 0.3, 0.4, 0.1)
) -> dict:
    unit, n = ("seeds", len(per_seed)) if per_seed else ("tasks", 200)
    names = ("sends", "uses_above", "asks", "invented", "agrees")
    return {
        "score": rate(mean, 0.05, n, unit),
        "per_seat": {"A": rate(mean - 0.01), "B": rate(mean + 0.01)},
        "per_seed": dict(zip(map(str, SEEDS), per_seed, strict=True)) if per_seed else {"base": mean},
        "talk": {name: rate(value) for name, value in zip(names, talk, strict=True)}
        | {"message_tokens": rate(9.25, 1.0)},
        "greedy": {"score": rate(mean + 0.02)},
        "repeats": [] if per_seed else [mean, mean + 0.01, mean - 0.01],
        "size": {"runs": len(per_seed) or 1, "tasks": 200, "chats": 2, "seats": 2},
    }


def effect(turn: int, seat: str, by: str, change: float) -> dict:
    return {
        "turns": [turn], "by": by, "seat": seat, "listeners": "AB".replace(seat, ""), "plain": rate(0.8),
        "without": rate(0.8 + change), "change": rate(change, 0.1, 3, "seeds+tasks"), "sentence": f"{seat} by {by}.",
    }  # fmt: skip


RESULTS = {
    "schema": 1,
    "study": "quickstart",
    "created": "2025-11-29T16:20:00Z",
    "versions": {"cotalk": "0.1.0", "torch": "2.13.0", "transformers": "5.17.0", "python": "3.11.2"},
    "measures": {"grade": 1, "talk": 2, "intervals": 2},
    "config": {
        "run": {"base": "tiny", "steps": 50, "lr": 0.0015, "order": "ABAB", "reward": "strict", "method": "grpo"},
        "arms": {"open": {"channel": "open"}, "closed": {"channel": "closed"}},
        "seeds": [17, 18, 19],
    },
    "conditions": {
        "base_open": condition(0.121),
        "base_closed": condition(0.012),
        "skyline": condition(0.985),
        "floor": condition(0.021),
        "trained_open": condition(0.866, (0.883, 0.841, 0.874), (0.97, 0.93, 0.02, 0.05, 0.9)),
        "trained_closed": condition(0.013, (0.01, 0.02, 0.009), (0.3, 0.01, 0.3, 0.5, 0.02)),
        "trained_a_base_b": condition(0.43, (0.41, 0.47, 0.41)),
        "base_a_trained_b": condition(0.52, (0.5, 0.57, 0.49)),
    },
    "comparisons": [
        {
            "a": "trained_open", "b": "trained_closed", "difference": 0.853, "low": 0.799, "high": 0.907, "noise": 0.02,
            "verdict": "helps",
            "sentence": "trained, open scores better than trained, closed: +0.853 (3 seeds against 3).",
        },
        {"sentence": "Untrained, talking helps by +10.9 problems out of 100 [+8.6, +13.2]."},
    ],
    "causal": {"trained_open": [effect(0, "A", "nothing", -0.4), effect(1, "B", "another", -0.7)]},
    "cost": {
        "seconds": 384.0, "training_seconds": 300.0, "training_tokens_sampled": 1812345, "device": "cpu",
        "device_name": "CPU", "workers": 2,
    },
    "git": {"commit": "abcdef", "dirty": False},
}  # fmt: skip


def cell(a: str, b: str, own: float, partners: float) -> dict:
    rates = {"A": rate(own, n=50), "B": rate(partners, n=50)}
    return {"a": a, "b": b, "score": rate((own + partners) / 2, n=50), "per_seat": rates}


CROSS_PLAY = {
    "tasks": 50,
    "chats": 1,
    "players": [{"name": name, "kind": "run"} for name in ("open-17", "open-18", "base")],
    "cells": [
        cell("open-17", "open-18", 0.8, 0.7),
        cell("open-17", "base", 0.3, 0.2),
        cell("base", "base", 0.1, 0.1),
    ],
    "arms": {
        "open": {
            "self_play": rate(0.9, n=3, unit="seeds+tasks"),
            "cross_seed": rate(0.75, n=3, unit="seeds"),
            "ratio": rate(0.83, n=3, unit="seeds"),
            "strangers": {
                "base": {"A": rate(0.36, n=3, unit="seeds+tasks"), "of_ceiling": rate(0.9, n=3, unit="")}
            },
        }
    },
    "oracle": {"base": {"script": "teller", "heldout": rate(0.4, n=50)}},
    "comparisons": [{"sentence": "host scores better than open: +0.2 (3 seeds).", "verdict": "helps"}],
}
RELIABILITY = {
    "open": {"mean": 1.0, "low": 0.2924, "high": 1.0, "n": 3, "unit": "seeds", "threshold": 0.4925}
}


def chat(task: int, solved: bool, condition: str, step: int | None = None, channel: str = "open") -> dict:
    """One chat line as evaluation writes it: A knows a, B knows b, the answer is a + b."""
    a, b = 10 + task, 20 + 2 * task
    hands = {
        seat: [f"{name} has {number} {thing}."]
        for (seat, (name, thing)), number in zip(NAMES.items(), (a, b), strict=True)
    }
    talk = (
        (f"{hands['A'][0]} Please use this.", hands["B"][0])
        if solved
        else ("Hello, how are you?", "What do you know?")
    )
    last = [f"{a}+{b}={a + b}. \\boxed{{{a + b}}}"] * 2 if solved else [f"\\boxed{{{a}}}", "I do not know."]
    messages = [
        {
            "seat": "AB"[turn % 2],
            "turn": turn,
            "said": said,
            "heard": said if channel == "open" else "(no message)",
            "credit": 0.25,
            "cut": turn == 3 and not solved,
            "tokens": 9,
            "logprob": -4.2,
        }
        for turn, said in enumerate((*talk, *last))
    ]
    answers = {
        "A": {
            "answer": str(a + b if solved else a),
            "strict": solved,
            "lenient": solved,
            "parsed": True,
            "notes": [],
        },
        "B": {
            "answer": str(a + b) if solved else "",
            "strict": solved,
            "lenient": solved,
            "parsed": solved,
            "notes": [],
        },
    }
    return {
        "step": step,
        "condition": condition,
        "repeat": 0,
        "task": f"held-out-{task}",
        "chat": 0,
        "order": "ABAB",
        "channel": channel,
        "view": "dialogue",
        "question": "How many apples do Tom and Mia have together?",
        "gold": str(a + b),
        "hands": hands,
        "players": {"A": "learner", "B": "learner"},
        "messages": messages,
        "answers": answers,
        "rewards": {seat: float(solved) for seat in "AB"},
        "reward": float(solved),
    }


def metrics(arm: str, seed: int) -> list[dict]:
    """Fifty made-up steps: an S-shaped reward in the open arm, next to nothing in the closed one."""
    draw, lines = random.Random(f"{arm}-{seed}"), []
    for step in range(51):
        top = 0.88 if arm == "open" else 0.03
        skill = 0.12 * (arm == "open") + (top - 0.12 * (arm == "open")) / (
            1 + math.exp(-(step - 22 - seed % 3 * 3) / 5)
        )
        line = {
            "step": step,
            "reward": min(1, max(0, skill + draw.gauss(0, 0.04))),
            "message_tokens": 9 + skill,
            "groups/flat": min(1, max(0, 0.6 - 2 * abs(skill - 0.5) * 0.3 + draw.gauss(0, 0.05))),
            "cut": 0.05 * (1 - skill),
            "seconds": 0.5,
            "tokens": 700,
        }
        lines.append(line | ({"dev/score": round(skill * 16) / 16} if step % 10 == 0 else {}))
    return lines


def write_lines(path: Path, lines: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_study(directory: Path, results: dict = RESULTS, tasks: int = 40) -> Path:
    """A small fake study, complete: results, two arms of three runs, evaluation chats of 40 tasks."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(results))
    for arm in ("open", "closed"):
        for seed in SEEDS:
            run = directory / "runs" / f"{arm}-{seed}"
            write_lines(run / "metrics.jsonl", metrics(arm, seed))
            write_lines(
                run / "dev.jsonl",
                [
                    chat(task, step >= 20 and arm == "open", "dev", step, arm) | {"task": f"dev-{task}"}
                    for step in range(0, 51, 10)
                    for task in range(2)
                ],
            )
    for arm in ("open", "closed"):
        write_lines(
            directory / f"scores/base_{arm}/base.jsonl",
            [
                chat(task, task % 8 == 3 and arm == "open", f"base_{arm}", channel=arm)
                for task in range(tasks)
            ],
        )
        for seed in SEEDS:
            lines = [
                chat(task, task % 9 != 7 and arm == "open", f"trained_{arm}", 50, arm)
                for task in range(tasks)
            ]
            write_lines(directory / f"scores/trained_{arm}/{arm}-{seed}.jsonl", lines)
            write_lines(directory / f"scores/trained_{arm}/{arm}-{seed}.greedy.jsonl", lines)
    return directory


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, the text outside styles and scripts, the data."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.html, self.elements, self.texts, self.open = path.read_text(encoding="utf-8"), [], [], []
        self.scripts: list[tuple[dict, str]] = []
        self.feed(self.html)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.elements.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts.append((self.elements[-1][1], data))
        elif "style" not in self.open:
            self.texts.append(data)

    def tags(self, name: str) -> list[dict]:
        return [attributes for tag, attributes in self.elements if tag == name]

    def data(self, name: str) -> dict:
        """What a <script type="application/json"> holds."""
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == name))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(
        tmp_path_factory.mktemp("study"), RESULTS | {"cross_play": CROSS_PLAY, "reliability": RELIABILITY}
    )


@pytest.fixture(scope="module")
def drawn(study: Path) -> Page:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    return Page(report(study))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without charts, for tests of words: drawing takes seconds."""
    monkeypatch.setattr(module, "load_charts", lambda: None)


# --- what it says ---------------------------------------------------------------------------------------------


def test_the_page_opens_with_the_sentence_of_the_main_comparison_and_the_solved_chart(drawn: Page) -> None:
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", drawn.html, re.DOTALL)
    assert heading and heading[1] == "Trained, open scores better than trained, closed: +0.853"
    assert "(3 seeds against 3)." in drawn.text  # not a word of the sentence is left out
    at = [drawn.html.index(part) for part in ("<h1", 'data-chart="solved"', "<table")]
    assert at == sorted(at)


def test_the_table_holds_every_condition_with_interval_n_seeds_and_seats(drawn: Page) -> None:
    # trained_open: 0.866 +- 0.05 over 3 seeds; seats 0.856 and 0.876 +- 0.03; greedy 0.886 +- 0.03
    for words in (
        "86.6 [81.6, 91.6]",
        "3 seeds × 200 tasks × 2 chats × 2 seats",
        "17: 88.3",
        "18: 84.1",
        "19: 87.4",
        "85.6 [82.6, 88.6]",
        "87.6 [84.6, 90.6]",
        "88.6 [85.6, 91.6]",
        "evaluated 3 times: 12.1, 13.1, 11.1",
    ):
        assert words in drawn.text
    for name in RESULTS["conditions"]:
        assert f"<code>{name}</code>" in drawn.html


def test_every_part_that_is_promised_is_on_the_page(drawn: Page) -> None:
    charts = {attributes["data-chart"] for attributes in drawn.tags("div") if "data-chart" in attributes}
    talk = {f"talk-{name}" for name in ("sends", "uses_above", "asks", "invented", "agrees")}
    curves = {f"curve-{name}" for name in ("reward", "dev-score", "message_tokens", "groups-flat", "cut")}
    others = {"solved", "differences", "methods", "causal-trained_open", "cross-A", "cross-B"}
    assert charts == talk | curves | others == set(drawn.data("charts"))
    for words in (
        "1,812,345",  # tokens
        "6.4",  # 384 seconds are 6.4 minutes
        "looked at",  # checks
        "17, 18, 19",  # pins: seeds
        "abcdef",  # pins: git
        "run.lr 0.0015",
        "cotalk study study.toml",  # this study's settings are no shipped study's
        "50 tasks × 1 chat a cell",
        "75.0 [72.0, 78.0] n = 3 seeds",  # across seeds
        "0.83 [0.80, 0.86] n = 3 seeds",  # across / self
        "36.0 [33.0, 39.0] n = 3 seeds 0.90 [0.87, 0.93] of the ceiling",
        "base: 40.0 [37.0, 43.0] (n = 50 tasks), teller",
        "Host scores better than open: +0.2 (3 seeds).",
        "3 of 3 1.00 [0.29, 1.00]; above 49.2",
    ):
        assert words in drawn.text
    assert [attributes["id"] for attributes in drawn.tags("section") if "id" in attributes] == list(
        page.SECTIONS
    )


def test_pass_at_k_and_evaluations_made_again_stand_beside_the_mean(tmp_path: Path, plain: None) -> None:
    results = json.loads(json.dumps(RESULTS))
    results["conditions"]["trained_open"]["pass_at"] = {"2": rate(0.931, 0.02, 3, "seeds+tasks")}
    results["conditions"]["base_open"]["repeated"] = rate(0.122, 0.025, 3, "evaluations")
    write_study(tmp_path, results, tasks=2)
    text = " ".join(Page(report(tmp_path)).text.split())
    assert "86.6 [81.6, 91.6] 93.1 [91.1, 95.1] n = 3 seeds 3 seeds × 200 tasks" in text
    assert "evaluated 3 times: 12.1, 13.1, 11.1 mean 12.2 [9.7, 14.7], n = 3 evaluations" in text
    assert "12.1 [7.1, 17.1] – 1" not in text and "12.1 [7.1, 17.1] – 200 tasks" in text  # none was recorded
    assert "pass@2: any of a task's 2 chats solved it" in text

    write_study(tmp_path / "older", tasks=2)
    older = Page(report(tmp_path / "older")).text
    assert "pass@" not in older and "Evaluated several times" not in older


def test_a_whole_number_beyond_every_float_is_left_out(tmp_path: Path, plain: None) -> None:
    """JSON allows it, and `math.isfinite` overflows on it."""
    huge = 10**400
    assert not is_number(huge) and not is_number(-huge) and is_number(10**300)
    results = json.loads(json.dumps(RESULTS))
    results["conditions"]["trained_open"]["score"]["mean"] = huge
    results["cost"]["seconds"] = huge
    write_study(tmp_path, results, tasks=2)
    write_lines(tmp_path / "runs/open-17/metrics.jsonl", [{"step": 0, "reward": huge}, {"step": huge}])
    text = Page(report(tmp_path)).text
    assert "trained, channel open trained_open not measured" in " ".join(text.split())


def test_the_price_is_told_where_the_price_of_an_hour_is_given(tmp_path: Path, plain: None) -> None:
    write_study(tmp_path, tasks=2)
    assert "Price not given" in Page(report(tmp_path)).text
    # 384 s at 30 an hour: 384 / 3600 * 30 = 3.20
    assert "3.20 at 30.00 an hour" in Page(report(tmp_path, price=30)).text
    # a study that was given the price has it in its results; the report's own goes before it
    write_study(tmp_path, RESULTS | {"cost": RESULTS["cost"] | {"price_per_hour": 15.0}}, tasks=2)
    assert "1.60 at 15.00 an hour" in Page(report(tmp_path)).text
    assert "3.20 at 30.00 an hour" in Page(report(tmp_path, price=30)).text


def test_the_command_is_the_shipped_study_s_only_where_its_settings_are_the_same(tmp_path: Path) -> None:
    shipped = json.loads(json.dumps(page._recorded(page.shipped_study("quickstart", {}))))
    for config, words in (
        (shipped, "cotalk quickstart"),
        (shipped | {"run": shipped["run"] | {"base": "a b"}}, "cotalk study quickstart --base 'a b'"),
        (shipped | {"seeds": [1]}, "cotalk study study.toml --out runs/again"),
    ):
        (tmp_path / "results.json").write_text(json.dumps({"study": "quickstart", "config": config}))
        assert page.command(read_study(tmp_path)) == words


def test_values_of_another_version_of_a_measure_are_never_shown_as_fresh(tmp_path: Path, plain: None) -> None:
    fresh = Page(report(write_study(tmp_path / "fresh", tasks=2)))
    assert "not up to date" not in fresh.text.lower()
    stale = RESULTS | {"measures": {"grade": 1, "talk": 1, "intervals": 2}}
    text = Page(report(write_study(tmp_path / "stale", stale, tasks=2))).text
    assert "Not up to date: talk was measured by version 1 of its code, and this is version 2" in text
    assert "Talk before and after not up to date" in text and "Every condition not up to date" not in text
    assert text.count("not up to date") >= 1 + 6  # the heading, and each of six measures in the table
    stale = RESULTS | {"measures": {"grade": 0, "talk": 2, "intervals": 2}}
    assert (
        "Every condition not up to date"
        in Page(report(write_study(tmp_path / "graded", stale, tasks=2))).text
    )


def test_failed_runs_are_told_at_the_top(tmp_path: Path, plain: None) -> None:
    text = Page(
        report(write_study(tmp_path, RESULTS | {"failed": {"open-18": "out of memory"}}, tasks=2))
    ).text
    assert "open-18 failed: out of memory" in text


def test_the_same_files_give_the_same_bytes(study: Path, drawn: Page) -> None:
    assert report(study).read_text(encoding="utf-8") == drawn.html


# --- what it allows -------------------------------------------------------------------------------------------


def test_the_policy_allows_only_the_styles_and_scripts_of_the_page_itself(drawn: Page) -> None:
    policy = next(
        m["content"] for m in drawn.tags("meta") if m.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in policy and "http" not in policy

    def digests(texts: list[str]) -> list[str]:
        return [
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts
        ]

    styles = re.findall(r"<style>(.*?)</style>", drawn.html, re.DOTALL)
    scripts = [text for attributes, text in drawn.scripts if "type" not in attributes and text.strip()]
    assert rules["style-src"].split() == digests(styles) and len(styles) == 1
    assert rules["script-src"].split() == digests(scripts) and len(scripts) == 2


def test_the_page_points_at_nothing_outside_itself(drawn: Page) -> None:
    assert not drawn.tags("link") and not drawn.tags("img") and not drawn.tags("iframe")
    assert not [
        a for _, attributes in drawn.elements for a in attributes if a == "style" or a.startswith("on")
    ]
    targets = [
        attributes.get(name, "#")
        for _, attributes in drawn.elements
        for name in ("href", "src", "xlink:href")
    ]
    assert all(target.startswith("#") for target in targets)


def test_every_picture_has_words_and_every_link_a_target(drawn: Page) -> None:
    pictures = [each for each in drawn.tags("div") if "data-chart" in each]
    assert all(each["role"] == "img" and len(each["aria-label"]) > 40 for each in pictures)
    stills = [svg for svg in drawn.tags("svg") if svg.get("aria-hidden") != "true"]
    assert len(stills) == len(pictures) and all(svg["aria-label"] for svg in stills)
    ids = [attributes["id"] for _, attributes in drawn.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"][1:] for attributes in drawn.tags("a")} <= set(ids)
    headings = [tag for tag, _ in drawn.elements if tag in ("h1", "h2", "h3")]
    assert headings[0] == "h1" and headings.count("h1") == 1
    assert all(drawn.tags(landmark) for landmark in ("header", "nav", "main", "footer"))


HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)> \u202egnp.exe {{ 7 * 7 }} \x00 \ud800"
)


def hostile_study(directory: Path) -> Path:
    """A study whose every text is an attack, and a message of 100 kB of one character."""
    write_study(directory)
    results = json.loads(json.dumps(RESULTS))
    results["conditions"]["trained_open"]["label"] = HOSTILE
    results["conditions"][HOSTILE] = condition(0.5, (0.4, 0.5, 0.6))
    results["conditions"]["base_open"]["talk"][HOSTILE] = rate(0.5)
    results["conditions"]["trained_closed"]["per_seed"][HOSTILE] = 0.4
    results["comparisons"][0] |= {"sentence": HOSTILE, "a": HOSTILE, "verdict": HOSTILE}
    results["study"] = results["created"] = HOSTILE
    results["config"][HOSTILE] = results["versions"][HOSTILE] = results["cost"]["device_name"] = HOSTILE
    results["causal"]["trained_open"][0] |= {"sentence": HOSTILE, "by": HOSTILE, "seat": HOSTILE}
    results["failed"] = {HOSTILE: HOSTILE}
    results["cross_play"] = json.loads(json.dumps(CROSS_PLAY).replace("open-17", "</script><b>"))
    (directory / "results.json").write_text(json.dumps(results))
    lines = [chat(0, True, "base_open")]
    lines[0] |= {
        "task": HOSTILE,
        "question": HOSTILE,
        "gold": HOSTILE,
        "hands": {HOSTILE: [HOSTILE], "B": ["5"]},
    }
    lines[0]["messages"][0] |= {"said": HOSTILE, "heard": HOSTILE, "seat": HOSTILE}
    lines[0]["messages"][1] |= {"said": "x" * 100_000, "heard": HOSTILE}
    lines[0]["messages"][2] |= {"said": "7" * 100_000}
    lines[0]["answers"] = {HOSTILE: {"answer": HOSTILE, "strict": True}}
    for path in (
        "scores/base_open/base.jsonl",
        "scores/trained_open/open-17.jsonl",
        "runs/open-17/dev.jsonl",
    ):
        write_lines(directory / path, [line | {"step": 0} for line in lines])
    for seed in (18, 19):
        (directory / f"scores/trained_open/open-{seed}.jsonl").unlink()
    return directory


def test_hostile_text_is_shown_as_text_everywhere(tmp_path: Path) -> None:
    found = Page(report(hostile_study(tmp_path)))
    kinds = [attributes.get("type") for attributes in found.tags("script")]
    assert kinds == ["application/json", "application/json", None, None] and not found.tags("img")
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    assert "\u202e" not in found.html and "\x00" not in found.html and "alert(1)</script>" not in found.html
    assert "[U+202E]gnp.exe {{ 7 * 7 }} [U+0000] [U+D800]" in found.text
    chats = found.data("chats")
    said = json.dumps(chats, ensure_ascii=False)
    assert "(96,000 more characters)" in said and "x" * 4_001 not in said and "[U+202E]" in said
    assert len(found.html.encode()) < 3_000_000


# --- what is missing, broken or strange ---------------------------------------------------------------------


def test_what_is_missing_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    text = Page(report(tmp_path)).text
    for words in (
        "No comparison has been made yet.",
        "No scores:",
        "No measures of talk:",
        "No learning curves:",
        "No chats of the evaluation:",
        "No chats of the dev tasks:",
        "Not played in this study.",
        "No cross-play matrix",
        "Cost: not recorded",
    ):
        assert words in text
    (tmp_path / "results.json").unlink()
    write_lines(
        tmp_path / "runs/open-17/metrics.jsonl", [{"step": 1, "reward": 0.5}, {"step": 0, "reward": 0.25}]
    )
    text = Page(report(tmp_path)).text
    assert "There is no results.json yet" in text
    assert "Not recorded by any run: Dev score, greedy" in text


def test_strange_numbers_do_not_stop_the_page(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(
        json.dumps(
            {
                "conditions": {
                    "base_open": {
                        "score": {"mean": 0.1, "low": None, "high": None, "n": None, "unit": "tasks"}
                    },
                    "trained_open": {
                        "score": {"mean": 0.5, "low": -0.2, "high": 1.2, "n": 2, "unit": "seeds"},
                        "per_seed": {"17": 0.5},
                    },
                    "trained_closed": {
                        "score": {"mean": math.nan, "low": 0, "high": 1, "n": 0, "unit": "seeds"}
                    },
                    "floor": {"score": None, "per_seat": None, "talk": None, "greedy": None, "repeats": None},
                },
                "comparisons": [None],
            }
        )
    )
    text = Page(report(tmp_path)).text
    assert "50.0 [−20.0, 120.0]" in text  # the table keeps what the whisker cannot show
    assert "not measured" in text


def test_half_written_lines_are_skipped(tmp_path: Path, plain: None) -> None:
    torn, whole = write_study(tmp_path / "torn", tasks=3), write_study(tmp_path / "whole", tasks=3)
    for path in [*torn.glob("runs/*/*.jsonl"), *torn.glob("scores/*/*.jsonl")]:
        path.write_bytes(path.read_bytes() + b'{"step": 51, "rew\n[1, 2]\n\xff\xfe\n{"step": 52, "task": ')
    assert read_study(torn).runs == read_study(whole).runs
    assert Page(report(torn)).data("chats") == Page(report(whole)).data("chats")


def test_a_directory_that_is_no_study_is_refused_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cotalk report"):
        report(tmp_path)
    (tmp_path / "results.json").write_text('{"conditions": {')
    with pytest.raises(BadInput, match="not JSON"):
        report(tmp_path)
    (tmp_path / "results.json").write_text('{"schema": 2}')
    with pytest.raises(BadInput, match="schema 1"):
        report(tmp_path)


def test_without_the_drawing_libraries_the_tables_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str) -> None:
        raise ImportError("No module named 'altair'")

    monkeypatch.setattr(draw.importlib, "import_module", refuse)
    write_study(tmp_path, tasks=2)
    found = Page(report(tmp_path))
    assert not found.tags("svg") and "The charts are left out" in found.text
    assert "86.6 [81.6, 91.6]" in found.text and "pip install altair" in caplog.text
    assert found.data("chats")["passes"]  # the viewer needs none of them
    with pytest.raises(BadInput, match="pip install altair"):
        figures(tmp_path)


@pytest.mark.slow
def test_figures_are_saved_as_png_and_svg(study: Path) -> None:
    pytest.importorskip("cotalk.report.charts")
    paths = figures(study)
    parts = (
        "solved",
        "differences",
        "methods",
        "talk",
        "curves",
        "causal-trained_open",
        "cross-A",
        "cross-B",
    )
    assert [path.name for path in paths] == [f"{part}.{kind}" for part in parts for kind in ("png", "svg")]
    for png, svg in zip(paths[::2], paths[1::2], strict=True):
        assert png.read_bytes().startswith(b"\x89PNG") and "<svg" in svg.read_text()


# --- several studies ------------------------------------------------------------------------------------------


def test_several_studies_stand_side_by_side_and_what_differs_is_listed(tmp_path: Path) -> None:
    other = json.loads(json.dumps(RESULTS)) | {"study": "longer"}
    other["config"]["run"]["steps"] = 99
    other["conditions"]["trained_open"]["score"] = rate(0.912, 0.02, 3, "seeds")
    paths = [write_study(tmp_path / "a", tasks=3), write_study(tmp_path / "b", other, tasks=3)]
    found = Page(module.side_by_side(paths, tmp_path / "out" / "both.html"))
    for words in (
        "quickstart , longer side by side",
        "86.6 [81.6, 91.6]",
        "91.2 [89.2, 93.2]",
        "run.steps 50 99",
    ):
        assert words in found.text
    assert "run.lr" not in found.text  # the same in both
    assert {"study-0-solved", "study-1-solved", "talk-sends", "curve-reward", "methods"} <= set(
        found.data("charts")
    )
    groups = {each["group"] for each in found.data("chats")["passes"]}
    assert {"quickstart: trained, channel open", "longer: trained, channel open"} <= groups
    left, right = found.data("chats")["start"]["heldout"]
    assert left.startswith("quickstart: trained_open/") and right.startswith("longer: trained_open/")


def test_studies_of_one_name_are_told_apart_and_one_given_twice_is_refused(
    tmp_path: Path, plain: None
) -> None:
    paths = [write_study(tmp_path / name, tasks=2) for name in ("first", "second")]
    assert "first , second side by side" in Page(module.side_by_side(paths, tmp_path / "both.html")).text
    with pytest.raises(BadInput, match="each study once"):
        module.side_by_side([paths[0], paths[0]], tmp_path / "both.html")


# --- the command ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_report_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("cotalk.report.charts")
    study = write_study(tmp_path, tasks=2)
    command = [sys.executable, "-m", "cotalk.cli", "report", str(study), "--figures", "--price", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (study / "report.html").is_file() and (study / "figures" / "solved.png").is_file()


def test_the_command_sets_several_studies_side_by_side(tmp_path: Path, plain: None) -> None:
    paths = [write_study(tmp_path / name, tasks=2) for name in ("first", "second")]
    assert cli.main(["report", *map(str, paths), "--out", str(tmp_path / "both.html")]) == 0
    assert (tmp_path / "both.html").is_file() and not (paths[1] / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "expected a study's directory"),
        (("nowhere",), "expected the directory of a study"),
        (("a", "--out", "x.html"), "--out x.html with one study"),
        (("a", "b", "--price", "3"), "--price with several studies"),
    ],
)
def test_what_was_typed_wrong_is_told_and_ends_with_2(
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
