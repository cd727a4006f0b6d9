"""What shows in later windows that a fix was applied: taken down with its prediction.

Each kind of fix leaves its own sign: another host, other shares of the stages, another order of
operations, or a cause that is no longer found. A fix without a sign cannot be noticed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Literal

import numpy as np

from app.result import causes
from app.result.finding import Finding
from app.result.record import Json
from app.result.window_result import TopFix, WindowResult
from app.synth.schedules import ComputeKind
from app.trace.imputation import impute
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Window

SignKind = Literal["host", "shares", "structure", "balance", "pauses", "link"]
# What a window shows of a fix. "recovered": the cause is gone, and the fix was certainly not made.
# "other-work": computations take another time than the fix explains, as of another model.
Seen = Literal[
    "applied", "gone", "recovered", "there", "unknown", "other-shape", "other-work"
]  # fmt: skip

# For each fix that can be noticed: by what, and the causes that it is for.
SIGNS: Mapping[str, tuple[SignKind, tuple[str, ...]]] = {
    "replace-worker": ("host", (causes.SLOW_WORKER,)),
    "resplit-stages": ("shares", (causes.STAGE_IMBALANCE,)),
    "other-schedule": ("structure", ()),
    "planned-gc": ("pauses", (causes.GC_PAUSE,)),
    "balance-sequences": ("balance", (causes.SEQUENCE_IMBALANCE,)),
    "pack-sequences": ("balance", (causes.SEQUENCE_IMBALANCE,)),
    "repair-link": ("link", (causes.SLOW_LINK, causes.FLAPPING_LINK)),
}
# More culprits are not taken down: one of their hosts is proof enough.
MAX_WORKERS = 64
# So many of the job's other hosts are taken down: they tell a new host from new names for all.
MAX_OTHER_HOSTS = 64
_TINY = np.finfo(float).tiny
# Forward, backward, and the two halves of a split backward.
_COMPUTE = tuple(kind.value for kind in ComputeKind)


@dataclass(frozen=True, slots=True)
class Shape:
    """What must stay the same for step times to be comparable.

    `sizes` are dp, pp, tp, vpp, dsp and ep; `microbatches` the mean number a step of each dp rank,
    one value where all are equal; `order` a digest of the order in which the stages of dp rank 0
    compute.
    """

    sizes: tuple[int, ...]
    microbatches: tuple[float, ...]
    order: str


def shape_of(window: Window) -> Shape:
    """The shape of a window with at least one complete step."""
    sizes, trace = window.job.parallelism, window.trace
    first = (trace.optype == OP_CODES["forward-compute"]) & (trace.stage == 0)
    number = np.bincount(trace.dp_rank[first], minlength=sizes.dp_size)
    mean = (number / (len(window.steps) * sizes.vpp_size)).round(3)
    every = tuple(mean.tolist())
    return Shape(
        (
            *(sizes.dp_size, sizes.pp_size, sizes.tp_size),
            *(sizes.vpp_size, sizes.dsp_size, sizes.ep_size),
        ),
        every[:1] if len(set(every)) == 1 else every,
        _order_digest(window),
    )


def _order_digest(window: Window) -> str:
    trace = window.trace
    rows = np.flatnonzero((trace.step == window.steps[0]) & (trace.dp_rank == 0))
    codes = [OP_CODES[name] for name in _COMPUTE]
    rows = rows[np.isin(trace.optype[rows], codes)]
    rows = rows[np.lexsort((trace.start_s[rows], trace.stage[rows]))]
    # Some jobs number micro-batches on from step to step: only their order counts.
    number = np.unique(trace.mb_id[rows], return_inverse=True)[1]
    columns = (*(each[rows] for each in (trace.stage, trace.optype, trace.mc)), number)
    listed = np.stack([each.astype(np.int64) for each in columns])
    return blake2b(listed.tobytes(), digest_size=8).hexdigest()


def work_by_rank(window: Window) -> Floats:
    """[steps, dp], seconds that the workers of each dp rank compute forwards and backwards."""
    trace, dp_size = window.trace, window.job.parallelism.dp_size
    is_work = np.zeros(int(trace.optype.max()) + 1, np.bool_)
    codes = [OP_CODES[name] for name in _COMPUTE]
    is_work[[code for code in codes if code < is_work.size]] = True
    rows = np.flatnonzero(is_work[trace.optype])
    place = np.searchsorted(window.steps, trace.step[rows]) * dp_size + trace.dp_rank[rows]
    size = len(window.steps) * dp_size
    total_s: Floats = np.bincount(place, trace.duration_s[rows], size).astype(np.float64)
    return total_s.reshape(-1, dp_size)


def stage_seconds(window: Window, without: Collection[tuple[int, int]] = ()) -> Floats:
    """[2, pp], seconds that a stage computes a micro-batch forwards and backwards.

    Medians over micro-batches, so that pauses do not count, of the median replica (of two: the
    faster), so that a slow worker does not. Workers (dp rank, stage) in `without` are left out; 0
    for a stage that has no others.
    """
    sizes, trace = window.job.parallelism, window.trace
    codes = np.array([OP_CODES[name] for name in _COMPUTE])
    rows = np.flatnonzero(np.isin(trace.optype, codes))
    worker = trace.dp_rank[rows].astype(np.int64) * sizes.pp_size + trace.stage[rows]
    part = worker * (int(trace.optype.max()) + 1) + trace.optype[rows]
    part = part * (int(trace.mc.max()) + 2) + trace.mc[rows] + 1
    order = np.lexsort((trace.duration_s[rows], part))
    _, first, number = np.unique(part[order], return_index=True, return_counts=True)
    rows = rows[order[first + (number - 1) // 2]]
    total_s = np.zeros((2, sizes.dp_size, sizes.pp_size))
    way = (trace.optype[rows] != OP_CODES["forward-compute"]).astype(np.int64)
    np.add.at(total_s, (way, trace.dp_rank[rows], trace.stage[rows]), trace.duration_s[rows])
    found: Floats = np.zeros((2, sizes.pp_size))
    for stage in range(sizes.pp_size):
        kept = [at for at in range(sizes.dp_size) if (at, stage) not in without]
        if kept:
            of_replicas = total_s[:, kept, stage]
            median = np.argsort(of_replicas.sum(axis=0), kind="stable")[(len(kept) - 1) // 2]
            found[:, stage] = of_replicas[:, median]
    return found


def work_imbalance(work_s: Floats) -> float:
    """How uneven the work [steps, dp] of a step is: mean of largest / mean, 1 if even.

    A rank that is slow in every step does not count: each is relative to its own mean.
    """
    relative = work_s / np.maximum(work_s.mean(axis=0), _TINY)
    return float((relative.max(axis=1) / np.maximum(relative.mean(axis=1), _TINY)).mean())


@dataclass(frozen=True)
class FollowedWindow:
    """A closed window with its result, as signs are looked for in it."""

    window: Window
    result: WindowResult

    @property
    def epoch(self) -> int:
        """Of its run."""
        return self.window.epoch

    @property
    def first_step(self) -> int:
        """By which windows of a run are in order."""
        return self.window.first_step

    @property
    def hosts(self) -> Mapping[tuple[int, int], str]:
        """Host of each (dp rank, stage), as far as known."""
        return self.window.hosts

    @cached_property
    def shape(self) -> Shape:
        """What must stay the same for step times to be comparable."""
        return shape_of(self.window)

    @cached_property
    def work_s(self) -> Floats:
        """[steps, dp], seconds that the workers of each dp rank compute forwards and backwards."""
        return work_by_rank(self.window)

    @property
    def step_s(self) -> float:
        """T, seconds: mean simulated step time."""
        return float(np.mean(np.array(self.result.step_time_s.simulated, np.float64)))

    @property
    def causes(self) -> tuple[str, ...]:
        """Causes that are found, each once, in the order of their names."""
        return tuple(sorted({finding.cause for finding in self.result.findings or ()}))

    @cached_property
    def stage_s(self) -> Floats:
        """[2, pp], seconds forwards and backwards of a micro-batch on the median replica."""
        return stage_seconds(self.window)

    @property
    def shares(self) -> tuple[float, ...]:
        """[pp], each stage's part of the time that all compute for a micro-batch."""
        return _shares(self.stage_s.sum(axis=0))


