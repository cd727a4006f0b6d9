"""GPU times are resolved later and never waited for; the fake GPU keeps a contract with torch."""

import sys
import threading
import time

import pytest
from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import ROUNDING_NS, Buffer, PendingOp
from paceline_client.recording.cuda import CudaTiming, cuda_timing

from tests.client.recorders import WITHIN_S, recorder
from tests.client.recording.cuda.fake_cuda import FakeTorch, Gpu

MS = 10**6
ROUNDED_NS = 2 * ROUNDING_NS


def take_resolved(buffer, num_ops):
    """Take from the buffer until it has given that many operations."""
    ops: list = []
    done: list = []
    until_s = time.monotonic() + WITHIN_S
    while len(ops) < num_ops:
        assert time.monotonic() < until_s
        taken = buffer.take()
        if taken is not None:
            ops += taken.ops
            done += taken.steps_done
    return ops, done


def event_times(buffer):
    """True begin and end of every operation on the fake GPU.

    The time between two calls of the training thread is not fixed.
    """
    return [(span._begin._at_ns, span._end._at_ns) for span in buffer.items]


def find_anchor(timing):
    """Poll until an anchor is found; a busy machine fails single tries."""
    assert timing.is_usable()
    until_s = time.monotonic() + WITHIN_S
    while timing._anchor is None:
        assert time.monotonic() < until_s
        timing._next_anchor_s = 0.0
        timing.poll()
    return timing._anchor


def gpu_recorder(**changes):
    gpu = Gpu(**changes)
    torch = FakeTorch(gpu)
    timing, buffer = CudaTiming(torch), Buffer(1000, 60.0)
    return gpu, torch, timing, buffer, Recorder(buffer, None, cuda=timing)


def test_operation_duration_is_its_time_on_the_gpu():
    gpu, torch, timing, buffer, run = gpu_recorder()
    anchor = find_anchor(timing)
    with run.op("forward-compute", step=3, microbatch=1, chunk=0, tokens=8):
        torch.cuda.work(20 * MS)
    with run.op("backward-compute", step=3, microbatch=1) as op:
        torch.cuda.work(30 * MS)
        op.tell(tokens=9)
    moments = event_times(buffer)
    run.step_done(3)
    ops, done = take_resolved(buffer, 2)
    assert [(op[0], op[1], op[4], op[5], op[6], op[7]["tokens"]) for op in ops] == [
        (3, "forward-compute", 0, 0, 1, 8),
        (3, "backward-compute", 0, -1, 1, 9),
    ]
    for op, (begin_ns, end_ns), worked_ns in zip(ops, moments, (20 * MS, 30 * MS), strict=True):
        assert end_ns - begin_ns >= worked_ns
        assert op[3] == pytest.approx(end_ns - begin_ns, abs=ROUNDED_NS)
        started_ns = run._epoch_ns + gpu.host_ns(begin_ns)
        assert op[2] == pytest.approx(started_ns, abs=anchor.width_ns + 10_000)
    assert done == [(3, 2)]


def test_anchor_is_unaffected_by_queued_work():
    gpu, torch, timing, _, _ = gpu_recorder()
    torch.cuda.work(3_600_000 * MS)  # the current stream is busy for an hour
    anchor = find_anchor(timing)
    true_ns = gpu.host_ns(anchor.event._at_ns)
    assert abs(anchor.host_ns - true_ns) <= anchor.width_ns


def test_gpu_times_are_resolved_while_the_server_is_unreachable():
    gpu, torch, timing, _, _ = gpu_recorder()
    run = recorder("http://127.0.0.1:1")
    run._cuda = timing
    find_anchor(timing)
    until_s = time.monotonic() + WITHIN_S
    with run.step(1), run.op("gc"):
        pass
    while run._sender._outbox.has_room:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    with run.op("forward-compute", step=2):
        torch.cuda.work(MS)
    with run.op("backward-compute", step=2):
        torch.cuda.work(MS)
    while not all(isinstance(item, tuple) for item in list(run._buffer.items)):
        assert time.monotonic() < until_s
        time.sleep(0.001)
    gpu.hangs = True
    assert [op[1] for op in run._buffer._drained().ops] == ["forward-compute", "backward-compute"]
    run.close(0.1)


