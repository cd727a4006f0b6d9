from dataclasses import replace

import numpy as np

from app.advice.signs import followed_window
from app.monitor import observe
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.trace.losses import lossy_window, rows_where

JOB = SimulatedJob(Parallelism(4, 2), 4)


def test_a_window_with_a_missing_worker_is_followed_with_its_imputed_operations():
    whole = JOB.record(range(8)).window()
    trace = whole.trace
    reported = trace.select(~rows_where(trace, dp_rank=3, stage=1))
    lacking = replace(lossy_window(JOB, reported), state="incomplete")
    seen = followed_window(lacking, observe(lacking).result, is_trusted=True)
    expected = followed_window(whole, observe(whole).result, is_trusted=True)
    assert seen is not None
    assert expected is not None
    assert seen.shape == expected.shape
    np.testing.assert_allclose(seen.stage_s, expected.stage_s, rtol=0.05)


def test_other_incomplete_and_open_windows_are_not_followed():
    whole = JOB.record(range(8)).window()
    result = observe(whole).result
    for state in ("open", "incomplete"):
        assert followed_window(replace(whole, state=state), result, is_trusted=True) is None
    assert followed_window(whole, result, is_trusted=False) is None
