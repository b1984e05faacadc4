"""Partners: who else may sit with the learner. A pool is a line of text; a cast is that pool with its players.

    pool = "self*2, base, script:terse, B=adapter:runs/other, snapshots, model:bases/other"

Entries stand between commas: an optional seat (`B=`: for that seat only), a kind, what it is of (after a colon) and a
weight (after a star, 1 if not given):

    self             the learner itself
    base             the untrained base: row 0 of the stack
    script:NAME      a scripted partner (scripts.py)
    adapter:DIR      another run's adapter, frozen: a further row of the stack, read from PEFT's format
    snapshots        the learner itself as it was, every `snapshot_every` steps: further rows of the stack
    model:DIR        the untrained model of another directory: another base behind the same table

All of them are rows of one batch (a model directory: of its own batch in the same call). A draw seats a learner
first, in a seat across from which there is a guest, and then draws every other seat's player by weight. Guests never
train.

Left out: when a draw is made (methods.py), and playing (train.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cotalk.base import load_base
from cotalk.chat import BASE, Player
from cotalk.engines import Engine
from cotalk.engines.choose import choose
from cotalk.errors import BadInput, brief
from cotalk.lora import Stack
from cotalk.sample import generator
from cotalk.scripts import script

KINDS = ("self", "base", "script", "adapter", "snapshots", "model")
WITH_NAME = ("script", "adapter", "model")
KEPT_SNAPSHOTS = 4  # the newest; each is a further row of the stack for every adapter of the run
ENTRY = re.compile(r"(?:(?P<seat>[A-Z])=)?(?P<kind>\w+)(?::(?P<of>[^*]+))?(?:\*(?P<weight>[0-9.]+))?")


@dataclass(frozen=True)
class Entry:
    """One entry of a pool. seat: the only seat it may take, "" for any."""

    kind: str
    of: str = ""
    weight: float = 1.0
    seat: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.of}" if self.of else self.kind


def read_pool(text: str) -> tuple[Entry, ...]:
    """The entries of a pool; BadInput says which one cannot be read."""
    return tuple(_entry(part.strip()) for part in text.split(",")) if text.strip() else ()


def _entry(text: str) -> Entry:
    found = ENTRY.fullmatch(text)
    kind, of, weight = (
        (found["kind"], (found["of"] or "").strip(), found["weight"] or "1") if found else ("",) * 3
    )
    try:
        heavy = float(weight or "nan")
    except ValueError:
        heavy = float("nan")
    if found is None or kind not in KINDS or bool(of) != (kind in WITH_NAME) or not heavy > 0:
        raise BadInput(
            f"pool entry {brief(text)}: expected self, base, snapshots, script:NAME, adapter:DIR or model:DIR, "
            'before it a seat such as "B=" and after it a weight such as "*2" if you like: pool = "self*2, base, '
            'B=script:terse"',
            "pool/entry",
        )
    return Entry(kind, of, heavy, found["seat"] or "")


@dataclass(frozen=True)
class Guest:
    """A partner that a draw may seat. players: who takes which seat; empty for `self`: the learners stay."""

    name: str
    weight: float
    players: Mapping[str, Player] = field(default_factory=dict)


@dataclass(frozen=True)
class Cast:
    """A run's own players, and for each seat the guests that may take it (none: the seat is always the learner's)."""

    own: dict[str, Player]
    guests: Mapping[str, Sequence[Guest]] = field(default_factory=dict)

    @property
    def hosts(self) -> list[str]:
        """Seats across from which a guest may sit: one of them is kept for a learner at every draw."""
        return [s for s in self.own if any(self._strangers(other) for other in self.own if other != s)]

    def _strangers(self, seat: str) -> bool:
        return any(guest.players for guest in self.guests.get(seat, ()))


def seated(cast: Cast, *key: str | int) -> dict[str, Player]:
    """One draw: a learner in a drawn seat, every other seat by its pool's weights. The same key draws the same."""
    hosts = cast.hosts
    if not hosts:
        return cast.own
    random = generator("partners", *key)
    host = hosts[int(random.integers(len(hosts)))]
    players = dict(cast.own)
    for seat in sorted(cast.own):
        guests = cast.guests.get(seat, ())
        u = random.random() * sum(guest.weight for guest in guests)
        if seat == host or not guests:
            continue
        for guest in guests:
            u -= guest.weight
            if u < 0:
                break
        players[seat] = guest.players.get(seat, cast.own[seat])
    return players


def strangers(players: Mapping[str, Player]) -> tuple[tuple[str, str], ...]:
    """Who sits where among those that do not learn: the kind of table that a chat was played at."""
    return tuple(sorted((seat, player.name) for seat, player in players.items() if not player.learns))


# --- opening a pool: rows of the stack, scripts, other bases ------------------------------------------------------


def rows_of_pool(pool: Sequence[Entry], own: Mapping[str, int]) -> int:
    """Rows of the stack that a pool takes beside the learner's own (seat -> row)."""
    adapters = sum(
        len(adapters_in(Path(entry.of), "".join(own))) for entry in pool if entry.kind == "adapter"
    )
    snapshots = sum(entry.kind == "snapshots" for entry in pool)
    return adapters + snapshots * KEPT_SNAPSHOTS * len(set(own.values()))


