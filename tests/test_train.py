"""The loop: which tasks a step holds, what its chats are told apart by, and what a step writes down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import deals
from cotalk.chat import BASE, Chat, Message, Player, Rules
from cotalk.grade import load_grader
from cotalk.methods import GRPO, Group
from cotalk.partners import Cast
from cotalk.run import RunDirectory
from cotalk.train import Run, grade, resume, step_metrics, tasks_of
from toy import Dying, Killed, engine_of, everything, pay, play, toy_config, toy_grader, toy_run


def lines(path: Path, name: str) -> list[dict[str, Any]]:
    return RunDirectory(path).lines(name)


def steps(path: Path) -> list[dict[str, Any]]:
    """The metrics of training steps (those of dev tasks are lines of their own)."""
    return [line for line in lines(path, "metrics.jsonl") if "reward" in line]


def bare(tmp_path: Path, n: int, problems: int, seed: int = 17) -> Run:
    run = toy_run(tmp_path, toy_config(train_tasks=n, problems=problems, seed=seed, dev_tasks=0))
    return run


# --- tasks of a step -----------------------------------------------------------------------------------------


@given(n=st.integers(1, 40), problems=st.integers(1, 12), seed=st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_no_step_holds_a_task_twice_and_a_pass_holds_each_at_most_once(
    n: int, problems: int, seed: int
) -> None:
    problems = min(problems, n)
    run = Run("r", toy_config(train_tasks=n, problems=problems, seed=seed), deals(n), [], *[None] * 4)
    each = n // problems
    passes = [
        [d.task.id for step in range(1, each + 1) for d in tasks_of(run, p * each + step)] for p in range(3)
    ]
    for names in passes:
        assert len(names) == each * problems
        assert len(set(names)) == len(names)
    if n >= 12 and problems <= 3:
        assert (
            passes[0] != passes[1] != passes[2] != passes[0]
        )  # each pass in an order of its own (1 in 12! by luck)


def test_the_tasks_of_a_step_depend_on_the_seed_and_the_step_alone(tmp_path: Path) -> None:
    run, other = bare(tmp_path, 12, 3), bare(tmp_path, 12, 3, seed=18)
    forward = [tasks_of(run, step) for step in range(1, 9)]
    backward = [tasks_of(run, step) for step in range(8, 0, -1)][::-1]
    assert forward == backward
    assert forward != [tasks_of(other, step) for step in range(1, 9)]


# --- a run ---------------------------------------------------------------------------------------------------


def test_a_run_plays_its_groups_and_writes_every_step(tmp_path: Path) -> None:
    seen = []
    run = toy_run(tmp_path, toy_config(steps=3, dev_every=2))
    run.progress = lambda step, metrics: seen.append((step, metrics["reward"]))
    play(run)
    chats = lines(tmp_path, "chats.jsonl")
    for step in (1, 2, 3):
        mine = [c for c in chats if c["step"] == step]
        tasks = [d.task.id for d in tasks_of(run, step)]
        assert [(c["task"], c["chat"]) for c in mine] == [(task, i) for task in tasks for i in range(3)]
        metrics = steps(tmp_path)[step - 1]
        assert metrics["step"] == step and metrics["chats"] == 6
        assert metrics["reward"] == pytest.approx(sum(c["reward"] for c in mine) / 6)
        assert metrics["tokens"] == sum(m["tokens"] for c in mine for m in c["messages"])
        assert metrics["seconds"] > 0
        assert len({tuple(m["said"] for m in c["messages"]) for c in mine}) == 6  # each drawn by its own key
    assert [step for step, _ in seen] == [1, 2, 3]
    dev = lines(tmp_path, "dev.jsonl")
    assert [(c["step"], c["task"]) for c in dev] == [(s, f"sum-{i}") for s in (0, 2, 3) for i in (8, 9)]
    assert {c["task"] for c in dev}.isdisjoint(c["task"] for c in chats)
    assert [m["step"] for m in lines(tmp_path, "metrics.jsonl") if "dev/score" in m] == [0, 2, 3]


def test_credit_on_disk_is_the_groups_advantage(tmp_path: Path) -> None:
    play(toy_run(tmp_path, toy_config(steps=1)))
    chats = lines(tmp_path, "chats.jsonl")
    credits = set()
    for task in {c["task"] for c in chats}:
        group = [c for c in chats if c["task"] == task]
        mean = sum(c["reward"] for c in group) / 3
        for c in group:
            assert [m["credit"] for m in c["messages"]] == pytest.approx([c["reward"] - mean] * 4)
            credits |= {round(m["credit"], 9) for m in c["messages"]}
    assert len(credits) > 2


def test_the_learning_rate_follows_its_schedule_and_is_the_one_applied(tmp_path: Path) -> None:
    """lr 0.02, 2 warm-up steps of 5, then down to 0 after the last: 1/2, 1, then 3/3, 2/3, 1/3 of it."""
    run, given_rates = toy_run(tmp_path, toy_config(steps=5, warmup=2, lr=0.02)), []
    update = run.learner.update
    run.learner.update = lambda chats, lr: (given_rates.append(lr), update(chats, lr))[1]
    play(run)
    expected = [0.01, 0.02, 0.02, 0.02 * 2 / 3, 0.02 / 3]
    assert given_rates == pytest.approx(expected)
    assert [m["lr"] for m in steps(tmp_path)] == pytest.approx(expected)
    assert run.learner.optimisers[1].param_groups[0]["lr"] == pytest.approx(0.02 / 3)


def test_dev_tasks_are_played_greedily_and_do_not_touch_training(tmp_path: Path) -> None:
    for name, settings_ in {
        "often": dict(dev_every=1),
        "seldom": dict(dev_every=100),
        "not": dict(dev_tasks=0),
    }.items():
        play(toy_run(tmp_path / name, toy_config(steps=2, **settings_)))
    often, seldom, never = (everything(tmp_path / name) for name in ("often", "seldom", "not"))
    last = "checkpoints/step-000002.safetensors"
    assert often[last] == seldom[last] == never[last]
    assert often["chats.jsonl"] == seldom["chats.jsonl"] == never["chats.jsonl"]
    assert [c["step"] for c in often["dev.jsonl"]] == [0, 0, 1, 1, 2, 2]
    assert [c["step"] for c in seldom["dev.jsonl"]] == [0, 0, 2, 2]
    assert "dev.jsonl" not in never
    other = toy_run(tmp_path / "seed", toy_config(steps=1, seed=99))
    play(other)
    said = [[m["said"] for c in lines(tmp_path / name, "dev.jsonl") if c["step"] == 0 for m in c["messages"]]
            for name in ("often", "seed")]  # fmt: skip
    assert said[0] == said[1]  # at step 0 every run is the base, and greedy has no seed


def test_arms_of_one_seed_begin_with_the_same_chats_and_other_seeds_with_others(tmp_path: Path) -> None:
    """One key for both arms: their difference is not in the dice."""
    first = {}
    for name, changes in {"open": {}, "closed": dict(channel="closed"), "seed": dict(seed=18)}.items():
        play(toy_run(tmp_path / name, toy_config(steps=1, problems=8, **changes)))  # a step of all 8 tasks
        chats = {(c["task"], c["chat"]): c["messages"] for c in lines(tmp_path / name, "chats.jsonl")}
        first[name] = {key: messages[0]["said"] for key, messages in chats.items()}
        if name == "closed":
            assert {m["heard"] for messages in chats.values() for m in messages} == {"(no message)"}
    assert first["open"] == first["closed"]
    assert sum(first["open"][key] == first["seed"][key] for key in first["open"]) <= 2  # of 24


def test_each_seed_begins_with_an_adapter_of_its_own_and_arms_of_one_seed_with_the_same(
    tmp_path: Path,
) -> None:
    began = {}
    for name, changes in {"open": {}, "closed": dict(channel="closed"), "seed": dict(seed=18)}.items():
        run = toy_run(tmp_path / name, toy_config(**changes))
        resume(run)
        began[name] = [p.tolist() for n, p in run.learner.stack.parameters(1).items() if "lora_A" in n]
    assert began["open"] == began["closed"]
    assert not any(a == b for a, b in zip(began["open"], began["seed"], strict=True))


def test_a_step_without_credit_is_skipped_counted_and_the_schedule_goes_on(tmp_path: Path) -> None:
    run = toy_run(tmp_path, toy_config(steps=3, dev_tasks=0))
    run.grader = lambda text, gold: 0.1  # every group is flat; 0.1 three times over has no exact mean
    play(run)
    assert [(m["skipped"], m["groups/flat"], m["credited_tokens"]) for m in steps(tmp_path)] == [
        (1.0, 1.0, 0)
    ] * 3
    assert [m["lr"] for m in steps(tmp_path)] == pytest.approx([0.02, 0.02 * 2 / 3, 0.02 / 3])
    assert not any(
        p.any() for n, p in run.learner.stack.parameters(1).items() if "lora_B" in n
    )  # as it began


def test_a_failing_step_leaves_the_chats_before_it(tmp_path: Path) -> None:
    run = toy_run(tmp_path, toy_config(steps=3))
    grader = run.grader
    calls = []

    def sick(text: str, gold: str) -> float:
        calls.append(text)
        if len(calls) > 20:
            raise RuntimeError("no luck")
        return grader(text, gold)

    run.grader = sick
    with pytest.raises(Exception, match="no luck"):
        play(run)
    assert {c["step"] for c in lines(tmp_path, "chats.jsonl")} == {1}
    assert not RunDirectory(tmp_path).done


# --- methods in the loop -------------------------------------------------------------------------------------


class Adaptive(GRPO):
    """Asks for two more chats, once, and seats the base as B in every odd chat."""

    def seat(self, group: Group, number: int, cast: Cast) -> dict[str, Player]:
        return cast.own | ({"B": BASE} if number % 2 else {})

    def wants(self, group: Group) -> int:
        return {0: 2, 2: 2}.get(len(group.chats), -3)


def test_a_method_may_ask_for_more_chats_and_seat_partners_who_are_never_trained(tmp_path: Path) -> None:
    run = toy_run(tmp_path, toy_config(steps=1, adapters="per_seat"))
    run.method = Adaptive(run.config)
    play(run)
    chats = lines(tmp_path, "chats.jsonl")
    tasks = [d.task.id for d in tasks_of(run, 1)]
    assert [(c["task"], c["chat"]) for c in chats] == [(task, i) for task in tasks for i in range(4)]
    assert len({c["messages"][0]["said"] for c in chats}) == 8  # a later round draws other numbers
    for c in chats:
        partner = "base" if c["chat"] % 2 else "learner"
        assert c["players"] == {"A": "learner", "B": partner}
        by_base = [m["credit"] is None for m in c["messages"] if m["seat"] == "B"]
        assert set(by_base) == {partner == "base"}
        assert all(m["credit"] is not None for m in c["messages"] if m["seat"] == "A")


def test_a_later_round_draws_the_chats_that_one_round_would_have_drawn(tmp_path: Path) -> None:
    """The key is the chat's number, not the round in which it was asked for."""
    one, more = (
        toy_run(tmp_path / "one", toy_config(steps=1, chats=4)),
        toy_run(tmp_path / "more", toy_config(steps=1)),
    )
    more.method = Adaptive(more.config)
    more.method.seat = lambda group, number, cast: cast.own
    play(one)
    play(more)
    said = [
        [[m["said"] for m in c["messages"]] for c in lines(tmp_path / n, "chats.jsonl")]
        for n in ("one", "more")
    ]
    assert said[0] == said[1]


