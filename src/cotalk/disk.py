"""Writing a file whole or not at all: aside, to the disk, then in its place."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes | str) -> None:
    """Whole or not at all, whenever the process ends; makes the directory. Text is written as UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with aside.open("wb") as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(aside, path)
