import numpy as np
import pytest

from app.charts.base.theme import LIGHT
from app.charts.job.window_charts import culprit_workers, silent_workers
from app.charts.worker.heatmap import VALUES_TRACE, worker_heatmap
from app.result.finding import Culprit
from tests.charts.results import unpacked
from tests.results import finding, window_result

NAN = float("nan")


def heatmap_of(slowdown, **parts):
    return worker_heatmap(slowdown, hosts=None, theme=LIGHT, **parts)["data"][0]


def outline_of(slowdown, hosts=None):
    figure = worker_heatmap(slowdown, hosts=hosts, theme=LIGHT)
    return figure["layout"]["shapes"], figure["layout"]["annotations"]


@pytest.mark.parametrize("worst", [1.001, 1.4, 9.0])
def test_the_colour_range_never_fits_itself_to_the_values(worst):
    trace = heatmap_of([[1.0, worst]])
    assert (trace["zmin"], trace["zmax"]) == (1.0, 1.5)


def test_dp_ranks_run_along_x_and_stages_down_y():
    figure = worker_heatmap([[1.0, 1.1], [1.2, 1.3], [1.4, 1.5]], hosts=None, theme=LIGHT)
    assert unpacked(figure["data"][0]["z"]) == [[1.0, 1.2, 1.4], [1.1, 1.3, 1.5]]
    assert figure["layout"]["yaxis"]["range"] == [1.5, -0.5]


def test_slowest_cell_is_outlined_and_named_with_its_host():
    slowdown = np.ones((32, 8))
    slowdown[3, 1], slowdown[19, 4] = 1.42, 1.05
    shapes, notes = outline_of(slowdown, {(3, 1): "host-017"})
    assert [(s["x0"], s["x1"], s["y0"], s["y1"]) for s in shapes] == [(2.5, 3.5, 0.5, 1.5)]
    assert shapes[0]["line"] == {"color": LIGHT.ink, "width": 2}
    assert notes[0]["text"] == "<b>host-017</b>, 1.42\u00d7"
    assert notes[0]["showarrow"]


@pytest.mark.parametrize(("worst", "is_outlined"), [(1.019, False), (1.02, True)])
def test_worker_below_two_percent_is_not_outlined(worst, is_outlined):
    shapes, notes = outline_of([[1.0, worst], [1.0, 1.0]])
    assert (len(shapes), len(notes)) == (is_outlined, is_outlined)


def test_unmeasured_worker_is_a_cross_and_no_culprit():
    figure = worker_heatmap([[1.0, NAN], [1.0, 1.3]], hosts=None, theme=LIGHT)
    assert figure["data"][0]["z"] == [[1.0, 1.0], [None, 1.3]]
    assert (figure["data"][1]["x"], figure["data"][1]["y"]) == ([0], [1])
    assert "dp 1, stage 1" in figure["meta"]["text"]
    assert figure["meta"]["table"]["rows"][-1] == [0, 1, None, "not measured"]


def test_a_label_is_never_read_as_markup():
    slowdown = np.ones((32, 1))
    slowdown[0, 0] = 1.3
    _, notes = outline_of(slowdown, {(0, 0): "<a href=x>h</a>"})
    assert notes[0]["text"].startswith("<b>&lt;a href=x&gt;")


HOSTS = {(0, 0): "host-c", (1, 0): "host-a", (2, 0): "host-b"}


def test_columns_stand_in_the_order_of_their_hosts_with_their_names():
    figure = worker_heatmap([[1.0], [1.1], [1.2]], hosts=HOSTS, theme=LIGHT, sort="host")
    assert unpacked(figure["data"][0]["z"]) == [[1.1, 1.2, 1.0]]
    assert figure["layout"]["xaxis"]["ticktext"] == ["host-a", "host-b", "host-c"]
    assert figure["meta"]["places"]["x"]["items"] == [1, 2, 0]
    assert unpacked(figure["data"][0]["customdata"])[0][0] == "dp 1, stage 0, host-a"


