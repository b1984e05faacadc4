"""A study: arms x seeds -> runs -> scores -> comparisons -> results.json. One TOML file says all of it.

    seeds = [17, 18, 19]
    [run]                       a Config
    [arms.open]                 overrides of it, by arm
    [arms.closed]
    channel = "closed"
    [evaluate]                  chats a task, repeats of the base, a greedy pass, partner conditions
    [[compare]]
    a = "trained_open"
    b = "trained_closed"

Each (arm, seed) is a *job*, and so is the base's evaluation: a generator that trains and then plays its held-out
conditions. On a GPU all jobs share one stack in this process. On a CPU, where a tiny model is bound by arithmetic,
single-thread worker processes take one job after another, each a stack of its own, with the same results. Every
job's files are its own, so a study resumes as its runs do.

Left out: the schema and the statistics of results.json (results.py, stats.py), what a report shows (report.py).
"""

from __future__ import annotations

import difflib
import multiprocessing
import os
import queue
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from cotalk import results
from cotalk.base import load_base, pick_device
from cotalk.config import STUDY_WIDE, Config, toml_table
from cotalk.engines import Table
from cotalk.engines.hf import HfEngine
from cotalk.errors import BadInput, RunFailed
from cotalk.evaluate import Condition, Evaluation, Pass, arm_conditions, base_conditions, evaluate, read_score
from cotalk.grade import load_grader
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.methods import method
from cotalk.results import Score
from cotalk.run import RunDirectory, read_lines, write_atomically
from cotalk.split import Tasks, splits
from cotalk.stack import drive
from cotalk.train import Playing, Run, train

STUDIES = Path(__file__).parent / "studies"
TASKS = ("tasks", "heldout", "rule", "train_tasks", "dev_tasks", "heldout_tasks")  # dealt once for all arms
Progress = Callable[[str, str, int, int, dict[str, Any]], None]  # job, phase, done, of, metrics


