"""From a number to a made job: everything about it is drawn from its number alone."""

from dataclasses import dataclass, replace

import numpy as np

from app.cli.bench.diagnosis import drawn_job
from app.cli.bench.diagnosis.arrivals import Habits
from app.cli.bench.diagnosis.families import FAMILIES
from app.cli.bench.diagnosis.grid import kinds_of
from app.cli.bench.diagnosis.kinds import Kind
from app.cli.bench.diagnosis.numbers import Numbered
from app.cli.bench.diagnosis.setting import Setting
from app.synth.faults.fault import Fault, When
from app.synth.faults.sequence_imbalance import BalancedSequences
from app.synth.life import Attempt, Event, lived
from app.synth.run import MadeJob
from app.synth.schedules.known import SCHEDULES

NUM_STEPS = 60  # recorded, or a little less, so that all windows are full

# Recorded steps before a fault that begins while the job is watched, and with it at least.
_BEFORE = 10
_WITH = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """A made job and how it is watched; `kinds` are its faults', in their order."""

    made: MadeJob
    kinds: tuple[Kind, ...]
    steps: tuple[int, ...]
    window_steps: int
    habits: Habits
    events: tuple[Event, ...] = ()

    @property
    def attempts(self) -> list[Attempt]:
        """The job's runs: more than one where it was started again."""
        return lived(self.made, self.steps, self.events)

    @property
    def what(self) -> str:
        """The job in a line."""
        sizes, made = self.made.parallelism, self.made
        shape = f"dp {sizes.dp_size}, pp {sizes.pp_size}, {made.num_microbatches} micro-batches"
        noise = f"{made.costs.tail.name} {made.costs.noise:.3f}"
        names = [*(kind.name for kind in self.kinds), *(event.name for event in self.events)]
        wrong = " and ".join(names) or "healthy"
        return f"{wrong}: {shape}, {made.schedule.name}, {noise}"


def planned(numbered: Numbered) -> Plan:
    """The job of this number."""
    rng = np.random.default_rng([numbered.number])
    family = FAMILIES[numbered.family]
    kinds = () if numbered.is_healthy else kinds_of(numbered.index)
    shape, sizes = drawn_job.sizes(family, kinds, rng)
    made = MadeJob(
        sizes,
        shape.microbatches,
        name=f"made-{numbered.number}",
        costs=drawn_job.costs(family, shape, rng),
        seed=numbered.number,
        schedule=SCHEDULES[shape.schedule],
        cluster=drawn_job.cluster(rng),
        gpus_tell=bool(rng.random() < 0.5),
    )
    window_steps = drawn_job.window_steps(rng)
    steps = drawn_job.recorded(NUM_STEPS - NUM_STEPS % window_steps, rng)
    step_s = _usual_step_s(made, steps)
    habits = drawn_job.habits(sizes, made.cluster, step_s, rng)
    made = replace(made, odd_steps=drawn_job.odd_steps(step_s, rng))
    if numbered.is_healthy:
        events = drawn_job.events(steps, sizes, rng)
        harmless = replace(made, faults=_harmless(rng))
        return Plan(harmless, (), steps, window_steps, habits, events)
    sends = (bool(rng.random() < 0.5), bool(rng.random() < 0.5))
    most_lost = 0.5 if len(kinds) == 1 else 0.3
    setting = Setting(made.world, made.costs, step_s, steps, *sends, most_lost, rng)
    faults = tuple(_fault(kind, setting) for kind in kinds)
    return Plan(replace(made, faults=faults), kinds, steps, window_steps, habits)


def _harmless(rng: np.random.Generator) -> tuple[Fault, ...]:
    """Every fourth healthy job tells its lengths, which are as different as any, but well dealt."""
    return (BalancedSequences(is_sent=True),) if rng.random() < 0.25 else ()


def _usual_step_s(made: MadeJob, steps: tuple[int, ...]) -> float:
    (block,) = made.blocks(steps[10:17])
    return float(np.median(block.step_s()))


def _fault(kind: Kind, setting: Setting) -> Fault:
    if setting.rng.random() >= kind.begins:
        return kind.draw(setting, When())
    position = int(setting.rng.integers(_BEFORE, len(setting.steps) - _WITH))
    return kind.draw(setting, When(setting.steps[position]))
