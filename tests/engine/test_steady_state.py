"""How long steps are that follow each other: docs/replay.md, "Step length"."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from app.engine.metrics import discrepancy
from app.engine.replays import prepare
from app.engine.report import Report, analyse
from app.engine.steady_state import overlap_s
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, OpKind, OpSpec, OpTypes
from app.trace.window import Window
from tests import window_factory
from tests.engine.questions.jobs import two_stages
from tests.window_factory import Row

STEP_S = 7.5


def at(origins_s: list[float], window: Window) -> Window:
    """The window with its steps' times counted from these moments."""
    return dataclasses.replace(window, origin_ns=tuple(round(each * 1e9) for each in origins_s))


def steps_of(numbers: list[int], rows: list[Row], **sizes: Any) -> Window:
    made = [row.on(step=number) for number in numbers for row in rows]
    return window_factory.window(made, **sizes)


def in_line(gaps_s: list[float], *, numbers: list[int] | None = None) -> Window:
    """Steps of 7.5 s on two stages with these gaps between them."""
    origins_s = np.concatenate([[0.0], np.cumsum(np.array(gaps_s) + STEP_S)])
    window = steps_of(numbers or list(range(origins_s.size)), two_stages(), pp_size=2)
    return at(origins_s.tolist(), window)


def lengths(report: Report) -> tuple[list[float], list[float]]:
    return report.recorded_s.tolist(), report.between_s.tolist()


