"""Published traces, measured and simulated again."""

import pytest

from benchmarks.strangers.injected import (
    InjectedVerdict,
    Injection,
    injected_figures,
    judged_injection,
    missed_injected_bars,
    step_error,
)
from benchmarks.strangers.measure import measure
from benchmarks.strangers.measured import MEASURED
from benchmarks.strangers.published import NAMES, Published
from tests.shared_traces import SHARED_TRACES, needs_shared

pytestmark = needs_shared


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_simulated_again_is_as_long_as_recorded(name):
    assert step_error(name) < 0.02


def test_the_table_of_noise_is_what_the_traces_show():
    traces = [Published.read(name, SHARED_TRACES) for name in NAMES]
    assert measure(traces) == MEASURED


def test_a_stage_that_is_twice_as_slow_is_named():
    verdict = judged_injection(Injection("ST", "slow-stage", (0, 1), 2.0))
    assert verdict.counts
    assert verdict.is_named


def test_a_fault_without_a_name_and_an_innocent_miss_their_bars():
    fault = Injection("ST", "slow-worker", (0, 1), 2.0)
    good = InjectedVerdict(fault, 0.2, True, True, (), ())
    missed = InjectedVerdict(fault, 0.2, False, False, (), ())
    cheap = InjectedVerdict(fault, 0.01, False, False, (), ())
    innocent = InjectedVerdict(fault, 0.2, True, False, ((1, 1),), ())
    assert missed_injected_bars(injected_figures([good, cheap])) == []
    assert missed_injected_bars(injected_figures([good, missed])) == ["injected_named"]
    assert missed_injected_bars(injected_figures([good, innocent])) == ["injected_innocents"]
