"""Connections that go to the addresses that were checked, and are over by the deadline."""

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import httpcore

from app.alerts.guard.addresses import Address
from app.alerts.guard.deadline import Deadline
from app.alerts.guard.dialling import first_that_answers
from app.errors import Blocked

MAX_READ_BYTES = 64 << 10
Dial = Callable[[tuple[str, int], float], socket.socket]


class PinnedBackend(httpcore.NetworkBackend):
    """Goes to one of `addresses` whatever host it is asked for, which is only for TLS and HTTP.

    Connecting may take until `connect_by`, all of it until `deadline`.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        deadline: Deadline,
        connect_by: Deadline,
        dial: Dial = socket.create_connection,
    ) -> None:
        self._addresses = addresses
        self._deadline = deadline
        self._connect_by = connect_by
        self._dial = dial

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """A connection to the first address that takes one.

        Raises:
            Blocked: it leads elsewhere.
        """
        with _translated(httpcore.ConnectTimeout, httpcore.ConnectError):
            return PinnedStream(self._first_that_answers(port), self._deadline)

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """None, ever."""
        raise Blocked("messages are not sent to sockets of this machine")

    def _first_that_answers(self, port: int) -> socket.socket:
        return first_that_answers(
            self._addresses,
            lambda: min(self._connect_by.left_s(), self._deadline.left_s()),
            lambda address, within_s: self._connected(address, port, within_s),
        )

    def _connected(self, address: Address, port: int, within_s: float) -> socket.socket:
        connection = self._dial((str(address), port), within_s)
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
        """What has come, once something has."""
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
        """Break it off."""
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
        """What httpcore asks for: whether there is TLS."""
        return self._socket if info == "ssl_object" and self._is_secure else None

    @property
    def _is_secure(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket)


@contextmanager
def _translated(late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:
        raise broken(str(error)) from error
