"""Checks: what would make a study's numbers mean something else, looked for in what the study left on disk.

    for each in check(Path("runs/quickstart")):      # a study's directory, a run's, or a results.json
        print(each.name, each.looked_at, each.result, each.detail)

Each check is one function from `Evidence` to a `Check`: what it looked at, how much, and `pass`, `look` (a person
should read it), `fail`, or `not applicable`. **A check that looked at nothing fails**, whatever it found. Evidence is
read from the files that the results were computed from (chats, metrics, outcomes), never from what a study meant to
do: a renamed field, an empty file or a missing seed is a fail, not a pass over zero texts.

Left out: the controls themselves (perturb.py, causal.py), and what the numbers are (stats.py, talk.py). Every rule
with its bounds is in docs/checks.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from cotalk import results, stats
from cotalk.config import Config, read_toml
from cotalk.disk import read_json
from cotalk.errors import BadInput
from cotalk.given import changed, read_given
from cotalk.preflight import given_now
from cotalk.recompute import recompute
from cotalk.results import Score
from cotalk.run import read_lines
from cotalk.sample import generator

Json = dict[str, Any]
RESULTS = ("pass", "look", "fail", "not applicable")


@dataclass(frozen=True)
class Check:
    """What one check found. n: how much it looked at; 0 is only possible in a `fail` or `not applicable`."""

    name: str
    looked_at: str
    n: int
    result: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.result not in RESULTS:
            raise ValueError(f"check {self.name!r} has the result {self.result!r}; expected one of {RESULTS}")
        if self.n == 0 and self.result in ("pass", "look"):
            raise ValueError(f"check {self.name!r} looked at nothing and has the result {self.result!r}")

    @property
    def as_json(self) -> Json:
        return {key: getattr(self, key) for key in self.__dataclass_fields__}


def settle(
    name: str,
    looked_at: str,
    n: int,
    *,
    fails: Sequence[str] = (),
    looks: Sequence[str] = (),
    detail: str = "",
) -> Check:
    """The check with its worst finding first; a fail where nothing was looked at."""
    if n == 0:
        return Check(name, looked_at, 0, "fail", "; ".join(["it looked at nothing", *fails]))
    result = "fail" if fails else "look" if looks else "pass"
    return Check(name, looked_at, n, result, "; ".join([*fails, *looks, *([detail] if detail else [])]))


# --- evidence ---------------------------------------------------------------------------------------------


class Evidence:
    """What a study, or a single run, left on disk. Files are read when a check asks for them, and once."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise BadInput(
                f"there is no {path}; expected a study's or run's directory, or a results.json",
                "results/missing",
            )
        self.path = path if path.is_dir() else path.parent
        self.only_results = path.is_file()
        self._lines: dict[Path, list[Json]] = {}
        if self.only_results and path.suffix != ".json":
            raise BadInput(
                f"{path} is no directory and no .json file; expected a study's results.json",
                "results/missing",
            )
        names = ("study.toml", "config.toml", "results.json")
        if not self.only_results and not any((path / name).is_file() for name in names):
            raise BadInput(
                f"{path} holds no {', '.join(names)}; expected the directory of a study or a run",
                "results/missing",
            )
        self.file = path if self.only_results else path / "results.json"

    @property
    def single(self) -> bool:
        """A run by itself (`cotalk train`), not a study."""
        return (self.path / "config.toml").is_file() and not (self.path / "study.toml").is_file()

    @cached_property
    def document(self) -> Json:
        """results.json as it stands, unchecked; {} where there is none."""
        if not self.file.is_file():
            return {}
        found = read_json(self.file, "a study's results.json", "results/unreadable")
        return found if isinstance(found, dict) else {}

    @cached_property
    def table(self) -> Json:
        """study.toml, or a run's config as the study of one run."""
        name = "config.toml" if self.single else "study.toml"
        path = self.path / name
        if not path.is_file():
            config = self.document.get("config", {})
            return config if isinstance(config, dict) else {}
        found = read_toml(path)
        return {"run": found, "arms": {"": {}}, "seeds": [found.get("seed")]} if self.single else found

    @property
    def jobs(self) -> dict[str, tuple[str, Path]]:
        """{name of a run: (its arm, its directory)}: those that the study meant to have."""
        if self.single:
            return {"run": ("", self.path)}
        arms, seeds = self.table.get("arms", {}), self.table.get("seeds", [])
        return {
            f"{arm}-{seed}": (arm, self.path / "runs" / f"{arm}-{seed}") for arm in arms for seed in seeds
        }

    def setting(self, arm: str, name: str) -> Any:
        """A setting of an arm: its own, else the study's, else the default."""
        run, arms = self.table.get("run", {}), self.table.get("arms", {})
        return arms.get(arm, {}).get(name, run.get(name, getattr(Config, name, None)))

    def arm_table(self, arm: str) -> Json:
        """All settings of an arm."""
        return self.table.get("run", {}) | self.table.get("arms", {}).get(arm, {})

    @cached_property
    def given(self) -> dict[str, str]:
        """What was in the files that the config names, by digest."""
        return read_given(self.path)

    def lines(self, path: Path) -> list[Json]:
        if path not in self._lines:
            self._lines[path] = read_lines(path)
        return self._lines[path]

    def passes(self, condition: str, run: str) -> list[list[Json]]:
        """The sampled evaluations of one run in one condition: the first, then its repeats; none without the first."""
        folder = self.path / "scores" / condition
        if not self.lines(folder / f"{run}.jsonl"):
            return []
        again = sorted(folder.glob(f"{run}.repeat*.jsonl"))
        return [found for path in (folder / f"{run}.jsonl", *again) if (found := self.lines(path))]

    @cached_property
    def outcomes(self) -> list[Score]:
        """outcomes/*.npz, sampled and greedy."""
        return [Score.load(path) for path in sorted((self.path / "outcomes").glob("*.npz"))]

    @property
    def scores(self) -> dict[str, Score]:
        """The sampled ones, by condition."""
        return {score.condition: score for score in self.outcomes if score.decoding == "sampled"}

    @property
    def conditions(self) -> Json:
        found = self.document.get("conditions")
        return found if isinstance(found, dict) else {}


