"""Training rows: the token ids of a chat, exactly as given to the engine and as sampled.

A row is cut from a chat by one rule, for every view: a seat's next prompt that begins with all of the row so far
goes on with the row (dialogue), any other starts a new one (transcript).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cotalk.chat import Chat


@dataclass
class Row:
    """Token ids of one training row, and the sampled spans in it.

    spans: (first place of the sampled ids, their log-probabilities when sampled, credit). adapter: the row of the stack
    that spoke; `None`: whichever is the seat's.
    """

    seat: str
    ids: list[int]
    spans: list[tuple[int, tuple[float, ...], float | None]] = field(default_factory=list)
    adapter: int | None = None

    @property
    def credited(self) -> Row:
        """The row with those spans only that have credit (neither `None` nor 0)."""
        return replace(self, spans=[s for s in self.spans if s[2] and s[1]])


def rows_of(chat: Chat) -> list[Row]:
    """The training rows of a chat: learners' messages only, ids exactly as given and as sampled."""
    rows: list[Row] = []
    latest: dict[str, Row] = {}
    for message in chat.messages:
        if not message.learns:
            continue
        row = latest.get(message.seat)
        if row is None or tuple(row.ids) != message.prompt[: len(row.ids)]:
            row = latest[message.seat] = Row(message.seat, [], adapter=message.adapter)
            rows.append(row)
        row.ids = list(message.prompt)
        row.spans.append((len(row.ids), message.logprobs, message.credit))
        row.ids += message.ids
    return rows
