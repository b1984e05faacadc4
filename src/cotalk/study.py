"""A study: arms x seeds -> runs -> scores -> comparisons -> results.json. One TOML file says all of it.

    seeds = [17, 18, 19]
    [run]                       a Config
    [on.tiny]                   overrides of it where the base is that one (--base tiny)
    [arms.open]                 overrides of it, by arm
    [arms.closed]
    channel = "closed"
    [evaluate]                  chats a task, repeats, a greedy pass, partner conditions
    [[compare]]
    a = "trained_open"
    b = "trained_closed"

Each (arm, seed) is a *job*, and so is the base's evaluation.

Left out: how jobs are run and their files read back (jobs.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cotalk.base import budgets
from cotalk.causal import Knockout, knockouts
from cotalk.config import (
    BELOW_1,
    COUNT,
    SOME,
    STUDY_WIDE,
    Config,
    Range,
    check_ranges,
    nearest,
    read_toml,
    toml_table,
)  # fmt: skip
from cotalk.crossplay import sitters
from cotalk.errors import BadInput, brief
from cotalk.evaluate import Condition, Pass, arm_conditions, base_conditions
from cotalk.methods import method, pool_of
from cotalk.scripts import script

STUDIES = Path(__file__).parent / "studies"
RANGES: dict[str, Range] = {  # of every number of [evaluate]
    "chats": SOME, "repeats": SOME, "trained_repeats": SOME, "unseen": COUNT, "cross": COUNT, "cross_chats": SOME,
    "margin": BELOW_1,
}  # fmt: skip
SEEDS = Range(0, 2**63 - 1)
MAX_ARM = 64  # characters of an arm's name
TASKS = ("tasks", "heldout", "rule", "train_tasks", "dev_tasks", "heldout_tasks")  # dealt once for all arms


@dataclass(frozen=True)
class Evaluate:
    """The [evaluate] table."""

    chats: int = 2
    """Chats a task in a sampled pass."""
    repeats: int = 3
    """Sampled evaluations of the untrained pair with the channel open: their spread is its noise floor."""
    trained_repeats: int = 3
    """Sampled evaluations of each run in its own channel: their spread is its noise floor. The first is the score."""
    greedy: bool = True
    """Also one greedy chat a task, for the base and for each run in its own channel."""
    partners: bool = True
    """Also every run with the untrained base on either side."""
    perturbed: bool = False
    """Also the untrained pair and each run on held-out tasks with other numbers (where the gold can be made again)."""
    unseen: int = 0
    """Also the untrained pair, the skyline and each run on so many tasks of templates that no other task has."""
    causal: tuple[str, ...] = ()
    """What replaces messages in the trained teams at test time: "nothing", "another", "base" (docs/talk.md)."""
    cross: int = 0
    """Held-out tasks of the cross-play matrix: every run's A with every run's B, and strangers; 0: no matrix."""
    cross_chats: int = 1
    """Chats a task in a cell of the matrix."""
    guests: tuple[str, ...] = ()
    """Strangers of the matrix beside the base: "script:terse", "model:DIR" (docs/partners.md)."""
    oracle: bool = False
    """Also the oracle ceiling of each untrained stranger of the matrix: how well a scripted A can meet it."""
    margin: float = 0.0
    """A difference this small is none: allows the verdict `no different`; 0: no margin was named."""

    def __post_init__(self) -> None:
        for name in ("causal", "guests"):
            found = getattr(self, name)
            object.__setattr__(self, name, tuple(found) if isinstance(found, list) else found)
            if isinstance(found, (list, tuple)) and (odd := [x for x in found if not isinstance(x, str)]):
                raise BadInput(
                    f"[evaluate] {name} holds {brief(odd[0])}: expected a list of words", "config/type"
                )
        words = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of words"}
        for f in fields(self):
            found, kind = getattr(self, f.name), type(f.default)
            if type(found) is not kind and not (kind is float and type(found) is int):
                raise BadInput(f"[evaluate] {f.name} = {brief(found)}: expected {words[kind]}", "config/type")
        for what in self.causal:
            Knockout((0,), what)
        for guest in sitters({}, self.guests):
            if guest.kind == "script":
                script(guest.name.partition(":")[2])
        check_ranges(self, RANGES, "[evaluate] ")


@dataclass(frozen=True)
class Job:
    """One arm with one seed, ("", None): the base, or a row of the cross-play matrix, which is played last."""

    arm: str = ""
    seed: int | None = None
    row: str = ""

    @property
    def name(self) -> str:
        return f"cross {self.row}" if self.row else f"{self.arm}-{self.seed}" if self.arm else "base"


@dataclass(frozen=True)
class Study:
    name: str
    config: Config
    arms: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]
    evaluate: Evaluate = field(default_factory=Evaluate)
    compare: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.arms or not self.seeds:
            raise BadInput(
                f"study {self.name}: {len(self.arms)} arms, {len(self.seeds)} seeds; expected at least one each",
                "study/empty",
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise BadInput(
                f"seeds = {brief(list(self.seeds))}: a seed stands twice; expected each once (a copy is no evidence)",
                "study/seeds",
            )
        if not all(map(SEEDS.holds, self.seeds)):
            raise BadInput(
                f"seeds = {brief(list(self.seeds))}: expected whole numbers from 0 on", "study/seeds"
            )
        for name in self.arms:
            self._check_arm(name)
        everywhere = set.intersection(*(set(self.arm(name).unused) for name in self.arms))
        self.config.refuse_unused(sorted(everywhere & set(self.config.unused)), "[run] ")
        self._check_matrix()
        known = {c.name: c for c in self.conditions()}
        if len(known) < len(self.conditions()):
            raise BadInput(
                f"arms {', '.join(self.arms)}: two of their conditions have one name; rename an arm",
                "study/names",
            )
        for a, b in self.compare:
            for name in (a, b):
                if name not in known:
                    close = nearest(name, list(known))
                    raise BadInput(
                        f"[[compare]] names {brief(name)}{close}; expected one of {', '.join(known)}",
                        "study/compare",
                    )
            if known[a].tasks != known[b].tasks:
                raise BadInput(
                    f"[[compare]] a = {a!r}, b = {b!r}: expected both on the same tasks", "study/compare"
                )
            if known[b].arm and not known[a].arm:
                raise BadInput(
                    f"[[compare]] a = {a!r}, b = {b!r}: expected the trained one as a, the base's as b",
                    "study/compare",
                )

    def _check_matrix(self) -> None:
        asked = [name for name in ("oracle", "guests") if getattr(self.evaluate, name)]
        if asked and not self.evaluate.cross:
            raise BadInput(
                f"[evaluate] sets {' and '.join(asked)}, but cross = 0: expected tasks of a cross-play matrix, such "
                "as cross = 50",
                "config/unused",
            )
        shapes = {(c.rank, c.alpha, c.targets) for c in (self.arm(job.arm) for job in self.crossed)}
        if self.evaluate.cross and len(shapes) > 1:
            raise BadInput(
                "cross-play puts all runs' adapters in one stack, and the arms differ in rank, alpha or targets: "
                "expected one of each. Set cross = 0 in [evaluate]",
                "study/one-stack",
            )
        if self.evaluate.oracle and not self.config.dev_tasks:
            raise BadInput(
                "[evaluate] oracle = true, but dev_tasks = 0: expected dev tasks to choose the scripted A on",
                "config/range",
            )

    def _check_arm(self, name: str) -> None:
        if not name.isidentifier() or not name.isascii() or len(name) > MAX_ARM:
            raise BadInput(
                f"arm {name[:99]!r}: expected at most {MAX_ARM} letters, digits and underscores (it becomes a "
                "file's name)",
                "study/names",
            )
        for key in self.arms[name]:
            if key in (*STUDY_WIDE, *TASKS):
                raise BadInput(
                    f"[arms.{name}] sets {key}, which belongs to the whole study; expected it in [run]",
                    "study/not-in-arm",
                )
            if key == "seed":
                raise BadInput(
                    f"[arms.{name}] sets seed; expected seeds = [...] at the top of the file",
                    "study/not-in-arm",
                )
        self.arm(name).refuse_unused(self.arms[name], f"[arms.{name}] ")
        if (
            ".py" not in self.arm(name).method
        ):  # a file of the user's is run by a run, not by whoever reads a study
            pool_of(method(self.arm(name)), self.arm(name))
        seats = self.arm(name).rules.seats
        if seats != self.config.rules.seats:
            raise BadInput(
                f"[arms.{name}] seats {seats}, [run] {self.config.rules.seats}: expected the same seats in every arm "
                "(tasks are dealt once for all of them)",
                "order/seats",
            )

    def arm(self, name: str) -> Config:
        return self.config.replaced(self.arms[name], where=f"[arms.{name}] ")

    def job_config(self, job: Job) -> Config:
        return self.config if job.seed is None else self.arm(job.arm).replaced({"seed": job.seed})

    def jobs(self) -> list[Job]:
        return [*(Job(arm, seed) for seed in self.seeds for arm in self.arms), Job()]

    @property
    def crossed(self) -> list[Job]:
        """The runs that a cross-play matrix seats: it is one game, so those with the rules of [run] (no closed arm)."""
        return [j for j in self.jobs() if j.arm and self.arm(j.arm).rules == self.config.rules]

    def conditions(self) -> list[Condition]:
        own = [c for arm in self.arms for c in arm_conditions(arm, self.arm(arm), self.evaluate.partners)]
        plain = base_conditions() + own
        again = [c for c in plain if c.name in ("base_open", "base_closed", f"trained_{c.arm}")]
        found = list(plain)
        if self.evaluate.perturbed:
            found += [
                replace(c, name=f"{c.name}_perturbed", label=f"{c.label}, other numbers", tasks="perturbed")
                for c in again
            ]
        if self.evaluate.unseen:
            found += [
                replace(c, name=f"{c.name}_unseen", label=f"{c.label}, unseen templates", tasks="unseen")
                for c in [c for c in plain if c in again or c.name == "skyline"]
            ]
        return found

    def own_condition(self, arm: str) -> Condition:
        """An arm's runs in their own channel."""
        return arm_conditions(arm, self.arm(arm), partners=False)[0]

    def knockouts(self, job: Job) -> list[Knockout]:
        """The messages that are replaced at test time in a job's team (none where nothing is heard)."""
        if not (job.arm and self.evaluate.causal) or self.arm(job.arm).channel == "closed":
            return []
        return knockouts(self.arm(job.arm).order, self.evaluate.causal)

    def work(self, job: Job) -> list[tuple[Condition, Pass]]:
        """The passes that a job plays, in order."""
        once, greedy = Pass(chats=self.evaluate.chats), Pass(chats=1, greedy=True)
        mine = [c for c in self.conditions() if c.arm == job.arm]
        work = [(c, once) for c in mine]
        work += [(c, replace(once, repeat=i)) for c in mine for i in range(1, self.repeats(c))]
        if self.evaluate.greedy:
            work += [(c, greedy) for c in mine if self.has_greedy(c)]
        return work

    def repeats(self, condition: Condition) -> int:
        """How often a condition is played sampled: more than once where its noise floor is measured."""
        if condition.name == "base_open":
            return self.evaluate.repeats
        return self.evaluate.trained_repeats if condition.name == f"trained_{condition.arm}" else 1

    @staticmethod
    def has_greedy(condition: Condition) -> bool:
        return condition.name in ("base_open", "base_closed", f"trained_{condition.arm}")

    def as_toml(self) -> str:
        run = {key: value for key, value in self.config.as_dict().items() if key != "seed"}
        parts = [f"seeds = {list(self.seeds)}\n", "[run]\n" + toml_table(run)]
        parts += [f"[arms.{name}]\n" + toml_table(table) for name, table in self.arms.items()]
        parts += ["[evaluate]\n" + toml_table(asdict(self.evaluate))]
        parts += [f"[[compare]]\n{toml_table({'a': a, 'b': b})}" for a, b in self.compare]
        return "\n".join(parts)


