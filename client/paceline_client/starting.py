"""Starts a recorder, from what the caller says and what stands in the environment."""

from __future__ import annotations

import logging
import operator
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from . import run_keys
from . import topology as topologies
from .buffer import DEFAULT_MAX_OPS, Buffer
from .cuda import cuda_timing
from .groups import EVERY, GroupBuffer
from .null import NULL
from .nvml import Readings
from .recorder import Recorder
from .registration import Sizes, registration
from .retry import Backoff
from .sampling import Plans
from .sender import Sender
from .spool import Spool
from .transport import Transport
from .wire import Worker

MAX_LOCAL_RANK = 4096
SPOOL_BYTES = 256 << 20
SIZES = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "ep_size")

log = logging.getLogger("paceline_client")


class CannotStart(Exception):
    """What is missing, or contradicts itself, for a recorder to start."""


def start(
    job: str | None = None,
    url: str | None = None,
    token: str | None = None,
    *,
    topology: Any = None,
    run_key: str | None = None,
    rank: int | None = None,
    dp_rank: int | None = None,
    stage: int | None = None,
    dp_size: int | None = None,
    pp_size: int | None = None,
    tp_size: int = 1,
    vpp_size: int = 1,
    dsp_size: int = 1,
    ep_size: int = 1,
    host: str | None = None,
    name: str | None = None,
    gpus: int | None = None,
    framework: str | None = None,
    labels: Mapping[str, str] | None = None,
    rack: str | None = None,
    switch: str | None = None,
    op_types: Sequence[Mapping[str, str]] | None = None,
    epoch: int | None = None,
    timing: str = "auto",
    gc_pauses: bool = True,
    gpu_readings: bool = True,
    groups: bool = False,
    group_every: int | None = None,
    local_rank: int | None = None,
    spool_dir: str | os.PathLike[str] | None = None,
    spool_bytes: int = SPOOL_BYTES,
    flush_interval_s: float = 1.0,
    max_ops: int = DEFAULT_MAX_OPS,
    backoff: Backoff | None = None,
) -> Recorder:
    """A recorder that registers the run (unless `epoch` is given) and sends in the background.

    Where torch.distributed is initialised, every rank has to call this, as it has to take part in
    any collective: that is how all get the run key of rank 0. One that is not to be recorded gets
    `NULL`.

    Never raises: a server that is not up yet is waited for while operations are kept; one that
    refuses, or an address that is none, is logged once. Where something is missing, that is logged
    and the recorder returned is `NULL`, which records nothing.

    `job`, `url`, `token` and `run_key` may stand in the environment: `PACELINE_JOB`,
    `PACELINE_URL`, `PACELINE_TOKEN`, `PACELINE_RUN_KEY`. Who this worker is is told by `topology`,
    or else by `rank` and the others.

    `timing` is "cuda" for times of the GPU, "host" for times of this process, or "auto": of the GPU
    where PyTorch with CUDA has been imported.

    In `spool_dir`, if it is given, batches are kept until the server has them, at most
    `spool_bytes` of them: also for the next process of the same run.

    `host` is this machine's own name where it is not given, and "" where it is not known: of
    operations that another machine has recorded.

    `rack` and `switch` tell where the host stands; from `PACELINE_RACK` and `PACELINE_SWITCH`, or
    from Slurm's topology, where they are not given.

    With `groups`, ranks that record nothing else get a recorder, too, for the collectives of the
    groups that they declare (`Recorder.group`): of tensor- and context-parallel peers all but the
    first. Collectives of groups are recorded in one of `group_every` recorded steps: 10, or what
    `PACELINE_GROUP_EVERY` says, the same on all ranks. `local_rank` numbers the GPUs of a host;
    from `LOCAL_RANK` and the like where it is not given.

    `op_types` describes what the run records beside the built-in operation types, as `register`
    takes it. Operations of a type that nobody registered are refused one by one, and counted in
    `dropped`.
    """
    given = {"rank": rank, "dp_rank": dp_rank, "stage": stage, "dp_size": dp_size}
    given |= {"pp_size": pp_size}
    others = {"tp_size": tp_size, "vpp_size": vpp_size, "dsp_size": dsp_size, "ep_size": ep_size}
    try:
        told_key, is_spooled = None if run_key is None else str(run_key), spool_dir is not None
        # First of all: the others wait for this rank, whatever is wrong with it.
        is_agreed = run_keys.is_initialised()
        key = run_keys.agreed(told_key, is_spooled=is_spooled) if is_agreed else told_key
        place = topology if topology is not None else _Place(given, others)
        if topology is not None and any(value is not None for value in given.values()):
            raise CannotStart("topology= and rank= and the like contradict: give either")
        is_alone = not place.records and groups and getattr(place, "problem", None) is None
        if not place.records and not is_alone:
            return NULL
        job, url, token = _told(job, "job"), _told(url, "url"), _told(token, "token")
        by_name = {size: _whole(size, getattr(place, size)) for size in SIZES}
        sizes = Sizes(**by_name)
        if epoch is not None:
            epoch = _whole("epoch", epoch)
        elif not is_agreed:
            key = run_keys.by_itself(key, _world_size(by_name), is_spooled=is_spooled)
        if not key and epoch is None:
            raise CannotStart("no run_key: give one, equal on all ranks and new after a restart")
        gpus = None if gpus is None else _whole("gpus", gpus)
        request = registration(sizes, key or "", name, gpus, framework, labels, op_types)
        where = str(place.host or socket.gethostname() if host is None else host)
        worker = Worker(
            _whole("rank", place.rank),
            _whole("dp_rank", place.dp_rank),
            _whole("stage", place.stage),
            where,
            placement(rack, switch) if where and not is_alone else {},
            local_rank=_local_rank(local_rank),
            is_alone=is_alone,
        )
        buffer, plans = Buffer(_whole("max_ops", max_ops), float(flush_interval_s)), Plans()
        cuda = cuda_timing(timing)
        readings = Readings() if gpu_readings and not is_alone else None
        buffer.readings = readings.take if readings else None
        sender = Sender(
            Transport(url, token),
            job,
            worker,
            buffer,
            request=request,
            epoch=epoch,
            backoff=backoff,
            outbox=(
                None
                if spool_dir is None
                else Spool(
                    spool_dir,
                    job,
                    key or f"epoch {epoch}",
                    worker.rank,
                    spool_bytes,
                    is_restart=key is not None and run_keys.is_old(key),
                )
            ),
            plans=plans,
            chores=[chore.look for chore in (cuda, readings) if chore is not None],
        )
        every = _whole("group_every", _every(group_every))
        recorder = Recorder(
            buffer, sender, plans, cuda, readings,
            groups=GroupBuffer(is_alone=is_alone, every=every), rank=worker.rank,
        )  # fmt: skip
        if gc_pauses and not is_alone:
            recorder.note_pauses()
        sender.start()
        return recorder
    except Exception as error:
        log.warning("paceline: nothing is recorded: %s", error)
        return NULL


