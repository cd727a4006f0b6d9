"""The table of interruptions: its rows, and the repair that they give."""

import pytest

from app.diagnosis.evidence.interruptions import (
    InterruptionKind,
    among,
    interruptions,
    interruptions_of,
    joined,
    no_rows,
)
from app.synth.faults.interruptions import AllocatorStalls, GcPauses
from tests.diagnosis.suspects import job, recorded

PAUSE_S = 0.3


def paused(*, is_sent):
    fault = GcPauses(rate=0.2, pause_s=PAUSE_S, workers=((1, 2),), is_sent=is_sent)
    return recorded(job(fault))


def test_a_pause_is_a_long_forward_of_its_worker():
    case = paused(is_sent=False)
    long = interruptions_of(case, InterruptionKind.LONG)
    long = long.where(long.excess_s > PAUSE_S / 2)
    assert long.workers == [(1, 2)]
    assert not long.is_backward.any()
    assert long.is_inside.all()
    assert long.excess_s.mean() == pytest.approx(PAUSE_S, rel=0.2)
    assert long.ratio == pytest.approx(1 + long.excess_s / long.least_s)


def test_what_the_client_records_of_a_pause_is_a_row_of_its_own():
    case = paused(is_sent=True)
    noted = interruptions_of(case, InterruptionKind.LONG_BY_GC)
    long = interruptions_of(case, InterruptionKind.LONG)
    assert noted.workers == [(1, 2)]
    assert noted.excess_s.mean() == pytest.approx(PAUSE_S, rel=0.2)
    assert among(noted, long).all()
    assert interruptions(case).seconds(case).shape == (case.steps.size, 4, 4)


def test_rows_inside_are_repaired_and_rows_before_are_delays():
    case = recorded(job(AllocatorStalls(workers=((1, 2),), stall_s=0.1)))
    table = interruptions(case)
    inside, before = table.where(table.is_inside), table.where(~table.is_inside)
    [group] = case.replay.groups
    repaired, late = table.repair(case)(group), table.delays(case)(group)
    assert set(repaired.rows.tolist()) == set(inside.row.tolist())
    assert late.duration_s.sum() == pytest.approx(before.excess_s.sum())
    assert repaired.duration_s.sum() < group.durations.recorded_s[repaired.rows].sum()


def test_no_rows_repair_nothing():
    case = recorded(job())
    nothing = joined([no_rows(case), no_rows(case)])
    [group] = case.replay.groups
    assert nothing.size == 0
    assert nothing.repair(case)(group).rows.size == nothing.delays(case)(group).rows.size == 0
    assert nothing.counts(case).sum() == 0
