"""All repairs at once, and evidence that is computed once for all questions."""

import numpy as np
import pytest

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.diagnose import DETECTORS
from app.diagnosis.statistics.change_points import LIMITS, level_changes
from app.diagnosis.statistics.ramps import rising_ramp
from app.diagnosis.suspicions import RepairedTogether, suspicion_costs
from app.engine.what_if import Replayer
from app.result.finding import RuledOut
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.trace.window import Ints
from tests.diagnosis.jobs import case_of, made, window_of


def suspected(case: Case) -> list[Suspicion]:
    answers = [each.detect(case) for each in DETECTORS]
    found = [each for each in answers if not isinstance(each, RuledOut) and each.score >= 0.5]
    return [each for each in found if each.repair is not None]


def rows_of_stage_one(group: Replayer) -> Ints:
    return np.flatnonzero(group.template.stage == 1)


def test_one_repair_alone_is_that_of_its_cost() -> None:
    case = case_of(window_of(made(SlowWorker(1, 2, 1.5))))
    [slow] = suspected(case)
    together = RepairedTogether(case, [slow])
    costs = suspicion_costs(case, [slow])
    [alone_s] = costs.repaired_s
    assert alone_s is not None
    assert np.allclose(together.step_s + costs.idle_s, alone_s)
    assert together.ideal_s.mean() < case.report.ideal_s.mean()


def test_no_repair_leaves_the_replayed_and_the_ideal_step() -> None:
    case = case_of(window_of(made(SlowWorker(1, 2, 1.5))))
    nothing = RepairedTogether(case, [])
    assert nothing.step_s.tolist() == case.replay.simulated_s.tolist()
    assert nothing.ideal_s is case.report.ideal_s


def test_ideal_rows_do_not_change_the_next_answer() -> None:
    case = case_of(window_of(made(SlowWorker(1, 2, 1.5), LongLastStage())))
    together = RepairedTogether(case, suspected(case))
    before_s = together.step_s.copy()
    one_s = together.with_ideal_s(rows_of_stage_one)
    every_s = together.with_ideal_s(lambda group: np.arange(group.template.num_ops))
    again_s = RepairedTogether(case, suspected(case))
    assert np.array_equal(one_s, together.with_ideal_s(rows_of_stage_one))
    assert np.allclose(one_s, again_s.with_ideal_s(rows_of_stage_one))
    assert np.array_equal(before_s, together.step_s)
    assert np.allclose(every_s, case.report.ideal_s)


@pytest.mark.parametrize("falls", [False, True])
def test_a_ramp_is_the_same_with_changes_that_are_known(falls: bool) -> None:
    rising = np.concatenate([np.ones(12), np.linspace(1.0, 1.6, 12), np.full(12, 1.6)])
    values = np.concatenate([np.full(10, 2.5), rising]) if falls else rising
    values[3] = np.nan
    known = level_changes(values, LIMITS.usual)
    found = rising_ramp(values, LIMITS.usual)
    assert found is not None
    assert rising_ramp(values, LIMITS.usual, known) == found