@dataclass(frozen=True)
class Evaluate:
    """The [evaluate] table."""

    chats: int = 2
    """Chats a task in a sampled pass."""
    repeats: int = 3
    """Evaluations of the untrained pair with the channel open: their spread is the noise floor."""
    greedy: bool = True
    """Also one greedy chat a task, for the base and for each run in its own channel."""
    partners: bool = True
    """Also every run with the untrained base on either side."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if type(getattr(self, f.name)) is not type(f.default):
                expected = "true or false" if f.default is True else "a whole number"
                raise BadInput(f"[evaluate] {f.name} = {getattr(self, f.name)!r}: expected {expected}")
        if self.chats < 1 or self.repeats < 1:
            raise BadInput(
                f"[evaluate] chats = {self.chats}, repeats = {self.repeats}: expected at least 1 each"
            )


@dataclass(frozen=True)
class Job:
    """One arm with one seed, or ("", None): the base."""

    arm: str = ""
    seed: int | None = None

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.seed}" if self.arm else "base"


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
                f"study {self.name}: {len(self.arms)} arms, {len(self.seeds)} seeds; expected at least one each"
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise BadInput(
                f"seeds = {list(self.seeds)}: a seed stands twice; expected each once (a copy is no evidence)"
            )
        if min(self.seeds) < 0:
            raise BadInput(f"seeds = {list(self.seeds)}: expected whole numbers from 0 on")
        for name in self.arms:
            self._check_arm(name)
        known = {c.name: c for c in self.conditions()}
        if len(known) < len(self.conditions()):
            raise BadInput(
                f"arms {', '.join(self.arms)}: two of their conditions have one name; rename an arm"
            )
        for a, b in self.compare:
            for name in (a, b):
                if name not in known:
                    close = nearest(name, list(known))
                    raise BadInput(f"[[compare]] names {name!r}{close}; expected one of {', '.join(known)}")
            if known[b].arm and not known[a].arm:
                raise BadInput(
                    f"[[compare]] a = {a!r}, b = {b!r}: expected the trained one as a, the base's as b"
                )

    def _check_arm(self, name: str) -> None:
        if not name.isidentifier():
            raise BadInput(
                f"arm {name!r}: expected letters, digits and underscores (it becomes a file's name)"
            )
        for key in self.arms[name]:
            if key in (*STUDY_WIDE, *TASKS):
                raise BadInput(
                    f"[arms.{name}] sets {key}, which belongs to the whole study; expected it in [run]"
                )
            if key == "seed":
                raise BadInput(f"[arms.{name}] sets seed; expected seeds = [...] at the top of the file")
        seats = self.arm(name).rules.seats
        if seats != self.config.rules.seats:
            raise BadInput(
                f"[arms.{name}] seats {seats}, [run] {self.config.rules.seats}: expected the same seats in every arm "
                "(tasks are dealt once for all of them)"
            )

    def arm(self, name: str) -> Config:
        return self.config.replaced(self.arms[name], where=f"[arms.{name}] ")

    def job_config(self, job: Job) -> Config:
        return self.config if job.seed is None else self.arm(job.arm).replaced({"seed": job.seed})

    def jobs(self) -> list[Job]:
        return [*(Job(arm, seed) for seed in self.seeds for arm in self.arms), Job()]

    def conditions(self) -> list[Condition]:
        own = [c for arm in self.arms for c in arm_conditions(arm, self.arm(arm), self.evaluate.partners)]
        return base_conditions() + own

    def work(self, job: Job) -> list[tuple[Condition, Pass]]:
        """The passes that a job plays, in order."""
        once, greedy = Pass(chats=self.evaluate.chats), Pass(chats=1, greedy=True)
        mine = [c for c in self.conditions() if c.arm == job.arm]
        work = [(c, once) for c in mine]
        if not job.arm:
            again = next(c for c in mine if c.name == "base_open")
            work += [(again, replace(once, repeat=i)) for i in range(1, self.evaluate.repeats)]
        if self.evaluate.greedy:
            work += [(c, greedy) for c in mine if self.has_greedy(c)]
        return work

    @staticmethod
    def has_greedy(condition: Condition) -> bool:
        return condition.name in ("base_open", "base_closed", f"trained_{condition.arm}")

    def as_toml(self) -> str:
        run = {key: value for key, value in self.config.as_dict().items() if key != "seed"}
        parts = [f"seeds = {list(self.seeds)}\n", "[run]\n" + toml_table(run)]
        parts += [f"[arms.{name}]\n" + toml_table(table) for name, table in self.arms.items()]
        parts += [
            "[evaluate]\n" + toml_table({f.name: getattr(self.evaluate, f.name) for f in fields(Evaluate)})
        ]
        parts += [f"[[compare]]\n{toml_table({'a': a, 'b': b})}" for a, b in self.compare]
        return "\n".join(parts)


def read_study(
    name: str, overrides: Mapping[str, Any] | None = None, seeds: Sequence[int] | None = None
) -> Study:
    """A study by name (studies/NAME.toml of the package) or by file, with overrides of its [run] table."""
    path = Path(name) if name.endswith(".toml") else STUDIES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in STUDIES.glob("*.toml")))
        raise BadInput(f"study {name!r}: there is no {path}; expected one of {known}, or a .toml file")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not TOML ({error})") from error
    return study_from(path.stem, table, overrides, seeds, str(path))


def study_from(
    name: str,
    table: Mapping[str, Any],
    overrides: Mapping[str, Any] | None,
    seeds: Sequence[int] | None,
    where: str,
) -> Study:
    _known(table, ("seeds", "run", "arms", "evaluate", "compare"), where)
    run, evaluation, pairs = table.get("run", {}), table.get("evaluate", {}), table.get("compare", [])
    arms = table.get("arms", {})
    for part, found in {"[run]": run, "[evaluate]": evaluation, "[arms]": arms}.items():
        _is_table(found, f"{where} {part}")
    _known(evaluation, [f.name for f in fields(Evaluate)], f"{where} [evaluate]")
    if not isinstance(pairs, list):
        raise BadInput(f'{where} compare = {pairs!r}: expected [[compare]] with a = "..." and b = "..."')
    for pair in pairs:
        _is_table(pair, f"{where} [[compare]]")
        _known(pair, ("a", "b"), f"{where} [[compare]]")
        if set(pair) != {"a", "b"} or not all(isinstance(name, str) for name in pair.values()):
            raise BadInput(f"{where} [[compare]] is {dict(pair)}; expected a and b, names of conditions")
    for arm, keys in arms.items():
        _is_table(keys, f"{where} [arms.{arm}]")
    if "seed" in run or "seed" in (overrides or {}):
        raise BadInput(f"{where} sets seed; expected seeds = [...] at the top of the file (or --seeds)")
    config = Config().replaced(run, where=f"{where} [run] ").replaced(overrides or {})
    chosen = seeds if seeds is not None else table.get("seeds", ())
    if not isinstance(chosen, (list, tuple)) or any(type(s) is not int for s in chosen):
        raise BadInput(f"{where} seeds = {chosen!r}: expected a list of whole numbers, such as [17, 18, 19]")
    return Study(
        name, config, {arm: dict(keys) for arm, keys in arms.items()}, tuple(chosen), Evaluate(**evaluation),
        tuple((p["a"], p["b"]) for p in pairs),
    )  # fmt: skip


def _is_table(found: Any, where: str) -> None:
    if not isinstance(found, Mapping):
        raise BadInput(f"{where} is {found!r}: expected a table of KEY = VALUE lines")


def _known(table: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for key in table:
        if key not in names:
            raise BadInput(
                f"{where}: unknown key {key!r}{nearest(key, names)}; expected one of {', '.join(names)}"
            )


def nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- running -------------------------------------------------------------------------------------------------


def prepare(config: Config) -> Tasks:
    """Loads and deals the three disjoint sources of a config."""
    return splits(
        config.tasks, config.heldout or None, train=config.train_tasks, dev=config.dev_tasks,
        heldout=config.heldout_tasks, rule=config.rule, seats=config.rules.seats,
    )  # fmt: skip


def run_study(
    study: Study, out: Path, workers: int | None = None, progress: Progress = lambda *_: None
) -> results.Json:
    """Runs what is still owed of a study, and writes results.json. Raises RunFailed when a run failed for good."""
    began = time.monotonic()
    begin(study, out)
    tasks = prepare(study.config)
    jobs = study.jobs()
    on_cpu = pick_device(study.config.device) == "cpu"
    workers = max(1, min(workers or cores(), len(jobs))) if on_cpu else 1
    if on_cpu:
        failures = _in_workers(study, out, tasks, jobs, workers, progress)
    else:
        failures = run_jobs(study, out, tasks, jobs, progress)
    return collect(study, out, tasks, failures, time.monotonic() - began, workers)


def begin(study: Study, out: Path) -> None:
    """Writes the study's own file, or refuses a directory that holds another one."""
    path = out / "study.toml"
    if path.is_file():
        before, now = tomllib.loads(path.read_text(encoding="utf-8")), tomllib.loads(study.as_toml())
        if before != now:
            differ = sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
            keys = [k for k in now["run"] if before.get("run", {}).get(k) != now["run"][k]]
            raise BadInput(
                f"{out} holds a study with other settings ({', '.join([*differ, *keys])} differ). Use another --out, "
                "or remove it"
            )
        return
    write_atomically(path, f"# study {study.name}, resolved\n" + study.as_toml())


