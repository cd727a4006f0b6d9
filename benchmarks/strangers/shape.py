"""Size and form of a training job: its parallel axes, schedule, and how gradients are exchanged."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app.trace.job import Job, Parallelism

Schedule = Literal["1f1b", "interleaved", "gpipe"]
# plain: one reduce-scatter a chunk after the last computation. overlapped: each chunk's
# reduce-scatter after its last backward, and an all-reduce at the end. buckets: as DDP, all-reduces
# that are launched during the last backward. ddp, fsdp: as the client records those
# (data_parallel.py).
Gradients = Literal["none", "plain", "overlapped", "buckets", "ddp", "fsdp"]


class Compute(NamedTuple):
    """One forward or backward computation of a stage; `chunk` is of the stage."""

    is_forward: bool
    microbatch: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Shape:
    """All that determines which operations a step has, and where they run.

    DDP: `bucket_shares` are the shares of the last backward at which buckets are ready, ascending
    to 1; with `starts_in_queue` their record begins with their turn, not when they are posted;
    `is_held` where a backward stands still while a bucket is waited for, as with few hardware
    queues. FSDP: `unit_weights` are units' shares of the model, `prefetch` is how many units ahead
    parameters are gathered; `has_one_queue` where gathers and scatters run one after the other;
    `reduces_each` where each micro-batch's gradients are scattered, not only the last one's.
    """

    dp: int
    pp: int
    microbatches: int
    chunks: int = 1
    tp: int = 1
    ep: int = 1
    schedule: Schedule = "1f1b"
    gradients: Gradients = "plain"
    has_gathers: bool = True
    has_clip: bool = True
    has_small_reductions: bool = True
    gpus_per_host: int = 8
    bucket_shares: tuple[float, ...] = ()
    starts_in_queue: bool = False
    is_held: bool = False
    unit_weights: tuple[float, ...] = ()
    prefetch: int = 1
    has_one_queue: bool = False
    reduces_each: bool = True

    @property
    def job(self) -> Job:
        """The job as a window names it."""
        parallelism = Parallelism(
            self.dp, self.pp, tp_size=self.tp, vpp_size=self.chunks, ep_size=self.ep
        )
        return Job.of("stranger", parallelism)

    @property
    def num_hosts(self) -> int:
        """Hosts that the ranks fill."""
        return -(-self.dp * self.pp * self.tp // self.gpus_per_host)

    def rank(self, dp_rank: int, stage: int) -> int:
        """Lowest global rank of a worker."""
        return (stage * self.dp + dp_rank) * self.tp

    def host(self, dp_rank: int, stage: int) -> int:
        """Number of a worker's host: ranks fill one host after the other."""
        return self.rank(dp_rank, stage) // self.gpus_per_host

    def workers(self) -> Iterator[tuple[int, int]]:
        """Every (dp rank, stage)."""
        return ((dp_rank, stage) for dp_rank in range(self.dp) for stage in range(self.pp))

    def workers_of_host(self, host: int) -> frozenset[tuple[int, int]]:
        """(dp rank, stage) of every worker there."""
        return frozenset(each for each in self.workers() if self.host(*each) == host)

    def order(self, stage: int) -> list[Compute]:
        """Computations of a stage in a step, in the order of its schedule."""
        total = self.microbatches * self.chunks
        forwards = [self._nth(k, is_forward=True) for k in range(total)]
        backwards = [self._nth(k, is_forward=False) for k in range(total)]
        warm_up = min(self._warm_up(stage), total)
        found = forwards[:warm_up]
        for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
            found += [forward, backward]
        return found + backwards[total - warm_up :]

    def _warm_up(self, stage: int) -> int:
        """Forwards before the first pair of forward and backward."""
        total = self.microbatches * self.chunks
        if self.schedule == "gpipe":
            return total
        if self.schedule == "1f1b":
            return self.pp - 1 - stage
        if self.microbatches == self.pp:
            return total
        return 2 * (self.pp - 1 - stage) + (self.chunks - 1) * self.pp

    def _nth(self, k: int, *, is_forward: bool) -> Compute:
        """The k-th forward or backward of any stage."""
        if self.chunks == 1:
            return Compute(is_forward, k, 0)
        group, within = divmod(k, self.pp * self.chunks)
        chunk, microbatch = divmod(within, self.pp)
        if not is_forward:
            chunk = self.chunks - 1 - chunk
        return Compute(is_forward, group * self.pp + microbatch, chunk)
