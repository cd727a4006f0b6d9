"""The proxy's troubles are real ones: each is seen from both ends."""

import socket
import threading

import pytest

from tests.harness.processes import wait_until
from tests.harness.proxy import Proxy


@pytest.fixture
def ends():
    """A caller, and the server's end of its line, with a proxy between them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(listener.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as caller:
            server, _ = listener.accept()
            server.settimeout(10)
            with server:
                yield proxy, caller, server
        proxy.close()


def test_without_trouble_it_hands_on_both_ways(ends):
    _, caller, server = ends
    caller.sendall(b"question")
    assert server.recv(100) == b"question"
    server.sendall(b"answer")
    assert caller.recv(100) == b"answer"


def test_an_answer_is_dropped_after_its_request_was_handed_on(ends):
    proxy, caller, server = ends
    proxy.drop_answer_to(b"que")
    caller.sendall(b"qu")
    assert server.recv(100) == b"qu"
    caller.sendall(b"estion")  # what is looked for may come in two parts
    assert server.recv(100) == b"estion"
    server.sendall(b"answer")
    with pytest.raises(ConnectionResetError):
        caller.recv(100)
    assert proxy.fired == 1


def test_a_line_is_reset_at_both_ends(ends):
    proxy, caller, server = ends
    caller.sendall(b"question")
    assert server.recv(100) == b"question"
    proxy.reset_all()
    for end in (caller, server):
        with pytest.raises(ConnectionResetError):
            end.recv(100)


def test_a_half_closed_line_still_brings_answers(ends):
    proxy, caller, server = ends
    caller.sendall(b"question")
    assert server.recv(100) == b"question"
    proxy.half_close_all()
    assert server.recv(100) == b""
    server.sendall(b"answer")
    assert caller.recv(100) == b"answer"


def test_what_is_said_into_silence_is_lost_and_healing_cuts_the_line(ends):
    proxy, caller, server = ends
    caller.sendall(b"question")
    assert server.recv(100) == b"question"
    proxy.silence()
    caller.sendall(b"question")
    server.settimeout(0.2)
    with pytest.raises(TimeoutError):
        server.recv(100)
    proxy.heal()
    with pytest.raises(ConnectionResetError):
        caller.recv(100)


def test_a_slow_line_brings_everything(ends):
    proxy, caller, server = ends
    proxy.slow(0.01, bytes_per_s=1e6)
    received = bytearray()

    def receive():
        while len(received) < 100_000:
            received.extend(server.recv(1 << 16))

    receiver = threading.Thread(target=receive)
    receiver.start()
    caller.sendall(b"x" * 100_000)
    wait_until(lambda: not receiver.is_alive(), "all has come")
    assert received == b"x" * 100_000
