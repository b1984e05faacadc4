"""One run, or one evaluation, by itself: `cotalk train` and `cotalk evaluate`.

The same pieces as a study, without arms: nothing here that a study does not do too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

from cotalk import crossplay, results
from cotalk.base import load_base
from cotalk.chat import Player
from cotalk.config import OF_TRAINING, Config
from cotalk.crossplay import summary
from cotalk.engines import Engine, Table
from cotalk.engines.choose import Pair, choose
from cotalk.errors import BadInput, OutOfMemory, RunFailed
from cotalk.evaluate import Condition, Evaluation, Pass, evaluate, read_score
from cotalk.given import changed, described, read_given
from cotalk.grade import load_grader
from cotalk.jobs import matrix_of, oracle_rows, play_matrix
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.methods import method, pool_of
from cotalk.partners import Guests, adapters_in, rows_of_pool
from cotalk.plan import needs
from cotalk.preflight import given_to_evaluation, preflight_run, prepare
from cotalk.results import Score
from cotalk.run import (
    RunDirectory,
    config_of,
    differences,
    locked,
    read_checkpoint,
    read_lines,
    restore_learner,
    run_of,
    set_aside,
)
from cotalk.split import Tasks
from cotalk.stack import drive, held
from cotalk.study import Study, read_study
from cotalk.talk import rates
from cotalk.train import Run, train


def train_one(config: Config, out: Path, console: Console, force: bool = False) -> None:
    """Trains one run in `out`, from where it stopped. Raises BadInput when another process works there.

    force: a run with another config is set aside first.
    """
    config.refuse_unused(config.unused)
    if (out / "study.toml").is_file():
        raise BadInput(
            f"{out} holds a study: expected a run's directory. Use another --out", "run/other-config"
        )
    with locked(out):
        ready = preflight_run(config)
        if told := RunDirectory(out).begin(config, force, ready.given):
            console.print(told, highlight=False, markup=False, soft_wrap=True)
        if RunDirectory(out).done:
            console.print(f"{out} was trained to its end already; for another run, use another --out")
        try:
            _train_one(config, ready.tasks, out, console)
        except OutOfMemory as error:
            raise RunFailed(
                f"{error}. {needs(Study(out.name, config, {'train': {}}, (config.seed,)))}", "memory/full"
            ) from error


def _train_one(config: Config, tasks: Tasks, out: Path, console: Console) -> None:
    console.print(*(f"{name}: {tally}" for name, tally in tasks.report.items()), sep="\n", highlight=False)
    base = load_base(config.base, config.dtype, config.device, config.wording)
    base.prompts.check(config.rules, [*tasks.train, *tasks.dev, *tasks.heldout])
    seats = config.rules.seats
    own = {seat: 1 + (i if config.adapters == "per_seat" else 0) for i, seat in enumerate(seats)}
    how, first = method(config), max(own.values()) + 1
    pool = pool_of(how, config)
    stack = _stack(base, config, first - 1 + rows_of_pool(pool, own))
    pair = choose(config.engine, stack, base.form.end_ids)
    guests = Guests(pool, own, stack, first, config.snapshot_every, out) if pool else None
    with Progress(console=console, refresh_per_second=2) as bar:
        task = bar.add_task("train", total=config.steps)

        def told(step: int, m: dict[str, Any]) -> None:
            shares = f"reward {m['reward']:.2f}, flat {m['groups/flat']:.2f}, cut {m['cut']:.2f}"
            bar.update(task, completed=step, description=f"step {step}: {shares}, {m['seconds']:.1f} s")

        run = Run(
            "run", config, tasks.train, tasks.dev, base.form,
            Learner(stack, own, config, pair.scorer(config.temperature)), how, RunDirectory(out),
            load_grader(config.grade) if config.grade else None, told, guests,
        )  # fmt: skip
        _drive("run", train(run), pair, guests.engines if guests else {})
    if dropped := sum(bool(line.get("dropped")) for line in read_lines(out / "metrics.jsonl")):
        lost = f"{dropped} steps were dropped, not finite; see {out / 'dropped'}"
        console.print(lost, style="yellow", highlight=False, markup=False)
    shown = RichTable(title=f"{out}: dev tasks, greedy (curves, not a result)", title_justify="left")
    for column in ("step", "dev score", "sends", "uses", "asks"):
        shown.add_column(column)
    for line in read_lines(out / "metrics.jsonl"):
        if "dev/score" in line:
            told_numbers = (line.get(f"dev/{name}") for name in ("score", "sends", "uses", "asks"))
            shown.add_row(str(line["step"]), *("" if v is None else f"{v:.2f}" for v in told_numbers))
    console.print(shown)


def evaluate_one(
    config: Config, adapter: Path | None, out: Path, console: Console, chats: int, repeats: int, greedy: bool
) -> dict[str, Any]:
    """Plays held-out tasks with one team and prints its score; returns it as JSON.

    Tells what is not as the adapter's run had it, and tasks that it was trained on.
    """
    with locked(out):
        return _evaluate_one(config, adapter, out, console, chats, repeats, greedy)


def _evaluate_one(
    config: Config, adapter: Path | None, out: Path, console: Console, chats: int, repeats: int, greedy: bool
) -> dict[str, Any]:
    tasks = prepare(config, heldout_only=True)
    trained = _beside_its_run(config, adapter, tasks, console) if adapter else 0
    base = load_base(config.base, config.dtype, config.device, config.wording)
    base.check(config.rules, tasks.heldout)
    seats = config.rules.seats
    stack, own = _team(adapter, config, base)
    condition = Condition(
        "evaluate", str(adapter or "untrained"), config.channel, trained=seats if adapter else ""
    )
    passes = [Pass(chats=1, greedy=True)] if greedy else [Pass(i, chats) for i in range(repeats)]
    name = "adapter" if adapter else "base"
    if old := [path for path in (out / "scores", out / "outcomes") if path.exists()]:
        told = f"the evaluation that lay in {out} is in {set_aside(out, old)} now"
        console.print(told, highlight=False, markup=False, soft_wrap=True)
    with Progress(console=console, refresh_per_second=2, disable=len(passes) < 2) as bar:
        task = bar.add_task("evaluate", total=len(passes))
        grader = load_grader(config.grade) if config.grade else None
        evaluation = Evaluation(
            out, name, config.seed, config, tasks.heldout, base.form, own, grader, lambda _: bar.advance(task)
        )
        pair = choose(config.engine, stack, base.form.end_ids)
        _drive(name, evaluate(evaluation, [(condition, p) for p in passes]), pair)
    score = read_score(
        out, condition, {name: None}, tasks.heldout, greedy=greedy, repeats=1 if greedy else repeats
    )
    score.save(out / "outcomes")
    found = _shown(score, out / "scores" / condition.name, console)
    return found | ({"trained_on": trained} if trained else {})


def _beside_its_run(config: Config, adapter: Path, tasks: Tasks, console: Console) -> int:
    """Tells which settings are not those of the adapter's run; how many of the held-out tasks it was trained on."""
    run = run_of(adapter)
    if run is None:
        return 0
    then = config_of(run, "--adapter")
    fields = [
        name for name in config.as_dict() if name not in (*OF_TRAINING, "device", "dtype", "engine", "seed")
    ]
    before, now = ({name: c.as_dict()[name] for name in fields} for c in (then, config))
    differ = differences(before, now)
    of_tasks = {"tasks", "heldout", "heldout_tasks", "train_tasks", "rule", "order"}
    same_tasks = not of_tasks & {told.partition(" ")[0] for told in differ}
    if same_tasks:
        given = read_given(run) or read_given(run.parent.parent)  # a study's runs: beside its study.toml
        if other := changed(given, given_to_evaluation(config, tasks)):
            differ.append(described(other, config.tasks, config.heldout))
    if not differ:
        return 0
    told = f"not as in {run}: {'; '.join(differ)}"
    console.print(told, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if same_tasks:
        return 0
    try:
        seen = {deal.text for deal in prepare(then).train}
    except BadInput as error:
        console.print(
            f"whether it was trained on these tasks cannot be told: {error}", style="yellow", markup=False
        )
        return 0
    count = sum(deal.text in seen for deal in tasks.heldout)
    if count:
        told = (
            f"{count:,} of these {len(tasks.heldout):,} tasks were trained on: their score is no held-out one"
        )
        console.print(told, style="bold red", highlight=False, markup=False)
    return count


def _team(adapter: Path | None, config: Config, base: Any) -> tuple[Stack, dict[str, Player]]:
    """A stack with the trained players: of an adapter's directory, a run's, or one of its checkpoints."""
    seats = config.rules.seats
    if adapter and adapter.suffix == ".safetensors":
        tensors = read_checkpoint(adapter)
        count = len({name.partition(".")[0] for name in tensors})
        rows = {seat: 1 + min(i, count - 1) for i, seat in enumerate(seats)}
        learner = Learner(_stack(base, config, count), rows, config)
        try:
            restore_learner(learner, tensors)
        except (KeyError, RuntimeError) as error:
            raise BadInput(
                f"{adapter} does not fit this base, --rank and --targets ({error}); expected those "
                "of its run's config.toml",
                "adapter/unfit",
            ) from error
        return learner.stack, {seat: Player("adapter", k) for seat, k in rows.items()}
    places = adapters_in(adapter, seats) if adapter else {}
    stack = _stack(base, config, max(1, len(places)))
    own: dict[str, Player] = {}
    for k, (where, seated) in enumerate(places.items(), start=1):
        stack.load(k, where)
        own |= {seat: Player("adapter", k) for seat in seated}
    return stack, own


def cross_one(out: Path, chats: int, console: Console) -> dict[str, Any]:
    """Plays a finished study's whole cross-play matrix, every held-out task, and puts it into its results.json."""
    path = out / "study.toml"
    if not path.is_file():
        raise BadInput(
            f"--cross {out}: there is no {path}; expected the directory of a study that was run",
            "run/missing",
        )
    with locked(out):
        return _cross_one(read_study(str(path)), out, chats, console)


def _cross_one(study: Study, out: Path, chats: int, console: Console) -> dict[str, Any]:
    tasks = prepare(study.config, study.evaluate.perturbed, study.evaluate.unseen)
    document = results.read(out)
    matrix = matrix_of(study, out, tasks, document["failed"], len(tasks.heldout), chats)
    rows = [*matrix.rows, *oracle_rows(study, matrix)]
    with Progress(console=console, refresh_per_second=2) as bar:
        task = bar.add_task(f"{len(matrix.sitters)} players, {matrix.size} a cell", total=len(rows))
        for row in rows:
            play_matrix(study, matrix, tasks.dev, [row])
            bar.advance(task)
    document["cross_play"] = summary(matrix, study.evaluate.margin or None, tasks.dev)
    results.write(out / "results.json", document)
    for part in crossplay.tables(document["cross_play"]):
        console.print(part)
    return dict(document["cross_play"])


def _shown(score: Score, chats: Path, console: Console) -> dict[str, Any]:
    table = RichTable(
        title=f"{score.outcomes.shape[1]} tasks x {score.outcomes.shape[2]} chats", title_justify="left"
    )
    table.add_column("measure")
    table.add_column("rate, 95% interval over tasks")
    found: dict[str, Any] = {"score": score.rate.as_json}
    table.add_row("team score", str(score.rate))
    if (chats_a_task := score.outcomes.shape[2]) > 1:
        found[f"pass@{chats_a_task}"] = score.pass_at_k.as_json
        table.add_row(f"pass@{chats_a_task}", str(score.pass_at_k))
    if score.repeated is not None:
        found["repeated"] = score.repeated.as_json
        table.add_row("evaluated again", str(score.repeated))
    for seat, rate in score.seat_rates.items():
        table.add_row(f"seat {seat}", str(rate))
        found[f"seat/{seat}"] = rate.as_json
    for name, rate in rates(score.talk).items():
        if "/" not in name:
            table.add_row(name, str(rate))
            found[name] = rate.as_json
    table.add_row("chats", str(chats))
    console.print(table)
    return found


def _stack(base: Any, config: Config, adapters: int) -> Stack:
    if base.model.device.type == "cpu" and config.base == "tiny":
        torch.set_num_threads(1)
    return Stack(
        base.model, adapters, config.rank, config.alpha, config.target_layers, base.name, base.sha256
    )


def _drive(name: str, playing: Any, pair: Pair, others: Mapping[str, Engine] | None = None) -> None:
    def failed(_: str, error: Exception) -> None:
        raise error

    with held() as signals:
        drive({name: playing}, Table(pair.engine, others), failed, signals)
