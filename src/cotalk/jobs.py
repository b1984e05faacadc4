"""Running a study: its jobs, and the stacks that play them.

A job is a generator that trains one arm with one seed and then plays its held-out conditions (the base's job only
plays). On a GPU all jobs share one stack in this process, or, with `--workers`, a stack on each of several GPUs. On a
CPU, where a tiny model is bound by arithmetic, single-thread worker processes take one job after another, each a stack
of its own, with the same results. Every job's files are its own, so a study resumes as its runs do.

Left out: what a study is (study.py), the worker processes (workers.py), results.json out of the files (collect.py).
"""

from __future__ import annotations

import time
import tomllib
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cotalk import causal, results
from cotalk.base import load_base, pick_device
from cotalk.chat import Player
from cotalk.collect import collect
from cotalk.config import Config
from cotalk.crossplay import Matrix, Players, play_oracle, play_row, rows_needed, sitters
from cotalk.deal import Deal
from cotalk.disk import write_atomically
from cotalk.engines import Engine, Table
from cotalk.engines.choose import choose
from cotalk.errors import BadInput, DiskFailed, OutOfMemory, RunFailed
from cotalk.evaluate import Evaluation, evaluate
from cotalk.given import changed, described, read_given, write_given
from cotalk.grade import load_grader
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.methods import Method, method, pool_of
from cotalk.partners import Entry, Guests, rows_of_pool
from cotalk.plan import needs
from cotalk.preflight import Ready, preflight
from cotalk.run import RunDirectory, differences, locked, set_aside
from cotalk.split import Tasks
from cotalk.stack import drive, held
from cotalk.study import Job, Study, stackable, study_from
from cotalk.train import Playing, Run, train
from cotalk.workers import Progress, how_many, in_workers, shares


def run_study(
    study: Study,
    out: Path,
    workers: int | None = None,
    progress: Progress = lambda *_: None,
    price: float | None = None,
    ready: Ready | None = None,
) -> results.Json:
    """Runs what is still owed of a study, and writes results.json. Raises RunFailed when a run failed for good.

    Raises BadInput when another process works in that directory. price: of an hour of the device. ready: what
    `preflight` found, where it was asked already.
    """
    with locked(out):
        return _run_study(study, out, workers, progress, price, ready)


def _run_study(
    study: Study,
    out: Path,
    workers: int | None,
    progress: Progress,
    price: float | None,
    ready: Ready | None,
) -> results.Json:
    began = time.monotonic()
    ready = ready or preflight(study)
    begin(study, out, ready.given)
    tasks, jobs = ready.tasks, study.jobs()
    workers = how_many(workers or 0, pick_device(study.config.device), len(jobs))
    failures = _shared_out(study, out, tasks, jobs, workers, progress)
    matrix = None
    if study.evaluate.cross:
        matrix = matrix_of(study, out, tasks, failures)
        rows = [Job(row=row) for row in [*matrix.rows, *oracle_rows(study, matrix)]]
        failures |= _shared_out(study, out, tasks, rows, workers, progress)
    return collect(study, out, tasks, failures, time.monotonic() - began, workers, price, matrix)


def _shared_out(
    study: Study, out: Path, tasks: Tasks, jobs: Sequence[Job], workers: int, progress: Progress
) -> dict[str, str]:
    """Jobs in worker processes on a CPU or several GPUs, in one stack of this process on one. Returns failures."""
    gpus = pick_device(study.config.device) != "cpu"
    if gpus and workers == 1:
        return run_jobs(study, out, tasks, jobs, progress)
    shared = shares(jobs, workers, gpus)
    return in_workers(run_jobs, (study, out, tasks), shared, min(workers, len(shared)), gpus, progress)


