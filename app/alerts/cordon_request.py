"""What a rule's cordon asks the operator's tool for, and by which alerts.

Workers say themselves on which host they are: a name here is the job's word, and the request says
so to whoever acts on it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.alerts.notice import Told
from app.alerts.rule import Rule
from app.trace.names import plain, project_of

MOST_WORKERS = 80


@dataclass(frozen=True, slots=True)
class Request:
    """What the rule's `action` is asked for: the workers ("3-1") and hosts that its alerts name.

    `disputed_hosts` are those of them that running jobs of other projects name, too; None where
    nobody could say.
    """

    action: str
    job_id: str
    rule: str
    workers: Sequence[str]
    hosts: Sequence[str]
    reason: str
    alerts: Sequence[Mapping[str, Any]]
    disputed_hosts: Sequence[str] | None = ()

    @property
    def project(self) -> str:
        """Whose rule asks."""
        return project_of(self.job_id)

    def body(self) -> str:
        """The JSON that the tool is given."""
        content = {
            "action": self.action,
            "project": self.project,
            "job": plain(self.job_id),
            "rule": self.rule,
            "workers": list(self.workers),
            "hosts": list(self.hosts),
            "hosts_are_declared_by": "the job",
            "hosts_that_other_projects_declare": self.disputed_hosts,
            "reason": self.reason,
            "alerts": list(self.alerts),
        }
        return json.dumps(content, allow_nan=False, ensure_ascii=False)


def request_for(rule: Rule, job_id: str, fired: Sequence[Told]) -> Request | None:
    """What to ask for when these alerts begin to fire; None where nobody is to be asked.

    A rule on workers or hosts asks for those that it fires for, one on causes for the culprits.
    Others only know that the job is slow, which is no reason to take anything away.
    """
    if rule.cordon is None or not fired:
        return None
    workers = sorted({each for told in fired for each in _workers(rule, told)})
    hosts = sorted({each for told in fired for each in _hosts(rule, told)})
    if not workers and not hosts:
        return None
    alerts = [
        {"fingerprint": told.fingerprint, "event_id": told.event_id, "labels": dict(told.labels)}
        for told in fired[:MOST_WORKERS]
    ]
    return Request(rule.cordon, job_id, rule.name, workers, hosts, fired[0].sentence, alerts)


def _workers(rule: Rule, told: Told) -> Iterable[str]:
    for culprit in _culprits(rule, told):
        if "dp_rank" in culprit and "stage" in culprit:
            yield f"{culprit['dp_rank']}-{culprit['stage']}"


def _hosts(rule: Rule, told: Told) -> Iterable[str]:
    for culprit in _culprits(rule, told):
        if culprit.get("host"):
            yield str(culprit["host"])


def _culprits(rule: Rule, told: Told) -> Iterable[Mapping[str, Any]]:
    """Whom a finding names that is sure enough; being slow alone makes nobody the culprit.

    All workers of a long stage are slow, and none of their hosts is to blame.
    """
    blame = told.detail.blame
    if blame is None or blame.confidence < rule.min_confidence:
        return
    for culprit in blame.culprits:
        of_worker = f"{culprit.get('dp_rank')}-{culprit.get('stage')}"
        named = {of_worker, culprit.get("host")}
        if rule.on == "cause" or named & {told.labels.get("subject"), _host_of(rule, told)}:
            yield culprit


def _host_of(rule: Rule, told: Told) -> str | None:
    return told.labels.get("host") if rule.on == "worker" else None
