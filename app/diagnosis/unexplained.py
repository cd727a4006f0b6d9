"""What no cause explains: waiting for late ranks, and time that no operation covers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.finding import Finding
from app.diagnosis.late_workers import late_workers
from app.diagnosis.noted import noted_s
from app.engine.arrivals.arrivals import Arrivals
from app.engine.arrivals.result import as_json
from app.engine.what_if import Replayer

# Causes that make all transfers of a stage long, and none of its ranks late.
_OF_TRANSFERS = ("slow-link", "flapping-link")
# More workers hardly change what operations cover.
_MAX_WORKERS = 64


def arrivals_block(case: Case) -> dict[str, Any] | None:
    """The result's `arrivals`; None where no collective has several members."""
    found = case.replay.arrivals
    if found is None:
        return None
    kinds = {each.late.place: each.kind for each in case.ask(late_workers)}
    return as_json(found, dict(kinds))


def unexplained_share(case: Case, findings: Sequence[Finding]) -> float | None:
    """Share of the step that was waited for late sets which no finding's culprit is in.

    Less what findings without a culprit cost: they may be behind any wait. A rank that was held up
    itself is explained by whoever is found.
    """
    found = case.replay.arrivals
    if found is None:
        return None
    workers = {
        (int(dp_rank), int(stage))
        for finding in findings
        for dp_rank, stage in finding.evidence.get("workers", ())
    }
    # A culprit holds up all stages of its replica.
    replicas = {dp_rank for dp_rank, _ in workers} if case.parallelism.pp_size > 1 else set()
    explained = [
        at
        for at, place in enumerate(found.places)
        if place.dp_rank in replicas
        or (place.dp_rank, place.stage) in workers
        or _is_named(place, findings)
    ]
    if findings:
        explained += [each.place for each in found.late if not each.is_own]
    left_s = found.lost_without_s(explained).max(axis=0)
    of_all = sum(finding.cost or 0.0 for finding in findings if not finding.culprits)
    step_s = float(case.report.recorded_s.mean())
    share = max(0.0, min(float(left_s.mean()) / step_s, _waited_share(found)) - of_all)
    # A culprit that no finding names, late together with one that is named, is not explained.
    unnamed_s = [each.waited_for_s for each in found.culprits if each.place not in set(explained)]
    if findings and not of_all:
        share = max([share, *(min(1.0, each_s / step_s) for each_s in unnamed_s)])
    return share


def _is_named(place: Any, findings: Sequence[Finding]) -> bool:
    """Whether some finding's culprit is this rank, or has it as a part."""
    for finding in findings:
        for culprit in finding.culprits:
            if finding.cause in _OF_TRANSFERS and culprit.dp_rank is None and not culprit.host:
                continue
            names = (
                (culprit.dp_rank, place.dp_rank),
                (culprit.stage, place.stage),
                (culprit.host if culprit.dp_rank is None else None, place.host),
            )
            known = [(mine, theirs) for mine, theirs in names if mine is not None]
            if known and all(mine == theirs for mine, theirs in known):
                return True
    return False


def _waited_share(found: Arrivals) -> float:
    """The longest that any rank waited, by its own clock, as a share of the step.

    Collectives that overlap each other are waited for at the same time, which sums do not show.
    """
    if found.occurrences.sampled:  # in some steps only
        return 1.0
    places = np.argsort(-found.waited_s.mean(axis=1), kind="stable")[:4]
    unions_s = []
    for place in places.tolist():
        waiting = found.waits.of(place)
        if waiting.start_s.size:
            unions_s.append(float((waiting.end_s - waiting.start_s).sum()))
    if not unions_s:
        return 1.0
    return max(unions_s) / float(found.step_s.sum())


def coverage(case: Case) -> float | None:
    """Share of the steps' time in which workers had an operation, or waited for data."""
    shares = [_covered_s(replayer) for replayer in case.replay.groups]
    total_s = float(case.report.recorded_s.sum())
    if total_s <= 0:
        return None
    waited_s = float(noted_s(case, "data-wait").mean(axis=(1, 2)).sum())
    return min(1.0, (sum(shares) + waited_s) / total_s)


def _covered_s(replayer: Replayer) -> float:
    """Seconds of all steps of a group that the typical worker has some operation in."""
    grid, template = replayer.grid, replayer.template
    sizes = template.parallelism
    num = sizes.dp_size * sizes.pp_size
    covered_s = []
    for worker in np.unique(np.linspace(0, num - 1, min(_MAX_WORKERS, num)).astype(np.int64)):
        dp_rank, stage = divmod(int(worker), sizes.pp_size)
        rows = np.flatnonzero(template.stage == stage)
        lanes = slice(dp_rank * grid.num_steps, (dp_rank + 1) * grid.num_steps)
        # An operation may reach back into the step before, which has it already.
        start_s = np.maximum(grid.start_s[rows, lanes], grid.began_s)
        end_s = grid.start_s[rows, lanes] + grid.duration_s[rows, lanes]
        order = np.argsort(start_s, axis=0)
        start_s, end_s = (np.take_along_axis(each, order, axis=0) for each in (start_s, end_s))
        reach_s = np.maximum.accumulate(end_s, axis=0)
        before_s = np.vstack([start_s[:1], reach_s[:-1]])
        covered_s.append(float(np.maximum(0.0, end_s - np.maximum(start_s, before_s)).sum()))
    return float(np.mean(covered_s))
