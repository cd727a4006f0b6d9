"""From a number to a simulated job: everything about it is drawn from its number alone.

    number = seed * 1,000,000 + group * 100,000 + index

so that each job can be reproduced alone, whatever run it came from. Families of shapes, schedules,
noises and costs: some to tune on, others held out for reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.sequence_imbalance import BalancedSequences
from app.synth.job import JobEvent, Resize, Restart, SimulatedJob, SimulatedRun, simulated_runs
from app.synth.noise import HeavyTailed, LogNormal, Noise, Pareto
from app.synth.normal_variation import SpecialSteps
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from app.trace.window import Floats
from benchmarks.diagnosis.fault_kinds import FaultKind, FaultSetting, kinds_of
from benchmarks.diagnosis.observation import ArrivalHabits

_GROUP_STRIDE = 100_000
_SEED_STRIDE = 1_000_000
_GROUPS = (("tune", False), ("tune", True), ("held-out", False), ("held-out", True))
Between = tuple[float, float]
GPUS_PER_HOST = 8
Rng = np.random.Generator
NUM_STEPS = 60  # recorded, or a little less, so that all windows are full
# Minimum of recorded steps before and with a fault that begins during the recording.
_MIN_STEPS_BEFORE = 10
_MIN_STEPS_WITH = 12


@dataclass(frozen=True, slots=True)
class JobNumber:
    """The `index`-th faulty or healthy job of a family, for a seed."""

    seed: int
    family: str
    is_healthy: bool
    index: int

    @property
    def number(self) -> int:
        """The number that identifies the job."""
        group = _GROUPS.index((self.family, self.is_healthy))
        return self.seed * _SEED_STRIDE + group * _GROUP_STRIDE + self.index

    @classmethod
    def of(cls, number: int) -> "JobNumber":
        """The job of this number.

        Raises:
            InvalidRequest: there is none.
        """
        seed, rest = divmod(number, _SEED_STRIDE)
        group, index = divmod(rest, _GROUP_STRIDE)
        if number < 0 or group >= len(_GROUPS):
            raise InvalidRequest(f"no job has the number {number}: take one from the misses")
        return cls(seed, *_GROUPS[group], index)


def job_numbers(seed: int, family: str, num_faulty: int, num_healthy: int) -> list[JobNumber]:
    """This many jobs; with `all` families, every third one is held out.

    Raises:
        InvalidRequest: more than a seed has numbers for.
    """
    if max(num_faulty, num_healthy) > _GROUP_STRIDE:
        raise InvalidRequest(f"a seed has at most {_GROUP_STRIDE:,} jobs: use several seeds")
    return [
        JobNumber(seed, name, is_healthy, index)
        for is_healthy, count in ((False, num_faulty), (True, num_healthy))
        for name, index in _split_between_families(family, count)
    ]


def _split_between_families(family: str, count: int) -> list[tuple[str, int]]:
    """Family and position in it; each family's are its first so many."""
    if family != "all":
        return [(family, index) for index in range(count)]
    thirds = (divmod(each, 3) for each in range(count))
    return [
        ("held-out", third) if part == 2 else ("tune", 2 * third + part) for third, part in thirds
    ]


@dataclass(frozen=True, slots=True)
class GammaNoise(Noise):
    """Sums of many short waits: skewed to the right, with a light tail."""

    name = "gamma"

    @override
    def _uncapped(self, spread: float, size: int, rng: np.random.Generator) -> Floats:
        return np.asarray(rng.gamma(spread**-2, spread**2, size))

    @override
    def _median(self, spread: float) -> float:
        # Banneheka and Ekanayake, 2009: within 1e-3 for shapes above 1.
        shape = spread**-2
        return (3 * shape - 0.8) / (3 * shape + 0.2)


@dataclass(frozen=True, slots=True)
class JobShape:
    """Sizes of a job, and its schedule."""

    dp: int
    pp: int
    microbatches: int
    schedule: str = "1f1b"
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class JobFamily:
    """What jobs are drawn from: choices, and (low, high) for numbers.

    `spread` is the coefficient of variation of computations; `backward` how many times longer a
    backward takes than a forward; `transfer` the time of sending a micro-batch, and `collective`
    that of gathering parameters, in forwards of a stage; `uneven` how far a healthy stage's work
    is from the mean of stages.
    """

    name: str
    shapes: tuple[JobShape, ...]
    noises: tuple[Noise, ...]
    spread: Between
    transfer_spread: Between
    forward_s: Between
    backward: Between
    transfer: Between
    collective: Between
    uneven: float


