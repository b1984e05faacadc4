"""Checks: a sound study passes, each way of spoiling it is caught, and a check that looked at nothing fails."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cotalk import checks, jobs, results, study
from cotalk.checks import (
    Check,
    Evidence,
    check,
    counts,
    git_state,
    length_of,
    overlap,
    scan,
    settle,
    template_of,
    text_of,
)
from cotalk.cli import main
from cotalk.collect import collect as from_files
from cotalk.config import toml_table
from cotalk.deal import Deal
from cotalk.errors import BadInput
from cotalk.evaluate import Condition, read_score
from cotalk.preflight import prepare
from cotalk.results import versions
from cotalk.task import Task
from test_report import chat as report_chat
from toy import play as play_run
from toy import toy_base, toy_config, toy_grader, toy_run, toy_tasks

SEEDS, TASKS, STEPS = (17, 18), 24, 20
RUN = {"message_tokens": 28, "answer_tokens": 36, "reward": "strict", "channel": "open", "steps": STEPS}
KINDS = {  # three sorts of words, so that no held-out text is like a trained one
    "train": (
        "{} has {} apples in a large red basket.",
        "How many apples do the two have when they are put together?",
    ),
    "dev": ("{} pays {} coins for a ticket to the play.", "What do they pay in all to see it?"),
    "held": (
        "Box {} is filled with {} nails of steel.",
        "Count the nails in both boxes, please: how many are there?",
    ),
}


# --- a study, written as a study writes itself ------------------------------------------------------------


def a_deal(kind: str, at: int) -> Deal:
    fact, question = KINDS[kind]
    a, b = 3 + at, 40 + 2 * at
    facts = (fact.format("Ann", a), fact.format("Bob", b))
    task = Task(f"{kind}-{at}", question, str(a + b), facts)
    return Deal(task, facts, question, {"A": facts[:1], "B": facts[1:]})


HELD = [a_deal("held", at) for at in range(TASKS)]


def a_chat(deal: Deal, right: bool, draw: random.Random, **about: Any) -> dict[str, Any]:
    """A chat line; `right`: both seats solve it. Surface features are drawn without a look at the reward."""
    seats = sorted(deal.hands)
    hands = {seat: list(facts) for seat, facts in deal.hands.items()}
    said = [" ".join(hands[seat]) + draw.choice(["", " Please use this.", " Hello."]) for seat in seats]
    gold = str(int(deal.task.gold) + (not right))  # as many digits, right or wrong
    said += [f"{draw.choice(['So', 'In all', 'I add'])}: \\boxed{{{gold}}}" for _ in seats]
    turns = [*seats, *seats]
    if len(seats) == 1:
        said, turns = said[1:], seats
    messages = [
        {"seat": seat, "turn": turn, "said": text, "heard": text, "credit": 0.1, "cut": False, "logprob": -1.5,
         "tokens": len(text.split())}
        for turn, (seat, text) in enumerate(zip(turns, said, strict=True))
    ]  # fmt: skip
    answer = {"answer": gold, "strict": right, "lenient": right, "parsed": True, "notes": []}
    return {
        "step": None, "condition": "", "repeat": 0, "task": deal.task.id, "chat": 0, "order": "".join(turns),
        "channel": "open", "view": "dialogue", "question": deal.question, "gold": deal.task.gold, "hands": hands,
        "players": dict.fromkeys(seats, "learner"), "messages": messages, "answers": dict.fromkeys(seats, answer),
        "rewards": dict.fromkeys(seats, float(right)), "reward": float(right),
    } | about  # fmt: skip


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Every line of a file changed in place."""
    lines = lines_of(path)
    for line in lines:
        change(line)
    write(path, lines)


CONDITIONS = {  # name -> share right, hand, its runs' arm
    "base_open": (0.2, "dealt", ""), "base_closed": (0.02, "dealt", ""), "skyline": (0.95, "full", ""),
    "floor": (0.02, "half", ""), "trained_open": (0.85, "dealt", "open"), "trained_closed": (0.03, "dealt", "closed"),
}  # fmt: skip


REPEATED = ("base_open", "trained_open", "trained_closed")


def evaluated(name: str, run: str, share: float, hand: str, repeat: int = 0) -> list[dict[str, Any]]:
    draw, found = random.Random(f"{name} {run} {repeat}"), []
    for deal in HELD:
        halves = {"": deal.hands}
        if hand == "full":
            halves = {"": {"A": deal.facts}}
        if hand == "half":
            halves = {seat: {"A": facts} for seat, facts in deal.hands.items()}
        for half, hands in halves.items():
            for number in range(2):
                about = {"chat": number, "condition": name, "repeat": repeat} | (
                    {"half": half} if half else {}
                )
                found.append(a_chat(replace(deal, hands=dict(hands)), draw.random() < share, draw, **about))
    return found


