"""Arrivals over HTTP: of one window, of several, and of one group with all members."""

import dataclasses

import pytest

from app.result.stored import join_by_step, split_by_step
from tests import arrival_results
from tests.api.server import recorded_record, with_result

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/windows"
GROUP = "dp, stage 0"


def record(first_step, *, state="complete", members=16, **about):
    """A window of four dp ranks with its arrivals."""
    made = recorded_record(arrival_results.late_window(first_step, state=state))
    block = arrival_results.block(members=members)
    known = {"arrivals": block, "unexplained_share": 0.18, "coverage": 0.9} | about
    whole = dataclasses.replace(made, result=join_by_step(made.result, made.per_step))
    result, per_step = split_by_step(with_result(whole, **known).result)
    return dataclasses.replace(made, result=result, per_step=per_step)


async def given(api, *records):
    await api.register(parallelism={"dp_size": 4, "pp_size": 1})
    for each in records:
        api.save_window(each)


async def got(api, path, **query):
    answer = await api.client.get(f"{PATH}/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_arrivals_of_a_window_have_figures_by_step(api):
    await given(api, record(0))
    found = await got(api, "1-0/arrivals")
    assert found["arrivals"] == arrival_results.block()
    assert (found["window"], found["steps"], found["reason"]) == ("1-0", [0, 1], None)
    assert (found["unexplained_share"], found["coverage"]) == (0.18, 0.9)


async def test_the_window_has_arrivals_by_step_only_if_asked_for(api):
    await given(api, record(0))
    assert "per_step" not in (await got(api, "1-0"))["arrivals"]
    by_step = await got(api, "1-0", per_step=True)
    assert by_step["arrivals"] == arrival_results.block()
    assert "waited_for_s" not in by_step["per_step"]
    without = (await got(api, "1-0", arrays=False))["arrivals"]
    assert "rank" not in without
    assert without["culprits"] == arrival_results.block()["culprits"]


async def test_several_windows_have_the_mean_over_their_steps(api):
    calm = arrival_results.block((0.0, 0.0, 0.1, 0.0), culprits=())
    await given(api, record(0), record(2, arrivals=calm), record(4, arrivals=None, coverage=0.6))
    found = await got(api, "1-0..1-4/arrivals")
    assert found["arrivals"]["waited_for_s"] == pytest.approx([0.0, 0.0, 0.3, 0.0])
    assert found["arrivals"]["num_occurrences"] == 4
    assert [each["rank"] for each in found["arrivals"]["culprits"]] == [2]
    assert found["arrivals"]["culprits"][0]["steps_late"] == 0.5
    assert found["arrivals"]["groups"][0]["members"][0]["waited_for_s"] == pytest.approx(0.3)
    assert found["coverage"] == pytest.approx(0.8)


async def test_missing_arrivals_have_a_reason(api):
    await given(api, record(0, arrivals=None))
    found = await got(api, "1-0/arrivals")
    assert found["arrivals"] is None
    assert "recorded by every member" in found["reason"]


async def test_group_has_exactly_its_members(api):
    elsewhere = arrival_results.block((0.0, 0.0, 0.5, 0.0, 0.2))
    elsewhere["groups"] = arrival_results.block()["groups"]
    await given(api, record(0, arrivals=elsewhere))
    found = (await got(api, "1-0/arrivals", group=GROUP))["arrivals"]
    assert found["rank"] == [0, 1, 2, 3]
    assert found["per_step"]["waited_for_s"] == [[0.0, 0.0, 0.5, 0.0]] * 2
    assert [each["name"] for each in found["groups"]] == [GROUP]


async def test_unlisted_members_are_computed_from_the_operations(api):
    await given(api, record(0, members=1))
    found = (await got(api, "1-0/arrivals", group=GROUP))["arrivals"]
    assert [each["rank"] for each in found["groups"][0]["members"]] == [2, 0, 1, 3]
    assert found["groups"][0]["members"][0]["waited_for_s"] == pytest.approx(0.5)
    of_one = (await got(api, "1-0/arrivals", group=GROUP, steps="1"))["arrivals"]
    assert of_one is None or len(of_one["groups"][0]["members"]) == 4


async def test_unknown_group_is_refused(api):
    await given(api, record(0), record(2, members=1), record(4, members=1, state="open"))
    answer = await api.client.get(f"{PATH}/1-0/arrivals", params={"group": "tp <9>"})
    assert (answer.status_code, answer.json()["code"]) == (404, "group_not_found")
    # All members need one closed window.
    several = await api.client.get(f"{PATH}/1-0..1-2/arrivals", params={"group": "tp 9"})
    assert several.status_code == 422
    still_open = await api.client.get(f"{PATH}/1-4/arrivals", params={"group": GROUP})
    assert still_open.status_code == 409


async def test_wait_heatmap_covers_the_steps_of_the_step_chart(api):
    calm = arrival_results.block((0.0, 0.0, 0.1, 0.0), culprits=())
    await given(api, record(0, arrivals=calm), record(2), record(4, arrivals=None))
    figure = await got(api, "1-2/charts/waited-for")
    assert figure["meta"]["table"]["columns"][-4:] == ["step 0", "step 1", "step 2", "step 3"]
    assert figure["meta"]["table"]["rows"][0][:3] == [2, "dp 2, stage 0", "host-2"]
    assert figure["meta"]["table"]["rows"][0][-4:] == ["100 ms", "100 ms", "500 ms", "500 ms"]
    several = await got(api, "1-0..1-4/charts/waited-for", theme="dark")
    assert len(several["meta"]["table"]["columns"]) == 7 + 4
    nothing = await api.client.get(f"{PATH}/1-4/charts/waited-for")
    assert (nothing.status_code, nothing.json()["code"]) == (404, "not_measured")


async def test_worker_page_has_the_groups_of_its_ranks(api):
    await given(api, record(0))
    path = PATH.removesuffix("windows")
    found = (await api.client.get(f"{path}workers/2-0", params={"window": "1-0"})).json()
    [group] = found["groups"]
    assert group["name"] == GROUP
    assert [each["rank"] for each in group["members"] if each["is_own"]] == [2]
