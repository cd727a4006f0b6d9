import pytest

from app.charts.base.theme import DARK, LIGHT
from app.charts.job.optypes import optypes
from app.charts.job.stages import stages
from app.result.window_result import OptypeTime, StageCompute
from tests.charts.results import unpacked


def test_the_largest_share_is_on_top_in_its_own_colour():
    figure = optypes({"params-all-gather": 1.1, "forward-compute": 1.3}, theme=DARK)
    bars = figure["data"][0]
    assert bars["customdata"] == ["Forward compute", "Parameter gather"]
    assert bars["text"] == ["75 %", "25 %"]
    assert bars["marker"]["color"] == [DARK.fwd, DARK.xfer]
    assert "sum of all types' slowdowns above 1" in figure["meta"]["text"]


def test_small_shares_share_one_bar_but_have_table_rows():
    slowdown = {"forward-compute": 1.3, "gc": 1.0, "optimizer": 1.0} | {
        f"type-{n}": 1.0 for n in range(4)
    }
    figure = optypes(slowdown, theme=LIGHT)
    assert unpacked(figure["data"][0]["customdata"])[-1] == "3 other types"
    assert len(figure["meta"]["table"]["rows"]) == 7


def test_a_stage_share_above_one_or_below_zero_is_shown_as_it_is_and_explained():
    figure = stages([-0.12, -0.11, 1.22], theme=LIGHT)
    assert figure["data"][0]["text"] == ["\u221212 %", "\u221211 %", "122 %"]
    assert figure["data"][0]["x"] == [-0.12, -0.11, 1.22]
    assert figure["meta"]["note"].startswith("A share above 100 %")
    assert "stage 2, the last stage, alone wins back 122 %" in figure["meta"]["text"]


def test_only_stages_that_win_time_back_are_orange():
    assert stages([-0.1, 0.5], theme=LIGHT)["data"][0]["marker"]["color"] == [
        LIGHT.line2,
        LIGHT.lost,
    ]


def test_a_stage_share_that_was_not_measured_says_so():
    figure = stages([None, None], theme=LIGHT)
    assert figure["data"][0]["text"] == ["not measured", "not measured"]
    assert "note" not in figure["meta"]


COMPUTE = StageCompute(forward=(0.067, 0.14), backward=(0.143, None))


def test_each_stage_has_its_times_beside_its_share():
    forward, backward, *means, shares = stages([0.1, 0.9], theme=LIGHT, compute=COMPUTE)["data"]
    assert forward["text"] == ["67 ms", "140 ms"]  # in the hover text
    assert backward["text"] == ["143 ms", "not measured"]
    assert unpacked(forward["x"]) == [pytest.approx(67), pytest.approx(140)]
    assert shares["text"] == ["10 %", "90 %"]
    assert shares["xaxis"] == "x2"
    # Lines at the means of the stages that have one: 103.5 ms and 143 ms.
    assert {round(unpacked(mean["x"])[0], 6) for mean in means} == {103.5, 143.0}


def test_communication_says_how_much_of_it_is_waiting():
    times = {
        "forward-compute": OptypeTime(recorded=1.2, transfer=None, wait=None),
        "forward-pp-comm": OptypeTime(recorded=0.3, transfer=0.1, wait=0.2),
    }
    slowdown = {"forward-compute": 1.3, "forward-pp-comm": 1.1}
    figure = optypes(slowdown, theme=LIGHT, times=times)
    assert len(figure["data"]) == 1
    (told,) = figure["layout"]["annotations"]
    assert told["text"] == "waits 200 ms a step"
    assert told["hovertext"] == "a step and worker: 100 ms moving data, 200 ms waiting"
    assert told["y"] == pytest.approx(1.24)
    assert figure["meta"]["table"]["rows"][0][-2:] == ["1.2 s", None]
    assert figure["meta"]["table"]["rows"][1][-2:] == ["100 ms", "200 ms"]