def run_jobs(
    study: Study, out: Path, tasks: Tasks, jobs: Sequence[Job], progress: Progress
) -> dict[str, str]:
    """Plays jobs as one stack (one after the other where rank or target layers differ). Returns failures."""
    failures: dict[str, str] = {}
    for group in _stackable(study, jobs):
        failures |= _run_stack(study, out, tasks, group, progress)
    return failures


def _stackable(study: Study, jobs: Sequence[Job]) -> Iterator[list[Job]]:
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        c = study.job_config(job)
        groups.setdefault((c.rank, c.alpha, c.targets), []).append(job)
    yield from groups.values()


def _run_stack(
    study: Study, out: Path, tasks: Tasks, jobs: Sequence[Job], progress: Progress
) -> dict[str, str]:
    first = study.job_config(jobs[0])
    base = load_base(first.base, first.dtype, first.device, first.wording)
    seats = first.rules.seats
    per_job = [len(seats) if study.job_config(j).adapters == "per_seat" else 1 for j in jobs if j.arm]
    stack = Stack(
        base.model, max(1, sum(per_job)), first.rank, first.alpha, first.target_layers, base.name, base.sha256
    )
    engine, failures, at = Table(HfEngine(stack, base.form.end_ids)), {}, 1
    lives: dict[str, Playing] = {}
    for job in jobs:
        config = study.job_config(job)
        own = {}
        if job.arm:
            own = {seat: at + (i if config.adapters == "per_seat" else 0) for i, seat in enumerate(seats)}
            at = max(own.values()) + 1
        lives[job.name] = _life(study, out, tasks, job, config, base.form, stack, own, progress)

    def failed(name: str, error: Exception) -> None:
        if isinstance(error, BadInput):  # a mistake in what was given: no run of the study is worth its time
            raise error
        failures[name] = f"{type(error).__name__}: {error}"
        RunDirectory(out / "runs" / name).fail(
            f"{failures[name]}\n{''.join(traceback.format_exception(error))}"
        )

    drive(lives, engine, failed)
    return failures


