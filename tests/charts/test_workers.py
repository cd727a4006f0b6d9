import numpy as np
import pytest

from app.charts.theme import DARK, LIGHT
from app.charts.workers import MAX_TABLE_ROWS, VALUES, workers
from tests.charts.results import unpacked

NAN = float("nan")


def heatmap_of(slowdown, **parts):
    return workers(slowdown, hosts=None, theme=LIGHT, **parts)["data"][0]


def outline_of(slowdown, hosts=None):
    figure = workers(slowdown, hosts=hosts, theme=LIGHT)
    return figure["layout"]["shapes"], figure["layout"]["annotations"]


@pytest.mark.parametrize("worst", [1.001, 1.4, 9.0])
def test_the_colour_range_never_fits_itself_to_the_values(worst):
    trace = heatmap_of([[1.0, worst]])
    assert (trace["zmin"], trace["zmax"]) == (1.0, 1.5)


def test_dp_ranks_run_along_x_and_stages_down_y():
    figure = workers([[1.0, 1.1], [1.2, 1.3], [1.4, 1.5]], hosts=None, theme=LIGHT)
    assert unpacked(figure["data"][0]["z"]) == [[1.0, 1.2, 1.4], [1.1, 1.3, 1.5]]
    assert figure["layout"]["yaxis"]["range"] == [1.5, -0.5]


def test_the_worst_cell_is_outlined_and_named_with_its_host():
    slowdown = np.ones((32, 8))
    slowdown[3, 1], slowdown[19, 4] = 1.42, 1.05
    shapes, notes = outline_of(slowdown, {(3, 1): "host-017"})
    assert [(s["x0"], s["x1"], s["y0"], s["y1"]) for s in shapes] == [(2.5, 3.5, 0.5, 1.5)]
    assert shapes[0]["line"] == {"color": LIGHT.ink, "width": 2}
    assert notes[0]["text"] == "<b>host-017</b>, 1.42\u00d7"
    assert notes[0]["showarrow"]


@pytest.mark.parametrize(("worst", "is_outlined"), [(1.019, False), (1.02, True)])
def test_a_worker_below_two_percent_is_not_pointed_at(worst, is_outlined):
    shapes, notes = outline_of([[1.0, worst], [1.0, 1.0]])
    assert (len(shapes), len(notes)) == (is_outlined, is_outlined)


def test_nobody_is_to_blame_for_a_stage_that_is_slow_on_all_dp_ranks():
    figure = workers([[1.0, 1.17], [1.0, 1.18]], hosts=None, theme=LIGHT)
    assert figure["layout"]["shapes"] == []
    assert "Most workers of stage 1 are slow" in figure["meta"]["text"]


def test_a_worker_that_was_not_measured_is_a_cross_and_never_the_culprit():
    figure = workers([[1.0, NAN], [1.0, 1.3]], hosts=None, theme=LIGHT)
    assert figure["data"][0]["z"] == [[1.0, 1.0], [None, 1.3]]
    assert (figure["data"][1]["x"], figure["data"][1]["y"]) == ([0], [1])
    assert "dp 1, stage 1" in figure["meta"]["text"]
    assert figure["meta"]["table"]["rows"][-1] == [0, 1, None, "not measured"]


@pytest.mark.parametrize(("dp_size", "gap"), [(16, 3), (32, 2), (128, 1), (512, 0)])
def test_gaps_close_as_cells_get_many(dp_size, gap):
    trace = heatmap_of(np.ones((dp_size, 2)))
    assert trace["xgap"] == gap


@pytest.mark.parametrize(("dp_size", "has_values"), [(16, True), (17, False)])
def test_values_are_written_into_cells_that_have_room(dp_size, has_values):
    figure = workers(np.ones((dp_size, 2)), hosts=None, theme=LIGHT)
    values = [trace for trace in figure["data"] if trace.get("name") == VALUES]
    assert [set(trace["text"]) for trace in values] == [{"1.00\u00d7"}] * has_values


def test_a_marked_cell_of_a_huge_job_is_widened_and_carries_its_colour():
    slowdown = np.ones((1024, 4))
    slowdown[88, 2] = 1.5
    (shape,), _ = outline_of(slowdown)
    assert shape["x1"] - shape["x0"] > 4 * 1024 / 900
    assert shape["fillcolor"] == LIGHT.scale[-1]


def test_a_label_is_never_read_as_markup():
    slowdown = np.ones((32, 1))
    slowdown[0, 0] = 1.3
    _, notes = outline_of(slowdown, {(0, 0): "<a href=x>h</a>"})
    assert notes[0]["text"].startswith("<b>&lt;a href=x&gt;")


def test_the_table_of_a_huge_job_keeps_the_slowest_and_says_so():
    slowdown = np.ones((1024, 1))
    slowdown[1000, 0] = 1.3
    table = workers(slowdown, hosts=None, theme=DARK)["meta"]["table"]
    assert table["rows"][0] == [1000, 0, None, "1.30\u00d7"]
    assert len(table["rows"]) == MAX_TABLE_ROWS
    assert table["caption"] == "The slowest 500 of 1,024 workers."
