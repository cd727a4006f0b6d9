"""All alerts of one job, in memory: each window, and time, moves them on.

Nothing is read or written here: changes are returned, for the caller to save. Where more
subjects are over a threshold than a job may have alerts, the most severe and costly get one.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from app.alerts.alert import AlertEvent, AlertState, Blame, Detail, SuggestedFix, fingerprint
from app.alerts.facts import MissingDataFacts, WindowFacts, window_position
from app.alerts.labels import labels_of
from app.alerts.readings import (
    MISSING_DATA_READINGS,
    WINDOW_READINGS,
    MissingDataReading,
    WindowReading,
    has_subjects,
    is_alert_of,
    with_default_thresholds,
)
from app.alerts.rule import SEVERITIES, On, Rule
from app.alerts.rules import state_machine
from app.alerts.rules.state_machine import AlertStep, ObservedWindow, SubjectReading
from app.alerts.wording import JOB_ENDED, NO_BASELINE_YET, RULE_REMOVED, alert_sentence
from app.formatting import unix_time
from app.result.finding import Finding
from app.result.window_result import TopFix, WindowResult
from app.result.words import MIN_FACT_SHARE, observed
from app.trace.job import job_of

# Transitions that may cause a notification.
NOTIFYING_KINDS = frozenset({"firing", "resolved", "data-again"})


@dataclass(frozen=True, slots=True)
class AlertChange:
    """The alert's next state, None once it is at rest, and its transitions, the oldest first."""

    fingerprint: str
    rule: str
    state: AlertState | None
    events: tuple[AlertEvent, ...] = ()

    @property
    def is_news(self) -> bool:
        """Whether it may cause a notification."""
        return any(event.kind in NOTIFYING_KINDS for event in self.events)


_MAX_CULPRITS = 20
# Rules whose figure is the loss of the whole job.
_OF_WHOLE_LOSS = ("slowdown", "waste", "gpu-hours-lost")


@dataclass(frozen=True, slots=True)
class RuleWindow:
    """The figures of one rule in one window; `values` are by subject.

    Rules decide by `values`; `shown` are those of the recent steps, which messages say.
    """

    rule: Rule
    figure: WindowReading
    facts: WindowFacts
    values: Mapping[str, float]
    shown: Mapping[str, float] = field(default_factory=dict)

    def over(self, known: Collection[str]) -> list[str]:
        """Subjects over the threshold, the worst first, but for those `known` to have an alert."""
        above = self.rule.above
        over = [] if above is None else [
            subject
            for subject, value in self.values.items()
            if value >= above
            and subject not in known
            and self.figure.is_sure(self.rule, self.facts, subject)
        ]  # fmt: skip
        return sorted(
            over, key=lambda subject: (self._is_over(subject), -self.values[subject], subject)
        )

    def cost(self, subject: str) -> float:
        """Share of the job's GPU time that one of them costs: what rules have in common."""
        return self.figure.lost_share(self.facts, self.values[subject]) or 0.0

    def read(self, subject: str, num_more: int = 0) -> SubjectReading:
        """The reading of one of the subjects."""
        value = self.values.get(subject)
        if value is None:
            return SubjectReading(None, detail=self._detail(subject, None, None))
        finding = self.figure.blame(self.facts, subject)
        finding_labels = {} if finding is None else self.facts.accused.labels(finding)
        return SubjectReading(
            value,
            self.figure.is_sure(self.rule, self.facts, subject),
            self.figure.is_present,
            self._is_over(subject),
            structs.replace(self._detail(subject, value, finding), num_named=num_more),
            {**finding_labels, **self.figure.labels(self.facts, subject)},
        )

    def _is_over(self, subject: str) -> bool:
        """Whether its cause was over by the window's end."""
        finding = self.figure.blame(self.facts, subject)
        return finding is not None and finding.end_step is not None

    def _detail(self, subject: str, value: float | None, blamed: Finding | None) -> Detail:
        facts = self.facts.shown
        finding = None if blamed is None else self.facts.shown_finding(blamed)
        value = None if value is None else self.shown.get(subject, value)
        share = None if value is None else self.figure.lost_share(facts, value)
        return Detail(
            on=self.rule.on,
            value=value,
            slowdown=facts.result.slowdown,
            gpu_time_wasted=facts.result.gpu_time_wasted,
            gpu_hours_lost_per_hour=None if share is None else share * facts.num_gpus,
            num_gpus=facts.num_gpus,
            since_step=None if finding is None else finding.onset_step,
            since_at_s=None if finding is None else unix_time(finding.onset_at),
            window_id=self.facts.window_id,
            blame=None if finding is None else blame_of(finding),
            fix=None if finding is None else suggested_fix(finding, facts.result.advice),
            unexplained=_unexplained(facts.result) if self.rule.on in _OF_WHOLE_LOSS else None,
        )