def metrics(share: float, draw: random.Random) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"step": 0, "dev/score": 0.2}]
    for step in range(1, STEPS + 1):
        reward = 0.1 + share * step / STEPS + draw.uniform(-0.05, 0.05)
        found.append(
            {"step": step, "reward": reward, "reward_strict": reward, "reward_lenient": reward, "parsed": 0.95,
             "groups/flat": 0.3, "cut": 0.0, "message_tokens": 9.0, "answer_tokens": 12.0,
             "surprise": 0.4 - 0.01 * step, "ratio/mean": 1.0, "logprob_gap/mean": 1e-6}
        )  # fmt: skip
    return [*found, {"step": STEPS, "dev/score": 0.2 + share / 2}]


def write_study(path: Path) -> Path:
    """Two arms of two runs on 24 held-out tasks: everything as it should be."""
    runs = {arm: {f"{arm}-{seed}": seed for seed in SEEDS} for arm in ("open", "closed")} | {
        "": {"base": None}
    }
    for arm, named in runs.items():
        for name in named if arm else ():
            draw = random.Random(name)
            trained = [
                a_chat(
                    a_deal("train", 5 * step + task),
                    draw.random() < (0.6 if arm == "open" else 0.1),
                    draw,
                    step=step,
                    chat=n,
                )
                for step in range(1, STEPS + 1)
                for task in range(5)
                for n in range(4)
            ]
            write(path / "runs" / name / "chats.jsonl", trained)
            write(
                path / "runs" / name / "dev.jsonl",
                [a_chat(a_deal("dev", at), True, draw, step=0) for at in range(4)],
            )
            write(path / "runs" / name / "metrics.jsonl", metrics(0.7 if arm == "open" else 0.0, draw))
            (path / "runs" / name / "done.json").write_text(json.dumps({"versions": versions()}))
            (path / "runs" / name / "config.toml").write_text(
                toml_table(RUN | {"seed": named[name], "channel": arm})
            )
    for name, (share, hand, arm) in CONDITIONS.items():
        for run in runs[arm]:
            write(path / "scores" / name / f"{run}.jsonl", evaluated(name, run, share, hand))
    for name in REPEATED:
        share, hand, arm = CONDITIONS[name]
        for run in runs[arm]:
            for repeat in (1, 2):
                write(
                    path / "scores" / name / f"{run}.repeat{repeat}.jsonl",
                    evaluated(name, run, share, hand, repeat),
                )
    (path / "study.toml").write_text(
        f"seeds = {list(SEEDS)}\n[run]\n{toml_table(RUN)}"
        '[arms.open]\nchannel = "open"\n[arms.closed]\nchannel = "closed"\n'
        "[evaluate]\nrepeats = 3\ntrained_repeats = 3\n"
    )
    collect(path, runs)
    return path


def collect(path: Path, runs: dict[str, dict[str, Any]]) -> None:
    """results.json and outcomes/, through the package's own code."""
    scores = []
    for name, (_, hand, arm) in CONDITIONS.items():
        condition = Condition(name, name, "open", hand=hand, arm=arm)  # type: ignore[arg-type]
        scores.append(read_score(path, condition, runs[arm], HELD, repeats=3 if name in REPEATED else 1))
        scores[-1].save(path / "outcomes")
    document = results.build(
        "checked", scores, compare=[("trained_open", "trained_closed")], config={"seeds": list(SEEDS)},
        cost={"device_name": "CPU"},
    )  # fmt: skip
    document |= {"git": {"commit": "0" * 40, "dirty": False}, "failed": {}}
    document["tasks"] = {"train": {"read": 130, "dealt": 120, "refused": {}, "repeats": {"heldout": 3}}}
    results.write(path / "results.json", document)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("sound") / "study")


@pytest.fixture
def spoilt(sound: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(sound, tmp_path / "study"))


NAMED = {
    "schema": checks.schema, "runs": checks.finished, "pins": checks.pins, "measures": checks.measures,
    "intervals": checks.intervals,
    "contamination": checks.contamination, "noise floor": checks.noise_floor,
    "is the talk needed": checks.talk_needed, "length and cut-off": checks.lengths,
    "strict and lenient": checks.grading, "pass@k": checks.solved_once, "reward hacking": checks.reward_hacking,
    "over-optimisation": checks.over_optimisation, "collapse": checks.collapse, "on-policy": checks.on_policy,
    "random reward": checks.random_reward, "perturbed numbers": checks.perturbed_numbers, "inputs": checks.inputs,
}  # fmt: skip


def found(path: Path, name: str) -> Check:
    """One check of a study, by the name that it is printed under."""
    each = NAMED[name](Evidence(path))
    assert each.name == name
    return each


# --- all of them ------------------------------------------------------------------------------------------


def test_a_sound_study_passes_every_check_that_applies(sound: Path) -> None:
    verdicts = {each.name: (each.result, each.detail) for each in check(sound)}
    assert set(verdicts) == set(NAMED)
    assert {name for name, (result, _) in verdicts.items() if result == "not applicable"} == {
        "over-optimisation", "random reward", "perturbed numbers", "inputs",
    }  # fmt: skip
    assert not {name: told for name, told in verdicts.items() if told[0] not in ("pass", "not applicable")}
    assert counts(check(sound)) == {"pass": 14, "not applicable": 4}
    assert verdicts["over-optimisation"][1] == "the proxy is the target"


