"""Figures of the benchmark `diagnosis` worked out by hand, and a tiny run of it."""

import json

import numpy as np
import pytest

from app.diagnosis.finding import Culprit
from app.synth.cluster import Cluster, World
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import SilentWorker
from app.synth.faults.slow_compute import SlowHost, SlowStage, SlowWorker
from app.synth.faults.slow_network import SlowLink, SlowNic
from app.synth.job import SimulatedJob
from app.synth.restarts import SimulatedRun
from app.trace.job import Parallelism
from benchmarks.diagnosis import scoring, verdict
from benchmarks.diagnosis.drawn_jobs import GammaNoise, JobNumber, job_numbers, plan_of
from benchmarks.diagnosis.fault_kinds import KINDS, kinds_of
from benchmarks.diagnosis.observation import ArrivalHabits, judged_window, observed_run
from benchmarks.diagnosis.truth import (
    DiagnosisOutcome,
    RightAnswer,
    StatedFinding,
    TrueFault,
    answers_to,
    workers_of_culprits,
)
from tests.benchmarks.running import run_benchmark

SLOW = frozenset({(1, 0)})
STAGE = frozenset({(0, 1), (1, 1)})
NO_WORKERS: frozenset[tuple[int, int]] = frozenset()


def slow_worker(cost=0.2, **more):
    return TrueFault(
        "slow-worker", (RightAnswer("slow-worker", SLOW),), cost, has_place=True, **more
    )


def long_stage(cost=0.2):
    return TrueFault("long-last-stage", (RightAnswer("stage-imbalance", STAGE),), cost)


def finding(cause="slow-worker", workers=SLOW, confidence=0.9, cost=0.2, onset=None):
    return StatedFinding(cause, workers, confidence, cost, onset, "a sentence")


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


def test_silent_worker_counts_without_a_cost():
    silent = TrueFault("silent-worker", (RightAnswer("silent-worker", SLOW),), None)
    assert figure("top1_accuracy", job(silent)) == 0.0
    named = job(silent, findings=[finding("silent-worker", cost=None)])
    assert figure("top1_accuracy", named) == 1.0


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
    beside = [
        job(either, long_stage(), findings=[finding("stage-imbalance", STAGE)], withheld=both)
    ]
    assert figure("both_named", *beside, job(either, long_stage(), withheld=both)) == 0.5


def test_two_faults_must_both_be_named_in_any_order():
    both = job(slow_worker(), long_stage(), findings=[finding("stage-imbalance"), finding()])
    one = job(slow_worker(), long_stage(), findings=[finding()])
    small = job(slow_worker(), long_stage(cost=0.01), findings=[finding()])
    assert figure("both_named", both, one, small) == 0.5
    assert figure("top1_accuracy", both, one) is None


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


def test_small_step_changes_and_old_faults_have_no_onset():
    small = slow_worker(onset=30, step_change=0.09)
    assert figure("onset_within_2", job(small), job(slow_worker())) is None


def test_cost_errors_are_in_points_for_named_faults():
    # 3 points off, 1 point off, not named, cost unknown
    jobs = [
        job(slow_worker(cost=0.20), findings=[finding(cost=0.23)]),
        job(slow_worker(cost=0.20), findings=[finding(cost=0.19)]),
        job(slow_worker(cost=0.20), findings=[finding("gc-pause", cost=0.2)]),
        job(slow_worker(cost=0.20), findings=[finding(cost=None)]),
    ]
    assert figure("cost_error_p50", *jobs) == pytest.approx(2.0)
    assert figure("cost_error_p95", *jobs) == pytest.approx(2.9)  # numpy's linear one of 1 and 3


def test_precision_and_recall_are_per_cause():
    table = scoring.per_cause(
        [
            job(slow_worker(), findings=[finding()]),
            job(slow_worker(), findings=[finding("gc-pause")]),
            # Small: right to name, no fault to miss.
            job(slow_worker(cost=0.01), findings=[finding()]),
            job(findings=[finding()], early=(finding(),)),  # healthy, with a false finding
        ]
    )
    assert table["slow-worker"] == {"precision": 2 / 3, "recall": 0.5, "jobs": 2, "named": 3}
    assert table["gc-pause"] == {"precision": 0.0, "recall": None, "jobs": 0, "named": 1}


def test_calibration_compares_stated_confidence_with_accuracy():
    (row,) = scoring.calibration(
        [
            job(slow_worker(), findings=[finding(confidence=0.80)]),
            job(slow_worker(), findings=[finding("gc-pause", confidence=0.86)]),
        ]
    )
    assert row == {"from": 0.8, "findings": 2, "stated": pytest.approx(0.83), "right": 0.5}


def test_time_ratio_is_of_totals_and_the_worst_clock_residual_counts():
    jobs = [
        job(analysis_s=1.0, diagnosis_s=0.25, clock_residual_s=1e-6),
        job(analysis_s=0.0, diagnosis_s=0.25, clock_residual_s=1e-5),
        job(analysis_s=3.0, diagnosis_s=0.5, clock_residual_s=None),
    ]
    assert figure("diagnosis_to_analysis", *jobs) == 0.25
    assert figure("clock_residual_ms", *jobs) == pytest.approx(0.01)


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


