"""Where tasks come from: questions with gold answers, out of several kinds of source behind one `load`.

    load("gsm8k")                   GSM8K from the hub (needs `datasets` and a network)
    load("data/gsm8k")              a directory of train.jsonl and test.jsonl, or one `question`/`answer` file
    load("gsm_symbolic")            endless, from reasoning-gym
    load("puzzles")                 endless, built in, offline, of two facts each; load("puzzles:3") of three
    load("mine.jsonl")              your own: {"facts": [...], "question", "gold"} or {"problem", "gold"}
    load("mine.py:tasks")           a function of yours that returns such rows, or `Task`s

This file reads and checks; it cuts nothing (deal.py does) and chooses nothing (split.py does).
Whatever is wrong with a source is a BadInput that names file and line, what was found and what was expected.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy

from cotalk.errors import BadInput

MAX_ID = 200  # characters of an id: it is told in tables, files and pages
MAX_LINE = 10 * 2**20  # bytes; a longer line is not a task but a wrong file
SPLITS = ("train", "dev", "heldout", "test", "base", "unseen")
STREAMS = {
    "train": 1,
    "dev": 2,
    "heldout": 3,
    "test": 3,
    "base": 4,
    "unseen": 5,
}  # of the endless sources; see stream_seed
CHUNK = 4096  # rows that an endless source makes at a time
PLAIN_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
# templates of gsm_symbolic that only its split `unseen` holds: a keyed draw of 10 of the 50 that either rule can deal
UNSEEN_TEMPLATES = frozenset({1, 13, 16, 22, 23, 42, 45, 54, 56, 84})
SYMBOLIC_FORM = " Give the result as your final answer. Do not include units."
ROW_SHAPES = '{"facts": [...], "question": "...", "gold": "..."} or {"problem": "...", "gold": "..."}'


@dataclass(frozen=True)
class Task:
    """One question: facts and a question, or `problem`, the whole text, which a rule of deal.py cuts."""

    id: str
    question: str
    gold: str
    facts: tuple[str, ...] = ()
    problem: str = ""
    template: str | None = None  # tasks that differ in their numbers only share a template
    place: str = field(default="", compare=False)  # where it was read: file:line, for what is told of it

    @property
    def text(self) -> str:
        """All the words of the task, white space made equal: the same text is the same problem."""
        return " ".join(" ".join((*self.facts, self.question, self.problem)).split())


def load(source: str, *, split: str = "train", limit: int | None = None, seed: int = 0) -> Iterator[Task]:
    """The tasks of a source, in a fixed order, checked.

    Args:
        split: "train", "dev", "heldout" (or "test") or "base". GSM8K has train and test; the endless sources
            have all, each from seeds of its own; your own files have none and are always read whole.
            "unseen": gsm_symbolic's templates that no other split holds.
        limit: at most so many tasks. Without it "puzzles" and "gsm_symbolic" never end.
        seed: GSM8K's shuffle (0 is the published one), or another stream of an endless source.
    """
    if split not in SPLITS:
        raise BadInput(f"split {split!r} is not known; expected one of {', '.join(SPLITS)}", "task/split")
    if limit is not None and limit < 0:
        raise BadInput(f"limit {limit} is negative; expected 0 or more", "cli/number")
    kind = kind_of(source)
    if split == "unseen" and kind != "gsm_symbolic":
        raise BadInput(
            f"source {source!r} keeps no templates back; expected gsm_symbolic for the split unseen",
            "task/split",
        )
    if kind == "gsm8k":
        tasks: Iterable[Task] = _gsm8k(source, split, seed)
    elif kind == "function":
        tasks = _function_tasks(source, split)
    elif kind == "file":
        tasks = _file_tasks(Path(source), seed)
    elif kind == "gsm_symbolic":
        tasks = _gsm_symbolic(split, seed)
    else:
        tasks = _puzzles(int(source.partition(":")[2] or 2), split, seed)
    return itertools.islice(tasks, limit)


def kind_of(source: str) -> str:
    """The kind of a source: "gsm8k" (hub or directory), "gsm_symbolic", "puzzles", "file" or "function"."""
    if source in ("gsm8k", "gsm_symbolic"):
        return source
    if re.fullmatch(r"puzzles(:[0-9]{1,2})?", source):
        return "puzzles"
    if re.search(r"\.py:[^/\\]*$", source):
        return "function"
    path = Path(source)
    if path.suffix == ".py":
        raise BadInput(
            f"source {source!r} names no function; expected {source}:FUNCTION", "task/unknown-source"
        )
    if _exists(path):
        return "gsm8k" if path.is_dir() else "file"
    raise BadInput(
        f"source {source!r} is neither a file nor a known name; expected gsm8k, gsm_symbolic, puzzles, "
        "a directory with train.jsonl and test.jsonl, a .jsonl file, or file.py:function",
        "task/unknown-source",
    )


def own_splits(source: str) -> bool:
    """Whether `load` gives other tasks for "train" than for "heldout"."""
    kind = kind_of(source)
    return kind not in ("file", "function") or (kind == "function" and _wants_split(_function(source)))


def endless(source: str) -> bool:
    """Whether `load` may go on for ever without a limit."""
    return kind_of(source) in ("gsm_symbolic", "puzzles", "function")


def for_seats(source: str, seats: str) -> str:
    """`source`, and for "puzzles" the puzzles that have a fact for every seat."""
    return f"puzzles:{len(seats)}" if source == "puzzles" and len(seats) > 2 else source


def split_names(source: str) -> tuple[str, ...]:
    """The splits of a source that are worth a look one by one."""
    return ("train", "test") if kind_of(source) == "gsm8k" else ("train",)


def stream_seed(split: str, seed: int) -> int:
    """First seed of an endless source's split; splits and seeds are 10 million apart.

    reasoning-gym draws row i from Random(seed + i), so that near seeds would share rows.
    """
    return (seed * 10 + STREAMS[split]) * 10**7


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False


# --- GSM8K -----------------------------------------------------------------------------------------


def _gsm8k(source: str, split: str, seed: int) -> list[Task]:
    if split in ("dev", "base"):
        raise BadInput(
            f"GSM8K has no split {split!r}; expected train or test (dev tasks are cut from train by `splits`)",
            "task/split",
        )
    name = "train" if split == "train" else "test"
    if source == "gsm8k":
        places = ((f"gsm8k {name} row {at}", row) for at, row in enumerate(_gsm8k_hub(name)))
    else:
        path = Path(source) / f"{name}.jsonl"
        if not path.is_file():
            raise BadInput(
                f"directory {source!r} has no {name}.jsonl; expected GSM8K's train.jsonl and test.jsonl",
                "task/unknown-source",
            )
        places = ((f"{path}:{line}", row) for line, row in _rows(path))
    return _gsm8k_tasks(places, name, seed)


def _gsm8k_hub(name: str) -> Iterable[Mapping[str, Any]]:
    hint = "or give a directory that holds GSM8K's train.jsonl and test.jsonl instead of `gsm8k`"
    try:
        import datasets
    except ImportError as error:
        raise BadInput(
            f"source `gsm8k` needs the datasets library: pip install datasets, {hint}", "package/missing"
        ) from error
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset("openai/gsm8k", "main", split=name)
        return rows
    except OSError as error:  # ConnectionError and the hub's own errors are OSErrors
        raise BadInput(
            f"GSM8K could not be fetched from the hub ({error}); connect, {hint}", "task/hub"
        ) from error


def _gsm8k_tasks(found: Iterable[tuple[str, Mapping[str, Any]]], name: str, seed: int) -> list[Task]:
    """GSM8K's rows in the published order: shuffled as `datasets` does; the id holds the new position."""
    places, rows = [], []
    for place, row in found:
        places.append(place)
        rows.append((_text(row, "question", place), _gsm8k_gold(row, place)))
    order = numpy.random.default_rng(seed).permutation(len(rows))
    return [
        Task(id=f"{name}-{at}", question="", gold=rows[row][1], problem=rows[row][0], place=places[row])
        for at, row in enumerate(order)
    ]


