import dataclasses

import pytest
from msgspec.structs import replace

from app.alerts.alert import Blame, Detail
from app.alerts.wording import (
    JOB_ENDED,
    alert_sentence,
    cost_sentence,
    finding_sentence,
    recovery_sentence,
    resolved_cost_sentence,
)
from app.result.finding import Culprit
from tests.alerts import notices
from tests.alerts.alert_factories import fresh, rule

BLAME = Blame(
    "slow-worker",
    "dp 3, stage 1 on host-017 is 1.6x slower than its peers, since step 1204; "
    "it costs 29 % of the job's GPU time",
    0.29,
    0.95,
    (Culprit(3, 1, "host-017"),),
    1,
    fact="dp 3, stage 1 on host-017 is 1.6x slower than its peers",
)
FACT = "dp 3, stage 1 on host-017 is 1.6\u00d7 slower than its peers"
DETAIL = replace(
    notices.DETAIL, gpu_time_wasted=0.29, gpu_hours_lost_per_hour=18.6, window_id=None, blame=BLAME
)


def told(kind=None, reason=None, subject="", labels=None, **detail):
    state = dataclasses.replace(
        fresh(rule(), subject), detail=replace(DETAIL, **detail), labels=labels or {}
    )
    return alert_sentence(state, kind, reason)


def test_the_first_sentence_says_how_slow_since_when_and_who():
    assert told() == f"llm-70b runs at 1.42\u00d7 of its ideal, since step 1,204: {FACT}."
    assert told(blame=None) == "llm-70b runs at 1.42\u00d7 of its ideal, since step 1,204."
    assert told(blame=replace(BLAME, since_step=1204)) == told()
    assert told(blame=replace(BLAME, since_step=1900)).endswith(f"1,204: {FACT}, since step 1,900.")


def test_the_second_says_what_it_costs_an_hour_and_how_sure_the_cause_is():
    assert cost_sentence(DETAIL) == (
        "It costs about 19 GPU-h an hour, 29 % of the time of 64 GPUs. "
        "Cause: slow worker (high confidence, 95 %)."
    )
    assert cost_sentence(replace(DETAIL, blame=None)) == (
        "It costs about 19 GPU-h an hour, 29 % of the time of 64 GPUs."
    )
    assert cost_sentence(replace(DETAIL, on="low-fidelity")).startswith("Naming a worker")
    assert cost_sentence(Detail()) == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"on": "waste", "value": 0.29}, "llm-70b wastes 29 % of its GPU time, since step 1,204"),
        ({"on": "gpu-hours-lost", "value": 18.6}, "llm-70b loses about 19 GPU-h an hour"),
        (
            {"on": "cause", "value": 0.29, "subject": "slow-worker"},
            f"llm-70b loses 29 % of its GPU time to one slow worker, since step 1,204: {FACT}.",
        ),
        (
            {"on": "worker", "value": 1.3, "subject": "3-1", "labels": {"host": "host-017"}},
            "host-017 (dp 3, stage 1) alone slows llm-70b down to 1.30\u00d7 of its ideal, since",
        ),
        (
            {"on": "host", "value": 1.3, "subject": "host-017"},
            "host-017 slows llm-70b down to 1.30\u00d7 of its ideal, since step 1,204",
        ),
        (
            {"on": "optype", "value": 1.3, "subject": "forward-compute"},
            "Forward compute slows llm-70b down to 1.30\u00d7",
        ),
        (
            {"on": "low-fidelity", "value": 0.071},
            "The simulated steps of llm-70b differ from the recorded ones by 7.1 %",
        ),
        (
            {"on": "clock-residual", "value": 0.003},
            "The clocks of the hosts of llm-70b are uncertain by 3 ms, since step 1,204",
        ),
        ({"on": "step-time", "value": 1.25}, "Steps of llm-70b take 1.25\u00d7 as long as before"),
        ({"on": "stalled", "value": None}, "No worker of llm-70b has sent anything since step 1,2"),
        (
            {"on": "silent-worker", "value": None, "names": ["dp 3, stage 1"] * 5, "num_named": 9},
            "9 workers of llm-70b have fallen silent by step 1,204: dp 3, stage 1; dp 3, stage 1; "
            "dp 3, stage 1; 6 more.",
        ),
    ],
)  # fmt: skip
def test_every_rule_has_words_of_its_own(given, expected):
    assert told(**given).startswith(expected)
    assert told("resolved", **given).endswith(".")


def test_subjects_without_a_finding_are_not_blamed():
    assert told(on="worker", value=1.2, subject="1-0", blame=None) == (
        "With only the slowness of dp 1, stage 0, llm-70b would run at 1.20\u00d7 of its ideal, "
        "since step 1,204; no finding names it."
    )
    assert "host-2 slows" not in told(on="host", value=1.2, subject="host-2", blame=None)


def test_a_resolution_has_the_current_figure():
    assert told("resolved", value=1.01, since_step=1300) == (
        "llm-70b runs at 1.01\u00d7 of its ideal again, since step 1,300."
    )
    assert told("resolved", JOB_ENDED) == (
        "llm-70b has ended. It last ran at 1.42\u00d7 of its ideal."
    )


def test_a_recovery_says_what_happened_from_when_to_when_and_what_it_lost():
    now = Detail(on="slowdown", value=1.0, slowdown=1.0, since_step=1300)
    cost = resolved_cost_sentence(DETAIL, 7200.0)
    assert recovery_sentence(DETAIL, now, 7200.0) == (
        f"Recovered since step 1,300. From step 1,204 until then: {FACT}. {cost}"
    )
    no_cause = recovery_sentence(replace(DETAIL, blame=None), now, 7200.0)
    assert "until then: the job at 1.42\u00d7 of its ideal. It lasted 2 h" in no_cause
    stalled = recovery_sentence(Detail(on="stalled"), Detail(), 60.0)
    assert stalled.startswith("Recovered: its workers send again.")
    assert recovery_sentence(Detail(on="low-fidelity", slowdown=1.2), now, 60.0) == ""


def test_a_resolved_cost_sentence_has_the_time_and_the_cost_in_all():
    cost = "cost about 37 GPU-h in all, 29 % of the time of 64 GPUs."
    assert resolved_cost_sentence(DETAIL, 7200.0) == f"It lasted 2 h and {cost}"
    silent = resolved_cost_sentence(Detail(on="silent-worker"), 40.0)
    assert silent == "It lasted 40 s. What it cost is not measured."
    assert resolved_cost_sentence(Detail(), 300.0) == "It lasted 5 min."


def test_a_cause_that_costs_more_than_the_slowdown_shows_says_why():
    of_cause = replace(DETAIL, on="cause", value=0.31, gpu_hours_lost_per_hour=19.8)
    assert cost_sentence(replace(of_cause, slowdown=1.27, gpu_time_wasted=0.21)) == (
        "It costs about 20 GPU-h an hour, 31 % of the time of 64 GPUs. That is by steps replayed "
        "without it: the slowdown of 1.27\u00d7, which only compares workers with each other, "
        "accounts for 21 %. Cause: slow worker (high confidence, 95 %)."
    )
    for wasted in (0.4, 0.312):
        assert "accounts for" not in cost_sentence(replace(of_cause, gpu_time_wasted=wasted))


def test_text_from_outside_has_no_power_over_the_text_around_it():
    said = told(on="host", value=1.3, subject="h\u202est-1", blame=None)
    assert "\u202e" not in said
    named = replace(BLAME, fact="h\u202est-\u00e91 is 2.0x slower than its peers")
    assert finding_sentence(named) == "\u2068hst-\u00e91 is 2.0\u00d7 slower than its peers\u2069"
