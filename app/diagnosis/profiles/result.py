"""Profiles as a result: the same JSON blocks, null where only a replay has figures."""

from typing import Any

import numpy as np

from app.diagnosis.profiles.causes import (
    COMPUTE,
    DATA_WAIT,
    HOST,
    MIN_MENTIONED_SHARE,
    WORK,
    Causes,
    ProfileCulprit,
    causes,
)
from app.diagnosis.profiles.gpu_time import GpuTimeBreakdown, TransferTotals, transfer_totals
from app.diagnosis.profiles.job import ProfiledJob, RankFigures
from app.diagnosis.profiles.sentences import headline, of_finding
from app.engine.arrivals.arrivals import arrivals_as_json
from app.engine.report import header, without_replay
from app.formatting import percent, seconds
from app.result.causes import (
    DATA_LOADING,
    LATE_HOST,
    SEQUENCE_IMBALANCE,
    SLOW_LINK,
    SLOW_WORKER,
    STAGE_IMBALANCE,
)
from app.trace.readers.profiles.collective_table import job_sizes
from app.trace.readers.profiles.profile import WHOLE_FILE

MAX_TRANSFERS = 200
MAX_RANKS_LISTED = 4_096
_CAUSE = {
    COMPUTE: SLOW_WORKER,
    WORK: SEQUENCE_IMBALANCE,
    DATA_WAIT: DATA_LOADING,
    HOST: LATE_HOST,
}
# Above this difference of the two cost figures both are given.
_MAX_COST_DIFFERENCE = 0.03
_SCORE, _CONFIDENCE = 0.9, 0.9
# Causes that a profile cannot show.
_NOT_SHOWN = {
    SLOW_LINK: "a profile has no other time to compare transfers with",
    STAGE_IMBALANCE: "a profile does not name the computations of a micro-batch",
}


def as_json(job: ProfiledJob) -> dict[str, Any]:
    """The whole result; unknown is None, never 0 or NaN."""
    found = causes(job)
    unexplained = _unexplained(job, found)
    return {
        **_header(job),
        "step_time_s": {"recorded": job.step_s.tolist(), "simulated": [], "ideal": []},
        **without_replay("profiles are not replayed"),
        "findings": None if found.reason else [_finding(job, each) for each in found.culprits],
        "ruled_out": _ruled_out(job, found),
        "arrivals": _arrivals(job, found),
        "unexplained_share": unexplained,
        "coverage": job.coverage,
        "profile": _profile(job, found, unexplained),
    }


def _header(job: ProfiledJob) -> dict[str, Any]:
    sizes = {"vpp_size": 1, "ep_size": 1} | job_sizes(job.ranks[0].profile, job.world_size)
    names = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "ep_size")
    window = {
        "id": None,
        "epoch": None,
        "revision": None,
        "state": "complete" if job.is_complete else "incomplete",
        "missing": job.missing[:MAX_RANKS_LISTED],
    }
    named = {"name": job.name} | {name: sizes[name] for name in names}
    return header(window, named | {"world_size": job.world_size}, job.steps, job.skipped)


def _arrivals(job: ProfiledJob, found: Causes) -> dict[str, Any] | None:
    if job.arrivals is None:
        return None
    # Culprits by the profiles, as a member that was not read may have come later.
    return arrivals_as_json(job.arrivals) | {
        "culprits": [_culprit(job, each) for each in found.culprits]
    }


def _culprit(job: ProfiledJob, culprit: ProfileCulprit) -> dict[str, Any]:
    place = job.table.collectives.place(culprit.rank)
    groups = {group.name: group for group in job.table.collectives.groups}
    return {
        "rank": culprit.rank,
        "dp_rank": place.dp_rank,
        "stage": place.stage,
        "host": place.host,
        "local_rank": place.local_rank,
        "group": culprit.group,
        "axis": groups[culprit.group].axis,
        "kind": COMPUTE if culprit.kind == WORK else culprit.kind,
        "waited_for_s": culprit.waited_for_s,
        "share": culprit.waited_for_s / float(job.step_s.mean()),
        "late_share": culprit.late_share,
        "steps_late": culprit.steps_late,
        "own_delay_s": culprit.longer_s if culprit.kind in (COMPUTE, WORK) else culprit.alone_s,
    }


def _unexplained(job: ProfiledJob, found: Causes) -> float | None:
    if job.arrivals is None or found.reason:
        return None
    lost_s = job.arrivals.lost_without_s(found.explained).max(axis=0)
    return float(lost_s.mean() / job.step_s.mean())