class _Place:
    """A topology told by its numbers one by one, which the server checks."""

    records = True
    host = None

    def __init__(self, given: Mapping[str, int | None], others: Mapping[str, int]) -> None:
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise CannotStart(f"{', '.join(missing)} not given: give topology=, or all of these")
        self.__dict__.update({**given, **others})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def placement(rack: str | None, switch: str | None) -> dict[str, str]:
    """Rack and switch of this host, as told or as Slurm's topology plugin tells it."""
    rack = rack or os.environ.get("PACELINE_RACK")
    switch = switch or os.environ.get("PACELINE_SWITCH") or _slurm_switch()
    found = {"rack": rack, "switch": switch}
    return {name: str(label) for name, label in found.items() if label}


def _local_rank(told: int | None) -> int | None:
    found = topologies.local_rank() if told is None else _whole("local_rank", told)
    return found if found is None or 0 <= found <= MAX_LOCAL_RANK else None


def _every(told: int | None) -> Any:
    return os.environ.get("PACELINE_GROUP_EVERY") or EVERY if told is None else told


def _slurm_switch() -> str | None:
    """The switch right above this node in "s0.s4.n17", which "switch.switch.node" explains."""
    names = os.environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = os.environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    switches = [name for name, kind in zip(names, kinds) if kind == "switch" and name]
    return switches[-1] if switches else None


def _told(value: str | None, name: str) -> str:
    value = os.environ.get(f"PACELINE_{name.upper()}") if value is None else value
    if not value:
        raise CannotStart(f"no {name}: give {name}=, or set PACELINE_{name.upper()}")
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes of the environment that are no UTF-8
        shown = "" if name == "token" else f" {value!r}"
        raise CannotStart(f"{name}{shown} holds what is no text") from None
    return value


def _whole(name: str, value: Any) -> int:
    """The number as Python's own, where numpy or the environment has it: JSON knows no other."""
    try:
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise CannotStart(f"{name} is {value!r:.60}: a whole number is wanted") from None


def _world_size(sizes: Mapping[str, int]) -> int:
    """Number of processes of the job."""
    return sizes["dp_size"] * sizes["pp_size"] * sizes["tp_size"] * sizes["dsp_size"]
