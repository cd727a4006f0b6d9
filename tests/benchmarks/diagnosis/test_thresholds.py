"""Thresholds by their names, and diagnoses with other values of them."""

import json
from dataclasses import dataclass

import pytest

from app.diagnosis.case import Case
from app.diagnosis.detectors import gc_pause, stage_imbalance
from app.diagnosis.diagnose import diagnosis_of
from app.diagnosis.job_history import History
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.trace.imputation import impute
from benchmarks.diagnosis.limits import (
    all_thresholds,
    origins_of,
    replaced,
    scaled,
    watched,
    with_value,
)
from benchmarks.diagnosis.varied_case import VariedCase
from benchmarks.strangers.command import job_number
from benchmarks.strangers.drawn_jobs import draw_job
from benchmarks.thresholds import Answer, Named, Subject, examined, report
from tests.benchmarks.running import run_benchmark

JOBS = [job_number(1, "single", index) for index in (0, 3, 11)]
VARIED = ("detectors.stage_imbalance.LIMITS.min_ratio", "detectors.slow_worker.LIMITS.chance_score")


@dataclass(frozen=True, slots=True)
class MadeLimits:
    """All were chosen."""

    # Seconds, measured
    # on a made job.
    one_s: float = 1.0
    two: int = 2
    three: float = 3.0  # beside


def keyed(key):
    return next(threshold for threshold in all_thresholds() if threshold.key == key)


def test_every_threshold_has_a_name_of_its_own_and_a_number():
    keys = [threshold.key for threshold in all_thresholds()]
    assert len(keys) == len(set(keys)) > 50
    assert keyed("detectors.gc_pause.LIMITS.pause_s").value == 0.1
    for threshold in all_thresholds():
        assert isinstance(threshold.value, int | float | tuple), threshold.key


def test_the_comment_above_or_beside_a_field_is_its_origin():
    comment = "Seconds, measured on a made job."
    assert origins_of(MadeLimits) == {"one_s": comment, "two": comment, "three": "beside"}


@pytest.mark.parametrize(
    ("value", "lower", "higher"),
    [
        (2.0, 1.8, 2.2), (3, 2, 4), (40, 36, 44), (0, -1, 1), ((1.0, 10), (0.9, 9), (1.1, 11)),
        (True, True, True), (0.0, 0.0, 0.0), (1.04, 1.02, 1.144), (0.95, 0.855, 0.975),
    ],
)  # fmt: skip
def test_values_are_a_tenth_lower_and_higher(value, lower, higher):
    assert scaled(value, 0.9) == pytest.approx(lower)
    assert scaled(value, 1.1) == pytest.approx(higher)


def test_a_field_is_replaced_wherever_its_object_is_bound_and_only_for_a_while():
    threshold = keyed("detector.LIMITS.enough_steps")
    usual, bound = threshold.owner, vars(stage_imbalance)
    with replaced({"": (usual, with_value(threshold, 7))}):
        assert bound["FEW_STEPS"].enough_steps == threshold.owner.enough_steps == 7
    assert bound["FEW_STEPS"] is threshold.owner is usual


def test_what_is_read_is_noted():
    read: list[str] = []
    limits = watched(gc_pause.LIMITS, read.append)
    assert isinstance(limits, gc_pause.PauseLimits)
    assert (limits.pause_s, read) == (0.1, ["pause_s"])


@pytest.mark.parametrize("number", JOBS, ids=str)
def test_a_varied_case_says_what_a_new_one_does(number):
    window = draw_job(number).window
    assert window is not None
    replay = prepare(impute(window))
    report_ = analyse_replay(replay)
    case = VariedCase(replay, report_)
    assert case.usual.findings == diagnosis_of(Case(replay, report_, History())).findings
    for key in sorted(case.read)[::9]:
        threshold = keyed(key)
        for value in threshold.varied().values():
            with replaced({key: (threshold.owner, with_value(threshold, value))}):
                anew = diagnosis_of(Case(replay, report_, History()))
            again = case.with_other(threshold, value)
            assert (again.findings, again.ruled_out) == (anew.findings, anew.ruled_out), key


def test_two_fields_on_three_jobs():
    rows = [examined(Subject(number, VARIED)) for number in JOBS]
    assert [row["kind"] for row in rows] == [number.kinds[0] for number in JOBS]
    assert all(row["read"] and row["said"] for row in rows)
    assert {change["key"] for row in rows for change in row["changes"]} <= set(VARIED)
    lines = list(report(rows, [keyed(key) for key in VARIED]))
    assert lines[0].endswith(
        "of 2 thresholds, on 3 jobs, change an answer where they are a tenth lower or higher"
    )


def test_a_changed_answer_is_shown_with_its_turn():
    change = {"key": VARIED[0], "factor": 0.9, "value": 0.9, "said": "nothing", "is_right": False}
    row = {"job": "a job", "kind": "slow-stage", "read": [VARIED[0]], "said": "a cause"}
    lines = list(report([row | {"is_right": True, "changes": [change]}], [keyed(VARIED[0])]))
    assert lines[1:3] == [
        f"\n{VARIED[0]} = 1.04, read by 1 job (1 slow-stage)",
        "  at 0.9, a job: right to wrong: a cause -> nothing",
    ]


def test_costs_may_differ_by_two_points():
    one = Named("slow-worker", "rank 3", 7, 0.31)
    assert one.is_like(Named("slow-worker", "rank 3", 7, 0.329))
    for other in (0.34, None):
        assert not one.is_like(Named("slow-worker", "rank 3", 7, other))
    assert not one.is_like(Named("slow-worker", "rank 3", 8, 0.31))
    assert not Answer((one,), is_right=True).is_like(Answer((one,), is_right=False))
    assert not Answer((), is_right=True).is_like(Answer(None, is_right=True))


@pytest.mark.nightly
def test_an_ended_run_is_resumed(tmp_path):
    out = tmp_path / "rows.jsonl"
    arguments = ["--jobs=1", "--processes=1", f"--out={out}", "--only=detectors.silent_worker"]
    first = run_benchmark("thresholds", *arguments)
    assert first.exit_code == 0, first.output
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:-1]) + "\n")
    again = run_benchmark("thresholds", *arguments, "--resume")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert [json.loads(line) for line in out.read_text().splitlines()] == list(
        map(json.loads, lines)
    )
    other = run_benchmark("thresholds", "--jobs=1", f"--out={out}", "--resume")
    assert other.exit_code == 2
    assert "begin a new file" in other.stderr