def test_every_check_says_how_much_it_looked_at(sound: Path) -> None:
    looked = {each.name: (each.n, each.looked_at) for each in check(sound)}
    assert looked["contamination"] == (24, "104 texts x 24, train and dev against held-out")  # 100 + 4
    assert looked["noise floor"] == (15, "3 evaluations of the base, 12 of 4 trained runs")
    assert looked["collapse"] == (80, "80 steps of 4 runs")
    assert looked["is the talk needed"][0] == 24
    assert looked["strict and lenient"][0] == 24 * 2 * (2 + 2 + 1 + 2 + 4 + 4)  # seats of each, and two seeds
    assert looked["reward hacking"][0] > 50
    intervals, words = looked["intervals"]
    assert intervals > 100 and words == f"{intervals} of {intervals} intervals, 1 of 1 comparisons"


@pytest.mark.parametrize(
    ("check_name", "gone"),
    [
        ("contamination", ["scores"]), ("contamination", ["runs"]), ("noise floor", ["scores"]),
        ("length and cut-off", ["scores"]), ("reward hacking", ["runs"]), ("strict and lenient", ["outcomes"]),
        ("pass@k", ["outcomes"]), ("is the talk needed", ["results.json"]), ("collapse", ["runs"]),
        ("pins", ["results.json"]), ("measures", ["results.json"]), ("schema", ["results.json"]), ("runs", ["runs"]),
        ("intervals", ["results.json"]),
    ],
)  # fmt: skip
def test_a_check_that_looked_at_nothing_fails(spoilt: Path, check_name: str, gone: list[str]) -> None:
    for name in gone:
        path = spoilt / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    each = found(spoilt, check_name)
    assert (each.n, each.result) == (0, "fail") and "it looked at nothing" in each.detail


def test_no_check_can_pass_over_nothing() -> None:
    assert settle("x", "0 texts", 0).result == "fail"
    assert settle("x", "1 text", 1, looks=["odd"], fails=["bad"]).detail == "bad; odd"
    with pytest.raises(ValueError, match="looked at nothing"):
        Check("x", "0 texts", 0, "pass")
    with pytest.raises(ValueError, match="expected one of"):
        Check("x", "1 text", 1, "fine")


def test_what_is_neither_a_study_nor_a_run_nor_results_is_refused(tmp_path: Path, sound: Path) -> None:
    for path, words in {
        tmp_path: "holds no study.toml",
        tmp_path / "x": "there is no",
        sound / "study.toml": "no .json",
    }.items():
        with pytest.raises(BadInput, match=words):
            check(path)


# --- contamination ----------------------------------------------------------------------------------------


def test_a_held_out_text_that_was_trained_on_fails(spoilt: Path) -> None:
    line = lines_of(spoilt / "scores/base_open/base.jsonl")[0]
    write(
        spoilt / "runs/open-17/chats.jsonl",
        [*lines_of(spoilt / "runs/open-17/chats.jsonl"), line | {"step": 1}],
    )
    each = found(spoilt, "contamination")
    assert each.result == "fail" and "1 texts are the same, such as held-out held-0 and held-0" in each.detail
    assert "3 repeats dropped" in found(spoilt, "contamination").detail


def test_a_held_out_text_that_is_nearly_a_trained_one_or_of_its_template_is_pointed_at(spoilt: Path) -> None:
    """Of 29 words the last is another: 8-grams over 28 of them. With other numbers: the same template."""
    line = lines_of(spoilt / "scores/base_open/base.jsonl")[0]
    path = spoilt / "runs/open-17/chats.jsonl"
    trained = lines_of(path)
    write(path, [*trained, line | {"step": 1, "question": line["question"].replace("there?", "here?")}])
    each = found(spoilt, "contamination")
    assert each.result == "look" and "1 texts share 8-grams over 80% of their words" in each.detail
    other = {
        seat: [fact.replace("4", "7").replace("3", "9") for fact in facts]
        for seat, facts in line["hands"].items()
    }
    write(path, [*trained, line | {"step": 1, "hands": other}])
    each = found(spoilt, "contamination")
    assert each.result == "look" and "texts share a template" in each.detail


def test_a_renamed_field_is_a_fail_and_not_a_pass_over_no_texts(spoilt: Path) -> None:
    for path in (spoilt / "scores").glob("*/*.jsonl"):
        changed(path, lambda line: line.update(cards=line.pop("hands")))
    each = found(spoilt, "contamination")
    assert (each.result, each.n) == ("fail", 0)


def test_texts_are_compared_by_words_grams_and_template() -> None:
    base = "Ann has 3 apples and her good old friend Bob has 14 apples in a sack. How many do they have?"
    held = {
        "same": base.upper().replace(".", "!"),  # 21 words
        "near": base.replace("sack", "bag"),  # 15 words before it, 5 after it: 15 of 21 are covered
        "nearer": base.replace("have?", "hold?"),  # 20 of 21
        "form": base.replace("Ann", "Eva").replace("Bob", "Tim").replace("14", "15").replace("3", "8"),
        "else": "Something quite different.",
    }
    found = overlap({"t": base}, held)
    assert (found.exact, found.near, found.template) == ([("same", "t")], [("nearer", "t")], [("form", "t")])
    assert overlap({}, held) == overlap({"t": base}, {}) == checks.Overlap([], [], [])


