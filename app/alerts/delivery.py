"""Sign a message and POST it: the only outgoing HTTP."""

import base64
import binascii
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import httpx
from standardwebhooks.webhooks import Webhook

from app.alerts.retry import next_delay_s, parse_retry_after
from app.errors import StartUpFailed

Client = httpx.Client

_MIN_SECRET_BYTES = 24
_MAX_KEPT_BYTES = 256
_GONE = 410  # the receiver wants no more
_TIMED_OUT = 504
_OVERLOADED = {429, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where messages go; `secret` is the `whsec_...` that the receiver checks signatures with.

    Raises:
        StartUpFailed: the URL or the secret cannot be used.
    """

    url: str
    secret: str

    def __post_init__(self) -> None:
        _check_url(self.url)
        _check_secret(self.secret)

    def __repr__(self) -> str:
        # A secret in a log is none.
        return f"Endpoint({self.url!r})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt went; only for "retry" is there a `next_at_s`. `detail` is for people."""

    result: Literal["delivered", "retry", "given up"]
    detail: str
    next_at_s: float | None = None


def make_client(*, timeout_s: float = 10.0, connect_timeout_s: float = 3.0) -> Client:
    """A client that goes where it is sent and nowhere else: no redirects, no proxy of the machine.

    Close it when done.
    """
    return httpx.Client(
        timeout=httpx.Timeout(timeout_s, connect=min(connect_timeout_s, timeout_s)),
        follow_redirects=False,
        trust_env=False,
        headers={"user-agent": "Paceline"},
    )


def deliver(
    client: Client,
    endpoint: Endpoint,
    *,
    delivery_id: str,
    payload: str,
    attempt: int,
    now_s: float,
    rng: random.Random,
) -> Outcome:
    """Make attempt number `attempt` (from 1); `delivery_id` is the same in all of them."""
    headers = _headers(endpoint.secret, delivery_id, payload, now_s)
    answer = _post(client, endpoint.url, payload, headers)
    if answer.is_success:
        return Outcome("delivered", answer.detail)
    delay_s = next_delay_s(
        attempt,
        rng,
        retry_after_s=parse_retry_after(answer.retry_after, now_s=now_s),
        is_overloaded=answer.status in _OVERLOADED,
    )
    if answer.status == _GONE or delay_s is None:
        return Outcome("given up", answer.detail)
    return Outcome("retry", answer.detail, now_s + delay_s)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came back; `status` is None where nothing did."""

    detail: str
    status: int | None = None
    retry_after: str | None = None

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def _headers(secret: str, delivery_id: str, payload: str, now_s: float) -> dict[str, str]:
    signed_at = datetime.fromtimestamp(int(now_s), UTC)
    return {
        "content-type": "application/json",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(now_s)),
        "webhook-signature": Webhook(secret).sign(delivery_id, signed_at, payload),
    }


def _post(client: Client, url: str, payload: str, headers: dict[str, str]) -> _Answer:
    try:
        with client.stream("POST", url, content=payload.encode(), headers=headers) as answer:
            detail = f"HTTP {answer.status_code}"
            if not answer.is_success:
                detail = f"{detail} {_beginning(answer)}".rstrip()
            return _Answer(detail, answer.status_code, answer.headers.get("retry-after"))
    except httpx.TimeoutException:
        return _Answer("no answer in time", status=_TIMED_OUT)
    except httpx.HTTPError as error:
        return _Answer(f"not reached: {type(error).__name__}")


def _beginning(answer: httpx.Response) -> str:
    """The first printable characters of a body; the rest is never read."""
    try:
        first = next(answer.iter_raw(), b"")[:_MAX_KEPT_BYTES]
    except httpx.HTTPError:
        return ""  # the status says enough
    return "".join(chr(byte) if 32 <= byte < 127 else " " for byte in first)


def _check_url(text: str) -> None:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise StartUpFailed(f"the webhook's URL cannot be read: {error}") from None
    if url.scheme not in ("http", "https") or not url.host or url.userinfo:
        raise StartUpFailed("the webhook's URL must be https://HOST/PATH, without user or password")


def _check_secret(secret: str) -> None:
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith("whsec_") or len(key) < _MIN_SECRET_BYTES:
        raise StartUpFailed(
            f"the webhook's secret must be whsec_ and {_MIN_SECRET_BYTES} or more bytes in base64"
        )