# --- contamination ----------------------------------------------------------------------------------------

GRAM, COVERED = 8, 0.8  # words in a gram; share of a text's words that shared grams cover


def text_of(line: Json) -> str:
    """The facts of a chat line in the order in which they were dealt, and its question; "" where it names none."""
    hands, question = line.get("hands"), line.get("question")
    if not hands or not question:
        return ""
    facts = [fact for row in zip_longest(*(hands[seat] for seat in sorted(hands))) for fact in row if fact]
    return " ".join([*facts, question])


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", text.lower()))


def template_of(text: str) -> str:
    """A text without its numbers and names, so that texts of one template are equal."""
    pieces = re.findall(r"[A-Za-z']+|[0-9][0-9.,]*|[^\s\w]", text)
    starts = [at == 0 or pieces[at - 1] in ".?!" for at in range(len(pieces))]
    return " ".join(_slot(piece, first) for piece, first in zip(pieces, starts, strict=True))


def _slot(piece: str, first: bool) -> str:
    if piece[0].isdigit():
        return "#"
    name = piece[0].isupper() and not first
    return "@" if name or (first and piece[0].isupper() and piece.lower() not in OPENERS) else piece.lower()


OPENERS = frozenset(
    "a an the how what if there in on at he she it they each every one two some all when for".split()
)


@dataclass(frozen=True)
class Overlap:
    """Pairs (held-out id, trained id): the same words; near (8-grams over 80% of the words); the same template."""

    exact: list[tuple[str, str]]
    near: list[tuple[str, str]]
    template: list[tuple[str, str]]


def overlap(trained: Mapping[str, str], heldout: Mapping[str, str]) -> Overlap:
    """Compares {id: text} with {id: text}. A pair counts once, by its closest kind; one pair a held-out text."""
    by_words, by_template, by_gram = {}, {}, defaultdict(set)
    for name, text in trained.items():
        words = _words(text)
        by_words[words] = by_template[template_of(text)] = name
        for at in range(len(words) - GRAM + 1):
            by_gram[words[at : at + GRAM]].add(name)
    found = Overlap([], [], [])
    for name, text in heldout.items():
        words = _words(text)
        if words in by_words:
            found.exact.append((name, by_words[words]))
        elif near := _nearest(words, by_gram):
            found.near.append((name, near))
        elif template_of(text) in by_template:
            found.template.append((name, by_template[template_of(text)]))
    return found


def _nearest(words: tuple[str, ...], by_gram: Mapping[tuple[str, ...], set[str]]) -> str | None:
    """The trained text whose grams cover most of these words, if they cover 80% of them."""
    covered: dict[str, set[int]] = defaultdict(set)
    for at in range(len(words) - GRAM + 1):
        for name in by_gram.get(words[at : at + GRAM], ()):
            covered[name].update(range(at, at + GRAM))
    best = max(covered, key=lambda name: (len(covered[name]), name), default=None)
    return best if best is not None and len(covered[best]) >= COVERED * len(words) else None


def contamination(evidence: Evidence) -> Check:
    """Texts that were trained on, or looked at in training, among the held-out ones."""
    chats = [where / "chats.jsonl" for _, where in evidence.jobs.values()]
    dev = [where / "dev.jsonl" for _, where in evidence.jobs.values()]
    if evidence.single:
        seen, held, names = _texts(evidence, chats), _texts(evidence, dev), "train against dev"
    else:
        files = [p for p in sorted((evidence.path / "scores").glob("*/*.jsonl")) if p.parent.name != "floor"]
        seen, held, names = (
            _texts(evidence, chats + dev),
            _texts(evidence, files),
            "train and dev against held-out",
        )
    found = overlap(seen, held)
    told = {"are the same": found.exact, "share 8-grams over 80% of their words": found.near}
    told["share a template"] = found.template
    said = [f"{len(pairs)} texts {what}, such as {_pair(pairs)}" for what, pairs in told.items() if pairs]
    fails, looks = (said[:1], said[1:]) if found.exact else ([], said)
    tallies = evidence.document.get("tasks", {})
    dropped = sum(sum(tally.get("repeats", {}).values()) for tally in tallies.values())
    n = len(held) if seen else 0
    looked_at = f"{len(seen):,} texts x {len(held):,}, {names}"
    return settle(
        "contamination",
        looked_at,
        n,
        fails=fails,
        looks=looks,
        detail=f"{dropped:,} repeats dropped when dealt",
    )


def _texts(evidence: Evidence, files: Iterable[Path]) -> dict[str, str]:
    """{text: text}'s ids: one entry a different text, named by its task."""
    found: dict[str, str] = {}
    for path in files:
        for line in evidence.lines(path):
            if text := text_of(line):
                found.setdefault(text, str(line["task"]))
    return {f"{name} ({at})": text for at, (text, name) in enumerate(found.items())}


