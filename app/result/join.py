"""One result of several windows: each of their causes once, with its cost over all of them.

Their figures: `join_figures.py`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from app import formatting
from app.result.causes import SILENT_WORKER
from app.result.clock_times import step_ends_s
from app.result.figures import loss_shares
from app.result.finding import Culprit, Finding, ObservationRecord, SeenIn
from app.result.join_figures import combine_per_step, combine_results
from app.result.window_result import (
    Fingerprint,
    JobChange,
    TopFix,
    Unexplained,
    Variance,
    WindowResult,
    total_s,
)
from app.result.words import sentence_of, unexplained_sentence

_SHARE = "share_of_loss"
# The most costly ones; the page shows only the first few.
MAX_FINDINGS = 20
# Only the newest changes are listed; those of several workers so many steps apart are one.
MAX_CHANGES = 32
MAX_STEPS_APART = 2


# What identifies a finding among those of other windows.
FindingKey = tuple[str | tuple[str, ...], ...]


class _WindowFinding(NamedTuple):
    """A finding, with the recorded and the lost time of its window, and the window's steps.

    `ended_s` are the Unix times at which these ended, as far as known.
    """

    window: int
    finding: Finding
    recorded_s: float
    lost_s: float
    steps: Sequence[int]
    ended_s: Mapping[int, float]


def combine_causes(results: Sequence[WindowResult], figures: WindowResult) -> WindowResult:
    """The combined `figures` of windows of one run, in order, with what they say about causes.

    Findings of one cause with the same culprits, or with rotating ones, become one finding: words
    and evidence of the newest window, cost and share of the loss over all diagnosed windows, and
    the number of windows that show it. One that the newest diagnosed window does not show has
    ended. The most costly ones are listed, the others counted.
    """
    diagnosed = [(result, result.findings) for result in results if result.findings is not None]
    findings = _findings(diagnosed) if diagnosed else None
    named = {finding.cause for finding in findings or ()}
    ruled_out = (diagnosed[-1][0] if diagnosed else results[-1]).ruled_out
    return replace(
        figures,
        changes=_changes(results),
        fingerprint=_fingerprint(results, figures),
        unexplained=combined_unexplained(results),
        observations=_observations(results),
        advice=_advice(results),
        findings=None if findings is None else tuple(findings[:MAX_FINDINGS]),
        more_findings=max(0, len(findings or ()) - MAX_FINDINGS),
        ruled_out=ruled_out
        if findings is None
        else tuple(denied for denied in ruled_out or () if denied.cause not in named),
    )


def _advice(results: Sequence[WindowResult]) -> TopFix | None:
    """What is advised for the newest closed window, as long as there is one: its figures stay."""
    closed = [result for result in results if result.window.state != "open"]
    return (closed or results)[-1].advice


def _findings(diagnosed: Sequence[tuple[WindowResult, Sequence[Finding]]]) -> list[Finding]:
    seen: dict[FindingKey, list[_WindowFinding]] = {}
    all_s = all_lost_s = 0.0
    for at, (result, findings) in enumerate(diagnosed):
        recorded_s = total_s(result, "recorded")
        lost_s = total_s(result, "simulated") - total_s(result, "ideal")
        ended_s = step_ends_s(result)
        for finding in findings:
            of_it = seen.setdefault(finding_key(finding), [])
            of_it.append(_WindowFinding(at, finding, recorded_s, lost_s, result.steps, ended_s))
        all_s += recorded_s
        all_lost_s += lost_s
    joint = (_one(of_it, len(diagnosed), all_s, all_lost_s) for of_it in seen.values())
    return sorted(joint, key=by_cost)


def by_cost(finding: Finding) -> tuple[bool, float, float, str]:
    """Sorts findings: missing workers, of which all else is unknown, then the most costly first."""
    is_silent, cost = finding.cause == SILENT_WORKER, finding.cost or 0.0
    return not is_silent, -cost, -finding.score, finding.cause


class HasCause(Protocol):
    """A finding, whole or in short."""

    @property
    def cause(self) -> str:
        """Name of the cause."""


F = TypeVar("F", bound=HasCause)


def leading(findings: Sequence[F] | None) -> F | None:
    """The most costly finding; a missing worker only where nothing else is named."""
    others = (finding for finding in findings or () if finding.cause != SILENT_WORKER)
    return next(others, next(iter(findings or ()), None))


def finding_key(finding: Finding) -> FindingKey:
    """What identifies a finding; the culprits of a rotating cause do not count."""
    if finding.persistence == "rotating":
        return (finding.cause, "rotating")
    return (finding.cause, *sorted({_identity(culprit) for culprit in finding.culprits}))


def _identity(culprit: Culprit) -> tuple[str, ...]:
    """What identifies a culprit: global rank, else dp rank and stage, else host.

    Host and local rank of a worker may become known later.
    """
    if culprit.rank is not None:
        return ("rank", str(culprit.rank))
    place = tuple("" if at is None else str(at) for at in (culprit.dp_rank, culprit.stage))
    return ("place", *place) if any(place) else ("host", culprit.host or "")


def _one(
    seen: Sequence[_WindowFinding], num_windows: int, all_s: float, all_lost_s: float
) -> Finding:
    # Windows without the finding count as time without loss.
    newest = seen[-1].finding
    onset = joint_onset(
        [(of_it.steps[0] if of_it.steps else 0, of_it.finding.onset_step) for of_it in seen]
    )
    end = _end(seen[-1], is_newest=seen[-1].window == num_windows - 1)
    shares = [(of_it.finding.evidence.get(_SHARE), of_it.lost_s) for of_it in seen]
    joint = replace(
        newest,
        score=sum(of_it.finding.score for of_it in seen) / len(seen),
        confidence=sum(of_it.finding.confidence for of_it in seen) / len(seen),
        onset_step=onset,
        onset_by_step=_onset_by(seen) if onset is None else None,
        end_step=end,
        onset_at=_onset_at(seen, onset),
        ended_at=_ended_at(seen, end),
        cost=_mean([(of_it.finding.cost, of_it.recorded_s) for of_it in seen], all_s),
        cost_range=_range(seen, all_s),
        evidence={**newest.evidence, _SHARE: _mean(shares, all_lost_s)},
        seen_in=SeenIn(windows=len({of_it.window for of_it in seen}), of=num_windows),
    )
    return replace(joint, sentence=sentence_of(joint))


def _onset_by(seen: Sequence[_WindowFinding]) -> int | None:
    """The first step that shows the finding, where its onset is not known."""
    first: list[int] = []
    for of_it in seen:
        finding = of_it.finding
        # Results of before 0.2.0 do not say it.
        shown = finding.evidence.get("steps") or of_it.steps
        known = (finding.onset_step, finding.onset_by_step, *shown[:1])
        first += [step for step in known if step is not None][:1]
    return min(first, default=None)


def _onset_at(seen: Sequence[_WindowFinding], onset: int | None) -> str | None:
    """When the step started, from the windows that name it."""
    if onset is None:
        return None
    times = (of_it.finding.onset_at for of_it in seen if of_it.finding.onset_step == onset)
    return next(filter(None, times), None)


def _ended_at(seen: Sequence[_WindowFinding], end: int | None) -> str | None:
    """When the step ended, from the windows that name it, else from the newest one's times."""
    if end is None:
        return None
    times = (of_it.finding.ended_at for of_it in seen if of_it.finding.end_step == end)
    return next(filter(None, times), None) or formatting.utc_timestamp(seen[-1].ended_s.get(end))


