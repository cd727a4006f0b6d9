"""Everything that an alert rule can be on, and its default thresholds.

Readings of the whole job (slowdown, waste, step time, fidelity, clocks), readings with a figure for
each subject (cause, worker, host, operation type), and readings of missing data (stalled, silent
workers). A host's figure is that of its worst worker, so a rule on hosts fires wherever one on
workers with the same threshold does, and can inhibit it.

The step time is compared with the level before it last rose for good, as the diagnosis sees it, and
with the median of all earlier steps where it did not rise; so a job that stays slow keeps firing.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

import numpy as np
from msgspec.structs import replace
from typing_extensions import override

from app.alerts.alert import AlertState, Detail
from app.alerts.readings.facts import (
    MissingDataFacts,
    MissingDataReading,
    WindowFacts,
    WindowReading,
    Worker,
    matching_subjects,
    share_of_ratio,
    worker_name,
    worker_of_name,
)
from app.alerts.rule import On, Rule
from app.result.figures import MAX_DISCREPANCY
from app.result.finding import Finding


def _of_job(value: float | None) -> Mapping[str, float] | None:
    """The figure of the whole job, if the window has it."""
    return None if value is None else {"": value}


class SlowdownReading(WindowReading):
    """The job's slowdown S."""

    on = "slowdown"
    unit = "ratio"
    rest = 1.0

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        return _of_job(facts.result.slowdown)


class WasteReading(WindowReading):
    """The share of the job's GPU time that is wasted, 0..1."""

    on = "waste"
    unit = "share"

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        return _of_job(facts.result.gpu_time_wasted)


class GpuHoursLostReading(WindowReading):
    """GPU-hours lost per hour: the job's GPUs times its wasted share."""

    on = "gpu-hours-lost"
    unit = "GPU-hours an hour"

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        wasted = facts.result.gpu_time_wasted
        return None if wasted is None else {"": facts.num_gpus * wasted}


class StepTimeReading(WindowReading):
    """The window's median step time by what was usual before, within one run."""

    on = "step-time"
    unit = "ratio"
    rest = 1.0
    is_of_run = True
    verdicts = frozenset({"ok", "low"})  # it is recorded, whatever the replay makes of it

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        if not facts.usual_step_s or not facts.recorded_s:
            return None
        return {"": float(np.median(facts.recorded_s)) / facts.usual_step_s}

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return share_of_ratio(value)


class LowFidelityReading(WindowReading):
    """The discrepancy as a share; the only figure for which windows of low fidelity count."""

    on = "low-fidelity"
    unit = "share"
    usual_above = MAX_DISCREPANCY
    is_exact = True
    verdicts = frozenset({"ok", "low"})

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        return _of_job(facts.result.fidelity.discrepancy)

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return None


class ClockResidualReading(WindowReading):
    """In seconds; windows that cannot show it have no figure."""

    on = "clock-residual"
    unit = "seconds"
    is_exact = True

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        residual_ms = facts.result.clocks.residual_ms
        return None if residual_ms is None else {"": residual_ms / 1e3}

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return None


class CauseReading(WindowReading):
    """For each cause the most costly finding; one of unknown cost has no loss to show."""

    on = "cause"
    unit = "share"
    # A cause that is rare costs another share in each window. What costs less is not found at all.
    is_found = True
    usual_clear = 0.02
    has_subjects = True
    # Where the replay is too far from the record, the diagnosis itself withholds its findings.
    verdicts = frozenset({"ok", "low"})

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        if facts.findings is None:
            return None
        found: dict[str, float] = {}
        for finding in facts.findings:
            if finding.cost is not None and fnmatchcase(finding.cause, rule.of):
                found.setdefault(finding.cause, finding.cost)
        return found

    @override
    def is_sure(self, rule: Rule, facts: WindowFacts, subject: str) -> bool:
        finding = self.blame(facts, subject)
        return finding is not None and finding.confidence >= rule.min_confidence

    @override
    def blame(self, facts: WindowFacts, subject: str) -> Finding | None:
        same = (finding for finding in facts.findings or () if finding.cause == subject)
        return next((finding for finding in same if finding.cost is not None), None)

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return value

    @override
    def labels(self, facts: WindowFacts, subject: str) -> Mapping[str, str]:
        return {"cause": subject}


def _worker_slowdowns(facts: WindowFacts) -> Mapping[Worker, float] | None:
    """Of the workers of which it is known; None where it is of none."""
    if facts.result.worker_slowdown is None:
        return None
    return {
        (dp_rank, stage): slowdown
        for dp_rank, of_stages in enumerate(facts.result.worker_slowdown)
        for stage, slowdown in enumerate(of_stages)
        if slowdown is not None
    }


