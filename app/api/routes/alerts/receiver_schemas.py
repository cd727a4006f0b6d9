"""Schemas and audit entries of receivers: no secrets, and only the host of a URL."""

import base64
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Path
from pydantic import AliasChoices, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict

from app.alerts.guard import SsrfGuard
from app.alerts.receiver import SETTINGS_RECEIVER_ID, Format, Receiver, public_address, url_origin
from app.alerts.rule import Severity
from app.alerts.sending import KEY_PREFIX, MAX_HEADERS, SIGNED_FORMATS, refuse_unusable_receiver
from app.alerts.smtp import MailServer
from app.api.http import fields
from app.api.http.principal import Principal
from app.api.routes.audit import CHANGED_VALUE, changed_fields
from app.errors import InvalidRequest, SecretsLocked
from app.store.alerting.alerts import MAX_URL
from app.store.alerting.deliveries import DeliveryCount
from app.store.alerting.receivers import MAX_NAME, ReceiverHealth

ReceiverState = Literal[
    "ok", "untried", "unreachable", "failing", "resting", "disabled", "off", "locked"
]
RECEIVER_PATTERN = "^[0-9a-z_]{1,32}$"
ReceiverId = Annotated[
    str,
    Path(
        pattern=RECEIVER_PATTERN, description="The receiver's id.", examples=["ep_5f0c3a9be81d4267"]
    ),
]
_SHOWN_FIELDS = (
    "name",
    "format",
    "min_severity",
    "wants_resolved",
    "is_enabled",
    "heartbeat_every_s",
)


class ReceiverHealthOut(fields.ResponseModel):
    """Health of a receiver, from its deliveries."""

    state: ReceiverState = Field(
        description="`ok`: the last attempt succeeded; `untried`: nothing was delivered so far; "
        "`unreachable`: the same, and there was no connection when it was saved, see "
        "`last_detail`; `failing`: the last attempt failed; `resting`: after many failures, one "
        "attempt per minute; `disabled`: given up, see `disabled_reason`; `off`: `is_enabled` is "
        "false; `locked`: its encrypted address and secrets cannot be read, see `last_detail`."
    )
    failures: int = Field(description="Number of successive failed attempts.")
    failing_since: fields.UnixTime | None = Field(validation_alias="failing_since_s")
    probe_at: fields.UnixTime | None = Field(
        validation_alias="probe_at_s",
        description="Earliest time of the next attempt, after repeated failures; otherwise null.",
    )
    disabled_at: fields.UnixTime | None = Field(validation_alias="disabled_at_s")
    disabled_reason: str | None
    last_ok_at: fields.UnixTime | None = Field(validation_alias="last_ok_s")
    last_detail: str | None = Field(
        description="Result of the last attempt, or of connecting when it was saved, or why its "
        "secrets cannot be read; for the operator's receiver, only shown to the operator."
    )


class DeliveryCountsOut(fields.ResponseModel):
    """Stored messages of the receiver, by state."""

    due: int
    delivered: int
    failed: int
    outdated: int = Field(description="Messages dropped because later messages replaced them.")
    silenced: int = Field(
        description="Messages dropped because a silence began before they were sent."
    )


class ReceiverOut(fields.ResponseModel):
    """One receiver; secret parts of its address are left out."""

    receiver_id: str = Field(validation_alias="endpoint_id")
    name: str
    format: Format
    address: str | None = Field(
        description="Scheme, host and port; for the operator's receiver, null unless the "
        "operator asks.",
        examples=["https://hooks.internal"],
    )
    is_of_settings: bool = Field(
        description="Whether this is the operator's receiver (PACELINE_WEBHOOK_URL), which "
        "all projects share."
    )
    matchers: list[fields.MatcherOut]
    min_severity: Severity
    wants_resolved: bool
    is_enabled: bool
    heartbeat_every_s: float | None = Field(
        description="Of a dead-man's switch: seconds between its heartbeats; it gets no alerts. "
        "null: a receiver of alerts."
    )
    health: ReceiverHealthOut
    deliveries: DeliveryCountsOut

    @classmethod
    def of(
        cls,
        receiver: Receiver,
        health: ReceiverHealth | None,
        counts: Sequence[DeliveryCount],
        caller: Principal,
    ) -> "ReceiverOut":
        """From the stored receiver, as the caller may see it; `counts` are of all receivers."""
        is_hidden = is_address_hidden(receiver.endpoint_id, caller)
        known = health or ReceiverHealth()
        detail = None if is_hidden else known.last_detail
        own = [count for count in counts if count.endpoint_id == receiver.endpoint_id]
        numbers = dict.fromkeys(DeliveryCountsOut.model_fields, 0)
        numbers |= {count.state: count.number for count in own}
        return cls.of_record(
            receiver,
            address=None if is_hidden else public_address(receiver.format, receiver.url),
            is_of_settings=receiver.endpoint_id == SETTINGS_RECEIVER_ID,
            matchers=fields.matchers_out(receiver.matchers),
            health=ReceiverHealthOut.of_record(
                known, state=receiver_state(receiver, known), last_detail=receiver.locked or detail
            ),
            deliveries=DeliveryCountsOut(**numbers),
        )