def _range(seen: Sequence[_WindowFinding], all_s: float) -> tuple[float, float] | None:
    """Bounds of the cost, where any window has a range."""
    if not any(of_it.finding.cost_range for of_it in seen):
        return None
    bounds = [
        (of_it.finding.cost_range or (of_it.finding.cost,) * 2, of_it.recorded_s) for of_it in seen
    ]
    low, high = (
        _mean([(ends[at], recorded_s) for ends, recorded_s in bounds], all_s) or 0.0
        for at in (0, 1)
    )
    return low, high


def _mean(values: Sequence[tuple[float | None, float]], total: float) -> float | None:
    known = [value * weight for value, weight in values if value is not None]
    return sum(known) / total if known and total > 0 else None


def joint_onset(seen: Sequence[tuple[int, int | None]]) -> int | None:
    """The earliest onset of a finding in windows that show it: each one's first step, and onset.

    None if the first window does not know it, unless a later one knows an onset before that window.
    """
    known = [onset for _, onset in seen if onset is not None]
    if not known:
        return None
    first_step, first_onset = seen[0]
    earliest = min(known)
    return earliest if first_onset is not None or earliest < first_step else None


def _end(newest: _WindowFinding, *, is_newest: bool) -> int | None:
    """The last step with the cause; None while it lasts, or where that step is not known."""
    end = newest.finding.end_step
    if end is not None or is_newest:
        return end
    steps = newest.finding.evidence.get("steps") or newest.steps
    return int(steps[-1]) if steps else None


def with_cost(finding: Finding, ratio: float) -> Finding:
    """The finding with its cost times `ratio`, at most all of the time, in its sentence too."""
    scaled = with_figures(finding, ratio)
    return replace(scaled, sentence=sentence_of(scaled))


def with_figures(finding: Finding, ratio: float) -> Finding:
    """The finding with its cost times `ratio`, but for its sentence."""
    cost, ends = finding.cost, finding.cost_range
    return replace(
        finding,
        cost=cost and min(1.0, cost * ratio),
        cost_range=ends and (min(1.0, ends[0] * ratio), min(1.0, ends[1] * ratio)),
    )


