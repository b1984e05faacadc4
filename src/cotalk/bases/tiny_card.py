"""What the tiny base does, measured, and the model card that says so.

The base plays puzzles of a seed of its own, sampled at temperature 1 in the dialogue view, with the caps of the quickstart:
the whole problem in one hand, chats with the channel open and closed, and half hands. Every number is a mean over tasks
with a 95% interval (stats.py). Left out: everything about training (make_tiny.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cotalk.bases.tiny_text import ASKS, IDLES, PLEASE
from cotalk.chat import BASE, Chat, Rules, Seating, converse
from cotalk.deal import Deal, full_hand, half_hand
from cotalk.engines.hf import HfEngine
from cotalk.grade import last_box
from cotalk.lora import Stack
from cotalk.puzzles import generate
from cotalk.stats import Rate, rate_of_values
from cotalk.task import Task
from cotalk.view import ChatFormat

MESSAGE_TOKENS, ANSWER_TOKENS = 28, 36  # the quickstart's caps
Values = list[float]  # one a task


@dataclass(frozen=True)
class Condition:
    """How the base is played: order, channel, temperature, and what a deal is turned into first."""

    label: str
    order: str = "ABAB"
    channel: str = "open"
    temperature: float = 1.0
    hand: str = ""  # "full", or the seat whose hand is played alone


CONDITIONS = {
    "skyline": Condition("whole problem in one hand", order="A", hand="full"),
    "skyline_greedy": Condition("whole problem in one hand, greedy", order="A", temperature=0.0, hand="full"),
    "open": Condition("chat, channel open"),
    "open_greedy": Condition("chat, channel open, greedy", temperature=0.0),
    "closed": Condition("chat, channel closed", channel="closed"),
    "half_a": Condition("A's hand alone", order="A", hand="A"),
    "half_b": Condition("B's hand alone", order="A", hand="B"),
}


def dealt(task: Task) -> Deal:
    """Facts round-robin to two seats."""
    return Deal(task, task.facts, task.question, {"A": task.facts[::2], "B": task.facts[1::2]})


def measure(model: Any, form: ChatFormat, seed: int, tasks: int = 400, chats: int = 2) -> dict[str, Rate]:
    """Name -> rate: scores of CONDITIONS, and the habits seen in open chats (`habit/...`)."""
    engine = HfEngine(Stack(model, adapters=1, rank=1), form.end_ids)
    deals = [dealt(task) for task in generate(seed, tasks)]
    found: dict[str, Rate] = {}
    for name, condition in CONDITIONS.items():
        played = play(engine, form, deals, condition, chats)
        found[name] = rate_of_values([_mean([_score(c) for c in group]) for group in played])
        if name == "open":
            found |= {f"habit/{k}": rate_of_values(v) for k, v in habits(played).items()}
    return found


def play(
    engine: HfEngine, form: ChatFormat, deals: Sequence[Deal], condition: Condition, chats: int
) -> list[list[Chat]]:
    """The chats of each task."""
    rules = Rules(
        condition.order, "dialogue", condition.channel, MESSAGE_TOKENS, ANSWER_TOKENS, condition.temperature
    )
    turn = {"full": full_hand, "": lambda deal: deal}.get(condition.hand, lambda deal: half_hand(deal, condition.hand))
    chats = chats if condition.temperature else 1
    seatings = [
        Seating(turn(deal), {seat: BASE for seat in rules.seats}, n, ("card", condition.label, deal.task.id))
        for deal in deals
        for n in range(chats)
    ]
    game = converse(seatings, rules, form)
    views = next(game)
    while True:
        try:
            views = game.send(engine.reply([views])[0])
        except StopIteration as end:
            return [end.value[i : i + chats] for i in range(0, len(seatings), chats)]


def _score(chat: Chat) -> float:
    """The mean over seats of: the last box is the gold answer, to the letter."""
    return _mean([float(last_box(chat.last_message(s).said)[0] == chat.deal.gold) for s in chat.rules.seats])


# --- habits ---


def habit_of(said: str, held: Sequence[str]) -> str:
    """Which habit a message looks like."""
    if all(fact in said for fact in held):
        return "please" if PLEASE.format("") in said else "tell"
    if said in ASKS:
        return "ask"
    if said in IDLES:
        return "idle"
    if said.startswith("Maybe "):
        return "guess"
    return "other"


def habits(played: Sequence[Sequence[Chat]]) -> dict[str, Values]:
    """Shares of habits, one value a task, of two-seat open chats; a share of nothing is NaN."""
    rows = [_habits_of_task(group) for group in played]
    return {name: [row.get(name, float("nan")) for row in rows] for name in sorted({n for row in rows for n in row})}


def _habits_of_task(group: Sequence[Chat]) -> dict[str, float]:
    seen: dict[str, Values] = {}
    for chat in group:
        for message in chat.messages:
            seat, held = message.seat, chat.deal.hands[message.seat]
            lines = [line.words for line in chat.scene(message.turn).lines if line.speaker is not None]
            if not chat.rules.is_last(message.turn):
                situation = "asked" if lines and lines[-1] in ASKS else "message"
                habit = habit_of(message.said, held)
                for name in ("tell", "please", "ask", "guess", "idle", "other"):
                    seen.setdefault(f"{situation}/{name}", []).append(float(habit == name))
                continue
            facts = [fact for other, hand in chat.deal.hands.items() if other != seat for fact in hand]
            told = all(any(fact in line for line in lines) for fact in facts)
            pleased = told and any(PLEASE.format("") in line for line in lines)
            situation = "pleased" if pleased else "told" if told else "untold"
            uses = message.said.startswith("So ")
            seen.setdefault(f"{situation}/use", []).append(float(uses))
            if told and uses:
                right = last_box(message.said)[0] == chat.deal.gold
                seen.setdefault("right when used", []).append(float(right))
    return {name: _mean(values) for name, values in seen.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
