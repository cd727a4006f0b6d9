"""All kinds of faults by name, and the jobs that they can befall."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.strangers.faults import compute, network
from benchmarks.strangers.faults.fault import Draw

# 3d: several replicas of several stages; pp: one replica; dp: one stage.
Family = Literal["3d", "pp", "dp"]
EVERYWHERE: tuple[Family, ...] = ("3d", "3d", "3d", "3d", "pp", "dp")
REPLICAS: tuple[Family, ...] = ("3d", "3d", "3d", "dp")
STAGES: tuple[Family, ...] = ("3d", "3d", "3d", "pp")
BOTH: tuple[Family, ...] = ("3d",)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: how it is drawn, in which families of jobs, in how many steps at least."""

    draw: Draw
    families: tuple[Family, ...]
    min_steps: int = 8


KINDS: Mapping[str, Kind] = {
    "slow-gpu": Kind(compute.slow_gpu, EVERYWHERE),
    "slow-gpu-since": Kind(compute.slow_gpu_since, EVERYWHERE, 18),
    "slow-gpu-recovered": Kind(compute.slow_gpu_recovered, REPLICAS, 18),
    "slow-gpu-ramping": Kind(compute.slow_gpu_ramping, REPLICAS, 16),
    "slow-gpu-come-and-go": Kind(compute.slow_gpu_come_and_go, REPLICAS, 16),
    "forward-only": Kind(compute.forward_only, REPLICAS),
    "backward-only": Kind(compute.backward_only, REPLICAS),
    "slow-optimizer": Kind(compute.slow_optimizer, EVERYWHERE),
    "long-last-stage": Kind(compute.long_last_stage, STAGES),
    "slow-nic": Kind(network.slow_nic, EVERYWHERE),
    "slow-nic-since": Kind(network.slow_nic_since, BOTH, 18),
    "flapping-nic": Kind(network.flapping_nic, BOTH, 16),
    "slow-link": Kind(network.slow_link, STAGES),
    "slow-link-since": Kind(network.slow_link_since, STAGES, 18),
    "flapping-link": Kind(network.flapping_link, STAGES, 16),
}

# Faults of different causes that may befall one job together.
PAIRS: tuple[tuple[str, str], ...] = (
    ("slow-gpu", "slow-nic"),
    ("slow-gpu", "long-last-stage"),
    ("slow-gpu", "slow-link"),
    ("slow-gpu-since", "long-last-stage"),
    ("long-last-stage", "slow-link"),
    ("slow-gpu-since", "flapping-link"),
)
