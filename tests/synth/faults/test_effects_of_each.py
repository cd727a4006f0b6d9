"""What each fault does."""

import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import (
    CheckpointStalls,
    GcPauses,
    PlannedGc,
)
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage, MixedGpus, ThrottlingGpu, UniformSlowdown
from app.synth.faults.slow_network import FlappingNic, SlowLink, SlowNic
from app.synth.schedules import Interleaved
from app.trace.job import Parallelism
from tests.synth.faulty_jobs import (
    DP,
    MICROBATCHES,
    PP,
    STEPS,
    added,
    costs_of,
    drawn,
    made,
    ratios,
)
from tests.synth.uneven_experts import UnevenExperts


def test_a_throttling_gpu_gets_slower_step_by_step_while_its_clock_falls():
    job = made(ThrottlingGpu(2, 1, 1.8, ramp_steps=4, when=FaultSteps(2)))
    ratio = ratios(job, "forward_s")[1, 0, 0, :8, 2]
    np.testing.assert_allclose(ratio, [1, 1, 1.2, 1.4, 1.6, 1.8, 1.8, 1.8])


def told(*faults):
    """Clocks and temperatures of a job whose GPUs tell them."""
    found = drawn(made(*faults, records_gpus=True))[0]
    return found["sm_clock_mhz"], found["temperature_c"]


def test_a_throttling_gpu_is_told_by_its_clock_and_temperature():
    clock_mhz, temperature_c = told(ThrottlingGpu(2, 1, 1.5, ramp_steps=2))
    healthy_mhz, healthy_c = told()
    assert (temperature_c - healthy_c)[1, :4, 2].tolist() == [12, 25, 25, 25]
    np.testing.assert_allclose(
        healthy_mhz[1, :3, 2] / clock_mhz[1, :3, 2], [1.25, 1.5, 1.5], rtol=0.001
    )
    clock_mhz[1, :, 2], temperature_c[1, :, 2] = healthy_mhz[1, :, 2], healthy_c[1, :, 2]
    np.testing.assert_array_equal(clock_mhz, healthy_mhz)
    np.testing.assert_array_equal(temperature_c, healthy_c)


def test_a_power_cap_lowers_every_clock():
    clock_mhz, temperature_c = told(UniformSlowdown(1.25))
    healthy_mhz, healthy_c = told()
    np.testing.assert_allclose(healthy_mhz / clock_mhz, 1.25, rtol=0.001)
    np.testing.assert_array_equal(temperature_c, healthy_c)


def test_of_a_stage_with_the_loss_forward_suffers_most():
    job = made(LongLastStage())
    np.testing.assert_allclose(ratios(job, "forward_s")[-1], 2.07)
    np.testing.assert_allclose(ratios(job, "backward_s")[-1], 1.41)


def test_mixed_gpus_are_whole_hosts_and_the_same_ones_every_time():
    fault = MixedGpus(0.34, 1.5)  # of six hosts
    world = made(fault).world
    hosts = fault.older_hosts(world)
    assert len(hosts) == 2
    older = {worker for host in hosts for worker in world.workers_of_host(host)}
    ratio = ratios(made(fault), "backward_s")
    slow = {(d, s) for d in range(DP) for s in range(PP) if (ratio[s, ..., d] > 1.4).all()}
    assert slow == older
    assert MixedGpus(0.34, 1.5, choice=1).older_hosts(world) != hosts


def test_documents_of_all_lengths_make_microbatches_differ_but_not_in_the_mean():
    job = made(SequenceImbalance(attention_share=0.3), num_microbatches=64)
    healthy = made(num_microbatches=64)
    work = drawn(job)[0]["forward_s"] / drawn(healthy)[0]["forward_s"]
    assert 0.18 < work[0, 0].std() / work.mean() < 0.44  # what production shows
    assert work.mean() == pytest.approx(1.0, abs=0.02)
    np.testing.assert_allclose(work[0], work[2])  # every stage computes the same documents
    backward = drawn(job)[0]["backward_s"] / drawn(healthy)[0]["backward_s"]
    np.testing.assert_allclose(backward, work)


def test_what_the_client_tells_of_lengths_explains_what_microbatches_take():
    found, _ = drawn(made(SequenceImbalance(attention_share=0.3, is_sent=True, when=FaultSteps(5))))
    assert (found["tokens"][:, :5] == -1).all()
    assert (found["tokens"][:, 5:] == 32_768).all()
    squares, work = (
        found["seq_len_sq"][:, 5:],
        ratios(made(SequenceImbalance(when=FaultSteps(5))), "forward_s"),
    )
    slope, at_zero = np.polyfit(squares.ravel(), work[1, 0, :, 5:].ravel(), 1)
    np.testing.assert_allclose(at_zero + slope * squares, work[1, 0, :, 5:], rtol=1e-9)
    assert at_zero == pytest.approx(0.7)


