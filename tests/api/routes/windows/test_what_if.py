"""What-if questions, and results of selected steps."""

import json

import pytest

from app.api.http.bodies import MAX_QUESTION_BYTES
from app.api.routes.windows.what_if_edits import MAX_LIST_ITEMS
from app.result.causes import CAUSES
from app.trace.window import SkippedStep
from tests.api import recorded

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/windows"
JSON = {"content-type": "application/json"}
PP_COMM_AT_0 = {"select": {"op_types": ["pp-comm"]}, "change": {"kind": "set", "value": 0}}


async def ask(api, *edits, window="latest"):
    return await api.client.post(f"{PATH}/{window}/what-if", json={"edits": list(edits)})


async def test_pipeline_communication_can_be_set_to_0(api):
    await api.register()
    recorded.save(api, recorded.window(100))
    answer = await ask(api, PP_COMM_AT_0)
    assert answer.status_code == 200
    found = answer.json()
    assert found["window"] == "1-100"
    assert found["steps"] == [100, 101]
    assert found["step_time_s"]["simulated"] == pytest.approx([7.5, 7.5])
    assert found["step_time_s"]["what_if"] == pytest.approx([6.5, 6.5])
    assert found["against_recorded"]["speed_up"] == pytest.approx(7.5 / 6.5)
    assert found["against_recorded"]["per_step"]["slowdown"] == pytest.approx([6.5 / 7.5] * 2)
    assert found["gpu_hours_saved"] == pytest.approx(15 * 4 * (1 - 6.5 / 7.5) / 3600)
    assert found["edits"] == [{"changed_ops": 16, "ops_without_counterpart": 0}]


async def test_chart_is_included_on_request(api):
    await api.register()
    recorded.save(api, recorded.window(100))
    body = {"edits": [PP_COMM_AT_0]}
    plain = (await api.client.post(f"{PATH}/latest/what-if", json=body)).json()
    drawn = (await api.client.post(f"{PATH}/latest/what-if?figure=dark", json=body)).json()
    figure = drawn.pop("figure")
    assert drawn == plain
    assert [row[3] for row in figure["meta"]["table"]["rows"]] == ["6.500", "6.500"]


@pytest.mark.parametrize(
    ("change", "expected_s"),
    [
        ({"kind": "factor", "value": 2}, 11.5),
        ({"kind": "add", "value": -0.5}, 6.5),
        ({"kind": "set", "value": 1.0}, 5.5),
        ({"kind": "ideal"}, 6.5),
        ({"kind": "from-worker", "dp_rank": 1, "stage": 0}, 5.5),
    ],
)
async def test_every_kind_of_change_is_applied(api, change, expected_s):
    await api.register()
    recorded.save(api, recorded.window())
    select = {"op_types": ["forward-compute", "backward-compute"], "stages": [1]}
    found = (await ask(api, {"select": select, "change": change})).json()
    assert found["step_time_s"]["what_if"] == pytest.approx([expected_s] * 2)


async def test_selection_by_every_field_matches(api):
    await api.register()
    recorded.save(api, recorded.window())
    select = {"stages": [0, 1], "dp_ranks": [1], "workers": [[1, 0], [0, 0]], "steps": [1]}
    edit = {"select": select, "change": {"kind": "factor", "value": 2}}
    found = (await ask(api, edit)).json()
    assert found["edits"][0]["changed_ops"] == 5
    assert found["step_time_s"]["what_if"][0] == pytest.approx(7.5)


async def test_answer_lists_skipped_steps(api):
    await api.register()
    skipped = SkippedStep(2, "rank 3 did not report")
    recorded.save(api, recorded.window(state="incomplete", skipped=(skipped,)))
    found = (await ask(api)).json()
    assert found["skipped_steps"] == [{"step": 2, "reason": "rank 3 did not report"}]