class WorkerReading(WindowReading):
    """For each worker, called as its page is: "3-1" is dp rank 3 in stage 1."""

    on = "worker"
    unit = "ratio"
    rest = 1.0
    has_subjects = True

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        slowdowns = _worker_slowdowns(facts)
        if slowdowns is None:
            return None
        of_worker = {worker_name(*worker): slowdown for worker, slowdown in slowdowns.items()}
        return matching_subjects(rule.of, of_worker)

    @override
    def blame(self, facts: WindowFacts, subject: str) -> Finding | None:
        return facts.accused.by_worker(worker_of_name(subject))

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return share_of_ratio(value)

    @override
    def labels(self, facts: WindowFacts, subject: str) -> Mapping[str, str]:
        host = facts.hosts.get(worker_of_name(subject))
        return {"worker": subject} | ({"host": host} if host else {})


class HostReading(WindowReading):
    """For each host by its name; nothing where workers do not name their hosts."""

    on = "host"
    unit = "ratio"
    rest = 1.0
    has_subjects = True

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        slowdowns = _worker_slowdowns(facts)
        if slowdowns is None:
            return None
        of_host: dict[str, float] = {}
        for worker, host in facts.hosts.items():
            if worker in slowdowns:
                of_host[host] = max(of_host.get(host, 0.0), slowdowns[worker])
        return matching_subjects(rule.of, of_host)

    @override
    def blame(self, facts: WindowFacts, subject: str) -> Finding | None:
        return facts.accused.by_host(subject)

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return share_of_ratio(value)

    @override
    def labels(self, facts: WindowFacts, subject: str) -> Mapping[str, str]:
        return {"host": subject}


class OpTypeReading(WindowReading):
    """For each operation type by its name."""

    on = "optype"
    unit = "ratio"
    rest = 1.0
    has_subjects = True

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        return matching_subjects(rule.of, facts.result.optype_slowdown)

    @override
    def blame(self, facts: WindowFacts, subject: str) -> Finding | None:
        return next(
            (
                finding
                for finding in facts.findings or ()
                if subject in finding.evidence.get("optypes", ())
            ),
            None,
        )

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return share_of_ratio(value)


class StalledReading(MissingDataReading):
    """No worker of the job sends anything."""

    on = "stalled"

    @override
    def is_known(self, facts: MissingDataFacts) -> bool:
        # A job that hung and was started again sends nothing yet: it may hang again.
        return not facts.is_starting

    @override
    def holds(self, facts: MissingDataFacts) -> bool:
        return facts.stalled_since_s is not None

    @override
    def detail(self, facts: MissingDataFacts) -> Detail:
        return Detail(
            on=self.on,
            gpu_hours_lost_per_hour=float(facts.num_gpus),
            num_gpus=facts.num_gpus,
            since_step=facts.last_step,
            since_at_s=facts.stalled_since_s,
        )


class SilentWorkerReading(MissingDataReading):
    """Some workers send nothing, so no step is complete and there are no figures."""

    on = "silent-worker"

    @override
    def is_known(self, facts: MissingDataFacts) -> bool:
        # While no worker sends, the first silent ones still are; and a worker that was silent
        # before a restart may not have sent yet.
        if facts.stalled_since_s is not None or facts.is_starting:
            return False
        return facts.silent_since_s is not None or not facts.has_unseen_ranks

    @override
    def holds(self, facts: MissingDataFacts) -> bool:
        return facts.silent_since_s is not None

    @override
    def detail(self, facts: MissingDataFacts) -> Detail:
        return Detail(
            on=self.on,
            num_gpus=facts.num_gpus,
            since_step=facts.last_step,
            since_at_s=facts.silent_since_s,
            names=tuple(facts.names),
            num_named=facts.num_silent,
        )


class CrashedReading(MissingDataReading):
    """The job's processes have failed, by their own reports."""

    on = "crashed"

    @override
    def is_known(self, facts: MissingDataFacts) -> bool:
        # A job that fails at each start would resolve it at each start.
        return facts.crash is not None or not facts.is_starting

    @override
    def holds(self, facts: MissingDataFacts) -> bool:
        return facts.crash is not None

    @override
    def detail(self, facts: MissingDataFacts) -> Detail:
        return Detail(
            on=self.on,
            num_gpus=facts.num_gpus,
            since_step=facts.last_step,
            since_at_s=facts.crashed_at_s,
            ended=facts.crash,
        )


WINDOW_READINGS: dict[On, WindowReading] = {
    figure.on: figure
    for figure in (
        SlowdownReading(),
        WasteReading(),
        GpuHoursLostReading(),
        CauseReading(),
        WorkerReading(),
        HostReading(),
        OpTypeReading(),
        LowFidelityReading(),
        ClockResidualReading(),
        StepTimeReading(),
    )
}
MISSING_DATA_READINGS: dict[On, MissingDataReading] = {
    quiet.on: quiet for quiet in (StalledReading(), SilentWorkerReading(), CrashedReading())
}


def has_subjects(rule: Rule) -> bool:
    """Whether the rule has an alert for each of several subjects, and not one for the job."""
    return rule.on in WINDOW_READINGS and WINDOW_READINGS[rule.on].has_subjects


def is_alert_of(rule: Rule | None, state: AlertState) -> bool:
    """Whether an alert such as this is the rule's: on the same, and of whom its `of` chooses."""
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