TUNE = JobFamily(
    "tune",
    shapes=(
        JobShape(4, 4, 8),
        JobShape(8, 2, 8),
        JobShape(2, 4, 8),
        JobShape(8, 4, 8),
        JobShape(8, 1, 8),
        JobShape(1, 4, 12),
        JobShape(4, 4, 8, "gpipe"),
        JobShape(4, 4, 8, "interleaved", 2),
        JobShape(4, 2, 6, "zero-bubble"),
    ),
    noises=(LogNormal(), LogNormal(), HeavyTailed()),
    spread=(0.01, 0.05),
    transfer_spread=(0.03, 0.10),
    forward_s=(0.015, 0.04),
    backward=(1.9, 2.1),
    transfer=(0.005, 0.03),
    collective=(0.1, 0.3),
    uneven=0.0,
)

HELD_OUT = JobFamily(
    "held-out",
    shapes=(
        JobShape(6, 3, 9),
        JobShape(3, 8, 16),
        JobShape(12, 2, 5),
        JobShape(16, 1, 4),
        JobShape(5, 5, 10, "gpipe"),
        JobShape(6, 2, 8, "interleaved", 3),
        JobShape(3, 4, 12, "zero-bubble"),
        JobShape(1, 6, 12),
    ),
    noises=(Pareto(), GammaNoise(), Pareto()),
    spread=(0.01, 0.05),
    transfer_spread=(0.02, 0.15),
    forward_s=(0.05, 0.12),
    backward=(1.5, 2.8),
    transfer=(0.03, 0.08),
    collective=(0.3, 0.8),
    uneven=0.015,
)

FAMILIES = {family.name: family for family in (TUNE, HELD_OUT)}


def draw_sizes(
    family: JobFamily, kinds: Sequence[FaultKind], rng: Rng
) -> tuple[JobShape, Parallelism]:
    """A shape that has a place for these kinds of fault, and how many GPUs each worker has."""
    fitting = [
        (shape, Parallelism(shape.dp, shape.pp, tp_size=tp_size, vpp_size=shape.chunks))
        for shape in family.shapes
        for tp_size in (2, 4, 8)
        if all(_fits(kind, shape, tp_size) for kind in kinds)
    ]
    return fitting[rng.integers(len(fitting))]


