"""Ranges of windows: joined figures and charts, and results of selected steps."""

import dataclasses

import numpy as np
import pytest

from app.store import joint_windows
from app.store import windows as stored_windows
from app.store.joint_windows import ARRAYS_PER_RANK, ARRAYS_PER_WORKER, thinned_windows
from tests import window_factory
from tests.api import recorded
from tests.api.server import window_record
from tests.engine.questions.jobs import two_stages

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b"
CHARTS = ("workers", "optypes", "stages", "worker-steps", "dp-steps", "lengths")


def a_window(first_step, factor=1.0, **about):
    """Two steps in which the optimizer of dp 1, stage 1 takes `factor` times as long."""
    rows = [
        row.on(duration_s=row.duration_s * factor)
        if (row.optype, row.dp_rank, row.stage) == ("optimizer", 1, 1)
        else row
        for step in (first_step, first_step + 1)
        for row in two_stages(2, step=step)
    ]
    return dataclasses.replace(window_factory.window(rows, dp_size=2, pp_size=2), **about)


async def given(api, *made):
    await api.register()
    recorded.save(api, *made)


async def got(api, path, **query):
    answer = await api.client.get(f"{PATH}{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_range_joins_the_results_of_its_windows(api):
    await given(api, a_window(0), a_window(2, 20.0), a_window(4, 12.0))
    found = await got(api, "/windows/1-0..1-2")
    parts = [await got(api, f"/windows/1-{first}") for first in (0, 2)]
    times = [each["step_time_s"] for each in parts]
    total = {name: sum(sum(each[name]) for each in times) for name in times[0]}
    assert found["slowdown"] == pytest.approx(total["simulated"] / total["ideal"], rel=1e-12)
    assert found["steps"] == [0, 1, 2, 3]
    assert found["window"]["id"] == "1-0..1-2"
    assert found["window"]["windows"] == ["1-0", "1-2"]
    assert found["window"]["left_out"] == []
    workers = await got(api, "/windows/1-0..1-2/workers")
    assert workers["worker_slowdown"] == found["worker_slowdown"]
    weights = [sum(each["ideal"]) for each in times]
    expected = np.average([each["worker_slowdown"] for each in parts], axis=0, weights=weights)
    np.testing.assert_allclose(found["worker_slowdown"], expected, rtol=1e-12)


async def test_a_range_of_one_window_is_that_window(api):
    await given(api, a_window(0, 16.0))
    one, range_ = await got(api, "/windows/1-0"), await got(api, "/windows/1-0..1-0")
    for name in ("slowdown", "m_s", "m_w", "gpu_hours_lost", "stage_share", "optype_slowdown"):
        assert range_[name] == pytest.approx(one[name])


@pytest.mark.parametrize("chart", CHARTS)
async def test_every_chart_can_be_drawn_of_a_range_and_of_some_steps(api, chart):
    await given(api, a_window(0), a_window(2, 20.0))
    for query in ({"window": "1-0..1-2"}, {"window": "1-2", "steps": "3"}):
        window = query.pop("window")
        answer = await api.client.get(f"{PATH}/windows/{window}/charts/{chart}", params=query)
        if chart == "lengths" and query:
            # Two micro-batches are too few to compare.
            assert answer.json()["code"] == "not_measured"
        else:
            assert answer.json()["data"], answer.text


async def test_charts_over_time_show_a_range_with_context(api):
    await api.register()
    for first in range(0, 220, 2):
        api.save_window(window_record(first))
    above = await got(api, "/charts/steps", window="1-4..1-6")
    under = await got(api, "/windows/1-4..1-6/charts/worker-steps")
    beside = await got(api, "/windows/1-4..1-6/charts/dp-steps")
    # Four steps and as many around them as make two hundred, of which only four are before.
    for figure in (above, under, beside):
        assert figure["meta"]["places"]["x"]["items"] == [*range(106)]
        assert figure["layout"]["xaxis"]["range"] == above["layout"]["xaxis"]["range"]
    newest = await got(api, "/charts/steps", window="latest")
    assert newest["meta"]["places"]["x"]["items"] == [*range(20, 220)]
    assert await got(api, "/charts/steps", window="1-200..1-210") == newest


async def test_result_without_arrays_is_independent_of_the_job_size(api):
    await given(api, a_window(0))
    whole, short = await got(api, "/windows/1-0"), await got(api, "/windows/1-0", arrays=False)
    left_out = {"worker_slowdown", "worker_slowdown_estimate", "dp_rank_slowdown"}
    assert set(whole) - set(short) == left_out
    assert set(short["launch_delay"]) == {"by_optype"}
    assert {k: v for k, v in whole.items() if k in short and k != "launch_delay"} == {
        k: v for k, v in short.items() if k != "launch_delay"
    }


FIRSTS = range(0, 10, 2)


async def given_too_many(api, monkeypatch):
    """Five windows, each slower than the one before, of which three are read."""
    await given(api, *(a_window(first, 4.0 + 4 * first) for first in FIRSTS))
    monkeypatch.setattr(joint_windows, "MAX_RANGE_WINDOWS", 3)


async def test_left_out_windows_are_named_and_counted(api, monkeypatch):
    await given_too_many(api, monkeypatch)
    monkeypatch.setattr(joint_windows, "MAX_LEFT_OUT_NAMED", 1)
    about = (await got(api, "/windows/1-0..1-8"))["window"]
    assert about["windows"] == ["1-0", "1-4", "1-8"]
    assert (about["left_out"], about["num_left_out"]) == (["1-2"], 2)


async def test_loss_is_unknown_if_steps_were_deleted(api, monkeypatch):
    await given_too_many(api, monkeypatch)
    monkeypatch.setattr(stored_windows, "gpu_s_lost", lambda *_, **__: None)
    assert (await got(api, "/windows/1-0..1-8"))["gpu_hours_lost"] is None


async def test_fewer_windows_are_read_for_large_jobs(api, monkeypatch):
    await given(api, *(a_window(first) for first in FIRSTS))
    # Four workers with all of their arrays: three windows.
    monkeypatch.setattr(
        joint_windows, "MAX_RANGE_NUMBERS", 4 * (ARRAYS_PER_WORKER + ARRAYS_PER_RANK) * 3
    )
    assert (await got(api, "/windows/1-0..1-8"))["window"]["num_left_out"] == 2
    # With figures of two steps, too, these are two.
    by_step = await got(api, "/windows/1-0..1-8", per_step=True)
    assert by_step["window"]["num_left_out"] == 3


def test_thinning_keeps_both_ends_and_spreads_evenly():
    firsts = [*range(0, 100, 2)]
    assert thinned_windows(firsts, 5) == [0, 24, 48, 74, 98]
    assert thinned_windows(firsts, 50) == firsts


async def test_a_new_revision_is_never_shown_as_the_old_one(api):
    await given(api, a_window(0))
    before = await got(api, "/windows/1-0..1-0")
    recorded.save(api, a_window(0, 20.0, revision=2))
    after = await got(api, "/windows/1-0..1-0")
    assert after["slowdown"] > before["slowdown"]
    assert (await got(api, "/windows/1-0"))["slowdown"] == pytest.approx(after["slowdown"])
