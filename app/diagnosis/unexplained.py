"""The loss that no cause explains: how much of the step it is, and where in the step it sits.

    unexplained = (T'_repaired - T'_ideal) / T'

T'_repaired has the repairs of all findings at once, so that costs that overlap count once, and
T'_ideal the means of the repaired durations: a fault raises the mean of its op type. The rest is
placed by making one op type, or one stage, ideal as well: what wins back most holds most of it.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import structs

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.evidence.stops import Stop, long_stops
from app.diagnosis.evidence.usual_steps import is_usual
from app.diagnosis.features import ops_of
from app.diagnosis.suspicions import RepairedTogether, RowChoice, blamed_step_times_s
from app.engine.what_if import Replayer
from app.result import causes
from app.result.causes import CAUSES
from app.result.finding import Finding
from app.result.window_result import Unexplained
from app.result.words import MIN_UNEXPLAINED_SHARE, unexplained_sentence
from app.trace.window import Ints

# An op type or stage that wins back less of the rest is not where most of it is.
MIN_PLACE_SHARE = 0.3
# A stage holds more than the others if it has so many times its part of the rest.
MIN_TIMES_EVEN = 1.5


def unexplained_loss(
    case: Case, named: Sequence[Suspicion], findings: Sequence[Finding]
) -> Unexplained | None:
    """The rest after the repairs of the named suspicions; None where nothing was replayed.

    The first steps of a job are left out. Costs that no replay has are subtracted as they are.
    """
    steps = _counted_steps(case)
    if not steps.size:
        return None
    repaired = RepairedTogether(case, named)
    repaired_s = repaired.step_s
    # What odd steps take beyond their replay is late launches, but for idle time, which is a fact.
    blamed_s, late_s, idle_s = blamed_step_times_s(case, named)
    ideal_s = float(repaired.ideal_s[steps].mean())
    total_s = float(blamed_s[steps].mean())
    rest_s = float((repaired_s + late_s)[steps].mean()) - ideal_s
    rest_s -= total_s * _cost_beside_replays(named, findings)
    idle_share = float(idle_s[steps].mean()) / total_s
    loss_s = total_s * (1 - idle_share) - ideal_s
    stops = _unnamed_stops(case, findings)
    # Per step, as all other times here.
    stop_s = sum(stop.seconds for stop in stops) / steps.size
    rest_s, loss_s = rest_s + stop_s, loss_s + stop_s
    share = max(0.0, rest_s / total_s)
    of_loss = min(1.0, max(0.0, rest_s / loss_s)) if loss_s > 0 else None
    late_share = max(0.0, min(share, float(late_s[steps].mean()) / total_s))
    stop_steps = tuple(int(case.steps[stop.at]) for stop in stops)
    # Stops of all workers that no finding has are in the ideal's means and in the rest.
    ideal_share = (ideal_s - stop_s) / total_s
    is_some = share >= MIN_UNEXPLAINED_SHARE
    left_s = repaired_s[steps].mean() - ideal_s
    optype, share_in_optype = _most(_by_optype(case, repaired, steps) if is_some else {}, left_s)
    stage, share_in_stage = _most(_by_stage(case, repaired, steps) if is_some else {}, left_s)
    if share_in_stage is not None and share_in_stage * case.parallelism.pp_size < MIN_TIMES_EVEN:
        stage = share_in_stage = None
    loss = Unexplained(
        share=share,
        ideal_share=min(1.0, max(0.0, ideal_share)),
        share_of_loss=of_loss,
        optype=optype,
        share_in_optype=share_in_optype,
        stage=None if stage is None else int(stage),
        share_in_stage=share_in_stage,
        idle_share=idle_share,
        late_launch_share=late_share,
        stop_share=min(share, stop_s / total_s),
        stop_steps=stop_steps,
        sentence=None,
    )
    return structs.replace(loss, sentence=unexplained_sentence(loss)) if is_some else loss


def _unnamed_stops(case: Case, findings: Sequence[Finding]) -> list[Stop]:
    """Stops of all workers that no finding has, and that are no late launches of odd steps."""
    named = {
        step
        for finding in findings
        if CAUSES[finding.cause].names_stops
        for step in finding.evidence.get("steps", ())
    }
    return [
        stop
        for stop in long_stops(case)
        if stop.is_all and stop.is_inside and int(case.steps[stop.at]) not in named
    ]


def _counted_steps(case: Case) -> Ints:
    """Positions of all steps but the odd ones with which a job begins."""
    if case.extended_history.num_before:
        return np.arange(case.steps.size)
    first = int(np.argmax(is_usual(case))) if is_usual(case).any() else 0
    return np.arange(first, case.steps.size)


def _cost_beside_replays(named: Sequence[Suspicion], findings: Sequence[Finding]) -> float:
    """Costs of findings that are not replayed and lie within steps, as a share."""
    not_replayed = {
        suspicion.cause for suspicion in named if not (suspicion.repair or suspicion.delays)
    }
    not_replayed.discard(causes.CHECKPOINT_STALL)
    return sum(finding.cost or 0.0 for finding in findings if finding.cause in not_replayed)


def _by_optype(case: Case, repaired: RepairedTogether, steps: Ints) -> dict[str, float]:
    """{op type: mean seconds that it holds}, sends and receives of a direction as one.

    Without a repair the report's own replays answer: what is lost with only this type as recorded.
    """
    if not repaired.has_repair:
        kept_s, ideal_s = case.report.optype_step_s, case.report.ideal_s
        return {name: float((own_s - ideal_s)[steps].mean()) for name, own_s in kept_s.items()}
    by_code = case.replay.window.job.op_types.by_code
    present = sorted({code for group in case.replay.groups for code in group.template.present})
    codes: dict[str, list[int]] = {}
    for code in present:
        codes.setdefault(by_code[code].group, []).append(code)
    return {
        name: _won_s(repaired, steps, partial(_rows_of_types, codes=of_name))
        for name, of_name in codes.items()
    }


def _rows_of_types(group: Replayer, codes: list[int]) -> Ints:
    return ops_of(group.template, codes)


def _by_stage(case: Case, repaired: RepairedTogether, steps: Ints) -> dict[str, float]:
    """{stage: mean seconds that it holds}."""
    if case.parallelism.pp_size == 1:
        return {}
    if not repaired.has_repair:
        lost_s = float((repaired.step_s - case.report.ideal_s).mean())
        shares = enumerate(case.report.stage_share)
        return {str(at): (share or 0.0) * lost_s for at, share in shares}
    return {
        str(stage): _won_s(repaired, steps, partial(_rows_of_stage, stage=stage))
        for stage in range(case.parallelism.pp_size)
    }


def _rows_of_stage(group: Replayer, stage: int) -> Ints:
    return np.flatnonzero(group.template.stage == stage)


def _won_s(repaired: RepairedTogether, steps: Ints, rows: RowChoice) -> float:
    return float((repaired.step_s - repaired.with_ideal_s(rows))[steps].mean())


def _most(won_s: Mapping[str, float], left_s: float) -> tuple[str | None, float | None]:
    """The place that wins back most, and its share of the rest; None where no one stands out."""
    if not won_s or left_s <= 0:
        return None, None
    name = max(won_s, key=won_s.__getitem__)
    share = min(1.0, won_s[name] / float(left_s))
    return (name, share) if share >= MIN_PLACE_SHARE else (None, None)
