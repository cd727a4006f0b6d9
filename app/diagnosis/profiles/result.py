"""Profiles as the JSON object of a result: its outline, with null for figures of the replay."""

from typing import Any

import numpy as np

from app.diagnosis.profiles.causes import (
    COMPUTE,
    DATA_WAIT,
    HOST,
    MIN_SAID_SHARE,
    WORK,
    Causes,
    ProfileCulprit,
    causes,
)
from app.diagnosis.profiles.job import ProfiledJob, RankFigures
from app.diagnosis.profiles.sentences import headline, of_finding
from app.engine.arrivals.result import as_json as arrivals_as_json
from app.engine.profile.bandwidth import Transfers, transfers
from app.engine.profile.breakdown import Breakdown
from app.engine.result import SCHEMA
from app.trace.readers.profiles.groups import sizes
from app.trace.readers.profiles.steps import WHOLE_FILE
from app.words import percent, seconds

MAX_TRANSFERS = 200
MAX_RANKS_LISTED = 4_096
_CAUSE = {
    COMPUTE: "slow-worker",
    WORK: "sequence-imbalance",
    DATA_WAIT: "data-loading",
    HOST: "late-host",
}
# Two figures of the cost that are further apart are given both.
_MAX_COST_APART = 0.03
_SCORE, _CONFIDENCE = 0.9, 0.9
# Causes that only several windows or recorded operations show.
_UNTOLD = {
    "slow-link": "a profile has no other time to compare transfers with",
    "stage-imbalance": "a profile does not name the computations of a micro-batch",
}
# Figures of the replay.
_REPLAYED = (
    "launch_slowdown",
    "slowdown",
    "gpu_time_wasted",
    "gpu_hours_lost",
    "dp_rank_slowdown",
    "stage_slowdown",
    "worker_slowdown",
    "worker_slowdown_estimate",
    "m_w",
    "m_w_exact",
    "m_s",
    "stage_share",
    "stage_compute_s",
    "fingerprint",
    "changes",
    "per_step",
)


def as_json(job: ProfiledJob) -> dict[str, Any]:
    """The whole result; unknown is None, never 0 or NaN."""
    found = causes(job)
    unexplained = _unexplained(job, found)
    return {
        **_header(job),
        "step_time_s": {"recorded": job.step_s.tolist(), "simulated": [], "ideal": []},
        "fidelity": {"discrepancy": None, "verdict": None, "step_discrepancy": []},
        "launch_delay": {"by_optype": {}, "by_worker": None, "others_waited": None},
        "structures": [],
        "clocks": {"residual_ms": None, "hosts": {}, "reason": "profiles are not replayed"},
        "step_slowdown": [],
        "optype_slowdown": {},
        "optype_time_s": {},
        **dict.fromkeys(_REPLAYED),
        "findings": None if found.reason else [_finding(job, each) for each in found.blamed],
        "ruled_out": _ruled_out(job, found),
        "arrivals": _arrivals(job, found),
        "unexplained_share": unexplained,
        "coverage": job.coverage,
        "profile": _profile(job, found, unexplained),
    }


def _header(job: ProfiledJob) -> dict[str, Any]:
    parallelism = sizes(job.ranks[0].profile, job.world_size)
    return {
        "schema": SCHEMA,
        "window": {
            "id": None,
            "epoch": None,
            "revision": None,
            "state": "complete" if job.is_complete else "incomplete",
            "missing": job.missing[:MAX_RANKS_LISTED],
        },
        "job": {
            "name": job.name,
            "dp_size": parallelism["dp_size"],
            "pp_size": parallelism["pp_size"],
            "tp_size": parallelism["tp_size"],
            "vpp_size": parallelism.get("vpp_size", 1),
            "dsp_size": parallelism["dsp_size"],
            "ep_size": parallelism.get("ep_size", 1),
            "world_size": job.world_size,
        },
        "steps": list(job.steps),
        "skipped_steps": [{"step": step, "reason": reason} for step, reason in job.skipped],
    }


def _arrivals(job: ProfiledJob, found: Causes) -> dict[str, Any] | None:
    if job.arrivals is None:
        return None
    # Culprits by the profiles: of members that were not read, one may have come later still.
    return arrivals_as_json(job.arrivals) | {
        "culprits": [_culprit(job, each) for each in found.blamed]
    }


def _culprit(job: ProfiledJob, blamed: ProfileCulprit) -> dict[str, Any]:
    place = job.table.collectives.place(blamed.rank)
    groups = {group.name: group for group in job.table.collectives.groups}
    return {
        "rank": blamed.rank,
        "dp_rank": place.dp_rank,
        "stage": place.stage,
        "host": place.host,
        "local_rank": place.local_rank,
        "group": blamed.group,
        "axis": groups[blamed.group].axis,
        "kind": COMPUTE if blamed.kind == WORK else blamed.kind,
        "waited_for_s": blamed.waited_for_s,
        "share": blamed.waited_for_s / float(job.step_s.mean()),
        "late_share": blamed.late_share,
        "steps_late": blamed.steps_late,
        "own_delay_s": blamed.longer_s if blamed.kind in (COMPUTE, WORK) else blamed.alone_s,
    }


def _unexplained(job: ProfiledJob, found: Causes) -> float | None:
    if job.arrivals is None or found.reason:
        return None
    lost_s = job.arrivals.lost_without_s(found.explained).max(axis=0)
    return float(lost_s.mean() / job.step_s.mean())