def test_hung_gpu_work_is_dropped_without_blocking(caplog):
    gpu, torch, _, buffer, run = gpu_recorder()
    gpu.hangs = True
    with run.step(1):
        with run.op("forward-compute"):
            torch.cuda.work(MS)
        with run.op("gc"):
            pass
    assert buffer.take() is None  # in order: later operations do not overtake it
    buffer.abandon()
    assert run.dropped_reasons == {"not delivered before the end": 2}


class PendingSpan(PendingOp):
    """A pending operation that the test completes."""

    def __init__(self, step, number):
        self.step, self.number, self.is_over = step, number, False

    def resolved(self):
        return (self.step, "gc", 1000, 1000, self.number, -1, -1, None) if self.is_over else None


def test_gpu_operations_of_a_step_are_sent_in_one_batch():
    buffer, spans = Buffer(1000, 60.0), [PendingSpan(7, 0), PendingSpan(7, 1), PendingSpan(8, 0)]
    buffer.add(spans[0])
    buffer.add(spans[1])
    buffer.step_done(7)
    buffer.add(spans[2])
    spans[0].is_over = True
    assert buffer.take() is None
    spans[1].is_over = True
    taken = buffer.take()
    assert taken is not None
    assert [op[4] for op in taken.ops] == [0, 1]
    assert taken.steps_done == [(7, 2)]


def test_resolved_operations_of_an_unresolved_step_count_as_dropped():
    buffer, spans = Buffer(1000, 60.0), [PendingSpan(7, 0), PendingSpan(7, 1)]
    buffer.add(spans[0])
    buffer.add(spans[1])
    spans[0].is_over = True
    assert buffer.take() is None
    buffer.abandon()
    assert buffer.dropped_reasons == {"not delivered before the end": 2}


def test_host_operations_use_the_host_clock():
    _, torch, _, buffer, run = gpu_recorder()
    with run.step(1), run.op("gc"):
        pass
    assert torch.cuda.num_events == 0
    assert len(buffer.take().ops) == 1


def test_cuda_is_not_initialised_by_recording():
    gpu = Gpu()
    torch = FakeTorch(gpu, is_initialized=False)
    buffer = Buffer(100, 60.0)
    run = Recorder(buffer, None, cuda=CudaTiming(torch))
    with run.step(1), run.op("optimizer"):
        pass
    assert torch.cuda.num_events == 0
    torch.cuda.initialized = True
    with run.step(2), run.op("optimizer"):
        torch.cuda.work(5 * MS)
    ops, _ = take_resolved(buffer, 2)
    assert torch.cuda.num_events >= 2
    assert ops[1][3] >= 5 * MS - ROUNDED_NS


def test_graph_capture_uses_the_host_clock_and_queries_no_events():
    _, torch, timing, buffer, run = gpu_recorder()
    find_anchor(timing)
    with run.step(1):
        with run.op("optimizer"):
            torch.cuda.work(MS)
        with torch.cuda.graph():
            with run.op("optimizer"):
                pass
            assert buffer.take() is None  # a query would end the capture
        with run.op("optimizer"):
            torch.cuda.work(MS)
    ops, _ = take_resolved(buffer, 3)
    assert [op[4] for op in ops] == [0, 1, 2]


def test_failed_event_drops_only_its_own_operation(caplog):
    _, torch, timing, buffer, run = gpu_recorder()
    with run.step(1):
        with run.op("optimizer"):
            torch.cuda.work(MS)
        broken = buffer.items[0]
        broken._begin.elapsed_time = None  # a broken event
        with run.op("forward-compute"):
            torch.cuda.work(MS)
    ops, done = take_resolved(buffer, 1)
    assert [op[1] for op in ops] == ["forward-compute"]
    assert done == []
    assert run.dropped_reasons == {"no time from the GPU": 1}

    def refuse(stream=None):
        raise RuntimeError("an illegal memory access was encountered")

    timing._free[:] = []
    torch.cuda.Event.record = refuse
    with run.step(2), run.op("optimizer"):
        pass
    assert [op[1] for op in buffer.take().ops] == ["optimizer"]  # by the host's clock
    assert "the host's clock is used" in caplog.text


