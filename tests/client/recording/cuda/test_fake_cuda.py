"""Semantics of the fake GPU: streams, waits, collectives, one hardware queue."""

from tests.client.recording.cuda.fake_cuda import Clock, FakeTorch, Gpu, Occurrence, World
from tests.client.recording.cuda.test_cuda import fake_and_real

US = 1_000


def gpus(number, **kwargs):
    """GPUs of one world with a stopped clock: everything is launched at 0."""
    world = World(Clock())
    found = [FakeTorch(Gpu(0, 0, world, **kwargs)).cuda for _ in range(number)]
    return world, found


def starts(world, *items):
    world.run()
    return [item.start_ns // US for item in items]


def test_collective_ends_one_transfer_after_its_last_member_starts():
    world, (fast, slow) = gpus(2)
    slow.work(70 * US)
    reduce = Occurrence(2, 5 * US)
    items = [cuda.collective(reduce) for cuda in (fast, slow)]
    after = [cuda.work(US) for cuda in (fast, slow)]
    assert starts(world, *items, *after) == [0, 70, 75, 75]


def test_one_hardware_queue_holds_kernels_behind_a_collective():
    world, (fast, slow) = gpus(2, holds=True)
    reduce = Occurrence(2, 5 * US)
    slow.work(70 * US)
    side = slow.Stream()
    side.wait_stream(slow.current)
    slow.collective(reduce, side)
    fast.collective(reduce, fast.Stream())
    assert starts(world, fast.work(10 * US)) == [70]


@fake_and_real
class TestContract:
    """Assumptions of wait recording in addition to `test_cuda.TestContract`."""

    def test_only_the_default_stream_has_number_0(self, make_torch):
        torch = make_torch()
        assert torch._C._cuda_getCurrentRawStream(0) == 0
        with torch.cuda.stream(torch.cuda.Stream()):
            assert torch._C._cuda_getCurrentRawStream(0) != 0
        assert torch._C._cuda_getCurrentRawStream(0) == 0

    def test_event_is_recorded_on_the_given_stream(self, make_torch):
        cuda = make_torch().cuda
        side, event, after = cuda.Stream(), *(cuda.Event(enable_timing=True) for _ in range(2))
        event.record(side)
        cuda.current_stream(0).wait_event(event)
        after.record(cuda.current_stream(0))
        while not after.query():
            pass
        assert event.query()
        assert event.elapsed_time(after) >= 0.0
