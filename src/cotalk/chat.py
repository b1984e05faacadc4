"""Seats, players, messages, chats, and `converse`: how a chat is played. The file to read first.

The conversation owns the control flow. `converse` plays many chats turn by turn: it *yields* the views that need a
reply and *receives* the replies, and knows nothing of engines, adapters or graders:

    views -> (whoever drives the generator asks an engine) -> replies -> messages -> the next turn's views

Each message keeps what was said, what was heard, and the token ids exactly as given to the engine and as sampled
(they are never rebuilt from text). A message's credit is `None` until a method fills it in: `None` must not train,
which is not the same as 0.

Left out: who sits where (methods.py), what is heard (channel.py), how a prompt reads (view.py), grading (grade.py).
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotalk.channel import channel
from cotalk.deal import Deal
from cotalk.errors import BadInput, brief
from cotalk.grade import Grade
from cotalk.sample import key
from cotalk.view import VIEWS, ChatFormat, Line, Scene, one_line

Script = Callable[[Scene], str]


def seats_of(order: str) -> str:
    """The seats of an order, "ABAB" -> "AB". Refuses an empty order, other letters, and a gap such as "AC"."""
    seats = "".join(sorted(set(order)))
    if not seats or seats != string.ascii_uppercase[: len(seats)]:
        raise BadInput(
            f'order {brief(order)} cannot be played: expected capital letters from A on without a gap, such as "ABAB" '
            'for two seats with two turns each, or "ABCABC" for three',
            "order/unplayable",
        )
    return seats


@dataclass(frozen=True)
class Player:
    """Who sits in a seat: row `adapter` of the stack (0: the untrained base), a script, or another base.

    learns: its messages are trained (only the run's own learner). model, form: another base behind the same table,
    by its name there, and how its prompts read.
    """

    name: str
    adapter: int = 0
    script: Script | None = None
    learns: bool = False
    model: str = ""
    form: ChatFormat | None = None


BASE = Player("base")


@dataclass(frozen=True)
class Rules:
    """How a chat is played. Token budgets are per turn: a seat's last turn is its answer."""

    order: str = "ABAB"
    view: str = "dialogue"
    channel: str = "open"
    message_tokens: int = 160
    answer_tokens: int = 384
    temperature: float = 0.9

    def __post_init__(self) -> None:
        seats_of(self.order)
        channel(self.channel)
        if self.view not in VIEWS:
            raise BadInput(
                f"view {self.view!r} is not known: expected one of {', '.join(VIEWS)}", "config/choice"
            )
        if self.message_tokens < 1 or self.answer_tokens < 1:
            raise BadInput(
                f"token budgets message_tokens={self.message_tokens}, answer_tokens={self.answer_tokens}: "
                "expected at least 1 each",
                "config/range",
            )
        if not 0 <= self.temperature < float("inf"):
            raise BadInput(f"temperature={self.temperature}: expected 0 (greedy) or more", "config/range")

    @property
    def seats(self) -> str:
        return seats_of(self.order)

    def is_last(self, turn: int) -> bool:
        """Whether this turn is its seat's last one (an answer)."""
        return self.order[turn] not in self.order[turn + 1 :]

    def budget(self, turn: int) -> int:
        return self.answer_tokens if self.is_last(turn) else self.message_tokens


@dataclass(frozen=True)
class View:
    """A seat whose turn it is: what it knows, and what its player needs for a reply.

    ids: the prompt's token ids (empty for a script). key: of the random numbers of this reply.
    """

    scene: Scene
    player: Player
    ids: tuple[int, ...]
    max_tokens: int
    key: int
    temperature: float


@dataclass(frozen=True)
class Reply:
    """What a player said. ids: sampled, end token included when it was sampled; logprobs: one for each id.

    cut: the token budget ended before the message did. text: only from players without ids (scripts).
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    cut: bool = False
    text: str | None = None


@dataclass
class Message:
    """One turn. prompt: the ids given to the engine; heard: what the other seats were delivered.

    heard_cut: the words did not fit the speaker's own token budget when encoded again, and were shortened. adapter: the
    row of the stack that spoke, and that its credit trains (`None`: whichever is the seat's).
    """

    seat: str
    turn: int
    said: str
    heard: str
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cut: bool
    learns: bool
    heard_cut: bool = False
    credit: float | None = None
    adapter: int | None = None


@dataclass
class Chat:
    """Everything that happened once for one task. Rewards and answers are filled in by `grade`."""

    deal: Deal
    rules: Rules
    players: dict[str, Player]
    number: int
    messages: list[Message] = field(default_factory=list)
    answers: dict[str, Grade] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0

    def last_message(self, seat: str) -> Message:
        return [m for m in self.messages if m.seat == seat][-1]

    def scene(self, turn: int) -> Scene:
        """What the seat of this turn knows before it speaks."""
        seat = self.rules.order[turn]
        past = self.messages[:turn]
        return Scene(
            seat=seat,
            seats=self.rules.seats,
            facts=self.deal.hands[seat],
            question=self.deal.question,
            lines=tuple(Line(None, m.said) if m.seat == seat else Line(m.seat, m.heard) for m in past),
            own_ids=tuple((m.prompt, m.ids, m.cut) for m in past if m.seat == seat),
            last=self.rules.is_last(turn),
        )

    def as_json(self) -> dict[str, Any]:
        """One line of chats.jsonl: words, answers, credit and counts; ids go to the token shards."""
        return {
            "task": self.deal.task.id,
            "chat": self.number,
            "order": self.rules.order,
            "channel": self.rules.channel,
            "view": self.rules.view,
            "question": self.deal.question,
            "gold": self.deal.task.gold,
            "hands": {seat: list(facts) for seat, facts in self.deal.hands.items()},
            "players": {seat: player.name for seat, player in self.players.items()},
            "messages": [
                {
                    "seat": m.seat,
                    "turn": m.turn,
                    "said": m.said,
                    "heard": m.heard,
                    "credit": finite(m.credit),
                    "cut": m.cut,
                    "heard_cut": m.heard_cut,
                    "tokens": len(m.ids),
                    "logprob": finite(round(sum(m.logprobs), 4)),
                }
                for m in self.messages
            ],
            "answers": {
                seat: {"answer": g.answer, "strict": g.strict, "lenient": g.lenient, "parsed": g.parsed,
                       "notes": list(g.notes)}
                for seat, g in self.answers.items()
            },
            "rewards": self.rewards,
            "reward": self.reward,
        }  # fmt: skip


def finite(value: float | None) -> float | None:
    """A number as JSON can hold it: None where it is NaN or infinite (dropped/*.json of a run then has it)."""
    return value if value is None or math.isfinite(value) else None


@dataclass(frozen=True)
class Seating:
    """One chat to be played: the deal, who sits where, which chat of its task, and the parts of its random key.

    replaced: for a turn, the words that go into the channel in place of what was said (causal.py).
    """

    deal: Deal
    players: dict[str, Player]
    number: int
    key: tuple[str | int | None, ...]
    replaced: Mapping[int, str] = field(default_factory=dict)


def converse(
    seatings: Sequence[Seating], rules: Rules, form: ChatFormat
) -> Generator[list[View], Sequence[Reply], list[Chat]]:
    """Plays the chats turn by turn; yields one view a chat, receives the replies in the same order.

    Raises BadInput before the first view when a deal, its players and the order do not agree, or the base cannot
    play the view.
    """
    for seating in seatings:
        _check(seating, rules, form)
    chats = [Chat(s.deal, rules, s.players, s.number) for s in seatings]
    for turn in range(len(rules.order)):
        views = [_view(chat, s, turn, form) for chat, s in zip(chats, seatings, strict=True)]
        replies = yield views
        for chat, s, view, reply in zip(chats, seatings, views, replies, strict=True):
            chat.messages.append(_message(chat, s, view, reply, form))
    return chats


def _check(seating: Seating, rules: Rules, form: ChatFormat) -> None:
    for what, seats in (("was dealt to", seating.deal.hands), ("is played by", seating.players)):
        if set(seats) != set(rules.seats):
            raise BadInput(
                f"order {rules.order!r} seats {rules.seats}, but task {seating.deal.task.id!r} {what} "
                f"{''.join(sorted(seats)) or 'nobody'}: expected the seats {rules.seats}, one each",
                "order/seats",
            )
    speaks_twice = len(rules.order) > len(rules.seats)
    if rules.view == "dialogue" and speaks_twice:
        for player in seating.players.values():
            if player.script is None:
                (player.form or form).require_dialogue()


def _view(chat: Chat, seating: Seating, turn: int, form: ChatFormat) -> View:
    scene = chat.scene(turn)
    player = chat.players[scene.seat]
    return View(
        scene=scene,
        player=player,
        ids=() if player.script else (player.form or form).prompt_ids(scene, chat.rules.view),
        max_tokens=chat.rules.budget(turn),
        key=key(*seating.key, chat.number, turn),
        temperature=chat.rules.temperature,
    )


def _message(chat: Chat, seating: Seating, view: View, reply: Reply, form: ChatFormat) -> Message:
    turn, form = len(chat.messages), view.player.form or form
    said = form.decode(reply.ids) if reply.text is None else reply.text
    short, heard_cut = form.shorten(one_line(seating.replaced.get(turn, said)), view.max_tokens)
    return Message(
        seat=view.scene.seat,
        turn=turn,
        said=said,
        heard=channel(chat.rules.channel)(short, form.words.no_message),
        prompt=view.ids,
        ids=reply.ids,
        logprobs=reply.logprobs,
        cut=reply.cut,
        learns=view.player.learns,
        heard_cut=heard_cut,
        adapter=view.player.adapter,
    )
