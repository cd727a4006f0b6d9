"""Waits of PyTorch's FSDP2 and DDP as seen by the hooks, on the CPU in one process.

The process group is PyTorch's fake one, whose collectives do nothing, and the GPU is our fake. The
tests check when waits begin and end, not how long they take (see tests/client/recording/cuda).
"""

import pytest
from paceline_client.integrations import ddp, fsdp2
from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer
from paceline_client.recording.cuda import CudaSpan, CudaTiming

from tests.client.recording.cuda.fake_cuda import FakeTorch, Gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dist = pytest.importorskip("torch.distributed")
NUM_LAYERS = 3


@pytest.fixture
def group():
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def events(monkeypatch):
    """Log of begins and ends, in order."""
    log: list[str] = []
    enter, leave, end_with = CudaSpan.__enter__, CudaSpan.__exit__, CudaSpan.end_with

    def begins(span):
        log.append(f"{span.optype} begins")
        return enter(span)

    def ends(span, *error):
        log.append(f"{span.optype} ends")
        return leave(span, *error)

    def ended_with(span, cap, *, at_once=False):
        if at_once:
            log.append(f"{span.optype} for {cap.optype} ends")
        return end_with(span, cap, at_once=at_once)

    monkeypatch.setattr(CudaSpan, "__enter__", begins)
    monkeypatch.setattr(CudaSpan, "__exit__", ends)
    monkeypatch.setattr(CudaSpan, "end_with", ended_with)
    return log


def fake_gpu_recorder():
    return Recorder(Buffer(1000, 60.0), None, cuda=CudaTiming(FakeTorch(Gpu())))


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(NUM_LAYERS)])


def test_fsdp2_waits_for_each_gather_and_for_each_scatter(group, events):
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    mesh = pytest.importorskip("torch.distributed.device_mesh").init_device_mesh("cpu", (2,))
    recorder, model = fake_gpu_recorder(), layers()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for _ in ("once", "and once more, which changes nothing"):
        assert fsdp2.attach(recorder, model)
    with recorder.step(1):
        model(torch.ones(4, 8)).sum().backward()
    gathered = ["params-all-gather begins", "params-all-gather ends"]
    awaited = ["wait begins", "wait for params-all-gather ends"]
    scattered = ["grads-reduce-scatter begins", "grads-reduce-scatter ends"]
    without_computations = [each for each in events if "compute" not in each]
    forward, backward = (
        without_computations[: 4 * NUM_LAYERS],
        without_computations[4 * NUM_LAYERS :],
    )
    assert forward == (gathered + awaited) * NUM_LAYERS
    # The last layer's gather, then the next one's prefetch; each scatter but the first waits.
    assert backward[:4] == gathered + awaited
    assert backward.count("wait for params-all-gather ends") == NUM_LAYERS
    assert [each for each in backward if each in scattered] == scattered * NUM_LAYERS
    assert backward.count("wait ends") == NUM_LAYERS  # before two scatters, and at the end
    assert recorder.dropped == 0
    assert events.index("forward-compute ends") < events.index("backward-compute begins")


def immediate_reduce_hook(_state, bucket):
    """A communication hook, as DDP cannot use the fake group's result."""
    future = torch.futures.Future()
    future.set_result(2 * bucket.buffer())
    return future


def test_ddp_waits_for_its_last_bucket_after_the_backward(group, events, monkeypatch):
    recorder = fake_gpu_recorder()
    model = torch.nn.parallel.DistributedDataParallel(layers())
    assert ddp.attach(recorder, model, hook=immediate_reduce_hook)
    [first, *_] = model.parameters()
    seen = []
    end_with = CudaSpan.end_with

    def watched(span, cap, *, at_once=False):
        seen.append(first.grad.clone())
        return end_with(span, cap, at_once=at_once)

    monkeypatch.setattr(CudaSpan, "end_with", watched)
    with recorder.step(1):
        model(torch.ones(4, 8)).sum().backward()
    assert events[-3:] == [
        "backward-compute ends",
        "wait begins",
        "wait for grads-reduce-scatter ends",
    ]
    torch.testing.assert_close(first.grad, 2 * seen[0])  # ran before DDP's own last callback
    assert recorder.dropped == 0
