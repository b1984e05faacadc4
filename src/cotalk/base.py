"""The base: a frozen transformers causal LM with its tokenizer and chat template, from wherever it lies.

"tiny" and "stranger" ship with the package; a hub name goes to the Hugging Face hub; a directory or a .gguf file is
read from disk. Weights are read as safetensors (or GGUF), never as pickles, and no remote code runs. A directory may
hold `cotalk_base.json` with the wording and view that the base was made for.
"""

from __future__ import annotations

import difflib
import hashlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cotalk.chat import Rules
from cotalk.deal import Deal
from cotalk.disk import read_json
from cotalk.errors import BadInput, brief
from cotalk.lora import weights_sha256
from cotalk.view import ChatFormat

TINY = Path(__file__).parent / "bases" / "tiny"
SHIPPED = {"tiny": TINY, "stranger": TINY.parent / "stranger"}  # with the package, by name
LINE_TOKENS = 32  # around a message: its speaker, the instruction, the template's own
HUB_EXPECTED = (
    "the name of a model on the Hugging Face hub that has .safetensors (is there a network? is the name right? "
    'gated models need `hf auth login`), a model directory, a .gguf file, or "tiny"'
)
DIRECTORY_EXPECTED = "a directory that transformers' AutoModelForCausalLM and AutoTokenizer can load"
LARGE = 200_000_000  # bytes of weights that take long enough to read for a progress bar


@dataclass(frozen=True)
class Base:
    """A loaded model.

    sha256: of its weights' files (sorted by name, one after another), wherever they lie, so that a hub name and a
    directory with the same files agree. notes: what `cotalk_base.json` says, and under `template_difference` where
    prompts differ from `apply_chat_template`, if they do.
    """

    name: str
    model: Any
    tokenizer: Any
    form: ChatFormat
    sha256: str
    notes: dict[str, Any]

    @property
    def prompts(self) -> Prompts:
        """What its prompts are made of."""
        return Prompts(self.name, self.form, self.notes, _room(self.model.config))

    def check(self, rules: Rules, deals: Iterable[Deal]) -> None:
        """Refuses rules that this base cannot play, before anything is played; warns of another view (Prompts)."""
        self.prompts.warn(rules)
        self.prompts.check(rules, deals)


@dataclass(frozen=True)
class Prompts:
    """A base without its weights: how its prompts are made, what it was made for, and how many tokens it holds."""

    name: str
    form: ChatFormat
    notes: dict[str, Any]
    room: int | None

    def warn(self, rules: Rules) -> None:
        """Warns of rules of another view than the base was made for."""
        made_for = self.notes.get("view")
        if made_for not in (None, rules.view):
            warnings.warn(
                f"base {self.name!r} was made for the {made_for} view and plays {rules.view}: it meets prompts that it "
                f"was not trained on. Use --view {made_for}",
                stacklevel=2,
            )

    def check(self, rules: Rules, deals: Iterable[Deal]) -> None:
        """Refuses rules that this base cannot play.

        Its template must grow by appending where a seat speaks twice in `dialogue`, and the longest prompt with every
        message at its cap must fit its context.
        """
        if rules.view == "dialogue" and len(set(rules.order)) < len(rules.order):
            self.form.require_dialogue()
        turns = len(rules.order)
        prompt = self.form.longest_prompt(rules.seats, deals, rules.view)
        caps = sum(rules.budget(turn) for turn in range(turns))
        needed = prompt + caps + turns * LINE_TOKENS
        if self.room and needed > self.room:
            share = (self.room - prompt - turns * LINE_TOKENS) / caps
            fits = [max(1, int(share * cap)) for cap in (rules.message_tokens, rules.answer_tokens)]
            told = f"message_tokens = {fits[0]} and answer_tokens = {fits[1]} fit; or shorten the order"
            raise BadInput(
                f"a chat may need {needed:,} tokens (the longest task's prompt and every message at its cap), and base "
                f"{self.name!r} holds {self.room:,}: "
                f"{told if share * caps > turns else 'shorten the order, or give shorter tasks'}",
                "base/context",
            )


def _room(config: Any) -> int | None:
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if found is None else int(found)


