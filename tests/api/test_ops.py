import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.api.registrations import Registrations
from app.ingest.codec import BINARY_TYPE, read
from app.trace import user_types
from tests.api.server import JOB, Api, binary_batch, json_batch

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/ops"


def taken(api: Api):
    """Batches in the event queue."""
    entries = api.queue.reader.read(range(4), "test", count=100, block_s=0)
    return [(entry.job_id, read(entry.body)) for entry in entries]


@pytest.mark.parametrize("batch", [json_batch(), binary_batch()], ids=["JSON", "binary"])
async def test_a_batch_is_in_the_queue_when_202_is_answered(api, batch):
    await api.register()
    answer = await api.push(batch)
    assert answer.status_code == 202
    assert answer.json() == {"accepted": 2, "rejected": 0, "errors": []}
    [(job_id, found)] = taken(api)
    assert job_id == "default/llm-70b"
    assert found.columns.num_ops == 2
    assert found.steps_done == ((0, 2),)


async def test_good_rows_are_taken_and_bad_ones_told(api):
    await api.register()
    columns = json_batch()["columns"] | {"optype": ["forward-compute", "no-such-type"]}
    answer = await api.push(json_batch(columns=columns))
    assert answer.status_code == 202
    assert (answer.json()["accepted"], answer.json()["rejected"]) == (1, 1)
    assert answer.json()["errors"][0]["index"] == 1
    [(_, found)] = taken(api)
    assert found.columns.num_ops == 1


OWN = [
    {"name": "moe-all-to-all", "kind": "collective", "axis": "ep"},
    {"name": "router", "kind": "compute"},
]


async def test_operations_of_registered_types_are_in_the_queue_under_their_names(api):
    await api.register(op_types=OWN)
    columns = json_batch()["columns"] | {"optype": ["router", "moe-all-to-all"]}
    assert (await api.push(json_batch(columns=columns))).json()["accepted"] == 2
    assert (await api.push(binary_batch(optypes=["router"]))).json()["accepted"] == 2
    types = user_types.parse(OWN)
    entries = api.queue.reader.read(range(4), "test", count=100, block_s=0)
    found = [read(entry.body, types).columns.optype.tolist() for entry in entries]
    first = types.codes["moe-all-to-all"]
    assert found == [[first + 1, first], [first + 1] * 2]


async def test_a_type_that_another_run_registered_is_refused_row_by_row(api):
    await api.register(op_types=OWN)
    await api.register("other")
    columns = json_batch()["columns"] | {"optype": ["forward-compute", "router"]}
    answer = (await api.push(json_batch(columns=columns), "other")).json()
    assert (answer["accepted"], answer["rejected"]) == (1, 1)
    assert answer["errors"][0]["code"] == "unknown_optype"
    assert "'router' is not known: register it" in answer["errors"][0]["message"]


async def test_a_batch_of_bad_rows_alone_gets_422(api):
    await api.register()
    columns = json_batch()["columns"] | {"duration_ns": [-1, -1]}
    answer = await api.push(json_batch(columns=columns))
    assert answer.status_code == 422
    assert taken(api) == []


async def test_a_batch_without_rows_may_say_that_steps_are_done(api):
    await api.register()
    empty: dict[str, list] = {name: [] for name in json_batch()["columns"]}
    answer = await api.push(json_batch(columns=empty))
    assert answer.status_code == 202


async def test_a_large_batch_is_taken(api):
    await api.register()
    assert (await api.push(binary_batch(100_000))).json()["accepted"] == 100_000


async def test_one_row_too_many_gets_413(api):
    await api.register()
    answer = await api.push(binary_batch(100_001))
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"


@pytest.mark.parametrize("epoch", [1, 3], ids=["an older run", "a run that never was"])
async def test_another_epoch_gets_409(api, epoch):
    await api.register(run_key="run-1")
    await api.register(run_key="run-2")
    answer = await api.push(json_batch(epoch=epoch))
    assert answer.status_code == 409
    assert answer.json()["code"] == "epoch_superseded"


async def test_an_ended_job_gets_409_until_its_next_run(api):
    await api.register()
    assert (await api.push(json_batch())).status_code == 202
    await api.client.post("/api/v1/jobs/llm-70b/end")
    assert (await api.push(json_batch())).status_code == 409
    await api.register(run_key="run-2")
    assert (await api.push(json_batch(epoch=2))).status_code == 202


