"""The event stream of a Kubernetes API server: GET /api/v1/events with watch=1."""

import contextlib
import http.client
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from app.errors import InvalidRequest, Unavailable

# The server ends a watch after this time; a connection that says nothing for longer is dead.
WATCH_S = 240
_TIMEOUT_S = WATCH_S + 30.0
_MAX_LINE_BYTES = 4 << 20
_GONE = 410

DecodedT = TypeVar("DecodedT")


class _Part(msgspec.Struct, rename="camel", frozen=True):
    """An event's metadata, subject or source: each has some of these."""

    uid: str | None = None
    resource_version: str | None = None
    kind: str | None = None
    name: str | None = None
    namespace: str | None = None
    host: str | None = None


class KubernetesObject(msgspec.Struct, rename="camel"):
    """An event (core/v1), a list of them, or the status of an error."""

    metadata: _Part = _Part()
    reason: str | None = None
    message: str | None = None
    code: int | None = None
    count: int | None = None
    involved_object: _Part = _Part()
    source: _Part = _Part()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class _Change(msgspec.Struct):
    type: str
    object: KubernetesObject


class KubernetesApi:
    """One API server; `token_file` is read for each watch, as tokens of pods rotate."""

    def __init__(
        self,
        url: str,
        token_file: Path | None,
        ca_file: Path | None,
        *,
        namespace: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"--api-server {url[:200]}: is not an http or https address")
        self._parts = parts
        self._token_file = token_file
        self._ca_file = ca_file
        of_namespace = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        self._path = f"{parts.path.rstrip('/')}/api/v1{of_namespace}/events"
        self._version: str | None = None  # of the last event seen

    def events(self) -> Iterator[KubernetesObject]:
        """Events from now on, or from the end of the last call; returns when the watch ends.

        Raises:
            Unavailable: the server does not answer, or ends the watch with an error.
            InvalidRequest: it refuses.
        """
        if self._version is None:
            with self._opened({"limit": "1"}) as response, _translated():
                listed = _decoded(response.read(_MAX_LINE_BYTES), KubernetesObject)
            self._version = listed.metadata.resource_version or "0"
        query = {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        with self._opened(query) as response:
            for line in _lines(response):
                event = self._taken(line)
                if event is not None:
                    yield event

    def _taken(self, line: bytes) -> KubernetesObject | None:
        """The event of a line of the stream; None of others."""
        change = _decoded(line, _Change)
        found = change.object
        if change.type == "ERROR":
            if found.code == _GONE:  # older than what the server keeps: begin anew
                self._version = None
            raise Unavailable(f"the watch failed: {str(found.message)[:300]}")
        self._version = found.metadata.resource_version or self._version
        return found if change.type in ("ADDED", "MODIFIED") else None

    @contextlib.contextmanager
    def _opened(self, query: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        headers = {"Accept": "application/json"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        connection = self._connection()
        try:
            with _translated():
                connection.request("GET", f"{self._path}?{urlencode(query)}", headers=headers)
                response = connection.getresponse()
            if response.status == _GONE:
                self._version = None
                raise Unavailable("the events since the last watch are gone")
            if response.status >= 500 or response.status == 429:
                raise Unavailable(f"the API server answers {response.status}")
            if response.status != 200:
                raise InvalidRequest(
                    f"the API server answers {response.status}: may this account list and watch "
                    "events? (ops/kubernetes/watch-events.yaml)"
                )
            yield response
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        context = ssl.create_default_context(cafile=self._ca_file)
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        with _translated():
            line = response.readline(_MAX_LINE_BYTES)
        if not line:
            return
        yield line


def _decoded(text: bytes, kind: type[DecodedT]) -> DecodedT:
    try:
        return msgspec.json.decode(text, type=kind)
    except ValueError as error:
        raise Unavailable("the API server answers no JSON objects of its API") from error


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"the API server does not answer: {error}") from error
