"""What an analysis says of a window, or of several as one; each field with its unit and meaning.

Unknown is null, never 0 or NaN. Lists are by dp rank, by stage, or by position in `steps`.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from app.result.arrivals import ArrivalsRecord
from app.result.finding import (
    Culprit,
    Finding,
    HangRecord,
    ObservationRecord,
    RuledOut,
    Unchecked,
)
from app.result.profile import ProfileBlock
from app.result.record import Json, Record

# Hosts whose clocks are listed, the worst first.
MAX_CLOCKS = 20

WindowState = Literal["open", "complete", "incomplete", "superseded"]
Verdict = Literal["ok", "low"]
# From the finest to the coarsest: what the figures that change over time are means of.
Resolution = Literal["step", "window", "hour", "day"]
RESOLUTIONS: tuple[Resolution, ...] = ("step", "window", "hour", "day")
BySteps = tuple[float | None, ...]
StepTimeName = Literal["recorded", "simulated", "ideal"]
Matrix = Annotated[
    tuple[tuple[float | None, ...], ...] | None,
    Meta(description="By dp rank and stage; null for a worker that is missing."),
]
Share = Annotated[float, Meta(extra_json_schema={"minimum": 0})]
PartOfIt = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 1})] | None


class WindowHeader(Record, kw_only=True, frozen=True):
    """The window, or the range of windows that are shown as one."""

    id: str | None
    epoch: int | None
    revision: int | None
    state: WindowState
    missing: Annotated[tuple[int, ...], Meta(description="Ranks that did not report.")]
    windows: Annotated[
        tuple[str, ...] | None, Meta(description="For a range: the windows read.")
    ] = None
    left_out: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="For a range: the first 100 of the `num_left_out` windows beyond the "
            "limit; gpu_hours_lost still covers all of them, or is null."
        ),
    ] = None
    num_left_out: int | None = None
    num_windows: Annotated[
        int | None, Meta(description="Of how many windows this is the result; if thinned.")
    ] = None


class JobSizes(Record, kw_only=True, frozen=True):
    """The job's name and parallel axes."""

    name: str
    dp_size: int
    pp_size: int
    tp_size: int
    vpp_size: int
    dsp_size: int
    ep_size: int
    world_size: int


class SkippedStepRecord(Record, kw_only=True, frozen=True):
    """A step that is not analysed."""

    step: int
    reason: str


class AbsentWorker(Record, kw_only=True, frozen=True):
    """A worker that is missing from some steps."""

    rank: int
    dp_rank: int
    stage: int
    host: str | None
    first_step: Annotated[int, Meta(description="The first step that it is missing from.")]
    last_step: int
    num_steps: Annotated[int, Meta(description="Number of steps that it is missing from.")]


class CompletedStep(Record, kw_only=True, frozen=True):
    """A step whose lost operations were imputed."""

    step: int
    reason: Annotated[str, Meta(description="Why the step was incomplete.")]
    missing: Annotated[tuple[int, ...], Meta(description="Ranks that had not reported the step.")]


class ImputedRecord(Record, kw_only=True, frozen=True):
    """Operations of `steps` that were not recorded, and were imputed from their peers."""

    ops: Annotated[int, Meta(description="Number of imputed operations.")]
    lone_ops: Annotated[int, Meta(description="Those of workers that recorded the rest.")]
    share: Annotated[float, Meta(description="Of all operations, from 0 to 1.")]
    workers: tuple[AbsentWorker, ...]
    steps: tuple[CompletedStep, ...]


class StepTimes(Record, kw_only=True, frozen=True):
    """Seconds of each step: recorded, idle before its first operation, replayed, and ideal."""

    recorded: BySteps
    between: BySteps | None = None
    simulated: BySteps
    ideal: BySteps


