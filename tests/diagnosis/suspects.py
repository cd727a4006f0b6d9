"""Made jobs for the detectors, what one says of them, and what that would cost."""

from dataclasses import replace

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion
from app.diagnosis.suspicions import suspicion_costs
from app.result.finding import RuledOut
from app.result.words import in_tense
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.diagnosis.windows import case_of
from tests.synth.faulty_jobs import costs_of
from tests.window_factory import Row

NUM_STEPS = 16


def job(*faults: Fault, dp=4, pp=4, microbatches=8, **changes) -> SimulatedJob:
    """A small job on hosts of two GPUs, whose transfers are long enough to matter."""
    made = SimulatedJob(
        Parallelism(dp, pp),
        microbatches,
        faults=faults,
        costs=OperationCosts(stage_transfer_s=4e-3),
        cluster=Cluster(gpus_per_host=2),
        seed=5,
    )
    return replace(made, **changes)


def recorded(made: SimulatedJob, num_steps: int = NUM_STEPS) -> Case:
    """Its first steps, as its workers recorded them."""
    return case_of(made.record(range(num_steps)).window())


def suspected(detector: Detector, case: Case) -> Suspicion:
    found = detector.detect(case)
    assert isinstance(found, Suspicion), found
    return found


def denied(detector: Detector, case: Case) -> RuledOut:
    found = detector.detect(case)
    assert isinstance(found, RuledOut), found.fact
    return found


def fact_of(suspicion: Suspicion, *, is_past: bool = False) -> str:
    """The fact of its sentence, in one of the tenses."""
    return in_tense(suspicion.fact, is_past=is_past)


def suspicion(detector: Detector, made: SimulatedJob, num_steps: int = NUM_STEPS) -> Suspicion:
    found = suspected(detector, recorded(made, num_steps))
    assert found.score >= 0.5
    return found


def ruled_out(detector: Detector, made: SimulatedJob, num_steps: int = NUM_STEPS) -> RuledOut:
    return denied(detector, recorded(made, num_steps))


def attributed_and_real_cost(
    detector: Detector, made: SimulatedJob, num_steps: int = NUM_STEPS
) -> tuple[float, float]:
    """What the first fault costs by the replay, and what it cost when the job was made."""
    case = recorded(made, num_steps)
    found = suspected(detector, case)
    [attributed] = [suspicion_costs(case, [found]).of(0)]
    real = costs_of(made, range(num_steps))[0]
    assert attributed is not None
    assert real is not None
    return attributed, real


def two_stages(transfer_s):
    """One replica on two stages, step by step: `transfer_s` [steps] of forwards' activations.

    Forwards and backwards take 1 s, and a backward's gradient 0.1 s.
    """
    rows = []
    for step, took_s in enumerate(transfer_s):
        sent = 1.0 + took_s
        given = sent + 2.0
        rows += [
            Row("forward-compute", 0.0, 1.0, stage=0, mb_id=0),
            Row("forward-send", 1.0, took_s, stage=0, mb_id=0),
            Row("forward-recv", 0.0, sent, stage=1, mb_id=0),
            Row("forward-compute", sent, 1.0, stage=1, mb_id=0),
            Row("backward-compute", sent + 1.0, 1.0, stage=1, mb_id=0),
            Row("backward-send", given, 0.1, stage=1, mb_id=0),
            Row("backward-recv", 1.0, given + 0.1 - 1.0, stage=0, mb_id=0),
            Row("backward-compute", given + 0.1, 1.0, stage=0, mb_id=0),
        ]
        rows[-8:] = [row.on(step=step, mc=0) for row in rows[-8:]]
    return rows
