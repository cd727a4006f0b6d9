"""For receivers of alerts: is this message from Paceline, and is it of now?

Standard Webhooks 1.0 with the standard library alone. Hand in the body as it came, byte for byte:
parsed and written again, it would have another signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

TOLERANCE_S = 300.0
_PREFIX = "whsec_"


class NotGenuine(Exception):
    """The message is not signed with any of the secrets, or was signed at another time."""


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | Sequence[str],
    now_s: float | None = None,
    tolerance_s: float = TOLERANCE_S,
) -> Any:
    """What the message says, once it is known to be genuine.

    Its `webhook-id` is the same each time that it is sent: keep those seen, for at least as long as
    the tolerance, to act on each message once.

    Args:
        headers: of the request, by name in any case.
        body: of the request, as it came.
        secrets: whsec_..., or several of which one has to fit, while they are being changed.
        now_s: Unix time; None for this machine's.
        tolerance_s: seconds by which the two clocks may differ.

    Raises:
        NotGenuine: it is from somebody else, was changed, or is sent again by somebody.
        ValueError: a secret is none.
    """
    given = {name.lower(): value for name, value in headers.items()}
    message_id, signed_at = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    if not message_id or not signed_at:
        raise NotGenuine("the message is not signed")
    _check_moment(signed_at, time.time() if now_s is None else now_s, tolerance_s)
    signed = b".".join((message_id.encode(), signed_at.encode(), body))
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not _any_fits(keys, signed, given.get("webhook-signature", "")):
        raise NotGenuine("no signature fits")
    return json.loads(body)


def _check_moment(signed_at: str, now_s: float, tolerance_s: float) -> None:
    if not (signed_at.isascii() and signed_at.isdecimal() and len(signed_at) <= 12):
        raise NotGenuine("the message's time cannot be read")
    if abs(now_s - int(signed_at)) > tolerance_s:
        raise NotGenuine("the message was not signed just now")


def _any_fits(keys: Sequence[bytes], signed: bytes, header: str) -> bool:
    given = [text[3:].encode() for text in header.split(" ") if text.startswith("v1,")]
    found = False
    for key in keys:
        wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
        for signature in given:
            # In constant time, and all of them: how long it takes tells nothing.
            found |= hmac.compare_digest(wanted, signature)
    return found


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret[len(_PREFIX) :], validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not key:
        raise ValueError("a secret is whsec_ and base64")
    return key
