"""The loss that no cause explains, and its place."""

from dataclasses import replace
from typing import Any

import pytest

from app.engine.report import analyse
from app.result.words import unexplained_sentence
from app.synth.costs import OperationCosts
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.trace.job import Parallelism
from tests.diagnosis.jobs import diagnosed, findings_of, made, window_of
from tests.diagnosis.stopped_windows import longer_gaps
from tests.results import unexplained
from tests.synth.uneven_experts import UnevenExperts

QUIET = OperationCosts(noise=0.0, transfer_noise=0.0)


def sentence_of(**given: Any) -> str | None:
    return unexplained_sentence(unexplained(**given))


def rest_of(diagnosis):
    assert diagnosis.unexplained is not None
    return diagnosis.unexplained


@pytest.mark.parametrize("faults", [(), (SlowWorker(1, 2, 1.5),), (LongLastStage(),)])
def test_nothing_is_left_where_causes_explain_the_loss(faults):
    seen = diagnosed(window_of(made(*faults, costs=QUIET)))
    assert len(findings_of(seen)) == len(faults)
    assert rest_of(seen).share == pytest.approx(0.0, abs=0.02)
    assert rest_of(seen).as_json()["sentence"] is None


def test_costs_that_overlap_count_once():
    """Both slow workers cost nothing alone, as the others still wait for the other one."""
    seen = diagnosed(window_of(made(SlowWorker(1, 2, 2.0), SlowWorker(3, 2, 2.0), costs=QUIET)))
    assert rest_of(seen).share == pytest.approx(0.0, abs=0.02)


def test_two_repairs_of_one_computation_shorten_it_by_both():
    both = (UnevenExperts(0.3), SlowWorker(1, 2, 1.5))
    sizes = Parallelism(4, 4, ep_size=4)
    seen = diagnosed(window_of(replace(made(*both, costs=QUIET), parallelism=sizes)))
    assert len(findings_of(seen)) == 2
    assert rest_of(seen).share == pytest.approx(0.0, abs=0.05)


def test_noise_without_a_cause_is_said_with_its_share():
    seen = diagnosed(window_of(made(costs=OperationCosts(noise=0.2))))
    assert findings_of(seen) == ()
    rest = rest_of(seen)
    assert rest.share > 0.05
    assert rest.share_of_loss == pytest.approx(1.0)
    assert rest.optype == "backward-compute"
    assert rest.as_json()["sentence"].endswith(
        "of the step time is not explained by any known cause, most of it in backward compute"
    )


def test_a_stop_between_steps_is_a_fact_and_no_part_of_the_rest():
    window = longer_gaps(window_of(made(costs=QUIET)), every=9, gap_s=5.0)
    seen = diagnosed(window)
    assert findings_of(seen) == ()
    assert rest_of(seen).share == pytest.approx(0.0, abs=0.01)
    [fact] = seen.observations
    total_s = sum(analyse(window).recorded_s) + 5.0
    assert fact.share == pytest.approx(5.0 / total_s, abs=0.02)
    assert "before step 9" in fact.sentence


def test_idle_time_between_all_steps_is_a_part_of_costs_and_of_the_step_but_not_of_the_rest():
    slow = SlowWorker(1, 2, 1.5)
    usual, idle = (
        diagnosed(longer_gaps(window_of(made(slow, costs=QUIET)), every=1, gap_s=gap_s))
        for gap_s in (0.0, 0.2)
    )
    (cost,), (less,) = (
        [finding.cost or 0 for finding in findings_of(seen)] for seen in (usual, idle)
    )
    share = rest_of(idle).idle_share or 0.0
    assert share == pytest.approx(idle.observations[0].share, abs=0.01)
    assert share > 0.1
    assert less == pytest.approx(cost * (1 - share), abs=0.01)
    assert rest_of(idle).share == pytest.approx(rest_of(usual).share, abs=0.01)
    parts = (rest_of(idle).ideal_share or 0.0, less, share, rest_of(idle).share)
    assert sum(parts) == pytest.approx(1.0, abs=0.02)


def test_a_small_rest_has_no_sentence_and_a_place_needs_most_of_it():
    assert sentence_of(share=0.04) is None
    assert sentence_of(share=0.125, share_of_loss=0.4, stage=2) == (
        "12 % of the step time (40 % of the loss) is not explained by any known cause, most of it "
        "in stage 2"
    )
