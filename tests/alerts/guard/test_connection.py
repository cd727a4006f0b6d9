"""Time, size and place of a connection, against servers that do their worst."""

import socket
import ssl
import time
from typing import Any

import httpcore
import httpx
import pytest

from app.alerts.connection import MAX_READ_BYTES, Deadline, PinnedBackend, parse_networks
from app.alerts.guard import SsrfGuard
from app.errors import Blocked
from tests.alerts.guard.stubs import dripping, saying, serving, silent
from tests.harness.certificates import make_certificate

TLS = httpx.create_ssl_context()
SHORT_S = 0.3
LONG_S = 20.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def guard(**given):
    here = parse_networks(["127.0.0.0/8"])
    values: dict[str, Any] = {"resolver": lambda _: ["127.0.0.1"], "total_s": LONG_S, "tls": TLS}
    return SsrfGuard(here, True, None, **values | given)


def post(guard, stub, *, body=b"{}", scheme="http"):
    return guard.post(f"{scheme}://hook.example:{stub.port}/x", headers={"a": "b"}, body=body)


def timed(guard, stub, **given):
    """Seconds until the request is given up."""
    began_s = time.monotonic()
    with pytest.raises(httpcore.TimeoutException):
        post(guard, stub, **given)
    return time.monotonic() - began_s


SLOW = {
    "never answers": silent,
    "a byte at a time, in the status": dripping(b"", b"H"),
    "a byte at a time, in a header": dripping(b"HTTP/1.1 200 OK\r\nA: "),
    "headers for ever": dripping(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
    "provisional answers for ever": dripping(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
}


@pytest.mark.parametrize("talk", SLOW.values(), ids=SLOW)
def test_a_slow_answer_ends_by_the_deadline(talk):
    with serving(talk) as stub:
        assert SHORT_S <= timed(guard(total_s=SHORT_S), stub) < SHORT_S + 2


def test_a_refusal_counts_however_slowly_its_reasons_come():
    talk = dripping(b"HTTP/1.1 500 No\r\nContent-Length: 9999\r\n\r\n", b"")
    with serving(talk) as stub:
        reply = post(guard(total_s=1.0), stub)  # in which its head has to come
    assert (reply.status, reply.beginning) == (500, b"")


def test_a_receiver_that_does_not_read_is_given_up_too():
    def deaf(connection, over):
        over.wait(5)

    with serving(deaf) as stub:
        assert timed(guard(total_s=SHORT_S), stub, body=b"x" * 50_000_000) < SHORT_S + 2


def test_a_handshake_that_does_not_go_on_is_given_up_too():
    broken_off = (httpcore.TimeoutException, httpcore.ConnectError)
    with serving(dripping(b"", b"\x16")) as stub, pytest.raises(broken_off):
        post(guard(total_s=SHORT_S), stub, scheme="https")
    with serving(silent) as stub:
        assert timed(guard(total_s=SHORT_S), stub, scheme="https") < SHORT_S + 2


def test_resolving_counts_too():
    def slow(host):
        raise TimeoutError

    with serving(saying(OK)) as stub:
        timed(guard(resolver=slow), stub)
        assert stub.came == []


def test_an_answer_of_any_size_is_read_up_to_a_limit():
    endless = dripping(b"HTTP/1.1 200 OK\r\n", b"A: " + b"b" * 4000 + b"\r\n", every_s=0)
    with serving(endless) as stub, pytest.raises((httpcore.ReadError, httpcore.ProtocolError)):
        post(guard(), stub)
    head = b"HTTP/1.1 102 Processing\r\n\r\n" * (MAX_READ_BYTES // 27 + 1)
    with serving(saying(head + OK)) as stub, pytest.raises(httpcore.ReadError, match="too long"):
        post(guard(), stub)


def test_only_the_first_words_of_a_refusal_are_kept():
    said = (
        b"HTTP/1.1 500 No\r\nContent-Length: 1000000\r\nRetry-After: 7\r\n\r\n" + b"y" * 1_000_000
    )
    with serving(saying(said)) as stub:
        reply = post(guard(), stub)
    assert reply.status == 500
    assert reply.headers["retry-after"] == "7"
    assert reply.beginning == b"y" * 256


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 999999 x\r\n\r\n"])
def test_a_non_http_answer_is_an_error(answer):
    with serving(saying(answer)) as stub, pytest.raises(httpcore.ProtocolError):
        post(guard(), stub)


def test_the_name_is_for_http_and_the_address_for_the_connection():
    with serving(saying(OK)) as stub:
        assert post(guard(), stub).status == 200
    [request] = stub.came
    assert request.startswith(b"POST /x HTTP/1.1\r\nhost: hook.example:%d\r\n" % stub.port)
    assert b"connection: close" in request


def test_a_dead_address_leaves_time_for_the_next():
    dialled = []

    def dial(address, timeout_s):
        dialled.append((address[0], timeout_s))
        if address[0] == "127.0.0.2":
            raise TimeoutError
        return socket.create_connection(address, timeout_s)

    several = guard(resolver=lambda _: ["127.0.0.2", "127.0.0.1"], dial=dial, connect_s=3.0)
    with serving(saying(OK)) as stub:
        assert post(several, stub).status == 200
    (first, first_s), (second, _) = dialled
    assert (first, second) == ("127.0.0.2", "127.0.0.1")
    assert 1.0 < first_s <= 1.5


def test_a_connection_that_leads_elsewhere_is_broken_off():
    made = []

    def astray(address, timeout_s):
        made.append(socket.create_connection(("127.0.0.1", address[1]), timeout_s))
        return made[0]

    with serving(saying(OK)) as stub:
        with pytest.raises(Blocked, match="another address"):
            post(guard(resolver=lambda _: ["127.0.0.3"], dial=astray), stub)
        assert made[0].fileno() == -1
    assert stub.came == []


def test_sockets_of_this_machine_are_out_of_reach():
    deadline = Deadline(1.0)
    backend = PinnedBackend([], deadline=deadline, connect_by=deadline)
    with pytest.raises(Blocked):
        backend.connect_unix_socket("/run/docker.sock")


def test_no_proxy_of_the_machine_is_used(monkeypatch):
    with serving(saying(OK)) as proxy, serving(saying(OK)) as stub:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert post(guard(), stub).status == 200
    assert proxy.came == []


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """Server and client sides of a certificate for hook.example."""
    return make_certificate(tmp_path_factory.mktemp("tls") / "made", "hook.example").contexts()


def test_a_certificate_is_the_names(certified):
    server, client = certified
    with serving(saying(OK), server) as stub:
        assert post(guard(tls=client), stub, scheme="https").status == 200
        url = f"https://other.example:{stub.port}/"
        with pytest.raises(httpcore.ConnectError) as failure:
            guard(tls=client).post(url, headers={}, body=b"")
        assert isinstance(failure.value.__context__, ssl.SSLCertVerificationError)
    assert stub.names[:2] == ["hook.example", "other.example"]


def test_a_certificate_that_nobody_vouches_for_is_refused(certified):
    with serving(saying(OK), certified[0]) as stub, pytest.raises(httpcore.ConnectError):
        post(guard(), stub, scheme="https")
    assert stub.came == []


def test_the_deadline_is_one_for_all():
    now_s = [100.0]
    deadline = Deadline(10.0, lambda: now_s[0])
    now_s[0] += 9
    assert deadline.left_s() == 1.0
    now_s[0] += 1
    with pytest.raises(TimeoutError):
        deadline.left_s()
