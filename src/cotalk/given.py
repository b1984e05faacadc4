"""What a run was given beside its config: the contents of the files that the config names, by digest.

    given.json     {"train tasks": digest, "dev tasks": ..., "method my.py:Mine": ..., "grader ...": ..., "base": ...}

It lies beside the config, so that a run does not go on with other contents than it began with. Left out: who gathers
it (preflight.py).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cotalk.deal import Deal
from cotalk.disk import read_json, write_atomically
from cotalk.errors import BadInput

GIVEN = "given.json"


def digest_of_deals(deals: Iterable[Deal]) -> str:
    """Of all that is played: facts, hands, questions and golds, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for deal in deals:
        row = (deal.id, deal.gold, deal.question, deal.facts, sorted(deal.hands.items()), deal.task.template)
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def digest_of_files(files: Sequence[Path]) -> str:
    """Of what some files hold, one after another; read once as long as their times and sizes stay."""
    return _digest_once(tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files))


@functools.lru_cache
def _digest_once(files: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, _, size in files:
        digest.update(f"{size} ".encode())
        with Path(name).open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def read_given(directory: Path) -> dict[str, str]:
    """What a directory was begun with; {} where nothing says so (it was begun by an earlier version)."""
    path = directory / GIVEN
    if not path.is_file():
        return {}
    expected = "an object of digests, as cotalk wrote it"
    found = read_json(path, expected, "run/given")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadInput(f"{path}: expected {expected}", "run/given")
    return found


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What has other contents now; what only one of them names is no difference (the config tells of those)."""
    return [name for name, digest in now.items() if before.get(name, digest) != digest]


def described(names: Sequence[str], tasks: str, heldout: str = "") -> str:
    """What has other contents, in words; tasks with the source that they come from."""
    sources = {"held-out tasks": heldout or tasks, "perturbed tasks": heldout or tasks}
    told = [f"{name} ({sources.get(name, tasks)})" if name.endswith(" tasks") else name for name in names]
    return f"other contents of {', '.join(told)}"


def write_given(directory: Path, given: Mapping[str, str], fresh: bool = False) -> None:
    """Keeps what a directory is begun with. fresh: nothing of what was kept before counts any more."""
    before = read_given(directory)
    kept = ({} if fresh else before) | dict(given)
    if kept != before or not (directory / GIVEN).is_file():
        write_atomically(directory / GIVEN, json.dumps(kept, indent=1) + "\n")