async def test_a_job_that_another_process_registered_again_is_looked_up_before_a_refusal(api):
    await api.register(run_key="run-1")
    await api.push(json_batch())
    other = Registrations(api.store, monotonic=api.clock)
    remembered = await other.find("default/llm-70b")
    larger = {"dp_size": 4, "pp_size": 2}
    await api.register(run_key="run-2", parallelism=larger)
    assert (await other.find("default/llm-70b")) == remembered
    assert (await other.find_anew("default/llm-70b")).epoch == 2
    answer = await api.push(json_batch(epoch=2, dp_rank=3, rank=7))
    assert answer.status_code == 202


async def test_many_workers_at_once_need_one_look_up(api):
    await api.register()
    found = Registrations(api.store, monotonic=api.clock)
    first = await found.find("default/llm-70b")
    assert await found.find("default/llm-70b") is first
    api.clock.now_s += 2
    assert await found.find("default/llm-70b") is not first


async def test_a_queue_that_is_down_gets_503_and_when_to_try_again(api):
    await api.register()
    api.queue.is_up = False
    answer = await api.push(json_batch())
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert answer.json()["code"] == "queue_unavailable"


async def test_a_full_queue_gets_503(api):
    await api.register()
    api.queue.max_entries = 0
    answer = await api.push(json_batch())
    assert answer.status_code == 503
    assert answer.json()["code"] == "ingest_full"


REFUSED = {
    "no body": (b"", "application/json", 400),
    "no JSON": (b"{", "application/json", 400),
    "no text": (b"\xff\xfe", "application/json", 400),
    "deep nesting": (b'{"columns":' + b"[" * 100_000, "application/json", 400),
    "no msgpack": (b"\xc1", BINARY_TYPE, 400),
    "half a batch": (binary_batch()[:50], BINARY_TYPE, 400),
    "a list": (b"[]", "application/json", 422),
    "an empty map": (b"{}", "application/json", 422),
    "NaN": (b'{"version": NaN}', "application/json", 400),
    "no content type": (b"{}", None, 415),
    "a form": (b"a=1", "application/x-www-form-urlencoded", 415),
    "a nameless content type": (b"{}", ";", 415),
    "a version of the future": (binary_batch(version=2), BINARY_TYPE, 415),
    "epoch zero": (binary_batch(epoch=0), BINARY_TYPE, 422),
    "a worker that is not there": (binary_batch(dp_rank=2), BINARY_TYPE, 422),
    "a stage that is not there": (binary_batch(stage=2), BINARY_TYPE, 422),
    "a key that nobody knows": (binary_batch(tenant=1), BINARY_TYPE, 422),
    "columns of several lengths": (
        binary_batch(columns={"step": b"", "optype": b"1"}),
        BINARY_TYPE,
        422,
    ),
    "steps out of order": (binary_batch(steps_done=[[2, 1], [1, 1]]), BINARY_TYPE, 422),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_batch_that_cannot_be_gets_the_right_refusal(api, what):
    await api.register()
    body, media, status = REFUSED[what]
    headers = {"content-type": media} if media else {}
    answer = await api.client.post(PATH, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert taken(api) == []


async def test_an_unknown_job_gets_404(api):
    answer = await api.push(json_batch(), "no-such-job")
    assert answer.status_code == 404
    assert answer.json()["code"] == "job_not_found"


MEDIA = st.sampled_from([BINARY_TYPE, "application/json"]) | st.text(
    st.characters(min_codepoint=32, max_codepoint=126), max_size=30
)


def mutated():
    """A good batch with some bytes changed, left out or added."""
    good = st.sampled_from([binary_batch(), b'{"version":1,"columns":{}}'])
    at, byte = st.integers(0, 400), st.integers(0, 255)

    def change(body, changes):
        bytes_ = bytearray(body)
        for where, value in changes:
            if bytes_:
                bytes_[where % len(bytes_)] = value
        return bytes(bytes_)

    return st.builds(change, good, st.lists(st.tuples(at, byte), min_size=1, max_size=8))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(body=st.binary(max_size=300) | mutated(), media=MEDIA)
async def test_whatever_bytes_come_the_answer_is_never_a_5xx(api, body, media):
    await api.client.put("/api/v1/jobs/llm-70b", json=JOB)
    answer = await api.client.post(PATH, content=body, headers={"content-type": media})
    assert answer.status_code in (202, 400, 409, 413, 415, 422), answer.text
