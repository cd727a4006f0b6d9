"""The verdict of part faults over constructed outcomes, each wrong in one way."""

from dataclasses import replace

import pytest

from benchmarks.alerts.faults import AlertOutcome, verdict_of_faults

RIGHT = AlertOutcome(
    1,
    "slow-worker",
    "a job",
    0.2,
    is_alerted=True,
    is_cause_right=True,
    has_place=True,
    is_culprit_right=True,
    is_resolved=True,
)
NO_CAUSE = replace(RIGHT, is_cause_right=False)
NO_CULPRIT = replace(RIGHT, is_culprit_right=False)


@pytest.mark.parametrize(
    ("tried", "wrong"),
    [
        ([RIGHT] * 100, []),
        ([RIGHT] * 97 + [NO_CAUSE] * 3, []),
        ([RIGHT] * 96 + [NO_CAUSE] * 4, ["cause: right in 96 of 100 messages, less than 97%"]),
        ([RIGHT] * 99 + [NO_CULPRIT], []),
        ([RIGHT] * 98 + [NO_CULPRIT] * 2, ["culprit: right in 98 of 100 messages, less than 99%"]),
        ([replace(RIGHT, counts=False)], ["vacuous: no fault costs enough to be told"]),
        ([], ["vacuous: no fault costs enough to be told"]),
    ],
)
def test_shares_below_the_minimum_are_wrong(tried, wrong):
    assert verdict_of_faults(tried)["wrong"] == wrong


def test_each_missed_unresolved_or_early_alert_is_wrong():
    for each in ({"is_alerted": False}, {"is_resolved": False}, {"early": ("It is slow.",)}):
        [wrong] = verdict_of_faults([RIGHT] * 200 + [replace(RIGHT, **each)])["wrong"]
        assert wrong["number"] == 1
