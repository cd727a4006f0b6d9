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
        silent = _silent_at_the_end(window)
        if not silent:
            return self.denied(_nobody_is_silent(window))
        longest = max(run.num_steps for run in silent.values())
        if longest < LIMITS.min_steps:
            return self.cannot_tell(
                f"reports of {plural(len(silent), 'worker')} are missing in no more than the last "
                f"{plural(longest, 'step')}, as those of late ones are",
                steps=longest,
            )
        silent = {rank: run for rank, run in silent.items() if run.num_steps >= LIMITS.min_steps}
        rank_of, num_workers = _workers(window, list(silent)), window.job.parallelism.num_workers
        if len(rank_of) > LIMITS.max_silent_share * num_workers:
            return self.cannot_tell(
                f"{len(rank_of):,} of {num_workers:,} workers miss: more than half, so it need not "
                "be theirs to answer for"
            )
        return _suspicion(window, rank_of, silent)


@dataclass(frozen=True, slots=True)
class _Silence:
    """The last steps, `num_steps`, that a rank did not report.

    It sent nothing in the last `num_silent` of them; in one before these, if any, a part.
    """

    num_steps: int
    num_silent: int


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


def _nobody_is_silent(window: Window) -> str:
    last = _last_steps(window)[-1:]
    if any(window.missing_by_step.get(step) for step in last):
        return "every worker sent operations of the last step of the window"
    return "every worker reported the last step of the window"


def _suspicion(
    window: Window, rank_of: Mapping[Worker, int], silent: Mapping[int, _Silence]
) -> Suspicion:
    culprits = _culprits(window, rank_of)
    num_steps, steps = max(run.num_steps for run in silent.values()), _last_steps(window)
    num_silent = max(run.num_silent for run in silent.values())
    often = "the last step" if num_silent == 1 else f"the last {num_silent:,} steps"
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
            "ranks": sorted(silent)[:MAX_LISTED],
            "steps_missed": num_steps,
        },
        basis="not-recorded",
    )


def _last_steps(window: Window) -> list[int]:
    """Steps whose reporting ranks are known, ascending."""
    return sorted({*window.steps, *window.missing_by_step})


def _silent_at_the_end(window: Window) -> dict[int, _Silence]:
    """The ranks that sent nothing in the last step, and since when."""
    missing, silent_in = window.missing_by_step, window.silent_by_step
    silent: dict[int, _Silence] = {}
    for number, step in enumerate(reversed(_last_steps(window))):
        for rank in missing.get(step, ()):
            run = silent.get(rank, _Silence(0, 0))
            if run.num_steps == number == run.num_silent:
                is_silent = rank in silent_in[step]
                if is_silent or number:
                    silent[rank] = _Silence(number + 1, number + is_silent)
        if not any(run.num_steps == number + 1 for run in silent.values()):
            break
    return silent


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