def test_garbage_is_collected_now_and_then_in_single_forwards():
    fault = GcPauses(0.2, 0.3, is_sent=True)
    longer_s = added(made(fault), "forward_s")
    pauses = longer_s > 1e-9
    assert pauses.sum(axis=(1, 2)).max() == 1  # one a worker and step
    assert pauses.sum() == pytest.approx(0.2 * DP * PP * len(STEPS), rel=0.3)
    assert longer_s[pauses].min() > 0.15
    assert longer_s[pauses].max() < 0.6
    assert not added(made(fault), "backward_s").any()
    _, annotations = drawn(made(fault))
    said = {(a.stage, a.chunk, a.microbatch, a.step, a.dp_rank): a.duration_s for a in annotations}
    assert {a.name for a in annotations} == {"gc-pause"}
    assert set(said) == set(map(tuple, np.argwhere(pauses).tolist()))
    for at, seconds in said.items():
        assert longer_s[at] == pytest.approx(seconds)


def test_planned_collections_stop_everybody_in_the_same_steps():
    longer_s = added(made(PlannedGc(6, 0.3, when=FaultSteps(2))), "once_s gc")
    by_step = longer_s[:, 0].min(axis=(0, 2))
    assert np.flatnonzero(by_step).tolist() == [2, 8, 14]
    assert by_step[[2, 8, 14]] == pytest.approx(0.3, rel=0.3)


def test_a_slow_link_is_slow_both_ways_and_nothing_else_is():
    job = made(SlowLink(2, 1, 50.0))
    forward, backward = ratios(job, "forward_transfer_s"), ratios(job, "backward_transfer_s")
    # Under the receiver: stage 2 forward, stage 1 backward.
    np.testing.assert_allclose(forward[2, ..., 2], 50.0)
    np.testing.assert_allclose(backward[1, ..., 2], 50.0)
    assert (forward > 1).sum() == (backward > 1).sum() == MICROBATCHES * len(STEPS)


def test_a_link_of_interleaved_stages_leads_from_the_last_one_to_the_first():
    options = {
        "parallelism": Parallelism(2, 3, vpp_size=2),
        "schedule": Interleaved(),
        "num_microbatches": 3,
    }
    job, healthy = made(SlowLink(1, 2, 50.0), **options), made(**options)
    assert [c.stage for c in job.faults[0].culprits(job.world)] == [2, 0]
    forward = drawn(job)[0]["forward_transfer_s"] / drawn(healthy)[0]["forward_transfer_s"]
    backward = drawn(job)[0]["backward_transfer_s"] / drawn(healthy)[0]["backward_transfer_s"]
    np.testing.assert_allclose(forward[0, ..., 1], 50.0)
    np.testing.assert_allclose(backward[2, ..., 1], 50.0)
    cost = costs_of(job, range(4))[0]
    assert cost is not None
    assert cost > 0.05


def test_a_slow_network_card_slows_all_pairs_and_the_dp_group():
    job = made(SlowNic(2, 1, 50.0))
    forward, backward = ratios(job, "forward_transfer_s"), ratios(job, "backward_transfer_s")
    assert {tuple(at) for at in np.argwhere(forward > 2)[:, [0, 4]]} == {(1, 2), (2, 2)}
    assert {tuple(at) for at in np.argwhere(backward > 2)[:, [0, 4]]} == {(0, 2), (1, 2)}
    for name in ("params-all-gather", "grads-reduce-scatter"):
        np.testing.assert_allclose(ratios(job, f"once_s {name}")[:, 0, 0, 0], [1, 50, 1])


def test_a_flapping_card_is_slow_in_bursts_of_some_microbatches_of_some_steps():
    fault = FlappingNic(2, 1, 80.0, rate=0.6)
    slow = ratios(made(fault), "forward_transfer_s")[1, 0, :, :, 2] > 2
    of_step = slow.any(axis=0)
    assert of_step[0]
    assert 0.3 < of_step.mean() < 0.9
    assert not slow[:, of_step].all()
    for microbatches in slow.T[of_step]:
        assert np.diff(np.flatnonzero(microbatches)).tolist() == [1] * (microbatches.sum() - 1)


def test_checkpoints_stop_every_worker_at_one_interval():
    late_s = added(made(CheckpointStalls(5, 2.0)), "once_delay_s gc")[:, 0]
    assert np.flatnonzero((late_s > 1.0).all(axis=(0, 2))).tolist() == [4, 9, 14, 19]
    assert (late_s[:, :4] < 1e-9).all()


def test_experts_share_out_the_same_tokens():
    sizes = Parallelism(DP, PP, ep_size=2)
    load = drawn(made(UnevenExperts(0.3), parallelism=sizes))[0]["forward_s"]
    load = load / drawn(made(parallelism=sizes))[0]["forward_s"]
    blocks = load.reshape(*load.shape[:-1], DP // 2, 2)
    np.testing.assert_allclose(blocks.mean(axis=-1), 1.0)
    assert load.std() > 0.1
    with pytest.raises(InvalidRequest, match="without experts"):
        made(UnevenExperts()).make([0])
