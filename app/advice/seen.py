"""Recognises a fix in a later window by the sign that was stored with its prediction.

A window proves a fix only where nothing else explains it: another host, other shares, another order
of operations. A cause that merely disappears proves none.
"""

from collections.abc import Sequence

import numpy as np

from app.advice.signs import FollowedWindow, Seen, Shape, Sign, named_workers, stage_seconds
from app.result import causes
from app.result.finding import Finding

# Mean numbers of micro-batches that differ by less are the same.
_SAME_MICROBATCHES = 0.02
# Another split moves the stages at least half of the way to the predicted shares, and by more than
# shares vary between windows of the same job.
_MIN_WAY, _MIN_SHIFT = 0.5, 0.005
# Without a prediction of the shares: a layer is at least so much of the job.
_MIN_UNPREDICTED_SHIFT = 0.01
# Of the imbalance over dp ranks, no more than this is left.
_MAX_LEFT = 0.5
# Work that the fix leaves alone takes the same time within this; halves of micro-batches and
# computations of another schedule also have fixed costs.
_SAME_WORK, _SAME_SCHEDULED_WORK = 0.10, 0.25
# Where fewer of the other hosts are still there, hosts have new names, as Kubernetes pods have.
_MIN_SAME_HOSTS = 0.2


def comparable_step_s(sign: Sign, window: FollowedWindow) -> float:
    """T, seconds: the mean simulated step; of uneven sequences at the work of the prediction.

    Their work differs from step to step, by the documents and not by the fix.
    """
    work_s = window.total_work_s if sign.work_s is not None else 0.0
    return window.step_s * (sign.work_s / work_s if sign.work_s and work_s else 1.0)


def seen_in(sign: Sign, window: FollowedWindow) -> Seen:
    """The state of the fix in a window after the prediction."""
    if not _is_comparable(sign, window.shape):
        return "other-shape"
    if not _has_same_work(sign, window):
        # The work of a run may change for a while: by throttled GPUs, or other data.
        return "other-work" if window.epoch > sign.epoch else "unknown"
    if sign.kind == "host":
        return _host_seen(sign, window)
    if sign.kind == "link":
        return _link_seen(sign, window)
    if sign.kind == "balance":
        return _balance_seen(sign, window)
    if sign.kind == "pauses":
        return _pauses_seen(sign, window)
    return _layout_seen(sign, window)


def _is_comparable(sign: Sign, now: Shape) -> bool:
    before = sign.shape
    if sign.kind != "structure":
        return before.sizes == now.sizes and _has_same_microbatches(before, now)
    # Chunks (vpp) are what such a fix changes.
    is_same = (*before.sizes[:3], *before.sizes[4:]) == (*now.sizes[:3], *now.sizes[4:])
    return is_same and (
        _has_same_microbatches(before, now) or _has_predicted_microbatches(sign, now)
    )


def _has_same_microbatches(before: Shape, now: Shape) -> bool:
    if len(before.microbatches) != len(now.microbatches):
        return False
    return bool(np.allclose(before.microbatches, now.microbatches, rtol=_SAME_MICROBATCHES))


def _has_predicted_microbatches(sign: Sign, now: Shape) -> bool:
    wanted = sign.predicted_microbatches
    if wanted is None:
        return False
    return bool(np.allclose(now.microbatches, wanted, rtol=_SAME_MICROBATCHES))


def _has_same_work(sign: Sign, window: FollowedWindow) -> bool:
    """Whether workers that the fix leaves alone compute as long for a step, over all stages."""
    if not sign.stage_s or causes.SEQUENCE_IMBALANCE in window.causes:
        return True
    without = sign.places if sign.kind == "host" else ()
    before_s = np.array(sign.stage_s)
    now_s = stage_seconds(window.window, without).sum(axis=0)
    is_known = (before_s > 0) & (now_s > 0)
    if not is_known.any():
        return True
    times = np.mean(window.shape.microbatches) / np.mean(sign.shape.microbatches)
    ratio = times * now_s[is_known].sum() / before_s[is_known].sum()
    margin = _SAME_SCHEDULED_WORK if sign.kind == "structure" else _SAME_WORK
    return bool(1 / (1 + margin) <= ratio <= 1 + margin)


