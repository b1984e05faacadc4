"""The learner: a run's adapters and optimisers. Rows in, updates out; it never knows which method is running.

The loss of a step is one credit-weighted log-likelihood,

    loss = - (1 / normaliser) * sum over sampled tokens of  credit(message) * log p(token | everything before it)

on recorded ids, with p at the sampling temperature. On-policy, with one update a batch, its gradient is that of the
policy gradient with importance ratio 1 (REINFORCE; GRPO, arXiv 2402.03300, without clipping, which could not act).
One normaliser a step: how rows share micro-batches cannot change the gradient. Only tokens with credit are scored:
nothing that stands elsewhere, NaN included, can reach the loss.

Left out: how rows are scored and differentiated (padded.py; decoder/training.py for the Llama family on a GPU).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from cotalk.chat import Chat
from cotalk.config import Config
from cotalk.errors import RunFailed
from cotalk.lora import Stack
from cotalk.padded import PaddedScorer
from cotalk.rows import Row, rows_of


class Scorer(Protocol):
    """Scores and differentiates rows of one adapter. `gradients` may raise torch.OutOfMemoryError."""

    def batches(self, rows: Sequence[Row], budget: int) -> Iterator[list[Row]]: ...

    def gradients(
        self, k: int, rows: Sequence[Row], normaliser: float
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]: ...


class Learner:
    """Adapters of the stack, one shared by all seats or one a seat, and an AdamW for each.

    Args:
        stack: the frozen base with its adapters.
        adapters: seat -> row of the stack.
        config: learning rate, clip, normaliser and the rest.
        scorer: what scores and differentiates rows; padded rows through transformers' modules when not given.
    """

    def __init__(self, stack: Stack, adapters: dict[str, int], config: Config, scorer: Scorer | None = None):
        self.stack, self.adapters, self.config = stack, adapters, config
        self.scorer = scorer or PaddedScorer(stack, config.temperature)
        self.optimisers = {
            k: torch.optim.AdamW(
                stack.parameters(k).values(),
                lr=config.lr,
                betas=(config.beta1, config.beta2),
                eps=1e-8,
                weight_decay=0.0,
                fused=stack.device.type == "cuda",
            )
            for k in sorted(set(adapters.values()))
        }

    def initialise(self, seed: int) -> None:
        for seat, k in sorted(self.adapters.items(), reverse=True):  # shared: seat A's key has the last word
            self.stack.initialise(k, seed, seat)

    def update(self, chats: Sequence[Chat], lr: float) -> dict[str, float]:
        """One optimiser step of each adapter. Returns what is logged; `skipped` 1 when nothing had credit."""
        rows = [row for chat in chats for row in rows_of(chat)]
        logged: dict[str, float] = {"lr": lr, "credited_tokens": 0, "grad_norm": 0.0}
        gaps: list[torch.Tensor] = []
        moved = []
        for k in self.optimisers:
            mine = [r for r in rows if (self.adapters[r.seat] if r.adapter is None else r.adapter) == k]
            trained = [r.credited for r in mine if r.credited.spans]
            if trained:
                gaps += self._backward(k, trained, self.normaliser(mine))
                logged["credited_tokens"] += sum(len(lp) for r in trained for _, lp, _ in r.spans)
                moved.append(k)
        logged["grad_norm"] = max(self._clip(moved), default=0.0)
        self._step(moved, lr)
        logged["skipped"] = float(not gaps)
        if gaps:
            gap = torch.cat(gaps)
            ratio = gap.exp()
            logged |= {
                "ratio/mean": ratio.mean().item(),
                "ratio/max": ratio.max().item(),
                "ratio/min": ratio.min().item(),
                "logprob_gap/mean": gap.abs().mean().item(),
                "logprob_gap/max": gap.abs().max().item(),
            }
        return logged

    def normaliser(self, rows: Sequence[Row]) -> float:
        """The one number that a step's loss is divided by, for the rows of one adapter (before any is left out)."""
        rule = self.config.normaliser
        if rule == "credited":
            return float(sum(len(lp) for r in rows for _, lp, c in r.spans if c))
        if rule == "sampled":
            return float(sum(len(lp) for r in rows for _, lp, _ in r.spans))
        return float(rule)

    def _clip(self, moved: Sequence[int]) -> list[float]:
        """Clips each adapter's gradient by its own norm; returns the norms before. Not finite: drops the step."""
        parameters = {k: list(self.stack.parameters(k).values()) for k in moved}
        clip = self.config.clip or float("inf")
        norms = {k: torch.nn.utils.clip_grad_norm_(parameters[k], clip).item() for k in moved}
        if wrong := {k: norm for k, norm in norms.items() if not math.isfinite(norm)}:
            for k in moved:
                self.optimisers[k].zero_grad(set_to_none=True)
            told = ", ".join(f"adapter {k}: {norm}" for k, norm in wrong.items())
            raise RunFailed(
                f"a gradient's norm is not finite ({told}): the step was dropped, the weights are as before",
                "run/not-finite",
            )
        return list(norms.values())

    def _step(self, moved: Sequence[int], lr: float) -> None:
        for k in moved:
            optimiser = self.optimisers[k]
            for group in optimiser.param_groups:
                group["lr"] = lr
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            self.stack.changed(k)

    def _backward(self, k: int, rows: Sequence[Row], normaliser: float) -> list[torch.Tensor]:
        """Adds to the gradient of adapter k. Returns log-probability now minus when sampled, (tokens,) a batch."""
        gaps = []
        for batch in self.scorer.batches(rows, self.config.batch_tokens):
            gaps += self._backward_batch(k, batch, normaliser)
        return gaps

    def _backward_batch(self, k: int, batch: Sequence[Row], normaliser: float) -> list[torch.Tensor]:
        found = self._gradients(k, batch, normaliser)
        if found is None:
            half = len(batch) // 2
            parts = (batch[:half], batch[half:])
            return [gap for part in parts for gap in self._backward_batch(k, part, normaliser)]
        gap, gradients = found
        for parameter, gradient in zip(self.stack.parameters(k).values(), gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return [gap]

    def _gradients(
        self, k: int, batch: Sequence[Row], normaliser: float
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]] | None:
        """A batch's gaps and gradients, or None when it does not fit in memory (then nothing of it is left there)."""
        try:
            return self.scorer.gradients(k, batch, normaliser)
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                tokens = len(batch[0].ids)
                told = f"one row of {tokens} tokens does not fit in memory: lower the token budgets"
                raise RunFailed(told, "memory/full") from error
            return None
