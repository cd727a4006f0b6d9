"""Where alerts are sent: which kind of receiver, its address, its secrets, and what it wants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from app.alerts.matchers import Matcher
from app.alerts.rule import Severity

Format = Literal[
    "standard",
    "alertmanager",
    "alertmanager-push",
    "pagerduty",
    "slack",
    "cloudevents",
    "email",
]
FORMATS: tuple[Format, ...] = get_args(Format)
# Receivers that keep one incident for all alerts of a rule on a job: whatever is said last holds.
KEEP_ONE_INCIDENT: frozenset[Format] = frozenset({"pagerduty"})
# The one of the environment variables: it is every project's, and nobody changes it by the API.
OF_SETTINGS = "settings"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One receiver; `url` is mailto:NAME@HOST for e-mail, and for PagerDuty its events address.

    `secrets` sign what is sent, the newest first; for PagerDuty the first is the routing key, for
    pushes to an Alertmanager a bearer token. After a rotation the older one signs, too, until
    `old_secret_until_s` (Unix). `headers` are the receiver's own. It wants alerts of
    `min_severity` and more that match all `matchers`, and their resolution if `wants_resolved`.
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

    def secrets_at(self, now_s: float) -> Sequence[str]:
        """Its secrets that are good at this moment, the newest first."""
        is_over = self.old_secret_until_s is not None and now_s >= self.old_secret_until_s
        return self.secrets[:1] if is_over else self.secrets
