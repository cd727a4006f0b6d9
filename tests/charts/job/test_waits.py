"""The heatmap of waits: who has a row, in which order, and what colours and words say."""

import numpy as np
import pytest
from msgspec.structs import replace

from app.charts.base.step_axis import StepAxis
from app.charts.base.theme import LIGHT
from app.charts.job.waits import (
    MAX_WAIT_ROWS,
    has_material_waits,
    largest_wait_share,
    remarks,
    waited_for,
)
from app.result.arrivals import ArrivalsByStep
from app.result.finding import Culprit
from app.result.window_result import Unexplained
from tests.arrival_results import block
from tests.charts.results import unpacked
from tests.results import finding, window_result


def result(waited_for_s=(0.0, 0.1, 0.5, 0.0), culprits=(2,), arrivals=(), **parts):
    """Two steps; `arrivals` and `parts` replace what is usual."""
    made = block(waited_for_s, num_steps=2, step_s=2.0, culprits=culprits) | dict(arrivals)
    known = {
        "steps": [10, 11],
        "step_time_s": {"recorded": [2.0, 2.0]},
        "findings": [],
        "arrivals": made,
    }
    return window_result(**known | parts)


def rows_of(figure):
    return [label.split(" <")[0] for label in figure["layout"]["yaxis"]["ticktext"]]


def test_the_ranks_most_waited_for_come_first_in_milliseconds():
    figure = waited_for(result(), theme=LIGHT)
    assert rows_of(figure) == ["rank 2", "rank 1", "rank 0", "rank 3"]
    cells = unpacked(figure["data"][0]["z"])
    assert cells == [[500.0, 500.0], [100.0, 100.0], [0.0, 0.0], [0.0, 0.0]]


def test_colours_are_of_the_windows_mean_step_on_a_longer_axis_too():
    of_window = result()
    waits = of_window.arrivals.per_step.waited_for_s
    longer = replace(
        of_window,
        steps=(8, 9, 10, 11),
        arrivals=replace(of_window.arrivals, per_step=ArrivalsByStep(waited_for_s=waits * 2)),
    )
    full = [waited_for(each, theme=LIGHT)["data"][0]["zmax"] for each in (of_window, longer)]
    assert full == [1000.0, 1000.0]  # half of 2 s, in milliseconds


def test_culprits_come_first_and_are_outlined():
    figure = waited_for(result((0.3, 0.0, 0.2), culprits=(2,)), theme=LIGHT)
    assert rows_of(figure)[0] == "rank 2"
    [outline] = [each for each in figure["layout"]["shapes"] if each["type"] == "rect"]
    assert (outline["y0"], outline["y1"]) == (-0.5, 0.5)
    assert outline["line"] == {"color": LIGHT.ink, "width": 2}


def test_rank_that_is_late_by_itself_comes_before_those_that_it_held_up():
    # Rank 1 is waited for longest, and 450 ms of that it waited itself; rank 3 is no suspect.
    own = {"own_delay_s": [None, 0.05, 0.4, None]}
    figure = waited_for(result((0.0, 0.5, 0.4, 0.1), culprits=(), arrivals=own), theme=LIGHT)
    assert rows_of(figure) == ["rank 2", "rank 1", "rank 3", "rank 0"]
    heat, hatched = figure["data"]
    assert hatched["y"] == [1, 2]
    cells = unpacked(heat["z"])
    assert [cells[0][0], cells[1][0]] == pytest.approx([400.0, 50.0]), "coloured by own delay"
    assert [row[0] for row in unpacked(heat["text"])] == pytest.approx([400.0, 500.0, 100.0, 0.0])
    assert figure["meta"]["text"].startswith("The others waited for host-2, rank 2")
    assert "Hatched: 2 ranks are late because others held them up" in figure["meta"]["note"]


def test_rank_that_nobody_waited_for_is_never_the_late_one():
    own = {"own_delay_s": [0.0, 0.1, 0.1, None]}
    held_up = result((0.0, 0.9, 0.8, 0.0), culprits=(), arrivals=own)
    assert rows_of(waited_for(held_up, theme=LIGHT))[:2] == ["rank 1", "rank 2"]
    [said] = remarks(held_up)
    assert said == "The other ranks waited for host-1, rank 1 (dp 1, stage 0) for 45 % of the step."


def test_nobody_inherits_where_no_own_delay_is_known():
    unknown = {"own_delay_s": [None] * 4}
    figure = waited_for(result(culprits=(), arrivals=unknown), theme=LIGHT)
    assert len(figure["data"]) == 1
    assert rows_of(figure)[0] == "rank 2"


def test_ranks_named_by_findings_are_culprits():
    found = finding(culprits=[Culprit(1, 0, rank=1)])
    figure = waited_for(result(culprits=(), findings=[found]), theme=LIGHT)
    assert rows_of(figure)[0] == "rank 1"
    by_stage = finding("stage-imbalance", culprits=[Culprit(stage=0)])
    figure = waited_for(result(culprits=(), findings=[by_stage]), theme=LIGHT)
    assert figure["layout"]["shapes"] == []


