"""What jobs do by design, or without a record of why: no cause is right, a fact may be.

A `Design` alters the times of a healthy job, beside which a fault may be drawn.
"""

import numpy as np

from benchmarks.strangers.faults.compute import log_uniform
from benchmarks.strangers.faults.fault import (
    Design,
    Draw,
    Fault,
    JobUnderway,
    Truth,
    all_workers,
    workers_of_stage,
)
from benchmarks.strangers.faults.hosts import IDLE, usual_step_s
from benchmarks.strangers.graph import BACKWARD, FORWARD, Ints
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.simulation import Durations

UNEVEN = frozenset({"uneven-microbatches"})


def unchanged(durations: Durations, extras: Extras) -> None:
    """No fault."""
    del durations, extras


def fact(kind: str, facts: frozenset[str], *, costs_nothing: bool) -> Truth:
    """The answer that says a fact and no cause."""
    nobody = frozenset[tuple[int, int]]()
    return Truth(kind, frozenset(), (), nobody, "all", facts=facts, costs_nothing=costs_nothing)


def uneven_counts(job: JobUnderway, durations: Durations, extras: Extras) -> int:
    """Half of the replicas, or some, have fewer micro-batches; always, or from a step on."""
    shape, rng = job.shape, job.rng
    # An interleaved schedule takes micro-batches in groups of as many as there are stages.
    group = shape.pp if shape.chunks > 1 else 1
    most = max(1, (shape.microbatches - shape.pp - 1) // (4 * group))
    count = shape.dp // 2 if rng.random() < 0.6 else int(rng.integers(1, shape.dp))
    lighter = rng.permutation(shape.dp)[: max(1, count)]
    fewer = np.zeros(shape.dp, np.int64)
    fewer[lighter] = group * int(rng.integers(1, most + 1))
    if rng.random() < 0.3:  # not all of them alike
        fewer[lighter] = group * rng.integers(1, most + 1, lighter.size)
    begins = 0
    if rng.random() < 0.4:
        begins = int(rng.integers(job.num_steps // 3, job.num_steps * 2 // 3))
    # With one stage the order is the same whichever are left out, and the last one, beside which
    # gradients are exchanged, stays. In a pipeline it is the order of a schedule without the last.
    microbatch = job.graph.mb[:, None]
    is_left_out = (
        microbatch < fewer if shape.pp == 1 else microbatch >= shape.microbatches - fewer
    ) & (microbatch >= 0)
    if shape.pp == 1:
        _load_before_another(job, durations, extras, fewer, begins)
    durations.own[begins:, is_left_out] = np.nan
    return 0


def _load_before_another(
    job: JobUnderway, durations: Durations, extras: Extras, fewer: Ints, begins: int
) -> None:
    """Batches are loaded before the first micro-batch that a replica has."""
    forwards = np.flatnonzero(job.graph.of(FORWARD))
    forwards = forwards[np.argsort(job.graph.mb[forwards])]
    for dp_rank in np.flatnonzero(fewer).tolist():
        op = forwards[fewer[dp_rank]]
        durations.launch[begins:, op, dp_rank] = durations.launch[begins:, forwards[0], dp_rank]
    extras.interruptions = [
        row._replace(op=int(forwards[fewer[row.dp_rank]])) if row.step >= begins else row
        for row in extras.interruptions
    ]


def to_be_said(kind: str, facts: frozenset[str] = frozenset()) -> Draw:
    """Draws no fault: a fact of the job's design is to be said, or nothing at all."""

    def draw(job: JobUnderway) -> Fault:
        del job
        return Fault(fact(kind, facts, costs_nothing=True), unchanged)

    return draw


def idle_gap(job: JobUnderway) -> Fault:
    """All ranks idle 2 to 8 % of the time between two steps, and no row says why."""
    rng = job.rng
    share, varies = rng.uniform(0.022, 0.085), bool(rng.random() < 0.5)
    gap_s = share / (1 - share) * usual_step_s(job)
    size = (job.num_steps, job.shape.pp, job.shape.dp)
    of_step = np.exp(0.35 * rng.standard_normal(job.num_steps)) if varies else 1.0
    gaps = gap_s * np.reshape(of_step, (-1, 1, 1)) * (1 + 0.005 * np.abs(rng.standard_normal(size)))

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        durations.gap += gaps

    truth = fact("idle-gap", IDLE, costs_nothing=False)
    return Fault(truth, change, f"{gap_s:.4f} s, {'varying' if varies else 'constant'}")


def gaps_between_steps(job: JobUnderway, durations: Durations, extras: Extras) -> int:
    """The same in a healthy job."""
    idle_gap(job).change(durations, extras)
    return 0


def warm_up(job: JobUnderway, durations: Durations, extras: Extras) -> int:
    """The first steps of a run compile, tune and allocate: all workers are slow, less and less."""
    del extras
    rng = job.rng
    steps = int(rng.integers(1, min(9, job.num_steps // 3 + 1)))
    most = log_uniform(rng, 0.3, 20.0)
    of_compute = job.graph.of(FORWARD, BACKWARD)
    if rng.random() < 0.4:  # the first call of each alone compiles
        steps = int(rng.integers(1, 3))
        of_compute &= job.graph.mb == job.graph.mb[of_compute].min()
    for step in range(steps):
        longer = most * np.exp(-1.2 * step) + 0.05 * rng.random()
        size = (int(of_compute.sum()), job.shape.dp)
        durations.own[step, of_compute] *= 1 + longer * rng.uniform(0.85, 1.15, size)
    return steps


def evaluations_unmarked(job: JobUnderway) -> Fault:
    """The same without a mark: that it is no checkpoint, which everybody waits for too, is unseen.

    So nobody need be named, and a checkpoint may be.
    """
    extras = Extras()

    def change(durations: Durations, _: Extras) -> None:
        durations.gap += gaps

    healthy = Durations(
        np.empty(0), np.empty(0), np.zeros((job.num_steps, 1, 1)), is_continuous=True
    )
    evaluations(job, healthy, extras)
    gaps = healthy.gap
    truth = Truth(
        "healthy-evaluation-unmarked",
        frozenset({"checkpoint-stall"}),
        (),
        all_workers(job.shape),
        "all",
        may_be_silent=True,
        costs_nothing=True,
    )
    return Fault(truth, change, f"before {list(extras.evaluations)}")


def evaluations(job: JobUnderway, durations: Durations, extras: Extras) -> int:
    """Every k steps the job evaluates, which takes it some steps' time and is marked as such."""
    rng = job.rng
    every = int(rng.integers(3, max(4, min(11, job.num_steps // 2))))
    before = np.arange(int(rng.integers(1, every + 1)), job.num_steps, every)
    lasts_s = log_uniform(rng, 0.3, 4.0) * usual_step_s(job)
    durations.gap[before] += lasts_s * np.exp(0.05 * rng.standard_normal((before.size, 1, 1)))
    extras.evaluations = tuple(before.tolist())
    return 0


def long_stages(job: JobUnderway) -> Fault:
    """Stages that differ by a few percent by design; the longer ones may be named, or nobody."""
    factor = np.array(job.base.stage_factor)
    longer = np.flatnonzero(factor > factor.mean()).tolist()
    workers = frozenset().union(*(workers_of_stage(job.shape, stage) for stage in longer))
    causes = frozenset({"stage-imbalance"})
    truth = Truth(
        "healthy-uneven-stages",
        # With one replica a long stage and a slow worker are the same.
        causes if job.shape.dp > 1 else causes | {"slow-worker"},
        (),
        workers,
        "compute",
        may_be_silent=True,
        costs_nothing=True,
    )
    return Fault(truth, unchanged, f"{100 * (factor.max() / factor.min() - 1):.1f} %")


def both(*designs: Design) -> Design:
    """One after the other."""

    def design(job: JobUnderway, durations: Durations, extras: Extras) -> int:
        return max(design(job, durations, extras) for design in designs)

    return design


def one_of(kind: str, draws: tuple[Draw, ...]) -> Draw:
    """Draws one of several faults, under one name."""

    def draw(job: JobUnderway) -> Fault:
        found = draws[int(job.rng.integers(len(draws)))](job)
        return found.named(kind)

    return draw
