r"""A seat at the table: a person, or a script on stdin, talks with a trained model.

Whoever sits down gets a hand of a held-out task, takes the turns of one seat, and answers like any other seat (with
\boxed{}, or with a number alone). All other seats are played by the run's own adapters, by the untrained base, or by
another run's. When all have answered, everybody is graded, and the same deal is played once more by the untrained
base alone, with the same random keys: what the talk would have been without training.

To the rest of the package a person is a player with a script whose words come from elsewhere.

    sit(Path("runs/quickstart/runs/open-17"), "B", Terminal(console), seed=3)

Left out: anything that is kept on disk; `--json` prints whole chats, as chats.jsonl has them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from rich.columns import Columns
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from cotalk.base import load_base
from cotalk.chat import BASE, Chat, Player, Reply, Rules, Seating, View, converse
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.engines import Engine, Table
from cotalk.engines.choose import choose
from cotalk.errors import BadInput
from cotalk.grade import load_grader
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.preflight import prepare
from cotalk.report import chats
from cotalk.report.words import shown
from cotalk.run import RunDirectory, config_of
from cotalk.sample import generator
from cotalk.single import adapters_in
from cotalk.stack import drive
from cotalk.train import grade
from cotalk.view import ChatFormat, Scene, one_line

NUMBER_ALONE = re.compile(r"[-+$€£¥]*\s*[0-9.][0-9.,/ ]*%?(\s+[^\W\d_]+)?")
SEAT_STYLES = ("cyan", "yellow", "magenta", "green", "blue")


class Left(Exception):
    """Whoever sat here stood up."""


@dataclass(frozen=True)
class Place:
    """What a person knows on sitting down: the seat, its hand, who plays the others, and the rules."""

    seat: str
    deal: Deal
    partner: str
    rules: Rules

    @property
    def turns(self) -> int:
        return self.rules.order.count(self.seat)


class Guest(Protocol):
    """Whoever sits at the table. Words come in, events go out.

    again: whether another task is wanted after `played` of them. say: what is said now; raises Left to stand up.
    """

    def waits(self, what: str) -> AbstractContextManager[Any]: ...
    def begins(self, place: Place) -> None: ...
    def say(self, scene: Scene, rules: Rules) -> str: ...
    def shortened(self, heard: str, tokens: int) -> None: ...
    def ends(self, place: Place, chat: Chat, base: Chat) -> None: ...
    def again(self, played: int) -> bool: ...


@dataclass(frozen=True)
class Team:
    """Who plays the other seats: players by seat, and what to call them."""

    name: str
    players: dict[str, Player]


@dataclass(frozen=True)
class Thinking:
    """An engine whose waits a guest is told of."""

    engine: Engine
    guest: Guest

    def reply(self, batches: Sequence[Sequence[View]]) -> list[list[Reply]]:
        with self.guest.waits("thinking"):
            return self.engine.reply(batches)


# --- sitting down -----------------------------------------------------------------------------------------------


def sit(run: Path, seat: str, guest: Guest, partner: str = "", task: str = "", seed: int = 0) -> None:
    """Plays held-out tasks of a run with a guest in one seat.

    Args:
        partner: "" for the run itself, "base", or another run's directory (of the same base).
        task: the id of the first task; drawn with `seed` if "".
    """
    config = config_of(run, "RUN")
    if seat not in config.rules.seats or len(seat) != 1:
        raise BadInput(
            f"--seat {seat!r}: expected one of {', '.join(config.rules.seats)} (order {config.order} of {run})",
            "order/seats",
        )
    with guest.waits("loading"):
        engine, form, team = _table(run, config, partner, guest)
        deals = _in_order(prepare(config).heldout, task, seed)
    grader = load_grader(config.grade) if config.grade else None
    for played, deal in enumerate(deals):
        if played and not guest.again(played):
            return
        place = Place(seat, deal, team.name, config.rules)
        guest.begins(place)
        person = Player("person", script=_words_of(guest, config.rules, form))
        seated = {**dict.fromkeys(config.rules.seats, BASE), **team.players, seat: person}
        both = [_play(deal, players, seed, config, engine, form) for players in (seated, {})]
        grade(both, config.graded, grader)
        guest.ends(place, *both)


def _table(run: Path, config: Config, partner: str, guest: Guest) -> tuple[Engine, ChatFormat, Team]:
    """The engine with whoever plays the other seats on its stack."""
    other = Path(partner) if partner not in ("", "base") else run
    playing = config if other == run else config_of(other, "--partner")
    if set(playing.rules.seats) != set(config.rules.seats):
        raise BadInput(
            f"--partner {partner} seats {playing.rules.seats}, {run} {config.rules.seats}: expected the same",
            "order/seats",
        )
    base = load_base(config.base, config.dtype, config.device, config.wording)
    if base.model.device.type == "cpu" and config.base == "tiny":
        torch.set_num_threads(1)
    adapters = len(playing.rules.seats) if playing.adapters == "per_seat" else 1
    stack = Stack(
        base.model, adapters, playing.rank, playing.alpha, playing.target_layers, base.name, base.sha256
    )
    team = Team("the untrained base", {}) if partner == "base" else _team(other, playing, stack)
    return Table(Thinking(choose("auto", stack, base.form.end_ids).engine, guest)), base.form, team


def _team(run: Path, config: Config, stack: Stack) -> Team:
    """A run's players: its saved adapters, or while it trains those of its newest checkpoint."""
    seats = config.rules.seats
    own = {seat: 1 + (i if config.adapters == "per_seat" else 0) for i, seat in enumerate(seats)}
    directory = RunDirectory(run)
    if not directory.done and list((run / "checkpoints").glob("*-*.safetensors")):
        step = directory.load_checkpoint(Learner(stack, own, config))
        told = f"the model of {run.name} after step {step} of {config.steps}"
    else:
        for where, seated in adapters_in(run, seats).items():
            stack.load(own[seated[0]], where)
        told = f"the trained model ({run.name})"
    return Team(told, {seat: Player("trained", k) for seat, k in own.items()})


