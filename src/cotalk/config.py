"""One frozen Config: everything that decides what a run does. The text under a field is its help on the command line.

A TOML table or command-line overrides come in; the resolved copy that a run writes can be run again. Unknown keys
are refused with the nearest name. What a study adds (arms, seeds, evaluations, comparisons) is in study.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cotalk.chat import Rules
from cotalk.errors import BadInput, brief

SYMMETRIES = ("roles", "dealing", "names", "phrasing")


@dataclass(frozen=True)
class Range:
    """From `least` to `most`, both included but for those that `without` names ("least", "most")."""

    least: float
    most: float
    without: str = ""

    def holds(self, value: float) -> bool:
        inside = self.least <= value <= self.most  # False for NaN
        return (
            inside
            and not ("least" in self.without and value == self.least)
            and not ("most" in self.without and value == self.most)
        )

    def __str__(self) -> str:
        low = f"above {self.least:g}" if "least" in self.without else f"at least {self.least:g}"
        return f"{low} and {'below' if 'most' in self.without else 'at most'} {self.most:g}"


COUNT, SOME = Range(0, 10**9), Range(1, 10**9)
SHARE, BELOW_1 = Range(0, 1), Range(0, 1, without="most")
RANGES: dict[str, Range] = {  # of every number of a Config: one that has no range here is refused whatever it is
    "train_tasks": SOME, "dev_tasks": COUNT, "heldout_tasks": SOME,
    "message_tokens": Range(1, 10**6), "answer_tokens": Range(1, 10**6), "temperature": Range(0, 100),
    "snapshot_every": SOME, "problems": Range(1, 10**6), "chats": Range(1, 10**6), "round_chats": Range(1, 10**6),
    "most_chats": Range(1, 10**6), "replay_share": SHARE, "steps": COUNT, "samples": Range(0, 10**12),
    "seed": Range(-(2**63), 2**63 - 1), "rank": Range(1, 10**5), "alpha": Range(0, 10**6, without="least"),
    "lr": Range(0, 100, without="least"), "warmup": COUNT, "beta1": BELOW_1, "beta2": BELOW_1, "clip": COUNT,
    "normaliser": Range(0, 10**12, without="least"), "batch_tokens": SOME, "dev_every": SOME,
    "checkpoint_every": SOME, "drop_limit": SOME,
}  # fmt: skip
OF_METHODS = {  # settings that only these methods read; a method of the user's own may read all of them
    "round_chats": ("ada",),
    "most_chats": ("ada",),
    "replay_share": ("leave_one_out",),
    "replay_by": ("leave_one_out",),
    "pool": ("grpo", "raft", "raft_published", "ada", "ada_published", "mixed", "leave_one_out", "host"),
    "paid": ("grpo", "ada", "ada_published", "mixed", "mixed_published"),
    "scale_rewards": ("grpo", "ada", "ada_published", "mixed", "mixed_published", "leave_one_out", "host"),
}
OF_GROUPS = ("grpo", "mixed", "mixed_published", "leave_one_out", "host")  # a chat alone in its group earns 0
OF_TRAINING = (  # settings that no evaluation reads
    "method", "paid", "scale_rewards", "pool", "snapshot_every", "symmetries", "problems", "chats", "round_chats",
    "most_chats", "replay_share", "replay_by", "steps", "samples", "lr", "warmup", "decay", "beta1", "beta2", "clip",
    "normaliser", "batch_tokens", "drop_limit", "dev_every", "checkpoint_every", "keep_tokens",
)  # fmt: skip
RESOLVED = "# the resolved config of this run\n"  # how the config.toml of a run begins
STUDY_WIDE = ("base", "dtype", "device", "engine", "wording")  # one value for all runs of a study


@dataclass(frozen=True)
class Config:
    base: str = "tiny"
    """The frozen model: "tiny" (ships with the package), a hub name, a directory, or a .gguf file."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the base's weights; auto: float32 on a CPU, bfloat16 on a GPU. Adapters are always float32."""
    device: str = "auto"
    """Where the model runs: "cpu", "cuda", or auto (a GPU if there is one)."""
    engine: Literal["auto", "fast", "hf"] = "auto"
    """What turns views into replies, and trains: "fast" (Llama family, by hand), "hf" (transformers' own modules,
    everywhere), or auto: fast on a GPU where the base allows it, else hf."""

    tasks: str = "puzzles"
    """Where tasks come from: "puzzles", "gsm8k", "gsm_symbolic", a directory, a .jsonl file, or file.py:function."""
    heldout: str = ""
    """Another source for the held-out tasks (for sources without a split of their own)."""
    rule: Literal["clean", "published"] = "clean"
    """How a problem's text is cut into facts (docs/tasks.md)."""
    train_tasks: int = 1024
    """Tasks to train on."""
    dev_tasks: int = 16
    """Fixed tasks played greedily at step 0 and every `dev_every` steps: curves and alarms, never a result."""
    heldout_tasks: int = 300
    """Tasks looked at once, at the last step. Every result is on these."""

    order: str = "ABAB"
    """Turn order, number of seats and length in one; each seat's last turn is its answer."""
    view: Literal["dialogue", "transcript"] = "dialogue"
    """How a seat sees the chat: the template's own multi-turn chat, or told in one user turn (published)."""
    channel: Literal["open", "closed"] = "open"
    """What is heard of what was said; closed delivers nothing (the control)."""
    wording: Literal["auto", "full", "short"] = "auto"
    """The words around the facts; auto: the base's own (cotalk_base.json), else full."""
    message_tokens: int = 160
    """Budget of a message before its seat's last turn."""
    answer_tokens: int = 384
    """Budget of a seat's last turn."""
    temperature: float = 0.9
    """Of sampling, in training and evaluation alike; log-probabilities are of the same distribution."""

    reward: Literal["strict", "lenient", "random"] = "strict"
    """What is paid: the last box only, or the whole text where there is no box (published); random: a control."""
    grade: str = ""
    """A grader of your own, file.py:function; empty: the built-in one."""
    method: str = "grpo"
    """How to learn from groups of chats: a name from docs/methods.md, or file.py:Class."""
    paid: Literal["team", "own", "later"] = "team"
    """What a message is paid: the team's reward, its own seat's, or those answers that come at or after it."""
    scale_rewards: bool = False
    """Divide credit by the deviation of the group's rewards (GRPO as first published; Dr. GRPO does not)."""
    pool: str = ""
    """Who else may sit with the learner, such as "self*2, base, script:terse" (docs/partners.md); empty: itself."""
    snapshot_every: int = 20
    """Steps between the frozen copies of the learner that a pool with `snapshots` holds."""
    symmetries: str = ""
    """What is drawn anew for each chat, comma-separated: roles, dealing, names, phrasing (docs/partners.md)."""
    problems: int = 8
    """Tasks a step."""
    chats: int = 4
    """Chats of each task in a step (the group)."""
    round_chats: int = 8
    """Of method ada: chats of a round."""
    most_chats: int = 32
    """Of method ada: chats of a task at most."""
    replay_share: float = 0.5
    """Of method leave_one_out: the share of chats that are played again without each of their messages."""
    replay_by: Literal["nothing", "another"] = "nothing"
    """Of method leave_one_out: what is heard instead: no message, or what another chat of the task had there."""
    steps: int = 80
    """Updates."""
    samples: int = 0
    """Chats to play at most: the run ends with the step that reaches them, its schedule with it; 0: no limit."""
    seed: int = 17
    """Of this run: initial adapter, order of tasks, all sampling."""

    adapters: Literal["shared", "per_seat"] = "shared"
    """One adapter for all seats (published), or one a seat."""
    rank: int = 32
    """Of LoRA."""
    alpha: float = 64.0
    """LoRA's product is scaled by alpha / rank."""
    targets: str = "all-linear"
    """Linear layers with LoRA, comma-separated last names such as "q_proj,v_proj"; all-linear: all but the head."""
    lr: float = 1e-4
    """Peak learning rate of AdamW."""
    warmup: int = 0
    """Steps of linear warm-up."""
    decay: Literal["linear", "constant"] = "linear"
    """Of the learning rate after warm-up; linear ends at 0 after the last step."""
    beta1: float = 0.9
    """Of AdamW."""
    beta2: float = 0.999
    """Of AdamW."""
    clip: float = 1.0
    """Norm to which an adapter's gradient is clipped; 0: not at all."""
    normaliser: float | Literal["credited", "sampled"] = "credited"
    """What a step's loss is divided by: tokens with credit, all sampled tokens (published), or a number."""
    batch_tokens: int = 16384
    """Padded tokens in one micro-batch; changes memory and speed, never the gradient."""

    drop_limit: int = 3
    """So many steps in a row, dropped because a loss, gradient or log-probability was not finite, fail the run."""

    dev_every: int = 10
    """Steps between looks at the dev tasks."""
    checkpoint_every: int = 10
    """Steps between checkpoints."""
    keep_tokens: Literal["last", "all"] = "last"
    """Token ids and log-probabilities on disk: of the last 10 steps, or of all."""

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(Config).items():
            self._check_type(name, kind)
        check_ranges(self, RANGES)
        if not all(self.target_layers):
            raise BadInput(
                f'targets = {brief(self.targets)}: expected "all-linear", or names such as "q_proj,v_proj"',
                "config/targets",
            )
        wrong = [name for name in self.drawn if name not in SYMMETRIES]
        if wrong:
            told = ", ".join(SYMMETRIES)
            raise BadInput(
                f"symmetries = {brief(self.symmetries)}: {brief(wrong[0])} is none; expected some of {told}",
                "config/choice",
            )
        # an order that cannot be played is refused by Rules
        rules = self.rules
        if self.steps and len(rules.seats) < 2:
            raise BadInput(
                f"order = {brief(self.order)} seats one player alone: expected at least two seats in training, "
                'such as "ABAB" (a seat alone is the skyline and the floor of an evaluation)',
                "order/alone",
            )
        if self.steps and self.chats == 1 and self.method in OF_GROUPS:
            raise BadInput(
                f"chats = 1 with method = {brief(self.method)}: it pays a chat by what the others of its task got, so "
                "that one alone teaches nothing; expected at least 2",
                "config/range",
            )
        if self.problems > self.train_tasks:
            raise BadInput(
                f"problems = {self.problems} a step, but train_tasks = {self.train_tasks}: expected no more",
                "config/range",
            )

    def _check_type(self, name: str, kind: Any) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        choices = [c for part in (kind, *typing.get_args(kind)) for c in typing.get_args(part)]
        choices = [c for c in choices if isinstance(c, str)]
        if choices and value not in choices and not (number and float in typing.get_args(kind)):
            raise BadInput(
                f"{name} = {brief(value)}: expected one of {', '.join(choices)}{nearest(brief(value), choices)}",
                "config/choice",
            )
        if not choices and not (number if kind is float else type(value) is kind):
            raise BadInput(
                f"{name} = {brief(value)} ({type(value).__name__}): expected {kind.__name__}", "config/type"
            )
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise BadInput(
                f"{name} = {brief(value)}: expected text that can be written as UTF-8", "config/type"
            )

    @property
    def rules(self) -> Rules:
        return Rules(
            self.order, self.view, self.channel, self.message_tokens, self.answer_tokens, self.temperature
        )

    @property
    def graded(self) -> Literal["strict", "lenient"]:
        """How answers are scored: by the reward's own reading, strictly where the reward knows nothing of them."""
        return "strict" if self.reward == "random" else self.reward

    @property
    def drawn(self) -> tuple[str, ...]:
        """The symmetries that are drawn for each chat."""
        return tuple(name.strip() for name in self.symmetries.split(",")) if self.symmetries.strip() else ()

    @property
    def target_layers(self) -> str | list[str]:
        return self.targets if self.targets == "all-linear" else [t.strip() for t in self.targets.split(",")]

    def progress(self, step: int, played: int) -> int:
        """How far update `step` is, in steps, after so many chats: by chats where they are bounded."""
        if not self.samples:
            return step
        return max(step, min(self.steps, 1 + self.steps * played // self.samples))

    def learning_rate(self, step: int) -> float:
        """Of update `step` (from 1): linear warm-up, then constant or linear to 0 just after the last step."""
        if step <= self.warmup:
            return self.lr * step / self.warmup
        if self.decay == "constant":
            return self.lr
        return self.lr * (self.steps - step + 1) / max(1, self.steps - self.warmup)

    @property
    def unused(self) -> dict[str, str]:
        """Settings that were changed and that nothing will read, each with what would."""
        changed = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        if ".py" in self.method:
            return {}
        found = {
            name: f"method {' or '.join(OF_METHODS[name])}"
            for name in changed
            if self.method not in OF_METHODS.get(name, (self.method,))
        }
        if "snapshot_every" in changed and "snapshots" not in self.pool:
            found["snapshot_every"] = 'snapshots in the pool, such as pool = "self, snapshots"'
        return found

    def refuse_unused(self, names: Iterable[str], where: str = "") -> None:
        """Refuses those of these settings that nothing reads: whoever set one expected something of it."""
        for name in names:
            if name in self.unused:
                raise BadInput(
                    f"{where}{name} = {brief(getattr(self, name))} changes nothing with method = {brief(self.method)}: "
                    f"expected {self.unused[name]} with it; otherwise leave it out",
                    "config/unused",
                )

    def replaced(self, overrides: Mapping[str, Any], where: str = "") -> Config:
        """A copy with some fields changed; refuses names that are no field, offering the nearest."""
        names = [f.name for f in dataclasses.fields(self)]
        for name in overrides:
            if name not in names:
                raise BadInput(
                    f"{where}unknown key {brief(name)}{nearest(name, names)}; expected one of: {', '.join(names)}",
                    "config/unknown-key",
                )
        try:
            return dataclasses.replace(self, **overrides)
        except BadInput as error:
            raise BadInput(f"{where}{error}", error.code) from error

    def as_dict(self) -> dict[str, Any]:
        """Every field and its value, as TOML has them."""
        return dataclasses.asdict(self)

    def save(self, path: Path) -> None:
        """Writes the resolved copy, whole or not at all: a killed run can be started again from it."""
        aside = path.with_name(f".{path.name}.{os.getpid()}.part")
        aside.write_text(RESOLVED + toml_table(self.as_dict()), encoding="utf-8")
        os.replace(aside, path)


def toml_table(table: Mapping[str, Any]) -> str:
    """Flat keys and values as TOML.

    Strings are written as JSON strings, which are TOML's basic strings but for two things: TOML knows no surrogate
    pairs (so letters beyond ASCII stand as they are), and wants DEL escaped.
    """
    lines = (f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in table.items())
    return "".join(lines).replace("\x7f", "\\u007f")


def nearest(name: str, names: Sequence[str]) -> str:
    """A hint at the known name that a misspelt one is closest to ("" where none is close)."""
    close = difflib.get_close_matches(name[:100].lower().replace("-", "_").strip("'"), names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_ranges(found: Any, ranges: Mapping[str, Range], where: str = "") -> None:
    """Refuses a dataclass with a number outside its range, or with one that no range is known of."""
    for f in dataclasses.fields(found):
        value = getattr(found, f.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if f.name not in ranges or not ranges[f.name].holds(value):
            expected = ranges.get(f.name, "that its range stands in the table of ranges")
            name = f.name.replace("_", "-") if where == "--" else f.name
            raise BadInput(f"{where}{name} = {brief(value)}: expected {expected}", "config/range")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's table. Raises BadInput for what cannot be read, is no UTF-8, or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read ({error.strerror}); expected a TOML file", "config/not-toml"
        ) from error
    except (ValueError, RecursionError) as error:  # also no UTF-8, 5,000 digits, brackets without end
        raise BadInput(
            f"{path}: not TOML ({error}); expected KEY = VALUE lines", "config/not-toml"
        ) from error
