"""The recent steps: those that a running job's headline, figures and alerts speak of.

They are the steps of the last `RECENT_WINDOWS` closed windows of a run: single windows of a job
whose documents differ in length lose 25 to 31 % of the GPU time, four together 26 to 29 %. An open
window is none of them, since it has one step at first.

They begin later where the job has changed, so that they mix no two states of it: at the onset of
the leading cause, after the end of a cause that lasted, and where the loss has changed its level
without a known cause. The cost of a cause that began among them is that since its onset.
"""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import asdict, replace

from app.result.causes import SILENT_WORKER
from app.result.figures import gpu_time_wasted
from app.result.finding import Finding
from app.result.join import (
    by_cost,
    finding_key,
    joint_onset,
    joint_result,
    leading,
    with_cost,
    with_figures,
)
from app.result.window_result import StepTimes, WindowResult, step_counts, total_s


def result_since(result: WindowResult, step: int) -> WindowResult:
    """The result without the steps before `step`, without `per_step`.

    The whole result where it has no figures, or `step` is none of its later steps. The cost of a
    finding that began at the first step kept, or later, is of the steps kept.
    """
    first = sum(number < step for number in result.steps)
    if result.slowdown is None or not 0 < first < len(result.steps):
        return result
    by_name = asdict(result.step_time_s).items()
    left = replace(
        result,
        steps=result.steps[first:],
        step_time_s=StepTimes(**{name: times_s and times_s[first:] for name, times_s in by_name}),
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


def _since(steps: Sequence[int], step: int) -> tuple[int, ...]:
    return tuple(number for number in steps if number >= step)


def _finding(finding: Finding, last_left_out: int, ratio: float) -> Finding:
    """The finding; its cost times `ratio` if all of it is in the steps that are kept."""
    onset = finding.onset_step
    is_whole = onset is not None and onset > last_left_out and finding.cost is not None
    return with_figures(finding, ratio) if is_whole else finding


RECENT_WINDOWS = 4  # the last closed ones of a run
# Causes of this kind have one onset and one end; transient ones come and go.
_LASTING = ("chronic", "progressive", "rotating")
# A cause that cost less changes no figure by much when it ends.
_MIN_ENDED_COST = 0.03
# So many windows at a level of their own show that the job has changed. One alone may be a burst.
_MIN_WINDOWS_OF_LEVEL = 2
# Levels differ by at least this share of the GPU time, and by this part of the larger loss.
_MIN_LEVEL_APART = 0.08
_MIN_LEVEL_RATIO = 0.5


def recent_result(parts: Sequence[WindowResult]) -> WindowResult:
    """One result of the recent steps.

    `parts`, one or more, are those of the last closed windows of a run, ascending, with figures and
    without `per_step`.
    """
    parts = _with_common_names(parts)
    begin = _first_recent_step(parts)
    first, *others = [part for part in parts if part.steps[-1] >= begin]
    kept = result_since(first, begin)
    is_whole = len(kept.steps) == len(first.steps)
    if not is_whole and kept.slowdown is not None and kept.slowdown < 1.0:
        kept = _at_ideal(kept)
    whole = kept if is_whole and not others else joint_result([kept, *others])
    if not others:
        whole = replace(whole, window=kept.window)
    if whole.findings is None:
        return whole
    return replace(whole, findings=_since_onset(whole, whole.findings, begin))


def _with_common_names(parts: Sequence[WindowResult]) -> list[WindowResult]:
    """Causes that rotate in one window do so in all: in a few steps it may not show."""
    rotating = {
        finding.cause
        for part in parts
        for finding in part.findings or ()
        if finding.persistence == "rotating"
    }
    named: list[WindowResult] = []
    for part in parts:
        findings = part.findings
        if findings is not None and any(finding.cause in rotating for finding in findings):
            renamed = (
                _rotating(finding) if finding.cause in rotating else finding for finding in findings
            )
            part = replace(part, findings=tuple(renamed))
        named.append(part)
    return named


def _rotating(finding: Finding) -> Finding:
    is_of_few_steps = finding.persistence == "transient"
    return replace(finding, persistence="rotating") if is_of_few_steps else finding


def _at_ideal(kept: WindowResult) -> WindowResult:
    """Healthy steps after a fault: the window's ideal is a mean that the fault has raised."""
    simulated_s = kept.step_time_s.simulated
    return replace(
        kept,
        slowdown=1.0,
        gpu_time_wasted=0.0,
        gpu_hours_lost=0.0,
        step_slowdown=(1.0,) * len(simulated_s),
        step_time_s=replace(kept.step_time_s, ideal=simulated_s),
    )


def _first_recent_step(parts: Sequence[WindowResult]) -> int:
    begin, last = parts[0].steps[0], parts[-1].steps[-1]
    changed = max(_onset_of_leading(parts), _step_after_ended(parts), _first_of_level(parts))
    # A change in the very last step leaves nothing to measure yet.
    return changed if begin < changed <= last else begin


def _onset_of_leading(parts: Sequence[WindowResult]) -> int:
    """The onset of the leading cause, if that lasts now and its onset is known; else 0."""
    first = leading([finding for finding in parts[-1].findings or () if finding.end_step is None])
    if first is None or first.cause == SILENT_WORKER or not _lasts(first):
        return 0
    key = finding_key(first)
    seen = [
        (part.steps[0], finding.onset_step)
        for part in parts
        for finding in part.findings or ()
        if finding_key(finding) == key
    ]
    return joint_onset(seen) or 0


def _step_after_ended(parts: Sequence[WindowResult]) -> int:
    """The first step of which no cause is known that lasted and has ended; 0 if there is none.

    A window that it ended in counts only until a whole one follows.
    """
    newest = parts[-1]
    if newest.findings is None:
        return 0
    live = {finding_key(finding) for finding in newest.findings if finding.end_step is None}
    ended = [
        (part, finding)
        for part in parts
        for finding in part.findings or ()
        if _lasts(finding)
        and (finding.cost or 0.0) >= _MIN_ENDED_COST
        and finding_key(finding) not in live
    ]
    keys = {finding_key(finding) for _, finding in ended}
    last = [
        (part, finding)
        for part in parts
        for finding in part.findings or ()
        if finding_key(finding) in keys
    ]
    if not last:
        return 0
    part, finding = last[-1]
    end = finding.end_step
    if end is None and finding.persistence == "rotating":
        return 0  # it may come again
    return 1 + (part.steps[-1] if end is None or part is not newest else end)


def _first_of_level(parts: Sequence[WindowResult]) -> int:
    """The first step at the level of the loss that the newest windows have in common.

    Where a cause is known, its onset and end say that better.
    """
    newest = _wasted(parts[-_MIN_WINDOWS_OF_LEVEL:])
    begin = parts[0]
    has_cause = any(part.findings for part in parts)
    if not has_cause and len(parts) > _MIN_WINDOWS_OF_LEVEL and not _differ(*sorted(newest)):
        for before, after in pairwise(parts):
            if after is parts[-1]:
                break
            (loss,) = _wasted([before])
            if all(_differ(loss, newer) for newer in newest):
                begin = after
    return begin.steps[0]


def _wasted(parts: Sequence[WindowResult]) -> list[float]:
    return [part.gpu_time_wasted or 0.0 for part in parts]


def _differ(one: float, other: float) -> bool:
    apart = abs(one - other)
    return apart > _MIN_LEVEL_APART and apart > _MIN_LEVEL_RATIO * max(one, other)


def _lasts(finding: Finding) -> bool:
    """Whether it is there in each step since its onset; bursts are not."""
    has_bursts = finding.parts is not None and finding.parts.onset == "first"
    return finding.persistence in _LASTING and not has_bursts


def _since_onset(
    whole: WindowResult, findings: Sequence[Finding], begin: int
) -> tuple[Finding, ...]:
    """The findings, without those that ended before, with costs since their onsets."""
    lasting = (
        _cost_since_onset(finding, whole)
        for finding in findings
        if finding.end_step is None or finding.end_step >= begin
    )
    return tuple(sorted(lasting, key=by_cost))


def _cost_since_onset(finding: Finding, whole: WindowResult) -> Finding:
    onset = finding.onset_step
    if onset is None or finding.cost is None or not _lasts(finding) or finding.end_step is not None:
        return finding
    times = list(zip(whole.steps, whole.step_time_s.recorded, strict=True))
    since_s = sum(recorded_s or 0.0 for step, recorded_s in times if step >= onset)
    all_s = sum(recorded_s or 0.0 for _, recorded_s in times)
    return finding if not 0 < since_s < all_s else with_cost(finding, all_s / since_s)