def _life(
    study: Study, out: Path, tasks: Tasks, job: Job, config: Config, form: Any, stack: Stack, own: dict[str, int],
    progress: Progress,
) -> Playing:  # fmt: skip
    """A job from beginning to end: train, then play its conditions on the held-out tasks, once."""
    grader = load_grader(config.grade) if config.grade else None
    work = study.work(job)
    players = {}
    if job.arm:
        run = Run(
            job.name, config, tasks.train, tasks.dev, form, Learner(stack, own, config), method(config),
            RunDirectory(out / "runs" / job.name), grader,
            progress=lambda step, m: progress(job.name, "train", step, config.steps, m),
        )  # fmt: skip
        yield from train(run)
        players = run.players
    played = [0]

    def told(name: str) -> None:
        played[0] += 1
        progress(job.name, "evaluate", played[0], len(work), {"condition": name})

    seed = config.seed if job.arm else 0
    evaluation = Evaluation(out, job.name, seed, config, tasks.heldout, form, players, grader, told)
    yield from evaluate(evaluation, work)
    RunDirectory(out / "runs" / job.name).succeed()


# --- worker processes on a CPU -------------------------------------------------------------------------------


def _in_workers(
    study: Study, out: Path, tasks: Tasks, jobs: Sequence[Job], workers: int, progress: Progress
) -> dict[str, str]:
    """Shares the jobs out over single-thread processes; each takes the next one when it is free."""
    context = multiprocessing.get_context("spawn")
    owed, told = context.Queue(), context.Queue()
    for job in [*jobs, *[None] * workers]:
        owed.put(job)
    threads = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(threads, "1"))
    try:
        processes = [
            context.Process(target=_worker, args=(study, out, tasks, owed, told)) for _ in range(workers)
        ]
        for process in processes:
            process.start()
    finally:
        for name, value in threads.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    try:
        return _listen(processes, told, progress)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
            process.join()