class FidelityRecord(Record, kw_only=True, frozen=True):
    """Relative difference between simulated and recorded step time."""

    discrepancy: Annotated[float | None, Meta(description="Of the means.")]
    verdict: Annotated[
        Verdict | None,
        Meta(
            description="Low if `discrepancy` is above 0.05; for a range, if most windows are low."
        ),
    ]
    low_windows: Annotated[
        int | None, Meta(description="For a range: number of windows with a low verdict.")
    ] = None
    step_discrepancy: Annotated[BySteps, Meta(description="Of each step.")]


class LaunchDelayRecord(Record, kw_only=True, frozen=True):
    """Mean seconds per step between the time an operation could start and its actual start."""

    by_optype: Annotated[dict[str, float], Meta(description="For an average worker.")]
    by_worker: Matrix
    others_waited: Annotated[
        Matrix,
        Meta(
            description="As [dp][pp]: mean seconds per step that other workers waited because "
            "this one launched late."
        ),
    ]


class HostClockRecord(Record, kw_only=True, frozen=True):
    """One host's clock against the reference's."""

    offset_ms: float
    drift_ppm: float | None
    residual_ms: float


class ClocksRecord(Record, kw_only=True, frozen=True):
    """Clock differences between hosts, from the ends of shared operations (docs/clocks.md)."""

    residual_ms: Annotated[
        float | None,
        Meta(description="After correction, 90 % of these ends are within this of each other."),
    ]
    hosts: Annotated[dict[str, HostClockRecord], Meta(description="Of the 20 worst hosts.")]
    reason: Annotated[
        str | None, Meta(description="Why clocks were not measured, or what is unknown.")
    ]


class OptypeTime(Record, kw_only=True, frozen=True):
    """Mean seconds per step and worker in operations of one type."""

    recorded: float | None
    transfer: Annotated[
        float | None, Meta(description="For communication: since all peers have arrived.")
    ]
    wait: Annotated[
        float | None, Meta(description="For communication: until all peers have arrived.")
    ]


class StageCompute(Record, kw_only=True, frozen=True):
    """Mean seconds of one micro-batch on each stage; null for one without such operations."""

    forward: tuple[float | None, ...]
    backward: tuple[float | None, ...]


class Variance(Record, kw_only=True, frozen=True):
    """Shares of the variance of forward computations, between workers of one stage.

    None together where nothing varies, or no forward is on every stage.
    """

    between_stages: float | None
    between_workers: float | None
    within_workers: float | None


class Fingerprint(Record, kw_only=True, frozen=True):
    """Where computations vary, and the share of the loss by operation type and by stage."""

    variance: Variance
    optype_share: Annotated[
        dict[str, float],
        Meta(
            description="Share of the loss with only this type as recorded; adds up to 1 where "
            "anything is lost."
        ),
    ]
    stage_share: Annotated[
        tuple[float | None, ...], Meta(description="Share won back by fixing each stage.")
    ]


class JobChange(Record, kw_only=True, frozen=True):
    """A new level of step time, or of some workers' computations; of all without culprits."""

    step: int
    until_step: Annotated[
        int, Meta(description="The level changed from `step` on; at once where both are the same.")
    ]
    what: Literal["step-time", "compute"]
    before_s: Annotated[
        float, Meta(description="Seconds of a step, or of the mean computation of those workers.")
    ]
    after_s: float
    ratio: Annotated[float, Meta(description="Below 1 for a recovery.")]
    culprits: tuple[Culprit, ...]