def test_a_template_is_a_text_without_its_names_and_numbers() -> None:
    assert template_of("Tom has 1,200 cats. How many does he have?") == template_of(
        "Mia has 7 cats. How many does he have?"
    )
    assert template_of("Tom has 3 cats.") != template_of("Tom has 3 dogs.")


def test_a_text_is_put_together_as_it_was_dealt() -> None:
    hands = {"B": ["two.", "four."], "A": ["One.", "three.", "five."]}
    assert text_of({"hands": hands, "question": "Six?"}) == "One. two. three. four. five. Six?"
    assert text_of({"question": "Six?"}) == text_of({"hands": hands}) == ""


# --- noise, lengths ---------------------------------------------------------------------------------------


def test_a_base_that_was_evaluated_once_has_no_noise_floor(spoilt: Path) -> None:
    for path in (spoilt / "scores/base_open").glob("*.repeat*"):
        path.unlink()
    each = found(spoilt, "noise floor")
    assert each.result == "fail" and "evaluated 1 times; expected 3" in each.detail


def test_an_evaluation_copied_is_no_repeat(spoilt: Path) -> None:
    folder = spoilt / "scores/base_open"
    shutil.copy(folder / "base.jsonl", folder / "base.repeat2.jsonl")
    each = found(spoilt, "noise floor")
    assert each.result == "fail" and "word for word the same" in each.detail


def test_a_run_that_was_not_evaluated_as_often_as_the_study_promised_fails(spoilt: Path) -> None:
    (spoilt / "scores/trained_closed/closed-18.repeat2.jsonl").unlink()
    each = found(spoilt, "noise floor")
    assert (each.result, each.looked_at) == ("fail", "3 evaluations of the base, 11 of 4 trained runs")
    assert "of 3 evaluations that [evaluate] trained_repeats promises there are: closed-18 2" in each.detail
    for path in (spoilt / "scores").glob("trained_*/*.jsonl"):
        path.unlink()
    each = found(spoilt, "noise floor")
    assert (each.result, each.looked_at) == ("fail", "3 evaluations of the base, 0 of 4 trained runs")
    assert "open-17 0, closed-17 0" in each.detail.replace("open-18 0, ", "")


def test_a_base_that_was_evaluated_less_often_than_promised_fails(spoilt: Path) -> None:
    toml = spoilt / "study.toml"
    toml.write_text(toml.read_text().replace("repeats = 3", "repeats = 4", 1))
    each = found(spoilt, "noise floor")
    assert each.result == "fail" and "evaluated 3 times; expected 4" in each.detail


def test_a_study_that_repeats_no_run_is_for_a_person_to_read(spoilt: Path) -> None:
    toml = spoilt / "study.toml"
    toml.write_text(toml.read_text().replace("trained_repeats = 3", "trained_repeats = 1"))
    for path in (spoilt / "scores").glob("trained_*/*.repeat*.jsonl"):
        path.unlink()
    document = json.loads((spoilt / "results.json").read_text())
    for condition in document["conditions"].values():
        condition["repeats_per_seed"] = {seed: row[:1] for seed, row in condition["repeats_per_seed"].items()}
    document["conditions"]["base_open"].pop("repeats_per_seed")
    (spoilt / "results.json").write_text(json.dumps(document))
    each = found(spoilt, "noise floor")
    assert each.result == "look" and "no run was evaluated again" in each.detail
    toml.write_text(toml.read_text().replace("trained_repeats = 1\n", ""))  # of an earlier version
    assert found(spoilt, "noise floor").result == "look"


def test_a_study_that_names_no_run_fails(spoilt: Path) -> None:
    toml = spoilt / "study.toml"
    toml.write_text(toml.read_text().replace(f"seeds = {list(SEEDS)}", "seeds = []"))
    each = found(spoilt, "noise floor")
    assert each.result == "fail" and "names no trained run" in each.detail


def test_the_noise_of_each_condition_is_shown_and_worked_out_over_its_runs(spoilt: Path) -> None:
    means = [
        [float(np.mean([line["reward"] for line in lines_of(path)])) for path in sorted(paths)]
        for paths in ([*(spoilt / "scores/trained_open").glob(f"open-{seed}*")] for seed in SEEDS)
    ]
    sd = np.sqrt(np.mean([np.var(row, ddof=1) for row in means]))  # two runs of three: pooled over 4
    assert f"sd {sd:.4f} in trained_open" in found(spoilt, "noise floor").detail


def test_repeats_in_the_results_that_are_not_those_on_disk_fail(spoilt: Path) -> None:
    changed(
        spoilt / "scores/trained_open/open-18.repeat1.jsonl",
        lambda line: line.update(reward=1.0 - line["reward"]),
    )
    each = found(spoilt, "noise floor")
    assert each.result == "fail"
    assert "open-18 in trained_open: results.json has other evaluations than scores/" in each.detail


def test_a_run_whose_repeat_is_a_copy_fails(spoilt: Path) -> None:
    folder = spoilt / "scores/trained_open"
    shutil.copy(folder / "open-17.jsonl", folder / "open-17.repeat1.jsonl")
    each = found(spoilt, "noise floor")
    assert each.result == "fail" and "open-17 in trained_open: two of its evaluations" in each.detail


