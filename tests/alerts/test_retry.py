import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alerts.receiver import RETRY_DELAYS_S, next_delay_s, parse_retry_after


class Middle(random.Random):
    """Chance without chance: always the middle of the range."""

    def uniform(self, a, b):
        return (a + b) / 2


def test_without_jitter_the_delays_are_those_of_the_schedule():
    delays = [next_delay_s(attempt, Middle()) for attempt in range(1, 11)]
    assert delays == [5, 15, 60, 300, 900, 3600, 10800, 21600, 43200, None]


@given(st.integers(1, 9), st.randoms(use_true_random=False))
def test_jitter_is_a_fifth_either_way(attempt, rng):
    delay_s = next_delay_s(attempt, rng)
    assert delay_s is not None
    assert 0.8 * RETRY_DELAYS_S[attempt] <= delay_s <= 1.2 * RETRY_DELAYS_S[attempt]


@pytest.mark.parametrize(
    ("attempt", "wish_s", "delay_s"),
    [(1, 0, 5), (1, 7, 7), (1, 500, 10), (5, 1200, 1200), (6, 86400, 3600), (7, 86400, 10800)],
)
def test_a_receivers_wish_counts_between_one_and_two_delays_up_to_an_hour(attempt, wish_s, delay_s):
    assert next_delay_s(attempt, Middle(), retry_after_s=wish_s) == delay_s


def test_an_overloaded_receiver_gets_half_a_minute():
    assert next_delay_s(1, Middle(), is_overloaded=True) == 30
    assert next_delay_s(1, Middle(), retry_after_s=6, is_overloaded=True) == 30
    assert next_delay_s(4, Middle(), is_overloaded=True) == 300


@pytest.mark.parametrize(
    ("header", "wanted_s"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("9" * 400, 3600.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:14:20 -0000", 60.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("Tue, 99 Nov 2023 22:00:00 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header, wanted_s):
    assert parse_retry_after(header, now_s=1_700_000_000.0) == wanted_s  # 22:13:20 GMT


@given(st.text(max_size=40))
def test_no_header_breaks_it(header):
    wanted_s = parse_retry_after(header, now_s=1_700_000_000.0)
    assert wanted_s is None or wanted_s >= 0
