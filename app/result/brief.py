"""A job in short: what lists of jobs say of the steps that it is judged by."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from app.result.clock_times import result_ended_s
from app.result.finding import (
    Cause,
    Culprit,
    Finding,
    ObservationRecord,
    Persistence,
    Share,
    Timestamp,
)
from app.result.record import Record
from app.result.window_result import Verdict, WindowResult, num_steps, total_s
from app.result.words import MIN_FACT_SHARE

MAX_FINDINGS = 3
MAX_CULPRITS = 3


class FindingBrief(Record, kw_only=True, frozen=True):
    """A finding without its evidence; of its `num_culprits` the first ones."""

    cause: Cause
    cost: float | None
    confidence: Share
    onset_step: int | None
    persistence: Persistence | None
    sentence: str
    onset_at: Timestamp | None
    ended_at: Timestamp | None
    culprits: tuple[Culprit, ...]
    num_culprits: int


class JobBrief(Record, kw_only=True, frozen=True):
    """Figures and costliest causes of a result; `gpu_hours` are those of its steps.

    `findings` is None if the window was not diagnosed, and empty if no cause fits.
    """

    slowdown: float
    verdict: Verdict | None
    first_step: int
    last_step: int
    num_steps: int
    gpu_hours_lost: float | None
    gpu_hours: float
    step_s: float
    discrepancy: float | None
    ended_s: float | None
    clock_residual_ms: float | None
    num_findings: int | None
    findings: tuple[FindingBrief, ...] | None
    onset_at_s: Annotated[
        float | None, Meta(description="Unix time of the costliest cause's onset.")
    ] = None
    observation: Annotated[
        ObservationRecord | None,
        Meta(description="The fact that takes most, from 3 % of the GPU time on."),
    ] = None


def brief_of(result: WindowResult, *, num_gpus: int) -> JobBrief | None:
    """The brief of a result (docs/glossary.md); None if nothing was measured."""
    if result.slowdown is None:
        return None
    recorded_s, steps = total_s(result, "recorded"), num_steps(result)
    findings = result.findings
    return JobBrief(
        slowdown=result.slowdown,
        verdict=result.fidelity.verdict,
        first_step=result.steps[0],
        last_step=result.steps[-1],
        num_steps=steps,
        gpu_hours_lost=result.gpu_hours_lost,
        gpu_hours=recorded_s * num_gpus / 3600,
        step_s=recorded_s / steps,
        discrepancy=result.fidelity.discrepancy,
        ended_s=result_ended_s(result),
        clock_residual_ms=result.clocks.residual_ms,
        num_findings=None if findings is None else len(findings),
        findings=None if findings is None else tuple(map(_finding_brief, findings[:MAX_FINDINGS])),
        observation=_largest(result.observations or ()),
    )


def _largest(facts: Sequence[ObservationRecord]) -> ObservationRecord | None:
    largest = max(facts, key=lambda fact: fact.share or 0.0, default=None)
    is_shown = largest is not None and (largest.share or 0.0) >= MIN_FACT_SHARE
    return largest if is_shown else None


def _finding_brief(finding: Finding) -> FindingBrief:
    shared = FindingBrief.__struct_fields__[:-2]  # all but the culprits and their number
    return FindingBrief(
        **{name: getattr(finding, name) for name in shared},
        culprits=finding.culprits[:MAX_CULPRITS],
        num_culprits=len(finding.culprits),
    )
