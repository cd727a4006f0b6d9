"""What the audit says of an endpoint: all that is no secret, and of secrets that they changed."""

from typing import Any

from app.alerts.endpoint import Endpoint
from app.api.changes import CHANGED, changed
from app.api.endpoint_out import address
from app.api.matchers import matchers_out

_SECRET = ("url", "secrets", "headers")


def endpoint_said(endpoint: Endpoint) -> dict[str, Any]:
    """An endpoint as it is; of its address the host, of its headers the names."""
    same = ("name", "format", "min_severity", "wants_resolved", "is_enabled")
    return {
        **{name: getattr(endpoint, name) for name in same},
        "address": address(endpoint.format, endpoint.url),
        "matchers": [each.model_dump(mode="json") for each in matchers_out(endpoint.matchers)],
        "header_names": sorted(endpoint.headers),
    }


def endpoint_changes(before: Endpoint, after: Endpoint) -> dict[str, Any]:
    """What is not as it was."""
    secret = {name: CHANGED for name in _SECRET if getattr(before, name) != getattr(after, name)}
    return changed(endpoint_said(before), endpoint_said(after)) | secret
