"""The stack: one frozen base, N LoRA adapters on its linear layers, rows of a batch that name their adapter.

LoRA (Hu et al. 2021, arXiv 2106.09685): y = x W' + (alpha / r) (x A') B', A of (r, in), B of (out, r), B = 0 at
first. Adapter 0 is the base itself; 1..N are trained. All adapters of one linear layer lie in one tensor
(N + 1, r, in), so that an engine can multiply a whole mixed batch; each adapter's own parameters are views of it.

Two ways to the same product, chosen by arithmetic (`merging pays`): the LoRA product beside the base's, or one
product with W + (alpha / r) B A, which costs less when the rank is not small beside the layer's width (the tiny
base: width 128, rank 32). Merging is only done in float32, where it loses nothing.

Adapters are saved and loaded in PEFT's format. Left out: dropout (sampling and scoring must see one network),
other adapter kinds, and any optimiser (learner.py).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F

from cotalk.disk import read_json, write_atomically
from cotalk.errors import BadInput, RunFailed
from cotalk.sample import generator

Segment = tuple[int, int, int]  # adapter, first row, row after the last
PEFT_PREFIX = "base_model.model."
OTHER_KINDS = (  # keys of PEFT's config that change what the same tensors mean
    "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "lora_bias", "fan_in_fan_out", "modules_to_save",
    "layer_replication", "trainable_token_indices", "target_parameters",
)  # fmt: skip


class StackedLinear(nn.Module):
    """A frozen linear layer with N + 1 adapters (0 stays zero). x: (rows, tokens, in) -> (rows, tokens, out)."""

    def __init__(self, base: nn.Linear, stack: Stack, name: str):
        super().__init__()
        self.base, self.name = base, name
        self._stack = [stack]  # in a list, so that torch does not take the stack for a child
        device, n, r = base.weight.device, stack.adapters + 1, stack.rank
        self.all_a = torch.zeros(n, r, base.in_features, device=device)
        self.all_b = torch.zeros(n, base.out_features, r, device=device)
        # `.data`: each parameter counts its own writes, though all lie in one tensor
        self.lora_a = nn.ParameterList(
            [nn.Parameter(self.all_a[k].data, requires_grad=k > 0) for k in range(n)]
        )
        self.lora_b = nn.ParameterList(
            [nn.Parameter(self.all_b[k].data, requires_grad=k > 0) for k in range(n)]
        )
        r3 = 3 * r * (base.in_features + base.out_features)
        self.merging_pays = r3 > base.in_features * base.out_features
        self._merged: dict[int, tuple[tuple[int, ...], torch.Tensor]] = {}

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight

    @property
    def bias(self) -> torch.Tensor | None:
        return self.base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        segments = self._stack[0].segments
        if len(segments) == 1:
            return self._one(x, segments[0][0])
        if segments[-1][2] != len(x):  # a layer that regroups rows (experts) cannot tell whose row is whose
            raise RunFailed(
                f"layer {self.name} was given {len(x)} rows, the batch has {segments[-1][2]}: expected a layer that "
                'keeps the rows apart. Leave it out with --targets, such as "q_proj,k_proj,v_proj,o_proj"',
                "base/rows",
            )
        return torch.cat([self._one(x[start:stop], k) for k, start, stop in segments])

    def _one(self, x: torch.Tensor, k: int) -> torch.Tensor:
        if k == 0:
            return self.base(x)
        stack = self._stack[0]
        if stack.may_merge and (self.merging_pays or not torch.is_grad_enabled()):
            weight = self._with_adapter(k) if torch.is_grad_enabled() else self._cached(k)
            return F.linear(x, weight, self.base.bias)
        a, b = self.lora_a[k].to(x.dtype), self.lora_b[k].to(x.dtype)
        return self.base(x) + F.linear(F.linear(x, a), b) * stack.scale

    def _with_adapter(self, k: int) -> torch.Tensor:
        return torch.addmm(self.base.weight, self.lora_b[k], self.lora_a[k], alpha=self._stack[0].scale)

    def _cached(self, k: int) -> torch.Tensor:
        """The merged weight, made again whenever the adapter was written since (by whoever)."""
        version = (self._stack[0].versions[k], self.lora_a[k]._version, self.lora_b[k]._version)
        found = self._merged.get(k)
        if found is None or found[0] != version:
            found = self._merged[k] = (version, self._with_adapter(k))
        return found[1]


class Stack:
    """A causal language model with `adapters` LoRA adapters on its linear layers.

    Args:
        model: a transformers causal LM; its parameters are frozen, its linear layers replaced in place.
        adapters: how many, numbered from 1.
        rank, alpha: of LoRA; the product is scaled by alpha / rank.
        targets: names of linear layers (last part of the module's name), or "all-linear": all but the output head.
        base_name, base_sha256: recorded in every adapter that is saved.
    """

    def __init__(
        self,
        model: Any,
        adapters: int,
        rank: int = 32,
        alpha: float = 64.0,
        targets: str | Sequence[str] = "all-linear",
        base_name: str = "",
        base_sha256: str = "",
    ):
        self.model, self.adapters, self.rank, self.alpha = model, adapters, rank, alpha
        self.base_name, self.base_sha256 = base_name, base_sha256
        self.scale = alpha / rank
        self.versions = [0] * (adapters + 1)
        self.segments: list[Segment] = [(0, 0, 0)]
        model.requires_grad_(False)
        model.eval()
        self.linears = self._replace(targets)
        self.device = next(model.parameters()).device
        self.may_merge = self.device.type == "cpu" and next(model.parameters()).dtype == torch.float32

    def _replace(self, targets: str | Sequence[str]) -> dict[str, StackedLinear]:
        head = self.model.get_output_embeddings()
        found = {
            name: module
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Linear)
            and module is not head
            and (targets == "all-linear" or name.rsplit(".", 1)[-1] in targets)
        }
        if not found:
            raise BadInput(
                f"target layers {targets!r}: expected names of linear layers of the base; none was found",
                "config/targets",
            )
        stacked = {}
        for name, linear in found.items():
            parent, _, child = name.rpartition(".")
            stacked[name] = StackedLinear(linear, self, name)
            setattr(self.model.get_submodule(parent), child, stacked[name])
        return stacked

    @contextmanager
    def serving(self, segments: Sequence[Segment]) -> Iterator[None]:
        """Inside, row i of a batch goes through the adapter whose segment holds it."""
        before, self.segments = self.segments, list(segments)
        try:
            yield
        finally:
            self.segments = before

    def initialise(self, k: int, *key_parts: str | int) -> None:
        """Adapter k as new: A uniform in +-1/sqrt(in) (PEFT's Kaiming rule), drawn with a key; B zero."""
        self._check_trained(k)
        for name, linear in self.linears.items():
            bound = 1 / math.sqrt(linear.base.in_features)
            drawn = generator("lora", *key_parts, name).uniform(-bound, bound, linear.lora_a[k].shape)
            with torch.no_grad():
                linear.lora_a[k].copy_(torch.from_numpy(drawn))
                linear.lora_b[k].zero_()
        self.versions[k] += 1

    def _check_trained(self, k: int) -> None:
        if not 1 <= k <= self.adapters:
            raise ValueError(
                f"adapter {k}: expected 1 to {self.adapters} (0 is the base, which stays as it is)"
            )

    def parameters(self, k: int) -> dict[str, nn.Parameter]:
        """Adapter k's parameters by PEFT's names."""
        named = {}
        for name, linear in self.linears.items():
            named[f"{name}.lora_A.weight"] = linear.lora_a[k]
            named[f"{name}.lora_B.weight"] = linear.lora_b[k]
        return named

    def changed(self, k: int) -> None:
        """Says that adapter k was written in a way that torch does not count (`.data`, or through `all_a`)."""
        self.versions[k] += 1

    # --- PEFT's format ---

    def save(self, k: int, directory: Path) -> None:
        """Writes adapter k so that `PeftModel.from_pretrained` opens it; each file whole or not at all."""
        self._check_trained(k)
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {PEFT_PREFIX + n: p.detach().cpu().contiguous() for n, p in self.parameters(k).items()}
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base_name,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "target_modules": sorted(self.linears),
        }
        base = {"base": self.base_name, "base_sha256": self.base_sha256}
        weights = safetensors.torch.save(tensors, metadata={"format": "pt"})
        write_atomically(directory / "adapter_model.safetensors", weights)
        write_atomically(directory / "adapter_config.json", (json.dumps(config, indent=2) + "\n").encode())
        write_atomically(directory / "cotalk_adapter.json", (json.dumps(base, indent=2) + "\n").encode())

    def load(self, k: int, directory: Path) -> None:
        """Reads adapter k from a directory in PEFT's format; refuses another kind, shape, rank, scale or base."""
        self._check_trained(k)
        path, config_path = directory / "adapter_model.safetensors", directory / "adapter_config.json"
        if not path.is_file() or not config_path.is_file():
            raise BadInput(
                f"{directory} is no adapter: expected adapter_model.safetensors and adapter_config.json in it "
                "(weights are read from safetensors only)",
                "adapter/missing",
            )
        self._check_config(directory, _read_object(config_path))
        origin = directory / "cotalk_adapter.json"
        recorded = _read_object(origin).get("base_sha256") if origin.is_file() else None
        if recorded and self.base_sha256 and recorded != self.base_sha256:
            raise BadInput(
                f"adapter {directory} was trained on a base with SHA-256 {str(recorded)[:12]}..., this base has "
                f"{self.base_sha256[:12]}...: give the base that it was trained on with --base",
                "adapter/other-base",
            )
        try:
            tensors = safetensors.torch.load_file(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise BadInput(
                f"{path} cannot be read ({error}): expected a whole safetensors file", "adapter/unreadable"
            ) from error
        self._check_tensors(directory, k, tensors)
        with torch.no_grad():
            for name, parameter in self.parameters(k).items():
                parameter.copy_(tensors[PEFT_PREFIX + name])
        self.changed(k)

    def _check_config(self, directory: Path, config: dict[str, Any]) -> None:
        odd = [f"{key} = {config[key]!r}" for key in OTHER_KINDS if config.get(key)]
        if config.get("peft_type") != "LORA" or odd:
            raise BadInput(
                f"adapter {directory} is {config.get('peft_type')} with {', '.join(odd) or 'no other key'}: expected "
                "a plain LoRA adapter (one rank and scale for all layers, no bias)",
                "adapter/unfit",
            )
        if config.get("r") != self.rank or config.get("lora_alpha") != self.alpha:
            raise BadInput(
                f"adapter {directory} has r={config.get('r')}, lora_alpha={config.get('lora_alpha')}; this stack "
                f"has r={self.rank}, lora_alpha={self.alpha}: set --rank and --alpha to the adapter's",
                "adapter/unfit",
            )

    def _check_tensors(self, directory: Path, k: int, tensors: dict[str, torch.Tensor]) -> None:
        wanted = {PEFT_PREFIX + name: parameter.shape for name, parameter in self.parameters(k).items()}
        if differ := wanted.keys() ^ tensors.keys():
            raise BadInput(
                f"adapter {directory} does not fit this base and --targets: {len(differ)} tensors are in one of them "
                f"only, such as {min(differ)}",
                "adapter/unfit",
            )
        for name, shape in wanted.items():
            if tensors[name].shape != shape:
                raise BadInput(
                    f"adapter {directory}: {name} is {tuple(tensors[name].shape)}, expected {tuple(shape)}",
                    "adapter/unfit",
                )
            if not tensors[name].isfinite().all():
                raise BadInput(
                    f"adapter {directory}: {name} is not finite everywhere; expected a whole adapter",
                    "adapter/not-finite",
                )


def _read_object(path: Path) -> dict[str, Any]:
    found = read_json(path, "what PEFT or Cotalk wrote", "adapter/unreadable")
    if not isinstance(found, dict):
        raise BadInput(f"{path} holds {type(found).__name__}: expected a JSON object", "adapter/unreadable")
    return found


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over a model's parameters, names and shapes included (for a base that is not a file)."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
