"""No fix: backup tasks, as Mantri and Dolly start for slow tasks of batch jobs.

A backup task is a second copy of a task; the first one to end counts. That suits tasks that read
their input and end. A worker of synchronous training holds parameters and optimizer state and
exchanges activations in every step, so its copy does every step from the start, and wins at most
what replacing the worker wins.
Sources: Ananthanarayanan et al., OSDI 2010 (Mantri) and NSDI 2013 (Dolly).
"""

from app.advice.fix import AdviceCase, NotOffered
from app.advice.replace_worker import culprit_workers
from app.result import causes

NAME = "backup-tasks"
CAUSES = (causes.SLOW_WORKER,)


def backup_tasks(case: AdviceCase) -> NotOffered:
    """Why no copy of a slow worker is started, with what it would take and win."""
    found = case.findings(*CAUSES)
    workers = culprit_workers(case, found[0]) if found else []
    if not workers:
        return NotOffered(NAME, "no slow worker was found that a copy could stand in for")
    sizes = case.replay.window.job.parallelism
    gpus_a_worker = case.num_gpus // (sizes.dp_size * sizes.pp_size)
    num_gpus = gpus_a_worker * len(workers)
    copied = "the slow worker" if len(workers) == 1 else f"the {len(workers)} slow workers"
    cost = found[0].cost
    wins = "" if cost is None else f", {cost:.1%} of the step"
    return NotOffered(
        NAME,
        f"a copy of {copied} takes {num_gpus} more GPU{'s' * (num_gpus != 1)}, "
        f"{num_gpus / case.num_gpus:.1%} of the job's, in every step, since it has to hold the "
        f"same state; it wins at most what replacing wins{wins}, which needs no more GPUs",
    )