def test_the_slowest_column_comes_first_when_asked_for():
    slowdown = [[1.0, 1.0], [1.3, 1.0], [1.0, 1.4], [NAN, NAN]]
    figure = worker_heatmap(slowdown, hosts=None, theme=LIGHT, sort="slowdown")
    assert figure["meta"]["places"]["x"]["items"] == [2, 1, 0, 3]
    [mark] = figure["layout"]["shapes"]
    assert (mark["x0"], mark["y0"]) == (-0.5, 0.5)


def test_cell_of_several_workers_shows_the_slowest():
    slowdown = np.ones((4096, 100))
    slowdown[8, 3], slowdown[9, 2] = 1.3, 1.2
    figure = worker_heatmap(slowdown, hosts=None, theme=LIGHT)
    cells = np.array(unpacked(figure["data"][0]["z"]))
    assert cells.shape == (50, 1024)
    assert cells[1, 2] == 1.3
    assert (
        unpacked(figure["data"][0]["customdata"])[1][2] == "the slowest of dp 8 to 11, stage 2 to 3"
    )
    assert figure["meta"]["places"]["y"]["items"][1] == [2, 3]


def test_silent_worker_is_crossed_out():
    figure = worker_heatmap([[1.0, 1.0], [1.0, 1.2]], hosts=None, theme=LIGHT, silent=[(1, 0)])
    assert unpacked(figure["data"][0]["z"])[0][1] == 1.0
    crosses = figure["data"][1]
    assert (crosses["x"], crosses["y"]) == ([1], [0])
    assert crosses["customdata"] == ["dp 1, stage 0<br><b>silent</b>"]
    values = next(each for each in figure["data"] if each.get("name") == VALUES_TRACE)
    assert len(values["text"]) == 3  # none under the cross


def test_silent_workers_come_from_the_findings():
    silent = finding("silent-worker", culprits=[Culprit(1, 0), Culprit(host="a")])
    slow = finding(culprits=[Culprit(0, 0)])
    seen = window_result(job={"dp_size": 2, "pp_size": 1}, findings=[slow, silent])
    assert silent_workers(seen) == [(1, 0)]
    assert silent_workers(window_result(findings=None)) == []


def test_workers_named_by_findings_are_outlined():
    slowdown = [[1.0, 1.1], [1.3, 1.0], [1.2, 1.0]]
    hosts = {(1, 0): "host-a", (2, 0): "host-b"}
    figure = worker_heatmap(slowdown, hosts=hosts, theme=LIGHT, named=[(2, 0), (1, 0)])
    assert [each["x0"] for each in figure["layout"]["shapes"]] == [0.5, 1.5]
    [note] = figure["layout"]["annotations"]
    assert note["text"] == "<b>host-a</b>, 1.30\u00d7 and 1 more"


def test_all_workers_of_a_culprit_host_are_culprits():
    hosts = {(0, 0): "host-a", (0, 1): "host-a", (1, 0): "host-b"}
    blamed = finding(culprits=[Culprit(host="host-a", ranks=(0, 1), num_workers=2)])
    stage = finding("stage-imbalance", culprits=[Culprit(stage=1)])
    silent = finding("silent-worker", culprits=[Culprit(1, 1)])
    seen = window_result(findings=[blamed, stage, silent])
    assert culprit_workers(seen, hosts) == [(0, 0), (0, 1)]
    assert culprit_workers(seen, None) == []
    assert culprit_workers(window_result(findings=None), hosts) is None


def alike(slowdown, **parts):
    """What stands in place of a grid whose values are all the same; None where it is shown."""
    return worker_heatmap(slowdown, hosts=None, theme=LIGHT, **parts)["meta"].get("alike")


def test_grid_of_equal_values_has_a_sentence_in_its_place():
    assert alike([[1.0, 1.004], [0.997, 1.0]]) == (
        "All 4 workers are alike: none alone would slow the job by more than 1 %."
    )


@pytest.mark.parametrize(
    ("slowdown", "parts"),
    [
        ([[1.0, 1.02], [1.0, 1.0]], {}),
        ([[1.0, NAN], [1.0, 1.0]], {}),
        ([[1.0]], {}),
        ([[1.0, 1.0]], {"silent": [(0, 1)]}),
        ([[1.0, 1.0]], {"named": [(0, 1)]}),
    ],
)
def test_grid_with_something_to_see_is_shown(slowdown, parts):
    assert alike(slowdown, **parts) is None
