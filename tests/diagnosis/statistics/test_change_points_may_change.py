"""No change is overlooked since it was not looked for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.diagnosis.statistics.change_points import (
    LIMITS,
    ChangeCriteria,
    is_change,
    may_change,
)
from tests.example_counts import many

USUAL = LIMITS.usual
DEMANDS = (
    USUAL,
    USUAL._replace(before=5, after=3, difference=0.05),
    USUAL._replace(before=8, after=8, difference=0.1),
)


@many(300)
@given(st.integers(0, 10**6), st.sampled_from(DEMANDS), st.floats(0.0, 0.4), st.data())
def test_a_series_ruled_out_by_may_change_has_no_split(
    seed: int, criteria: ChangeCriteria, step: float, data: st.DataObject
) -> None:
    size = data.draw(st.integers(criteria.before + criteria.after, 40))
    at = data.draw(st.integers(0, size))
    logs = 0.02 * np.random.default_rng(seed).normal(size=size) + step * (np.arange(size) >= at)
    if may_change(logs, 0.01, criteria):
        return
    assert not any(
        is_change(logs, first, split, end, 0.01, criteria)
        for first in range(size)
        for end in range(first + 7, size + 1)
        for split in range(first + 1, end)
    )


def test_a_plain_jump_passes_may_change() -> None:
    assert may_change(np.repeat([0.0, 0.2], 10), 0.005, USUAL)
    assert not may_change(np.zeros(20), 0.005, USUAL)
