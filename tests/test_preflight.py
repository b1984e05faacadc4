"""Preflight: what would be refused later is refused before a file is written, and other contents are another run."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conftest import deals
from cotalk import checks
from cotalk.cli import main
from cotalk.config import Config
from cotalk.errors import BadInput
from cotalk.given import changed, digest_of_deals, digest_of_files, read_given, write_given
from cotalk.jobs import begin
from cotalk.preflight import preflight, preflight_run, refusal
from cotalk.single import train_one
from cotalk.study import Study, study_from
from toy import SETTINGS, toy_base, toy_grader, toy_tasks

METHOD = """
class Mine:
    def __init__(self, config): self.chats = config.chats
    def seat(self, group, number, cast): return cast.own
    def wants(self, group): return self.chats - len(group.chats)
    def credit(self, group):
        for chat in group.chats:
            for message in chat.messages:
                message.credit = chat.reward - 0.5
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "mine.py").write_text(METHOD)
    return SETTINGS | dict(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")), device="cpu",
        grade=toy_grader(tmp_path / "grader.py"), message_tokens=3, answer_tokens=4, steps=1, dev_tasks=1,
    )  # fmt: skip


def flags(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def as_study(settings: dict[str, Any], **arms: dict[str, Any]) -> Study:
    return study_from("toy", {"run": settings, "arms": arms or {"open": {}}}, None, [1], "toy")


# --- digests -------------------------------------------------------------------------------------------------


def test_every_word_that_is_played_is_in_the_digest_of_tasks() -> None:
    some = deals(3)
    assert digest_of_deals(some) == digest_of_deals(deals(3))
    assert len({digest_of_deals(x) for x in (some, some[::-1], some[:2], deals(4))}) == 4


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("a = 1")
    before = digest_of_files([path])
    path.write_text("a = 11")
    assert digest_of_files([path]) != before


def test_what_only_one_side_names_is_no_difference(tmp_path: Path) -> None:
    assert changed({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b"]
    assert read_given(tmp_path) == {}
    write_given(tmp_path, {"a": "1"})
    write_given(tmp_path, {"b": "2"})
    assert read_given(tmp_path) == {"a": "1", "b": "2"}
    write_given(tmp_path, {"c": "3"}, fresh=True)
    assert read_given(tmp_path) == {"c": "3"}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_damaged_record_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "given.json").write_text(text)
    with pytest.raises(BadInput, match=r"given\.json") as refused:
        read_given(tmp_path)
    assert refused.value.code == "run/given"


# --- what is looked at ---------------------------------------------------------------------------------------


def test_a_run_is_given_its_tasks_grader_method_and_base(settings: dict[str, Any], tmp_path: Path) -> None:
    config = Config(**settings, method=f"{tmp_path / 'mine.py'}:Mine")
    given = preflight_run(config).given
    assert list(given) == [
        "train tasks", "dev tasks", "held-out tasks", f"grader {tmp_path / 'grader.py'}:pay",
        f"method {tmp_path / 'mine.py'}:Mine", "base",
    ]  # fmt: skip
    (tmp_path / "mine.py").write_text(METHOD.replace("0.5", "0.25"))
    assert changed(given, preflight_run(config).given) == [f"method {tmp_path / 'mine.py'}:Mine"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(message_tokens=40_000), r"a chat may need .*message_tokens = \d+ and answer_tokens = \d+ fit"),
        (dict(heldout_tasks=300), r"has 20 heldout tasks.*Held-out tasks are taken first"),
        (dict(pool="adapter:nowhere"), "adapter nowhere"),
        (dict(pool="self, model:bases/nowhere"), "no such directory or file|nor found"),
        (dict(grade="nowhere.py:pay"), "there is no file nowhere.py"),
        (dict(method="nowhere.py:Mine"), "there is no file 'nowhere.py'"),
        (dict(base="./nowhere"), "there is no such directory or file"),
    ],
)
def test_a_refused_command_leaves_nothing_and_the_corrected_one_runs(
    settings: dict[str, Any],
    tmp_path: Path,
    change: dict[str, Any],
    match: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(BadInput, match=match):
        preflight_run(Config(**settings | change))
    with pytest.raises(BadInput, match=match):
        preflight(
            as_study(settings, open=change if set(change) <= {"pool", "grade", "method"} else {})
            if set(change) <= {"pool", "grade", "method"}
            else as_study(settings | change)
        )
    out = tmp_path / "out"
    assert main(["train", *flags(settings | change), "--out", str(out)]) == 2
    assert not (out / "config.toml").exists() and not (out / "given.json").exists()
    assert "[run/" not in capsys.readouterr().err


def test_another_view_than_the_base_was_made_for_is_told_and_played(settings: dict[str, Any]) -> None:
    path = Path(settings["base"]) / "cotalk_base.json"
    path.write_text('{"wording": "short", "view": "dialogue"}')
    with pytest.warns(UserWarning, match="was made for the dialogue view and plays transcript"):
        preflight(as_study(settings | {"view": "transcript"}))


def test_a_plan_tells_what_would_be_refused_and_asks_no_hub(settings: dict[str, Any]) -> None:
    assert refusal(as_study(settings)) == ""
    assert "has 20 heldout tasks" in refusal(as_study(settings | {"heldout_tasks": 300}))
    assert refusal(as_study(settings | {"tasks": "gsm8k"})) == ""
    assert refusal(as_study(settings | {"base": "nobody/nothing"})) == ""
    assert "no such directory" in refusal(as_study(settings | {"base": "./nowhere"}))


def test_golds_that_would_be_graded_amiss_are_refused_unless_the_grader_is_ones_own(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in Path(settings["tasks"]).read_text().splitlines()]
    rows[3]["gold"] = "about 7"
    Path(settings["tasks"]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadInput, match=r"tasks\.jsonl:4: gold 'about 7' holds words beside 7"):
        preflight_run(Config(**settings | {"grade": ""}))
    assert preflight_run(Config(**settings)).tasks.heldout


# --- a run that goes on --------------------------------------------------------------------------------------


def test_a_run_does_not_go_on_with_other_contents(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings["method"] = f"{tmp_path / 'mine.py'}:Mine"
    command = ["train", *flags(settings), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert main(command) == 0  # done: nothing to do
    (tmp_path / "mine.py").write_text(METHOD.replace("0.5", "0.25"))
    capsys.readouterr()
    assert main(command) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (
        f"other contents of method {tmp_path / 'mine.py'}:Mine" in told
        and "--force" in told
        and "[run/other-config]" in told
    )
    (tmp_path / "mine.py").write_text(METHOD)
    rows = Path(settings["tasks"]).read_text().splitlines(keepends=True)
    Path(settings["tasks"]).write_text(
        "".join(rows[:-1]) + rows[-1].replace('"question": "', '"question": "So: ')
    )
    assert main(command) == 0, "a row that is in no set changes no run"
    Path(settings["tasks"]).write_text(
        rows[0].replace('"question": "', '"question": "So: ') + "".join(rows[1:])
    )
    assert main(command) == 2
    assert f"other contents of held-out tasks ({settings['tasks']})" in " ".join(
        capsys.readouterr().err.split()
    )
    inputs = next(each for each in checks.check(tmp_path / "out") if each.name == "inputs")
    assert inputs.result == "look" and "has other contents now" in inputs.detail
    assert main([*command, "--force"]) == 0
    assert (tmp_path / "out" / "set-aside" / "1" / "metrics.jsonl").is_file()


def test_the_check_of_inputs_tells_what_is_gone_and_what_it_did_not_look_at(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    assert main(["train", *flags(settings), "--out", str(tmp_path / "out")]) == 0
    found = {each.name: each for each in checks.check(tmp_path / "out")}["inputs"]
    assert (found.result, found.n) == ("pass", 5), found.detail
    (tmp_path / "grader.py").unlink()
    (tmp_path / "tasks.jsonl").unlink()
    found = {each.name: each for each in checks.check(tmp_path / "out")}["inputs"]
    assert found.result == "look"
    assert (
        "grader.py:pay is not here any more" in found.detail
        and "train tasks is not here any more" in found.detail
    )


def test_an_error_in_a_users_own_method_is_told_with_file_and_line(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(METHOD.replace("chat.reward - 0.5", "chat.reward / 0"))
    command = ["train", *flags(settings | {"method": f"{path}:Mine"}), "--out", str(tmp_path / "out")]
    assert main(command) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"its credit failed: ZeroDivisionError: float division by zero ({path}, line 9)" in told
    assert "[method/failed]" in told
    path.write_text(METHOD.replace("config.chats", "config.chatz"))
    assert main([*command, "--force"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "AttributeError" in told and "line 3" in told and "[method/not-loaded]" in told


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ("return cast.own", "return None", "its seat returned None: expected {seat: Player} of A, B"),
        (
            "return self.chats - len(group.chats)",
            "return 'many'",
            "its wants returned 'many': expected how many",
        ),
        ("chat.reward - 0.5", "'x'", "its credit left a message with credit 'x': expected a number"),
    ],
)
def test_what_a_users_method_returns_is_looked_at(
    settings: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    was: str,
    now: str,
    told: str,
) -> None:
    assert was in METHOD
    path = tmp_path / "mine.py"
    path.write_text(METHOD.replace(was, now))
    assert main(["train", *flags(settings | {"method": f"{path}:Mine"}), "--out", str(tmp_path / "out")]) == 1
    assert told in " ".join(capsys.readouterr().err.split())


def test_a_run_that_failed_before_its_first_step_goes_on_with_the_mended_file(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(METHOD.replace("chat.reward - 0.5", "chat.reward / 0"))
    command = ["train", *flags(settings | {"method": f"{path}:Mine"}), "--out", str(tmp_path / "out")]
    assert main(command) == 1
    path.write_text(METHOD)
    assert main(command) == 0
    assert "set-aside/1" in " ".join(capsys.readouterr().out.split())


def test_a_study_of_which_a_method_failed_goes_on_with_the_mended_file_and_redoes_only_its_runs(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(METHOD)
    study = as_study(settings, open={}, mine={"method": f"{path}:Mine"}, graded={"grade": settings["grade"]})
    out, given = tmp_path / "out", preflight(study).given
    begin(study, out, given)
    for arm in ("open", "mine", "graded"):
        (out / "runs" / f"{arm}-1").mkdir(parents=True)
    (out / "runs" / "open-1" / "metrics.jsonl").write_text('{"step": 1, "chats": 6}\n')
    path.write_text(METHOD + "\n")
    now = preflight(study).given
    assert "set-aside/1" in begin(study, out, now)[1]  # nothing of the method's was trained
    assert [p.name for p in sorted((out / "runs").iterdir())] == ["graded-1", "open-1"]
    (out / "runs" / "mine-1").mkdir()
    (out / "runs" / "mine-1" / "metrics.jsonl").write_text('{"step": 1, "chats": 6}\n')
    path.write_text(METHOD + "\n\n")
    with pytest.raises(BadInput, match=r"other contents of method .*--force sets aside .*\(mine-1: 1 files"):
        begin(study, out, preflight(study).given)


def test_a_study_and_a_run_do_not_share_a_directory(settings: dict[str, Any], tmp_path: Path) -> None:
    study = as_study(settings)
    begin(study, tmp_path / "study", {})
    with pytest.raises(BadInput, match="holds a study"):
        train_one(Config(**settings), tmp_path / "study", Console(file=StringIO()))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    with pytest.raises(BadInput, match="holds a run by itself"):
        begin(study, tmp_path / "run", {})


def test_a_study_goes_by_the_budgets_that_its_base_was_made_for() -> None:
    config = study_from("x", {"run": {"message_tokens": 20}, "arms": {"open": {}}}, None, [1], "x").config
    assert (config.message_tokens, config.answer_tokens) == (20, 36)


def test_steps_that_were_dropped_are_told(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(METHOD.replace("chat.reward - 0.5", "float('nan')"))
    assert main(["train", *flags(settings | {"method": f"{path}:Mine"}), "--out", str(tmp_path / "out")]) == 0
    assert "1 steps were dropped, not finite" in " ".join(capsys.readouterr().out.split())
    found = {each.name: each for each in checks.check(tmp_path / "out")}["runs"]
    assert (found.result, found.detail) == ("look", "run: 1 steps were dropped, not finite")


def test_an_evaluation_tells_other_contents_than_its_run_was_given(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "out"
    assert main(["train", *flags(settings), "--out", str(run)]) == 0
    evaluates = ["evaluate", "--adapter", str(run), "--out", str(tmp_path / "scored")]
    assert main(evaluates) == 0
    assert "not as in" not in capsys.readouterr().out
    (tmp_path / "grader.py").write_text((tmp_path / "grader.py").read_text() + "\n")
    assert main(evaluates) == 0
    assert f"other contents of grader {settings['grade']}" in " ".join(capsys.readouterr().out.split())


def test_the_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    asked = []

    def nothing(name: str, **_: Any) -> None:
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", nothing)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", nothing)
    with pytest.raises(BadInput, match="nor found on the hub"):
        preflight_run(Config(base="nobody/nothing", steps=0))
    assert asked == ["nobody/nothing"]
    assert "cotalk" in sys.modules
