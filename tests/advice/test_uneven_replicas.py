from dataclasses import replace

import numpy as np
import pytest

from app.advice.rebuilt_pipeline import of_dp_ranks, step_times
from app.errors import InvalidRequest
from app.synth.costs import OperationCosts
from app.synth.execution import Execution
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from benchmarks.advice.pipeline_fixes import without_launch_delays

STEPS = range(3)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
def test_equal_counts_are_the_ordinary_execution(name):
    sizes = Parallelism(3, 2, 8, 2 if name == "interleaved" else 1)
    job = SimulatedJob(sizes, 4, schedule=SCHEDULES[name], faults=(SlowWorker(1, 1, 1.5),))
    drawn = without_launch_delays(job.drawn(STEPS))
    execution = Execution(job.structure, drawn)
    execution.run()
    np.testing.assert_allclose(
        step_times(sizes, job.schedule, [4, 4, 4], drawn), execution.end_s.max(axis=(0, 2))
    )


def test_replicas_without_collectives_end_with_the_longest_alone():
    free = OperationCosts(
        params_all_gather_s=0.0, grads_reduce_scatter_s=0.0, layernorm_all_reduce_s=0.0,
        embedding_all_reduce_s=0.0, clip_s=0.0, optimizer_s=0.0, gc_s=0.0, noise=0.1,
    )  # fmt: skip
    job = SimulatedJob(Parallelism(3, 2), 6, costs=free)
    drawn = without_launch_delays(job.drawn(STEPS))
    counts, alone = [6, 2, 4], []
    for dp_rank, count in enumerate(counts):
        one = replace(job, parallelism=Parallelism(1, 2), num_microbatches=count)
        mine = of_dp_ranks(drawn, [dp_rank])
        execution = Execution(one.structure, mine)
        execution.run()
        alone.append(execution.end_s.max(axis=(0, 2)))
    np.testing.assert_allclose(
        step_times(job.parallelism, job.schedule, counts, drawn), np.max(alone, axis=0)
    )


@pytest.mark.parametrize("counts", [[4], [4, 0], [4, 4, 4]])
def test_impossible_counts_are_refused(counts):
    job = SimulatedJob(Parallelism(2, 1), 4)
    with pytest.raises(InvalidRequest, match="give one number of 1 or more"):
        step_times(job.parallelism, job.schedule, counts, job.drawn(STEPS))


def test_interleaved_counts_are_whole_rounds():
    job = SimulatedJob(Parallelism(2, 2, 1, 2), 4, schedule=SCHEDULES["interleaved"])
    with pytest.raises(InvalidRequest, match="3 is no multiple"):
        step_times(job.parallelism, job.schedule, [3, 4], job.drawn(STEPS))