class Unexplained(Record, kw_only=True, frozen=True):
    """Loss that is left after the repairs of all findings, and its place.

    Stops of all workers, and launches that are late in single steps as before an evaluation, are no
    operation: the former raise the ideal, or lie between steps.
    """

    share: Annotated[Share, Meta(description="Of the step time.")]
    ideal_share: Annotated[
        PartOfIt,
        Meta(
            description="Of the step time: the ideal after all repairs. With `share` and the costs "
            "it adds up to 1, but for what two causes both lose; absent in older results."
        ),
    ] = None
    idle_share: Annotated[
        PartOfIt,
        Meta(
            description="Of the step time: in which all ranks are idle and no row says why. With "
            "the others it adds up to 1; absent in older results."
        ),
    ] = None
    share_of_loss: Annotated[PartOfIt, Meta(description="Of the loss; null without a loss.")]
    optype: Annotated[
        str | None,
        Meta(
            description="The op type whose ideal durations win back most of it; null where no "
            "type stands out."
        ),
    ]
    share_in_optype: PartOfIt
    stage: Annotated[int | None, Meta(description="As `optype`, for stages.")]
    share_in_stage: PartOfIt
    late_launch_share: Annotated[
        Share, Meta(description="Of the step time: the part in late launches of single steps.")
    ]
    stop_share: Annotated[
        Share, Meta(description="Of the step time: the part in stops of all workers.")
    ]
    stop_steps: Annotated[
        tuple[int, ...], Meta(description="Steps in or before which all workers stop.")
    ]
    sentence: Annotated[
        str | None,
        Meta(description="The loss and its place in words; null below 5 % of the step time."),
    ]


class Snippet(Record, kw_only=True, frozen=True):
    """What to paste for a fix, and where."""

    label: str
    text: str


class NeedRecord(Record, kw_only=True, frozen=True):
    """A fact that would make a fix's figures exact."""

    fact: str | None
    text: str


class TopFix(Record, kw_only=True, frozen=True):
    """The fix that wins most, with what is known without asking."""

    fix: str
    cause: str | None
    title: str
    step_s: float
    step_range_s: tuple[float, ...]
    step_s_before: float
    speed_up: float
    gpu_hours_per_day: float
    gpu_hours_per_day_range: tuple[float, ...]
    confidence: float
    risk: str
    microbatches: int | None
    stops_job: bool
    stop_minutes: float | None
    pays_after_minutes: float | None
    lost_minutes: float | None
    lost_is_at_least: bool
    pays_now: bool | None
    paste: tuple[Snippet, ...]
    needs: tuple[NeedRecord, ...]
    what_if: tuple[Json, ...] | None
    can_be_tracked: bool


class RecordedPart(Record, kw_only=True, frozen=True):
    """What a replay needs of the result of the window whose operations are stored."""

    window: WindowHeader
    steps: tuple[int, ...]
    skipped_steps: tuple[SkippedStepRecord, ...]
    imputed: ImputedRecord | None


class Thinned(Record, kw_only=True, frozen=True):
    """Only where the window is old: what was kept of it."""

    resolution: Annotated[
        Resolution,
        Meta(
            description="`window`: no figures by step any more. `hour` or `day`: the result is "
            "that of `window.num_windows` windows, `steps` are the first ones of as many stretches "
            "as `step_counts` has numbers of steps, and each value by step is the mean of one."
        ),
    ]
    step_counts: Annotated[
        tuple[int, ...] | None, Meta(description="One each where the result only lost `per_step`.")
    ] = None
    num_skipped: Annotated[
        int | None, Meta(description="Skipped steps, of which some are listed.")
    ] = None
    recorded: Annotated[
        RecordedPart | None,
        Meta(description="The one window whose operations are still stored."),
    ] = None


class FiguresByStep(Record, kw_only=True, frozen=True):
    """Slowdowns by step; only with `per_step=true`."""

    optype_slowdown: dict[str, BySteps]
    dp_rank_slowdown: Annotated[tuple[BySteps, ...], Meta(description="As [step][dp].")]
    stage_slowdown: Annotated[tuple[BySteps, ...], Meta(description="As [step][pp].")]
    worker_slowdown: Annotated[
        tuple[tuple[BySteps, ...], ...], Meta(description="As [step][dp][pp].")
    ]


