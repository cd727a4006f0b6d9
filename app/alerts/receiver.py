"""A receiver of alerts: format, address, secrets, which alerts it gets, and when it is tried again.

Retries are soon at first, since an alert is worthless after hours. After five failures in a row
a receiver gets one message a minute as a probe; after a day of failures it is disabled.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, get_args
from urllib.parse import urlsplit

from app.alerts.labels import Matcher
from app.alerts.rule import Severity

Format = Literal[
    "standard",
    "alertmanager",
    "alertmanager-push",
    "pagerduty",
    "slack",
    "cloudevents",
    "email",
    "healthchecks",
]
FORMAT_NAMES: tuple[Format, ...] = get_args(Format)
# Receivers that keep one incident for all alerts of a rule on a job: the last message counts.
FORMATS_WITH_ONE_INCIDENT: frozenset[Format] = frozenset({"pagerduty"})
# Receivers of these formats can be a dead-man's switch; the last one can be nothing else.
HEARTBEAT_FORMATS: frozenset[Format] = frozenset(
    {"standard", "cloudevents", "alertmanager", "alertmanager-push", "healthchecks"}
)
# The receiver of the environment variables: it serves every project, and the API cannot change it.
SETTINGS_RECEIVER_ID = "settings"


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver; `url` is mailto:NAME@HOST for e-mail, and for PagerDuty its events address.

    `secrets` sign what is sent, the newest first; for PagerDuty the first is the routing key, for
    pushes to an Alertmanager a bearer token. After a rotation the older one signs, too, until
    `old_secret_until_s` (Unix). It gets alerts of `min_severity` and more that
    match all `matchers`, and their resolution if `wants_resolved`. `locked` says why its stored
    secrets cannot be read; then `url` is only its public address, and nothing can be sent. With
    `heartbeat_every_s` it is a dead-man's switch: it gets heartbeats while the service works, and
    no alerts.
    """

    endpoint_id: str
    project: str | None  # None: of every project
    name: str
    format: Format
    url: str
    secrets: Sequence[str] = field(default=(), repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    matchers: Sequence[Matcher] = ()
    min_severity: Severity = "info"
    wants_resolved: bool = True
    is_enabled: bool = True
    old_secret_until_s: float | None = None
    locked: str | None = None
    heartbeat_every_s: float | None = None

    def secrets_at(self, now_s: float) -> Sequence[str]:
        """The secrets valid at this moment, the newest first."""
        is_over = self.old_secret_until_s is not None and now_s >= self.old_secret_until_s
        return self.secrets[:1] if is_over else self.secrets


def public_address(format_: Format, url: str) -> str:
    """The part of a receiver's address that is no secret: of a URL scheme, host and port."""
    return url if format_ == "email" else url_origin(url)


def url_origin(url: str) -> str:
    """Scheme, host and port of a receiver's URL: no secret is in them."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


# Before the first attempt, the second and so on: ten attempts in about 22 hours.
RETRY_DELAYS_S = (0.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10800.0, 21600.0, 43200.0)
JITTER = 0.2
# For a receiver that is overloaded, or whose gateway timed out.
OVERLOADED_DELAY_S = 30.0
_MAX_RETRY_AFTER_S = 3600.0
# No next attempt is further ahead.
LONGEST_DELAY_S = max(RETRY_DELAYS_S) * (1 + JITTER)


def next_delay_s(
    attempt: int,
    rng: random.Random,
    *,
    retry_after_s: float | None = None,
    is_overloaded: bool = False,
) -> float | None:
    """Seconds from failed attempt number `attempt` (from 1) to the next; None after the last.

    The receiver's Retry-After counts between one and two times the usual delay, up to an hour.
    """
    if attempt >= len(RETRY_DELAYS_S):
        return None
    usual_s = RETRY_DELAYS_S[attempt]
    delay_s = usual_s * rng.uniform(1 - JITTER, 1 + JITTER)
    if retry_after_s is not None:
        most_s = max(usual_s, min(2 * usual_s, _MAX_RETRY_AFTER_S))
        delay_s = min(max(retry_after_s, usual_s), most_s)
    return max(delay_s, OVERLOADED_DELAY_S) if is_overloaded else delay_s


def parse_retry_after(value: str | None, *, now_s: float) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date; None if neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:12]), _MAX_RETRY_AFTER_S)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(now_s, UTC)).total_seconds())


# After so many failures in a row, one message a minute is sent as a probe.
FAILURES_TO_OPEN = 5
PROBE_EVERY_S = 60.0
# A receiver that fails for this long is disabled.
DISABLE_AFTER_S = 24 * 3600.0
GONE_STATUS = 410  # the receiver asks for no more messages


def next_probe_s(failures: int, now_s: float) -> float | None:
    """When to try the receiver again after so many failures in a row; None: at any time."""
    return now_s + PROBE_EVERY_S if failures >= FAILURES_TO_OPEN else None


def reason_to_disable(
    *, status: int | None, failures: int, failing_since_s: float | None, now_s: float
) -> str | None:
    """Why to disable the receiver that has just failed with this status; None: keep it.

    `failures` are in a row.
    """
    if status == GONE_STATUS:
        return "it answered 410 Gone"
    is_often = failures >= FAILURES_TO_OPEN
    if is_often and failing_since_s is not None and now_s - failing_since_s >= DISABLE_AFTER_S:
        return "every delivery has failed for 24 hours"
    return None
