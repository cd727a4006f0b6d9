"""Queries to one server over a persistent connection, and their errors; without proxies.

QueryError
├── NoAnswer    no answer, or none from Paceline
└── Refused     an error of the server; `status` and `code` are for programs
    ├── Denied      401 and 403: unknown token, or missing scope
    ├── NotFound    404: no such job, window or report
    └── Busy        429, 502, 503 and 504, after all attempts
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit


class QueryError(Exception):
    """Base class; messages say what to do, and never contain the token."""


class NoAnswer(QueryError):
    """The server does not answer, or the answer is not from Paceline.

    `may_help` tells whether a retry may succeed.
    """

    def __init__(self, message: str, *, may_help: bool = False) -> None:
        super().__init__(message)
        self.may_help = may_help


class Refused(QueryError):
    """The server refused; `code` is stable across versions."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.retry_after_s = 0.0
        self.status = status
        self.code = code
        self.detail = detail


class Denied(Refused):
    """Unknown token, or missing scope."""


class NotFound(Refused):
    """There is no such job, window or report, or it is another project's."""


class Busy(Refused):
    """The server was busy for longer than `patience_s`."""


def error_of_status(status: int, code: str, detail: str) -> Refused:
    """The error for an answer with this status."""
    kinds = {401: Denied, 403: Denied, 404: NotFound, 429: Busy, 502: Busy, 503: Busy, 504: Busy}
    return kinds.get(status, Refused)(status, code, detail)


MAX_IDLE_S = 3.0  # the server closes idle connections after 5 s
MAX_ANSWER_BYTES = 256 << 20
_MAX_WAIT_S = 30.0
_FIRST_WAIT_S = 0.5
_BUSY_STATUSES = (429, 502, 503, 504)

Query = Mapping[str, Any]


class Connection:
    """Sends one request at a time; use one instance per thread.

    Retries a busy server with growing delays, or those that it asks for, within `patience_s`.
    `sleep` waits.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float,
        patience_s: float,
        sleep: Callable[[float], None],
    ) -> None:
        parts = _parts_of(url)
        if not token.isascii() or not token.isprintable():
            raise ValueError("the token has characters that no token has")
        self._kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._place = (str(parts.hostname), parts.port)
        self._prefix = parts.path.rstrip("/")
        self._name = f"{parts.scheme}://{parts.netloc}{self._prefix}"
        self._token = token
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._sleep = sleep
        self._http: http.client.HTTPConnection | None = None
        self._used_s = 0.0

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """The answer to a GET request, with retries.

        Raises:
            NoAnswer: no answer, or none from Paceline.
            Refused: the server refused.
        """
        known = {name: value for name, value in (query or {}).items() if value is not None}
        address = f"{path}?{urlencode(known, doseq=True)}" if known else path
        waited_s, wait_s = 0.0, _FIRST_WAIT_S
        while True:
            try:
                return self._ask("GET", address, None, None)
            except (Busy, NoAnswer) as error:
                pause_s = max(wait_s, error.retry_after_s) if isinstance(error, Busy) else wait_s
                may_help = isinstance(error, Busy) or error.may_help
                if not may_help or waited_s + pause_s > self._patience_s:
                    raise
                self._sleep(pause_s)
                waited_s += pause_s
                wait_s = min(2 * wait_s, _MAX_WAIT_S)

    def post(self, path: str, body: bytes, content_type: str) -> dict[str, Any]:
        """The answer to a POST request, sent once; without an answer its effect is unknown."""
        return self._ask("POST", path, body, content_type)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def _ask(
        self, method: str, path: str, body: bytes | None, content_type: str | None
    ) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if content_type is not None:
            headers["Content-Type"] = content_type
        try:
            connection = self._opened()
            connection.request(method, self._prefix + path, body, headers)
            response = connection.getresponse()
            content = _whole_body(response)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            what = f"{self._name} does not answer ({_reason(error)}): is it the right address?"
            raise NoAnswer(what, may_help=True) from error
        self._used_s = time.monotonic()
        if len(content) > MAX_ANSWER_BYTES:
            self.close()
            raise NoAnswer(f"{self._name} answers with more than {MAX_ANSWER_BYTES:,} bytes")
        return self._read(response, content)

    def _opened(self) -> http.client.HTTPConnection:
        if time.monotonic() - self._used_s > MAX_IDLE_S:
            self.close()
        if self._http is None:
            self._http = self._kind(*self._place, timeout=self._timeout_s)
        return self._http

    def _read(self, response: http.client.HTTPResponse, content: bytes) -> dict[str, Any]:
        status = response.status
        if 300 <= status < 400:
            raise NoAnswer(f"{self._name} is moved: use the address that it redirects to")
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            if status in _BUSY_STATUSES:  # a proxy before the server says so in its own words
                raise self._busy(
                    response, error_of_status(status, "unavailable", "no server answers")
                )
            raise NoAnswer(
                f"{self._name} answers {status} and no JSON: it is not Paceline's address"
            )
        if 200 <= status < 300:
            return fields
        code, detail = str(fields.get("code", "unknown")), str(fields.get("detail", ""))
        raise self._busy(response, error_of_status(status, code, " ".join(detail.split())))

    def _busy(self, response: http.client.HTTPResponse, error: Refused) -> Refused:
        try:
            wanted_s = float(response.getheader("Retry-After") or 0)
        except ValueError:
            wanted_s = 0.0
        error.retry_after_s = max(0.0, wanted_s) if wanted_s == wanted_s else 0.0
        return error


def _parts_of(url: str) -> SplitResult:
    """The parts of a valid URL.

    Raises:
        ValueError: it is invalid.
    """
    try:
        parts = urlsplit(url)
        parts.port, (parts.hostname or "").encode("idna")
    except ValueError as error:  # no number, no name, half a bracket
        raise ValueError(f"{url!r} is no address: look at its host and its port") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http or https address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address has a user or a password in it: leave them out")
    if not parts.path.isascii() or not parts.path.isprintable() or " " in parts.path:
        raise ValueError(f"the path of {url!r} has characters that are to be percent-encoded")
    return parts


def _whole_body(response: http.client.HTTPResponse) -> bytes:
    """The body, cut off if it is too long."""
    try:
        content = response.read(MAX_ANSWER_BYTES + 1)
        if response.length and len(content) <= MAX_ANSWER_BYTES:
            raise http.client.IncompleteRead(content, response.length)
    except BaseException:
        response.close()
        raise
    return content


def _reason(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
