"""The Config: what it refuses, that its copy on disk reads back equal, and the learning rate's schedule."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import math
import re
import tomllib
import typing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotalk import config as config_module
from cotalk.chat import Rules
from cotalk.cli import main
from cotalk.config import OF_TRAINING, RANGES, STUDY_WIDE, Config, check_ranges, toml_table
from cotalk.errors import BadInput
from cotalk.study import RANGES as EVALUATE_RANGES
from cotalk.study import Evaluate

FIELDS = {field.name: field for field in dataclasses.fields(Config)}
KINDS = typing.get_type_hints(Config)
COUNTS = ["train_tasks", "heldout_tasks", "problems", "chats", "rank", "batch_tokens", "dev_every", "checkpoint_every",
          "drop_limit", "message_tokens", "answer_tokens"]  # fmt: skip


def test_the_defaults_are_the_published_recipe_with_our_strict_reward():
    c = Config()
    assert (c.problems, c.chats, c.steps, c.lr, c.decay, c.rank, c.alpha) == (
        8,
        4,
        80,
        1e-4,
        "linear",
        32,
        64.0,
    )
    assert (c.order, c.message_tokens, c.answer_tokens, c.temperature) == ("ABAB", 160, 384, 0.9)
    assert (c.adapters, c.normaliser, c.reward, c.method, c.rule) == (
        "shared",
        "credited",
        "strict",
        "grpo",
        "clean",
    )


def test_every_field_has_its_help_under_it():
    body = ast.parse(inspect.getsource(Config)).body[0].body
    helped = {
        field.target.id
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    assert helped == set(FIELDS)


def test_a_config_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().steps = 3


# --- types ---

WRONG = [None, [], {}, b"x", (1,), True]


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("name", FIELDS)
def test_no_field_takes_a_value_of_another_kind(name, value):
    if type(getattr(Config(), name)) is type(value) is bool:
        return
    with pytest.raises(BadInput, match=f"^{name} = .*expected"):
        Config(**{name: value})


@pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if kind in (int, float)])
def test_no_number_is_taken_from_text(name):
    with pytest.raises(BadInput, match=rf"^{name} = '3' \(str\): expected"):
        Config(**{name: "3"})


@pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if kind is int])
def test_no_count_is_taken_from_a_fraction(name):
    with pytest.raises(BadInput, match=rf"^{name} = 3.0 \(float\): expected int"):
        Config(**{name: 3.0})


@pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if kind is float])
def test_a_whole_number_is_a_number(name):
    value = 0 if name.startswith("beta") else 1
    assert getattr(Config(**{name: value}), name) == value


@pytest.mark.parametrize(
    "name", [n for n, kind in KINDS.items() if typing.get_origin(kind) is typing.Literal]
)
def test_a_choice_takes_its_choices_and_nothing_else_and_offers_the_nearest(name):
    choices = typing.get_args(KINDS[name])
    for choice in choices:
        assert getattr(Config(**{name: choice}), name) == choice
    with pytest.raises(BadInput) as refused:
        Config(**{name: choices[-1] + "x"})
    assert str(refused.value) == (
        f"{name} = {choices[-1] + 'x'!r}: expected one of {', '.join(choices)} (did you mean {choices[-1]!r}?)"
    )


# --- ranges ---


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_of_at_least_one_refuses_none_at_all(name):
    # problems <= train_tasks, so that 1 is tried beside 1 problem
    assert getattr(Config(**{"problems": 1, "method": "raft", name: 1}), name) == 1
    for value in (0, -1):
        with pytest.raises(BadInput, match=f"{name} ?= ?{value}.*expected at least 1"):
            Config(**{name: value})


@pytest.mark.parametrize("method", ["grpo", "mixed", "leave_one_out", "host"])
def test_one_chat_a_task_is_refused_where_it_could_teach_nothing(method):
    with pytest.raises(BadInput, match=f"chats = 1 with method = '{method}'.*expected at least 2"):
        Config(chats=1, method=method)
    assert Config(chats=1, method=method, steps=0).chats == 1  # an evaluation trains nothing


@pytest.mark.parametrize("name", ["steps", "dev_tasks", "warmup", "clip"])
def test_a_count_that_may_be_none_refuses_less(name):
    assert getattr(Config(**{name: 0}), name) == 0
    with pytest.raises(BadInput, match=f"{name} = -1: expected at least 0"):
        Config(**{name: -1})


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (dict(lr=0.0), "lr = 0.0"),
        (dict(lr=-1e-4), "lr = -0.0001"),
        (dict(alpha=0), "alpha = 0"),
        (dict(beta1=1.0), "beta1 = 1.0"),
        (dict(beta2=-0.1), "beta2 = -0.1"),
        (dict(temperature=-1.0), "temperature = -1.0"),
        (dict(normaliser=0), "normaliser = 0: expected"),
        (dict(normaliser=-3.5), "normaliser = -3.5: expected"),
        (dict(normaliser=float("inf")), "normaliser = inf: expected"),
        (dict(normaliser=float("nan")), "normaliser = nan: expected"),
        (
            dict(normaliser="credit"),
            r"normaliser = 'credit': expected one of credited, sampled \(did you mean 'credited'\?\)",
        ),
        (dict(targets=""), "targets = '': expected"),
        (dict(targets="q_proj,,v_proj"), "targets = 'q_proj,,v_proj': expected"),
        (dict(order="AC"), "order 'AC' cannot be played"),
        (dict(order=""), "order '' cannot be played"),
        (dict(order="A"), "seats one player alone: expected at least two seats in training"),
        (dict(problems=9, train_tasks=8), "problems = 9 a step, but train_tasks = 8"),
        (dict(tasks="\udc80.jsonl"), "expected text that can be written as UTF-8"),
    ],
)
def test_what_is_out_of_range_is_refused_with_what_was_given(bad, says):
    with pytest.raises(BadInput, match=says):
        Config(**bad)


def is_number(kind: object) -> bool:
    return kind in (int, float) or float in typing.get_args(kind)


@pytest.mark.parametrize(
    ("made", "ranges", "kinds"),
    [(Config, RANGES, KINDS), (Evaluate, EVALUATE_RANGES, typing.get_type_hints(Evaluate))],
    ids=["run", "evaluate"],
)
def test_every_number_has_a_range_and_nothing_outside_it_is_taken(made, ranges, kinds):
    # a new number cannot escape: it must stand in the table, and its ends are tried here
    assert set(ranges) == {name for name, kind in kinds.items() if is_number(kind)}
    for name, given_range in ranges.items():
        step = 1 if kinds[name] is int else 0.001
        past = [given_range.least - step, given_range.most * 2 + 1, 2**5000, -(2**5000)]
        past += [] if kinds[name] is int else [math.nan, math.inf, -math.inf]
        past += [given_range.least] * ("least" in given_range.without)
        past += [given_range.most] * ("most" in given_range.without)
        for value in past:
            whole = int(value) if kinds[name] is int else value
            with pytest.raises(BadInput, match=rf"{name} = .*: expected ") as refused:
                made(**{name: whole})
            assert refused.value.code == "config/range"
        inside = [given_range.least + step, given_range.most / 2]
        for value in [int(v) for v in inside] if kinds[name] is int else inside:
            room = {"train_tasks": 10**9} if name == "problems" else {}
            few = {"problems": 1} if name == "train_tasks" else {}
            assert getattr(made(**{name: value} | room | few), name) == value


def test_a_number_without_a_range_is_refused_whatever_it_is():
    @dataclasses.dataclass
    class New:
        dial: int = 3

    with pytest.raises(BadInput, match="dial = 3: expected that its range stands in the table"):
        check_ranges(New(), RANGES)


@given(st.text(st.sampled_from("ABCDabZ1 ") | st.characters(), max_size=8))
@example("")
@example("AC")
@example("A")
@example("AB" * 10_000)
def test_an_order_is_played_or_refused_before_anything_runs(order):
    fits = len(set(order)) >= 2 and "".join(sorted(set(order))) == "ABCDEFGH"[: len(set(order))]
    if fits:
        assert Config(order=order).rules.order == order
    else:
        with pytest.raises(BadInput) as refused:
            Config(order=order)
        # text with half a character is refused as text
        assert refused.value.code in ("order/unplayable", "order/alone", "config/type")
        assert len(str(refused.value)) < 500


# --- what nothing reads ---


@pytest.mark.parametrize(
    ("settings", "used"),
    [
        (dict(most_chats=16), dict(method="ada")),
        (dict(round_chats=4), dict(method="ada")),
        (dict(replay_share=0.25), dict(method="leave_one_out")),
        (dict(replay_by="another"), dict(method="leave_one_out")),
        (dict(snapshot_every=5), dict(pool="self, snapshots")),
        (dict(paid="own", method="raft"), dict(method="grpo")),
        (dict(scale_rewards=True, method="raft_published"), dict(method="mixed")),
    ],
)
def test_a_setting_that_nothing_reads_is_refused_with_what_would_read_it(settings, used):
    c = Config(**settings)
    (name,) = c.unused
    with pytest.raises(
        BadInput, match=rf"^here {name} = .* changes nothing with method = .*: expected .* leave it out"
    ):
        c.refuse_unused([name], "here ")
    assert Config(**settings | used).unused == {}
    c.refuse_unused(["steps"])  # names that are used are not refused


def test_a_method_of_ones_own_may_read_every_setting():
    assert Config(method="mine.py:Mine", most_chats=16, replay_share=0.1, paid="own").unused == {}


def test_a_config_that_does_not_train_is_checked_no_less():
    # an evaluation has steps = 0: a seat alone is allowed then, a nonsensical order or budget is not
    assert Config(steps=0, order="A").rules == Rules("A")
    for bad in (dict(order="AC"), dict(message_tokens=0), dict(temperature=-1.0)):
        with pytest.raises(BadInput):
            Config(steps=0, **bad)


def test_the_rules_are_the_configs():
    c = Config(
        order="ABCABC",
        view="transcript",
        channel="closed",
        message_tokens=5,
        answer_tokens=7,
        temperature=0.5,
    )
    assert c.rules == Rules("ABCABC", "transcript", "closed", 5, 7, 0.5)


def test_target_layers_are_names_or_all_linear():
    assert Config().target_layers == "all-linear"
    assert Config(targets="q_proj, v_proj").target_layers == ["q_proj", "v_proj"]


# --- overrides ---


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("step", "steps"), ("learning_rate", None), ("temprature", "temperature"), ("Lr", "lr")],
)
def test_an_unknown_key_is_refused_with_the_nearest_name_and_all_names(name, nearest):
    with pytest.raises(BadInput) as refused:
        Config().replaced({name: 1}, where="my.toml [run] ")
    assert str(refused.value).startswith(f"my.toml [run] unknown key {name!r}")
    assert (f"(did you mean {nearest!r}?)" in str(refused.value)) == (nearest is not None)
    assert str(refused.value).endswith(", ".join(FIELDS))


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p", "repetition_penalty", "kl", "dropout"])
def test_what_would_make_the_sampler_and_the_trainer_two_distributions_is_no_setting(name):
    with pytest.raises(BadInput, match=f"unknown key '{name}'"):
        Config().replaced({name: 0.9})


def test_overrides_are_checked_like_the_rest_and_say_where_they_stand():
    assert Config().replaced({"steps": 3, "channel": "closed"}) == Config(steps=3, channel="closed")
    assert Config().replaced({}) == Config()
    with pytest.raises(BadInput, match=r"^\[arms.open\] chats = 0: expected at least 1"):
        Config().replaced({"chats": 0}, where="[arms.open] ")


def test_what_belongs_to_a_whole_study_are_fields():
    assert set(STUDY_WIDE) < set(FIELDS)


# --- the copy on disk ---


def test_the_resolved_copy_reads_back_equal(tmp_path):
    c = Config(
        base='C:\\models\\a "b"', tasks="übung 😀.jsonl", lr=1e-05, normaliser=64, seed=-(2**40), clip=0
    )
    c.save(tmp_path / "config.toml")
    table = tomllib.loads((tmp_path / "config.toml").read_text(encoding="utf-8"))
    assert list(table) == list(FIELDS)
    assert Config().replaced(table) == c
    assert Config(**table).as_dict() == c.as_dict()
    assert [p.name for p in tmp_path.iterdir()] == ["config.toml"]  # nothing is left beside it


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.one_of(
    st.text(max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    NUMBERS,
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=3),
)


@given(st.dictionaries(st.sampled_from(["a", "b_c", "d-1"]), VALUES))
@example({"a": '\x7f\x00\x1f\u2028\n\t"\\ 😀 \\u0041'})
@example({"a": 1e-7, "b_c": 1e22, "d-1": -0.0})
def test_a_toml_table_reads_back_equal_whatever_it_holds(table):
    again = tomllib.loads(toml_table(table))
    assert again == table
    assert [type(v) for v in again.values()] == [type(v) for v in table.values()]


def in_range(name: str) -> st.SearchStrategy:
    """Any value that a number of the Config may take."""
    given_range = RANGES[name]
    if KINDS[name] is int:
        return st.integers(int(given_range.least), int(given_range.most))
    return st.floats(
        given_range.least,
        given_range.most,
        exclude_min="least" in given_range.without,
        exclude_max="most" in given_range.without,
    )


NUMBERS_OF_A_CONFIG = st.fixed_dictionaries({}, optional={name: in_range(name) for name in RANGES})
ORDERS = st.integers(2, 5).flatmap(
    lambda n: st.lists(st.sampled_from("ABCDE"[:n]), max_size=6).map(lambda some: "ABCDE"[:n] + "".join(some))
)


@given(st.text(max_size=10), ORDERS, NUMBERS_OF_A_CONFIG)
def test_any_config_reads_back_equal(text, order, numbers):
    tasks = {"problems": 1} | numbers
    tasks["train_tasks"] = max(tasks["problems"], numbers.get("train_tasks", 1))
    c = Config(**(tasks | {"tasks": text, "order": order, "method": "raft"}))
    assert Config(**tomllib.loads(toml_table(c.as_dict()))) == c


def test_the_copy_is_whole_or_not_there(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    path = tmp_path / "config.toml"
    Config(steps=1).save(path)
    monkeypatch.setattr(config_module.os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        Config(steps=2).save(path)
    assert tomllib.loads(path.read_text())["steps"] == 1


# --- the learning rate ---


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # linear: 4 steps fall by a quarter each and would be 0 at the fifth
        (dict(steps=4, lr=1.0), [1.0, 0.75, 0.5, 0.25]),
        # two steps up, then four of four quarters
        (dict(steps=6, warmup=2, lr=1.0), [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        (dict(steps=4, warmup=2, lr=1.0, decay="constant"), [0.5, 1.0, 1.0, 1.0]),
        (dict(steps=3, lr=0.5, decay="constant"), [0.5, 0.5, 0.5]),
        (dict(steps=1, lr=1.0), [1.0]),
        (dict(steps=2, warmup=4, lr=1.0), [0.25, 0.5]),  # stopped while still warming up
        (dict(steps=2, warmup=2, lr=1.0), [0.5, 1.0]),
    ],
)
def test_the_learning_rate_warms_up_and_decays_as_worked_out(settings, expected):
    c = Config(**settings)
    assert [c.learning_rate(step) for step in range(1, c.steps + 1)] == pytest.approx(expected)


def test_the_published_schedule_starts_at_its_peak_and_ends_one_step_before_nothing():
    c = Config(steps=80, lr=1e-4)
    assert c.learning_rate(1) == 1e-4
    assert c.learning_rate(41) == pytest.approx(5e-5)
    assert c.learning_rate(80) == pytest.approx(1e-4 / 80)


def test_symmetries_shares_and_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="'role' is none; expected some of roles, dealing, names, phrasing"):
        Config(symmetries="role")
    with pytest.raises(BadInput, match=r"replay_share = 1\.5: expected at least 0 and at most 1"):
        Config(replay_share=1.5)
    with pytest.raises(BadInput, match="samples = -1: expected at least 0"):
        Config(samples=-1)
    assert Config(symmetries="roles, names").drawn == ("roles", "names") and Config().drawn == ()


def test_progress_is_by_steps_or_by_chats_whichever_is_further() -> None:
    assert Config(steps=80).progress(7, 10_000) == 7
    bounded = Config(steps=80, samples=1280)
    assert [bounded.progress(step, played) for step, played in ((1, 0), (2, 256), (40, 256), (5, 1279))] == [
        1, 17, 40, 80,
    ]  # fmt: skip


def test_every_setting_is_of_training_or_read_by_an_evaluation() -> None:
    read = {
        "base", "dtype", "device", "engine", "tasks", "heldout", "rule", "train_tasks", "dev_tasks", "heldout_tasks",
        "order", "view", "channel", "wording", "message_tokens", "answer_tokens", "temperature", "reward", "grade",
        "seed", "adapters", "rank", "alpha", "targets",
    }  # fmt: skip
    assert set(OF_TRAINING) | read == set(Config().as_dict()) and not set(OF_TRAINING) & read


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--chats", "8"], "given --chats 8, which only training reads.*--chats-per-task"),
        (["--lr", "0.1", "--method", "host"], "--method host, --lr 0.1, which only training reads"),
        (["--steps", "80"], "--steps 80"),
    ],
)
def test_an_evaluation_refuses_what_it_does_not_read(
    given: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *given]) == 2
    assert re.search(told, " ".join(capsys.readouterr().err.split()))