def begin(study: Study, out: Path, given: Mapping[str, str], force: bool = False) -> list[str]:
    """Writes the study's own file, or refuses a directory that holds another one, and says what differs.

    given: what the files hold that the study names (preflight.py); other contents are another study. Where nothing was
    done yet, nothing is refused. force: takes the new settings; all files that do not agree with them are set aside,
    never mixed with new ones. Returns lines that tell what was.
    """
    path = out / "study.toml"
    if (out / "config.toml").is_file():
        raise BadInput(
            f"{out} holds a run by itself: expected a study's directory. Use another --out",
            "run/other-config",
        )
    if not path.is_file():
        write_given(out, given, fresh=True)
        write_atomically(path, _resolved(study))
        return []
    for place in ("scores", "cross", "outcomes"):
        for part in (out / place).rglob(".*.part"):  # what was being written when it was killed
            part.unlink()
    try:
        text = path.read_text(encoding="utf-8")
        before = study_from(study.name, tomllib.loads(text), None, None, str(path))
    except ValueError as error:  # BadInput is one too
        raise BadInput(
            f"{path} cannot be read ({error}): expected a study's own file. Use another --out",
            "config/not-toml",
        ) from error
    differ = differences(tomllib.loads(before.as_toml()), tomllib.loads(study.as_toml()))
    other = changed(read_given(out), given)
    if not differ and not other:
        write_given(out, given)
        return []
    jobs, files = invalid(before, study, out, other)
    told = "; ".join(
        [*differ, *([described(other, study.config.tasks, study.config.heldout)] if other else [])]
    )
    told = f"{out} holds a study with other {'settings' if differ else 'files'}: {told}"
    what = f"what was done with those ({', '.join(jobs)}: {len(files)} files and directories)"
    begun = any(any(out.glob(f"{place}/*")) for place in ("scores", "runs", "cross"))
    mended = not differ and not any(map(_worth, files))  # a method that failed before its first step
    if begun and not force and not mended:
        would = f"sets aside {what}" if files else "goes on: nothing that is there depends on them"
        raise BadInput(f"{told}. --force {would}. Or use another --out", "run/other-config")
    if files:
        to = set_aside(out, files)
        write_atomically(to / path.name, text)
    write_given(out, given, fresh=True)
    write_atomically(path, _resolved(study))
    if not begun:
        return []
    return [
        told,
        f"{what} is in {to} now, and is done again" if files else "nothing that was there depends on them",
    ]


def _worth(path: Path) -> bool:
    """Whether setting a file or directory of a study aside costs work: not a run before its first step, nor results."""
    if path.name in AFTER:
        return False
    return not path.is_dir() or RunDirectory(path).stepped


AFTER = ("cross", "results.json", "report.html", "outcomes")  # what follows from the runs


def _resolved(study: Study) -> str:
    return f"# study {study.name}, resolved\n" + study.as_toml()


def invalid(before: Study, now: Study, out: Path, other: Sequence[str] = ()) -> tuple[list[str], list[Path]]:
    """What other settings make worthless: the names of the jobs, and the files and directories that are there.

    A run's own config.toml says with which settings it was trained. An evaluation goes with its run, and with how many
    chats a task it played; cross-play and results.json go with any of them. other: what has other contents, as
    preflight.py names it: the file of a method or grader concerns the jobs that name it, all else every job.
    """
    same_chats = before.evaluate.chats == now.evaluate.chats and before.evaluate.unseen == now.evaluate.unseen
    jobs, files = [], []
    for job in now.jobs():
        path, config = out / "runs" / job.name, now.job_config(job)
        trained = _config_text(path / "config.toml") not in (None, config.as_dict())
        if job.arm == "":
            trained = before.config != now.config
        trained |= any(_concerns(name, config) for name in other)
        scores = sorted(out.glob(f"scores/*/{job.name}.*")) + sorted(
            out.glob(f"scores/causal/*/{job.name}.*")
        )
        found = (scores if trained or not same_chats else []) + ([path] if trained and path.exists() else [])
        jobs += [job.name] if found else []
        files += found
    if files:
        rest = (out / name for name in AFTER)
        files += [path for path in rest if path.exists()]
    return jobs, files