def pick_device(device: str) -> str:
    """The device that `device` means here; auto: a GPU if there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f'device {device!r}: expected "cpu", "cuda" or "cuda:0"', "device/unknown") from error
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count() or "no"
        raise BadInput(
            f"device {device!r}: torch {torch.__version__} sees {seen} GPU here; use --device cpu",
            "device/missing",
        )
    return device


def load_base(name: str, dtype: str = "auto", device: str = "auto", wording: str = "auto") -> Base:
    """Loads a base. Raises BadInput with what to type when it is not there or cannot be used.

    Warns when its prompts are not `apply_chat_template`'s, id by id: they can be played, but the model meets ids
    in an order that it was not trained on.
    """
    device = pick_device(device)
    dtype = ("float32" if device == "cpu" else "bfloat16") if dtype == "auto" else dtype
    where = _place(name)
    if where.suffix == ".gguf":
        model, tokenizer = _from_gguf(where, dtype)
    elif where.exists():
        model, tokenizer = _from_directory(where, dtype)
    else:
        model, tokenizer = _from_hub(name, dtype)
    _check_vocabulary(name, model, tokenizer)
    notes = _notes(where)
    form = _form(tokenizer, notes, wording)
    difference = form.template_difference()
    if difference:
        notes |= {"template_difference": difference}
        warnings.warn(
            f"base {name!r}: prompts are not what its chat template gives, since its tokenizer joins or splits at "
            f"the borders of texts. {difference}",
            stacklevel=2,
        )
    return Base(name, model.to(device), tokenizer, form, _sha256(name, model), notes)


def budgets(name: str) -> dict[str, int]:
    """The token budgets that a base on this machine was made for, by its cotalk_base.json; {} where it says none."""
    found = _notes(SHIPPED.get(name) or Path(name).expanduser()).get("budgets", {})
    if not isinstance(found, dict) or not all(
        key in ("message_tokens", "answer_tokens") and type(value) is int for key, value in found.items()
    ):
        raise BadInput(
            f"base {name!r}: cotalk_base.json has budgets = {brief(found)}; expected whole numbers, as in "
            '{"message_tokens": 28, "answer_tokens": 36}',
            "base/notes",
        )
    return found


def _place(name: str) -> Path:
    """Where a base would lie on disk; refuses a shipped one that is missing there."""
    where = SHIPPED.get(name) or Path(name).expanduser()
    if name in SHIPPED and not (where / "config.json").is_file():
        made = "" if name == "tiny" else f" --settings {where.parent / name}.toml"
        raise BadInput(
            f"the {name} base is missing from {where}: reinstall cotalk, or make it with "
            f"`cotalk base tiny{made} --out {where}`",
            "base/missing",
        )
    return where


def _form(tokenizer: Any, notes: dict[str, Any], wording: str) -> ChatFormat:
    return ChatFormat(tokenizer, notes.get("wording", "full") if wording == "auto" else wording)


def _notes(where: Path) -> dict[str, Any]:
    path = where / "cotalk_base.json"
    if not path.is_file():
        return {}
    expected = 'an object with the base\'s wording, such as {"wording": "short"}'
    notes = read_json(path, expected, "base/notes")
    if not isinstance(notes, dict) or not isinstance(notes.get("wording", ""), str):
        raise BadInput(f"{path} holds {brief(notes)}: expected {expected}", "base/notes")
    return notes


def _from_directory(directory: Path, dtype: str) -> tuple[Any, Any]:
    _check_directory(directory)
    with _bars(shown=sum(f.stat().st_size for f in directory.glob("*.safetensors")) > LARGE):
        return _load(str(directory), DIRECTORY_EXPECTED, dtype, use_safetensors=True, local_files_only=True)


def _check_directory(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        adapter = (directory / "adapter_config.json").is_file()
        hint = (
            "; this is an adapter: give its base with --base and the adapter with --adapter"
            if adapter
            else ""
        )
        raise BadInput(
            f"base {directory}: no config.json in that directory; expected a transformers model directory{hint}",
            "base/not-a-model",
        )
    if not list(directory.glob("*.safetensors")):
        pickles = sorted(p.name for kind in ("*.bin", "*.pt", "*.pth") for p in directory.glob(kind))
        raise BadInput(
            f"base {directory}: no .safetensors in that directory{f' ({pickles[0]} is a pickle)' if pickles else ''}. "
            "Pickles can run code when they are read, so they are refused: save the model with save_pretrained",
            "base/pickle",
        )


def is_here(name: str) -> bool:
    """Whether a base is shipped or lies on this machine's disk, the hub's cache apart."""
    return name in SHIPPED or Path(name).expanduser().exists()


def require(name: str) -> None:
    """Refuses a base that is neither shipped, nor here, nor on the hub; loads no weights."""
    if not is_here(name):
        _hub_config(name)


def peek(name: str, wording: str = "auto") -> Prompts | None:
    """A base's prompts, of its tokenizer and config alone. None for a .gguf file, whose weights come with them."""
    from transformers import AutoConfig, AutoTokenizer

    where = _place(name)
    if where.suffix == ".gguf":
        if not where.is_file():
            raise BadInput(f"base {where}: that file does not exist; expected a .gguf file", "base/missing")
        return None
    just_read = {"local_files_only": True} if where.exists() else {}
    if where.exists():
        _check_directory(where)
    else:
        _hub_config(name)
    source = str(where) if where.exists() else name
    with _told(source, DIRECTORY_EXPECTED if where.exists() else HUB_EXPECTED):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **just_read)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **just_read)
    notes = _notes(where)
    return Prompts(name, _form(tokenizer, notes, wording), notes, _room(config))


