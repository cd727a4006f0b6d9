"""Notices and messages: a notice lists the alerts of one rule on one job, a message is its text.

A notice has no format; `formats` renders it into a message for one receiver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

from app.alerts.alert import Detail
from app.alerts.picture_links import SignedPictureLinks
from app.alerts.rule import Severity
from app.trace.job import job_of, project_of

# Standard Webhooks' advice, and less than any receiver refuses; a routing key still has room.
MAX_MESSAGE_BYTES = 19_800
# Of the pages: its chapters are named by cause, and by what rules on missing data are on.
RUNBOOK_PATH = "/docs/on-call"


@dataclass(frozen=True, slots=True)
class Message:
    """A body with its headers; signatures and the moment are added at each attempt.

    `kind` is the notice's: at a check of healthchecks.io it decides where the ping goes.
    """

    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    subject: str | None = None  # of an e-mail
    kind: "NoticeKind" = "firing"

    @property
    def num_bytes(self) -> int:
        """Size of the body on the wire."""
        return len(self.body.encode())


@dataclass(frozen=True, slots=True)
class NoticeGroup:
    """The alerts of one rule on one job.

    `base_url` is the public address of the pages, None if not configured; `pictures` makes links to
    charts, None without any. All of the job is processed up to `as_of_s`; messages about it have
    waited for that since `held_since_s` (Unix times), None where they did not.
    """

    job_id: str
    job_name: str
    rule: str
    base_url: str | None = None
    pictures: SignedPictureLinks | None = None
    as_of_s: float | None = None
    held_since_s: float | None = None

    @property
    def project(self) -> str:
        """Project of the job."""
        return project_of(self.job_id)

    @property
    def labels(self) -> dict[str, str]:
        """Labels that the alerts of the group share."""
        return {"job": job_of(self.job_id), "project": self.project, "rule": self.rule}

    @property
    def key(self) -> str:
        """Key of the group, as an Alertmanager would write it."""
        labels = ", ".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{{}}:{{{labels}}}"

    def page_url(self, window_id: str | None) -> str | None:
        """The job's page, at the window where there is one."""
        if self.base_url is None:
            return None
        page = f"{self.base_url.rstrip('/')}/jobs/{quote(job_of(self.job_id), safe='')}"
        return page if window_id is None else f"{page}?window={window_id}"

    def runbook_url(self, detail: Detail) -> str | None:
        """Address of the runbook in the documentation that the pages come with."""
        if self.base_url is None:
            return None
        return f"{self.base_url.rstrip('/')}{builtin_runbook(detail)}"

    def image_url(self, window_id: str | None, now_s: float) -> str | None:
        """A picture of the window's workers, readable without a token."""
        if self.pictures is None or window_id is None:
            return None
        return self.pictures.heatmap(self.job_id, window_id, now_s)


def builtin_runbook(detail: Detail) -> str:
    """Path of the runbook in the documentation that the pages come with."""
    cause = detail.on if detail.blame is None else detail.blame.cause
    return f"{RUNBOOK_PATH}#{quote(cause or '', safe='')}"


NoticeKind = Literal[
    "firing",
    "resolved",
    "acknowledged",
    "refresh",
    "test",
    "notifier-unhealthy",
    "fix-outcome",
    "service-down",
    "service-up",
    "heartbeat",
]
MAX_LISTED_ALERTS = 20  # alerts in one notice; of the others it says how many there are


@dataclass(frozen=True, slots=True)
class NoticeAlert:
    """One alert in a notice; moments are Unix seconds, `ends_at_s` None while it fires.

    Of a resolved alert, `detail` is how it is now and `was` how it was last notified as firing.
    `known_as` are the labels of its first notification, by which receivers identify it; empty
    before that. `assigned_to` and `note` are a person's name and the last note of a firing one.
    """

    fingerprint: str
    event_id: int
    status: Literal["firing", "resolved"]
    severity: Severity
    labels: Mapping[str, str]
    sentence: str
    starts_at_s: float
    ends_at_s: float | None
    detail: Detail
    threshold: float | None = None
    runbook_url: str | None = None
    was: Detail | None = None
    known_as: Mapping[str, str] = field(default_factory=dict)
    assigned_to: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """One message before it has a format. Pages are complete addresses, None without public_url.

    `sentence` is what an on-call engineer reads first: how slow, since which step, who or what;
    `sub` is the cost per hour, the confidence, the assignee and the last note. `about` are the
    fingerprints of its news, listed or not; other listed alerts were notified before. A firing
    notice that `is_partly_resolved` has only resolved alerts for news. `began_s` is when an outage
    of the service began that is over. All of the job is processed up to `as_of_s`, None where that
    is not known; the news waited for that since `held_since_s`, None where they did not.
    """

    notice_id: str
    kind: NoticeKind
    group_key: str
    project: str
    job: str | None
    job_name: str | None
    rule: str | None
    severity: Severity
    at_s: float
    sentence: str
    sub: str
    alerts: Sequence[NoticeAlert] = ()
    num_more: int = 0
    is_repeat: bool = False
    is_partly_resolved: bool = False
    page_url: str | None = None
    image_url: str | None = None
    runbook_url: str | None = None
    base_url: str | None = None
    group_labels: Mapping[str, str] = field(default_factory=dict)
    about: Sequence[str] = ()
    began_s: float | None = None
    as_of_s: float | None = None
    held_since_s: float | None = None

    @property
    def behind_s(self) -> float | None:
        """Seconds from `as_of_s` until the notice."""
        return None if self.as_of_s is None else max(0.0, self.at_s - self.as_of_s)