def _concerns(name: str, config: Config) -> bool:
    """Whether a job of this config reads what preflight.py calls so: tasks, base and partners, all of them."""
    what, _, which = name.partition(" ")
    return {"method": config.method == which, "grader": config.grade == which}.get(what, True)


def _config_text(path: Path) -> dict[str, Any] | None:
    """A run's settings, those that it does not know at their defaults; None where it has not begun."""
    if not path.is_file():
        return None
    try:
        return Config().as_dict() | tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}


def run_jobs(
    study: Study, out: Path, tasks: Tasks, jobs: Sequence[Job], progress: Progress
) -> dict[str, str]:
    """Plays jobs as one stack (one after the other where rank or target layers differ). Returns failures."""
    failures: dict[str, str] = {}
    if any(job.row for job in jobs):
        play_matrix(study, matrix_of(study, out, tasks, {}), tasks.dev, [job.row for job in jobs], progress)
        return failures
    for group in stackable(study, jobs):
        failures |= _run_stack(study, out, tasks, group, progress)
    return failures


def _run_stack(
    study: Study, out: Path, tasks: Tasks, jobs: Sequence[Job], progress: Progress
) -> dict[str, str]:
    first = study.job_config(jobs[0])
    base = load_base(first.base, first.dtype, first.device, first.wording)
    for job in jobs:  # a base on disk or the hub passed this in preflight: a .gguf file did not
        base.prompts.check(
            study.job_config(job).rules, [*tasks.train, *tasks.dev, *tasks.heldout, *tasks.unseen]
        )
    seats = first.rules.seats
    tables: dict[
        str, tuple[Method, tuple[Entry, ...], dict[str, int], int]
    ] = {}  # of each job: method, pool, own rows
    at = 1
    for job in jobs:
        config = study.job_config(job)
        if not job.arm:
            continue
        own = {seat: at + (i if config.adapters == "per_seat" else 0) for i, seat in enumerate(seats)}
        how, guests_at = method(config), max(own.values()) + 1
        pool = pool_of(how, config)
        tables[job.name] = how, pool, own, guests_at
        at = guests_at + rows_of_pool(pool, own)
    stack = Stack(
        base.model, max(1, at - 1), first.rank, first.alpha, first.target_layers, base.name, base.sha256
    )
    pair = choose(first.engine, stack, base.form.end_ids)
    lives: dict[str, Playing] = {}
    others: dict[str, tuple[Player, Engine]] = {}  # other bases that sit with runs, each loaded once
    failures: dict[str, str] = {}
    for job in jobs:
        config, run = study.job_config(job), None
        if job.arm:
            how, pool, own, guests_at = tables[job.name]
            path = out / "runs" / job.name
            guests = (
                Guests(pool, own, stack, guests_at, config.snapshot_every, path, others) if pool else None
            )
            run = Run(
                job.name, config, tasks.train, tasks.dev, base.form,
                Learner(stack, own, config, pair.scorer(config.temperature)), how,
                RunDirectory(path), load_grader(config.grade) if config.grade else None,
                partial(_told, progress, job.name, config.steps), guests,
            )  # fmt: skip
        lives[job.name] = _life(study, out, tasks, job, config, base.form, run, progress)

    def failed(name: str, error: Exception) -> None:
        if isinstance(error, BadInput):  # a mistake in what was given: no run of the study is worth its time
            raise error
        plain = type(error) is RunFailed  # its words say all of it
        failures[name] = str(error) if plain else f"{type(error).__name__}: {error}"
        if isinstance(error, OutOfMemory):
            failures[name] += f". {needs(study)}"
        try:
            RunDirectory(out / "runs" / name).fail(
                f"{failures[name]}\n{''.join(traceback.format_exception(error))}"
            )
        except (
            DiskFailed
        ):  # the reason itself, most often: it is told in results.json, or at the command's end
            return

    with held() as signals:
        drive(
            lives, Table(pair.engine, {name: engine for name, (_, engine) in others.items()}), failed, signals
        )
    return failures


