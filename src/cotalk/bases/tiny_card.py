"""What the tiny base does, measured, and the model card that says so.

The base plays puzzles of a seed of its own, sampled at temperature 1 in the dialogue view, with the caps of
the quickstart: the whole problem in one hand, chats with the channel open and closed, and half hands. Every
number is a mean over tasks with a 95% interval (stats.py). Left out: everything about training
(make_tiny.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    turn = {"full": full_hand, "": lambda deal: deal}.get(
        condition.hand, lambda deal: half_hand(deal, condition.hand)
    )
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
    return {
        name: [row.get(name, float("nan")) for row in rows]
        for name in sorted({n for row in rows for n in row})
    }


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


# --- the card ---

ELSEWHERE = "Another machine meets the same marks, not the same bytes."
CARD = """# Cotalk's tiny base

A {parameters:,}-parameter Llama-family model with a tokenizer of its own, trained from scratch by
`cotalk base tiny` on {rows:,} rows ({tokens:,} tokens) of generated text, each seen once.
It reads small word problems, adds and subtracts up to two digits, and chats in the `dialogue` view with the
`short` wording. It exists so that the quickstart runs offline on a laptop: what it shows is the mechanics of
learning to talk, not a fact about large models. It knows nothing else.

**What it does in a chat before reinforcement learning is a mixture of habits**, written down as rates in
`tiny.toml` and drawn whatever comes of them: nothing in its training rewards telling, and it is indifferent
about talking. The seat that it hears in its text talks more than it does itself, so that reading is
practised; those words are never learned.

Made on: {made_on}, {seconds} s, torch {torch}. {elsewhere}
Seeds: weights {seed}, text {text_seed}, measurements {measure_seed}.
Of the puzzles drawn for the text, {dropped_puzzles} were dropped: they are among the first 4,096 of the
train, dev or held-out stream. SHA-256 of model.safetensors:
`{sha256}`.

## Measured

Puzzles with two facts of a seed of their own (none of train, dev or held-out), sampled at temperature 1 with
2 chats a puzzle (greedy: 1), order ABAB, caps {message_tokens} and {answer_tokens} tokens; right
is a last box that holds the gold answer. Means over tasks with 95% intervals.

| condition | score | 95% | tasks |
|---|---|---|---|
{scores}

## Habits

What `tiny.toml` asks for, and what the model was seen to do in the open chats above.

| situation | habit | asked for | seen | 95% | tasks |
|---|---|---|---|---|---|
{habits}

`told`: it has heard all that it lacks; `pleased`: and "Please use this."; `untold`: neither. Given that it
was told and uses what it heard, its answer is right {right}.
"""


def card(about: dict[str, Any], table: dict[str, Any], measured: dict[str, Rate]) -> str:
    """README.md of the base."""
    scores = [f"| {c.label} | {_cells(measured[name])} |" for name, c in CONDITIONS.items()]
    seen = measured.get("habit/right when used")
    right = (
        "never"
        if seen is None
        else f"{seen.mean:.1%} of the time [{seen.low:.1%}, {seen.high:.1%}], {seen.n} tasks"
    )
    return CARD.format(
        **about, elsewhere=ELSEWHERE, torch=about["versions"]["torch"], message_tokens=MESSAGE_TOKENS,
        answer_tokens=ANSWER_TOKENS, scores="\n".join(scores), habits="\n".join(_habit_rows(table, measured)),
        right=right,
    )  # fmt: skip


def _habit_rows(table: dict[str, Any], measured: dict[str, Rate]) -> list[str]:
    rows = []
    for situation, rates in table["text"]["habits"]["self"].items():
        for habit, rate in (
            {"use": 0.0} | rates if situation in ("told", "pleased", "untold") else rates
        ).items():
            seen = measured.get(f"habit/{situation}/{habit}")
            if seen is not None:
                rows.append(f"| {situation} | {habit} | {rate:.2f} | {_cells(seen)} |")
    return rows


def _cells(rate: Rate) -> str:
    return f"{rate.mean:.3f} | {rate.low:.3f} - {rate.high:.3f} | {rate.n}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
