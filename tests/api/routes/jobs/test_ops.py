import gzip
import re
from itertools import pairwise

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.api.service.service import MIN_TAKEN_AFTER_END_S, RegistrationCache
from app.ingest.wire.codec import BINARY_TYPE, read_entry
from app.store import runs
from app.trace import ops
from tests.api.server import JOB, Api, binary_batch, json_batch, running

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/ops"


def queued_batches(api: Api):
    """Batches in the event queue."""
    entries = api.queue.reader.read(range(4), "test", count=100, block_s=0)
    return [(entry.job_id, read_entry(entry.body)) for entry in entries]


@pytest.mark.parametrize("batch", [json_batch(), binary_batch()], ids=["JSON", "binary"])
async def test_a_batch_is_in_the_queue_when_202_is_answered(api, batch):
    await api.register()
    answer = await api.push(batch)
    assert answer.status_code == 202
    assert answer.json() == {"accepted": 2, "rejected": 0, "errors": []}
    [(job_id, found)] = queued_batches(api)
    assert job_id == "default/llm-70b"
    assert found.columns.num_ops == 2
    assert found.steps_done == ((0, 2),)


async def test_valid_rows_are_accepted_and_invalid_ones_reported(api):
    await api.register()
    columns = json_batch()["columns"] | {"optype": ["forward-compute", "no-such-type"]}
    answer = await api.push(json_batch(columns=columns))
    assert answer.status_code == 202
    assert (answer.json()["accepted"], answer.json()["rejected"]) == (1, 1)
    assert answer.json()["errors"][0]["index"] == 1
    [(_, found)] = queued_batches(api)
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
    types = ops.parse_op_types(OWN)
    entries = api.queue.reader.read(range(4), "test", count=100, block_s=0)
    found = [read_entry(entry.body, types).columns.optype.tolist() for entry in entries]
    first = types.codes["moe-all-to-all"]
    assert found == [[first + 1, first], [first + 1] * 2]


async def test_large_batch_is_accepted(api):
    await api.register()
    assert (await api.push(binary_batch(100_000))).json()["accepted"] == 100_000


@pytest.mark.parametrize("epoch", [1, 3], ids=["an older run", "a run that never was"])
async def test_another_epoch_gets_409(api, epoch):
    await api.register(run_key="run-1")
    await api.register(run_key="run-2")
    answer = await api.push(json_batch(epoch=epoch))
    assert answer.status_code == 409
    assert answer.json()["code"] == "epoch_superseded"


async def test_ended_job_accepts_batches_during_the_grace_period_only(api):
    await api.register()
    assert (await api.push(json_batch())).status_code == 202
    await api.client.post("/api/v1/jobs/llm-70b/end")
    api.clock.now_s += MIN_TAKEN_AFTER_END_S
    assert (await api.push(json_batch(rank=1, dp_rank=1))).status_code == 202
    api.clock.now_s += 1
    answer = await api.push(json_batch(batch_seq=1))
    assert answer.status_code == 409
    assert "has ended: register its next run first" in answer.json()["detail"]
    await api.register(run_key="run-2")
    assert (await api.push(json_batch(epoch=2))).status_code == 202


async def test_grace_period_lasts_as_long_as_windows_are_revised(database_url):
    async with running(database_url, revise_for_s=3600.0) as api:
        await api.register()
        await api.client.post("/api/v1/jobs/llm-70b/end")
        api.clock.now_s += 3600.0
        assert (await api.push(json_batch())).status_code == 202
        api.clock.now_s += 1
        assert (await api.push(json_batch(batch_seq=1))).status_code == 409


async def test_run_registered_by_another_process_is_found_by_get_now(api):
    await api.register(run_key="run-1")
    await api.push(json_batch())
    other = RegistrationCache(api.store, monotonic=api.clock)
    remembered = await other.get("default/llm-70b")
    larger = {"dp_size": 4, "pp_size": 2}
    await api.register(run_key="run-2", parallelism=larger)
    assert (await other.get("default/llm-70b")) == remembered
    assert (await other.get_now("default/llm-70b")).epoch == 2
    answer = await api.push(json_batch(epoch=2, dp_rank=3, rank=7))
    assert answer.status_code == 202


