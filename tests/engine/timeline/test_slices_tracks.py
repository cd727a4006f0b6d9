"""Which track an operation is drawn on."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.engine.timeline.step_run import track_name
from app.engine.timeline.writer import Tracks, siblings
from app.trace.ops import BUILT_IN, OP_CODES


def on_siblings(*slices):
    """Siblings of slices of one track and lane: (start, end)."""
    start_ns, end_ns = np.array(slices, np.int64).T[:, :, None]
    return siblings(np.zeros(len(slices), np.int64), start_ns, end_ns)[:, 0].tolist()


def test_an_operation_is_on_its_stream():
    assert track_name(BUILT_IN.by_code[OP_CODES["backward-weight-compute"]]) == "compute"
    assert track_name(BUILT_IN.by_code[OP_CODES["grads-reduce-scatter"]]) == "dp-comm"
    assert track_name(BUILT_IN.by_code[OP_CODES["optimizer"]]) == "step end"
    bucket = BUILT_IN.by_code[OP_CODES["separate-grads-all-reduce"]]
    assert track_name(bucket) == "separate-grads-all-reduce"


def test_track_numbers_and_names_are_unique():
    tracks = Tracks.of(BUILT_IN)
    numbers = [
        int(tracks.thread_id(np.array(track), np.array(sibling)))
        for sibling in range(250)
        for track in range(len(tracks.names))
    ]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) == 1
    assert tracks.name(numbers[0]) == "compute"
    assert tracks.name(int(tracks.thread_id(np.array(1), np.array(204)))) == "forward-recv (205)"


def test_successive_slices_share_a_track_and_overlapping_ones_do_not():
    assert on_siblings((0, 5), (5, 9), (9, 9)) == [0, 0, 0]
    assert on_siblings((0, 5), (4, 9), (9, 12)) == [0, 1, 0]
    assert on_siblings((0, 9), (1, 9), (2, 3), (3, 4)) == [0, 1, 2, 2]


def test_the_longest_slice_of_equal_starts_stays_on_the_track():
    assert on_siblings((3, 3), (3, 7)) == [1, 0]
    assert on_siblings((3, 3), (3, 3)) == [0, 1]
    assert on_siblings((3, 4), (3, 7)) == [1, 0]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 6)), min_size=1))
def test_slices_of_one_sibling_never_overlap(drawn):
    track, start_ns, length_ns = np.array(drawn, np.int64).T
    end_ns = start_ns + length_ns
    found = siblings(track, start_ns[:, None], end_ns[:, None])[:, 0]
    for key in {(t, s) for t, s in zip(track.tolist(), found.tolist(), strict=True)}:
        here = (track == key[0]) & (found == key[1])
        taken = sorted(zip(start_ns[here].tolist(), end_ns[here].tolist(), strict=True))
        for before, after in pairwise(taken):
            assert after[0] >= max(before[1], before[0] + 1)
