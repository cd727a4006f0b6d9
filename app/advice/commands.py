"""What fixes give to paste: commands that take hosts out of use, and settings of NCCL.

Hosts are named in commands of Slurm and Kubernetes only where their names are safe there.
"""

import re
from collections.abc import Iterable, Sequence

from app.advice.fix import AdviceCase, Need, Paste

# Host names come from the job. Others could be options, Slurm's ALL or its lists (`node[1-99]`).
_HOST_NAME = re.compile(r"(?!(?i:all)\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def hosts_of(case: AdviceCase, workers: Iterable[tuple[int, int]]) -> list[str]:
    """Known hosts of workers (dp rank, stage), each once, in alphabetical order."""
    found = {case.replay.window.hosts.get(worker) for worker in workers}
    return sorted(each for each in found if each is not None)


def can_be_pasted(hosts: Sequence[str]) -> bool:
    """Whether there are hosts, and every name is safe in a command."""
    return bool(hosts) and all(_HOST_NAME.fullmatch(host) for host in hosts)


def drain_commands(
    case: AdviceCase, hosts: Sequence[str], reason: str, *, restarts: bool
) -> tuple[Paste, ...]:
    """Take the hosts out of use, by the job's scheduler or, if it is not known, by each.

    `reason` is what Slurm shows of the hosts. With `restarts`, the job is restarted without them.
    Nothing where a name is not safe.
    """
    if not can_be_pasted(hosts):
        return ()
    found = []
    if case.facts.scheduler != "kubernetes":
        names = ",".join(hosts)
        found.append(
            Paste(
                "Slurm: take no new jobs",
                f"scontrol update node={names} state=drain reason='paceline: {reason}'",
            )
        )
        if restarts:
            found.append(Paste("Slurm: restart without it", f"sbatch --exclude={names} JOB_SCRIPT"))
    if case.facts.scheduler != "slurm":
        cordons = "\n".join(f"kubectl cordon {each}" for each in hosts)
        found.append(Paste("Kubernetes: take no new pods", cordons))
    return tuple(found)


def host_needs(case: AdviceCase, hosts: Sequence[str]) -> tuple[Need, ...]:
    """What is needed for commands that name the hosts, for the scheduler in use."""
    needs = []
    if not hosts:
        needs.append(Need("the worker's host name (host= of the recorder)"))
    elif not can_be_pasted(hosts):
        needs.append(Need("a host name that is safe in a command: letters, digits, dots, hyphens"))
    if case.facts.scheduler is None and hosts:
        needs.append(Need("the scheduler: slurm or kubernetes", "scheduler"))
    return tuple(needs)


RECORD_COLLECTIVES = Paste(
    "NCCL: record every collective, for a look by hand",
    "export NCCL_PROFILER_PLUGIN=/path/to/libnccl-profiler-inspector.so\n"
    "export NCCL_INSPECTOR_ENABLE=1\n"
    "export NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500\n"
    "export NCCL_INSPECTOR_DUMP_DIR=DIR",
)
SHOW_COMMUNICATORS = Paste("NCCL: state of the communicators", "ncclras -f json")
FORCE_RING = Paste(
    "NCCL: is the all-reduce a ring? If this makes it slower, it is not", "export NCCL_ALGO=Ring"
)
