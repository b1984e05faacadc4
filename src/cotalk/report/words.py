"""Numbers and untrusted texts as the page says them. Pure functions of their arguments.

What a model wrote is never HTML: `shown` caps its length and makes control characters visible; the template and the
scripts escape it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

SHOWN_CHARACTERS = 1_500  # of any one text; the rest is counted, not shown
PLAIN_MARKS = "\n\t\u200c\u200d"  # joiners are part of words in some scripts


def shown(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """Text that cannot disturb the page: cut at `limit`, control characters shown as [U+202E]."""
    rest = len(text) - limit
    kept = text[:limit]
    visible = kept if kept.isprintable() else "".join(map(_visible, kept))
    return visible if rest <= 0 else visible + more(rest)


def more(characters: int) -> str:
    return f"… ({characters:,} more characters)"


def _visible(character: str) -> str:
    kind = unicodedata.category(character)
    if character in PLAIN_MARKS or kind not in ("Cc", "Cf", "Cs", "Co", "Cn"):
        return character
    return f"[U+{ord(character):04X}]"


def hundred(value: float | None) -> str:
    """A share as a number out of 100, one decimal: 0.875 -> 87.5."""
    return "–" if value is None else f"{100 * value:.1f}"


def signed(value: float) -> str:
    """A difference of shares in points, one decimal, with its sign: 0.901 -> +90.1."""
    return f"{100 * value + 0.0:+.1f}".replace("-", "−")


def minutes(seconds: float) -> str:
    """1.8 minutes; 42 s below two minutes' half; 3.2 hours above two hours."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def condition_label(name: str) -> str:
    """Human words for a condition's name, for results that give no label."""
    fixed = {
        "base_open": "untrained, channel open",
        "base_closed": "untrained, channel closed",
        "skyline": "skyline: one seat with every fact",
        "floor": "floor: one seat with its own facts",
        "trained_open": "trained, channel open",
        "trained_closed": "trained, channel closed",
    }
    if name in fixed:
        return fixed[name]
    suffix = "" if arm_of(name) in ("", "open") else f" ({arm_of(name)})"
    if re.fullmatch(r"trained_(.+_)?a_base_b", name):
        return f"trained A, untrained B{suffix}"
    if re.fullmatch(r"base_a_trained_(.+_)?b", name):
        return f"untrained A, trained B{suffix}"
    return f"trained{suffix}" if name.startswith("trained_") else name.replace("_", " ")


def arm_of(name: str) -> str:
    """The arm that a condition's name tells: trained_ada_a_base_b -> ada; "" for one of the base."""
    for pattern in (
        r"trained_a_base_b|base_a_trained_b",
        r"trained_(.+)_a_base_b",
        r"base_a_trained_(.+)_b",
        r"trained_(.+)",
    ):
        match = re.fullmatch(pattern, name)
        if match:
            return match[1] if match.lastindex else "open"
    return ""


def verdict(sentence: str) -> tuple[str, str]:
    """A verdict's sentence as what it says and what it stands on: "... [+0.97, +0.99]" and "(3 seeds against 3 ...".

    The first letter becomes a capital; not a word is left out.
    """
    says, bracket, stands_on = sentence.partition(" (")
    return says[:1].upper() + says[1:], bracket.strip() + stands_on


def settings(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """A nested configuration as rows of (dotted name, value)."""
    if isinstance(value, dict) and value:
        return [
            row
            for key, inner in value.items()
            for row in settings(inner, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(value, float):
        return [(prefix, f"{value:,.10g}")]
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [(prefix, words)] if prefix else []
