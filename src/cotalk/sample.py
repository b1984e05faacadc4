"""Keyed random numbers, and sampling with them.

Every random choice of Cotalk is a pure function of a *key*: (run seed, purpose, condition, repeat, step, task id,
chat, turn) hashed to 64 bits, then mixed with the token's position and the vocabulary entry. Nothing is drawn from
a shared generator, so a run draws the same chats alone and in a stack, before and after a resume, in every engine.

A token is drawn by the Gumbel-max rule in float32: argmax of logits / temperature - log(E), E exponential
(Maddison, Tarlow and Minka 2014, "A* sampling"). Each entry's noise stands alone, so no sum over the vocabulary
(whose order of addition would differ between engines) decides which token comes out.

The integer hash has two twins here, numpy and torch, tested equal bit for bit; a kernel on a GPU is a third.
Left out: top-k, top-p and penalties, since the trainer's log-probability would then be another distribution's.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

_M1, _M2 = 0x7FEB352D, 0x846CA68B  # Ettinger's "lowbias32" constants
_STRIDE = 0x9E3779B9  # 2^32 / golden ratio


def key(*parts: str | int | None) -> int:
    """The 64-bit key of a random choice. Parts of different types never collide: `1` is not `"1"`.

    The text that is hashed can be read back to its parts: a part begins with its type, and a separator inside a
    part (a task's id may hold anything) is doubled. A numpy integer would be another key than the same int: refused.
    """
    for p in parts:
        if type(p) not in (str, int, type(None)):
            raise TypeError(f"part {p!r} of a random key is a {type(p).__name__}: expected str, int or None")
    text = "\x1f".join(f"{type(p).__name__}:{str(p).replace(chr(31), chr(31) * 2)}" for p in parts)
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )


def generator(*parts: str | int | None) -> np.random.Generator:
    """A numpy generator of its own for one keyed purpose (shuffling, choosing tasks): never shared."""
    return np.random.default_rng(key(*parts))


def mix32(x: np.ndarray) -> np.ndarray:
    """The 32-bit mixer "lowbias32" on uint32 arrays (numpy twin). A bijection."""
    x = x.astype(np.uint32)
    x ^= x >> np.uint32(16)
    x = (x.astype(np.uint64) * np.uint64(_M1)).astype(np.uint32)
    x ^= x >> np.uint32(15)
    x = (x.astype(np.uint64) * np.uint64(_M2)).astype(np.uint32)
    x ^= x >> np.uint32(16)
    return x


def bits(keys: np.ndarray, position: int, entries: int) -> np.ndarray:
    """32 random bits for each (row, vocabulary entry). keys: (rows,) uint64 -> (rows, entries) uint32."""
    low, high = _row_words(np.asarray(keys, dtype=np.uint64), position)
    index = np.arange(entries, dtype=np.uint64)[None, :]
    spread = (index * np.uint64(_STRIDE)).astype(np.uint32)
    return mix32(mix32(spread + low[:, None]) ^ high[:, None])


def _row_words(keys: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray]:
    low = (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (keys >> np.uint64(32)).astype(np.uint32)
    token = mix32(np.full(1, (position * _STRIDE + 1) & 0xFFFFFFFF, dtype=np.uint32))
    return mix32(low ^ token), mix32(high + token)


def exponential(random_bits: np.ndarray) -> np.ndarray:
    """Exponential variates from 32 random bits, in float32, fine near zero (where the winners are)."""
    u = (random_bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    return -np.log1p(-np.minimum(u, np.float32(1 - 2.0**-24)))


# --- the torch twin: int32 arithmetic wraps as uint32 does; a logical shift is an arithmetic one and a mask ---


def _i32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _shift(x: torch.Tensor, n: int) -> torch.Tensor:
    return (x >> n).bitwise_and_((1 << (32 - n)) - 1)


def torch_mix32(x: torch.Tensor) -> torch.Tensor:
    """`mix32` on int32 tensors that hold the same bits."""
    x = x ^ _shift(x, 16)
    x = x.mul_(_i32(_M1))
    x = x.bitwise_xor_(_shift(x, 15))
    x = x.mul_(_i32(_M2))
    return x.bitwise_xor_(_shift(x, 16))


class KeyedNoise:
    """The noise of a fixed set of rows, one token after another, on one device.

    keys: 64-bit integers, one a row. `at(position)` gives log(E): (rows, entries) float32.
    """

    def __init__(self, keys: list[int], entries: int, device: torch.device | str = "cpu"):
        self._keys = np.asarray(keys, dtype=np.uint64)
        spread = (np.arange(entries, dtype=np.uint64) * np.uint64(_STRIDE)).astype(np.uint32).view(np.int32)
        self._spread = torch.from_numpy(spread).to(device)

    def keep(self, rows: list[int]) -> None:
        """Goes on with these rows only."""
        self._keys = self._keys[rows]

    def bits(self, position: int) -> torch.Tensor:
        """The bits of `bits` (numpy twin) for these rows: (rows, entries), int32 that holds uint32."""
        low, high = _row_words(self._keys, position)
        low_t = torch.from_numpy(low.view(np.int32)).to(self._spread.device)
        high_t = torch.from_numpy(high.view(np.int32)).to(self._spread.device)
        return torch_mix32(torch_mix32(self._spread[None, :] + low_t[:, None]).bitwise_xor_(high_t[:, None]))

    def at(self, position: int) -> torch.Tensor:
        """log(E) for this token of each row: (rows, entries) float32."""
        u = (self.bits(position).to(torch.int64) & 0xFFFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-32)
        return u.clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_().log_()


def draw(
    logits: torch.Tensor, temperature: torch.Tensor, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row, and its log-probability under the distribution that it was drawn from.

    logits: (rows, entries), any float type, read as float32; temperature: (rows,), 0 means greedy (the reported
    log-probability is then that of temperature 1); noise: (rows, entries), `KeyedNoise.at`.
    Returns tokens (rows,) int64 and log-probabilities (rows,) float32.
    """
    greedy = temperature == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperature)[:, None]
    score = torch.where(greedy[:, None], scaled, scaled - noise)
    tokens = score.argmax(-1)
    chosen = scaled.gather(1, tokens[:, None])[:, 0]
    return tokens, chosen - scaled.logsumexp(-1)
