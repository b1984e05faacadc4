"""The weights of a Llama-family model, fused for few large products, with room for LoRA around each matrix.

Layers that read the same input become one matrix (q, k, v; gate, up), and its adapters lie around it in one buffer:

                 in                   extra = parts x rank
    extra   [ A of the one in training |      ]      forward in training    [x, xA'] @ [W, B]'
    out     [ W                        |  B   ]      backward in training   [dyB, dy] @ [A; W]
    N extra [ A of 1, ..., N           |      ]      serving                x @ [W; A_1; ...; A_N]'

so that LoRA adds a few columns to a product instead of products of its own. B is scaled by alpha / rank and block
diagonal (each part reads its own A). The transformers model goes on with views of these buffers: there is no second
copy of the base, and whatever the `hf` path computes stays as it was.

Left out: other architectures. `Decoder.of` says why a model is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cotalk.lora import Stack, StackedLinear

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROPE = ("default", "linear", "llama3", "yarn")  # rotary tables that do not depend on the length of a row


class Unsupported(Exception):
    """A model that the hand-written decoder cannot run; the text says why."""


class Fused:
    """Linear layers of one input as one matrix, with the adapters around it (see above).

    weight: (out, in); served: (out + N extra, in); b: (N + 1, out, rank), 0 for the base; ends: the last row of each
    part. `rank` is padded to a power of two of at least 16, so that a kernel's tile fits; padding is zero.
    """

    def __init__(self, linears: Sequence[nn.Module], stack: Stack):
        self.linears, self.stack = list(linears), stack
        bases = [_base(m) for m in linears]
        first = bases[0].weight
        self.rank = max(16, 1 << (stack.rank - 1).bit_length())
        self.extra = len(bases) * self.rank
        self.width = bases[0].in_features
        sizes = [b.out_features for b in bases]
        self.out = sum(sizes)
        self.ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        rows = self.out + (stack.adapters + 1) * self.extra
        self.buffer = torch.zeros(rows, self.width + self.extra, dtype=first.dtype, device=first.device)
        self.b = torch.zeros(stack.adapters + 1, self.out, self.rank, dtype=first.dtype, device=first.device)
        start = self.extra
        for base in bases:
            self.buffer[start : start + base.out_features, : self.width] = base.weight
            base.weight.data = self.buffer[start : start + base.out_features, : self.width]
            start += base.out_features
        self.bias = self._bias(bases)
        self.merging_pays = stack.may_merge and all(m.merging_pays for _, _, _, m in self.parts())
        self._merged: dict[int, torch.Tensor] = {}
        self.weight = self.buffer[self.extra : self.extra + self.out, : self.width]
        self.served = self.buffer[self.extra :, : self.width]
        self.a_training = self.buffer[: self.extra, : self.width]
        self.forward_rows = self.buffer[self.extra : self.extra + self.out]  # [W, B]
        self.backward_rows = self.buffer[: self.extra + self.out, : self.width]  # [A; W]

    def _bias(self, bases: Sequence[nn.Linear]) -> torch.Tensor | None:
        if all(b.bias is None for b in bases):
            return None
        biases = [torch.zeros_like(b.weight[:, 0]) if b.bias is None else b.bias.data for b in bases]
        return torch.cat(biases)

    def parts(self) -> Iterable[tuple[int, int, int, StackedLinear]]:
        """(part, first output, after the last, layer) of the parts that have adapters."""
        start = 0
        for i, (end, linear) in enumerate(zip(self.ends, self.linears, strict=True)):
            if isinstance(linear, StackedLinear):
                yield i, start, end, linear
            start = end

    def served_a(self, k: int) -> torch.Tensor:
        """A of adapter k as it is served, one for each part: (parts, rank, in)."""
        first = self.out + (k - 1) * self.extra
        return self.served[first : first + self.extra].view(len(self.ends), self.rank, self.width)

    def merged(self, k: int) -> torch.Tensor:
        """W + B A of adapter k as it is served, (out, in); kept until it is forgotten."""
        if k == 0:
            return self.weight
        if k not in self._merged:
            whole, a = self.weight.clone(), self.served_a(k)
            for i, start, end, _ in self.parts():
                whole[start:end].addmm_(self.b[k, start:end], a[i])
            self._merged[k] = whole
        return self._merged[k]

    def forget(self, k: int) -> None:
        self._merged.pop(k, None)

    def served_copies(self, k: int) -> Iterable[tuple[torch.Tensor, torch.Tensor, bool]]:
        """(place, parameter, whether it is scaled) of adapter k's copies for serving."""
        r, first = self.stack.rank, self.extra + self.out + (k - 1) * self.extra
        for i, start, end, linear in self.parts():
            a = self.buffer[first + i * self.rank : first + i * self.rank + r, : self.width]
            yield a, linear.lora_a[k].data, False
            yield self.b[k, start:end, :r], linear.lora_b[k].data, True

    def trained_copies(self, k: int) -> Iterable[tuple[torch.Tensor, torch.Tensor, bool]]:
        """The same of its copies for training."""
        r = self.stack.rank
        for i, start, end, linear in self.parts():
            yield self.a_training[i * self.rank : i * self.rank + r], linear.lora_a[k].data, False
            rows = slice(self.extra + start, self.extra + end)
            columns = slice(self.width + i * self.rank, self.width + i * self.rank + r)
            yield self.buffer[rows, columns], linear.lora_b[k].data, True


