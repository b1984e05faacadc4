"""`cotalk selftest`: dealing, chat, masks, credit and measures against worked-out truth, offline, in seconds.

Scripted teams whose behaviour is known are played and measured, and a two-layer model built in memory plays, is
trained for one step and scored again. Every check says what it looked at; one that looked at nothing fails.
Left out: anything that needs a real base or data (the tests and the quickstart).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable

from cotalk import talk
from cotalk.chat import Chat, Player, Rules, Seating, converse
from cotalk.config import Config
from cotalk.deal import Deal, deal
from cotalk.engines import Table
from cotalk.engines.hf import HfEngine
from cotalk.engines.scripted import asker, sender, silent
from cotalk.grade import grade as grade_text
from cotalk.learner import Learner
from cotalk.lora import Stack
from cotalk.methods import GRPO, Group
from cotalk.rows import rows_of
from cotalk.stack import drive
from cotalk.task import Task
from cotalk.train import grade
from cotalk.view import ChatFormat, Scene


def run(console: Console) -> int:
    """Runs every check, prints a table; 0 when all hold."""
    table = RichTable(title="selftest", title_justify="left")
    for column in ("check", "looked at", "result"):
        table.add_column(column)
    failed, began = 0, time.monotonic()
    for name, check in CHECKS.items():
        try:
            looked_at, result = check(), "[green]pass[/]"
        except Exception as error:  # a check may fail in any way; the table tells which and how
            looked_at, result, failed = "", f"[red]fail[/]: {type(error).__name__}: {error}", failed + 1
        table.add_row(name, looked_at, result)
    console.print(table)
    console.print(
        f"{len(CHECKS) - failed} of {len(CHECKS)} pass in {time.monotonic() - began:.1f} s", highlight=False
    )
    return 1 if failed else 0


def check_dealing() -> str:
    text = "Mrs. Lee has 12 pens. She buys 30 more. Her son takes four. How many pens does Mrs. Lee have?"
    dealt = deal(Task("t", "", "38", problem=text), "AB", "clean")
    _equal(dealt.hands, {"A": ("Mrs. Lee has 12 pens.", "Her son takes four."), "B": ("She buys 30 more.",)})
    return f"{len(dealt.facts)} facts of 1 problem, {len(dealt.hands)} hands"


def check_chat() -> str:
    """A sender and an asker, open and closed: who hears what, and who keeps its own words."""
    scripts = {"A": sender, "B": asker}
    opened, closed = (_play(scripts, Rules(channel=channel))[0] for channel in ("open", "closed"))
    _equal([m.said for m in opened.messages][1], "What do you know?")
    _equal([m.said for m in opened.messages][3], "What do you know?")
    _equal(opened.messages[0].heard, "Ann has 3 apples.")
    _equal({m.heard for m in closed.messages}, {"(no message)"})
    _equal([len(c.messages) for c in (opened, closed)], [4, 4])
    return "2 chats, 8 messages"


def check_measures() -> str:
    """A sender sends everything (1), a silent one nothing (0); a reader uses all that it heard."""
    chats = _play({"A": sender, "B": _reader}, Rules()) + _play({"A": silent, "B": _reader}, Rules())
    measured = [talk.measures([chat.as_json()]) for chat in chats]
    _equal([m["sends/A"][0] for m in measured], [1.0, 1.0, 0.0, 0.0])
    _equal([m["uses/B"][0] for m in measured], [1.0, 1.0, 0.0, 0.0])
    return f"{len(chats)} chats of scripted teams"


def check_grading() -> str:
    cases = {
        r"so \boxed{7}": True, r"\boxed{8} or \boxed{7}": True, r"\boxed{7} or \boxed{8}": False, "7": False,
        r"\boxed{3+4}": True, r"\boxed{3+4=7}": True, r"\boxed{7 apples}": True, r"\boxed{7": False,
    }  # fmt: skip
    for text, right in cases.items():
        _equal((text, grade_text(text, "7").strict), (text, right))
    return f"{len(cases)} answers"


def check_credit() -> str:
    """Rewards 1, .5, 0, 0 have the mean .375, so the credits are .625, .125, -.375, -.375; partners have none."""
    config = Config(chats=4)
    players = {"A": Player("learner", 1, learns=True), "B": Player("base", script=sender)}
    group = Group(_deals()[0], [Chat(_deals()[0], Rules(), players, i) for i in range(4)])
    for chat, reward in zip(group.chats, (1.0, 0.5, 0.0, 0.0), strict=True):
        played = _play({"A": silent, "B": sender}, Rules())[0]
        chat.messages, chat.reward = played.messages, reward
        for message in chat.messages:
            message.learns = players[message.seat].learns
    GRPO(config).credit(group)
    _equal([[m.credit for m in chat.messages] for chat in group.chats],
           [[c, None, c, None] for c in (0.625, 0.125, -0.375, -0.375)])  # fmt: skip
    return "16 messages of 1 group"


def check_masks() -> str:
    """A row is the prompt's ids and the sampled ids; only the sampled ones train; the first ratio is 1."""
    stack, form, config = _small()
    learner = Learner(stack, {"A": 1, "B": 1}, config)
    learner.initialise(0)
    chats = _play_model(stack, form, config, learner)
    rows = [row for chat in chats for row in rows_of(chat)]
    for chat in chats:
        for row in rows_of(chat):
            said = [m for m in chat.messages if m.seat == row.seat]
            for (start, logprobs, _), message in zip(row.spans, said, strict=True):
                _equal(tuple(row.ids[start : start + len(logprobs)]), message.ids)
                _equal(tuple(row.ids[:start]), message.prompt)
    for i, chat in enumerate(chats):
        for message in chat.messages:
            message.credit = 1.0 if i % 2 else -1.0
    before = {name: p.detach().clone() for name, p in stack.parameters(1).items()}
    logged = learner.update(chats, 1e-2)
    if abs(logged["ratio/max"] - 1) > 1e-3 or abs(logged["ratio/min"] - 1) > 1e-3:
        raise AssertionError(
            f"ratio of the first update {logged['ratio/min']} to {logged['ratio/max']}, expected 1"
        )
    if all(torch.equal(before[n], p) for n, p in stack.parameters(1).items()):
        raise AssertionError("the adapter did not change in an update")
    return f"{len(rows)} rows, {int(logged['credited_tokens'])} trained tokens"


