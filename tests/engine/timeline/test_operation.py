"""One operation against its ideal and its peers, by hand."""

import pytest

from app.engine.replays import prepare
from app.engine.timeline.operation import Neighbour, operation, telling
from app.engine.timeline.step_view import step_view
from app.errors import InvalidRequest
from tests.engine.questions.jobs import two_stages
from tests.factories import replicas, window


def view(dp_size=1, change=lambda row: row):
    rows = [change(row) for row in replicas(two_stages(), dp_size)]
    return step_view(prepare(window(rows, dp_size=dp_size, pp_size=2)), 0)


def slow_backward(row):
    """The backward of dp 1, stage 0 takes 2 s instead of 1 s, and what follows comes later."""
    if (row.dp_rank, row.stage) != (1, 0):
        return row
    if row.optype == "backward-compute":
        return row.on(duration_s=2.0)
    return row.on(start_s=8.0) if row.optype == "optimizer" else row


def test_an_operation_that_waits_for_its_peer_tells_waiting_from_moving_data():
    found = operation(view(), view().recorded, 0, "backward-recv", 0)
    assert (found.start_s, found.duration_s) == (5.0, 1.0)
    assert (found.waited_s, found.own_s) == (0.5, 0.5)
    assert found.ideal_s == pytest.approx(0.5)


def test_what_an_operation_waited_for_and_how_late_it_was_launched():
    shown = view(change=lambda row: row.on(start_s=6.25) if row.start_s == 6.0 else row)
    found = operation(shown, shown.recorded, 0, "backward-compute", 0)
    assert found.after == Neighbour("backward-recv", 0, None)
    assert found.delay_s == pytest.approx(0.25)


def test_a_first_operation_waits_for_nothing():
    shown = view()
    found = operation(shown, shown.recorded, 0, "forward-compute", 0)
    assert (found.after, found.delay_s) == (None, 0.0)


def test_peers_are_all_other_workers_with_an_operation_of_the_type():
    shown = view(3, slow_backward)
    found = operation(shown.of(1), shown.recorded, 0, "backward-compute", 0)
    # Of the five other workers, three of stage 1 take 2 s, and two of stage 0 take 1 s.
    assert (found.own_s, found.peers_s) == (2.0, 2.0)
    found = operation(shown.of(0), shown.recorded, 1, "backward-compute", 0)
    # Two of 1 s and one of 2 s on stage 0, two of 2 s on stage 1.
    assert found.peers_s == 2.0


def test_nobody_is_a_peer_of_itself():
    shown = view()
    found = operation(shown, shown.recorded, 0, "forward-compute", 0)
    assert (found.own_s, found.peers_s) == (1.0, 2.0)
    found = operation(shown, shown.recorded, 0, "forward-send", 0)
    assert found.peers_s is None


def test_the_path_of_the_recorded_run_is_told_and_only_of_that():
    shown = view()
    assert operation(shown, shown.recorded, 1, "forward-compute", 0).is_critical
    assert not operation(shown, shown.ideal, 1, "forward-compute", 0).is_critical
    assert not operation(shown, shown.recorded, 1, "optimizer", 0).is_critical


def test_the_operation_that_says_most_is_the_one_furthest_above_its_ideal():
    shown = view(2, slow_backward)
    assert shown.dp_rank == 1
    link = telling(shown)
    assert link is not None
    # Backwards take 1, 2, 2 and 2 s: 1.75 s ideal. Forwards 1 and 2 s: 1.5 s, so one is 0.5 above.
    assert (link.optype, link.stage) == ("forward-compute", 1)


def test_an_operation_that_the_stage_lacks_is_refused():
    with pytest.raises(InvalidRequest, match="stage 0 has no operation backward-send 0 in step 0"):
        operation(view(), view().recorded, 0, "backward-send", 0)


def test_a_dp_rank_that_the_job_lacks_is_refused():
    with pytest.raises(InvalidRequest, match="this job has dp ranks 0 to 1"):
        view(2).of(2)