def test_a_bound_on_samples_ends_the_run_and_its_schedule_with_the_step_that_reaches_it(
    tmp_path: Path,
) -> None:
    """2 tasks x 3 chats a step, 20 chats at most: steps begin after 0, 6, 12, 18 chats; the fourth reaches 24."""
    run = play(toy_run(tmp_path, toy_config(steps=10, samples=20, decay="linear", lr=0.1)))
    found = steps(tmp_path)
    assert [line["step"] for line in found] == [1, 2, 3, 4] and run.played == 24
    # of 10 steps: 1; 1 + 60 // 20 = 4; 1 + 120 // 20 = 7; 1 + 180 // 20 = 10: rates 10, 7, 4, 1 tenths of .1
    assert [line["lr"] for line in found] == pytest.approx([0.1, 0.07, 0.04, 0.01])
    assert run.directory.done and (tmp_path / "adapter" / "adapter_config.json").is_file()


def test_a_bounded_run_that_is_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    settings = dict(steps=10, samples=20, checkpoint_every=2)
    play(toy_run(tmp_path / "whole", toy_config(**settings)))
    run = toy_run(tmp_path / "killed", toy_config(**settings))
    with pytest.raises(Killed):
        play(run, Dying(engine_of(run), 18))
    play(toy_run(tmp_path / "killed", toy_config(**settings)))
    assert everything(tmp_path / "whole") == everything(tmp_path / "killed")


