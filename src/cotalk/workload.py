"""What playing and training ask for, in tokens, by arithmetic over a study: before anything runs, nothing is loaded.

A chat's prompts grow by its messages, so tokens read and trained follow from the order, the view and the budgets:

    dialogue      a seat's turn reads what it heard since its last one; a seat's chat is one training row
    transcript    a turn reads the whole conversation again; each message is a training row

Lengths are those at the caps (`share` 1: every message as long as its budget) or shorter by a share. The words around
the messages (`Words`) are means, so tokens read are of the right size and tokens sampled at the caps are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cotalk.chat import Rules
from cotalk.config import Config
from cotalk.crossplay import Matrix, sitters
from cotalk.decoder.ops import PAGE
from cotalk.evaluate import Condition, Pass
from cotalk.methods import GRPO, METHODS
from cotalk.study import Job, Study

PADDING = 1.2  # padded training rows against their tokens


@dataclass(frozen=True)
class Words:
    """Tokens that nobody samples: of a first prompt, around each message that is told, and of one more user turn in
    the dialogue view. usual: the share of its budget that a message uses on average."""

    prompt: int
    line: int
    turn: int
    usual: float


FULL = Words(110, 3, 22, 0.57)  # GSM8K dealt to two, our wording; published talk: 110 of 160 and 200 of 384
SHORT = Words(
    33, 4, 7, 0.21
)  # the tiny base on puzzles (results/quickstart: 27 tokens a chat of at most 128)


@dataclass(frozen=True)
class Turn:
    """One turn of a chat, in tokens.

    first: of the prompt, alike in all chats of a task (facts, question, instructions). told: the conversation in it.
    new: of what is told, what the seat has not read or said in its own row before. opens: the seat's first turn.
    alike: nothing in the prompt was sampled.
    """

    seat: str
    budget: int
    sampled: float
    first: int
    told: float
    new: float
    opens: bool
    alike: bool


@dataclass(frozen=True)
class Play:
    """Chats of one run that are played together. group: chats of a task; adapters: how many their rows name; only:
    the turns that are played, where not all are."""

    rules: Rules
    chats: int
    group: int
    adapters: int
    words: Words
    only: tuple[int, ...] | None = None

    def turns(self, share: float = 1.0) -> list[Turn]:
        found: list[Turn] = []
        held: dict[str, float] = {}  # by seat, what its last prompt and message held of the conversation
        dialogue = self.rules.view == "dialogue"
        for at, seat in enumerate(self.rules.order):
            opens = seat not in held
            told = sum(self._told(past, seat) for past in found)
            told += self.words.turn * sum(past.seat == seat for past in found) if dialogue else 0
            budget, new = self.rules.budget(at), told - (held.get(seat, 0.0) if dialogue else 0.0)
            alike = opens and (self.rules.channel == "closed" or not found)
            found.append(Turn(seat, budget, budget * share, self.words.prompt, told, new, opens, alike))
            held[seat] = told + budget * share
        return [turn for at, turn in enumerate(found) if self.only is None or at in self.only]

    def _told(self, past: Turn, seat: str) -> float:
        """Tokens of an earlier turn in a seat's prompt."""
        own = past.seat == seat
        line = 0 if own and self.rules.view == "dialogue" else self.words.line
        return line + (past.sampled if own or self.rules.channel == "open" else 0)

    def sampled(self, share: float = 1.0) -> float:
        return self.chats * sum(turn.sampled for turn in self.turns(share))

    def read(self, share: float, reuse: bool) -> float:
        """Prompt tokens that the engine reads. reuse: what a seat read before is not read again, nor are the whole
        pages that a task's prompts begin with (`fast`); without, every different prompt is read whole."""
        found = 0.0
        for turn in self.turns(share):
            if turn.alike:
                found += (turn.first + turn.told) / self.group
            elif not reuse:
                found += turn.first + turn.told
            elif turn.opens or self.rules.view == "transcript":
                pages = turn.first // PAGE * PAGE
                found += pages / self.group + turn.first - pages + turn.told
            else:
                found += turn.new
        return self.chats * found

    def trained(self, share: float, packed: bool) -> float:
        """Tokens of the training rows. packed: prompts that a task's rows share are counted once; else padded rows."""
        turns = self.turns(share)
        rest = sum(turn.new + turn.sampled for turn in turns)
        if packed:
            return self.chats * (rest + sum(turn.first for turn in turns if turn.opens) / self.group)
        whole = turns if self.rules.view == "transcript" else [turn for turn in turns if turn.opens]
        return PADDING * self.chats * (rest + sum(turn.first for turn in whole))

    @property
    def rows(self) -> int:
        """Training rows."""
        return self.chats * len(self.rules.order if self.rules.view == "transcript" else self.rules.seats)

    @property
    def longest(self) -> float:
        """Tokens of the longest prompt with its message."""
        return max(turn.first + turn.told + turn.budget for turn in self.turns())


