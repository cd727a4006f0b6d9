"""The headers of one attempt: ours, and the few that a receiver may ask for."""

import re

from app.alerts.endpoint import Endpoint
from app.alerts.message import Message
from app.alerts.signing import SIGNED, signed_headers

USER_AGENT = "Paceline"
# What receivers may ask for beside our own headers. Nothing else may be set: not what HTTP itself
# lives by (Host, Content-Length, Transfer-Encoding), no cookies, not whom it is forwarded for.
_RECEIVERS_OWN = re.compile(r"authorization|x-(?!forwarded|real-ip)[a-z0-9-]{1,60}")
# With a space at either end the HTTP library takes none, each time that something is sent.
_VALUE = re.compile(r"(?! )[\x20-\x7e]{0,1000}(?<! )")


def headers_of(
    endpoint: Endpoint, message: Message, delivery_id: str, now_s: float
) -> dict[str, str]:
    """All headers of one attempt; ours go before the receiver's own, its own before none."""
    own = {name.lower(): value for name, value in endpoint.headers.items()}
    headers = {name: value for name, value in own.items() if is_allowed_header(name, value)}
    if endpoint.format == "alertmanager-push" and endpoint.secrets:
        headers["authorization"] = f"Bearer {endpoint.secrets[0]}"
    headers |= {**message.headers, "content-type": message.content_type, "user-agent": USER_AGENT}
    if endpoint.format in SIGNED and endpoint.secrets:
        headers |= signed_headers(endpoint.secrets_at(now_s), delivery_id, message.body, now_s)
    else:
        headers["webhook-id"] = delivery_id
    return headers


def is_allowed_header(name: str, value: str) -> bool:
    """Whether an endpoint may ask for this header."""
    return bool(_RECEIVERS_OWN.fullmatch(name.lower())) and bool(_VALUE.fullmatch(value))
