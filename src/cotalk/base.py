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

    def check(self, rules: Rules, deals: Iterable[Deal]) -> None:
        """Refuses rules that this base cannot play, before anything is played.

        Its template must grow by appending where a seat speaks twice in `dialogue`, and the longest prompt with every
        message at its cap must fit its context. Warns when it was made for another view.
        """
        if rules.view == "dialogue" and len(set(rules.order)) < len(rules.order):
            self.form.require_dialogue()
        made_for = self.notes.get("view")
        if made_for not in (None, rules.view):
            warnings.warn(
                f"base {self.name!r} was made for the {made_for} view and plays {rules.view}: it meets prompts that it "
                f"was not trained on. Use --view {made_for}",
                stacklevel=2,
            )
        room = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        needed = self.form.longest_prompt(rules.seats, deals, rules.view) + sum(
            rules.budget(turn) + LINE_TOKENS for turn in range(len(rules.order))
        )
        if room and needed > room:
            raise BadInput(
                f"a chat may need {needed:,} tokens (the longest task's prompt and every message at its cap), and base "
                f"{self.name!r} holds {room:,}: lower --message-tokens or --answer-tokens, or shorten the order",
                "base/context",
            )


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
    where = SHIPPED.get(name) or Path(name).expanduser()
    if name in SHIPPED and not (where / "config.json").is_file():
        made = "" if name == "tiny" else f" --settings {where.parent / name}.toml"
        raise BadInput(
            f"the {name} base is missing from {where}: reinstall cotalk, or make it with "
            f"`cotalk base tiny{made} --out {where}`",
            "base/missing",
        )
    if where.suffix == ".gguf":
        model, tokenizer = _from_gguf(where, dtype)
    elif where.exists():
        model, tokenizer = _from_directory(where, dtype)
    else:
        model, tokenizer = _from_hub(name, dtype)
    _check_vocabulary(name, model, tokenizer)
    notes = _notes(where)
    form = ChatFormat(tokenizer, notes.get("wording", "full") if wording == "auto" else wording)
    difference = form.template_difference()
    if difference:
        notes |= {"template_difference": difference}
        warnings.warn(
            f"base {name!r}: prompts are not what its chat template gives, since its tokenizer joins or splits at "
            f"the borders of texts. {difference}",
            stacklevel=2,
        )
    return Base(name, model.to(device), tokenizer, form, _sha256(name, where, model), notes)


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
    expected = "a directory that transformers' AutoModelForCausalLM and AutoTokenizer can load"
    with _bars(shown=sum(f.stat().st_size for f in directory.glob("*.safetensors")) > LARGE):
        return _load(str(directory), expected, dtype, use_safetensors=True, local_files_only=True)


def require(name: str) -> None:
    """Refuses a base that is neither shipped, nor here, nor on the hub; loads no weights."""
    from transformers import AutoConfig

    if name in SHIPPED or Path(name).expanduser().exists():
        return
    try:
        AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(
            f"base {name!r} is no directory or file here, nor found on the hub; expected a model directory, a .gguf "
            "file, or a hub name (OWNER/MODEL)",
            "base/missing",
        ) from error


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
    if "/" not in name and difflib.get_close_matches(name.lower(), ["tiny"]):
        raise BadInput(
            f'base {name!r} is not known (did you mean "tiny"?): names on the hub read OWNER/MODEL',
            "base/unknown",
        )
    expected = (
        "the name of a model on the Hugging Face hub that has .safetensors (is there a network? is the name right? "
        'gated models need `hf auth login`), a model directory, a .gguf file, or "tiny"'
    )
    return _load(name, expected, dtype, use_safetensors=True)


def _load(name: str, expected: str, dtype: str, **how: Any) -> tuple[Any, Any]:
    """Reads model and tokenizer; whatever goes wrong on the way becomes one BadInput.

    Weights that are missing would silently be random ones: refused.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    just_read = {key: value for key, value in how.items() if key != "use_safetensors"}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **just_read)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=getattr(torch, dtype), trust_remote_code=False, attn_implementation="sdpa",
            output_loading_info=True, **how,
        )  # fmt: skip
    except (
        OSError,
        ValueError,
        KeyError,
        ImportError,
        RuntimeError,
        AttributeError,
        TypeError,
        SafetensorError,
    ) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(
            f"base {name!r} could not be loaded: {first}; expected {expected}", "base/unreadable"
        ) from error
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
            f"base {path}: reading GGUF needs the package gguf; type: pip install 'cotalk[gguf]'",
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


def _sha256(name: str, where: Path, model: Any) -> str:
    directory = where if where.exists() else _hub_directory(name)
    kinds = (
        "model*.safetensors",
        "*.safetensors",
    )  # the first are what transformers reads, by its conventions
    found = [sorted(directory.glob(kind)) for kind in kinds] if directory.is_dir() else [[directory]]
    files = next(filter(None, found), [])
    if not files:
        return weights_sha256(model)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def _hub_directory(name: str) -> Path:
    """Where the files of a hub name that was just loaded lie."""
    from transformers.utils import cached_file

    config = cached_file(name, "config.json", local_files_only=True)
    return Path(config or "").parent