def is_about(found: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_step_begins_at_the_end_of_the_previous_step():
    recorded_s, between_s = lengths(analyse(in_line([0.5, 0.5, 1.0])))
    is_about(recorded_s, [7.5, 8.0, 8.0, 8.5])
    is_about(between_s, [0.0, 0.5, 0.5, 1.0])


def test_lengths_of_successive_steps_add_up_to_their_total_time():
    gaps_s = [0.5, 0.0, 0.25, 1.0, 0.75]
    report = analyse(in_line(gaps_s))
    assert report.recorded_s.sum() == pytest.approx(6 * STEP_S + sum(gaps_s))
    assert (report.between_s <= report.recorded_s).all()


def test_time_between_steps_is_no_discrepancy():
    report = analyse(in_line([0.5, 0.5, 1.0]))
    assert report.discrepancy == pytest.approx(0.0, abs=1e-9)
    is_about(report.step_discrepancy.tolist(), [0.0] * 4)
    assert discrepancy(report.simulated_s, report.recorded_s) == pytest.approx(2.0 / 32.0)


def posted_early(by_s: float) -> list[Row]:
    """The two stages of 7.5 s; the second posts its first receive before the first one begins."""
    return [
        row.on(duration_s=row.duration_s + by_s)
        if row.optype == "forward-recv"
        else row.on(start_s=row.start_s + by_s)
        for row in two_stages()
    ]


def with_own_types(rows: list[Row]) -> tuple[list[Row], OpTypes]:
    """The forward transfers as types that the job registered itself."""
    sends = OpSpec("tokens-out", OpKind.P2P, stream="a", pairs_with="tokens-in", towards=1)
    names = {"forward-send": "tokens-out", "forward-recv": "tokens-in"}
    own = [row.on(optype=names.get(row.optype, row.optype)) for row in rows]
    return own, OpTypes((sends, OpSpec("tokens-in", OpKind.P2P, stream="b")))


@pytest.mark.parametrize("has_own_types", [False, True])
def test_a_posted_receive_does_not_start_a_step(has_own_types):
    rows, types = posted_early(2.0), BUILT_IN
    if has_own_types:
        rows, types = with_own_types(rows)

    def report(*origins_s: float) -> Report:
        made = [row.on(step=step) for step in range(len(origins_s)) for row in rows]
        window = window_factory.window(made, pp_size=2, op_types=types)
        return analyse(at(list(origins_s), window))

    alone, in_line, apart = report(0.0), report(0.0, 7.5, 15.0), report(0.0, 10.5)
    is_about(alone.recorded_s.tolist(), [7.5])
    is_about(in_line.recorded_s.tolist(), [7.5, 7.5, 7.5])
    is_about(in_line.between_s.tolist(), [0.0, 0.0, 0.0])
    assert in_line.discrepancy == pytest.approx(0.0, abs=1e-9)
    is_about(apart.recorded_s.tolist(), [7.5, 10.5])
    is_about(apart.between_s.tolist(), [0.0, 3.0])


def test_the_length_of_overlapping_steps_is_the_period():
    # Rank 1 begins a second before rank 0, while that one is still in the step before.
    rows = [
        Row("forward-compute", 1.0, 10.0, dp_rank=0),
        Row("forward-compute", 0.0, 10.0, dp_rank=1),
    ]
    report = analyse(at([0.0, 10.0, 20.0], steps_of([0, 1, 2], rows, dp_size=2)))
    is_about(report.recorded_s.tolist(), [10.0, 10.0, 10.0])
    is_about(report.between_s.tolist(), [0.0, 0.0, 0.0])


def test_an_evaluation_between_steps_belongs_to_no_step():
    recorded_s, between_s = lengths(analyse(in_line([0.1, 0.1, 30.0, 0.1, 0.1])))
    is_about(recorded_s, [7.5, 7.6, 7.6, 7.5, 7.6, 7.6])
    is_about(between_s, [0.0, 0.1, 0.1, 0.0, 0.1, 0.1])


@pytest.mark.parametrize("gaps_s", [[0.1, 30.0], [30.0, 0.1]])
def test_an_evaluation_is_recognised_next_to_one_usual_gap(gaps_s):
    assert analyse(in_line(gaps_s)).recorded_s.max() == pytest.approx(7.6)


def test_a_step_after_a_missing_one_begins_at_its_start():
    recorded_s, between_s = lengths(analyse(in_line([1.0, 0.5], numbers=[0, 2, 3])))
    is_about(recorded_s, [7.5, 7.5, 8.0])
    is_about(between_s, [0.0, 0.0, 0.5])


def test_steps_without_a_common_origin_last_from_first_start_to_last_end():
    window = dataclasses.replace(in_line([0.5, 0.5]), origin_ns=None)
    is_about(analyse(window).recorded_s.tolist(), [7.5, 7.5, 7.5])
    early = steps_of([0, 1], posted_early(2.0), pp_size=2)
    is_about(analyse(early).recorded_s.tolist(), [9.5, 9.5])


@pytest.mark.parametrize("apart_s", [0.0, 3.0, -3.0, -10.0, -1000.0])
def test_steps_that_end_before_their_predecessor_last_as_long_as_their_operations(apart_s):
    window = at([0.0, apart_s], steps_of([0, 1], two_stages(2), dp_size=2, pp_size=2))
    np.testing.assert_allclose(analyse(window).recorded_s, [7.5, 7.5])


def test_a_step_without_operations_on_one_stage_has_a_length():
    def row(step: int, stage: int) -> Row:
        return Row("forward-compute", 0.0, 1.0, stage=stage, step=step)

    rows = [row(0, 0), row(0, 1), row(1, 0), row(2, 1)]
    window = at([0.0, 2.0, 4.0], window_factory.window(rows, pp_size=2))
    assert window.job.parallelism == Parallelism(1, 2)
    is_about(analyse(window).recorded_s.tolist(), [1.0, 2.0, 2.0])


def waiting(window: Window, seconds: list[float]) -> Window:
    """The window whose first stage waits so long for data right before each step."""
    notes = [
        Row("data-wait", -each, each, step=step)
        for step, each in zip(window.steps, seconds, strict=True)
        if each
    ]
    noted = window_factory.trace(notes, window.job.parallelism)
    columns = {
        name: np.concatenate([column, getattr(noted, name)])
        for name, column in window.trace.columns().items()
    }
    return dataclasses.replace(window, trace=type(noted)(**columns))


def test_a_reported_wait_between_steps_is_no_evaluation():
    gaps_s = [0.5, 0.5, 3.0, 0.5, 0.5, 0.5]
    window = in_line(gaps_s)
    is_about(lengths(analyse(window))[0], [7.5, 8.0, 8.0, 7.5, 8.0, 8.0, 8.0])
    recorded_s, _ = lengths(analyse(waiting(window, [0, 0, 0, 2.5, 0, 0, 0])))
    is_about(recorded_s, [7.5, 8.0, 8.0, 10.5, 8.0, 8.0, 8.0])


def test_steps_without_a_common_origin_begin_with_the_reported_wait():
    window = dataclasses.replace(in_line([0.5, 0.5]), origin_ns=None)
    recorded_s, between_s = lengths(analyse(waiting(window, [1.0, 0.0, 2.0])))
    is_about(recorded_s, [8.5, 7.5, 9.5])
    is_about(between_s, [1.0, 0.0, 2.0])


def test_gaps_before_every_third_step_belong_to_the_steps_and_before_every_fourth_do_not():
    # 4 of 12 gaps, and 3 of 12.
    third, fourth = ([3.0 if at % every == 0 else 0.1 for at in range(12)] for every in (3, 4))
    assert max(lengths(analyse(in_line(third)))[1]) == pytest.approx(3.0)
    assert max(lengths(analyse(in_line(fourth)))[1]) == pytest.approx(0.1)


def test_overlap_of_steps_without_origins_is_what_no_single_worker_takes():
    # The second stage posts its receive 2 s early, and none takes more than 7.5 s itself.
    early = steps_of([0, 1], posted_early(2.0), pp_size=2)
    for window, expected in ((early, [2.0, 2.0]), (at([0.0, 7.5], early), [0.0, 0.0])):
        [group] = prepare(window).groups
        is_about(overlap_s(group.grid).tolist(), expected)
