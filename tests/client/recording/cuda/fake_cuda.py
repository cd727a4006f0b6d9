"""A fake torch.cuda: streams, events and kernels with the semantics of the real ones.

Checked against the same contract as the real one (test_cuda.py). A stream is an in-order queue; an
event completes when its stream reaches it; `wait_event` blocks a stream until then; elapsed times
are float32 milliseconds, and reading them too early raises. A collective's kernel starts when its
stream reaches it and ends, on every rank, one transfer after the last member has started.
Synchronising fails the test.

Time is set by the test (`World(Clock())`, several ranks in one world) or real (`Gpu()`).
Where a GPU `holds`, it has one hardware queue, as under MPS or with CUDA_DEVICE_MAX_CONNECTIONS=1:
kernels of all streams start in launch order, and a collective's kernel that waits for its members
keeps all others from starting, as it occupies the processors.
"""

import struct
from collections import Counter, deque
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

FOREVER = 1 << 62


class RealClock:
    """Real time; the GPU's clock has another origin."""

    def __init__(self, offset_ns):
        self.offset_ns = offset_ns

    def now_ns(self):
        return perf_counter_ns() + self.offset_ns


class Clock:
    """Time that the test advances."""

    def __init__(self, at_ns=0):
        self.at_ns = at_ns

    def now_ns(self):
        return self.at_ns


class World:
    """GPUs with common collectives and one clock."""

    def __init__(self, clock):
        self.clock = clock
        self.gpus = []

    def run(self, until_ns=FOREVER):
        """Start every item that can start by then, in order of time, on all GPUs."""
        while True:
            ready = [head for gpu in self.gpus for head in gpu.heads()]
            if not ready:
                return
            at_ns, _, gpu, stream = min(ready, key=_by_time)
            if at_ns > until_ns:
                return
            stream.last = stream.items.popleft()
            stream.last.begin(gpu, at_ns)


def _by_time(head):
    return head[:2]


class Item:
    """An entry of a stream. Recording an event takes no time and no processor."""

    is_kernel = False
    num_made = 0

    def __init__(self, enqueued_ns, duration_ns=0, waits_for=None):
        self.enqueued_ns = enqueued_ns
        self.duration_ns = duration_ns
        self.waits_for = waits_for  # the item whose end it waits for
        self.start_ns = None
        self.end_ns = None
        # Of items ready at the same time, the first launched starts first.
        Item.num_made = self.number = Item.num_made + 1

    def begin(self, gpu, at_ns):
        self.start_ns, self.end_ns = at_ns, at_ns + self.duration_ns


class Kernel(Item):
    is_kernel = True


class Collective(Kernel):
    """One rank's kernel of an `Occurrence`."""

    def __init__(self, enqueued_ns, occurrence):
        super().__init__(enqueued_ns)
        self.occurrence = occurrence

    def begin(self, gpu, at_ns):
        self.start_ns = at_ns
        gpu.collectives.append(self)
        self.occurrence.arrived(self)


class Occurrence:
    """A collective that ends on all members one transfer after the last has started."""

    def __init__(self, num_members, transfer_ns):
        self.num_members = num_members
        self.transfer_ns = transfer_ns
        self.met_ns = None
        self.kernels = []

    def arrived(self, kernel):
        self.kernels.append(kernel)
        if len(self.kernels) == self.num_members:
            self.met_ns = max(each.start_ns for each in self.kernels)
            for each in self.kernels:
                each.end_ns = self.met_ns + self.transfer_ns


class Gpu:
    """One device, in its own world unless one is given."""

    def __init__(self, offset_ns=987_654_321, latency_ns=3_000, world=None, *, holds=False):
        self._offset_ns = offset_ns
        self.latency_ns = latency_ns
        self.world = world or World(RealClock(offset_ns))
        self.world.gpus.append(self)
        self.holds = holds
        self.hangs = False
        self.streams = []
        self.collectives: list[Collective] = []  # started and not yet met
        self.launched: deque[Any] = deque()  # kernels in launch order

    def now_ns(self):
        return self.world.clock.now_ns()

    def host_ns(self, gpu_ns):
        """The same moment on the host's clock, unknown to a real program."""
        return gpu_ns - self._offset_ns

    def heads(self):
        """Start time of each stream's next item, where it is known."""
        met = [each.occurrence.met_ns for each in self.collectives]
        self.collectives = [each for each in self.collectives if each.occurrence.met_ns is None]
        self._free_ns = max([self._free_ns, *(each for each in met if each is not None)])
        is_held = self.holds and None in met
        while self.launched and self.launched[0].start_ns is not None:
            self._free_ns = max(self._free_ns, self.launched.popleft().start_ns)
        for stream in self.streams:
            if not stream.items or stream.free_ns is None:
                continue
            item = stream.items[0]
            after_ns = stream.free_ns
            if item.waits_for is not None:
                if item.waits_for.end_ns is None:
                    continue
                after_ns = max(after_ns, item.waits_for.end_ns)
            at_ns = max(item.enqueued_ns + self.latency_ns, after_ns)
            if self.holds and item.is_kernel:
                if is_held or item is not self.launched[0]:
                    continue
                # Items held behind a waiting collective start after it has met.
                at_ns = max(at_ns, self._free_ns)
            yield at_ns, item.number, self, stream

    _free_ns = 0


