"""The keyed random numbers: two twins, no neighbours, the right distribution."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cotalk.sample import KeyedNoise, bits, draw, exponential, generator, key, mix32, torch_mix32

WORDS = st.integers(0, 2**32 - 1)
KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4)
PARTS = st.lists(
    st.one_of(
        st.none(),
        st.integers(-5, 5),
        st.text("1aN\x1f:", max_size=4),
        st.sampled_from(["int:1", "None", "\x1fint:1"]),
    ),
    max_size=4,
)


def lowbias32(x: int) -> int:
    """The published mixer in plain Python integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ (x >> 16)


@given(st.lists(WORDS, min_size=1, max_size=20))
def test_the_mixer_and_its_torch_twin_are_the_published_lowbias32_bit_for_bit(words):
    expected = [lowbias32(w) for w in words]
    array = np.array(words, dtype=np.uint32)
    assert mix32(array).tolist() == expected
    assert torch_mix32(torch.from_numpy(array.view(np.int32))).numpy().view(np.uint32).tolist() == expected


@given(KEYS, st.integers(0, 2**20), st.integers(1, 70))
def test_the_numpy_and_the_torch_twin_of_the_hash_are_equal_bit_for_bit(keys, position, entries):
    ours = KeyedNoise(keys, entries).bits(position).numpy().view(np.uint32)
    assert ours.tolist() == bits(np.array(keys, dtype=np.uint64), position, entries).tolist()


def test_the_hash_has_not_changed_since_results_were_published():
    # whoever changes these numbers changes every chat of every study
    text = b"str:train\x1fint:17\x1fNoneType:None"
    assert key("train", 17, None) == 0xF3FA6F68F13A9E20
    assert key("train", 17, None) == int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    expected = [[3121779503, 277592496, 1023240189], [1933350102, 2902334870, 1193009503]]
    assert bits(np.array([1, 2**63 + 5], dtype=np.uint64), 7, 3).tolist() == expected
    assert [_bits_by_hand(k, 7, 3) for k in (1, 2**63 + 5)] == expected


def _bits_by_hand(k: int, position: int, entries: int) -> list[int]:
    stride = 0x9E3779B9
    token = lowbias32((position * stride + 1) % 2**32)
    low, high = lowbias32((k % 2**32) ^ token), lowbias32(((k >> 32) + token) % 2**32)
    return [lowbias32(lowbias32((i * stride + low) % 2**32) ^ high) for i in range(entries)]


@given(PARTS, PARTS)
@settings(max_examples=500)
def test_keys_of_different_parts_never_collide_whatever_their_texts_hold(a, b):
    # the hash itself collides with probability 2^-64; what is tested is the text that it is given
    same = [(type(x), x) for x in a] == [(type(x), x) for x in b]
    assert (key(*a) == key(*b)) == same


def test_keys_of_different_types_never_collide():
    different = [
        key(1),
        key("1"),
        key(None),
        key("None"),
        key(),
        key(""),
        key("a", 1),
        key("a\x1fint:1"),
        key("a\x1f", 1),
    ]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize("part", [np.int64(1), True, 1.0, (1,), b"1"])
def test_a_part_of_another_type_is_refused_since_it_would_be_another_key(part):
    with pytest.raises(TypeError, match="expected str, int or None"):
        key("run", part)


def test_a_key_takes_any_text_even_a_lone_surrogate():
    assert key("\ud800") != key("?")


def test_a_generator_repeats_itself_and_differs_from_that_of_another_purpose():
    first, again, other = (
        generator(*p).integers(0, 2**32, 4).tolist() for p in (("a", 1), ("a", 1), ("a", 2))
    )
    assert first == again != other


@given(KEYS, st.integers(0, 2**64 - 1), st.integers(0, 500))
def test_a_rows_noise_does_not_depend_on_its_neighbours(neighbours, mine, position):
    alone = KeyedNoise([mine], 17).at(position)[0]
    together = KeyedNoise([*neighbours, mine, *neighbours], 17)
    assert torch.equal(together.at(position)[len(neighbours)], alone)
    together.keep([len(neighbours)])
    assert torch.equal(together.at(position), alone[None])


def test_noise_differs_between_rows_positions_and_entries():
    noise = KeyedNoise([1, 2, 2**40 + 1], 50)
    drawn = torch.cat([noise.at(0), noise.at(1)]).flatten()  # 3 rows x 2 positions x 50 entries
    assert len(set(drawn.tolist())) == 300


