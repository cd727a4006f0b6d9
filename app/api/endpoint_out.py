"""Endpoints as the API says them: no secret, and of the address no more than its host."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import Field

from app.alerts.endpoint import OF_SETTINGS, Endpoint, Format
from app.alerts.rule import Severity
from app.api.fields import Answer, timestamp_or_none
from app.api.in_force import place
from app.api.matchers import MatcherOut, matchers_out
from app.api.principal import Principal
from app.store.deliveries import DeliveryCount
from app.store.endpoints import Health

EndpointState = Literal["ok", "failing", "resting", "disabled", "off"]
ENDPOINT_PATTERN = "^[0-9a-z_]{1,32}$"
EndpointId = Annotated[
    str,
    Path(pattern=ENDPOINT_PATTERN, description="Its id.", examples=["ep_5f0c3a9be81d4267"]),
]
COUNTED = ("due", "delivered", "failed", "outdated", "silenced")


class HealthOut(Answer):
    """How an endpoint takes what it is sent."""

    state: EndpointState = Field(
        description="`failing`: the last attempt failed; `resting`: so many did that it gets one "
        "message a minute; `disabled`: given up, see why; `off`: switched off by its people."
    )
    failures: int = Field(description="Attempts in a row that failed.")
    failing_since: datetime | None
    probe_at: datetime | None = Field(description="Before this, nothing is sent to it.")
    disabled_at: datetime | None
    disabled_reason: str | None
    last_ok_at: datetime | None
    last_detail: str | None = Field(
        description="What the last attempt met; of the operator's, told to nobody else."
    )


class CountsOut(Answer):
    """Its messages that are kept, by what became of them."""

    due: int
    delivered: int
    failed: int
    outdated: int = Field(description="Given up since later news replaced them.")
    silenced: int = Field(description="Given up since a silence began before they were sent.")


class EndpointOut(Answer):
    """One receiver of alerts; what else is in its address may be a secret, and is not told."""

    endpoint_id: str
    name: str
    format: Format
    address: str | None = Field(
        description="Scheme, host and port; null of the operator's, which nobody else is told.",
        examples=["https://hooks.internal"],
    )
    is_of_settings: bool = Field(
        description="Whether it is that of PACELINE_WEBHOOK_URL, which is every project's."
    )
    matchers: list[MatcherOut]
    min_severity: Severity
    wants_resolved: bool
    is_enabled: bool
    health: HealthOut
    deliveries: CountsOut


class OneEndpointOut(EndpointOut):
    """The same with what it is sent beside messages, by name."""

    header_names: list[str]
    has_secret: bool


class CreatedEndpointOut(OneEndpointOut):
    """The new endpoint; its signing secret is told this once."""

    secret: str | None = Field(description="whsec_...; null of formats that sign nothing.")


class RotatedOut(Answer):
    """The new signing secret, told this once; the one before it is good for a day."""

    secret: str
    old_is_good_until: datetime | None = Field(description="Null where there was none.")


def is_hidden(endpoint_id: str, caller: Principal) -> bool:
    """Whether the caller may not know where it is: the operator's, for anybody else."""
    return endpoint_id == OF_SETTINGS and not caller.is_operator


def shown(
    endpoint: Endpoint, health: Health | None, counts: Sequence[DeliveryCount], caller: Principal
) -> dict[str, Any]:
    """The fields of `EndpointOut`, as the caller may see them."""
    hidden = is_hidden(endpoint.endpoint_id, caller)
    known = health or Health()
    same = ("endpoint_id", "name", "format", "min_severity", "wants_resolved", "is_enabled")
    return {
        **{name: getattr(endpoint, name) for name in same},
        "address": None if hidden else address(endpoint.format, endpoint.url),
        "is_of_settings": endpoint.endpoint_id == OF_SETTINGS,
        "matchers": matchers_out(endpoint.matchers),
        "health": _health(endpoint, replace(known, last_detail=None) if hidden else known),
        "deliveries": _counts(counts),
    }


def named_secrets(endpoint: Endpoint) -> dict[str, Any]:
    """What `OneEndpointOut` has beyond that."""
    return {"header_names": sorted(endpoint.headers), "has_secret": bool(endpoint.secrets)}


def address(format_: Format, url: str) -> str:
    """As much of an endpoint's address as is no secret."""
    return url if format_ == "email" else place(url)


def _health(endpoint: Endpoint, known: Health) -> HealthOut:
    times: Mapping[str, float | None] = {
        "failing_since": known.failing_since_s,
        "probe_at": known.probe_at_s,
        "disabled_at": known.disabled_at_s,
        "last_ok_at": known.last_ok_s,
    }
    return HealthOut(
        state=_state(endpoint, known),
        failures=known.failures,
        disabled_reason=known.disabled_reason,
        last_detail=known.last_detail,
        **{name: timestamp_or_none(at_s) for name, at_s in times.items()},
    )


def _state(endpoint: Endpoint, health: Health) -> EndpointState:
    if health.disabled_at_s is not None:
        return "disabled"
    if not endpoint.is_enabled:
        return "off"
    if health.probe_at_s is not None:
        return "resting"
    return "failing" if health.failures else "ok"


def _counts(counts: Sequence[DeliveryCount]) -> CountsOut:
    numbers = dict.fromkeys(COUNTED, 0)
    for count in counts:
        numbers[count.state] += count.number
    return CountsOut(**numbers)
