"""Faults of computing: severity and place by chance."""

from app.cli.bench.diagnosis.setting import Setting
from app.synth.faults.fault import Fault, When
from app.synth.faults.long_last_stage import LongLastStage
from app.synth.faults.mixed_gpus import MixedGpus
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.silent_worker import SilentWorker
from app.synth.faults.slow_host import SlowHost
from app.synth.faults.slow_stage import SlowStage
from app.synth.faults.slow_worker import SlowWorker
from app.synth.faults.throttling_gpu import ThrottlingGpu
from app.synth.faults.uniform_slowdown import UniformSlowdown


def slow_worker(setting: Setting, when: When) -> Fault:
    """Any worker, up to 2.2 times as slow."""
    return SlowWorker(*setting.worker(), setting.between(1.12, 2.2), when=when)


def throttling(setting: Setting, when: When) -> Fault:
    """Any worker, slower and slower over a part of what is recorded."""
    left = setting.steps[-1] - when.first_step
    ramp_steps = max(1, round(left * setting.rng.uniform(0.2, 0.6)))
    worker = setting.worker()
    return ThrottlingGpu(*worker, setting.between(1.3, 2.5), ramp_steps=ramp_steps, when=when)


def slow_host(setting: Setting, when: When) -> Fault:
    """Any host."""
    return SlowHost(setting.host(), setting.between(1.12, 2.0), when=when)


def mixed_gpus(setting: Setting, when: When) -> Fault:
    """About a third of the hosts."""
    choice = int(setting.rng.integers(1000))
    return MixedGpus(0.3, setting.between(1.15, 1.8), choice=choice, when=when)


def slow_stage(setting: Setting, when: When) -> Fault:
    """Any stage."""
    return SlowStage(int(setting.rng.integers(setting.pp)), setting.between(1.12, 2.0), when=when)


def long_last_stage(setting: Setting, when: When) -> Fault:
    """The last stage; at most as long as production has it."""
    forward = setting.between(1.3, 2.07)
    return LongLastStage(forward, 1 + 0.4 * (forward - 1), when=when)


def sequence_imbalance(setting: Setting, when: When) -> Fault:
    """Short and long sequences, told of by the client or not."""
    return SequenceImbalance(
        max_length=int(setting.rng.choice([8_192, 32_768, 131_072])),
        full_share=setting.between(0.005, 0.03),
        attention_share=setting.rng.uniform(0.15, 0.6),
        is_sent=setting.sends_lengths,
        when=when,
    )


def uniform(setting: Setting, when: When) -> Fault:
    """Everybody."""
    return UniformSlowdown(setting.between(1.08, 1.6), when=when)


def silent(setting: Setting, when: When) -> Fault:
    """Any worker."""
    return SilentWorker(*setting.worker(), when=when)
