"""`storage`: how large does the database become in 30 days, and do pages of old jobs still draw?

A few real windows are analysed once, healthy and with a slow worker in turns of six hours. They
are stored again and again with shifted steps and times, as consumers store them, for every window
of a job that lasts all the days, and for one that ended on the first. Each simulated day ends with
a sweep of retention with its real settings. The clock is simulated by ages: on a day that lies so
long ago, everything has to be that much older.
"""

import http.client
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from msgspec import structs

from app.diagnosis.job_history import History
from app.ingest.assembly.op_table import OpTable
from app.ingest.assembly.window_codec import pack_window
from app.monitor import observe
from app.result.brief import brief_of
from app.result.stored import split_by_step
from app.result.window_result import WindowResult
from app.settings import Settings
from app.store import fleet, hosts, retention, runs, windows
from app.store.database import Connection, Store, parse_url
from app.store.retention import RetentionLimits
from app.store.runs import Registration
from app.store.shrinking.dead_rows import give_back_free_pages
from app.store.shrinking.thinning import ThinningDays
from app.store.windows import WindowRecord
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import DEFAULT_PROJECT, Parallelism, job_key
from app.trace.window import Trace, Window
from benchmarks.measuring import BenchmarkFailed
from benchmarks.service import pushing
from benchmarks.service.api import addresses, openapi_document
from benchmarks.service.stack import StackUnderTest, running_stack
from benchmarks.service.stored_jobs import step_rows

LIVE, ENDED = "storage-live", "storage-ended"
STEPS = 8
KINDS = 12  # different windows of each fault
_QUEUE_BYTES = 64 << 20
_TURN_S = 6 * 3600.0
_DAY_S = 86_400.0
_LABELS = {"owner": "team-storage"}


def storage(
    days: Annotated[float, typer.Option(min=4, help="Simulated days.")] = 30.0,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs that the sizes are scaled to.")] = 40,
    steps_per_s: Annotated[float, typer.Option(help="Steps a second of all these jobs.")] = 20.0,
    workers: Annotated[int, typer.Option(min=4, help="Workers of a job, an even number.")] = 4,
    microbatches: Annotated[int, typer.Option(min=1, help="Micro-batches of a step.")] = 4,
) -> None:
    """Store one such job's windows of all days, thin them day by day, and ask for every page.

    One job is stored in full, with every row that it would have, and its bytes are multiplied by
    the number of jobs. `largest_gb` is the most that the file had on any day, before its sweep.
    `refused` are answers other than 200, by address: expected are charts by step of windows whose
    figures by step are no longer stored.

    Example: python -m benchmarks storage --days 30
    """
    settings = Settings()
    simulated = [_windows(workers, microbatches, faults) for faults in ((), _FAULT)]
    # Without a consumer: its own janitor would find the windows of all days but the last too old.
    with running_stack(workers=workers, queue_bytes=_QUEUE_BYTES) as target:
        store = Store(target.store_url)
        path = Path(parse_url(target.store_url).database or "")
        try:
            began_s = time.time() - days * _DAY_S
            window_s = STEPS * jobs / steps_per_s
            course = _Course(simulated, began_s, window_s, workers)
            before_bytes = path.stat().st_size
            sizes, sweeps = _fill(store, path, course, days, settings)
            figures = {
                "days": days, "jobs": jobs, "steps_per_s": steps_per_s, "workers": workers,
                "ops_per_worker_step": simulated[0][0].ops.num_ops / workers / STEPS,
                "windows_a_job": round(days * _DAY_S / window_s),
                "gb": _gb(path.stat().st_size - before_bytes, jobs),
                "largest_gb": _gb(max(sizes) - before_bytes, jobs),
                "gb_by_day": [_gb(each - before_bytes, jobs) for each in sizes],
                "gb_by_table": _by_table(path, jobs),
                **sweeps.figures(),
            }  # fmt: skip
            figures |= _ask_every_page(target, store, course, days)
        finally:
            store.close()
    typer.echo(json.dumps(figures, indent=1))


_FAULT: tuple[Fault, ...] = (SlowWorker(1, 1, 1.6),)


class _RealWindow(NamedTuple):
    """A window of a simulated job as the consumer analysed it, and its operations."""

    job: SimulatedJob
    result: WindowResult
    ops: OpTable


