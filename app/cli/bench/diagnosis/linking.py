"""Faults of the network: so much slower that it is meant to show."""

from app.cli.bench.diagnosis.setting import Setting
from app.synth.faults.fault import Fault, When
from app.synth.faults.flapping_nic import FlappingNic
from app.synth.faults.slow_dp_group import SlowDpGroup
from app.synth.faults.slow_link import SlowLink
from app.synth.faults.slow_nic import SlowNic


def slow_link(setting: Setting, when: When) -> Fault:
    """Any pair of neighbours."""
    stage = int(setting.rng.integers(setting.pp - 1))
    dp_rank = int(setting.rng.integers(setting.dp))
    # Most of it is hidden behind computations.
    return SlowLink(dp_rank, stage, _times_longer(setting, _sent_s(setting) / 2), when=when)


def slow_nic(setting: Setting, when: When) -> Fault:
    """Any worker's card."""
    usual_s = (_sent_s(setting) + _exchanged_s(setting)) / 2
    return SlowNic(*setting.worker(), _times_longer(setting, usual_s), when=when)


def slow_dp_group(setting: Setting, when: When) -> Fault:
    """Any stage."""
    stage = int(setting.rng.integers(setting.pp))
    return SlowDpGroup(stage, _times_longer(setting, _exchanged_s(setting)), when=when)


def flapping_nic(setting: Setting, when: When) -> Fault:
    """Any worker's card."""
    rate = setting.rng.uniform(0.3, 0.7)
    # Half of the micro-batches of the steps that are hit.
    usual_s = rate * (_sent_s(setting) + _exchanged_s(setting)) / 4
    slowdown = _times_longer(setting, usual_s)
    return FlappingNic(*setting.worker(), slowdown, rate=rate, when=when)


def _sent_s(setting: Setting) -> float:
    """What one pair of stages exchanges in a step."""
    sent = 2 * setting.world.num_microbatches * setting.world.num_chunks
    return sent * setting.costs.stage_transfer_s


def _exchanged_s(setting: Setting) -> float:
    """What the dp ranks of one stage exchange in a step."""
    if not setting.world.parallelism.is_data_parallel:
        return 0.0
    return setting.costs.params_all_gather_s + setting.costs.grads_reduce_scatter_s


def _times_longer(setting: Setting, usual_s: float) -> float:
    return 1 + setting.lost_s() / usual_s
