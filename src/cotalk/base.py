"""The base: a frozen transformers causal LM with its tokenizer and chat template, from wherever it lies.

"tiny" ships with the package; a hub name goes to the Hugging Face hub; a directory or a .gguf file is read from
disk. Weights are read as safetensors (or GGUF), never as pickles, and no remote code runs. A directory may hold
`cotalk_base.json` with the wording and view that the base was made for.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cotalk.errors import BadInput
from cotalk.lora import weights_sha256
from cotalk.view import ChatFormat

TINY = Path(__file__).parent / "bases" / "tiny"


@dataclass(frozen=True)
class Base:
    """A loaded model. sha256: of its weights' file, or of its parameters when it is no single file."""

    name: str
    model: Any
    tokenizer: Any
    form: ChatFormat
    sha256: str
    notes: dict[str, Any]


def pick_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"device {device!r}: torch {torch.__version__} sees no GPU here; use --device cpu")
    try:
        torch.device(device)
    except RuntimeError as error:
        raise BadInput(f'device {device!r}: expected "cpu", "cuda" or "cuda:0"') from error
    return device


def load_base(name: str, dtype: str = "auto", device: str = "auto", wording: str = "auto") -> Base:
    """Loads a base. Raises BadInput with what to type when it is not there or cannot be used."""
    device = pick_device(device)
    dtype = ("float32" if device == "cpu" else "bfloat16") if dtype == "auto" else dtype
    where = TINY if name == "tiny" else Path(name).expanduser()
    if name == "tiny" and not (where / "config.json").is_file():
        raise BadInput(f"the tiny base is missing from {where}: reinstall cotalk, or make it with `cotalk base tiny --out {where}`")
    if where.suffix == ".gguf":
        model, tokenizer = _from_gguf(where, dtype)
    else:
        model, tokenizer = _from_pretrained(str(where) if where.exists() else name, dtype, local=where.exists())
    notes_path = where / "cotalk_base.json"
    notes = json.loads(notes_path.read_text(encoding="utf-8")) if where.is_dir() and notes_path.is_file() else {}
    words = notes.get("wording", "full") if wording == "auto" else wording
    _check_vocabulary(name, model, tokenizer)
    return Base(name, model.to(device), tokenizer, ChatFormat(tokenizer, words), _sha256(where, model), notes)


def _from_pretrained(name: str, dtype: str, local: bool) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if local:
        directory = Path(name)
        if not (directory / "config.json").is_file():
            raise BadInput(f"base {name}: no config.json in that directory; expected a transformers model directory")
        if not list(directory.glob("*.safetensors")):
            pickles = sorted(p.name for p in [*directory.glob("*.bin"), *directory.glob("*.pt")])
            raise BadInput(
                f"base {name}: no .safetensors in that directory{f' ({pickles[0]} is a pickle)' if pickles else ''}. "
                "Pickles can run code when they are read, so they are refused: save the model with save_pretrained"
            )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=local)
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False, local_files_only=local,
            attn_implementation="sdpa",
        )  # fmt: skip
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        expected = (
            "expected a directory that transformers' AutoModelForCausalLM can load"
            if local
            else "expected the name of a model on the Hugging Face hub (is there a network? is the name right? gated "
            "models need `hf auth login`), a model directory, a .gguf file, or \"tiny\""
        )
        raise BadInput(f"base {name!r} could not be loaded: {first}; {expected}") from error
    return model, tokenizer


def _from_gguf(path: Path, dtype: str) -> tuple[Any, Any]:
    """A GGUF refuses `save_pretrained`, so its weights are copied into a fresh model of the same class."""
    if not path.is_file():
        raise BadInput(f"base {path}: that file does not exist; expected a .gguf file")
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise BadInput(f"base {path}: reading GGUF needs the package gguf; type: pip install 'cotalk[gguf]'") from error
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory, file = str(path.parent), path.name
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=file)
    loaded = AutoModelForCausalLM.from_pretrained(directory, gguf_file=file, dtype=torch.float32)
    model = type(loaded)(loaded.config)
    model.load_state_dict(loaded.state_dict())
    return model.to(getattr(torch, dtype)), tokenizer


def _check_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise BadInput(
            f"base {name!r}: its tokenizer has {len(tokenizer)} entries and its embedding {rows} rows; expected a "
            "tokenizer that belongs to the model"
        )


def _sha256(where: Path, model: Any) -> str:
    files = [where] if where.is_file() else sorted(where.glob("*.safetensors")) if where.is_dir() else []
    if not files:
        return weights_sha256(model)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()
