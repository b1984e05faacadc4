"""How to learn from groups of chats: a method is three answers.

    seat(group, number, cast)   who sits where              (partner pools live here)
    wants(group)                how many more chats it needs (adaptive sampling lives here)
    credit(group)               what each message earned     (`None`: must not train; 0: earned nothing)

The learner does one credit-weighted log-likelihood for all of them and never knows which method runs. A user's own
method is `--method file.py:Class`: any class with these three and a constructor that takes the Config. A method may
have a fourth, `replays(group)`: chats of the group to be played again without one of their messages.

The published methods stand beside ours under names that end in `_published`. Formulas, figures and ablations:
docs/methods.md. Left out: pools and what sits in them (partners.py), symmetries (symmetry.py), the update (learner.py).
"""

from __future__ import annotations

import difflib
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, cast

from cotalk.chat import BASE, Chat, Message, Player
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.errors import BadInput, RunFailed, brief
from cotalk.numerals import values
from cotalk.partners import Cast, Entry, read_pool, seated, strangers
from cotalk.task import from_file


@dataclass
class Group:
    """The chats of one task in one step (one policy version). The baseline is over chats, not over messages.

    replays: {(number of a chat, turn): that chat played again with the turn's message replaced}.
    """

    deal: Deal
    chats: list[Chat] = field(default_factory=list)
    step: int = 0
    replays: dict[tuple[int, int], Chat] = field(default_factory=dict)

    @property
    def rewards(self) -> list[float]:
        return [chat.reward for chat in self.chats]

    @property
    def flat(self) -> bool:
        """All rewards equal: nothing to learn from."""
        return len(set(self.rewards)) <= 1


class Method(Protocol):
    def seat(self, group: Group, number: int, cast: Cast) -> dict[str, Player]:
        """Who sits where in the group's chat of this number; `cast`: its own players, and the guests of its pool."""
        ...

    def wants(self, group: Group) -> int:
        """How many more chats the group needs now (0: enough). Asked again when they were played and graded."""
        ...

    def credit(self, group: Group) -> None:
        """Fills in `message.credit` of every message of the group."""
        ...


# --- what is paid, and against what -------------------------------------------------------------------------------


# What a chat pays a message of this seat and turn (its own message, or that of another chat of the group).
Worth = Callable[[Chat, Message], float]


def team(chat: Chat, message: Message) -> float:
    """The team's reward, whoever speaks."""
    return chat.reward


def own(chat: Chat, message: Message) -> float:
    """The reward of the seat that speaks."""
    return chat.rewards[message.seat]


def later(chat: Chat, message: Message) -> float:
    """Of the team's reward, the part of those answers that are given at this turn or after it.

    A message cannot have changed an answer that stood before it: leaving that answer out takes away noise and no signal
    (reward to go, Sutton and Barto 2018, section 13.3).
    """
    return sum(chat.rewards[seat] for seat in due(chat, message.turn)) / len(chat.rules.seats)


def informed(chat: Chat, message: Message) -> bool:
    """Whether the seat had, before this message, heard every number that only its partners hold."""
    said = (m.said for m in chat.messages[: message.turn] if m.seat != message.seat)
    return chat.deal.lacks(message.seat) <= values(said)


def due(chat: Chat, turn: int) -> list[str]:
    """The seats that answer at this turn or after it."""
    return [seat for seat in chat.rules.seats if chat.rules.order.rindex(seat) >= turn]


PAID: dict[str, Worth] = {"team": team, "own": own, "later": later}


def fill(
    chats: Sequence[Chat], worth: Worth = team, scaled: bool = False, baseline: Sequence[Chat] = (),
    alike: Callable[[Chat, Message], object] = lambda *_: True,
) -> None:  # fmt: skip
    """Credit of every learner's message = its worth less the mean worth, at its turn, of the `baseline` chats.

    scaled: divided by the standard deviation of those (n - 1 below it, as TRL has it) plus 1e-4. baseline: all that
    were drawn, where not all of them train; `chats` if not given. alike: only the chats where this is the same count.
    """
    for chat in chats:
        for message in chat.messages:
            same = [each for each in baseline or chats if alike(each, message) == alike(chat, message)]
            pool = [worth(each, message) for each in same]
            message.credit = advantage(worth(chat, message), pool, scaled) if message.learns else None


