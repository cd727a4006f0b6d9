"""The loss that no cause explains: how much of the step it is, and where in the step it sits.

    unexplained = (T'_repaired - T'_ideal) / T'

T'_repaired has the repairs of all findings at once, so that costs that overlap count once, and
T'_ideal the means of the repaired durations: a fault raises the mean of its op type. The rest is
placed by making one op type, or one stage, ideal as well: what wins back most holds most of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.evidence.features import ops_of
from app.diagnosis.evidence.stops import Stop, long_stops
from app.diagnosis.suspicions import RepairedTogether, RowChoice, blamed_step_times_s
from app.engine.what_if import Replayer
from app.result import causes
from app.result.causes import CAUSES
from app.result.finding import Finding
from app.result.unexplained import MIN_SHARE, unexplained_sentence
from app.trace.window import Floats, Ints

# An op type or stage that wins back less of the rest is not where most of it is.
MIN_PLACE_SHARE = 0.3
# A stage holds more than the others if it has so many times its part of the rest.
MIN_TIMES_EVEN = 1.5


@dataclass(frozen=True, slots=True)
class UnexplainedLoss:
    """Loss without a cause as shares of the step time and of the loss, and its place.

    `optype` and `stage` win back the shares `share_in_optype` and `share_in_stage` of it; None
    where no one stands out or `share` is small. `late_launch_share` is the part of it that is no
    operation: launches are late in single steps, as before an evaluation. `stop_share` is the part
    in stops of all workers, in or before the steps `stop_steps`, which raise the ideal or lie
    between steps.
    """

    share: float
    share_of_loss: float | None
    optype: str | None = None
    share_in_optype: float | None = None
    stage: int | None = None
    share_in_stage: float | None = None
    late_launch_share: float = 0.0
    stop_share: float = 0.0
    stop_steps: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The result's `unexplained`, with its sentence."""
        block: dict[str, Any] = {name: getattr(self, name) for name in _NAMES}
        block["stop_steps"] = list(self.stop_steps)
        return {**block, "sentence": unexplained_sentence(block)}


_NAMES = (
    *("share", "share_of_loss", "optype", "share_in_optype", "stage", "share_in_stage"),
    *("late_launch_share", "stop_share"),
)


def unexplained_loss(
    case: Case, named: Sequence[Suspicion], findings: Sequence[Finding]
) -> UnexplainedLoss | None:
    """The rest after the repairs of the named suspicions; None where nothing was replayed.

    The first steps of a job are left out. Costs that no replay has are subtracted as they are.
    """
    steps = _counted_steps(case)
    if not steps.size:
        return None
    repaired = RepairedTogether(case, named)
    repaired_s = repaired.step_s
    # What odd steps take beyond their replay is late launches.
    blamed_s, late_s = blamed_step_times_s(case, named)
    ideal_s = float(repaired.ideal_s[steps].mean())
    total_s = float(blamed_s[steps].mean())
    rest_s = float((repaired_s + late_s)[steps].mean()) - ideal_s
    rest_s -= total_s * _cost_beside_replays(case, named, findings)
    loss_s = total_s - ideal_s
    stops = _unnamed_stops(case, findings)
    # Per step, as all other times here.
    stop_s = sum(stop.seconds for stop in stops) / steps.size
    gap_s = sum(stop.seconds for stop in stops if stop.place == "between") / steps.size
    total_s, rest_s, loss_s = total_s + gap_s, rest_s + stop_s, loss_s + stop_s
    share = max(0.0, rest_s / total_s)
    of_loss = min(1.0, max(0.0, rest_s / loss_s)) if loss_s > 0 else None
    late_share = max(0.0, min(share, float(late_s[steps].mean()) / total_s))
    stop_steps = tuple(int(case.steps[stop.at]) for stop in stops)
    stopped = (late_share, min(share, stop_s / total_s), stop_steps)
    if share < MIN_SHARE:
        return UnexplainedLoss(share, of_loss, None, None, None, None, *stopped)
    left_s = repaired_s[steps].mean() - ideal_s
    optype, share_in_optype = _most(_by_optype(case, repaired, steps), left_s)
    stage, share_in_stage = _most(_by_stage(case, repaired, steps), left_s)
    pp_size = case.parallelism.pp_size
    stands_out = share_in_stage is not None and share_in_stage * pp_size >= MIN_TIMES_EVEN
    return UnexplainedLoss(
        share,
        of_loss,
        optype,
        share_in_optype,
        int(stage) if stage is not None and stands_out and pp_size > 1 else None,
        share_in_stage if stands_out and pp_size > 1 else None,
        *stopped,
    )


def _unnamed_stops(case: Case, findings: Sequence[Finding]) -> list[Stop]:
    """Stops of all workers that no finding has, and that are no late launches of odd steps."""
    named = {
        step
        for each in findings
        if CAUSES[each.cause].names_stops
        for step in each.evidence.get("steps", ())
    }
    return [
        stop
        for stop in case.cached(long_stops)
        if stop.is_all
        and (stop.is_inside or stop.place == "between")
        and int(case.steps[stop.at]) not in named
    ]


def _counted_steps(case: Case) -> Ints:
    """Positions of all steps but the odd ones with which a job begins."""
    if case.extended_history.num_before:
        return np.arange(case.steps.size)
    first = int(np.argmax(case.is_usual)) if case.is_usual.any() else 0
    return np.arange(first, case.steps.size)


def _cost_beside_replays(
    case: Case, named: Sequence[Suspicion], findings: Sequence[Finding]
) -> float:
    """Costs of findings that are not replayed and lie within steps, as a share."""
    not_replayed = {each.cause for each in named if each.repair is None and each.delays is None} - {
        causes.CHECKPOINT_STALL
    }
    return sum(each.cost or 0.0 for each in findings if each.cause in not_replayed)


def _by_optype(case: Case, repaired: RepairedTogether, steps: Ints) -> dict[str, float]:
    """{op type: mean seconds that it holds}, sends and receives of a direction as one.

    Without a repair the report's own replays answer: what is lost with only this type as recorded.
    """
    if not repaired.has_repair:
        kept_s = case.report.optype_step_s
        return {name: _above_ideal_s(case, each_s, steps) for name, each_s in kept_s.items()}
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


def _above_ideal_s(case: Case, step_s: Floats, steps: Ints) -> float:
    return float((step_s - case.report.ideal_s)[steps].mean())


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
