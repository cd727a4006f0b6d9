import runpy

from benchmarks.strangers.calibrate import (
    MIN_FINDINGS,
    SaidFinding,
    fitted,
    isotonic_points,
    write_table,
)


def said(figure, right, wrong=0, cause="slow-worker"):
    return [
        *[SaidFinding(cause, figure, is_right=True)] * right,
        *[SaidFinding(cause, figure, is_right=False)] * wrong,
    ]


def test_one_figure_is_the_share_that_was_right():
    # One right and one wrong finding are added: (18 + 1) / (20 + 2).
    assert isotonic_points(said(0.9, 18, 2)) == ((0.9, 0.864),)


def test_higher_figure_that_is_right_less_often_is_pooled():
    found = isotonic_points(said(0.6, 9, 1) + said(0.8, 5, 5))
    assert found == ((0.6, 0.682), (0.8, 0.682))


def test_shares_never_fall_with_the_figure():
    findings = [each for at in range(20) for each in said(0.5 + at / 40, 3 + at * 7 % 5, at % 3)]
    shares = [share for _, share in isotonic_points(findings)]
    assert shares == sorted(shares)


def test_few_findings_of_a_figure_are_pooled_with_the_next():
    assert isotonic_points(said(0.6, 0, 1) + said(0.9, 50)) == ((0.6, 0.962), (0.9, 0.962))


def test_cause_with_few_findings_has_no_row():
    table = fitted(said(0.9, MIN_FINDINGS) + said(0.9, MIN_FINDINGS - 1, cause="gc-pause"))
    assert list(table) == ["slow-worker"]


def test_written_table_is_a_module_with_the_points(tmp_path):
    table = fitted(said(0.6, 2) + said(0.9, 100))
    write_table(tmp_path / "table.py", table, "102 findings.")
    written = runpy.run_path(str(tmp_path / "table.py"))
    assert written["CALIBRATION"] == table
    assert "102 findings." in written["__doc__"]
