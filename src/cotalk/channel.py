"""What happens between said and heard. One concept: a channel turns what was said into what is heard.

`open` delivers the words, `closed` delivers "(no message)" in their place: same lines, same count, so that the
structure of the turns is the same in both arms. A speaker always keeps its own words. Narrow, noisy and swapped
channels are further functions of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable

from cotalk.errors import BadInput
from cotalk.view import one_line

Channel = Callable[[str, str], str]  # (said, the words for no message) -> heard


def open_channel(said: str, nothing: str) -> str:
    """Delivers the words, as one line; an empty message is heard as none."""
    return one_line(said) or nothing


def closed_channel(said: str, nothing: str) -> str:
    """Delivers nothing."""
    return nothing


CHANNELS: dict[str, Channel] = {"open": open_channel, "closed": closed_channel}


def channel(name: str) -> Channel:
    """The channel of this name."""
    if name not in CHANNELS:
        raise BadInput(
            f"channel {name!r} is not known: expected one of {', '.join(CHANNELS)}", "config/choice"
        )
    return CHANNELS[name]
