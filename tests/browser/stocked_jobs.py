"""The jobs of the stocked server: one for everything that a page has to be able to show."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.interruptions import SilentWorker
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import MAX_JOB_CHARS, Parallelism

NUM_STEPS = 40
ONSET = 20
SHARED_HOST = "node-shared-07"

# Markup, quotes, a right-to-left override and its mirror image, and what templates look for.
_EVIL = (
    "<img src=x onerror='window.injected=1'>\"&amp;</b><script>window.injected=1</script>"
    "\u202egnp.x\u202c \u05d0\u05d1\u05d2 ${7*7} {{7*7}} %{customdata} <b>bold</b>"
)
HOSTILE_NAME = _EVIL.ljust(256, "\u5b57")  # the longest that is taken
_EVIL_LINK = f"<a href='javascript:window.injected=1'>h</a>{_EVIL}"
HOSTILE_ID = "hostile.".ljust(MAX_JOB_CHARS, "x")


@dataclass(frozen=True, slots=True)
class StockedJob:
    """A made job and how it came: its runs are of so many steps each, one after the other.

    `hosts` are names by worker in place of the cluster's own; `parts` go into the registration;
    `ends` when it says that it has finished.
    """

    job_id: str
    made: SimulatedJob
    runs: tuple[int, ...] = (NUM_STEPS,)
    hosts: dict[tuple[int, int], str] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    ends: bool = False

    def host(self, dp_rank: int, stage: int) -> str:
        """Where a worker runs: no two jobs share a host that were not told to."""
        return self.hosts.get((dp_rank, stage), self.made.world.hosts[dp_rank, stage])


def made(
    dp: int, pp: int, *faults: Fault, seed: int = 1, first_host: int = 0, **costs: Any
) -> SimulatedJob:
    """About a second a step, eight GPUs a worker, so that each has a host of its own."""
    return SimulatedJob(
        Parallelism(dp, pp, tp_size=8),
        6,
        costs=replace(OperationCosts(forward_s=0.03, backward_s=0.06), **costs),
        faults=faults,
        seed=seed,
        cluster=Cluster(first_host=first_host),
    )


def stocked_jobs() -> list[StockedJob]:
    """Those with figures; the ones without are registered by the server's fixture."""
    since = FaultSteps(first_step=ONSET)
    shared = {(1, 1): SHARED_HOST}
    return [
        StockedJob("healthy", made(4, 2), parts=_about("data-team", "70b")),
        StockedJob(
            "slow-worker",
            made(8, 4, SlowWorker(3, 1, 1.6, when=since), seed=2, first_host=10),
            parts=_about("pretraining", "llm-70b") | {"framework": "megatron-lm"},
        ),
        StockedJob("long-last-stage", made(4, 4, LongLastStage(), seed=3, first_host=50)),
        StockedJob(
            "sequence-lengths",
            made(8, 2, SequenceImbalance(is_sent=True), seed=4, first_host=70),
        ),
        StockedJob("stalled", made(2, 2, seed=5, first_host=90), runs=(16,)),
        StockedJob("silent", made(4, 2, SilentWorker(1, 1, when=FaultSteps(24)), first_host=100)),
        StockedJob(
            "half-heard", made(2, 2, SilentWorker(0, 1), first_host=110), runs=(8,), ends=True
        ),
        StockedJob("low-fidelity", made(2, 2, first_host=120, launch_delay_s=0.02), runs=(16,)),
        StockedJob("restarted", made(4, 2, SlowWorker(2, 0, 1.3), first_host=130), runs=(20, 20)),
        StockedJob(
            "shared-host-a", made(4, 2, SlowWorker(1, 1, 1.5), first_host=140), hosts=shared
        ),
        StockedJob(
            "shared-host-b",
            made(2, 2, SlowWorker(1, 1, 1.35), seed=9, first_host=150),
            hosts=shared,
            ends=True,
        ),
        StockedJob(
            HOSTILE_ID,
            made(4, 2, SlowWorker(2, 1, 1.6, when=since), seed=7),
            hosts={worker: hostile_host(*worker) for worker in np.ndindex(4, 2)},
            parts={
                "name": HOSTILE_NAME,
                "framework": HOSTILE_NAME[:64],
                "labels": {HOSTILE_NAME[:64]: HOSTILE_NAME},
            },
        ),
    ]


def hostile_host(dp_rank: int, stage: int) -> str:
    """The longest host name that is taken, another one for every worker."""
    return f"{dp_rank}{stage}{_EVIL_LINK}"[:253].ljust(255, "W")


def _about(owner: str, model: str) -> dict[str, Any]:
    return {"labels": {"owner": owner, "model": model}}