def _listen(processes: Sequence[Any], told: Any, progress: Progress) -> dict[str, str]:
    """Passes progress on until every worker has ended; a worker that dies without a word is an error."""
    failures: dict[str, str] = {}
    open_workers = len(processes)
    while open_workers:
        try:
            kind, *what = told.get(timeout=1.0)
        except queue.Empty:
            codes = [p.exitcode for p in processes]
            dead = [code for code in codes if code not in (None, 0)]
            if dead or None not in codes:  # all ended with 0, and yet not all said so
                code = dead[0] if dead else 0
                raise RunFailed(
                    f"a worker process ended with exit code {code}; the same command goes on"
                ) from None
            continue
        if kind == "progress":
            progress(*what)
        elif kind == "failures":
            failures |= what[0]
        elif kind == "end":
            open_workers -= 1
        elif kind == "error":
            raise what[0]
    return failures


def _worker(study: Study, out: Path, tasks: Tasks, owed: Any, told: Any) -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while (job := owed.get()) is not None:
            told.put(
                ("failures", run_jobs(study, out, tasks, [job], lambda *what: told.put(("progress", *what))))
            )
        told.put(("end",))
    except (BadInput, RunFailed) as error:
        told.put(("error", error))
    except KeyboardInterrupt:
        return


def _end_with_parent() -> None:
    """A worker must not outlive a killed study: the same command would then write the same files beside it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# --- collecting ----------------------------------------------------------------------------------------------


def collect(
    study: Study, out: Path, tasks: Tasks, failures: Mapping[str, str], seconds: float, workers: int
) -> results.Json:
    """Reads every pass back from disk, computes every number, writes outcomes/*.npz and results.json."""
    scores = list(read_scores(study, out, tasks, failures))
    if not scores:
        told = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise RunFailed(f"every run of study {study.name} failed ({told}). The same command tries them again")
    have = {s.condition for s in scores}
    for score in scores:
        score.save(out / "outcomes")
    about = {c.name: {"label": c.label, "arm": c.arm, "channel": c.channel} for c in study.conditions()}
    document = results.build(
        study.name, scores, compare=[pair for pair in study.compare if set(pair) <= have],
        config={"run": study.config.as_dict(), "arms": study.arms, "seeds": list(study.seeds),
                "evaluate": {f.name: getattr(study.evaluate, f.name) for f in fields(Evaluate)},
                "sampling": f"temperature {study.config.temperature}, full vocabulary, as in training"},
        cost=cost(study, out, seconds, workers), about=about,
    )  # fmt: skip
    document["tasks"] = {name: asdict(tally) for name, tally in tasks.report.items()}
    document["failed"] = dict(failures)
    results.write(out / "results.json", document)
    return document


def read_scores(study: Study, out: Path, tasks: Tasks, failures: Mapping[str, str]) -> Iterator[Score]:
    clustered = study.config.tasks != "puzzles" and any(d.task.template for d in tasks.heldout)
    for condition in study.conditions():
        jobs = [j for j in study.jobs() if j.arm == condition.arm and j.name not in failures]
        runs = {job.name: job.seed for job in jobs}
        if not runs:
            continue
        repeats = study.evaluate.repeats if condition.name == "base_open" else 1
        yield read_score(out, condition, runs, tasks.heldout, repeats=repeats, clustered=clustered)
        if study.evaluate.greedy and study.has_greedy(condition):
            yield read_score(out, condition, runs, tasks.heldout, greedy=True, clustered=clustered)


def cost(study: Study, out: Path, seconds: float, workers: int) -> results.Json:
    """What a study took. seconds: of this call (a resumed study's earlier calls are not in it)."""
    steps = [line for job in study.jobs() for line in read_lines(out / "runs" / job.name / "metrics.jsonl")]
    return {
        "seconds": round(seconds, 1),
        "training_seconds": round(sum(line.get("seconds", 0.0) for line in steps), 1),
        "training_tokens_sampled": int(sum(line.get("tokens", 0) for line in steps)),
        "device": pick_device(study.config.device),
        "device_name": torch.cuda.get_device_name() if pick_device(study.config.device) != "cpu" else "CPU",
        "workers": workers,
    }
