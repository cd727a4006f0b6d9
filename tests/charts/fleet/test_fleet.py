"""Charts and sentences of the fleet, on cases that were worked out by hand."""

import json
import math
from datetime import date, timedelta

import plotly.graph_objects as go
import pytest

from app.charts.base.theme import LIGHT, THEMES
from app.charts.fleet.gpu_hours import FleetDay, fleet_causes, fleet_optypes, fleet_planned
from app.charts.fleet.headline import FleetFacts, LosingJob, fleet_headline
from app.charts.fleet.jobs import JobLoss, fleet_sizes, fleet_waste, quantile
from app.result.brief import FindingBrief
from app.result.causes import CAUSES
from app.result.finding import Culprit
from tests.charts.results import numbers_in, unpacked

HOSTILE = "<b>\u202ejob</b> & 'more'"
JOBS = [JobLoss("well", 8, 0.0, 100.0), JobLoss("slow", 64, 20.0, 100.0),
        JobLoss(HOSTILE, 512, 500.0, 1000.0)]  # fmt: skip
MANY = [JobLoss(f"job-{each}", 2 ** (each % 14), each / 20, 100.0) for each in range(1200)]
DAYS = [
    FleetDay(date(2026, 3, 30) + timedelta(each), 10.0 * each, 1.0 * each) for each in range(30)
]
LOST = {cause: 10.0 + at for at, cause in enumerate(CAUSES)}


def figures():
    for theme in THEMES.values():
        for name, jobs in (("one", JOBS[:1]), ("three", JOBS), ("many", MANY)):
            yield f"waste, {name}, {theme.name}", fleet_waste(jobs, 1.1, theme=theme)
            yield f"sizes, {name}, {theme.name}", fleet_sizes(jobs, 1.1, theme=theme)
        yield f"causes, {theme.name}", fleet_causes(LOST, 100.0, theme=theme)
        yield f"no cause, {theme.name}", fleet_causes({"not-explained": 1.0}, 1.0, theme=theme)
        yield f"optypes, {theme.name}", fleet_optypes({"gc": 1.0, HOSTILE: 0.0}, theme=theme)
        yield f"planned, {theme.name}", fleet_planned(DAYS, theme=theme)
        yield f"one day, {theme.name}", fleet_planned(DAYS[-1:], theme=theme)


FIGURES = dict(figures())
every_figure = pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)


@every_figure
def test_every_figure_is_one_that_plotly_takes_with_a_sentence_and_a_whole_table(figure):
    go.Figure(data=figure["data"], layout=figure["layout"])
    assert all(math.isfinite(number) for number in numbers_in(figure))
    assert "<b>" not in json.dumps([*figure["data"], figure["layout"]]).replace("<br><b>", "")
    assert figure["meta"]["text"].endswith(".")
    table = figure["meta"]["table"]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert len(table["rows"]) <= 100


def test_median_of_wasted_time_splits_the_jobs():
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0.25, 0.5, 0.9)] == [1.0, 2.0, 4.0]
    figure = fleet_waste(JOBS, 1.1, theme=LIGHT)
    assert figure["layout"]["annotations"][0]["text"] == (
        "Dotted: half of the jobs waste 20 % or less"
    )
    assert figure["meta"]["text"] == (
        "Of 3 jobs with figures, half waste 20 % of their GPU time or less, and nine in ten "
        "50 % or less."
    )


def test_jobs_that_straggle_are_named_those_that_lost_most_first():
    _, named = fleet_waste(JOBS, 1.1, theme=LIGHT)["data"]
    names = unpacked(named["customdata"])
    assert names[1] == "slow"
    assert len(names) == 2
    assert len(fleet_waste(JOBS[:1], 1.1, theme=LIGHT)["data"]) == 1


