"""A job whose micro-batches are dealt out as the fix `balance-sequences` advises."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.synth.cluster import RngOf, World
from app.synth.cluster import rng_of as rng_of_fault
from app.synth.drawing import DrawnSteps
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class LptSequences(SequenceImbalance):
    """The same micro-batches on other dp ranks: longest first, to the rank with the least work.

    Each rank computes as many as before, in random order. `documents_seed` is the seed of the job
    that has `SequenceImbalance` as its first fault: with another seed of its own, a job has the
    same documents in each step, but other noise.
    """

    name = "lpt-sequences"

    documents_seed: int | None = None

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        if self.documents_seed is not None:
            rng_of = rng_of_fault(self.documents_seed, 0)
        SequenceImbalance.change(self, drawn, world, lasts, rng_of)

    @override
    def dealt(self, work: Floats, dp_size: int, rng: np.random.Generator) -> Ints:
        ranks: list[list[int]] = [[] for _ in range(dp_size)]
        for item in sorted(range(work.size), key=lambda item: -work[item]):
            room = [rank for rank in ranks if len(rank) < work.size // dp_size]
            min(room, key=lambda rank: work[rank].sum()).append(item)
        return rng.permuted(np.array(ranks, np.int64), axis=1).T.ravel()