def _shares(stage_s: Floats) -> tuple[float, ...]:
    return tuple((stage_s / stage_s.sum()).tolist())


def followed_window(
    window: Window, result: WindowResult, *, is_trusted: bool
) -> FollowedWindow | None:
    """A window as signs are looked for in it; None where its figures are not to be compared.

    These are open windows, incomplete ones unless what they lack was imputed, and those of low
    fidelity (not `is_trusted`).
    """
    is_closed = window.state == "complete" or (
        window.state == "incomplete" and result.imputed is not None
    )
    if not is_closed or not is_trusted or not result.steps:
        return None
    return FollowedWindow(impute(window), result)


@dataclass(frozen=True, slots=True)
class Sign:
    """What to look for, and how the job was at the prediction.

    `needs_restart`: without a new run after `epoch` the fix cannot have been made. `found` are all
    causes found then; `workers` (dp rank, stage, host) those that are to be replaced; `shares` [pp]
    the stages' shares and `predicted_shares` those with the fix, empty where they are not known;
    where a fix is to lower it, `imbalance` is that of the work over the dp ranks, and `work_s` all
    work of a step in seconds. `hosts` are others of the job than those of `workers`; `stage_s` [pp]
    seconds that other workers compute for a micro-batch, 0 for a stage without others, empty where
    it is not to be compared; `predicted_microbatches` those of a step with the fix, None where it
    leaves them alone.
    """

    kind: SignKind
    causes: tuple[str, ...]
    needs_restart: bool
    epoch: int
    shape: Shape
    found: tuple[str, ...] = ()
    workers: tuple[tuple[int, int, str | None], ...] = ()
    shares: tuple[float, ...] = ()
    predicted_shares: tuple[float, ...] = ()
    imbalance: float | None = None
    work_s: float | None = None
    hosts: tuple[str, ...] = ()
    stage_s: tuple[float, ...] = ()
    predicted_microbatches: int | None = None

    @property
    def places(self) -> frozenset[tuple[int, int]]:
        """(dp rank, stage) of `workers`."""
        return frozenset((dp_rank, stage) for dp_rank, stage, _ in self.workers)