def advantage(value: float, pool: Sequence[float], scaled: bool = False) -> float:
    """A value less the mean of its pool, over its deviation if scaled; exactly 0 where only rounding differs."""
    mean = sum(pool) / len(pool)
    found = round(value - mean, 12) + 0.0
    if not scaled or not found:
        return found
    deviation = math.sqrt(sum((each - mean) ** 2 for each in pool) / max(1, len(pool) - 1))
    return found / (deviation + 1e-4)


def untrained(chats: Iterable[Chat]) -> None:
    """These chats must not train."""
    for chat in chats:
        for message in chat.messages:
            message.credit = None


def by_table(chats: Sequence[Chat]) -> list[list[Chat]]:
    """The chats, apart by who sat where that does not learn."""
    tables: dict[Any, list[Chat]] = {}
    for chat in chats:
        tables.setdefault(strangers(chat.players), []).append(chat)
    return list(tables.values())


# --- the methods --------------------------------------------------------------------------------------------------


class GRPO:
    """Group-relative advantage, as the published recipe has it.

    Formula: credit of every message of chat i = r_i - mean(r_1..r_G), r the team's reward; G = `chats`. Options by
    their fields: `scale_rewards` (division by the deviation, as first published; without it and with a constant
    `normaliser` it is Dr. GRPO), `paid` (what r is: per seat, per turn; the mean is then over the group's messages of
    that seat and turn, as AT-GRPO groups them), `pool` (one draw a chat, and one mean for all of them).
    Paper: arXiv 2402.03300 (DeepSeekMath); without the division, as Dr. GRPO (2503.20783) argues; 2510.11062 (AT-GRPO).
    Assumes: chats of one group differ only by chance, so that their mean is a fair baseline.
    Fails: a group whose chats all scored the same teaches nothing (logged as `groups/flat`); with a pool, a chat is
    punished for having met a stranger (use `mixed`).
    """

    def __init__(self, config: Config):
        self.chats, self.seed, self.pool = config.chats, config.seed, config.pool
        self.worth, self.scaled = PAID[config.paid], config.scale_rewards

    def seat(self, group: Group, number: int, cast: Cast) -> dict[str, Player]:
        return seated(cast, self.seed, group.step, group.deal.task.id, number)

    def wants(self, group: Group) -> int:
        return self.chats - len(group.chats)

    def credit(self, group: Group) -> None:
        fill(group.chats, self.worth, self.scaled)


class RAFT(GRPO):
    """Fine-tuning on winning chats; ours: the step does not shrink with the win rate.

    Formula: credit 1 for a chat in which every seat is right, `None` (must not train) for any other. With the
    `credited` normaliser the loss is the mean over the winners' tokens, however few they are.
    Paper: RAFT, arXiv 2304.06767; 2504.11343 (it is close to GRPO without negative examples).
    Assumes: that the base wins now and then; winning chats are good throughout.
    Fails: learns nothing from losing; entropy falls fast; a half-right chat counts as lost.
    """

    def __init__(self, config: Config):
        super().__init__(config)
        if config.normaliser != "credited":
            raise BadInput(
                f'method "raft" with normaliser = {config.normaliser!r}: its step would shrink with its win rate; '
                'expected normaliser = "credited", or method "raft_published"',
                "config/method-setting",
            )

    def credit(self, group: Group) -> None:
        for chat in group.chats:
            for message in chat.messages:
                message.credit = 1.0 if message.learns and won(chat) else None


class RAFTPublished(GRPO):
    """RAFT as the published study ran it.

    Formula: credit 1 for a chat that every seat got right, 0 for any other, which a `sampled` normaliser still counts.
    Paper: RAFT, arXiv 2304.06767.
    Assumes: as `raft`.
    Fails: divided by all sampled tokens, the step is as small as the win rate: slow where it matters, at the start.
    """

    def credit(self, group: Group) -> None:
        for chat in group.chats:
            for message in chat.messages:
                message.credit = float(won(chat)) if message.learns else None


def won(chat: Chat) -> bool:
    """Every seat's answer is right."""
    return min(chat.rewards.values()) >= 1