def _windows(workers: int, microbatches: int, faults: tuple[Fault, ...]) -> list[_RealWindow]:
    costs = replace(OperationCosts(), noise=0.02)
    job = SimulatedJob(Parallelism(workers // 2, 2), microbatches, costs=costs, faults=faults)
    history = History()
    found = []
    for number in range(KINDS):
        steps = tuple(range(STEPS * number, STEPS * (number + 1)))
        trace = job.make(steps)
        window = Window(job.job, 1, steps[0], steps, trace, state="complete",
                        hosts=dict(job.world.hosts))  # fmt: skip
        seen = observe(window, history)
        if seen.recent is not None:
            history = history.with_steps(seen.recent)
        found.append(_RealWindow(job, seen.result, _op_table(trace)))
    return found


def _op_table(trace: Trace) -> OpTable:
    """The operations as the assembler keeps them, but for starts: nanoseconds from their step."""
    order = np.lexsort((trace.seq_id, trace.optype, trace.stage, trace.dp_rank, trace.step))
    rows = trace.select(order)
    names = ("step", "rank", "dp_rank", "stage", "seq_id", "mc", "mb_id")
    integers = {name: getattr(rows, name).astype(np.int64) for name in names}
    return OpTable(
        optype=rows.optype.astype(np.int16),
        start_ns=np.rint(rows.start_s * pushing.NS_PER_S).astype(np.int64),
        duration_ns=np.rint(rows.duration_s * pushing.NS_PER_S).astype(np.int64),
        **integers,
    )


@dataclass(frozen=True, slots=True)
class _Course:
    """Windows of a job by their number, healthy and slow in turns."""

    simulated: Sequence[Sequence[_RealWindow]]
    began_s: float
    window_s: float
    workers: int

    def of_day(self, day: int, days: float) -> range:
        """Numbers of the windows of a day."""
        first, end = (round(min(each, days) * _DAY_S / self.window_s) for each in (day, day + 1))
        return range(first, end)

    def register(self, conn: Connection, key: str) -> None:
        """Register the job, with its hosts."""
        job = self.simulated[0][0].job
        registration = Registration(
            key, job.job.parallelism, job.job.num_gpus, "made", _LABELS, "storage"
        )
        runs.register(conn, key, registration, now_s=self.began_s)
        hosts.save(conn, key, 1, dict(job.world.hosts))
        hosts.add_to_run(conn, key, 1, job.world.hosts.values())

    def save(self, conn: Connection, key: str, number: int) -> None:
        """Save a window as a consumer does: result, steps, brief, losses, time of the last data."""
        began_s, first_step = self.began_s + number * self.window_s, STEPS * number
        real = self.simulated[int(began_s // _TURN_S) % 2][number % KINDS]
        step_s = self.window_s / STEPS
        whole = _shifted(real.result, number, [began_s + at * step_s for at in range(STEPS)])
        result, per_step = split_by_step(whole)
        record = WindowRecord(
            1, first_step, first_step + STEPS - 1, STEPS, "complete", STEPS, real.ops.num_ops,
            result.slowdown, result.fidelity.verdict, result, per_step,
            pack_window(_moved(real.ops, number, began_s, step_s)), began_s + self.window_s,
        )  # fmt: skip
        windows.save(conn, key, record)
        windows.save_steps(conn, key, step_rows(record))
        num_gpus = real.job.job.num_gpus
        fleet.save_brief(conn, key, 1, first_step, brief_of(result, num_gpus=num_gpus))
        losses = fleet.losses_of(result, num_gpus=num_gpus)
        fleet.save_losses(conn, key, record, losses, num_gpus=num_gpus)
        runs.note_data(conn, key, last_data_s=record.updated_s, last_step=record.last_step, epoch=1)


def _moved(ops: OpTable, number: int, began_s: float, step_s: float) -> OpTable:
    """The operations as those of the window of this number."""
    at = ops.step - ops.step[0]
    begins_ns = np.rint((began_s + at * step_s) * pushing.NS_PER_S).astype(np.int64)
    return replace(ops, step=STEPS * number + at, start_ns=begins_ns + ops.start_ns)


def _shifted(result: WindowResult, number: int, started_s: Sequence[float]) -> WindowResult:
    steps = tuple(STEPS * number + at for at in range(STEPS))
    moved = steps[0] - result.steps[0]
    findings = tuple(
        structs.replace(
            finding,
            onset_step=finding.onset_step and finding.onset_step + moved,
            end_step=finding.end_step and finding.end_step + moved,
        )
        for finding in result.findings or ()
    )
    return structs.replace(
        result,
        window=structs.replace(result.window, id=f"1-{steps[0]}"),
        steps=steps,
        structures=(steps,),
        step_started_s=tuple(started_s),
        findings=findings,
    )


class _Sweeps:
    """What retention took, and its transactions' seconds."""

    def __init__(self) -> None:
        self.batch_s: list[float] = []
        self.removed: Counter[str] = Counter()
        self.whole_s = 0.0

    def run(self, store: Store, settings: Settings, ago_days: float) -> None:
        """Retention as the janitor has it, on a day so long ago."""
        keep = RetentionLimits(
            settings.keep_raw_days + ago_days, settings.keep_results_days + ago_days
        )
        thinning = ThinningDays(
            settings.thin_steps_days + ago_days,
            settings.thin_windows_days + ago_days,
            settings.thin_hours_days + ago_days,
        )
        began_s = at_s = time.perf_counter()
        for batch in retention.sweep(store, keep, thinning):
            self.removed[batch.kind] += batch.number
            at_s = self._note(at_s)
        for size_bytes in give_back_free_pages(store):
            self.removed["bytes given back"] += size_bytes
            at_s = self._note(at_s)
        self.whole_s += time.perf_counter() - began_s

    def _note(self, since_s: float) -> float:
        now_s = time.perf_counter()
        self.batch_s.append(now_s - since_s)
        return now_s

    def figures(self) -> dict[str, Any]:
        """Seconds between two batches, which is more than a transaction takes."""
        return {
            "swept": dict(self.removed),
            "sweep_s": round(self.whole_s, 1),
            "batch_p50_ms": round(1e3 * float(np.percentile(self.batch_s, 50)), 1),
            "batch_p99_ms": round(1e3 * float(np.percentile(self.batch_s, 99)), 1),
            "batch_max_ms": round(1e3 * max(self.batch_s), 1),
        }


def _fill(
    store: Store, path: Path, course: _Course, days: float, settings: Settings
) -> tuple[list[int], _Sweeps]:
    """Store and sweep day by day; bytes of the file at each day's end, before its sweep."""
    live, ended = (job_key(DEFAULT_PROJECT, name) for name in (LIVE, ENDED))
    with store.write() as conn:
        course.register(conn, live)
        course.register(conn, ended)
    sizes, sweeps = [], _Sweeps()
    for day in range(int(np.ceil(days))):
        numbers = course.of_day(day, days)
        for at in range(0, len(numbers), 100):
            with store.write() as conn:
                for number in numbers[at : at + 100]:
                    course.save(conn, live, number)
        sizes.append(path.stat().st_size + Path(f"{path}-wal").stat().st_size)
        sweeps.run(store, settings, days - day - 1)
    with store.write() as conn:
        for number in course.of_day(0, days):
            course.save(conn, ended, number)
        runs.end(conn, ended, now_s=course.began_s + _DAY_S)
        runs.mark_closed(conn, ended, 1)
    sweeps.run(store, settings, 0.0)
    return sizes, sweeps


def _gb(size_bytes: float, jobs: int) -> float:
    return round(size_bytes * jobs / 1e9, 2)


def _by_table(path: Path, jobs: int) -> dict[str, float]:
    """GB of each table and index over 10 MB, scaled."""
    query = "SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC"
    connection = sqlite3.connect(path)
    try:
        found = {name: _gb(size, jobs) for name, size in connection.execute(query)}
    finally:
        connection.close()
    return {name: size for name, size in found.items() if size >= 0.01}


def _ask_every_page(
    target: StackUnderTest, store: Store, course: _Course, days: float
) -> dict[str, Any]:
    """Every address that a page may ask, of windows of any age by the ids that they had."""
    refused: dict[str, str] = {}
    asked = 0
    document = openapi_document(target)
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)
    ages = [age for age in (0.5, 2.5, 5, 20, days - 0.1) if age < days]
    ids = {age: f"1-{STEPS * round((days - age) * _DAY_S / course.window_s)}" for age in ages}
    resolutions: dict[str, str] = {}
    for job, some in ((LIVE, ids), (ENDED, {days - 0.1: ids[ages[-1]]})):
        named = ["latest", "recent", *some.values(), f"{ids[ages[-1]]}..{some[min(some)]}"]
        known = {
            "job_id": [job], "window": named, "worker": ["1-1"], "stage": ["1"],
            "host": [course.simulated[0][0].job.world.hosts[(1, 1)]],
            "optype": ["forward-compute"], "seq_id": ["0"],
            "a": [f"{job}:{named[-2]}"], "b": [f"{job}:{named[2]}"],
        }  # fmt: skip
        for each in (each for some in addresses(document, known).values() for each in some):
            status, answer = _get(connection, target, each)
            asked += 1
            takes_no_range = status == 422 and "does not fit" in answer.get("detail", "")
            if status != 200 and not takes_no_range:
                refused[each] = f"{status} {answer.get('detail', '')}"
        for age, window in some.items():
            _, result = _get(connection, target, f"/api/v1/jobs/{job}/windows/{window}")
            resolutions[f"{job} {age} days"] = (result.get("thinned") or {}).get(
                "resolution", "step"
            )
    connection.close()
    if not asked:
        raise BenchmarkFailed("no address is known")
    return {"asked": asked, "refused": refused, "resolution_by_age": resolutions}


def _get(
    connection: http.client.HTTPConnection, target: StackUnderTest, address: str
) -> tuple[int, dict[str, Any]]:
    connection.request("GET", address, headers={"authorization": f"Bearer {target.token}"})
    answer = connection.getresponse()
    body = answer.read()
    is_json = "json" in (answer.getheader("content-type") or "")
    found = json.loads(body) if is_json else {}
    return answer.status, found if isinstance(found, dict) else {}
