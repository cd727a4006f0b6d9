"""Verifies that a webhook message is from Paceline, and recent.

Standard Webhooks 1.0 with the standard library alone. Pass the raw body: parsed and serialised
again, it would have another signature.
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
    """The message is not signed with any of the secrets, or the signature is too old."""


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | Sequence[str],
    now_s: float | None = None,
    tolerance_s: float = TOLERANCE_S,
) -> Any:
    """Verify a message; returns its parsed content.

    Retries have the same `webhook-id`: remember ids for at least the tolerance, to act on each
    message once.

    Args:
        headers: of the request, by name in any case.
        body: raw body of the request.
        secrets: whsec_..., or several during a rotation, one of which must match.
        now_s: Unix time; None for this machine's.
        tolerance_s: largest age of the signature, and clock difference, in seconds.

    Raises:
        NotGenuine: the message is forged, changed, or replayed.
        ValueError: a secret is malformed.
    """
    given = {name.lower(): value for name, value in headers.items()}
    message_id, signed_at = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    if not message_id or not signed_at:
        raise NotGenuine("the message is not signed")
    _check_moment(signed_at, time.time() if now_s is None else now_s, tolerance_s)
    signed = b".".join((message_id.encode(), signed_at.encode(), body))
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not _any_matches(keys, signed, given.get("webhook-signature", "")):
        raise NotGenuine("no signature matches")
    return json.loads(body)


def _check_moment(signed_at: str, now_s: float, tolerance_s: float) -> None:
    if not (signed_at.isascii() and signed_at.isdecimal() and len(signed_at) <= 12):
        raise NotGenuine("the message's time cannot be read")
    if abs(now_s - int(signed_at)) > tolerance_s:
        raise NotGenuine("the signature is too old or from the future")


def _any_matches(keys: Sequence[bytes], signed: bytes, header: str) -> bool:
    given = [text[3:].encode() for text in header.split(" ") if text.startswith("v1,")]
    found = False
    for key in keys:
        wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
        for signature in given:
            # Constant time, over all signatures, to leak nothing through timing.
            found |= hmac.compare_digest(wanted, signature)
    return found


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret[len(_PREFIX) :], validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not key:
        raise ValueError("a secret is whsec_ followed by base64")
    return key
