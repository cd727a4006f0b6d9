"""A receiver's URL, read once and by one parser, so that no two parts of us read it differently."""

import re
from collections.abc import Set
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import httpx

from app.alerts.guard.addresses import Address
from app.errors import Blocked

PORTS = frozenset({80, 443, 8443})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*")
# The last label of a name is never a number; resolvers take such a "name" for an address, in
# notations (octal, hexadecimal, short) that others do not know of.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Target:
    """What to connect to, and what to ask for there; `host` is ASCII, without brackets."""

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


def parse_target(text: str, *, ports: Set[int] | None, allows_http: bool) -> Target:
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
    return Target(url.scheme, host, port, url.raw_path, _literal(host))


def _literal(host: str) -> Address | None:
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
