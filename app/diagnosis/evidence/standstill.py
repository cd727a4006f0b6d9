"""How long does a worker stand still in collectives, and may its computations hide more of that?

While a collective waits for a late rank, the computation beside it runs on, or is held up behind it
(docs/arrivals.md, "Waits inside computations"): where arrivals do not prove which, both are said.
"""

from dataclasses import dataclass

import numpy as np

from app.diagnosis.case import Case, evidence
from app.diagnosis.finding import Worker
from app.engine.arrivals.arrivals import Arrivals
from app.engine.arrivals.hidden_waits import recorded_waits
from app.engine.arrivals.waits import WaitIntervals, merged_intervals
from app.trace.ops import Axis, OpKind
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class Standstill:
    """Seconds in collectives during which a worker computed nothing, both [steps].

    `maybe_s` more are inside computations that may have been held up, or may have run on.
    """

    sure_s: Floats
    maybe_s: Floats


@evidence
def standstill(case: Case, worker: Worker) -> Standstill | None:
    """Standstill of one worker (dp rank, stage); None without arrivals."""
    arrivals = case.replay.arrivals
    if arrivals is None:
        return None
    both_s = np.zeros((2, case.steps.size))
    for number, replayer in enumerate(case.replay.groups):
        at = np.searchsorted(case.steps, replayer.steps)
        both_s[:, at] = _standstill_s(case, arrivals, number, worker)
    return Standstill(*both_s)


def _standstill_s(
    case: Case, arrivals: Arrivals, number: int, worker: Worker
) -> tuple[Floats, Floats]:
    """[steps of one group of the replay], seconds, sure and maybe."""
    replayer, (dp_rank, stage) = case.replay.groups[number], worker
    grid, template, offset_s = replayer.grid, replayer.template, arrivals.waits.offsets_s(replayer)
    lanes = slice(dp_rank * grid.num_steps, (dp_rank + 1) * grid.num_steps)
    rows = np.flatnonzero(template.stage == stage)
    code, types = template.optype[rows], template.op_types
    computes = types.flags(lambda spec: spec.kind is OpKind.COMPUTE)[code]
    collects = types.flags(lambda spec: spec.kind is OpKind.COLLECTIVE)[code]
    start_s = grid.start_s[rows, lanes] + offset_s
    end_s = start_s + grid.duration_s[rows, lanes]
    recorded = recorded_waits(case.replay.window, grid, worker, offset_s)
    began_s = start_s.min(axis=0)

    def inside_s(intervals: WaitIntervals, spans: WaitIntervals) -> Floats:
        """[steps], seconds of the spans that are in these intervals, but in no recorded wait."""
        either = _merged(
            np.append(intervals.start_s, recorded.start_s),
            np.append(intervals.end_s, recorded.end_s),
        )
        of_spans_s = either.until(spans.end_s) - either.until(spans.start_s)
        of_spans_s -= recorded.until(spans.end_s) - recorded.until(spans.start_s)
        step = np.maximum(0, np.searchsorted(began_s, spans.start_s, "right") - 1)
        return np.asarray(np.bincount(step, of_spans_s, began_s.size))

    stays = _merged(start_s[collects], end_s[collects])
    sure_s = np.diff(stays.until(np.append(began_s, np.inf)))
    sure_s -= inside_s(stays, _merged(start_s[computes], end_s[computes]))

    meets = collects & types.flags(lambda spec: spec.axis is Axis.DP)[code]
    stay_s = grid.duration_s[rows[meets]]
    stay_s = stay_s.reshape(stay_s.shape[0], template.parallelism.dp_size, grid.num_steps)
    waits = _merged(start_s[meets], end_s[meets] - stay_s.min(axis=1))
    maybe_s = np.zeros(began_s.size)
    for optype in np.unique(code[computes]).tolist():
        of_type = computes & (code == optype)
        hidden_s = inside_s(waits, _merged(start_s[of_type], end_s[of_type]))
        verdict = int(case.replay.held_up[number][rows[of_type][0]]) if case.replay.held_up else 0
        sure_s += hidden_s if verdict > 0 else 0.0
        maybe_s += hidden_s if verdict == 0 else 0.0
    return sure_s, maybe_s


def _merged(start_s: Floats, end_s: Floats) -> WaitIntervals:
    return merged_intervals(start_s.ravel(), end_s.ravel())
