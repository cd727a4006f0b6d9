"""One job for every number: its shape, noise, recorder and faults, all drawn from that number."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from app.trace.window import Window
from benchmarks.strangers.faults.fault import Fault, JobUnderway, Truth
from benchmarks.strangers.faults.kinds import BOTH, EVERYWHERE, KINDS, Family
from benchmarks.strangers.graph import StepGraph, build_graph
from benchmarks.strangers.noise import LEVELS, Base, Level, Noise
from benchmarks.strangers.recording import Extras, Recorder, record
from benchmarks.strangers.shape import Gradients, Schedule, Shape
from benchmarks.strangers.simulation import Durations, Simulated, simulate

Group = Literal["single", "pair", "healthy", "apart"]
MAX_ROWS = 60_000
LARGE_ROWS = 250_000


@dataclass(frozen=True, slots=True)
class JobNumber:
    """Names one job for ever: a seed, the group that it is drawn for, and its place there."""

    seed: int
    group: Group
    index: int
    kinds: tuple[str, ...] = ()

    def rng(self) -> np.random.Generator:
        """Everything about the job is drawn from this."""
        named = [ord(each) for each in "/".join((self.group, *self.kinds))]
        return np.random.default_rng([self.seed, self.index, *named])


@dataclass(frozen=True, slots=True)
class FaultTruth:
    """What should be said of one fault of a job, and the share of GPU time that it costs."""

    truth: Truth
    cost: float
    words: str


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """A job as Paceline is given it, with the right answers."""

    number: JobNumber
    shape: Shape
    level: Level
    recorder: Recorder
    window: Window
    faults: tuple[FaultTruth, ...]
    step_s: float


def draw_job(number: JobNumber) -> DrawnJob:
    """Simulate and record the job."""
    rng = number.rng()
    kinds = [KINDS[name] for name in number.kinds]
    families = EVERYWHERE
    if kinds:
        # With one stage or one replica, evidence of two faults is rarely enough for two names.
        families = kinds[0].families if len(kinds) == 1 else BOTH
    shape = _shape(families[int(rng.integers(len(families)))], rng)
    graph = build_graph(shape)
    num_steps = _num_steps(shape, graph, max([8, *(kind.min_steps for kind in kinds)]), rng)
    base = Base.draw(shape, rng)
    level: Level = list(LEVELS)[int(rng.integers(len(LEVELS)))]
    recorder = _recorder(shape, number.group, rng)
    healthy = Noise(LEVELS[level]).durations(
        shape, graph, base, num_steps, rng, is_continuous=recorder.is_client
    )
    underway = JobUnderway(shape, graph, base, num_steps, rng, bool(recorder.names_hosts))
    faults = [kind.draw(underway) for kind in kinds]
    simulated, extras = _with_faults(graph, healthy, faults)
    return DrawnJob(
        number,
        shape,
        level,
        recorder,
        record(shape, graph, simulated, recorder, extras, rng),
        tuple(
            FaultTruth(each.truth, _cost(graph, healthy, faults, each, simulated), each.words)
            for each in faults
        ),
        simulated.step_s,
    )


def _with_faults(
    graph: StepGraph, healthy: Durations, faults: list[Fault]
) -> tuple[Simulated, Extras]:
    durations, extras = healthy.copy(), Extras()
    for each in faults:
        each.change(durations, extras)
    return simulate(graph, durations), extras


def _cost(
    graph: StepGraph, healthy: Durations, faults: list[Fault], fault: Fault, all_on: Simulated
) -> float:
    """(T - T without this fault) / T, T the mean step with all faults of the job."""
    without, _ = _with_faults(graph, healthy, [each for each in faults if each is not fault])
    return (all_on.step_s - without.step_s) / all_on.step_s


def _shape(family: Family, rng: np.random.Generator) -> Shape:
    dp = 1 if family == "pp" else int(rng.choice([2, 3, 4, 4, 6, 8, 8, 12, 16]))
    pp = 1 if family == "dp" else int(rng.choice([2, 3, 4, 4, 6, 8]))
    if family != "pp" and rng.random() < 0.04:
        dp = 64
    schedule: Schedule = "gpipe" if rng.random() < 0.15 else "1f1b"
    chunks = 1
    microbatches = int(rng.integers(max(4, pp), 33))
    if pp in (2, 3, 4) and rng.random() < 0.25:
        schedule, chunks = "interleaved", int(rng.choice([2, 2, 3, 4]))
        microbatches = pp * int(rng.integers(2, max(3, 24 // pp)))
    if family == "dp":
        schedule, microbatches = "1f1b", int(rng.integers(4, 17))
    tp = int(rng.choice([1, 2, 8, 8]))
    styles: list[Gradients] = ["plain", "plain", "overlapped"]
    if family == "dp":
        styles.append("buckets")
    gradients: Gradients = "none" if dp == 1 else styles[int(rng.integers(len(styles)))]
    shape = Shape(
        dp,
        pp,
        microbatches,
        chunks,
        tp,
        schedule=schedule,
        gradients=gradients,
        has_gathers=gradients != "buckets",
    )
    if gradients == "buckets":
        shape = replace(shape, has_small_reductions=False, has_clip=bool(rng.random() < 0.5))
    if family == "pp" and rng.random() < 0.3:
        shape = replace(shape, has_small_reductions=False, has_clip=False)
    return shape


def _num_steps(shape: Shape, graph: StepGraph, least: int, rng: np.random.Generator) -> int:
    """8 to 40, and not more rows than a benchmark has time for."""
    most = (LARGE_ROWS if shape.dp > 16 else MAX_ROWS) // (graph.num_ops * shape.dp)
    return int(np.clip(rng.integers(least, 41), least, max(least, most)))


def _recorder(shape: Shape, group: Group, rng: np.random.Generator) -> Recorder:
    is_client = bool(rng.random() < 0.6) or shape.chunks > 1
    hosts = shape.num_hosts
    if group == "apart":
        most = float(np.exp(rng.uniform(np.log(0.5e-3), np.log(10e-3))))
        drift, names_hosts = 0.0, False
    else:
        most = 0.0 if rng.random() < 0.5 else float(rng.uniform(0, 10e-3))
        drift = 0.0 if most == 0 or rng.random() < 0.7 else 2e-5
        names_hosts = most > 0 or bool(rng.random() < 0.7)
    return Recorder(
        is_client=is_client,
        names_hosts=names_hosts,
        first_step=int(rng.choice([1, 100, 2_000])),
        offset_s=tuple(rng.uniform(0, most, hosts)) if most else (0.0,) * hosts,
        drift=tuple(rng.uniform(-drift, drift, hosts)),
    )
