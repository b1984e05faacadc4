"""What a comparison found, and what it entitles us to say: as data and as one honest sentence.

    found.verdict       one seed, noise, helps, hurts, no different, cannot tell: the first that fits
    found.sentence      the same in words, with every number that it stands on

`one seed`: a side has a single training seed. `noise`: the difference is no larger than evaluating unchanged
models again makes. `helps`, `hurts`: the deciding p is below 0.05. `no different`: the user named a margin, and two
one-sided tests found the difference inside it. `cannot tell`: everything else; with a margin it comes with the
seeds that would settle it. Left out: how the numbers are found (stats.py).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from cotalk.errors import BadInput

ALPHA = 0.05
POWER = 0.8  # with which a true difference of the margin is to be found, for the seeds needed
VERDICTS = ("one seed", "noise", "helps", "hurts", "no different", "cannot tell")
# How often Welch's t says helps or hurts of equal arms against a steady arm of the same mean, by the seeds of the
# smaller arm: (seeds scatter evenly, two in three learn and the rest do not). Measured by bench/calibration.py.
FALSE_ALARMS = {2: (0.07, 0.40), 3: (0.07, 0.35), 5: (0.06, 0.15), 10: (0.06, 0.08)}
SEEDS_TO_TRUST_WELCH = 20
WORDS = dict(enumerate(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), start=2))


@dataclass(frozen=True)
class Ends:
    """Another interval of the same difference; method: `t` or `bootstrap`."""

    low: float
    high: float
    method: str


@dataclass(frozen=True)
class Needed:
    """Units an arm with which a true difference of the margin is found 4 times in 5.

    A range, over the 95% chi-square interval of the standard deviation that was seen; an end is None where no
    number is enough (the tasks alone leave too much open). of: `seeds`, or `tasks` for two checkpoints.
    """

    fewest: int | None
    most: int | None
    of: str

    def __str__(self) -> str:
        if self.fewest is None:
            return f"no number of {self.of}"
        if self.most is None:
            return f"{_rounded(self.fewest, math.floor)} {self.of} or many more"
        low, high = _rounded(self.fewest, math.floor), _rounded(self.most, math.ceil)
        return f"{low} {self.of}" if low == high else f"{low} to {high} {self.of}"


@dataclass(frozen=True)
class Comparison:
    """The difference a - b, what it stands on, and what it entitles us to say.

    unit `seeds`: two arms. `seeds+tasks`: an arm against something without a seed (`n_b` is None).
    `tasks`: two checkpoints. low, high, error (the standard error), df and p belong to the deciding test and are
    None where one seed cannot give them. sd_a, sd_b: between seeds of each side (of the paired differences for
    `seeds+tasks` and `tasks`, then sd_b is None). `exact_p` is None where it does not apply or would need too
    many regroupings; `exact_p_least` is the least it could be. task_error: the part of `error` that tasks leave
    however many seeds there are (`seeds+tasks` only). over_tasks: the interval for new tasks as well.
    """

    a: str
    b: str
    difference: float
    n_a: int
    n_b: int | None
    unit: str
    low: float | None = None
    high: float | None = None
    df: float | None = None
    p: float | None = None
    p_holm: float | None = None
    exact_p: float | None = None
    exact_p_least: float | None = None
    error: float | None = None
    sd_a: float | None = None
    sd_b: float | None = None
    task_error: float | None = None
    over_tasks: Ends | None = None
    noise: float | None = None
    margin: float | None = None
    equivalence_p: float | None = None
    equivalence_p_holm: float | None = None
    needed: Needed | None = None

    @property
    def verdict(self) -> str:
        """The first of VERDICTS that fits."""
        if self.p is None:
            return "one seed"
        if self.noise and abs(self.difference) <= self.noise:
            return "noise"
        if self.deciding_p < ALPHA:
            return "helps" if self.difference > 0 else "hurts"
        return "no different" if self.equivalent else "cannot tell"

    @property
    def deciding_p(self) -> float:
        """Holm's value where several comparisons were corrected together, else the p of the test itself."""
        if self.p is None:
            raise BadInput(
                f"{self.a} against {self.b} rests on one seed: there is no p.", "statistics/values"
            )
        return self.p if self.p_holm is None else self.p_holm

    @property
    def equivalent(self) -> bool:
        """Both one-sided tests put the difference inside the margin that was named."""
        p = self.equivalence_p if self.equivalence_p_holm is None else self.equivalence_p_holm
        return p is not None and p < ALPHA

    @property
    def sentence(self) -> str:
        """The verdict as one honest sentence, with what qualifies it."""
        match self.verdict:
            case "one seed":
                return (
                    f"One seed cannot carry a claim about an arm: {self.a} minus {self.b} is "
                    f"{_signed(self.difference)} ({self.of}). Train at least three seeds."
                )
            case "noise":
                return self._noise_sentence + ("" if self.equivalent else self._needs)
            case "no different":
                return (
                    f"{self.a} and {self.b} differ by less than {self.margin:g}, the margin that was named: "
                    f"{self._numbers}.{self._caution}"
                )
            case "cannot tell":
                told = (
                    f"Cannot tell from {self._from} whether {self.a} differs from {self.b}: {self._numbers}."
                )
                return told + self._needs + self._caution
        better = "better" if self.verdict == "helps" else "worse"
        return f"{self.a} scores {better} than {self.b}: {self._numbers}.{self._caution}"

    @property
    def interval(self) -> str:
        """`+0.269, Welch [-0.07, +0.61]`, the ends rounded outwards: it never prints more than was found."""
        if self.low is None or self.high is None:
            return _signed(self.difference)
        test = ", Welch" if self.unit == "seeds" else ""
        return f"{_signed(self.difference)}{test} {outwards(self.low, self.high)}"

    @property
    def of(self) -> str:
        """What it stands on: `3 seeds against 3`, `300 tasks, paired`, `3 seeds against a fixed score`."""
        if self.unit == "tasks":
            return f"{count(self.n_a, 'task')}, paired"
        return f"{count(self.n_a, 'seed')} against {'a fixed score' if self.n_b is None else self.n_b}"

    @property
    def seeds(self) -> int:
        """Of the smaller arm."""
        return min(n for n in (self.n_a, self.n_b) if n is not None)

    @property
    def _from(self) -> str:
        if self.unit == "tasks":
            return count(self.n_a, "task")
        if self.n_b is None or self.n_a == self.n_b:
            return f"{WORDS.get(self.n_a, str(self.n_a))} seeds"
        return f"{self.n_a} seeds against {self.n_b}"

    @property
    def _numbers(self) -> str:
        return f"{self.interval} ({self.of}; {self._tests})"

    @property
    def _tests(self) -> str:
        parts = [f"p {_p(self.p)}"]
        if self.p_holm is not None and self.p_holm != self.p:
            parts.append(f"{_p(self.p_holm)} after Holm's correction")
        if self.equivalent:
            p = f"two one-sided tests p {_p(self.equivalence_p)}"
            corrected = self.equivalence_p_holm
            both = corrected is not None and corrected != self.equivalence_p
            parts.append(f"{p}, {_p(corrected)} after Holm's correction" if both else p)
        if self.exact_p is not None:
            parts.append(f"exact p {_p(self.exact_p)}")
            if self.exact_p_least is not None and self.exact_p_least >= 0.01:
                parts.append(f"which so few seeds cannot take below {_p(self.exact_p_least)}")
        return ", ".join(parts)

    @property
    def _noise_sentence(self) -> str:
        floor = math.ceil((self.noise or 0.0) * 1000 - 1e-9) / 1000
        left = "The difference may still be anything in" if self.unit != "tasks" else "The interval is"
        left = f"{left} {outwards(self.low or 0.0, self.high or 0.0)} ({self.of}; {self._tests})"
        met = f"; it is inside the margin of {self.margin:g} that was named" if self.equivalent else ""
        return (
            f"{self.a} minus {self.b} is {_signed(self.difference)}, inside the evaluation's own noise: evaluating "
            f"unchanged models again moves as much (up to {floor:.3f}). {left}{met}."
        )

    @property
    def _needs(self) -> str:
        if self.needed is None or self.margin is None:
            return ""
        each = " an arm" if self.n_b is not None and self.unit == "seeds" else ""
        on = " on these tasks" if self.unit == "seeds+tasks" else ""
        seen = count(self.n_a, "task") if self.unit == "tasks" else f"{self._from}"
        if self.needed.fewest is None:
            return (
                f" {str(self.needed).capitalize()}{on} would find a true difference of {self.margin:g}: more tasks "
                "are needed."
            )
        return (
            f" To find a true difference of {self.margin:g} 4 times in 5 takes {self.needed}{each}{on} (a range: "
            f"{seen} say little about how far they scatter)."
        )

    @property
    def _caution(self) -> str:
        if self.unit == "tasks":
            return " This speaks of these two checkpoints, not of how they were trained."
        if self.seeds >= SEEDS_TO_TRUST_WELCH or self.verdict in ("cannot tell", "noise"):
            return ""
        if self.verdict == "no different":
            return " With so few seeds it says nothing of seeds that rarely fail: none may be among them."
        even, uneven = FALSE_ALARMS[max(n for n in FALSE_ALARMS if n <= self.seeds)]
        return (
            f" So few seeds say this of equal arms up to {100 * uneven:.0f} times in 100 where some seeds learn and "
            f"others do not, up to {100 * even:.0f} where they scatter evenly: look at every seed."
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """All fields, the verdict and the sentence, ready for results.json."""
        return asdict(self) | {"verdict": self.verdict, "sentence": self.sentence}

    @classmethod
    def from_json(cls, row: dict[str, Any], a: str = "", b: str = "") -> Comparison:
        """A comparison of results.json read back; a, b: words in place of the names of its conditions."""
        known = {f.name: row.get(f.name) for f in fields(cls)} | {"a": a or row["a"], "b": b or row["b"]}
        ends, needed = known["over_tasks"], known["needed"]
        return cls(**known | {"over_tasks": ends and Ends(**ends), "needed": needed and Needed(**needed)})


def count(n: int, noun: str) -> str:
    """`1 task`, `1,200 answers`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}"


def outwards(low: float, high: float) -> str:
    """`[-0.07, +0.61]`: rounded away from each other."""
    ends = math.floor(low * 100 + 1e-9) / 100, math.ceil(high * 100 - 1e-9) / 100
    return f"[{ends[0] + 0.0:+.2f}, {ends[1] + 0.0:+.2f}]"


def _p(p: float | None) -> str:
    if p is None:
        return "unknown"
    return "below 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _rounded(n: int, direction: Any) -> str:
    """Two digits that count: 6,342 -> 6,400 upwards."""
    unit = 10 ** max(0, len(str(n)) - 2)
    return f"{direction(n / unit) * unit:,}"