def cost(job: ProfiledJob, blamed: ProfileCulprit) -> tuple[float, float]:
    """Low and high share of the step that the rank costs: its longer computing, and the waits."""
    step_s = float(job.step_s.mean())
    if blamed.kind not in (COMPUTE, WORK):
        return (min(blamed.alone_s / step_s, 1.0),) * 2
    waited = min(max(blamed.waited_for_s, blamed.lost_s) / step_s, 1.0)
    longer = min(blamed.longer_s / step_s, 1.0)
    return min(waited, longer), max(waited, longer)


def _finding(job: ProfiledJob, blamed: ProfileCulprit) -> dict[str, Any]:
    low, high = cost(job, blamed)
    place = job.table.collectives.place(blamed.rank)
    named = {
        "dp_rank": place.dp_rank,
        "stage": place.stage,
        "host": place.host,
        "rank": blamed.rank,
        "local_rank": place.local_rank,
    }
    evidence: dict[str, Any] = {
        "waited_for_s": blamed.waited_for_s,
        "late_share": blamed.late_share,
        "steps_late": blamed.steps_late,
        "computing_s": blamed.computing_s,
        "peers_computing_s": blamed.peers_s,
        "group": blamed.group,
    }
    if blamed.more_work is not None:
        evidence["more_work"] = blamed.more_work
    if blamed.kind == HOST:
        evidence["late_because"] = "unknown host work"
    if blamed.kind == DATA_WAIT:
        evidence |= {
            "data_wait_s": blamed.data_wait_s,
            "peers_data_wait_s": blamed.peers_data_wait_s,
        }
    is_apart = high - low > _MAX_COST_APART
    return {
        "cause": _CAUSE[blamed.kind],
        "score": _SCORE,
        "confidence": _CONFIDENCE,
        "culprits": [{name: value for name, value in named.items() if value is not None}],
        "onset_step": None,
        "persistence": None,
        "cost": low,
        "cost_range": [low, high] if is_apart else None,
        "evidence": evidence,
        "sentence": of_finding(job, blamed, (low, high) if is_apart else (low, low)),
    }


def _ruled_out(job: ProfiledJob, found: Causes) -> list[dict[str, Any]]:
    kinds = {each.kind for each in found.blamed}
    said = []
    if COMPUTE not in kinds:
        said.append(_no_slow_worker(found))
    if not kinds & {HOST, DATA_WAIT}:
        said.append(_no_late_host(job, found))
    if WORK not in kinds:
        said.append(_no_imbalance(job, found))
    return [*said, *(_ruled(name, reason, True) for name, reason in _UNTOLD.items())]


def _no_slow_worker(found: Causes) -> dict[str, Any]:
    if found.reason:
        return _ruled("slow-worker", found.reason, True)
    return _ruled(
        "slow-worker", "no rank that the others wait for computes longer than its peers", False
    )


def _no_imbalance(job: ProfiledJob, found: Causes) -> dict[str, Any]:
    if found.reason:
        return _ruled("sequence-imbalance", found.reason, True)
    if not all(np.isfinite(each.blocks).all() for each in job.ranks):
        return _ruled(
            "sequence-imbalance", "the files do not say how large the kernels' grids are", True
        )
    return _ruled(
        "sequence-imbalance", "kernels of late ranks are no larger than their peers'", False
    )


def _no_late_host(job: ProfiledJob, found: Causes) -> dict[str, Any]:
    if found.reason:
        return _ruled("late-host", found.reason, True)
    if found.minor:
        most = found.minor[0]
        share = percent(most.alone_s / float(job.step_s.mean()))
        reason = (
            f"rank {most.rank} launches late and is waited for {seconds(most.alone_s)} a step "
            f"({share}), which the profiler itself may cost"
        )
        return _ruled("late-host", reason, True)
    if (idle := _idlest(job)) is not None:
        return _ruled("late-host", idle, True)
    return _ruled("late-host", "no host launches late far more often than by chance", False)


def _idlest(job: ProfiledJob) -> str | None:
    """The rank whose GPU idles much longer than the others', in words; None for none."""
    idle_s = np.array([each.time.idle_s.mean() for each in job.ranks])
    at = int(idle_s.argmax())
    others_s = float(np.median(np.delete(idle_s, at)))
    step_s = float(job.step_s.mean())
    if idle_s[at] - others_s < MIN_SAID_SHARE * step_s:
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
            for each in transfers(table.collectives, table.num_members)[:MAX_TRANSFERS]
        ],
    }


def _notes(job: ProfiledJob) -> list[str]:
    said = []
    if not job.is_world_size_known:
        said.append(
            f"the files do not say how many ranks the job has: taken to be {job.world_size:,}"
        )
    if job.steps_from == WHOLE_FILE:
        said.append(
            "the files mark no steps: each is taken as one; call profiler.step() after each"
        )
    groups = job.table.collectives.groups
    partial = [each for each in groups if 1 < len(each.ranks) < job.table.num_members[each.name]]
    if partial:
        said.append(
            f"groups with members whose files were not given: {len(partial):,}; waits in them are "
            "at least what is shown"
        )
    number = sum(each.profile.num_unlaunched for each in job.ranks)
    if number:
        said.append(
            f"{number:,} kernels have no launch in the files: they belong to the step within which "
            "they start, or to none"
        )
    return said


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


def _span(time: Breakdown) -> dict[str, float]:
    return {
        "span_s": float(time.step_s[0]),
        "computing_s": float(time.computing_s[0]),
        "communicating_exposed_s": float(time.exposed_s[0]),
        "communicating_hidden_s": float(time.hidden_s[0]),
        "copying_s": float(time.copying_s[0]),
        "idle_s": float(time.idle_s[0]),
    }


def _transfers(each: Transfers) -> dict[str, Any]:
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
