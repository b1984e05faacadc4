"""A seat at the table: who plays with whom, what is told when, and that nothing hidden comes out too early."""

from __future__ import annotations

import io
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import cotalk
from cotalk import cli, seat
from cotalk.chat import Chat, Rules
from cotalk.errors import BadInput
from cotalk.run import RunDirectory, config_of
from cotalk.seat import JsonLines, Place, Terminal, boxed, sit
from cotalk.single import train_one
from cotalk.study import read_study
from cotalk.view import Scene
from toy import toy_base, toy_config, toy_grader, toy_tasks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on the toy base, with an adapter a seat."""
    root = tmp_path_factory.mktemp("seat")
    config = toy_config(
        base=str(toy_base(root / "base")), tasks=str(toy_tasks(root / "tasks.jsonl")), device="cpu", steps=2,
        grade=toy_grader(root / "grader.py"), adapters="per_seat", heldout_tasks=3, message_tokens=5, answer_tokens=12,
    )  # fmt: skip
    train_one(config, root / "toy-17", Console(file=io.StringIO()))
    return root / "toy-17"


@dataclass
class Recorder:
    """A guest with prepared words, that keeps what it was told."""

    words: list[str]
    games: int = 1
    told: list[tuple[Any, ...]] = field(default_factory=list)

    def waits(self, what: str) -> Any:
        self.told.append(("waits", what))
        return nullcontext()

    def begins(self, place: Place) -> None:
        self.told.append(("begins", place))

    def say(self, scene: Scene, rules: Rules) -> str:
        self.told.append(("say", scene))
        return self.words.pop(0)

    def shortened(self, heard: str, tokens: int) -> None:
        self.told.append(("shortened", heard, tokens))

    def ends(self, place: Place, chat: Chat, base: Chat) -> None:
        self.told.append(("ends", chat, base))

    def again(self, played: int) -> bool:
        return played < self.games

    def of(self, kind: str) -> list[Any]:
        return [what[1] if len(what) == 2 else what[1:] for what in self.told if what[0] == kind]


def seated(run: Path, at: str, words: list[str], games: int = 1, **how: Any) -> Recorder:
    guest = Recorder(words, games)
    sit(run, at, guest, **how)
    return guest


def said(chat: Chat) -> list[str]:
    return [message.said for message in chat.messages]


# --- who plays ------------------------------------------------------------------------------------------------


def test_a_guest_takes_the_turns_of_one_seat_and_the_run_all_others(run: Path) -> None:
    guest = seated(run, "B", ["hi", "7"])
    ((chat, base),) = guest.of("ends")
    assert [said(chat)[1], said(chat)[3]] == ["hi", "\\boxed{7}"]
    assert {s: p.name for s, p in chat.players.items()} == {"A": "trained", "B": "person"}
    assert {s: p.name for s, p in base.players.items()} == {"A": "base", "B": "base"}
    # the guest's words have no ids: they can never train
    assert [bool(m.ids) for m in chat.messages] == [True, False, True, False]
    assert chat.deal == base.deal and set(chat.rewards) == {"A", "B"}


def test_the_partner_hears_what_the_guest_says_and_its_words_depend_on_it(run: Path) -> None:
    one, other = (seated(run, "B", [word, "1"], seed=1).of("ends")[0][0] for word in ("aaaa", "zzzz"))
    assert said(one)[0] == said(other)[0] and said(one)[2] != said(other)[2]
    assert one.scene(2).lines[1].words == "aaaa"


def test_the_other_seats_are_played_by_whom_partner_names(run: Path, tmp_path: Path) -> None:
    """The same keys: what differs is the player. A copy of the run plays as the run does."""
    copy = shutil.copytree(run, tmp_path / "other-run")
    first = {
        who: said(seated(run, "B", ["x", "1"], seed=4, partner=who).of("ends")[0][0])[0::2]
        for who in ("", "base", str(copy))
    }
    assert first[""] == first[str(copy)] != first["base"]
    ((_, base),) = seated(run, "B", ["x", "1"], seed=4).of("ends")
    assert said(base)[0] == first["base"][0]  # the untrained base opens alike, whoever sits opposite
    (place,) = seated(run, "B", ["x", "1"], partner=str(copy)).of("begins")
    assert place.partner == "the trained model (other-run)"


def test_each_seat_is_played_by_its_own_adapter(run: Path, tmp_path: Path) -> None:
    """With A's and B's adapters exchanged on disk, the partner in seat B is another one."""
    swapped = shutil.copytree(run, tmp_path / "swapped")
    (swapped / "adapter_A").rename(swapped / "aside")
    (swapped / "adapter_B").rename(swapped / "adapter_A")
    (swapped / "aside").rename(swapped / "adapter_B")
    as_it_is, other = (
        said(seated(run, "A", ["x", "1"], seed=4, partner=p).of("ends")[0][0])[1::2]
        for p in ("", str(swapped))
    )
    assert as_it_is != other


def test_a_run_that_still_trains_plays_from_its_newest_checkpoint(run: Path, tmp_path: Path) -> None:
    """The last checkpoint holds what the adapters of the finished run hold, so both say the same."""
    training = shutil.copytree(run, tmp_path / "training")
    for name in ("adapter_A", "adapter_B"):
        shutil.rmtree(training / name)
    (training / "done.json").unlink()
    guest, finished = seated(training, "B", ["x", "1"], seed=4), seated(run, "B", ["x", "1"], seed=4)
    assert guest.of("begins")[0].partner == "the model of training after step 2 of 2"
    assert said(guest.of("ends")[0][0]) == said(finished.of("ends")[0][0])


def test_the_shipped_base_takes_a_seat(tmp_path: Path) -> None:
    """The quickstart's own arm, one step of it: its tokenizer, its budgets, its puzzles."""
    small = {"steps": 1, "train_tasks": 8, "dev_tasks": 1, "heldout_tasks": 4, "seed": 17}
    train_one(read_study("quickstart").arm("open").replaced(small), tmp_path, Console(file=io.StringIO()))
    guest = seated(tmp_path, "A", ["I have nothing.", "12"], seed=1)
    ((chat, base),) = guest.of("ends")
    assert said(chat)[0::2] == ["I have nothing.", "\\boxed{12}"] and all(said(chat)[1::2])
    assert len(said(base)) == 4 and chat.answers["A"].answer == "12" and guest.of("shortened") == []