def test_leave_one_out_plays_chats_again_without_a_message_and_counts_them(tmp_path: Path) -> None:
    run = play(toy_run(tmp_path, toy_config(steps=1, method="leave_one_out", chats=4)))
    (found,) = steps(tmp_path)
    assert (found["chats"], found["replayed"]) == (8, 8)  # 2 tasks x (2 of 4 chats) x (turns 0 and 1)
    assert run.played == 16
    assert len(lines(tmp_path, "chats.jsonl")) == 8


def test_a_replay_is_the_same_chat_up_to_the_message_and_hears_nothing_there(tmp_path: Path) -> None:
    run = toy_run(tmp_path, toy_config(steps=1, method="leave_one_out", chats=2, replay_share=1.0))
    kept: list[Group] = []
    credit = run.method.credit
    run.method.credit = lambda group: (kept.append(group), credit(group))  # type: ignore[method-assign]
    play(run)
    for group in kept:
        assert set(group.replays) == {(n, turn) for n in (0, 1) for turn in (0, 1)}
        for (number, turn), again in group.replays.items():
            chat = group.chats[number]
            assert [m.said for m in again.messages[: turn + 1]] == [m.said for m in chat.messages[: turn + 1]]
            assert again.messages[turn].heard == "(no message)" != chat.messages[turn].heard
            paid = chat.messages[turn].credit
            assert paid == pytest.approx(chat.reward - again.reward)


