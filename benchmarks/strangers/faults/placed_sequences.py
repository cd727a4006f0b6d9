"""Long documents that always lie in the same micro-batch of a step."""

from dataclasses import replace
from typing import Literal

import numpy as np

from benchmarks.strangers.faults.compute import log_uniform, truth_of
from benchmarks.strangers.faults.everybody import CONTEXT, nobody
from benchmarks.strangers.faults.fault import (
    CHRONIC,
    Course,
    Fault,
    JobUnderway,
    Truth,
    since,
    whole,
)
from benchmarks.strangers.graph import BACKWARD, FORWARD
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.simulation import Durations, Floats

# Which dp ranks have the long micro-batch: always the same one, another one in each step, or all of
# them, of different lengths.
Owner = Literal["one rank", "in turn", "all ranks"]
OWNERS: tuple[Owner, ...] = ("one rank", "in turn", "all ranks")
# Attention's largest part of the time of a micro-batch of short documents.
MAX_ATTENTION = 0.8
SENDS_LENGTHS_SHARE = 0.4


def last_microbatch(job: JobUnderway) -> Fault:
    """Documents are sorted, or the rest of a file comes last: one micro-batch has a long one.

    All micro-batches hold as many tokens. Attention follows the squares of the documents' lengths,
    so that one long document costs time in the forward and backward of every stage.
    """
    shape, rng = job.shape, job.rng
    owner = OWNERS[int(rng.integers(len(OWNERS)))]
    place = _place(shape.microbatches, rng)
    course = whole(job.num_steps) if rng.random() < 0.6 else since(job.num_steps, rng)
    owners = _owners(owner, job.num_steps, shape.dp, rng) * course.strength[:, None]
    documents = int(rng.choice([8, 16, 32]))
    longest_part = rng.uniform(0.5, 1.0)  # of a context, in the longest document
    usual_squares = CONTEXT**2 / documents
    ratio = float(_squares(longest_part, documents)) / usual_squares
    attention = min(log_uniform(rng, 0.3, 3.0) / (ratio - 1), MAX_ATTENTION)
    squares = np.full((job.num_steps, shape.microbatches, shape.dp), usual_squares)
    least = 0.4 if owner == "all ranks" else 0.85
    parts = longest_part * rng.uniform(least, 1.0, owners.shape)
    squares[:, place] = np.where(owners > 0, _squares(parts, documents), squares[:, place])
    factor = 1 - attention + attention * squares / usual_squares
    of_compute = job.graph.of(FORWARD, BACKWARD)
    microbatch = job.graph.mb[of_compute]
    sends_lengths = bool(rng.random() < SENDS_LENGTHS_SHARE)

    def change(durations: Durations, extras: Extras) -> None:
        durations.own[:, of_compute] *= factor[:, microbatch]
        if sends_lengths:
            extras.tokens = np.full(durations.own.shape, -1, np.int64)
            extras.seq_len_sq = extras.tokens.copy()
            extras.tokens[:, of_compute] = CONTEXT
            extras.seq_len_sq[:, of_compute] = squares[:, microbatch]

    most = 1 + attention * (ratio - 1)
    words = f"{owner}, micro-batch {place} of {shape.microbatches}, up to {most:.2f}x"
    return Fault(_truth(job, owner, owners, course), change, words)


def _place(microbatches: int, rng: np.random.Generator) -> int:
    """The last micro-batch of a step mostly; else the first or any other."""
    if rng.random() < 0.6:
        return microbatches - 1
    return int(rng.integers(microbatches))


def _owners(owner: Owner, num_steps: int, dp: int, rng: np.random.Generator) -> Floats:
    """[steps, dp ranks], 1 where a rank has a long micro-batch."""
    owners = np.zeros((num_steps, dp))
    if owner == "all ranks":
        owners[:] = 1
    elif owner == "one rank":
        owners[:, int(rng.integers(dp))] = 1
    else:
        first = int(rng.integers(dp))
        owners[np.arange(num_steps), (first + np.arange(num_steps)) % dp] = 1
    return owners


def _squares(part: float | Floats, documents: int) -> Floats:
    """Sum of squares of lengths: one document of this part of a context, the rest short ones."""
    longest = np.asarray(part) * CONTEXT
    squares: Floats = longest**2 + (CONTEXT - longest) * CONTEXT / documents
    return squares


def _truth(job: JobUnderway, owner: Owner, owners: Floats, course: Course) -> Truth:
    """No single culprit; a rank that never has a long micro-batch is innocent."""
    truth = nobody("last-microbatch", "sequence-imbalance", job, course)
    if owner == "one rank":
        (dp_rank,) = np.flatnonzero(owners.any(axis=0)).tolist()
        workers = frozenset((dp_rank, stage) for stage in range(job.shape.pp))
        truth = truth_of(
            "last-microbatch", truth.causes, workers, course, area="all"
        ).without_culprits()
    return replace(truth, persistence=course.persistence | CHRONIC | {"rotating"})
