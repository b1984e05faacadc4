"""Writing a file whole or not at all, and what is said when that fails; reading JSON of whatever origin."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cotalk.errors import BadInput, DiskFailed

_WHY = {  # errno -> what is the matter, what to do
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("your quota there is used up", "free some space"),
    errno.EROFS: ("it is read-only", "make it writable"),
    errno.EACCES: ("you may not write there", "make it writable"),
    errno.EPERM: ("you may not write there", "make it writable"),
    errno.ENOENT: ("its directory is gone (removed, or unmounted?)", "bring it back"),
    errno.ENOTDIR: ("its directory is gone (removed, or unmounted?)", "bring it back"),
    errno.EIO: ("the disk does not answer", "look at the disk"),
    errno.ESTALE: ("the disk does not answer", "mount it again"),
}


def write_atomically(path: Path, data: bytes | str) -> None:
    """Whole or not at all, whenever the process ends; makes the directory. Text is written as UTF-8.

    Raises DiskFailed, with the path and a remedy; what was there before is then still there.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as stream:
                stream.write(data.encode() if isinstance(data, str) else data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, path)
        except OSError:
            with suppress(OSError):  # on a full disk half a file is in the way
                aside.unlink()
            raise
        sync(path.parent)


def sync(path: Path) -> None:
    """A file's bytes, or a directory's names, to the disk; nothing where it is not there, or cannot be synced."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Where something is written: what the system refuses is raised as DiskFailed."""
    try:
        yield
    except OSError as error:
        raise DiskFailed(_told(error, path)) from error


def _told(error: OSError, path: Path) -> str:
    why, remedy = _WHY.get(error.errno or 0, (str(error), "see to it"))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            why += f", {shutil.disk_usage(path.parent).free / 2**20:,.0f} MiB free"
    return (
        f"{path} could not be written: {why}. What was finished stays as it was: {remedy}, and the same command goes "
        "on (or use another --out)"
    )


def read_json(path: Path, expected: str, code: str) -> Any:
    """What a JSON file holds. Raises BadInput for one that cannot be read, is no UTF-8, no JSON, or nested too deep."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON that can be read ({error}); expected {expected}", code) from error
