"""Starts a recorder from arguments and environment variables."""

from __future__ import annotations

import logging
import operator
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from . import run_keys
from . import topology as topologies
from .ending.process_end import reporter
from .recorder import NULL, Recorder
from .recording.buffer import DEFAULT_MAX_OPS, Buffer
from .recording.cuda import cuda_timing
from .recording.groups import GROUP_STEP_EVERY, GroupBuffer
from .recording.nvml import GpuReadings
from .recording.sampling import RecordingPlans
from .recording.wire import Worker
from .sending.annotations import AnnotationOutbox
from .sending.registration import Sizes, registration
from .sending.retry import Backoff
from .sending.sender import Sender
from .sending.spool import Spool
from .sending.transport import Transport, job_path

MAX_LOCAL_RANK = 4096
SPOOL_BYTES = 256 << 20
SIZES = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "ep_size")

log = logging.getLogger("paceline_client")


class StartError(Exception):
    """An argument is missing or contradicts another."""


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
    ends_job: bool = True,
) -> Recorder:
    """Start a recorder, which registers the run (unless `epoch` is given) and sends in background.

    If torch.distributed is initialised, every rank must call this, as with any collective: rank 0
    broadcasts the run key. A rank that is not recorded gets `NULL`.

    Never raises. If the server is not up yet, operations are kept until it is; a refusal or an
    invalid URL is logged once. If an argument is missing, that is logged and `NULL` is returned,
    which records nothing.

    `job`, `url`, `token` and `run_key` default to the environment variables `PACELINE_JOB`,
    `PACELINE_URL`, `PACELINE_TOKEN` and `PACELINE_RUN_KEY`. The worker's position in the job is
    given by `topology`, or by `rank`, `dp_rank`, `stage` and the sizes.

    `timing` is "cuda" (GPU times), "host" (times of this process), or "auto": GPU times if PyTorch
    with CUDA has been imported.

    With `spool_dir`, up to `spool_bytes` of batches are kept on disk until the server has them,
    also for the next process of the same run.

    `host` defaults to this machine's name; "" means unknown, for operations that another machine
    has recorded. `rack` and `switch` default to `PACELINE_RACK` and `PACELINE_SWITCH`, or to
    Slurm's topology.

    With `groups`, ranks that record no operations (tensor- and context-parallel peers but the
    first) get a recorder too, for the collectives of the groups that they declare with
    `Recorder.group`. Group collectives are recorded in one of `group_every` recorded steps, equal
    on all ranks: by default `PACELINE_GROUP_EVERY`, or 10. `local_rank` is the number of the GPU
    on its host, by default from `LOCAL_RANK` and the like.

    The server learns how this process ends: by `close`, at its end, by an exception, by SIGTERM, or
    killed (`PACELINE_EXIT_REPORTS=0` turns that off). The job has ended once the recorders of all
    workers are closed, unless `ends_job` is False: then only failures are reported.

    `op_types` describes operation types beyond the built-in ones, as in `register`. Operations of
    an unregistered type are refused one by one, and counted in `dropped`.
    """
    given = {"rank": rank, "dp_rank": dp_rank, "stage": stage, "dp_size": dp_size}
    given |= {"pp_size": pp_size}
    others = {"tp_size": tp_size, "vpp_size": vpp_size, "dsp_size": dsp_size, "ep_size": ep_size}
    try:
        given_key, is_spooled = None if run_key is None else str(run_key), spool_dir is not None
        # Before any check that may fail: the other ranks wait for this one.
        is_agreed = run_keys.is_initialised()
        key = run_keys.shared_run_key(given_key, is_spooled=is_spooled) if is_agreed else given_key
        place = topology if topology is not None else _GivenTopology(given, others)
        if topology is not None and any(value is not None for value in given.values()):
            raise StartError("give either topology= or rank=, dp_rank= and so on, not both")
        is_alone = not place.records and groups and getattr(place, "problem", None) is None
        if not place.records and not is_alone:
            return NULL
        job, url, token = (
            _text_setting(job, "job"),
            _text_setting(url, "url"),
            _text_setting(token, "token"),
        )
        by_name = {size: _whole(size, getattr(place, size)) for size in SIZES}
        sizes = Sizes(**by_name)
        if epoch is not None:
            epoch = _whole("epoch", epoch)
        elif not is_agreed:
            key = run_keys.single_process_run_key(key, _world_size(by_name), is_spooled=is_spooled)
        if not key and epoch is None:
            raise StartError("no run_key: give one, equal on all ranks and new after a restart")
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
        buffer, plans = (
            Buffer(_whole("max_ops", max_ops), float(flush_interval_s)),
            RecordingPlans(),
        )
        cuda = cuda_timing(timing)
        readings = GpuReadings() if gpu_readings and not is_alone else None
        buffer.readings = readings.take if readings else None
        transport = Transport(url, token)
        annotations = AnnotationOutbox(transport, job)
        sender = Sender(
            transport,
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
                    is_restart=key is not None and run_keys.is_reused_key(key),
                )
            ),
            plans=plans,
            chores=[chore.poll for chore in (cuda, readings, annotations) if chore is not None],
        )
        every = _whole("group_every", _group_step_every(group_every))
        recorder = Recorder(
            buffer, sender, plans, cuda, readings,
            groups=GroupBuffer(is_alone=is_alone, every=every), rank=worker.rank,
            annotations=annotations,
        )  # fmt: skip
        if gc_pauses and not is_alone:
            recorder.note_pauses()
        report = {"rank": worker.rank, "dp_rank": worker.dp_rank, "stage": worker.stage}
        watched: dict[str, Any] = {"url": url, "token": token, "path": job_path(job, "/exits")}
        watched["ends_job"] = ends_job and not is_alone
        if os.environ.get("PACELINE_EXIT_REPORTS", "1") != "0":
            sender.on_registered = lambda epoch: reporter.watch(
                id(recorder), {**watched, "report": {**report, "epoch": epoch, "host": worker.host}}
            )
        sender.start()
        return recorder
    except Exception as error:
        log.warning("paceline: nothing is recorded: %s", error)
        return NULL


