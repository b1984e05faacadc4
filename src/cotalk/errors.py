"""The two kinds of failure that a user meets.

`BadInput` is a mistake in what was given (exit code 2); `RunFailed` is work that could not be finished
(exit code 1). The message says what was given, what was expected, and what to type.
"""

from __future__ import annotations


class BadInput(ValueError):
    """What was given cannot be used; nothing was started and nothing was lost."""


class RunFailed(RuntimeError):
    """Work that was started could not be finished; what was finished is on disk."""
