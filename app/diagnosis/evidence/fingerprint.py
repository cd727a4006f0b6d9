"""Summary figures of a diagnosis: variance and loss by place, unexplained waiting, coverage."""

from collections.abc import Sequence

import numpy as np

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.interruptions import annotated_s
from app.diagnosis.evidence.late_workers import late_workers
from app.diagnosis.features import Features
from app.engine.arrivals.arrivals import arrivals_record
from app.engine.metrics import slowdown
from app.engine.what_if import Replayer
from app.result.arrivals import ArrivalsRecord
from app.result.causes import CAUSES
from app.result.finding import Finding
from app.result.window_result import Fingerprint, Variance
from app.trace.collectives import RankPlace
from app.trace.window import Floats


def fingerprint(case: Case) -> Fingerprint:
    """The fingerprint of the window."""
    return Fingerprint(
        variance=_variance(case.groups),
        optype_share=_optype_share(case),
        stage_share=tuple(case.report.stage_share),
    )


def _variance(groups: tuple[Features, ...]) -> Variance:
    """Shares of the variance; groups weigh by their operations."""
    parts: list[float | None] = [None] * 3
    sides = [group.forward for group in groups]
    known = [side.duration_s for side in sides if side is not None and side.shared.size]
    sums = np.sum([_sums_of_squares(duration_s) for duration_s in known], axis=0)
    if len(known) == len(groups) and sums.sum() > 0:
        parts = (sums / sums.sum()).tolist()
    return Variance(between_stages=parts[0], between_workers=parts[1], within_workers=parts[2])


def _sums_of_squares(duration_s: Floats) -> Floats:
    """[3] between stages, between workers, within a worker; of [dp, pp, items, steps]."""
    per_worker = duration_s.shape[2] * duration_s.shape[3]
    of_worker = duration_s.mean(axis=(2, 3))
    of_stage = of_worker.mean(axis=0)
    between_stages = per_worker * of_worker.shape[0] * ((of_stage - of_stage.mean()) ** 2).sum()
    between_workers = per_worker * ((of_worker - of_stage) ** 2).sum()
    total = ((duration_s - of_stage.mean()) ** 2).sum()
    return np.array(
        [between_stages, between_workers, max(0.0, total - between_stages - between_workers)]
    )


def _optype_share(case: Case) -> dict[str, float]:
    step_s = case.report.optype_step_s
    slowdowns = slowdown(np.array(list(step_s.values())), case.report.ideal_s).tolist()
    lost = {name: max(0.0, ratio - 1.0) for name, ratio in zip(step_s, slowdowns, strict=True)}
    total = sum(lost.values())
    return {name: loss / total if total > 0 else 0.0 for name, loss in lost.items()}


def arrivals_of(case: Case) -> ArrivalsRecord | None:
    """The result's `arrivals`; None without collectives of several members."""
    arrivals = case.replay.arrivals
    if arrivals is None:
        return None
    kinds = {worker.late.place: worker.kind for worker in late_workers(case)}
    return arrivals_record(arrivals, kinds)


def unexplained_share(case: Case, findings: Sequence[Finding]) -> float | None:
    """Share of the step spent waiting for ranks that no finding explains.

    Explained are a finding's workers and culprits (in a pipeline their whole replica) and, where
    there is any finding, ranks that were held up themselves. The cost of findings without culprits
    is subtracted, as it may be behind any wait.
    """
    arrivals = case.replay.arrivals
    if arrivals is None:
        return None
    workers = {
        (int(dp_rank), int(stage))
        for finding in findings
        for dp_rank, stage in finding.evidence.get("workers", ())
    }
    replicas = {dp_rank for dp_rank, _ in workers} if case.parallelism.pp_size > 1 else set()
    explained = [
        at
        for at, place in enumerate(arrivals.places)
        if place.dp_rank in replicas
        or (place.dp_rank, place.stage) in workers
        or _is_named(place, findings)
    ]
    if findings:
        explained += [late.place for late in arrivals.late if not late.is_own]
    left_s = arrivals.lost_without_s(explained).max(axis=0)
    of_all = sum(finding.cost or 0.0 for finding in findings if not finding.culprits)
    step_s = float(case.report.recorded_s.mean())
    share = max(0.0, min(float(left_s.mean()) / step_s, _waited_share(case)) - of_all)
    # A culprit without a finding stays unexplained, even if late together with an explained one.
    if findings and not of_all:
        unnamed = [late for late in arrivals.culprits if late.place not in set(explained)]
        share = max([share, *(min(1.0, late.waited_for_s / step_s) for late in unnamed)])
    return share


