"""Only durable batches count in `python -m benchmarks ingest`."""

import pytest

from benchmarks.service.ingest import Acknowledgements, SendingWorker


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