def test_operations_after_set_device_are_timed_on_the_new_gpu(caplog):
    _, torch, timing, buffer, run = gpu_recorder()
    find_anchor(timing)
    with run.step(1), run.op("optimizer"):
        torch.cuda.work(MS)
    with run.step(2):
        with run.op("optimizer"):
            torch.cuda.work(MS)
        torch.cuda.set_device(3)
    with run.step(3), run.op("optimizer"):
        torch.cuda.work(5 * MS)
    until_s = time.monotonic() + WITHIN_S
    ops: list = []
    while not any(op[0] == 3 for op in ops):
        assert time.monotonic() < until_s
        taken = buffer.take()
        ops += taken.ops if taken is not None else []
    assert ops[-1][3] >= 5 * MS - ROUNDED_NS
    assert run.dropped_reasons == {
        "no time from the GPU": 2
    }  # of the previous GPU, whose clock is lost
    with run.step(4), run.op("optimizer"):  # with events of the new GPU
        torch.cuda.work(MS)
    assert take_resolved(buffer, 1)[0][0][0] == 4
    assert caplog.messages == []


def test_sender_thread_resolves_gpu_times(paceline, monkeypatch):
    torch = FakeTorch(Gpu())
    monkeypatch.setitem(sys.modules, "torch", torch)
    resolving = set()
    elapsed = torch.cuda.Event.elapsed_time

    def watched(self, other):
        resolving.add(threading.current_thread().name)
        return elapsed(self, other)

    torch.cuda.Event.elapsed_time = watched  # type: ignore[method-assign]
    run = recorder(paceline.url, gpu_readings=False)
    for step in range(3):
        with run.step(step), run.op("optimizer"):
            torch.cuda.work(4 * MS)
    assert run.flush(WITHIN_S)
    run.close()
    assert resolving == {"paceline-sender"}
    durations = [ns for batch in paceline.batches for ns in batch.columns.duration_ns.tolist()]
    assert len(durations) == 3
    assert min(durations) >= 4 * MS - ROUNDED_NS
    assert paceline.steps_done == [(0, 1), (1, 1), (2, 1)]


def test_timing_option_selects_the_clock(monkeypatch, caplog):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert cuda_timing("auto") is None
    assert caplog.messages == []
    assert cuda_timing("cuda") is None
    assert "import torch first" in caplog.text
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(Gpu()))
    assert cuda_timing("host") is None
    assert isinstance(cuda_timing("auto"), CudaTiming)
    assert isinstance(cuda_timing("cuda"), CudaTiming)
    cuda_timing("wrong")
    assert "timing is 'wrong'" in caplog.text


def real_torch():
    torch = pytest.importorskip("torch", reason="no PyTorch here: the fake's contract stands alone")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA here: the fake's contract stands alone")
    torch.cuda.init()
    return torch


def fake_torch():
    return FakeTorch(Gpu())


# Without CUDA the real one is imported, which takes seconds, only to be skipped.
fake_and_real = pytest.mark.parametrize(
    "make_torch", [fake_torch, pytest.param(real_torch, marks=pytest.mark.nightly)]
)


@fake_and_real
class TestContract:
    """Assumptions of the recorder, checked on the fake and on PyTorch with a GPU."""

    def test_recorded_events_complete_and_times_are_milliseconds(self, make_torch):
        cuda = make_torch().cuda
        first, second = (cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        second.record()
        until_s = time.monotonic() + WITHIN_S
        while not (first.query() and second.query()):
            assert time.monotonic() < until_s
        assert 0.0 <= first.elapsed_time(second) < WITHIN_S * 1e3
        assert second.elapsed_time(first) <= 0.0  # equal times are allowed

    def test_unrecorded_event_has_no_elapsed_time(self, make_torch):
        cuda = make_torch().cuda
        with pytest.raises((RuntimeError, ValueError)):
            cuda.Event(enable_timing=True).elapsed_time(cuda.Event(enable_timing=True))

    def test_anchor_is_found(self, make_torch):
        cuda = make_torch().cuda
        timing = CudaTiming(type("Torch", (), {"cuda": cuda}))
        assert find_anchor(timing).width_ns > 0

    def test_stream_capture_state_can_be_queried(self, make_torch):
        assert make_torch().cuda.is_current_stream_capturing() is False