GOOD = {"kind": "set", "value": 0}
BAD_EDITS = [
    {},
    {"change": {"kind": "halve"}},
    {"change": {"value": 0}},
    {"change": {"kind": "set"}},
    {"change": {"kind": "set", "value": -1}},
    {"change": {"kind": "set", "value": "0"}},
    {"change": {"kind": "set", "value": True}},
    {"change": {"kind": "set", "value": 1e300}},
    {"change": {"kind": "factor", "value": -0.1}},
    {"change": {"kind": "ideal", "value": 1}},
    {"change": {"kind": "from-worker", "dp_rank": 9, "stage": 0}},
    {"change": {"kind": "from-worker", "dp_rank": 0}},
    {"change": GOOD, "select": {"optypes": ["gc"]}},
    {"change": GOOD, "select": {"op_types": ["no-such-type"]}},
    {"change": GOOD, "select": {"op_types": "pp-comm"}},
    {"change": GOOD, "select": {"op_types": ["gc"]}},
    {"change": GOOD, "select": {"stages": [2]}},
    {"change": GOOD, "select": {"stages": [-1]}},
    {"change": GOOD, "select": {"stages": [0.5]}},
    {"change": GOOD, "select": {"dp_ranks": [2]}},
    {"change": GOOD, "select": {"workers": [[0]]}},
    {"change": GOOD, "select": {"workers": [[0, 0, 0]]}},
    {"change": GOOD, "select": {"steps": [7]}},
    {"change": GOOD, "select": {"steps": [2**70]}},
    {"change": GOOD, "select": {"microbatches": [3]}},
]


@pytest.mark.parametrize("edit", BAD_EDITS, ids=str)
async def test_invalid_question_gets_422_with_a_reason(api, edit):
    await api.register()
    recorded.save(api, recorded.window())
    answer = await ask(api, PP_COMM_AT_0, edit)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "invalid"
    assert "edit 2" in problem["detail"] or "body.edits.1" in problem["detail"]


EVERY_WORKER = {"workers": [[8191, 15]] * MAX_LIST_ITEMS}


async def test_edit_that_names_every_worker_of_a_large_job_is_accepted(api):
    await api.register()
    recorded.save(api, recorded.window())
    content = json.dumps({"edits": [{"change": GOOD, "select": EVERY_WORKER}]}).encode()
    assert len(content) < MAX_QUESTION_BYTES
    answer = await api.client.post(f"{PATH}/latest/what-if", content=content, headers=JSON)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("edit 1: ")


async def test_a_longer_list_and_a_larger_question_are_refused(api):
    await api.register()
    longer = {"select": {"stages": [0] * (MAX_LIST_ITEMS + 1)}, "change": GOOD}
    assert (await ask(api, longer)).status_code == 422
    content = b'{"edits": []' + b" " * MAX_QUESTION_BYTES + b"}"
    answer = await api.client.post(f"{PATH}/latest/what-if", content=content, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "ask for fewer edits at once" in answer.json()["detail"]


@pytest.mark.parametrize("media", ["text/plain", "application/msgpack", ""])
async def test_question_with_another_media_type_is_refused(api, media):
    headers = {"content-type": media}
    content = b'{"edits": []}'
    answer = await api.client.post(f"{PATH}/latest/what-if", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media")


async def test_selected_steps_are_analysed_separately(api):
    await api.register()
    rows = recorded.window(100)
    recorded.save(api, rows)
    query = {"steps": "101", "per_step": True}
    found = (await api.client.get(f"{PATH}/1-100", params=query)).json()
    assert found["window"]["id"] == "1-100"
    assert found["steps"] == [101]
    assert len(found["per_step"]["worker_slowdown"]) == 1
    whole = (await api.client.get(f"{PATH}/latest", params={"steps": "100-109"})).json()
    stored = (await api.client.get(f"{PATH}/1-100")).json()
    assert "per_step" not in whole
    assert whole["worker_slowdown"] == stored["worker_slowdown"]
    # The selected steps are diagnosed too: each cause is found or ruled out.
    named = [each["cause"] for each in [*(whole["findings"] or ()), *whole["ruled_out"]]]
    assert sorted(named) == sorted(CAUSES)
    assert whole["fingerprint"] is not None
    assert whole["steps"] == stored["steps"] == [100, 101]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("", "names no step"),
        ("1,,2", "names no step"),
        ("latest", "names no step"),
        ("-1", "names no step"),
        ("3-", "names no step"),
        ("9" * 30, "names no step"),
        ("5-3", "write 3-5"),
        ("7", "step 7"),
        ("5-900000000000000000", "choose from 0 to 1"),
    ],
)
async def test_unknown_steps_get_422(api, named, words):
    await api.register()
    recorded.save(api, recorded.window())
    answer = await api.client.get(f"{PATH}/latest", params={"steps": named})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
