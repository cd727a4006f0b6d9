import pytest
from msgspec.structs import replace

from app.api.routes.windows import charts as module
from app.api.routes.windows.charts import MAX_CELLS, shown_steps, with_steps
from app.store import windows
from tests.api.server import KEY, window_record

pytestmark = pytest.mark.anyio


def by_step(result):
    return result.as_json()["per_step"]


async def test_newest_steps_of_a_large_job_are_joined(api):
    await api.register()
    for first_step in (0, 2, 4, 6):
        api.save_window(window_record(first_step))
    with api.store.read() as conn:
        stored = windows.get(conn, KEY, "1-6")
        result = replace(stored, job=replace(stored.job, dp_size=MAX_CELLS // 3, pp_size=1))
        shown = shown_steps(conn, KEY, 1, None)
        joined = with_steps(conn, KEY, result, shown, "worker_slowdown")
    assert joined.steps == (5, 6, 7)
    assert by_step(joined)["worker_slowdown"] == [[[1.0, 1.0], [1.0, 1.25]]] * 3


async def test_figures_of_the_result_win_over_stored_ones(api):
    await api.register()
    for first_step in (0, 2):
        api.save_window(window_record(first_step))
    with api.store.read() as conn:
        stored = windows.get(conn, KEY, "1-2", per_step=True)
        assert stored.per_step is not None
        alone = replace(stored.per_step, dp_rank_slowdown=((1.0, 9.0),))
        result = replace(stored, steps=(3,), per_step=alone)
        shown = shown_steps(conn, KEY, 1, (3, 3))
        joined = with_steps(conn, KEY, result, shown, "dp_rank_slowdown")
    assert joined.steps == (0, 1, 2, 3)
    assert by_step(joined)["dp_rank_slowdown"] == [[1.0, 1.25]] * 3 + [[1.0, 9.0]]


async def test_chart_says_when_steps_are_left_out(api, monkeypatch):
    await api.register()
    for first_step in range(0, 40, 2):
        api.save_window(window_record(first_step))
    monkeypatch.setattr(module, "MAX_DRAWN_STEPS", 4)
    path = "/api/v1/jobs/llm-70b/charts/steps?window=1-0..1-30"
    whole = (await api.client.get(path)).json()
    assert "note" not in whole["meta"]
    monkeypatch.setattr(module, "MAX_READ_STEPS", 10)
    part = (await api.client.get(path)).json()
    assert part["meta"]["places"]["x"]["items"] == [*range(22, 32)]
    assert part["meta"]["note"] == "Only the last 10 steps of these windows are read."