def _gsm8k_gold(row: Mapping[str, Any], place: str) -> str:
    """The text after the last `####`, without `$` and `,`."""
    _, mark, gold = _text(row, "answer", place).rpartition("####")
    if not mark:
        raise BadInput(
            f"{place}: `answer` has no '####'; expected GSM8K's form, a solution that ends in '#### 42'",
            "task/gold",
        )
    return _checked_gold(gold.replace("$", "").replace(",", "").strip(), place)


# --- endless sources -------------------------------------------------------------------------------


def _gsm_symbolic(split: str, seed: int) -> Iterator[Task]:
    """GSM-Symbolic out of reasoning-gym, without the two sentences on the form that end every row."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise BadInput(
            "source `gsm_symbolic` needs reasoning-gym: pip install reasoning-gym==0.1.25", "package/missing"
        ) from error
    create_dataset = reasoning_gym.create_dataset
    chunks = (symbolic_chunk(create_dataset, split, chunk, seed) for chunk in itertools.count())
    return (task for tasks in chunks for task, _ in tasks)


def symbolic_chunk(
    create_dataset: Callable[..., Any], split: str, chunk: int, seed: int = 0
) -> Iterator[tuple[Task, str]]:
    """The tasks of chunk number `chunk` of a split, each with its worked solution, which ends in "#### 42"."""
    start = chunk * CHUNK
    rows = create_dataset("gsm_symbolic", size=CHUNK, seed=stream_seed(split, seed) + start)
    for at, template in enumerate(rows.task_indices):  # `source_index` in the row is only its position
        if (template in UNSEEN_TEMPLATES) != (split == "unseen"):
            continue
        row, name = rows[at], f"{split}-{start + at}"
        problem = row["question"].removesuffix(SYMBOLIC_FORM)
        if problem == row["question"]:
            raise BadInput(
                f"gsm_symbolic {name}: it ends in {problem[-60:]!r}; expected {SYMBOLIC_FORM!r}, "
                "as in reasoning-gym 0.1.25: pip install reasoning-gym==0.1.25",
                "package/version",
            )
        gold = _checked_gold(str(row["answer"]).strip(), f"gsm_symbolic {name}")
        task = Task(id=name, question="", gold=gold, problem=problem, template=str(template))
        yield task, row["metadata"]["answer_cot"]


def _puzzles(facts: int, split: str, seed: int) -> Iterator[Task]:
    from cotalk import puzzles  # it needs Task from this file

    first = stream_seed(split, seed)
    for chunk in itertools.count():
        for at, task in enumerate(puzzles.generate(first + chunk, CHUNK, facts)):
            yield replace(task, id=f"{split}-{chunk * CHUNK + at}")


# --- your own --------------------------------------------------------------------------------------


def _file_tasks(path: Path, seed: int) -> list[Task]:
    rows = list(_rows(path))
    first = rows[0][1]
    if "answer" in first and "question" in first and "gold" not in first:
        return _gsm8k_tasks(((f"{path}:{line}", row) for line, row in rows), path.stem, seed)
    return list(
        _distinct_ids(
            (f"{path}:{line}", _task(row, f"{path}:{line}", f"{path.stem}-{line}")) for line, row in rows
        )
    )


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a JSON-lines file; blank lines are passed over."""
    empty = True
    try:
        with path.open("rb") as file:
            for line in itertools.count(1):
                raw = file.readline(MAX_LINE + 1)
                if not raw:
                    break
                if len(raw) > MAX_LINE:
                    raise BadInput(
                        f"{path}:{line}: a line of more than {MAX_LINE:,} bytes; expected one task a line",
                        "task/long-line",
                    )
                row = _object(raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw, f"{path}:{line}")
                if row is not None:
                    empty = False
                    yield line, row
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read ({error.strerror}); expected a file of JSON lines", "task/unreadable"
        ) from error
    if empty:
        raise BadInput(f"{path}:1: the file is empty; expected one task a line: {ROW_SHAPES}", "task/empty")


