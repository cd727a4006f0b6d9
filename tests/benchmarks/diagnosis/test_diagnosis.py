"""What the benchmark `diagnosis` counts as right and as wrong."""

import pytest

from app.result.finding import Culprit
from app.synth.cluster import Cluster, World
from app.synth.faults.slow_compute import SlowHost, SlowStage, SlowWorker
from app.synth.faults.slow_network import SlowLink, SlowNic
from app.trace.job import Parallelism
from benchmarks.diagnosis import scoring, verdict
from benchmarks.diagnosis.truth import (
    DiagnosisOutcome,
    RightAnswer,
    StatedFinding,
    TrueFault,
    answers_to,
    workers_of_culprits,
)

SLOW = frozenset({(1, 0)})
STAGE = frozenset({(0, 1), (1, 1)})
NO_WORKERS: frozenset[tuple[int, int]] = frozenset()


def slow_worker(cost=0.2, **more):
    return TrueFault(
        "slow-worker", (RightAnswer("slow-worker", SLOW),), cost, has_place=True, **more
    )


def long_stage(cost=0.2):
    return TrueFault("long-last-stage", (RightAnswer("stage-imbalance", STAGE),), cost)


def finding(cause="slow-worker", workers=SLOW, cost=0.2, onset=None):
    return StatedFinding(cause, workers, 0.9, cost, onset, "a sentence")


def job(*faults, findings=(), **more):
    return DiagnosisOutcome(1, "what", "tune", faults, tuple(findings), **more)


def figure(name, *outcomes):
    return scoring.figures(outcomes)[name]


def test_only_the_first_finding_counts_for_a_single_fault():
    right = job(slow_worker(), findings=[finding(), finding("gc-pause")])
    second = job(slow_worker(), findings=[finding("gc-pause"), finding()])
    silent = job(slow_worker())
    assert figure("top1_accuracy", right, second, silent, right) == 0.5


def test_fault_below_the_minimum_cost_is_counted_apart():
    small = job(slow_worker(cost=0.049))
    assert figure("top1_accuracy", small) is None
    assert figure("too_small_jobs", small, job(slow_worker(cost=0.05))) == 1
    assert figure("top1_accuracy", small, job(slow_worker(cost=0.05), findings=[finding()])) == 1.0


def test_culprit_is_right_only_for_exactly_the_faulty_workers():
    exact = job(slow_worker(), findings=[finding()])
    more = job(slow_worker(), findings=[finding(workers=SLOW | {(0, 0)})])
    none = job(slow_worker(), findings=[finding(workers=NO_WORKERS)])
    assert figure("culprit_accuracy", exact, more, none, exact) == 0.5
    assert figure("culprit_accuracy", job(long_stage(), findings=[finding()])) is None


def test_ambiguous_fault_accepts_either_cause_or_insufficient_evidence():
    either = TrueFault(
        "slow-worker",
        (RightAnswer("slow-worker", SLOW), RightAnswer("stage-imbalance", SLOW)),
        0.2,
        has_place=True,
        or_withheld=("slow-worker", "stage-imbalance"),
    )
    both = frozenset({"slow-worker", "stage-imbalance"})
    right = [
        job(either, findings=[finding()]),
        job(either, findings=[finding("stage-imbalance")]),
        job(either, withheld=both),
    ]
    wrong = [job(either), job(either, withheld=frozenset({"slow-worker"}))]
    assert figure("top1_accuracy", *right) == figure("culprit_accuracy", *right) == 1.0
    assert figure("top1_accuracy", *wrong) == figure("culprit_accuracy", *wrong) == 0.0


def test_any_finding_or_change_in_a_healthy_job_is_false():
    quiet = job()
    early = job(early=(finding(),))
    changed = job(num_changes=1)
    assert figure("healthy_jobs", quiet, early, changed) == 3
    assert figure("false_causes", quiet, early, changed) == 1
    assert figure("false_onsets", quiet, early, changed) == 1