class FakeTorch:
    """Fake of the torch module."""

    def __init__(self, gpu, *, is_initialized=True):
        self.cuda = FakeCuda(gpu, is_initialized)
        self._C = FakeLibrary(self.cuda)


class FakeLibrary:
    """The used part of torch._C."""

    def __init__(self, cuda):
        self._cuda = cuda

    def _cuda_getCurrentRawStream(self, device):  # noqa: N802
        assert device == self._cuda.number
        self._cuda.count["number of the current stream"] += 1
        return self._cuda.current.number


class FakeStream:
    """A queue of one device. The first is the default stream, which cannot be captured."""

    def __init__(self, cuda):
        self.cuda = cuda
        self.number = len(cuda.gpu.streams)
        self.device = cuda.number
        self.items: deque[Item] = deque()
        self.last = None
        cuda.gpu.streams.append(self)

    @property
    def free_ns(self):
        """End of the last started item; None while unknown."""
        return 0 if self.last is None else self.last.end_ns

    def add(self, item):
        self.items.append(item)
        if item.is_kernel and self.cuda.gpu.holds:
            self.cuda.gpu.launched.append(item)
        return item

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, stream):
        self.wait_event(stream.record_event())

    def record_event(self, event=None):
        event = event or self.cuda.Event(enable_timing=True)
        event.record(self)
        return event


class FakeCuda:
    def __init__(self, gpu, is_initialized):
        self.gpu = gpu
        self.initialized = is_initialized
        self.capturing = False
        self.number = 0  # index of the current device
        self.count: Counter[str] = Counter()
        cuda = self

        class Event:
            def __init__(self, enable_timing=False):
                cuda.count["event created"] += 1
                self._item = self._device = None

            def record(self, stream=None):
                if stream is None:
                    stream = cuda.current_stream()
                if cuda.capturing and stream is cuda.current:
                    raise AssertionError("what is recorded while capturing becomes part of a graph")
                if self._device not in (None, stream.device):
                    raise RuntimeError("the event is of another device")
                cuda.count["event recorded"] += 1
                self._device = stream.device
                self._item = stream.add(Item(gpu.now_ns()))

            @property
            def _at_ns(self):
                if self._item is None:
                    return None
                gpu.world.run()
                return self._item.end_ns

            def query(self):
                if cuda.capturing:
                    raise RuntimeError("operation not permitted when stream is capturing")
                cuda.count["event queried"] += 1
                return self._is_passed()

            def _is_passed(self):
                if self._item is None:
                    return True
                gpu.world.run(gpu.now_ns())
                at_ns = self._item.end_ns
                return not gpu.hangs and at_ns is not None and at_ns <= gpu.now_ns()

            def elapsed_time(self, other):
                if self._item is None or other._item is None:
                    raise ValueError("Both events must be recorded before calculating elapsed time")
                if self._device != other._device:
                    raise RuntimeError("the events are of different devices")
                if not (self._is_passed() and other._is_passed()):
                    raise RuntimeError("device not ready")
                ms = (other._item.end_ns - self._item.end_ns) / 1e6
                return struct.unpack("f", struct.pack("f", ms))[0]

            def wait(self, stream=None):
                stream = stream or cuda.current_stream()
                if self._item is not None:
                    stream.add(Item(gpu.now_ns(), waits_for=self._item))

            def synchronize(self):
                raise AssertionError("nobody may wait for the GPU")

        class Stream(FakeStream):
            def __init__(self, device=None, priority=0):
                assert device in (None, cuda.number)
                super().__init__(cuda)

        self.Event, self.Stream = Event, Stream
        self.current = FakeStream(cuda)

    @property
    def num_events(self):
        return self.count["event created"]

    def is_available(self):
        return True

    def is_initialized(self):
        self.count["is_initialized"] += 1
        return self.initialized

    def current_device(self):
        assert self.initialized, "asking would initialise CUDA"
        self.count["current_device"] += 1
        return self.number

    def set_device(self, number):
        """Switch to another device; its default stream has the same number."""
        self.number = number
        self.current = FakeStream(self)
        self.current.number = 0

    def current_stream(self, device=None):
        self.count["current_stream"] += 1
        return self.current

    def is_current_stream_capturing(self):
        self.count["is_current_stream_capturing"] += 1
        return self.capturing

    @contextmanager
    def device(self, number):
        assert number == self.number
        yield

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(self):
        """Capture a graph on a side stream, as the default stream cannot be captured."""
        with self.stream(FakeStream(self)):
            self.capturing = True
            yield
            self.capturing = False

    def synchronize(self, device=None):
        raise AssertionError("nobody may wait for the GPU")

    def work(self, duration_ns, stream=None):
        """Launch a kernel."""
        return (stream or self.current).add(Kernel(self.gpu.now_ns(), duration_ns))

    def copy(self, duration_ns, stream=None):
        """Launch a memory copy, which needs no processor."""
        return (stream or self.current).add(Item(self.gpu.now_ns(), duration_ns))

    def collective(self, occurrence, stream=None):
        """Launch this rank's kernel of a collective."""
        return (stream or self.current).add(Collective(self.gpu.now_ns(), occurrence))
