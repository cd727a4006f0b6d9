import numpy as np
import pytest

from app.diagnosis.detector import LIMITS, is_supported
from app.synth.faults.slow_compute import SlowStage, SlowWorker
from tests.diagnosis.jobs import case_of, diagnosed, made, only_finding, window_of

FAULTS = [
    pytest.param("slow-worker", lambda slowdown: SlowWorker(2, 1, slowdown), id="worker"),
    pytest.param("stage-imbalance", lambda slowdown: SlowStage(1, slowdown), id="stage"),
]


def ruled_out(diagnosis, cause):
    (found,) = [each for each in diagnosis.ruled_out if each.cause == cause]
    return found


@pytest.mark.parametrize(("cause", "fault"), FAULTS)
@pytest.mark.parametrize("num_steps", [1, 2])
def test_one_or_two_steps_do_not_support_a_small_slowdown(cause, fault, num_steps):
    seen = diagnosed(window_of(made(fault(1.2)), num_steps))
    assert seen.findings == ()
    against = ruled_out(seen, cause)
    assert against.insufficient
    assert "too few to rule out chance" in against.reason
    assert against.figures["needed"] == LIMITS.min_clear_ratio


@pytest.mark.parametrize(("cause", "fault"), FAULTS)
def test_a_large_slowdown_is_named_after_one_step_with_less_confidence(cause, fault):
    found = only_finding(diagnosed(window_of(made(fault(1.6)), 1)))
    assert (found.cause, found.confidence) == (cause, LIMITS.max_confidence)
    assert (
        only_finding(diagnosed(window_of(made(fault(1.6)), 3))).confidence > LIMITS.max_confidence
    )


@pytest.mark.parametrize(("cause", "fault"), FAULTS)
def test_earlier_steps_support_a_slowdown(cause, fault):
    job = made(fault(1.2))
    history = case_of(window_of(job, 8)).new_history
    found = only_finding(diagnosed(window_of(job, 1, 8), history))
    assert found.cause == cause
    assert found.confidence > LIMITS.max_confidence


@pytest.mark.parametrize(
    ("num_usual", "earlier", "expected"),
    [
        (3, [], True), (2, [], False), (2, [1.1], True), (1, [1.1], False),
        (1, [np.nan, 1.1], False), (1, [1.1, np.nan, 1.1], True), (1, [1.0, 1.06], False),
        (1, [2.0] + [1.0] * 8, False),
    ],
)  # fmt: skip
def test_is_supported_needs_enough_agreeing_steps(num_usual, earlier, expected):
    given = np.array(earlier, np.float64)[:, None]
    assert is_supported(num_usual, given, 1.05).tolist() == [expected]
