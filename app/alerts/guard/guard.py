"""POST to where a project's own people say, and nowhere that is not theirs to reach."""

import socket
import ssl
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace

import httpcore
import httpx

from app.alerts.guard.addresses import (
    Address,
    Network,
    is_in,
    is_public,
    parse_address,
    parse_networks,
)
from app.alerts.guard.deadline import Deadline
from app.alerts.guard.pinned import Dial, PinnedBackend
from app.alerts.guard.resolve import Resolver, SystemResolver
from app.alerts.guard.url import PORTS, Target, parse_target
from app.errors import Blocked

TOTAL_S = 10.0
CONNECT_S = 3.0
MAX_KEPT_BYTES = 256
_EVERYWHERE = parse_networks(["0.0.0.0/0", "::/0"])


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back; `beginning` is of the body of a refusal, the rest is never read."""

    status: int
    headers: Mapping[str, str]
    beginning: bytes = b""


@dataclass(frozen=True, slots=True)
class Guard:
    """Public addresses may be reached, and those `allowed`; no other, by no spelling or name.

    Every request resolves its host anew, and is refused if any of the answers is out of bounds;
    it goes to one of the very addresses that were checked. Nothing is followed, no proxy is used,
    no connection kept. `ports` None is all.
    """

    allowed: Sequence[Network] = ()
    allows_http: bool = False
    ports: Set[int] | None = PORTS
    resolver: Resolver = field(default_factory=SystemResolver)
    total_s: float = TOTAL_S
    connect_s: float = CONNECT_S
    tls: ssl.SSLContext = field(default_factory=httpx.create_ssl_context)
    dial: Dial = socket.create_connection

    def check(self, url: str) -> Target:
        """The URL's parts, as far as they can be judged without resolving its host.

        Raises:
            Blocked: nothing may be sent there; the message says why.
        """
        target = parse_target(url, ports=self.ports, allows_http=self.allows_http)
        if target.address is not None:
            self._refuse_private([target.address])
        return target

    def post(self, url: str, *, headers: Mapping[str, str], body: bytes) -> Reply:
        """The answer to one POST.

        Raises:
            Blocked: nothing may be sent there.
            httpcore.TimeoutException: it was not over in time.
            httpcore.NetworkError: nobody answered, or not HTTP's way.
        """
        deadline = Deadline(self.total_s)
        target = self.check(url)
        backend = PinnedBackend(
            self._addresses(target),
            deadline=deadline,
            connect_by=Deadline(min(self.connect_s, self.total_s)),
            dial=self.dial,
        )
        with closing(self._pool(backend)) as pool:
            return _posted(pool, target, headers, body)

    def _addresses(self, target: Target) -> Sequence[Address]:
        if target.address is not None:
            return [target.address]
        try:
            found = [parse_address(text) for text in self.resolver(target.host)]
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ConnectError("the name cannot be resolved") from error
        if not found:
            raise httpcore.ConnectError("the name has no address")
        self._refuse_private(found)
        return list(dict.fromkeys(found))

    def _refuse_private(self, addresses: Sequence[Address]) -> None:
        # Which address it is stays unsaid: nobody may learn from us what names mean inside.
        if not all(is_in(address, self.allowed) or is_public(address) for address in addresses):
            raise Blocked("the receiver's address is not one of the public Internet")

    def _pool(self, backend: PinnedBackend) -> httpcore.ConnectionPool:
        # One for each request: connections are never another request's.
        return httpcore.ConnectionPool(
            ssl_context=self.tls, max_keepalive_connections=0, network_backend=backend
        )


def of_operator(guard: Guard) -> Guard:
    """The guard of the environment's own endpoint: whoever sets that may reach everything."""
    return replace(guard, allowed=_EVERYWHERE, allows_http=True, ports=None)


def _posted(
    pool: httpcore.ConnectionPool, target: Target, headers: Mapping[str, str], body: bytes
) -> Reply:
    url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    sent = [("host", target.authority), *headers.items(), ("connection", "close")]
    with pool.stream("POST", url, headers=sent, content=body) as response:
        came = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in response.headers
        }
        return Reply(response.status, came, _beginning(response))


def _beginning(response: httpcore.Response) -> bytes:
    if 200 <= response.status < 300:
        return b""
    try:
        return next(response.iter_stream(), b"")[:MAX_KEPT_BYTES]
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError):
        return b""  # the status says enough
