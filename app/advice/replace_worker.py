"""Fix: drain the host of a slow worker, and restart the job without it.

Predicted by giving the worker's computations the durations of a peer of its stage: the median peer,
with the fastest and the slowest peer that is no culprit as bounds.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.advice.change import Change
from app.advice.fix import AdviceCase, Fix, NotOffered, confidence_of, restart_needs
from app.advice.node_commands import drain_commands, host_needs, hosts_of
from app.engine.questions.edits import Edit, FromWorker, Selection
from app.trace.ops import OpKind
from app.trace.window import Floats

NAME = "replace-worker"
CAUSES = ("slow-worker",)

Worker = tuple[int, int]  # dp rank, stage


def replace_worker(case: AdviceCase) -> Fix | NotOffered:
    """Replace the culprits of the most costly slow-worker finding."""
    found = case.findings(*CAUSES)
    if not found:
        return NotOffered(NAME, "no worker was found to be slow")
    workers = culprit_workers(case, found[0])
    if not workers:
        return NotOffered(NAME, "the slow workers change, so there is none to replace")
    compute_s = mean_compute_s(case)
    peers = {stage: _healthy_peers(compute_s, stage, workers) for stage in _stages(workers)}
    alone = [stage for stage, ranks in peers.items() if not ranks]
    if alone:
        return NotOffered(
            NAME, f"every worker of stage {alone[0]} is slow: none shows its usual time"
        )
    changes = [Change(edits=_edits(workers, peers, at)) for at in (0.0, 0.5, 1.0)]
    times_s = [case.step_s_with(each) for each in changes]
    hosts = hosts_of(case, workers)
    return Fix(
        name=NAME,
        title=f"Replace {_title(case, workers, hosts)}",
        before_s=case.step_s,
        step_s=times_s[1],
        step_range_s=(min(times_s), max(times_s)),
        num_gpus=case.num_gpus,
        confidence=confidence_of(case, found[0]),
        risk="The job restarts from its last checkpoint, and needs a spare host.",
        stops_job=True,
        change=changes[1],
        cause=found[0]["cause"],
        stop_minutes=case.facts.stop_minutes,
        lost_minutes=case.lost_minutes(found[0]),
        paste=drain_commands(case, hosts, "slow worker", restarts=True),
        needs=(*host_needs(case, hosts), *restart_needs(case)),
    )


def culprit_workers(case: AdviceCase, finding: Mapping[str, Any]) -> list[Worker]:
    """Workers that a finding names: by place, or all on a host that it names."""
    every = [(dp_rank, stage) for dp_rank, stage in np.ndindex(*_shape(case))]
    hosts = case.replay.window.hosts
    return [
        worker
        for worker in every
        if any(_is_named(culprit, worker, hosts.get(worker)) for culprit in finding["culprits"])
    ]


def _is_named(culprit: Mapping[str, Any], worker: Worker, host: str | None) -> bool:
    dp_rank, stage = culprit.get("dp_rank"), culprit.get("stage")
    if dp_rank is None and stage is None:
        return host is not None and host == culprit.get("host")
    return dp_rank in (None, worker[0]) and stage in (None, worker[1])


def mean_compute_s(case: AdviceCase) -> Floats:
    """[dp, pp], seconds: mean time that a worker computes in a step."""
    dp_size, pp_size = _shape(case)
    total_s, steps = np.zeros((dp_size, pp_size)), 0
    for group in case.replay.groups:
        template = group.template
        is_compute = template.op_types.flags(lambda spec: spec.kind is OpKind.COMPUTE)
        for stage in range(pp_size):
            rows = np.flatnonzero(is_compute[template.optype] & (template.stage == stage))
            by_lane = group.durations.recorded_s[rows].sum(axis=0)
            total_s[:, stage] += by_lane.reshape(dp_size, -1).sum(axis=1)
        steps += len(group.steps)
    return total_s / steps


def _shape(case: AdviceCase) -> tuple[int, int]:
    sizes = case.replay.window.job.parallelism
    return sizes.dp_size, sizes.pp_size


def _stages(workers: list[Worker]) -> list[int]:
    return sorted({stage for _, stage in workers})


def _healthy_peers(compute_s: Floats, stage: int, workers: list[Worker]) -> list[int]:
    """Dp ranks of the stage that are no culprits, the fastest first."""
    slow = {dp_rank for dp_rank, each in workers if each == stage}
    order = np.argsort(compute_s[:, stage], kind="stable").tolist()
    return [dp_rank for dp_rank in order if dp_rank not in slow]


def _edits(workers: list[Worker], peers: dict[int, list[int]], at: float) -> tuple[Edit, ...]:
    """Each stage's culprits compute like the peer at this quantile of the stage's healthy ones."""
    return tuple(
        Edit(
            FromWorker(ranks[round(at * (len(ranks) - 1))], stage),
            Selection(
                op_types=("compute",), workers=tuple(each for each in workers if each[1] == stage)
            ),
        )
        for stage, ranks in peers.items()
    )


def _title(case: AdviceCase, workers: list[Worker], hosts: list[str]) -> str:
    if len(hosts) == 1 and len(workers) == 1:
        return f"{hosts[0]} (dp {workers[0][0]}, stage {workers[0][1]})"
    if len(hosts) == 1:
        return hosts[0]
    if hosts:
        return f"{len(hosts)} hosts"
    if len(workers) == 1:
        return f"the worker at dp {workers[0][0]}, stage {workers[0][1]}"
    return f"{len(workers)} workers"
