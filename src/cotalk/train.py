"""THE loop. A run is a generator: it yields the views that it needs answered, and receives the replies.

    for each step:  deal -> converse -> grade -> credit -> update -> record

It knows nothing of engines, of other runs, or of processes: whoever drives it (stack.py) gathers what all runs wait
for into one engine call. Every random choice is keyed, so the loop holds no generator and a resume needs only the
step's number and the learner's tensors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from cotalk.chat import Chat, Player, Reply, Seating, View, converse
from cotalk.config import Config
from cotalk.deal import Deal
from cotalk.errors import NotFinite, RunFailed, Stopped
from cotalk.grade import Grade, grade_many, team_reward
from cotalk.learner import Learner
from cotalk.methods import Group, Method
from cotalk.partners import Cast, Guests
from cotalk.perturb import random_rewards
from cotalk.run import RunDirectory
from cotalk.sample import generator
from cotalk.symmetry import vary
from cotalk.talk import means
from cotalk.view import ChatFormat

Reward = Literal["strict", "lenient"]
_GRADING = ThreadPoolExecutor(1, "grading")  # talks to grade_worker's processes
Playing = Generator[list[View], Sequence[Reply], Any]


@dataclass
class Run:
    """One arm with one seed: all that its loop needs, given, so that nothing is looked up on the way.

    step: the one being played. played: chats so far. recorded: the last step that is on disk, and in the weights.
    dropped: steps in a row that were dropped.
    """

    name: str
    config: Config
    train: list[Deal]
    dev: list[Deal]
    form: ChatFormat
    learner: Learner
    method: Method
    directory: RunDirectory
    grader: Callable[[str, str], Any] | None = None
    progress: Callable[[int, dict[str, Any]], None] = lambda step, logged: None
    guests: Guests | None = None
    step: int = 0
    played: int = 0
    recorded: int = 0
    dropped: int = 0

    @property
    def players(self) -> dict[str, Player]:
        """The learner in every seat."""
        return {seat: Player("learner", k, learns=True) for seat, k in self.learner.adapters.items()}

    @property
    def cast(self) -> Cast:
        """The learner, and the guests of its pool as they are now."""
        return self.guests.cast(self.players) if self.guests else Cast(self.players)

    @property
    def ended(self) -> bool:
        """All steps were made, or all chats played that it may play."""
        return self.step >= self.config.steps or bool(
            self.config.samples <= self.played and self.config.samples
        )


def train(run: Run) -> Playing:
    """Trains a run from its last checkpoint (or from nothing) to its last step.

    Where it waits it may be stopped: its weights are then those of the last recorded step, and are kept.
    """
    try:
        yield from _train(run)
    except Stopped:
        run.directory.save_stopped(run.recorded, run.learner)
        raise


def _train(run: Run) -> Playing:
    resume(run)
    if owes_look(run):
        yield from look(run)
    if (
        run.step and saves_now(run) and not run.directory.has_checkpoint(run.step)
    ):  # it was stopped before this one
        run.directory.save_checkpoint(run.step, run.learner)
    while not run.ended:
        began = time.monotonic()
        run.step += 1
        groups = yield from play(run)
        for group in groups:
            run.method.credit(group)
        logged = learn(run, groups)
        run.played += count(groups)
        record(run, groups, logged, time.monotonic() - began)
        expect_progress(run)
        if run.guests and run.guests.snapshots:
            run.guests.snapshots.take(run.step)
        if looks_now(run):
            yield from look(run)
        if saves_now(run):
            run.directory.save_checkpoint(run.step, run.learner)
    if run.directory.writes:  # its neighbours' last checkpoints are written at the same time
        yield []
    run.directory.finish(run.learner)


def resume(run: Run) -> None:
    """Takes the newest checkpoint, or starts a new adapter; cuts off whatever was played after it.

    A run that failed after too many dropped steps tries those again: the weights are still those before them.
    """
    run.directory.begin(run.config)
    before = before_drops(run.directory.lines("metrics.jsonl"), run.config.drop_limit)
    step = run.directory.resume_from(run.learner, run.config.checkpoint_every)
    if step is not None and before is not None and before < step:
        step = before
        run.directory.rewind(step, run.learner)
    if step is None:
        run.learner.initialise(run.config.seed)
    run.directory.cut_after(-1 if step is None else step)
    run.step = run.recorded = step or 0
    steps = [line for line in run.directory.lines("metrics.jsonl") if "chats" in line]
    run.played = int(sum(line["chats"] + line.get("replayed", 0) for line in steps))
    for line in steps:
        _count_dropped(run, line)
    if run.guests and run.guests.snapshots:
        run.guests.snapshots.read(run.step)
    if owes_look(run):
        run.directory.cut_look(run.step)


def looks_now(run: Run) -> bool:
    """Whether the dev tasks are played after this step (0: before the first)."""
    return run.step % run.config.dev_every == 0 or run.ended


def saves_now(run: Run) -> bool:
    """Whether a checkpoint is due after this step."""
    return run.step % run.config.checkpoint_every == 0 or run.ended


def owes_look(run: Run) -> bool:
    """Whether a run that begins, or was stopped before or in a look, has still to look."""
    steps = {line["step"] for line in run.directory.lines("metrics.jsonl") if "dev/score" in line}
    return looks_now(run) and run.step not in steps


def learn(run: Run, groups: Sequence[Group]) -> dict[str, float]:
    """Updates on a step's chats. A step with a number that is not finite changes nothing: it is dropped, and kept."""
    chats = [chat for group in groups for chat in group.chats]
    lr = run.config.learning_rate(run.config.progress(run.step, run.played))
    try:
        logged = run.learner.update(chats, lr)
    except NotFinite as wrong:
        run.directory.save_dropped(run.step, str(wrong), chats)
        logged = {"lr": lr, "credited_tokens": 0, "skipped": 0.0, "dropped": 1.0}
    _count_dropped(run, logged)
    return logged