def test_with_strangers_a_step_tells_the_learners_reward_by_whom_they_met(tmp_path: Path) -> None:
    run = toy_run(tmp_path, toy_config(steps=1))
    run.method = Adaptive(run.config)
    play(run)
    (found,) = steps(tmp_path)
    chats = lines(tmp_path, "chats.jsonl")
    with_base = [c["rewards"]["A"] for c in chats if c["players"]["B"] == "base"]
    alone = [r for c in chats if c["players"]["B"] == "learner" for r in c["rewards"].values()]
    assert found["reward/base"] == pytest.approx(sum(with_base) / len(with_base))
    assert found["reward/self"] == pytest.approx(sum(alone) / len(alone))


# --- grading and metrics -------------------------------------------------------------------------------------


def chat_with(*last: str, order: str = "ABAB", cut: tuple[bool, ...] = (False,) * 4) -> Chat:
    """Two seats whose last messages are given; messages of 3, 5, 7 and 9 tokens."""
    said = ("hm", "well", *last)
    messages = [
        Message(
            seat, turn, words, words, (1,), (7,) * (3 + 2 * turn), (-0.5,) * (3 + 2 * turn), cut[turn], True
        )
        for turn, (seat, words) in enumerate(zip(order, said, strict=True))
    ]
    players = {"A": Player("learner", 1, learns=True), "B": Player("learner", 1, learns=True)}
    return Chat(deals(1)[0], Rules(order=order), players, 0, messages)  # gold 7


