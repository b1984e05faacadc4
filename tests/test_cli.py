"""The command line's own numbers, and what is typed wrong. Each command is tested beside what it calls."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from cotalk import cli
from cotalk.config import Config

COMMANDS = {
    tyro_name: typing.get_args(each)[0]
    for each in typing.get_args(typing.get_args(cli.Command)[0])
    for tyro_name in [typing.get_args(each)[1].name]
}
NEEDED = {"study": ["quickstart"], "deal": ["puzzles"]} | {
    n: ["nowhere"] for n in ("compare", "report", "chat")
}


def numbers_of(command: type) -> dict[str, typing.Any]:
    """{field: its type} of the numbers that a command takes itself; a run's settings are the Config's."""
    kinds = typing.get_type_hints(command)
    found = {f.name: kinds[f.name] for f in dataclasses.fields(command)}
    return {name: kind for name, kind in found.items() if {int, float} & {kind, *typing.get_args(kind)}}


CASES = [
    (name, field, kind) for name, command in COMMANDS.items() for field, kind in numbers_of(command).items()
]


def test_the_table_of_numbers_is_that_of_the_commands():
    assert len(COMMANDS) == 13
    assert {field for _, field, _ in CASES} - {"seeds"} == set(cli.NUMBERS)


@pytest.mark.parametrize(("name", "field", "kind"), CASES)
def test_no_command_takes_a_number_out_of_range(name, field, kind, capsys, monkeypatch):
    monkeypatch.setattr(COMMANDS[name], "__call__", lambda self: pytest.fail("it ran"))
    flag = "--" + field.replace("_", "-")
    if field == "seeds":  # a study's own check
        monkeypatch.undo()
        assert cli.main([name, *NEEDED.get(name, []), flag, "-1", "--plan"]) == 2
        assert "seeds = [-1]: expected whole numbers from 0 on" in capsys.readouterr().err
        return
    low, high = cli.NUMBERS[field].least, cli.NUMBERS[field].most
    past = [str(int(low) - 1), str(int(high) * 10 + 1), "9" * 400]
    past += ["nan", "inf", "-inf"] if float in (kind, *typing.get_args(kind)) else []
    for value in past:
        assert cli.main([name, *NEEDED.get(name, []), f"{flag}={value}"]) == 2
        told = capsys.readouterr().err
        assert f"{flag} = " in told and "expected" in told and "[config/range]" in told, (value, told)
    for value in ["x", "", "1.5.2", "9" * 5000]:
        assert cli.main([name, *NEEDED.get(name, []), f"{flag}={value}"]) == 2
        assert "Traceback" not in capsys.readouterr().err


HUGE = ["steps=0x" + "f" * 5000, "x=" + "9" * 5000, "steps=" + "[" * 9999]


@pytest.mark.parametrize(
    "setting", ["steps", "=3", "steps=", "steps=[[[", "lr=nan", "a=1", *HUGE], ids=lambda s: s[:9]
)
def test_a_setting_that_is_none_is_refused(setting, capsys):
    assert cli.main(["study", "quickstart", "--plan", "--set", setting]) == 2
    told = capsys.readouterr().err
    assert "expected" in told and "Traceback" not in told and len(told) < 2_000


@pytest.mark.parametrize(
    ("typed", "told", "code"),
    [
        (["--lr", "0"], "cotalk: lr = 0.0: expected above 0", "config/range"),
        (["--order", "AC"], "cotalk: order 'AC' cannot be played", "order/unplayable"),
        (["--order", "A"], "cotalk: order = 'A' seats one player alone", "order/alone"),
        (["--most-chats", "16"], "cotalk: most_chats = 16 changes nothing", "config/unused"),
    ],
)
def test_a_setting_that_a_run_refuses_is_told_with_its_code(typed, told, code, capsys, tmp_path):
    assert cli.main(["train", *typed, "--out", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(told) and shown.rstrip().endswith(f"[{code}]")


def test_an_option_that_is_none_is_told_with_the_nearest(capsys):
    assert cli.main(["train", "--lrr", "0"]) == 2
    assert "--lr" in capsys.readouterr().err
    assert cli.main(["train", "--help"]) == 0
    assert "Peak learning rate" in capsys.readouterr().out


def test_settings_of_a_run_are_no_numbers_of_a_command():
    assert not set(cli.NUMBERS) & {f.name for f in dataclasses.fields(Config)} - {"seed"}