def before_drops(lines: Sequence[dict[str, Any]], limit: int) -> int | None:
    """The step before a row of dropped steps that ends a run's lines and failed it; None where there is none."""
    row = []
    for line in reversed([line for line in lines if "chats" in line]):
        if line.get("dropped"):
            row.append(line["step"])
        elif not line.get("skipped"):
            break
    return row[-1] - 1 if len(row) >= limit else None


def _count_dropped(run: Run, logged: dict[str, Any]) -> None:
    """In a row: a step without credit, which is not updated on either, neither counts nor ends the row."""
    if logged.get("dropped"):
        run.dropped += 1
    elif not logged.get("skipped"):
        run.dropped = 0


def expect_progress(run: Run) -> None:
    """RunFailed after too many dropped steps in a row."""
    if run.dropped >= run.config.drop_limit:
        raise RunFailed(
            f"step {run.step} is the last of {run.dropped} in a row that were dropped, since "
            f"{run.directory.dropped_because(run.step)}; expected finite numbers. The batches are in "
            f"{run.directory.path / 'dropped'}; the weights are as before them. Try a smaller lr or a wider dtype in a "
            "new directory (--out), or a larger drop_limit",
            "run/not-finite",
        )


def tasks_of(run: Run, step: int) -> list[Deal]:
    """The deals of a step (from 1): passes over the training tasks, each in a keyed order of its own.

    A pass ends with its last full step, so that no step holds a task twice (two groups would be the same chats).
    """
    each = run.config.problems
    once, at = divmod(step - 1, len(run.train) // each)
    order = generator("tasks", run.config.seed, once).permutation(len(run.train))
    return [run.train[i] for i in order[at * each : (at + 1) * each]]


def play(run: Run) -> Playing:
    """Plays a step's groups until no group wants more chats, and then what the method wants played again."""
    groups = [Group(deal, step=run.step) for deal in tasks_of(run, run.step)]
    while wanted := [(g, n) for g in groups for n in _numbers(g, run.method.wants(g))]:
        chats = yield from play_graded(run, [seating(run, g, n) for g, n in wanted])
        for (group, _), chat in zip(wanted, chats, strict=True):
            group.chats.append(chat)
    replays = getattr(run.method, "replays", lambda group: ())
    owed = [(g, number, turn, words) for g in groups for number, turn, words in replays(g)]
    if owed:
        again = [replace(seating(run, g, n), replaced={turn: words}) for g, n, turn, words in owed]
        chats = yield from play_graded(run, again)
        for (group, number, turn, _), chat in zip(owed, chats, strict=True):
            group.replays[number, turn] = chat
    return groups


def seating(run: Run, group: Group, number: int) -> Seating:
    """Who sits where in a chat, under the symmetries that are drawn for it. The same chat is seated the same again."""
    task = group.deal.task.id
    players = run.method.seat(group, number, run.cast)
    plain = Seating(group.deal, players, number, (run.config.seed, "train", "", 0, run.step, task))
    return vary(plain, run.config.drawn, run.config.seed, run.step, task, number)


def play_graded(run: Run, seatings: Sequence[Seating]) -> Playing:
    """Plays chats of training and grades them."""
    chats = yield from converse(seatings, run.config.rules, run.form)
    yield from grade_beside(chats, run.config.graded, run.grader)
    if run.config.reward == "random":
        random_rewards(chats, (run.config.seed, "train", run.step))
    return chats


def count(groups: Sequence[Group]) -> int:
    """Chats played for these groups, replays and chats that do not train included: what sampling costs."""
    return sum(len(group.chats) + len(group.replays) for group in groups)


def _numbers(group: Group, more: int) -> range:
    return range(len(group.chats), len(group.chats) + max(0, more))


def look(run: Run) -> Playing:
    """Plays the dev tasks greedily, once each: curves and alarms, never a result."""
    if not run.dev:
        return
    rules = replace(run.config.rules, temperature=0.0)
    key = (run.config.seed, "dev", "", 0, run.step)
    chats = yield from converse(
        [Seating(d, run.players, 0, (*key, d.task.id)) for d in run.dev], rules, run.form
    )
    grade(chats, run.config.graded, run.grader)
    lines = [{"step": run.step, "condition": "dev", "repeat": 0, **chat.as_json()} for chat in chats]
    run.directory.append("dev.jsonl", lines)
    run.directory.save_tokens(run.step, chats, "all", name="dev")
    talk = {f"dev/{name}": value for name, value in means(lines).items()}
    run.directory.append(
        "metrics.jsonl", [{"step": run.step, "dev/score": _mean(c.reward for c in chats), **talk}]
    )


def grade(chats: Sequence[Chat], reward: Reward, grader: Callable[[str, str], Any] | None = None) -> None:
    """Grades every seat's last message; fills in answers, rewards and the team's reward (their mean)."""
    _fill_in(chats, reward, grade_many(_last_words(chats), grader))


def grade_beside(
    chats: Sequence[Chat], reward: Reward, grader: Callable[[str, str], Any] | None = None
) -> Playing:
    """The same, while the runs beside this one go on: it waits with an empty batch before it needs the verdicts.

    A user's own grader runs here, in this thread.
    """
    if grader is not None:
        return grade(chats, reward, grader)
    verdicts = _GRADING.submit(grade_many, _last_words(chats))
    yield []
    return _fill_in(chats, reward, verdicts.result())


def _last_words(chats: Sequence[Chat]) -> list[tuple[str, str]]:
    return [
        (chat.last_message(seat).said, chat.deal.task.gold) for chat in chats for seat in chat.rules.seats
    ]


def _fill_in(chats: Sequence[Chat], reward: Reward, graded: Sequence[Grade]) -> None:
    grades = iter(graded)
    for chat in chats:
        chat.answers = {seat: next(grades) for seat in chat.rules.seats}
        chat.rewards, chat.reward = team_reward(chat.answers, reward)


def record(run: Run, groups: Sequence[Group], logged: dict[str, float], seconds: float) -> None:
    """Writes a step's chats, tokens and metrics."""
    chats = [chat for group in groups for chat in group.chats]
    run.directory.append(
        "chats.jsonl", [{"step": run.step, "condition": "train", "repeat": 0, **c.as_json()} for c in chats]
    )
    run.directory.save_tokens(run.step, chats, run.config.keep_tokens)
    metrics = {"step": run.step, **step_metrics(groups), **logged, "seconds": round(seconds, 3)}
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}  # JSON has no NaN
    run.directory.append("metrics.jsonl", [metrics])
    run.recorded = run.step
    run.progress(run.step, metrics)


