"""Whether a receiver that somebody wants to add could be sent anything at all."""

import re

from app.alerts.endpoint import Endpoint
from app.alerts.guard.guard import Guard
from app.alerts.headers import is_allowed_header
from app.alerts.mailing import way
from app.alerts.signing import MAX_SECRETS, SIGNED, check_secret
from app.alerts.smtp import MailServer
from app.errors import InvalidRequest

MAX_HEADERS = 16
_KEY = re.compile(r"[\x21-\x7e]{16,512}")


def refuse_unusable(endpoint: Endpoint, guard: Guard, mail: MailServer | None = None) -> None:
    """Returns if messages can be sent there, as far as that can be told without sending one.

    E-mail goes by `mail`, everything else through `guard`.

    Raises:
        Blocked: its URL is one that messages must not be sent to.
        InvalidRequest: its address, secrets or headers are none.
    """
    if endpoint.format == "email":
        way(mail, endpoint)
    else:
        guard.check(endpoint.url)
    _check_secrets(endpoint)
    if len(endpoint.headers) > MAX_HEADERS:
        raise InvalidRequest(f"an endpoint has {MAX_HEADERS} headers at most")
    for name, value in endpoint.headers.items():
        if not is_allowed_header(name, value):
            raise InvalidRequest(
                f"header {name[:64]!r} cannot be set: Authorization and X-... can, in plain ASCII"
            )


def _check_secrets(endpoint: Endpoint) -> None:
    if endpoint.format in SIGNED:
        if len(endpoint.secrets) > MAX_SECRETS:
            raise InvalidRequest(f"an endpoint has {MAX_SECRETS} secrets at most, the newest first")
        if endpoint.format == "standard" and not endpoint.secrets:
            raise InvalidRequest("a standard webhook is signed: it needs a secret")
        for secret in endpoint.secrets:
            check_secret(secret)
    elif endpoint.format == "pagerduty" and not endpoint.secrets:
        raise InvalidRequest("PagerDuty needs the integration's routing key as its secret")
    elif not all(_KEY.fullmatch(secret) for secret in endpoint.secrets):
        raise InvalidRequest("a key is 16 to 512 printable ASCII characters without spaces")