def _object(raw: bytes, place: str) -> dict[str, Any] | None:
    """The JSON object of one line, None for a blank line."""
    try:
        text = raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{place}: byte {error.start + 1} is not UTF-8; expected a text file in UTF-8", "task/not-utf8"
        ) from error
    if not text:
        return None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"{place}: not JSON ({error}), found {text[:60]!r}; expected {ROW_SHAPES}", "task/not-json"
        ) from error
    if not isinstance(row, dict):
        raise BadInput(f"{place}: found {_named(row)}; expected an object: {ROW_SHAPES}", "task/not-json")
    return row


def _task(row: Mapping[str, Any], place: str, default_id: str) -> Task:
    """A Task out of a row of one's own, every field checked."""
    if "facts" in row and "problem" in row:
        raise BadInput(f"{place}: both `facts` and `problem`; expected one of {ROW_SHAPES}", "task/shape")
    if "facts" not in row and "problem" not in row:
        keys = ", ".join(map(repr, list(row)[:8])) or "no keys"
        raise BadInput(
            f"{place}: neither `facts` nor `problem`, found {keys}; expected {ROW_SHAPES}", "task/missing-key"
        )
    task_id = _identifier(row["id"], place) if row.get("id") is not None else default_id
    template = None if row.get("template") is None else _text(row, "template", place)
    gold = _gold(row, place)
    if "problem" in row:
        problem = _text(row, "problem", place)
        return Task(task_id, question="", gold=gold, problem=problem, template=template, place=place)
    question, facts = _text(row, "question", place), _facts(row["facts"], place)
    return Task(task_id, question, gold, facts, template=template, place=place)