def test_the_torch_noise_is_the_log_of_the_numpy_exponential():
    keys = [3, 2**64 - 1]
    expected = np.log(exponential(bits(np.array(keys, dtype=np.uint64), 9, 1000)))
    assert np.allclose(KeyedNoise(keys, 1000).at(9).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_exponential_is_finite_and_above_zero_at_both_ends_and_fine_near_zero():
    # bits 0 -> u = 2^-33; bits 1 -> 3 x 2^-33; the largest u is held at 1 - 2^-24, E = 24 ln 2 = 16.64
    e = exponential(np.array([0, 1, 2**32 - 1], dtype=np.uint32))
    assert e[:2] == pytest.approx([2.0**-33, 3 * 2.0**-33], rel=1e-6)
    assert e[2] == pytest.approx(24 * np.log(2), rel=1e-6)


def test_the_bits_are_fair_and_the_exponential_has_its_distribution():
    drawn = bits(np.arange(2000, dtype=np.uint64), 0, 50)
    ones = np.unpackbits(drawn.reshape(-1, 1).view(np.uint8), axis=1).mean(0)  # 32 places, 100,000 draws each
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(100_000)
    assert stats.kstest(exponential(drawn).ravel(), "expon").pvalue > 0.001


LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])


def _p(logits: torch.Tensor, temperature: float) -> np.ndarray:
    return torch.softmax(logits.double() / temperature, -1).numpy()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_over_many_rows_tokens_come_as_often_as_the_tempered_distribution_says(temperature):
    rows = 40_000
    noise = KeyedNoise([key("chi-square", i) for i in range(rows)], 5).at(3)
    tokens, _ = draw(LOGITS.expand(rows, 5), torch.full((rows,), temperature), noise)
    counts = np.bincount(tokens.numpy(), minlength=5)
    assert counts[4] == 0  # e^-30: not once in a billion
    assert stats.chisquare(counts[:4], rows * _p(LOGITS[:4], temperature)).pvalue > 0.001
    # the test can see a difference: a temperature 0.1 off would be refused
    assert stats.chisquare(counts[:4], rows * _p(LOGITS[:4], temperature + 0.1)).pvalue < 1e-9


def test_over_the_positions_of_one_row_tokens_come_as_often_as_the_distribution_says():
    noise = KeyedNoise([key("one row")], 4)
    one = torch.ones(1)
    tokens = [int(draw(LOGITS[None, :4], one, noise.at(i))[0]) for i in range(4000)]
    assert stats.chisquare(np.bincount(tokens, minlength=4), 4000 * _p(LOGITS[:4], 1.0)).pvalue > 0.001
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (tokens[:-1:2], tokens[1::2]), 1)  # a token says nothing of the next one
    assert stats.chi2_contingency(pairs).pvalue > 0.001


def test_the_log_probability_is_that_of_the_tempered_distribution_in_float32():
    # logits (2, 0) at temperature 0.5 are (4, 0): log p = -log(1 + e^-4) = -0.018150, or 4 less
    logits = torch.tensor([[2.0, 0.0]]).expand(64, 2).to(torch.bfloat16)
    noise = KeyedNoise([key("log p", i) for i in range(64)], 2).at(0)
    tokens, logprobs = draw(logits, torch.full((64,), 0.5), noise)
    assert logprobs.dtype == torch.float32
    expected = {0: -0.018150, 1: -4.018150}
    assert set(tokens.tolist()) == {0, 1}
    assert logprobs.tolist() == pytest.approx([expected[t] for t in tokens.tolist()], abs=1e-5)


def test_temperature_zero_takes_the_most_probable_token_whatever_the_noise():
    # row 0 greedy: token 2, log p at temperature 1 = -log(1 + e^-1 + e^-2) = -0.407606; row 1 sampled beside it
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    noise = torch.tensor([[-20.0, 0.0, 20.0], [0.0, -20.0, 0.0]])
    tokens, logprobs = draw(logits, torch.tensor([0.0, 1.0]), noise)
    assert tokens.tolist() == [2, 1]
    assert logprobs.tolist() == pytest.approx([-0.407606, -np.log(3)], abs=1e-6)


@given(st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=8), st.integers(0, 2**64 - 1))
def test_greedy_is_argmax_and_an_impossible_token_is_never_drawn(values, k):
    logits = torch.tensor([values, values])
    logits[1, 0] = float("-inf")
    tokens, logprobs = draw(logits, torch.tensor([0.0, 5.0]), KeyedNoise([k, k], len(values)).at(0))
    assert tokens[0] == logits[0].argmax()
    assert tokens[1] != 0
    assert torch.isfinite(logprobs).all()
