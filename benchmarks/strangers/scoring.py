"""What a diagnosis of one job is worth: held against the truth, finding by finding."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.strangers.drawn_jobs import DrawnJob, FaultTruth
from benchmarks.strangers.faults.fault import Workers
from benchmarks.strangers.shape import Shape

Outcome = Literal["right", "wrong", "abstained", "missed", "crashed"]
COUNTED_COST = 0.05
MAX_ONSET_STEPS = 2
# An unexplained share of the loss counts as said where it is this part of the true cost.
UNEXPLAINED_PART = 1 / 3


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
    false_beside: tuple[str, ...] = ()
    abstentions: tuple[str, ...] = ()
    took_s: float = 0.0
    shape: Mapping[str, Any] = field(default_factory=dict)


def judge(job: DrawnJob, result: Mapping[str, Any], took_s: float) -> Verdict:
    """The verdict on the result of `app.monitor.observe`."""
    findings = [
        each
        for each in result.get("findings") or []
        # That a rank is silent is right, and said beside what is judged here.
        if not (each["cause"] == "silent-worker" and _is_of(job, each, job.silent))
    ]
    named = tuple(_named(job, each) for each in findings)
    found: dict[str, Any] = {
        "group": job.number.group,
        "kinds": job.number.kinds,
        "seed": job.number.seed,
        "index": job.number.index,
        "level": job.level,
        "is_counted": bool(job.faults) and all(f.cost >= COUNTED_COST for f in job.faults),
        "costs": tuple(round(each.cost, 4) for each in job.faults),
        "words": tuple(each.words for each in job.faults),
        "first_cause": findings[0]["cause"] if findings else None,
        "named": named,
        "has_innocents": any(each.has_innocents for each in named),
        "outcome": _outcome(job, result, named),
        "abstentions": tuple(
            f"{each['cause']}: {each['reason']}"
            for each in result.get("ruled_out") or []
            if each.get("insufficient_evidence")
        ),
        "took_s": took_s,
        "shape": asdict(job.shape) | {"steps": job.num_steps},
    }
    if job.faults:
        causes = frozenset().union(*(each.truth.causes for each in job.faults))
        found["false_beside"] = tuple(e.cause for e in named[1:] if e.cause not in causes)
    pairs = [_finding_of(job, fault, findings) for fault in job.faults]
    if len(job.faults) == 2:
        found["both_named"] = None not in pairs
    found["cost_errors"] = tuple(
        round(each["cost"] - fault.cost, 4)
        for fault, each in zip(job.faults, pairs, strict=True)
        if each is not None and each.get("cost") is not None
    )
    if len(job.faults) == 1 and pairs[0] is not None:
        found |= _details(job, job.faults[0], pairs[0])
    return Verdict(**found)


def _is_of(job: DrawnJob, finding: Mapping[str, Any], workers: Workers) -> bool:
    return bool(workers) and culprits_of(job.shape, finding["culprits"]) <= workers


def _named(job: DrawnJob, finding: Mapping[str, Any]) -> Named:
    workers = culprits_of(job.shape, finding["culprits"])
    guilty = frozenset().union(*(each.truth.guilty for each in job.faults))
    has_innocents = not workers <= guilty
    is_right = not has_innocents and any(
        finding["cause"] in each.truth.causes for each in job.faults
    )
    return Named(
        finding["cause"],
        round(finding["confidence"], 4),
        is_right,
        has_innocents,
        finding["sentence"],
    )


def culprits_of(shape: Shape, culprits: Sequence[Mapping[str, Any]]) -> Workers:
    """The workers that culprits stand for: of a stage, host or dp rank all of its workers."""
    found: set[tuple[int, int]] = set()
    for each in culprits:
        dp_rank, stage, host = each.get("dp_rank"), each.get("stage"), each.get("host")
        if dp_rank is None and stage is None and host is not None:
            found |= shape.workers_of_host(int(host.rpartition("-")[2]))
            continue
        found |= {(d, p) for d, p in shape.workers() if dp_rank in (None, d) and stage in (None, p)}
    return frozenset(found)


def _outcome(job: DrawnJob, result: Mapping[str, Any], named: tuple[Named, ...]) -> Outcome:
    if has_crashed(result):
        return "crashed"
    if any(each.has_innocents for each in named):
        return "wrong"
    if not job.faults:
        return "wrong" if named else "right"
    if named:
        causes = frozenset().union(*(each.truth.causes for each in job.faults))
        return "right" if named[0].cause in causes else "wrong"
    if not _abstains(job, result):
        return "missed"
    return "right" if all(each.truth.may_abstain for each in job.faults) else "abstained"


def has_crashed(result: Mapping[str, Any]) -> bool:
    """Whether the analysis or the diagnosis ended with an error."""
    reasons = [str(each.get("reason")) for each in result.get("skipped_steps") or []]
    return "findings" not in result or any("failed to analyse" in each for each in reasons)


def _abstains(job: DrawnJob, result: Mapping[str, Any]) -> bool:
    if result.get("findings") is None or (result.get("fidelity") or {}).get("verdict") == "low":
        return True
    causes = frozenset().union(*(each.truth.causes for each in job.faults))
    if any(
        each.get("insufficient_evidence") and each["cause"] in causes
        for each in result.get("ruled_out") or []
    ):
        return True
    unexplained = result.get("unexplained_share") or 0.0
    if isinstance(result.get("unexplained"), Mapping):
        unexplained = max(unexplained, result["unexplained"].get("share") or 0.0)
    return bool(unexplained >= UNEXPLAINED_PART * max(each.cost for each in job.faults))


def _finding_of(
    job: DrawnJob, fault: FaultTruth, findings: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """The first finding that names this fault: an accepted cause, and some of its workers."""
    for each in findings:
        workers = culprits_of(job.shape, each["culprits"])
        touches = not workers or not fault.truth.guilty or workers & fault.truth.guilty
        if each["cause"] in fault.truth.causes and touches:
            return each
    return None


def _details(job: DrawnJob, fault: FaultTruth, finding: Mapping[str, Any]) -> dict[str, Any]:
    truth = fault.truth
    found: dict[str, Any] = {"area": truth.area}
    if truth.culprits:
        found["are_culprits_exact"] = culprits_of(job.shape, finding["culprits"]) in truth.culprits
    if truth.onset is not None:
        said, first = finding.get("onset_step"), job.recorder.first_step
        found["is_onset_right"] = (
            said is not None and abs(said - first - truth.onset) <= MAX_ONSET_STEPS
        )
    found["is_persistence_right"] = finding.get("persistence") in truth.persistence
    return found