def _identifier(value: object, place: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    found = _text({"id": value}, "id", place)
    if len(found) > MAX_ID or not found.isprintable():
        raise BadInput(
            f"{place}: `id` is {_named(found)}, {len(found):,} characters; "
            f"expected at most {MAX_ID} visible ones on a line",
            "task/id",
        )
    return found


def _facts(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise BadInput(
            f"{place}: `facts` is {_named(value)}; expected a list of one sentence or more", "task/wrong-type"
        )
    return tuple(_text({f"facts[{at}]": fact}, f"facts[{at}]", place) for at, fact in enumerate(value))


def _gold(row: Mapping[str, Any], place: str) -> str:
    """The gold answer as text; a JSON number is taken as it is written."""
    value = row.get("gold")
    if isinstance(value, float) and math.isfinite(value):
        value = str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return _checked_gold(
        _text({**row, "gold": value} if "gold" in row else row, "gold", place).strip(), place
    )


def _text(row: Mapping[str, Any], key: str, place: str) -> str:
    """`row[key]`, which must be a text with something in it."""
    if key not in row:
        raise BadInput(
            f"{place}: `{key}` is missing, found {', '.join(map(repr, list(row)[:8]))}; expected `{key}` too",
            "task/missing-key",
        )
    value = row[key]
    if not isinstance(value, str):
        raise BadInput(f"{place}: `{key}` is {_named(value)}; expected a text", "task/wrong-type")
    if not value.strip():
        raise BadInput(f"{place}: `{key}` is empty; expected a text", "task/no-text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{place}: `{key}` holds half a character ({value[error.start]!r}); expected a text",
            "task/no-text",
        ) from error
    return value


def _named(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    shown = repr(value)
    return f"{names.get(type(value), 'a number')} {shown if len(shown) <= 40 else shown[:40] + '...'}"


def _checked_gold(gold: str, place: str) -> str:
    """`gold`, when an answer that gives exactly it would be graded as right."""
    if PLAIN_NUMBER.fullmatch(gold):
        return gold
    from cotalk.grade import grade  # starts worker processes, and is needed for unusual golds only

    if not gold or not grade(f"\\boxed{{{gold}}}", gold).strict:
        raise BadInput(
            f"{place}: gold {gold!r} is not right even as its own answer; expected a number or an expression",
            "task/gold",
        )
    return gold


FUNCTIONS = frozenset("sin cos tan log ln exp sqrt pi min max mod frac text".split())
LATEX = re.compile(r"\\[A-Za-z]+")


def doubtful(gold: str) -> str:
    """Why the built-in grader would call the number in a gold wrong as an answer; "" where it would not."""
    if PLAIN_NUMBER.fullmatch(gold):
        return ""
    from cotalk.grade import grade

    plain = LATEX.sub(" ", gold)
    if re.fullmatch(r"\s*-?[\d.]+[eE][+-]?\d+\s*", gold):
        return "is in scientific notation"
    if re.search(r"\d,\d{1,2}(?!\d)|\d,\d{4,}", plain) and not re.search(r"[(\[{]", plain):
        return "has a comma that parts no thousands"
    words = [w for w in re.findall(r"[^\W\d_]{2,}", plain) if w.lower() not in FUNCTIONS]
    found = re.findall(r"-?\d[\d.,/]*", plain)
    if not (words and found):
        return ""
    alone = found[0].rstrip(".,/")
    return "" if grade(f"\\boxed{{{alone}}}", gold).strict else f"holds words beside {alone}"


def worded(gold: str) -> bool:
    """Whether a gold is words alone, which the built-in grader takes letter by letter."""
    return not re.search(r"\d", gold) and bool(re.search(r"[^\W\d_]{3,}", LATEX.sub(" ", gold)))


def _distinct_ids(places: Iterable[tuple[str, Task]]) -> Iterator[Task]:
    seen: dict[str, str] = {}
    for place, task in places:
        if task.id in seen:
            raise BadInput(
                f"{place}: id {task.id!r} was used at {seen[task.id]}; expected different ids", "task/same-id"
            )
        seen[task.id] = place
        yield task


# --- file.py:function ------------------------------------------------------------------------------


def from_file(source: str) -> Any:
    """The object that `path/to/file.py:name` names."""
    path, _, name = source.rpartition(":")
    if not _exists(Path(path)):
        raise BadInput(f"{source!r}: there is no file {path!r}; expected file.py:function", "task/function")
    spec = importlib.util.spec_from_file_location(f"cotalk_own_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise BadInput(
            f"{source!r}: {path!r} is not a Python file; expected file.py:function", "task/function"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"{source!r}: {path} could not be imported: {error!r}", "task/function") from error
    if not hasattr(module, name):
        names = [
            known for known, value in vars(module).items() if callable(value) and not known.startswith("_")
        ]
        raise BadInput(
            f"{source!r}: {path} has no {name!r}; it has {', '.join(names) or 'no functions'}",
            "task/function",
        )
    return getattr(module, name)


def _function(source: str) -> Callable[..., Iterable[object]]:
    function = from_file(source)
    if not callable(function):
        raise BadInput(
            f"{source!r} is {_named(function)}; expected a function that returns tasks", "task/function"
        )
    made: Callable[..., Iterable[object]] = function
    return made


def _wants_split(function: Callable[..., object]) -> bool:
    return "split" in inspect.signature(function).parameters


def _function_tasks(source: str, split: str) -> Iterator[Task]:
    function = _function(source)
    try:
        items = iter(function(split=split) if _wants_split(function) else function())
    except Exception as error:
        raise BadInput(
            f"{source} failed: {error!r}; expected it to return an iterable of tasks", "task/function"
        ) from error
    return _distinct_ids(
        _checked_items(items, source, split if _wants_split(function) else source.rpartition(":")[2])
    )


def _checked_items(items: Iterator[object], source: str, prefix: str) -> Iterator[tuple[str, Task]]:
    for at in itertools.count():
        place = f"{source} item {at}"
        try:
            item = next(items)
        except StopIteration:
            if at == 0:
                raise BadInput(f"{source} returned no task; expected at least one", "task/empty") from None
            return
        except Exception as error:
            raise BadInput(f"{place}: the function failed: {error!r}", "task/function") from error
        if isinstance(item, Task):
            item = {key: value for key, value in vars(item).items() if value}
        if not isinstance(item, Mapping):
            raise BadInput(f"{place}: found {_named(item)}; expected a Task, {ROW_SHAPES}", "task/wrong-type")
        yield place, _task(item, place, f"{prefix}-{at}")
