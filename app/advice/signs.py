"""What shows in later windows that a fix was applied: taken down with its prediction.

Each kind of fix leaves its own sign: another host, other shares of the stages, another order of
operations, or a cause that is no longer found. A fix without a sign cannot be noticed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from app.trace.ops import OP_CODES
from app.trace.window import Floats, Window

SignKind = Literal["host", "shares", "counts", "structure", "balance", "cause"]
# What a window shows of a fix. "recovered": the cause is gone, and the fix was certainly not made.
Seen = Literal["applied", "gone", "recovered", "there", "unknown", "other-shape"]

# For each fix that can be noticed: by what, and the causes that it is for.
SIGNS: Mapping[str, tuple[SignKind, tuple[str, ...]]] = {
    "replace-worker": ("host", ("slow-worker",)),
    "resplit-stages": ("shares", ("stage-imbalance",)),
    "move-microbatches": ("counts", ("slow-worker",)),
    "other-schedule": ("structure", ()),
    "planned-gc": ("cause", ("gc-pause",)),
    "balance-sequences": ("balance", ("sequence-imbalance",)),
    "pack-sequences": ("balance", ("sequence-imbalance",)),
    "repair-link": ("cause", ("slow-link", "flapping-link")),
}
# More culprits are not taken down: one of their hosts is proof enough.
MAX_WORKERS = 64
# Mean numbers of micro-batches that differ by less are the same.
_SAME_MICROBATCHES = 0.02
# Another split moves the stages at least half of the way to the predicted shares, and by more than
# shares vary between windows of the same job.
_MIN_WAY, _MIN_SHIFT = 0.5, 0.005
# Without a prediction of the shares: a layer is at least so much of the job.
_MIN_UNPREDICTED_SHIFT = 0.01
# Of the imbalance over dp ranks, no more than this is left.
_MAX_LEFT = 0.5
_TINY = np.finfo(float).tiny
_COMPUTE = (
    *("forward-compute", "backward-compute"),
    *("backward-input-compute", "backward-weight-compute"),
)


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
    columns = (trace.stage, trace.optype, trace.mc, trace.mb_id)
    listed = np.stack([each[rows].astype(np.int64) for each in columns])
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


def work_imbalance(work_s: Floats) -> float:
    """How uneven the work [steps, dp] of a step is: mean of largest / mean, 1 if even.

    A rank that is slow in every step does not count: each is relative to its own mean.
    """
    relative = work_s / np.maximum(work_s.mean(axis=0), _TINY)
    return float((relative.max(axis=1) / np.maximum(relative.mean(axis=1), _TINY)).mean())


@dataclass(frozen=True)
class FollowedWindow:
    """A closed window with its result (docs/glossary.md), as signs are looked for in it."""

    window: Window
    result: Mapping[str, Any]

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
        return float(np.mean(self.result["step_time_s"]["simulated"]))

    @property
    def causes(self) -> tuple[str, ...]:
        """Causes that are found, each once, in the order of their names."""
        return tuple(sorted({each["cause"] for each in self.result["findings"] or ()}))

    @property
    def shares(self) -> tuple[float, ...]:
        """[pp], each stage's part of the time that all compute for a micro-batch."""
        of_stage = self.result["stage_compute_s"]
        total = np.add(of_stage["forward"], of_stage["backward"])
        return tuple((total / total.sum()).tolist())


def followed_window(
    window: Window, result: Mapping[str, Any], *, is_trusted: bool
) -> FollowedWindow | None:
    """A window as signs are looked for in it; None where its figures are not to be compared.

    These are open and incomplete windows, and those of low fidelity (not `is_trusted`).
    """
    if window.state != "complete" or not is_trusted or not result["steps"]:
        return None
    return FollowedWindow(window, result)


