"""silent-worker: a worker stopped reporting while the others go on."""

from collections.abc import Mapping, Sequence

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    CostFigures,
    Detector,
    Suspicion,
    finding_sentence,
    names_of,
    plural,
)
from app.diagnosis.finding import Worker, culprit_of_each, with_ranks
from app.result.finding import Culprit, RuledOut
from app.result.sentence import verb
from app.trace.window import Integers, Window

# A late worker misses only one or two steps.
MIN_STEPS = 3
# If more are missing, the collection of reports has failed.
MAX_SILENT_SHARE = 0.5


class SilentWorker(Detector):
    """Missing from the last steps of the window."""

    cause = "silent-worker"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        return silent_worker(case.replay.window)


def silent_worker(window: Window) -> Suspicion | RuledOut:
    """The detector for any window: without a complete step there is no case."""
    cause = SilentWorker.cause
    missing = _missing_at_the_end(window)
    if not missing:
        return RuledOut(cause, "every worker reported the last step of the window")
    longest = max(missing.values())
    silent = [rank for rank, num_steps in missing.items() if num_steps >= MIN_STEPS]
    if not silent:
        return RuledOut(
            cause,
            f"reports of {plural(len(missing), 'worker')} are missing in no more than the last "
            f"{plural(longest, 'step')}, as those of late ones are",
            insufficient=True,
            figures={"steps": longest},
        )
    rank_of = _workers(window, silent)
    if len(rank_of) > MAX_SILENT_SHARE * window.job.parallelism.num_workers:
        return RuledOut(
            cause,
            f"{len(rank_of):,} of {window.job.parallelism.num_workers:,} workers miss: "
            "more than half, so it need not be theirs to answer for",
            insufficient=True,
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
    workers = sorted(rank_of)
    culprits = _culprits(window, rank_of)
    num_steps = max(missing.values())
    steps = _last_steps(window)
    since = steps[-num_steps]
    began_here = num_steps < len(steps)

    def wording(costs: CostFigures) -> str:
        often = "the last step" if num_steps == 1 else f"the last {num_steps:,} steps"
        report = _REPORTS if len(culprits) == 1 else _REPORT
        fact = f"{names_of(culprits)} {report} nothing in {often}, while the others {_GO} on"
        return finding_sentence(fact, costs)

    return Suspicion(
        cause=SilentWorker.cause,
        score=0.95,
        confidence=0.95,
        culprits=culprits,
        wording=wording,
        onset_step=since if began_here else None,
        persistence="chronic",
        evidence={
            "workers": [list(worker) for worker in workers[:_MAX_LISTED]],
            "num_workers": len(workers),
            "ranks": sorted(missing)[:_MAX_LISTED],
            "steps_missed": num_steps,
        },
        basis="not-recorded",
    )


_MAX_LISTED = 64


def _last_steps(window: Window) -> list[int]:
    """Steps whose reporting ranks are known, ascending."""
    return sorted({*window.steps, *window.missing_by_step})


def _missing_at_the_end(window: Window) -> dict[int, int]:
    """Number of last steps in a row that each rank is missing from."""
    missing = window.missing_by_step
    found: dict[int, int] = {}
    for number, step in enumerate(reversed(_last_steps(window))):
        still = [rank for rank in missing.get(step, ()) if found.get(rank, 0) == number]
        if not still:
            break
        found |= dict.fromkeys(still, number + 1)
    return found


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
        of_rank |= _seen(known, trace.dp_rank[rows[first]], trace.stage[rows[first]])
    of_rank |= window.places
    if window.imputed is not None:
        of_rank |= {rank: worker for worker, rank in window.imputed.ranks.items()}
    return {of_rank[rank]: rank for rank in ranks if rank in of_rank}


def _seen(rank: Integers, dp_rank: Integers, stage: Integers) -> dict[int, Worker]:
    workers = zip(dp_rank.tolist(), stage.tolist(), strict=True)
    return dict(zip(rank.tolist(), workers, strict=True))
