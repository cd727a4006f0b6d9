"""The queue over TLS: batches pass, and a server that nobody vouches for gets none."""

import asyncio

import pytest

from app.errors import QueueUnavailable
from app.ingest.redis.queue import RedisReader, RedisWriter
from app.ingest.redis.url import parse_queue_url
from tests.harness.backends import QueueServer
from tests.harness.certificates import make_certificate, tls_endpoint


@pytest.fixture
def queue(tmp_path):
    server = QueueServer(tmp_path)
    server.start_and_wait()
    yield server
    server.kill()


def append(url, body):
    async def run():
        writer = RedisWriter(url, 1)
        try:
            await writer.append("job", body)
        finally:
            await writer.close()

    asyncio.run(run())


def test_batches_pass_over_tls_to_a_server_that_is_vouched_for(queue, tmp_path):
    known = make_certificate(tmp_path / "known")
    with tls_endpoint(queue.port, known) as port:
        url = f"rediss://localhost:{port}?ssl_ca_certs={known.authority}"
        append(url, b"secret batch")
        reader = RedisReader(url)
        [entry] = reader.read([0], "me", count=9, block_s=0.0)
        reader.close()
    assert entry.body == b"secret batch"


@pytest.mark.parametrize("wrong", ["authority", "name", "no TLS"])
def test_no_batch_goes_to_a_server_that_nobody_vouches_for(queue, tmp_path, wrong):
    known = make_certificate(tmp_path / "known", "elsewhere" if wrong == "name" else "localhost")
    other = make_certificate(tmp_path / "other")
    trusted = other if wrong == "authority" else known
    with tls_endpoint(queue.port, known) as port:
        at = f"localhost:{port}?"
        if wrong == "no TLS":  # such a server waits for the end of a command
            at = f"localhost:{queue.port}?socket_connect_timeout=0.2&"
        with pytest.raises(QueueUnavailable):
            append(f"rediss://{at}ssl_ca_certs={trusted.authority}", b"batch")
    assert queue.send("XLEN", "paceline:{ops:0}") == ":0"


def test_authority_of_a_cluster_is_that_of_each_node():
    where = parse_queue_url("rediss+cluster://u:p@a:1,b:2?ssl_ca_certs=%2Fetc%2Fca.pem")
    assert where.of_node(("c", 3)).url == "rediss://u:p@c:3?ssl_ca_certs=%2Fetc%2Fca.pem"


def test_authority_of_a_primary_and_of_its_sentinels_are_given_apart():
    where = parse_queue_url(
        "rediss+sentinel://a:1/main?ssl_ca_certs=/ca.pem&sentinel_ssl=true"
        "&sentinel_ssl_ca_certs=/of-sentinels.pem"
    )
    assert where.options == {"ssl": True, "ssl_ca_certs": "/ca.pem", "db": 0}
    assert where.sentinel_options == {"ssl": "true", "ssl_ca_certs": "/of-sentinels.pem"}
