import numpy as np
import pytest
from hypothesis import given

from app.engine.grid import lay_out
from app.engine.op_times import LaunchDelay, launch_delay
from app.engine.report import analyse
from app.engine.what_if import replayer
from app.trace.window import Window
from tests.example_counts import many
from tests.job_strategies import windows
from tests.results import report_as_json
from tests.window_factory import Row, window


def delays(a_window: Window) -> LaunchDelay:
    grid = lay_out(a_window)
    return launch_delay(grid, replayer(grid).graph)


def test_launch_delay_runs_from_the_end_of_the_last_predecessor():
    rows = [Row("forward-compute", 0, 1), Row("backward-compute", 1.5, 1), Row("optimizer", 4.5, 1)]
    found = delays(window(rows))
    assert found.by_optype == {"forward-compute": 0.0, "backward-compute": 0.5, "optimizer": 2.0}
    assert found.by_worker.tolist() == [[2.5]]


def test_the_first_operations_are_measured_from_the_steps_earliest_start():
    rows = [Row("forward-compute", 5.0 + dp_rank, 1, dp_rank=dp_rank) for dp_rank in range(2)]
    assert delays(window(rows, dp_size=2)).by_worker.tolist() == [[0.0], [1.0]]


def test_an_operation_that_starts_early_has_no_delay():
    rows = [Row("forward-compute", 0, 2), Row("backward-compute", 1, 2)]
    assert delays(window(rows)).by_worker.tolist() == [[0.0]]


def test_delays_are_means_over_steps():
    rows = [
        row
        for step, gap_s in enumerate([1.0, 3.0])
        for row in (
            Row("forward-compute", 100, 1, step=step),
            Row("optimizer", 101 + gap_s, 1, step=step),
        )
    ]
    assert delays(window(rows)).by_optype["optimizer"] == 2.0


@many(60)
@given(windows())
def test_delays_by_type_and_by_worker_have_the_same_sum(a_window):
    found = delays(a_window)
    assert sum(found.by_optype.values()) == pytest.approx(found.by_worker.mean(), rel=1e-9)
    assert (np.array(list(found.by_optype.values())) >= 0).all()


def test_the_recorded_job_is_slower_than_simulated_by_its_launch_delays():
    rows = [Row("forward-compute", 0, 2), Row("optimizer", 3, 1)]
    report = analyse(window(rows))
    assert (report.recorded_s.tolist(), report.simulated_s.tolist()) == ([4.0], [3.0])
    assert report_as_json(report)["launch_slowdown"] == pytest.approx(4 / 3)
    assert report.discrepancy == 0.25
    assert report.is_low_fidelity
