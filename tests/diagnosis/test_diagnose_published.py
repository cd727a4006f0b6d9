"""The published traces, whose causes are known (../shared/traces)."""

from functools import cache

import pytest
from msgspec.structs import astuple

from app.result.finding import Culprit
from app.trace.readers.published import trace_files
from tests.diagnosis.jobs import diagnosed, only_finding, reason_against
from tests.shared_traces import SHARED_TRACES, needs_shared

pytestmark = needs_shared


@cache
def of_trace(name):
    return diagnosed(trace_files.read(SHARED_TRACES / f"trace-{name}.parquet"))


def test_ar_has_one_slow_worker_and_nothing_else():
    found = only_finding(of_trace("AR"))
    assert (found.cause, found.culprits) == ("slow-worker", (Culprit(0, 0),))
    assert found.evidence["workers"] == [[0, 0]]
    assert found.evidence["slowdown_against_peers"] == pytest.approx(2.36, abs=0.01)
    assert found.evidence["share_of_loss"] == pytest.approx(1.0, abs=0.05)
    assert found.cost == pytest.approx(0.505, abs=0.005)
    assert found.sentence == (
        "Ranks 0 to 3 (dp 0, stage 0) are 2.4x slower than their peers in forward and backward, "
        "since step 16 or before; it costs 51 % of the job's GPU time"
    )


def test_ar_varies_between_the_workers_of_a_stage():
    seen = of_trace("AR").fingerprint
    shares = astuple(seen.variance)
    assert shares == pytest.approx((0.19, 0.81, 0.00), abs=0.005)


def test_the_clock_noise_of_healthy_workers_is_no_sequence_imbalance():
    # r reaches 0.93 there, and the coefficient of variation 0.017.
    assert "less than 5 % may be chance" in reason_against(of_trace("AR"), "sequence-imbalance")


def test_st_has_a_long_last_stage_and_nothing_else():
    found = only_finding(of_trace("ST"))
    assert (found.cause, found.culprits) == ("stage-imbalance", (Culprit(stage=3),))
    # Published for the job: 2.07 and 1.41 of an average stage.
    assert found.evidence["forward_slowdown"] == pytest.approx(2.07, abs=0.03)
    assert found.evidence["backward_slowdown"] == pytest.approx(1.41, abs=0.03)
    assert found.sentence.startswith("Stage 3, the last stage, takes 1.6x as long as the others")


def test_st_varies_between_stages():
    seen = of_trace("ST").fingerprint
    shares = astuple(seen.variance)
    assert shares == pytest.approx((0.99, 0.00, 0.01), abs=0.01)


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("flap", ["flapping-link"]),
        ("inter", ["slow-worker", "stage-imbalance"]),
        ("ovlp", ["stage-imbalance"]),
        ("puredp", ["slow-worker"]),
        ("purepp", ["stage-imbalance"]),
    ],
)
def test_simulated_traces_have_the_injected_causes(name, causes):
    assert [found.cause for found in of_trace(name).findings] == causes


def test_one_replica_with_a_long_stage_may_have_a_slow_gpu_instead():
    # Of purepp: with one dp rank, a stage with more work looks like a slow worker.
    seen = of_trace("purepp")
    assert "with one dp rank" in reason_against(seen, "slow-worker")
    found = only_finding(seen)
    assert found.culprits == (Culprit(stage=7),)
    assert found.sentence.startswith(
        "Stage 7, the last stage, takes 1.4x as long as the others in every step: either its share "
        "of the model is larger or its GPU slower, which look alike with one dp rank"
    )
