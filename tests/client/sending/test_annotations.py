"""Annotations of a recorder: sent in the background, once, by one rank; never in training's way."""

import threading

import pytest
from paceline_client import NULL
from paceline_client.sending import annotations
from paceline_client.sending.annotations import AnnotationOutbox
from paceline_client.sending.retry import Backoff
from paceline_client.sending.transport import Transport, job_path

from app.store import annotations as stored_annotations
from app.store.migrations import migrate
from tests.api import server
from tests.client.conftest import TOKEN
from tests.client.real_servers import serving
from tests.client.recorders import recorder

NOW_NS = 1_790_000_000_000_000_000
REFUSED = b'{"code": "invalid", "detail": "no"}'


@pytest.fixture
def waiting(paceline):
    """An empty outbox."""
    transport = Transport(paceline.url, TOKEN)
    yield AnnotationOutbox(transport, "my job", Backoff(0.0, 0.0))
    transport.close()


def test_recorder_sends_an_annotation_with_the_current_step_and_time(paceline):
    run = recorder(paceline.url, rank=0, dp_rank=0, stage=0)
    with run.step(7):
        run.annotate("checkpoint", "to\nS3")
    run.annotate("deploy", "v1.4", step=9, host="host-043")
    paceline.wait_for(lambda: len(paceline.annotations) == 2)
    first, second = paceline.annotations
    assert (first["kind"], first["text"], first["step"]) == ("checkpoint", "to S3", 7)
    assert (second["step"], second["host"], second["source"]) == (9, "host-043", "client")
    assert first["at"].endswith("Z")
    assert first["idempotency_key"] != second["idempotency_key"]


def test_only_rank_0_sends_what_every_rank_reports(paceline):
    run = recorder(paceline.url)  # rank 3
    run.annotate("checkpoint")
    run.annotate("note", "of this rank", on_every_rank=True)
    paceline.wait_for(lambda: paceline.annotations)
    assert [each["text"] for each in paceline.annotations] == ["of this rank"]


def test_annotation_is_retried_with_the_same_key_until_it_is_stored(paceline, waiting):
    paceline.annotation_answers += [
        (404, b'{"code": "job_not_found"}', {}),  # not registered yet
        (503, b"{}", {}),
        (0, b"no HTTP", {}),
    ]
    waiting.add("deploy", "v1", at_ns=NOW_NS)
    waiting.add("deploy", "v2", at_ns=NOW_NS)
    while len(paceline.annotations) < 5:
        waiting.poll()
    keys = [each["idempotency_key"] for each in paceline.annotations]
    assert len(set(keys[:4])) == 1
    assert [each["text"] for each in paceline.annotations] == ["v1", "v1", "v1", "v1", "v2"]
    assert waiting.dropped == 0


def test_refused_annotation_is_dropped_and_the_next_one_sent(paceline, waiting, caplog):
    paceline.annotation_answers += [(422, REFUSED, {})]
    waiting.add("party", "v1", at_ns=NOW_NS)
    waiting.add("deploy", "v2", at_ns=NOW_NS)
    waiting.poll()
    assert [each["text"] for each in paceline.annotations] == ["v1", "v2"]
    assert waiting.dropped == 1
    assert "an annotation was dropped: 422: no" in caplog.text


def test_waiting_annotations_are_limited(monkeypatch):
    waiting = AnnotationOutbox(Transport("http://127.0.0.1:9", TOKEN), "my job")
    for number in range(annotations.MAX_WAITING + 3):
        waiting.add("note", str(number), at_ns=NOW_NS)
    assert waiting.dropped == 3
    monkeypatch.setattr(annotations, "MAX_ATTEMPTS", 1)
    waiting.poll()  # nobody listens
    assert waiting.dropped == 4


@pytest.mark.parametrize("wrong", [{"step": "seven"}, {"step": -1.5}])
def test_annotate_never_raises(paceline, wrong):
    run = recorder(paceline.url, rank=0, dp_rank=0, stage=0)
    run.annotate("deploy", **wrong)
    run.annotate(object(), object())
    NULL.annotate("deploy", "v1")


def test_annotate_does_not_wait_for_a_server_that_hangs(paceline):
    run = recorder(paceline.url, rank=0, dp_rank=0, stage=0)
    paceline.wait_for(lambda: paceline.puts)
    with paceline.changed:  # the server answers nothing meanwhile
        reporting = threading.Thread(
            target=lambda: [run.annotate("note", str(number)) for number in range(100)]
        )
        reporting.start()
        reporting.join(10.0)
        assert not reporting.is_alive()


def test_the_api_stores_what_the_outbox_sends(tmp_path):
    database = tmp_path / "paceline.db"
    migrate(f"sqlite:///{database}")
    with serving(database) as (url, api):
        transport = Transport(url, server.TOKEN)
        transport.request("PUT", job_path("llm-70b"), server.JOB, "application/json")
        waiting = AnnotationOutbox(transport, "llm-70b", Backoff(0.0, 0.0))
        waiting.add("config-change", "lr 3e-4 \N{SNOWMAN}", at_ns=int(server.NOW_S * 1e9), step=4)
        waiting.poll()
        with api.store.read() as conn:
            [found] = stored_annotations.of_job(conn, server.KEY)
        transport.close()
    assert (found.kind, found.text, found.step) == ("config-change", "lr 3e-4 \N{SNOWMAN}", 4)
    assert (found.at_s, found.epoch) == (server.NOW_S, 1)