@dataclass
class Layer:
    qkv: Fused
    o: Fused
    gate_up: Fused
    down: Fused
    norm_in: torch.Tensor
    norm_mid: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None

    @property
    def fused(self) -> tuple[Fused, ...]:
        return self.qkv, self.o, self.gate_up, self.down


class Decoder:
    """A stack's model, ready for serving and training by hand. Make it with `Decoder.of`, once a stack.

    heads, kv_heads, head_dim, hidden, mlp, vocabulary, eps: the model's shape.
    cos, sin: (positions, head_dim / 2) float32.
    """

    def __init__(self, stack: Stack):
        model = stack.model
        config = model.config.get_text_config()
        self.stack, self.device = stack, stack.device
        self.dtype = model.get_input_embeddings().weight.dtype
        self.hidden, self.mlp, self.vocabulary = (
            config.hidden_size,
            config.intermediate_size,
            model.get_output_embeddings().weight.shape[0],
        )
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or self.hidden // self.heads
        self.eps = float(config.rms_norm_eps)
        self.embedding = model.get_input_embeddings().weight.data
        self.head = model.get_output_embeddings().weight.data
        self.norm_out = model.model.norm.weight.data
        self.layers = [self._layer(layer) for layer in model.model.layers]
        self.cos, self.sin = self._rotary(model, int(config.max_position_embeddings))
        self._served: list[Any] = [None] * (stack.adapters + 1)

    @staticmethod
    def of(stack: Stack) -> Decoder:
        """The decoder of a stack (made once, then kept with it). Raises Unsupported."""
        found: Decoder | None = getattr(stack, "_decoder", None)
        if found is None:
            if reason := why_not(stack.model):
                raise Unsupported(reason)
            found = stack._decoder = Decoder(stack)  # type: ignore[attr-defined]
        return found

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qk = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        return Layer(
            Fused([attention.q_proj, attention.k_proj, attention.v_proj], self.stack),
            Fused([attention.o_proj], self.stack),
            Fused([mlp.gate_proj, mlp.up_proj], self.stack),
            Fused([mlp.down_proj], self.stack),
            layer.input_layernorm.weight.data,
            layer.post_attention_layernorm.weight.data,
            *(None if m is None else m.weight.data for m in qk),
        )

    def _rotary(self, model: Any, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            at = torch.arange(positions, device=self.device)[None]
            like = torch.zeros(1, dtype=torch.float32, device=self.device)
            cos, sin = model.model.rotary_emb(like, at)
        half = self.head_dim // 2
        return cos[0, :, :half].float().contiguous(), sin[0, :, :half].float().contiguous()

    @property
    def kv_bytes_a_token(self) -> int:
        return 2 * len(self.layers) * self.kv_heads * self.head_dim * self.embedding.element_size()

    def refresh(self) -> list[Any]:
        """Copies the adapters that were written since the last call to where they are served from.

        Returns every adapter's version: another one after each write.
        """
        for k in range(1, self.stack.adapters + 1):
            now = self._version(k)
            if self._served[k] == now:
                continue
            fused = [f for layer in self.layers for f in layer.fused]
            _copy((c for f in fused for c in f.served_copies(k)), self.stack)
            for f in fused:
                f.forget(k)
            self._served[k] = now
        return list(self._served)

    def _version(self, k: int) -> tuple[int, int]:
        written = sum(
            linear.lora_a[k]._version + linear.lora_b[k]._version for linear in self.stack.linears.values()
        )
        return self.stack.versions[k], written

    def prepare_training(self, k: int) -> None:
        """Copies adapter k to where it is trained from."""
        _copy((c for layer in self.layers for f in layer.fused for c in f.trained_copies(k)), self.stack)


def _copy(copies: Iterable[tuple[torch.Tensor, torch.Tensor, bool]], stack: Stack) -> None:
    found = list(copies)
    with torch.no_grad():
        torch._foreach_copy_([place for place, _, _ in found], [p for _, p, _ in found])
        if stack.scale != 1.0:
            torch._foreach_mul_([place for place, _, scaled in found if scaled], stack.scale)


def _base(module: Any) -> nn.Linear:
    return module.base if isinstance(module, StackedLinear) else module


def why_not(model: Any) -> str:
    """Why the hand-written decoder cannot run a model; empty when it can."""
    config = model.config.get_text_config()
    kind = getattr(config, "model_type", "?")
    if kind not in FAMILIES:
        return f"its architecture is {kind}, not one of {', '.join(FAMILIES)}"
    layer, head = model.model.layers[0], model.get_output_embeddings()
    windows = bool(getattr(config, "sliding_window", None)) and kind == "mistral"
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    others = [layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj, head]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    reasons = {
        "some of its layers see a sliding window only": windows or layer_types != {"full_attention"},
        f"its rotary positions are of type {rope}, which depend on the length": rope not in ROPE,
        "only part of a head is rotated": getattr(config, "partial_rotary_factor", None) not in (None, 1.0),
        f"its activation is {config.hidden_act}, not silu": config.hidden_act != "silu",
        "layers beyond q, k and v have biases": any(getattr(m, "bias", None) is not None for m in others),
        "its weights are float16": head.weight.dtype == torch.float16,
        # the kernels' tiles; the twins take any width
        f"its heads are {width} wide, not a power of two of at least 16": (
            head.weight.is_cuda and (width < 16 or width & (width - 1) != 0)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
