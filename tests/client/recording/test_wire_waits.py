"""Operations of type `wait` and the attribute `contains_waits`: sent if the server accepts them."""

import io

from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer
from paceline_client.recording.wire import Worker, batch_of, encode
from paceline_client.sending.spool_files import read_record, record_of

from app.ingest.wire.codec import BINARY_TYPE, decode
from app.trace.ops import OP_CODES
from tests.client.conftest import SIZES

WORKER = Worker(3, 1, 1, "node-1")


def batches_of_a_step():
    """Two batches of one step, whose backward contains two waits."""
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


def decoded_by_server(batch, accepts):
    body = encode(WORKER, 1, 0, batch, accepts)
    decoded = decode(body, BINARY_TYPE, SIZES)
    assert decoded.rejected == 0
    return decoded.batch


def test_waits_and_contains_waits_are_sent_if_accepted():
    first, last = (decoded_by_server(batch, ["waits"]) for batch in batches_of_a_step())
    names = ("backward-compute", "wait")
    assert sorted(first.columns.optype.tolist()) == sorted(OP_CODES[names[i]] for i in (0, 1, 1))
    is_backward = first.columns.optype == OP_CODES["backward-compute"]
    assert first.columns.contains_waits[is_backward].tolist() == [1]
    assert first.columns.contains_waits[~is_backward].tolist() == [-1, -1]
    assert last.steps_done == ((4, 5),)


def test_server_without_waits_gets_a_complete_step_without_them():
    first, last = (decoded_by_server(batch, []) for batch in batches_of_a_step())
    assert first.columns.optype.tolist() == [OP_CODES["backward-compute"]]
    assert first.columns.contains_waits is None
    assert last.columns.optype.tolist() == [OP_CODES["optimizer"]]
    assert last.steps_done == ((4, 2),)  # the number of operations sent: the step is complete


def test_spool_keeps_the_number_of_waits_of_a_step():
    for batch in batches_of_a_step():
        again = read_record(io.BytesIO(record_of(batch)))
        assert decoded_by_server(again, []).steps_done == decoded_by_server(batch, []).steps_done
