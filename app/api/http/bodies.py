"""Bodies of requests: read within limits of size, time and rate, and parsed as JSON.

A project over its limits has to wait, and the others do not notice.
"""

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic.config import JsonDict, JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.http.auth import MAX_LENGTH_DIGITS, SAFE_METHODS
from app.api.http.principal import OPS_PATH, TRACES_PATH, project_of_request
from app.api.http.request_kinds import kind_of
from app.api.http.work_places import MAX_PROJECT_SHARE, given_once, subtract
from app.errors import (
    BadRequest,
    ByteLimit,
    PacelineError,
    RequestLimit,
    TooLarge,
    TooSlow,
    Unavailable,
    UnsupportedMedia,
)

# Unused allowance is kept for this long: workers that push once a second do so together.
BURST_S = 2.0
# Longer bodies are never read, so a larger Content-Length costs no more.
LONGEST_BODY_BYTES = 8 << 20


@dataclass(slots=True)
class _Allowance:
    requests: float
    size_bytes: float
    at_s: float


class ProjectRates:
    """Limits each project's requests and bytes per second; call from one thread.

    A request may overdraw the allowance, so that none is too large for ever; the next one waits
    until that is made up for.
    """

    def __init__(
        self, *, requests_per_s: float, bytes_per_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._requests_per_s = requests_per_s
        self._bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._allowances: dict[Hashable, _Allowance] = {}

    def take(self, sender: Hashable, size_bytes: int) -> None:
        """Count one request of this size; `sender` is a project, and which of its requests.

        Raises:
            RequestLimit, ByteLimit: the allowance is used up; the request is not counted.
        """
        now_s = self._monotonic()
        left = self._allowances.get(sender) or self._begin(sender, now_s)
        passed_s = now_s - left.at_s
        requests = min(
            left.requests + passed_s * self._requests_per_s, BURST_S * self._requests_per_s
        )
        room = min(left.size_bytes + passed_s * self._bytes_per_s, BURST_S * self._bytes_per_s)
        if requests <= 0:
            raise RequestLimit(
                f"this project may send {self._requests_per_s:g} requests per second",
                retry_after_s=_wait_s(-requests, self._requests_per_s),
            )
        if room <= 0:
            raise ByteLimit(
                f"this project may send {self._bytes_per_s:g} bytes per second",
                retry_after_s=_wait_s(-room, self._bytes_per_s),
            )
        left.requests, left.at_s = requests - 1, now_s
        left.size_bytes = room - min(size_bytes, LONGEST_BODY_BYTES)

    def counted(self, sender: Hashable, receive: Receive) -> Receive:
        """Count the body of a request without Content-Length while it is received."""
        left = self._allowances[sender]

        async def receive_part() -> Message:
            message = await receive()
            left.size_bytes -= len(message.get("body", b""))
            return message

        return receive_part

    def _begin(self, sender: Hashable, now_s: float) -> _Allowance:
        full = BURST_S * self._requests_per_s, BURST_S * self._bytes_per_s
        left = self._allowances[sender] = _Allowance(*full, now_s)
        return left


def _wait_s(missing: float, per_s: float) -> int:
    return math.floor(missing / per_s) + 1


MAX_BODY_S = 30.0
# A slow body holds a slot and its bytes.
MIN_BYTES_PER_S = 1000
SLOW_GRACE_S = 3.0
MAX_BYTES_IN_FLIGHT = 256 << 20  # of pushes; of all others another quarter of it
_PEOPLES_PART = 0.25
# Routes that accept Content-Encoding.
_ENCODED = re.compile(f"{OPS_PATH.pattern}|{re.escape(TRACES_PATH)}")


# Bytes of a too large body that are read and dropped, so that its caller reads the refusal.
MAX_DRAINED_BYTES = 64 << 20
MAX_DRAIN_S = 10.0
# FastAPI parses these on the event loop: 64 kB with a mistake in each key hold it up for 20 ms.
MAX_JSON_BYTES = 64 << 10
# Some 18,000 workers by name. A hundred callers with bodies of 1 MiB kept pushes waiting for 30 s.
MAX_QUESTION_BYTES = 128 << 10
# 200 rules as JSON, with their defaults and some labels; YAML is shorter.
MAX_RULES_BODY_BYTES = 128 << 10


class LargestBody(NamedTuple):
    """The largest body that a route reads, and advice for callers with a larger one."""

    max_bytes: int
    advice: str = "split it"


_FEWER_EDITS = "name fewer items in a list, or ask for fewer edits at once"
# Read in threads, or by readers of our own.
_BODIES: tuple[tuple[re.Pattern[str], LargestBody], ...] = (
    (_ENCODED, LargestBody(LONGEST_BODY_BYTES)),
    (
        re.compile("/api/v1/jobs/[^/]+/windows/[^/]+/what-if"),
        LargestBody(MAX_QUESTION_BYTES, _FEWER_EDITS),
    ),
    (re.compile("/api/v1/jobs/[^/]+/what-ifs"), LargestBody(MAX_JSON_BYTES, _FEWER_EDITS)),
    (
        re.compile("/api/v1/rules(?:/check)?"),
        LargestBody(MAX_RULES_BODY_BYTES, "leave out of each rule what is its default"),
    ),
)


def largest_body(scope: Scope) -> LargestBody:
    """The largest body that the route of this request reads."""
    for pattern, largest in _BODIES:
        if pattern.fullmatch(scope["path"]):
            return largest
    return LargestBody(MAX_JSON_BYTES)


Sender = tuple[str | None, bool]  # a project, and whether the request is a push


def sender_of(scope: Scope) -> Sender:
    """The allowance that a request uses: that of the project's pushes, or of its people."""
    return project_of_request(scope), kind_of(scope).is_push


@dataclass(slots=True)
class _Body:
    sender: Sender
    largest: LargestBody
    chunks: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def is_push(self) -> bool:
        """Whether a worker sends it."""
        return self.sender[1]

    def too_large(self) -> TooLarge:
        """The error for a larger body."""
        max_bytes, advice = self.largest
        return TooLarge(f"a body has at most {max_bytes:,} bytes here: {advice}")


class BodyLimit:
    """Reads the whole body within limits of size and time before the route is called.

    After `slow_for_s`, a body slower than `MIN_BYTES_PER_S` is refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        within_s: float = MAX_BODY_S,
        slow_for_s: float = SLOW_GRACE_S,
        max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._within_s = within_s
        self._slow_for_s = slow_for_s
        self._max_bytes_in_flight = max_bytes_in_flight
        self._bytes_in_flight = Counter[bool]()  # by whether they are pushes
        self._bytes_of_project = Counter[Sender]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] in SAFE_METHODS:
            return await self._app(scope, receive, send)
        largest = largest_body(scope)
        largest = largest._replace(max_bytes=min(self._max_bytes, largest.max_bytes))
        body = _Body(sender_of(scope), largest)
        try:
            if await self._read_or_drain(scope, receive, body):
                await self._app(scope, given_once(b"".join(body.chunks), receive), send)
        finally:
            self._give_back(body)
        return None

    async def _read_or_drain(self, scope: Scope, receive: Receive, body: _Body) -> bool:
        """As `_read`; the rest of a body that is too large is read and dropped."""
        headers = Headers(scope=scope)
        try:
            self._check_headers(headers, scope["path"], body)
            return await self._read(receive, body)
        except TooLarge:
            self._give_back(body)
            if "expect" not in headers:  # else its caller waits to be told before it sends
                await _drain(receive)
            raise

    def _give_back(self, body: _Body) -> None:
        self._bytes_in_flight[body.is_push] -= body.size_bytes
        subtract(self._bytes_of_project, body.sender, body.size_bytes)
        body.chunks, body.size_bytes = [], 0

    def _check_headers(self, headers: Headers, path: str, body: _Body) -> None:
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity" and not _ENCODED.fullmatch(path):
            raise UnsupportedMedia("send the body without Content-Encoding")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise BadRequest("Content-Length is not a number")
        if len(length) > MAX_LENGTH_DIGITS or int(length) > body.largest.max_bytes:
            raise body.too_large()

    async def _read(self, receive: Receive, body: _Body) -> bool:
        """Read the body; False if the caller disconnected."""
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(began_s + self._allowed_s(body)) as limit:
                while (message := await receive())["type"] != "http.disconnect":
                    self._take(message.get("body", b""), body)
                    if not message.get("more_body", False):
                        return True
                    limit.reschedule(began_s + self._allowed_s(body))
        except TimeoutError as error:
            raise TooSlow(
                f"the body took longer than {self._within_s:g} s, or came at less than "
                f"{MIN_BYTES_PER_S} bytes a second"
            ) from error
        return False

    def _allowed_s(self, body: _Body) -> float:
        """Seconds that a body of this size so far may take until more arrives."""
        return min(self._within_s, self._slow_for_s + body.size_bytes / MIN_BYTES_PER_S)

    def _take(self, chunk: bytes, body: _Body) -> None:
        body.chunks.append(chunk)
        body.size_bytes += len(chunk)
        self._bytes_in_flight[body.is_push] += len(chunk)
        self._bytes_of_project[body.sender] += len(chunk)
        if body.size_bytes > body.largest.max_bytes:
            raise body.too_large()
        most_bytes = self._max_bytes_in_flight * (1.0 if body.is_push else _PEOPLES_PART)
        if self._bytes_in_flight[body.is_push] > most_bytes:
            raise Unavailable("too many bytes in flight: try again")
        if self._bytes_of_project[body.sender] > MAX_PROJECT_SHARE * most_bytes:
            raise Unavailable("this project has too many bytes in flight: try again")


async def _drain(receive: Receive) -> None:
    """Read the rest of a body and drop it.

    Most clients send all of it before they read their answer: if the connection were closed
    meanwhile, they would see that it broke, and send it again.
    """
    left_bytes = MAX_DRAINED_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(MAX_DRAIN_S):
            while left_bytes > 0:
                message = await receive()
                left_bytes -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


ReadT = TypeVar("ReadT")


async def read_aside(threads: asyncio.Semaphore, read: Callable[[], ReadT]) -> ReadT:
    """The result of `read` for a long body, computed in a thread; `threads` limits their number.

    Raises the errors of `read`.
    """
    try:
        async with threads:
            return await run_in_threadpool(read)
    except PacelineError as error:
        # The traceback and its frames form a cycle that would keep the body (up to 8 MB) until the
        # next collection, which may be minutes away.
        raise error.with_traceback(None) from None


JSON_TYPE = "application/json"
MAX_FIELDS = 20  # that an answer names as wrong
# A hundred thousand unknown fields are as many errors, made and freed: half a second.
_MAX_KEYS = 1_000
_NOT_JSON = "the body is not valid JSON"

_Model = TypeVar("_Model", bound=BaseModel)


def read_model(model: type[_Model], body: bytes, content_type: str) -> _Model:
    """Parse a JSON body of a caller; in a thread, as a large one takes a tenth of a second.

    Raises:
        UnsupportedMedia: another Content-Type.
        BadRequest: the body is not valid JSON, or has an object of too many fields.
        RequestValidationError: with the first wrong fields.
    """
    given = read_json(body, content_type)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
    # What the caller sent, and its errors, are freed in this thread: they do not go along.
    del given, errors[MAX_FIELDS:]
    raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in errors])


def read_json(body: bytes, content_type: str) -> Any:
    """Parse a JSON body.

    Raises:
        UnsupportedMedia: another Content-Type.
        BadRequest: the body is not valid JSON, or has an object of too many fields.
    """
    if content_type.partition(";")[0].strip().lower() != JSON_TYPE:
        raise UnsupportedMedia(f"send {JSON_TYPE}")
    try:
        return json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise unreadable_json(error) from error


def _object(fields: Sequence[tuple[str, JsonValue]]) -> JsonDict:
    if len(fields) <= _MAX_KEYS:
        return dict(fields)
    num = len(fields)
    del fields  # else the error's traceback keeps them, to be freed by the event loop
    raise BadRequest(f"an object of the body has {num:,} fields: no request needs more than 30")


def unreadable_json(cause: BaseException | None) -> BadRequest:
    """The refusal of a body for this error of the parser."""
    match cause:
        case json.JSONDecodeError():
            return unreadable_json_at(cause.pos, cause.msg)
        case RecursionError():
            reason = "brackets are nested too deeply: no request needs more than ten levels"
        case UnicodeDecodeError():
            reason = "the text is not valid UTF-8"
        case ValueError():
            reason = "an integer has thousands of digits: no request needs more than twenty"
        case _:
            reason = "check it with another parser"
    return BadRequest(f"{_NOT_JSON}: {reason}")


def unreadable_json_at(position: int | str, reason: str) -> BadRequest:
    """The refusal of a body with a syntax error at this character."""
    return BadRequest(f"{_NOT_JSON}: character {position}: {reason}")
