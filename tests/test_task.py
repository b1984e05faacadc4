"""Sources of tasks: what is read, in which order, and what every mistake in a file is told."""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotalk.deal import deal_all
from cotalk.errors import BadInput
from cotalk.task import CHUNK, MAX_LINE, UNSEEN_TEMPLATES, Task, kind_of, load, own_splits, stream_seed

EXAMPLES = Path(__file__).parent.parent / "examples"
GSM8K = os.environ.get("COTALK_GSM8K", "")
needs_gsm8k = pytest.mark.skipif(
    not GSM8K, reason="set COTALK_GSM8K to a directory with GSM8K's train.jsonl, test.jsonl"
)
GOOD = {"problem": "Ann has 3 cats. Ben has 4. How many cats are there?", "gold": "7"}


def written(path: Path, *rows: object) -> str:
    """A JSON-lines file; text and bytes go in as they are."""
    lines = [
        row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode()
        for row in rows
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def gsm8k_row(at: int) -> dict[str, str]:
    return {"question": f"Question {at}?", "answer": f"It is <<{at}={at}>>{at}.\n#### {at}"}


# --- your own JSON lines ---------------------------------------------------------------------------


def test_both_shapes_of_a_row_are_read(tmp_path: Path) -> None:
    facts = {
        "id": "cats",
        "facts": ["Ann has 3 cats.", "Ben has 4."],
        "question": "How many?",
        "gold": 7,
        "template": "t",
    }
    tasks = list(load(written(tmp_path / "mine.jsonl", facts, "", GOOD)))
    assert tasks[0] == Task("cats", "How many?", "7", ("Ann has 3 cats.", "Ben has 4."), template="t")
    assert tasks[1] == Task("mine-3", "", "7", problem=GOOD["problem"])  # line 3: the blank line counts


def test_rows_of_ones_own_keep_their_order_and_the_limit_holds(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", *({**GOOD, "id": at} for at in range(20)))
    assert [task.id for task in load(path)] == [str(at) for at in range(20)]
    assert [task.id for task in load(path, limit=3)] == ["0", "1", "2"]


def test_a_byte_order_mark_and_windows_line_ends_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n")
    assert next(load(str(path))).gold == "7"


@pytest.mark.parametrize(
    ("row", "found", "line"),
    [
        (b"\xff\xfe", "not UTF-8", 2),
        ('{"problem": "half a line', "not JSON", 2),
        ("[" * 100_000, "not JSON", 2),
        (
            '{"problem": "How many?", "gold": ' + "9" * 5000 + "}",
            "not JSON",
            2,
        ),  # Python reads at most 4,300 digits
        ("[1, 2]", "a list [1, 2]", 2),
        ({"gold": "7"}, "neither `facts` nor `problem`, found 'gold'", 2),
        ({**GOOD, "facts": ["a"]}, "both `facts` and `problem`", 2),
        ({"problem": "How many?"}, "`gold` is missing", 2),
        ({"facts": ["3 cats."], "gold": "7"}, "`question` is missing", 2),
        ({**GOOD, "gold": ""}, "`gold` is empty", 2),
        ({**GOOD, "gold": None}, "`gold` is null", 2),
        ({**GOOD, "gold": True}, "`gold` is true or false", 2),
        ('{"problem": "How many?", "gold": NaN}', "`gold` is a number nan", 2),
        ({**GOOD, "gold": "}{"}, "not right even as its own answer", 2),
        ({**GOOD, "problem": 7}, "`problem` is a number 7", 2),
        ({**GOOD, "problem": "  "}, "`problem` is empty", 2),
        ({"facts": "3 cats.", "question": "How many?", "gold": "7"}, "`facts` is a text '3 cats.'", 2),
        ({"facts": [], "question": "How many?", "gold": "7"}, "`facts` is a list []", 2),
        ({"facts": ["3 cats.", 4], "question": "How many?", "gold": "7"}, "`facts[1]` is a number 4", 2),
        ({**GOOD, "id": [1]}, "`id` is a list [1]", 2),
        ({**GOOD, "id": "first"}, "id 'first' was used at", 2),
        ('{"problem": "\\ud800?", "gold": "7"}', "half a character", 2),
        (b'{"problem": "' + b"x" * MAX_LINE + b'", "gold": "7"}', "a line of more than 10,485,760 bytes", 2),
    ],
)
def test_a_mistake_is_told_with_its_file_and_line(tmp_path: Path, row: object, found: str, line: int) -> None:
    path = written(tmp_path / "mine.jsonl", {**GOOD, "id": "first"}, row)
    with pytest.raises(BadInput) as told:
        list(load(path))
    assert f"{path}:{line}: " in str(told.value)
    assert found in str(told.value)
    assert "expected" in str(told.value)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    with pytest.raises(BadInput, match="the file is empty; expected one task a line"):
        load(str(path))


@pytest.mark.parametrize("gold", ["18", "-4", "2.5", ".5", "1/2", "$1,000", r"\frac{5}{2}", "x^2+1"])
def test_a_gold_that_is_right_as_its_own_answer_is_taken(tmp_path: Path, gold: str) -> None:
    assert next(load(written(tmp_path / "m.jsonl", {**GOOD, "gold": gold}))).gold == gold


@pytest.mark.parametrize(
    ("number", "text"), [(18, "18"), (18.0, "18"), (2.5, "2.5"), (10**30, "1" + "0" * 30)]
)
def test_a_gold_may_be_a_json_number(tmp_path: Path, number: float, text: str) -> None:
    assert next(load(written(tmp_path / "m.jsonl", {**GOOD, "gold": number}))).gold == text


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "m.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadInput):
        list(load(str(path)))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5), st.lists, max_leaves=4
)


