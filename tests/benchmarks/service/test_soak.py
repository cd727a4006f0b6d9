"""The figures of `soak`: a line through samples of memory."""

import pytest

from benchmarks.service.soak import MIB, memory_figures


def test_memory_that_grows_by_the_hour_is_told():
    found = memory_figures([(600.0 + 60 * number, (100 + number) * MIB) for number in range(61)])
    assert found is not None
    assert found["first_mib"] == pytest.approx(100.0)
    assert found["last_mib"] == pytest.approx(160.0)
    assert found["mib_per_hour"] == pytest.approx(60.0)
    assert found["growth"] == pytest.approx(0.6)
    assert (found["least_mib"], found["most_mib"]) == (100.0, 160.0)
