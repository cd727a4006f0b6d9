"""A worker's operations against its peers', by hand."""

import pytest

from app.engine.questions.worker_operations import ops_by_type
from app.engine.replays import prepare
from app.errors import InvalidRequest
from tests.engine.questions.jobs import two_stages
from tests.window_factory import in_row, replicas, window


def test_peers_are_the_same_stage_of_the_other_dp_ranks():
    rows = in_row(("forward-compute", 1.0), ("forward-compute", 3.0), ("optimizer", 1.0))
    other = in_row(("forward-compute", 2.0), ("forward-compute", 4.0), ("optimizer", 1.0))
    both = [*rows, *(row.on(dp_rank=1) for row in other)]
    first, second = ops_by_type(prepare(window(both, dp_size=2)), 0, 0)
    assert (first.optype, first.num_ops, first.total_s, first.median_s) == (
        "forward-compute", 2, 4.0, 2.0,
    )  # fmt: skip
    assert first.p95_s == pytest.approx(2.9)
    assert first.peers_s == (2.5, 3.0, 3.5)
    assert second.optype == "optimizer"


def test_with_one_replica_the_peers_are_the_other_stages():
    found = {e.optype: e for e in ops_by_type(prepare(window(two_stages(), pp_size=2)), 0, 0)}
    assert found["forward-compute"].peers_s == (2.0, 2.0, 2.0)
    # Nobody else sends forward, and nobody is made up.
    assert found["forward-send"].peers_s is None


def test_times_cover_all_steps_of_the_window():
    rows = [row for step in (0, 1, 2) for row in replicas(two_stages(step=step), 2)]
    found = {e.optype: e for e in ops_by_type(prepare(window(rows, dp_size=2, pp_size=2)), 1, 1)}
    assert found["backward-compute"].num_ops == 3


def test_an_unknown_worker_is_refused():
    with pytest.raises(InvalidRequest, match="dp 0, stage 2 is no worker"):
        ops_by_type(prepare(window(two_stages(), pp_size=2)), 0, 2)
