"""What the headline says to do: what to check, and the advised fix with the figure of its win."""

import pytest

from app.charts.job.headline import what_to_do
from app.result.finding import Culprit
from tests import results


def finding(cause="slow-worker", stage=3, **evidence):
    return results.finding(cause, culprits=[Culprit(0, stage=stage)], evidence=evidence)


def fix(cause="slow-worker", title="Replace host-b"):
    return results.top_fix(
        cause=cause,
        title=title,
        gpu_hours_per_day=468.0,
        gpu_hours_per_day_range=(-78.0, 1013.0),
    )


WINS = "Replace host-b: wins about 470 GPU-h a day (\u221278 to 1,000), simulated."


def test_the_advised_fix_is_named_with_what_it_wins():
    assert what_to_do(finding(), fix(), pp_size=4) == WINS


def test_a_fix_of_another_cause_is_said_to_be_one():
    assert what_to_do(finding("late-host"), fix(), pp_size=4) == (
        f"What wins most is against another cause, a slow worker. {WINS}"
    )


def test_without_a_fix_no_figure_is_given():
    assert what_to_do(finding(), None, pp_size=4) == ""
    told = what_to_do(finding("stage-imbalance"), None, pp_size=4)
    assert told == "Give the last stage fewer layers: it also computes the loss."


def test_what_to_check_stands_before_the_fix():
    shown = what_to_do(finding("stage-imbalance"), fix("stage-imbalance"), pp_size=4)
    assert shown.startswith("Give the last stage fewer layers")
    assert shown.endswith(WINS)


@pytest.mark.parametrize(
    ("because", "check"),
    [
        ("data-wait", "check its data loader"),
        ("gc", "garbage collector pauses"),
        ("unknown host work", "CPU frequency, and Python work between operations"),
        (None, "other processes on the host"),
    ],
)
def test_of_a_late_host_it_says_what_to_check(because, check):
    assert check in what_to_do(finding("late-host", late_because=because), None, pp_size=4)
