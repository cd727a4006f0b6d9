"""Faults that slow down the computations of a worker, a host, some hosts, a stage, or all workers.

Typical reasons: of `SlowWorker` a failing GPU or a busy host; of `SlowHost` power, cooling or other
load; of `MixedGpus` GPUs of an older generation; of `ThrottlingGpu` a hot GPU; of `UniformSlowdown`
a power cap or a warm data centre; of `SlowStage` more work in every replica; of `LongLastStage` the
loss, which the last stage computes besides its layers.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.result.finding import Culprit
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import (
    Factor,
    Fault,
    HostFault,
    Share,
    StageFault,
    WorkerFault,
    at_least,
    culprit_hosts,
    factor_while,
    scale_stage,
    scale_worker,
)
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class SlowWorker(WorkerFault):
    """One worker takes longer, forward and backward."""

    name = "slow-worker"
    cause = "slow-worker"

    slowdown: Factor

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        scale_worker(drawn, self.dp_rank, self.stage, factor_while(self.slowdown, lasts))


@dataclass(frozen=True, slots=True)
class SlowHost(HostFault):
    """All workers of one host take longer, forward and backward."""

    name = "slow-host"
    cause = "slow-worker"

    host: str
    slowdown: Factor

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for dp_rank, stage in world.workers_of_host(self.host):
            scale_worker(drawn, dp_rank, stage, factor_while(self.slowdown, lasts))


@dataclass(frozen=True, slots=True)
class MixedGpus(Fault):
    """A share of the hosts, at least one, takes longer, forward and backward.

    `choice` is the seed of the choice of hosts.
    """

    name = "mixed-gpus"
    cause = "slow-worker"

    share: Share
    slowdown: Factor
    choice: Annotated[int, at_least(0)] = 0

    @override
    def check(self, world: World) -> None:
        num_hosts = len(world.host_names)
        if len(self.older_hosts(world)) >= num_hosts:
            raise InvalidRequest(
                f"a share of {self.share} is all of the job's {num_hosts} hosts: "
                "give a smaller one, or more hosts"
            )

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        for host in self.older_hosts(world):
            for dp_rank, stage in world.workers_of_host(host):
                scale_worker(drawn, dp_rank, stage, factor_while(self.slowdown, lasts))

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return culprit_hosts(world, self.older_hosts(world))

    def older_hosts(self, world: World) -> list[str]:
        """The chosen hosts, sorted."""
        hosts = world.host_names
        num_older = max(1, round(self.share * len(hosts)))
        chosen = np.random.default_rng(self.choice).choice(len(hosts), num_older, replace=False)
        return [hosts[position] for position in sorted(chosen)]


# Difference between the usual temperature under load and that of throttling.
_THROTTLING_RISE_C = 25


@dataclass(frozen=True, slots=True)
class ThrottlingGpu(WorkerFault):
    """One worker gets slower from step to step, while the clock of its hot GPU falls.

    From `ramp_steps` steps on it takes `slowdown` times as long.
    """

    name = "throttling-gpu"
    cause = "slow-worker"

    slowdown: Factor
    ramp_steps: Annotated[int, at_least(1)] = 20

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        age = drawn.steps - self.when.first_step + 1
        share = np.clip(age / self.ramp_steps, 0.0, 1.0) * lasts
        factor = 1.0 + (self.slowdown - 1.0) * share
        scale_worker(drawn, self.dp_rank, self.stage, factor)
        at = self.stage, slice(None), self.dp_rank
        if drawn.sm_clock_mhz is not None:
            drawn.sm_clock_mhz[at] = np.rint(drawn.sm_clock_mhz[at] / factor)
        if drawn.temperature_c is not None:
            drawn.temperature_c[at] += np.rint(_THROTTLING_RISE_C * share).astype(np.int64)


@dataclass(frozen=True, slots=True)
class UniformSlowdown(Fault):
    """All computations of all workers take longer, at lower clocks."""

    name = "uniform-slowdown"
    cause = "uniform-slowdown"

    slowdown: Factor

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        factor = factor_while(self.slowdown, lasts)[:, None]
        drawn.forward_s *= factor
        drawn.backward_s *= factor
        drawn.once_s["optimizer"] *= factor
        if drawn.sm_clock_mhz is not None:
            drawn.sm_clock_mhz[:] = np.rint(drawn.sm_clock_mhz / factor)


@dataclass(frozen=True, slots=True)
class SlowStage(StageFault):
    """One stage takes longer in every replica, forward and backward."""

    name = "slow-stage"
    cause = "stage-imbalance"

    slowdown: Factor

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        factor = factor_while(self.slowdown, lasts)
        scale_stage(drawn, self.stage, factor, factor)


# Measured in production where the last stage also computes the loss (Lin et al., OSDI 2025).
LOSS_FORWARD = 2.07
LOSS_BACKWARD = 1.41


@dataclass(frozen=True, slots=True)
class LongLastStage(Fault):
    """The last stage takes `forward` and `backward` times as long in every replica."""

    name = "long-last-stage"
    cause = "stage-imbalance"

    forward: Factor = LOSS_FORWARD
    backward: Factor = LOSS_BACKWARD

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        forward, backward = (factor_while(f, lasts) for f in (self.forward, self.backward))
        scale_stage(drawn, world.parallelism.pp_size - 1, forward, backward)

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return (Culprit(stage=world.parallelism.pp_size - 1),)
