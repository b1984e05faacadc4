"""Math-Verify behind a pipe: the processes that read what a model wrote as mathematics.

`Workers` is the parent's end. It starts as many children as a batch needs, gives each one question at a time,
kills a child that thinks for too long and starts another. This same file, run as a script, is the child
(`serve`): JSON lines in, JSON lines out, no torch, no writing to files, bounded memory.

A question is `(kind, text, gold)`. Kind "box": text is the inside of one box, read as one LaTeX expression.
Kind "text": Math-Verify looks for an answer in the whole text. A verdict is one of `VERDICTS`.

Left out: what to cut out of a message, and plain numbers (both in grade.py, which needs no process for them).

    workers = Workers()
    workers.ask([("box", "30-14", "16"), ("text", "The answer is 16.", "16")])   # ["right", "right"]
    workers.close()                                                              # or at exit, by itself

The limit counts the child's *processor* time and is enforced by the kernel, so that it holds inside C code
(`10^10^10`) and does not depend on who else is using the machine: a study run twice gets the same verdicts.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

Question = tuple[str, str, str]

RIGHT, WRONG, UNREADABLE = "right", "wrong", "unreadable"
TIMEOUT, CRASHED, MISSING = "timeout", "crashed", "needs math-verify"
VERDICTS = (RIGHT, WRONG, UNREADABLE, TIMEOUT, CRASHED, MISSING)

LIMIT_SECONDS = 1.0  # of processor time, for one answer
WALL_FACTOR = 10.0  # a child that has slept, not worked, through ten limits is killed too
START_SECONDS = 120.0  # for importing Math-Verify (0.6 s on an idle machine)
MEMORY_BYTES = 2 << 30
KNOWN_ANSWERS = 8_192  # verdicts kept; with texts of at most 8,000 characters that is under 70 MB
ANSWERS_PER_CHILD = 20_000  # then a fresh one: sympy's and ANTLR's own caches grow
QUESTIONS_PER_CHILD = 16  # a batch of 17 is worth a second child

INSTALL = "pip install math-verify"


class Workers:
    """Grading processes, started when they are first needed and stopped at exit.

    Args:
        count: at most this many at once (default: the processors this process may use, at most 4).
        limit_s: processor seconds for one answer.
        environment: environment variables of the children, over this process's own.
    """

    def __init__(
        self,
        count: int | None = None,
        limit_s: float = LIMIT_SECONDS,
        environment: dict[str, str] | None = None,
    ):
        self.count = count or min(4, _processors())
        self.limit_s = limit_s
        self.environment = environment or {}
        self.missing = False  # Math-Verify is not installed; found out once
        self._children: list[_Child] = []
        self._known: dict[Question, str] = {}
        self._lock = threading.Lock()
        _all.add(self)

    def ask(self, questions: Sequence[Question]) -> list[str]:
        """The verdict on each question, in order; equal questions are asked once."""
        with self._lock:
            known = {question: self._known[question] for question in questions if question in self._known}
            known.update(self._work(deque(dict.fromkeys(q for q in questions if q not in known))))
            self._remember(known)
            return [known[question] for question in questions]

    def close(self) -> None:
        """Stop the children; the next question starts new ones."""
        for child in self._children:
            child.kill()
        self._children = []

    def pids(self) -> list[int]:
        """The process ids of the living children."""
        return [child.process.pid for child in self._children]

    def _work(self, todo: deque[Question]) -> dict[Question, str]:
        """Hand the questions round until each has its verdict."""
        verdicts: dict[Question, str] = {}
        crashed: set[Question] = set()
        try:
            while (todo or any(child.question for child in self._children)) and not self.missing:
                self._hire(len(todo))
                for child in self._children:
                    if todo and child.ready and child.question is None:
                        child.give(todo.popleft())
                for child in self._heard_from():
                    if child in self._children:  # not dismissed together with another
                        self._settle(child, todo, verdicts, crashed)
        finally:  # whatever interrupted us: no late verdict may be taken for a later question's
            self._dismiss([child for child in self._children if child.question])
        return {**verdicts, **dict.fromkeys(todo, MISSING)} if self.missing else verdicts

    def _hire(self, waiting: int) -> None:
        """Start children for the questions that wait, at least one."""
        wanted = min(self.count, -(-waiting // QUESTIONS_PER_CHILD))
        while len(self._children) < wanted:
            self._children.append(_Child(self.limit_s, self.environment))

    def _heard_from(self) -> list[_Child]:
        """The children that said something, ended, or are past their time."""
        active = [child for child in self._children if child.question or not child.ready]
        patience = min((child.deadline for child in active), default=0.0) - time.monotonic()
        heard = wait([child.output for child in active], max(0.0, patience))
        return [child for child in active if child.output in heard or child.deadline <= time.monotonic()]

    def _settle(
        self, child: _Child, todo: deque[Question], verdicts: dict[Question, str], crashed: set[Question]
    ) -> None:
        """Take what a child said, or that it ended, or that its time is up, into account."""
        line, question = child.hear(), child.question
        if line and question:
            verdicts[question], child.question = line["verdict"], None
            if child.served >= ANSWERS_PER_CHILD:
                self._dismiss([child])
        elif line:
            child.ready, self.missing = line["ready"], not line["ready"]
            if self.missing:
                self._say_missing(line["error"])
        elif line is not None or child.deadline <= time.monotonic():
            status = self._dismiss([child])
            if not question:
                _started_in_vain(status)
            elif line is None or status == -signal.SIGPROF:
                verdicts[question] = TIMEOUT
            elif question in crashed:
                verdicts[question] = CRASHED
            else:  # killed from outside, perhaps: once more in a fresh child
                crashed.add(question)
                todo.appendleft(question)

    def _dismiss(self, children: list[_Child]) -> int | None:
        """Kill these children; returns how the last of them had ended."""
        ended = None
        for child in children:
            ended = child.kill()
            self._children.remove(child)
        return ended

    def _remember(self, verdicts: dict[Question, str]) -> None:
        self._known.update((q, v) for q, v in verdicts.items() if v not in (CRASHED, MISSING))
        while len(self._known) > KNOWN_ANSWERS:
            del self._known[next(iter(self._known))]

    def _say_missing(self, error: str) -> None:
        self.close()
        warnings.warn(
            f"Math-Verify cannot be imported ({error}). Plain numbers are graded without it; every other "
            f"answer counts as no answer, noted {MISSING!r}. To grade them: {INSTALL}",
            stacklevel=2,
        )

    def _forget(self) -> None:
        """Know of no children: in a forked process they are the parent's, and go on."""
        for child in self._children:
            child.close_pipes()
        self._children, self._known, self._lock = [], {}, threading.Lock()