def test_a_difference_inside_the_noise_is_pointed_at(spoilt: Path) -> None:
    document = json.loads((spoilt / "results.json").read_text())
    document["comparisons"][0] |= {"difference": 0.001, "verdict": "helps"}
    (spoilt / "results.json").write_text(json.dumps(document))
    assert "lies inside the noise" in found(spoilt, "noise floor").detail


def test_answers_that_grow_and_are_cut_off_are_seen_for_their_seed(spoilt: Path) -> None:
    def longer(line: dict[str, Any]) -> None:
        for message in line["messages"][2:]:
            message.update(tokens=36, cut=True)

    changed(spoilt / "scores/trained_open/open-18.jsonl", longer)
    each = found(spoilt, "length and cut-off")
    assert each.result == "look"
    assert (
        "open-18: 0.50 of its messages are cut off" in each.detail
        and "open-18: answers went from" in each.detail
    )
    assert "open-17: " not in each.detail.split("; open-17 ")[0]


def test_a_seed_without_chats_fails(spoilt: Path) -> None:
    (spoilt / "scores/trained_open/open-18.jsonl").unlink()
    each = found(spoilt, "length and cut-off")
    assert (each.result, each.n) == ("fail", 3) and "open-18: no chats after training" in each.detail


def test_lengths_are_of_messages_and_answers_apart() -> None:
    line = report_chat(0, True, "x")
    line["messages"] = [
        {**m, "tokens": tokens, "cut": at == 0}
        for at, (m, tokens) in enumerate(zip(line["messages"], (2, 4, 10, 20)))
    ]
    assert str(length_of([line])) == "3.0/15.0 tokens, cut 0.25"
    assert length_of([]) is None


# --- reward hacking ---------------------------------------------------------------------------------------


def test_a_feature_that_goes_with_the_reward_is_named(spoilt: Path) -> None:
    def hack(line: dict[str, Any]) -> None:
        if line["reward"]:
            line["messages"][3]["said"] += "?!?"

    changed(spoilt / "runs/open-17/chats.jsonl", hack)
    each = found(spoilt, "reward hacking")
    assert each.result == "look" and "open-17: questions of answers +1.00" in each.detail
    assert "open-18: " not in each.detail.partition("open-17 ")[0]


def test_only_the_last_ten_steps_and_groups_that_differ_are_scanned(spoilt: Path) -> None:
    def early(line: dict[str, Any]) -> None:
        if line["reward"] and line["step"] <= STEPS - 10:
            line["messages"][3]["said"] += "?!?"

    changed(spoilt / "runs/open-17/chats.jsonl", early)
    assert found(spoilt, "reward hacking").result == "pass"
    rows = [report_chat(0, right, "train", step=1) for right in (True, False)]
    assert scan(rows[:1], "x").groups == scan([rows[0], rows[0]], "x").groups == 0  # one row; all alike
    assert scan(rows, "x").groups == 1


def test_groups_of_one_row_are_nothing_to_look_at(spoilt: Path) -> None:
    for path in (spoilt / "runs").glob("*/chats.jsonl"):
        write(path, [line for line in lines_of(path) if line["chat"] == 0])
    each = found(spoilt, "reward hacking")
    assert (each.result, each.n) == ("fail", 0)


def test_a_scan_of_features_without_a_meaning_is_seldom_alarmed() -> None:
    # 60 runs whose features know nothing of the reward, at alpha .05: 3 alarms expected, more than 9 is p < .002
    alarms = 0
    for run in range(60):
        draw = random.Random(run)
        rows = [
            a_chat(a_deal("train", task), draw.random() < 0.5, draw, step=1, chat=n)
            for task in range(12)
            for n in range(4)
        ]
        for row in rows:
            row["messages"][2]["said"] = "ab c." * draw.randrange(9) + "?" * draw.randrange(3)
        alarms += bool(scan(rows, f"run {run}").flagged)
    assert alarms <= 9


def proxy(path: Path, name: str, value: str) -> None:
    """[run] NAME = VALUE."""
    text = (
        (path / "study.toml")
        .read_text()
        .replace('reward = "strict"\n', "" if name == "reward" else 'reward = "strict"\n')
    )
    (path / "study.toml").write_text(text.replace("[run]\n", f'[run]\n{name} = "{value}"\n'))


def test_a_target_that_falls_while_its_proxy_rises_is_over_optimised(spoilt: Path) -> None:
    proxy(spoilt, "grade", "judge.py:kind")
    assert found(spoilt, "over-optimisation").result == "pass"  # the target went up with it

    def apart(line: dict[str, Any]) -> None:
        if "reward_strict" in line:
            line["reward_strict"] = 0.6 if line["step"] <= 10 else 0.2

    changed(spoilt / "runs/open-18/metrics.jsonl", apart)
    each = found(spoilt, "over-optimisation")
    assert (each.result, each.n) == ("look", 80)
    assert "open-18: the target fell from 0.60 to 0.20" in each.detail


def test_the_lenient_reward_is_a_proxy_too(spoilt: Path) -> None:
    proxy(spoilt, "reward", "lenient")
    assert "open-17 is paid the lenient reward" in found(spoilt, "over-optimisation").detail