def cost(job: ProfiledJob, culprit: ProfileCulprit) -> tuple[float, float]:
    """Low and high cost of the rank as a share of the step, by its computing and by the waits."""
    step_s = float(job.step_s.mean())
    if culprit.kind not in (COMPUTE, WORK):
        return (min(culprit.alone_s / step_s, 1.0),) * 2
    waited = min(max(culprit.waited_for_s, culprit.lost_s) / step_s, 1.0)
    longer = min(culprit.longer_s / step_s, 1.0)
    return min(waited, longer), max(waited, longer)


def _finding(job: ProfiledJob, culprit: ProfileCulprit) -> dict[str, Any]:
    low, high = cost(job, culprit)
    place = job.table.collectives.place(culprit.rank)
    named = {
        "dp_rank": place.dp_rank,
        "stage": place.stage,
        "host": place.host,
        "rank": culprit.rank,
        "local_rank": place.local_rank,
    }
    evidence: dict[str, Any] = {
        "waited_for_s": culprit.waited_for_s,
        "late_share": culprit.late_share,
        "steps_late": culprit.steps_late,
        "computing_s": culprit.computing_s,
        "peers_computing_s": culprit.peers_s,
        "group": culprit.group,
    }
    if culprit.more_work is not None:
        evidence["more_work"] = culprit.more_work
    if culprit.kind == HOST:
        evidence["late_because"] = "unknown host work"
    if culprit.kind == DATA_WAIT:
        evidence |= {
            "data_wait_s": culprit.data_wait_s,
            "peers_data_wait_s": culprit.peers_data_wait_s,
        }
    is_apart = high - low > _MAX_COST_DIFFERENCE
    return {
        "cause": _CAUSE[culprit.kind],
        "score": _SCORE,
        "confidence": _CONFIDENCE,
        "culprits": [{name: value for name, value in named.items() if value is not None}],
        "onset_step": None,
        "end_step": None,
        "persistence": None,
        "cost": low,
        "cost_range": [low, high] if is_apart else None,
        "evidence": evidence,
        "sentence": of_finding(job, culprit, (low, high) if is_apart else (low, low)),
    }


def _ruled_out(job: ProfiledJob, found: Causes) -> list[dict[str, Any]]:
    kinds = {each.kind for each in found.culprits}
    ruled_out = []
    if COMPUTE not in kinds:
        ruled_out.append(_no_slow_worker(found))
    if not kinds & {HOST, DATA_WAIT}:
        ruled_out.append(_no_late_host(job, found))
    if WORK not in kinds:
        ruled_out.append(_no_imbalance(job, found))
    return [*ruled_out, *(_ruled(name, reason, True) for name, reason in _NOT_SHOWN.items())]


def _no_slow_worker(found: Causes) -> dict[str, Any]:
    if found.reason:
        return _ruled(SLOW_WORKER, found.reason, True)
    return _ruled(
        SLOW_WORKER, "no rank that the others wait for computes longer than its peers", False
    )


def _no_imbalance(job: ProfiledJob, found: Causes) -> dict[str, Any]:
    if found.reason:
        return _ruled(SEQUENCE_IMBALANCE, found.reason, True)
    if not all(np.isfinite(each.blocks).all() for each in job.ranks):
        return _ruled(
            SEQUENCE_IMBALANCE, "the files do not say how large the kernels' grids are", True
        )
    return _ruled(
        SEQUENCE_IMBALANCE, "kernels of late ranks are no larger than their peers'", False
    )


def _no_late_host(job: ProfiledJob, found: Causes) -> dict[str, Any]:
    if found.reason:
        return _ruled(LATE_HOST, found.reason, True)
    if found.minor:
        most = found.minor[0]
        share = percent(most.alone_s / float(job.step_s.mean()))
        reason = (
            f"rank {most.rank} launches late and is waited for {seconds(most.alone_s)} a step "
            f"({share}), which the profiler itself may cost"
        )
        return _ruled(LATE_HOST, reason, True)
    if (idle := _idlest(job)) is not None:
        return _ruled(LATE_HOST, idle, True)
    return _ruled(LATE_HOST, "no host launches late far more often than by chance", False)


