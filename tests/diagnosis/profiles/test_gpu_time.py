"""Time of a step on the GPU, and waits without what was computed meanwhile, by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.diagnosis.profiles.gpu_time import (
    exposed_waits,
    gpu_time_breakdown,
    kernel_span,
    receive_waits_s,
    receives,
    transfer_s,
    transfer_totals,
    waiting_intervals,
)
from app.engine.arrivals.waits import merged_intervals
from app.trace.collectives import RECEIVE, Collectives, RankGroup
from app.trace.readers.kineto.profile import COMMUNICATING, COMPUTING, COPYING, GpuWork, read
from tests.small_profiles import SmallProfile


def work(*kernels):
    """Kernels as (kind, start, end) in milliseconds."""
    times = np.array([each[1:] for each in kernels], np.int64).reshape(-1, 2) * 1_000_000
    none = np.full(len(kernels), -1, np.int64)
    kinds = np.array([each[0] for each in kernels], np.int8)
    return GpuWork(kinds, times[:, 0], times[:, 1], none, none)


def bounds(*times_ms):
    return np.array(times_ms, np.int64) * 1_000_000


def test_a_step_is_computing_exposed_communication_copying_and_idle():
    found = gpu_time_breakdown(
        work(
            (COMPUTING, 10, 40),
            (COMPUTING, 20, 30),  # on another stream at the same time
            (COMMUNICATING, 30, 60),  # 10 hidden, 20 exposed
            (COPYING, 55, 70),  # 10 where nothing else runs
        ),
        bounds(0, 100),
    )
    assert found.computing_s.tolist() == pytest.approx([0.030])
    assert found.communicating_hidden_s.tolist() == pytest.approx([0.010])
    assert found.communicating_exposed_s.tolist() == pytest.approx([0.020])
    assert found.copying_s.tolist() == pytest.approx([0.010])
    assert found.idle_s.tolist() == pytest.approx([0.040])
    assert found.coverage == pytest.approx(0.6)


def test_a_kernel_across_steps_counts_in_both():
    found = gpu_time_breakdown(work((COMPUTING, 5, 25), (COMMUNICATING, 15, 40)), bounds(0, 20, 40))
    assert found.computing_s.tolist() == pytest.approx([0.015, 0.005])
    assert found.communicating_hidden_s.tolist() == pytest.approx([0.005, 0.005])
    assert found.communicating_exposed_s.tolist() == pytest.approx([0.0, 0.015])


intervals = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12
)


@given(intervals, st.lists(st.integers(0, 60), min_size=2, max_size=5, unique=True))
def test_the_breakdown_counts_every_millisecond_once(kernels, times):
    kernels = [(kind, min(a, b), max(a, b)) for kind, a, b in kernels]
    times = sorted(times)
    found = gpu_time_breakdown(work(*kernels), bounds(*times))
    for step, (start, end) in enumerate(pairwise(times)):
        exposed, hidden = "communicating_exposed", "communicating_hidden"
        expected = dict.fromkeys(("computing", exposed, hidden, "copying", "idle"), 0)
        for at in range(start, end):
            kinds = {kind for kind, low, high in kernels if low <= at < high}
            if COMPUTING in kinds:
                expected["computing"] += 1
                expected[hidden] += COMMUNICATING in kinds
            elif COMMUNICATING in kinds:
                expected[exposed] += 1
            elif kinds:
                expected["copying"] += 1
            else:
                expected["idle"] += 1
        for name, number in expected.items():
            assert getattr(found, f"{name}_s")[step] == pytest.approx(number / 1e3, abs=1e-9)


def test_kernel_span_leaves_out_the_last_profiler_step(tmp_path):
    profile = SmallProfile().backward().steps(0, 100, 200)
    profile.kernel(10, 20, launch=5).kernel(50, 30, launch=40).kernel(120, 50, launch=110)
    found = kernel_span(read(profile.write(tmp_path)))
    assert found.step_s.tolist() == pytest.approx([70e-6])
    assert found.computing_s.tolist() == pytest.approx([50e-6])
    one = SmallProfile().backward().steps(0, 200).kernel(10, 20, launch=5).kernel(50, 30, launch=40)
    assert kernel_span(read(one.write(tmp_path))).step_s.tolist() == pytest.approx([70e-6])


def collectives(rows, groups, kinds=("all-reduce",)):
    """Rows as (group, kind, sequence, rank, start, stay, bytes) in milliseconds."""
    columns = np.array(rows, np.float64).T
    whole = [columns[at].astype(np.int64) for at in (0, 1, 2, 3)]
    return Collectives(
        groups=groups,
        kinds=kinds,
        group=whole[0],
        kind=whole[1],
        step=np.zeros(len(rows), np.int64),
        sequence=whole[2],
        rank=whole[3],
        start_s=columns[4] / 1e3,
        stay_s=columns[5] / 1e3,
        num_bytes=columns[6].astype(np.int64),
        is_continuous=True,
    )


PAIR = (RankGroup("dp [0, 1]", "dp", (0, 1)),)


def test_computing_during_a_wait_shortens_the_wait():
    # Rank 0 is there at 10 and computes on until 30; rank 1 comes at 50; both leave at 60.
    table = collectives([(0, 0, 0, 0, 10, 50, 8), (0, 0, 0, 1, 50, 10, 8)], PAIR)
    computing = {
        0: merged_intervals(np.array([0.0]), np.array([0.030])),
        1: merged_intervals(*np.zeros((2, 0))),
    }
    found = exposed_waits(table, computing)
    assert found.start_s.tolist() == pytest.approx([0.030, 0.050])
    assert found.stay_s.tolist() == pytest.approx([0.030, 0.010])
    waits = waiting_intervals(found)
    assert (waits[0].end_s - waits[0].start_s).tolist() == pytest.approx([0.020])
    assert waits[1].start_s.size == 0


def test_computing_during_the_transfer_does_not_shorten_the_wait():
    table = collectives([(0, 0, 0, 0, 10, 50, 8), (0, 0, 0, 1, 50, 10, 8)], PAIR)
    all_long = merged_intervals(np.array([0.0]), np.array([1.0]))
    found = exposed_waits(table, {0: all_long, 1: all_long})
    # No wait is left, and the transfer of 10 is.
    assert found.stay_s.tolist() == pytest.approx([0.010, 0.010])


def test_a_receive_waits_for_its_excess_over_the_shortest_of_the_pair():
    pair = (RankGroup("0 to 1", "pp", (0, 1)),)
    rows = [(0, 0, 0, 1, 10, 5, 8), (0, 0, 1, 1, 30, 25, 8)]
    table = collectives(rows, pair, (RECEIVE,))
    assert transfer_s(table).tolist() == pytest.approx([0.005, 0.005])
    start_s, end_s = receives(table)[1]
    assert start_s.tolist() == pytest.approx([0.010, 0.030])
    assert end_s.tolist() == pytest.approx([0.010, 0.050])
    assert receive_waits_s(table) == {(0, 1): pytest.approx(0.020)}


def test_bandwidth_is_bytes_by_transfer_and_unknown_where_members_are_missing():
    rows = [(0, 0, 0, 0, 0, 50, 1000), (0, 0, 0, 1, 40, 10, 1000)]
    rows += [(0, 0, 1, 0, 60, 30, 1000), (0, 0, 1, 1, 60, 30, 1000)]
    (found,) = transfer_totals(collectives(rows, PAIR), {"dp [0, 1]": 2})
    assert found.num_occurrences == 2
    assert found.transfer_s == pytest.approx(0.020)
    assert found.bandwidth_bytes_s == pytest.approx(2000 / 0.040)
    (partial,) = transfer_totals(collectives(rows, PAIR), {"dp [0, 1]": 8})
    assert partial.transfer_s is None
    assert partial.bandwidth_bytes_s is None
    assert partial.stay_s == pytest.approx(0.030)


def test_a_table_without_rows_has_no_transfers():
    table = collectives([(0, 0, 0, 0, 0, 1, 1)], PAIR).select(np.zeros(1, np.bool_))
    assert transfer_totals(table, {}) == []
    assert transfer_s(table).size == 0
    assert waiting_intervals(table) == {}
