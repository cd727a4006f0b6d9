"""What plain torch.profiler files show beside steps and waits (docs/feeds/kineto.md)."""

from typing import Annotated, Literal

from msgspec import Meta

from app.result.record import Record

EachStep = tuple[float, ...]


class KernelSpan(Record, kw_only=True, frozen=True):
    """Seconds from the first kernel to the last, without the last of several ProfilerSteps."""

    span_s: float
    computing_s: float
    communicating_exposed_s: float
    communicating_hidden_s: float
    copying_s: float
    idle_s: float


class BreakdownByStep(Record, kw_only=True, frozen=True):
    """The figures of a rank in seconds, by position in `steps`."""

    step_s: EachStep
    computing_s: EachStep
    communicating_exposed_s: EachStep
    communicating_hidden_s: EachStep
    waiting_s: EachStep | None
    copying_s: EachStep
    idle_s: EachStep


class RankBreakdown(Record, kw_only=True, frozen=True):
    """How one rank's GPU spends a step; mean seconds.

    A step is computing, exposed communication, copying and idle time.
    """

    rank: int
    file: str
    host: str | None
    coverage: Annotated[float, Meta(description="Share of the steps in which the GPU is busy.")]
    step_s: float
    computing_s: Annotated[float, Meta(description="While a computing kernel runs.")]
    communicating_exposed_s: Annotated[float, Meta(description="While none does.")]
    communicating_hidden_s: Annotated[float, Meta(description="Part of `computing_s`.")]
    waiting_s: Annotated[
        float | None,
        Meta(
            description="Part of exposed communication, waiting for later ranks; null where their "
            "files were not given."
        ),
    ]
    copying_s: Annotated[float, Meta(description="While nothing else runs.")]
    idle_s: float
    data_wait_s: Annotated[float, Meta(description="The host's waits for its data loader.")]
    kernel_span: KernelSpan
    per_step: BreakdownByStep


class TransfersRecord(Record, kw_only=True, frozen=True):
    """Collectives or transfers of one group, kind and size."""

    group: str
    axis: str
    kind: str
    num_ranks: Annotated[int, Meta(description="Members of the group.")]
    num_read: Annotated[int, Meta(description="Members whose files were given.")]
    num_bytes: int | None
    num_occurrences: int
    stay_s: Annotated[float, Meta(description="Median seconds of a member in one of them.")]
    transfer_s: Annotated[
        float | None,
        Meta(
            description="Median of the shortest stay of each; null where members' files were not "
            "given."
        ),
    ]
    bandwidth_bytes_s: Annotated[
        float | None, Meta(description="Bytes by transfer time; null where either is unknown.")
    ]


class ProfileBlock(Record, kw_only=True, frozen=True):
    """Only of torch.profiler files: what was read, the verdict in words, and where time goes."""

    ranks_read: tuple[int, ...]
    world_size: int
    is_world_size_known: bool
    platform: Literal["CUDA", "ROCm"]
    steps_from: Annotated[str, Meta(description="What marks the steps in the files.")]
    step_time_s: Annotated[float, Meta(description="Mean over steps of the ranks' median.")]
    headline: Annotated[tuple[str, ...], Meta(description="Whole sentences.")]
    refusals: Annotated[tuple[str, ...], Meta(description="Files left out, with the reasons.")]
    notes: tuple[str, ...]
    breakdown: Annotated[tuple[RankBreakdown, ...], Meta(description="Of at most 4,096 ranks.")]
    collectives: Annotated[
        tuple[TransfersRecord, ...],
        Meta(description="Those with the longest total first; at most 200."),
    ]