def _pair(pairs: Sequence[tuple[str, str]]) -> str:
    return "held-out {} and {}".format(*(name.rpartition(" (")[0] for name in pairs[0]))


# --- noise ------------------------------------------------------------------------------------------------


BASE_REPEATS = 3  # evaluations of the base that a floor needs at least


def noise_floor(evidence: Evidence) -> Check:
    """How far evaluations of one and the same checkpoint scatter: the base, and every run in its own channel."""
    trained = [(f"trained_{arm}", run) for run, (arm, _) in evidence.jobs.items()]
    passes = {who: evidence.passes(*who) for who in [("base_open", "base"), *trained]}
    means = {
        who: [float(np.mean([line["reward"] for line in lines])) for lines in found]
        for who, found in passes.items()
    }
    fails = _too_few(evidence, {run: len(means[condition, run]) for condition, run in trained})
    for (condition, run), found in passes.items():
        if len({_said(lines) for lines in found}) < len(found):
            fails.append(f"{run} in {condition}: two of its evaluations are word for word the same")
        seed = run.rpartition("-")[2]
        told = evidence.conditions.get(condition, {}).get("repeats_per_seed", {}).get(seed)
        if found and told is not None and not _close(told, means[condition, run]):
            fails.append(f"{run} in {condition}: results.json has other evaluations than scores/")
    floors = {
        condition: stats.noise_floor(*(row for (name, _), row in means.items() if name == condition))
        for condition in dict.fromkeys(name for name, _ in means)
    }
    looks = [
        f"{c['a']} against {c['b']} ({c['difference']:+.3f}) lies inside the noise"
        for c in evidence.document.get("comparisons", [])
        if c.get("verdict") in ("helps", "hurts") and _inside(c, floors)
    ]
    if _promised(evidence, "trained_repeats") == 1:
        looks.append(
            "no run was evaluated again ([evaluate] trained_repeats = 1): the floor is the base's alone"
        )
    n = {who: len(row) for who, row in means.items()}
    base = n.pop(("base_open", "base"))
    looked_at = f"{base} evaluations of the base, {sum(n.values())} of {len(n)} trained runs"
    parts = [f"sd {floor.sd:.4f} in {condition}" for condition, floor in floors.items() if floor]
    parts += [f"{run} {', '.join(f'{mean:.3f}' for mean in row)}" for (_, run), row in means.items()]
    return settle(
        "noise floor", looked_at, base + sum(n.values()), fails=fails, looks=looks, detail="; ".join(parts)
    )


def _too_few(evidence: Evidence, trained: Mapping[str, int]) -> list[str]:
    """What the study promised to evaluate and did not. trained: {run: its evaluations}."""
    fails, base = [], len(evidence.passes("base_open", "base"))
    expected = max(BASE_REPEATS, _promised(evidence, "repeats"))
    if base < expected:
        fails.append(
            f"the base was evaluated {base} times; expected {expected} ([evaluate] repeats = {expected})"
        )
    promised = _promised(evidence, "trained_repeats")
    few = [f"{run} {count}" for run, count in trained.items() if count < promised]
    if few:
        fails.append(
            f"of {promised} evaluations that [evaluate] trained_repeats promises there are: {', '.join(few)}"
        )
    return fails if trained else [*fails, "the study names no trained run"]


def _promised(evidence: Evidence, name: str) -> int:
    """Evaluations that the study's [evaluate] table asks for; 1 where an earlier version did not write it."""
    return int(evidence.table.get("evaluate", {}).get(name, 1))


def _inside(row: Json, floors: Mapping[str, stats.NoiseFloor | None]) -> bool:
    """Whether a difference is under two standard deviations of one evaluation against one."""
    sides = [floors.get(row[side]) or floors["base_open"] for side in ("a", "b")]
    return abs(row["difference"]) < 2 * np.sqrt(sum(side.sd**2 for side in sides if side))


def _close(told: Sequence[float], found: Sequence[float]) -> bool:
    return len(told) == len(found) and bool(np.allclose(told, found, rtol=0, atol=1e-6))


def _said(lines: Sequence[Json]) -> tuple[str, ...]:
    return tuple(message["said"] for line in lines for message in line["messages"])


# --- lengths ----------------------------------------------------------------------------------------------

CUT, RISE, FACTOR = 0.2, 0.1, 2.0


@dataclass(frozen=True)
class Length:
    """Mean tokens of messages before a seat's last one, and of last ones; share of all messages cut off."""

    message: float
    answer: float
    cut: float

    def __str__(self) -> str:
        return f"{self.message:.1f}/{self.answer:.1f} tokens, cut {self.cut:.2f}"


def length_of(lines: Sequence[Json]) -> Length | None:
    """Of these chats; None where they hold no message."""
    messages: list[int] = []
    answers: list[int] = []
    cuts: list[bool] = []
    for line in lines:
        last = {message["seat"]: message["turn"] for message in line["messages"]}
        for message in line["messages"]:
            (answers if message["turn"] == last[message["seat"]] else messages).append(message["tokens"])
            cuts.append(bool(message["cut"]))
    return (
        Length(float(np.mean(messages or [0])), float(np.mean(answers)), float(np.mean(cuts)))
        if cuts
        else None
    )


def lengths(evidence: Evidence) -> Check:
    """Length and cut-off share before and after training, for every seed."""
    looks, fails, parts, n = [], [], [], 0
    for run, (arm, where) in evidence.jobs.items():
        before, after = _before_and_after(evidence, run, arm, where)
        if before is None or after is None:
            fails.append(f"{run}: no chats {'before' if before is None else 'after'} training")
            continue
        n += 1
        parts.append(f"{run} {before} -> {after}")
        looks += [f"{run}: {what}" for what in _longer(before, after)]
    what = f"{n} of {len(evidence.jobs)} runs, message/answer before and after"
    return settle("length and cut-off", what, n, fails=fails, looks=looks, detail="; ".join(parts))


