"""Simulated jobs of 2 x 2 workers."""

from dataclasses import replace

from app.synth.costs import OperationCosts
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism

SIZES = Parallelism(2, 2)
HEALTHY = SimulatedJob(SIZES, 2, name="job")
SLOW = replace(HEALTHY, faults=(SlowWorker(1, 0, 1.8),))
# Operations start long after their dependencies end, which no replay explains.
UNEXPLAINED = replace(SLOW, costs=replace(OperationCosts(), launch_delay_s=0.02))
