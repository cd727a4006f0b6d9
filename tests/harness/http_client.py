"""A plain HTTP client on keep-alive connections, without retries."""

import json
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

TIMEOUT_S = 10.0


class HttpResponse(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Unreachable(Exception):
    """No complete answer: whether the request had an effect is unknown."""


class HttpClient:
    """Requests to one server on loopback, one at a time."""

    def __init__(self, port: int, token: str, timeout_s: float = TIMEOUT_S) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        self._headers = {"Authorization": f"Bearer {token}"}

    def request(
        self, method: str, path: str, body: bytes | None = None, content_type: str | None = None
    ) -> HttpResponse:
        """The answer, whatever its status.

        Raises:
            Unreachable: there is none.
        """
        more = {} if content_type is None else {"Content-Type": content_type}
        try:
            self._connection.request(method, path, body, self._headers | more)
            answer = self._connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return HttpResponse(answer.status, headers, answer.read())
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise Unreachable(repr(error)) from error

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """The JSON of a 2xx answer.

        Raises:
            Unreachable: no answer, or another one.
        """
        body = None if content is None else json.dumps(content).encode()
        media = None if body is None else "application/json"
        answer = self.request(method, f"/api/v1{path}", body, media)
        if answer.status >= 300:
            raise Unreachable(f"{method} {path}: {answer.status} {answer.body!r}")
        return answer.json()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def answer_to(port: int, token: str, path: str, timeout_s: float = 5.0) -> HttpResponse | None:
    """The answer to one GET on a connection of its own; None if there is none."""
    client = HttpClient(port, token, timeout_s)
    try:
        return client.request("GET", path)
    except Unreachable:
        return None
    finally:
        client.close()
