"""Servers that answer badly, a connection at a time, until the block ends."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Talk = Callable[[socket.socket, threading.Event], None]


class Stub:
    """`came` is what each connection sent first; `names` what TLS clients asked for."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.came: list[bytes] = []
        self.names: list[str | None] = []
        self.over = threading.Event()


@contextmanager
def serving(talk: Talk, tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    """A server on 127.0.0.1 that talks so with everybody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stub = Stub(listener.getsockname()[1])
        if tls is not None:
            tls.sni_callback = lambda _, name, __: stub.names.append(name)
        thread = threading.Thread(target=_serve, args=(listener, talk, tls, stub))
        thread.start()
        try:
            yield stub
        finally:
            stub.over.set()
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", stub.port)).close()
            thread.join()


def _serve(listener: socket.socket, talk: Talk, tls: ssl.SSLContext | None, stub: Stub) -> None:
    while not stub.over.is_set():
        connection, _ = listener.accept()
        connection.settimeout(5.0)
        with suppress(OSError):
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True)
            if first := _request(connection):
                stub.came.append(first)
                talk(connection, stub.over)
        connection.close()


def _request(connection: socket.socket) -> bytes:
    """A small request as a whole: closing before its end would reset what was answered."""
    read = connection.recv(65_536)
    while b"content-length: 2\r\n" in read.lower() and not read.endswith(b"\r\n\r\n{}"):
        read += connection.recv(65_536)
    return read


def saying(answer: bytes) -> Talk:
    """Answers this and closes."""
    return lambda connection, over: connection.sendall(answer)


def dripping(head: bytes, drop: bytes = b"x", every_s: float = 0.02) -> Talk:
    """Answers this, and then so little at a time, for ever."""

    def talk(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(head)
        while not over.wait(every_s):
            connection.sendall(drop)

    return talk


def silent(connection: socket.socket, over: threading.Event) -> None:
    """Answers nothing."""
    over.wait(5)