def test_every_seats_last_message_is_graded_and_the_team_earns_the_mean() -> None:
    chats = [
        chat_with(r"\boxed{7}", r"\boxed{7}"),
        chat_with("the answer is 7", r"\boxed{7}"),
        chat_with("7", "8"),
    ]
    grade(chats, "strict")
    assert [(c.rewards, c.reward) for c in chats] == [
        ({"A": 1.0, "B": 1.0}, 1.0),
        ({"A": 0.0, "B": 1.0}, 0.5),  # right, but in no box
        ({"A": 0.0, "B": 0.0}, 0.0),
    ]
    assert [c.answers["A"].parsed for c in chats] == [True, False, False]
    grade(chats, "lenient")
    assert [c.reward for c in chats] == [1.0, 1.0, 0.5]


def test_a_grader_of_ones_own_pays_fractions_and_counts_a_full_score_as_right() -> None:
    chats = [chat_with("half", "full")]
    grade(chats, "strict", lambda text, gold: {"half": 0.5, "full": 1.0}[text])
    assert chats[0].rewards == {"A": 0.5, "B": 1.0} and chats[0].reward == 0.75
    assert [chats[0].answers[s].strict for s in "AB"] == [False, True]


def test_the_metrics_of_a_step_worked_out() -> None:
    """Two groups of two chats. Flat: 1, 1. Not flat: 1/2, 0. Messages of 3, 5 tokens, answers of 7, 9, at -1/2 each."""
    first = [chat_with(r"\boxed{7}", r"\boxed{7}") for _ in range(2)]
    second = [chat_with("7", r"\boxed{7}"), chat_with("8", r"\boxed{9}", cut=(True, False, False, True))]
    groups = [Group(deals(1)[0], first), Group(deals(2)[1], second)]
    grade([*first, *second], "strict")
    found = step_metrics(groups)
    assert found["reward"] == (1 + 1 + 0.5 + 0) / 4
    assert found["reward_strict"] == 5 / 8  # of 8 answers: 4, and B's in the third chat
    assert found["reward_lenient"] == 6 / 8  # and A's bare 7
    assert found["parsed"] == 6 / 8
    assert found["groups/flat"] == 1 / 2
    assert found["chats"] == 4
    assert found["cut"] == 2 / 16
    assert (found["message_tokens"], found["answer_tokens"]) == (4.0, 8.0)
    assert found["tokens"] == 4 * 24
    assert found["surprise"] == 0.5


# --- resuming ------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_its_checkpoint_and_does_not_play_those_steps_again(tmp_path: Path) -> None:
    """Killed in step 4; the checkpoint is of step 2: steps 3 and 4 are owed, 1 and 2 are not."""
    run = toy_run(tmp_path, toy_config())
    with pytest.raises(Killed):
        play(run, Dying(engine_of(run), 4 * (1 + 3 + 1) + 2))  # looks at 0 and 2, steps 1 to 3, half of 4
    assert [m["step"] for m in steps(tmp_path)] == [1, 2, 3]
    again = toy_run(tmp_path, toy_config())
    engine = Dying(engine_of(again), 10_000)
    play(again, engine)
    assert engine.calls == 4 * (2 + 1)  # steps 3 and 4, the look at 4
    assert [m["step"] for m in steps(tmp_path)] == [1, 2, 3, 4]


def test_a_run_of_another_config_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    play(toy_run(tmp_path, toy_config(steps=1)))
    before = everything(tmp_path)
    run = toy_run(tmp_path, toy_config(steps=2))
    with pytest.raises(ValueError, match="steps was 1 and is now 2"):
        play(run, Dying(engine_of(run), 0))
    assert everything(tmp_path) == before


def test_the_toy_grader_is_the_one_that_studies_load(tmp_path: Path) -> None:
    """Guards the tests themselves: both spellings of the grader pay the same."""
    loaded = load_grader(toy_grader(tmp_path / "grader.py"))
    texts = ["", "a", "b", "zzz", "7 cats"]
    assert [loaded(t, "1") for t in texts] == [pay(t, "1") for t in texts]
    assert len({pay(t, "1") for t in texts}) >= 3