def _changes(results: Sequence[WindowResult]) -> tuple[JobChange, ...] | None:
    """The changes that any window knows, from the newest one that has each."""
    known = [result.changes for result in results if result.changes is not None]
    if not known:
        return None
    kept: list[JobChange] = []
    for change in (change for changes in reversed(known) for change in changes):
        if not any(_is_same(change, other) for other in kept):
            kept.append(change)
    in_order = sorted(kept, key=lambda change: (change.step, change.what))
    return tuple(in_order[-MAX_CHANGES:])


def _is_same(one: JobChange, other: JobChange) -> bool:
    return (
        one.what == other.what
        and one.culprits == other.culprits
        and (one.ratio > 1) == (other.ratio > 1)
        and abs(one.step - other.step) <= MAX_STEPS_APART
    )


def _fingerprint(results: Sequence[WindowResult], figures: WindowResult) -> Fingerprint | None:
    """Shares of the combined loss; the mean of the windows' shares of the variance."""
    known = [result.fingerprint for result in results if result.fingerprint is not None]
    if not known:
        return None
    return Fingerprint(
        variance=_variance([fingerprint.variance for fingerprint in known]),
        optype_share={
            name: share or 0.0 for name, share in loss_shares(figures.optype_slowdown).items()
        },
        stage_share=figures.stage_share or (),
    )


def combined_unexplained(results: Sequence[WindowResult]) -> Unexplained | None:
    """Means over the windows, weighted by their time; the place is that of the largest loss."""
    known = [
        (result.unexplained, total_s(result, "recorded"))
        for result in results
        if result.unexplained is not None
    ]
    if not known:
        return None
    worst, _ = max(known, key=lambda weighted: weighted[0].share * weighted[1])
    all_s = sum(weight for _, weight in known)
    of_loss = [
        (left.share_of_loss, weight) for left, weight in known if left.share_of_loss is not None
    ]
    of_ideal = [
        (left.ideal_share, weight) for left, weight in known if left.ideal_share is not None
    ]
    joint = replace(
        worst,
        **{
            name: _mean([(getattr(left, name), weight) for left, weight in known], all_s) or 0.0
            for name in ("share", "late_launch_share", "stop_share")
        },
        share_of_loss=_mean(of_loss, sum(weight for _, weight in of_loss)),
        ideal_share=_mean(of_ideal, all_s) if len(of_ideal) == len(known) else None,
        idle_share=_mean([(left.idle_share, weight) for left, weight in known], all_s),
        stop_steps=tuple(sorted({step for left, _ in known for step in left.stop_steps})),
    )
    return replace(joint, sentence=unexplained_sentence(joint))


def _observations(results: Sequence[WindowResult]) -> tuple[ObservationRecord, ...] | None:
    """Facts of each kind as the newest window says them, with their share of all time examined."""
    examined = [(result, result.observations) for result in results]
    known = [(result, facts) for result, facts in examined if facts is not None]
    if not known:
        return None
    all_s = sum(total_s(result, "recorded") for result, _ in known)
    shares: dict[str, list[tuple[float | None, float]]] = {}
    newest: dict[str, ObservationRecord] = {}
    for result, facts in known:
        for fact in facts:
            newest[fact.kind] = fact
            weighted = fact.share, total_s(result, "recorded")
            shares.setdefault(fact.kind, []).append(weighted)
    return tuple(
        _with_share(fact, _mean(shares[kind], all_s)) for kind, fact in sorted(newest.items())
    )


def _with_share(fact: ObservationRecord, share: float | None) -> ObservationRecord:
    """The fact with another share, in its sentence too."""
    if fact.share is None or share is None:
        return fact
    before, after = formatting.percent(fact.share), formatting.percent(share)
    return replace(fact, share=share, sentence=fact.sentence.replace(before, after, 1))


def _variance(parts: Sequence[Variance]) -> Variance:
    shares = [
        (part.between_stages, part.between_workers, part.within_workers)
        for part in parts
        if part.between_stages is not None
    ]
    if not shares:
        return parts[0]
    stages, workers, within = (
        sum(share or 0.0 for share in column) / len(shares) for column in zip(*shares, strict=True)
    )
    return Variance(between_stages=stages, between_workers=workers, within_workers=within)


def joint_result(parts: Sequence[WindowResult]) -> WindowResult:
    """The figures and causes of windows of one run, ascending, as if they were one window."""
    figures = combine_results(parts)
    header = replace(figures.window, left_out=(), num_left_out=0)
    by_step = [part.per_step for part in parts if part.slowdown is not None]
    known = [figures_by_step for figures_by_step in by_step if figures_by_step is not None]
    # Thinned windows have none: the others alone would not fit `steps`.
    is_whole = bool(known) and len(known) == len(by_step)
    return replace(
        combine_causes(parts, figures),
        window=header,
        per_step=combine_per_step(known) if is_whole else None,
    )
