"""What a diagnosis of one job is worth: held against the truth, finding by finding."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from app.diagnosis.calibration import Feed
from app.result.finding import Culprit, Finding, ObservationRecord, RuledOut
from app.result.window_result import WindowResult
from benchmarks.strangers.drawn_jobs import DrawnJob, FaultTruth
from benchmarks.strangers.faults.fault import Workers
from benchmarks.strangers.shape import Shape

Outcome = Literal["right", "wrong", "abstained", "missed", "crashed"]
COUNTED_COST = 0.05
MAX_ONSET_STEPS = 2
# An unexplained share of the loss counts as said where it is this part of the true cost.
UNEXPLAINED_PART = 1 / 3
MAX_COST_ERROR = 0.02
# A fact that takes less of the time need not be said.
LEAST_FACT = 0.03


@dataclass(frozen=True, slots=True)
class Named:
    """One finding: what it names, and whether that holds.

    `is_right`: its cause is accepted for a fault of the job and it names no innocent.
    """

    cause: str
    confidence: float
    is_right: bool
    has_innocents: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one job was judged. Fields without meaning for a job are None."""

    group: str
    kinds: tuple[str, ...]
    seed: int
    index: int
    level: str
    outcome: Outcome
    feed: Feed
    is_counted: bool
    costs: tuple[float, ...]
    words: tuple[str, ...]
    first_cause: str | None = None
    named: tuple[Named, ...] = ()
    has_innocents: bool = False
    area: str | None = None
    are_culprits_exact: bool | None = None
    both_named: bool | None = None
    is_onset_right: bool | None = None
    is_persistence_right: bool | None = None
    cost_errors: tuple[float, ...] = ()
    facts: tuple[str, ...] = ()
    false_beside: tuple[str, ...] = ()
    abstentions: tuple[str, ...] = ()
    took_s: float = 0.0
    shape: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def is_flawless(self) -> bool:
        """Whether cause, culprits, onset and cost are right, and nothing else is named."""
        is_exact = self.are_culprits_exact is not False and self.is_onset_right is not False
        is_far = any(abs(error) > MAX_COST_ERROR for error in self.cost_errors)
        is_right = self.outcome == "right" and self.both_named is not False
        return is_right and is_exact and not is_far and not self.false_beside


def judge(job: DrawnJob, result: WindowResult | None, took_s: float) -> Verdict:
    """The verdict on the result of `app.monitor.observe`; None where the recording is refused."""
    findings = [
        finding
        for finding in (() if result is None else result.findings or ())
        # That a rank is silent is right, and said beside what is judged here.
        if not (finding.cause == "silent-worker" and _is_of(job, finding, job.silent))
    ]
    named = tuple(_named(job, finding) for finding in findings)
    pairs = [_finding_of(job, fault, findings) for fault in job.faults]
    verdict = Verdict(
        group=job.number.group,
        kinds=job.number.kinds,
        seed=job.number.seed,
        index=job.number.index,
        level=job.level,
        outcome=_outcome(job, result, named),
        feed="client" if job.recorder.is_client else "trace",
        is_counted=bool(job.faults) and all(_counts(fault) for fault in job.faults),
        costs=tuple(round(fault.cost, 4) for fault in job.faults),
        words=tuple(fault.words for fault in job.faults),
        first_cause=findings[0].cause if findings else None,
        named=named,
        has_innocents=any(finding.has_innocents for finding in named),
        both_named=None
        if len(job.faults) != 2
        else all(
            finding is not None or _is_fact_said(fault, result)
            for fault, finding in zip(job.faults, pairs, strict=True)
        ),
        cost_errors=tuple(
            round(finding.cost - fault.cost, 4)
            for fault, finding in zip(job.faults, pairs, strict=True)
            if finding is not None and finding.cost is not None and not fault.truth.costs_nothing
        ),
        facts=tuple(f"{each.kind} {each.share}: {each.sentence}" for each in _observations(result)),
        false_beside=tuple(
            finding.cause
            for finding in named[1:]
            if job.faults and finding.cause not in _true_causes(job)
        ),
        abstentions=tuple(f"{cause.cause}: {cause.reason}" for cause in _withheld(result)),
        took_s=took_s,
        shape=asdict(job.shape) | {"steps": job.num_steps},
    )
    if len(job.faults) == 1 and pairs[0] is not None:
        return _with_details(verdict, job, pairs[0])
    return verdict


def _counts(fault: FaultTruth) -> bool:
    """Whether it costs enough to be judged, or is no matter of cost."""
    truth = fault.truth
    return fault.cost >= COUNTED_COST or truth.costs_nothing or not truth.causes


def _observations(result: WindowResult | None) -> Sequence[ObservationRecord]:
    return () if result is None else result.observations or ()


def _may_be_facts(job: DrawnJob) -> bool:
    """Whether it is right to say what was seen, and no cause."""
    return all(fault.truth.facts or not fault.truth.causes for fault in job.faults)


