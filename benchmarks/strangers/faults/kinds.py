"""All kinds of faults by name, and the jobs that they can befall."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from benchmarks.strangers.faults import compute, everybody, hosts, network, stages
from benchmarks.strangers.faults.fault import Draw
from benchmarks.strangers.shape import Shape

# 3d: several replicas of several stages; pp: one replica; dp: one stage.
Family = Literal["3d", "pp", "dp"]
EVERYWHERE: tuple[Family, ...] = ("3d", "3d", "3d", "3d", "pp", "dp")
REPLICAS: tuple[Family, ...] = ("3d", "3d", "3d", "dp")
STAGES: tuple[Family, ...] = ("3d", "3d", "3d", "pp")
BOTH: tuple[Family, ...] = ("3d",)
ONE_REPLICA: tuple[Family, ...] = ("pp",)
Adapt = Callable[[Shape, np.random.Generator], Shape]


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


def with_eight_replicas(shape: Shape, rng: np.random.Generator) -> Shape:
    """So that one rank that is missing is one of many."""
    del rng
    return replace(shape, dp=8)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: how it is drawn, and in which jobs.

    `lost_rows` is the share of recorded operations that are lost, `has_silent_rank` whether one
    healthy rank is not recorded at all.
    """

    draw: Draw
    families: tuple[Family, ...] = BOTH
    min_steps: int = 8
    adapt: Adapt = as_drawn
    lost_rows: float = 0.0
    has_silent_rank: bool = False


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
