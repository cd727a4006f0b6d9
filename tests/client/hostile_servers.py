"""Frozen, malformed and endless servers on real sockets."""

import socket
import threading
from contextlib import contextmanager

NONSENSE = [
    b"",  # closed at once
    b"\x00\xff" * 100,
    b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
    b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}",
    b'HTTP/1.1 202 Accepted\r\nContent-Length: 19\r\n\r\n{"accepted": "all"}',
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 500 Oops\r\nContent-Length: 1000\r\n\r\nshort",
    b"HTTP/1.1 503 Busy\r\nRetry-After: tomorrow\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/9.9 banana\r\n\r\n",
]


class Listener:
    """Accepts connections and handles each as the test chooses."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.num_connections = 0
        self.changed = threading.Condition()
        self.is_over = False
        self.drips = b"", b""
        self._held = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def hold(self, connection):
        """Frozen: keep the connection open and never answer."""
        self._held.append(connection)

    def answer_nonsense(self, connection):
        connection.settimeout(5)
        try:
            connection.recv(65536)
            connection.sendall(NONSENSE[self.num_connections % len(NONSENSE)])
        except OSError:
            pass
        connection.close()

    def drip(self, connection):
        """Answer piece by piece, ending only after a long time."""
        connection.settimeout(5)
        (begin, piece), pause = self.drips, threading.Event()
        try:
            connection.recv(65536)
            connection.sendall(begin)
            for _ in range(400):
                connection.sendall(piece)
                pause.wait(0.005)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except OSError:
            pass
        connection.close()

    def serve(self, handle):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                break
            if self.is_over:
                connection.close()
                break
            handle(connection)
            with self.changed:
                self.num_connections += 1
                self.changed.notify_all()

    def close(self):
        self.is_over = True
        with socket.create_connection(self.socket.getsockname()):  # wake it
            pass

    def close_sockets(self):
        self.socket.close()
        for connection in self._held:
            connection.close()


@contextmanager
def hostile_server(kind):
    """A server that is "frozen", answers "nonsense", or repeats the second of two byte strings."""
    found = Listener()
    handle = found.hold if kind == "frozen" else found.answer_nonsense
    if isinstance(kind, tuple):
        found.drips, handle = kind, found.drip
    thread = threading.Thread(target=found.serve, args=(handle,))
    thread.start()
    try:
        yield found
    finally:
        found.close()
        thread.join()
        found.close_sockets()


@contextmanager
def endless_lookups(monkeypatch):
    """No name is found and none refused, until the end; an event that is set at the first."""
    is_asked, is_over = threading.Event(), threading.Event()

    def look_up(*_, **__):
        is_asked.set()
        is_over.wait()
        raise socket.gaierror("the test is over")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        yield is_asked
    finally:
        is_over.set()