class _GivenTopology:
    """A topology given by single numbers, which the server checks."""

    records = True
    host = None

    def __init__(self, given: Mapping[str, int | None], others: Mapping[str, int]) -> None:
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise StartError(f"{', '.join(missing)} missing: give topology=, or all of these")
        self.__dict__.update({**given, **others})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def placement(rack: str | None, switch: str | None) -> dict[str, str]:
    """Rack and switch of this host, given or from Slurm's topology plugin."""
    rack = rack or os.environ.get("PACELINE_RACK")
    switch = switch or os.environ.get("PACELINE_SWITCH") or _slurm_switch()
    found = {"rack": rack, "switch": switch}
    return {name: str(label) for name, label in found.items() if label}


def _local_rank(given: int | None) -> int | None:
    found = topologies.local_rank() if given is None else _whole("local_rank", given)
    return found if found is None or 0 <= found <= MAX_LOCAL_RANK else None


def _group_step_every(given: int | None) -> Any:
    return os.environ.get("PACELINE_GROUP_EVERY") or GROUP_STEP_EVERY if given is None else given


def _slurm_switch() -> str | None:
    """The lowest switch above this node: s4 in "s0.s4.n17" with "switch.switch.node"."""
    names = os.environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = os.environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    switches = [name for name, kind in zip(names, kinds) if kind == "switch" and name]
    return switches[-1] if switches else None


def _text_setting(value: str | None, name: str) -> str:
    value = os.environ.get(f"PACELINE_{name.upper()}") if value is None else value
    if not value:
        raise StartError(f"no {name}: give {name}=, or set PACELINE_{name.upper()}")
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes of the environment that are not UTF-8
        shown = "" if name == "token" else f" {value!r}"
        raise StartError(f"{name}{shown} is not valid text") from None
    return value


def _whole(name: str, value: Any) -> int:
    """A Python int, also from numpy or text, since JSON takes no other."""
    try:
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise StartError(f"{name} is {value!r:.60}, not a whole number") from None


def _world_size(sizes: Mapping[str, int]) -> int:
    """Number of processes of the job."""
    return sizes["dp_size"] * sizes["pp_size"] * sizes["tp_size"] * sizes["dsp_size"]