# --- what is played and told ----------------------------------------------------------------------------------


def test_nothing_of_another_hand_is_known_before_the_end(run: Path) -> None:
    guest = seated(run, "A", ["x", "1"])
    (place,) = guest.of("begins")
    for scene in guest.of("say"):
        assert scene.facts == place.deal.hands["A"] and scene.seat == "A"
    assert [scene.last for scene in guest.of("say")] == [False, True]


def test_tasks_come_once_each_in_an_order_of_the_seed_with_the_named_one_first(run: Path) -> None:
    def tasks(**how: Any) -> list[str]:
        return [p.deal.task.id for p in seated(run, "B", ["x", "1"] * 9, games=9, **how).of("begins")]

    assert sorted(tasks(seed=1)) == ["sum-0", "sum-1", "sum-2"]  # there are three, however many are wanted
    assert tasks(seed=1) == tasks(seed=1)
    assert len({tuple(tasks(seed=seed)) for seed in range(4)}) > 1
    assert tasks(seed=1, task="sum-2")[0] == "sum-2" and len(tasks(seed=1, task="sum-2")) == 3


def test_what_is_longer_than_its_budget_is_heard_shortened_and_the_guest_is_told(run: Path) -> None:
    guest = seated(run, "B", ["abcdefgh", "1"])  # 5 tokens a message, one a letter
    assert guest.of("shortened") == [("abcde", 5)]
    ((chat, _),) = guest.of("ends")
    assert (chat.messages[1].said, chat.messages[1].heard) == ("abcdefgh", "abcde")


def test_the_model_is_waited_for_and_nothing_else(run: Path) -> None:
    waits = [what[0:2] for what in seated(run, "B", ["x", "1"]).told]
    kinds = [w[1] if w[0] == "waits" else w[0] for w in waits]
    assert kinds == ["loading", "begins", "thinking", "say", "thinking", "say", *["thinking"] * 4, "ends"]


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("60", r"\boxed{60}"), (" 60 ", r"\boxed{60}"), ("$1,250.50", r"\boxed{$1,250.50}"), ("-3", r"\boxed{-3}"),
        ("1/2", r"\boxed{1/2}"), ("60 plums", r"\boxed{60 plums}"), ("25%", r"\boxed{25%}"),
        (r"so \boxed{60}", r"so \boxed{60}"), ("I think 60", "I think 60"), ("60 or 61", "60 or 61"), ("", ""),
    ],
)  # fmt: skip
def test_a_number_alone_is_an_answer(typed: str, answer: str) -> None:
    assert boxed(typed) == answer


# --- refusals -------------------------------------------------------------------------------------------------


def test_what_cannot_be_played_is_refused_before_a_model_is_loaded(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seat, "load_base", lambda *_: pytest.fail("a base was loaded"))
    for at in ("C", "AB", ""):
        with pytest.raises(BadInput, match="expected one of A, B"):
            seated(run, at, [])
    with pytest.raises(BadInput, match="cotalk quickstart"):
        seated(tmp_path, "B", [])
    (tmp_path / "runs").mkdir()
    shutil.copytree(run, tmp_path / "runs" / "open-17")
    with pytest.raises(BadInput, match=r"it is a study: give one of its runs, .*open-17"):
        seated(tmp_path, "B", [])
    with pytest.raises(BadInput, match=r"--partner .*no run's directory"):
        seated(run, "B", [], partner=str(tmp_path / "none"))
    (tmp_path / "config.toml").write_text("steps = ")
    with pytest.raises(BadInput, match="not TOML"):
        seated(tmp_path, "B", [])


def test_a_task_that_is_not_held_out_and_a_run_without_a_model_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'sum-9' is not held out here; expected one such as sum-0"):
        seated(run, "B", [], task="sum-9")
    bare = tmp_path / "bare"
    RunDirectory(bare).begin(config_of(run, "RUN"))
    with pytest.raises(BadInput, match="adapter_A, adapter_B"):
        seated(bare, "B", [])


