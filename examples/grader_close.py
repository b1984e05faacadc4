"""A grader of your own: a full point for the gold number, half a point within one in ten of it.

    cotalk train ... --grade examples/grader_close.py:close

Any function of (text, gold) will do that gives a bool, or a float in [0, 1]. `text` is a seat's whole last
message, `gold` the task's answer. A full point counts as right in every score; anything less only counts as
reward.
"""

import re


def close(text: str, gold: str) -> float:
    """Compares the last number of the message."""
    numbers = re.findall(r"-?[0-9]+(?:\.[0-9]+)?", text.replace(",", ""))
    if not numbers:
        return 0.0
    said, wanted = float(numbers[-1]), float(gold)
    if said == wanted:
        return 1.0
    return 0.5 if abs(said - wanted) <= abs(wanted) / 10 else 0.0