def test_sentence_of_waits_names_rank_time_and_share():
    told = waited_for(result(), theme=LIGHT)["meta"]
    assert told["text"] == (
        "The others waited for host-2, rank 2 (dp 2, stage 0) for 500 ms a step, 25 % of it."
    )
    assert told["table"]["columns"][-2:] == ["step 10", "step 11"]
    assert told["table"]["rows"][0][:7] == [
        2, "dp 2, stage 0", "host-2", "500 ms", "25 %", "500 ms", "100 %"
    ]  # fmt: skip
    assert told["places"]["y"] == {"what": "worker", "items": [[2, 0], [1, 0], [0, 0], [3, 0]]}
    several = waited_for(result((0.3, 0.4, 0.2), culprits=(0, 1, 2)), theme=LIGHT)["meta"]["text"]
    assert several.endswith("20 % of it, and for 2 more ranks that are to blame.")
    nobody = waited_for(result((0.0, 0.0), culprits=()), theme=LIGHT)["meta"]["text"]
    assert nobody == "No rank was waited for in these steps."


def test_thousands_of_ranks_are_cut_to_the_most_waited_for_with_a_note():
    known = [0.5] * 256
    known[7] = 0.9
    many = result(tuple(known), culprits=(7,), arrivals={"num_ranks": 16_384})
    figure = waited_for(many, theme=LIGHT)
    assert len(rows_of(figure)) == MAX_WAIT_ROWS
    assert rows_of(figure)[0] == "rank 7"
    told = "64 of 16,384 ranks: the longest own delays, then the longest waits."
    assert figure["meta"]["note"] == told
    assert figure["layout"]["height"] < 900


def test_the_gpu_is_in_the_label_and_a_name_cannot_be_markup():
    named = {"local_rank": [None, None, 5, None], "host": ["h", "h", "<b>h", "h"]}
    label = waited_for(result(arrivals=named), theme=LIGHT)["layout"]["yaxis"]["ticktext"][0]
    assert "&lt;b&gt;h" in label
    assert "GPU 5" in label


def test_steps_without_figures_are_empty_on_the_axis_of_the_chart_above():
    figure = waited_for(result(), theme=LIGHT, at=StepAxis.over([8, 9, 10, 11]))
    cells = unpacked(figure["data"][0]["z"])
    assert cells[0] == [None, None, 500.0, 500.0]
    unknown = {"waited_for_s": [[0.0, 0.1, None, 0.0], [0.0] * 4]}
    figure = waited_for(result(arrivals={"per_step": unknown}), theme=LIGHT)
    assert unpacked(figure["data"][0]["z"])[0] == [None, 0.0]
    assert "not measured" in figure["meta"]["table"]["rows"][0]


@pytest.mark.parametrize(("most_s", "is_worth_it"), [(0.1, False), (0.11, True)])
def test_waits_are_shown_from_five_percent_of_the_step(most_s, is_worth_it):
    assert has_material_waits(result((0.0, most_s), culprits=())) == is_worth_it
    assert largest_wait_share(result((0.0, most_s), culprits=())) == pytest.approx(most_s / 2)
    by_arrivals = finding("late-host", evidence={"arrivals": {"rank": 1}})
    assert has_material_waits(result((0.0, most_s), culprits=(), findings=[by_arrivals]))
    assert not has_material_waits(window_result())


LATE = "The other ranks waited for host-2, rank 2 (dp 2, stage 0) for 25 % of the step."
NAMED_OR_NOT = [
    ({"rank": 2, "dp_rank": 2, "stage": 0, "local_rank": 5}, []),
    ({"dp_rank": 2, "stage": 0}, []),
    ({"dp_rank": 2}, []),
    ({"host": "host-2"}, []),
    ({"rank": 1, "dp_rank": 1, "stage": 0, "host": "host-2"}, [LATE]),
    ({"rank": 7, "dp_rank": 2, "stage": 0, "local_rank": 7}, [LATE]),
    ({"host": "host-1"}, [LATE]),
    ({"stage": 1}, [LATE]),
]


@pytest.mark.parametrize(("culprit", "said"), NAMED_OR_NOT)
def test_late_rank_is_remarked_unless_a_finding_covers_it(culprit, said):
    found = [finding("gc-pause", culprits=[culprit])]
    unexplained = "10 % of the step is waiting that no cause explains."
    assert remarks(result(findings=found, unexplained_share=0.1)) == [*said, unexplained]
    assert remarks(result(findings=found)) == []
    assert remarks(result()) == [LATE]


def test_unknown_coverage_and_shares_give_no_remark():
    calm = result((0.0, 0.0), culprits=(), unexplained_share=None, coverage=None)
    assert remarks(calm) == []
    assert np.isfinite(largest_wait_share(calm))


def test_loss_without_a_cause_is_remarked_unless_waiting_says_it():
    sentence = "6.5 % of the step time is not explained by any known cause"
    calm = {"culprits": (), "unexplained": unexplained(0.065, sentence)}
    assert remarks(result((0.0, 0.0), **calm)) == [f"{sentence}."]
    waiting = remarks(result((0.0, 0.0), unexplained_share=0.1, **calm))
    assert waiting == ["10 % of the step is waiting that no cause explains."]
    small = calm | {"unexplained": unexplained(0.02, None)}
    assert remarks(result((0.0, 0.0), **small)) == []


def unexplained(share, sentence):
    return Unexplained(
        share=share,
        share_of_loss=None,
        optype=None,
        share_in_optype=None,
        stage=None,
        share_in_stage=None,
        late_launch_share=0.0,
        stop_share=0.0,
        stop_steps=(),
        sentence=sentence,
    )
