"""The API as a process of its own, with a real event queue."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys

import httpx
import pytest

from app.ingest.embedded import EmbeddedQueue
from app.ingest.redis.events import RedisAnnouncer
from tests.api.server import JOB, TOKEN, json_batch
from tests.e2e.stack import free_port, wait_until

COMMAND = "from app.main import run; from app.settings import load_settings; run(load_settings())"
STREAM = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"


@pytest.fixture
def queue(tmp_path):
    queue = EmbeddedQueue(tmp_path)
    queue.start()
    yield queue
    queue.stop()


@pytest.fixture
def environment(tmp_path, empty_database, queue):
    """Environment variables of an API process."""
    return process_environment(tmp_path, empty_database, queue)


def process_environment(directory, empty_database, queue):
    database = shutil.copy(empty_database, directory / "paceline.db")
    return {
        **os.environ,
        "PACELINE_REDIS_URL": queue.start(),
        "PACELINE_DATABASE_URL": f"sqlite:///{database}",
        "PACELINE_TOKEN": TOKEN,
        "PACELINE_PORT": str(free_port()),
    }


@pytest.fixture
def api(environment):
    """A process, a client of it, and its port."""
    with process_of(environment) as running:
        yield running


@contextlib.contextmanager
def process_of(environment):
    port = int(environment["PACELINE_PORT"])
    process = subprocess.Popen([sys.executable, "-c", COMMAND], env=environment)
    base_url, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=base_url, headers=headers, trust_env=False) as client:
        wait_until(lambda: answers(client), "the API answers")
        yield process, client, port
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def shared_process(tmp_path_factory, empty_database):
    """A client and the port of a process shared by tests that do not change it."""
    directory = tmp_path_factory.mktemp("unharmed")
    queue = EmbeddedQueue(directory)
    environment = process_environment(directory, empty_database, queue)
    with process_of(environment) as (_, client, port):
        yield client, port
    queue.stop()


def answers(client):
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def stream(port):
    """A page with an open event stream."""
    page = socket.create_connection(("127.0.0.1", port), timeout=10)
    page.sendall(STREAM.encode())
    assert b"200 OK" in page.recv(65_536)
    return page


@pytest.mark.nightly
def test_shutdown_is_quick_with_an_open_and_a_frozen_stream(api, queue):
    process, _, port = api
    following, frozen = stream(port), stream(port)
    announcer = RedisAnnouncer(queue.start())
    for _ in range(200):
        # More than the sockets hold: the server waits for a reader that never reads.
        announcer.announce({"event": "alert", "job_id": "x" * 60_000})
    announcer.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    for page in (following, frozen):
        page.close()


@pytest.mark.nightly
def test_api_answers_503_during_a_queue_outage_and_then_recovers(api, queue):
    _, client, _ = api
    path = f"/api/v1/jobs/{os.urandom(4).hex()}a"
    assert client.put(path, json=JOB).status_code == 201
    assert client.post(f"{path}/ops", json=json_batch()).status_code == 202
    queue.stop()
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 503
    refused = client.post(f"{path}/ops", json=json_batch())
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    queue.start()
    wait_until(lambda: client.get("/readyz").status_code == 200, "the API is ready again")
    assert client.post(f"{path}/ops", json=json_batch()).status_code == 202


def test_connection_with_an_endless_header_is_closed(shared_process):
    client, port = shared_process
    begun = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: "
    with socket.create_connection(("127.0.0.1", port), timeout=10) as flood:
        flood.sendall(begun)
        assert b" 400 " in answer_to(flood, b"x" * 20_000)
    assert client.get("/healthz").status_code == 200


LONG_HEADER = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n" % (b"x" * 40_000)
LONG_LINE = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 20_000)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (LONG_HEADER, "16384 bytes"),
        (LONG_LINE, "16384 bytes"),
        (b"what is this?\r\n\r\n", "no HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "no HTTP request"),
    ],
)
def test_oversized_headers_and_malformed_requests_get_a_problem(shared_process, sent, reason):
    client, port = shared_process
    with socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
        head, _, body = answer_to(caller, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    for line in (b"content-type: application/problem+json", b"x-content-type-options: nosniff"):
        assert line in head.lower()
    problem = json.loads(body)
    assert problem["code"] == "malformed"
    assert reason in problem["detail"]
    assert client.get("/healthz").status_code == 200


def test_incomplete_requests_do_not_block_other_callers(shared_process):
    client, port = shared_process
    halves = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(500)]
    for half in halves:
        half.sendall(b"GET / HTTP/1.1\r\nHost: local")
    assert client.get("/healthz").status_code == 200
    for half in halves:
        half.close()


def test_body_in_the_same_segment_does_not_count_as_header(shared_process):
    client, _ = shared_process
    answer = client.post("/api/v1/jobs/nobody/ops", content=b"x" * 100_000)
    assert answer.status_code in (404, 415)


@pytest.mark.nightly
def test_tls_answers_have_the_hsts_header(environment, certificate):
    cert, key = certificate
    port = environment["PACELINE_PORT"]
    environment |= {"PACELINE_TLS_CERT": str(cert), "PACELINE_TLS_KEY": str(key)}
    process = subprocess.Popen([sys.executable, "-c", COMMAND], env=environment)
    trusted = ssl.create_default_context(cafile=str(cert))
    url = f"https://127.0.0.1:{port}"
    with httpx.Client(base_url=url, verify=trusted, trust_env=False) as client:
        wait_until(lambda: answers(client), "the API answers over TLS")
        for path, status in (("/", 200), ("/api/v1/jobs", 401), ("/static/nothing", 404)):
            answer = client.get(path)
            assert answer.status_code == status
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
        cookie = client.post("/api/v1/session", json={"token": TOKEN}).headers["set-cookie"]
        assert "Secure" in cookie
    process.terminate()
    assert process.wait(10) == 0


@pytest.mark.nightly
def test_start_fails_with_a_clear_error_for_an_unusable_certificate(environment, certificate):
    cert, _ = certificate
    chosen = {"PACELINE_TLS_CERT": str(cert), "PACELINE_TLS_KEY": "nothing.pem"}
    command = [sys.executable, "-m", "app.cli", "api"]
    ended = subprocess.run(command, env=environment | chosen, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "nothing.pem cannot be used for TLS: No such file" in ended.stderr


@pytest.fixture
def certificate(tmp_path):
    """A self-signed certificate and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return cert, key


def answer_to(connection, data):
    """The server's whole response to this data."""
    connection.sendall(data)
    received = b""
    while part := connection.recv(65_536):
        received += part
    return received
