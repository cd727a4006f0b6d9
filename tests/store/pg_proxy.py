"""A TCP proxy in front of PostgreSQL that breaks one connection at its COMMIT."""

import socket
import struct
import threading
from contextlib import suppress
from select import select
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Cut = Literal["before the commit", "after the commit"]


class CommitProxy:
    """Forwards everything; the first COMMIT after `cut_next` costs its connection.

    Cut before the commit, the server never gets it; cut after it, only the answer is lost.
    """

    def __init__(self, server_url: str) -> None:
        self._address = _address(server_url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cut: Cut | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, server_url: str) -> str:
        """The same database, through the proxy."""
        database = urlsplit(server_url).path
        user = urlsplit(server_url).username
        return f"postgresql://{user}@127.0.0.1:{self._listener.getsockname()[1]}{database}"

    def cut_next(self, cut: Cut) -> None:
        """Break the next connection that commits."""
        self._cut = cut

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, self._connect() as server, suppress(OSError):
            while True:
                ready, _, _ = select([client, server], [], [])
                for source, target in ((client, server), (server, client)):
                    if source in ready:
                        data = source.recv(65536)
                        if not data or (source is client and self._cuts(data, server)):
                            _reset(client)
                            return
                        target.sendall(data)

    def _cuts(self, data: bytes, server: socket.socket) -> bool:
        """Whether this connection ends here."""
        if self._cut is None or b"COMMIT" not in data:
            return False
        cut, self._cut = self._cut, None
        if cut == "after the commit":
            server.sendall(data)
            server.recv(65536)
        return True

    def _connect(self) -> socket.socket:
        if isinstance(self._address, tuple):
            return socket.create_connection(self._address)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._address)
        return server


def _reset(client: socket.socket) -> None:
    # Closed at once with pending data: the peer gets a reset.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _address(server_url: str) -> tuple[str, int] | str:
    parsed = urlsplit(server_url)
    directory = parse_qs(parsed.query).get("host", [""])[0]
    if directory.startswith("/"):
        return f"{directory}/.s.PGSQL.{parsed.port or 5432}"
    return parsed.hostname or directory or "127.0.0.1", parsed.port or 5432
