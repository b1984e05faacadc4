"""The two kinds of failure that a user meets, the special cases that the code tells apart, and a code for each mistake.

`BadInput` is a mistake in what was given (exit code 2); `RunFailed` is work that could not be finished
(exit code 1). The message says what was given, what was expected, and what to type; the code stays the same when a
message is worded anew, and `REMEDIES` says of each what helps. docs/errors.md is that table, made by `remedies_table`.

    raise BadInput(f"{path}:{line}: byte 7 is not UTF-8; expected a text file in UTF-8", "task/not-utf8")
"""

from __future__ import annotations

OWN = "own/file"  # of a failure that a method, a grader or a source of the user's own raised without a code


class Coded(Exception):
    """A failure with a code out of `REMEDIES`; its text is the message alone."""

    CODE = OWN  # where none is given

    def __init__(self, message: str, code: str = ""):
        super().__init__(message, code)  # both, so that it can be sent from a worker process
        self.code = code or self.CODE

    def __str__(self) -> str:
        return str(self.args[0])


class BadInput(Coded, ValueError):
    """What was given cannot be used; nothing was started and nothing was lost."""


class RunFailed(Coded, RuntimeError):
    """Work that was started could not be finished; what was finished is on disk."""


class DiskFailed(RunFailed):
    """A file could not be written: the disk is full, read-only, or gone. What stood there before still does."""

    CODE = "disk/not-written"


class OutOfMemory(RunFailed):
    """Not even one row fits in the device's memory; what does is told beside it, from the plan's arithmetic."""

    CODE = "memory/full"


class NotFinite(RunFailed):
    """A loss, gradient or log-probability of a step is NaN or infinite: the step was dropped, nothing was changed."""

    CODE = "run/not-finite"


class Stopped(SystemExit):
    """A signal asked for the end: raised where runs wait, so that they write a checkpoint. code: the exit code."""


