"""All kinds of faults by name, and the jobs that they can befall."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from benchmarks.strangers.faults import (
    compute,
    data_parallel,
    everybody,
    hidden_pauses,
    hosts,
    in_time,
    misbound,
    network,
    placed_sequences,
    stage_optimizers,
    stages,
    stalls,
)
from benchmarks.strangers.faults.by_design import one_of
from benchmarks.strangers.faults.fault import Design, Draw
from benchmarks.strangers.noise import Base, Level
from benchmarks.strangers.recording import Recorder
from benchmarks.strangers.shape import Shape

# 3d: several replicas of several stages; pp: one replica; dp: one stage.
Family = Literal["3d", "pp", "dp"]
EVERYWHERE: tuple[Family, ...] = ("3d", "3d", "3d", "3d", "pp", "dp")
REPLICAS: tuple[Family, ...] = ("3d", "3d", "3d", "dp")
STAGES: tuple[Family, ...] = ("3d", "3d", "3d", "pp")
BOTH: tuple[Family, ...] = ("3d",)
ONE_REPLICA: tuple[Family, ...] = ("pp",)
Adapt = Callable[[Shape, np.random.Generator], Shape]
AdaptBase = Callable[[Base, Shape, np.random.Generator], Base]
AdaptRecorder = Callable[[Recorder, np.random.Generator], Recorder]
# A fault is drawn again, some times, until it costs as much as faults do that matter.
LEAST_COST = 0.03
COUNTED_COST = 0.055  # a little more than what counts, so that nearly all jobs of a family do


def as_drawn(shape: Shape, rng: np.random.Generator) -> Shape:
    """Any job."""
    del rng
    return shape


def with_shared_hosts(shape: Shape, rng: np.random.Generator) -> Shape:
    """Several workers a host, and at least two hosts."""
    dp = max(shape.dp, 4)
    tp, gpus = (1, 4) if dp * shape.pp < 16 else (int(rng.choice([1, 2])), 8)
    return replace(shape, dp=dp, tp=tp, gpus_per_host=gpus)


def with_a_network(shape: Shape, rng: np.random.Generator) -> Shape:
    """At least two hosts: inside one, no transfer passes a card or a link of the network."""
    del rng
    return shape if shape.num_hosts > 1 else replace(shape, gpus_per_host=shape.tp)


def with_half_stages(shape: Shape, rng: np.random.Generator) -> Shape:
    """Each host holds a part of one stage."""
    return replace(shape, dp=int(rng.choice([8, 12, 16])), tp=1, gpus_per_host=4)


def with_stage_hosts(shape: Shape, rng: np.random.Generator) -> Shape:
    """Each host holds all replicas of one stage."""
    dp = int(rng.choice([4, 8]))
    return replace(shape, dp=dp, tp=8 // dp, gpus_per_host=8)


def with_chunks(shape: Shape, rng: np.random.Generator) -> Shape:
    """Several model chunks a stage."""
    pp, chunks = int(rng.choice([2, 4])), int(rng.choice([2, 3]))
    microbatches = pp * int(rng.integers(2, 5))
    return replace(shape, pp=pp, chunks=chunks, microbatches=microbatches, schedule="interleaved")


def with_experts(shape: Shape, rng: np.random.Generator) -> Shape:
    """Two to four expert-parallel blocks."""
    ep = int(rng.choice([2, 4]))
    return replace(shape, dp=ep * int(rng.choice([2, 4])), ep=ep)


def with_a_published_network(shape: Shape, rng: np.random.Generator) -> Shape:
    """Several hosts, and one chunk a stage: the published format has no others."""
    shape = with_a_network(shape, rng)
    is_interleaved = shape.schedule == "interleaved"
    return replace(shape, chunks=1, schedule="1f1b" if is_interleaved else shape.schedule)


def with_few_microbatches(shape: Shape, rng: np.random.Generator) -> Shape:
    """So few that what comes once a step is a part of it that matters."""
    microbatches = shape.pp * int(rng.integers(1, 3))
    return replace(shape, microbatches=max(microbatches, 4 if shape.chunks == 1 else 2 * shape.pp))


def with_eight_replicas(shape: Shape, rng: np.random.Generator) -> Shape:
    """So that one rank that is missing is one of many."""
    del rng
    return replace(shape, dp=8)


def with_gaps_seen(recorder: Recorder, rng: np.random.Generator) -> Recorder:
    """Times of successive steps count from one origin."""
    del rng
    return replace(recorder, is_client=True)


def from_the_start(recorder: Recorder, rng: np.random.Generator) -> Recorder:
    """The run's first steps are recorded."""
    del rng
    return replace(recorder, first_step=0)


def with_large_transfers(base: Base, shape: Shape, rng: np.random.Generator) -> Base:
    """Transfers between stages of 1 to 4 % of a forward."""
    del shape
    return replace(base, transfer_s=base.forward_s * rng.uniform(0.01, 0.04))


def as_published(recorder: Recorder, rng: np.random.Generator) -> Recorder:
    """The published format: each step from 0, and no micro-batches on transfers."""
    del rng
    return replace(recorder, is_client=False)