def _fits(kind: FaultKind, shape: JobShape, tp_size: int) -> bool:
    dp, pp, hosts = kind.wants
    num_hosts = -(-shape.dp * shape.pp * tp_size // GPUS_PER_HOST)
    return shape.dp >= dp and shape.pp >= pp and num_hosts >= max(hosts, 2)


def draw_costs(family: JobFamily, shape: JobShape, rng: Rng) -> OperationCosts:
    """What operations take."""
    forward_s = _draw_between(family.forward_s, rng)
    gather_s = _draw_between(family.collective, rng) * forward_s
    uneven = 1 + family.uneven * rng.uniform(-1, 1, shape.pp)
    return OperationCosts(
        forward_s=forward_s,
        backward_s=_draw_between(family.backward, rng) * forward_s,
        stage_transfer_s=_draw_between(family.transfer, rng) * forward_s,
        params_all_gather_s=gather_s,
        grads_reduce_scatter_s=gather_s * 4 / 3,
        noise=_draw_between(family.spread, rng),
        transfer_noise=_draw_between(family.transfer_spread, rng),
        stage_factors=tuple(uneven.tolist()),
        tail=family.noises[rng.integers(len(family.noises))],
    )


def draw_cluster(rng: Rng) -> Cluster:
    """Half of the jobs have clocks that are wrong."""
    if rng.random() < 0.5:
        return Cluster(GPUS_PER_HOST)
    drift_ppm = float(rng.choice([0.0, 200.0]))
    return Cluster(GPUS_PER_HOST, clock_offset_s=1.0, drift_ppm=drift_ppm, jitter_s=50e-6)


def draw_window_steps(rng: Rng) -> int:
    """The service's default, or longer windows."""
    return int(rng.choice([8, 20, 20]))


def draw_steps(num_steps: int, rng: Rng) -> tuple[int, ...]:
    """Steps from the job's very first on, from later on, or 30 of every 300."""
    kind = rng.integers(3)
    first = 0 if kind == 0 else int(rng.integers(100, 5000))
    of_each = 30 if kind == 2 else num_steps
    return tuple(first + 10 * of_each * (i // of_each) + i % of_each for i in range(num_steps))


def draw_odd_steps(step_s: float, rng: Rng) -> SpecialSteps:
    """First steps that are long, and in every second job evaluations and checkpoints."""
    has_others = rng.random() < 0.5
    return SpecialSteps(
        num_first=int(rng.integers(4)),
        first_factor=float(rng.uniform(1.5, 4.0)),
        evaluate_every=int(rng.integers(10, 50)) if has_others else 0,
        evaluation_s=float(rng.uniform(0.5, 5.0)) * step_s,
        checkpoint_every=int(rng.integers(10, 50)) if has_others else 0,
        checkpoint_s=float(rng.uniform(0.3, 3.0)) * step_s,
    )


def draw_events(steps: Sequence[int], parallelism: Parallelism, rng: Rng) -> tuple[JobEvent, ...]:
    """Of ten healthy jobs one is started again, and one with another number of replicas."""
    at_step, lost = steps[len(steps) // 2 + int(rng.integers(-5, 6))], int(rng.integers(6))
    kind = rng.integers(10)
    if kind == 0:
        return (Restart(at_step, lost),)
    if kind == 1 and parallelism.dp_size > 2:
        return (Resize(at_step, lost, dp_size=parallelism.dp_size - 1),)
    return ()


def draw_habits(
    parallelism: Parallelism, cluster: Cluster, step_s: float, rng: Rng
) -> ArrivalHabits:
    """In a third of jobs one worker is late; most jobs send hosts, always with wrong clocks."""
    late_worker, late_s = None, 0.0
    if rng.random() < 1 / 3:
        late_worker = int(rng.integers(parallelism.dp_size)), int(rng.integers(parallelism.pp_size))
        late_s = float(rng.uniform(1, 8)) * step_s
    sends_hosts = cluster.clock_offset_s > 0 or rng.random() < 0.8
    return ArrivalHabits(sends_hosts, late_worker, late_s)


def _draw_between(low_high: Between, rng: Rng) -> float:
    return float(rng.uniform(*low_high))


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A simulated job and how its batches arrive; `kinds` are its faults', in order."""

    simulated: SimulatedJob
    kinds: tuple[FaultKind, ...]
    steps: tuple[int, ...]
    window_steps: int
    habits: ArrivalHabits
    events: tuple[JobEvent, ...] = ()

    @property
    def attempts(self) -> list[SimulatedRun]:
        """The job's runs: more than one where it was started again."""
        return simulated_runs(self.simulated, self.steps, self.events)

    @property
    def what(self) -> str:
        """The job in a line."""
        sizes, simulated = self.simulated.parallelism, self.simulated
        shape = (
            f"dp {sizes.dp_size}, pp {sizes.pp_size}, {simulated.num_microbatches} micro-batches"
        )
        noise = f"{simulated.costs.tail.name} {simulated.costs.noise:.3f}"
        names = [*(kind.name for kind in self.kinds), *(event.name for event in self.events)]
        faults = " and ".join(names) or "healthy"
        return f"{faults}: {shape}, {simulated.schedule.name}, {noise}"


def plan_of(numbered: JobNumber) -> JobPlan:
    """The job of this number."""
    rng = np.random.default_rng([numbered.number])
    family = FAMILIES[numbered.family]
    kinds = () if numbered.is_healthy else kinds_of(numbered.index)
    shape, sizes = draw_sizes(family, kinds, rng)
    simulated = SimulatedJob(
        sizes,
        shape.microbatches,
        name=f"made-{numbered.number}",
        costs=draw_costs(family, shape, rng),
        seed=numbered.number,
        schedule=SCHEDULES[shape.schedule],
        cluster=draw_cluster(rng),
        records_gpus=bool(rng.random() < 0.5),
    )
    window_steps = draw_window_steps(rng)
    steps = draw_steps(NUM_STEPS - NUM_STEPS % window_steps, rng)
    step_s = _median_step_s(simulated, steps)
    habits = draw_habits(sizes, simulated.cluster, step_s, rng)
    simulated = replace(simulated, odd_steps=draw_odd_steps(step_s, rng))
    if numbered.is_healthy:
        events = draw_events(steps, sizes, rng)
        healthy = replace(simulated, faults=_harmless_faults(rng))
        return JobPlan(healthy, (), steps, window_steps, habits, events)
    sends = (bool(rng.random() < 0.5), bool(rng.random() < 0.5))
    max_lost_share = 0.5 if len(kinds) == 1 else 0.3
    setting = FaultSetting(
        simulated.world, simulated.costs, step_s, steps, *sends, max_lost_share, rng
    )
    faults = tuple(_draw_fault(kind, setting) for kind in kinds)
    return JobPlan(replace(simulated, faults=faults), kinds, steps, window_steps, habits)


def _harmless_faults(rng: np.random.Generator) -> tuple[Fault, ...]:
    """A quarter of healthy jobs send sequence lengths, which vary but are balanced."""
    return (BalancedSequences(is_sent=True),) if rng.random() < 0.25 else ()


def _median_step_s(simulated: SimulatedJob, steps: tuple[int, ...]) -> float:
    (block,) = simulated.blocks(steps[10:17])
    return float(np.median(block.step_s()))


def _draw_fault(kind: FaultKind, setting: FaultSetting) -> Fault:
    if setting.rng.random() >= kind.begins:
        return kind.draw(setting, FaultSteps())
    position = int(setting.rng.integers(_MIN_STEPS_BEFORE, len(setting.steps) - _MIN_STEPS_WITH))
    return kind.draw(setting, FaultSteps(setting.steps[position]))