class Guests:
    """A pool with its players, for one run whose own rows of the stack are `own` (seat -> row).

    Takes further rows of the stack from `first` on. `cast(...)` is the pool as it stands now: snapshots join it as they
    are taken. `others` are the model directories' players and engines, by name: runs of one stack that are given the
    same dictionary share what is loaded.
    """

    def __init__(
        self, pool: Sequence[Entry], own: Mapping[str, int], stack: Stack, first: int, every: int, directory: Path,
        others: dict[str, tuple[Player, Engine]] | None = None,
    ):  # fmt: skip
        self.stack, self.seats, self._pool = stack, "".join(sorted(own)), pool
        self.others = {} if others is None else others
        self.snapshots: Snapshots | None = None
        self._opened: dict[Entry, dict[str, Player]] = {}
        for entry in pool:
            if entry.kind == "snapshots":
                self.snapshots = Snapshots(stack, first, own, every, directory / "snapshots")
                first += KEPT_SNAPSHOTS * len(self.snapshots.rows)
            else:
                self._opened[entry] = self._open(entry, first)
                first += len(adapters_in(Path(entry.of), self.seats)) if entry.kind == "adapter" else 0

    def _open(self, entry: Entry, first: int) -> dict[str, Player]:
        """Who the entry seats, by seat; {} for the learner itself."""
        if entry.kind == "self":
            return {}
        if entry.kind == "adapter":
            return frozen(entry.name, Path(entry.of), self.seats, self.stack, first)
        if entry.kind == "model":
            if entry.name not in self.others:
                self.others[entry.name] = another_base(entry.of, entry.name, str(self.stack.device))
            player, _ = self.others[entry.name]
        else:
            player = BASE if entry.kind == "base" else Player(entry.name, script=script(entry.of))
        return dict.fromkeys(self.seats, player)

    @property
    def engines(self) -> dict[str, Engine]:
        """The other bases' engines by name, for `engines.Table`."""
        return {name: engine for name, (_, engine) in self.others.items()}

    def cast(self, own: dict[str, Player]) -> Cast:
        """The pool as it stands."""
        return Cast(own, {seat: self._of_seat(seat) for seat in self.seats})

    def _of_seat(self, seat: str) -> list[Guest]:
        found: list[Guest] = []
        for entry in self._pool:
            if entry.seat not in ("", seat):
                continue
            if entry.kind != "snapshots":
                found.append(Guest(entry.name, entry.weight, self._opened[entry]))
            elif self.snapshots:
                taken = self.snapshots.players()
                found += [Guest(name, entry.weight / len(taken), who) for name, who in taken.items()]
        return found


class Snapshots:
    """The learner as it was at its newest multiples of `every` steps: on disk, and in rows of the stack."""

    def __init__(self, stack: Stack, first: int, own: Mapping[str, int], every: int, directory: Path):
        self.stack, self.first, self.own, self.every, self.directory = stack, first, own, every, directory
        self.rows = sorted(set(own.values()))
        self.steps: list[int] = []

    def take(self, step: int) -> None:
        """Keeps the learner as it is after this step, if one is due."""
        if step % self.every:
            return
        for row in self.rows:
            self.stack.save(row, self._path(step, row))
        self.read(step)

    def read(self, step: int) -> None:
        """Puts the newest snapshots up to this step into their rows, from disk (a resume has them too)."""
        newest = list(range(self.every, step + 1, self.every)[-KEPT_SNAPSHOTS:])
        for one in newest:
            if one not in self.steps:
                for row in self.rows:
                    self.stack.load(self._copy(one, row), self._path(one, row))
        self.steps = newest

    def players(self) -> dict[str, dict[str, Player]]:
        """{name: who takes which seat} of each snapshot."""
        return {
            f"snapshot:{step}": {
                seat: Player(f"snapshot:{step}", self._copy(step, row)) for seat, row in self.own.items()
            }
            for step in self.steps
        }

    def _copy(self, step: int, row: int) -> int:
        """The row that holds a learner's row as it was: the newest takes the place of the oldest."""
        place = step // self.every % KEPT_SNAPSHOTS
        return self.first + place * len(self.rows) + self.rows.index(row)

    def _path(self, step: int, row: int) -> Path:
        return self.directory / f"step-{step:06d}" / f"adapter_{self.rows.index(row)}"


def frozen(name: str, directory: Path, seats: str, stack: Stack, first: int) -> dict[str, Player]:
    """Another run's adapters as players, read into rows of the stack from `first` on."""
    players: dict[str, Player] = {}
    for row, (where, taken) in enumerate(adapters_in(directory, seats).items(), start=first):
        stack.load(row, where)
        players |= {seat: Player(name, row) for seat in taken}
    return players


def another_base(name: str, player: str, device: str = "auto") -> tuple[Player, Engine]:
    """The untrained model of another base as a player, and the engine that answers for it."""
    base = load_base(name, device=device)
    engine = choose("auto", Stack(base.model, 1, rank=1, alpha=1.0), base.form.end_ids).engine
    return Player(player, model=player, form=base.form), engine


def adapters_in(path: Path, seats: str) -> dict[Path, str]:
    """{directory of an adapter: the seats it takes} of an adapter's directory or a run's."""
    for whole in (path, path / "adapter"):
        if (whole / "adapter_config.json").is_file():
            return {whole: seats}
    apart = {path / f"adapter_{seat}": seat for seat in seats}
    if all((where / "adapter_config.json").is_file() for where in apart):
        return apart
    inner = sorted(str(p.parent) for p in path.glob("runs/*/config.toml"))
    hint = f"; it is a study: give one of its runs, {', '.join(inner[:6])}" if inner else ""
    raise BadInput(
        f"adapter {path}: expected a directory in PEFT's format (adapter_config.json), or a run's directory with "
        f"adapter/ or {', '.join(where.name for where in apart)}/ in it{hint}",
        "adapter/missing",
    )
