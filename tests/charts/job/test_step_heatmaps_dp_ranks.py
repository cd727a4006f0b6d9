import numpy as np

from app.charts.base.step_axis import StepAxis
from app.charts.base.theme import LIGHT
from app.charts.job.step_heatmaps import MAX_DP_ROWS, dp_steps, slowest_share
from app.charts.job.step_times import LEFT_PX, RIGHT_PX, StepPoint, step_times
from tests.charts.results import unpacked

#              dp 0, 1, 2
SLOWDOWN = [[1.3, 1.0, 1.0], [1.0, 1.4, 1.0], [1.2, 1.1, 1.0], [1.0, 1.0, 1.0]]
STEPS = [10, 11, 12, 13]


def test_each_rank_is_the_slowest_in_its_share_of_the_steps():
    assert slowest_share(np.array(SLOWDOWN)).tolist() == [0.75, 0.25, 0.0]


def test_a_step_without_figures_has_no_slowest_rank():
    assert slowest_share(np.array([[1.3, 1.0], [np.nan, np.nan]])).tolist() == [1.0, 0.0]
    assert np.isnan(slowest_share(np.array([[np.nan, np.nan]]))).all()


def test_dp_ranks_are_rows_and_steps_are_columns():
    trace = dp_steps(STEPS, SLOWDOWN, theme=LIGHT)["data"][0]
    assert unpacked(trace["z"]) == np.array(SLOWDOWN).T.tolist()


def test_row_of_several_ranks_shows_the_slowest():
    slowdown = np.ones((1, 1024))
    slowdown[0, 40] = 1.4
    figure = dp_steps([1], slowdown, theme=LIGHT)
    rows = unpacked(figure["data"][0]["z"])
    assert len(rows) == MAX_DP_ROWS
    assert rows[2] == [1.4]
    assert unpacked(figure["data"][0]["customdata"])[2] == ["the slowest of dp 32 to 47, step 1"]
    assert figure["meta"]["places"]["y"]["items"][2] == [*range(32, 48)]


def test_dp_heatmap_shares_the_axis_of_step_times():
    points = [StepPoint(step, 1.0, 1.0, 1.0) for step in (1, *STEPS)]
    above = step_times(points, theme=LIGHT, has_bars=True)["layout"]
    under = dp_steps(STEPS, SLOWDOWN, theme=LIGHT, at=StepAxis.over([1, *STEPS]))
    assert above["margin"]["l"] == under["layout"]["margin"]["l"] == LEFT_PX
    assert above["margin"]["r"] == under["layout"]["margin"]["r"] == RIGHT_PX
    assert above["xaxis"]["range"] == under["layout"]["xaxis"]["range"]
    # Step 1 has no figures by dp rank here.
    assert [row[0] for row in unpacked(under["data"][0]["z"])] == [None, None, None]