def _unexplained(result: WindowResult) -> str | None:
    """The loss that no cause explains, and facts without a cause, without a full stop."""
    rest = None if result.unexplained is None else result.unexplained.sentence
    said = [f"{rest}."] * bool(rest) + observed(result, MIN_FACT_SHARE)
    return " ".join(said).removesuffix(".") or None


def blame_of(finding: Finding) -> Blame:
    """A finding of a result, in short."""
    parts, is_over = finding.parts, finding.end_step is not None
    return Blame(
        cause=finding.cause,
        sentence=finding.sentence,
        cost=finding.cost,
        confidence=finding.confidence,
        culprits=finding.culprits[:_MAX_CULPRITS],
        num_culprits=len(finding.culprits),
        since_step=finding.onset_step,
        end_step=finding.end_step,
        since_at_s=unix_time(finding.onset_at),
        end_at_s=unix_time(finding.ended_at),
        fact="" if parts is None else parts.past_fact if is_over else parts.fact,
    )


def suggested_fix(finding: Finding, advice: TopFix | None) -> SuggestedFix | None:
    """The advised fix, if it removes this finding's cause, and that goes on."""
    if finding.end_step is not None or advice is None or advice.cause != finding.cause:
        return None
    first = next(iter(advice.paste), None) if advice.fix in _FIXES_BY_COMMAND else None
    if any(need.fact == "scheduler" for need in advice.needs):
        first = None  # it may be that of another scheduler; the page has those of each
    if first is not None and ("\n" in first.text or len(first.text) > _MAX_COMMAND_CHARS):
        first = None
    return SuggestedFix(
        name=advice.fix,
        title=advice.title,
        speed_up=advice.speed_up,
        gpu_hours_per_day=advice.gpu_hours_per_day,
        command=None if first is None else first.text,
        command_label=None if first is None else first.label,
        gpu_hours_per_day_range=advice.gpu_hours_per_day_range,
    )


MAX_ALERTS = 1000  # of one job
# A longer one names dozens of hosts; cut it would be wrong.
_MAX_COMMAND_CHARS = 500
# Fixes whose first text to paste is the fix itself; of others it is code, data, or only looks.
_FIXES_BY_COMMAND = ("replace-worker", "resplit-stages", "planned-gc")


def admit_subjects(
    windows: Sequence[RuleWindow], states: Iterable[AlertState], rules: Mapping[str, Rule]
) -> Iterator[tuple[RuleWindow, list[str], int]]:
    """By rule of a job, the subjects to evaluate, and how many more are over its threshold.

    Subjects that have an alert are evaluated, and of the others the most severe and costly, as far
    as there is room. A whole job's alert always has room: it says more than those of its workers.
    """
    known: dict[str, set[str]] = {window.rule.name: set() for window in windows}
    for state in states:
        known.setdefault(state.rule, set()).add(state.subject)
    of_jobs = {name for name, rule in rules.items() if not has_subjects(rule)}
    num_known = sum(len(subjects) for name, subjects in known.items() if name not in of_jobs)
    room = max(0, MAX_ALERTS - len(of_jobs) - num_known)
    over = [window.over(known[window.rule.name]) for window in windows]
    ranked = sorted(
        (-SEVERITIES.index(window.rule.severity), -window.cost(subject), at, nth)
        for at, window in enumerate(windows)
        if window.figure.has_subjects
        for nth, subject in enumerate(over[at])
    )
    admitted = {(at, nth) for _, _, at, nth in ranked[:room]}
    for at, window in enumerate(windows):
        new = over[at]
        if window.figure.has_subjects:
            new = [subject for nth, subject in enumerate(over[at]) if (at, nth) in admitted]
        subjects = [*sorted(known[window.rule.name]), *new]
        yield window, subjects, len(over[at]) - len(new)


WindowPosition = tuple[int, int]