class _Child:
    """One grading process: what it was asked, and until when it may think."""

    def __init__(self, limit_s: float, environment: dict[str, str]):
        settings = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-P", os.path.abspath(__file__), str(limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **settings},
            start_new_session=True,
        )  # so that Ctrl-C is the parent's business
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.wall_s = WALL_FACTOR * limit_s
        self.deadline = time.monotonic() + START_SECONDS
        self.ready = False
        self.question: Question | None = None
        self.served = 0
        self._half_line = b""

    def give(self, question: Question) -> None:
        self.question, self.deadline = question, time.monotonic() + self.wall_s
        self.served += 1
        rest = json.dumps(question).encode() + b"\n"
        try:
            while rest:
                rest = rest[os.write(self.input, rest) :]
        except BrokenPipeError:
            pass  # it has ended, and `hear` will say so

    def hear(self) -> dict[str, Any] | None:
        """What it said: one message, None if that is not complete yet, {} if it has ended."""
        if not wait([self.output], 0):
            return None
        heard = os.read(self.output, 65_536)
        if not heard:
            return {}
        self._half_line += heard
        if not self._half_line.endswith(b"\n"):
            return None
        line, self._half_line = self._half_line, b""
        message: dict[str, Any] = json.loads(line)
        return message

    def kill(self) -> int:
        """End it now; returns its exit status (minus the signal's number, if one ended it)."""
        try:
            self.process.wait(0.2 if self.ended_by_itself() else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
        status = self.process.wait()
        self.close_pipes()
        return status

    def ended_by_itself(self) -> bool:
        """Whether its end of the pipe is closed (the exit status may come a moment later)."""
        return bool(wait([self.output], 0)) and os.read(self.output, 65_536) == b""

    def close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _started_in_vain(status: int | None) -> None:
    from cotalk.errors import RunFailed  # here, since the child must import nothing of the package

    raise RunFailed(
        f"a grading process ended with status {status} before it was ready (what it said is above); "
        f"expected it to import Math-Verify. Try: {sys.executable} -c 'import math_verify'",
        "grader/no-process",
    )


_all: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for workers in list(_all):
        workers.close()


def _forget_all() -> None:
    for workers in list(_all):
        workers._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


# The child ----------------------------------------------------------------------------------------


def serve(limit_s: float) -> None:
    """Answer questions until the pipe closes; past `limit_s` of processor time on one the kernel ends us."""
    replies = os.dup(1)
    os.dup2(2, 1)  # nothing else may write where the verdicts go

    def reply(**line: Any) -> None:
        os.write(replies, json.dumps(line).encode() + b"\n")

    try:
        import math_verify  # noqa: F401
    except ImportError as error:
        reply(ready=False, error=str(error))
        return
    _warm_up()
    _lock_down()
    reply(ready=True, torch="torch" in sys.modules)
    for line in sys.stdin.buffer:
        kind, text, gold = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        verdict = judge(kind, text, gold)
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply(verdict=verdict)


def _warm_up() -> None:
    """The first expressions of a kind build tables (0.2 s); that is not the first answer's fault."""
    for text in (r"\frac{1}{2}+3", "30-14", "800x"):
        judge("box", text, "2")
    judge("text", "The answer is $5$.", "5")


def _lock_down() -> None:
    """No files written, no processes started, bounded memory; complaints of the parser go nowhere."""
    import resource

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for name, bound in (
        ("RLIMIT_AS", MEMORY_BYTES),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_NPROC", 0),
        ("RLIMIT_CORE", 0),
    ):
        try:
            resource.setrlimit(getattr(resource, name), (bound, bound))
        except (AttributeError, OSError, ValueError):
            continue  # not on this system; the time limit is what must hold


def judge(kind: str, text: str, gold: str) -> str:
    """What Math-Verify says of `text` against `gold` (in the child only)."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    try:
        found = _read_box(text) if kind == "box" else parse(text, parsing_timeout=None)
        if not found:
            return UNREADABLE
        golds = _read_box(gold) + (parse(gold, parsing_timeout=None) if kind == "text" else [])
        return RIGHT if verify(golds, found, timeout_seconds=None) else WRONG
    except Exception:  # what Math-Verify breaks on (RecursionError, MemoryError, ...) is no answer
        return UNREADABLE


def _read_box(text: str) -> list[Any]:
    """One LaTeX expression, or nothing: no second try as prose, which would read "800 of 5" as 5."""
    from math_verify import LatexExtractionConfig, parse

    box = [LatexExtractionConfig(boxed_match_priority=0)]
    found: list[Any] = parse("\\boxed{" + text + "}", box, fallback_mode="no_fallback", parsing_timeout=None)
    return found


if __name__ == "__main__":
    serve(float(sys.argv[1]))