def _idlest(job: ProfiledJob) -> str | None:
    """The rank whose GPU idles much longer than the others', in words; None for none."""
    idle_s = np.array([each.time.idle_s.mean() for each in job.ranks])
    at = int(idle_s.argmax())
    others_s = float(np.median(np.delete(idle_s, at)))
    step_s = float(job.step_s.mean())
    if idle_s[at] - others_s < MIN_MENTIONED_SHARE * step_s:
        return None
    return (
        f"the GPU of rank {job.ranks[at].profile.rank} idles {seconds(float(idle_s[at]))} a step, "
        f"the others {seconds(others_s)}: its host launches late, but that is not what the others "
        "wait for most"
    )


def _ruled(cause: str, reason: str, is_insufficient: bool) -> dict[str, Any]:
    return {
        "cause": cause,
        "score": 0.0,
        "insufficient_evidence": is_insufficient,
        "reason": reason,
        "evidence": {},
    }


def _profile(job: ProfiledJob, found: Causes, unexplained: float | None) -> dict[str, Any]:
    table = job.table
    return {
        "ranks_read": [each.profile.rank for each in job.ranks],
        "world_size": job.world_size,
        "is_world_size_known": job.is_world_size_known,
        "platform": "ROCm" if job.ranks[0].profile.is_amd else "CUDA",
        "steps_from": job.steps_from,
        "step_time_s": float(job.step_s.mean()),
        "headline": headline(job, found, unexplained),
        "refusals": list(job.refusals),
        "notes": [*table.notes, *_notes(job)],
        "breakdown": [_breakdown(each) for each in job.ranks[:MAX_RANKS_LISTED]],
        "collectives": [
            _transfers(each)
            for each in transfer_totals(table.collectives, table.num_members)[:MAX_TRANSFERS]
        ],
    }


def _notes(job: ProfiledJob) -> list[str]:
    notes = []
    if not job.is_world_size_known:
        notes.append(
            f"the files do not say how many ranks the job has: taken to be {job.world_size:,}"
        )
    if job.steps_from == WHOLE_FILE:
        notes.append(
            "the files mark no steps: each is taken as one; call profiler.step() after each"
        )
    groups = job.table.collectives.groups
    partial = [each for each in groups if 1 < len(each.ranks) < job.table.num_members[each.name]]
    if partial:
        notes.append(
            f"groups with members whose files were not given: {len(partial):,}; waits in them are "
            "at least what is shown"
        )
    number = sum(each.profile.num_unlaunched for each in job.ranks)
    if number:
        notes.append(
            f"{number:,} kernels have no launch in the files: they belong to the step within which "
            "they start, or to none"
        )
    return notes


def _breakdown(each: RankFigures) -> dict[str, Any]:
    time, waiting_s = each.time, each.waiting_s
    return {
        "rank": each.profile.rank,
        "file": each.profile.file,
        "host": each.profile.host,
        "coverage": time.coverage,
        "step_s": float(time.step_s.mean()),
        "computing_s": float(time.computing_s.mean()),
        "communicating_exposed_s": float(time.exposed_s.mean()),
        "communicating_hidden_s": float(time.hidden_s.mean()),
        "waiting_s": None if waiting_s is None else float(waiting_s.mean()),
        "copying_s": float(time.copying_s.mean()),
        "idle_s": float(time.idle_s.mean()),
        "data_wait_s": float(each.data_wait_s.mean()),
        "kernel_span": _span(each.kernel_span),
        "per_step": {
            "step_s": time.step_s.tolist(),
            "computing_s": time.computing_s.tolist(),
            "communicating_exposed_s": time.exposed_s.tolist(),
            "communicating_hidden_s": time.hidden_s.tolist(),
            "waiting_s": None if waiting_s is None else waiting_s.tolist(),
            "copying_s": time.copying_s.tolist(),
            "idle_s": time.idle_s.tolist(),
        },
    }


def _span(time: GpuTimeBreakdown) -> dict[str, float]:
    return {
        "span_s": float(time.step_s[0]),
        "computing_s": float(time.computing_s[0]),
        "communicating_exposed_s": float(time.exposed_s[0]),
        "communicating_hidden_s": float(time.hidden_s[0]),
        "copying_s": float(time.copying_s[0]),
        "idle_s": float(time.idle_s[0]),
    }


def _transfers(each: TransferTotals) -> dict[str, Any]:
    return {
        "group": each.group,
        "axis": each.axis,
        "kind": each.kind,
        "num_ranks": each.num_members,
        "num_read": each.num_read,
        "num_bytes": each.num_bytes if each.num_bytes >= 0 else None,
        "num_occurrences": each.num_occurrences,
        "stay_s": each.stay_s,
        "transfer_s": each.transfer_s,
        "bandwidth_bytes_s": each.bandwidth_bytes_s,
    }
