"""One job for every number: its shape, noise, recorder and faults, all drawn from that number."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np

from app.errors import InvalidTrace
from app.trace.readers.published import trace_files
from app.trace.window import Window
from benchmarks.strangers.faults.families import ALL_KINDS
from benchmarks.strangers.faults.fault import Fault, JobUnderway, Truth, Workers
from benchmarks.strangers.faults.kinds import BOTH, EVERYWHERE, Family, Kind
from benchmarks.strangers.graph import FORWARD, StepGraph
from benchmarks.strangers.graphs import graph_of
from benchmarks.strangers.noise import LEVELS, Base, Level, Noise
from benchmarks.strangers.recording import Extras, Interruption, Recorder, record
from benchmarks.strangers.shape import Gradients, Schedule, Shape
from benchmarks.strangers.simulation import Durations, Simulated, simulate

# Jobs of families and healthy kinds are no part of the final ones.
Group = Literal["single", "pair", "healthy", "apart", "family", "healthy-kind"]
MAX_ROWS = 60_000
LARGE_ROWS = 250_000
# Faults are drawn again, some times, until one costs neither too little nor almost everything.
MOST_COST, MAX_DRAWS = 0.6, 12
# Jobs whose receives are posted later than the published model has it, as in the trace AR: their
# transfers are exposed where the model overlaps them, and replays are shorter than records.
POSTS_LATE_SHARE = 0.1
MOST_SAMPLED = 3  # steps of a window that is a sample, such as a profile
WARM_UP_SHARE = 0.15  # of healthy jobs


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
    """A job as Paceline is given it, with the right answers.

    `window` is None where the file of the recording is refused; `refusal` is then the reason.
    `silent` are workers without any record.
    """

    number: JobNumber
    shape: Shape
    level: Level
    recorder: Recorder
    window: Window | None
    faults: tuple[FaultTruth, ...]
    step_s: float
    num_steps: int
    silent: Workers = frozenset()
    refusal: str = ""


def draw_job(number: JobNumber) -> DrawnJob:
    """Simulate and record the job."""
    rng = number.rng()
    kinds = [ALL_KINDS[name] for name in number.kinds]
    # With one stage or one replica, evidence of two faults is rarely enough for two names.
    families = EVERYWHERE if not kinds else kinds[0].families if len(kinds) == 1 else BOTH
    shape = _shape(families[int(rng.integers(len(families)))], rng)
    for kind in kinds:
        shape = kind.adapt(shape, rng)
    graph = graph_of(shape, posts_late=bool(rng.random() < POSTS_LATE_SHARE))
    num_steps = _num_steps(shape, graph, max([8, *(kind.min_steps for kind in kinds)]), rng)
    if any(kind.is_sample for kind in kinds):
        num_steps = int(rng.integers(1, MOST_SAMPLED + 1))
    base = Base.draw(shape, rng)
    level: Level = list(LEVELS)[int(rng.integers(len(LEVELS)))]
    recorder = _recorder(shape, number.group, rng)
    for kind in kinds:
        base = base if kind.adapt_base is None else kind.adapt_base(base, shape, rng)
        level = kind.level or level
        if kind.adapt_recorder is not None:
            recorder = kind.adapt_recorder(recorder, rng)
    healthy = Noise(LEVELS[level]).durations(
        shape, graph, base, num_steps, rng, is_continuous=recorder.is_client
    )
    extras = Extras()
    has_loader = recorder.is_client and bool(rng.random() < 0.5)
    has_loader |= any(kind.has_loader for kind in kinds)
    if has_loader:
        load_batches(shape, graph, base, healthy, extras, rng)
    if not kinds and rng.random() < WARM_UP_SHARE:
        recorder = replace(recorder, first_step=0)
        _warm_up(healthy, rng)
    underway = JobUnderway(shape, graph, base, num_steps, rng, has_loader)
    designs = [kind.design(underway, healthy, extras) for kind in kinds if kind.design is not None]
    first_steps = max(designs, default=0)
    faults = [_drawn_fault(kind, underway, healthy) for kind in kinds]
    simulated = _with_faults(graph, healthy, faults, extras)
    window = record(shape, graph, simulated, recorder, extras, rng)
    job = DrawnJob(
        number,
        shape,
        level,
        recorder,
        window,
        tuple(
            FaultTruth(
                each.truth, _cost(graph, healthy, faults, each, simulated, first_steps), each.words
            )
            for each in faults
        ),
        simulated.step_s,
        num_steps,
    )
    return _incompletely_recorded(job, window, kinds, rng)


def _drawn_fault(kind: Kind, underway: JobUnderway, healthy: Durations) -> Fault:
    """One that costs neither almost nothing nor almost everything, if there is one."""
    usual_s = simulate(underway.graph, healthy).step_s
    for _ in range(MAX_DRAWS):
        fault = kind.draw(underway)
        if fault.truth.costs_nothing or (fault.truth.facts and not fault.truth.causes):
            break
        slow_s = _with_faults(underway.graph, healthy, [fault], Extras()).step_s
        if kind.least_cost <= 1 - usual_s / slow_s <= MOST_COST:
            break
    return fault


def load_batches(
    shape: Shape,
    graph: StepGraph,
    base: Base,
    healthy: Durations,
    extras: Extras,
    rng: np.random.Generator,
) -> None:
    """Short data waits of every worker that loads, annotated as the client's loader does."""
    for stage in sorted({0, shape.pp - 1}):
        op = int(np.flatnonzero(graph.of(FORWARD) & (graph.stage == stage))[0])
        waits = np.minimum(rng.exponential(3e-4, (len(healthy.own), shape.dp)), base.forward_s / 50)
        healthy.launch[:, op] += waits
        extras.interruptions += [
            Interruption("data-wait", step, op, d, -float(waits[step, d]), float(waits[step, d]))
            for step, d in np.ndindex(waits.shape)
        ]