CHECKS: dict[str, Callable[[], str]] = {
    "dealing": check_dealing,
    "chat and channel": check_chat,
    "measures of talk": check_measures,
    "grading": check_grading,
    "credit": check_credit,
    "masks, recorded ids, first ratio": check_masks,
}


def _reader(scene: Scene) -> str:
    """Uses whatever numbers its partner sent, and boxes nothing."""
    return " ".join(line.words for line in scene.lines if line.speaker is not None)


def _deals() -> list[Deal]:
    facts = [("Ann has 3 apples.", "Bob has 4 apples."), ("Ann has 5 apples.", "Bob has 9 apples.")]
    tasks = [Task(f"t{i}", "How many apples?", "7", two) for i, two in enumerate(facts)]
    return [deal(task) for task in tasks]


def _play(scripts: dict[str, Any], rules: Rules) -> list[Chat]:
    """Both tasks, played by scripts."""
    players = {seat: Player(script.__name__, script=script) for seat, script in scripts.items()}
    seatings = [Seating(d, players, 0, ("selftest", d.task.id)) for d in _deals()]
    chats = drive({"play": converse(seatings, rules, _form())}, Table(None), _raise)["play"]
    grade(chats, "strict")
    return chats


def _play_model(stack: Stack, form: ChatFormat, config: Config, learner: Learner) -> list[Chat]:
    players = {seat: Player("learner", k, learns=True) for seat, k in learner.adapters.items()}
    seatings = [Seating(d, players, 0, ("selftest", d.task.id)) for d in _deals()]
    return drive(
        {"play": converse(seatings, config.rules, form)}, Table(HfEngine(stack, form.end_ids)), _raise
    )["play"]


def _small() -> tuple[Stack, ChatFormat, Config]:
    """A two-layer model with random weights and a byte tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    form = _form()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = LlamaConfig(
            vocab_size=len(form.tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        )  # fmt: skip
        model = LlamaForCausalLM(shape)
    config = Config(rank=4, alpha=8.0, message_tokens=8, answer_tokens=10, temperature=1.0)
    return Stack(model, 1, config.rank, config.alpha), form, config


def _form() -> ChatFormat:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    letters = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>")
    fast.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return ChatFormat(fast, "short")


def _equal(found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError(f"{found!r}, expected {expected!r}")


def _raise(_: str, error: Exception) -> None:
    raise error