def sign_of(fix: TopFix, window: FollowedWindow) -> Sign | None:
    """What to look for after this prediction; None where nothing recorded would show the fix.

    `window` is the one that it was predicted for.
    """
    known = SIGNS.get(fix.fix)
    if known is None:
        return None
    kind, causes = known
    workers: tuple[tuple[int, int, str | None], ...] = ()
    if kind in ("host", "link"):
        workers = _workers(window, causes)
        if kind == "host" and not workers:
            return None
    is_split = kind == "shares"
    # A slow link does not slow its worker's computations.
    without = {worker[:2] for worker in workers} if kind == "host" else set()
    return Sign(
        kind,
        causes,
        # A link can be repaired under a running job.
        fix.stops_job and fix.fix != "repair-link",
        window.epoch,
        window.shape,
        window.causes,
        workers,
        window.shares if is_split else (),
        _predicted_shares(fix.what_if or (), window) if is_split else (),
        work_imbalance(window.work_s) if kind == "balance" else None,
        total_s(window.work_s) if kind == "balance" else None,
        _other_hosts(window, workers),
        _compared_stage_s(kind, window, without),
        fix.microbatches if kind == "structure" else None,
    )


def _other_hosts(
    window: FollowedWindow, workers: Sequence[tuple[int, int, str | None]]
) -> tuple[str, ...]:
    mine = {host for _, _, host in workers}
    return tuple(sorted(set(window.hosts.values()) - mine)[:MAX_OTHER_HOSTS]) if mine else ()


def _compared_stage_s(
    kind: SignKind, window: FollowedWindow, without: Collection[tuple[int, int]]
) -> tuple[float, ...]:
    """[pp]; empty where the times of micro-batches differ by their documents."""
    if kind == "balance" or causes.SEQUENCE_IMBALANCE in window.causes:
        return ()
    return tuple(stage_seconds(window.window, without).sum(axis=0).tolist())


def total_s(work_s: Floats) -> float:
    """Work [steps, dp] of a mean step, seconds."""
    return float(work_s.sum(axis=1).mean())


def _workers(
    window: FollowedWindow, causes: Sequence[str]
) -> tuple[tuple[int, int, str | None], ...]:
    found = findings_of(window, causes)
    if not found:
        return ()
    named = sorted(named_workers(window.window, found[0]))[:MAX_WORKERS]
    return tuple((*worker, window.hosts.get(worker)) for worker in named)


def findings_of(window: FollowedWindow, causes: Sequence[str]) -> list[Finding]:
    """Findings of these causes, as the result has them."""
    return [finding for finding in window.result.findings or () if finding.cause in causes]


def named_workers(window: Window, finding: Finding) -> set[tuple[int, int]]:
    """(dp rank, stage) of all workers that a finding names: by place, or all on a host."""
    found: set[tuple[int, int]] = set()
    sizes = window.job.parallelism
    for culprit in finding.culprits:
        if culprit.dp_rank is None and culprit.stage is None:
            found.update(worker for worker, host in window.hosts.items() if host == culprit.host)
            continue
        dp_ranks = range(sizes.dp_size) if culprit.dp_rank is None else (culprit.dp_rank,)
        stages = range(sizes.pp_size) if culprit.stage is None else (culprit.stage,)
        found.update((dp_rank, stage) for dp_rank in dp_ranks for stage in stages)
    return found


def _predicted_shares(edits: Sequence[Json], window: FollowedWindow) -> tuple[float, ...]:
    """[pp], the shares with these edits: factors of the passes of single stages."""
    factors = np.ones_like(window.stage_s)
    for edit in edits:
        select, change = edit["select"], edit["change"]
        if change["kind"] != "factor" or set(select) != {"op_types", "stages"}:
            return ()
        names = select["op_types"]
        # The halves of a split backward have factors of their own: their mean is near enough.
        is_half = any(name in _COMPUTE[2:] for name in names)
        at = 0 if "forward-compute" in names else 1
        for stage in select["stages"]:
            factors[at, stage] *= change["value"] ** (0.5 if is_half else 1.0)
    return _shares((factors * window.stage_s).sum(axis=0)) if edits else ()
