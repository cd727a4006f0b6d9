"""Groups recorded in few steps: the same GPU is named, at the same cost, as from all steps."""

from dataclasses import replace

import pytest

from app.trace.job import Job, Parallelism
from tests.diagnosis.jobs import diagnosed, findings_of
from tests.engine.arrivals.test_blame_sampled_groups import STEPS, window

ALL = range(STEPS)


@pytest.mark.parametrize("slowdown", [1.3, 1.6])
@pytest.mark.parametrize("sampled", [[3], [1, 5], ALL], ids=["one", "two", "all"])
def test_a_slow_gpu_is_named_however_few_steps_are_sampled(sampled, slowdown):
    found = findings_of(diagnosed(window(sampled, slow=(2,), slowdown=slowdown)))
    assert [each.cause for each in found] == ["slow-worker"]
    assert [each.rank for each in found[0].culprits] == [2]


def test_the_cost_of_a_slow_gpu_does_not_depend_on_the_sampled_steps():
    costs = []
    for sampled in ([3], ALL):
        (found,) = findings_of(diagnosed(window(sampled, slow=(2,))))
        costs.append((found.cost, found.cost_range))
    (few, few_range), (many, many_range) = costs
    assert few == pytest.approx(many, abs=0.03)
    assert (few_range is None) == (many_range is None)


@pytest.mark.parametrize("sampled", [[3], ALL], ids=["one", "all"])
def test_a_slow_gpu_in_every_replica_is_named(sampled):
    found = findings_of(diagnosed(window(sampled, slow=(2, 5), slowdown=1.3)))
    assert [each.cause for each in found] == ["slow-worker"]
    assert {each.rank for each in found[0].culprits} == {2, 5}


@pytest.mark.parametrize("sampled", [[3], ALL], ids=["one", "all"])
def test_healthy_groups_name_nobody(sampled):
    assert findings_of(diagnosed(window(sampled))) == ()


def test_a_culprit_outside_the_job_is_ignored():
    seen = window(ALL, slow=(2,))
    assert seen.collectives is not None
    places = {rank: replace(each, stage=7) for rank, each in seen.collectives.places.items()}
    strange = replace(seen, collectives=replace(seen.collectives, places=places))
    assert strange.job == Job.of("made", Parallelism(2, 1, tp_size=4))
    diagnosed(strange)
