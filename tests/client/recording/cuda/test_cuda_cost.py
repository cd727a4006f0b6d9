"""CUDA calls, objects and memory per recorded operation, counted on the fake GPU."""

import gc
import tracemalloc

import pytest
from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer
from paceline_client.recording.cuda import CudaTiming

from tests.client.recording.cuda.fake_cuda import FakeTorch, Gpu
from tests.client.recording.cuda.fake_ranks import ranks

NUM_OPS = 200
US = 1_000


def record_step(rank, step, num_ops=NUM_OPS):
    """Record a step of that many operations without taking them."""
    with rank.recorder.step(step):
        for _ in range(num_ops):
            with rank.recorder.op("forward-compute"):
                rank.cuda.work(5 * US)
            rank.clock.at_ns += 10 * US


def take_ops(rank):
    rank.clock.at_ns += 1_000 * US
    return rank.ops()


def warm_rank():
    """A rank whose caches are filled by two earlier steps."""
    [rank] = ranks(1)
    for step in range(2):
        record_step(rank, step)
        assert len(take_ops(rank)) == NUM_OPS
    return rank


def test_a_warm_operation_takes_two_records_and_one_query():
    rank = warm_rank()
    rank.cuda.count.clear()
    record_step(rank, 2)
    assert rank.cuda.count == {
        "current_device": 1,  # once per step
        "event recorded": 2 * NUM_OPS,
        "number of the current stream": 2 * NUM_OPS,
    }
    assert len(take_ops(rank)) == NUM_OPS
    assert rank.cuda.count["event queried"] == NUM_OPS
    assert rank.cuda.count["event created"] == 0


def test_pytorch_without_raw_stream_numbers_uses_the_capture_query():
    gpu = Gpu()
    torch = FakeTorch(gpu)
    del torch._C
    buffer = Buffer(100, 60.0)
    run = Recorder(buffer, None, cuda=CudaTiming(torch))
    with run.step(1), run.op("optimizer"):
        torch.cuda.work(US)
    assert torch.cuda.count["event recorded"] == 2
    assert torch.cuda.count["is_current_stream_capturing"] == 2


def test_a_warm_operation_leaves_no_object_behind():
    rank = warm_rank()
    with rank.recorder.step(2):  # creates the step's objects and the type's counter
        with rank.recorder.op("forward-compute"):
            pass
        gc.collect()
        gc.disable()
        try:
            before = len(gc.get_objects())
            for _ in range(NUM_OPS - 1):
                with rank.recorder.op("forward-compute"):
                    pass
            num_new = len(gc.get_objects()) - before
        finally:
            gc.enable()
    num_of_the_fake = 2 * (NUM_OPS - 1)  # one item per record on its stream
    assert num_new - num_of_the_fake <= 1  # the list of the items


@pytest.mark.nightly
def test_memory_does_not_grow_after_operations_are_taken():
    rank = warm_rank()
    files = (tracemalloc.Filter(True, "*/paceline_client/*"),)
    tracemalloc.start()
    try:
        used = []
        for step in range(2, 6):
            record_step(rank, step)
            rank.recorder._states.clear()
            take_ops(rank)
            gc.collect()
            of_client = tracemalloc.take_snapshot().filter_traces(files)
            used.append(sum(each.size for each in of_client.statistics("filename")))
    finally:
        tracemalloc.stop()
    assert used[-1] - used[1] < NUM_OPS  # less than one byte per operation


def test_span_still_referenced_is_not_reused():
    rank = warm_rank()
    with rank.recorder.step(2):
        mine = rank.recorder.begin("optimizer")
        rank.recorder.end(mine)
    assert [op[0] for op in take_ops(rank)] == ["optimizer"]
    with rank.recorder.step(3):
        others = [rank.recorder.begin("forward-compute") for _ in range(NUM_OPS + 5)]
        assert not any(other is mine for other in others)
        rank.recorder.end(mine)  # again: without an operation
        for other in others:
            rank.recorder.end(other)
    assert [op[0] for op in take_ops(rank)] == ["forward-compute"] * (NUM_OPS + 5)


def test_operation_begun_on_a_lagging_stream_is_resolved_later():
    [rank] = ranks(1)
    side = rank.cuda.Stream()
    rank.cuda.work(50 * US, side)
    with rank.recorder.step(1):
        with rank.cuda.stream(side):
            begun = rank.recorder.begin("params-all-gather")
        rank.recorder.end(begun)
    rank.clock.at_ns = 10 * US
    assert rank.ops() == []
    rank.clock.at_ns = 60 * US
    assert [op[0] for op in rank.ops()] == ["params-all-gather"]
    assert rank.recorder.dropped == 0
