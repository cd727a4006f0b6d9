import pytest

from app.charts import words


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.293, "29 %"),
        (0.0995, "10 %"),
        (0.016, "1.6 %"),
        (0.0, "0 %"),
        (-0.0001, "0 %"),
        (-0.116, "\u221212 %"),
        (1.22, "122 %"),
    ],
)
def test_shares_are_rounded_to_what_can_be_trusted(share, text):
    assert words.percent(share) == text


@pytest.mark.parametrize(
    ("value_s", "text"), [(19.34, "19.3 s"), (1.0, "1 s"), (0.0851, "85.1 ms")]
)
def test_durations_have_three_digits(value_s, text):
    assert words.seconds(value_s) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(5, "5 seconds"), (60, "1 minute"), (725, "12 minutes"), (7200, "2 hours"), (90_000, "1 day")],
)
def test_spans_are_told_in_their_largest_unit(value_s, text):
    assert words.span(value_s) == text


def test_a_long_host_name_is_cut():
    assert words.markup("x" * 40) == "x" * 23 + "\u2026"
