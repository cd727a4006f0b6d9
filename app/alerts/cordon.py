"""Ask the operator's own tool to cordon a slow worker's host once an alert fires; off by default.

Paceline itself takes no host out of service. The environment names a command or a URL, and whose
rules may ask for which actions, since every project writes its own rules; a rule names the
action. In a dry run nothing is called: the log and the audit say what would have been. Host
names are what the job's workers say, and the request says so.
"""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import httpcore

from app.alerts.facts import worker_name
from app.alerts.guard import SsrfGuard
from app.alerts.notice import NoticeAlert
from app.alerts.rule import Rule
from app.errors import Blocked
from app.result.finding import Culprit
from app.trace.job import job_of, project_of

MAX_WORKERS = 80


@dataclass(frozen=True, slots=True)
class CordonRequest:
    """A request to do the rule's `action` to the workers ("3-1") and hosts that its alerts name.

    `disputed_hosts` are hosts that running jobs of other projects name, too; None where that is
    not known.
    """

    action: str
    job_id: str
    rule: str
    workers: Sequence[str]
    hosts: Sequence[str]
    reason: str
    alerts: Sequence[NoticeAlert]
    disputed_hosts: Sequence[str] | None = ()

    @property
    def project(self) -> str:
        """Project of the rule."""
        return project_of(self.job_id)

    def body(self) -> str:
        """The request as JSON."""
        content = {
            "action": self.action,
            "project": self.project,
            "job": job_of(self.job_id),
            "rule": self.rule,
            "workers": list(self.workers),
            "hosts": list(self.hosts),
            "hosts_are_declared_by": "the job",
            "hosts_that_other_projects_declare": self.disputed_hosts,
            "reason": self.reason,
            "alerts": [
                {
                    "fingerprint": alert.fingerprint,
                    "event_id": alert.event_id,
                    "labels": dict(alert.labels),
                }
                for alert in self.alerts
            ],
        }
        return json.dumps(content, allow_nan=False, ensure_ascii=False)


def cordon_request_for(
    rule: Rule, job_id: str, fired: Sequence[NoticeAlert]
) -> CordonRequest | None:
    """The request for alerts that begin to fire; None where the rule or its alerts ask for none.

    A rule on workers or hosts names those that it fires for, a rule on causes the culprits. Other
    rules only know that the job is slow, which is no reason to cordon a host.
    """
    if rule.cordon is None or not fired:
        return None
    culprits = [culprit for alert in fired for culprit in _culprits(rule, alert)]
    workers = sorted(
        {
            worker_name(culprit.dp_rank, culprit.stage)
            for culprit in culprits
            if culprit.dp_rank is not None and culprit.stage is not None
        }
    )
    hosts = sorted({culprit.host for culprit in culprits if culprit.host})
    if not workers and not hosts:
        return None
    reason, alerts = fired[0].sentence, fired[:MAX_WORKERS]
    return CordonRequest(rule.cordon, job_id, rule.name, workers, hosts, reason, alerts)


def _culprits(rule: Rule, alert: NoticeAlert) -> Iterable[Culprit]:
    """The alert's own culprits in its finding, if that is sure enough.

    A slow worker alone is no culprit: all workers of a long stage are slow, and none of their hosts
    is to blame.
    """
    blame = alert.detail.blame
    if blame is None or blame.confidence < rule.min_confidence:
        return
    host = alert.labels.get("host") if rule.on == "worker" else None
    alert_names = {alert.labels.get("subject"), host} - {None}
    for culprit in blame.culprits:
        culprit_names = {f"{culprit.dp_rank}-{culprit.stage}", culprit.host}
        if rule.on == "cause" or culprit_names & alert_names:
            yield culprit


TIMEOUT_S = 10.0
# So many hosts do not fail at once: cordoning them all would make any other trouble worse.
MAX_HOSTS = 10
_MAX_DETAIL_BYTES = 500

_HEADERS = {"content-type": "application/json", "user-agent": "Paceline"}


@dataclass(frozen=True, slots=True)
class CordonResult:
    """Whether the tool was called and succeeded; `detail` is for people."""

    result: Literal["done", "failed"]
    detail: str


@dataclass(frozen=True, slots=True)
class CordonHook:
    """The operator's tool: a command line or a URL. In a dry run neither is called.

    Rules of `projects` may ask for `actions`; both are patterns with * and ?, without any of which
    no rule may.
    """

    command: Sequence[str] = ()
    url: str | None = None
    is_dry_run: bool = True
    projects: Sequence[str] = ()
    actions: Sequence[str] = ()
    timeout_s: float = TIMEOUT_S  # of the command; the guard has its own

    def refusal(self, request: CordonRequest) -> str | None:
        """Why the operator does not allow the request; None where they do."""
        if not _matches_any(request.project, self.projects):
            return "the operator lets no rule of this project ask: PACELINE_CORDON_PROJECTS"
        if not _matches_any(request.action, self.actions):
            return "the operator lets no rule ask for this action: PACELINE_CORDON_ACTIONS"
        return None


def call_cordon_hook(hook: CordonHook, request: CordonRequest, guard: SsrfGuard) -> CordonResult:
    """Call the operator's tool; errors are in the outcome.

    `guard` lets the operator's own URL be anywhere.
    """
    if len(request.hosts) > MAX_HOSTS or len(request.workers) > MAX_WORKERS:
        return CordonResult(
            "failed",
            f"{len(request.hosts)} hosts and {len(request.workers)} workers at once are too many "
            f"(at most {MAX_HOSTS} and {MAX_WORKERS}): nothing was called",
        )
    if hook.url is not None:
        return _post(guard, hook.url, request.body())
    return _run(hook, request.body())


def _post(guard: SsrfGuard, url: str, body: str) -> CordonResult:
    try:
        reply = guard.post(url, headers=_HEADERS, body=body.encode())
    except Blocked as refusal:
        return CordonResult("failed", f"blocked: {refusal}")
    except httpcore.TimeoutException:
        return CordonResult("failed", "no answer in time")
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        return CordonResult("failed", f"no connection: {type(error).__name__}")
    answer = f"HTTP {reply.status} {_printable(reply.beginning)}".rstrip()
    return CordonResult("done" if 200 <= reply.status < 300 else "failed", answer)


def _run(hook: CordonHook, body: str) -> CordonResult:
    """Run it without a shell; what comes from workers reaches it on its input alone."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(  # noqa: S603
                list(hook.command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            return CordonResult("failed", f"it could not be started: {error.strerror}")
        status = _wait(process, body, hook.timeout_s)
        output.seek(0)
        printed = _printable(output.read(_MAX_DETAIL_BYTES))
    if status is None:
        return CordonResult("failed", f"it had not ended after {hook.timeout_s:g} s")
    if status:
        return CordonResult("failed", f"it ended with status {status}: {printed}".rstrip(": "))
    return CordonResult("done", printed)


def _wait(process: "subprocess.Popen[bytes]", body: str, timeout_s: float) -> int | None:
    """Exit status; None if it was killed, with its children, after the timeout."""
    try:
        process.communicate(body.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    return process.returncode


def _environment() -> dict[str, str]:
    """The environment without Paceline's settings, which have secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _printable(text: bytes) -> str:
    shown = text.decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in shown).strip()
