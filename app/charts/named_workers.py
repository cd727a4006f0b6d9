"""Workers that a window's findings name."""

from collections.abc import Iterable, Mapping
from typing import Any

from app.words import Hosts

SILENT = "silent-worker"

Worker = tuple[int, int]  # dp rank, stage


def silent_workers(result: Mapping[str, Any]) -> list[Worker]:
    """Those that send nothing any more."""
    return _named(result, (each for each in _findings(result) if each["cause"] == SILENT), {})


def culprit_workers(result: Mapping[str, Any], hosts: Hosts | None) -> list[Worker] | None:
    """Those to blame, and all on a host that is; None where nobody has looked for causes."""
    if result.get("findings") is None:
        return None
    others = (each for each in _findings(result) if each["cause"] != SILENT)
    return _named(result, others, hosts or {})


def _findings(result: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return result.get("findings") or ()


def _named(
    result: Mapping[str, Any], findings: Iterable[Mapping[str, Any]], hosts: Hosts
) -> list[Worker]:
    found: set[Worker] = set()
    for culprit in (each for finding in findings for each in finding["culprits"]):
        if "dp_rank" in culprit and "stage" in culprit:
            found.add((culprit["dp_rank"], culprit["stage"]))
        elif set(culprit) == {"host"}:
            found |= {worker for worker, host in hosts.items() if host == culprit["host"]}
    sizes = result["job"]
    return sorted(w for w in found if w[0] < sizes["dp_size"] and w[1] < sizes["pp_size"])
