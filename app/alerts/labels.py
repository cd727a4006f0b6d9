"""Labels of an alert: what silences and receivers choose by, and what they know it by."""

from collections.abc import Mapping

from app.alerts.alert import AlertState
from app.alerts.matchers import BUILT_IN
from app.alerts.rule import Rule
from app.trace.names import plain, project_of

# Whom a diagnosis blames may change while an alert fires.
CULPRITS = ("cause", "worker", "host")


def alert_name(rule: str) -> str:
    """A rule's name as Alertmanager's users write names: PacelineGpuHoursLost."""
    return "Paceline" + "".join(part.capitalize() for part in rule.split("-"))


def labels_of(
    rule: Rule,
    job_id: str,
    subject: str,
    *,
    culprit: Mapping[str, str],
    of_job: Mapping[str, str],
) -> dict[str, str]:
    """All of them; a rule's go before its job's, and those that every alert has before both.

    `culprit` are cause, worker and host, as far as there is one of each. What a job or a rule says
    under such a name is left out: it would accuse, and silence, whom nobody has found.
    """
    own = {name: text for name, text in {**of_job, **rule.labels}.items() if name not in BUILT_IN}
    built_in = {
        "alertname": alert_name(rule.name),
        "project": project_of(job_id),
        "job": plain(job_id),
        "rule": rule.name,
        "severity": rule.severity,
    }
    named = {"subject": subject} if subject else {}
    return {**own, **culprit, **named, **built_in}


def with_culprits(labels: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The labels, but cause, worker and host as those of `now` have them."""
    kept = {name: text for name, text in labels.items() if name not in CULPRITS}
    return kept | {name: now[name] for name in CULPRITS if name in now}


def relabelled(state: AlertState, rule: Rule, of_job: Mapping[str, str]) -> dict[str, str]:
    """The alert's labels by what its rule and its job say now; whom it blames stays as it is."""
    culprit = {name: state.labels[name] for name in CULPRITS if name in state.labels}
    return labels_of(rule, state.job_id, state.subject, culprit=culprit, of_job=of_job)
