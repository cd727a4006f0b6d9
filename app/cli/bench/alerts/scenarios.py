"""Jobs that are no stragglers, though something about them is odd: nobody is to be woken."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.alerts.alert import AlertEvent
from app.alerts.defaults import default_rules
from app.cli.bench.alerts.night import night
from app.cli.bench.alerts.rung import WINDOW_STEPS, facts_of, rung
from app.cli.bench.diagnosis.arrivals import Habits
from app.synth.cluster import Cluster
from app.synth.costs import Costs
from app.synth.faults.fault import Fault, When
from app.synth.faults.sequence_imbalance import BalancedSequences
from app.synth.faults.silent_worker import SilentWorker
from app.synth.faults.slow_host import SlowHost
from app.synth.faults.slow_worker import SlowWorker
from app.synth.faults.uniform_slowdown import UniformSlowdown
from app.synth.life import Event, Resize, Restart, lived
from app.synth.noise import HeavyTailed
from app.synth.odd_steps import OddSteps, sampled
from app.synth.run import MadeJob
from app.synth.schedules.known import SCHEDULES
from app.trace.job import Parallelism

_SIZES = Parallelism(4, 4, 2)
_COSTS = Costs(noise=0.02)
_USUAL = tuple(range(80))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A made job, and how it is watched."""

    name: str
    faults: tuple[Fault, ...] = ()
    odd_steps: OddSteps = field(default_factory=OddSteps)
    events: tuple[Event, ...] = ()
    habits: Habits = field(default_factory=Habits)
    cluster: Cluster = field(default_factory=Cluster)
    sizes: Parallelism = _SIZES
    costs: Costs = _COSTS
    schedule: str = "1f1b"
    steps: tuple[int, ...] = _USUAL
    window_steps: int = WINDOW_STEPS

    @property
    def made(self) -> MadeJob:
        """The job."""
        return MadeJob(
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
class Found:
    """What rang by the usual rules made stricter, and what people were told by them as they are."""

    rang: tuple[AlertEvent, ...]
    told: tuple[str, ...]

    @property
    def sentences(self) -> list[str]:
        """All of it in words."""
        return [*(event.sentence for event in self.rang), *self.told]


def false_alerts(scenario: Scenario) -> Found:
    """What rings though nobody is to be woken.

    Stricter means that windows in a row count, however short they are: these jobs are.
    """
    attempts = lived(scenario.made, scenario.steps, scenario.events)
    facts = facts_of(attempts, scenario.habits, scenario.window_steps)
    stricter = default_rules(for_s=0.0, keep_firing_s=0.0)
    rang = rung(facts, stricter).firing
    with night(default_rules()) as watch:
        watch.live(attempts, scenario.habits, scenario.window_steps)
    return Found(rang, tuple(watch.told))


def _late(seconds: float, dp_rank: int = 2, stage: int = 1) -> Habits:
    return Habits(late_worker=(dp_rank, stage), late_s=seconds)


def _skewed(offset_s: float, drift_ppm: float = 0.0) -> Cluster:
    return Cluster(2, clock_offset_s=offset_s, drift_ppm=drift_ppm, jitter_s=50e-6)


def _gap(at: int, num_steps: int) -> tuple[int, ...]:
    return tuple(step if step < at else step + num_steps for step in _USUAL)


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
    Scenario("worker-missing-for-a-step", faults=(SilentWorker(1, 1, when=When(30, 1)),)),
    Scenario("worker-missing-for-a-window", faults=(SilentWorker(1, 1, when=When(32, 8)),)),
    Scenario("worker-missing-to-the-end", faults=(SilentWorker(3, 2, when=When(40)),)),
    Scenario("clocks-a-second-off", cluster=_skewed(1.0)),
    Scenario("clocks-an-hour-off", cluster=_skewed(3600.0)),
    Scenario("clocks-that-drift", cluster=_skewed(1.0, 200.0)),
    Scenario("restart", events=(Restart(40, 0),)),
    Scenario("restart-from-a-checkpoint", events=(Restart(41, 13),), odd_steps=OddSteps(0, 3)),
    Scenario("two-restarts", events=(Restart(30, 4), Restart(55, 4)), odd_steps=OddSteps(0, 2)),
    Scenario("fewer-replicas", events=(Resize(40, 5, dp_size=3),), odd_steps=OddSteps(0, 2)),
    Scenario("more-replicas", events=(Resize(40, 5, dp_size=6),), odd_steps=OddSteps(0, 2)),
    Scenario("evaluation-steps", odd_steps=OddSteps(evaluate_every=10, evaluation_s=3.0)),
    Scenario("long-evaluations", odd_steps=OddSteps(evaluate_every=25, evaluation_s=30.0)),
    Scenario("checkpoint-steps", odd_steps=OddSteps(checkpoint_every=12, checkpoint_s=4.0)),
    Scenario(
        "evaluations-and-checkpoints",
        odd_steps=OddSteps(0, 3, 4.0, 8, 2.0, 20, 5.0),
    ),
    Scenario("slow-first-steps", odd_steps=OddSteps(0, 8, 3.0)),
    Scenario("first-step", odd_steps=OddSteps(0, 1, 20.0), window_steps=1),
    Scenario("sampled-steps", steps=tuple(sampled(80, recorded=30, every=300))),
    Scenario("a-gap", steps=_gap(36, 350)),
    # Longer than anything before, but not as long as a silence that is told.
    Scenario("evaluation-of-four-minutes", odd_steps=OddSteps(0, 0, 3.0, 60, 240.0)),
    Scenario("checkpoint-of-four-minutes", odd_steps=OddSteps(0, 0, 3.0, 0, 0.0, 60, 240.0)),
    Scenario("one-slow-step", faults=(SlowWorker(1, 2, 4.0, when=When(35, 1)),)),
    Scenario("one-slow-host-for-a-step", faults=(SlowHost("host-001", 4.0, when=When(44, 1)),)),
    Scenario("one-step-slow-for-all", faults=(UniformSlowdown(3.0, when=When(35, 1)),)),
    Scenario("ends-within-a-window", steps=_USUAL[:59]),
)