def stackable(study: Study, jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """The jobs that can share a stack: of one rank, scale and target layers."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        c = study.job_config(job)
        groups.setdefault((c.rank, c.alpha, c.targets), []).append(job)
    yield from groups.values()


def read_study(
    name: str, overrides: Mapping[str, Any] | None = None, seeds: Sequence[int] | None = None
) -> Study:
    """A study by name (studies/NAME.toml of the package) or by file, with overrides of its [run] table."""
    path = Path(name) if name.endswith(".toml") else STUDIES / f"{name}.toml"
    if not path.is_file():
        known = sorted(p.stem for p in STUDIES.glob("*.toml"))
        raise BadInput(
            f"study {brief(name)}: there is no {path}{nearest(name, known)}; expected one of {', '.join(known)}, or a "
            ".toml file",
            "study/missing",
        )
    if not re.fullmatch(r"[^\W_][\w.-]{0,99}", path.stem):
        raise BadInput(
            f"study {brief(path.name)}: expected a file's name of at most 100 letters, digits, '.', '-' and '_', the "
            "first a letter or digit (it names the directory of its results)",
            "study/names",
        )
    return study_from(path.stem, read_toml(path), overrides, seeds, str(path))


def study_from(
    name: str,
    table: Mapping[str, Any],
    overrides: Mapping[str, Any] | None,
    seeds: Sequence[int] | None,
    where: str,
) -> Study:
    _known(table, ("seeds", "run", "on", "arms", "evaluate", "compare"), where)
    run, evaluation, pairs = table.get("run", {}), table.get("evaluate", {}), table.get("compare", [])
    arms, on = table.get("arms", {}), table.get("on", {})
    for part, found in {"[run]": run, "[on]": on, "[evaluate]": evaluation, "[arms]": arms}.items():
        _is_table(found, f"{where} {part}")
    _known(evaluation, [f.name for f in fields(Evaluate)], f"{where} [evaluate]")
    if not isinstance(pairs, list):
        raise BadInput(
            f'{where} compare = {brief(pairs)}: expected [[compare]] with a = "..." and b = "..."',
            "study/compare",
        )
    for pair in pairs:
        _is_table(pair, f"{where} [[compare]]")
        _known(pair, ("a", "b"), f"{where} [[compare]]")
        if set(pair) != {"a", "b"} or not all(isinstance(name, str) for name in pair.values()):
            raise BadInput(
                f"{where} [[compare]] is {dict(pair)}; expected a and b, names of conditions", "study/compare"
            )
    for arm, keys in arms.items():
        _is_table(keys, f"{where} [arms.{arm}]")
    for model, keys in on.items():
        _is_table(keys, f"{where} [on.{model}]")
        _known(keys, [f.name for f in fields(Config)], f"{where} [on.{model}]")
    if any("seed" in keys for keys in (run, overrides or {}, *on.values())):
        raise BadInput(
            f"{where} sets seed; expected seeds = [...] at the top of the file (or --seeds)", "study/seeds"
        )
    config = Config().replaced(run, where=f"{where} [run] ")
    base = (overrides or {}).get("base", config.base)
    config = config.replaced({key: n for key, n in budgets(str(base)).items() if key not in run})
    config = config.replaced(on.get(base, {}), where=f"{where} [on.{base}] ").replaced(overrides or {})
    chosen = seeds if seeds is not None else table.get("seeds", ())
    if not isinstance(chosen, (list, tuple)) or any(type(s) is not int for s in chosen):
        raise BadInput(
            f"{where} seeds = {brief(chosen)}: expected a list of whole numbers, such as [17, 18, 19]",
            "study/seeds",
        )
    return Study(
        name, config, {arm: dict(keys) for arm, keys in arms.items()}, tuple(chosen), Evaluate(**evaluation),
        tuple((p["a"], p["b"]) for p in pairs),
    )  # fmt: skip


def _is_table(found: Any, where: str) -> None:
    if not isinstance(found, Mapping):
        raise BadInput(f"{where} is {brief(found)}: expected a table of KEY = VALUE lines", "config/type")


def _known(table: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for key in table:
        if key not in names:
            raise BadInput(
                f"{where}: unknown key {brief(key)}{nearest(key, names)}; expected one of {', '.join(names)}",
                "config/unknown-key",
            )


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
