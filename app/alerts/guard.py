"""POST to a URL that a project's users chose, but only to public or allowed addresses.

A URL is parsed once and by one parser, so that no two parts read it differently.
"""

import re
import socket
import ssl
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple

import httpcore
import httpx

from app.alerts.connection import (
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


def parse_target(text: str) -> RequestTarget:
    """The URL's parts; raises Blocked, which says why, if no message could be sent to it."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise Blocked(f"the receiver's URL cannot be read: {error}") from None
    if url.scheme not in _DEFAULT_PORTS:
        raise Blocked("the receiver's URL must begin with https://")
    if url.userinfo:
        raise Blocked("the receiver's URL must not hold a user or password")
    if url.port == 0:
        raise Blocked("messages are not sent to port 0")
    port = url.port or _DEFAULT_PORTS[url.scheme]
    # As httpx has it now, in ASCII: this, and nothing before it, is resolved and connected to.
    host = url.raw_host.decode("ascii")
    return RequestTarget(url.scheme, host, port, url.raw_path, _literal_address(host))


def _literal_address(host: str) -> Address | None:
    try:
        if ":" in host:
            address = IPv6Address(host)
            if address.scope_id is not None:
                raise AddressValueError("a zone")
            return address
        if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
            return IPv4Address(host)
    except AddressValueError:
        raise Blocked("the receiver's address is written in a way that is not taken") from None
    if not _NAME.fullmatch(host):
        raise Blocked("the receiver's host is no name and no address")
    return None


TOTAL_S = 10.0
CONNECT_S = 3.0
MAX_KEPT_BYTES = 256
_EVERYWHERE = parse_networks(["0.0.0.0/0", "::/0"])


# Trusts the usual authorities; one of the process, as reading them takes some 50 ms.
_usual_tls = cache(httpx.create_ssl_context)


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
    tls: ssl.SSLContext = field(default_factory=_usual_tls)
    dial: Dial = socket.create_connection

    def check(self, url: str) -> RequestTarget:
        """The URL's parts, judged without resolving its host; raises Blocked, which says why."""
        target = parse_target(url)
        refusals = self._refusals(target)
        if target.address is not None:
            refusals += self._refusals_of_addresses(target, [target.address])
        elif refusals:
            # All reasons at once: else each setting would only show that the next one is missing.
            with suppress(httpcore.NetworkError, httpcore.TimeoutException):
                refusals += self._refusals_of_addresses(target, self._resolved(target))
        _refuse(refusals)
        return target

    def connect(self, url: str) -> None:
        """Connect as for a message, with TLS where the URL has it, and send nothing.

        Raises:
            Blocked: nothing may be sent there; the message has every setting that is needed.
            httpcore.TimeoutException: there was no connection in time.
            httpcore.NetworkError: there was none.
        """
        deadline = Deadline(min(self.connect_s, self.total_s))
        target = self.check(url)
        stream = self._backend(target, deadline).connect_tcp(target.host, target.port)
        if target.scheme == "https":
            stream = stream.start_tls(self.tls, target.host)
        stream.close()

    def post(self, url: str, *, headers: Mapping[str, str], body: bytes) -> Reply:
        """The answer to one POST.

        Raises:
            Blocked: nothing may be sent there.
            httpcore.TimeoutException: it was not over in time.
            httpcore.NetworkError: no answer, or one that is not HTTP.
        """
        deadline = Deadline(self.total_s)
        target = self.check(url)
        # A pool of its own: connections are never another request's.
        with httpcore.ConnectionPool(
            ssl_context=self.tls,
            max_keepalive_connections=0,
            network_backend=self._backend(target, deadline),
        ) as pool:
            return _post(pool, target, headers, body)

    def _backend(self, target: RequestTarget, deadline: Deadline) -> PinnedBackend:
        addresses = self._addresses(target)
        connect_by = Deadline(min(self.connect_s, self.total_s))
        return PinnedBackend(addresses, deadline, connect_by, self.dial)

    def _addresses(self, target: RequestTarget) -> Sequence[Address]:
        if target.address is not None:
            return [target.address]
        addresses = self._resolved(target)
        _refuse(self._refusals_of_addresses(target, addresses))
        return list(dict.fromkeys(addresses))

    def _resolved(self, target: RequestTarget) -> Sequence[Address]:
        try:
            addresses = [parse_address(text) for text in self.resolver(target.host)]
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ConnectError("the name cannot be resolved") from error
        if not addresses:
            raise httpcore.ConnectError("the name has no address")
        return addresses

    def _refusals(self, target: RequestTarget) -> "list[_Refusal]":
        """Why nothing may be sent there, as far as that is known without its addresses."""
        refusals = []
        if target.scheme == "http" and not self.allows_http:
            why = "the receiver's URL must begin with https://"
            refusals.append(_Refusal(why, "PACELINE_WEBHOOK_ALLOW_HTTP=true"))
        if self.ports is not None and target.port not in self.ports:
            ports = ",".join(map(str, [*sorted(self.ports), target.port]))
            why = f"messages are not sent to port {target.port}"
            refusals.append(_Refusal(why, f"PACELINE_WEBHOOK_PORTS={ports}"))
        return refusals

    def _refusals_of_addresses(
        self, target: RequestTarget, addresses: Sequence[Address]
    ) -> "list[_Refusal]":
        # The message does not name a resolved address: internal DNS must not leak.
        if all(is_in(address, self.allowed) or is_public(address) for address in addresses):
            return []
        why = "the receiver's address is not one of the public Internet"
        network = _network_to_allow(target)
        others = "...," if self.allowed else ""
        setting = f"PACELINE_WEBHOOK_ALLOW={others}{network}" if network else None
        return [_Refusal(why, setting)]


class _Refusal(NamedTuple):
    """Why nothing is sent to an address, and the setting that allows it, if any should."""

    why: str
    setting: str | None


def _refuse(refusals: Sequence[_Refusal]) -> None:
    if not refusals:
        return
    text = "; ".join(refusal.why for refusal in refusals)
    if all(refusal.setting for refusal in refusals):
        settings = " ".join(str(refusal.setting) for refusal in refusals)
        text += f". The operator allows it, after a restart, with {settings}"
        if _ANY_NETWORK in settings:
            text += f" ({_ANY_NETWORK} is that of the host, such as 10.2.0.0/16)"
    raise Blocked(text)


_ANY_NETWORK = "NETWORK"
# Nothing that a setting should be suggested for: metadata of clouds, multicast, reserved.
_NEVER_SUGGESTED = parse_networks(
    ["169.254.0.0/16", "168.63.129.16/32", "224.0.0.0/3", "0.0.0.0/8", "fe80::/10", "ff00::/8"]
)


def _network_to_allow(target: RequestTarget) -> str | None:
    """The network for PACELINE_WEBHOOK_ALLOW, in words for a name; None where none may be."""
    if target.address is not None:
        if is_in(target.address, _NEVER_SUGGESTED):
            return None
        return f"{target.address}/{target.address.max_prefixlen}"
    return "127.0.0.0/8,::1/128" if target.host == "localhost" else _ANY_NETWORK


def operator_guard(guard: SsrfGuard) -> SsrfGuard:
    """The guard of the receiver from the environment, which the operator may point anywhere."""
    return replace(guard, allowed=_EVERYWHERE, allows_http=True, ports=None)


def _post(
    pool: httpcore.ConnectionPool, target: RequestTarget, headers: Mapping[str, str], body: bytes
) -> Reply:
    url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    sent = [("host", target.authority), *headers.items(), ("connection", "close")]
    with pool.stream("POST", url, headers=sent, content=body) as response:
        received = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in response.headers
        }
        return Reply(response.status, received, _beginning(response))


def _beginning(response: httpcore.Response) -> bytes:
    if 200 <= response.status < 300:
        return b""
    try:
        return next(response.iter_stream(), b"")[:MAX_KEPT_BYTES]
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError):
        return b""  # the status says enough
