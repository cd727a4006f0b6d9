"""Timelines and critical paths of closed windows, over HTTP."""

import pytest

from app.api.routes.windows import timeline
from tests.engine.timeline.trace_reader import overlaps, read

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/windows"


async def test_timeline_is_a_download(closed):
    answer = await closed.client.get(f"{PATH}/latest/timeline")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/gzip"
    assert "content-encoding" not in answer.headers
    named = 'attachment; filename="llm-70b-1-8-timeline.json.gz"'
    assert answer.headers["content-disposition"] == named
    found = read(iter([answer.content]))
    assert {each.name for each in found.steps} == {"step 8"}
    assert len({each.process for each in found.operations}) == 12
    assert overlaps(found.operations) == []


async def test_timeline_has_the_selected_steps_workers_and_runs(closed):
    query = {"steps": "8-9", "workers": "1/*", "runs": "ideal"}
    answer = await closed.client.get(f"{PATH}/1-8/timeline", params=query)
    found = read(iter([answer.content]))
    assert {each.process for each in found.operations} == {
        "dp 1 stage 0 (rank 1) · ideal",
        "dp 1 stage 1 (rank 3) · ideal",
    }
    assert {each.arguments["step"] for each in found.operations} == {8, 9}


async def test_oversized_timeline_is_refused_with_advice(closed, monkeypatch):
    monkeypatch.setattr(timeline, "MAX_SLICES", 40)
    answer = await closed.client.get(f"{PATH}/latest/timeline", params={"runs": "recorded"})
    assert answer.status_code == 200
    answer = await closed.client.get(f"{PATH}/latest/timeline")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "choose fewer with steps=3, workers=0/*" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ({"steps": "77"}, "step 77"),
        ({"steps": "20-30"}, "choose from 8 to 9"),
        ({"steps": "eight"}, "steps"),
        ({"workers": "9/0"}, "no worker of this job"),
        ({"ranks": "99"}, "no worker recorded"),
        ({"runs": "real"}, "none of recorded, simulated, ideal"),
        ({"workers": "0/0", "ranks": "1"}, "give one of them"),
    ],
)
async def test_steps_and_workers_outside_the_window_are_refused(closed, query, part):
    answer = await closed.client.get(f"{PATH}/latest/timeline", params=query)
    assert answer.status_code == 422
    assert part in answer.text


@pytest.mark.parametrize("kind", ["timeline", "critical-path"])
async def test_open_and_unknown_windows_have_no_timeline(closed, kind):
    assert (await closed.client.get(f"{PATH}/1-10/{kind}")).status_code == 409
    assert (await closed.client.get(f"{PATH}/1-77/{kind}")).status_code == 404
    assert (await closed.client.get(f"/api/v1/jobs/none/windows/1-8/{kind}")).status_code == 404


async def test_the_critical_path_is_the_chain_with_its_shares(closed):
    path = (await closed.client.get(f"{PATH}/latest/critical-path")).json()
    assert (path["window"], path["step"], path["run"]) == ("1-8", 8, "recorded")
    assert path["length_s"] == pytest.approx(7.5)
    assert [(link["optype"], link["stage"], link["own_s"]) for link in path["links"]][:4] == [
        ("forward-compute", 0, 1.0),
        ("forward-send", 0, 0.0),
        ("forward-recv", 1, 0.5),
        ("forward-compute", 1, 2.0),
    ]
    shares = path["shares"]
    assert sum(each["share"] for each in shares["by_worker"]) == pytest.approx(1)
    assert sum(shares["by_optype"].values()) + shares["waiting"] == pytest.approx(1)


async def test_critical_path_of_a_selected_step_and_run(closed):
    query = {"step": 9, "run": "ideal"}
    path = (await closed.client.get(f"{PATH}/1-8/critical-path", params=query)).json()
    assert (path["step"], path["run"]) == (9, "ideal")
    for wrong in ({"step": 77}, {"run": "real"}):
        answer = await closed.client.get(f"{PATH}/1-8/critical-path", params=wrong)
        assert answer.status_code == 422
