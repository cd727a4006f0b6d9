import pytest

from app.diagnosis.calibration import calibrated, own_confidences
from app.diagnosis.calibration_table import CALIBRATION, OTHER_CAUSES
from app.diagnosis.finding import CAUSES


def test_confidence_is_between_the_points_of_the_table(monkeypatch):
    monkeypatch.setitem(CALIBRATION, "gc-pause", ((0.5, 0.6), (0.9, 0.8)))
    assert calibrated("gc-pause", 0.7) == pytest.approx(0.7)
    assert calibrated("gc-pause", 0.99) == 0.8
    assert calibrated("gc-pause", 0.1) == 0.6


def test_cause_without_a_row_has_that_of_all_findings(monkeypatch):
    monkeypatch.setitem(CALIBRATION, OTHER_CAUSES, ((0.0, 0.3), (1.0, 0.3)))
    monkeypatch.delitem(CALIBRATION, "job-stop", raising=False)
    assert calibrated("job-stop", 0.9) == pytest.approx(0.3)


def test_own_confidences_are_not_calibrated(monkeypatch):
    monkeypatch.setitem(CALIBRATION, "gc-pause", ((0.5, 0.6), (0.9, 0.8)))
    with own_confidences():
        assert calibrated("gc-pause", 0.7) == 0.7
        assert calibrated("gc-pause", 0.99) == 0.99
    assert calibrated("gc-pause", 0.99) == 0.8


@pytest.mark.parametrize("cause", CAUSES)
def test_no_figure_is_certain_and_a_higher_one_is_no_less_sure(cause):
    found = [calibrated(cause, figure / 20) for figure in range(21)]
    assert found == sorted(found)
    assert 0 < found[0] <= found[-1] < 1