class ReceiverDetailOut(ReceiverOut):
    """The receiver with the names of its extra headers."""

    header_names: list[str]
    has_secret: bool


class CreatedReceiverOut(ReceiverDetailOut):
    """The new receiver; its signing secret is shown only once."""

    secret: str | None = Field(
        description="Signing secret (whsec_...); null for formats without signatures."
    )


class ReceiverTestOut(fields.ResponseModel):
    """What a receiver that is not saved has answered to a test."""

    delivered: bool = Field(validation_alias="is_success")
    status: int | None = Field(description="HTTP or SMTP status; null without an answer.")
    detail: str = Field(description="The answer, or why there was none, in words.")
    took_s: float


class RotatedSecretOut(fields.ResponseModel):
    """The new signing secret, shown only once; the previous one stays valid for a day."""

    secret: str
    old_is_good_until: datetime | None = Field(
        description="When the old secret stops being valid; null without one."
    )


def is_address_hidden(endpoint_id: str, caller: Principal) -> bool:
    """Whether the address is hidden: that of the settings, from all but the operator."""
    return endpoint_id == SETTINGS_RECEIVER_ID and not caller.is_operator


def receiver_state(receiver: Receiver, health: ReceiverHealth) -> ReceiverState:
    """The state of a receiver in a word."""
    if receiver.locked is not None:
        return "locked"
    if health.disabled_at_s is not None:
        return "disabled"
    if not receiver.is_enabled:
        return "off"
    if health.probe_at_s is not None:
        return "resting"
    if health.failures:
        return "failing"
    if health.last_ok_s is not None:
        return "ok"
    return "unreachable" if health.last_detail is not None else "untried"


_SECRET_FIELDS = ("url", "secrets", "headers")


def receiver_audit(receiver: Receiver) -> JsonDict:
    """A receiver for the audit: only the host of its address and the names of its headers."""
    return {
        **{name: getattr(receiver, name) for name in _SHOWN_FIELDS},
        "address": public_address(receiver.format, receiver.url),
        "matchers": [
            matcher.model_dump(mode="json") for matcher in fields.matchers_out(receiver.matchers)
        ],
        "header_names": sorted(receiver.headers),
    }


def receiver_changes(before: Receiver, after: Receiver) -> JsonDict:
    """Changed fields of a receiver, for the audit."""
    secret = {
        name: CHANGED_VALUE
        for name in _SECRET_FIELDS
        if getattr(before, name) != getattr(after, name)
    }
    return changed_fields(receiver_audit(before), receiver_audit(after)) | secret


PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
_SECRET_FORMATS: frozenset[Format] = frozenset({"pagerduty", "alertmanager-push"})
_SECRET_BYTES = 32

RECEIVER_EXAMPLE: JsonDict = {
    "name": "on-call of pretraining",
    "format": "standard",
    "url": "https://hooks.example.com/paceline",
    "matchers": [{"label": "job", "pattern": "llm-*"}],
    "min_severity": "warning",
}

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=fields.PRINTABLE)
]
Url = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL, pattern=fields.PRINTABLE)]
HeaderName = Annotated[str, StringConstraints(pattern="^[A-Za-z][A-Za-z0-9-]{0,63}$")]
# No space at either end: HTTP does not allow it, so that every delivery would fail.
HeaderValue = Annotated[
    str, StringConstraints(max_length=1000, pattern=r"^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?$")
]
Headers = Annotated[
    dict[HeaderName, HeaderValue],
    Field(
        max_length=MAX_HEADERS,
        description="Extra HTTP headers; allowed are Authorization and X-... headers. Their "
        "values are never shown.",
    ),
]
HeartbeatInterval = Annotated[float, Field(ge=10, le=86_400, allow_inf_nan=False)]
Secret = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]*$")]


# The second name is PagerDuty's.
_SECRET_NAMES = AliasChoices("secret", "routing_key")


