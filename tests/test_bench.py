"""The pieces that speeds are measured with, at toy sizes on a CPU."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from cotalk import bench
from cotalk.bench import milliseconds
from cotalk.decoder.training import PackedScorer
from cotalk.decoder.weights import Decoder
from cotalk.engines.fast import FastEngine
from cotalk.engines.hf import HfEngine
from cotalk.shapes import random_model

HERE = torch.device("cpu")


def test_milliseconds_is_a_median_and_loses_patience() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        time.sleep(0.05 if len(calls) == 5 else 0.002)  # one call of the three measured ones is slow

    assert 1.9 < milliseconds(work, HERE, repeats=3, warm_up=3) < 20
    assert len(calls) == 6
    calls.clear()
    milliseconds(lambda: (calls.append(1), time.sleep(0.03)), HERE, repeats=50, warm_up=5, patience=0.1)
    assert 3 <= len(calls) <= 6


def test_a_random_stack_has_adapters_in_use_and_reading_fills_the_cache() -> None:
    stack = bench.random_stack("tiny", 2, HERE, torch.float32)
    view = bench.views(1, 1, 20, 4, 800)[0]
    replies = [
        FastEngine(stack, [bench.NEVER]).reply([[replace(view, player=replace(view.player, adapter=k))]])[0][0]
        for k in (0, 1, 2)
    ]  # fmt: skip
    assert len({r.logprobs for r in replies}) == 3
    assert bench.read_ms(Decoder.of(stack), 128, 32, 2) > 0


def test_any_engine_can_be_measured_by_the_difference_of_two_lengths() -> None:
    stack = bench.random_stack("tiny", 1, HERE, torch.float32)
    for engine in (FastEngine(stack, [bench.NEVER]), HfEngine(stack, [bench.NEVER])):
        assert bench.reply_ms(engine, 4, 1, 800, 48, steps=8) > 0


@pytest.mark.parametrize("engine, read", [("fast", True), ("hf", False)])
@pytest.mark.slow
def test_a_whole_step_counts_what_was_sampled_read_and_trained(engine: str, read: bool) -> None:
    """Two runs x 2 problems x 4 chats of 4 + 4 + 6 + 6 tokens, nearly all (a random model may end a message early).

    Rows of about 120 tokens and more, two a chat; packed, a first prompt of 110 stands once for four of them.
    """
    found = bench.whole_step("tiny", 2, "dialogue", 3, (4, 6), HERE, torch.float32, engine, problems=2)
    assert 0.9 * 2 * 8 * 20 < found["tokens_sampled"] <= 2 * 8 * 20
    assert (found["prompt_tokens_read"] is not None) == read
    assert found["seconds"] > found["engine_seconds"] > 0 and found["training_seconds"] > 0
    assert len(found["grad_norm"]) == 2 and min(found["grad_norm"]) > 0
    assert found["ratio_mean"] == pytest.approx([1.0] * 6, abs=1e-3)
    padded = 2 * 8 * 2 * 120
    assert (found["tokens_trained"] < 2 / 3 * padded) == (engine == "fast")
    assert (found["tokens_trained"] > padded) == (engine == "hf")


def test_what_the_scorer_is_given_is_what_is_counted() -> None:
    """Rows of 12 ids, the first 8 shared by all four, the last 3 sampled: 12 of them are scored, all weights move."""
    stack = bench.random_stack("tiny", 1, HERE, torch.float32)
    rows = bench.training_rows(4, 12, 8, 0.25, 800)
    assert [len(r.ids) for r in rows] == [12] * 4 and len({tuple(r.ids[:8]) for r in rows}) == 1
    assert all(len(logprobs) == 3 for r in rows for _, logprobs, _ in r.spans)
    gaps, gradients = PackedScorer(Decoder.of(stack), 0.9).gradients(1, rows, 1.0)
    assert len(gaps) == 12 and all(g is not None and g.abs().sum() > 0 for g in gradients)


def test_random_models_are_the_same_every_time() -> None:
    a, b = (random_model("tiny").get_input_embeddings().weight for _ in range(2))
    assert torch.equal(a, b)
