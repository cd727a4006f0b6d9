"""POST to a URL that a project's users chose, but only to public or allowed addresses.

A URL is parsed once and by one parser, so that no two parts read it differently.
"""

import re
import socket
import ssl
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import httpcore
import httpx

from app.alerts.guard.connection import (
    Address,
    Deadline,
    Dial,
    Network,
    PinnedBackend,
    Resolver,
    SystemResolver,
    is_in,
    is_public,
    parse_address,
    parse_networks,
)
from app.errors import Blocked

PORTS = frozenset({80, 443, 8443})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*")
# The last label of a name is never a number; resolvers take such a "name" for an address, in
# notations (octal, hexadecimal, short) that others do not know of.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Host, port and path of a request; `host` is ASCII, without brackets."""

    scheme: str
    host: str
    port: int
    path: bytes  # with the query
    address: Address | None  # where the host is an address, not a name

    @property
    def authority(self) -> str:
        """Host and port as HTTP writes them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = self.port == _DEFAULT_PORTS[self.scheme]
        return host if is_default else f"{host}:{self.port}"


def parse_target(text: str, *, ports: Set[int] | None, allows_http: bool) -> RequestTarget:
    """The URL's parts; None for `ports` allows all.

    Raises:
        Blocked: it is no URL that messages may be sent to; the message says why.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise Blocked(f"the receiver's URL cannot be read: {error}") from None
    if url.scheme not in _DEFAULT_PORTS or (url.scheme == "http" and not allows_http):
        wanted = "http:// or https://" if allows_http else "https://"
        raise Blocked(f"the receiver's URL must begin with {wanted}")
    if url.userinfo:
        raise Blocked("the receiver's URL must not hold a user or password")
    port = url.port or _DEFAULT_PORTS[url.scheme]
    if url.port == 0 or (ports is not None and port not in ports):
        raise Blocked(f"messages are not sent to port {port if url.port is None else url.port}")
    # As httpx has it now, in ASCII: this, and nothing before it, is resolved and connected to.
    host = url.raw_host.decode("ascii")
    return RequestTarget(url.scheme, host, port, url.raw_path, _literal_address(host))


def _literal_address(host: str) -> Address | None:
    try:
        if ":" in host:
            return _without_zone(IPv6Address(host))
        if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
            return IPv4Address(host)
    except AddressValueError:
        raise Blocked("the receiver's address is written in a way that is not taken") from None
    if not _NAME.fullmatch(host):
        raise Blocked("the receiver's host is no name and no address")
    return None


def _without_zone(address: IPv6Address) -> IPv6Address:
    if address.scope_id is not None:
        raise AddressValueError("a zone")
    return address


TOTAL_S = 10.0
CONNECT_S = 3.0
MAX_KEPT_BYTES = 256
_EVERYWHERE = parse_networks(["0.0.0.0/0", "::/0"])


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer; `beginning` is the start of a refusal's body, the rest is never read."""

    status: int
    headers: Mapping[str, str]
    beginning: bytes = b""


@dataclass(frozen=True, slots=True)
class SsrfGuard:
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

    def check(self, url: str) -> RequestTarget:
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
            httpcore.NetworkError: no answer, or one that is not HTTP.
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
            return _post(pool, target, headers, body)

    def _addresses(self, target: RequestTarget) -> Sequence[Address]:
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
        # The message does not name the address: internal DNS must not leak.
        if not all(is_in(address, self.allowed) or is_public(address) for address in addresses):
            raise Blocked("the receiver's address is not one of the public Internet")

    def _pool(self, backend: PinnedBackend) -> httpcore.ConnectionPool:
        # One for each request: connections are never another request's.
        return httpcore.ConnectionPool(
            ssl_context=self.tls, max_keepalive_connections=0, network_backend=backend
        )


def operator_guard(guard: SsrfGuard) -> SsrfGuard:
    """The guard of the receiver from the environment, which the operator may point anywhere."""
    return replace(guard, allowed=_EVERYWHERE, allows_http=True, ports=None)


def _post(
    pool: httpcore.ConnectionPool, target: RequestTarget, headers: Mapping[str, str], body: bytes
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
