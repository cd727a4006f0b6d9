"""One operation against its ideal and its peers, by hand."""

import pytest

from app.engine.replays import prepare
from app.engine.timeline.step_view import Predecessor, find_operation, most_delayed_link, step_view
from app.errors import InvalidRequest
from tests.engine.questions.jobs import two_stages
from tests.window_factory import replicas, window


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


def test_an_operation_separates_wait_and_transfer():
    found = find_operation(view(), view().recorded, 0, "backward-recv", 0)
    assert (found.start_s, found.duration_s) == (5.0, 1.0)
    assert (found.waited_s, found.own_s) == (0.5, 0.5)
    assert found.ideal_s == pytest.approx(0.5)


def test_an_operation_has_its_predecessor_and_launch_delay():
    shown = view(change=lambda row: row.on(start_s=6.25) if row.start_s == 6.0 else row)
    found = find_operation(shown, shown.recorded, 0, "backward-compute", 0)
    assert found.after == Predecessor("backward-recv", 0, None)
    assert found.delay_s == pytest.approx(0.25)


def test_peers_are_all_other_workers_with_an_operation_of_the_type():
    shown = view(3, slow_backward)
    found = find_operation(shown.of(1), shown.recorded, 0, "backward-compute", 0)
    # Of the five other workers, three of stage 1 take 2 s, and two of stage 0 take 1 s.
    assert (found.own_s, found.peers_s) == (2.0, 2.0)
    found = find_operation(shown.of(0), shown.recorded, 1, "backward-compute", 0)
    # Two of 1 s and one of 2 s on stage 0, two of 2 s on stage 1.
    assert found.peers_s == 2.0


def test_a_worker_is_no_peer_of_itself():
    shown = view()
    found = find_operation(shown, shown.recorded, 0, "forward-compute", 0)
    assert (found.own_s, found.peers_s) == (1.0, 2.0)
    found = find_operation(shown, shown.recorded, 0, "forward-send", 0)
    assert found.peers_s is None


def test_only_the_recorded_run_marks_the_critical_path():
    shown = view()
    assert find_operation(shown, shown.recorded, 1, "forward-compute", 0).is_critical
    assert not find_operation(shown, shown.ideal, 1, "forward-compute", 0).is_critical
    assert not find_operation(shown, shown.recorded, 1, "optimizer", 0).is_critical


def test_the_most_delayed_link_is_furthest_above_its_ideal():
    shown = view(2, slow_backward)
    assert shown.dp_rank == 1
    link = most_delayed_link(shown)
    assert link is not None
    # Backwards take 1, 2, 2 and 2 s: 1.75 s ideal. Forwards 1 and 2 s: 1.5 s, so one is 0.5 above.
    assert (link.optype, link.stage) == ("forward-compute", 1)


def test_an_unknown_operation_is_refused():
    with pytest.raises(InvalidRequest, match="stage 0 has no operation backward-send 0 in step 0"):
        find_operation(view(), view().recorded, 0, "backward-send", 0)


def test_an_unknown_dp_rank_is_refused():
    with pytest.raises(InvalidRequest, match="this job has dp ranks 0 to 1"):
        view(2).of(2)
