"""Everything that an alert rule can be on, and its default thresholds.

Readings of the whole job (slowdown, waste, step time, fidelity, clocks), readings with a figure per
subject (cause, worker, host, operation type), and readings of missing data (stalled, silent
workers). A host's figure is that of its worst worker, so a rule on hosts fires wherever one on
workers with the same threshold does, and can inhibit it.

The step time is compared with the level before it last rose for good, as the diagnosis sees it, and
with the median of all earlier steps where it did not rise; so a job that stays slow keeps firing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

import numpy as np
from msgspec.structs import replace

from app.alerts.alert import AlertState, Detail
from app.alerts.facts import MissingDataFacts, WindowFacts, Worker, worker_name, worker_of_name
from app.alerts.rule import On, Rule
from app.result.figures import MAX_DISCREPANCY
from app.result.finding import Finding
from app.result.join import leading

Unit = Literal["ratio", "share", "GPU-hours an hour", "seconds"]
_Values = Mapping[str, float]


def _wasted_share(facts: WindowFacts, _value: float) -> float | None:
    return facts.result.gpu_time_wasted


def _no_loss(_facts: WindowFacts, _value: float) -> None:
    """It is no loss of time."""


def _share_of_ratio(_facts: WindowFacts, ratio: float) -> float:
    """Share of the time that would be saved at a ratio of 1."""
    return max(0.0, 1.0 - 1.0 / ratio)


@dataclass(frozen=True, slots=True)
class WindowReading:
    """One figure of a window, of the whole job or of several subjects.

    `values` are figures by subject, "" being the whole job; None if the window has none. A subject
    that is left out has nothing wrong with it. `rest` is the figure of a job with which all is
    well, and `verdicts` are those of windows that count. Where `has_subjects`, a rule's `of`
    chooses among them. A figure that is not `is_sure` may not raise an alert, but still holds one
    up. `blame` is the finding that explains it, as far as there is one; `lost_share` the share of
    the job's GPU time that is lost by it; `labels` are those that the subject has by itself.
    """

    on: On
    unit: Unit
    values: Callable[[Rule, WindowFacts], _Values | None]
    rest: float = 0.0
    usual_above: float | None = None
    usual_clear: float | None = None  # else in the middle between `rest` and above
    is_exact: bool = False  # clears just where it raises, unless a rule says otherwise
    is_present: bool = False  # a subject with a figure has trouble, however small the figure
    has_subjects: bool = False
    is_of_run: bool = False  # held against the same run before: another has none yet
    verdicts: frozenset[str] = frozenset({"ok"})
    is_sure: Callable[[Rule, WindowFacts, str], bool] = lambda *_: True
    blame: Callable[[WindowFacts, str], Finding | None] = lambda facts, _: leading(facts.findings)
    lost_share: Callable[[WindowFacts, float], float | None] = _wasted_share
    labels: Callable[[WindowFacts, str], Mapping[str, str]] = lambda *_: {}


def _of_job(value: float | None) -> _Values | None:
    """The figure of the whole job, if the window has it."""
    return None if value is None else {"": value}


def _gpu_hours_lost(_rule: Rule, facts: WindowFacts) -> _Values | None:
    """GPU-hours lost per hour: the job's GPUs times its wasted share."""
    wasted = facts.result.gpu_time_wasted
    return _of_job(None if wasted is None else facts.num_gpus * wasted)


def _step_time_ratio(_rule: Rule, facts: WindowFacts) -> _Values | None:
    """The window's median step time by what was usual before, within one run."""
    if not facts.usual_step_s or not facts.recorded_s:
        return None
    return {"": float(np.median(facts.recorded_s)) / facts.usual_step_s}


def _clock_residual_s(_rule: Rule, facts: WindowFacts) -> _Values | None:
    residual_ms = facts.result.clocks.residual_ms
    return None if residual_ms is None else {"": residual_ms / 1e3}


def _costs_of_causes(rule: Rule, facts: WindowFacts) -> _Values | None:
    """By cause, the cost of its most costly finding; one of unknown cost has no loss to show."""
    if facts.findings is None:
        return None
    costs: dict[str, float] = {}
    for finding in facts.findings:
        if finding.cost is not None and fnmatchcase(finding.cause, rule.of):
            costs.setdefault(finding.cause, finding.cost)
    return costs


