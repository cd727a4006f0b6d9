"""The canary: a small job with a known straggler, pushed through the whole service every round.

A round takes the way of any training: HTTP, the queue, a consumer, the diagnosis, the stored
window, and HTTP again to read it. It succeeds if the result names the right cause and worker.
Rounds take turns over the shards, so that each part of the queue is tried; a shard where it is
missing is tried again until a round succeeds there. The jobs belong to a project of their own,
which no token of a user reaches: no page, figure, alert or quota of users has them, and retention
removes them after an hour.
"""

import secrets
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import msgspec
import structlog
from paceline_client.recording.wire import CONTENT_TYPE, Op, Worker, batch_of, encode
from paceline_client.sending.registration import Refused, register_with
from paceline_client.sending.transport import Transport, Unreachable, job_path

from app import formatting
from app.errors import Unavailable
from app.result import causes
from app.result.window_result import WindowResult
from app.store import projects, runs
from app.store.alerting import service_watches
from app.store.database import Connection, Store
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.synth.record import RecordedSteps, WorkerStep
from app.trace.job import CANARY_PROJECT, Parallelism, job_key, shard_of

log = structlog.get_logger()

_SIZES = Parallelism(4, 2)
CULPRIT = (2, 1)  # dp rank and stage
CAUSE = causes.SLOW_WORKER
_SLOWDOWN = 1.6
NUM_STEPS = 8
# A consumer that has just died is replaced within a lease and a refresh, and has work to catch up.
FOUND_WITHIN_S = 60.0
_LEASE_S = FOUND_WITHIN_S + 60.0
_POLL_EVERY_S = 0.25
_CHECK_EVERY_S = 2.0
_TIMEOUT_S = 10.0
_STOP_TAKES_S = 6.0


class CanaryNotFound(Exception):
    """No result names the canary's straggler; the message says how far the round came."""


@dataclass(frozen=True, slots=True)
class CanaryAddress:
    """Where this process answers, and the token that it takes for its own canary.

    `tls` trusts this process's own certificate, whatever names are in it; None without TLS.
    """

    url: str
    token: str
    tls: ssl.SSLContext | None = None