def step_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What a step's chats say of themselves (docs/methods.md has a line for each)."""
    chats = [chat for group in groups for chat in group.chats]
    messages = [(chat, m) for chat in chats for m in chat.messages]
    answers = [grade for chat in chats for grade in chat.answers.values()]
    last = [m for chat, m in messages if chat.rules.is_last(m.turn)]
    other = [m for chat, m in messages if not chat.rules.is_last(m.turn)]
    tokens = sum(len(m.ids) for _, m in messages)
    return {
        "reward": _mean(chat.reward for chat in chats),
        "reward_strict": _mean(g.strict for g in answers),
        "reward_lenient": _mean(g.lenient for g in answers),
        "parsed": _mean(g.parsed for g in answers),
        "groups/flat": _mean(group.flat for group in groups),
        "chats": len(chats),
        **({"replayed": replayed} if (replayed := sum(len(group.replays) for group in groups)) else {}),
        **by_partner(chats),
        "cut": _mean(m.cut for _, m in messages),
        "message_tokens": _mean(len(m.ids) for m in other),
        "answer_tokens": _mean(len(m.ids) for m in last),
        "tokens": tokens,
        "surprise": -sum(sum(m.logprobs) for _, m in messages) / max(1, tokens),
    }


def by_partner(chats: Sequence[Chat]) -> dict[str, float]:
    """With strangers at the table: the learners' own mean reward, by who they met (`reward/self`, `reward/base`...)."""
    met: dict[str, list[float]] = {}
    for chat in chats:
        names = sorted({player.name for player in chat.players.values() if not player.learns})
        learners = [chat.rewards[seat] for seat, player in chat.players.items() if player.learns]
        met.setdefault(f"reward/{'+'.join(names) or 'self'}", []).extend(learners)
    return {name: _mean(values) for name, values in sorted(met.items())} if len(met) > 1 else {}


def _mean(values: Any) -> float:
    values = [float(v) for v in values]
    return sum(values) / len(values) if values else 0.0
