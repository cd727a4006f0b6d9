"""Labels of alerts, matchers on labels, and what mutes an alert: silences and inhibition."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct

from app.alerts.alert import AlertState
from app.alerts.rule import SEVERITIES, Rule
from app.trace.job import job_of, project_of

CULPRIT_LABELS = ("cause", "worker", "host")  # they may change while an alert fires
# Labels that every alert has, beside those of its rule and its job.
BUILT_IN_LABELS = ("alertname", "project", "job", "rule", "subject", "severity", *CULPRIT_LABELS)


class Matcher(Struct, frozen=True, omit_defaults=True):
    """One label and a pattern with * and ?, negated if `is_negative`.

    A missing label counts as empty.
    """

    label: str
    pattern: str
    is_negative: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an alert with these labels matches."""
        return fnmatchcase(labels.get(self.label, ""), self.pattern) != self.is_negative


def all_match(matchers: Sequence[Matcher], labels: Mapping[str, str]) -> bool:
    """Whether each of them matches; an empty list matches everything."""
    return all(matcher.matches(labels) for matcher in matchers)


def labels_of(
    rule: Rule,
    job_id: str,
    subject: str,
    *,
    culprit: Mapping[str, str],
    of_job: Mapping[str, str],
) -> dict[str, str]:
    """All labels of an alert; the rule's win over the job's, built-in ones over both.

    `culprit` has cause, worker and host, as far as they are known. A job or a rule cannot set
    labels of built-in names: they would name a culprit that is no finding's.
    """
    own_labels = {
        name: text
        for name, text in {**of_job, **rule.labels}.items()
        if name not in BUILT_IN_LABELS
    }
    built_in = {
        # As Alertmanager's users write names: PacelineGpuHoursLost.
        "alertname": "Paceline" + "".join(part.capitalize() for part in rule.name.split("-")),
        "project": project_of(job_id),
        "job": job_of(job_id),
        "rule": rule.name,
        "severity": rule.severity,
    }
    subject_label = {"subject": subject} if subject else {}
    return {**own_labels, **culprit, **subject_label, **built_in}


def with_culprits(labels: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The labels, with cause, worker and host taken from `now`."""
    kept = {name: text for name, text in labels.items() if name not in CULPRIT_LABELS}
    return kept | {name: now[name] for name in CULPRIT_LABELS if name in now}


def labels_by_current_rule(
    state: AlertState, rule: Rule, of_job: Mapping[str, str]
) -> dict[str, str]:
    """The alert's labels by its current rule and job; the culprit labels stay."""
    culprit = {name: state.labels[name] for name in CULPRIT_LABELS if name in state.labels}
    return labels_of(rule, state.job_id, state.subject, culprit=culprit, of_job=of_job)


MAX_SILENCE_DAYS = 30.0
SilenceKind = Literal["silence", "maintenance"]


@dataclass(frozen=True, slots=True)
class Silence:
    """Mutes alerts that match all `matchers` from `starts_s` until `ends_s` (Unix seconds).

    The end of the current run of job `until_end_of`, if given, ends it earlier.
    """

    silence_id: str
    project: str
    kind: SilenceKind
    matchers: Sequence[Matcher]
    starts_s: float
    ends_s: float
    author: str
    comment: str
    created_s: float
    until_end_of: str | None = None

    def is_active(self, now_s: float) -> bool:
        """Whether it has begun and not ended."""
        return self.starts_s <= now_s < self.ends_s

    def mutes(self, labels: Mapping[str, str], now_s: float) -> bool:
        """Whether an alert with these labels is muted now."""
        return self.is_active(now_s) and all_match(self.matchers, labels)


def inhibited_fingerprints(states: Sequence[AlertState], rules: Iterable[Rule]) -> set[str]:
    """Fingerprints of the firing alerts of one job that its other alerts inhibit.

    A firing alert inhibits those of the rules that its own rule names. An alert of a host inhibits
    those of its workers. Of rules that inhibit each other in a circle the most severe one is
    notified. An alert without data inhibits no other.
    """
    by_name = {rule.name: rule for rule in rules}
    firing = [state for state in states if state.phase == "firing" and state.rule in by_name]
    inhibiting = [state for state in firing if not state.is_no_data]
    names = {state.rule for state in inhibiting}
    inhibited = _inhibited_rules({name: rule for name, rule in by_name.items() if name in names})
    hosts = {state.subject for state in inhibiting if by_name[state.rule].on == "host"}
    return {
        state.fingerprint
        for state in firing
        if state.rule in inhibited
        or (by_name[state.rule].on == "worker" and state.labels.get("host") in hosts)
    }


def _inhibited_rules(rules: Mapping[str, Rule]) -> set[str]:
    reached = {name: _transitively_inhibited(name, rules) for name in rules}
    return {
        other
        for name, rule in rules.items()
        for other in rule.inhibits
        if other in rules and not _is_first_of_its_cycle(other, name, rules, reached)
    }


def _is_first_of_its_cycle(
    name: str, inhibitor: str, rules: Mapping[str, Rule], reached: Mapping[str, set[str]]
) -> bool:
    """Whether both inhibit each other, perhaps through others, and this one goes first."""
    circle = {other for other in reached[name] if name in reached[other]} | {name}
    return inhibitor in circle and name == min(circle, key=lambda rule: _rank(rules[rule]))


def _rank(rule: Rule) -> tuple[int, str]:
    return -SEVERITIES.index(rule.severity), rule.name


def _transitively_inhibited(name: str, rules: Mapping[str, Rule]) -> set[str]:
    """The firing rules that this one inhibits, directly or through others."""
    inhibited: set[str] = set()
    queue = [name]
    while queue:
        new = (rules.keys() & rules[queue.pop()].inhibits) - inhibited
        inhibited |= new
        queue += new
    return inhibited
