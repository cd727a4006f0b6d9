"""A whole host is slow: its power, its cooling, or somebody else's work."""

from dataclasses import dataclass

from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.place import culprit_hosts, refuse_host
from app.synth.faults.severity import refuse_factor
from app.synth.faults.slower import lasting, scale_worker
from app.synth.world import RngOf, World
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SlowHost(Fault):
    """All workers of one host take longer, forward and backward."""

    name = "slow-host"
    cause = "slow-worker"

    host: str
    slowdown: float

    def __post_init__(self) -> None:
        refuse_factor(self.slowdown)

    @override
    def check(self, world: World) -> None:
        refuse_host(self.host, world)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for dp_rank, stage in world.workers_of_host(self.host):
            scale_worker(drawn, dp_rank, stage, lasting(self.slowdown, lasts))

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return culprit_hosts(world, [self.host])