def test_slow_worker_among_replicas_has_one_right_answer():
    assert right_answers(SlowWorker(1, 0, 2.0), 2, 2) == [("slow-worker", [(1, 0)])]


def test_slow_host_that_is_a_whole_stage_may_be_stage_imbalance():
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


def test_job_numbers_round_trip_and_are_unique():
    all_of_them = [*job_numbers(7, "all", 30, 15), *job_numbers(1000, "held-out", 3, 3)]
    assert [JobNumber.of(each.number) for each in all_of_them] == all_of_them
    assert len({each.number for each in all_of_them}) == len(all_of_them)
    faulty = [each for each in job_numbers(7, "all", 30, 15) if not each.is_healthy]
    assert sum(each.family == "held-out" for each in faulty) == 10
    # each family's are its first ones, whatever the mix
    assert set(job_numbers(7, "held-out", 10, 5)) <= set(all_of_them)


def test_grid_has_every_kind_and_every_pair_of_causes():
    some = [kinds_of(index) for index in range(4 * len(KINDS))]
    assert {kind for kinds in some if len(kinds) == 1 for kind in kinds} == set(KINDS)
    pairs = [kinds_of(index) for index in range(3, 4 * 200, 4)]
    assert all(len({kind.cause for kind in pair}) == 2 for pair in pairs)
    causes = {frozenset(kind.cause for kind in pair) for pair in pairs}
    assert len(causes) == 36  # of nine, the silent worker alone


def test_every_drawn_job_is_valid():
    for each in job_numbers(5, "all", 114, 12):
        plan = plan_of(each)
        for fault in plan.simulated.faults:
            fault.check(plan.simulated.world)
        assert len(plan.steps) % plan.window_steps == 0


def test_gamma_noise_has_the_requested_mean_and_spread():
    factors = GammaNoise().factors(0.2, 100_000, np.random.default_rng(1))
    assert factors.mean() == pytest.approx(1.0, abs=0.005)
    assert factors.std() == pytest.approx(0.2, abs=0.005)
    assert np.median(factors) == pytest.approx(GammaNoise()._median(0.2), abs=0.005)


def printed(*arguments):
    result = run_benchmark("diagnosis", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


KEYS = {
    "jobs",
    "top1_accuracy",
    "culprit_accuracy",
    "both_named",
    "healthy_jobs",
    "false_causes",
    "onset_within_2",
    "false_onsets",
    "cost_error_p50",
    "cost_error_p95",
    "clock_residual_ms",
    "diagnosis_to_analysis",
    "per_cause",
    "per_kind",
    "calibration",
    "misses",
}


def timeless(value):
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k != "diagnosis_to_analysis"}
    return value


def test_run_prints_every_figure_and_is_reproducible():
    asked = ["--jobs=6", "--healthy=2", "--seed=3"]
    alone = printed(*asked, "--processes=1")
    assert set(alone) >= KEYS
    assert alone["jobs"] == 6
    assert alone["healthy_jobs"] == 2
    assert timeless(printed(*asked, "--processes=2")) == timeless(alone)


def test_only_option_prints_a_report_of_one_job():
    number = job_numbers(3, "tune", 1, 0)[0].number
    report = printed("--only", str(number))
    assert report["job"] == number
    assert report["truth"][0]["fault"] == "slow-worker"
    assert report["windows"][-1]["window"]["state"] == "complete"
    assert report["made"]["faults"][0].startswith("SlowWorker(")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs=3", "--healthy=4"], "4 healthy ones of 3 jobs"),
        (["--only=999999"], "no job has the number 999999"),
    ],
)
def test_impossible_options_are_refused_in_one_line(arguments, words):
    result = run_benchmark("diagnosis", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_last_full_window_is_judged():
    simulated = SimulatedJob(
        Parallelism(2, 1), 2, faults=(SilentWorker(1, 0, when=FaultSteps(10)),)
    )
    windows = observed_run(SimulatedRun(1, simulated, tuple(range(21))), 8, ArrivalHabits())
    assert [observed.all_steps[0] for observed in windows] == [0, 8, 18]
    assert judged_window(windows, 8) is windows[1]


def test_batches_of_a_late_worker_close_the_same_windows():
    simulated = SimulatedJob(Parallelism(2, 2), 2)
    attempt = SimulatedRun(1, simulated, tuple(range(16)))
    on_time = observed_run(attempt, 8, ArrivalHabits())
    late = observed_run(attempt, 8, ArrivalHabits(late_worker=(1, 0), late_s=3.0))
    for one, other in zip(on_time, late, strict=True):
        assert one.result == other.result
        assert one.window.hosts == simulated.world.hosts


def test_batches_after_the_deadline_revise_closed_windows():
    attempt = SimulatedRun(1, SimulatedJob(Parallelism(2, 2), 2), tuple(range(48)))
    windows = observed_run(attempt, 8, ArrivalHabits(late_worker=(1, 0), late_s=400.0))
    lacking = [observed for observed in windows if not observed.window.steps]
    assert [observed.window.first_step for observed in lacking] == [0, 8, 16, 24, 32, 40]
    assert judged_window(windows, 8).window.steps == tuple(range(40, 48))
