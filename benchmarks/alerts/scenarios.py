"""Unusual jobs without stragglers: no alert may fire."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.alerts.alert import AlertEvent
from app.alerts.rule import default_rules
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.interruptions import SilentWorker
from app.synth.faults.sequence_imbalance import BalancedSequences
from app.synth.faults.slow_compute import SlowHost, SlowWorker, UniformSlowdown
from app.synth.job import JobEvent, Resize, Restart, SimulatedJob, simulated_runs
from app.synth.noise import HeavyTailed
from app.synth.normal_variation import SpecialSteps, sampled_steps
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from benchmarks.alerts.simulated_service import (
    WINDOW_STEPS,
    evaluate_rules,
    facts_of,
    simulated_service,
)
from benchmarks.diagnosis.observation import ArrivalHabits

_SIZES = Parallelism(4, 4, 2)
_COSTS = OperationCosts(noise=0.02)
_STEPS = tuple(range(80))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulated job, and how its batches arrive."""

    name: str
    faults: tuple[Fault, ...] = ()
    odd_steps: SpecialSteps = field(default_factory=SpecialSteps)
    events: tuple[JobEvent, ...] = ()
    habits: ArrivalHabits = field(default_factory=ArrivalHabits)
    cluster: Cluster = field(default_factory=Cluster)
    sizes: Parallelism = _SIZES
    costs: OperationCosts = _COSTS
    schedule: str = "1f1b"
    steps: tuple[int, ...] = _STEPS
    window_steps: int = WINDOW_STEPS

    @property
    def simulated(self) -> SimulatedJob:
        """The job."""
        return SimulatedJob(
            self.sizes,
            8,
            name=self.name,
            costs=self.costs,
            faults=self.faults,
            seed=11,
            schedule=SCHEDULES[self.schedule],
            cluster=self.cluster,
            odd_steps=self.odd_steps,
        )


@dataclass(frozen=True, slots=True)
class ScenarioOutcome:
    """Alerts that fired with stricter rules, and notifications sent with the default rules."""

    fired: tuple[AlertEvent, ...]
    delivered: tuple[str, ...]

    @property
    def sentences(self) -> list[str]:
        """All of it in words."""
        return [*(event.sentence for event in self.fired), *self.delivered]


def false_alerts(scenario: Scenario) -> ScenarioOutcome:
    """Alerts of a scenario, all of which are false.

    The stricter rules have no minimum time, since these jobs are short.
    """
    attempts = simulated_runs(scenario.simulated, scenario.steps, scenario.events)
    facts = facts_of(attempts, scenario.habits, scenario.window_steps)
    stricter = default_rules(for_s=0.0, keep_firing_s=0.0)
    fired = evaluate_rules(facts, stricter).firing
    with simulated_service(default_rules()) as service:
        service.run_job(attempts, scenario.habits, scenario.window_steps)
    return ScenarioOutcome(fired, tuple(service.delivered))


def _late(seconds: float, dp_rank: int = 2, stage: int = 1) -> ArrivalHabits:
    return ArrivalHabits(late_worker=(dp_rank, stage), late_s=seconds)


def _skewed(offset_s: float, drift_ppm: float = 0.0) -> Cluster:
    return Cluster(2, clock_offset_s=offset_s, drift_ppm=drift_ppm, jitter_s=50e-6)


def _gap(at: int, num_steps: int) -> tuple[int, ...]:
    return tuple(step if step < at else step + num_steps for step in _STEPS)


SCENARIOS: Sequence[Scenario] = (
    Scenario("healthy"),
    Scenario("healthy-heavy-tails", costs=replace(_COSTS, noise=0.04, tail=HeavyTailed())),
    Scenario("healthy-interleaved", sizes=Parallelism(4, 4, 2, vpp_size=2), schedule="interleaved"),
    Scenario("healthy-gpipe", schedule="gpipe"),
    Scenario("healthy-one-stage", sizes=Parallelism(8, 1, 2)),
    Scenario("healthy-one-replica", sizes=Parallelism(1, 4, 2)),
    Scenario("sequences-dealt-evenly", faults=(BalancedSequences(is_sent=True),)),
    Scenario("late-worker", habits=_late(5.0)),
    Scenario("late-worker-beyond-the-deadline", habits=_late(45.0)),
    Scenario("late-first-stage", habits=_late(8.0, 0, 0)),
    Scenario("worker-missing-for-a-step", faults=(SilentWorker(1, 1, when=FaultSteps(30, 1)),)),
    Scenario("worker-missing-for-a-window", faults=(SilentWorker(1, 1, when=FaultSteps(32, 8)),)),
    Scenario("worker-missing-to-the-end", faults=(SilentWorker(3, 2, when=FaultSteps(40)),)),
    Scenario("clocks-a-second-off", cluster=_skewed(1.0)),
    Scenario("clocks-an-hour-off", cluster=_skewed(3600.0)),
    Scenario("clocks-that-drift", cluster=_skewed(1.0, 200.0)),
    Scenario("restart", events=(Restart(40, 0),)),
    Scenario("restart-from-a-checkpoint", events=(Restart(41, 13),), odd_steps=SpecialSteps(0, 3)),
    Scenario("two-restarts", events=(Restart(30, 4), Restart(55, 4)), odd_steps=SpecialSteps(0, 2)),
    Scenario("fewer-replicas", events=(Resize(40, 5, dp_size=3),), odd_steps=SpecialSteps(0, 2)),
    Scenario("more-replicas", events=(Resize(40, 5, dp_size=6),), odd_steps=SpecialSteps(0, 2)),
    Scenario("evaluation-steps", odd_steps=SpecialSteps(evaluate_every=10, evaluation_s=3.0)),
    Scenario("long-evaluations", odd_steps=SpecialSteps(evaluate_every=25, evaluation_s=30.0)),
    Scenario("checkpoint-steps", odd_steps=SpecialSteps(checkpoint_every=12, checkpoint_s=4.0)),
    Scenario(
        "evaluations-and-checkpoints",
        odd_steps=SpecialSteps(0, 3, 4.0, 8, 2.0, 20, 5.0),
    ),
    Scenario("slow-first-steps", odd_steps=SpecialSteps(0, 8, 3.0)),
    Scenario("first-step", odd_steps=SpecialSteps(0, 1, 20.0), window_steps=1),
    Scenario("sampled-steps", steps=tuple(sampled_steps(80, recorded=30, every=300))),
    Scenario("a-gap", steps=_gap(36, 350)),
    # Longer than any other pause, but shorter than the limit of silence.
    Scenario("evaluation-of-four-minutes", odd_steps=SpecialSteps(0, 0, 3.0, 60, 240.0)),
    Scenario("checkpoint-of-four-minutes", odd_steps=SpecialSteps(0, 0, 3.0, 0, 0.0, 60, 240.0)),
    Scenario("one-slow-step", faults=(SlowWorker(1, 2, 4.0, when=FaultSteps(35, 1)),)),
    Scenario(
        "one-slow-host-for-a-step", faults=(SlowHost("host-001", 4.0, when=FaultSteps(44, 1)),)
    ),
    Scenario("one-step-slow-for-all", faults=(UniformSlowdown(3.0, when=FaultSteps(35, 1)),)),
    Scenario("ends-within-a-window", steps=_STEPS[:59]),
)
