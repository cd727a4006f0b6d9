"""A twin of torch.cuda's events and streams: a GPU whose time passes when the test says so.

Held to the same contract as the real one (test_cuda.py): streams run in order, an event is passed
when its stream has come to it, elapsed times are float32 milliseconds, and asking too early raises.
Waiting is forbidden: whoever synchronises fails the test.
"""

import struct
from contextlib import contextmanager
from time import perf_counter_ns


class Gpu:
    """One device: each stream is busy until some moment of the GPU's own clock."""

    def __init__(self, offset_ns=987_654_321, latency_ns=3_000):
        self._offset_ns = offset_ns
        self.latency_ns = latency_ns
        self.busy_until = {}
        self.hangs = False

    def now_ns(self):
        return perf_counter_ns() + self._offset_ns

    def host_ns(self, gpu_ns):
        """The same moment on the host's clock, which no program can know."""
        return gpu_ns - self._offset_ns

    def enqueue(self, stream, duration_ns):
        """Work on a stream, after what is there; the moment at which it is done."""
        begins = max(self.now_ns() + self.latency_ns, self.busy_until.get(stream, 0))
        self.busy_until[stream] = begins + duration_ns
        return self.busy_until[stream]


class FakeTorch:
    """What stands in for the module."""

    def __init__(self, gpu, *, is_initialized=True):
        self.cuda = FakeCuda(gpu, is_initialized)


class FakeCuda:
    def __init__(self, gpu, is_initialized):
        self._gpu = gpu
        self.initialized = is_initialized
        self.capturing = False
        self.num_events = 0
        self.current = "default"
        cuda = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing
                cuda.num_events += 1
                self._at_ns = None

            def record(self, stream=None):
                if cuda.capturing:
                    raise RuntimeError("operation not permitted when stream is capturing")
                self._at_ns = gpu.enqueue(stream or cuda.current, 0)

            def query(self):
                if cuda.capturing:
                    raise RuntimeError("operation not permitted when stream is capturing")
                return self._at_ns is None or (not gpu.hangs and gpu.now_ns() >= self._at_ns)

            def elapsed_time(self, other):
                if self._at_ns is None or other._at_ns is None:
                    raise ValueError("Both events must be recorded before calculating elapsed time")
                if not (self.query() and other.query()):
                    raise RuntimeError("device not ready")
                return struct.unpack("f", struct.pack("f", (other._at_ns - self._at_ns) / 1e6))[0]

            def synchronize(self):
                raise AssertionError("nobody may wait for the GPU")

            wait = synchronize

        class Stream:
            def __init__(self, device=None, priority=0):
                assert device == 0

        self.Event, self.Stream = Event, Stream

    def is_available(self):
        return True

    def is_initialized(self):
        return self.initialized

    def current_device(self):
        assert self.initialized, "asking would initialise CUDA"
        return 0

    def is_current_stream_capturing(self):
        return self.capturing

    @contextmanager
    def device(self, number):
        assert number == 0
        yield

    def synchronize(self, device=None):
        raise AssertionError("nobody may wait for the GPU")

    def work(self, duration_ns):
        """A kernel on the current stream; the GPU's moments of its beginning and end."""
        end_ns = self._gpu.enqueue(self.current, duration_ns)
        return end_ns - duration_ns, end_ns
