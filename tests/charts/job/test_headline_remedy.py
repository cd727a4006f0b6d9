import pytest

from app.charts.job.headline import remedy, won_back_gpu_hours
from app.result.finding import Culprit
from tests import results


def finding(cause="slow-worker", cost=0.25, share=0.86, culprits=1, **evidence):
    return results.finding(
        cause,
        cost=cost,
        culprits=[Culprit(dp_rank, stage=3) for dp_rank in range(culprits)],
        evidence=evidence | {"share_of_loss": share},
    )


def said(found, num_gpus=2048):
    return remedy(found, pp_size=4, num_gpus=num_gpus)


def test_fixing_the_culprit_wins_back_a_share_of_the_gpus_every_day():
    # 2,048 GPUs for 24 h, a quarter of it.
    assert said(finding()) == "Fixing this worker would win back about 12,000 GPU-h a day."
    assert won_back_gpu_hours(finding(), 2048) == 12_288


def test_finished_job_has_no_figures_a_day():
    assert said(finding(), num_gpus=0) == "Fixing this worker would win back 86 % of the loss."
    assert won_back_gpu_hours(finding(), 0) is None


def test_no_more_is_won_back_than_counts_as_lost():
    # At 100/64 of its ideal 36 % of 2,400 GPU-h count as lost; against peers the cost is half.
    found = finding("stage-imbalance", cost=0.5, share=1.39)
    shown = remedy(found, pp_size=8, num_gpus=100, slowdown=1.5625)
    assert shown == "Fixing this stage would win back all of the loss, about 860 GPU-h a day."
    assert won_back_gpu_hours(found, 100, 1.5625) == pytest.approx(864)
    then = remedy(found, pp_size=8, num_gpus=0, slowdown=1.5625)
    assert then == "Fixing this stage would win back all of the loss."


def test_cost_of_a_uniform_slowdown_is_no_part_of_the_loss():
    found = finding("uniform-slowdown", cost=0.23, share=None, culprits=0)
    shown = remedy(found, pp_size=8, num_gpus=100, slowdown=1.01)
    assert shown == "Computing as fast as before would win back about 550 GPU-h a day."


@pytest.mark.parametrize("cost", [None, 0.0, 0.004])
def test_remedy_is_empty_when_nothing_is_won_back(cost):
    assert said(finding(cost=cost)) == ""


@pytest.mark.parametrize(
    ("because", "check"),
    [
        ("data-wait", "check its data loader"),
        ("gc", "garbage collector pauses"),
        ("unknown host work", "CPU frequency, and Python work between operations"),
        (None, "other processes on the host"),
    ],
)
def test_remedy_of_a_late_host_says_what_to_check(because, check):
    told = said(finding("late-host", late_because=because), 0)
    assert check in told
    assert told.endswith("Launching in time would win back 86 % of the loss.")