async def test_queue_that_is_down_gives_503_with_retry_after(api):
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
    "deep nesting": (b'{"columns":' + b"[" * 100_000, "application/json", 422),
    "no msgpack": (b"\xc1", BINARY_TYPE, 400),
    "half a batch": (binary_batch()[:50], BINARY_TYPE, 400),
    "NaN": (b'{"version": NaN}', "application/json", 400),
    "no content type": (b"{}", None, 415),
    "a form": (b"a=1", "application/x-www-form-urlencoded", 415),
    "a version of the future": (binary_batch(version=2), BINARY_TYPE, 415),
    "epoch zero": (binary_batch(epoch=0), BINARY_TYPE, 422),
    "a worker that is not there": (binary_batch(dp_rank=2), BINARY_TYPE, 422),
    "a stage that is not there": (binary_batch(stage=2), BINARY_TYPE, 422),
    "a key that nobody knows": (binary_batch(tenant=1), BINARY_TYPE, 422),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_invalid_batch_gets_the_right_refusal(api, what):
    await api.register()
    body, media, status = REFUSED[what]
    headers = {"content-type": media} if media else {}
    answer = await api.client.post(PATH, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert queued_batches(api) == []


def compressed(name):
    body = binary_batch(500)
    return gzip.compress(body) if name == "gzip" else zstandard.compress(body)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
async def test_compressed_batch_is_in_the_queue_as_sent(api, name):
    await api.register()
    body = compressed(name)
    headers = {"content-type": BINARY_TYPE, "content-encoding": name}
    answer = await api.client.post(PATH, content=body, headers=headers)
    assert answer.json() == {"accepted": 500, "rejected": 0, "errors": []}
    [entry] = api.queue.reader.read(range(4), "test", count=100, block_s=0)
    assert entry.body == body
    assert read_entry(entry.body).columns.num_ops == 500


async def test_zip_bomb_gets_413_and_broken_compression_400(api):
    await api.register()
    for body, status in ((gzip.compress(bytes(64 << 20)), 413), (compressed("gzip")[:-1], 400)):
        headers = {"content-type": BINARY_TYPE, "content-encoding": "gzip"}
        answer = await api.client.post(PATH, content=body, headers=headers)
        assert answer.status_code == status, answer.text
    assert queued_batches(api) == []


async def test_another_method_gets_405_and_a_bad_id_422(api):
    for method in ("GET", "PUT", "DELETE"):
        answer = await api.client.request(method, PATH)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert answer.json()["code"] == "method_not_allowed"
    answer = await api.push(json_batch(), "-no-id-")
    assert answer.status_code == 422
    assert "path.job_id" in answer.json()["detail"]


async def test_a_step_far_above_the_newest_known_is_refused(api):
    await api.register()
    with api.store.write() as conn:
        runs.note_data(conn, "default/llm-70b", last_data_s=1.0, last_step=10, epoch=1)
    columns = json_batch()["columns"] | {"step": [10, 1_000_011]}
    answer = await api.push(json_batch(columns=columns))
    assert answer.json()["accepted"] == 1
    assert answer.json()["errors"][0]["code"] == "step_jump"


async def counts(api):
    """Operations received, and refused by reason."""
    text = (await api.client.get("/metrics")).text
    found = re.findall(r'paceline_ops_(received|refused)_total(?:{reason="(.*)"})? ([0-9.]+)', text)
    return {reason or what: int(float(number)) for what, reason, number in found if float(number)}


async def test_every_readable_operation_is_counted_once(api):
    await api.register()
    half = json_batch()["columns"] | {"duration_ns": [-1, 1]}
    none = json_batch()["columns"] | {"duration_ns": [-1, -1]}
    await api.push(binary_batch(100))
    await api.push(json_batch(columns=half))
    await api.push(json_batch(columns=none))
    await api.push(json_batch(epoch=7))
    await api.push(b"\xc1")
    api.queue.max_entries = 0
    await api.push(json_batch())
    assert await counts(api) == {
        "received": 100 + 2 + 2 + 2 + 2,
        "invalid": 1 + 2,
        "epoch_superseded": 2,
        "ingest_full": 2,
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 2000), max_size=6), name=st.sampled_from(["", "gzip", "zstd"]))
async def test_body_chunks_do_not_change_the_result(api, cuts, name):
    await api.client.put("/api/v1/jobs/llm-70b", json=JOB)
    body = compressed(name) if name else binary_batch(50)
    offsets = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})

    async def pieces():
        for begin, end in pairwise(offsets):
            yield body[begin:end]

    headers = {"content-type": BINARY_TYPE, "content-encoding": name or "identity"}
    answer = await api.client.post(PATH, content=pieces(), headers=headers)
    assert answer.json()["accepted"] == (500 if name else 50)
    [entry] = api.queue.reader.read(range(4), "test", count=100, block_s=0)
    assert entry.body == body
    api.queue.reader.done(entry.shard, [entry.entry_id])
