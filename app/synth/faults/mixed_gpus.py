"""Some hosts have GPUs of an older generation."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.errors import InvalidRequest
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.place import culprit_hosts
from app.synth.faults.severity import refuse_below, refuse_factor, refuse_share
from app.synth.faults.slower import lasting, scale_worker
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class MixedGpus(Fault):
    """A share of the hosts, at least one, takes longer, forward and backward.

    `choice` is the seed by which the hosts are chosen.
    """

    name = "mixed-gpus"
    cause = "slow-worker"

    share: float
    slowdown: float
    choice: int = 0

    def __post_init__(self) -> None:
        refuse_share("share", self.share)
        refuse_factor(self.slowdown)
        refuse_below("choice", self.choice, 0)

    @override
    def check(self, world: World) -> None:
        num_hosts = len(world.host_names)
        if len(self.older_hosts(world)) >= num_hosts:
            raise InvalidRequest(
                f"a share of {self.share} is all of the job's {num_hosts} hosts: "
                "give a smaller one, or more hosts"
            )

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for host in self.older_hosts(world):
            for dp_rank, stage in world.workers_of_host(host):
                scale_worker(drawn, dp_rank, stage, lasting(self.slowdown, lasts))

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return culprit_hosts(world, self.older_hosts(world))

    def older_hosts(self, world: World) -> list[str]:
        """The hosts that were chosen, sorted."""
        hosts = world.host_names
        num_older = max(1, round(self.share * len(hosts)))
        chosen = np.random.default_rng(self.choice).choice(len(hosts), num_older, replace=False)
        return [hosts[position] for position in sorted(chosen)]
