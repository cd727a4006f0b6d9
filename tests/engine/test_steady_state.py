"""How long steps are that follow each other, on clocks that make no sense."""

import dataclasses

import numpy as np
import pytest

from app.engine.report import analyse
from tests.api import recorded


@pytest.mark.parametrize("apart_ns", [0, -3_000_000_000, -10_000_000_000])
def test_steps_that_end_before_the_one_before_take_what_their_operations_take(apart_ns):
    made = dataclasses.replace(recorded.window(8), origin_ns=(0, apart_ns))
    np.testing.assert_allclose(analyse(made).recorded_s, [7.5, 7.5])
