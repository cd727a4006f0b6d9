"""How long after its launch an operation began on the GPU: `launch_lag_us`."""

import numpy as np
import pytest
from paceline_client.recording import cuda
from paceline_client.recording.buffer import Buffer
from paceline_client.recording.op_attributes import MAX_LAUNCH_LAG_US, launch_attributes
from paceline_client.recording.wire import Worker, batch_of, content_encoding, encode

from app.ingest.wire.codec import BINARY_TYPE, decode
from tests.client.conftest import SIZES
from tests.client.recording.cuda.fake_ranks import ranks

US = 1_000
WORKER = Worker(3, 1, 1, "node-1")


@pytest.fixture
def rank(monkeypatch):
    [rank] = ranks(1)
    monkeypatch.setattr(cuda, "perf_counter_ns", rank.clock.now_ns)
    return rank


def recorded(rank, *kernels_us, host_us=10):
    """Operations of one kernel each, launched so far apart; their attributes."""
    for kernel_us in kernels_us:
        with rank.recorder.op("forward-compute", step=1):
            rank.cuda.work(kernel_us * US)
        rank.clock.at_ns += host_us * US
    rank.clock.at_ns += 10**9
    return [about for _, _, _, about in rank.ops()]


def test_an_operation_behind_others_in_the_queue_has_a_lag(rank):
    lags = [about["launch_lag_us"] for about in recorded(rank, 100, 100, 100)]
    assert lags == [0, 80, 176]  # 90 and 180, by 16 us


def test_an_operation_that_the_host_launches_late_has_none(rank):
    lags = [about["launch_lag_us"] for about in recorded(rank, 100, 100, host_us=500)]
    assert lags == [0, 0]


def test_the_longest_lag_stands_for_longer_ones(rank):
    assert launch_attributes(10**12) == {"launch_lag_us": MAX_LAUNCH_LAG_US}


@pytest.mark.parametrize(
    ("lag_us", "sent_us"), [(-5, 0), (15, 0), (100, 96), (1023, 1008), (5555, 5504)]
)
def test_six_bits_of_a_lag_are_sent(lag_us, sent_us):
    assert launch_attributes(lag_us * 1000) == {"launch_lag_us": sent_us}


def test_a_lag_takes_two_bytes_when_sent():
    chance = np.random.default_rng(3)
    ops, start_ns = [], 10**18
    for number in range(2_000):
        took_ns = int(chance.normal(5e6, 1e5))
        about = launch_attributes(int(chance.uniform(0, 1e9)))  # hosts that are up to 1 s ahead
        ops.append((4, "forward-compute", start_ns, took_ns, number, 0, number, about))
        start_ns += took_ns
    batch = batch_of(ops, [])
    with_lags, without = (
        len(encode(WORKER, 1, 0, batch, ["packed", "dictionary", *more]))
        for more in (["launches"], [])
    )
    assert with_lags - without <= 2 * len(ops)


def test_attributes_of_training_are_kept(rank):
    with rank.recorder.op("forward-compute", step=1, tokens=7, launch_lag_us="none"):
        rank.cuda.work(US)
    rank.clock.at_ns += 10**9
    [(*_, about)] = rank.ops()
    assert about == {"tokens": 7}


def test_operations_of_the_host_have_no_launch():
    buffer = Buffer(10, 60.0)
    recorder = cuda_less_recorder(buffer)
    with recorder.op("gc", step=1):
        pass
    taken = buffer.take()
    assert taken is not None
    assert [op[7] for op in taken.ops] == [None]


def cuda_less_recorder(buffer):
    [rank] = ranks(1)
    rank.recorder._cuda = None
    rank.recorder._buffer = buffer
    return rank.recorder


@pytest.mark.parametrize("accepts", [[], ["launches"], ["packed", "dictionary", "launches"]])
def test_lags_are_sent_if_accepted(rank, accepts):
    for _ in range(2):
        with rank.recorder.op("forward-compute", step=1):
            rank.cuda.work(100 * US)
    rank.clock.at_ns += 10**9
    taken = rank.buffer.take()
    assert taken is not None
    batch = batch_of(taken.ops, [])
    body = encode(WORKER, 1, 0, batch, accepts)
    decoded = decode(body, BINARY_TYPE, SIZES, content_encoding=content_encoding(body))
    lags = decoded.batch.columns.launch_lag_us
    assert (None if lags is None else lags.tolist()) == ([0, 96] if accepts else None)