REMEDIES = {
    # tasks
    "task/unknown-source": "Give a known name (`puzzles`, `gsm8k`, `gsm_symbolic`), a `.jsonl` file, a directory with "
    "`train.jsonl` and `test.jsonl`, or `file.py:function`; is the path right?",
    "task/split": "Ask for a split that the source has; `unseen` is gsm_symbolic's alone.",
    "task/unreadable": "Is the path a file, and may you read it?",
    "task/empty": "Put at least one task into the file, one JSON object a line; a function must give at least one.",
    "task/not-utf8": "Save the file as UTF-8 text. The message names line and byte.",
    "task/not-json": "Mend the line that is named: one JSON object a line, in double quotes.",
    "task/long-line": "A line of more than 10 MB is no task: put each task on a line of its own.",
    "task/shape": 'Give either `"facts"` and `"question"`, or `"problem"`, not both.',
    "task/missing-key": "Add the key that the message names to that line.",
    "task/wrong-type": "`facts` is a list of texts; `question`, `problem`, `gold` and `id` are texts (numbers are "
    "taken for `gold` and `id`).",
    "task/no-text": "Give that key a text that is not empty and holds whole characters.",
    "task/gold": "The gold must be right as its own answer: a number or an expression that can be read, without "
    "words around it.",
    "task/same-id": "Give each task an id of its own, or leave `id` out: then the line's number is the id.",
    "task/id": "An id is at most 200 visible characters on one line; or leave it out.",
    "task/function": "Mend the Python file: the message has the error. It must define a function that returns tasks.",
    "task/not-dealt": "Each hand needs a fact with a number, and the problem a question; `cotalk deal SOURCE` shows "
    "what is refused and why.",
    "task/too-few": "Ask for fewer (`--train-tasks`, `--dev-tasks`, `--heldout-tasks`), or give more tasks. The counts "
    "say what was left out and why.",
    "task/not-held-out": "Name a held-out task of that run, or leave `--task` out.",
    "task/not-perturbed": "Only puzzles, gsm_symbolic and GSM8K can be given other numbers: set `perturbed = false`.",
    "task/puzzles": "These settings are for the built-in puzzles: `tasks = \"puzzles\"`, of two to four facts.",
    "task/hub": "Connect to the network, or give a directory that holds GSM8K's two files.",
    # orders and seats
    "order/unplayable": "An order is capital letters from A on without a gap: `ABAB`, `ABCABC`.",
    "order/alone": "Training needs two seats or more. A seat alone is played by evaluations (skyline, floor).",
    "order/seats": "Seats of the order, hands, players and arms must be the same letters; the message names both.",
    # settings
    "config/unknown-key": "Use the name that is offered, or one of the list.",
    "config/unused": "Leave the setting out, or set what makes it count; the message names it.",
    "config/type": "Give a value of the kind that the message names.",
    "config/choice": "Use one of the listed values.",
    "config/range": "Use a number in the range that the message names.",
    "config/method-setting": "The method needs another value there; the message says which.",
    "config/targets": "Name linear layers of the base, such as `q_proj,v_proj`, or `all-linear`.",
    "config/not-toml": "Mend the TOML at the line that is named, or use another `--out`.",
    "study/missing": "Name a shipped study, or give the path of a `.toml` file.",
    "study/empty": "A study needs at least one `[arms.NAME]` and one seed.",
    "study/seeds": "`seeds = [17, 18, 19]` at the top of the file: different whole numbers from 0 on.",
    "study/names": "Name arms with at most 64 letters, digits and underscores, each its own.",
    "study/compare": "`[[compare]]` needs `a` and `b`: conditions of this study, on the same tasks, the trained one "
    "first.",
    "study/not-in-arm": "Move that key to `[run]` (or seeds to the top): it is one for all arms.",
    "study/one-stack": "Cross-play needs the same rank, alpha and targets in all arms; or set `cross = 0`.",
    "method/failed": "Your own method failed, at the file and line named: mend it; what it trained needs `--force`.",
    "method/not-loaded": "Name a method of docs/methods.md, or `file.py:Class` with `seat`, `wants` and `credit`.",
    "pool/entry": "Write a pool as `self*2, base, script:terse, adapter:DIR`; docs/partners.md has all forms.",
    "grader/not-loaded": "Give `--grade file.py:function` with `def function(text, gold)`; does the file import alone?",
    "grader/failed": "Your grader must return a bool or a number from 0 to 1 for every text; the message has the text.",
    "grader/no-seats": "Give a grade for each seat that answered.",
    "grader/no-process": "The process that runs Math-Verify did not start: try the command in the message.",
    # bases and adapters
    "base/unknown": 'Give a hub name (OWNER/MODEL), a directory, a `.gguf` file, or "tiny".',
    "base/missing": "Is the path right? The tiny base comes with the package: reinstall, or make it.",
    "base/not-a-model": "Give the directory that holds `config.json`, weights and tokenizer.",
    "base/pickle": "Pickles can run code when read: load the model where you trust it and `save_pretrained` it.",
    "base/unreadable": "Can transformers load it (`AutoModelForCausalLM`, `AutoTokenizer`)? The message has its error.",
    "base/weights": "The weights do not belong to this `config.json`: take both from one place.",
    "base/vocabulary": "The tokenizer does not belong to this model: take both from one place.",
    "base/notes": "Mend `cotalk_base.json` (an object), or remove it.",
    "base/no-template": "Use an instruction-tuned model, or save a chat template with the tokenizer.",
    "base/template": "The chat template must show each message once, in order: use another, or mend it.",
    "base/no-end": "Set the tokenizer's `eos_token`.",
    "base/no-dialogue": "This template changes earlier turns: use `--view transcript`.",
    "base/context": "Lower `--message-tokens` or `--answer-tokens`, or shorten the order: a chat must fit the context.",
    "base/not-fast": "Use `--engine hf` (or auto): the fast engine runs the Llama and Qwen families.",
    "base/rows": "A layer regroups rows (a mixture of experts): leave it out of `targets`.",
    "adapter/missing": "Give a directory with `adapter_model.safetensors` and `adapter_config.json`, or a run's.",
    "adapter/unreadable": "The file is damaged or of another format: save the adapter again.",
    "adapter/other-base": "Give the base that the adapter was trained on with `--base`.",
    "adapter/unfit": "Set `--rank`, `--alpha` and `--targets` to the adapter's; it must be plain LoRA of this base.",
    "adapter/not-finite": "The adapter holds NaN or infinity: take an earlier one.",
    "device/unknown": 'Use "auto", "cpu", "cuda" or "cuda:0".',
    "device/missing": "There is no such GPU here: use `--device cpu`, or see what torch finds.",
    "device/workers": "A worker has one GPU: lower `--workers`, or give more GPUs (`CUDA_VISIBLE_DEVICES`).",
    "package/missing": "Install the package with the command in the message.",
    "package/version": "Install the version that the message names.",
    # the command line
    "cli/together": "These options exclude each other, or want another one; the message says which to leave out.",
    "cli/not-read": "This command does not read that setting: leave it out.",
    "cli/number": "Use a number in the range that the message names.",
    "cli/set": "Write `--set KEY=VALUE`, with a TOML value.",
    "server/port": "Another process listens there: leave `--port` out for a free one.",
    "seat/no-words": "A script must give one line for each of its turns.",
    "file/own-source": "Write to another file than the one that is read.",
    "file/not-written": "Does the directory exist, and may you write there?",
    # runs and studies on disk
    "run/missing": "Is the path right? Train first, for example `cotalk quickstart`.",
    "run/in-use": "Another process works in that directory: wait, stop it, or use another `--out`.",
    "run/other-config": "The directory holds a run of other settings or files: use another `--out`, or `--force`.",
    "run/given": "`given.json` is damaged: remove that file, and what the run was given is noted anew.",
    "run/line": "A line of a record is damaged: remove the line that is named.",
    "run/checkpoints": "No checkpoint is whole: remove the run's directory to begin again.",
    "run/not-finite": "The step was dropped. Lower `lr`, or look at the batch that it names.",
    "run/worker": "A worker died (out of memory?): the same command goes on; fewer `--workers` need less memory.",
    "run/failed": "Runs failed, each with its reason: the same command tries those again.",
    "memory/full": "Lower what the message names (token budgets, batch_tokens, rows), or take a smaller base.",
    "disk/not-written": "Free space, make the place writable, or bring it back: the same command goes on.",
    # results
    "results/missing": "Is the path right? results.json is written when a study ends.",
    "results/unreadable": "The file is damaged: the study's command writes it anew.",
    "results/not-well-formed": "The lines below the message name what is wrong: the study's command writes it anew.",
    "results/stale": "Type the study's command again: it measures the chats with this version's code.",
    "results/score": "The parts of a score do not fit each other; evaluate again.",
    "results/chats": "The chats on disk are not those of this evaluation: remove the file and evaluate again.",
    "compare/sides": "Name two conditions that the studies have; the message lists them.",
    "compare/unlike": "Only scores on the same tasks, by the same reward and grader, can be compared.",
    "compare/replay": "Mend the JSON file of scores: docs/statistics.md has its form, examples/ one that works.",
    "statistics/values": "The arrays are not what the function speaks of; the message names the one to call instead.",
    "statistics/margin": "A margin is a difference of scores above 0 and below 1, such as 0.03.",
    "talk/replacement": "A knock-out needs turns of one seat that somebody hears, and a known replacement.",
    # making bases
    "make/not-empty": "Give a new or an empty directory with `--out`.",
    "make/settings": "Mend the settings file: the message names the table, what is missing and what is unknown.",
    "make/rows": "Draw the rows again with `--draw`.",
    "make/state": "The kept state is of another training: remove it, or use another `--out`.",
    # your own files
    OWN: "A method, a grader or a source of your own raised it: the message is its.",
}  # fmt: skip


def brief(value: object) -> str:
    """A value as a message tells it: its `repr`, cut; a whole number too long to be written is only described."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length():,} bits"
    try:
        told = repr(value)
    except ValueError:  # a number inside it that is too long to be written
        told = f"a {type(value).__name__} with a huge number in it"
    except RecursionError:
        told = f"a {type(value).__name__}, nested too deep"
    return told if len(told) <= 200 else f"{told[:200]}... ({len(told):,} characters)"


def printable(text: str) -> str:
    """`text` without control characters, which could steer a terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)


def remedies_table() -> str:
    """REMEDIES as a Markdown table."""
    rows = [f"| `{code}` | {remedy} |" for code, remedy in REMEDIES.items()]
    return "\n".join(["| code | what helps |", "|---|---|", *rows])
