import dataclasses

import pytest

from app.diagnosis.detector import Suspicion
from app.diagnosis.detectors.silent_worker import SilentWorker
from app.diagnosis.diagnose import DETECTORS, diagnose
from app.result.finding import Culprit, RuledOut
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import SilentWorker as SilentFault
from app.trace.window import SkippedStep, Window
from tests.diagnosis.suspects import fact_of, job, recorded, ruled_out, suspicion
from tests.window_factory import Row, window

SILENT = SilentWorker()


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


def silent(window: Window) -> Suspicion:
    found = SilentWorker().detect_in(window)
    assert isinstance(found, Suspicion)
    return found


def test_a_worker_is_silent_since_its_first_missed_step():
    found = suspicion(SILENT, job(SilentFault(dp_rank=1, stage=2, when=FaultSteps(11))))
    assert found.culprits == (Culprit(1, 2, "host-004"),)
    assert (found.onset.onset_step, found.onset.persistence, found.cost, found.repair) == (
        11,
        "chronic",
        None,
        None,
    )
    assert found.evidence["steps_missed"] == 5
    assert fact_of(found) == (
        "host-004, rank 9 (dp 1, stage 2) reports nothing in the last 5 steps, while the others "
        "go on"
    )


def test_a_silent_host_is_one_culprit():
    both = [SilentFault(dp_rank=dp, stage=0, when=FaultSteps(8)) for dp in (2, 3)]
    assert suspicion(SILENT, job(*both)).culprits == (Culprit(host="host-001"),)


@pytest.mark.parametrize(
    "made",
    [
        job(),
        job(SilentFault(dp_rank=1, stage=2, when=FaultSteps(8, 2))),
        job(SilentFault(dp_rank=1, stage=2, when=FaultSteps(14))),
        job(SilentFault(dp_rank=1, stage=2, when=FaultSteps(10, 5))),
    ],
    ids=["nobody", "late", "late at the end", "back at the end"],
)
def test_a_late_or_returned_worker_is_not_silent(made):
    assert ruled_out(SILENT, made)


def test_only_steps_missed_in_a_row_to_the_end_count():
    assert isinstance(SilentWorker().detect_in(lacking((1,), (1,), (2,), (1,), (1,))), RuledOut)
    found = silent(lacking((1, 3), (1,), (1,), (1, 2)))
    assert found.culprits == (Culprit(1, 0),)


def test_a_silent_worker_is_found_without_a_complete_step():
    found = silent(lacking((3,), (3,), (3,), steps=0))
    assert found.culprits == (Culprit(3, 0),)
    assert found.onset.onset_step is None  # it may have been silent before
    assert isinstance(SilentWorker().detect_in(lacking((3,), (3,), steps=0)), RuledOut)


def test_ranks_are_those_that_workers_reported_with():
    usual = silent(lacking((2,), (2,), (2,), tp_size=2))
    assert usual.culprits == (Culprit(1, 0),)
    base = lacking((7,), (7,), (7,))
    other = dataclasses.replace(base.trace, rank=7 - base.trace.dp_rank)
    found = silent(dataclasses.replace(base, trace=other))
    assert found.culprits == (Culprit(0, 0),)


def test_the_recorders_rank_order_overrides_the_usual_one():
    base = lacking((3,), (3,), (3,), steps=0)
    found = silent(dataclasses.replace(base, places={3: (1, 0)}))
    assert found.culprits == (Culprit(1, 0),)


def test_more_than_half_missing_is_no_silent_worker():
    found = SilentWorker().detect_in(lacking(*[(0, 1, 2)] * 3))
    assert isinstance(found, RuledOut)
    assert found.insufficient


def test_steps_skipped_for_other_reasons_do_not_count():
    base = lacking((2,), (2,), (2,))
    refused = SkippedStep(9, "cannot be replayed")
    found = silent(dataclasses.replace(base, skipped=(*base.skipped, refused)))
    assert found.culprits == (Culprit(2, 0),)


def sending_a_part(window: Window, *steps: int) -> Window:
    """The same with rows of the missing ranks in these steps."""
    skipped = [
        dataclasses.replace(skip, sent=skip.missing if skip.step in steps else ())
        for skip in window.skipped
    ]
    return dataclasses.replace(window, skipped=tuple(skipped))


def test_a_worker_that_goes_on_sending_is_not_silent_however_much_is_missing():
    answer = SILENT.detect_in(sending_a_part(lacking(*[(1,)] * 6), 4, 5, 6, 7, 8, 9))
    assert isinstance(answer, RuledOut)
    assert answer.reason == "every worker sent operations of the last step of the window"
    assert isinstance(SILENT.detect_in(sending_a_part(lacking(*[(1,)] * 6), 9)), RuledOut)


def test_a_worker_that_stops_in_a_step_is_silent_since_that_step():
    found = silent(sending_a_part(lacking((1,), (1,), (1,), (1,)), 4, 5))
    assert (found.onset.onset_step, found.evidence["steps_missed"]) == (5, 3)
    assert "reports nothing in the last 2 steps" in fact_of(found)


def test_a_silent_worker_is_found_though_other_causes_are_withheld():
    case = recorded(job(SilentFault(dp_rank=1, stage=2, when=FaultSteps(5))), 8)
    report = dataclasses.replace(case.report, recorded_s=2 * case.report.recorded_s)
    found = diagnose(case.replay, report, case.history)
    assert found.findings is not None
    assert [each.cause for each in found.findings] == ["silent-worker"]
    # Each other cause once, for a reason of its own but for the two kinds of links.
    assert len(found.ruled_out) == len(DETECTORS)
    assert len({each.reason for each in found.ruled_out}) >= len(DETECTORS) - 1
