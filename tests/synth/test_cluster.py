from dataclasses import replace

import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.cluster import Cluster
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES


def test_hosts_hold_successive_ranks():
    hosts = Cluster(gpus_per_host=8).hosts(Parallelism(4, 2, tp_size=4))
    # Ranks count tensor, then data, then pipeline parallelism: two workers of four GPUs a host.
    assert [hosts[dp_rank, 0] for dp_rank in range(4)] == ["host-000"] * 2 + ["host-001"] * 2
    assert [hosts[dp_rank, 1] for dp_rank in range(4)] == ["host-002"] * 2 + ["host-003"] * 2


def test_a_world_knows_who_is_where():
    world = SimulatedJob(Parallelism(3, 2), 2, cluster=Cluster(gpus_per_host=4)).world
    assert world.host_names == ["host-000", "host-001"]
    assert world.workers_of_host("host-000") == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert world.workers_of_host("host-001") == [(1, 1), (2, 1)]
    assert world.workers_of_host("host-9") == []


def test_clocks_are_of_hosts_and_within_their_bounds():
    cluster, sizes = Cluster(4, clock_offset_s=0.5, drift_ppm=200), Parallelism(64, 4)
    offset_s, drift = cluster.clocks(sizes, seed=1)
    assert offset_s.shape == drift.shape == (64, 4)
    assert 0.4 < np.abs(offset_s).max() <= 0.5
    assert 1.6e-4 < np.abs(drift).max() <= 2e-4
    hosts = cluster.host_numbers(sizes)
    for values in (offset_s, drift):
        assert all(np.unique(values[hosts == host]).size == 1 for host in range(64))
        assert np.unique(values).size == 64
    again = cluster.clocks(sizes, seed=1)
    np.testing.assert_array_equal(again, (offset_s, drift))
    assert not np.array_equal(cluster.clocks(sizes, seed=2)[0], offset_s)


def test_jitter_is_on_the_ends_of_what_is_done_together():
    made = SimulatedJob(Parallelism(8, 2), 4)
    jittery = replace(made, cluster=Cluster(jitter_s=5e-5))
    trace = jittery.make(range(20))
    end_s = trace.start_s + trace.duration_s
    for name in ("grads-reduce-scatter", "params-all-gather", "optimizer-clip-main-grad"):
        ends = end_s[trace.optype == OP_CODES[name]].reshape(20, 8, 2)
        seen_late_s = ends - ends.min(axis=1, keepdims=True)
        assert 2e-5 < seen_late_s.mean() < 8e-5
        assert seen_late_s.max() < 4e-4
    for name in ("forward-compute", "optimizer"):
        mine = trace.optype == OP_CODES[name]
        before = made.make(range(20))
        np.testing.assert_allclose(trace.duration_s[mine], before.duration_s[mine], rtol=1e-9)


@pytest.mark.parametrize(
    "kwargs", [{"gpus_per_host": 0}, {"clock_offset_s": -1.0}, {"jitter_s": np.nan}]
)
def test_clusters_that_cannot_be_are_refused(kwargs):
    with pytest.raises(InvalidRequest):
        Cluster(**kwargs)
