"""Recorders of several ranks on fake GPUs, on a clock that the test advances."""

from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer
from paceline_client.recording.cuda import CudaTiming, GpuAnchor

from tests.client.recording.cuda.fake_cuda import Clock, FakeTorch, Gpu, World


class Rank:
    """One rank's recorder on its own GPU; the world's clock is its host's clock."""

    def __init__(self, world, **gpu):
        self.clock = world.clock
        self.gpu = Gpu(0, 0, world, **gpu)
        self.torch = FakeTorch(self.gpu)
        self.cuda = self.torch.cuda
        self.buffer = Buffer(1 << 20, 60.0)
        self.timing = CudaTiming(self.torch)
        assert self.timing.is_usable()
        origin = self.cuda.Event(enable_timing=True)
        origin.record()
        # The host's clock is the GPU's; a real anchor would use the clock of this machine.
        self.timing._anchor = GpuAnchor(origin, world.clock.now_ns(), 0)
        self.timing._next_anchor_s = float("inf")
        self.recorder = Recorder(self.buffer, None, cuda=self.timing)
        self.recorder._epoch_ns = 0

    def ops(self):
        """Operations resolved by now: (type, start, duration in ns, attributes)."""
        found = []
        while (taken := self.buffer.take()) is not None:
            found += [(op[1], op[2], op[3], op[7]) for op in taken.ops]
        return found


def ranks(number, **kwargs):
    """That many ranks in one world."""
    world = World(Clock())
    return [Rank(world, **kwargs) for _ in range(number)]
