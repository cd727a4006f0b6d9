"""A window's result from one of its steps on, so that figures since an onset start at the onset.

What has a value for each step is exact: times, slowdown and loss. Figures by worker, stage and
operation type stay the whole window's, since results have no simulated times of them by step.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from app.result.figures import gpu_time_wasted
from app.result.finding import Finding
from app.result.step_counts import step_counts, total_s
from app.result.window_result import BySteps, StepTimes, WindowResult


def result_since(result: WindowResult, step: int) -> WindowResult:
    """The result without the steps before `step`, without `per_step`.

    The whole result where it has no figures, or `step` is none of its later steps. The cost of a
    finding that began at the first step kept, or later, is of the steps kept.
    """
    first = sum(number < step for number in result.steps)
    if result.slowdown is None or not 0 < first < len(result.steps):
        return result
    times = result.step_time_s
    left = replace(
        result,
        steps=result.steps[first:],
        step_time_s=StepTimes(
            recorded=times.recorded[first:],
            between=_of_kept(times.between, first),
            simulated=times.simulated[first:],
            ideal=times.ideal[first:],
        ),
        thinned=result.thinned
        and replace(result.thinned, step_counts=tuple(step_counts(result)[first:])),
    )
    recorded_s, simulated_s = total_s(left, "recorded"), total_s(left, "simulated")
    slowdown = simulated_s / total_s(left, "ideal")
    whole_s = total_s(result, "recorded")
    wasted_s = whole_s * gpu_time_wasted(result.slowdown)
    lost_share = recorded_s * gpu_time_wasted(slowdown) / wasted_s if wasted_s else 0.0
    last_left_out, ratio = result.steps[first - 1], whole_s / recorded_s
    return replace(
        left,
        step_started_s=result.step_started_s[first:],
        step_slowdown=result.step_slowdown[first:],
        structures=tuple(kept for steps in result.structures if (kept := _since(steps, step))),
        slowdown=slowdown,
        gpu_time_wasted=gpu_time_wasted(slowdown),
        gpu_hours_lost=(result.gpu_hours_lost or 0.0) * lost_share,
        launch_slowdown=recorded_s / simulated_s,
        findings=result.findings
        and tuple(_finding(finding, last_left_out, ratio) for finding in result.findings),
        per_step=None,
    )


def _of_kept(values: BySteps | None, first: int) -> BySteps | None:
    return None if values is None else values[first:]


def _since(steps: Sequence[int], step: int) -> tuple[int, ...]:
    return tuple(number for number in steps if number >= step)


def _finding(finding: Finding, last_left_out: int, ratio: float) -> Finding:
    """The finding; its cost times `ratio` if all of it is in the steps that are kept."""
    onset, cost, ends = finding.onset_step, finding.cost, finding.cost_range
    if onset is None or onset <= last_left_out or cost is None:
        return finding
    return replace(
        finding,
        cost=min(1.0, cost * ratio),
        cost_range=None if ends is None else (min(1.0, ends[0] * ratio), min(1.0, ends[1] * ratio)),
    )
