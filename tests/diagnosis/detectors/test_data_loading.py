import numpy as np
import pytest

from app.diagnosis.detector import Suspicion
from app.diagnosis.detectors.data_loading import NOT_RECORDED, DataLoading
from app.result.finding import Culprit, RuledOut
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import AllocatorStalls, GcPauses
from app.synth.faults.interruptions import DataLoading as LoadFault
from app.synth.faults.slow_network import SlowNic
from app.synth.normal_variation import SpecialSteps
from app.synth.schedules import Interleaved
from app.trace.job import Parallelism
from tests.diagnosis.stopped_windows import longer_gaps
from tests.diagnosis.suspects import (
    attributed_and_real_cost,
    fact_of,
    job,
    ruled_out,
    suspected,
    suspicion,
)
from tests.diagnosis.windows import case_of
from tests.window_factory import Row, in_row, window

LOAD = DataLoading()


def by_hand(*late_s, num_steps=4, who=(1,)):
    """Two replicas of one stage that gather their parameters and compute; some begin that late."""
    rows: list[Row] = []
    for step in range(num_steps):
        for dp_rank in range(2):
            wait_s = late_s[step] if dp_rank in who and step < len(late_s) else 0.0
            computed = in_row(
                ("forward-compute", 1.0), ("backward-compute", 2.0), start_s=0.1 + wait_s
            )
            made = [Row("params-all-gather", 0.0, 0.1), *computed]
            rows += [row.on(step=step, dp_rank=dp_rank, mb_id=0) for row in made]
    return window(rows, dp_size=2)


def test_delay_of_a_data_wait_by_hand():
    case = case_of(by_hand(0.5, 0.6, 0.0, 0.7))
    found = suspected(LOAD, case)
    assert found.culprits == (Culprit(1, 0),)
    assert found.evidence["steps"] == [0, 1, 3]
    assert found.evidence["mean_wait_s"] == pytest.approx(0.6)
    assert found.repair is None
    assert found.delays is not None
    [group] = case.replay.groups
    late = found.delays(group)
    assert [group.template.name(row) for row in late.rows] == ["forward-compute"]
    assert late.duration_s == pytest.approx(np.array([[0, 0, 0, 0, 0.5, 0.6, 0, 0.7]]))


def test_a_wait_of_all_workers_is_no_wait_for_data_unless_it_is_reported():
    answer = ruled_out(LOAD, job(LoadFault()))
    assert answer.insufficient
    assert "idle" in answer.reason
    found = suspicion(LOAD, job(LoadFault(is_sent=True)))
    assert (found.culprits, found.basis) == ((), "recorded")
    assert fact_of(found).startswith("every worker waits 2")


def test_a_host_that_begins_late_is_named_and_that_no_wait_was_recorded():
    made = job(LoadFault(host="host-001"))
    found = suspicion(LOAD, made)
    assert found.culprits == (Culprit(host="host-001"),)
    assert found.evidence["workers"] == [[2, 0], [3, 0]]
    assert "begins its first forward computation" in fact_of(found)
    assert (found.basis, found.note) == ("concluded", NOT_RECORDED)
    assert found.max_confidence < 0.9


@pytest.mark.parametrize("host", [None, "host-000"])
def test_the_host_of_the_whole_first_stage_is_no_culprit_as_all_others_are_idle(host):
    # All of stage 0 on one host, and a wait far longer than the pipeline takes to fill.
    assert ruled_out(LOAD, job(LoadFault(host=host, delay_s=0.5), dp=2, pp=4)).insufficient


def test_innocent_stages_of_an_interleaved_schedule_are_not_named():
    interleaved = job(parallelism=Parallelism(4, 4, 1, 2), schedule=Interleaved())
    made = longer_gaps(interleaved.record(range(8)).window(), every=1, gap_s=0.1)
    assert isinstance(LOAD.detect(case_of(made)), RuledOut)


def test_annotated_data_waits_name_the_workers():
    made = job(LoadFault(host="host-000", is_sent=True), dp=2, pp=2, cluster=Cluster(3))
    found = suspicion(LOAD, made)
    assert found.evidence["reported_by_client"]
    assert found.culprits == (Culprit(host="host-000"),)


@pytest.mark.parametrize(
    "fault",
    [
        LoadFault(is_sent=True),
        LoadFault(host="host-001"),
        LoadFault("host-001", when=FaultSteps(6)),
    ],
    ids=["all", "host", "late"],
)
@pytest.mark.parametrize("odd", [SpecialSteps(), SpecialSteps(evaluate_every=7, evaluation_s=1.0)])
def test_cost_matches_the_counterfactual(fault, odd):
    attributed, real = attributed_and_real_cost(LOAD, job(fault, odd_steps=odd))
    # An evaluation is part of what it is a share of.
    assert attributed == pytest.approx(real, abs=0.005 if odd == SpecialSteps() else 0.05)


def test_onset_of_data_waits_is_the_first_late_step():
    found = suspicion(LOAD, job(LoadFault(host="host-001", when=FaultSteps(7))))
    assert (found.onset.onset_step, found.onset.persistence) == (7, "chronic")
    over = suspicion(LOAD, job(LoadFault(host="host-001", when=FaultSteps(4, 5))))
    assert (over.onset.onset_step, over.onset.persistence) == (4, "transient")


@pytest.mark.parametrize(
    "made",
    [
        job(),
        job(odd_steps=SpecialSteps(evaluate_every=4, evaluation_s=3.0)),
        job(odd_steps=SpecialSteps(num_first=2, checkpoint_every=5)),
        job(costs=OperationCosts(launch_delay_s=2e-3)),
        job(AllocatorStalls(workers=((1, 0),))),
        job(GcPauses(rate=0.3)),
        job(SlowNic(dp_rank=1, stage=0, slowdown=10.0)),
        job(cluster=Cluster(2, clock_offset_s=1.0, drift_ppm=200, jitter_s=50e-6)),
        job(pp=1, cluster=Cluster(2, clock_offset_s=1.0, drift_ppm=200, jitter_s=50e-6)),
    ],
)
def test_other_causes_of_late_first_forwards_are_no_data_loading(made):
    assert ruled_out(LOAD, made)


def test_two_late_steps_give_insufficient_evidence():
    assert ruled_out(LOAD, job(LoadFault()), num_steps=2).insufficient


def test_occasional_late_launches_are_ruled_out():
    assert isinstance(LOAD.detect(case_of(by_hand(0.5, num_steps=8))), RuledOut)


def test_odd_steps_are_no_data_waits():
    # Everybody is held up, in three of five steps, and each time alone: evaluations.
    late_s = (0.0, 3.0, 0.0, 3.0, 0.0, 3.0)
    base = by_hand(*late_s, num_steps=16, who=(0, 1))
    assert isinstance(LOAD.detect(case_of(base)), RuledOut)
    # One replica alone is none.
    assert isinstance(LOAD.detect(case_of(by_hand(*late_s, num_steps=16))), Suspicion)
