"""The engine of scripted players: a script is a function from what a seat knows to what it says.

Scripts have known behaviour, so every measure can be tested against the truth, offline and in milliseconds; they
are partners in pools too. A script's messages have no ids and never train.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotalk.chat import Reply, View
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
    heard = [line.words for line in scene.lines if line.speaker is not None]
    return " ".join(scene.facts) if any("?" in words for words in heard) else "What do you know?"


SCRIPTS = {"silent": silent, "sender": sender, "asker": asker}