@pytest.mark.parametrize(
    ("onset", "share"), [(28, 1.0), (32, 1.0), (27, 0.0), (33, 0.0), (None, 0.0)]
)
def test_an_onset_is_right_within_two_recorded_steps(onset, share):
    began = slow_worker(onset=30, step_change=0.10)
    assert figure("onset_within_2", job(began, findings=[finding(onset=onset)])) == share


def test_every_wrong_aspect_of_an_outcome_is_named():
    began = slow_worker(onset=30, step_change=0.2)
    wrong = finding(workers=NO_WORKERS, cost=0.3, onset=3)
    assert verdict.wrongs(job(began, findings=[wrong])) == ["culprit", "onset", "cost"]
    assert verdict.wrongs(job(began)) == ["cause", "culprit", "onset"]
    assert verdict.wrongs(job(slow_worker(), long_stage(), findings=[finding()])) == ["not both"]
    two = job(slow_worker(), findings=[finding(), finding("gc-pause")])
    assert verdict.wrongs(two) == ["false cause"]
    assert verdict.wrongs(job(early=(finding(),), num_changes=1)) == ["false cause", "false onset"]
    assert verdict.wrongs(job(slow_worker(cost=0.01))) == []


def right_answers(fault, dp, pp, workers_per_host=1):
    sizes = Parallelism(dp, pp)
    hosts = Cluster(workers_per_host).hosts(sizes)
    answers = answers_to(fault, World(sizes, 4, 1, hosts))
    return [(answer.cause, sorted(answer.workers)) for answer in answers]


def test_slow_host_that_is_a_whole_stage_may_be_stage_imbalance():
    assert right_answers(SlowWorker(1, 0, 2.0), 2, 2) == [("slow-worker", [(1, 0)])]
    # hosts of two ranks, which run over dp ranks first: host-001 is stage 1
    found = right_answers(SlowHost("host-001", 2.0), 2, 2, workers_per_host=2)
    assert found == [
        ("slow-worker", [(0, 1), (1, 1)]),
        ("stage-imbalance", [(0, 1), (1, 1)]),
    ]


def test_slow_stage_of_one_replica_may_be_its_worker():
    either = [("stage-imbalance", [(0, 2)]), ("slow-worker", [(0, 2)])]
    assert right_answers(SlowStage(2, 2.0), 1, 4) == either
    assert right_answers(SlowStage(1, 2.0), 2, 2) == [("stage-imbalance", [(0, 1), (1, 1)])]


def test_card_and_only_link_of_an_outer_stage_are_equal_answers():
    pair, card = [(0, 0), (0, 1)], [(0, 0)]
    assert right_answers(SlowNic(0, 0, 9.0), 1, 4) == [("slow-link", card), ("slow-link", pair)]
    assert right_answers(SlowLink(0, 0, 9.0), 1, 4) == [("slow-link", pair), ("slow-link", card)]
    # two neighbours, and with replicas a collective, tell the card from the link
    assert right_answers(SlowNic(0, 1, 9.0), 1, 4) == [("slow-link", [(0, 1)])]
    assert right_answers(SlowLink(0, 1, 9.0), 1, 4) == [("slow-link", [(0, 1), (0, 2)])]
    assert right_answers(SlowNic(0, 0, 9.0), 2, 4) == [("slow-link", card)]


@pytest.mark.parametrize(
    ("culprits", "workers"),
    [
        ([Culprit(1, 0, "host-a")], [(1, 0)]),
        ([Culprit(host="host-a")], [(0, 0), (1, 0)]),
        ([Culprit(dp_rank=1)], [(1, 0), (1, 1)]),
        ([Culprit(stage=1)], [(0, 1), (1, 1)]),
        ([Culprit(host="host-a"), Culprit(0, 1)], [(0, 0), (0, 1), (1, 0)]),
        ([Culprit(stage=0), Culprit(stage=1)], []),  # all workers: no culprit
        ([], []),
        ([Culprit(host="elsewhere")], []),
    ],
)
def test_culprits_resolve_to_workers(culprits, workers):
    hosts = {(0, 0): "host-a", (1, 0): "host-a", (0, 1): "host-b", (1, 1): "host-b"}
    assert sorted(workers_of_culprits(culprits, Parallelism(2, 2), hosts)) == workers
