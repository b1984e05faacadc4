"""Rates of what a seat does, as a base's settings give them, and one of them drawn."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Rates = Mapping[str, float]  # what is done -> how often; they sum to 1


def pick(random: np.random.Generator, rates: Rates) -> str:
    """One key, each as often as its rate says; one number is drawn."""
    u, names = random.random(), list(rates)
    for name in names:
        u -= rates[name]
        if u < 0:
            return name
    return names[-1]  # where rounding leaves the sum below 1
