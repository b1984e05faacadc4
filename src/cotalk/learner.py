"""The learner: a run's adapters and optimisers. Rows in, updates out; it never knows which method is running.

The loss of a step is one credit-weighted log-likelihood,

    loss = - (1 / normaliser) * sum over sampled tokens of  credit(message) * log p(token | everything before it)

on recorded ids, with p at the sampling temperature. On-policy, with one update a batch, its gradient is that of the
policy gradient with importance ratio 1 (REINFORCE; GRPO, arXiv 2402.03300, without clipping, which could not act).
One normaliser a step: how rows share micro-batches cannot change the gradient. Only tokens with credit are scored:
nothing that stands elsewhere, NaN included, can reach the loss.

A row is cut from a chat by one rule, for every view: a seat's next prompt that begins with all of the row so far
goes on with the row (dialogue), any other starts a new one (transcript).

Left out: packed attention for the GPU, prefix sharing (the `fast` path).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from cotalk.chat import Chat
from cotalk.config import Config
from cotalk.errors import RunFailed
from cotalk.lora import Stack


@dataclass
class Row:
    """Token ids of one training row, and the sampled spans in it.

    spans: (first place of the sampled ids, their log-probabilities when sampled, credit). adapter: the row of the stack
    that spoke; `None`: whichever is the seat's.
    """

    seat: str
    ids: list[int]
    spans: list[tuple[int, tuple[float, ...], float | None]] = field(default_factory=list)
    adapter: int | None = None

    @property
    def credited(self) -> Row:
        """The row with those spans only that have credit (neither `None` nor 0)."""
        return replace(self, spans=[s for s in self.spans if s[2] and s[1]])


def rows_of(chat: Chat) -> list[Row]:
    """The training rows of a chat: learners' messages only, ids exactly as given and as sampled."""
    rows: list[Row] = []
    latest: dict[str, Row] = {}
    for message in chat.messages:
        if not message.learns:
            continue
        row = latest.get(message.seat)
        if row is None or tuple(row.ids) != message.prompt[: len(row.ids)]:
            row = latest[message.seat] = Row(message.seat, [], adapter=message.adapter)
            rows.append(row)
        row.ids = list(message.prompt)
        row.spans.append((len(row.ids), message.logprobs, message.credit))
        row.ids += message.ids
    return rows


class Learner:
    """Adapters of the stack, one shared by all seats or one a seat, and an AdamW for each.

    Args:
        stack: the frozen base with its adapters.
        adapters: seat -> row of the stack.
        config: learning rate, clip, normaliser and the rest.
    """

    def __init__(self, stack: Stack, adapters: dict[str, int], config: Config):
        self.stack, self.adapters, self.config = stack, adapters, config
        self.optimisers = {
            k: torch.optim.AdamW(
                stack.parameters(k).values(),
                lr=config.lr,
                betas=(config.beta1, config.beta2),
                eps=1e-8,
                weight_decay=0.0,
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
                f"a gradient's norm is not finite ({told}): the step was dropped, the weights are as before"
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
        for batch in micro_batches(rows, self.config.batch_tokens):
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
            logprobs, sampled, credit = self.score(k, batch)
            loss = -(credit * logprobs).sum() / normaliser
            parameters = list(self.stack.parameters(k).values())
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                tokens = len(batch[0].ids)
                told = f"one row of {tokens} tokens does not fit in memory: lower the token budgets"
                raise RunFailed(told) from error
            return None
        return logprobs.detach() - sampled, gradients

    def score(self, k: int, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probabilities of the sampled tokens of some rows under adapter k, at the sampling temperature.

        Returns (tokens,) each: now, when sampled, credit (0 where a message has none).
        """
        device, temperature = self.stack.device, self.config.temperature
        length = max(len(r.ids) for r in rows) - 1  # the last id predicts nothing
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        where, targets = [], []
        sampled: list[float] = []
        credits: list[float] = []
        for i, row in enumerate(rows):
            ids[i, : len(row.ids) - 1] = torch.tensor(row.ids[:-1])
            for start, logprobs, credit in row.spans:
                stop = start + len(logprobs)
                where.append(torch.arange(start - 1, stop - 1) + i * length)  # place p predicts id p + 1
                targets += row.ids[start:stop]
                sampled += logprobs
                credits += [credit or 0.0] * len(logprobs)
        with self.stack.serving([(k, 0, len(rows))]):
            logits = self._logits(ids.to(device), torch.cat(where).to(device))
        logits = logits.float() / (temperature or 1.0)
        chosen = logits.gather(1, torch.tensor(targets, device=device)[:, None])[:, 0]
        return (
            chosen - logits.logsumexp(-1),
            torch.tensor(sampled, dtype=torch.float32, device=device),
            torch.tensor(credits, dtype=torch.float32, device=device),
        )

    def _logits(self, ids: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """Logits at chosen places only (places, vocabulary): the output head is given just those states.

        Rows are right-padded: a causal model's real tokens never see the padding, so no mask is needed.
        """
        head = self.stack.model.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0].flatten(0, 1)[where][None],))
        try:
            return self.stack.model(input_ids=ids, use_cache=False).logits[0]
        finally:
            hook.remove()


def micro_batches(rows: Iterable[Row], budget: int) -> Iterator[list[Row]]:
    """Rows of like length together, at most `budget` padded tokens a batch (a longer row goes alone)."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda r: len(r.ids), reverse=True):
        if batch and (len(batch) + 1) * len(batch[0].ids) > budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
