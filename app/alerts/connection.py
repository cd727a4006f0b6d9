"""Resolve a host name, judge its addresses, and connect only to those that were checked.

Resolving takes at most two seconds, even if the machine's resolver hangs; a request ends by one
deadline.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeVar

import httpcore

from app.errors import Blocked

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# What is_global knows of these differs between versions of Python, hence a list of our own.
_DENIED_V4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # behind a carrier's NAT; Alibaba's metadata too
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's agents, public only by number
        "169.254.0.0/16",  # link-local: metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata too
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
_DENIED_V6 = [
    IPv6Network(text)
    for text in (
        "::/3",  # loopback, unspecified, IPv4 in all its guises, discarding
        "4000::/2",  # not assigned
        "8000::/1",  # not assigned, unique local, link-local, site-local, multicast
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, should it ever not be unwrapped
        "3fff::/20",  # documentation
    )
]
_NAT64 = IPv6Network("64:ff9b::/96")
_LOW_32_BITS = 0xFFFFFFFF


def is_public(address: Address) -> bool:
    """Whether the address is public; a wrapped IPv4 address is unwrapped first."""
    plain = unwrapped(address)
    denied: Sequence[Network] = _DENIED_V4 if plain.version == 4 else _DENIED_V6
    return plain.is_global and not any(plain in network for network in denied)


def unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one (mapped, 6to4 or NAT64), or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & _LOW_32_BITS)
    return address.ipv4_mapped or address.sixtofour or address


def is_in(address: Address, networks: Sequence[Network]) -> bool:
    """Whether one of the networks has it; a mapped IPv4 address is the IPv4 address."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return any((mapped or address) in network for network in networks)


def parse_address(text: str) -> Address:
    """A resolver's address; raises Blocked if it is none, or one of only this machine's links."""
    try:
        address = ip_address(text)
    except ValueError:
        raise Blocked("the receiver's name stands for something that is no address") from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise Blocked("the receiver's address is one of a link of this machine")
    return address


def parse_networks(texts: Sequence[str]) -> list[Network]:
    """Networks as in settings, such as 10.2.0.0/16; raises ValueError with the one that is none."""
    return [ip_network(text) for text in texts]


# All addresses of a name, as text. Raises OSError, of which TimeoutError is one.
Resolver = Callable[[str], Sequence[str]]

TIMEOUT_S = 2.0
_MAX_LOOKUPS = 32


@dataclass(eq=False)
class SystemResolver:
    """The machine's own resolver. It cannot be interrupted, so it works in threads of its own.

    At most `most_at_once` lookups may hang; further callers wait for their two seconds, too.
    """

    timeout_s: float = TIMEOUT_S
    most_at_once: int = _MAX_LOOKUPS
    lookup: Callable[..., Sequence[Any]] = socket.getaddrinfo

    def __post_init__(self) -> None:
        self._room = threading.BoundedSemaphore(self.most_at_once)

    def __call__(self, host: str) -> Sequence[str]:
        """All its addresses, as text.

        Raises:
            TimeoutError: they are not known in time.
            OSError: there are none.
        """
        if not self._room.acquire(timeout=self.timeout_s):
            raise TimeoutError("too many names are being resolved")
        answer: Future[Sequence[str]] = Future()
        # A daemon: one that hangs must not keep the process from ending.
        threading.Thread(
            target=self._look_up, args=(host, answer), name="resolve", daemon=True
        ).start()
        if not wait([answer], self.timeout_s).done:
            raise TimeoutError("the name was not resolved in time")
        return answer.result()

    def _look_up(self, host: str, answer: Future[Sequence[str]]) -> None:
        try:
            infos = self.lookup(host, None, type=socket.SOCK_STREAM)
            answer.set_result([str(sockaddr[0]) for *_, sockaddr in infos])
        except OSError as error:
            answer.set_exception(error)
        except UnicodeError:
            answer.set_exception(OSError("the name is none"))
        finally:
            self._room.release()


class Deadline:
    """The moment `total_s` from now."""

    def __init__(self, total_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._end_s = monotonic() + total_s

    def left_s(self) -> float:
        """Seconds until then, more than 0; raises TimeoutError if none are left."""
        left_s = self._end_s - self._monotonic()
        if left_s <= 0:
            raise TimeoutError("out of time")
        return left_s


_A = TypeVar("_A")


def connect_to_first(
    addresses: Sequence[_A],
    left_s: Callable[[], float],
    connect: Callable[[_A, float], socket.socket],
) -> socket.socket:
    """The first connection that succeeds, each try within its share of the seconds left.

    Raises:
        OSError: none of them answers, or no time is left.
    """
    failure: OSError = OSError("no address")
    for number, address in enumerate(addresses):
        # A dead first address leaves time for the others.
        share_s = left_s() / (len(addresses) - number)
        try:
            return connect(address, share_s)
        except OSError as error:
            failure = error
    raise failure


MAX_READ_BYTES = 64 << 10
Dial = Callable[[tuple[str, int], float], socket.socket]


@dataclass(frozen=True, slots=True)
class PinnedBackend(httpcore.NetworkBackend):
    """Connects to one of `addresses`; the host that callers name is only for TLS and HTTP.

    Connecting may take until `connect_by`, all of it until `deadline`.
    """

    addresses: Sequence[Address]
    deadline: Deadline
    connect_by: Deadline
    dial: Dial = socket.create_connection

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """A connection to the first address that takes one; raises Blocked if it is not allowed."""
        with _translated(httpcore.ConnectTimeout, httpcore.ConnectError):
            connection = connect_to_first(
                self.addresses,
                lambda: min(self.connect_by.left_s(), self.deadline.left_s()),
                lambda address, within_s: self._connected(address, port, within_s),
            )
            return PinnedStream(connection, self.deadline)

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Always refused."""
        raise Blocked("messages are not sent to sockets of this machine")

    def _connected(self, address: Address, port: int, within_s: float) -> socket.socket:
        connection = self.dial((str(address), port), within_s)
        try:
            peer = ip_address(connection.getpeername()[0].partition("%")[0])
        except OSError:
            connection.close()
            raise
        if peer != address:
            connection.close()
            raise Blocked("the connection led to another address than the one that was checked")
        return connection


class PinnedStream(httpcore.NetworkStream):
    """One connection; timeouts that callers give do not count, the deadline does."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._socket = connection
        self._deadline = deadline
        self._num_read = 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The bytes that have arrived; waits for the first."""
        if self._num_read >= MAX_READ_BYTES:
            raise httpcore.ReadError("the answer is too long")
        with _translated(httpcore.ReadTimeout, httpcore.ReadError):
            self._socket.settimeout(self._deadline.left_s())
            read = self._socket.recv(min(max_bytes, MAX_READ_BYTES - self._num_read))
        self._num_read += len(read)
        return read

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it."""
        with _translated(httpcore.WriteTimeout, httpcore.WriteError):
            while buffer:
                self._socket.settimeout(self._deadline.left_s())
                buffer = buffer[self._socket.send(buffer) :]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        """The same connection inside TLS; the certificate is the name's, not the address's."""
        with _translated(httpcore.ConnectTimeout, httpcore.ConnectError):
            try:
                self._socket.settimeout(self._deadline.left_s())
                secure = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
            except Exception:
                self.close()
                raise
        return PinnedStream(secure, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """The TLS object, which httpcore asks for; None without TLS."""
        is_secure = isinstance(self._socket, ssl.SSLSocket)
        return self._socket if info == "ssl_object" and is_secure else None


@contextmanager
def _translated(late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:
        raise broken(str(error)) from error
