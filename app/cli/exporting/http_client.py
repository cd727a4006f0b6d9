"""HTTP to a Paceline server or an OpenTelemetry collector; proxies are not used."""

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from typing import TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from app.cli.output import printable
from app.errors import InvalidRequest, PacelineError, Unavailable

TIMEOUT_S = 60.0
_PIECE_BYTES = 1 << 20
_MAX_JSON_BYTES = 512 << 20
_MAX_REFUSAL_BYTES = 1 << 16

DecodedT = TypeVar("DecodedT")


class QueryClient(contextlib.AbstractContextManager["QueryClient"]):
    """One server, over one connection.

    Raises (each method):
        Unavailable: it does not answer.
        InvalidRequest: it refused, or the address is invalid.
    """

    def __init__(self, url: str, token: str | None) -> None:
        parts = parsed_address("--url", url)
        self._name = f"{parts.scheme}://{parts.netloc}"
        self._prefix = parts.path.rstrip("/")
        is_secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __exit__(self, *_exception: object) -> None:
        self._connection.close()

    def decoded(
        self, path: str, kind: type[DecodedT], query: Mapping[str, str] | None = None
    ) -> DecodedT:
        """The answer's JSON object, of this kind."""
        text = bytearray()
        for piece in self.pieces(path, query):
            text += piece
            if len(text) > _MAX_JSON_BYTES:
                most = f"{_MAX_JSON_BYTES:,} bytes"
                raise InvalidRequest(f"{self._name} answers with more than {most}")
        try:
            return msgspec.json.decode(text, type=kind)
        except (ValueError, RecursionError) as error:
            why = f"answers no JSON object of this release ({error}): is it Paceline's address?"
            raise InvalidRequest(f"{self._name} {why}") from error

    def pieces(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """The body of the answer, piece by piece."""
        address = f"{self._prefix}{path}" + (f"?{urlencode(query)}" if query else "")
        with self._translated():
            self._connection.request("GET", address, headers=self._headers)
            # If the connection ends with its answer, only the answer can close it.
            with contextlib.closing(self._connection.getresponse()) as response:
                self._check(response)
                while piece := response.read(_PIECE_BYTES):
                    yield piece

    def post(self, path: str, body: bytes, media_type: str) -> bytes:
        """Send once, without retries; returns the start of the answer's body."""
        with self._translated():
            headers = {**self._headers, "Content-Type": media_type}
            self._connection.request("POST", f"{self._prefix}{path}", body, headers)
            with contextlib.closing(self._connection.getresponse()) as response:
                self._check(response)
                return response.read(_MAX_REFUSAL_BYTES)

    def _check(self, response: http.client.HTTPResponse) -> None:
        if 200 <= response.status < 300:
            return
        if 300 <= response.status < 400:
            raise InvalidRequest(f"{self._name} is moved: use the address that it redirects to")
        detail = _problem_text(response.read(_MAX_REFUSAL_BYTES))
        busy = response.status in (429, 503)
        kind: type[PacelineError] = Unavailable if busy else InvalidRequest
        raise kind(f"{self._name} answers {response.status}: {detail}")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            why = f"does not answer ({printable(str(reason))[:200]}): is it the right address?"
            raise Unavailable(f"{self._name} {why}") from error


def parsed_address(option: str, url: str) -> SplitResult:
    """The parts of a server's address, given by `option`; raises InvalidRequest if it is none."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        has_user = parts.username is not None or parts.password is not None
    except ValueError:
        is_good = has_user = False
    if has_user:
        raise InvalidRequest(
            f"{option}: the address has a user or a password in it: leave them out"
        )
    if not is_good:
        wanted = "want an address like http://127.0.0.1:8642"
        raise InvalidRequest(f"{option} {printable(url)[:200]}: {wanted}")
    return parts


def _problem_text(body: bytes) -> str:
    """The error's detail, or the start of the body."""
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, RecursionError, KeyError, TypeError):
        detail = body[:200].decode("latin-1")
    return printable(" ".join(detail.split()))[:500]