class ReceiverIn(fields.RequestModel):
    """A new receiver of the project's alerts."""

    model_config = ConfigDict(json_schema_extra={"examples": [RECEIVER_EXAMPLE]})

    name: Name = Field(examples=["on-call of pretraining"])
    format: Format = "standard"
    url: Url | None = Field(
        None,
        description="https:// address on the public Internet, unless the operator allows others. "
        "For format `email`: mailto:NAME@HOST. Optional for format `pagerduty`.",
        examples=["https://hooks.example.com/paceline"],
    )
    secret: Secret | None = Field(
        None,
        validation_alias=_SECRET_NAMES,
        description="PagerDuty's routing key (also taken as `routing_key`), or a bearer token for "
        "`alertmanager-push`. Not for other formats: their signing secrets are generated and shown "
        "once.",
    )
    headers: Headers = Field({})
    matchers: fields.Matchers = Field(
        [], description="The receiver gets alerts that match all of these; empty: every alert."
    )
    min_severity: Severity = "info"
    wants_resolved: bool = True
    is_enabled: bool = True
    heartbeat_every_s: HeartbeatInterval | None = Field(
        None,
        description="Make it a dead-man's switch: it gets a heartbeat every so many seconds while "
        "the service works, and no alerts. Required for format `healthchecks`; not for formats "
        "for people.",
    )

    def receiver(self, project: str, guard: SsrfGuard, mail: MailServer | None) -> Receiver:
        """The receiver for the store, with a signing secret if its format signs.

        Raises:
            InvalidRequest: no message can be sent to it.
        """
        url = self.url or (PAGERDUTY_URL if self.format == "pagerduty" else None)
        if url is None:
            raise InvalidRequest("url: want an address to send to")
        if self.secret is not None:
            _check_takes_secret(self.format)
        # Secrets that sign are always generated, so none is weak.
        made = [new_secret()] if self.format in SIGNED_FORMATS else []
        given = [self.secret] if self.secret is not None else []
        receiver = Receiver(
            endpoint_id=f"ep_{secrets.token_hex(8)}",
            project=project,
            url=url,
            secrets=made or given,
            headers=self.headers,
            matchers=fields.matchers_of(self.matchers),
            **{name: getattr(self, name) for name in _SHOWN_FIELDS},
        )
        refuse_unusable_receiver(receiver, guard, mail)
        return receiver


class ReceiverChange(fields.RequestModel):
    """Changes of a receiver; omitted fields stay unchanged."""

    name: Name | None = None
    url: Url | None = None
    secret: Secret | None = Field(
        None,
        validation_alias=_SECRET_NAMES,
        description="New secret, for formats `pagerduty` and `alertmanager-push`. Signing "
        "secrets are changed with `rotate`.",
    )
    headers: Headers | None = Field(None, description="Replaces all headers.")
    matchers: fields.Matchers | None = Field(None, description="Replaces all matchers.")
    min_severity: Severity | None = None
    wants_resolved: bool | None = None
    is_enabled: bool | None = None
    heartbeat_every_s: HeartbeatInterval | None = Field(
        None, description="New interval; only of a receiver that gets heartbeats."
    )

    def applied(self, known: Receiver, guard: SsrfGuard, mail: MailServer | None) -> Receiver:
        """The receiver with these changes; raises as `ReceiverIn.receiver` does.

        Raises:
            SecretsLocked: its stored secrets cannot be read, so they cannot be kept.
        """
        if known.locked is not None:
            raise SecretsLocked(f"{known.locked}; or delete the receiver and create it anew")
        same = ("name", "url", "headers", "min_severity", "wants_resolved", "is_enabled")
        changes = {name: getattr(self, name) for name in same if getattr(self, name) is not None}
        if self.matchers is not None:
            changes["matchers"] = fields.matchers_of(self.matchers)
        if self.secret is not None:
            _check_takes_secret(known.format)
            changes["secrets"] = [self.secret]
        if self.heartbeat_every_s is not None:
            if known.heartbeat_every_s is None:
                raise InvalidRequest(
                    "heartbeat_every_s: this receiver gets alerts; create another for heartbeats"
                )
            changes["heartbeat_every_s"] = self.heartbeat_every_s
        self._check_elsewhere(known)
        receiver = replace(known, **changes)
        refuse_unusable_receiver(receiver, guard, mail)
        return receiver

    def _check_elsewhere(self, known: Receiver) -> None:
        # Stored secrets and headers must not be sent to a new address.
        if self.url is None or url_origin(self.url) == url_origin(known.url):
            return
        if known.headers and self.headers is None:
            raise InvalidRequest("url: of another host; give the headers for it, too")
        if known.secrets and known.format in _SECRET_FORMATS and self.secret is None:
            raise InvalidRequest("url: of another host; give the secret for it, too")


def new_secret() -> str:
    """A random signing secret."""
    return KEY_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def _check_takes_secret(format_: Format) -> None:
    if format_ in SIGNED_FORMATS:
        raise InvalidRequest("secret: this format signs, with a secret that is made here")
    if format_ not in _SECRET_FORMATS:
        raise InvalidRequest(f"secret: format {format_} has none")
