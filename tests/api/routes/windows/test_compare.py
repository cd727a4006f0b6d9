"""Comparison of two windows: figures equal those of each window's own result."""

import pytest

from tests.api import recorded
from tests.api.server import window_record

pytestmark = pytest.mark.anyio

PATH = "/api/v1/compare"


async def compare(api, a, b):
    return await api.client.get(PATH, params={"a": a, "b": b})


@pytest.fixture
async def job(api):
    await api.register()
    api.save_window(window_record(0, slowdown=1.25))
    api.save_window(window_record(2, slowdown=None))
    recorded.save(api, recorded.window(100), recorded.window(102))
    return api


async def test_each_side_has_the_figures_of_its_window(job):
    found = (await compare(job, "llm-70b:1-0", "llm-70b:1-100")).json()
    for side, window in (("a", "1-0"), ("b", "1-100")):
        result = (await job.client.get(f"/api/v1/jobs/llm-70b/windows/{window}")).json()
        shown = found[side]
        for name in ("slowdown", "gpu_time_wasted", "m_w", "m_s"):
            assert shown[name] == pytest.approx(result[name])
        recorded_s = result["step_time_s"]["recorded"]
        assert shown["recorded_s"] == pytest.approx(sum(recorded_s) / len(recorded_s))
        assert shown["lost_gpu_hours_per_day"] == pytest.approx(24 * 4 * result["gpu_time_wasted"])
        worst = max(max(stages) for stages in result["worker_slowdown"])
        assert shown["worst"]["slowdown"] == pytest.approx(worst)
    assert found["change_s"] == pytest.approx(
        found["b"]["recorded_s"] / found["a"]["recorded_s"] - 1
    )


async def test_sides_can_be_the_latest_window_and_a_range(job):
    found = (await compare(job, "llm-70b:1-100..1-102", "llm-70b:latest")).json()
    assert (found["a"]["window"], found["a"]["num_steps"]) == ("1-100..1-102", 4)
    assert (found["a"]["first_step"], found["a"]["last_step"]) == (100, 103)
    assert found["b"]["window"] == "1-102"


async def test_a_side_without_figures_says_why(job):
    found = (await compare(job, "llm-70b:1-100", "llm-70b:1-2")).json()
    assert found["sentence"] == "B has no figures to compare."
    assert found["b"]["slowdown"] is None
    assert found["b"]["not_measured"] in found["sub"]
    query = {"a": "llm-70b:1-100", "b": "llm-70b:1-2"}
    answer = await job.client.get(f"{PATH}/charts/stages", params=query)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_measured")


@pytest.mark.parametrize("chart", ["steps", "optypes", "stages"])
async def test_every_chart_is_a_figure(job, chart):
    query = {"a": "llm-70b:1-0", "b": "llm-70b:1-100", "theme": "dark"}
    answer = await job.client.get(f"{PATH}/charts/{chart}", params=query)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"data", "layout", "meta"}


@pytest.mark.parametrize("side", ["", "llm-70b", "llm-70b:x", "a b:latest", ":latest", "a:1-0:1-0"])
async def test_a_side_is_a_job_and_a_window(job, side):
    answer = await compare(job, "llm-70b:latest", side)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
