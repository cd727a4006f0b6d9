"""Signs by which later windows show that a fix was applied; stored with its prediction.

Each kind of fix leaves its own sign: another host, other shares of the stages, another order of
operations, or a cause that disappears. A fix without a sign cannot be noticed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import product
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
# The state of a fix in a window. "recovered": the cause is gone, and the fix certainly not made.
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
# More culprits are not stored: one of their hosts is proof enough.
MAX_WORKERS = 64
# So many of the job's other hosts are stored: they distinguish a new host from new names for all.
MAX_OTHER_HOSTS = 64
_TINY = np.finfo(float).tiny
# Forward, backward, and the two halves of a split backward.
_COMPUTE = tuple(kind.value for kind in ComputeKind)
_COMPUTE_CODES = [OP_CODES[name] for name in _COMPUTE]


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a job that must stay the same for step times to be comparable.

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
    numbers = tuple(mean.tolist())
    return Shape(
        (
            *(sizes.dp_size, sizes.pp_size, sizes.tp_size),
            *(sizes.vpp_size, sizes.dsp_size, sizes.ep_size),
        ),
        numbers[:1] if len(set(numbers)) == 1 else numbers,
        _order_digest(window),
    )


def _order_digest(window: Window) -> str:
    trace = window.trace
    rows = np.flatnonzero((trace.step == window.steps[0]) & (trace.dp_rank == 0))
    rows = rows[np.isin(trace.optype[rows], _COMPUTE_CODES)]
    rows = rows[np.lexsort((trace.start_s[rows], trace.stage[rows]))]
    # Some jobs number micro-batches on from step to step: only their order counts.
    number = np.unique(trace.mb_id[rows], return_inverse=True)[1]
    columns = np.array([trace.stage[rows], trace.optype[rows], trace.mc[rows], number], np.int64)
    return blake2b(columns.tobytes(), digest_size=8).hexdigest()


def stage_seconds(window: Window, without: Collection[tuple[int, int]] = ()) -> Floats:
    """[2, pp], seconds that a stage computes a micro-batch forwards and backwards.

    Medians over micro-batches, so that pauses do not count, of the median replica (of two: the
    faster), so that a slow worker does not. Workers (dp rank, stage) in `without` are left out; 0
    for a stage that has no others.
    """
    sizes, trace = window.job.parallelism, window.trace
    rows = np.flatnonzero(np.isin(trace.optype, _COMPUTE_CODES))
    worker = trace.dp_rank[rows].astype(np.int64) * sizes.pp_size + trace.stage[rows]
    part = worker * (int(trace.optype.max()) + 1) + trace.optype[rows]
    part = part * (int(trace.mc.max()) + 2) + trace.mc[rows] + 1
    order = np.lexsort((trace.duration_s[rows], part))
    _, first, number = np.unique(part[order], return_index=True, return_counts=True)
    rows = rows[order[first + (number - 1) // 2]]
    total_s = np.zeros((2, sizes.dp_size, sizes.pp_size))
    way = (trace.optype[rows] != OP_CODES["forward-compute"]).astype(np.int64)
    np.add.at(total_s, (way, trace.dp_rank[rows], trace.stage[rows]), trace.duration_s[rows])
    stage_s: Floats = np.zeros((2, sizes.pp_size))
    for stage in range(sizes.pp_size):
        kept = [at for at in range(sizes.dp_size) if (at, stage) not in without]
        if kept:
            replica_s = total_s[:, kept, stage]
            median = np.argsort(replica_s.sum(axis=0), kind="stable")[(len(kept) - 1) // 2]
            stage_s[:, stage] = replica_s[:, median]
    return stage_s


@dataclass(frozen=True)
class FollowedWindow:
    """A closed window with its result, as signs are looked for in it."""

    window: Window
    result: WindowResult

    @property
    def epoch(self) -> int:
        """Epoch of its run."""
        return self.window.epoch

    @property
    def first_step(self) -> int:
        """First step, by which windows of a run are in order."""
        return self.window.first_step

    @property
    def hosts(self) -> Mapping[tuple[int, int], str]:
        """Host of each (dp rank, stage), as far as known."""
        return self.window.hosts

    @cached_property
    def shape(self) -> Shape:
        """The properties that must stay the same for step times to be comparable."""
        return shape_of(self.window)

    @cached_property
    def work_s(self) -> Floats:
        """[steps, dp], seconds that the workers of each dp rank compute forwards and backwards."""
        trace, dp_size = self.window.trace, self.window.job.parallelism.dp_size
        rows = np.flatnonzero(np.isin(trace.optype, _COMPUTE_CODES))
        position = np.searchsorted(self.window.steps, trace.step[rows])
        total_s: Floats = np.zeros((len(self.window.steps), dp_size))
        np.add.at(total_s, (position, trace.dp_rank[rows]), trace.duration_s[rows])
        return total_s

    @property
    def total_work_s(self) -> float:
        """Work of a mean step on all dp ranks, seconds."""
        return float(self.work_s.sum(axis=1).mean())

    @property
    def imbalance(self) -> float:
        """How uneven the work of a step is over the dp ranks: mean of largest / mean, 1 if even.

        A rank that is slow in every step does not count: each is relative to its own mean.
        """
        relative = self.work_s / np.maximum(self.work_s.mean(axis=0), _TINY)
        return float((relative.max(axis=1) / np.maximum(relative.mean(axis=1), _TINY)).mean())

    def findings(self, causes: Collection[str]) -> list[Finding]:
        """Findings of these causes, as the result has them."""
        return [finding for finding in self.result.findings or () if finding.cause in causes]

    @property
    def step_s(self) -> float:
        """T, seconds: mean simulated step time."""
        return float(np.mean(np.array(self.result.step_time_s.simulated, np.float64)))

    @property
    def causes(self) -> tuple[str, ...]:
        """Causes of the findings, each once, in the order of their names."""
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
    """The sign to look for, and the state of the job at the prediction.

    `needs_restart`: without a new run after `epoch` the fix cannot have been made. `found` are all
    causes then; `workers` (dp rank, stage, host) those that are to be replaced; `shares` [pp]
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
    """The sign to look for after this prediction; None where nothing recorded would show the fix.

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
    # A link can be repaired under a running job, and a slow one slows no computations.
    needs_restart = fix.stops_job and fix.fix != "repair-link"
    without = {worker[:2] for worker in workers} if kind == "host" else set()
    hosts, stage_s = _other_hosts(window, workers), _compared_stage_s(kind, window, without)
    sign = Sign(kind, causes, needs_restart, window.epoch, window.shape, window.causes, workers)
    sign = replace(sign, hosts=hosts, stage_s=stage_s)
    if kind == "shares":
        predicted = _predicted_shares(fix.what_if or (), window)
        return replace(sign, shares=window.shares, predicted_shares=predicted)
    if kind == "balance":
        return replace(sign, imbalance=window.imbalance, work_s=window.total_work_s)
    if kind == "structure":
        return replace(sign, predicted_microbatches=fix.microbatches)
    return sign


def _other_hosts(
    window: FollowedWindow, workers: Sequence[tuple[int, int, str | None]]
) -> tuple[str, ...]:
    of_workers = {host for _, _, host in workers}
    others = sorted(set(window.hosts.values()) - of_workers)
    return tuple(others[:MAX_OTHER_HOSTS]) if workers else ()


def _compared_stage_s(
    kind: SignKind, window: FollowedWindow, without: Collection[tuple[int, int]]
) -> tuple[float, ...]:
    """[pp]; empty where the times of micro-batches differ by their documents."""
    if kind == "balance" or causes.SEQUENCE_IMBALANCE in window.causes:
        return ()
    return tuple(stage_seconds(window.window, without).sum(axis=0).tolist())


def _workers(
    window: FollowedWindow, causes: Sequence[str]
) -> tuple[tuple[int, int, str | None], ...]:
    findings = window.findings(causes)
    if not findings:
        return ()
    named = sorted(named_workers(window.window, findings[0]))[:MAX_WORKERS]
    return tuple((*worker, window.hosts.get(worker)) for worker in named)


def named_workers(window: Window, finding: Finding) -> set[tuple[int, int]]:
    """(dp rank, stage) of all workers that a finding names: by place, or all on a host."""
    workers: set[tuple[int, int]] = set()
    sizes = window.job.parallelism
    for culprit in finding.culprits:
        if culprit.dp_rank is None and culprit.stage is None:
            workers.update(worker for worker, host in window.hosts.items() if host == culprit.host)
            continue
        dp_ranks = range(sizes.dp_size) if culprit.dp_rank is None else (culprit.dp_rank,)
        stages = range(sizes.pp_size) if culprit.stage is None else (culprit.stage,)
        workers.update(product(dp_ranks, stages))
    return workers


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
