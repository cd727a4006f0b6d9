"""Clock times of findings: where they come from, and how sentences have them."""

import pytest

from app.result.clock_times import (
    finding_in_clock_words,
    in_clock_words,
    result_ended_s,
    with_clock_times,
)
from tests import results
from tests.results import window_result

# 2026-11-24 02:41:07 UTC
START_S = 1_795_488_067.0
NOW_S = START_S + 3_600
CLOCK = {30: (START_S, 10.0), 31: (START_S + 10, 10.0), 102: (START_S + 720, 12.0)}
COST = "; it costs 29 % of the job's GPU time"


def finding(sentence, onset=30, end=None):
    return results.finding(onset_step=onset, end_step=end, sentence=sentence)


def result(*findings):
    return window_result(steps=[31, 102], step_time_s={"recorded": [10.0, 12.0]}, findings=findings)


def test_onset_and_end_have_the_times_of_their_steps():
    [found] = with_clock_times(result(finding("It is slow", end=31)), CLOCK).findings or ()
    assert found.onset_at == "2026-11-24T02:41:07Z"
    assert found.ended_at == "2026-11-24T02:41:27Z"  # when step 31 ended


def test_a_step_of_unknown_time_has_none():
    [found] = with_clock_times(result(finding("It is slow", onset=12)), CLOCK).findings or ()
    assert (found.onset_at, found.ended_at) == (None, None)
    timed = finding_in_clock_words(found, START_S + 732, NOW_S)
    assert (timed.sentence, timed.lasted_s) == ("It is slow", None)


def test_a_result_ends_with_its_newest_known_step():
    timed = with_clock_times(result(), CLOCK)
    assert timed.step_started_s == (START_S + 10, START_S + 720)
    assert result_ended_s(timed) == START_S + 732
    assert result_ended_s(result()) is None


@pytest.mark.parametrize(
    ("sentence", "onset", "end", "told"),
    [
        (f"It is slow, since step 30{COST}", 30, None,
         f"It is slow, since 02:41 UTC, step 30, 12 min{COST}"),
        ("It stops, first in step 30; note", 30, None,
         "It stops, first at 02:41 UTC, step 30, 12 min; note"),
        (f"It was slow, from step 30 to step 102{COST}", 30, 102,
         f"It was slow, from 02:41 UTC, step 30 to 02:53 UTC, step 102, 12 min{COST}"),
        ("It was slow, in step 31", 31, 31, "It was slow, at 02:41 UTC, step 31"),
        ("It was slow, until step 102", None, 102, "It was slow, until 02:53 UTC, step 102"),
        ("It stopped in step 30, and all waited", 30, None,
         "It stopped in step 30 (02:41 UTC), and all waited"),
        ("It stopped in step 301, and all waited", 30, None,
         "It stopped in step 301, and all waited"),
        ("host since step 30 is slow, since step 30", 30, None,
         "host since step 30 is slow, since 02:41 UTC, step 30, 12 min"),
    ],
)  # fmt: skip
def test_sentences_have_the_times_beside_the_steps(sentence, onset, end, told):
    timed = with_clock_times(result(finding(sentence, onset, end)), CLOCK)
    [found] = in_clock_words(timed, NOW_S).findings or ()
    assert found.sentence == told
