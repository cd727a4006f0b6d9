"""What closed windows lost, by cause, operation type and host: the fleet over time is their sum.

Windows of low fidelity are left out: their figures are not to be trusted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete

from app.charts.optypes import loss_shares
from app.store.tables import window_losses
from app.store.upsert import replace
from app.store.windows import WindowRecord

NOT_EXPLAINED = "not-explained"
OTHER = "other"
LEAST_SHARE = 0.01
MOST_HOSTS = 64
_LEAST_LEFT = 1e-6  # less of a loss is a rounding
# What a host itself, or what it is plugged into, is slow in.
HOSTS_CAUSES = (
    *("slow-worker", "late-host", "slow-link", "flapping-link"),
    *("data-loading", "allocator-stall"),
)

_RATIOS = ("slowdowns_against_peers", "slowdowns_against_itself")


@dataclass(frozen=True, slots=True)
class Loss:
    """GPU-seconds lost to something; `kind` and `name` as the table says."""

    kind: str
    name: str
    gpu_s: float
    gpu_s_recorded: float | None = None
    slowdown: float | None = None


def losses_of(result: Mapping[str, Any], *, num_gpus: int) -> list[Loss]:
    """The losses of a window's result (section 7 of the model); none of one of low fidelity.

    Shares of causes overlap; what is left once all of them are taken off is not explained. Where
    nobody could look for causes, all of it is.
    """
    if result["slowdown"] is None or result["fidelity"]["verdict"] != "ok":
        return []
    recorded = sum(result["step_time_s"]["recorded"]) * num_gpus
    lost = max(0.0, 3600 * result["gpu_hours_lost"])
    findings = result["findings"] or []
    return [
        Loss("total", "", lost, recorded, result["slowdown"]),
        *_causes(findings, recorded, lost),
        *_optypes(loss_shares(result["optype_slowdown"]), lost),
        *_hosts(findings, recorded),
    ]


def save(conn: Connection, job_id: str, record: WindowRecord, losses: Sequence[Loss], *,
         num_gpus: int) -> None:  # fmt: skip
    """Save a closed window's losses, over what an older revision of it said."""
    of = window_losses.c
    key = {"job_id": job_id, "epoch": record.epoch, "first_step": record.first_step}
    conn.execute(delete(window_losses).where(*(of[name] == value for name, value in key.items())))
    replace(conn, window_losses, [
        {**key, "kind": each.kind, "name": each.name, "updated_s": record.updated_s,
         "gpu_s": each.gpu_s, "gpu_s_recorded": each.gpu_s_recorded, "num_gpus": num_gpus,
         "slowdown": each.slowdown}
        for each in losses
    ])  # fmt: skip


def _causes(findings: Sequence[Mapping[str, Any]], recorded: float, lost: float) -> list[Loss]:
    by_cause: dict[str, float] = {}
    for finding in findings:
        cost = finding["cost"]
        if cost is not None and cost > 0:
            cause = finding["cause"]
            by_cause[cause] = by_cause.get(cause, 0.0) + cost * recorded
    left = lost - sum(by_cause.values())
    if left > _LEAST_LEFT * lost:
        by_cause[NOT_EXPLAINED] = left
    return [Loss("cause", cause, gpu_s) for cause, gpu_s in by_cause.items()]


def _optypes(shares: Mapping[str, float | None], lost: float) -> list[Loss]:
    """By type, the small ones as one: windows are many, and each of these is a row."""
    large = {name: share for name, share in shares.items() if share and share >= LEAST_SHARE}
    small = sum(share for name, share in shares.items() if share and name not in large)
    found = large | ({OTHER: small} if small else {})
    return [Loss("optype", name, lost * share) for name, share in found.items()]


def _hosts(findings: Sequence[Mapping[str, Any]], recorded: float) -> list[Loss]:
    """A finding's cost in equal parts to its hosts; none where the culprit is another each time."""
    found: dict[str, Loss] = {}
    for finding in findings:
        if finding["cause"] not in HOSTS_CAUSES or finding["persistence"] == "rotating":
            continue
        slowdowns = _slowdowns(finding)
        part = max(0.0, finding["cost"] or 0.0) * recorded / max(1, len(slowdowns))
        for host, slowdown in slowdowns.items():
            before = found.get(host, Loss("host", host, 0.0))
            most = _larger(before.slowdown, slowdown)
            found[host] = Loss("host", host, before.gpu_s + part, slowdown=most)
    return sorted(found.values(), key=lambda each: -each.gpu_s)[:MOST_HOSTS]


def _slowdowns(finding: Mapping[str, Any]) -> dict[str, float | None]:
    """How slow each host that is to blame was, by its slowest worker; None where it is unknown."""
    evidence, culprits = finding["evidence"], finding["culprits"]
    ratios: Sequence[float] = next((evidence[name] for name in _RATIOS if name in evidence), [])
    of_worker = {
        tuple(worker): ratio
        for worker, ratio in zip(evidence.get("workers", ()), ratios, strict=False)
    }
    found: dict[str, float | None] = {}
    for culprit in culprits:
        if host := culprit.get("host"):
            ratio = of_worker.pop((culprit.get("dp_rank"), culprit.get("stage")), None)
            found[host] = _larger(found.get(host), ratio)
    # A host that is to blame as a whole: its workers are among those that nobody else has.
    left = max(of_worker.values(), default=None)
    whole = [each["host"] for each in culprits if "host" in each and "dp_rank" not in each]
    return found | {host: _larger(found[host], left) for host in whole}


def _larger(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)
