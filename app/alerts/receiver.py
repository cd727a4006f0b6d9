"""A receiver of alerts: format, address, secrets, and which alerts it gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
