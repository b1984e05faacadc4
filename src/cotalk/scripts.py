"""Scripted partners for pools, and the frozen list of scripted A that the oracle ceiling is chosen from.

A script is a function from what a seat knows (`Scene`) to what it says. These solve the built-in puzzles: every fact
holds one number, and whether it is added or taken away stands in its words. On other tasks they talk as told here,
and answer with the number they hold.

    SCRIPTS["terse"]         partners: what a pool calls `script:terse`
    ORACLES["ask-again"]     candidates for seat A: how a player with perfect sums could treat a stranger
    UNSEEN                   partners that no shipped study trains with: kept for evaluation

Left out: players with rates of their own (engines/scripted.py has `Habit`), and how a ceiling is chosen (crossplay.py).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

from cotalk.chat import Script
from cotalk.deal import Deal
from cotalk.errors import BadInput
from cotalk.numerals import values
from cotalk.view import Scene

LESS = re.compile(r"\b(?:gives away|loses|sells|fewer)\b")
NUMBER = re.compile(r"\d+")
ANSWER = re.compile(r"boxed|\bMaybe\b")  # answers and guesses, which are no facts
ASK, OTHER_ASK = "What do you know?", "What are your facts?"
PLEASE = "Please use this."
MOODS = (ASK, OTHER_ASK, "Ready.", "Ok.", "Hello!", "Let us start.", "I am here.")
CHATTER = ("Ready.", "Ok.", "Let us start.")


def facts(scene: Scene) -> str:
    """The facts in the seat's hand, in a row."""
    return " ".join(scene.facts)


def told(scene: Scene) -> list[str]:
    """The sentences with a number that the others said, each once."""
    heard = [line.words for line in scene.lines if line.speaker is not None]
    facts_only = [words for words in heard if not ANSWER.search(words)]
    known = [s.strip(" :") + "." for words in facts_only for s in words.split(".") if NUMBER.search(s)]
    return [s for s in dict.fromkeys(s.removeprefix("I know: ") for s in known) if s not in scene.facts]


def asked(scene: Scene) -> bool:
    """Whether the last line heard asks."""
    heard = [line.words for line in scene.lines if line.speaker is not None]
    return bool(heard) and "?" in heard[-1]


def _drawn(scene: Scene) -> int:
    """A number that looks drawn, and is the same for the same chat."""
    return zlib.crc32(
        "\n".join([*scene.facts, scene.question, *(line.words for line in scene.lines)]).encode()
    )


def sent(scene: Scene) -> bool:
    """Whether the seat has said its facts."""
    return any(facts(scene) in line.words for line in scene.lines if line.speaker is None)


def solve(scene: Scene) -> str:
    """The answer out of all that is known: numbers added, or taken away where the words say so."""
    known = [*scene.facts, *told(scene)]
    numbers = [(-1 if LESS.search(s) else 1) * int(NUMBER.findall(s)[0]) for s in known if NUMBER.search(s)]
    return f"So {abs(sum(numbers))}. \\boxed{{{abs(sum(numbers))}}}"


# --- partners -----------------------------------------------------------------------------------------------------


def silent(scene: Scene) -> str:
    """Says nothing, ever."""
    return ""


def terse(scene: Scene) -> str:
    """Tells its facts, in as few words as there are, and answers from what it was told."""
    return solve(scene) if scene.last else facts(scene)


def rambling(scene: Scene) -> str:
    """Chats on, its facts in the midst of it."""
    return solve(scene) if scene.last else f"Hello! Let us start. I know: {facts(scene)} Good luck!"


def on_request(scene: Scene) -> str:
    """Tells its facts only to who asks."""
    if scene.last:
        return solve(scene)
    return facts(scene) if asked(scene) else "Ok."


