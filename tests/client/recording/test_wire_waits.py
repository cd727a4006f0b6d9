"""Operations of type `wait` and the mark `contains_waits`: sent where the server knows them."""

import io

from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer
from paceline_client.recording.wire import Worker, batch_of, encode
from paceline_client.sending.spool_files import read_record, record_of

from app.ingest.wire.codec import BINARY_TYPE, decode
from app.trace.ops import OP_CODES
from tests.client.conftest import SIZES

WORKER = Worker(3, 1, 1, "node-1")
MARKED = {"contains_waits": 1}


def recorded():
    """The batches of a step whose backward is interrupted twice, in two parts."""
    buffer = Buffer(100, 60.0)
    run = Recorder(buffer, None)
    with run.step(4):
        with run.op("backward-compute", contains_waits=1):
            for _ in range(2):
                with run.op("wait"):
                    pass
        first = buffer.take()
        with run.op("wait"):
            pass
        with run.op("optimizer"):
            pass
    last = buffer.take()
    assert first is not None
    assert last is not None
    return [
        batch_of(each.ops, each.steps_done, each.step_kinds, waits_done=each.waits_done)
        for each in (first, last)
    ]


def as_sent(batch, accepts):
    body = encode(WORKER, 1, 0, batch, accepts)
    decoded = decode(body, BINARY_TYPE, SIZES)
    assert decoded.rejected == 0
    return decoded.batch


def test_waits_and_contains_waits_are_sent_if_accepted():
    first, last = (as_sent(batch, ["waits"]) for batch in recorded())
    names = ("backward-compute", "wait")
    assert sorted(first.columns.optype.tolist()) == sorted(OP_CODES[names[i]] for i in (0, 1, 1))
    is_backward = first.columns.optype == OP_CODES["backward-compute"]
    assert first.columns.contains_waits[is_backward].tolist() == [1]
    assert first.columns.contains_waits[~is_backward].tolist() == [-1, -1]
    assert last.steps_done == ((4, 5),)


def test_server_without_waits_gets_a_complete_step_without_them():
    first, last = (as_sent(batch, []) for batch in recorded())
    assert first.columns.optype.tolist() == [OP_CODES["backward-compute"]]
    assert first.columns.contains_waits is None
    assert last.columns.optype.tolist() == [OP_CODES["optimizer"]]
    assert last.steps_done == ((4, 2),)  # as many as it has got: the step is complete


def test_spool_keeps_the_number_of_waits_of_a_step():
    for batch in recorded():
        again = read_record(io.BytesIO(record_of(batch)))
        assert as_sent(again, []).steps_done == as_sent(batch, []).steps_done