class Ada(GRPO):
    """Reinforce-Ada by its authors' rule: draw until enough right *and* wrong was seen, then train on a balanced few.

    Formula: rounds of `round_chats`, at most `most_chats` in all, until right = sum(r) and wrong = sum(1 - r) over the
    chats drawn are each at least `chats` / 2 (a half-right chat is half of each); of all drawn, the `chats` / 2 highest
    and the `chats` / 2 lowest train (two lowest first where `chats` is odd); baseline = mean over every chat drawn.
    Paper: Reinforce-Ada, arXiv 2510.04996 (its `balance` rule and pool statistics).
    Assumes: samples are cheap beside updates. Every chat drawn is counted (`chats` in metrics.jsonl): compare at equal
    samples (`samples`) as well as at equal steps.
    Fails: early on every group runs to `most_chats`; the few that train are extremes, so that large credits are common.
    """

    def __init__(self, config: Config):
        super().__init__(config)
        self.round, self.most = config.round_chats, config.most_chats
        if not self.chats <= self.most:
            raise BadInput(
                f"most_chats = {self.most}: expected at least chats = {self.chats}", "config/method-setting"
            )

    def wants(self, group: Group) -> int:
        drawn, right = len(group.chats), sum(group.rewards)
        enough = min(right, drawn - right) >= self.chats / 2
        return 0 if drawn and enough else min(self.round, self.most - drawn)

    def credit(self, group: Group) -> None:
        balanced(group.chats, self.chats, self.worth, self.scaled)


class AdaPublished(GRPO):
    """Reinforce-Ada as the published study ran it.

    Formula: while a problem's chats all scored the same, `chats` more are played, at most three rounds in all; the
    `chats` / 2 highest and lowest of all drawn train; baseline = mean of every chat drawn.
    Paper: arXiv 2510.04996, departing from it as said.
    Assumes: any disagreement is signal enough.
    Fails: stops at the first disagreement (one right of four is one sample of how to be right), and replays
    all-right groups, which have nothing left to teach.
    """

    ROUNDS = 3

    def wants(self, group: Group) -> int:
        drawn = len(group.chats)
        return self.chats if drawn < self.chats * self.ROUNDS and group.flat else 0

    def credit(self, group: Group) -> None:
        balanced(group.chats, self.chats, self.worth, self.scaled)


