"""Scoring and differentiating training rows with transformers' own modules: right-padded rows, autograd.

Runs any causal LM, on a CPU and on a GPU, and is the oracle of `decoder.training`, which packs rows and runs the
Llama family by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from cotalk.lora import Stack
from cotalk.rows import Row


class PaddedScorer:
    """Args: stack; temperature: of sampling (0, greedy, scores at 1)."""

    def __init__(self, stack: Stack, temperature: float):
        self.stack, self.temperature = stack, temperature or 1.0

    def batches(self, rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
        return micro_batches(rows, budget)

    def gradients(
        self, k: int, rows: Sequence[Row], normaliser: float
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
        """Log-probability now minus when sampled, (sampled tokens,), and the gradients of adapter k's parameters."""
        logprobs, sampled, credit = self.score(k, rows)
        loss = -(credit * logprobs).sum() / normaliser
        parameters = list(self.stack.parameters(k).values())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return logprobs.detach() - sampled, gradients

    def score(self, k: int, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probabilities of the sampled tokens of some rows under adapter k, at the sampling temperature.

        Returns (tokens,) each: now, when sampled, credit (0 where a message has none).
        """
        device = self.stack.device
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
        logits = logits.float() / self.temperature
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
