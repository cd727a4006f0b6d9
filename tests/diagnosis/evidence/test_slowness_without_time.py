"""Clocks too coarse, or steps without computations: nothing to divide by, and no crash."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from app.diagnosis.evidence.outliers import outliers
from app.diagnosis.evidence.sequence_lengths import relative_durations
from app.diagnosis.evidence.slowness import (
    against_own_history,
    direction_against_own_history,
    slowness_to_peers,
)
from app.diagnosis.features import Pace
from app.diagnosis.job_history import ExtendedHistory, History
from app.trace.ops import OP_CODES
from tests.diagnosis.jobs import case_of, diagnosed, made, window_of

COMPUTE = [OP_CODES["forward-compute"], OP_CODES["backward-compute"]]


def without(window, dropped):
    """The window without some of its operations."""
    trace = window.trace
    columns = {each.name: getattr(trace, each.name) for each in fields(trace)}
    kept = {name: None if column is None else column[~dropped] for name, column in columns.items()}
    return replace(window, trace=type(trace)(**kept))


@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("sizes", [(1, 4), (2, 2), (4, 1)], ids=str)
def test_computations_of_zero_seconds_are_diagnosed(share, sizes):
    dp, pp = sizes
    window = window_of(made(dp=dp, pp=pp, microbatches=3), 4)
    duration_s = window.trace.duration_s.copy()
    is_hit = np.random.default_rng(5).random(duration_s.size) < share
    duration_s[is_hit & np.isin(window.trace.optype, COMPUTE)] = 0.0
    window = replace(window, trace=replace(window.trace, duration_s=duration_s))
    recent = case_of(window).new_history
    for history in (History(), replace(recent, steps=recent.steps - 100)):
        for found in diagnosed(window, history).findings or ():
            json.dumps(dict(found.evidence), allow_nan=False)


def test_a_step_in_which_nobody_computes_is_diagnosed():
    window = window_of(made(microbatches=4), 4)
    is_first = window.trace.step == window.trace.step[0]
    case = case_of(without(window, is_first & (window.trace.mb_id >= 0)))
    assert len(case.groups) == 2
    assert min(found.num_ops.max() for found in outliers(case)) == 0
    assert max(found.num_ops.max() for found in outliers(case)) > 0


def test_a_worker_of_zero_seconds_is_faster_than_its_peers():
    took_s = np.full((6, 4, 2), 0.1)
    took_s[2, 1, 0] = 0.0
    took_s[3] = 0.0
    pace = Pace(took_s, took_s)
    found = slowness_to_peers(pace, pace, np.arange(6))
    for figure in (found.ratio, found.forward, found.least, *found.as_peers, found.significance):
        assert np.isfinite(figure).all()
    assert found.significance.max() < 1


def test_own_history_treats_steps_of_zero_seconds_as_usual():
    took_s = np.full((16, 1, 4), 0.1)
    took_s[10:, 0, 2] = 0.15
    took_s[12] = 0.0
    course = ExtendedHistory(np.arange(16), np.ones(16), {"compute_s": took_s}, 4)
    ratio = against_own_history(course)[4:]
    np.testing.assert_allclose(ratio[[0, 7, 8, 11], 0, 2], [1.0, 1.5, 1.0, 1.5], rtol=0.01)
    side = direction_against_own_history(took_s[4:], ratio, np.arange(12))
    np.testing.assert_allclose(side[[0, 7, 8, 11], 0, 2], [1.0, 1.5, 1.0, 1.5], rtol=0.01)


def test_relative_durations_of_zero_seconds_are_finite():
    assert np.isfinite(relative_durations(np.zeros((2, 2, 3, 4)))).all()