def balanced(chats: Sequence[Chat], kept: int, worth: Worth, scaled: bool) -> None:
    """Credit for the highest and the lowest `kept` / 2 of these chats, against the mean of them all; the rest: None."""
    ranked = sorted(chats, key=lambda chat: (-chat.reward, chat.number))
    few = ranked if len(ranked) <= kept else ranked[: kept // 2] + ranked[len(ranked) - (kept - kept // 2) :]
    untrained(chats)
    fill(few, worth, scaled, baseline=chats)


class Mixed(GRPO):
    """Mixed partners with a fair baseline: whoever came to the table, chats are compared with those at the same table.

    Formula: a partner is drawn from the pool for every two chats of a group ("self, base" if the Config has none);
    credit = r_i - mean of r over the group's chats with the same strangers in the same seats. Strangers' turns: `None`.
    Paper: Fictitious Co-Play (arXiv 2110.08176) for the pool; the baseline per partner is ours.
    Assumes: at least two chats a partner, so that `chats` is even.
    Fails: half of a small group is a baseline of two: noisy credit.
    """

    POOL = "self, base"

    def __init__(self, config: Config):
        super().__init__(config)
        self.pool = config.pool or self.POOL
        if config.chats % 2:
            raise BadInput(
                f'chats = {config.chats} with method "mixed": expected an even number, two a partner',
                "config/method-setting",
            )

    def seat(self, group: Group, number: int, cast: Cast) -> dict[str, Player]:
        return seated(cast, self.seed, group.step, group.deal.task.id, number // 2)

    def credit(self, group: Group) -> None:
        for chats in by_table(group.chats):
            fill(chats, self.worth, self.scaled)


class MixedPublished(GRPO):
    """Mixed partners as the published study ran it.

    Formula: in the second half of a group's chats the last seat is the untrained base; one mean over all of them.
    Paper: none; the published study's own.
    Assumes: that a chat with the base could score as high as one with a twin.
    Fails: it cannot, so that meeting a stranger is punished whatever A said, and self-play is praised for nothing.
    """

    def seat(self, group: Group, number: int, cast: Cast) -> dict[str, Player]:
        return cast.own if number < self.chats / 2 else cast.own | {max(cast.own): BASE}


class LeaveOneOut(GRPO):
    """Each message against the same chat without it: what did saying this do?

    Formula: for a share `replay_share` of a group's chats, every message that a seat hears before answering (and that
    is no answer itself) is taken out, one at a time: the chat is played again, the same up to there, with (no message)
    in its place, or with what another chat of the group had there (`replay_by`). Credit = r_i - r_i without it. All
    other messages: GRPO's credit, paid `later`.
    Paper: difference rewards (Wolpert and Tumer 2001), COMA (arXiv 1705.08926); the replayed chat is a baseline that
    does not depend on the message, so that the gradient stays unbiased.
    Assumes: samples are cheap: a replay is another chat (`replayed` in metrics.jsonl).
    Fails: one replay is one sample: noisy. A fact that is said twice earns nothing either time.
    """

    def __init__(self, config: Config):
        super().__init__(config)
        self.share, self.by = config.replay_share, config.replay_by

    def replays(self, group: Group) -> list[tuple[int, int, str]]:
        """Chats to play again: (number of the chat, turn, the words that go into the channel instead)."""
        owed = []
        for chat in group.chats[: math.ceil(self.share * len(group.chats))]:
            for message in chat.messages:
                if message.learns and heard_later(chat, message.turn):
                    owed.append((chat.number, message.turn, self._instead(group, chat, message)))
        return owed

    def _instead(self, group: Group, chat: Chat, message: Message) -> str:
        if self.by == "nothing":
            return ""
        others = [c for c in group.chats if c is not chat]
        other = others[chat.number % len(others)] if others else chat
        return other.messages[message.turn].said

    def credit(self, group: Group) -> None:
        fill(group.chats, later, self.scaled)
        for chat in group.chats:
            for message in chat.messages:
                without = group.replays.get((chat.number, message.turn))
                if without is not None:
                    message.credit = round(chat.reward - without.reward, 12) + 0.0


def heard_later(chat: Chat, turn: int) -> bool:
    """Whether a message is heard by somebody who has yet to answer, and is no answer itself."""
    order = chat.rules.order
    return not chat.rules.is_last(turn) and bool(set(order[turn + 1 :]) - {order[turn]})


class Host(GRPO):
    """Ours: a host learns from its guests. One partner a group, from a pool; each message paid what comes after it.

    Formula: the group's partner is drawn once from the pool, with a seat for it, so that all its chats met the same
    strangers. At a table with a stranger all that a learner says is paid its *own* answer. Among learners a message is
    paid the answers at or after its turn (`later`), but a seat that no guest ever takes (`hosts`) learns its answers
    alone there: what it says before them it learns from guests. Credit = worth less the mean worth, at that seat and
    turn, of the group's chats in which the seat had heard as much (all the numbers that it lacks, or not): an answer
    that could not be right is compared with its like only, and neither blamed for what it was not told nor praised for
    what it was.
    Paper: Other-Play (2003.02979), Fictitious Co-Play (2110.08176) for the pool; per-seat, per-turn groups AT-GRPO
    (2510.11062); a baseline may depend on all that came before the action (Williams 1992). What is paid is ours.
    Assumes: the pool holds partners that must be asked. As shipped, guests sit in seat B: A is the host.
    Fails: a stranger that tells only who has told first (`script:trader`); guests' tables train one seat only; facts
    without numbers are not seen (all chats of a group are then compared).
    """

    POOL = "self*3, B=base*3, B=script:once*2, B=script:moody*2"

    def __init__(self, config: Config):
        super().__init__(config)
        self.pool = config.pool or self.POOL
        guests = [entry.seat for entry in read_pool(self.pool) if entry.kind != "self"]
        anywhere = not guests or "" in guests or "roles" in config.drawn
        self.hosts = set() if anywhere else set(config.rules.seats) - set(guests)

    def seat(self, group: Group, number: int, cast: Cast) -> dict[str, Player]:
        return seated(cast, self.seed, group.step, group.deal.task.id)

    def credit(self, group: Group) -> None:
        for chats in by_table(group.chats):  # one table, unless roles are drawn
            fill(chats, paid_to_a_host, self.scaled, alike=informed)
        for chat in group.chats:
            if strangers(chat.players):
                continue
            for message in chat.messages:
                if message.seat in self.hosts and not chat.rules.is_last(message.turn):
                    message.credit = None


def paid_to_a_host(chat: Chat, message: Message) -> float:
    return own(chat, message) if strangers(chat.players) else later(chat, message)


METHODS: dict[str, Any] = {
    "grpo": GRPO,
    "raft": RAFT,
    "raft_published": RAFTPublished,
    "ada": Ada,
    "ada_published": AdaPublished,
    "mixed": Mixed,
    "mixed_published": MixedPublished,
    "leave_one_out": LeaveOneOut,
    "host": Host,
}
ANSWERS = ("seat", "wants", "credit")


def method(config: Config) -> Method:
    """The method a config names: one of METHODS, or a class in a file of the user's."""
    name = config.method
    if name in METHODS:
        return METHODS[name](config)
    try:
        made = _from_file(name)(config)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"method {name!r}: {_where(error)}; expected a constructor that takes the Config",
            "method/not-loaded",
        ) from error
    missing = [answer for answer in ANSWERS if not callable(getattr(made, answer, None))]
    if missing:
        raise BadInput(
            f"method {name!r} has no {', no '.join(missing)}: expected {', '.join(ANSWERS)}",
            "method/not-loaded",
        )
    return cast(Method, _Own(name, made))


class _Own:
    """A user's method, whose errors are told with their file and line."""

    def __init__(self, name: str, made: Any):
        self._name, self._made = name, made

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._made, name)
        return partial(self._answer, name, found) if name in (*ANSWERS, "replays") else found

    def _answer(self, what: str, answer: Callable[..., Any], *given: Any) -> Any:
        try:
            found = answer(*given)
        except Exception as error:
            raise RunFailed(
                f"method {self._name!r}: its {what} failed: {_where(error)}", "method/failed"
            ) from error
        if wrong := _wrong(what, found, *given):
            raise RunFailed(f"method {self._name!r}: its {what} {wrong}", "method/failed")
        return found


