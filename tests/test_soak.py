"""A short soak; the 2,000 steps are bench/soak.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import soak as bench
from soak import Sample, grew, soak

from cotalk import grade_worker, view


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads /proc")
def test_two_hundred_steps_of_six_runs_hold_no_more_memory_or_files_at_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "_TEXTS_KEPT", bench.CACHED)  # the soak sets them; put back after it
    monkeypatch.setattr(grade_worker, "KNOWN_ANSWERS", bench.CACHED)
    samples = soak(tmp_path, 200, 20)
    assert [s.step for s in samples] == list(range(20, 201, 20))
    assert grew(samples, 60) == []


def test_growth_is_told() -> None:
    flat = [Sample(step, 0.0, 100.0, 9, 5) for step in (10, 20, 30)]
    assert grew(flat, 20) == []
    assert grew([*flat, Sample(40, 0.0, 109.0, 10, 5)], 20) == [
        "memory grew by 9.0 MiB from step 20 to 40",
        "open files grew from 9 to 10",
    ]
    assert grew([Sample(10, 0.0, 10.0, 3, 5), *flat], 20) == []  # warming up may
