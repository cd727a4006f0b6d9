"""HTTP to one Paceline server over a persistent connection; proxies are not used."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_S = 10.0
LAST_TIMEOUT_S = 0.3  # once the recorder is closed
MAX_IDLE_S = 3.0  # the server closes idle connections after 5 s
MAX_ANSWER_BYTES = 1 << 20
MAX_SHOWN_CHARS = 1000


class Unreachable(Exception):
    """No HTTP answer; the server may or may not have acted on the request."""


class Answer:
    """A response."""

    def __init__(
        self,
        status: int,
        retry_after_s: float,
        body: bytes,
        date: str | None = None,
        took_s: float = 0.0,
    ) -> None:
        self.status = status
        self.retry_after_s = retry_after_s
        self.body = body
        self.date = date
        self.took_s = took_s

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx; `is_acceptance` tells whether Paceline sent it."""
        return 200 <= self.status < 300

    @property
    def is_acceptance(self) -> bool:
        """Whether Paceline accepted a batch, rather than a proxy that answers 200 to everything."""
        accepted = self.json().get("accepted")
        return self.ok and isinstance(accepted, int) and not isinstance(accepted, bool)

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later; unexpected statuses count as temporary."""
        if self.is_of_a_proxy:
            return True
        return self.status in (408, 429) or self.status >= 500 or self.status < 400

    @property
    def is_of_a_proxy(self) -> bool:
        """Whether a proxy refused, as while no server is behind it.

        Paceline's own refusals have a code.
        """
        is_usual = self.status in (401, 403, 404)
        return is_usual and not isinstance(self.json().get("code"), str)

    @property
    def detail(self) -> str:
        """The server's error text, or the start of the body."""
        fields = self.json()
        words = fields.get("detail") or fields.get("title") or self.body[:200].decode("latin-1")
        return f"{self.status}: {_shown(words)}"

    def json(self) -> Mapping[str, Any]:
        """The body as a JSON object; empty if it is not one."""
        try:
            fields = json.loads(self.body)
        except (ValueError, RecursionError):  # the latter for deep nesting
            return {}
        return fields if isinstance(fields, dict) else {}


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until a deadline; a plain timeout would apply to each read separately."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._sock = sock
        self._raw = sock.makefile(
            "rb", buffering=0
        )  # keeps the socket open until the answer is read
        self._until_s = until_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer takes too long")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """A response whose timeout applies to all of it."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()  # nothing has been read yet
        until_s = time.monotonic() + (sock.gettimeout() or TIMEOUT_S)
        self.fp = io.BufferedReader(_DeadlineReader(sock, until_s))


class Transport:
    """Sends one request at a time, reconnecting when needed.

    `tls` says which certificates to trust; by default those that this machine trusts.
    """

    def __init__(
        self,
        url: str,
        token: str,
        timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = url
        self._token = token
        self.timeout_s = timeout_s
        self._tls = tls
        self._connection: http.client.HTTPConnection | None = None
        self._used_s = 0.0
        self._aborted = False

    @property
    def address(self) -> str:
        """The server's URL, without user and password."""
        scheme, at, rest = self._url.partition("://")
        return f"{scheme}{at}{rest.rpartition('@')[2]}" if at else scheme

    def request(
        self,
        method: str,
        path: str,
        body: bytes | Mapping[str, Any],
        content_type: str,
        content_encoding: str = "",
    ) -> Answer:
        """The server's answer, of any status.

        Raises:
            Unreachable: no answer.
            ValueError: the URL or the token is invalid.
        """
        if not (self._token.isascii() and self._token.isprintable()):
            # http.client would refuse it as well, but show it in its message.
            raise ValueError("the token has invalid characters: is there a line break in it?")
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        if content_encoding:
            headers["Content-Encoding"] = content_encoding
        connection, prefix = self._opened()
        try:
            self._reset_timeout(connection)
            began_s = time.monotonic()
            connection.request(method, prefix + path, payload, headers)
            return self._answer(connection.getresponse(), began_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise Unreachable(f"{type(error).__name__}: {_shown(error)}") from error

    def abort(self) -> None:
        """Cancel a request in flight, from another thread; later ones get a short timeout."""
        self._aborted = True
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _reset_timeout(self, connection: http.client.HTTPConnection) -> None:
        """Restore the socket's timeout, which reading the last answer has reduced."""
        connection.timeout = LAST_TIMEOUT_S if self._aborted else self.timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> tuple[http.client.HTTPConnection, str]:
        """The connection, and the path prefix of the URL."""
        parts = urlsplit(self._url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            shown = self._url.rpartition("@")[2]  # without user and password
            raise ValueError(f"{shown!r} is not an http or https address")
        if time.monotonic() - self._used_s > MAX_IDLE_S:
            self.close()
        if self._connection is None:
            host, port, timeout_s = parts.hostname, parts.port, self.timeout_s
            self._connection = (
                http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
                if parts.scheme == "https"
                else http.client.HTTPConnection(host, port, timeout=timeout_s)
            )
            self._connection.response_class = _Response
        return self._connection, parts.path.rstrip("/")

    def _answer(self, response: http.client.HTTPResponse, began_s: float) -> Answer:
        self._used_s = time.monotonic()
        body = response.read(MAX_ANSWER_BYTES)
        if not response.isclosed():  # longer than any answer of Paceline: skip the rest
            self.close()
        retry_after_s = _seconds(response.getheader("Retry-After"))
        took_s = self._used_s - began_s
        return Answer(response.status, retry_after_s, body, response.getheader("Date"), took_s)


def _shown(text: object) -> str:
    """Text that a server may have sent: on one line, without what moves a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in str(text)[:MAX_SHOWN_CHARS])


def job_path(job: str, tail: str = "") -> str:
    """Path of a job's route."""
    return f"/api/v1/jobs/{quote(job, safe='')}{tail}"


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, min(float(header or 0), 300.0))
    except ValueError:  # a date, which Paceline never sends
        return 0.0