def _is_named(place: RankPlace, findings: Sequence[Finding]) -> bool:
    """Whether this rank is, or is part of, the culprit of a finding."""
    for finding in findings:
        is_of_transfers = CAUSES[finding.cause].is_of_transfers
        for culprit in finding.culprits:
            if is_of_transfers and culprit.dp_rank is None and not culprit.host:
                continue
            names = (
                (culprit.dp_rank, place.dp_rank),
                (culprit.stage, place.stage),
                (culprit.host if culprit.dp_rank is None else None, place.host),
            )
            known = [(name, of_place) for name, of_place in names if name is not None]
            if known and all(name == of_place for name, of_place in known):
                return True
    return False


@evidence
def _waited_share(case: Case) -> float:
    """The longest waiting of one rank, overlapping waits counted once, as a share of the step."""
    arrivals = case.replay.arrivals
    if arrivals is None:
        return 0.0
    if arrivals.occurrences.sampled:  # in some steps only
        return 1.0
    places = np.argsort(-arrivals.waited_s.mean(axis=1), kind="stable")[:4]
    total_s = arrivals.waits.of_places(places).total_s
    return float(total_s.max()) / float(arrivals.step_s.sum()) if total_s.any() else 1.0


def coverage(case: Case) -> float | None:
    """Share of the steps' time in which workers ran an operation or waited for data."""
    shares = [_covered_s(replayer) for replayer in case.replay.groups]
    total_s = float(case.report.recorded_s.sum())
    if total_s <= 0:
        return None
    waited_s = float(annotated_s(case, "data-wait").mean(axis=(1, 2)).sum())
    return min(1.0, (sum(shares) + waited_s) / total_s)


# Workers sampled for the coverage.
_MAX_WORKERS = 64


def _covered_s(replayer: Replayer) -> float:
    """Seconds, over all steps of a group, in which the mean worker runs some operation."""
    grid, template = replayer.grid, replayer.template
    sizes = template.parallelism
    num = sizes.dp_size * sizes.pp_size
    workers = np.unique(np.linspace(0, num - 1, min(_MAX_WORKERS, num)).astype(np.int64))
    covered_s = 0.0
    for stage in np.unique(workers % sizes.pp_size):
        rows = np.flatnonzero(template.stage == stage)
        dp_ranks = workers[workers % sizes.pp_size == stage] // sizes.pp_size
        lanes = (dp_ranks[:, None] * grid.num_steps + np.arange(grid.num_steps)).reshape(-1, 1)
        start_s = grid.start_s[rows, lanes]
        end_s = start_s + grid.duration_s[rows, lanes]
        covered_s += _union_s(start_s, end_s, np.tile(grid.began_s, dp_ranks.size))
    return covered_s / workers.size


def _union_s(start_s: Floats, end_s: Floats, began_s: Floats) -> float:
    """Seconds with some operation [lanes, rows], which it sorts, since each step began [lanes]."""
    for times_s in (start_s, end_s):
        np.maximum(times_s, began_s[:, None], out=times_s)
        times_s.sort(axis=1)
    # Nothing runs from the n-th end on until the start after the n-th, if that is later.
    idle_s = np.maximum(0.0, start_s[:, 1:] - end_s[:, :-1])
    return float((end_s[:, -1] - start_s[:, 0]).sum() - idle_s.sum())
