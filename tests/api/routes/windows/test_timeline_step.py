"""One step of a closed window over HTTP: sentences, charts and operations."""

import pytest

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/windows"
CHARTS = ("timeline", "path-parts", "waiting")


async def test_step_has_its_time_and_key_operation(closed):
    answer = await closed.client.get(f"{PATH}/latest/step")
    assert answer.status_code == 200
    found = answer.json()
    assert (found["window"], found["step"], found["steps"]) == ("1-8", 8, [8, 9])
    assert (found["recorded_s"], found["dp_size"], found["pp_size"]) == (7.5, 2, 2)
    assert found["sentence"].startswith("Step 8 took 7.5 s.")
    assert found["waiting"] == pytest.approx([4.0 / 7.5, 2.0 / 7.5])
    assert found["viewer_url"] == "https://ui.perfetto.dev"
    # The page downloads that step for the viewer.
    timeline = await closed.client.get(f"{PATH}/latest/timeline?{found['timeline_query']}")
    assert timeline.status_code == 200


async def test_the_figures_of_the_step_are_those_of_the_critical_path(closed):
    found = (await closed.client.get(f"{PATH}/1-8/step", params={"step": 9})).json()
    path = (await closed.client.get(f"{PATH}/1-8/critical-path", params={"step": 9})).json()
    table = (await closed.client.get(f"{PATH}/1-8/charts/path-parts", params={"step": 9})).json()
    assert found["recorded_s"] == path["length_s"]
    assert {link["dp_rank"] for link in path["links"]} == set(found["dp_ranks_on_path"])
    assert table["meta"]["table"]["rows"][0] == ["Stage 1 compute", "4 s", "53 %"]


async def test_step_and_replica_can_be_selected(closed):
    found = (await closed.client.get(f"{PATH}/1-8/step", params={"step": 9, "dp": 1})).json()
    assert (found["step"], found["dp_rank"]) == (9, 1)


async def test_key_operation_can_be_requested(closed):
    found = (await closed.client.get(f"{PATH}/1-8/step")).json()
    query = {"dp": found["dp_rank"], **found["telling"]}
    operation = (await closed.client.get(f"{PATH}/1-8/operation", params=query)).json()
    assert operation["is_critical"]
    assert operation["own_s"] >= operation["ideal_s"]


async def test_operation_is_compared_with_its_ideal_and_peers(closed):
    query = {"stage": 1, "optype": "forward-compute", "seq_id": 0, "dp": 0}
    found = (await closed.client.get(f"{PATH}/1-8/operation", params=query)).json()
    assert (found["start_s"], found["duration_s"], found["own_s"]) == (1.5, 2.0, 2.0)
    assert (found["ideal_s"], found["peers_s"]) == (1.5, 1.0)
    assert found["after"]["optype"] == "forward-recv"
    ideal = await closed.client.get(f"{PATH}/1-8/operation", params={**query, "run": "ideal"})
    assert ideal.json()["duration_s"] == 1.5


async def test_every_chart_is_a_complete_figure(closed):
    for chart in CHARTS:
        for theme in ("light", "dark"):
            path = f"{PATH}/latest/charts/{chart}"
            answer = await closed.client.get(path, params={"theme": theme})
            assert answer.status_code == 200
            assert answer.json().keys() == {"data", "layout", "meta"}


async def test_zoomed_chart_has_a_part_of_the_step(closed):
    query = {"from": 1.5, "to": 3.5, "width": 500}
    figure = (await closed.client.get(f"{PATH}/1-8/charts/timeline", params=query)).json()
    assert figure["layout"]["xaxis"]["range"] == [1.5, 3.5]


WRONG = [
    ("step", {"step": 77}, "step 77"),
    ("step", {"dp": 2}, "dp ranks 0 to 1"),
    ("charts/timeline", {"step": 77}, "step 77"),
    ("charts/timeline", {"from": "nan"}, "from"),
    ("charts/timeline", {"width": 5}, "width"),
    ("charts/waiting", {"dp": -1}, "dp"),
    ("operation", {"stage": 7, "optype": "gc", "seq_id": 0}, "stage 7 has no operation gc 0"),
    ("operation", {"stage": 0, "optype": "<b>", "seq_id": 0}, "optype"),
]


async def test_steps_and_replicas_outside_the_window_are_refused(closed):
    for path, query, part in WRONG:
        answer = await closed.client.get(f"{PATH}/1-8/{path}", params=query)
        assert (path, answer.status_code) == (path, 422)
        assert part in answer.text