# --- grades, need, collapse -------------------------------------------------------------------------------


def resaved(path: Path, name: str, **changes: Any) -> None:
    score = results.Score.load(path / "outcomes" / f"{name}.npz")
    replace(score, **{kind: change(getattr(score, kind)) for kind, change in changes.items()}).save(
        path / "outcomes"
    )


def test_answers_without_a_box_are_told_from_wrong_ones(spoilt: Path) -> None:
    resaved(spoilt, "trained_open", strict=lambda x: x * 0, parsed=lambda x: x * 0)
    each = found(spoilt, "strict and lenient")
    assert each.result == "look" and "trained_open: 1.00 hold no box" in each.detail
    assert "trained_open: lenient exceeds strict by 0.8" in each.detail
    assert "trained_open right 0.00, wrong 0.00, no box 1.00" in each.detail


def test_results_that_their_outcomes_do_not_give_are_stale(spoilt: Path) -> None:
    resaved(spoilt, "base_open", outcomes=lambda x: 1 - x)
    each = found(spoilt, "intervals")
    assert each.result == "fail" and "conditions.base_open.score.mean is 0." in each.detail
    assert re.search(r"and \d+ more; [\d,]+ of [\d,]+ numbers come out as they stand$", each.detail)


@pytest.mark.parametrize(
    "where", ["score.low", "per_seat.A.high", "pass_at.2.low", "talk.sends.low", "repeated.low"]
)
def test_an_interval_that_its_outcomes_do_not_give_fails(spoilt: Path, where: str) -> None:
    document = json.loads((spoilt / "results.json").read_text())
    *parents, last = where.split(".")
    rate = document["conditions"]["trained_open"]
    for key in parents:
        rate = rate[key]
    before = rate[last]
    rate[last] = before - 1e-8 if last == "low" else before + (1 - before) / 2
    (spoilt / "results.json").write_text(json.dumps(document))
    for path in (spoilt, spoilt / "results.json"):
        result = {each.name: each for each in check(path)}
        assert result["schema"].result == "pass"  # nothing that one value says of another
        assert result["intervals"].result == "fail"
        assert f"conditions.trained_open.{where} is" in result["intervals"].detail


@pytest.mark.parametrize("key", ["p", "low", "df", "exact_p", "noise"])
def test_a_comparison_that_its_seeds_do_not_give_fails_even_without_outcomes(spoilt: Path, key: str) -> None:
    document = json.loads((spoilt / "results.json").read_text())
    document["comparisons"][0][key] *= 1.001
    (spoilt / "results.json").write_text(json.dumps(document))
    for path in (spoilt, spoilt / "results.json"):
        each = found(path, "intervals")
        assert each.result == "fail" and f"comparisons.0.{key} is" in each.detail
        shutil.rmtree(spoilt / "outcomes", ignore_errors=True)


def test_intervals_whose_outcomes_are_gone_are_counted_and_pointed_at(spoilt: Path) -> None:
    (spoilt / "outcomes" / "floor.npz").unlink()
    each = found(spoilt, "intervals")
    assert each.result == "look" and "outcomes/*.npz do not give conditions.floor" in each.detail
    some, everything = map(int, re.findall(r"(\d+) of (\d+) intervals", each.looked_at)[0])
    assert 0 < some == each.n < everything
    shutil.rmtree(spoilt / "outcomes")  # Welch's, of the seeds, is left
    each = found(spoilt, "intervals")
    assert (each.result, each.n, each.looked_at) == (
        "look",
        1,
        f"1 of {everything} intervals, 1 of 1 comparisons",
    )
    document = json.loads((spoilt / "results.json").read_text()) | {"comparisons": []}
    (spoilt / "results.json").write_text(json.dumps(document))
    assert (found(spoilt, "intervals").result, found(spoilt, "intervals").n) == ("fail", 0)
    alone = found(spoilt / "results.json", "intervals")
    assert (alone.result, alone.n) == (
        "not applicable",
        0,
    ) and "do not give conditions.base_open" in alone.detail


def test_outcomes_of_other_tasks_or_of_another_version_cannot_be_used(spoilt: Path) -> None:
    resaved(spoilt, "trained_closed", tasks=lambda names: names[::-1])
    each = found(spoilt, "intervals")
    assert (each.result, each.n) == ("fail", 0) and "the same tasks in the same order" in each.detail
    document = json.loads((spoilt / "results.json").read_text())
    document["measures"]["intervals"] = 1
    (spoilt / "results.json").write_text(json.dumps(document))
    each = found(spoilt, "intervals")
    assert (each.result, each.n) == ("fail", 0) and "see schema and measures" in each.detail


