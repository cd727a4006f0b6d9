"""The next samples come late: the first forward computation of a step has to wait for them."""

from dataclasses import dataclass

from typing_extensions import override

from app.diagnosis.finding import Culprit
from app.synth.drawn import Annotation, Drawn
from app.synth.faults.fault import Fault
from app.synth.faults.pauses import around, struck
from app.synth.faults.place import culprit_hosts, refuse_host
from app.synth.faults.severity import refuse_seconds
from app.synth.world import RngOf, World
from app.trace.ops import Direction
from app.trace.window import Floats

# Of the logarithm of single waits: storage is moody.
_SPREAD = 0.3


@dataclass(frozen=True, slots=True)
class DataLoading(Fault):
    """A host's workers, or everybody, wait before a step's first forward computation.

    A host of None is all of them, each waiting for its own time. Samples are fetched when they are
    asked for, so that stages wait one after the other. `is_sent`: the client tells of each wait.
    """

    name = "data-loading"
    cause = "data-loading"

    host: str | None = None
    delay_s: float = 0.2
    is_sent: bool = False

    def __post_init__(self) -> None:
        refuse_seconds(self.delay_s)

    @override
    def check(self, world: World) -> None:
        if self.host is not None:
            refuse_host(self.host, world)

    @override
    def change(self, drawn: Drawn, world: World, lasts: Floats, rng_of: RngOf) -> None:
        hosts = world.host_names if self.host is None else [self.host]
        for at, step in struck(drawn, lasts):
            waits_s = around(self.delay_s, _SPREAD, rng_of(step), (len(hosts),)).tolist()
            for host, wait_s in zip(hosts, waits_s, strict=True):
                self._wait(drawn, world, host, at, wait_s)

    def _wait(self, drawn: Drawn, world: World, host: str, at: int, wait_s: float) -> None:
        for dp_rank, stage in world.workers_of_host(host):
            drawn.forward_delay_s[stage, 0, 0, at, dp_rank] += wait_s
            if self.is_sent:
                drawn.annotations.append(
                    Annotation("data-wait", wait_s, Direction.FORWARD, stage, 0, 0, at, dp_rank)
                )

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return () if self.host is None else culprit_hosts(world, [self.host])