def _in_order(deals: Sequence[Deal], task: str, seed: int) -> Iterator[Deal]:
    """Every task once, in an order drawn with the seed; `task` first if it is named."""
    named = {deal.task.id: deal for deal in deals}
    if task and task not in named:
        raise BadInput(
            f"--task {task!r} is not held out here; expected one such as {', '.join(list(named)[:3])}",
            "task/not-held-out",
        )
    order = [deals[i] for i in generator("seat", seed).permutation(len(deals))]
    yield from [named[task]] if task else []
    yield from (deal for deal in order if deal.task.id != task)


def _words_of(guest: Guest, rules: Rules, form: ChatFormat) -> Callable[[Scene], str]:
    """The script of a person: asks the guest, puts a number alone into a box, tells what the partner will not hear."""

    def script(scene: Scene) -> str:
        said = guest.say(scene, rules)
        said = boxed(said) if scene.last else said
        budget = rules.answer_tokens if scene.last else rules.message_tokens
        heard, short = form.shorten(one_line(said), budget)
        if short:
            guest.shortened(heard, budget)
        return said

    return script


def boxed(answer: str) -> str:
    r"""An answer as a model would give it: a number alone goes into a box, anything else stays as it is."""
    answer = answer.strip()
    return f"\\boxed{{{answer}}}" if NUMBER_ALONE.fullmatch(answer) else answer


def _play(
    deal: Deal, players: dict[str, Player], seed: int, config: Config, engine: Engine, form: ChatFormat
) -> Chat:
    """One chat; by the untrained base in every seat that nobody takes. The keys do not depend on who plays."""

    def failed(_: str, error: Exception) -> None:
        raise error

    everybody = dict.fromkeys(config.rules.seats, BASE) | players
    seating = Seating(deal, everybody, 0, (seed, "seat", "", 0, None, deal.task.id))
    found: list[Chat] = drive({"": converse([seating], config.rules, form)}, engine, failed)[""]
    return found[0]


