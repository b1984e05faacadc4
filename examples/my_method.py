"""A method of your own: each chat is compared with the mean of the *other* chats of its task.

    cotalk train ... --method examples/my_method.py:LeaveOneOut

Any class will do that is made with the Config and has `seat`, `wants` and `credit` (src/cotalk/methods.py).
Formula: credit of every message of chat i = r_i - mean(r_j, j != i), the leave-one-out baseline of RLOO (arXiv
2402.14740). It equals GRPO's credit times G / (G - 1), and unlike it is unbiased: a chat is no part of its own
baseline.
"""

from __future__ import annotations

from cotalk.chat import Player
from cotalk.config import Config
from cotalk.errors import BadInput
from cotalk.methods import Group
from cotalk.partners import Cast


class LeaveOneOut:
    def __init__(self, config: Config):
        if config.chats < 2:
            raise BadInput(
                f"chats = {config.chats}: LeaveOneOut compares a chat with others; expected at least 2"
            )
        self.chats = config.chats

    def seat(self, group: Group, number: int, cast: Cast) -> dict[str, Player]:
        return cast.own

    def wants(self, group: Group) -> int:
        return self.chats - len(group.chats)

    def credit(self, group: Group) -> None:
        total, others = sum(group.rewards), len(group.chats) - 1
        for chat in group.chats:
            advantage = 0.0 if group.flat else chat.reward - (total - chat.reward) / others
            for message in chat.messages:
                message.credit = advantage if message.learns else None
