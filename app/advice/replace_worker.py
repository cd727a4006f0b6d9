"""Fix: drain the host of a slow worker, and restart the job without it.

Predicted by scaling the worker's computations to the usual pace of a peer of its stage: the median
peer, with the fastest and the slowest peer that is no culprit as bounds. Backup tasks, the other
remedy for a slow worker, are never one: `backup_tasks` has the reason.
"""

import numpy as np
from msgspec.structs import replace

from app.advice.change import Change
from app.advice.commands import drain_commands, host_needs, hosts_of
from app.advice.fix import AdviceCase, Fix, NotOffered
from app.advice.signs import named_workers
from app.engine.questions.edits import Edit, Factor, Selection
from app.result import causes
from app.result.finding import Finding
from app.trace.ops import OpKind
from app.trace.window import Floats

NAME, BACKUP_TASKS = "replace-worker", "backup-tasks"
CAUSES = (causes.SLOW_WORKER,)

# Types that take less of a worker's computing time are left as they are.
_MIN_SHARE = 0.01

Worker = tuple[int, int]  # dp rank, stage


def replace_worker(case: AdviceCase) -> Fix | NotOffered:
    """Replace the culprits of the most costly slow-worker finding."""
    findings = case.findings(*CAUSES)
    if not findings:
        return NotOffered(NAME, "no worker was found to be slow")
    workers = culprit_workers(case, findings[0])
    if not workers:
        return NotOffered(NAME, "the slow workers change, so there is none to replace")
    compute_s = mean_compute_s(case)
    stages = sorted({stage for _, stage in workers})
    peers = {stage: _healthy_peers(compute_s, stage, workers) for stage in stages}
    alone = [stage for stage, ranks in peers.items() if not ranks]
    if alone:
        reason = f"every worker of stage {alone[0]} is slow: none shows its usual time"
        return NotOffered(NAME, reason)
    steps = _affected_steps(case, findings[0])
    changes = [Change(edits=_edits(case, workers, peers, at, steps)) for at in (0.0, 0.5, 1.0)]
    times_s = [case.step_s_with(change) for change in changes]
    hosts = hosts_of(case, workers)
    return case.fix(
        NAME,
        f"Replace {_title(findings[0], workers, hosts)}",
        step_s=times_s[1],
        step_range_s=(min(times_s), max(times_s)),
        risk="The job restarts from its last checkpoint, and needs a spare host."
        + _others_on(case, workers, hosts),
        change=changes[1],
        finding=findings[0],
        paste=drain_commands(case, hosts, "slow worker", restarts=True),
        needs=(*host_needs(case, hosts), *case.restart_needs()),
    )


def culprit_workers(case: AdviceCase, finding: Finding) -> list[Worker]:
    """Workers that a finding names, ascending."""
    return sorted(named_workers(case.replay.window, finding))


def mean_compute_s(case: AdviceCase) -> Floats:
    """[dp, pp], seconds: mean time that a worker computes in a step."""
    sizes = case.replay.window.job.parallelism
    total_s = np.zeros((sizes.dp_size, sizes.pp_size))
    for group in case.replay.groups:
        template = group.template
        is_compute = template.op_types.flags(lambda spec: spec.kind is OpKind.COMPUTE)
        for stage in range(sizes.pp_size):
            rows = np.flatnonzero(is_compute[template.optype] & (template.stage == stage))
            by_lane = group.durations.recorded_s[rows].sum(axis=0)
            total_s[:, stage] += by_lane.reshape(sizes.dp_size, -1).sum(axis=1)
    return total_s / len(case.replay.steps)


def _healthy_peers(compute_s: Floats, stage: int, workers: list[Worker]) -> list[int]:
    """Dp ranks of the stage that are no culprits, the fastest first."""
    order = np.argsort(compute_s[:, stage], kind="stable").tolist()
    return [dp_rank for dp_rank in order if (dp_rank, stage) not in workers]


def _affected_steps(case: AdviceCase, finding: Finding) -> tuple[int, ...]:
    """Steps from the onset on; none where all of the window's are."""
    onset, steps = finding.onset_step, case.replay.steps
    return () if onset is None or onset <= steps[0] else tuple(x for x in steps if x >= onset)


