"""How to learn from groups of chats: a method is three answers.

    seat(group)    who sits where              (partner pools live here)
    wants(group)   how many more chats it needs (adaptive sampling lives here)
    credit(group)  what each message earned     (`None`: must not train; 0: earned nothing)

The learner does one credit-weighted log-likelihood for all of them and never knows which method runs. A user's own
method is `--method file.py:Class`: any class with these three and a constructor that takes the Config.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cotalk.chat import Chat, Player
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.errors import BadInput


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
            for message in chat.messages:
                message.credit = chat.reward - baseline if message.learns else None


METHODS: dict[str, Any] = {"grpo": GRPO}


def method(config: Config) -> Method:
    """The method a config names: one of METHODS, or a class in a file of the user's."""
    name = config.method
    if name in METHODS:
        return METHODS[name](config)
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py"):
        raise BadInput(f"method {name!r} is not known: expected one of {', '.join(METHODS)}, or file.py:Class")
    return load_attribute(Path(path), attribute, "method")(config)


def load_attribute(path: Path, attribute: str, what: str) -> Any:
    """`attribute` of a Python file that the user named."""
    if not path.is_file():
        raise BadInput(f"{what} {path}:{attribute}: the file does not exist; expected file.py:NAME")
    spec = importlib.util.spec_from_file_location(f"cotalk_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{what} {path}:{attribute}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, attribute):
        raise BadInput(f"{what} {path}:{attribute}: the file has no {attribute!r}")
    return getattr(module, attribute)