def _warm_up(healthy: Durations, rng: np.random.Generator) -> None:
    """The first steps of a run compile, tune and allocate: all workers are slow."""
    for step in range(int(rng.integers(1, 4))):
        healthy.own[step] *= 1 + rng.uniform(0.3, 4.0) * rng.uniform(0.8, 1.2, healthy.own[0].shape)


def _incompletely_recorded(
    job: DrawnJob, window: Window, kinds: list[Kind], rng: np.random.Generator
) -> DrawnJob:
    """The job as a reader of its file gives it, if rows or ranks of it are lost."""
    lost = max((kind.lost_rows for kind in kinds), default=0.0)
    trace, silent = window.trace, frozenset[tuple[int, int]]()
    is_there = np.ones(trace.num_ops, bool)
    if lost:
        is_there = rng.random(trace.num_ops) >= lost * rng.uniform(0.4, 2.0)
    elif any(kind.has_silent_rank for kind in kinds):
        guilty = job.faults[0].truth.guilty
        healthy = [(d, p) for d, p in job.shape.workers() if (d, p) not in guilty]
        silent = frozenset({healthy[int(rng.integers(len(healthy)))]})
        ((dp_rank, stage),) = silent
        is_there = (trace.dp_rank != dp_rank) | (trace.stage != stage)
    elif any(kind.goes_silent for kind in kinds):
        truth = job.faults[0].truth
        ((dp_rank, stage),) = truth.guilty
        is_there = (trace.dp_rank != dp_rank) | (trace.stage != stage)
        is_there |= trace.step < job.recorder.first_step + (truth.onset or 0)
    if is_there.all() and not any(kind.differ for kind in kinds):
        return job
    with TemporaryDirectory(prefix="paceline-") as folder:
        path = Path(folder) / "trace-stranger.parquet"
        origin_ns = dict(zip(window.steps, window.origin_ns or (), strict=False)) or None
        trace_files.write(
            trace.select(is_there),
            window.job,
            path,
            hosts=window.hosts or None,
            origin_ns=origin_ns,
        )
        try:
            found = replace(trace_files.read(path), epoch=window.epoch)
            return replace(job, window=found, silent=silent)
        except InvalidTrace as error:
            return replace(job, window=None, silent=silent, refusal=str(error))


def _with_faults(
    graph: StepGraph, healthy: Durations, faults: list[Fault], extras: Extras
) -> Simulated:
    durations = healthy.copy()
    for each in faults:
        each.change(durations, extras)
    return simulate(graph, durations)


def _cost(
    graph: StepGraph,
    healthy: Durations,
    faults: list[Fault],
    fault: Fault,
    all_on: Simulated,
    first_steps: int,
) -> float:
    """(T - T without this fault) / T, T the mean step with all faults of the job.

    The first steps of a run, which are no measure of the others, are left out.
    """
    others = [each for each in faults if each is not fault]
    without_s = _with_faults(graph, healthy, others, Extras()).step_s_after(first_steps)
    with_s = all_on.step_s_after(first_steps)
    return (with_s - without_s) / with_s


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