class Canary:
    """Does rounds of the canary from one API process; of several processes one at a time."""

    def __init__(
        self,
        store: Store,
        address: CanaryAddress,
        *,
        every_s: float,
        num_shards: int,
        is_migrated: Callable[[], bool],
        database_time: Callable[[Connection], float],
        within_s: float = FOUND_WITHIN_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._address = address
        self._every_s = every_s
        self._jobs = _jobs_by_shard(num_shards)
        self._is_migrated = is_migrated
        self._database_time = database_time
        self._within_s = within_s
        self._monotonic = monotonic

    def run(self, stop: threading.Event) -> None:
        """Do every round that is due until `stop` is set."""
        while not stop.wait(_CHECK_EVERY_S):
            try:
                if self._is_migrated():
                    self.round_if_due(stop)
            except Unavailable as error:
                log.warning("no canary", reason=str(error))
            except Exception:
                log.exception("no canary")

    def round_if_due(self, stop: threading.Event) -> None:
        """Do a round, if one is due and no other process is at one; raises StoreUnavailable."""
        number = self._claim()
        if number is None:
            return
        began_s, num_shards = self._monotonic(), len(self._jobs)
        missing: str | None = None
        try:
            self._search(self._jobs[number % num_shards], began_s, stop)
        except CanaryNotFound as reason:
            missing = str(reason)
        except Refused as refusal:
            missing = f"the API refused it: {refusal}"
        except Unreachable as error:
            missing = f"this process does not answer at its own address: {error}"
            stop.wait(_STOP_TAKES_S)  # it may be about to stop
        if stop.is_set():
            return  # cut off: the next process does it again
        took_s = self._monotonic() - began_s
        with self._store.write() as conn:
            now_s = self._database_time(conn)
            service_watches.finish_round(
                conn, number, now_s=now_s, took_s=took_s, missing=missing, num_shards=num_shards
            )
            runs.add_to_total(conn, "canary_found" if missing is None else "canary_missed", 1)
        if missing is not None:
            log.warning("canary not found", round=number, reason=missing)

    def _claim(self) -> int | None:
        with self._store.read() as conn:
            known = service_watches.read(conn).get("canary")
            now_s = self._database_time(conn)
            if known is not None and not known.is_due(now_s, self._every_s):
                return None
        with self._store.write() as conn:
            now_s = self._database_time(conn)
            projects.create_canary(conn, now_s=now_s)
            return service_watches.claim_round(
                conn, now_s=now_s, every_s=self._every_s, lease_s=_LEASE_S
            )

    def _search(self, job_id: str, began_s: float, stop: threading.Event) -> None:
        """Push a run of the job, and wait until its window names the straggler.

        Raises CanaryNotFound, or what the client raises if the API does not take the run.
        """
        transport = Transport(
            self._address.url, self._address.token, _TIMEOUT_S, tls=self._address.tls
        )
        try:
            epoch = _push(transport, job_id)
            until_s = began_s + self._within_s
            while (result := _result(transport, job_id, epoch)) is None:
                if self._monotonic() > until_s:
                    waited = formatting.duration(self._within_s)
                    raise CanaryNotFound(
                        f"its operations were accepted, but no window is stored after {waited}"
                    )
                if stop.wait(_POLL_EVERY_S):
                    return
            _check(result)
        finally:
            transport.close()


def _jobs_by_shard(num_shards: int) -> list[str]:
    """Ids of jobs of which the n-th is on shard n."""
    job_ids: dict[int, str] = {}
    number = 0
    while len(job_ids) < num_shards:
        job_id = f"canary-{number}"
        job_ids.setdefault(shard_of(job_key(CANARY_PROJECT, job_id), num_shards), job_id)
        number += 1
    return [job_ids[shard] for shard in range(num_shards)]


def simulated_job() -> SimulatedJob:
    """The job: eight workers, of which one computes 1.6x as long as the others."""
    return SimulatedJob(
        _SIZES, 4, name="canary", faults=(SlowWorker(*CULPRIT, _SLOWDOWN),), seed=22
    )


def _push(transport: Transport, job_id: str) -> int:
    """Register a run, push all its steps and end it; returns its epoch."""
    request = {
        "parallelism": asdict(_SIZES),
        "run_key": f"round-{secrets.token_hex(8)}",
        "name": "canary",
        "gpus": _SIZES.world_size,
    }
    registered = register_with(transport, job_id, request)
    record = simulated_job().record(range(NUM_STEPS))
    # As if training had just ended.
    later_ns = time.time_ns() - int((record.start_ns + record.duration_ns).max())
    of_worker: dict[tuple[int, int], list[WorkerStep]] = {}
    for part in record.parts():
        of_worker.setdefault((part.dp_rank, part.stage), []).append(part)
    for (dp_rank, stage), parts in of_worker.items():
        worker = Worker(_SIZES.usual_rank(dp_rank, stage), dp_rank, stage, f"canary-{dp_rank}")
        ops = [op for part in parts for op in _ops(record, part.rows, later_ns)]
        done = [(part.step, part.rows.stop - part.rows.start) for part in parts]
        body = encode(worker, registered.epoch, 0, batch_of(ops, done))
        answer = transport.request("POST", job_path(job_id, "/ops"), body, CONTENT_TYPE)
        if not answer.is_acceptance:
            raise Refused(answer)
    answer = transport.request("POST", job_path(job_id, "/end"), b"", "application/json")
    if not answer.ok:
        raise Refused(answer)
    return registered.epoch


def _ops(record: RecordedSteps, rows: slice, later_ns: int) -> list[Op]:
    """A worker's operations as its recorder would send them, `later_ns` after the simulation."""
    names = record.job.op_types
    columns = (
        record.step, record.optype, record.start_ns + later_ns, record.duration_ns,
        record.seq_id, record.mc, record.mb_id,
    )  # fmt: skip
    return [
        (step, names.name(code), start_ns, duration_ns, seq_id, mc, mb_id, None)
        for step, code, start_ns, duration_ns, seq_id, mc, mb_id in zip(
            *(column[rows].tolist() for column in columns), strict=True
        )
    ]


def _result(transport: Transport, job_id: str, epoch: int) -> WindowResult | None:
    """The result of the run's last closed window; None as long as there is none."""
    answer = transport.request("GET", job_path(job_id, "/windows?limit=4"), b"", "application/json")
    if not answer.ok:
        raise Refused(answer)
    closed = [
        window["window_id"]
        for window in answer.json()["items"]
        if window["epoch"] == epoch
        and window["state"] != "open"
        and window["last_step"] == NUM_STEPS - 1
    ]
    if not closed:
        return None
    path = job_path(job_id, f"/windows/{closed[0]}")
    answer = transport.request("GET", path, b"", "application/json")
    if not answer.ok:
        raise Refused(answer)
    return msgspec.json.decode(answer.body, type=WindowResult)


def _check(result: WindowResult) -> None:
    """Raise CanaryNotFound unless the result names the right cause and worker first."""
    if not result.findings:
        raise CanaryNotFound("its window is stored, but has no finding")
    first = result.findings[0]
    named = [(culprit.dp_rank, culprit.stage) for culprit in first.culprits]
    if first.cause != CAUSE or named != [CULPRIT]:
        raise CanaryNotFound(
            f"its window blames {first.cause} of {named[:3]}, and not {CAUSE} of {[CULPRIT]}"
        )
