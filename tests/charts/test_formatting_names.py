import re
from pathlib import Path

import pytest

from app import formatting


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.293, "29 %"), (0.0995, "10 %"), (0.016, "1.6 %"), (0.0, "0 %"), (-0.0001, "0 %"),
        (-0.116, "\u221212 %"), (1.22, "122 %"),
    ],
)  # fmt: skip
def test_shares_are_rounded_to_what_can_be_trusted(share, text):
    assert formatting.percent(share) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.95, "high confidence, 95 %"),
        (0.985, "high confidence, 99 %"),
        (0.795, "high confidence, 80 %"),
        (0.794, "medium confidence, 79 %"),
        (0.594, "low confidence, 59 %"),
    ],
)
def test_confidence_has_words_that_fit_its_number(share, text):
    assert formatting.confidence(share) == text


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("it is 1.6x slower", "it is 1.6\u00d7 slower"),
        ("takes 2,410x as long", "takes 2,410\u00d7 as long"),
        ("node-3x is slow", "node-3x is slow"),
    ],
)
def test_ratios_get_the_times_sign_and_names_do_not(sentence, shown):
    assert formatting.with_times_sign(sentence) == shown


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([7], "Rank 7"),
        ([0, 1], "Ranks 0 and 1"),
        ([0, 1, 2, 3], "Ranks 0 to 3"),
        ([0, 1, 2, 3, 4], "Ranks 0 to 4"),
        (range(2003), "Ranks 0 to 2002"),
    ],
)
def test_a_few_ranks_are_named_and_the_others_counted(numbers, text):
    assert formatting.ranks(numbers) == text


def test_a_time_has_its_date_where_it_is_another_days():
    at_s = 1_790_085_720.0
    assert formatting.utc_time(at_s, at_s + 9 * 3600) == "14:02 UTC"
    assert formatting.utc_time(at_s, at_s + 10 * 3600) == "2026-09-22 14:02 UTC"


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(5, "5 seconds"), (60, "1 minute"), (725, "12 minutes"), (7200, "2 hours"), (90_000, "1 day")],
)
def test_durations_use_their_largest_unit(value_s, text):
    assert formatting.duration(value_s) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(0.2, "1 s"), (7.4, "7 s"), (38, "40 s"), (94, "95 s"), (200, "3 min"), (7200, "2 hours")],
)
def test_remaining_time_is_rounded(value_s, text):
    assert formatting.rough_duration(value_s) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0.1874, "187 ms"),
        (0.00762, "7.6 ms"),
        (0.0000812, "0.081 ms"),
        (1.26, "1.3 s"),
        (0, "0 ms"),
    ],
)
def test_short_durations_have_two_digits(value_s, text):
    assert formatting.short_seconds(value_s) == text


def test_untrusted_text_cannot_change_text_direction():
    assert formatting.bidi_isolated("host-\u202e017\u2066") == "host-017"
    assert (
        formatting.worker(3, 1, {(3, 1): "\u05d0\u2069\u202e"})
        == "\u2068\u05d0\u2069 (dp 3, stage 1)"
    )


def test_operation_types_have_the_same_names_on_the_page_and_in_its_charts():
    script = (Path(__file__).parents[2] / "frontend/js/lib/formatting.js").read_text()
    table = script.split("const OPTYPE_NAMES = {")[1].split("}")[0]
    named = dict(re.findall(r'"?([a-z-]+)"?: "([^"]+)",', table))
    assert named == {name: formatting.optype_label(name) for name in named}
    assert len(named) >= 12


@pytest.mark.parametrize(
    ("culprit", "name"),
    [
        ({"host": "host-043", "rank": 11, "dp_rank": 3, "stage": 1},
         "host-043, rank 11 (dp 3, stage 1)"),
        ({"host": "host-043", "rank": 11, "dp_rank": 3, "stage": 1, "local_rank": 5},
         "host-043, rank 11 (dp 3, stage 1), GPU 5"),
        ({"host": "h", "rank": 88, "ranks": list(range(88, 96)), "dp_rank": 3, "stage": 1},
         "h, ranks 88 to 95 (dp 3, stage 1)"),
        ({"host": "host-017", "ranks": list(range(8, 16)), "num_workers": 8},
         "host-017 (ranks 8 to 15, all 8 of its workers)"),
        ({"host": "h", "ranks": [3, 7, 12]}, "h, ranks 3, 7 and 12"),
        ({"rank": 11, "dp_rank": 3, "stage": 1}, "rank 11 (dp 3, stage 1), host not reported"),
        ({"host": "h", "dp_rank": 3, "stage": 1}, "h (dp 3, stage 1)"),
        ({"stage": 1}, "stage 1"),
        ({"host": "h"}, "h"),
        ({}, ""),
    ],
)  # fmt: skip
def test_a_culprit_has_host_ranks_and_place_as_far_as_known(culprit, name):
    assert formatting.culprit_name(**culprit, names_unknown_host=True) == name


@pytest.mark.parametrize(
    ("lasted_s", "told"),
    [(0.4, "0 s"), (94, "94 s"), (95, "2 min"), (720, "12 min"), (5_699, "95 min"),
     (5_700, "2 h"), (172_799, "48 h"), (172_800, "2 days")],
)  # fmt: skip
def test_durations_beside_times_have_one_rounded_unit(lasted_s, told):
    assert formatting.short_duration(lasted_s) == told


def test_an_onset_has_what_is_known_of_time_and_duration():
    at_s = 1_795_488_067.0
    assert formatting.since_words(30, at_s, 720, now_s=at_s) == "02:41 UTC, step 30, 12 min"
    assert formatting.since_words(1204, None, 720, now_s=at_s) == "step 1,204"
    assert formatting.utc_timestamp(at_s) == "2026-11-24T02:41:07Z"
    assert formatting.unix_time("2026-11-24T02:41:07Z") == at_s
