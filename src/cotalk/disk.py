"""Writing a file whole or not at all: aside, to the disk, then in its place; reading JSON of whatever origin."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cotalk.errors import BadInput


def write_atomically(path: Path, data: bytes | str) -> None:
    """Whole or not at all, whenever the process ends; makes the directory. Text is written as UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with aside.open("wb") as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(aside, path)


def read_json(path: Path, expected: str, code: str) -> Any:
    """What a JSON file holds. Raises BadInput for one that cannot be read, is no UTF-8, no JSON, or nested too deep."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON that can be read ({error}); expected {expected}", code) from error
