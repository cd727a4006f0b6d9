import dataclasses

import pytest

from app.diagnosis.detector import Costed, Suspicion
from app.diagnosis.detectors.silent_worker import SilentWorker, silent_worker
from app.diagnosis.diagnose import diagnose
from app.diagnosis.finding import Culprit, RuledOut
from app.diagnosis.registry import DETECTORS
from app.synth.faults.fault import When
from app.synth.faults.silent_worker import SilentWorker as SilentFault
from app.trace.window import SkippedStep
from tests.diagnosis.suspects import job, recorded, ruled_out, suspicion
from tests.factories import Row, window

SILENT = SilentWorker()
UNKNOWN = Costed(None, None, None)


def lacking(*missing, steps=4, tp_size=1, state="incomplete"):
    """A window of so many complete steps, and then one step after the other that lacks ranks."""
    rows = [
        Row("forward-compute", dp_rank=dp_rank, step=step)
        for step in range(steps)
        for dp_rank in range(4)
    ]
    skipped = tuple(
        SkippedStep(steps + number, "did not report", ranks) for number, ranks in enumerate(missing)
    )
    return window(rows, dp_size=4, tp_size=tp_size, skipped=skipped, state=state)


def test_a_worker_that_never_comes_back_is_silent_since_the_first_step_it_missed():
    found = suspicion(SILENT, job(SilentFault(dp_rank=1, stage=2, when=When(11))))
    assert found.culprits == (Culprit(1, 2, "host-004"),)
    assert (found.onset_step, found.persistence, found.cost, found.repair) == (
        11,
        "chronic",
        None,
        None,
    )
    assert found.evidence["steps_missed"] == 5
    assert found.wording(UNKNOWN) == (
        "dp 1, stage 2 on host-004 reports nothing in the last 5 steps, since step 11; "
        "the others go on"
    )


def test_a_silent_host_is_one_culprit():
    both = [SilentFault(dp_rank=dp, stage=0, when=When(8)) for dp in (2, 3)]
    assert suspicion(SILENT, job(*both)).culprits == (Culprit(host="host-001"),)


@pytest.mark.parametrize(
    "made",
    [
        job(),
        job(SilentFault(dp_rank=1, stage=2, when=When(8, 2))),
        job(SilentFault(dp_rank=1, stage=2, when=When(14))),
        job(SilentFault(dp_rank=1, stage=2, when=When(10, 5))),
    ],
    ids=["nobody", "late", "late at the end", "back at the end"],
)
def test_who_is_late_or_back_is_not_silent(made):
    assert ruled_out(SILENT, made)


def test_two_missed_steps_at_the_end_cannot_tell():
    assert ruled_out(SILENT, job(SilentFault(dp_rank=1, stage=2, when=When(14)))).insufficient


def test_only_steps_missed_in_a_row_to_the_end_count():
    assert isinstance(silent_worker(lacking((1,), (1,), (2,), (1,), (1,))), RuledOut)
    found = silent_worker(lacking((1, 3), (1,), (1,), (1, 2)))
    assert isinstance(found, Suspicion)
    assert found.culprits == (Culprit(1, 0),)


def test_a_window_without_one_complete_step_is_told_of_too():
    found = silent_worker(lacking((3,), (3,), (3,), steps=0))
    assert isinstance(found, Suspicion)
    assert found.culprits == (Culprit(3, 0),)
    assert found.onset_step is None  # it may have been silent before
    assert isinstance(silent_worker(lacking((3,), (3,), steps=0)), RuledOut)


def test_ranks_are_those_that_workers_reported_with():
    usual = silent_worker(lacking((2,), (2,), (2,), tp_size=2))
    assert isinstance(usual, Suspicion)
    assert usual.culprits == (Culprit(1, 0),)
    base = lacking((7,), (7,), (7,))
    other = dataclasses.replace(base.trace, rank=7 - base.trace.dp_rank)
    found = silent_worker(dataclasses.replace(base, trace=other))
    assert isinstance(found, Suspicion)
    assert found.culprits == (Culprit(0, 0),)


def test_what_the_recorder_knows_of_ranks_goes_before_their_usual_order():
    base = lacking((3,), (3,), (3,), steps=0)
    found = silent_worker(dataclasses.replace(base, places={3: (1, 0)}))
    assert isinstance(found, Suspicion)
    assert found.culprits == (Culprit(1, 0),)


def test_where_more_than_half_are_missing_it_is_not_theirs_to_answer_for():
    found = silent_worker(lacking(*[(0, 1, 2)] * 3))
    assert isinstance(found, RuledOut)
    assert found.insufficient


def test_steps_skipped_for_other_reasons_say_nothing_of_who_is_silent():
    base = lacking((2,), (2,), (2,))
    refused = SkippedStep(9, "cannot be replayed")
    found = silent_worker(dataclasses.replace(base, skipped=(*base.skipped, refused)))
    assert isinstance(found, Suspicion)
    assert found.culprits == (Culprit(2, 0),)


def test_the_case_of_a_detector_is_asked_for_its_window():
    case = recorded(job(SilentFault(dp_rank=1, stage=2, when=When(11))))
    assert SILENT.detect(case).cause == "silent-worker"


def test_it_is_told_though_times_are_too_far_from_the_record_for_any_other_cause():
    case = recorded(job(SilentFault(dp_rank=1, stage=2, when=When(5))), 8)
    report = dataclasses.replace(case.report, recorded_s=2 * case.report.recorded_s)
    found = diagnose(case.replay, report, case.history)
    assert found.findings is not None
    assert [each.cause for each in found.findings] == ["silent-worker"]
    # Who is late to collectives is no matter of the replay.
    of_replay = [each for each in found.ruled_out if each.cause != "late-host"]
    assert all(each.insufficient for each in of_replay)
    assert len(found.ruled_out) >= len(DETECTORS) - 1
