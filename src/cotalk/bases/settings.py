"""The settings of a base that is made here: a TOML file with the keys of the one that ships."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from cotalk.errors import BadInput


def read_settings(path: Path, shipped: Path) -> dict[str, Any]:
    """Reads settings. Raises BadInput when they cannot be read, or the keys of a table are not those of `shipped`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"settings {path} cannot be read ({error.strerror}): expected a TOML file such as {shipped}",
            "make/settings",
        ) from error
    except ValueError as error:
        raise BadInput(f"settings {path} is no TOML: {error}", "make/settings") from error
    wanted = tomllib.loads(shipped.read_text(encoding="utf-8"))
    tables = [name for name in wanted if isinstance(wanted[name], dict)]
    for name, inner in [("", wanted), *((name, wanted[name]) for name in tables)]:
        given = table if not name else table.get(name, {})
        if set(given) != set(inner):
            raise BadInput(
                f"settings {path}, {f'[{name}]' if name else 'the top'}: missing {sorted(set(inner) - set(given))}, "
                f"unknown {sorted(set(given) - set(inner))}; expected the keys of {shipped}",
                "make/settings",
            )
    return table
