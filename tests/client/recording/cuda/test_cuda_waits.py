"""Recorded and marked waits of the compute stream on the fake GPU.

The fakes follow the source of PyTorch: FSDP2's groups as in `torch.distributed.fsdp._fully_shard`,
DDP's last callback as in its reducer.
"""

import functools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from paceline_client.integrations import ddp, fsdp2, torch_pipeline
from paceline_client.integrations.computing import current_computation

from tests.client.recording.cuda.fake_cuda import Occurrence
from tests.client.recording.cuda.fake_ranks import ranks
from tests.torch.test_hooks import Schedule, Stage

US = 1_000
ON_GPU = SimpleNamespace(device=SimpleNamespace(type="cuda"))


class ParamGroup:
    """A layer's parameters: gathered on one stream, used on another, reduced on a third."""

    def __init__(self, model):
        self.model = model
        self._all_gather_comm: Any = None
        self._reduce_scatter_comm: Any = None
        self.gathered = None

    def unshard(self, occurrence):
        cuda = self.model.cuda
        with cuda.stream(self.model.gathers):
            self._all_gather_comm(input_tensor=ON_GPU, occurrence=occurrence)
            self.gathered = self.model.gathers.record_event()

    def wait_for_unshard(self):
        self.model.cuda.current.wait_event(self.gathered)
        self.model.cuda.copy(20 * US)  # out of the gather's buffer

    def post_backward(self, occurrence):
        cuda, model = self.model.cuda, self.model
        if model.reduced is not None:
            cuda.current.wait_event(model.reduced)
        self._reduce_scatter_comm.allocate()
        cuda.copy(10 * US)  # into the scatter's buffer
        model.scatters.wait_stream(cuda.current)
        with cuda.stream(model.scatters):
            self._reduce_scatter_comm(input_tensor=ON_GPU, occurrence=occurrence)
            model.reduced = model.scatters.record_event()


class Sharded:
    """A module under FSDP2; the first of its list is the root."""

    def __init__(self, rank, layers=()):
        self.cuda = rank.cuda
        self.layers = layers
        self.gathers, self.scatters = rank.cuda.Stream(), rank.cuda.Stream()
        self.reduced = None
        self.group: Any = ParamGroup(self)
        self.state = SimpleNamespace(
            _fsdp_param_groups=[self.group],
            _root_post_backward_final_callback=self._final_callback,
        )

    def _final_callback(self):
        self.cuda.current.wait_event(self.reduced)

    def modules(self):
        return [self, *self.layers]

    def _get_fsdp_state(self):
        return self.state

    def set_custom_all_gather(self, comm):
        self.group._all_gather_comm = comm

    def set_custom_reduce_scatter(self, comm):
        self.group._reduce_scatter_comm = comm


class Comm:
    """NCCL's part of a collective."""

    def __init__(self, cuda):
        self.cuda = cuda

    def allocate(self):
        pass

    def __call__(self, input_tensor, occurrence):
        self.cuda.collective(occurrence)


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    fsdp = SimpleNamespace(FSDPModule=Sharded)
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", fsdp)


def sharded(rank):
    model = Sharded(rank)
    comm = Comm(rank.cuda)
    assert fsdp2.attach(rank.recorder, model, computes=False, all_gather=comm, reduce_scatter=comm)
    return model


def of_type(rank, optype):
    """Start and duration in us of each operation of the type."""
    return [(start / US, ns / US) for name, start, ns, _ in rank.ops() if name == optype]


def advanced(rank, us=10_000):
    rank.clock.at_ns += us * US
    return rank


def approx_us(*pairs):
    """Pairs within the rounding of recorded times."""
    return [pytest.approx(pair, abs=0.3) for pair in pairs]