class JobAlerts:
    """The alerts of the job of this key ("project/job") that are not at rest.

    `states` are as they were saved last. Windows up to `counted_through` (epoch, first step) have
    been looked at before: the same one, or an older one that was revised, changes nothing.
    """

    def __init__(
        self,
        job_id: str,
        states: Iterable[AlertState] = (),
        rules: Sequence[Rule] = (),
        *,
        labels: Mapping[str, str] | None = None,
        counted_through: WindowPosition | None = None,
    ) -> None:
        self._job_id = job_id
        self._states = {(state.rule, state.subject): state for state in states}
        self._rules: dict[str, Rule] = {}
        self._labels = labels or {}
        self._counted_through = counted_through
        # Of alerts whose rule was removed: a new rule on the same figure keeps their onset.
        self._onsets: dict[tuple[On | None, str], Detail] = {}
        self._take(rules)

    @property
    def states(self) -> list[AlertState]:
        """All of them, by rule and subject."""
        return [self._states[key] for key in sorted(self._states)]

    @property
    def has_pending_by_clock(self) -> bool:
        """Whether an alert on missing data changes by time alone."""
        return any(
            (state.phase == "pending" or state.ceased_s is not None)
            and self._rules[rule].on in MISSING_DATA_READINGS
            for (rule, _), state in self._states.items()
            if rule in self._rules
        )

    def relabel(self, labels: Mapping[str, str]) -> None:
        """Begin alerts with the labels of a new run of the job from now on.

        Firing alerts keep theirs, by which receivers know them.
        """
        self._labels = labels

    def apply_rules(self, rules: Sequence[Rule], now_s: float) -> list[AlertChange]:
        """Use these rules from now on, and end the alerts of others."""
        self._take(rules)
        known = sorted(self._states.items())
        gone = [key for key, state in known if not is_alert_of(self._rules.get(key[0]), state)]
        ending = [self._states[key] for key in gone]
        self._onsets |= {
            (state.detail.on, state.subject): state.detail
            for state in ending
            if state.phase == "firing"
        }
        return [change for key in gone for change in self._end(key, RULE_REMOVED, now_s)]

    def add_window(self, facts: WindowFacts, now_s: float) -> list[AlertChange]:
        """Move alerts by a window that has closed; one without figures changes no alert.

        After too long without figures an alert is without data.
        """
        if facts.state in ("open", "superseded") or not self._is_later(facts.place):
            return []
        changes: list[AlertChange] = []
        seen: list[RuleWindow] = []
        if facts.is_counted:
            self._counted_through = facts.place
            changes += self._end_of_earlier_run(facts.place[0], now_s)
            at = ObservedWindow(facts.window_id, *facts.place, facts.took_s, now_s, facts.started_s)
            seen = list(self._rule_windows(facts))
            # A list: alerts that begin meanwhile take no more room.
            admitted = list(admit_subjects(seen, self._states.values(), self._rules))
            for window, subjects, num_more in admitted:
                for subject in subjects:
                    changes += self._move_by_window(window, subject, num_more, at)
            evaluated = {window.rule.on for window in seen}
            self._onsets = {
                key: detail for key, detail in self._onsets.items() if key[0] not in evaluated
            }
        counted = {window.rule.name for window in seen}
        for key, state in self._states_by_window():
            if key[0] not in counted:
                changes += self._apply(key, state_machine.by_uncounted_window(state, now_s), now_s)
        return changes

    def missing_data(self, facts: MissingDataFacts, now_s: float) -> list[AlertChange]:
        """Move alerts on missing data; alerts on windows then are without data."""
        changes = [
            change
            for rule in self._rules.values()
            if rule.on in MISSING_DATA_READINGS
            for change in self._move_by_clock(rule, MISSING_DATA_READINGS[rule.on], facts, now_s)
        ]
        if facts.is_without_data:
            for key, state in self._states_by_window():
                changes += self._apply(key, state_machine.by_missing_data(state), now_s)
        return changes

    def end(self, epoch: int, now_s: float) -> list[AlertChange]:
        """End the alerts of a job whose run has ended, but for those of a newer run and a crash."""
        keys = sorted(
            key
            for key, state in self._states.items()
            if (state.epoch or 0) <= epoch and state.detail.on != "crashed"
        )
        return [change for key in keys for change in self._end(key, JOB_ENDED, now_s)]

    def put_away(self, now_s: float) -> list[AlertChange]:
        """End all alerts of a job that was archived or deleted."""
        return [
            change for key in sorted(self._states) for change in self._end(key, JOB_ENDED, now_s)
        ]

    def _take(self, rules: Sequence[Rule]) -> None:
        job = job_of(self._job_id)
        self._rules = {
            rule.name: with_default_thresholds(rule) for rule in rules if rule.is_for(job)
        }

    def _end_of_earlier_run(self, epoch: int, now_s: float) -> Iterator[AlertChange]:
        """End alerts on figures that compare a run with its own past, once a new run has begun."""
        for key, state in self._states_by_window():
            if WINDOW_READINGS[self._rules[key[0]].on].is_of_run and state.epoch != epoch:
                yield from self._end(key, NO_BASELINE_YET, now_s)

    def _is_later(self, place: WindowPosition) -> bool:
        counted = self._counted_through
        return (counted is None or place > counted) and all(
            place > window_position(state.window_id)
            for state in self._states.values()
            if state.window_id
        )

    def _rule_windows(self, facts: WindowFacts) -> Iterator[RuleWindow]:
        for rule in self._rules.values():
            figure = WINDOW_READINGS.get(rule.on)
            if figure is None or facts.verdict not in figure.verdicts:
                continue
            values = figure.values(rule, facts)
            if values is not None:
                # As the job's page has them; none of one that compares with before.
                shown = {} if figure.is_of_run else figure.values(rule, facts.shown) or {}
                yield RuleWindow(rule, figure, facts, values, shown)

    def _move_by_window(
        self, window: RuleWindow, subject: str, num_more: int, at: ObservedWindow
    ) -> Iterator[AlertChange]:
        rule, reading = window.rule, window.read(subject, num_more)
        onset = self._onsets.get((rule.on, subject))
        if onset is not None and onset.since_step is not None:
            detail = state_machine.detail_since(reading, onset.since_step, onset.since_at_s)
            reading = replace(reading, detail=detail)
        fresh = self._new_alert(rule, subject, reading.labels, at.now_s)
        before = self._states.get((rule.name, subject))
        step = state_machine.by_window(rule, before, fresh, reading, at)
        yield from self._apply((rule.name, subject), step, at.now_s)

    def _states_by_window(self) -> list[tuple[tuple[str, str], AlertState]]:
        names = {name for name, rule in self._rules.items() if rule.on in WINDOW_READINGS}
        return [(key, state) for key, state in sorted(self._states.items()) if key[0] in names]

    def _move_by_clock(
        self, rule: Rule, quiet: MissingDataReading, facts: MissingDataFacts, now_s: float
    ) -> Iterator[AlertChange]:
        if not quiet.is_known(facts):
            return
        before = self._states.get((rule.name, ""))
        fresh = replace(self._new_alert(rule, "", {}, now_s), detail=quiet.detail(facts))
        step = state_machine.by_clock(rule, before, fresh, holds=quiet.holds(facts), now_s=now_s)
        yield from self._apply((rule.name, ""), step, now_s)

    def _new_alert(
        self, rule: Rule, subject: str, culprit: Mapping[str, str], now_s: float
    ) -> AlertState:
        return AlertState(
            fingerprint=fingerprint(self._job_id, rule.name, subject),
            job_id=self._job_id,
            rule=rule.name,
            subject=subject,
            phase="pending",
            severity=rule.severity,
            began_at_s=now_s,
            threshold=rule.above,
            labels=labels_of(rule, self._job_id, subject, culprit=culprit, of_job=self._labels),
            runbook_url=rule.runbook_url,
        )

    def _end(self, key: tuple[str, str], reason: str, now_s: float) -> Iterator[AlertChange]:
        yield from self._apply(key, state_machine.by_end(self._states[key], reason), now_s)

    def _apply(self, key: tuple[str, str], step: AlertStep, now_s: float) -> Iterator[AlertChange]:
        """Replace the state of an alert; yields a change if there is something to be saved."""
        before = self._states.pop(key, None)
        if step.state is not None:
            self._states[key] = step.state
        latest = step.state or before
        if latest is None or (step.state == before and not step.transitions):
            return
        events = []
        for kind, detail, reason in step.transitions:
            then = replace(latest, detail=detail)
            sentence = alert_sentence(then, kind, reason)
            events.append(AlertEvent.of_state(then, kind, now_s, sentence, reason))
        yield AlertChange(latest.fingerprint, latest.rule, step.state, tuple(events))
