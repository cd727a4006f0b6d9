import pytest

from app.diagnosis.calibration import MAX_CONFIDENCE, calibrated, own_confidences
from app.diagnosis.calibration_table import CALIBRATION
from app.result.causes import CAUSES


def test_confidence_is_between_the_points_of_the_table(monkeypatch):
    monkeypatch.setitem(CALIBRATION, "gc-pause", {"any": ((0.5, 0.6), (0.9, 0.8))})
    assert calibrated("gc-pause", 0.7, "client") == pytest.approx(0.7)
    assert calibrated("gc-pause", 0.99, "client") == 0.8


def test_figure_below_those_that_were_counted_stays(monkeypatch):
    monkeypatch.setitem(CALIBRATION, "gc-pause", {"any": ((0.8, 0.95), (0.9, 0.97))})
    assert calibrated("gc-pause", 0.6, "client") == 0.6


def test_cause_without_a_row_keeps_its_own_figure(monkeypatch):
    monkeypatch.delitem(CALIBRATION, "job-stop", raising=False)
    assert calibrated("job-stop", 0.9, "client") == 0.9


def test_a_feed_with_a_row_of_its_own_has_its_own_confidence(monkeypatch):
    rows = {"any": ((0.5, 0.9), (0.9, 0.9)), "trace": ((0.5, 0.7), (0.9, 0.7))}
    monkeypatch.setitem(CALIBRATION, "gc-pause", rows)
    assert calibrated("gc-pause", 0.9, "trace") == 0.7
    assert calibrated("gc-pause", 0.9, "client") == 0.9


def test_no_confidence_is_above_99_percent(monkeypatch):
    monkeypatch.setitem(CALIBRATION, "gc-pause", {"any": ((0.5, 0.998), (0.9, 0.999))})
    assert calibrated("gc-pause", 0.9, "client") == MAX_CONFIDENCE == 0.99


def test_own_confidences_are_not_calibrated(monkeypatch):
    monkeypatch.setitem(CALIBRATION, "gc-pause", {"any": ((0.5, 0.6), (0.9, 0.8))})
    with own_confidences():
        assert calibrated("gc-pause", 0.7, "client") == 0.7
        assert calibrated("gc-pause", 0.99, "client") == 0.99
    assert calibrated("gc-pause", 0.99, "client") == 0.8


@pytest.mark.parametrize("cause", CAUSES)
def test_higher_figure_is_no_less_sure(cause):
    found = [calibrated(cause, figure / 20, "client") for figure in range(20)]
    assert found == sorted(found)
    assert found[-1] <= MAX_CONFIDENCE
