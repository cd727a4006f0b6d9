"""Endpoints in requests: what may be asked of one, and what its format takes."""

import base64
import secrets
from dataclasses import replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from app.alerts.endpoint import Endpoint, Format
from app.alerts.guard.guard import Guard
from app.alerts.rule import Severity
from app.alerts.signing import PREFIX
from app.alerts.smtp import MailServer
from app.alerts.usable import refuse_unusable
from app.api.fields import PRINTABLE, Request
from app.api.in_force import place
from app.api.matchers import Matchers, matchers_of
from app.errors import InvalidRequest
from app.store.endpoint_rows import MAX_HEADERS, MAX_NAME, MAX_URL

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
# Who signs messages makes the secret, too: nobody chooses a weak one.
SIGNED: frozenset[Format] = frozenset({"standard", "alertmanager", "cloudevents"})
_WITH_PASSWORD: frozenset[Format] = frozenset({"pagerduty", "alertmanager-push"})
_SECRET_BYTES = 32

EXAMPLE: dict[str, Any] = {
    "name": "on-call of pretraining",
    "format": "standard",
    "url": "https://hooks.example.com/paceline",
    "matchers": [{"label": "job", "pattern": "llm-*"}],
    "min_severity": "warning",
}

Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL, pattern=PRINTABLE)]
HeaderName = Annotated[str, StringConstraints(pattern="^[A-Za-z][A-Za-z0-9-]{0,63}$")]
# No space at either end: HTTP knows of none there, and what sends would refuse it each time.
HeaderValue = Annotated[
    str, StringConstraints(max_length=1000, pattern=r"^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?$")
]
Headers = Annotated[
    dict[HeaderName, HeaderValue],
    Field(
        max_length=MAX_HEADERS,
        description="The receiver's own: Authorization and X-... ones; told to nobody again.",
    ),
]
Secret = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]*$")]


class EndpointIn(Request):
    """A new receiver of the project's alerts."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    name: Name = Field(examples=["on-call of pretraining"])
    format: Format = "standard"
    url: Url | None = Field(
        None,
        description="https://..., of the public Internet unless the operator allows more; for "
        "email mailto:NAME@HOST; for pagerduty it may be left out.",
        examples=["https://hooks.example.com/paceline"],
    )
    secret: Secret | None = Field(
        None,
        description="PagerDuty's routing key, or a bearer token for alertmanager-push. Signing "
        "secrets are made here and told once.",
    )
    headers: Headers = Field({})
    matchers: Matchers = Field([], description="Alerts that match all; none: every alert.")
    min_severity: Severity = "info"
    wants_resolved: bool = True
    is_enabled: bool = True

    def endpoint(self, project: str, guard: Guard, mail: MailServer | None) -> Endpoint:
        """The endpoint that the store is to keep, with a secret of its own if its format signs.

        Raises:
            InvalidRequest: no message could be sent to it.
        """
        url = self.url or (PAGERDUTY_URL if self.format == "pagerduty" else None)
        if url is None:
            raise InvalidRequest("url: want an address to send to")
        if self.secret is not None:
            _check_has_password(self.format)
        made = [new_secret()] if self.format in SIGNED else []
        given = [self.secret] if self.secret is not None else []
        return _usable(
            Endpoint(
                endpoint_id=f"ep_{secrets.token_hex(8)}",
                project=project,
                name=self.name,
                format=self.format,
                url=url,
                secrets=made or given,
                headers=self.headers,
                matchers=matchers_of(self.matchers),
                min_severity=self.min_severity,
                wants_resolved=self.wants_resolved,
                is_enabled=self.is_enabled,
            ),
            guard,
            mail,
        )


class EndpointChange(Request):
    """What is to be different of an endpoint; what is left out stays."""

    name: Name | None = None
    url: Url | None = None
    secret: Secret | None = Field(
        None, description="Of pagerduty and alertmanager-push; signing secrets are rotated."
    )
    headers: Headers | None = Field(None, description="All of them anew.")
    matchers: Matchers | None = Field(None, description="All of them anew.")
    min_severity: Severity | None = None
    wants_resolved: bool | None = None
    is_enabled: bool | None = None

    def applied(self, known: Endpoint, guard: Guard, mail: MailServer | None) -> Endpoint:
        """The endpoint with these changes; raises as `EndpointIn.endpoint` does."""
        same = ("name", "url", "headers", "min_severity", "wants_resolved", "is_enabled")
        said = {name: getattr(self, name) for name in same if getattr(self, name) is not None}
        if self.matchers is not None:
            said["matchers"] = matchers_of(self.matchers)
        if self.secret is not None:
            _check_has_password(known.format)
            said["secrets"] = [self.secret]
        self._check_elsewhere(known)
        return _usable(replace(known, **said), guard, mail)

    def _check_elsewhere(self, known: Endpoint) -> None:
        # Nobody may have what another has stored sent to a place of their own.
        if self.url is None or place(self.url) == place(known.url):
            return
        if known.headers and self.headers is None:
            raise InvalidRequest("url: of another host; give the headers for it, too")
        if known.secrets and known.format in _WITH_PASSWORD and self.secret is None:
            raise InvalidRequest("url: of another host; give the secret for it, too")


def new_secret() -> str:
    """A signing secret that nobody can guess."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def _check_has_password(format_: Format) -> None:
    if format_ in SIGNED:
        raise InvalidRequest("secret: this format signs, with a secret that is made here")
    if format_ not in _WITH_PASSWORD:
        raise InvalidRequest(f"secret: format {format_} has none")


def _usable(endpoint: Endpoint, guard: Guard, mail: MailServer | None) -> Endpoint:
    refuse_unusable(endpoint, guard, mail)
    return endpoint
