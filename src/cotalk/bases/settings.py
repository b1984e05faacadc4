"""The settings of a base that is made here: a TOML file with some of the keys of the one that ships."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from cotalk.errors import BadInput

Table = dict[str, Any]


def read_settings(path: Path, shipped: Path) -> Table:
    """The settings of a file, with those of `shipped` for what it leaves out.

    A table of numbers (the rates of one habit, say) is given as a whole or not at all. Raises BadInput when the file
    cannot be read, or has a key that `shipped` has not.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"settings {path} cannot be read ({error.strerror}): expected a TOML file such as {shipped}",
            "make/settings",
        ) from error
    except ValueError as error:
        raise BadInput(f"settings {path} is no TOML: {error}", "make/settings") from error
    return _over(table, tomllib.loads(shipped.read_text(encoding="utf-8")), (), f"settings {path}", shipped)


def _alike(value: Any, before: Any) -> bool:
    """Whether a value is of the kind that ships: a whole number stands for any number, not the other way round."""
    if isinstance(before, dict):
        return not _numbers(before) or _numbers(value)
    return type(value) is type(before) or (type(before) is float and type(value) is int)


def _numbers(table: Table) -> bool:
    return all(type(each) in (int, float) for each in table.values())


def _over(given: Table, whole: Table, at: tuple[str, ...], name: str, shipped: Path) -> Table:
    """`whole` with what is given in its place; tables of tables key by key."""
    where = f"[{'.'.join(at)}]" if at else "the top"
    if unknown := sorted(set(given) - set(whole)):
        raise BadInput(
            f"{name}, {where}: unknown {', '.join(unknown)}; expected some of {', '.join(whole)}, as in {shipped}",
            "make/settings",
        )
    found = dict(whole)
    for key, value in given.items():
        before = whole[key]
        if isinstance(before, dict) != isinstance(value, dict):
            kind = "a table" if isinstance(before, dict) else f"a value such as {before!r}"
            raise BadInput(f"{name}, {where}: {key} = {value!r:.60}; expected {kind}", "make/settings")
        deeper = isinstance(before, dict) and (
            not at or all(isinstance(each, dict) for each in before.values())
        )
        if not deeper and not _alike(value, before):
            raise BadInput(
                f"{name}, {where}: {key} = {value!r:.60}; expected a value such as {before!r:.60}",
                "make/settings",
            )
        found[key] = _over(value, before, (*at, key), name, shipped) if deeper else value
    return found
