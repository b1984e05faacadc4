"""The engine of scripted players: a script is a function from what a seat knows to what it says.

Scripts have known behaviour, so every measure can be tested against the truth, offline and in milliseconds; they
are partners in pools too. A script's messages have no ids and never train.

    SCRIPTS["sender"]                      one of the fixed ones, by name
    Habit(send=0.7, use=0.4, seed=3)       rates of one's own: sends, uses, asks and lies with these chances
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from cotalk.chat import Reply, View
from cotalk.numerals import numbers
from cotalk.sample import generator
from cotalk.view import Scene


class ScriptedEngine:
    def reply(self, batches: Sequence[Sequence[View]]) -> list[list[Reply]]:
        return [[_speak(view) for view in batch] for batch in batches]


def _speak(view: View) -> Reply:
    if view.player.script is None:
        raise ValueError(f"player {view.player.name!r} is not scripted")
    text = view.player.script(view.scene)
    if not isinstance(text, str):
        raise TypeError(f"the script of player {view.player.name!r} returned {text!r}: expected a str")
    return Reply(text=text)


def silent(scene: Scene) -> str:
    """Says nothing, ever."""
    return ""


def sender(scene: Scene) -> str:
    """Sends its facts in every message; its last message repeats them without a box."""
    return " ".join(scene.facts)


def asker(scene: Scene) -> str:
    """Asks, and sends its facts only when it was asked."""
    return " ".join(scene.facts) if any("?" in words for words in _heard(scene)) else "What do you know?"


def parrot(scene: Scene) -> str:
    """Lists numbers, whatever was asked: what a measure must not take for reading."""
    return "1. 2. 3. 4. 5."


def adder(scene: Scene) -> str:
    """Sends its facts; at last adds its own numbers and those of each partner's first message."""
    if not scene.last:
        return " ".join(scene.facts)
    first: dict[str, str] = {}
    for line in scene.lines:
        if line.speaker is not None:
            first.setdefault(line.speaker, line.words)
    terms = _numbers_of([*scene.facts, *first.values()])
    total = _written(sum(terms, Fraction(0)))
    return f"{' + '.join(map(_written, terms))} = {total}. \\boxed{{{total}}}"


@dataclass(frozen=True)
class Habit:
    """A player with known rates. The same seed, facts and question give the same choices, whatever was heard.

    send: of each number of its facts, the chance to be in its messages before the last. use: of each number that
    it heard, the chance to be in its last message. ask: the chance that a message before the last asks first. lie:
    of each number that it would send, the chance that another one (1000..9999) stands in its place.
    """

    send: float = 1.0
    use: float = 1.0
    ask: float = 0.0
    lie: float = 0.0
    seed: int = 0

    def __call__(self, scene: Scene) -> str:
        if scene.last:
            heard = dict.fromkeys(_numbers_of(_heard(scene)))
            return self._listed(n for n in heard if self._draw(scene, "use", _written(n)) < self.use)
        sent = [n for n in _numbers_of(scene.facts) if self._draw(scene, "send", _written(n)) < self.send]
        told = [
            n if self._draw(scene, "lie", _written(n)) >= self.lie else self._other(scene, n) for n in sent
        ]
        asks = self._draw(scene, "ask", str(len(scene.lines))) < self.ask
        return " ".join(["What do you know?"] * asks + [self._listed(told)])

    def _draw(self, scene: Scene, what: str, of: str) -> float:
        """A number between 0 and 1 that this choice alone depends on."""
        return float(
            generator("habit", self.seed, what, of, scene.seat, scene.question, *scene.facts).random()
        )

    def _other(self, scene: Scene, number: Fraction) -> Fraction:
        return Fraction(1000 + int(9000 * self._draw(scene, "other", _written(number))))

    @staticmethod
    def _listed(found: Iterable[Fraction]) -> str:
        return ", ".join(map(_written, found)) or "Nothing."


def _heard(scene: Scene) -> list[str]:
    return [line.words for line in scene.lines if line.speaker is not None]


def _numbers_of(texts: Iterable[str]) -> list[Fraction]:
    return [value for text in texts for value in numbers(text)]


def _written(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):g}"


SCRIPTS: dict[str, Callable[[Scene], str]] = {
    "silent": silent,
    "sender": sender,
    "asker": asker,
    "parrot": parrot,
    "adder": adder,
}
