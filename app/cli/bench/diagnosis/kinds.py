"""Every kind of fault of the grid, drawn so that most cost between 5 % and half of the time."""

from collections.abc import Callable
from dataclasses import dataclass

from app.cli.bench.diagnosis import computing, linking, pausing
from app.cli.bench.diagnosis.setting import Setting
from app.synth.faults.fault import Fault, When

Draw = Callable[[Setting, When], Fault]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault and its cause; `has_place` if it is a single worker, host or link.

    `is_alone`: never with another one in a job. `is_step` says whether steps are longer by the
    same from its first one on, `wants` (dp, pp, hosts) what a job must have at least. `begins` is
    the share of such faults that begin while the job is watched; the others have been there from
    the beginning.
    """

    name: str
    cause: str
    draw: Draw
    has_place: bool = False
    is_step: bool = False
    wants: tuple[int, int, int] = (1, 1, 1)
    begins: float = 0.5
    is_alone: bool = False


KINDS = (
    Kind("slow-worker", "slow-worker", computing.slow_worker, has_place=True, is_step=True),
    Kind("throttling-gpu", "slow-worker", computing.throttling, has_place=True, begins=1.0),
    Kind(
        "slow-host",
        "slow-worker",
        computing.slow_host,
        has_place=True,
        is_step=True,
        wants=(1, 1, 3),
    ),
    Kind("mixed-gpus", "slow-worker", computing.mixed_gpus, wants=(1, 1, 4), begins=0.0),
    Kind(
        "slow-stage",
        "stage-imbalance",
        computing.slow_stage,
        is_step=True,
        wants=(1, 2, 1),
        begins=0.3,
    ),
    Kind(
        "long-last-stage", "stage-imbalance", computing.long_last_stage, wants=(1, 2, 1), begins=0.0
    ),
    Kind(
        "slow-link", "slow-link", linking.slow_link, has_place=True, is_step=True, wants=(1, 2, 1)
    ),
    Kind("slow-nic", "slow-link", linking.slow_nic, has_place=True, is_step=True, wants=(1, 2, 1)),
    Kind("slow-dp-group", "slow-link", linking.slow_dp_group, is_step=True, wants=(2, 2, 1)),
    Kind("flapping-nic", "flapping-link", linking.flapping_nic, has_place=True, wants=(1, 2, 1)),
    Kind("gc-pauses", "gc-pause", pausing.gc_pauses),
    Kind("gc-pauses-of-few", "gc-pause", pausing.gc_pauses_of_few),
    Kind("planned-gc", "gc-pause", pausing.planned_gc),
    Kind("planned-gc-in-forward", "gc-pause", pausing.planned_gc_in_forward),
    Kind(
        "data-loading-of-host",
        "data-loading",
        pausing.data_loading_of_host,
        is_step=True,
        wants=(1, 1, 3),
    ),
    Kind("data-loading", "data-loading", pausing.data_loading, is_step=True),
    Kind("allocator-stalls", "allocator-stall", pausing.allocator_stalls),
    Kind("sequence-imbalance", "sequence-imbalance", computing.sequence_imbalance, begins=0.3),
    Kind("uniform-slowdown", "uniform-slowdown", computing.uniform, is_step=True, begins=1.0),
    Kind(
        "silent-worker",
        "silent-worker",
        computing.silent,
        wants=(1, 1, 1),
        begins=1.0,
        is_alone=True,
    ),
)
