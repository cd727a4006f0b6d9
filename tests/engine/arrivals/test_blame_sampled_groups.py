"""Groups that are recorded in a share of the steps: the same rank is to blame as in all steps."""

from dataclasses import replace

import numpy as np
import pytest

from app.engine.replays import prepare
from app.trace.collectives import Collectives, RankGroup, RankPlace
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import Trace, Window

TP, DP, STEPS, PER_STEP = 4, 2, 8, 20
SIZES = Parallelism(dp_size=DP, pp_size=1, tp_size=TP)
GROUPS = tuple(RankGroup(f"tp {dp}", "tp", tuple(range(dp * TP, dp * TP + TP))) for dp in range(DP))
LAYER_S, TRANSFER_S = 1e-3, 50e-6


def window(sampled, slow=(), slowdown=1.6):
    """Ranks that compute, meet in their group, and so on; then workers 0 and 4 reduce gradients."""
    chance = np.random.default_rng(5)
    ops, rows, origins_ns = [], [], [10**12]
    for step in range(STEPS):
        ends_s = []
        for dp in range(DP):
            now_s = 0.0
            for number in range(PER_STEP):
                ready_s = now_s + LAYER_S * chance.normal(1, 0.01, TP)
                for at in range(TP):
                    if dp * TP + at in slow:
                        ready_s[at] += (slowdown - 1) * LAYER_S
                now_s = ready_s.max() + TRANSFER_S
                if step in sampled:
                    rows += [
                        (dp, step, number, dp * TP + at, ready_s[at], now_s - ready_s[at])
                        for at in range(TP)
                    ]
            ops.append((step, dp, "forward-compute", 0.0, now_s / 3, 0))
            ops.append((step, dp, "backward-compute", now_s / 3, now_s * 2 / 3, 0))
            ends_s.append(now_s)
        done_s = max(ends_s) + 1e-4
        for dp in range(DP):
            ops.append((step, dp, "grads-reduce-scatter", ends_s[dp], done_s - ends_s[dp], -1))
            ops.append((step, dp, "optimizer", done_s, 1e-4, -1))
        origins_ns.append(origins_ns[-1] + round(1e9 * (done_s + 2e-4)))
    return Window(
        job=Job.of("made", SIZES),
        epoch=1,
        first_step=0,
        steps=tuple(range(STEPS)),
        trace=trace(ops),
        state="complete",
        origin_ns=tuple(origins_ns[:-1]),
        collectives=table(rows),
    )


def trace(ops):
    step, dp, optype, start_s, duration_s, mb_id = (
        np.array(each) for each in zip(*ops, strict=True)
    )
    zeros = np.zeros(step.size, np.int64)
    return Trace(
        step=step, dp_rank=dp, stage=zeros, rank=dp * TP,
        optype=np.array([OP_CODES[name] for name in optype]), seq_id=zeros,
        mc=np.where(mb_id == 0, 0, -1), mb_id=mb_id, start_s=start_s, duration_s=duration_s,
    )  # fmt: skip


def table(rows):
    if not rows:
        return None
    group, step, number, rank, start_s, stay_s = (
        np.array(each) for each in zip(*rows, strict=True)
    )
    return Collectives(
        groups=GROUPS, kinds=("all-reduce",), group=group, kind=np.zeros(group.size, np.int64),
        step=step, sequence=number, rank=rank, start_s=start_s, stay_s=stay_s,
        num_bytes=np.full(group.size, -1),
        places={each: RankPlace(each, each // TP, 0, None, each % TP) for each in range(DP * TP)},
    )  # fmt: skip


def named(given):
    found = prepare(given).arrivals
    assert found is not None
    return {found.places[each.place].rank: each for each in found.culprits}


def test_a_slow_peer_is_named_for_any_share_of_recorded_steps():
    culprits = {
        every: named(window(range(0, STEPS, every), slow=[6])) for every in (1, 2, 4, STEPS)
    }
    assert [[*found] for found in culprits.values()] == [[6]] * len(culprits)
    whole = culprits[1][6]
    for found in culprits.values():
        assert found[6].waited_for_s == pytest.approx(whole.waited_for_s, rel=0.05)
        assert found[6].steps_late == 1.0
        assert found[6].by_step_s.size == STEPS


def test_without_recorded_steps_the_worker_of_the_slow_peer_is_named():
    assert [*named(window([], slow=[6]))] == [4]


@pytest.mark.parametrize("sampled", [range(STEPS), [3]])
def test_healthy_groups_have_no_culprit(sampled):
    assert named(window(sampled)) == {}


@pytest.mark.parametrize("sampled", [range(STEPS), range(0, STEPS, 2), [3]])
def test_without_starts_a_rank_held_up_inside_its_group_is_no_culprit(sampled):
    """As PyTorch's flight recorder tells them: the worker waits inside, and comes late outside."""
    given = window(sampled, slow=[6])
    assert given.collectives is not None
    no_starts = np.full(given.collectives.num_rows, np.nan)
    inside = replace(given.collectives, start_s=no_starts)
    assert [*named(replace(given, collectives=inside))] == [6]
