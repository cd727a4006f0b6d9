"""Rows of docs/benchmarks.md: what is measured replaces a row, the others stay dated."""

import pytest

from app.errors import InvalidRequest
from benchmarks.figures import accuracy, command, speed
from benchmarks.figures.measurement import PAGE, Measured, Options, duration, share_of
from benchmarks.figures.tables import BEGIN, END, Table, dated_rows, rewritten
from benchmarks.measuring import BenchmarkFailed

TABLES = (Table("Speed", ("time", "date"), ("ar", "job")), Table("Accuracy", ("right",), ("gpu",)))
MEASURED = {"ar": ("52 ms", "2026-11-28"), "gpu": ("3 of 3",)}


def test_tables_stand_between_the_markers_and_the_rest_of_the_page_stays():
    page = rewritten(f"Before\n{BEGIN}\nnothing yet\n{END}\nafter", TABLES, MEASURED)
    assert page.splitlines() == [
        *("Before", BEGIN, ""),
        *("### Speed", "", "| row | time | date |", "| --- | --- | --- |"),
        "| `ar` | 52 ms | 2026-11-28 |",
        *("", "### Accuracy", "", "| row | right |", "| --- | --- |", "| `gpu` | 3 of 3 |", ""),
        *(END, "after"),
    ]


def test_a_row_that_is_not_measured_again_keeps_its_date():
    page = rewritten(f"{BEGIN}{END}", TABLES, MEASURED)
    page = rewritten(page, TABLES, {"job": ("1.5 s", "2026-11-29")})
    page = rewritten(page, TABLES, {"job": ("1.4 s", "2026-11-30")})
    assert dated_rows(page) == {**MEASURED, "job": ("1.4 s", "2026-11-30")}
    assert page.index("`ar`") < page.index("`job`")


def test_pipes_and_line_breaks_stay_inside_their_cell():
    page = rewritten(f"{BEGIN}{END}", TABLES, {"ar": ("a | b\nc", "today")})
    assert r"| `ar` | a \| b c | today |" in page
    assert dated_rows(page)["ar"] == ("a | b c", "today")
    assert rewritten(page, TABLES, {}) == page


def test_rows_that_the_tables_no_longer_have_go_and_short_ones_are_filled():
    page = f"{BEGIN}\n| `gone` | 1 |\n| `ar` | 52 ms |\n{END}"
    assert dated_rows(rewritten(page, TABLES, {})) == {"ar": ("52 ms", "")}


def test_a_page_without_markers_is_refused():
    with pytest.raises(InvalidRequest, match="figures:begin"):
        rewritten("# Benchmarks", TABLES, MEASURED)


def test_the_page_has_exactly_the_columns_of_its_rows():
    rows = dated_rows(PAGE.read_text().partition(BEGIN)[2].partition(END)[0])
    for table in (speed.TABLE, accuracy.TABLE):
        for name in rows.keys() & set(table.names):
            assert len(rows[name]) == len(table.columns)
    assert set(rows) <= set(command.ROWS)


def test_a_row_that_cannot_be_measured_does_not_end_the_others(tmp_path, capsys):
    def fail(_options):
        raise BenchmarkFailed("ended with status 2")

    row = Measured(("52 ms",), {"total_s": 0.052})
    rows = {"job": fail, "ar": lambda _options: row}
    found: dict[str, Measured] = {}
    failed = command.measure(rows, Options(tmp_path, "python"), found.__setitem__)
    assert (found, failed) == ({"ar": row}, {"job": "ended with status 2"})
    assert "its row stays as it was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "words"), [(1.549, "1.55 s"), (0.0275, "27.5 ms"), (9e-4, "900 us"), (60, "60 s")]
)
def test_durations_have_three_digits_and_a_unit(seconds, words):
    assert duration(seconds) == words


def test_shares_name_their_jobs():
    assert share_of(0.975, 40) == "39 of 40 (97.5 %)"
    assert share_of(None, 0) == "none"