def test_wait_for_a_gather_ends_with_the_gather():
    fast, slow = ranks(2)
    gather = Occurrence(2, 30 * US)
    models = [sharded(rank) for rank in (fast, slow)]
    slow.cuda.work(500 * US, models[1].gathers)  # comes 500 us late
    for rank, model in zip((fast, slow), models, strict=True):
        with rank.recorder.step(1), rank.recorder.op("forward-compute"):
            rank.cuda.work(100 * US)
            model.group.unshard(gather)
            model.group.wait_for_unshard()
            rank.cuda.work(100 * US)
    # Its computation ends at 100 us, the gather at 530 us; the copy out of it is no wait.
    assert of_type(advanced(fast), "wait") == approx_us((100, 430))
    assert fast.recorder.dropped == 0


def test_wait_shorter_than_the_event_overhead_is_not_recorded():
    [rank] = ranks(1)
    model = sharded(rank)
    with rank.recorder.step(1):
        model.group.unshard(Occurrence(1, 30 * US))
        rank.cuda.work(30 * US - 500)
        model.group.wait_for_unshard()
    assert of_type(advanced(rank), "wait") == []


def backward_of_two_layers(rank, model, scatters):
    with rank.recorder.step(1), rank.recorder.op("backward-compute"):
        for scatter in scatters:
            rank.cuda.work(100 * US)
            model.group.post_backward(scatter)
        model._get_fsdp_state()._root_post_backward_final_callback()


def test_scatter_waits_are_recorded_before_the_next_and_at_the_end():
    fast, slow = ranks(2)
    scatters = [Occurrence(2, 30 * US), Occurrence(2, 30 * US)]
    models = [sharded(rank) for rank in (fast, slow)]
    slow.cuda.work(300 * US, models[1].scatters)
    for rank, model in zip((fast, slow), models, strict=True):
        backward_of_two_layers(rank, model, scatters)
    # The first scatter is posted at 110 us and over at 330 us: awaited from 210 us on. The second
    # is posted at 340 us, right behind it, and awaited at once.
    assert of_type(advanced(fast), "wait") == approx_us((210, 120), (340, 30))


def test_late_host_records_no_wait():
    [rank] = ranks(1)
    model = sharded(rank)
    with rank.recorder.step(1):
        model.group.post_backward(Occurrence(1, 30 * US))
        rank.clock.at_ns += 500 * US  # Python time, long after the scatter
        model.group.post_backward(Occurrence(1, 30 * US))
        rank.clock.at_ns += 500 * US
        model._get_fsdp_state()._root_post_backward_final_callback()
    assert of_type(advanced(rank), "wait") == []


def test_pytorch_without_the_wait_methods_records_no_waits():
    [rank] = ranks(1)
    model = Sharded(rank)
    model.group = SimpleNamespace(_all_gather_comm=None, _reduce_scatter_comm=None)
    model.state = SimpleNamespace(_fsdp_param_groups=[model.group])
    comm = Comm(rank.cuda)
    assert fsdp2.attach(rank.recorder, model, computes=False, all_gather=comm, reduce_scatter=comm)
    with rank.recorder.step(1):
        model.group._all_gather_comm(input_tensor=ON_GPU, occurrence=Occurrence(1, US))
    assert [name for name, *_ in advanced(rank).ops()] == ["params-all-gather"]


class Autograd:
    """Callbacks at the end of a backward, including those queued by callbacks."""

    def __init__(self):
        self.queued = []

    def queue_callback(self, call):
        self.queued.append(call)

    def finish(self):
        while self.queued:
            self.queued.pop(0)()


class Future:
    """NCCL's future: callbacks run at once, on a stream that waits for the collective."""

    def __init__(self, cuda, stream):
        self.cuda, self.stream = cuda, stream

    def then(self, call):
        with self.cuda.stream(self.stream):
            call(self)
        return self

    def value(self):
        return [None]


