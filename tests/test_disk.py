"""Files are replaced whole or not at all, and what the system refuses is told with a path and a remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cotalk.disk import sync, write_atomically, writing
from cotalk.errors import DiskFailed, RunFailed
from faults import CHANGES, Disk, Refusing

TOLD = {
    errno.ENOSPC: r"the disk is full, [\d,]+ MiB free.*free some space",
    errno.EDQUOT: "your quota there is used up.*free some space",
    errno.EROFS: "it is read-only.*make it writable",
    errno.EACCES: "you may not write there.*make it writable",
    errno.EPERM: "you may not write there.*make it writable",
    errno.ENOENT: "its directory is gone.*bring it back",
    errno.EIO: "the disk does not answer.*look at the disk",
    errno.EMFILE: "Too many open files.*see to it",
}


@pytest.mark.parametrize("number", TOLD)
def test_what_the_system_refuses_is_told_with_its_path_and_a_remedy(number: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(DiskFailed, match=TOLD[number]) as failed, writing(path):
        raise OSError(number, os.strerror(number))
    assert str(failed.value).startswith(f"{path} could not be written: ")
    assert "the same command goes on (or use another --out)" in str(failed.value)
    assert isinstance(failed.value, RunFailed)  # exit code 1


@pytest.mark.parametrize("operation", ["write", "fsync", "replace", "open"])
def test_a_file_is_as_before_whichever_operation_is_refused_and_nothing_is_left_beside_it(
    operation: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    write_atomically(path, "first")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DiskFailed):
        Disk(patch, tmp_path, Refusing(errno.ENOSPC, lambda op, _: op == operation))
        write_atomically(path, "second")
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]
    write_atomically(path, "third")
    assert path.read_text() == "third"


def test_a_file_is_synced_before_it_is_renamed_and_its_directory_after(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, tmp_path.parent, lambda op, path: seen.append((op, path.name.split(".")[-1])))
        write_atomically(tmp_path / "file.json", "x")
    assert [what for what in seen if what[0] != "mkdir"] == [
        ("open", "part"), ("write", "part"), ("fsync", "part"), ("replace", "json"), ("fsync", tmp_path.name),
    ]  # fmt: skip


def test_what_is_not_there_is_not_synced(tmp_path: Path) -> None:
    sync(tmp_path / "absent")


def test_the_fault_layer_sees_every_kind_of_change(tmp_path: Path) -> None:
    """Else a test with it could not fail."""
    for operation, change in {
        "open": lambda: (tmp_path / "a").write_text("x"),
        "mkdir": (tmp_path / "d").mkdir,
        "replace": lambda: os.replace(tmp_path / "a", tmp_path / "b"),
        "unlink": (tmp_path / "b").unlink,
    }.items():
        with pytest.MonkeyPatch.context() as patch, pytest.raises(PermissionError):
            Disk(
                patch,
                tmp_path,
                Refusing(errno.EACCES, lambda op, _, named=operation: op in CHANGES and op == named),
            )
            change()
        change()
