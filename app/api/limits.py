"""What one project may ask and send in a second, so that another one does not notice."""

import math
from collections.abc import Callable

from starlette.types import Message, Receive

from app.errors import ByteLimit, RequestLimit

# What was not used is kept for so long: workers that push once a second do it all at once.
BURST_S = 2.0
# Longer bodies are never read, so what a header claims beyond costs nothing.
LONGEST_BODY_BYTES = 8 << 20


class _Allowance:
    __slots__ = ("at_s", "requests", "size_bytes")

    def __init__(self, requests: float, size_bytes: float, at_s: float) -> None:
        self.requests = requests
        self.size_bytes = size_bytes
        self.at_s = at_s


class ProjectLimits:
    """Requests and bytes a second of each project, in this process; call from one thread.

    Whoever has anything left may ask: the last request may overdraw, so that none is too large
    for ever, and the next one waits until that is made up for.
    """

    def __init__(
        self, *, requests_per_s: float, bytes_per_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._requests_per_s = requests_per_s
        self._bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._allowances: dict[str, _Allowance] = {}

    def take(self, project: str, size_bytes: int) -> None:
        """Count one request with so many bytes.

        Raises:
            RequestLimit, ByteLimit: it is one too many, and is not counted.
        """
        now_s = self._monotonic()
        left = self._allowances.get(project) or self._begin(project, now_s)
        passed_s = now_s - left.at_s
        requests = min(
            left.requests + passed_s * self._requests_per_s, BURST_S * self._requests_per_s
        )
        room = min(left.size_bytes + passed_s * self._bytes_per_s, BURST_S * self._bytes_per_s)
        if requests <= 0:
            raise RequestLimit(
                f"this project may ask {self._requests_per_s:g} times a second",
                retry_after_s=_seconds(-requests, self._requests_per_s),
            )
        if room <= 0:
            raise ByteLimit(
                f"this project may send {self._bytes_per_s:g} bytes a second",
                retry_after_s=_seconds(-room, self._bytes_per_s),
            )
        left.requests, left.at_s = requests - 1, now_s
        left.size_bytes = room - min(size_bytes, LONGEST_BODY_BYTES)

    def counted(self, project: str, receive: Receive) -> Receive:
        """The body of a request that did not say how long it is, counted as it comes."""
        left = self._allowances[project]

        async def receive_part() -> Message:
            message = await receive()
            left.size_bytes -= len(message.get("body", b""))
            return message

        return receive_part

    def _begin(self, project: str, now_s: float) -> _Allowance:
        most = BURST_S * self._requests_per_s, BURST_S * self._bytes_per_s
        left = self._allowances[project] = _Allowance(*most, now_s)
        return left


def _seconds(missing: float, per_s: float) -> int:
    return math.floor(missing / per_s) + 1