@dataclass(frozen=True, slots=True)
class Sign:
    """What to look for, and how the job was at the prediction.

    `needs_restart`: without a new run after `epoch` the fix cannot have been made. `found` are all
    causes found then; `workers` (dp rank, stage, host) those that are to be replaced; `shares` [pp]
    the stages' shares and `predicted_shares` those with the fix, empty where they are not known;
    where a fix is to lower it, `imbalance` is that of the work over the dp ranks, and `work_s` all
    work of a step in seconds.
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


def sign_of(fix: Mapping[str, Any], window: FollowedWindow) -> Sign | None:
    """What to look for after this prediction; None where nothing recorded would show the fix.

    `fix` is as `fix_as_json` makes it, `window` the one that it was predicted for.
    """
    known = SIGNS.get(fix["fix"])
    if known is None:
        return None
    kind, causes = known
    workers: tuple[tuple[int, int, str | None], ...] = ()
    if kind == "host":
        workers = _workers(window, causes)
        if not workers:
            return None
    is_split = kind == "shares"
    return Sign(
        kind,
        causes,
        # A link can be repaired under a running job.
        bool(fix["stops_job"]) and fix["fix"] != "repair-link",
        window.epoch,
        window.shape,
        window.causes,
        workers,
        window.shares if is_split else (),
        _predicted_shares(fix["what_if"] or (), window) if is_split else (),
        work_imbalance(window.work_s) if kind == "balance" else None,
        _total_s(window.work_s) if kind == "balance" else None,
    )


def _workers(
    window: FollowedWindow, causes: Sequence[str]
) -> tuple[tuple[int, int, str | None], ...]:
    found = _findings(window, causes)
    if not found:
        return ()
    named = sorted(_named_workers(window, found[0]))[:MAX_WORKERS]
    return tuple((*worker, window.hosts.get(worker)) for worker in named)


def _findings(window: FollowedWindow, causes: Sequence[str]) -> list[Mapping[str, Any]]:
    return [each for each in window.result["findings"] or () if each["cause"] in causes]


def _named_workers(window: FollowedWindow, finding: Mapping[str, Any]) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    dp_size, pp_size = window.shape.sizes[:2]
    for culprit in finding["culprits"]:
        dp_rank, stage = culprit.get("dp_rank"), culprit.get("stage")
        if dp_rank is None and stage is None:
            host = culprit.get("host")
            found.update(worker for worker, name in window.hosts.items() if name == host)
            continue
        dp_ranks = range(dp_size) if dp_rank is None else (dp_rank,)
        stages = range(pp_size) if stage is None else (stage,)
        found.update((each, at) for each in dp_ranks for at in stages)
    return found


def _predicted_shares(
    edits: Sequence[Mapping[str, Any]], window: FollowedWindow
) -> tuple[float, ...]:
    """[pp], the shares with these edits: factors of the passes of single stages."""
    factors = np.ones((2, len(window.shares)))
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
    of_stage = window.result["stage_compute_s"]
    total = factors[0] * of_stage["forward"] + factors[1] * of_stage["backward"]
    return tuple((total / total.sum()).tolist()) if edits else ()


def comparable_step_s(sign: Sign, window: FollowedWindow) -> float:
    """T, seconds: the mean simulated step; of uneven sequences at the work of the prediction.

    Their work differs from step to step, by the documents and not by the fix.
    """
    work_s = _total_s(window.work_s) if sign.work_s is not None else 0.0
    return window.step_s * (sign.work_s / work_s if sign.work_s and work_s else 1.0)


def _total_s(work_s: Floats) -> float:
    """Work of a mean step, seconds."""
    return float(work_s.sum(axis=1).mean())


def seen_in(sign: Sign, window: FollowedWindow) -> Seen:
    """What a window after the prediction shows of the fix."""
    if not _is_comparable(sign, window.shape):
        return "other-shape"
    if sign.kind == "host":
        return _host_seen(sign, window)
    if sign.kind == "balance":
        return _balance_seen(sign, window)
    if _is_proven(sign, window):
        return "applied"
    seen = _cause_seen(sign, window, _findings(window, sign.causes))
    # Of the other kinds there would be a proof.
    return "recovered" if seen == "gone" and sign.kind != "cause" else seen


def _is_proven(sign: Sign, window: FollowedWindow) -> bool:
    """Whether the window can only look like this with the fix."""
    if sign.kind == "shares":
        return window.epoch > sign.epoch and _is_moved(sign, window.shares)
    if sign.kind == "counts":
        return not _has_same_microbatches(sign.shape, window.shape)
    if sign.kind == "structure":
        before, now = sign.shape, window.shape
        is_same = (before.sizes, before.order) == (now.sizes, now.order)
        return not is_same or not _has_same_microbatches(before, now)
    planned = (each["evidence"].get("planned") for each in _findings(window, sign.causes))
    return any(planned)


def _is_comparable(sign: Sign, now: Shape) -> bool:
    before = sign.shape
    if sign.kind == "counts":
        return before.sizes == now.sizes and _is_same_total(before, now)
    if sign.kind == "structure":
        # Chunks (vpp) and micro-batches, of all dp ranks alike, are what such a fix changes.
        is_same = (*before.sizes[:3], *before.sizes[4:]) == (*now.sizes[:3], *now.sizes[4:])
        return is_same and len(before.microbatches) == len(now.microbatches)
    return before.sizes == now.sizes and _has_same_microbatches(before, now)


def _has_same_microbatches(before: Shape, now: Shape) -> bool:
    if len(before.microbatches) != len(now.microbatches):
        return False
    return bool(np.allclose(before.microbatches, now.microbatches, rtol=_SAME_MICROBATCHES))


def _is_same_total(before: Shape, now: Shape) -> bool:
    """Whether all dp ranks together have as many micro-batches."""
    means = [sum(each.microbatches) / len(each.microbatches) for each in (before, now)]
    return abs(means[1] - means[0]) <= _SAME_MICROBATCHES * means[0]


def _balance_seen(sign: Sign, window: FollowedWindow) -> Seen:
    """Whether the dp ranks have even work now; micro-batches may differ in length all the same."""
    left = work_imbalance(window.work_s) - 1
    if sign.imbalance is None or left > _MAX_LEFT * (sign.imbalance - 1):
        return "there"
    return "recovered" if sign.needs_restart and window.epoch == sign.epoch else "gone"


def _host_seen(sign: Sign, window: FollowedWindow) -> Seen:
    known = [
        (host, window.hosts.get((dp_rank, stage)))
        for dp_rank, stage, host in sign.workers
        if host is not None
    ]
    known = [pair for pair in known if pair[1] is not None]
    # A host that now runs another worker of the job was not replaced.
    present = set(window.hosts.values())
    if known and all(now != host and host not in present for host, now in known):
        return "applied"
    mine = {(dp_rank, stage) for dp_rank, stage, _ in sign.workers}
    named = [
        each
        for each in _findings(window, sign.causes)
        if known or _named_workers(window, each) & mine
    ]
    seen = _cause_seen(sign, window, named)
    return "recovered" if seen == "gone" and known else seen


def _cause_seen(sign: Sign, window: FollowedWindow, found: Sequence[Mapping[str, Any]]) -> Seen:
    """Whether the cause is still found; one that a window cannot show is not gone."""
    if found:
        return "there"
    result = window.result
    if result["findings"] is None or any(
        each["cause"] in sign.causes and each["insufficient_evidence"]
        for each in result["ruled_out"] or ()
    ):
        return "unknown"
    return "recovered" if sign.needs_restart and window.epoch == sign.epoch else "gone"


def _is_moved(sign: Sign, shares: Sequence[float]) -> bool:
    """Whether the shares have moved as predicted, at least half of the way."""
    moved = np.subtract(shares, sign.shares)
    if not sign.predicted_shares:
        return bool(np.abs(moved).max() >= _MIN_UNPREDICTED_SHIFT)
    wanted = np.subtract(sign.predicted_shares, sign.shares)
    way = float(moved @ wanted) / float(wanted @ wanted)
    return way >= _MIN_WAY and bool(np.abs(moved).max() >= _MIN_SHIFT)
