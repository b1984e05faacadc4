"""How to learn from groups of chats: a method is three answers.

    seat(group)    who sits where              (partner pools live here)
    wants(group)   how many more chats it needs (adaptive sampling lives here)
    credit(group)  what each message earned     (`None`: must not train; 0: earned nothing)

The learner does one credit-weighted log-likelihood for all of them and never knows which method runs. A user's own
method is `--method file.py:Class`: any class with these three and a constructor that takes the Config.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cotalk.chat import Chat, Player
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.errors import BadInput
from cotalk.task import from_file


@dataclass
class Group:
    """The chats of one task in one step (one policy version). The baseline is over chats, not over messages."""

    deal: Deal
    chats: list[Chat] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        return [chat.reward for chat in self.chats]

    @property
    def flat(self) -> bool:
        """All rewards equal: nothing to learn from."""
        return len(set(self.rewards)) <= 1


class Method(Protocol):
    def seat(self, group: Group, number: int, learners: dict[str, Player]) -> dict[str, Player]:
        """Who sits where in the group's chat of this number; `learners` are the run's own players."""
        ...

    def wants(self, group: Group) -> int:
        """How many more chats the group needs now (0: enough). Asked again when they were played and graded."""
        ...

    def credit(self, group: Group) -> None:
        """Fills in `message.credit` of every message of the group."""
        ...


class GRPO:
    """Group-relative advantage, as the published recipe has it.

    Formula: credit of every message of chat i = r_i - mean(r_1..r_G), r the team's reward; G = `chats`.
    Paper: arXiv 2402.03300 (DeepSeekMath); without the division by the deviation, as Dr. GRPO (2503.20783) argues.
    Assumes: chats of one group differ only by chance, so that their mean is a fair baseline.
    Fails: a group whose chats all scored the same teaches nothing (logged as `groups/flat`).
    """

    def __init__(self, config: Config):
        self.chats = config.chats

    def seat(self, group: Group, number: int, learners: dict[str, Player]) -> dict[str, Player]:
        return learners

    def wants(self, group: Group) -> int:
        return self.chats - len(group.chats)

    def credit(self, group: Group) -> None:
        baseline = sum(group.rewards) / len(group.rewards)
        for chat in group.chats:
            advantage = round(chat.reward - baseline, 12) + 0.0  # exactly 0 where only rounding differs
            for message in chat.messages:
                message.credit = advantage if message.learns else None


METHODS: dict[str, Any] = {"grpo": GRPO}
ANSWERS = ("seat", "wants", "credit")


def method(config: Config) -> Method:
    """The method a config names: one of METHODS, or a class in a file of the user's."""
    name = config.method
    made = (METHODS[name] if name in METHODS else _from_file(name))(config)
    missing = [answer for answer in ANSWERS if not callable(getattr(made, answer, None))]
    if missing:
        raise BadInput(f"method {name!r} has no {', no '.join(missing)}: expected {', '.join(ANSWERS)}")
    return made


def _from_file(name: str) -> Any:
    path = name.rpartition(":")[0]
    if not path.endswith(".py"):
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise BadInput(
            f"method {name!r} is not known{hint}: expected one of {', '.join(METHODS)}, or file.py:Class"
        )
    if not Path(path).is_file():
        raise BadInput(f"method {name!r}: there is no file {path!r}; expected file.py:Class")
    found = from_file(name)
    if not isinstance(found, type):
        raise BadInput(f"method {name!r} is {found!r}: expected a class whose constructor takes the Config")
    return found