def test_shares_of_causes_by_hand():
    figure = fleet_causes(
        {"slow-worker": 3.0, "gc-pause": 6.0, "not-explained": 2.0}, 10.0, theme=LIGHT
    )
    bars = figure["data"][0]
    assert bars["customdata"] == ["Garbage collection", "Slow worker", "Not explained"]
    assert bars["text"] == ["60 %", "30 %", "20 %"]
    assert bars["marker"]["color"] == [LIGHT.lost, LIGHT.lost, LIGHT.line2]
    assert figure["meta"]["text"].startswith("Garbage collection costs most: 60 % of the 10 GPU")


def test_many_causes_are_drawn_as_seven_and_listed_all():
    figure = fleet_causes(LOST | {"not-explained": 5.0}, 100.0, theme=LIGHT)
    labels = unpacked(figure["data"][0]["customdata"])
    assert len(labels) == 7
    assert labels[-2:] == ["10 other causes", "Not explained"]
    assert len(figure["meta"]["table"]["rows"]) == len(CAUSES) + 1


def test_planned_and_real_hours_by_hand():
    figure = fleet_planned([FleetDay(date(2026, 4, 1), 50.0, 10.0)], theme=LIGHT)
    planned, lost = figure["data"]
    assert (planned["y"], lost["y"]) == ([40.0], [10.0])
    assert figure["meta"]["text"] == (
        "The recorded steps took 50 GPU-hours; without stragglers they would have taken 40, "
        "which is 20 % less."
    )


def brief(cause, culprit):
    return FindingBrief(
        cause=cause,
        cost=0.1,
        confidence=0.9,
        onset_step=None,
        persistence="chronic",
        sentence="It costs.",
        onset_at=None,
        ended_at=None,
        culprits=(culprit,),
        num_culprits=1,
    )


SLOW = LosingJob("slow", 60.0, finding=brief("slow-worker", Culprit(3, 1, "host-017")))
LAST = LosingJob("late", 60.0, num_stages=4, finding=brief("stage-imbalance", Culprit(stage=3)))
DEAD = LosingJob("dead", 30.0, is_stalled=True, silent_s=400.0)


@pytest.mark.parametrize(
    ("fleet", "sentence", "sub"),
    [
        (FleetFacts(0, 0, [], 1.1), "No job has registered yet.", ""),
        (FleetFacts(2, 1, [], 1.1), "No job is losing time.",
         "Every job with figures runs below 1.10\u00d7 of its ideal."),
        (FleetFacts(9, 5, [SLOW], 1.1),
         "1 of 9 jobs is losing time. It costs about 60 GPU-hours a day.",
         "slow loses most: slow worker, host-017 (dp 3, stage 1)."),
        (FleetFacts(9, 5, [LAST], 1.1),
         "1 of 9 jobs is losing time. It costs about 60 GPU-hours a day.",
         "late loses most: long last stage, stage 3."),
        (FleetFacts(9, 5, [SLOW, DEAD], 1.1),
         "2 of 9 jobs are losing time, 1 of them stalled. Together they cost about 90 GPU-hours a "
         "day.",
         "slow loses most: slow worker, host-017 (dp 3, stage 1); it alone is more than half of "
         "the loss."),
        (FleetFacts(9, 5, [DEAD], 1.1, num_silent=2),
         "1 of 9 jobs is stalled. It costs about 30 GPU-hours a day.",
         "dead has sent nothing for 6 minutes. "
         "2 jobs have silent ranks: their loss is not measured."),
        (FleetFacts(2, 1, [], 1.1, num_silent=1), "No job is known to lose time.",
         "1 job has silent ranks: its loss is not measured. "
         "Every job with figures runs below 1.10\u00d7 of its ideal."),
        (FleetFacts(1, 1, [LosingJob("odd", 3.0)], 1.1),
         "1 of 1 job is losing time. It costs about 3 GPU-hours a day.",
         "odd loses most, and Paceline cannot say where."),
    ],
)  # fmt: skip
def test_the_fleets_sentence(fleet, sentence, sub):
    assert fleet_headline(fleet) == (sentence, sub)
