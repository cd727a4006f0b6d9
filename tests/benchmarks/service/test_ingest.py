"""`python -m benchmarks ingest` counts durable batches; speed is not tested."""

import json

import pytest

from benchmarks.service.ingest import Acknowledgements, SendingWorker
from tests.benchmarks.running import run_benchmark

FIGURES = {
    "rows_per_s",
    "requests_per_s",
    "ack_p50_ms",
    "ack_p99_ms",
    "paced_ack_p99_ms",
    "copy_100mb_s",
    "fsync_ms",
}


def test_every_batch_size_prints_one_line():
    command = ["ingest", "--batch-rows=50", "--batch-rows=7", "--seconds=0.2"]
    result = run_benchmark(*command, "--connections=3")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["batch_rows"] for line in lines] == [50, 7]
    for line in lines:
        assert all(line[name] > 0 for name in FIGURES)
        assert line["rows_per_s"] == pytest.approx(line["batch_rows"] * line["requests_per_s"])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}",
        b'HTTP/1.1 409 Conflict\r\n\r\n{"accepted":2,"rejected":0,"errors":[]}',
    ],
)
def test_answer_other_than_202_ends_the_measurement(answer):
    answers = Acknowledgements(2)
    request = bytearray(b"\xa9batch_seq\xcf" + bytes(8))
    SendingWorker(request, answers).data_received(answer)
    assert answers.wrong is not None
    assert answers.finished.is_set()
    assert answers.latency_s == []