# --- a person at a terminal -------------------------------------------------------------------------------------


class Terminal:
    """A person at a terminal, or lines on stdin that are not to be told in JSON.

    limit: tasks to play; 0: one, and whoever sits at a terminal is asked for more.
    """

    def __init__(self, console: Console, stdin: IO[str] | None = None, limit: int = 0):
        self._console, self._stdin, self._limit = console, stdin or sys.stdin, limit
        self._asks = self._stdin.isatty()
        self._told = 0

    def waits(self, what: str) -> AbstractContextManager[Any]:
        return self._console.status(f"{what} …") if self._console.is_terminal else nullcontext()

    def begins(self, place: Place) -> None:
        self._told = 0
        facts = [Text.assemble("• ", shown(fact)) for fact in place.deal.hands[place.seat]]
        known = Group(*facts, Text(), Text(shown(place.deal.question), "bold"))
        self._console.print(Panel(known, title=f"You are {place.seat}. Your hand", title_align="left"))
        last = "your last one answers" if place.turns > 1 else "it answers"
        turns = f"{place.turns} turns" if place.turns > 1 else "one turn"
        self._console.print(
            Text(
                f"Order {place.rules.order}, with {place.partner}. You have {turns}; {last}. Ctrl-D leaves.",
                "dim",
            )
        )

    def say(self, scene: Scene, rules: Rules) -> str:
        for line in scene.lines[self._told :]:
            if line.speaker is not None:
                self._console.print(_spoken(line.speaker, shown(line.words), scene.seats))
        self._told = len(scene.lines) + 1
        wanted = r"your answer: a number, or words that end in \boxed{}" if scene.last else "your message"
        self._console.print(Text(f"{scene.seat}, {wanted}:", "dim"))
        said = self._line()
        while self._asks and scene.last and "boxed{" not in boxed(said):
            self._console.print(
                Text(r"There is no number in a box. Type the number alone, or \boxed{7}:", "yellow")
            )
            said = self._line()
        return said

    def _line(self) -> str:
        if self._asks:
            import readline  # noqa: F401  # arrow keys

            try:
                return input("> ")
            except EOFError:
                raise Left from None
        said = _read(self._stdin)
        self._console.print(Text(f"> {shown(said)}"))
        return said

    def shortened(self, heard: str, tokens: int) -> None:
        told = f"That was more than {tokens} tokens, all that a message may have. Heard: {shown(heard)}"
        self._console.print(Text(told, "yellow"))

    def ends(self, place: Place, chat: Chat, base: Chat) -> None:
        for message in chat.messages[self._told :]:
            self._console.print(_spoken(message.seat, shown(message.said), place.rules.seats))
        self._console.print(_outcome(place, chat))
        self._console.print(
            Columns(
                [
                    _transcript(chat, f"You as {place.seat}, with {place.partner}"),
                    _transcript(base, "The same deal, played by the untrained base"),
                ],
                equal=True,
                expand=True,
            )
        )

    def again(self, played: int) -> bool:
        if self._limit or not self._asks:
            return played < max(1, self._limit)
        self._console.print(Text("Another task? [Y/n]", "dim"))
        return self._line().strip().lower() in ("", "y", "yes")


def _spoken(seat: str, words: str | Text, seats: str) -> Text:
    return Text.assemble((f"{seat}: ", f"bold {_style(seat, seats)}"), words or "(nothing)")


def _style(seat: str, seats: str) -> str:
    return SEAT_STYLES[seats.index(seat) % len(SEAT_STYLES)]


def _coloured(segments: Sequence[str | list[str]], seats: str) -> Text:
    """A text of the viewer's JSON (report/chats.py): each number in the colour of the hand it came from."""
    styles = {seat: f"bold {_style(seat, seats)}" for seat in seats} | {"!": "red underline"}
    parts = [s if isinstance(s, str) else (s[0], styles.get(s[1], "bold")) for s in segments]
    return Text.assemble(*parts)


