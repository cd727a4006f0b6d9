"""The figures of `soak`: a line through samples of memory."""

import os

import pytest

from benchmarks.measuring import BenchmarkFailed
from benchmarks.service.soak import MIB, memory_figures, resident_bytes


def test_memory_that_grows_by_the_hour_is_told():
    found = memory_figures([(600.0 + 60 * number, (100 + number) * MIB) for number in range(61)])
    assert found is not None
    assert found["first_mib"] == pytest.approx(100.0)
    assert found["last_mib"] == pytest.approx(160.0)
    assert found["mib_per_hour"] == pytest.approx(60.0)
    assert found["growth"] == pytest.approx(0.6)
    assert (found["least_mib"], found["most_mib"]) == (100.0, 160.0)


def test_one_sample_tells_nothing():
    assert memory_figures([(0.0, MIB)]) is None


def test_memory_of_a_process_that_has_ended_is_no_zero():
    assert resident_bytes(os.getpid()) > MIB
    with pytest.raises(BenchmarkFailed, match="is not known"):
        resident_bytes(None)
