"""Who a finding names, and whether that is a worker or a host."""

from collections.abc import Mapping
from typing import Any

Worker = tuple[int, int]  # dp rank, stage
Finding = Mapping[str, Any]
Culprit = Mapping[str, Any]


def name(dp_rank: int, stage: int) -> str:
    """A worker as its page's address has it."""
    return f"{dp_rank}-{stage}"


def place_of(worker: str) -> Worker:
    """Dp rank and stage of a worker that `name` has named."""
    dp_rank, _, stage = worker.partition("-")
    return int(dp_rank), int(stage)


def host_of(culprit: Culprit, hosts: Mapping[Worker, str]) -> str | None:
    """The host that this culprit is, or is a worker on; None of a whole rank or stage."""
    host: str | None = culprit.get("host")
    return hosts.get(_worker(culprit)) if host is None and _is_one_worker(culprit) else host


def labels_of(finding: Finding, hosts: Mapping[Worker, str]) -> dict[str, str]:
    """Cause, worker and host, each only if the finding names exactly one."""
    culprits = finding["culprits"]
    found = {"cause": str(finding["cause"])}
    if len(culprits) == 1 and _is_one_worker(culprits[0]):
        found["worker"] = name(*_worker(culprits[0]))
    named = {host_of(culprit, hosts) for culprit in culprits}
    if len(named) == 1 and (host := named.pop()) is not None:
        found["host"] = host
    return found


def _is_one_worker(culprit: Culprit) -> bool:
    return culprit.get("dp_rank") is not None and culprit.get("stage") is not None


def _worker(culprit: Culprit) -> Worker:
    return int(culprit["dp_rank"]), int(culprit["stage"])
