"""Shares of right findings by the detectors' own figures, pooled until they never fall."""

import runpy

from benchmarks.strangers.calibrate import SaidFinding, fitted, isotonic_points, write_table


def said(figure, right, wrong=0):
    return [
        *[SaidFinding("slow-worker", figure, is_right=True, feed="client")] * right,
        *[SaidFinding("slow-worker", figure, is_right=False, feed="client")] * wrong,
    ]


def test_higher_figure_that_is_right_less_often_is_pooled():
    found = isotonic_points(said(0.6, 9, 1) + said(0.8, 5, 5))
    assert found == ((0.6, 0.682), (0.8, 0.682))


def test_few_findings_of_a_figure_are_pooled_with_the_next():
    assert isotonic_points(said(0.6, 0, 1) + said(0.9, 50)) == ((0.6, 0.962), (0.9, 0.962))


def test_written_table_is_a_module_with_the_points(tmp_path):
    table = fitted(said(0.6, 2) + said(0.9, 100))
    write_table(tmp_path / "table.py", table, "102 findings.")
    written = runpy.run_path(str(tmp_path / "table.py"))
    assert written["CALIBRATION"] == table
    assert set(table["slow-worker"]) == {"any", "client"}
    assert "102 findings." in written["__doc__"]
