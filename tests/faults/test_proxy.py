"""Each of the proxy's faults is observed from both ends."""

import socket
import threading

import pytest

from tests.harness.processes import wait_until
from tests.harness.proxy import Proxy


@pytest.fixture
def ends():
    """A client and the server's end of its connection, with a proxy in between."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(listener.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
            server, _ = listener.accept()
            server.settimeout(10)
            with server:
                yield proxy, client, server
        proxy.close()


def test_request_whose_answer_is_dropped_is_still_forwarded(ends):
    proxy, client, server = ends
    proxy.drop_answer_to(b"que")
    client.sendall(b"qu")
    assert server.recv(100) == b"qu"
    client.sendall(b"estion")  # the match may arrive in two parts
    assert server.recv(100) == b"estion"
    server.sendall(b"answer")
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert proxy.dropped_answers == 1


def test_half_closed_connection_still_delivers_answers(ends):
    proxy, client, server = ends
    client.sendall(b"question")
    assert server.recv(100) == b"question"
    proxy.half_close_all()
    assert server.recv(100) == b""
    server.sendall(b"answer")
    assert client.recv(100) == b"answer"


def test_blackhole_loses_bytes_and_healing_resets_the_connection(ends):
    proxy, client, server = ends
    client.sendall(b"question")
    assert server.recv(100) == b"question"
    proxy.blackhole()
    client.sendall(b"question")
    server.settimeout(0.2)
    with pytest.raises(TimeoutError):
        server.recv(100)
    proxy.heal()
    with pytest.raises(ConnectionResetError):
        client.recv(100)


def test_slow_connection_delivers_every_byte(ends):
    proxy, client, server = ends
    proxy.slow(0.01, bytes_per_s=1e6)
    received = bytearray()

    def receive():
        while len(received) < 100_000:
            received.extend(server.recv(1 << 16))

    receiver = threading.Thread(target=receive)
    receiver.start()
    client.sendall(b"x" * 100_000)
    wait_until(lambda: not receiver.is_alive(), "all bytes arrived")
    assert received == b"x" * 100_000