def _finding_of_cause(facts: WindowFacts, cause: str) -> Finding | None:
    of_cause = (finding for finding in facts.findings or () if finding.cause == cause)
    return next((finding for finding in of_cause if finding.cost is not None), None)


def _is_cause_sure(rule: Rule, facts: WindowFacts, cause: str) -> bool:
    finding = _finding_of_cause(facts, cause)
    return finding is not None and finding.confidence >= rule.min_confidence


def _worker_slowdowns(facts: WindowFacts) -> Mapping[Worker, float] | None:
    """The known slowdowns by worker; None where none is known."""
    if facts.result.worker_slowdown is None:
        return None
    return {
        (dp_rank, stage): slowdown
        for dp_rank, of_stages in enumerate(facts.result.worker_slowdown)
        for stage, slowdown in enumerate(of_stages)
        if slowdown is not None
    }


def _slowdowns_by_worker(rule: Rule, facts: WindowFacts) -> _Values | None:
    """By worker, called as its page is: "3-1" is dp rank 3 in stage 1."""
    slowdowns = _worker_slowdowns(facts)
    if slowdowns is None:
        return None
    by_worker = {worker_name(*worker): slowdown for worker, slowdown in slowdowns.items()}
    return _matching_subjects(rule.of, by_worker)


def _worker_labels(facts: WindowFacts, worker: str) -> Mapping[str, str]:
    host = facts.hosts.get(worker_of_name(worker))
    return {"worker": worker} | ({"host": host} if host else {})


def _slowdowns_by_host(rule: Rule, facts: WindowFacts) -> _Values | None:
    """By host; nothing where workers do not name their hosts."""
    slowdowns = _worker_slowdowns(facts)
    if slowdowns is None:
        return None
    by_host: dict[str, float] = {}
    for worker, host in facts.hosts.items():
        if worker in slowdowns:
            by_host[host] = max(by_host.get(host, 0.0), slowdowns[worker])
    return _matching_subjects(rule.of, by_host)


def _finding_of_optype(facts: WindowFacts, optype: str) -> Finding | None:
    of_optype = (
        finding for finding in facts.findings or () if optype in finding.evidence.get("optypes", ())
    )
    return next(of_optype, None)


def _matching_subjects(pattern: str, values: _Values) -> _Values:
    """The values whose subjects match; a pattern with * and ?."""
    if pattern == "*":
        return values
    return {name: value for name, value in values.items() if fnmatchcase(name, pattern)}