@pytest.mark.parametrize(
    ("ratio", "gap", "result"),
    [(1.0, 1e-6, "pass"), (1.02, 0.02, "look"), (1.0, 0.05, "look"), (0.9, 0.02, "fail"), (1.0, 0.2, "fail")],
)  # fmt: skip
def test_a_sampler_whose_probabilities_are_not_the_trainers_is_caught(
    spoilt: Path, ratio: float, gap: float, result: str
) -> None:
    def drift(line: dict[str, Any]) -> None:
        if line.get("step") == 7 and "ratio/mean" in line:
            line |= {"ratio/mean": ratio, "logprob_gap/mean": gap}

    changed(spoilt / "runs/open-17/metrics.jsonl", drift)
    found = next(each for each in check(spoilt) if each.name == "on-policy")
    assert found.result == result
    assert found.n == len(SEEDS) * 2 * STEPS
    assert ("open-17 step 7" in found.detail) == (result != "pass")


def test_a_study_in_which_nothing_was_updated_fails_the_on_policy_check(spoilt: Path) -> None:
    for path in spoilt.glob("runs/*/metrics.jsonl"):
        changed(path, lambda line: line.pop("ratio/mean", None))
    found = next(each for each in check(spoilt) if each.name == "on-policy")
    assert (found.result, found.n) == ("fail", 0)


def test_pass_at_k_is_told_beside_the_mean_with_its_interval(sound: Path) -> None:
    each = found(sound, "pass@k")
    solved = results.read(sound)["conditions"]["base_open"]
    mean, low, high = (solved["pass_at"]["2"][key] for key in ("mean", "low", "high"))
    assert mean > solved["score"]["mean"]
    assert f"], pass@2 {mean:.2f} [{low:.2f}, {high:.2f}]" in each.detail
    assert each.n == TASKS * (4 + 2 * len(SEEDS))


def test_tasks_that_need_no_talk_are_pointed_at(spoilt: Path) -> None:
    document = json.loads((spoilt / "results.json").read_text())
    document["conditions"]["floor"]["score"] |= {"mean": 0.8, "high": 0.9}
    (spoilt / "results.json").write_text(json.dumps(document))
    each = found(spoilt, "is the talk needed")
    assert (
        each.result == "look"
        and "half a hand alone solves 0.80" in each.detail
        and "no room for talk" in each.detail
    )
    document["conditions"]["floor"]["score"] |= {"mean": 0.01}
    document["conditions"]["trained_closed"]["score"] |= {"mean": 0.5}
    del document["conditions"]["skyline"]
    (spoilt / "results.json").write_text(json.dumps(document))
    each = found(spoilt, "is the talk needed")
    assert (
        each.result == "fail"
        and "skyline was not played" in each.detail
        and "something gets through" in each.detail
    )


@pytest.mark.parametrize(
    ("late", "result", "words"),
    [
        ({"parsed": 0.1}, "fail", "answers with a box went from 0.95 to 0.10"),
        ({"surprise": 4.0}, "fail", "surprise a token rose"),
        ({"surprise": 0.0001}, "look", "nothing is tried any more"),
        ({"message_tokens": 27.9}, "fail", "message_tokens 27.9 is at its cap of 28"),
        ({"message_tokens": 1.0}, "fail", "message_tokens fell from 9.0 to 1.0"),
        ({"answer_tokens": 36}, "fail", "answer_tokens 36.0 is at its cap of 36"),
        ({"groups/flat": 1.0}, "look", "1.00 of the last groups are flat"),
        ({"groups/flat": 1.0, "reward": 1.0}, "pass", ""),  # flat because all is right
        ({"dev/score": 0.05}, "fail", "dev score 0.05 is under the base's 0.20"),
    ],
)
def test_every_alarm_of_a_collapse_names_its_run(
    spoilt: Path, late: dict[str, float], result: str, words: str
) -> None:
    def collapse(line: dict[str, Any]) -> None:
        if line["step"] > STEPS - 5:
            line.update({key: value for key, value in late.items() if key in line})

    changed(spoilt / "runs/open-17/metrics.jsonl", collapse)
    each = found(spoilt, "collapse")
    assert each.result == result and words in each.detail
    assert ("open-17: " in each.detail) == (result != "pass")


def test_silence_in_a_closed_arm_is_looked_at_and_no_collapse(spoilt: Path) -> None:
    changed(
        spoilt / "runs/closed-17/metrics.jsonl",
        lambda line: line.update(message_tokens=9.0 if line["step"] < 9 else 1.0),
    )
    assert found(spoilt, "collapse").result == "look"


def test_a_run_without_metrics_fails_however_many_others_have_some(spoilt: Path) -> None:
    (spoilt / "runs/closed-18/metrics.jsonl").unlink()
    each = found(spoilt, "collapse")
    assert (each.result, each.n) == ("fail", 60) and "closed-18: no step" in each.detail


# --- controls, pins, measures -----------------------------------------------------------------------------


def test_an_arm_that_gains_under_a_random_reward_is_pointed_at(spoilt: Path) -> None:
    text = (spoilt / "study.toml").read_text()
    (spoilt / "study.toml").write_text(text.replace("[arms.open]\n", '[arms.open]\nreward = "random"\n'))
    each = found(spoilt, "random reward")
    assert (each.result, each.n) == ("look", 2) and "open gains +0." in each.detail
    document = json.loads((spoilt / "results.json").read_text())
    del document["conditions"]["trained_open"]
    (spoilt / "results.json").write_text(json.dumps(document))
    assert found(spoilt, "random reward").result == "fail"