@given(
    st.dictionaries(
        st.sampled_from(["id", "facts", "question", "gold", "problem", "template", "answer"]), JSON
    )
)
def test_any_json_object_is_a_task_or_a_told_mistake(
    tmp_path_factory: pytest.TempPathFactory, row: dict
) -> None:
    path = written(tmp_path_factory.mktemp("fuzz") / "m.jsonl", {**row, "gold": 1} if "gold" in row else row)
    try:
        tasks = list(load(path))
    except BadInput as error:
        assert f"{path}:1: " in str(error)
    else:
        assert len(tasks) == 1


DAMAGE = st.sampled_from(
    [
        *(b"\xff", b"{", b"[]", b"null", b"7", b'"x"', b"{}", b"\x00", b"[" * 5000),
        *(
            b'{"problem": 7, "gold": "7"}',
            b'{"problem": "a?", "gold": "}{"}',
            b'{"facts": ["a"], "gold": "7"}',
        ),
        b'{"id": "row 0", "problem": "3?", "gold": "7"}',
    ]
)


@given(st.integers(2, 12), st.data(), DAMAGE)
def test_one_damaged_line_among_good_ones_is_told_by_its_number(
    tmp_path_factory: pytest.TempPathFactory, rows: int, data: st.DataObject, damage: bytes
) -> None:
    at = data.draw(st.integers(1, rows - 1))
    lines = [json.dumps({**GOOD, "id": f"row {i}"}).encode() for i in range(rows)]
    path = tmp_path_factory.mktemp("damaged") / "m.jsonl"
    path.write_bytes(b"\n".join([*lines[:at], damage, *lines[at:]]))
    with pytest.raises(BadInput) as told:
        list(load(str(path)))
    assert str(told.value).startswith(f"{path}:{at + 1}: ")
    assert "expected" in str(told.value) and told.value.code.startswith("task/")


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([b""], "task/empty"),
        ([b"\xff"], "task/not-utf8"),
        ([b"{"], "task/not-json"),
        ([{"gold": "7"}], "task/missing-key"),
        ([{"problem": 7, "gold": "7"}], "task/wrong-type"),
        ([{"problem": " ", "gold": "7"}], "task/no-text"),
        ([{**GOOD, "gold": "}{"}], "task/gold"),
        ([{**GOOD, "id": "x"}, {**GOOD, "id": "x"}], "task/same-id"),
        ([b"x" * (MAX_LINE + 1)], "task/long-line"),
        ([{**GOOD, "facts": ["a"]}], "task/shape"),
        ([{**GOOD, "id": "x" * 201}], "task/id"),
    ],
)
def test_each_mistake_in_a_task_file_has_its_own_code(tmp_path: Path, rows: list, code: str) -> None:
    with pytest.raises(BadInput) as told:
        list(load(written(tmp_path / "m.jsonl", *rows)))
    assert told.value.code == code


