"""Many jobs and windows in a store, as consumers would have saved them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from msgspec import structs

from app.alerts.alert import AlertEvent, AlertState, Detail, fingerprint
from app.monitor import analysed
from app.result.brief import brief_of
from app.result.finding import Finding
from app.result.stored import split_by_step
from app.result.window_result import WindowResult
from app.store import fleet, hosts, runs, windows
from app.store.alerting import alerts
from app.store.database import Connection, Store
from app.store.runs import Registration
from app.store.windows import StepRow, WindowRecord
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import DEFAULT_PROJECT, Job, Parallelism, job_key
from app.trace.window import Window

STEPS = 8
WINDOW_S = 150.0
_JOBS_AT_ONCE = 20
_FAULTS: tuple[tuple[Fault, ...], ...] = (
    (),
    (SlowWorker(1, 1, 1.6),),
    (LongLastStage(),),
    (SequenceImbalance(is_sent=True),),
)


@dataclass(frozen=True, slots=True)
class SimulatedResult:
    """A simulated job, the result of its window, and the host of each worker."""

    job: Job
    result: WindowResult
    hosts: dict[tuple[int, int], str]


def fill_store(store: Store, *, num_jobs: int, num_windows: int, now_s: float) -> None:
    """Store this many jobs and about this many windows in all, the newest ending now."""
    kinds = [_simulate(faults) for faults in _FAULTS]
    for first in range(0, num_jobs, _JOBS_AT_ONCE):
        with store.write() as conn:
            for number in range(first, min(first + _JOBS_AT_ONCE, num_jobs)):
                share = num_windows * (number + 1) // num_jobs - num_windows * number // num_jobs
                _add_job(conn, number, kinds[number % len(kinds)], share, now_s)


def _simulate(faults: tuple[Fault, ...]) -> SimulatedResult:
    sizes = Parallelism(8, 4, tp_size=8)
    simulated = SimulatedJob(sizes, 4, costs=replace(OperationCosts(), noise=0.01), faults=faults)
    numbers = range(STEPS)
    hosts_of_workers = dict(simulated.world.hosts)
    window = Window(simulated.job, 1, 0, tuple(numbers), simulated.make(numbers), state="complete",
                    hosts=hosts_of_workers)  # fmt: skip
    return SimulatedResult(simulated.job, analysed(window)[1], hosts_of_workers)


def _add_job(
    conn: Connection, number: int, simulated: SimulatedResult, num_windows: int, now_s: float
) -> None:
    key = job_key(DEFAULT_PROJECT, f"job-{number:04}")
    began_s = now_s - num_windows * WINDOW_S
    labels = {"owner": f"team-{number % 20}"}
    runs.register(
        conn,
        key,
        Registration(f"made job {number}", simulated.job.parallelism, simulated.job.num_gpus,
                     "made", labels, "bench"),
        now_s=began_s,
    )  # fmt: skip
    hosts.save(conn, key, 1, simulated.hosts)
    hosts.add_to_run(conn, key, 1, simulated.hosts.values())
    for record in _records(simulated, num_windows, began_s):
        windows.save(conn, key, record)
        windows.save_steps(conn, key, step_rows(record))
        num_gpus = simulated.job.num_gpus
        brief = brief_of(record.result, num_gpus=num_gpus)
        fleet.save_brief(conn, key, 1, record.first_step, brief)
        lost = fleet.losses_of(record.result, num_gpus=num_gpus)
        fleet.save_losses(conn, key, record, lost, num_gpus=num_gpus)
    runs.note_data(conn, key, last_data_s=now_s, last_step=STEPS * num_windows - 1, epoch=1)
    if simulated.result.findings:
        _add_alert(conn, key, simulated.result.findings[0], simulated.result.slowdown, began_s)


def _records(
    simulated: SimulatedResult, num_windows: int, began_s: float
) -> Iterator[WindowRecord]:
    whole, per_step = split_by_step(simulated.result)
    for number in range(num_windows):
        first_step = STEPS * number
        result = structs.replace(
            whole,
            window=structs.replace(whole.window, id=f"1-{first_step}"),
            steps=tuple(range(first_step, first_step + STEPS)),
        )
        yield WindowRecord(
            epoch=1,
            first_step=first_step,
            last_step=first_step + STEPS - 1,
            revision=STEPS,
            state="complete",
            num_steps=STEPS,
            num_ops=0,
            slowdown=result.slowdown,
            verdict=result.fidelity.verdict,
            result=result,
            per_step=per_step,
            trace=None,
            updated_s=began_s + (number + 1) * WINDOW_S,
        )


def step_rows(record: WindowRecord) -> list[StepRow]:
    """Rows of the window's steps, all of which have figures."""
    result, times_s = record.result, record.result.step_time_s
    rows = zip(
        result.steps,
        times_s.recorded,
        times_s.simulated,
        times_s.ideal,
        result.step_slowdown,
        result.step_started_s,
        strict=True,
    )
    window_id = f"{record.epoch}-{record.first_step}"
    return [
        StepRow(
            *(record.epoch, step, recorded_s, simulated_s, ideal_s, slowdown, window_id),
            started_s=started_s,
        )
        for step, recorded_s, simulated_s, ideal_s, slowdown, started_s in rows
    ]


def _add_alert(
    conn: Connection, key: str, finding: Finding, slowdown: float | None, began_s: float
) -> None:
    detail = Detail(value=slowdown, slowdown=slowdown, since_step=0, window_id="1-16")
    at_s, identity = began_s + 3 * WINDOW_S, fingerprint(key, "slowdown", "")
    state = AlertState(
        identity, key, "slowdown", "", "firing", "warning", began_s, at_s, 1, "1-16", 3,
        threshold=1.1, detail=detail,
    )  # fmt: skip
    alerts.save(conn, [state])
    event = AlertEvent(
        identity, key, "slowdown", "", "firing", at_s, "warning", finding.sentence, 1.1, detail
    )
    alerts.add_event(conn, event)
