"""Headers by which a receiver knows that a message is ours: Standard Webhooks 1.0, symmetric."""

import base64
import binascii
from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks.webhooks import Webhook

from app.alerts.endpoint import Format
from app.errors import InvalidRequest

# Whose messages are signed; the others' receivers would not look.
SIGNED: frozenset[Format] = frozenset({"standard", "alertmanager", "cloudevents"})
PREFIX = "whsec_"
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
MAX_SECRETS = 2  # the new one, and the one that receivers still have


def signed_headers(
    secrets: Sequence[str], delivery_id: str, body: str, now_s: float
) -> dict[str, str]:
    """The three headers of one attempt: one signature for each secret, the newest first."""
    signed_at = datetime.fromtimestamp(int(now_s), UTC)
    signatures = [Webhook(secret).sign(delivery_id, signed_at, body) for secret in secrets]
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(now_s)),
        "webhook-signature": " ".join(signatures),
    }


def check_secret(secret: str) -> None:
    """Returns if messages can be signed with it.

    Raises:
        InvalidRequest: it is none, or too short to keep anything secret.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise InvalidRequest(
            f"a signing secret is {PREFIX} and {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes "
            "in base64"
        )