def test_a_score_that_falls_with_other_numbers_is_pointed_at(spoilt: Path) -> None:
    document = json.loads((spoilt / "results.json").read_text())
    document["conditions"]["trained_open_perturbed"] = document["conditions"]["base_open"]
    document["perturbed"] = {"refused": {"no number": 5}}
    (spoilt / "results.json").write_text(json.dumps(document))
    each = found(spoilt, "perturbed numbers")
    assert (each.result, each.n) == ("look", 24) and "trained_open falls by 0." in each.detail
    assert "5 refused: no number" in each.detail
    del document["conditions"]["trained_open_perturbed"]
    (spoilt / "results.json").write_text(json.dumps(document))
    (spoilt / "study.toml").write_text((spoilt / "study.toml").read_text() + "perturbed = true\n")
    assert found(spoilt, "perturbed numbers").result == "fail"  # asked for, and not there


@pytest.mark.parametrize(
    ("key", "value", "result", "words"),
    [
        ("versions", {"python": "3.11", "numpy": "2", "transformers": "5"}, "fail", "torch is not recorded"),
        ("config", {}, "fail", "seeds is not recorded"),
        ("cost", {}, "fail", "hardware is not recorded"),
        ("git", {"commit": "1" * 40, "dirty": True}, "look", "files differed from the commit"),
        ("git", None, "pass", ""),  # not in a checkout
    ],
)
def test_a_missing_pin_is_named(spoilt: Path, key: str, value: Any, result: str, words: str) -> None:
    document = json.loads((spoilt / "results.json").read_text())
    (spoilt / "results.json").write_text(json.dumps(document | {key: value}))
    each = found(spoilt, "pins")
    assert each.result == result and words in each.detail


def test_measures_of_another_version_are_never_shown_as_fresh(spoilt: Path) -> None:
    document = json.loads((spoilt / "results.json").read_text())
    document["measures"]["talk"] = 1
    (spoilt / "results.json").write_text(json.dumps(document))
    each = found(spoilt, "measures")
    assert each.result == "fail" and "talk was measured by version 1" in each.detail


def test_runs_that_failed_or_did_not_end_are_named(spoilt: Path) -> None:
    (spoilt / "runs/open-17/done.json").unlink()
    document = json.loads((spoilt / "results.json").read_text()) | {
        "failed": {"closed-18": "RunFailed: no memory\nat line 3"}
    }
    (spoilt / "results.json").write_text(json.dumps(document))
    assert found(spoilt, "runs").detail == "open-17 has not ended; closed-18 failed: RunFailed: no memory"


def test_the_git_state_is_the_commit_or_nothing(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    state = git_state(Path(__file__).parent)
    assert state is None or (len(state["commit"]) == 40 and isinstance(state["dirty"], bool))


# --- a run, a file, the command ---------------------------------------------------------------------------


def test_a_run_by_itself_and_a_results_file_are_checked_too(sound: Path) -> None:
    one = {each.name: each for each in check(sound / "runs/open-17")}
    assert {name: each.result for name, each in one.items() if each.result == "fail"} == {}
    assert one["contamination"].looked_at == "100 texts x 4, train against dev"
    assert (one["collapse"].n, one["length and cut-off"].n) == (STEPS, 1)
    assert [each.name for each in check(sound / "results.json")] == [
        "schema",
        "pins",
        "measures",
        "intervals",
    ]
    assert [each.result for each in check(sound / "results.json")] == ["pass"] * 4
    assert Evidence(sound / "results.json").only_results


def test_the_command_prints_a_table_and_ends_in_1_on_a_fail(
    sound: Path, spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["check", str(sound)]) == 0
    shown = capsys.readouterr().out
    assert "looked at" in shown and "noise floor" in shown and "14 pass" in shown
    shutil.rmtree(spoilt / "outcomes")
    assert main(["check", str(spoilt), "--json"]) == 1
    told = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert told["pass@k"]["result"] == "fail" and told["pass@k"]["n"] == 0
    assert main(["check", str(spoilt / "nothing")]) == 2


@pytest.mark.slow
def test_a_real_run_and_a_real_study_leave_what_the_checks_look_at(tmp_path: Path) -> None:
    """Played by the two-layer model: it solves nothing, and nothing that a check needs is missing."""
    play_run(toy_run(tmp_path / "run", toy_config()))
    assert not [each for each in check(tmp_path / "run") if each.n == 0 and each.result == "fail"]
    toy = toy_config(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")),
        grade=toy_grader(tmp_path / "grader.py"), steps=2, device="cpu",
    )  # fmt: skip
    settings = {key: value for key, value in toy.as_dict().items() if key != "seed"}
    plan = study.study_from(
        "toy", {"run": settings, "arms": {"open": {}, "closed": {"channel": "closed"}}}, None, [1, 2], "toy"
    )
    out, tasks = tmp_path / "study", prepare(plan.config)
    jobs.begin(plan, out, {})
    assert jobs.run_jobs(plan, out, tasks, plan.jobs(), lambda *_: None) == {}
    from_files(plan, out, tasks, {}, 1.0, 1)
    empty = {each.name for each in check(out) if each.n == 0 and each.result == "fail"}
    assert empty == set()