def _wrong(what: str, found: Any, group: Group, *more: Any) -> str:
    """What is wrong with an answer of a user's method, "" where nothing is."""
    if what == "seat":
        seats = more[1].own
        good = isinstance(found, Mapping) and set(found) == set(seats)
        if not good or not all(isinstance(player, Player) for player in found.values()):
            return (
                f"returned {brief(found)}: expected {{seat: Player}} of {', '.join(seats)}, such as cast.own"
            )
    if what == "wants" and (not isinstance(found, Integral) or found < 0):
        return (
            f"returned {brief(found)}: expected how many more chats the group needs, a whole number from 0 on"
        )
    if what == "credit":
        credits = [message.credit for chat in group.chats for message in chat.messages]
        if odd := [c for c in credits if c is not None and not hasattr(c, "__float__")]:
            return (
                f"left a message with credit {brief(odd[0])}: expected a number, or None (it must not train)"
            )
    return ""


def _where(error: Exception) -> str:
    """An error with the last place in a file of the user's, or the last place at all."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def pool_of(made: Method, config: Config) -> tuple[Entry, ...]:
    """The pool that a run plays with: the method's own where the Config names none."""
    seats = config.rules.seats
    pool = read_pool(getattr(made, "pool", config.pool))
    if wrong := sorted({entry.seat for entry in pool} - set(seats) - {""}):
        raise BadInput(
            f"pool names the seat {wrong[0]}: expected one of {', '.join(seats)}, as the order has",
            "pool/entry",
        )
    return pool


def _from_file(name: str) -> Any:
    path = name.rpartition(":")[0]
    if not path.endswith(".py"):
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise BadInput(
            f"method {name!r} is not known{hint}: expected one of {', '.join(METHODS)}, or file.py:Class",
            "method/not-loaded",
        )
    if not Path(path).is_file():
        raise BadInput(
            f"method {name!r}: there is no file {path!r}; expected file.py:Class", "method/not-loaded"
        )
    found = from_file(name)
    if not isinstance(found, type):
        raise BadInput(
            f"method {name!r} is {found!r}: expected a class whose constructor takes the Config",
            "method/not-loaded",
        )
    return found
