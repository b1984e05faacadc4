"""The two kinds of failure that a user meets, and the special cases that the code tells apart.

`BadInput` is a mistake in what was given (exit code 2); `RunFailed` is work that could not be finished
(exit code 1). The message says what was given, what was expected, and what to type.
"""

from __future__ import annotations


class BadInput(ValueError):
    """What was given cannot be used; nothing was started and nothing was lost."""


class RunFailed(RuntimeError):
    """Work that was started could not be finished; what was finished is on disk."""


class DiskFailed(RunFailed):
    """A file could not be written: the disk is full, read-only, or gone. What stood there before still does."""


class OutOfMemory(RunFailed):
    """Not even one row fits in the device's memory; what does is told beside it, from the plan's arithmetic."""


class NotFinite(RunFailed):
    """A loss, gradient or log-probability of a step is NaN or infinite: the step was dropped, nothing was changed."""


class Stopped(SystemExit):
    """A signal asked for the end: raised where runs wait, so that they write a checkpoint. code: the exit code."""
