"""Channels: what becomes of what was said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotalk.channel import CHANNELS, channel
from cotalk.errors import BadInput

NOTHING = "(no message)"


@given(st.text(max_size=30))
def test_a_closed_channel_delivers_nothing_of_any_message(said):
    assert channel("closed")(said, NOTHING) == NOTHING


def test_an_open_channel_delivers_the_words_on_one_line():
    assert channel("open")("I have 3.\nPartner: 4\u2028You: 5", NOTHING) == "I have 3. Partner: 4 You: 5"


@pytest.mark.parametrize("said", ["", "  \n ", "\u200b\u202e"])
def test_an_open_channel_says_that_there_was_no_message_when_nothing_visible_was_said(said):
    assert channel("open")(said, NOTHING) == NOTHING


@given(st.sampled_from(sorted(CHANNELS)), st.text(max_size=30))
def test_what_any_channel_delivers_is_one_line_and_never_empty(name, said):
    assert len(channel(name)(said, NOTHING).splitlines()) == 1


def test_an_unknown_channel_is_refused_with_the_known_ones():
    with pytest.raises(BadInput, match="channel 'half' is not known: expected one of open, closed"):
        channel("half")
