"""Made jobs of one window, diagnosed."""

from app.diagnosis.case import Case
from app.diagnosis.diagnose import Diagnosis, diagnose
from app.diagnosis.job_history import History
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.result.finding import Finding
from app.synth.faults.fault import Fault
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.window import Window

NUM_STEPS = 16


def made(*faults: Fault, dp=4, pp=4, tp=8, vpp=1, microbatches=8, **about) -> SimulatedJob:
    """A job with a host for each worker, unless told otherwise."""
    return SimulatedJob(Parallelism(dp, pp, tp, vpp), microbatches, faults=faults, **about)


def window_of(job: SimulatedJob, num_steps: int = NUM_STEPS, first: int = 0) -> Window:
    """As the service has it when all workers have sent everything."""
    return job.record(range(first, first + num_steps)).window()


def case_of(window: Window, history: History | None = None) -> Case:
    replay = prepare(window)
    return Case(replay, analyse_replay(replay), history or History())


def diagnosed(window: Window, history: History | None = None) -> Diagnosis:
    replay = prepare(window)
    return diagnose(replay, analyse_replay(replay), history or History())


def findings_of(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    assert diagnosis.findings is not None
    return diagnosis.findings


def only_finding(diagnosis: Diagnosis) -> Finding:
    (found,) = findings_of(diagnosis)
    return found


def reason_against(diagnosis: Diagnosis, cause: str) -> str:
    (found,) = [each for each in diagnosis.ruled_out if each.cause == cause]
    return found.reason