def _hub_config(name: str) -> None:
    """Asks the hub for a base, once: all that is fetched later would try it again and again."""
    from transformers import AutoConfig

    refuse_path(name)
    try:
        AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(
            f"base {name!r} is no directory or file here, nor found on the hub; expected a model directory, a .gguf "
            "file, or a hub name (OWNER/MODEL) and a network",
            "base/missing",
        ) from error


def refuse_path(name: str) -> None:
    """Names on the hub are OWNER/MODEL: what reads like a path is not looked for there."""
    if "/" not in name and difflib.get_close_matches(name.lower(), ["tiny"]):
        raise BadInput(
            f'base {name!r} is not known (did you mean "tiny"?): names on the hub read OWNER/MODEL',
            "base/unknown",
        )
    owner = name.partition("/")[0]
    if name.startswith(("/", ".", "~")) or name.count("/") > 1 or "\\" in name or Path(owner).is_dir():
        raise BadInput(
            f"base {name!r}: there is no such directory or file; expected a model directory, a .gguf file, or a hub "
            "name (OWNER/MODEL)",
            "base/missing",
        )


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    """transformers' own progress bars, for what is large only."""
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    if not shown:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()


def _from_hub(name: str, dtype: str) -> tuple[Any, Any]:
    refuse_path(name)
    return _load(name, HUB_EXPECTED, dtype, use_safetensors=True)


@contextmanager
def _told(name: str, expected: str) -> Iterator[None]:
    """Whatever transformers raises becomes one BadInput."""
    from safetensors import SafetensorError

    try:
        yield
    except (
        OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError, TypeError, SafetensorError,
    ) as error:  # fmt: skip
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(
            f"base {name!r} could not be loaded: {first}; expected {expected}", "base/unreadable"
        ) from error


def _load(name: str, expected: str, dtype: str, **how: Any) -> tuple[Any, Any]:
    """Reads model and tokenizer.

    Weights that are missing would silently be random ones: refused.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    just_read = {key: value for key, value in how.items() if key != "use_safetensors"}
    with _told(name, expected):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **just_read)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=getattr(torch, dtype), trust_remote_code=False, attn_implementation="sdpa",
            output_loading_info=True, **how,
        )  # fmt: skip
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise BadInput(
            f"base {name!r}: its weights lack {len(missing)} of the tensors of {type(model).__name__} "
            f"({', '.join(missing[:3])}, ...); expected {expected}, with weights for its config.json",
            "base/weights",
        )
    return model, tokenizer


def _from_gguf(path: Path, dtype: str) -> tuple[Any, Any]:
    """A GGUF refuses `save_pretrained`, so its weights are copied into a fresh model of the same class."""
    if not path.is_file():
        raise BadInput(f"base {path}: that file does not exist; expected a .gguf file", "base/missing")
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"base {path}: reading GGUF needs the package gguf; type: pip install gguf",
            "package/missing",
        ) from error
    loaded, tokenizer = _load(str(path.parent), "a whole .gguf file", "float32", gguf_file=path.name)
    model = type(loaded)(loaded.config).eval()
    model.load_state_dict(loaded.state_dict())
    return model.to(getattr(torch, dtype)), tokenizer


def _check_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise BadInput(
            f"base {name!r}: its tokenizer has {len(tokenizer)} entries and its embedding {rows} rows; expected a "
            "tokenizer that belongs to the model",
            "base/vocabulary",
        )


def weights_here(name: str) -> list[Path]:
    """The files of a base's weights that are on this machine; none where they are on the hub still."""
    where = SHIPPED.get(name) or Path(name).expanduser()
    if where.is_file():
        return [where]
    directory = where if where.exists() else _hub_directory(name)
    kinds = (
        "model*.safetensors",
        "*.safetensors",
    )  # the first are what transformers reads, by its conventions
    found = (sorted(directory.glob(kind)) for kind in kinds) if directory else ()
    return next(filter(None, found), [])


def _sha256(name: str, model: Any) -> str:
    files = weights_here(name)
    if not files:
        return weights_sha256(model)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def _hub_directory(name: str) -> Path | None:
    """Where the files of a hub name lie in the hub's cache; None where none does."""
    from transformers.utils import cached_file

    try:
        config = cached_file(name, "config.json", local_files_only=True)
    except (OSError, ValueError):
        return None
    return Path(config).parent if config else None