class DdpModel:
    """A model under DDP with one or several buckets."""

    def __init__(self, rank, autograd):
        self.cuda, self.autograd = rank.cuda, autograd
        self.nccl, self.after = rank.cuda.Stream(), rank.cuda.Stream()
        self.hook: Any = None
        self.process_group = None

    def register_comm_hook(self, state, hook):
        self.hook = functools.partial(hook, state)

    def reduce(self, _state, bucket):
        self.nccl.wait_stream(self.cuda.current)
        self.cuda.collective(bucket.occurrence, self.nccl)
        self.after.wait_stream(self.nccl)
        return Future(self.cuda, self.after)

    def bucket_is_full(self, occurrence, *, is_last):
        bucket = SimpleNamespace(is_last=lambda: is_last, occurrence=occurrence)
        self.hook(bucket)
        if is_last:
            self.autograd.queue_callback(lambda: self.cuda.current.wait_stream(self.nccl))


def step_of_ddp(rank, monkeypatch, buckets, us=100):
    autograd = Autograd()
    module = SimpleNamespace(Variable=SimpleNamespace(_execution_engine=autograd))
    monkeypatch.setitem(sys.modules, "torch.autograd", module)
    model = DdpModel(rank, autograd)
    assert ddp.attach(rank.recorder, model, computes=False, hook=model.reduce)
    around = current_computation(rank.recorder)
    with rank.recorder.step(1):
        around.begin("forward-compute")
        rank.cuda.work(50 * US)
        around.end()
        around.begin("backward-compute")
        for number, occurrence in enumerate(buckets):
            rank.cuda.work(us * US)
            model.bucket_is_full(occurrence, is_last=number == len(buckets) - 1)
        autograd.finish()
        with rank.recorder.op("optimizer"):
            rank.cuda.work(10 * US)


def times_by_type(rank):
    return {name: (start / US, ns / US) for name, start, ns, _ in advanced(rank).ops()}


def test_ddp_wait_for_the_last_bucket_follows_the_backward(monkeypatch):
    fast, slow = ranks(2)
    buckets = [Occurrence(2, 30 * US), Occurrence(2, 30 * US)]
    step_of_ddp(fast, monkeypatch, buckets)
    step_of_ddp(slow, monkeypatch, buckets, us=180)
    times = times_by_type(fast)
    assert times["backward-compute"] == pytest.approx((50, 200), abs=0.3)
    # The slow rank's last bucket begins at 410 us.
    assert times["wait"] == pytest.approx((250, 190), abs=0.3)
    assert times["optimizer"] == pytest.approx((440, 10), abs=0.3)


def test_backward_with_hidden_waits_on_one_hardware_queue_is_marked(monkeypatch):
    fast, slow = ranks(2, holds=True)
    buckets = [Occurrence(2, 30 * US), Occurrence(2, 30 * US)]
    step_of_ddp(fast, monkeypatch, buckets)
    step_of_ddp(slow, monkeypatch, buckets, us=180)
    ops = {name: (ns / US, attributes) for name, _, ns, attributes in advanced(fast).ops()}
    # Its second layer waits from 150 us to 230 us behind the first bucket's kernel.
    assert ops["backward-compute"][0] == pytest.approx(280, abs=0.3)
    assert ops["backward-compute"][1]["contains_waits"] == 1
    assert "contains_waits" not in ops["forward-compute"][1]
    assert ops["wait"][0] == pytest.approx(110, abs=0.3)


def test_pipeline_computation_during_a_send_is_marked(monkeypatch):
    found = SimpleNamespace(
        _batch_p2p=lambda ops, desc=None: [Work() for _ in ops],
        _wait_batch_p2p=lambda works: [work.wait() for work in works],
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining.schedules", found)

    def script(stage, module):
        sent = module._batch_p2p(stage.get_fwd_send_ops(0))
        stage.forward_one_chunk(1)
        module._wait_batch_p2p(sent)
        stage.forward_one_chunk(2)
        module._batch_p2p(stage.get_fwd_send_ops(2))  # not waited for in this step

    [rank] = ranks(1)
    schedule = Schedule(Stage(), found, script)
    torch_pipeline.attach(rank.recorder, schedule)
    for step in range(2):
        with rank.recorder.step(step):
            schedule.step()
    marks = [about for name, _, _, about in advanced(rank).ops() if name == "forward-compute"]
    assert [mark.get("contains_waits") for mark in marks] == [1, None] * 2


class Work:
    def wait(self):
        pass