def _outcome(place: Place, chat: Chat) -> Group:
    """Right or wrong for each seat and for the team, and everybody's hand."""
    seats, deal = place.rules.seats, place.deal
    right = [seat for seat in seats if chat.rewards[seat] > 0]
    hands = chats.shown_task(chat.as_json())["hands"]
    table = RichTable(box=None, pad_edge=False, show_header=False)
    for seat in seats:
        answer = shown(chat.answers[seat].answer or "no answer", 60)
        verdict = Text("right", "green") if seat in right else Text("wrong", "red")
        you = " (you)" if seat == place.seat else ""
        facts = Text(" ").join(_coloured(fact, seats) for fact in hands[seat])
        table.add_row(Text(f"{seat}{you}", f"bold {_style(seat, seats)}"), verdict, Text(answer), facts)
    told = f"The team: {len(right)} of {len(seats)} right. The answer is {shown(deal.task.gold, 60)}."
    style = "bold green" if len(right) == len(seats) else "bold red" if not right else "bold yellow"
    return Group(Text(), Text(told, style), table)


def _transcript(chat: Chat, title: str) -> Panel:
    seats, lines = chat.rules.seats, []
    for message in chats.shown_chat(chat.as_json())["messages"]:
        lines.append(_spoken(message["seat"], _coloured(message["said"], seats), seats))
        if "heard" in message:
            lines.append(Text("   heard: ", "dim") + _coloured(message["heard"], seats))
    right = ", ".join(f"{s} {'right' if r > 0 else 'wrong'}" for s, r in sorted(chat.rewards.items()))
    return Panel(Group(*lines), title=title, title_align="left", subtitle=right, subtitle_align="left")


# --- a script -----------------------------------------------------------------------------------------------------


class JsonLines:
    """A script that talks through pipes: one JSON event a line goes out, one line of words a turn comes in.

    Events: "deal" (the hand), "heard" (one message), "turn" (a line is awaited), "shortened", "end" (both chats).
    """

    def __init__(self, stdin: IO[str], stdout: IO[str], limit: int = 0):
        self._stdin, self._stdout, self._limit = stdin, stdout, limit
        self._told = 0

    def _tell(self, event: str, **what: Any) -> None:
        self._stdout.write(json.dumps({"event": event, **what}) + "\n")
        self._stdout.flush()

    def waits(self, what: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def begins(self, place: Place) -> None:
        self._told = 0
        self._tell(
            "deal", task=place.deal.task.id, seat=place.seat, hand=list(place.deal.hands[place.seat]),
            question=place.deal.question, order=place.rules.order, partner=place.partner,
            message_tokens=place.rules.message_tokens, answer_tokens=place.rules.answer_tokens,
        )  # fmt: skip

    def say(self, scene: Scene, rules: Rules) -> str:
        for turn, line in enumerate(scene.lines):
            if turn >= self._told and line.speaker is not None:
                self._tell("heard", turn=turn, seat=line.speaker, words=line.words)
        self._told = len(scene.lines) + 1
        self._tell("turn", turn=len(scene.lines), answers=scene.last)
        return _read(self._stdin)

    def shortened(self, heard: str, tokens: int) -> None:
        self._tell("shortened", heard=heard, tokens=tokens)

    def ends(self, place: Place, chat: Chat, base: Chat) -> None:
        right = {seat: reward > 0 for seat, reward in chat.rewards.items()}
        both = {"chat": chat.as_json(), "base": base.as_json()}
        self._tell("end", gold=place.deal.task.gold, right=right, reward=chat.reward, **both)

    def again(self, played: int) -> bool:
        return played < max(1, self._limit)


def _read(stdin: IO[str]) -> str:
    line = stdin.readline()
    if not line:
        raise BadInput(
            "stdin ended before the chat did: expected one line for each of your turns, the last one an answer",
            "seat/no-words",
        )
    return line.rstrip("\r\n")