_OK_OR_LOW = frozenset({"ok", "low"})
_slowdown_by_subject = partial(
    WindowReading, unit="ratio", rest=1.0, has_subjects=True, lost_share=_share_of_ratio
)
WINDOW_READINGS: Mapping[On, WindowReading] = {
    reading.on: reading
    for reading in (
        WindowReading(
            "slowdown", "ratio", lambda _, facts: _of_job(facts.result.slowdown), rest=1.0
        ),
        WindowReading("waste", "share", lambda _, facts: _of_job(facts.result.gpu_time_wasted)),
        WindowReading("gpu-hours-lost", "GPU-hours an hour", _gpu_hours_lost),
        WindowReading(
            "cause",
            "share",
            _costs_of_causes,
            # The cost of a rare cause differs from window to window; causes without cost are not
            # among the findings.
            is_present=True,
            usual_clear=0.02,
            has_subjects=True,
            # Where the replay is too far from the record, the diagnosis itself withholds findings.
            verdicts=_OK_OR_LOW,
            is_sure=_is_cause_sure,
            blame=_finding_of_cause,
            lost_share=lambda _, cost: cost,
            labels=lambda _, cause: {"cause": cause},
        ),
        _slowdown_by_subject(
            on="worker",
            values=_slowdowns_by_worker,
            blame=lambda facts, worker: facts.accused.by_worker(worker_of_name(worker)),
            labels=_worker_labels,
        ),
        _slowdown_by_subject(
            on="host",
            values=_slowdowns_by_host,
            blame=lambda facts, host: facts.accused.by_host(host),
            labels=lambda _, host: {"host": host},
        ),
        _slowdown_by_subject(
            on="optype",
            values=lambda rule, facts: _matching_subjects(rule.of, facts.result.optype_slowdown),
            blame=_finding_of_optype,
        ),
        WindowReading(
            "low-fidelity",
            "share",
            lambda _, facts: _of_job(facts.result.fidelity.discrepancy),
            usual_above=MAX_DISCREPANCY,
            is_exact=True,
            verdicts=_OK_OR_LOW,
            lost_share=_no_loss,
        ),
        WindowReading(
            "clock-residual", "seconds", _clock_residual_s, is_exact=True, lost_share=_no_loss
        ),
        WindowReading(
            "step-time",
            "ratio",
            _step_time_ratio,
            rest=1.0,
            is_of_run=True,
            verdicts=_OK_OR_LOW,  # it is recorded, whatever the replay makes of it
            lost_share=_share_of_ratio,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class MissingDataReading:
    """Holds while all workers, or some, send nothing; `detail` are the alert's details.

    While it is not known (`is_known`) whether it holds, an alert stays as it is.
    """

    is_known: Callable[[MissingDataFacts], bool]
    holds: Callable[[MissingDataFacts], bool]
    detail: Callable[[MissingDataFacts], Detail]


def _stalled(facts: MissingDataFacts) -> Detail:
    detail = _detail_since("stalled", facts, facts.stalled_since_s)
    return replace(detail, gpu_hours_lost_per_hour=float(facts.num_gpus))


def _are_silent_known(facts: MissingDataFacts) -> bool:
    # While no worker sends, the first silent ones still are; and a worker that was silent before a
    # restart may not have sent yet.
    if facts.stalled_since_s is not None or facts.is_starting:
        return False
    return facts.silent_since_s is not None or not facts.has_unseen_ranks


def _silent_workers(facts: MissingDataFacts) -> Detail:
    detail = _detail_since("silent-worker", facts, facts.silent_since_s)
    return replace(detail, names=tuple(facts.names), num_named=facts.num_silent)


def _crashed(facts: MissingDataFacts) -> Detail:
    return replace(_detail_since("crashed", facts, facts.crashed_at_s), ended=facts.crash)


def _detail_since(on: On, facts: MissingDataFacts, since_at_s: float | None) -> Detail:
    return Detail(on=on, num_gpus=facts.num_gpus, since_step=facts.last_step, since_at_s=since_at_s)


MISSING_DATA_READINGS: Mapping[On, MissingDataReading] = {
    "stalled": MissingDataReading(
        # A job that hung and was started again sends nothing yet: it may hang again.
        lambda facts: not facts.is_starting,
        lambda facts: facts.stalled_since_s is not None,
        _stalled,
    ),
    "silent-worker": MissingDataReading(
        _are_silent_known, lambda facts: facts.silent_since_s is not None, _silent_workers
    ),
    "crashed": MissingDataReading(
        # A job that fails at each start would resolve it at each start.
        lambda facts: facts.crash is not None or not facts.is_starting,
        lambda facts: facts.crash is not None,
        _crashed,
    ),
}


def has_subjects(rule: Rule) -> bool:
    """Whether the rule has one alert per subject, and not one for the whole job."""
    return rule.on in WINDOW_READINGS and WINDOW_READINGS[rule.on].has_subjects


def is_alert_of(rule: Rule | None, state: AlertState) -> bool:
    """Whether the rule, on its figure and with its `of`, still has such an alert."""
    if rule is None or state.detail.on not in (None, rule.on):
        return False
    return not has_subjects(rule) or fnmatchcase(state.subject, rule.of)


def with_default_thresholds(rule: Rule) -> Rule:
    """The rule with its thresholds, the usual ones where it does not name them.

    It clears in the middle between what raises it and where all is well, or below: never at once
    at a value that has just raised it.
    """
    figure = WINDOW_READINGS.get(rule.on)
    if figure is None:
        return rule
    above = figure.usual_above if rule.above is None else rule.above
    if rule.clear is not None or above is None:
        return replace(rule, above=above)
    clear = above if figure.is_exact else (figure.rest + above) / 2
    if figure.usual_clear is not None:
        clear = min(clear, figure.usual_clear)
    return replace(rule, above=above, clear=clear)
