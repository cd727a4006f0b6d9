"""The judge of the benchmark `trainings` on results written by hand."""

import pytest

from benchmarks.trainings.cases import Case, Run
from benchmarks.trainings.judge import Verdict, figures
from tests.results import finding, window_result


def _run(fault, rank=-1, stage=-1, way="ddp"):
    case = Case("made", way, 4, fault)
    return Run(case, 0, 7, rank, stage, shares_host=False, variant=0)


def _finding(cause, *culprits, cost=0.2, **evidence):
    return finding(cause, culprits=culprits, cost=cost, evidence=evidence)


def _windows(*findings_of_each):
    return [window_result(findings=findings) for findings in findings_of_each]


def _outcome(run, *findings_of_each):
    return Verdict.of(run, _windows(*findings_of_each)).outcome


SLOW_1 = _finding("slow-worker", {"rank": 1, "dp_rank": 1, "stage": 0, "host": "host-1"})


def test_a_slow_rank_named_alone_is_right():
    assert _outcome(_run("slow-rank", rank=1), [SLOW_1], [SLOW_1]) == "right"


@pytest.mark.parametrize(
    "culprits", [[{"rank": 0, "dp_rank": 1}], [{"rank": 1}, {"rank": 2}], []], ids=str
)
def test_another_additional_or_no_rank_is_the_wrong_culprit(culprits):
    wrong = _finding("slow-worker", *culprits)
    assert _outcome(_run("slow-rank", rank=1), [wrong]) == "wrong-culprit"


def test_cause_with_the_highest_cost_over_all_windows_is_judged():
    run = _run("slow-rank", rank=1)
    link = _finding("slow-link", cost=0.3)
    assert _outcome(run, [link], [SLOW_1], [SLOW_1]) == "right"
    assert _outcome(run, [link], [link], [SLOW_1]) == "wrong-cause"


def test_late_host_is_right_only_with_the_true_reason():
    def late(true_reason):
        return _finding("late-host", {"rank": 3}, late_because=true_reason)

    for fault, true_reason in (
        ("host-work", "unknown host work"),
        ("gc-storms", "gc"),
        ("slow-data", "data-wait"),
        ("slow-collate", "data-wait"),
    ):
        for reason in ("unknown host work", "gc", "data-wait"):
            expected = "right" if reason == true_reason else "wrong-cause"
            assert _outcome(_run(fault, rank=3), [late(reason)]) == expected


def test_starved_ranks_have_no_single_culprit():
    run = _run("starved")
    all_ranks = [{"rank": rank} for rank in range(4)]
    assert _outcome(run, [_finding("data-loading")]) == "right"
    assert _outcome(run, [_finding("data-loading", *all_ranks)]) == "right"
    assert _outcome(run, [_finding("data-loading", {"rank": 1})]) == "wrong-culprit"


def test_a_stage_is_named_by_its_number():
    run = _run("uneven-stages", stage=1, way="pipeline")
    assert _outcome(run, [_finding("stage-imbalance", {"stage": 1})]) == "right"
    assert _outcome(run, [_finding("stage-imbalance", {"stage": 0})]) == "wrong-culprit"


@pytest.mark.parametrize("findings", [[], None], ids=["nothing", "cannot-tell"])
def test_a_fault_without_a_finding_is_missed(findings):
    assert _outcome(_run("slow-rank", rank=1), findings) == "missed"


def test_one_finding_makes_a_healthy_run_a_false_cause():
    assert _outcome(_run(""), [], [], []) == "healthy"
    assert _outcome(_run(""), [], [_finding("slow-link", cost=0.02)], []) == "false-cause"


def _verdicts(num_right, num_missed, num_false=0):
    run, healthy = _run("slow-rank", rank=1), _run("")
    right, nothing = _windows([SLOW_1]), _windows([])
    return [
        *[(run, Verdict.of(run, right))] * num_right,
        *[(run, Verdict.of(run, nothing))] * num_missed,
        *[(healthy, Verdict.of(healthy, nothing))] * 5,
        *[(healthy, Verdict.of(healthy, right))] * num_false,
    ]


@pytest.mark.parametrize(
    ("counts", "holds"), [((19, 1), True), ((18, 2), False), ((20, 0, 1), False)], ids=str
)
def test_bar_is_95_percent_right_and_no_false_cause(counts, holds):
    found = figures(_verdicts(*counts))
    assert found["holds"] is holds
    assert found["right_share"] == counts[0] / 20
    assert found["faulty_runs"] == 20