# --- names and paths -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", ["nowhere", "no/such.jsonl", "gsm9k", "a" * 5000, "nul\0", "x.py", "puzzles:x"]
)
def test_a_source_that_is_nothing_is_refused_with_the_list_of_what_there_is(source: str) -> None:
    with pytest.raises(BadInput, match="expected"):
        load(source)


def test_unknown_splits_and_negative_limits_are_refused() -> None:
    with pytest.raises(BadInput, match="split 'validation' is not known"):
        load("puzzles", split="validation")
    with pytest.raises(BadInput, match="negative"):
        load("puzzles", limit=-1)


# --- GSM8K -----------------------------------------------------------------------------------------


def test_gsm8k_is_known_by_its_keys_and_shuffled_as_datasets_does(tmp_path: Path) -> None:
    # numpy.random.default_rng(0).permutation(5) is [2 4 3 0 1]
    path = written(tmp_path / "train.jsonl", *map(gsm8k_row, range(5)))
    from_file, from_directory = list(load(path)), list(load(str(tmp_path)))
    assert [(task.id, task.gold) for task in from_file] == [
        ("train-0", "2"), ("train-1", "4"), ("train-2", "3"), ("train-3", "0"), ("train-4", "1")
    ]  # fmt: skip
    assert from_file == from_directory


def test_gsm8ks_gold_is_what_follows_the_last_mark_without_dollars_and_commas(tmp_path: Path) -> None:
    row = {"question": "How much?", "answer": "#### no, wait\n#### $1,234"}
    assert next(load(written(tmp_path / "train.jsonl", row))).gold == "1234"


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"question": "How many?", "answer": "It is 7."}, "`answer` has no '####'"),
        ({"question": "How many?", "answer": "#### "}, "gold ''"),
        ({"question": 5, "answer": "#### 7"}, "`question` is a number 5"),
        ({"question": "How many?"}, "`answer` is missing"),
    ],
)
def test_a_broken_gsm8k_row_is_told_with_its_line(tmp_path: Path, row: dict[str, object], found: str) -> None:
    path = written(tmp_path / "train.jsonl", gsm8k_row(1), row)
    with pytest.raises(BadInput) as told:
        load(path)
    assert f"{path}:2: " in str(told.value)
    assert found in str(told.value)


def test_a_directory_without_gsm8k_and_a_split_it_has_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no test\.jsonl"):
        load(str(tmp_path), split="test")
    with pytest.raises(BadInput, match="GSM8K has no split 'dev'"):
        load(str(tmp_path), split="dev")


def test_the_hub_without_its_library_or_its_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # makes `import datasets` fail
    with pytest.raises(BadInput, match=r"pip install datasets, or give a directory"):
        load("gsm8k")

    class Unreachable:
        @staticmethod
        def load_dataset(*_: object, **__: object) -> object:
            raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setitem(sys.modules, "datasets", Unreachable)
    with pytest.raises(BadInput, match=r"could not be fetched.*or give a directory"):
        load("gsm8k")


@needs_gsm8k
def test_every_gold_of_gsm8k_is_a_whole_number() -> None:
    golds = [task.gold for split in ("train", "test") for task in load(GSM8K, split=split)]
    assert len(golds) == 7473 + 1319
    assert all(gold.removeprefix("-").isdigit() for gold in golds)


# --- endless sources -------------------------------------------------------------------------------


def test_splits_and_seeds_of_an_endless_source_are_millions_apart() -> None:
    seeds = [stream_seed(split, seed) for split in ("train", "dev", "heldout", "base") for seed in range(3)]
    assert min(abs(one - other) for one in seeds for other in seeds if one != other) >= 10**6
    assert stream_seed("test", 0) == stream_seed("heldout", 0)


def test_puzzles_are_endless_repeatable_and_differ_by_split_and_seed() -> None:
    train = list(load("puzzles", limit=5))
    assert [task.id for task in train] == [f"train-{at}" for at in range(5)]
    assert train == list(load("puzzles", limit=5))
    assert all(len(task.facts) == 2 for task in train)
    assert all(len(task.facts) == 3 for task in load("puzzles:3", limit=5))
    others = [*load("puzzles", split="dev", limit=5), *load("puzzles", seed=1, limit=5)]
    assert not {task.text for task in train} & {task.text for task in others}
    assert len(list(islice(load("puzzles"), 5000))) == 5000  # goes on beyond one chunk