def _layout_seen(sign: Sign, window: FollowedWindow) -> Seen:
    """The state of another split or schedule, which take a new run."""
    if window.epoch > sign.epoch:
        if sign.kind == "structure":
            return _structure_seen(sign, window.shape)
        if _is_moved(sign, window.shares):
            # A slow worker makes its stage long, too.
            is_new = causes.SLOW_WORKER in window.causes and causes.SLOW_WORKER not in sign.found
            return "unknown" if is_new else "applied"
    if not set(sign.causes) & set(sign.found):
        return "there"  # a cause that the job never had cannot go away
    seen = _cause_seen(sign, window, window.findings(sign.causes))
    # Of the fix there would be a proof.
    return "recovered" if seen == "gone" else seen


def _structure_seen(sign: Sign, now: Shape) -> Seen:
    before = sign.shape
    is_same = (before.sizes, before.order) == (now.sizes, now.order)
    if sign.predicted_microbatches is None:
        return "there" if is_same else "applied"
    if _has_predicted_microbatches(sign, now):
        return "applied" if before.sizes == now.sizes else "other-shape"
    return "there" if is_same else "other-shape"


def _balance_seen(sign: Sign, window: FollowedWindow) -> Seen:
    """Whether the dp ranks have even work now; micro-batches may differ in length all the same."""
    remaining = window.imbalance - 1
    if sign.imbalance is None or remaining > _MAX_LEFT * (sign.imbalance - 1):
        return "there"
    return "recovered" if sign.needs_restart and window.epoch == sign.epoch else "gone"


def _pauses_seen(sign: Sign, window: FollowedWindow) -> Seen:
    findings = window.findings(sign.causes)
    if any(finding.evidence.get("planned") for finding in findings):
        return "applied"
    return _cause_seen(sign, window, findings)


def _link_seen(sign: Sign, window: FollowedWindow) -> Seen:
    """A link that is no longer slow may have been repaired, or be quiet for a while."""
    if not _is_renamed(sign, window) and any(_changed_hosts(sign, window)):
        return "applied"
    seen = _cause_seen(sign, window, window.findings(sign.causes))
    return "recovered" if seen == "gone" else seen


def _host_seen(sign: Sign, window: FollowedWindow) -> Seen:
    findings = window.findings(sign.causes)
    if all(host is None for _, _, host in sign.workers):
        of_workers = [
            finding for finding in findings if named_workers(window.window, finding) & sign.places
        ]
        return _cause_seen(sign, window, of_workers)
    changed = _changed_hosts(sign, window)
    if None in changed:
        return "unknown"
    if all(changed) and not _is_renamed(sign, window):
        return "applied"
    seen = _cause_seen(sign, window, findings)
    return "recovered" if seen == "gone" and not all(changed) else seen


def _changed_hosts(sign: Sign, window: FollowedWindow) -> list[bool | None]:
    """[workers with a known host], whether it has another now; None where that is unknown."""
    # A host that now runs another worker of the job was not replaced.
    present = set(window.hosts.values())
    now = [
        (host, window.hosts.get((dp_rank, stage)))
        for dp_rank, stage, host in sign.workers
        if host is not None
    ]
    return [None if new is None else new != old and old not in present for old, new in now]


def _is_renamed(sign: Sign, window: FollowedWindow) -> bool:
    """Whether hosts have other names, as far as the job's other hosts show."""
    same = set(sign.hosts) & set(window.hosts.values())
    return len(same) < _MIN_SAME_HOSTS * len(sign.hosts) or not sign.hosts


def _cause_seen(sign: Sign, window: FollowedWindow, findings: Sequence[Finding]) -> Seen:
    """Whether the cause is still detected; one that a window cannot show is not gone."""
    if findings:
        return "there"
    result = window.result
    if result.findings is None or any(
        other.cause in sign.causes and other.insufficient for other in result.ruled_out or ()
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