def test_a_partner_of_another_base_is_refused(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "foreign")
    for path in other.glob("adapter_*/cotalk_adapter.json"):
        path.write_text('{"base": "foreign", "base_sha256": "abc"}')
    with pytest.raises(BadInput, match="trained on a base with SHA-256"):
        seated(run, "B", [], partner=str(other))


# --- the two ways to sit --------------------------------------------------------------------------------------


def test_a_script_is_told_one_event_a_line_and_gives_one_line_a_turn(run: Path) -> None:
    out = io.StringIO()
    sit(run, "B", JsonLines(io.StringIO("hello there\n7\n"), out), seed=2)
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [e["event"] for e in events] == ["deal", "heard", "turn", "shortened", "heard", "turn", "end"]
    deal, first, turn, _, second, last, end = events
    assert deal["hand"] == end["chat"]["hands"]["B"] and deal["seat"] == "B" and deal["order"] == "ABAB"
    assert (first["seat"], first["turn"], first["words"]) == ("A", 0, end["chat"]["messages"][0]["heard"])
    assert (second["turn"], second["words"]) == (2, end["chat"]["messages"][2]["heard"])
    assert (turn["turn"], turn["answers"], last["turn"], last["answers"]) == (1, False, 3, True)
    assert (
        end["right"] == {s: r > 0 for s, r in end["chat"]["rewards"].items()}
        and end["reward"] == end["chat"]["reward"]
    )
    assert end["base"]["players"] == {"A": "base", "B": "base"}
    before_the_end = "".join(out.getvalue().splitlines()[:-1])
    assert end["chat"]["hands"]["A"][0] not in before_the_end  # "Ann has 3 apples." is A's alone


def test_a_script_that_ends_too_early_is_told_what_was_expected(run: Path) -> None:
    with pytest.raises(BadInput, match="one line for each of your turns"):
        sit(run, "B", JsonLines(io.StringIO("hello\n"), io.StringIO()))


def test_lines_on_stdin_play_at_the_terminal_too(run: Path) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=100)
    sit(run, "B", Terminal(console, io.StringIO("hello\n[bold]7\x1b[31m\n")), seed=2)
    text = shown.getvalue()
    assert "You are B. Your hand" in text and "Bob has" in text and "How many apples are there?" in text
    assert text.index("Bob has") < text.index("A: ") < text.index("> hello") < text.index("The team: ")
    assert text.index("Ann has") > text.index("The team: ")
    assert "The same deal, played by the untrained base" in text and "the trained model (toy-17)" in text
    assert "[bold]7" in text and "\x1b" not in text  # neither markup nor a terminal's control characters
    assert "[U+001B]" in text


def test_the_command_plays_from_a_pipe_and_says_the_seed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    typed(b"caf\xe9\n7\n")  # not UTF-8
    assert cli.main(["chat", str(run), "--seat", "B", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["chat"]["messages"][1]["said"] == "caf\ufffd"
    assert "--seed" in err and "--seed" not in out
    typed(b"x\n7\nx\n7\n")
    assert cli.main(["chat", str(run), "--seat", "B", "--json", "--games", "2", "--seed", "3"]) == 0
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()].count("end") == 2
    typed(b"x\n")
    assert cli.main(["chat", str(run), "--seat", "B"]) == 2
    assert "stdin ended" in capsys.readouterr().err
    assert cli.main(["chat", str(run), "--games", "-1"]) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="opens a pseudo-terminal")
@pytest.mark.slow
def test_a_person_at_a_real_terminal_is_asked_again_for_a_number_and_for_another_task(run: Path) -> None:
    import pty

    parent, child = pty.openpty()
    environment = os.environ | {
        "PYTHONPATH": str(Path(cotalk.__file__).parents[1]),
        "TERM": "dumb",
        "COLUMNS": "100",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "cotalk.cli", "chat", str(run), "--seat", "B", "--seed", "2"],
        stdin=child, stdout=child, stderr=child, env=environment, close_fds=True,
    )  # fmt: skip
    os.close(child)
    seen, at = "", 0

    def until(words: str) -> None:
        """Reads on until the words come, after those that were waited for before."""
        nonlocal seen, at
        end = time.monotonic() + 60
        while words not in seen[at:]:
            assert time.monotonic() < end, f"{words!r} did not come. Seen: {seen}"
            if select.select([parent], [], [], 1)[0]:
                seen += os.read(parent, 4096).decode("utf-8", "replace")
        at = seen.index(words, at) + len(words)

    def type_in(line: bytes) -> None:
        until("> ")  # readline is ready
        os.write(parent, line)

    try:
        until("your message:")
        type_in(b"hello\n")
        until("your answer")
        type_in(b"no idea\n")
        until("Type the number alone")
        type_in(b"7\n")
        until("Another task?")
        type_in(b"y\n")
        until("your message:")
        type_in(b"\x04")  # Ctrl-D
        until("You left the table.")
        assert process.wait(30) == 0
        assert seen.count("Your hand") == 2 and seen.count("The team:") == 1
    finally:
        process.kill()
        os.close(parent)