def once(scene: Scene) -> str:
    """Tells its facts to who asks, once; else it guesses any number, or chats (drawn by the chat)."""
    if scene.last:
        return solve(scene)
    if asked(scene) and not sent(scene):
        return facts(scene)
    drawn = _drawn(scene)
    return CHATTER[drawn // 100 % len(CHATTER)] if drawn % 4 == 0 else f"Maybe {1 + drawn // 100 % 99}."


def slow(scene: Scene) -> str:
    """Tells its facts to who asks a second time, or waits for its second message."""
    if scene.last:
        return solve(scene)
    own = [line for line in scene.lines if line.speaker is None]
    return facts(scene) if own and asked(scene) else "Ready."


def moody(scene: Scene) -> str:
    """Tells its facts to who asks, six times in ten; else it chats, guesses any number, or asks (drawn by the chat)."""
    if scene.last:
        return solve(scene)
    drawn = _drawn(scene)
    if asked(scene) and drawn % 10 < 6:
        return facts(scene)
    chatter = (f"Maybe {1 + drawn // 100 % 99}.", *MOODS)
    return chatter[0] if drawn // 10 % 2 else chatter[drawn // 100 % len(chatter)]


def liar(scene: Scene) -> str:
    """Tells its facts with another number in each."""
    if scene.last:
        return solve(scene)
    return NUMBER.sub(lambda found: str((int(found[0]) * 7 + 11) % 90 + 5), facts(scene))


def guesser(scene: Scene) -> str:
    """Guesses a round number, whatever it was told."""
    return "Maybe \\boxed{50}" if scene.last else "Maybe 50."


def trader(scene: Scene) -> str:
    """Tells its facts only to who has told something, and asks until then."""
    if scene.last:
        return solve(scene)
    return facts(scene) if told(scene) else OTHER_ASK


def polite(scene: Scene) -> str:
    """Greets first; then tells its facts and asks for the other's."""
    if scene.last:
        return solve(scene)
    greeted = any(line.speaker is None for line in scene.lines)
    return f"{facts(scene)} {ASK}" if greeted else "Hello!"


def forgetful(scene: Scene) -> str:
    """Tells its facts when asked, asks when told, and answers with its own number only."""
    if scene.last:
        numbers = NUMBER.findall(facts(scene))
        return f"I have {numbers[0]}. \\boxed{{{numbers[0]}}}" if numbers else ""
    return facts(scene) if asked(scene) else ASK


SCRIPTS: dict[str, Script] = {
    "silent": silent,
    "terse": terse,
    "rambling": rambling,
    "on-request": on_request,
    "once": once,
    "slow": slow,
    "moody": moody,
    "liar": liar,
    "guesser": guesser,
    "trader": trader,
    "polite": polite,
    "forgetful": forgetful,
}
UNSEEN = ("trader", "polite", "forgetful")


def script(name: str) -> Script:
    """The scripted partner of this name."""
    if name not in SCRIPTS:
        raise BadInput(f"script {name!r} is not known: expected one of {', '.join(SCRIPTS)}", "pool/entry")
    return SCRIPTS[name]


# --- scripted A: what could be had from a stranger ----------------------------------------------------------------


def _says(*messages: Callable[[Scene], str]) -> Script:
    """Says the first, then the second... (the last one again and again); at its last turn, answers."""

    def speak(scene: Scene) -> str:
        if scene.last:
            return solve(scene)
        turn = sum(line.speaker is None for line in scene.lines)
        return messages[min(turn, len(messages) - 1)](scene)

    return speak


def with_perfect_sums(speak: Script, deal: Deal, seat: str) -> Script:
    """The same talk, and the right answer wherever the seat was told every number that only its partners hold.

    So a ceiling is one of talking, on any task: reading and reckoning never fail.
    """
    lacks = deal.lacks(seat)

    def answer(scene: Scene) -> str:
        heard = values(line.words for line in scene.lines if line.speaker is not None)
        return f"\\boxed{{{deal.gold}}}" if scene.last and lacks <= heard else speak(scene)

    return answer


def _ask(scene: Scene) -> str:
    return ASK


def _ask_other(scene: Scene) -> str:
    return OTHER_ASK


def _please(scene: Scene) -> str:
    return f"{facts(scene)} {PLEASE}"


def _until_told(ask: Callable[[Scene], str], then: Callable[[Scene], str]) -> Callable[[Scene], str]:
    return lambda scene: then(scene) if told(scene) else ask(scene)


ORACLES: dict[str, Script] = {
    "tell": _says(facts),
    "please": _says(_please),
    "ask": _says(_ask),
    "ask-other": _says(_ask_other),
    "ask-then-tell": _says(_ask, _please),
    "tell-then-ask": _says(facts, _ask),
    "tell-and-ask": _says(lambda scene: f"{facts(scene)} {ASK}"),
    "ask-and-please": _says(
        lambda scene: f"{ASK} {_please(scene)}"
    ),  # the best one of the first measurements
    "ask-again": _says(_until_told(_ask, _please)),
    "ask-both-ways": _says(_until_told(_ask, _please), _until_told(_ask_other, _please)),
    "tell-then-ask-again": _says(facts, _until_told(_ask, _please)),
}