def _are_facts_said(job: DrawnJob, result: WindowResult | None) -> bool:
    """Whether an accepted observation has each fact that takes enough of the time."""
    return all(
        _is_fact_said(fault, result)
        for fault in job.faults
        if fault.truth.facts and (fault.truth.costs_nothing or fault.cost >= LEAST_FACT)
    )


def _is_fact_said(fault: FaultTruth, result: WindowResult | None) -> bool:
    """Whether an accepted observation has it; with its share, where that is of a cost."""
    return any(
        said.kind in fault.truth.facts
        and (fault.truth.costs_nothing or _is_share_right(fault, said.share))
        for said in _observations(result)
    )


def _is_share_right(fault: FaultTruth, share: float | None) -> bool:
    if share is None:
        return False
    # All ranks wait as long as the first of them, and the job as long as the last.
    if fault.truth.causes:
        return share >= UNEXPLAINED_PART * fault.cost
    return abs(share - fault.cost) <= MAX_COST_ERROR


def _withheld(result: WindowResult | None) -> list[RuledOut]:
    """Causes that the data is not sufficient for."""
    ruled_out = () if result is None else result.ruled_out or ()
    return [cause for cause in ruled_out if cause.insufficient]


def _true_causes(job: DrawnJob) -> frozenset[str]:
    return frozenset[str]().union(*(fault.truth.causes for fault in job.faults))


def _is_of(job: DrawnJob, finding: Finding, workers: Workers) -> bool:
    return bool(workers) and culprits_of(job.shape, finding.culprits) <= workers


def _named(job: DrawnJob, finding: Finding) -> Named:
    workers = culprits_of(job.shape, finding.culprits)
    guilty = frozenset().union(*(fault.truth.guilty for fault in job.faults))
    has_innocents = not workers <= guilty
    is_right = not has_innocents and finding.cause in _true_causes(job)
    return Named(
        finding.cause, round(finding.confidence, 4), is_right, has_innocents, finding.sentence
    )


def culprits_of(shape: Shape, culprits: Iterable[Culprit]) -> Workers:
    """The workers that culprits stand for: of a stage, host or dp rank all of its workers."""
    found: set[tuple[int, int]] = set()
    for culprit in culprits:
        dp_rank, stage, host = culprit.dp_rank, culprit.stage, culprit.host
        if dp_rank is None and stage is None and host is not None:
            found |= shape.workers_of_host(int(host.rpartition("-")[2]))
            continue
        found |= {(d, p) for d, p in shape.workers() if dp_rank in (None, d) and stage in (None, p)}
    return frozenset(found)


def _outcome(job: DrawnJob, result: WindowResult | None, named: tuple[Named, ...]) -> Outcome:
    if result is not None and _has_crashed(result):
        return "crashed"
    if any(finding.has_innocents for finding in named):
        return "wrong"
    if not job.faults:
        return "wrong" if named else "right"
    if named:
        return "right" if named[0].cause in _true_causes(job) else "wrong"
    if _may_be_facts(job) and _are_facts_said(job, result):
        return "right"
    if any(fault.truth.may_be_silent for fault in job.faults):
        return "right"
    if not _abstains(job, result):
        return "missed"
    return "right" if all(fault.truth.may_abstain for fault in job.faults) else "abstained"


def _has_crashed(result: WindowResult) -> bool:
    """Whether the analysis ended with an error."""
    return any("failed to analyse" in skipped.reason for skipped in result.skipped_steps)


def _abstains(job: DrawnJob, result: WindowResult | None) -> bool:
    if result is None or result.findings is None or result.fidelity.verdict == "low":
        return True
    if any(cause.cause in _true_causes(job) for cause in _withheld(result)):
        return True
    if all(fault.truth.costs_nothing for fault in job.faults):
        return False
    unexplained = result.unexplained_share or 0.0
    if result.unexplained is not None:
        unexplained = max(unexplained, result.unexplained.share)
    return unexplained >= UNEXPLAINED_PART * max(fault.cost for fault in job.faults)


def _finding_of(job: DrawnJob, fault: FaultTruth, findings: Iterable[Finding]) -> Finding | None:
    """The first finding that names this fault: an accepted cause, and some of its workers."""
    for finding in findings:
        workers = culprits_of(job.shape, finding.culprits)
        touches = not workers or not fault.truth.guilty or workers & fault.truth.guilty
        if finding.cause in fault.truth.causes and touches:
            return finding
    return None


def _with_details(verdict: Verdict, job: DrawnJob, finding: Finding) -> Verdict:
    """The verdict with what the finding says of the job's only fault."""
    truth, said = job.faults[0].truth, finding.onset_step
    is_exact: bool | None = None
    is_onset_right: bool | None = None
    if truth.culprits:
        is_exact = culprits_of(job.shape, finding.culprits) in truth.culprits
    if truth.onset is not None:
        onset_step = job.recorder.first_step + truth.onset
        is_onset_right = said is not None and abs(said - onset_step) <= MAX_ONSET_STEPS
    return replace(
        verdict,
        area=truth.area,
        are_culprits_exact=is_exact,
        is_onset_right=is_onset_right,
        is_persistence_right=finding.persistence in truth.persistence,
    )
