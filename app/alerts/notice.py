"""What receivers are told at once: the alerts of one rule on one job, as they stand now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.alerts.alert import Detail
from app.alerts.rule import Severity

NoticeKind = Literal["firing", "resolved", "acknowledged", "refresh", "test", "notifier-unhealthy"]
MAX_TOLD = 20  # alerts in one notice; of the others it says how many there are


@dataclass(frozen=True, slots=True)
class Told:
    """One alert in a notice; moments are Unix seconds, `ends_at_s` None while it fires.

    Of one that is over, `detail` is how it is now and `was` what was last told while it fired.
    Receivers to whom other labels are another alert know it by `known_as`, the labels with which
    they were first told of it; empty before that.
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


@dataclass(frozen=True, slots=True)
class Notice:
    """One message before it has a format. Pages are complete addresses, None without public_url.

    `group_key` is the same for all notices of one rule on one job. `sentence` is the first thing
    that an on-call engineer reads: how slow, since which step, who or what; `sub` what it costs
    per hour and how sure that is. `about` are the fingerprints of all that it is there for, listed
    or not; what else it lists was told before. One of kind firing that `is_partly_resolved` has
    only ends for news, while others of the group fire on.
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
    alerts: Sequence[Told] = ()
    num_more: int = 0
    is_repeat: bool = False
    is_partly_resolved: bool = False
    page_url: str | None = None
    image_url: str | None = None
    runbook_url: str | None = None
    base_url: str | None = None
    group_labels: Mapping[str, str] = field(default_factory=dict)
    about: Sequence[str] = ()