def _before_and_after(
    evidence: Evidence, run: str, arm: str, where: Path
) -> tuple[Length | None, Length | None]:
    if not evidence.single:
        base = f"base_{evidence.setting(arm, 'channel')}"
        before, after = evidence.passes(base, "base")[:1], evidence.passes(f"trained_{arm}", run)[:1]
        return length_of(before[0] if before else []), length_of(after[0] if after else [])
    lines = evidence.lines(where / "chats.jsonl")
    steps = sorted({line["step"] for line in lines})
    each = min(LAST, len(steps) // 2)
    early, late = set(steps[:each]), set(steps[len(steps) - each :])
    return (
        length_of([line for line in lines if line["step"] in early]),
        length_of([line for line in lines if line["step"] in late]),
    )


def _longer(before: Length, after: Length) -> list[str]:
    found = (
        [f"{after.cut:.2f} of its messages are cut off"] if after.cut > max(CUT, before.cut + RISE) else []
    )
    for name in ("message", "answer"):
        was, now = getattr(before, name), getattr(after, name)
        if was and not 1 / FACTOR <= now / was <= FACTOR:
            found.append(f"{name}s went from {was:.1f} to {now:.1f} tokens")
    return found


# --- reward hacking ---------------------------------------------------------------------------------------

LAST = 10  # steps at the end of training
REGROUPINGS = 999
SHOWN = 3  # features of a run, or faults of one kind, that are named
NOTICED = 0.2  # a correlation below it is not worth a person's time
SURFACE: dict[str, Callable[[str], float]] = {
    "length": len,
    "digits": lambda text: sum(letter.isdigit() for letter in text),
    "boxes": lambda text: text.count("\\boxed"),
    "questions": lambda text: text.count("?"),
    "punctuation": lambda text: sum(letter in ".,;:!-()" for letter in text),
    "lines": lambda text: text.count("\n"),
    "repeated words": lambda text: len(text.split()) - len(set(text.split())),
}


def features(line: Json) -> dict[str, float]:
    """Surface features of a chat: of what was said before the last messages, and of the last ones."""
    last = {message["seat"]: message["turn"] for message in line["messages"]}
    ends = [m["said"] for m in line["messages"] if m["turn"] == last[m["seat"]]]
    before = [m["said"] for m in line["messages"] if m["turn"] != last[m["seat"]]]
    told = {"messages": "\n".join(before), "answers": "\n".join(ends)}
    return {
        f"{name} of {part}": float(of(text)) for part, text in told.items() for name, of in SURFACE.items()
    }


@dataclass(frozen=True)
class Scan:
    """groups: tasks of a step whose chats were paid differently; flagged: {feature: correlation}."""

    groups: int
    chats: int
    flagged: dict[str, float]
    strongest: str


def scan(lines: Sequence[Json], name: str, alpha: float = 0.05) -> Scan:
    """Correlates surface features with the reward within groups, against rewards shuffled within groups.

    A feature is flagged where its correlation exceeds 0.2 and the largest one, over all features, of all but
    `alpha` of 999 keyed shuffles.
    """
    groups: dict[tuple[int, str], list[Json]] = defaultdict(list)
    for line in lines:
        groups[line["step"], line["task"]].append(line)
    real = [chats for chats in groups.values() if len({chat["reward"] for chat in chats}) > 1]
    if not real:
        return Scan(0, 0, {}, "")
    of = np.repeat(np.arange(len(real)), [len(chats) for chats in real])
    rows = [features(chat) for chats in real for chat in chats]
    names = list(rows[0])
    x = _centred(np.array([[row[n] for n in names] for row in rows]), of)
    y = _centred(np.array([[chat["reward"]] for chats in real for chat in chats]), of)[:, 0]
    order = np.argsort(of + generator("checks", "hacking", name).random((REGROUPINGS, len(of))), axis=1)
    chance = np.abs(_correlated(x, y[order])).max(1)
    found = _correlated(x, y[None, :])[0]
    bound = max(NOTICED, float(np.quantile(chance, 1 - alpha)))
    flagged = {n: float(r) for n, r in zip(names, found, strict=True) if abs(r) > bound}
    top = int(np.abs(found).argmax())
    return Scan(len(real), len(of), flagged, f"{names[top]} {found[top]:+.2f}")


def _centred(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Each group's mean taken off: (chats, features)."""
    sizes = np.bincount(of).astype(float)
    means = np.stack([np.bincount(of, weights=column) / sizes for column in values.T], axis=1)
    return np.asarray(values - means[of])


def _correlated(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(chats, features) and (shuffles, chats) -> (shuffles, features); 0 for a feature that never varies."""
    scale = np.sqrt((x**2).sum(0))[None, :] * np.sqrt((y**2).sum(1))[:, None]
    return np.asarray(np.divide(y @ x, scale, out=np.zeros((len(y), x.shape[1])), where=scale > 1e-12))


def reward_hacking(evidence: Evidence) -> Check:
    """Surface features that go with the reward, in the real groups of the last 10 steps of every run."""
    looks, parts, groups, chats = [], [], 0, 0
    jobs = evidence.jobs
    for run, (_, where) in jobs.items():
        lines = evidence.lines(where / "chats.jsonl")
        end = max((line["step"] for line in lines), default=0)
        found = scan([line for line in lines if line["step"] > end - LAST], run, 0.05 / len(jobs))
        groups, chats = groups + found.groups, chats + found.chats
        looks += [f"{run}: {_named(found.flagged)} goes with the reward"] if found.flagged else []
        parts.append(f"{run} {found.groups} groups{', ' + found.strongest if found.strongest else ''}")
    looked_at = f"{groups} groups of {chats} chats whose rewards differ, last {LAST} steps"
    return settle("reward hacking", looked_at, groups, looks=looks, detail="; ".join(parts))


def _named(flagged: Mapping[str, float]) -> str:
    """The strongest features with their correlations, and how many more there are."""
    first = sorted(flagged, key=lambda name: -abs(flagged[name]))[:SHOWN]
    more = f" and {len(flagged) - SHOWN} more" if len(flagged) > SHOWN else ""
    return ", ".join(f"{name} {flagged[name]:+.2f}" for name in first) + more


def over_optimisation(evidence: Evidence) -> Check:
    """Whether the target fell while the proxy that was paid rose (arXiv 2210.10760)."""
    name, n, looks, parts = "over-optimisation", 0, [], []
    proxies = {run: _proxy(evidence, arm) for run, (arm, _) in evidence.jobs.items()}
    if not any(proxies.values()):
        return Check(name, "settings of every arm", 0, "not applicable", "the proxy is the target")
    for run, proxy in proxies.items():
        if not proxy:
            continue
        steps = [m for m in evidence.lines(evidence.jobs[run][1] / "metrics.jsonl") if "reward_strict" in m]
        n += len(steps)
        looks += [f"{run}: {found}" for found in _over_optimised(steps)]
        parts.append(f"{run} is paid {proxy}")
    return settle(name, f"{n} steps", n, looks=looks, detail="; ".join(parts))


def _proxy(evidence: Evidence, arm: str) -> str:
    """What an arm is paid where it is not the target (the strict grade); "" where it is."""
    if evidence.setting(arm, "grade"):
        return f"by {evidence.setting(arm, 'grade')}"
    reward = evidence.setting(arm, "reward")
    return "" if reward == "strict" else f"the {reward} reward"


def _over_optimised(steps: Sequence[Json]) -> list[str]:
    """The target's best ten steps against the last ten: it fell by 0.1 while the proxy did not."""
    if len(steps) < 2 * LAST:
        return []
    windows = [steps[at : at + LAST] for at in range(len(steps) - LAST + 1)]
    target = [float(np.mean([m["reward_strict"] for m in window])) for window in windows]
    proxy = [float(np.mean([m["reward"] for m in window])) for window in windows]
    best = int(np.argmax(target))
    if target[best] - target[-1] > 0.1 and proxy[-1] >= proxy[best]:
        fell = f"the target fell from {target[best]:.2f} to {target[-1]:.2f}"
        return [f"{fell}, the proxy went from {proxy[best]:.2f} to {proxy[-1]:.2f}"]
    return []


# --- grading ----------------------------------------------------------------------------------------------


def grading(evidence: Evidence) -> Check:
    """Strict against lenient, and answers that could not be read apart from wrong ones."""
    looks, parts, n = [], [], 0
    for name, score in evidence.scores.items():
        strict, lenient, parsed = map(float, map(np.nanmean, (score.strict, score.lenient, score.parsed)))
        n += int(np.isfinite(score.strict).sum())
        wrong = f"wrong {parsed - strict:.2f}, no box {1 - parsed:.2f}"
        parts.append(f"{name} right {strict:.2f}, {wrong}, lenient {lenient:.2f}")
        looks += (
            [f"{name}: lenient exceeds strict by {lenient - strict:.2f}"] if lenient - strict > 0.05 else []
        )
        looks += (
            [f"{name}: {1 - parsed:.2f} hold no box"] if name.startswith("trained") and parsed < 0.8 else []
        )
    looked_at = f"{n:,} answers of {len(evidence.scores)} conditions"
    return settle("strict and lenient", looked_at, n, looks=looks, detail="; ".join(parts))


def solved_once(evidence: Evidence) -> Check:
    """pass@k a task beside the mean: training that only sharpens moves the mean and not pass@k."""
    parts, n = [], 0
    for name, score in evidence.scores.items():
        runs, tasks, k, _ = score.outcomes.shape
        n += runs * tasks
        parts.append(f"{name} {score.rate.brief}, pass@{k} {score.pass_at_k.brief}")
    return settle("pass@k", f"{n:,} tasks of {len(evidence.scores)} conditions", n, detail="; ".join(parts))


# --- is the talk needed -----------------------------------------------------------------------------------

ROOM = 0.2  # by which the whole problem in one hand should beat half a hand


def talk_needed(evidence: Evidence) -> Check:
    """Half a hand alone and the closed channel must fail where the whole problem in one hand succeeds."""
    have = {
        name: evidence.conditions[name]["score"] for name in _needed(evidence) if name in evidence.conditions
    }
    fails = [f"{name} was not played" for name in _needed(evidence) if name not in have]
    looks = _need_doubted({name: float(rate["mean"]) for name, rate in have.items()})
    detail = ", ".join(f"{c} {r['mean']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" for c, r in have.items())
    n = int(have["floor"]["n"]) if "floor" in have else 0
    looked_at = f"{n} tasks, {len(have)} conditions"
    return settle("is the talk needed", looked_at, n, fails=fails, looks=looks, detail=detail)


def _need_doubted(means: Mapping[str, float]) -> list[str]:
    """Why these tasks may need no talk, from the means of the floor, the skyline and whatever is closed."""
    if "floor" not in means:
        return []
    low, high = means["floor"], means.get("skyline")
    found = [f"half a hand alone solves {low:.2f}: such tasks need no talk"] if low > 0.1 else []
    if high is not None and high - low < ROOM:
        found.append(f"the skyline {high:.2f} is hardly above the floor {low:.2f}: no room for talk")
    closed = {name: mean for name, mean in means.items() if name not in ("floor", "skyline")}
    through = "is above the floor: something gets through a closed channel"
    return found + [f"{name} {mean:.2f} {through}" for name, mean in closed.items() if mean - low > 0.1]


def _needed(evidence: Evidence) -> list[str]:
    closed = [arm for arm in evidence.table.get("arms", {}) if evidence.setting(arm, "channel") == "closed"]
    return ["floor", "base_closed", "skyline", *(f"trained_{arm}" for arm in closed)]


# --- collapse ---------------------------------------------------------------------------------------------

WINDOW = 5  # steps at either end


def collapse(evidence: Evidence) -> Check:
    """Alarms over training: boxes, surprise, lengths, flat groups, and the dev score against the base's."""
    fails, looks, n = [], [], 0
    for run, (arm, where) in evidence.jobs.items():
        metrics = evidence.lines(where / "metrics.jsonl")
        steps = [m for m in metrics if "reward" in m]
        n += len(steps)
        if not steps:
            fails.append(f"{run}: no step is in its metrics.jsonl")
            continue
        bad, odd = alarms(steps, [m["dev/score"] for m in metrics if "dev/score" in m], _caps(evidence, arm))
        fails += [f"{run}: {what}" for what in bad]
        looks += [f"{run}: {what}" for what in odd]
    return settle("collapse", f"{n} steps of {len(evidence.jobs)} runs", n, fails=fails, looks=looks)


RATIO_FAIL, RATIO_LOOK = 0.05, 0.01  # |mean ratio - 1| of a step; bfloat16 sampling lies within the second
GAP_FAIL, GAP_LOOK = 0.1, 0.03  # mean |difference of log-probabilities|, in nats


def on_policy(evidence: Evidence) -> Check:
    """The trainer's probabilities of the sampled tokens are the sampler's: the ratio before an update is 1."""
    fails, looks, n = [], [], 0
    worst = (0.0, 0.0)
    for run, (_, where) in evidence.jobs.items():
        for step in (m for m in evidence.lines(where / "metrics.jsonl") if "ratio/mean" in m):
            n += 1
            off, gap = abs(step["ratio/mean"] - 1), step["logprob_gap/mean"]
            worst = (max(worst[0], off), max(worst[1], gap))
            told = f"{run} step {step['step']}: mean ratio {step['ratio/mean']:.4f}, gap {gap:.4f} nats"
            if off > RATIO_FAIL or gap > GAP_FAIL:
                fails.append(told)
            elif off > RATIO_LOOK or gap > GAP_LOOK:
                looks.append(told)
    detail = f"mean ratio within {worst[0]:.6f} of 1, mean gap at most {worst[1]:.6f} nats"
    return settle(
        "on-policy",
        f"{n} steps of {len(evidence.jobs)} runs",
        n,
        fails=fails[:5],
        looks=looks[:5],
        detail=detail,
    )


def _caps(evidence: Evidence, arm: str) -> Json:
    return {
        name: evidence.setting(arm, name) for name in ("message_tokens", "answer_tokens", "channel", "reward")
    }


def alarms(steps: Sequence[Json], dev: Sequence[float], settings: Json) -> tuple[list[str], list[str]]:
    """(collapses, things to look at) of one run's metrics. settings: its caps, channel and reward."""
    was, now = _ends(steps)
    bad: list[str] = []
    odd: list[str] = []
    if was["parsed"] >= 0.2 and now["parsed"] < was["parsed"] / 2:
        lenient = settings.get("reward") == "lenient"  # paid without a box, a model may stop boxing
        (odd if lenient else bad).append(
            f"answers with a box went from {was['parsed']:.2f} to {now['parsed']:.2f}"
        )
    if now["surprise"] > max(1.0, 3 * was["surprise"]):
        bad.append(f"surprise a token rose from {was['surprise']:.2f} to {now['surprise']:.2f} nats")
    if was["surprise"] > 0.01 and now["surprise"] < 0.02 * was["surprise"]:
        fell = f"from {was['surprise']:.3f} to {now['surprise']:.4f} nats"
        odd.append(f"surprise a token fell {fell}: nothing is tried any more")
    for name in ("message_tokens", "answer_tokens"):
        cap, silent = settings.get(name), settings.get("channel") == "closed" and name == "message_tokens"
        if cap and now[name] >= 0.95 * cap:
            bad.append(f"{name} {now[name]:.1f} is at its cap of {cap}")
        if now[name] <= 1.5 < was[name]:
            (odd if silent else bad).append(f"{name} fell from {was[name]:.1f} to {now[name]:.1f}")
    if now["groups/flat"] >= 0.95 and now["reward"] < 0.95:
        flat = f"{now['groups/flat']:.2f} of the last groups are flat"
        odd.append(f"{flat} at reward {now['reward']:.2f}: nothing to learn from")
    if len(dev) > 1 and dev[-1] < dev[0] - 0.1:
        bad.append(f"dev score {dev[-1]:.2f} is under the base's {dev[0]:.2f}")
    return bad, odd


def _ends(steps: Sequence[Json]) -> tuple[dict[str, float], dict[str, float]]:
    names = ("parsed", "surprise", "message_tokens", "answer_tokens", "groups/flat", "reward")
    ends = (steps[:WINDOW], steps[-WINDOW:])
    first, last = ({n: float(np.mean([m[n] for m in end if n in m] or [0.0])) for n in names} for end in ends)
    return first, last


# --- controls ---------------------------------------------------------------------------------------------


def random_reward(evidence: Evidence) -> Check:
    """An arm under a reward that knows nothing must gain nothing (arXiv 2506.10947)."""
    name = "random reward"
    arms = [arm for arm in evidence.table.get("arms", {}) if evidence.setting(arm, "reward") == "random"]
    if not arms:
        return Check(name, "settings of every arm", 0, "not applicable", 'no arm has reward = "random"')
    looks, parts, n, fails = [], [], 0, []
    for arm in arms:
        trained = evidence.conditions.get(f"trained_{arm}", {}).get("score")
        base = evidence.conditions.get(f"base_{evidence.setting(arm, 'channel')}", {}).get("score")
        if not trained or not base:
            fails.append(f"arm {arm} has no score to compare with the base's")
            continue
        n += int(trained["n"])
        gain = trained["mean"] - base["mean"]
        looks += [f"{arm} gains {gain:+.2f} under it: so may any arm"] if gain > 0.05 else []
        parts.append(f"{arm} {trained['mean']:.2f} against the base's {base['mean']:.2f}")
    return settle(
        name, f"{n} seeds of {len(arms)} arms", n, fails=fails, looks=looks, detail="; ".join(parts)
    )


def perturbed_numbers(evidence: Evidence) -> Check:
    """The score on the same held-out tasks with other numbers, beside the score on their own."""
    name = "perturbed numbers"
    found = {c: c.removesuffix("_perturbed") for c in evidence.conditions if c.endswith("_perturbed")}
    asked = bool(evidence.table.get("evaluate", {}).get("perturbed"))
    if not found and not asked:
        detail = "no condition was played with other numbers ([evaluate] perturbed)"
        return Check(name, "conditions", 0, "not applicable", detail)
    looks, parts, n = [], [], 0
    for other, own in found.items():
        if own not in evidence.conditions:
            continue
        new, old = evidence.conditions[other], evidence.conditions[own]
        n += int(new.get("size", {}).get("tasks", new["score"]["n"]))
        drop = old["score"]["mean"] - new["score"]["mean"]
        looks += [f"{own} falls by {drop:.2f} with other numbers"] if drop > 0.1 else []
        parts.append(f"{own} {old['score']['mean']:.2f} -> {new['score']['mean']:.2f}")
    refused = evidence.document.get("perturbed", {}).get("refused", {})
    told = [f"{count} refused: {reason}" for reason, count in refused.items()]
    return settle(name, f"{n} tasks with other numbers", n, looks=looks, detail="; ".join(parts + told))


# --- pins -------------------------------------------------------------------------------------------------

LIBRARIES = ("python", "torch", "transformers", "numpy")


def git_state(where: Path | None = None) -> Json | None:
    """The commit that this package runs from, and whether files differ from it; None outside a checkout."""
    folder = where or Path(__file__).parent

    def git(*words: str) -> str:
        found = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=30, check=True
        )
        return found.stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no", ".")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def pins(evidence: Evidence) -> Check:
    """Seeds, library versions, git state and hardware stand in results.json (of a run: config.toml, done.json)."""
    document = _run_document(evidence) if evidence.single else evidence.document
    versions, cost = document.get("versions", {}), document.get("cost", {})
    seeds = document.get("config", {}).get("seeds")
    pinned = {"seeds": bool(seeds)} | {name: bool(versions.get(name)) for name in LIBRARIES}
    hardware = versions.get("platform") if evidence.single else cost.get("device_name")
    pinned["hardware"] = bool(hardware)
    fails = [f"{name} is not recorded" for name, there in pinned.items() if not there]
    looks = [] if evidence.single or "git" in document else ["the git state is not recorded"]
    looks += ["files differed from the commit"] if (document.get("git") or {}).get("dirty") else []
    n = sum(pinned.values())
    detail = f"seeds {seeds}, torch {versions.get('torch')}, {hardware}"
    return settle("pins", f"{n} of {len(pinned)} pins", n, fails=fails, looks=looks, detail=detail)


def inputs(evidence: Evidence) -> Check:
    """The files that the config names (tasks, graders, methods, partners, base) hold what they held then."""
    name, then = "inputs", evidence.given
    if not then:
        return Check(
            name, "files", 0, "not applicable", "there is no given.json that says what was in its files"
        )
    arms = [Config().replaced(evidence.arm_table(arm)) for arm in evidence.table.get("arms", {})]
    now, gone = given_now(arms, evidence.table.get("evaluate", {}))
    looks = [f"{what} has other contents now" for what in changed(then, now)]
    looks += [f"{what} is not here any more" for what in gone if what in then]
    seen = sorted(set(then) & set(now))
    unseen = sorted(set(then) - set(now) - set(gone))
    told = [f"not looked at here: {', '.join(unseen)}"] if unseen else []
    if not seen and not looks:
        return Check(name, "files", 0, "not applicable", "; ".join(told))
    return settle(
        name, f"{len(seen)} of {len(then)}", len(seen) or len(looks), looks=looks, detail="; ".join(told)
    )


def _run_document(evidence: Evidence) -> Json:
    done = evidence.path / "done.json"
    versions = json.loads(done.read_text(encoding="utf-8")).get("versions", {}) if done.is_file() else {}
    return {"versions": versions, "config": {"seeds": [s for s in evidence.table["seeds"] if s is not None]}}


def measures(evidence: Evidence) -> Check:
    """Every number was measured by this version's code (grades, talk, intervals)."""
    then = evidence.document.get("measures") or {}
    n = sum(len(condition.get("talk", {})) for condition in evidence.conditions.values())
    told = ", ".join(f"{name} {version}" for name, version in then.items())
    return settle(
        "measures",
        f"{n} rates of talk",
        n,
        fails=results.stale(evidence.document),
        detail=f"versions: {told}",
    )


def schema(evidence: Evidence) -> Check:
    """results.json is well formed."""
    faults = results.check(evidence.document) if evidence.document else ["there is no results.json"]
    n = len(evidence.conditions)
    return settle("schema", f"{n} conditions", n, fails=faults[:5])


def intervals(evidence: Evidence) -> Check:
    """Every number that outcomes/*.npz and the seeds' means give comes out as it stands in results.json."""
    name, document = "intervals", evidence.document
    if not document or results.misshapen(document) or results.stale(document):
        why = "this code cannot compute its values again: see schema and measures"
        return settle(name, "0 intervals", 0, fails=[why] if document else [])
    try:
        found = recompute(document, evidence.outcomes)
    except (BadInput, KeyError) as error:  # of other tasks, or of a condition that is not there
        return settle(name, "0 intervals", 0, fails=[f"outcomes and comparisons do not fit: {error}"])
    tests = f"{found.comparisons} of {len(document['comparisons'])} comparisons"
    looked_at = f"{found.intervals} of {found.of} intervals, {tests}"
    left = [place for place in found.left if not place.startswith(("causal", "cross_play"))]
    more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    without = f"outcomes/*.npz do not give {', '.join(left[:SHOWN])}{more}" if left else ""
    if evidence.only_results and not found.intervals:
        return Check(name, looked_at, 0, "not applicable", without)
    fails, unsaid = list(found.faults[:SHOWN]), len(found.faults) - SHOWN
    looks = [without] if left else []
    looks += [f"{pair}: its sentence is not what its numbers say" for pair in found.wording]
    detail = f"{found.numbers - len(found.faults):,} of {found.numbers:,} numbers come out as they stand"
    return settle(
        name,
        looked_at,
        found.intervals,
        fails=[*fails, f"and {unsaid} more"] if unsaid > 0 else fails,
        looks=looks,
        detail=detail,
    )


def finished(evidence: Evidence) -> Check:
    """Every run that the study names came to its end."""
    ended = [run for run, (_, where) in evidence.jobs.items() if (where / "done.json").is_file()]
    fails = [f"{run} has not ended" for run in evidence.jobs if run not in ended]
    failed = evidence.document.get("failed", {})
    fails += [f"{run} failed: {str(reason).splitlines()[0]}" for run, reason in failed.items()]
    dropped = evidence.document.get("dropped", {})
    if evidence.single:
        lines = evidence.lines(evidence.path / "metrics.jsonl")
        dropped = {"run": n} if (n := sum(bool(line.get("dropped")) for line in lines)) else {}
    looks = [f"{run}: {count} steps were dropped, not finite" for run, count in dropped.items()]
    return settle("runs", f"{len(ended)} of {len(evidence.jobs)} runs", len(ended), fails=fails, looks=looks)


# --- all of them ------------------------------------------------------------------------------------------

OF_RESULTS = (schema, pins, measures, intervals)
OF_A_RUN = (
    finished,
    contamination,
    lengths,
    reward_hacking,
    over_optimisation,
    collapse,
    on_policy,
    pins,
    inputs,
)
OF_A_STUDY = (
    schema, finished, pins, measures, intervals, contamination, noise_floor, talk_needed, lengths, grading, solved_once,
    reward_hacking, over_optimisation, collapse, on_policy, random_reward, perturbed_numbers, inputs,
)  # fmt: skip


def check(path: Path) -> list[Check]:
    """All checks that apply to a study's directory, a run's directory, or a results.json by itself."""
    evidence = Evidence(path)
    which = OF_RESULTS if evidence.only_results else OF_A_RUN if evidence.single else OF_A_STUDY
    return [each(evidence) for each in which]


def counts(checks: Iterable[Check]) -> dict[str, int]:
    """{"pass": 9, "look": 2, ...}, in the order of RESULTS."""
    found = Counter(each.result for each in checks)
    return {result: found[result] for result in RESULTS if found[result]}


COLOURS = {"pass": "green", "look": "yellow", "fail": "red", "not applicable": "dim"}


SHOWN_DETAIL = 160  # characters of a detail in the terminal


def table(checks: Sequence[Check], title: str) -> Table:
    """check, looked at, result, detail; for rich to print."""
    told = ", ".join(f"{count} {result}" for result, count in counts(checks).items())
    grid = Table(title=f"{title}: {told}", title_justify="left")
    for heading, width in (("check", 12), ("looked at", 14), ("result", 6), ("detail", 30)):
        grid.add_column(heading, overflow="fold", min_width=width)
    grid.caption = "details are shortened here; --json has them whole"
    for each in checks:
        row = (
            each.name,
            each.looked_at,
            each.result,
            textwrap.shorten(each.detail, SHOWN_DETAIL, placeholder=" ..."),
        )
        grid.add_row(
            *(Text(cell, style=COLOURS[each.result] if at == 2 else "") for at, cell in enumerate(row))
        )
    return grid