def test_gsm_symbolic_loses_the_sentences_about_the_form_and_knows_its_templates() -> None:
    reasoning_gym = pytest.importorskip(
        "reasoning_gym", reason="reasoning-gym is not installed: pip install 'cotalk[gsm-symbolic]'"
    )
    tasks = list(load("gsm_symbolic", limit=300))
    assert not any("final answer" in task.problem or "units" in task.problem for task in tasks)
    rows = reasoning_gym.create_dataset("gsm_symbolic", size=CHUNK, seed=stream_seed("train", 0))
    seen = [i for i, index in enumerate(rows.task_indices) if index not in UNSEEN_TEMPLATES][:300]
    assert [task.template for task in tasks] == [str(rows.task_indices[i]) for i in seen]
    assert [task.gold for task in tasks] == [rows[i]["answer"] for i in seen]
    assert tasks[-1].id == f"train-{seen[-1]}"
    later = list(load("gsm_symbolic", split="heldout", limit=300))
    assert (
        len({task.problem for task in tasks} & {task.problem for task in later}) <= 5
    )  # by chance, not by seed


def test_ten_templates_of_gsm_symbolic_are_in_no_split_but_unseen() -> None:
    pytest.importorskip("reasoning_gym")
    unseen = {str(index) for index in UNSEEN_TEMPLATES}
    for split in ("train", "dev", "heldout", "base"):
        templates = {task.template for task in load("gsm_symbolic", split=split, limit=2000)}
        assert len(templates) == 75 and not templates & unseen
    tasks = list(load("gsm_symbolic", split="unseen", limit=200))
    assert {task.template for task in tasks} == unseen
    for rule in ("published", "clean"):  # each of them can be dealt by either rule
        assert not deal_all(tasks, rule=rule)[1]
    with pytest.raises(BadInput, match="keeps no templates back"):
        load("puzzles", split="unseen")


def test_gsm_symbolic_without_its_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(BadInput, match=r"pip install reasoning-gym==0\.1\.25"):
        load("gsm_symbolic")


# --- file.py:function ------------------------------------------------------------------------------


def test_the_examples_load() -> None:
    assert [task.gold for task in load(str(EXAMPLES / "own_tasks.jsonl"))] == [
        "288",
        "134",
        "31",
        r"\frac{5}{2}",
    ]
    assert [task.gold for task in load(f"{EXAMPLES / 'own_tasks.py'}:two_problems")] == ["12", "5"]
    sums = f"{EXAMPLES / 'own_tasks.py'}:sums"
    assert kind_of(sums) == "function"
    assert own_splits(sums)
    assert not own_splits(f"{EXAMPLES / 'own_tasks.py'}:two_problems")
    assert next(load(sums, split="train")).text != next(load(sums, split="heldout")).text


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("missing", "has no 'missing'; it has "),
        ("not_callable", "is a number 5"),
        ("nothing", "returned no task"),
        ("raises", "failed: ZeroDivisionError"),
        ("not_iterable", "failed: TypeError"),
        ("raises_later", "item 1: the function failed: ZeroDivisionError"),
        ("wrong_type", "item 0: found a number 7"),
        ("wrong_row", "item 0: `gold` is missing"),
        ("same_ids", "id 'x' was used at"),
        ("empty_gold", "item 0: `gold` is missing"),
    ],
)
def test_a_function_that_fails_is_told_with_its_item(tmp_path: Path, name: str, found: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from cotalk.task import Task\n"
        "not_callable = 5\n"
        "def nothing(): return []\n"
        "def raises(): return 1 / 0\n"
        "def not_iterable(): return 5\n"
        "def raises_later():\n    yield {'problem': 'How many?', 'gold': 7}\n    1 / 0\n"
        "def wrong_type(): return [7]\n"
        "def wrong_row(): return [{'problem': 'How many?'}]\n"
        "def same_ids(): return [{'id': 'x', 'problem': 'How many?', 'gold': 7}] * 2\n"
        "def empty_gold(): return [Task('x', 'How many?', '', ('3 cats.',))]\n"
    )
    with pytest.raises(BadInput) as told:
        list(load(f"{path}:{name}"))
    assert found in str(told.value)
    assert str(path) in str(told.value)


def test_a_file_that_cannot_be_imported_is_told(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def tasks(:\n")
    with pytest.raises(BadInput, match="could not be imported: SyntaxError"):
        load(f"{path}:tasks")
    with pytest.raises(BadInput, match="there is no file"):
        load(f"{tmp_path / 'other.py'}:tasks")
