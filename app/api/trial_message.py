"""What a receiver is told to see whether it hears us."""

import secrets

from app.alerts.endpoint import Endpoint
from app.alerts.notice import Notice


def trial(
    endpoint: Endpoint, project: str, *, by: str, base_url: str | None, at_s: float
) -> Notice:
    """A notice of no alert; `by` is who wanted it."""
    return Notice(
        notice_id=f"test-{secrets.token_hex(12)}",
        kind="test",
        group_key=f"test/{endpoint.endpoint_id}",
        project=project,
        job=None,
        job_name=None,
        rule=None,
        severity="info",
        at_s=at_s,
        sentence=f"This is a test of the endpoint {endpoint.name}: nothing is wrong.",
        sub=f"Asked for by {by}, for the project {project}.",
        page_url=base_url and f"{base_url.rstrip('/')}/alerts",
        base_url=base_url,
    )
