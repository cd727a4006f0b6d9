"""Faults that stop workers for a while: how often and how long."""

from app.cli.bench.diagnosis.setting import Setting
from app.synth.faults.allocator_stalls import AllocatorStalls
from app.synth.faults.data_loading import DataLoading
from app.synth.faults.fault import Fault, When
from app.synth.faults.gc_pauses import GcPauses
from app.synth.faults.planned_gc import PlannedGc
from app.synth.world import Worker


def gc_pauses(setting: Setting, when: When) -> Fault:
    """Everybody in turn."""
    return _pauses(setting, when, ())


def gc_pauses_of_few(setting: Setting, when: When) -> Fault:
    """One to three workers."""
    return _pauses(setting, when, setting.few_workers())


def _pauses(setting: Setting, when: When, workers: tuple[Worker, ...]) -> Fault:
    pausing = len(workers) or setting.dp * setting.pp
    rate = min(0.8, setting.between(0.4, 3.0) / pausing)
    some_pause = 1 - (1 - rate) ** pausing
    pause_s = setting.lost_s() / some_pause
    is_sent = setting.sends_annotations
    return GcPauses(rate, pause_s, workers, is_sent=is_sent, when=when)


def planned_gc(setting: Setting, when: When) -> Fault:
    """Everybody at once, in the gc operation."""
    return _planned(setting, when, in_forward=False)


def planned_gc_in_forward(setting: Setting, when: When) -> Fault:
    """Everybody at once, in the first forward computation."""
    return _planned(setting, when, in_forward=True)


def _planned(setting: Setting, when: When, *, in_forward: bool) -> Fault:
    # Of the recorded steps some must be hit, whatever lies between them.
    every = int(setting.rng.integers(2, 6))
    is_sent = in_forward and setting.sends_annotations
    # Each stage's first forward computation waits for the one before it.
    at_once = setting.pp if in_forward else 1
    pause_s = every * setting.lost_s() / at_once
    return PlannedGc(every, pause_s, in_forward=in_forward, is_sent=is_sent, when=when)


def data_loading_of_host(setting: Setting, when: When) -> Fault:
    """Any host."""
    return _loading(setting, when, setting.host())


def data_loading(setting: Setting, when: When) -> Fault:
    """Every host."""
    return _loading(setting, when, None)


def _loading(setting: Setting, when: When, host: str | None) -> Fault:
    return DataLoading(host, setting.lost_s(), is_sent=setting.sends_annotations, when=when)


def allocator_stalls(setting: Setting, when: When) -> Fault:
    """One to three workers."""
    rate = setting.rng.uniform(0.1, 0.4)
    workers = setting.few_workers()
    stalls_a_step = 2 * setting.world.num_microbatches * setting.world.num_chunks * rate * 0.7
    return AllocatorStalls(workers, rate, setting.lost_s() / stalls_a_step, when=when)
