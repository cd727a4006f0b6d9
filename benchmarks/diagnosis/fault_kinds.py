"""Every kind of fault of the grid, drawn so that most cost between 5 % and half of the time.

Kinds come in turn, and every fourth job has two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from app.synth.cluster import Worker, World
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.interruptions import (
    AllocatorStalls,
    DataLoading,
    GcPauses,
    PlannedGc,
    SilentWorker,
)
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import (
    LongLastStage,
    MixedGpus,
    SlowHost,
    SlowStage,
    SlowWorker,
    ThrottlingGpu,
    UniformSlowdown,
)
from app.synth.faults.slow_network import FlappingNic, SlowDpGroup, SlowLink, SlowNic

_JOBS_PER_ROUND = 4  # so many jobs, the last one with two faults


@dataclass(frozen=True, slots=True)
class FaultSetting:
    """A job of which `steps` are recorded; `step_s` is its usual step time.

    `most_lost` is the largest share of the time that a fault of seconds is meant to cost.
    """

    world: World
    costs: OperationCosts
    step_s: float
    steps: Sequence[int]
    sends_annotations: bool
    sends_lengths: bool
    max_lost_share: float
    rng: np.random.Generator

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.world.parallelism.dp_size

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.world.parallelism.pp_size

    def between(self, low: float, high: float) -> float:
        """Any number between, each magnitude as likely."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def lost_s(self) -> float:
        """Seconds a step that a fault is meant to cost: from 6 % of the time on."""
        share = self.between(0.06, self.max_lost_share)
        return self.step_s * share / (1 - share)

    def worker(self) -> Worker:
        """Any dp rank and stage."""
        return int(self.rng.integers(self.dp)), int(self.rng.integers(self.pp))

    def host(self) -> str:
        """Any host."""
        return str(self.rng.choice(self.world.host_names))

    def few_workers(self) -> tuple[Worker, ...]:
        """One to three workers, at most a quarter of them all."""
        num_workers = self.dp * self.pp
        count = min(1 + int(self.rng.integers(3)), max(1, num_workers // 4))
        chosen = self.rng.choice(num_workers, count, replace=False)
        return tuple(sorted(divmod(int(each), self.pp) for each in chosen))


def slow_worker(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any worker, up to 2.2 times as slow."""
    return SlowWorker(*setting.worker(), setting.between(1.12, 2.2), when=when)


def throttling_gpu(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any worker, slower and slower over a part of what is recorded."""
    left = setting.steps[-1] - when.first_step
    ramp_steps = max(1, round(left * setting.rng.uniform(0.2, 0.6)))
    worker = setting.worker()
    return ThrottlingGpu(*worker, setting.between(1.3, 2.5), ramp_steps=ramp_steps, when=when)


def slow_host(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any host."""
    return SlowHost(setting.host(), setting.between(1.12, 2.0), when=when)


def mixed_gpus(setting: FaultSetting, when: FaultSteps) -> Fault:
    """About a third of the hosts."""
    choice = int(setting.rng.integers(1000))
    return MixedGpus(0.3, setting.between(1.15, 1.8), choice=choice, when=when)


def slow_stage(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any stage."""
    return SlowStage(int(setting.rng.integers(setting.pp)), setting.between(1.12, 2.0), when=when)


def long_last_stage(setting: FaultSetting, when: FaultSteps) -> Fault:
    """The last stage; at most as long as production has it."""
    forward = setting.between(1.3, 2.07)
    return LongLastStage(forward, 1 + 0.4 * (forward - 1), when=when)


def sequence_imbalance(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Short and long sequences; the client may send their lengths."""
    return SequenceImbalance(
        max_length=int(setting.rng.choice([8_192, 32_768, 131_072])),
        full_share=setting.between(0.005, 0.03),
        attention_share=setting.rng.uniform(0.15, 0.6),
        is_sent=setting.sends_lengths,
        when=when,
    )


def uniform_slowdown(setting: FaultSetting, when: FaultSteps) -> Fault:
    """All workers."""
    return UniformSlowdown(setting.between(1.08, 1.6), when=when)


def silent_worker(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any worker."""
    return SilentWorker(*setting.worker(), when=when)


def slow_link(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any pair of neighbours."""
    stage = int(setting.rng.integers(setting.pp - 1))
    dp_rank = int(setting.rng.integers(setting.dp))
    # Most of it is hidden behind computations.
    return SlowLink(dp_rank, stage, _times_longer(setting, _sent_s(setting) / 2), when=when)


def slow_nic(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any worker's card."""
    normal_s = (_sent_s(setting) + _exchanged_s(setting)) / 2
    return SlowNic(*setting.worker(), _times_longer(setting, normal_s), when=when)


def slow_dp_group(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any stage."""
    stage = int(setting.rng.integers(setting.pp))
    return SlowDpGroup(stage, _times_longer(setting, _exchanged_s(setting)), when=when)


def flapping_nic(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any worker's card."""
    rate = setting.rng.uniform(0.3, 0.7)
    # Half of the micro-batches of the steps that are hit.
    normal_s = rate * (_sent_s(setting) + _exchanged_s(setting)) / 4
    slowdown = _times_longer(setting, normal_s)
    return FlappingNic(*setting.worker(), slowdown, rate=rate, when=when)


def _sent_s(setting: FaultSetting) -> float:
    """What one pair of stages exchanges in a step."""
    sent = 2 * setting.world.num_microbatches * setting.world.num_chunks
    return sent * setting.costs.stage_transfer_s


def _exchanged_s(setting: FaultSetting) -> float:
    """What the dp ranks of one stage exchange in a step."""
    if not setting.world.parallelism.is_data_parallel:
        return 0.0
    return setting.costs.params_all_gather_s + setting.costs.grads_reduce_scatter_s


def _times_longer(setting: FaultSetting, normal_s: float) -> float:
    return 1 + setting.lost_s() / normal_s


def gc_pauses(setting: FaultSetting, when: FaultSteps) -> Fault:
    """All workers in turn."""
    return _pauses(setting, when, ())


def gc_pauses_of_few(setting: FaultSetting, when: FaultSteps) -> Fault:
    """One to three workers."""
    return _pauses(setting, when, setting.few_workers())


def _pauses(setting: FaultSetting, when: FaultSteps, workers: tuple[Worker, ...]) -> Fault:
    pausing = len(workers) or setting.dp * setting.pp
    rate = min(0.8, setting.between(0.4, 3.0) / pausing)
    some_pause = 1 - (1 - rate) ** pausing
    pause_s = setting.lost_s() / some_pause
    is_sent = setting.sends_annotations
    return GcPauses(rate, pause_s, workers, is_sent=is_sent, when=when)


def planned_gc(setting: FaultSetting, when: FaultSteps) -> Fault:
    """All workers at once, in the gc operation."""
    return _planned(setting, when, in_forward=False)


def planned_gc_in_forward(setting: FaultSetting, when: FaultSteps) -> Fault:
    """All workers at once, in the first forward computation."""
    return _planned(setting, when, in_forward=True)


def _planned(setting: FaultSetting, when: FaultSteps, *, in_forward: bool) -> Fault:
    # Of the recorded steps some must be hit, whatever lies between them.
    every = int(setting.rng.integers(2, 6))
    is_sent = in_forward and setting.sends_annotations
    # Each stage's first forward computation waits for the one before it.
    pauses_per_step = setting.pp if in_forward else 1
    pause_s = every * setting.lost_s() / pauses_per_step
    return PlannedGc(every, pause_s, in_forward=in_forward, is_sent=is_sent, when=when)


def data_loading_of_host(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Any host."""
    return _loading(setting, when, setting.host(), is_sent=setting.sends_annotations)


def data_loading(setting: FaultSetting, when: FaultSteps) -> Fault:
    """Every host; without reports of the client that is idle time, of which no row says why."""
    return _loading(setting, when, None, is_sent=True)


def _loading(setting: FaultSetting, when: FaultSteps, host: str | None, *, is_sent: bool) -> Fault:
    return DataLoading(host, setting.lost_s(), is_sent=is_sent, when=when)


def allocator_stalls(setting: FaultSetting, when: FaultSteps) -> Fault:
    """One to three workers."""
    rate = setting.rng.uniform(0.1, 0.4)
    workers = setting.few_workers()
    stalls_per_step = 2 * setting.world.num_microbatches * setting.world.num_chunks * rate * 0.7
    return AllocatorStalls(workers, rate, setting.lost_s() / stalls_per_step, when=when)


FaultDraw = Callable[[FaultSetting, FaultSteps], Fault]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault and its cause; `has_place` if it is a single worker, host or link.

    `is_alone`: never with another one in a job. `is_step` says whether steps are longer by the
    same from its first one on, `wants` (dp, pp, hosts) what a job must have at least. `begins` is
    the share of such faults that begin during the recording; the others are older than it.
    """

    name: str
    cause: str
    draw: FaultDraw
    has_place: bool = False
    is_step: bool = False
    wants: tuple[int, int, int] = (1, 1, 1)
    begins: float = 0.5
    is_alone: bool = False


KINDS = (
    FaultKind("slow-worker", "slow-worker", slow_worker, has_place=True, is_step=True),
    FaultKind("throttling-gpu", "slow-worker", throttling_gpu, has_place=True, begins=1.0),
    FaultKind(
        "slow-host",
        "slow-worker",
        slow_host,
        has_place=True,
        is_step=True,
        wants=(1, 1, 3),
    ),
    FaultKind("mixed-gpus", "slow-worker", mixed_gpus, wants=(1, 1, 4), begins=0.0),
    FaultKind(
        "slow-stage",
        "stage-imbalance",
        slow_stage,
        is_step=True,
        wants=(1, 2, 1),
        begins=0.3,
    ),
    FaultKind("long-last-stage", "stage-imbalance", long_last_stage, wants=(1, 2, 1), begins=0.0),
    FaultKind("slow-link", "slow-link", slow_link, has_place=True, is_step=True, wants=(1, 2, 1)),
    FaultKind("slow-nic", "slow-link", slow_nic, has_place=True, is_step=True, wants=(1, 2, 1)),
    FaultKind("slow-dp-group", "slow-link", slow_dp_group, is_step=True, wants=(2, 2, 1)),
    FaultKind("flapping-nic", "flapping-link", flapping_nic, has_place=True, wants=(1, 2, 1)),
    FaultKind("gc-pauses", "gc-pause", gc_pauses),
    FaultKind("gc-pauses-of-few", "gc-pause", gc_pauses_of_few),
    FaultKind("planned-gc", "gc-pause", planned_gc),
    FaultKind("planned-gc-in-forward", "gc-pause", planned_gc_in_forward),
    FaultKind(
        "data-loading-of-host",
        "data-loading",
        data_loading_of_host,
        is_step=True,
        wants=(1, 1, 3),
    ),
    FaultKind("data-loading", "data-loading", data_loading, is_step=True),
    FaultKind("allocator-stalls", "allocator-stall", allocator_stalls),
    FaultKind("sequence-imbalance", "sequence-imbalance", sequence_imbalance, begins=0.3),
    FaultKind("uniform-slowdown", "uniform-slowdown", uniform_slowdown, is_step=True, begins=1.0),
    FaultKind(
        "silent-worker",
        "silent-worker",
        silent_worker,
        wants=(1, 1, 1),
        begins=1.0,
        is_alone=True,
    ),
)


def kinds_of(index: int) -> tuple[FaultKind, ...]:
    """The kinds of fault of the `index`-th faulty job."""
    round_index, index_in_round = divmod(index, _JOBS_PER_ROUND)
    if index_in_round == _JOBS_PER_ROUND - 1:
        pairs = _pairs()
        return pairs[round_index % len(pairs)]
    return (KINDS[(round_index * (_JOBS_PER_ROUND - 1) + index_in_round) % len(KINDS)],)


def _pairs() -> list[tuple[FaultKind, FaultKind]]:
    """All pairs of different causes, in an order that is the same for ever."""
    alone = [kind for kind in KINDS if not kind.is_alone]
    pairs = [(a, b) for a, b in combinations(alone, 2) if a.cause != b.cause]
    order = np.random.default_rng(5).permutation(len(pairs))
    return [pairs[position] for position in order]