def with_unseen_waits(recorder: Recorder, rng: np.random.Generator) -> Recorder:
    """A client whose computations contain waits that it does not see."""
    del rng
    return replace(recorder, is_client=True, has_waits=False)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, or of healthy job: how it is drawn, and in which jobs.

    `lost_rows` is the share of recorded operations that are lost, `has_silent_rank` whether one
    healthy rank is not recorded at all, and `goes_silent` whether the guilty one is not from the
    onset on. What the job does by `design` is there with and without the fault. A job whose
    replicas `differ` is read from a file, as what is not recorded by all is judged there. Where it
    `has_loader`, waits for it are recorded of every job with a client, not of half of them. A
    window that `is_sample` has a few steps only.
    """

    draw: Draw
    families: tuple[Family, ...] = BOTH
    min_steps: int = 8
    adapt: Adapt = as_drawn
    lost_rows: float = 0.0
    has_silent_rank: bool = False
    goes_silent: bool = False
    differ: bool = False
    design: Design | None = None
    adapt_base: AdaptBase | None = None
    adapt_recorder: AdaptRecorder | None = None
    level: Level | None = None
    least_cost: float = LEAST_COST
    has_loader: bool = False
    is_sample: bool = False


KINDS: Mapping[str, Kind] = {
    "slow-gpu": Kind(compute.slow_gpu, EVERYWHERE),
    "slow-gpu-since": Kind(compute.slow_gpu_since, EVERYWHERE, 18),
    "slow-gpu-recovered": Kind(compute.slow_gpu_recovered, REPLICAS, 18),
    "slow-gpu-ramping": Kind(compute.slow_gpu_ramping, REPLICAS, 16),
    "slow-gpu-come-and-go": Kind(compute.slow_gpu_come_and_go, REPLICAS, 16),
    "forward-only": Kind(compute.forward_only, REPLICAS),
    "backward-only": Kind(compute.backward_only, REPLICAS),
    "slow-optimizer": Kind(compute.slow_optimizer, EVERYWHERE),
    "slow-host": Kind(stages.slow_host("slow-host"), BOTH, adapt=with_shared_hosts),
    "slow-host-part-of-stage": Kind(
        stages.slow_host("slow-host-part-of-stage"), BOTH, adapt=with_half_stages
    ),
    "slow-host-whole-stage": Kind(
        stages.slow_host("slow-host-whole-stage"), BOTH, adapt=with_stage_hosts
    ),
    "older-gpus": Kind(stages.older_gpus, REPLICAS),
    "rotating": Kind(stages.rotating_culprit, REPLICAS, 12),
    "long-last-stage": Kind(compute.long_last_stage, STAGES),
    "heavier-stages": Kind(stages.heavier_stages, STAGES),
    "loss-chunk": Kind(stages.loss_chunk, BOTH, adapt=with_chunks),
    "sequence-imbalance": Kind(
        everybody.sequence_imbalance("sequence-imbalance", sends_lengths=False), REPLICAS
    ),
    "sequence-imbalance-lengths": Kind(
        everybody.sequence_imbalance("sequence-imbalance-lengths", sends_lengths=True), REPLICAS
    ),
    "gc-pauses": Kind(hosts.gc_pauses("gc-pauses", are_annotated=False), REPLICAS, 12),
    "gc-pauses-annotated": Kind(
        hosts.gc_pauses("gc-pauses-annotated", are_annotated=True), REPLICAS, 12
    ),
    "planned-gc": Kind(hosts.planned_gc, REPLICAS, 12),
    "gc-storm": Kind(hosts.gc_storm, REPLICAS, 12),
    "slow-nic": Kind(network.slow_nic, EVERYWHERE, adapt=with_a_network),
    "slow-nic-since": Kind(network.slow_nic_since, BOTH, 18, adapt=with_a_network),
    "flapping-nic": Kind(network.flapping_nic, BOTH, 16, adapt=with_a_network),
    "flapping-nic-one-replica": Kind(network.flapping_nic, ONE_REPLICA, 16, adapt=with_a_network),
    "host-nic": Kind(network.host_nic("host-nic"), BOTH, adapt=with_shared_hosts),
    "host-nic-whole-stage": Kind(
        network.host_nic("host-nic-whole-stage"), BOTH, adapt=with_stage_hosts
    ),
    "slow-link": Kind(network.slow_link, STAGES, adapt=with_a_network),
    "slow-link-since": Kind(network.slow_link_since, STAGES, 18, adapt=with_a_network),
    "flapping-link": Kind(network.flapping_link, STAGES, 16, adapt=with_a_network),
    "data-loading-one": Kind(hosts.data_loading("data-loading-one", of_all=False), REPLICAS),
    "data-loading-all": Kind(hosts.data_loading("data-loading-all", of_all=True), REPLICAS),
    "data-loading-every-other-step": Kind(
        hosts.data_loading("data-loading-every-other-step", of_all=False, every=2), REPLICAS, 12
    ),
    "uniform-slowdown": Kind(everybody.uniform_slowdown, EVERYWHERE, 18),
    "ramp-on-everybody": Kind(everybody.ramp_on_everybody, EVERYWHERE, 18),
    "expert-load-ranks": Kind(
        everybody.expert_load("expert-load-ranks", of_ranks=True), BOTH, adapt=with_experts
    ),
    "expert-load-block": Kind(
        everybody.expert_load("expert-load-block", of_ranks=False), BOTH, adapt=with_experts
    ),
    "checkpoint-stalls": Kind(hosts.checkpoint_stalls, REPLICAS, 16),
    "one-huge-stop": Kind(hosts.one_huge_stop, REPLICAS, 12),
    "cpu-contention": Kind(hosts.cpu_contention, BOTH, adapt=with_shared_hosts),
    "slow-gpu-lost-rows": Kind(compute.slow_gpu, BOTH, lost_rows=0.0005),
    "slow-gpu-silent-rank": Kind(
        compute.slow_gpu, BOTH, adapt=with_eight_replicas, has_silent_rank=True
    ),
}

# Kinds that jobs of the groups have in turn.
IN_TURN = tuple(KINDS)
NETWORK_KINDS = tuple(name for name in KINDS if name.partition("-")[2].startswith(("nic", "link")))

# Faults of different causes that may befall one job together.
PAIRS: tuple[tuple[str, str], ...] = (
    ("slow-gpu", "slow-nic"),
    ("slow-gpu", "long-last-stage"),
    ("slow-gpu", "slow-link"),
    ("slow-gpu-since", "long-last-stage"),
    ("long-last-stage", "slow-link"),
    ("slow-gpu-since", "flapping-link"),
    ("slow-gpu", "gc-pauses"),
    ("sequence-imbalance", "long-last-stage"),
    ("sequence-imbalance", "slow-nic"),
    ("data-loading-one", "slow-gpu"),
    ("data-loading-all", "long-last-stage"),
    ("uniform-slowdown", "long-last-stage"),
)

# Kinds in which the diagnosis was still wrong in November 2026, each a family of its own that is
# judged by its name: long documents in one place, optimizers of one stage, shapes in time, pauses
# that hide in waits, a misbound host, very slow links, and stalls of a part of a host or a loader.
KINDS = {
    **KINDS,
    "last-microbatch": Kind(
        placed_sequences.last_microbatch, REPLICAS, 18, least_cost=COUNTED_COST
    ),
    "stage-optimizer": Kind(
        stage_optimizers.stage_optimizer,
        BOTH,
        18,
        with_few_microbatches,
        least_cost=COUNTED_COST,
    ),
    "hot-expert-stays": Kind(
        in_time.hot_expert_stays, BOTH, 12, with_experts, least_cost=COUNTED_COST
    ),
    "slow-every-k": Kind(in_time.slow_every_k, REPLICAS, 24, least_cost=COUNTED_COST),
    "few-huge-stops": Kind(in_time.few_huge_stops, REPLICAS, 12, least_cost=COUNTED_COST),
    "warm-up": Kind(in_time.warm_up, EVERYWHERE, 18, adapt_recorder=from_the_start),
    "hidden-pause-annotated": Kind(
        hidden_pauses.hidden_pause_annotated,
        REPLICAS,
        12,
        adapt_recorder=with_gaps_seen,
        least_cost=COUNTED_COST,
    ),
    "hidden-pause-after-step": Kind(
        hidden_pauses.hidden_pause_after_step,
        REPLICAS,
        12,
        adapt_recorder=with_gaps_seen,
        least_cost=COUNTED_COST,
    ),
    "hidden-pause-single": Kind(
        hidden_pauses.hidden_pause_single, REPLICAS, least_cost=COUNTED_COST
    ),
    "hidden-pause-sampled": Kind(
        hidden_pauses.hidden_pause_sampled,
        REPLICAS,
        adapt_recorder=with_gaps_seen,
        least_cost=COUNTED_COST,
        is_sample=True,
    ),
    "hidden-pause-fsdp": Kind(
        one_of(
            "hidden-pause-fsdp",
            (hidden_pauses.hidden_pause_annotated, hidden_pauses.hidden_pause_single),
        ),
        ("dp",),
        12,
        data_parallel.with_fsdp,
        adapt_base=data_parallel.usual_base,
        adapt_recorder=with_unseen_waits,
        least_cost=COUNTED_COST,
    ),
    "numa-misbinding": Kind(
        misbound.numa_misbinding, BOTH, 18, with_shared_hosts, least_cost=COUNTED_COST
    ),
    "very-slow-link": Kind(
        network.very_slow_link,
        BOTH,
        adapt=with_a_published_network,
        adapt_base=with_large_transfers,
        adapt_recorder=as_published,
        least_cost=COUNTED_COST,
    ),
    "part-of-host-stalls": Kind(
        stalls.part_of_host_stalls, BOTH, 18, with_half_stages, least_cost=COUNTED_COST
    ),
    "loader-stop": Kind(
        stalls.loader_stop,
        REPLICAS,
        12,
        adapt_recorder=with_gaps_seen,
        least_cost=COUNTED_COST,
        has_loader=True,
    ),
}
