"""Trials of several faults at once and the best set of fixes, simulated together."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from app.advice.advise import FixSet, advise
from app.advice.facts import Facts
from app.advice.fix import AdviceCase, Fix
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault
from app.synth.faults.interruptions import GcPauses
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.faults.slow_network import SlowNic
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from benchmarks.advice.pipeline_fixes import interleaved, smaller_microbatches, zero_bubble
from benchmarks.advice.single_fixes import (
    dealt_out,
    random_sequences,
    random_worker,
    with_loss,
)
from benchmarks.advice.trial import (
    STEPS,
    Trial,
    pasted_layers,
    recorded,
    simulated_step_s,
)

# As in the trials of one fault: other steps would have other documents.
SAME_STEPS = range(STEPS)


@dataclass(frozen=True)
class FaultyJob:
    """A job with several faults, by the fix that removes each.

    On each stage are `layers`, and on the last one the loss, which costs as much as `loss_layers`.
    """

    job: SimulatedJob
    fault_of: dict[str, Fault]
    layers: int
    loss_layers: float

    @property
    def slow(self) -> SimulatedJob:
        """The job with all of its faults."""
        return replace(self._with_layers(None), faults=tuple(self.fault_of.values()))

    def fixed(self, fixes: Sequence[Fix]) -> SimulatedJob:
        """The job with these fixes; faults without one of them stay."""
        by_name = {each.name: each for each in fixes}
        left = {name: fault for name, fault in self.fault_of.items() if name not in by_name}
        sequences = self.fault_of.get("balance-sequences")
        if "balance-sequences" in by_name and isinstance(sequences, SequenceImbalance):
            left["balance-sequences"] = dealt_out(sequences, self.job)
        job = replace(self._with_layers(by_name.get("resplit-stages")), faults=tuple(left.values()))
        schedule = by_name.get("other-schedule")
        return job if schedule is None else self._with_schedule(job, schedule.title)

    def _with_layers(self, resplit: Fix | None) -> SimulatedJob:
        counts = [self.layers] * self.job.parallelism.pp_size
        if resplit is not None:
            counts = pasted_layers(resplit)
        return with_loss(self.loss_layers, self.layers)(self.job, counts)

    def _with_schedule(self, job: SimulatedJob, title: str) -> SimulatedJob:
        chunks = re.match(r"Interleave (\d+) ", title)
        if chunks is not None:
            layers = self.layers * job.parallelism.pp_size
            return interleaved(job, int(chunks[1]), layers, self.loss_layers)
        return zero_bubble(job) if "zero-bubble" in title else smaller_microbatches(job)


def fix_set_trial(seed: int) -> Trial[FixSet]:
    """A job of 3 to 8 dp ranks and 4 or 8 stages with two or three faults."""
    rng = np.random.default_rng([seed, 2])
    job = SimulatedJob(
        Parallelism(int(rng.integers(3, 9)), int(rng.choice([4, 8])), 8),
        int(rng.integers(8, 33)),
        costs=OperationCosts(noise=float(rng.uniform(0.005, 0.03))),
        seed=int(rng.integers(1 << 30)),
    )
    layers, has_long_stage = int(rng.integers(4, 13)), bool(rng.random() < 0.5)
    loss_layers = float(rng.uniform(0.3, 0.9)) * layers if has_long_stage else 0.0
    faulty = FaultyJob(job, _faults(job, rng, 1 if has_long_stage else 2), layers, loss_layers)
    facts = Facts(layers=layers * job.parallelism.pp_size) if rng.random() < 0.5 else Facts()
    return Trial("together", recorded(faulty.slow), facts, _together, partial(_achieved_s, faulty))


def _faults(job: SimulatedJob, rng: np.random.Generator, least: int) -> dict[str, Fault]:
    """One or two more than `least` of them, in any order."""
    every: dict[str, Fault] = {
        "replace-worker": SlowWorker(*random_worker(job, rng), float(rng.uniform(1.3, 2.5))),
        "planned-gc": GcPauses(
            rate=float(rng.uniform(0.01, 0.03)), pause_s=float(rng.uniform(0.2, 0.4))
        ),
        "repair-link": SlowNic(*random_worker(job, rng), 40.0),
        "balance-sequences": random_sequences(rng),
    }
    names = rng.permutation(list(every))[: least + int(rng.integers(0, 2))]
    return {str(name): every[str(name)] for name in names}


def _together(case: AdviceCase) -> FixSet | None:
    return advise(case).together


def _achieved_s(faulty: FaultyJob, found: FixSet) -> float:
    return simulated_step_s(faulty.fixed(found.fixes), SAME_STEPS)
