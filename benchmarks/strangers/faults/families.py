"""Kinds of jobs beside those of the final seeds, each written from its description alone.

`FAMILIES` have a fault or a fact to be told; jobs of `HEALTHY_KINDS` have neither.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchmarks.strangers.faults import by_design, compute, data_parallel, hosts, network
from benchmarks.strangers.faults.by_design import both, one_of, to_be_said
from benchmarks.strangers.faults.data_parallel import (
    communication_bound,
    irregular,
    slow_rank,
    usual_base,
    with_a_client,
    with_ddp,
    with_either,
    with_fsdp,
    with_hidden_buckets,
    with_some_ddp,
)
from benchmarks.strangers.faults.fault import Fault, JobUnderway, since
from benchmarks.strangers.faults.kinds import (
    BOTH,
    COUNTED_COST,
    EVERYWHERE,
    IN_TURN,
    KINDS,
    REPLICAS,
    Family,
    Kind,
    from_the_start,
    with_a_network,
    with_gaps_seen,
)
from benchmarks.strangers.noise import Base
from benchmarks.strangers.recording import Recorder
from benchmarks.strangers.shape import Shape

ONE_STAGE: tuple[Family, ...] = ("dp",)
SEVERAL_STAGES: tuple[Family, ...] = ("3d", "3d", "pp")


def with_uneven_counts(shape: Shape, rng: np.random.Generator) -> Shape:
    """Enough micro-batches that a quarter of them may be missing."""
    del rng
    group = shape.pp if shape.chunks > 1 else 1
    least = max(4, 3 * group, shape.pp + 2)
    return replace(shape, microbatches=max(shape.microbatches, -(-least // group) * group))


def with_a_barrier(shape: Shape, rng: np.random.Generator) -> Shape:
    """All ranks end their steps together: what follows is idle time of all."""
    del rng
    return replace(shape, has_clip=True)


def after_a_restart(recorder: Recorder, rng: np.random.Generator) -> Recorder:
    """The first window of a job that goes on with another number of replicas."""
    return replace(recorder, epoch=2, first_step=int(rng.integers(50, 5_000)))


def uneven_stages(base: Base, shape: Shape, rng: np.random.Generator) -> Base:
    """Layers do not divide evenly, or the first and last stage have an embedding more."""
    return replace(base, stage_factor=tuple((1 + rng.uniform(0.0, 0.05, shape.pp)).tolist()))


def goes_silent(job: JobUnderway) -> Fault:
    """From a step on nothing comes from one rank; the job itself goes on as before."""
    worker = frozenset({compute.any_worker(job)})
    course = since(job.num_steps, job.rng)
    truth = compute.truth_of(
        "silent-since", frozenset({"silent-worker"}), worker, course, area="host"
    )
    return Fault(replace(truth, costs_nothing=True), by_design.unchanged)


FAMILIES: Mapping[str, Kind] = {
    "uneven-counts": Kind(
        to_be_said("uneven-counts", by_design.UNEVEN),
        REPLICAS,
        12,
        with_uneven_counts,
        differ=True,
        design=by_design.uneven_counts,
    ),
    "uneven-counts-slow-gpu": Kind(
        compute.slow_worker("uneven-counts-slow-gpu", compute.chronic),
        REPLICAS,
        12,
        with_uneven_counts,
        differ=True,
        design=by_design.uneven_counts,
        least_cost=COUNTED_COST,
    ),
    "silent-since": Kind(goes_silent, REPLICAS, 12, goes_silent=True),
    "idle-gap": Kind(
        by_design.idle_gap, EVERYWHERE, 12, with_a_barrier, adapt_recorder=with_gaps_seen
    ),
    "ddp-slow-rank": Kind(
        slow_rank("ddp-slow-rank"),
        ONE_STAGE,
        adapt=with_some_ddp,
        adapt_base=with_hidden_buckets,
        adapt_recorder=with_a_client,
        least_cost=COUNTED_COST,
    ),
    "ddp-fsdp-low-fidelity": Kind(
        one_of(
            "ddp-fsdp-low-fidelity",
            (slow_rank("slow-rank"), slow_rank("slow-rank"), data_parallel.late_rank),
        ),
        ONE_STAGE,
        adapt=with_either,
        adapt_base=usual_base,
        adapt_recorder=with_a_client,
        design=irregular,
        least_cost=COUNTED_COST,
    ),
    "fsdp-communication-bound": Kind(
        slow_rank("fsdp-communication-bound", 1.15, 2.5),
        ONE_STAGE,
        adapt=with_fsdp,
        adapt_base=communication_bound,
        adapt_recorder=with_a_client,
        least_cost=COUNTED_COST,
    ),
    "fault-from-step-0": Kind(
        one_of(
            "fault-from-step-0",
            (
                compute.slow_gpu,
                compute.slow_gpu,
                compute.long_last_stage,
                network.slow_nic,
                hosts.data_loading("data-loading-one", of_all=False),
            ),
        ),
        BOTH,
        16,
        with_a_network,
        design=by_design.warm_up,
        adapt_recorder=from_the_start,
        least_cost=COUNTED_COST,
    ),
}

HEALTHY_KINDS: Mapping[str, Kind] = {
    "healthy-uneven-counts": Kind(
        to_be_said("healthy-uneven-counts"),
        REPLICAS,
        12,
        with_uneven_counts,
        differ=True,
        design=by_design.uneven_counts,
    ),
    "healthy-gaps": Kind(
        to_be_said("healthy-gaps"),
        EVERYWHERE,
        12,
        with_a_barrier,
        design=by_design.gaps_between_steps,
        adapt_recorder=with_gaps_seen,
    ),
    "healthy-warm-up": Kind(
        to_be_said("healthy-warm-up"),
        EVERYWHERE,
        16,
        design=by_design.warm_up,
        adapt_recorder=from_the_start,
    ),
    "healthy-uneven-stages": Kind(by_design.long_stages, SEVERAL_STAGES, adapt_base=uneven_stages),
    "healthy-elastic": Kind(
        to_be_said("healthy-elastic"),
        REPLICAS,
        16,
        with_uneven_counts,
        differ=True,
        design=both(by_design.warm_up, by_design.uneven_counts),
        adapt_recorder=after_a_restart,
    ),
    "healthy-evaluation": Kind(
        to_be_said("healthy-evaluation"),
        EVERYWHERE,
        12,
        with_a_barrier,
        design=by_design.evaluations,
        adapt_recorder=with_gaps_seen,
    ),
    "healthy-evaluation-unmarked": Kind(
        by_design.evaluations_unmarked,
        EVERYWHERE,
        12,
        with_a_barrier,
        adapt_recorder=with_gaps_seen,
    ),
    "healthy-very-noisy": Kind(to_be_said("healthy-very-noisy"), EVERYWHERE, 8, level="storm"),
    "healthy-ddp": Kind(
        to_be_said("healthy-ddp"),
        ONE_STAGE,
        adapt=with_ddp,
        adapt_base=usual_base,
        adapt_recorder=with_a_client,
    ),
    "healthy-fsdp": Kind(
        to_be_said("healthy-fsdp"),
        ONE_STAGE,
        adapt=with_fsdp,
        adapt_base=communication_bound,
        adapt_recorder=with_a_client,
    ),
}

ALL_KINDS: Mapping[str, Kind] = {**KINDS, **FAMILIES, **HEALTHY_KINDS}
# All kinds that are judged by their names alone.
FAMILY_NAMES = (*FAMILIES, *(name for name in KINDS if name not in IN_TURN))
