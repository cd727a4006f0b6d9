import pytest

from app.store import runs
from tests.api.server import JOB, KEY, window_record

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b"
ALL_TO_ALL = {"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}


def save_data_time(api, *, last_step=8):
    with api.store.write() as conn:
        runs.note_data(conn, KEY, epoch=1, last_data_s=api.clock.now_s, last_step=last_step)


async def test_a_new_run_gets_201_and_the_same_run_200_with_the_same_epoch(api):
    first = await api.client.put(PATH, json=JOB)
    again = await api.client.put(PATH, json=JOB)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    accepts = first.json().pop("accepts")
    assert {"packed", "dropped", "step_kinds", "placement", "collectives"} <= set(accepts)
    assert (first.json()["job_id"], first.json()["epoch"]) == ("llm-70b", 1)


async def test_a_restart_gets_the_next_epoch_and_the_run_before_it_409(api):
    await api.register(run_key="run-1")
    assert await api.register(run_key="run-2") == 2
    answer = await api.client.put(PATH, json=JOB | {"run_key": "run-1"})
    assert answer.status_code == 409
    assert answer.json()["code"] == "epoch_superseded"


async def test_job_has_its_registered_fields(api):
    await api.register(name="LLM 70B <b>", framework="megatron-lm", labels={"team": "core"})
    job = (await api.client.get(PATH)).json()
    sizes = {"dp_size": 2, "pp_size": 2, "tp_size": 1, "vpp_size": 1, "dsp_size": 1, "ep_size": 1}
    known = {
        "job_id": "llm-70b",
        "name": "LLM 70B <b>",
        "parallelism": sizes | {"world_size": 4},
        "gpus": 4,
        "framework": "megatron-lm",
        "labels": {"team": "core"},
        "epoch": 1,
        **{"state": "not-analysed", "lifecycle": "active", "window_steps": 8},
        "registered_at": "2026-09-21T14:13:20Z",
        **{"num_silent_ranks": 0, "num_silent_workers": 0, "edited_labels": {}},
    }
    assert {name: job.pop(name) for name in known} == known
    plan = job.pop("recording")
    assert (plan["enabled"], plan["every"], plan["steps"], plan["has_begun"]) == (True, 1, 1, True)
    assert not any(job.values()), job  # nothing else is known of it


async def test_job_has_its_registered_op_types(api):
    send = {"name": "kv-send", "kind": "p2p", "pairs_with": "kv-recv", "towards": "next"}
    recv = {"name": "kv-recv", "kind": "p2p", "stream": "kv", "axis": None}
    sizes = {"dp_size": 4, "pp_size": 2, "ep_size": 2}
    await api.register(parallelism=sizes, op_types=[ALL_TO_ALL, send, recv])
    job = (await api.client.get(PATH)).json()
    assert job["parallelism"]["ep_size"] == 2
    neither = {"pairs_with": None, "towards": None}
    assert job["op_types"] == [
        ALL_TO_ALL | neither | {"stream": "moe-all-to-all"},
        send | {"axis": "pp", "stream": "kv-send"},
        recv | neither | {"axis": "pp"},
    ]


async def test_a_job_with_a_window_has_its_slowdown(api):
    await api.register()
    save_data_time(api)
    api.save_window(window_record(8, slowdown=1.25))
    job = (await api.client.get(PATH)).json()
    assert job["state"] == "straggling"
    assert job["slowdown"] == 1.25
    assert job["gpu_time_wasted"] == pytest.approx(0.2)
    assert job["last_step"] == 8
    assert job["latest_window"] == {
        "window_id": "1-8",
        "epoch": 1,
        "first_step": 8,
        "last_step": 9,
        "revision": 2,
        "state": "complete",
        "num_steps": 2,
        "slowdown": 1.25,
        "verdict": "ok",
        "updated_at": "2026-09-21T14:13:20Z",
    }


async def test_a_finished_job_is_never_silent(api):
    await api.register()
    save_data_time(api)
    ended = await api.client.post(f"{PATH}/end")
    assert ended.status_code == 200
    assert ended.json()["state"] == "finished"
    api.clock.now_s += 100_000
    again = await api.client.post(f"{PATH}/end")
    assert again.json()["ended_at"] == ended.json()["ended_at"]


BAD = {
    "no parallelism": {"run_key": "a"},
    "no run_key": {"parallelism": JOB["parallelism"]},
    "empty run_key": JOB | {"run_key": ""},
    "unknown key": JOB | {"tenant_id": 1},
    "unknown axis": JOB | {"parallelism": {"dp_size": 1, "pp_size": 1, "cp_size": 2}},
    "blocks that do not fit": JOB | {"parallelism": {"dp_size": 3, "pp_size": 1, "ep_size": 2}},
    "blocks of zero": JOB | {"parallelism": {"dp_size": 2, "pp_size": 1, "ep_size": 0}},
    "more stages than a trace holds": JOB | {"parallelism": {"dp_size": 1, "pp_size": 32_769}},
    "a size of zero": JOB | {"parallelism": {"dp_size": 0, "pp_size": 1}},
    "a negative size": JOB | {"parallelism": {"dp_size": -1, "pp_size": 1}},
    "a huge size": JOB | {"parallelism": {"dp_size": 2**70, "pp_size": 1}},
    "a size that is text": JOB | {"parallelism": {"dp_size": "2", "pp_size": 1}},
    "a size that is true": JOB | {"parallelism": {"dp_size": True, "pp_size": 1}},
    "a broken size": JOB | {"parallelism": {"dp_size": 1.5, "pp_size": 1}},
    "too many workers": JOB | {"parallelism": {"dp_size": 100_000, "pp_size": 100_000}},
    "too many GPUs": JOB | {"gpus": 2**70},
    "no GPUs": JOB | {"gpus": 0},
    "a long name": JOB | {"name": "x" * 257},
    "a name with NUL": JOB | {"name": "a\x00b"},
    "a name on two lines": JOB | {"name": "a\nb"},
    "too many labels": JOB | {"labels": {f"key{number}": "x" for number in range(33)}},
    "a long label": JOB | {"labels": {"k" * 65: "x"}},
    "a long value": JOB | {"labels": {"k": "x" * 257}},
    "a value with NUL": JOB | {"labels": {"k": "\x00"}},
    "labels that are a list": JOB | {"labels": ["a"]},
    "a run_key that is a number": JOB | {"run_key": 1},
    "types that are no list": JOB | {"op_types": {"name": "a"}},
    "types that are null": JOB | {"op_types": None},
    "too many types": JOB
    | {"op_types": [{"name": f"a{number}", "kind": "compute"} for number in range(65)]},
    "a type that is a name": JOB | {"op_types": ["a"]},
    "a type without a kind": JOB | {"op_types": [{"name": "a"}]},
    "a type of an unknown kind": JOB | {"op_types": [{"name": "a", "kind": "io"}]},
    "a type of an unknown axis": JOB | {"op_types": [ALL_TO_ALL | {"axis": "cp"}]},
    "a type with an unknown key": JOB | {"op_types": [ALL_TO_ALL | {"peers": "all"}]},
    "a type with a long name": JOB | {"op_types": [ALL_TO_ALL | {"name": "a" * 65}]},
    "a type with a name on two lines": JOB | {"op_types": [ALL_TO_ALL | {"name": "a\n"}]},
    "a type that meets unknown peers": JOB | {"op_types": [{"name": "a", "kind": "collective"}]},
    "a type that is built in": JOB | {"op_types": [ALL_TO_ALL | {"name": "gc"}]},
    "a type named twice": JOB | {"op_types": [ALL_TO_ALL, ALL_TO_ALL]},
    "a send to nobody": JOB
    | {"op_types": [{"name": "a", "kind": "p2p", "pairs_with": "b", "towards": "next"}]},
    "a list": [JOB],
    "null": None,
}


@pytest.mark.parametrize("what", BAD)
async def test_invalid_registration_gets_422_with_the_field(api, what):
    answer = await api.client.put(PATH, json=BAD[what])
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid"
    assert answer.json()["detail"]


async def test_largest_registration_is_accepted(api):
    labels = {f"{number:02}" + "k" * 62: "v" * 256 for number in range(32)}
    sizes = {"dp_size": 131_072, "pp_size": 1, "tp_size": 8}
    await api.register(labels=labels, name="n" * 256, run_key="r" * 256, parallelism=sizes)
    assert (await api.client.get(PATH)).json()["labels"] == labels
