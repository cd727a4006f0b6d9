"""silent-worker: a worker stopped reporting while the others go on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    MAX_LISTED,
    Detector,
    Suspicion,
    is_plural,
    names_of,
    workers_evidence,
)
from app.diagnosis.finding import Worker, culprit_of_each, with_ranks
from app.diagnosis.statistics.persistence import Onset
from app.formatting import plural
from app.result.finding import Culprit, RuledOut
from app.result.words import verb
from app.trace.window import Window


@dataclass(frozen=True, slots=True)
class SilentLimits:
    """Thresholds of silent-worker. All were chosen."""

    # Last steps that a silent worker misses: a late one misses only one or two.
    min_steps: int = 3
    # Share of the workers: if more miss, the collection of reports has failed.
    max_silent_share: float = 0.5
    # Score and confidence.
    confidence: float = 0.95


LIMITS = SilentLimits()


class SilentWorker(Detector):
    """Missing from the last steps of the window."""

    cause = "silent-worker"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        return self.detect_in(case.replay.window)

    def detect_in(self, window: Window) -> Suspicion | RuledOut:
        """The same for any window: without a complete step there is no case."""
        missing = _missing_at_the_end(window)
        if not missing:
            return self.denied("every worker reported the last step of the window")
        silent = [rank for rank, num_steps in missing.items() if num_steps >= LIMITS.min_steps]
        if not silent:
            longest = max(missing.values())
            return self.cannot_tell(
                f"reports of {plural(len(missing), 'worker')} are missing in no more than the last "
                f"{plural(longest, 'step')}, as those of late ones are",
                steps=longest,
            )
        rank_of, num_workers = _workers(window, silent), window.job.parallelism.num_workers
        if len(rank_of) > LIMITS.max_silent_share * num_workers:
            return self.cannot_tell(
                f"{len(rank_of):,} of {num_workers:,} workers miss: more than half, so it need not "
                "be theirs to answer for"
            )
        return _suspicion(window, rank_of, {rank: missing[rank] for rank in silent})


_REPORTS, _REPORT = verb("reports", "reported"), verb("report", "reported")
_GO = verb("go", "went")


def _culprits(window: Window, rank_of: Mapping[Worker, int]) -> tuple[Culprit, ...]:
    """The culprits of the silent workers, with their global ranks."""
    sizes = window.job.parallelism
    ranks = np.full((sizes.dp_size, sizes.pp_size), -1, np.int64)
    for worker, rank in rank_of.items():
        ranks[worker] = rank
    members: dict[Culprit, list[Worker]] = {}
    for worker, culprit in culprit_of_each(sorted(rank_of), window.hosts, sizes).items():
        members.setdefault(culprit, []).append(worker)
    return tuple(
        with_ranks(culprit, workers, ranks, sizes, is_whole=True)
        for culprit, workers in members.items()
    )


def _suspicion(
    window: Window, rank_of: Mapping[Worker, int], missing: Mapping[int, int]
) -> Suspicion:
    culprits = _culprits(window, rank_of)
    num_steps, steps = max(missing.values()), _last_steps(window)
    often = "the last step" if num_steps == 1 else f"the last {num_steps:,} steps"
    report = _REPORT if is_plural(culprits) else _REPORTS
    fact = f"{names_of(culprits)} {report} nothing in {often}, while the others {_GO} on"
    return Suspicion(
        cause=SilentWorker.cause,
        score=LIMITS.confidence,
        confidence=LIMITS.confidence,
        culprits=culprits,
        fact=fact,
        onset=Onset(steps[-num_steps] if num_steps < len(steps) else None, "chronic"),
        evidence={
            **workers_evidence(sorted(rank_of)),
            "ranks": sorted(missing)[:MAX_LISTED],
            "steps_missed": num_steps,
        },
        basis="not-recorded",
    )


def _last_steps(window: Window) -> list[int]:
    """Steps whose reporting ranks are known, ascending."""
    return sorted({*window.steps, *window.missing_by_step})


def _missing_at_the_end(window: Window) -> dict[int, int]:
    """Number of last steps in a row that each rank is missing from."""
    missing = window.missing_by_step
    num_missing: dict[int, int] = {}
    for number, step in enumerate(reversed(_last_steps(window))):
        still = [rank for rank in missing.get(step, ()) if num_missing.get(rank, 0) == number]
        if not still:
            break
        num_missing |= dict.fromkeys(still, number + 1)
    return num_missing


def _workers(window: Window, ranks: Sequence[int]) -> dict[Worker, int]:
    """Workers of these ranks by the recorder or the trace, else by the usual rank order."""
    sizes, trace = window.job.parallelism, window.trace
    of_rank: dict[int, Worker] = {
        sizes.usual_rank(dp_rank, stage): (dp_rank, stage)
        for dp_rank in range(sizes.dp_size)
        for stage in range(sizes.pp_size)
    }
    if window.steps:
        # Every worker reported each of the window's steps, or its rows are imputed.
        rows = np.flatnonzero(trace.step == window.steps[0])
        known, first = np.unique(trace.rank[rows], return_index=True)
        dp_ranks, stages = (column[rows[first]] for column in (trace.dp_rank, trace.stage))
        workers = zip(dp_ranks.tolist(), stages.tolist(), strict=True)
        of_rank |= dict(zip(known.tolist(), workers, strict=True))
    of_rank |= window.places
    if window.imputed is not None:
        of_rank |= {rank: worker for worker, rank in window.imputed.ranks.items()}
    return {of_rank[rank]: rank for rank in ranks if rank in of_rank}
