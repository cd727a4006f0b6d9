"""Texts to paste: commands that take hosts out of use, and settings of NCCL.

Hosts are named in commands of Slurm and Kubernetes only where their names are safe there.
"""

import re
from collections.abc import Iterable, Sequence

from app.advice.fix import AdviceCase, Need, Paste

# Host names come from the job. Others could be options, Slurm's ALL or its lists (`node[1-99]`).
_HOST_NAME = re.compile(r"(?!(?i:all)\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def hosts_of(case: AdviceCase, workers: Iterable[tuple[int, int]]) -> list[str]:
    """Known hosts of workers (dp rank, stage), each once, in alphabetical order."""
    hosts = case.replay.window.hosts
    return sorted({hosts[worker] for worker in workers if worker in hosts})


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
    pastes = []
    if case.facts.scheduler != "kubernetes":
        names = ",".join(hosts)
        drain = f"scontrol update node={names} state=drain reason='paceline: {reason}'"
        pastes.append(Paste("Slurm: take no new jobs", drain))
        if restarts:
            restart = f"sbatch --exclude={names} JOB_SCRIPT"
            pastes.append(Paste("Slurm: restart without it", restart))
    if case.facts.scheduler != "slurm":
        cordons = "\n".join(f"kubectl cordon {host}" for host in hosts)
        pastes.append(Paste("Kubernetes: take no new pods", cordons))
    return tuple(pastes)


def host_needs(case: AdviceCase, hosts: Sequence[str]) -> tuple[Need, ...]:
    """Facts that commands with the names of the hosts lack, for the scheduler in use."""
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
