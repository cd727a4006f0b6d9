"""Recordings from a real GPU: the figures that design work measured, found again."""

from pathlib import Path

import numpy as np
import pytest

from app.cli.trace_input import read_trace
from app.engine.arrivals.arrivals import Arrivals, arrivals_of_replay
from app.engine.replays import prepare
from tests.shared_traces import SHARED_TRACES, needs_shared

GPU = SHARED_TRACES.parent / "gpu"

pytestmark = needs_shared


def recording(name: str) -> Arrivals:
    trace, meta = (GPU / f"{kind}-nccl-{name}" for kind in ("trace", "meta"))
    replay = prepare(read_trace(Path(f"{trace}.parquet"), Path(f"{meta}.yaml"), None))
    found = arrivals_of_replay(replay, replay.recorded_s)
    assert found is not None
    return found


def waited_for_ms(found: Arrivals, rank: int) -> float:
    (at,) = [at for at, place in enumerate(found.places) if place.rank == rank]
    return float(1e3 * found.waited_for_s[at].mean())


def times_late(found: Arrivals, rank: int) -> tuple[float, float]:
    """In how many of how many occurrences."""
    (member,) = [
        member
        for member, at in enumerate(found.occurrences.member_rank)
        if found.places[at].rank == rank
    ]
    num = found.lateness.num_occurrences[found.occurrences.member_group[member]].sum()
    return float(found.lateness.late[member].sum()), float(num)


@pytest.mark.parametrize("name", ["ddp-slow", "fsdp2-slow", "pipe-slow"])
def test_the_slow_rank_is_the_only_culprit(name: str):
    found = recording(name)
    assert [found.places[each.place].rank for each in found.culprits] == [1]


@pytest.mark.parametrize("name", ["ddp-none", "fsdp2-none", "pipe-none"])
def test_a_healthy_run_has_no_culprit(name: str):
    assert recording(name).culprits == []


def test_ddp_waits_15_ms_for_its_slow_rank_in_every_bucket():
    found = recording("ddp-slow")
    assert waited_for_ms(found, 1) == pytest.approx(15.55, abs=0.02)
    assert times_late(found, 1) == (32, 32)
    (culprit,) = found.culprits
    assert culprit.own_delay_s == pytest.approx(15.55e-3, rel=0.05)


def test_fsdp2_waits_17_to_18_ms_for_its_slow_rank():
    found = recording("fsdp2-slow")
    # With the ranks that were late together with it; 16.9 ms where the last alone counts.
    assert 16.9 <= waited_for_ms(found, 1) <= 18.1
    assert times_late(found, 1) == (124, 192)


def test_healthy_fsdp2_has_a_rank_that_is_late_in_three_steps_of_eight():
    found = recording("fsdp2-none")
    assert times_late(found, 3) == (84, 192)
    (late,) = found.late
    assert found.places[late.place].rank == 3
    assert late.steps_late == 3 / 8
    assert np.flatnonzero(late.by_step_s > 5e-3).tolist() == [5, 6, 7]


def test_the_second_pipeline_stage_is_held_up_by_the_first():
    found = recording("pipe-slow")
    assert waited_for_ms(found, 1) == pytest.approx(55.4, abs=0.1)
    assert waited_for_ms(found, 3) == pytest.approx(48.5, abs=0.1)
    assert times_late(found, 1) == times_late(found, 3) == (8, 8)
    late = {found.places[each.place].rank: each for each in found.late}
    assert late[1].own_delay_s == pytest.approx(56.8e-3, rel=0.15)
    assert late[3].own_delay_s == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("name", ["ddp-none", "pipe-none"])
def test_healthy_runs_have_no_late_rank(name: str):
    found = recording(name)
    assert found.late == ()
    assert 1e3 * found.waited_for_s.mean(axis=1).max() < 0.1
