"""One made job from its number to what was said of it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from app.cli.bench.diagnosis.blame import blamed
from app.cli.bench.diagnosis.numbers import Numbered
from app.cli.bench.diagnosis.outcome import Outcome, Said
from app.cli.bench.diagnosis.plan import Plan, planned
from app.cli.bench.diagnosis.truths import answers_to, truths
from app.cli.bench.diagnosis.watched import Seen, judged, seconds, watched
from app.diagnosis.finding import Culprit
from app.diagnosis.warm_up import warm_up
from app.synth.faults.fault import Fault


def examined(numbered: Numbered) -> Outcome:
    """The job of this number, made, watched and judged; always the same but for its times.

    Raises:
        RuntimeError: something failed that should not have; the message has the number.
    """
    warm_up()
    try:
        plan = planned(numbered)
        return outcome(plan, numbered, windows_of(plan))
    except Exception as error:
        # As what it is, a StopIteration would end the whole run as if no job were left.
        raise RuntimeError(f"job {numbered.number} failed: {error!r}") from error


def windows_of(plan: Plan) -> list[Seen]:
    """All windows of the job, one run after the other."""
    return [
        seen
        for attempt in plan.attempts
        for seen in watched(attempt, plan.window_steps, plan.habits)
    ]


def outcome(plan: Plan, numbered: Numbered, windows: Sequence[Seen]) -> Outcome:
    """What the job had, and what was said."""
    last = judged(windows, plan.window_steps)
    before = [seen for seen in windows if numbered.is_healthy or seen.place < last.place]
    residuals_ms = [ms for seen in windows if (ms := _residual_ms(seen)) is not None]
    analysis_s, diagnosis_s = seconds(last)
    return Outcome(
        number=numbered.number,
        what=plan.what,
        family=numbered.family,
        faults=() if numbered.is_healthy else truths(plan, last.all_steps),
        said=said(plan, last),
        withheld=frozenset(
            each["cause"]
            for each in last.result["ruled_out"] or ()
            if each["insufficient_evidence"]
        ),
        early=tuple(_false(plan, before)),
        num_changes=sum(map(_num_changes, windows)),
        num_failed=sum(seen.has_failed for seen in windows),
        clock_residual_s=max(residuals_ms) / 1e3 if residuals_ms else None,
        analysis_s=analysis_s,
        diagnosis_s=diagnosis_s,
    )


def said(plan: Plan, seen: Seen) -> tuple[Said, ...]:
    """The window's findings, most costly first."""
    return tuple(_said(plan, finding) for finding in seen.result["findings"] or ())


def _said(plan: Plan, finding: dict[str, Any]) -> Said:
    world = plan.made.world
    culprits = [Culprit(**each) for each in finding["culprits"]]
    onset_step = finding["onset_step"]
    return Said(
        cause=finding["cause"],
        workers=blamed(culprits, world.parallelism, world.hosts),
        confidence=finding["confidence"],
        cost=finding["cost"],
        onset=None if onset_step is None else int(np.searchsorted(plan.steps, onset_step)),
        sentence=finding["sentence"],
    )


def _false(plan: Plan, before: Iterable[Seen]) -> Iterable[Said]:
    """What was said of causes that were not there, or not there yet."""
    for seen in before:
        begun = (fault for fault in plan.made.faults if _has_begun(fault, seen))
        world = plan.made.world
        there = {answer.cause for fault in begun for answer in answers_to(fault, world)}
        yield from (each for each in said(plan, seen) if each.cause not in there)


def _has_begun(fault: Fault, seen: Seen) -> bool:
    return fault.when.first_step <= seen.all_steps[-1]


def _num_changes(seen: Seen) -> int:
    """Onsets and changes that are told of a window."""
    findings, changes = seen.result["findings"] or (), seen.result.get("changes") or ()
    return len(changes) + sum(each["onset_step"] is not None for each in findings)


def _residual_ms(seen: Seen) -> float | None:
    residual_ms: float | None = seen.result["clocks"]["residual_ms"]
    return residual_ms