class WindowResult(Record, kw_only=True, frozen=True):
    """The result of a window or of a range of windows."""

    schema: Literal[1]
    window: WindowHeader
    job: JobSizes
    steps: tuple[int, ...]
    skipped_steps: tuple[SkippedStepRecord, ...]
    imputed: ImputedRecord | None
    step_time_s: StepTimes
    structures: Annotated[
        tuple[tuple[int, ...], ...],
        Meta(
            description="Groups of steps with the same operations. Each group is replayed together "
            "and has its own ideal durations."
        ),
    ]
    launch_slowdown: float | None
    fidelity: FidelityRecord
    clocks: ClocksRecord
    slowdown: Annotated[float | None, Meta(description="Simulated over ideal mean step time.")]
    gpu_time_wasted: Annotated[
        float | None,
        Meta(description="Share of the GPU time lost to stragglers, 1 - 1 / slowdown."),
    ]
    gpu_hours_lost: float | None
    launch_delay: LaunchDelayRecord
    step_slowdown: BySteps
    optype_slowdown: dict[str, float]
    dp_rank_slowdown: BySteps | None
    stage_slowdown: BySteps | None
    worker_slowdown: Matrix
    worker_slowdown_estimate: Matrix
    m_w: float | None
    m_w_exact: float | None
    m_s: float | None
    stage_share: BySteps | None
    stage_compute_s: StageCompute | None
    optype_time_s: dict[str, OptypeTime]
    findings: Annotated[
        tuple[Finding, ...] | None,
        Meta(
            description="Missing workers, then causes by cost, descending; empty if nothing is "
            "wrong, null if the data does not allow a diagnosis."
        ),
    ]
    more_findings: Annotated[
        int | None,
        Meta(
            description="For a range of windows: number of findings beyond the first 20, which "
            "are omitted."
        ),
    ] = None
    ruled_out: tuple[RuledOut, ...] | None
    fingerprint: Fingerprint | None
    changes: tuple[JobChange, ...] | None
    arrivals: Annotated[
        ArrivalsRecord | None,
        Meta(description="Null if no collective was recorded by all members of its group."),
    ]
    unexplained_share: Annotated[
        float | None,
        Meta(description="Share of the step spent waiting that no finding explains."),
    ]
    unexplained: Annotated[Unexplained | None, Meta(description="Null where causes are withheld.")]
    coverage: Annotated[
        float | None,
        Meta(
            description="Share of the step covered by recorded operations, mean over ranks. Below "
            "0.6, no cause can be ruled out."
        ),
    ]
    wait_coverage: Annotated[
        float | None,
        Meta(
            description="Share of the waits whose ends were recorded: 0 where no collective of "
            "several dp ranks was, so that a slow rank cannot be told; null where not known."
        ),
    ] = None
    unchecked: tuple[Unchecked, ...] | None = None
    observations: tuple[ObservationRecord, ...] | None = None
    hang: HangRecord | None = None
    advice: TopFix | None
    step_started_s: Annotated[
        BySteps,
        Meta(description="Unix time at which each of `steps` started; null where not known."),
    ]
    thinned: Thinned | None = None
    per_step: FiguresByStep | None = None
    profile: ProfileBlock | None = None


# How many steps a value of the lists by step stands for: one, or several once thinned
# (app.result.thin): then each is the mean of successive ones, `thinned.step_counts` has their
# numbers, and `steps` the first of each.


def resolution_of(result: WindowResult) -> Resolution:
    """What each figure of the result is of."""
    return "step" if result.thinned is None else result.thinned.resolution


def step_counts(result: WindowResult) -> Sequence[int]:
    """[len(steps)] steps that each of `steps` stands for."""
    counts = None if result.thinned is None else result.thinned.step_counts
    return (1,) * len(result.steps) if counts is None else counts


def num_steps(result: WindowResult) -> int:
    """Steps with figures."""
    return sum(step_counts(result))


def total_s(result: WindowResult, name: StepTimeName) -> float:
    """Seconds that all steps took together."""
    times: Sequence[float] = getattr(result.step_time_s, name)
    counts = None if result.thinned is None else result.thinned.step_counts
    if counts is None:
        return float(sum(times))
    return float(sum(time_s * count for time_s, count in zip(times, counts, strict=True)))


def mean_s(result: WindowResult, name: StepTimeName) -> float:
    """Mean seconds of a step."""
    return total_s(result, name) / num_steps(result)
