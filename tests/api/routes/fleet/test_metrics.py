"""Metrics equal the performed operations; unmeasured values have no samples."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import delete

from app.consumer.loop import Consumer
from app.store import tables
from tests.api.server import NOW_S, TOKEN, json_batch, running
from tests.consumer.twin import ConsumerTwin, CrashingReader, Script
from tests.ops.stocked import add_job, stock

pytestmark = pytest.mark.anyio

NUM_TURNS = 3
WAYS = ("accepted", "duplicate", "conflict", "late", "dead")
OP = {"optype": "forward-compute", "start_ns": 0, "duration_ns": 4_000}


async def scraped(api):
    """Samples by name and labels."""
    async with api.anonymous_client() as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(answer.text)


def samples(text):
    return {
        (sample.name.removeprefix("paceline_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ops(*steps, **changes):
    """A batch with one operation per step; -1 is an invalid step."""
    columns = {"step": list(steps), **{name: [value] * len(steps) for name, value in OP.items()}}
    return json_batch(**{"columns": columns, "steps_done": []} | changes)


@pytest.fixture
def consume(api, tmp_path):
    """A function that runs a real consumer over the queue."""
    twin = ConsumerTwin(f"sqlite:///{tmp_path / 'paceline.db'}")
    reader = CrashingReader(api.queue, twin.crash_points)
    work = replace(twin.context, store=api.store, queue=reader, num_shards=api.queue.num_shards)
    consumer = Consumer(work, "consumer-0")

    def consume():
        for _ in range(NUM_TURNS):
            consumer.turn(Script(twin, ()))
            twin.pass_time(1.0)

    yield consume
    twin.store.close()


async def push_to_a_removed_job(api, batch):
    """Push to a job and remove it before the consumer reads the batch."""
    await api.register("gone")
    assert (await api.push(batch, "gone")).status_code == 202
    with api.store.write() as conn:
        for table in (tables.runs, tables.jobs):
            conn.execute(delete(table).where(table.c.job_id == "default/gone"))


async def test_every_received_operation_is_accounted_for(api, consume):
    epoch = await api.register(parallelism={"dp_size": 1, "pp_size": 1})
    first = ops(0, 0, 0, 0, 0, epoch=epoch, steps_done=[[0, 5]])
    pushes = [
        (first, 202),
        (first, 202),
        (ops(0, 0, 0, epoch=epoch), 202),
        (ops(1, -1, epoch=epoch, batch_seq=1), 202),
        (ops(-1, epoch=epoch, batch_seq=3), 422),
        (ops(1, epoch=epoch + 1), 409),
        (b"nonsense", 422),
    ]
    for body, status in pushes:
        assert (await api.push(body)).status_code == status
    consume()
    assert (await api.push(ops(0, 0, epoch=epoch, batch_seq=2))).status_code == 202
    await push_to_a_removed_job(api, ops(0, 0, 0, 0))
    api.queue.max_entries = 0
    assert (await api.push(ops(1, 1, epoch=epoch, batch_seq=3))).status_code == 503
    consume()
    found = await scraped(api)
    counted = {way: found[f"ops_{way}_total",] for way in WAYS}
    refused = {key[1]: value for key, value in found.items() if key[0] == "ops_refused_total"}
    assert counted == {"accepted": 6, "duplicate": 5, "conflict": 3, "late": 2, "dead": 4}
    assert refused == {"invalid": 2, "epoch_superseded": 1, "ingest_full": 2}
    assert found["ops_received_total",] == sum(refused.values()) + sum(counted.values())
    assert found["batches_received_total",] == len(pushes) + 2
    whole = {key[1]: value for key, value in found.items() if key[0] == "batches_refused_total"}
    assert whole == {"invalid": 1, "epoch_superseded": 1, "ingest_full": 1}
    assert found["ack_seconds_count",] == 6
    assert found["dead_letters",] == 1


async def test_answers_are_counted_by_route_and_status(api):
    await api.register()
    await api.push(json_batch())
    for path in ("/api/v1/jobs/none", "/api/v1/jobs/none/ops/x", "/api/v1/whatever", "/nothing"):
        await api.client.get(path)
    async with api.anonymous_client() as client:
        await client.post("/api/v1/jobs/llm-70b/ops", json={})
    found = await scraped(api)
    assert {key[1:]: value for key, value in found.items() if key[0] == "requests_total"} == {
        ("jobs", "201"): 1,
        ("jobs", "404"): 1,
        ("ops", "202"): 1,
        ("ops", "401"): 1,
        ("ops", "404"): 1,
        ("other", "404"): 1,
        ("page", "404"): 1,
    }


async def test_queue_has_entries_and_age_by_shard(api):
    began_s = api.queue.clock_s()
    api.queue.clock_s = lambda: began_s
    await api.register()
    await api.push(json_batch())
    api.queue.clock_s = lambda: began_s + 12
    found = await scraped(api)
    waiting = [found["queue_entries", str(shard)] for shard in range(4)]
    oldest_s = [found["queue_oldest_seconds", str(shard)] for shard in range(4)]
    assert sorted(waiting) == [0, 0, 0, 1]
    assert sorted(oldest_s) == [0, 0, 0, 12]
    assert ("queue_memory_bytes",) not in found


async def test_unreadable_source_has_no_samples_and_is_counted(anyio_backend, tmp_path):
    async with running(f"sqlite:///{tmp_path / 'none' / 'new.db'}") as api:
        api.queue.is_up = False
        found = await scraped(api)
    assert found["scrape_errors_total", "store"] == 1
    assert found["scrape_errors_total", "jobs"] == 1
    assert found["scrape_errors_total", "queue"] == 1
    assert found["ops_received_total",] == 0
    names = {key[0] for key in found}
    assert not names & {"ops_accepted_total", "consumers_alive", "queue_entries", "dead_letters"}


async def test_metrics_without_a_token_have_no_names(api):
    await api.register("secret-job", name="secret-name")
    await api.push(json_batch(host="secret-host"), "secret-job")
    async with api.anonymous_client() as client:
        assert "secret" not in (await client.get("/metrics")).text


async def test_alerts_and_deliveries_are_counted_without_names(api):
    stock(api.store, now_s=NOW_S)
    found = await scraped(api)
    firing = {key[1]: value for key, value in found.items() if key[0] == "alerts_firing"}
    assert firing == {"info": 0, "warning": 0, "critical": 1}
    sent = {key[1]: value for key, value in found.items() if key[0] == "webhook_deliveries_total"}
    none = dict.fromkeys(("retried", "silenced", "outdated"), 0)
    assert sent == {"delivered": 5, "failed": 2, **none}
    assert found["notifier_disabled_endpoints",] == 1
    assert found["jobs", "straggling"] == 2
    assert (found["jobs", "stalled"], found["jobs", "finished"]) == (1, 1)
    assert found["gpus",] == 5 * 4
    lost = 4 * (1 - 1 / 1.25) + 4 * (1 - 1 / 1.5) + 4 * (1 - 1 / 1.01) + 4
    assert found["gpu_hours_lost_per_hour",] == pytest.approx(lost)
    assert not [key for key in found if key[0].startswith(("job_", "worst_"))]


async def named(api, token, **options):
    """Samples of a caller with a token."""
    async with api.client_with(token) as client:
        answer = await client.get("/metrics", **options)
    assert answer.status_code == 200, answer.text
    return samples(answer.text)


async def test_read_token_gets_the_projects_costliest_jobs(api):
    stock(api.store, now_s=NOW_S)
    found = await named(api, api.token("read")[1])
    slowdowns = {key[1:]: value for key, value in found.items() if key[0] == "job_slowdown_ratio"}
    assert slowdowns == {("slow", "default"): 1.25, ("well", "default"): 1.01}
    assert found["job_gpu_time_wasted_ratio", "slow", "default"] == pytest.approx(0.2)
    assert found["job_gpu_hours_lost_per_hour", "slow", "default"] == pytest.approx(0.8)
    assert found["job_gpu_hours_lost_per_hour", "hung", "default"] == 4
    states = {(key[1], key[3]) for key in found if key[0] == "job_state"}
    assert states == {
        ("slow", "straggling"),
        ("well", "healthy"),
        ("hung", "stalled"),
        ("half", "silent"),
    }
    assert found["job_cause_gpu_time_ratio", "slow-worker", "slow", "default"] == 0.15
    assert found["job_step_seconds", "slow", "default"] == 1.3
    worst = {key[1:]: value for key, value in found.items() if key[0].startswith("worst_worker")}
    assert worst == {("gpu-node-7", "slow", "default", "1-1"): 1.25}
    assert found["jobs_left_out",] == 0


async def test_root_token_gets_jobs_of_all_projects(api):
    stock(api.store, now_s=NOW_S)
    found = await named(api, TOKEN)
    assert found["job_slowdown_ratio", "theirs", "research"] == 1.5
    assert ("worst_worker_slowdown_ratio", "gpu-node-7", "theirs", "research", "1-1") in found


async def test_number_of_job_and_worker_series_is_limited(anyio_backend, database_url):
    async with running(database_url, metrics_top_jobs=2) as api:
        for number in range(30):
            add_job(api.store, f"job-{number}", slowdown=1.2 + number / 100, now_s=NOW_S)
        found = await named(api, TOKEN)
    shown = {key[1] for key in found if key[0] == "job_state"}
    assert shown == {"job-29", "job-28"}
    assert found["jobs_left_out",] == 28
    assert sum(key[0] == "worst_worker_slowdown_ratio" for key in found) == 20


@pytest.mark.parametrize("scope", ["ingest", "write", "admin"])
async def test_token_without_read_gets_no_names(api, scope):
    async with api.client_with(api.token(scope)[1]) as client:
        assert (await client.get("/metrics")).status_code == 403


async def test_wrong_token_is_refused(api):
    async with api.client_with("pl_" + "x" * 40) as client:
        answer = await client.get("/metrics")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorised")