def _told(progress: Progress, name: str, steps: int, step: int, metrics: dict[str, Any]) -> None:
    progress(name, "train", step, steps, metrics)


def _life(
    study: Study,
    out: Path,
    tasks: Tasks,
    job: Job,
    config: Config,
    form: Any,
    run: Run | None,
    progress: Progress,
) -> Playing:
    """A job from beginning to end: train, then play its conditions on the held-out tasks, once."""
    work = study.work(job)
    players: dict[str, Player] = {}
    if run:
        yield from train(run)
        players = run.players
    grader = load_grader(config.grade) if config.grade else None
    knocked, played = study.knockouts(job), [0]

    def told(name: str) -> None:
        played[0] += 1
        progress(job.name, "evaluate", played[0], len(work) + len(knocked), {"condition": name})

    seed = config.seed if job.arm else 0
    evaluation = Evaluation(
        out, job.name, seed, config, tasks.heldout, form, players, grader, told, tasks.perturbed, tasks.unseen
    )
    yield from evaluate(evaluation, work)
    if knocked:
        yield from causal.play(evaluation, study.own_condition(job.arm), knocked, chats=study.evaluate.chats)
    RunDirectory(out / "runs" / job.name).succeed()


# --- cross-play, after the runs -----------------------------------------------------------------------------


def matrix_of(
    study: Study, out: Path, tasks: Tasks, failures: Mapping[str, str], cross: int = 0, chats: int = 0
) -> Matrix:
    """The cross-play matrix of a study's finished runs; cross, chats: its size, where it is not the study's own.

    One game is played: arms with another order, view, channel or budgets than [run] (the closed one) are not in it.
    """
    done = {
        job.name: (job.arm, job.seed, out / "runs" / job.name)
        for job in study.crossed
        if job.seed is not None and job.name not in failures and RunDirectory(out / "runs" / job.name).done
    }
    heldout = tasks.heldout[: cross or study.evaluate.cross]
    return Matrix(
        out, sitters(done, study.evaluate.guests), heldout, chats or study.evaluate.cross_chats, study.config
    )


def oracle_rows(study: Study, matrix: Matrix) -> list[str]:
    """The untrained strangers whose oracle ceiling is owed, as rows."""
    strangers = [s.name for s in matrix.sitters if s.kind in ("base", "model")]
    return [f"{ORACLE}{name}" for name in strangers] if study.evaluate.oracle else []


def play_matrix(
    study: Study,
    matrix: Matrix,
    dev: Sequence[Deal],
    rows: Sequence[str],
    progress: Progress = lambda *_: None,
) -> None:
    """Plays rows of the matrix (and oracle rows) that are not on disk yet, as one stack."""
    config = study.config
    base = load_base(config.base, config.dtype, config.device, config.wording)
    seated = study.crossed  # all of one rank, alpha and targets (Study)
    first = study.arm(seated[0].arm) if seated else study.config
    stack = Stack(
        base.model, max(1, rows_needed(matrix)), first.rank, first.alpha, first.target_layers, base.name, base.sha256
    )  # fmt: skip
    players = Players(matrix, stack)
    grader = load_grader(config.grade) if config.grade else None
    lives: dict[str, Playing] = {}
    for row in rows:
        if row.startswith(ORACLE):
            lives[row] = play_oracle(matrix, row.removeprefix(ORACLE), players, dev, base.form, grader)
        else:
            lives[row] = play_row(matrix, row, players, base.form, grader)

    def failed(name: str, error: Exception) -> None:
        raise error

    with held() as signals:
        drive(
            lives,
            Table(choose(config.engine, stack, base.form.end_ids).engine, players.engines),
            failed,
            signals,
        )
    for row in rows:
        progress(f"cross {row}", "evaluate", 1, 1, {"condition": row})


ORACLE = "oracle "  # before the name of a stranger: a row of scripted A
