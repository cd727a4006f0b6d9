"""Faults that no worker is to blame for: data of different lengths, and slowdowns of all alike."""

from dataclasses import replace

import numpy as np

from benchmarks.strangers.faults.compute import log_uniform, scale, slowdown, truth_of
from benchmarks.strangers.faults.fault import (
    CHRONIC,
    Course,
    Draw,
    Fault,
    JobUnderway,
    Truth,
    all_workers,
    since,
    whole,
)
from benchmarks.strangers.graph import BACKWARD, FORWARD
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.simulation import Durations, Floats

CONTEXT = 8_192


def nobody(kind: str, cause: str, job: JobUnderway, course: Course) -> Truth:
    """The answer that names no culprit; all workers have their part."""
    workers = all_workers(job.shape)
    return truth_of(
        kind, frozenset({cause}), workers, course, area="all", also=(frozenset(),)
    ).without_culprits()


def uniform_slowdown(job: JobUnderway) -> Fault:
    """From a step on every computation takes longer, as with a power cap."""
    course, factor = since(job.num_steps, job.rng), slowdown(job.rng, 1.1, 2.0)
    truth = nobody("uniform-slowdown", "uniform-slowdown", job, course)
    return Fault(truth, scale(job, all_workers(job.shape), factor, course), f"{factor:.2f}x")


def ramp_on_everybody(job: JobUnderway) -> Fault:
    """Every computation takes longer from step to step."""
    factor = slowdown(job.rng, 1.2, 2.5)
    progressive = frozenset({"progressive"})
    course = Course(np.linspace(0, 1, job.num_steps), None, None, progressive)
    truth = nobody("ramp-on-everybody", "uniform-slowdown", job, course)
    return Fault(truth, scale(job, all_workers(job.shape), factor, course), f"{factor:.2f}x")


def sequence_imbalance(kind: str, *, sends_lengths: bool) -> Draw:
    """Draws micro-batches whose documents are of different lengths: attention follows squares."""

    def draw(job: JobUnderway) -> Fault:
        shape, rng = job.shape, job.rng
        attention = rng.uniform(0.3, 0.8)
        squares = np.empty((job.num_steps, shape.microbatches, shape.dp))
        mean = CONTEXT * log_uniform(rng, 0.02, 0.15)
        for at in np.ndindex(squares.shape):
            lengths = _documents(rng, mean)
            squares[at] = float(np.sum(lengths**2))
        factor = 1 - attention + attention * squares / squares.mean()
        of_compute = job.graph.of(FORWARD, BACKWARD)
        microbatch = job.graph.mb[of_compute]

        def change(durations: Durations, extras: Extras) -> None:
            durations.own[:, of_compute] *= factor[:, microbatch]
            if sends_lengths:
                extras.tokens = np.full(durations.own.shape, -1, np.int64)
                extras.seq_len_sq = extras.tokens.copy()
                extras.tokens[:, of_compute] = CONTEXT
                extras.seq_len_sq[:, of_compute] = squares[:, microbatch]

        course = replace(whole(job.num_steps), persistence=CHRONIC | {"rotating"})
        truth = nobody(kind, "sequence-imbalance", job, course)
        return Fault(truth, change, f"attention {attention:.2f}, documents of {mean:.0f}")

    return draw


def _documents(rng: np.random.Generator, mean: float) -> Floats:
    """Lengths of documents that fill one context, the last one cut off."""
    lengths = np.minimum(rng.lognormal(np.log(mean), 1.2, 64), CONTEXT)
    ends = np.minimum(np.cumsum(lengths), CONTEXT)
    found = np.diff(ends, prepend=0.0)
    found[-1] += CONTEXT - ends[-1]
    return np.asarray(found[found > 0])


def expert_load(kind: str, *, of_ranks: bool) -> Draw:
    """Draws tokens that are routed unevenly, and not in the same way each time.

    Where the all-to-alls of a layer lie inside of the computations that are recorded, all members
    of a block wait for its fullest expert: one block is slow. Else, `of_ranks`, each rank takes as
    long as its own experts do, in every block.
    """

    def draw(job: JobUnderway) -> Fault:
        shape, rng = job.shape, job.rng
        blocks = shape.dp // shape.ep
        block = int(rng.integers(blocks))
        members = list(range(block * shape.ep, (block + 1) * shape.ep))
        loaded = list(range(shape.dp)) if of_ranks else members
        strength = log_uniform(rng, 0.15, 1.2)
        of_compute = job.graph.of(FORWARD, BACKWARD)
        stage, microbatch = job.graph.stage[of_compute], job.graph.mb[of_compute]
        # Routing moves slowly from step to step and differs between layers and micro-batches.
        lanes = len(loaded) if of_ranks else 1
        slow = np.cumsum(0.2 * rng.standard_normal((job.num_steps, shape.pp, 1, lanes)), axis=0)
        single = rng.standard_normal((job.num_steps, shape.pp, shape.microbatches, lanes))
        factor = 1 + strength * np.exp(np.clip(slow + 0.5 * single, -2, 1.0))
        if of_ranks:
            factor /= factor.mean()  # as many tokens in all as with even experts

        def change(durations: Durations, extras: Extras) -> None:
            del extras
            for at, dp_rank in enumerate(loaded):
                durations.own[:, of_compute, dp_rank] *= factor[:, stage, microbatch, at % lanes]

        guilty = frozenset((d, p) for d in loaded for p in range(shape.pp))
        course = Course(np.ones(job.num_steps), None, None, CHRONIC | {"transient", "rotating"})
        truth = truth_of(kind, frozenset({"expert-imbalance"}), guilty, course)
        if of_ranks:
            truth = truth.without_culprits()
        return Fault(truth, change, f"strength {strength:.2f}, {len(loaded)} dp ranks")

    return draw
