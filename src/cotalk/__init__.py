"""Cotalk teaches copies of a language model to communicate, and proves that they did."""

from __future__ import annotations

__version__ = "0.1.0"
