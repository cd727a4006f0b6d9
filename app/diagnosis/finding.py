"""Findings, causes ruled out, culprits, and how scores and confidences are computed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from app.result.finding import Persistence, SentenceParts
from app.trace.job import Parallelism
from app.trace.window import Floats, Ints

# Below this score a cause is not named.
MIN_SCORE = 0.5


@dataclass(frozen=True, slots=True, order=True)
class Culprit:
    """A worker, GPU, dp rank, stage or host; fields that do not apply are None.

    `rank` is the global rank, the first where `ranks` lists several; `local_rank` is the GPU's
    number on its host, `num_workers` how many workers a host has of which all are affected. None
    of these counts when culprits are compared.
    """

    dp_rank: int | None = None
    stage: int | None = None
    host: str | None = None
    rank: int | None = field(default=None, compare=False)
    local_rank: int | None = field(default=None, compare=False)
    ranks: tuple[int, ...] = field(default=(), compare=False)
    num_workers: int | None = field(default=None, compare=False)

    def as_json(self) -> dict[str, Any]:
        """The fields that apply."""
        named = {
            "dp_rank": self.dp_rank,
            "stage": self.stage,
            "host": self.host,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "ranks": list(self.ranks) or None,
            "num_workers": self.num_workers,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause with its culprits, onset, cost and evidence.

    `score` and `confidence` are within 0..1. `cost` is the share of the job's GPU time that a
    repair wins back, None where unknown; `cost_range` are its bounds where replay and waits
    disagree. `onset_step` is None where the cause began before the known steps, `end_step`, the
    last step with it, while it lasts. `sentence` is made of `parts`, its onset, end and cost.
    """

    cause: str
    score: float
    confidence: float
    culprits: tuple[Culprit, ...]
    onset_step: int | None
    persistence: Persistence | None
    cost: float | None
    evidence: Mapping[str, Any]
    sentence: str
    parts: SentenceParts
    cost_range: tuple[float, float] | None = None
    end_step: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The finding in a result."""
        return {
            "cause": self.cause,
            "score": self.score,
            "confidence": self.confidence,
            "culprits": [culprit.as_json() for culprit in self.culprits],
            "onset_step": self.onset_step,
            "end_step": self.end_step,
            "persistence": self.persistence,
            "cost": self.cost,
            "cost_range": None if self.cost_range is None else list(self.cost_range),
            "evidence": dict(self.evidence),
            "sentence": self.sentence,
            "sentence_parts": msgspec.to_builtins(self.parts),
        }


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A cause that was not found; `insufficient` where the data cannot tell."""

    cause: str
    reason: str
    insufficient: bool = False
    score: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The cause and the reason against it in a result."""
        return {
            "cause": self.cause,
            "score": self.score,
            "insufficient_evidence": self.insufficient,
            "reason": self.reason,
            "evidence": dict(self.figures),
        }


Worker = tuple[int, int]  # dp rank, stage
Hosts = Mapping[Worker, str]

# A fault of the host itself, its network card or CPUs, shows in this share of its workers.
MIN_SHARE_OF_HOST = 0.75


def group_culprits(
    workers: Iterable[Worker], hosts: Hosts, parallelism: Parallelism
) -> tuple[Culprit, ...]:
    """Culprits of these workers, in their order: hosts, then dp ranks or stages, then workers.

    A host needs two workers and all that it has in the job, as one that is not affected would be
    blamed with the others; a dp rank needs all stages, a stage all dp ranks.
    """
    return tuple(dict.fromkeys(culprit_of_each(workers, hosts, parallelism).values()))


def culprit_of_each(
    workers: Iterable[Worker], hosts: Hosts, parallelism: Parallelism
) -> dict[Worker, Culprit]:
    """The culprit of `group_culprits` that each of these workers belongs to, in their order."""
    hit = list(dict.fromkeys(workers))
    of_host = _hosts_hit(hit, hosts)
    left = {worker for worker in hit if hosts.get(worker) not in of_host}
    return {
        worker: _group(worker, left, hosts, parallelism)
        if worker in left
        else Culprit(host=hosts[worker])
        for worker in hit
    }


def with_ranks(
    culprit: Culprit,
    workers: Sequence[Worker],
    rank_of: Ints,
    sizes: Parallelism,
    *,
    is_whole: bool = False,
) -> Culprit:
    """The culprit with the global ranks of its workers, where it is one worker or a host.

    Args:
        culprit: one that knows its rank already is returned as it is.
        workers: what it consists of; empty for a dp rank or a stage.
        rank_of: [dp, pp], the rank that each worker reported, below 0 where none did.
        sizes: of the job: the tensor-parallel ranks of a worker in the usual order are known.
        is_whole: whether all workers of a host are affected.
    """
    is_group = (culprit.dp_rank is None) is not (culprit.stage is None)
    if culprit.rank is not None or is_group:
        return culprit
    ranks = sorted(
        rank for worker in workers for rank in _ranks_of(worker, int(rank_of[worker]), sizes)
    )
    if not ranks:
        return culprit
    if culprit.dp_rank is None:
        # A host has no rank of its own: `rank` would be that of one worker.
        return replace(culprit, ranks=tuple(ranks), num_workers=len(workers) if is_whole else None)
    return replace(culprit, rank=ranks[0], ranks=tuple(ranks) if len(ranks) > 1 else ())


def _ranks_of(worker: Worker, rank: int, sizes: Parallelism) -> Sequence[int]:
    """Global ranks of a worker; in another order than the usual one only that which reported."""
    if rank < 0:
        return ()
    if rank != sizes.usual_rank(*worker):
        return (rank,)
    return range(rank, rank + sizes.tp_size * sizes.dsp_size)


def worker_culprit(worker: Worker, hosts: Hosts) -> Culprit:
    """One worker, with its host where known."""
    return Culprit(*worker, hosts.get(worker))


def _hosts_hit(hit: list[Worker], hosts: Hosts) -> set[str]:
    there: dict[str, int] = defaultdict(int)
    for host in hosts.values():
        there[host] += 1
    found: dict[str, int] = defaultdict(int)
    for worker in hit:
        if worker in hosts:
            found[hosts[worker]] += 1
    return {host for host, count in found.items() if 2 <= count == there[host]}


def _group(worker: Worker, hit: set[Worker], hosts: Hosts, sizes: Parallelism) -> Culprit:
    dp_rank, stage = worker
    if sizes.pp_size > 1 and all((dp_rank, each) in hit for each in range(sizes.pp_size)):
        return Culprit(dp_rank=dp_rank)
    if sizes.dp_size > 1 and all((each, stage) in hit for each in range(sizes.dp_size)):
        return Culprit(stage=stage)
    return worker_culprit(worker, hosts)


def score(figure: float, limit: float, certain: float) -> float:
    """0..1 for a ratio: 0 at 1, 0.5 at the limit, 1 from `certain` on."""
    return float(scores(np.array([figure]), limit, certain)[0])


def scores(figures: Floats, limit: float | Floats, certain: float | Floats) -> Floats:
    """`score` of each of many ratios."""
    below = MIN_SCORE * np.maximum(figures - 1, 0.0) / (limit - 1)
    beyond = np.log(np.maximum(figures, limit) / limit) / np.log(certain / limit)
    above = np.minimum(1.0, MIN_SCORE + (1 - MIN_SCORE) * beyond)
    return np.where(figures < limit, below, above)


def confidence(standard_errors: float, needed: float) -> float:
    """0.5..0.99, by the standard errors shown and those needed."""
    beyond = max(0.0, standard_errors / needed - 1)
    return float(0.99 - 0.49 * np.exp(-1.5 * beyond))
