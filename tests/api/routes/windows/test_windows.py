from dataclasses import replace

import pytest
from msgspec import structs

from app.store import hosts, windows
from app.store.windows import StepRow
from tests.api.server import KEY, window_record
from tests.results import finding, unexplained

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b"
CHARTS = ("workers", "optypes", "stages", "worker-steps", "dp-steps")


async def test_latest_window_has_the_analysis_result(api):
    await api.register()
    record = window_record(8)
    api.save_window(window_record(0))
    api.save_window(record)
    answer = await api.client.get(f"{PATH}/windows/latest")
    assert answer.json() == record.result.as_json()


async def test_workers_slowdown_is_by_dp_rank_and_stage(api):
    await api.register()
    api.save_window(window_record(0))
    workers = (await api.client.get(f"{PATH}/windows/latest/workers")).json()
    assert workers == {
        "window": "1-0",
        "dp_size": 2,
        "pp_size": 2,
        "worker_slowdown": [[1.0, 1.0], [1.0, 1.25]],
        "worker_slowdown_estimate": [[1.0, 1.0], [1.0, 1.25]],
        "hosts": [[None, None], [None, None]],
    }


async def test_workers_and_charts_name_the_hosts_that_are_known(api):
    await api.register()
    api.save_window(window_record(0))
    with api.store.write() as conn:
        hosts.save(conn, KEY, 1, {(1, 1): "host-<b>"})
    workers = (await api.client.get(f"{PATH}/windows/latest/workers")).json()
    assert workers["hosts"] == [[None, None], [None, "host-<b>"]]
    for chart in ("workers", "worker-steps"):
        figure = (await api.client.get(f"{PATH}/windows/latest/charts/{chart}")).json()
        assert "host-<b> (dp 1, stage 1)" in figure["meta"]["text"]
        assert "host-<b>" not in str(figure["data"]) + str(figure["layout"])
        assert "host-&lt;b&gt;" in str(figure["layout"])


async def test_worker_heatmap_covers_the_steps_of_the_step_chart(api):
    await api.register()
    for first_step, slowdown in ((0, 1.1), (2, 1.2), (6, 1.3)):
        api.save_window(window_record(first_step, slowdown=slowdown))
    figure = (await api.client.get(f"{PATH}/windows/1-2/charts/worker-steps")).json()
    steps_seen = [f"step {step}" for step in (0, 1, 2, 3, 6, 7)]
    assert figure["meta"]["table"]["columns"] == ["worker", *steps_seen]
    slowest = ["dp 1, stage 1", *(f"{s:.2f}\u00d7" for s in (1.1, 1.1, 1.2, 1.2, 1.3, 1.3))]
    assert figure["meta"]["table"]["rows"][0] == slowest
    above = (await api.client.get(f"{PATH}/charts/steps")).json()
    assert figure["layout"]["xaxis"]["range"] == above["layout"]["xaxis"]["range"]


async def test_step_time_is_taken_from_the_previous_run(api):
    await api.register()
    api.save_window(window_record(0))
    await api.register(run_key="run-2")
    shown = (await api.client.get(f"{PATH}/headline")).json()
    assert shown["sentence"] == "0 of 8 complete steps have arrived. About 10 s more."


async def test_step_series_is_ascending_and_has_the_last_steps(api):
    await api.register()
    for first_step in (0, 2, 4):
        api.save_window(window_record(first_step))
    found = (await api.client.get(f"{PATH}/steps", params={"limit": 3})).json()["items"]
    assert [step["step"] for step in found] == [3, 4, 5]
    assert found[0] == {
        **{"epoch": 1, "step": 3, "recorded_s": 1.3, "simulated_s": 1.25, "ideal_s": 1.0},
        **{"slowdown": 1.25, "window": "1-2", "started_at": None, "skipped_reason": None},
        **{"last_step": 3, "num_steps": 1},
    }
    query = {"first": 1, "last": 2}
    some = (await api.client.get(f"{PATH}/steps", params=query)).json()["items"]
    assert [step["step"] for step in some] == [1, 2]


async def test_skipped_step_has_a_reason_and_no_figures(api):
    await api.register()
    skipped = StepRow(1, 7, None, None, None, None, "1-0", "rank 3 did not report")
    with api.store.write() as conn:
        windows.save_steps(conn, KEY, [skipped])
    [step] = (await api.client.get(f"{PATH}/steps")).json()["items"]
    assert step["skipped_reason"] == "rank 3 did not report"
    assert step["slowdown"] is None


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_chart_is_a_complete_figure_or_not_measured(api, theme):
    await api.register()
    api.save_window(window_record(0, slowdown=None))
    api.save_window(window_record(2))
    for chart in CHARTS:
        path = f"{PATH}/windows/{{}}/charts/{chart}"
        figure = (await api.client.get(path.format("1-2"), params={"theme": theme})).json()
        assert all((figure["data"], figure["layout"], figure["meta"]["text"])), chart
        assert figure["meta"]["table"]["rows"], chart
        answer = await api.client.get(path.format("1-0"))
        assert (answer.status_code, answer.json()["code"]) == (404, "not_measured"), chart


async def test_losses_are_drawn_once_a_finding_has_a_cost(api):
    await api.register()
    record = window_record(0)
    api.save_window(record)
    path = f"{PATH}/windows/1-0/charts/waterfall"
    assert (await api.client.get(path)).json()["code"] == "not_measured"
    rest = unexplained(ideal_share=0.8)
    slow = structs.replace(record.result, findings=(finding(cost=0.2),), unexplained=rest)
    api.save_window(replace(record, result=slow, revision=record.revision + 1))
    rows = (await api.client.get(path)).json()["meta"]["table"]["rows"]
    assert rows == [["Ideal", "80 %"], ["Slow worker", "20 %"], ["Recorded", "100 %"]]


async def test_a_job_without_steps_has_no_step_chart(api):
    await api.register()
    assert (await api.client.get(f"{PATH}/charts/steps")).status_code == 404


async def test_headline_of_a_past_window_is_about_that_window(api):
    await api.register()
    api.save_window(window_record(0, slowdown=1.5))
    api.save_window(window_record(8, slowdown=1.0))
    then = (await api.client.get(f"{PATH}/headline", params={"window": "1-0"})).json()
    assert then["state"] == "straggling"
    none = (await api.client.get(f"{PATH}/headline", params={"window": "1-99"})).json()
    assert none["state"] == "not-analysed"


async def test_unknown_window_gives_404(api):
    await api.register()
    for window in ("latest", "1-0", "999999999-9999999999999999"):
        answer = await api.client.get(f"{PATH}/windows/{window}")
        assert answer.status_code == 404
        assert answer.json()["code"] == "window_not_found"