def words_of(config: Config) -> Words:
    return SHORT if config.base == "tiny" else FULL


def adapters_of(config: Config) -> int:
    """Of one run."""
    return len(config.rules.seats) if config.adapters == "per_seat" else 1


def steps_of(config: Config) -> int:
    """Steps of a run: those it may make, or fewer where its chats are counted (`samples`)."""
    each = config.problems * config.chats
    return min(config.steps, -(-config.samples // each)) if config.samples else config.steps


def draws_more(config: Config) -> bool:
    """Whether a run's method may play more than `chats` chats a problem (they are not known before it plays)."""
    kind = METHODS.get(config.method)
    return kind is None or kind.wants is not GRPO.wants or hasattr(kind, "replays")


def step_play(config: Config) -> Play:
    """The chats of one training step of a run."""
    return Play(
        config.rules, config.problems * config.chats, config.chats, adapters_of(config), words_of(config)
    )


def dev_play(config: Config) -> Play:
    """One look of a run at the dev tasks."""
    return replace(step_play(config), chats=config.dev_tasks, group=1)


def dev_looks(config: Config) -> int:
    """Dev tasks are played once each at step 0, every `dev_every` steps and at the last one."""
    return (1 + -(-steps_of(config) // config.dev_every)) if config.dev_tasks else 0


def evaluation_plays(study: Study, job: Job) -> list[Play]:
    """All that a job plays on held-out tasks, in order."""
    config = study.job_config(job)
    found = [_pass_play(config, condition, once) for condition, once in study.work(job)]
    return found + list(_causal_plays(study, job, config))


def matrix_play(study: Study) -> Play | None:
    """The cross-play matrix, every cell of it (an oracle's search apart); None when the study has none."""
    if not study.evaluate.cross:
        return None
    runs = {job.name: (job.arm, job.seed or 0, Path()) for job in study.crossed}
    all_of = sitters(runs, study.evaluate.guests)
    config = study.config
    matrix = Matrix(Path(), all_of, (), study.evaluate.cross_chats, config)
    cells = sum(len(matrix.columns(row)) for row in matrix.rows)
    chats = cells * study.evaluate.cross * study.evaluate.cross_chats
    return Play(
        config.rules, chats, study.evaluate.cross_chats, len(runs) * adapters_of(config), words_of(config)
    )


def _pass_play(config: Config, condition: Condition, once: Pass) -> Play:
    rules = condition.rules(config)
    chats = config.heldout_tasks * once.chats
    if condition.hand == "half":
        chats *= len(config.rules.seats)
    adapters = adapters_of(config) if condition.trained else 0
    return Play(rules, chats, once.chats, adapters, words_of(config))


def _causal_plays(study: Study, job: Job, config: Config) -> Iterator[Play]:
    """The plain pass, what the base would have said, and every knock-out."""
    knocked = study.knockouts(job)
    if not knocked:
        return
    plain = _pass_play(config, study.own_condition(job.arm), Pass(chats=study.evaluate.chats))
    said = {turn for knockout in knocked if knockout.by == "base" for turn in knockout.turns}
    yield plain
    if said:
        yield replace(plain, only=tuple(sorted(said)))
    for _ in knocked:
        yield plain