def _edits(
    case: AdviceCase,
    workers: list[Worker],
    peers: dict[int, list[int]],
    at: float,
    steps: tuple[int, ...],
) -> tuple[Edit, ...]:
    """Each culprit at the pace of the peer at this quantile of its stage's healthy ones.

    Its own operations are scaled, by type: its sequences and pauses stay its own, as those of a
    peer would never differ from that peer's.
    """
    edits = []
    for dp_rank, stage in workers:
        ranks = peers[stage]
        peer = ranks[round(at * (len(ranks) - 1))]
        for name, factor in _paces(case, stage, dp_rank, peer, steps).items():
            only = Selection(op_types=(name,), workers=((dp_rank, stage),), steps=steps)
            edits.append(Edit(Factor(factor), only))
    return tuple(edits)


def _paces(
    case: AdviceCase, stage: int, dp_rank: int, peer: int, steps: tuple[int, ...]
) -> dict[str, float]:
    """By type of computation, the peer's usual duration over the culprit's own."""
    own_s: dict[str, list[Floats]] = {}
    peer_s: dict[str, list[Floats]] = {}
    for group in case.replay.groups:
        template, num_steps = group.template, len(group.steps)
        is_affected = np.isin(group.steps, steps) if steps else np.ones(num_steps, np.bool_)
        for name, ops in template.of_stage[stage].items():
            spec = template.op_types.by_code[template.op_types.codes[name]]
            if not ops or spec.kind is not OpKind.COMPUTE:
                continue
            by_lane = group.durations.recorded_s[ops].reshape(len(ops), -1, num_steps)
            own_s.setdefault(name, []).append(by_lane[:, dp_rank, is_affected].ravel())
            peer_s.setdefault(name, []).append(by_lane[:, peer, is_affected].ravel())
    total_s = {name: float(sum(part.sum() for part in parts)) for name, parts in own_s.items()}
    paces = {}
    for name in own_s:
        if total_s[name] <= _MIN_SHARE * sum(total_s.values()):
            continue
        usual_s, peer_usual_s = (
            float(np.median(np.concatenate(parts))) for parts in (own_s[name], peer_s[name])
        )
        if usual_s > 0:
            paces[name] = peer_usual_s / usual_s
    return paces


def _title(finding: Finding, workers: list[Worker], hosts: list[str]) -> str:
    if len(workers) == 1:
        dp_rank, stage = workers[0]
        named = replace(finding.culprits[0], dp_rank=dp_rank, stage=stage).name()
        return named if hosts else f"the worker of {named}"
    if len(hosts) == 1:
        return hosts[0]
    return f"{len(hosts)} hosts" if hosts else f"{len(workers)} workers"


def _others_on(case: AdviceCase, workers: list[Worker], hosts: list[str]) -> str:
    """Healthy workers that are drained with the culprits."""
    host_of = case.replay.window.hosts
    others = {worker for worker, host in host_of.items() if host in hosts} - set(workers)
    if not others:
        return ""
    return f" Drained with it: {len(others)} other workers, of {len(host_of)} in the job."


def backup_tasks(case: AdviceCase) -> NotOffered:
    """Why no copy of a slow worker is started, with its costs and gain.

    A backup task, as Mantri and Dolly start for slow tasks of batch jobs, is a second copy of a
    task; the first one to end counts. That suits tasks that read their input and end. A worker of
    synchronous training holds parameters and optimizer state and exchanges activations in every
    step, so its copy does every step from the start.
    Sources: Ananthanarayanan et al., OSDI 2010 (Mantri) and NSDI 2013 (Dolly).
    """
    findings = case.findings(*CAUSES)
    workers = culprit_workers(case, findings[0]) if findings else []
    if not workers:
        return NotOffered(BACKUP_TASKS, "no slow worker was found that a copy could stand in for")
    sizes = case.replay.window.job.parallelism
    gpus_a_worker = case.num_gpus // (sizes.dp_size * sizes.pp_size)
    num_gpus = gpus_a_worker * len(workers)
    copied = "the slow worker" if len(workers) == 1 else f"the {len(workers)} slow workers"
    cost = findings[0].cost
    wins = "" if cost is None else f", {cost:.1%} of the step"
    return NotOffered(
        BACKUP_TASKS,
        f"a copy of {copied} takes {num_gpus} more GPU{'s' * (num_gpus != 1)}, "
        f"{num_gpus / case.num_gpus:.1%} of the job's, in every step, since it has to hold the "
        f"same state; it wins at most what replacing wins{wins}, which needs no more GPUs",
    )
