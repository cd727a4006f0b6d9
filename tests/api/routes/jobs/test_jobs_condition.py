"""Silent ranks and lost operations: the API shows what the consumer stored."""

import pytest

from app.alerts.alert import Detail
from app.api.routes.jobs.jobs import MAX_SILENT_RANKS
from app.store import as_of, runs, shards
from app.store.alerting import alerts
from app.store.runs import IngestCounts
from app.trace.job import shard_of
from tests.api.server import NOW_S, window_record
from tests.store.factories import alert, event

pytestmark = pytest.mark.anyio

KEY = "default/llm-70b"


@pytest.fixture
async def save_silence(api):
    """A function that saves silent ranks of a job as a consumer does, and gets the job."""
    await api.register()
    api.save_window(window_record(slowdown=1.25))
    beat(api, NOW_S)

    async def save_ranks(
        *, silent_ranks=(), silent_workers=(), silent_since_s=None, stalled_since_s=None
    ):
        with api.store.write() as conn:
            silence = (silent_ranks, silent_workers, silent_since_s, stalled_since_s)
            runs.save_silent_ranks(conn, KEY, 1, runs.SilentRanks(*silence))
        return (await api.client.get("/api/v1/jobs/llm-70b")).json()

    return save_ranks


def beat(api, now_s):
    with api.store.write() as conn:
        shards.heartbeat(conn, "consumer-0", now_s=now_s, lease_s=15)


async def headline(api):
    return (await api.client.get("/api/v1/jobs/llm-70b/headline")).json()


async def test_silent_ranks_are_named(api, save_silence):
    job = await save_silence(silent_ranks=[1, 3], silent_workers=[1, 3], silent_since_s=NOW_S - 60)
    assert (job["state"], job["silent_ranks"], job["num_silent_ranks"]) == ("silent", [1, 3], 2)
    assert job["silent_since"] == "2026-09-21T14:12:20Z"
    assert (await headline(api))["sentence"] == (
        "Ranks 1 and 3 have been silent since 14:12 UTC; 2 others go on."
    )


async def test_silent_workers_are_named_by_rank_and_host(api, save_silence):
    job = await save_silence(silent_ranks=[7], silent_workers=[3], silent_since_s=NOW_S - 60)
    assert job["silent_workers"] == [{"dp_rank": 1, "stage": 1}]
    assert (await headline(api))["sentence"].startswith("Rank 7 (dp 1, stage 1")


async def test_long_list_of_silent_ranks_is_cut_and_counted(api, save_silence):
    job = await save_silence(silent_ranks=list(range(5000)))
    assert job["silent_ranks"] == list(range(MAX_SILENT_RANKS))
    assert job["num_silent_ranks"] == 5000


async def test_job_without_data_is_stalled(api, save_silence):
    job = await save_silence(stalled_since_s=NOW_S - 600)
    assert (job["state"], job["stalled_since"]) == ("stalled", "2026-09-21T14:03:20Z")
    assert (await headline(api))["sentence"].startswith(
        "No worker has sent anything since 14:03 UTC."
    )


async def test_missing_data_is_drawn_after_the_last_step(api, save_silence):
    async def drawn():
        figure = (await api.client.get("/api/v1/jobs/llm-70b/charts/steps")).json()
        notes = figure["layout"].get("annotations", [])
        return [note["text"].replace("<br>", " ") for note in notes]

    await save_silence(silent_ranks=[1])
    assert "1 rank silent" in await drawn()
    await save_silence(stalled_since_s=NOW_S)
    assert any(text.startswith("no data for") for text in await drawn())
    await save_silence()
    assert await drawn() == []


async def test_state_is_unknown_while_data_is_not_processed(api, save_silence):
    await save_silence()
    shard = shard_of(KEY, 4)
    with api.store.write() as conn:
        shards.acquire(conn, shard, "me", now_s=NOW_S, lease_s=15.0)
        as_of.note_taken(conn, "me", {shard: 0.0}, now_s=NOW_S)
    api.clock.now_s = NOW_S + 240
    listed = (await api.client.get("/api/v1/jobs")).json()["items"][0]
    for shown in (listed, await headline(api)):
        assert (shown["state"], shown["behind_s"]) == ("unknown", 240.0)
        assert shown["as_of"] == "2026-09-21T14:13:20Z"
    assert shown["sentence"].startswith("Paceline is behind: what this job does since 14:13 UTC")
    with api.store.write() as conn:
        as_of.note_taken(conn, "another", {shard: 0.0}, now_s=api.clock.now_s)
    assert (await headline(api))["state"] == "unknown", "it does not hold the shard"
    with api.store.write() as conn:
        as_of.note_taken(conn, "me", {shard: 0.0}, now_s=api.clock.now_s)
    assert (await headline(api))["state"] == "straggling"
    with api.store.write() as conn:
        as_of.note_refused(conn, [KEY], now_s=api.clock.now_s)
    refused = await headline(api)
    assert refused["sentence"].startswith("Paceline cannot take what this job sends: what this job")


async def test_a_recovered_job_leads_with_what_happened(api, save_silence):
    await save_silence()
    api.save_window(window_record(first_step=8, slowdown=1.01))
    slow = Detail(on="slowdown", slowdown=1.42, since_step=0, since_at_s=NOW_S - 900)
    well = Detail(on="slowdown", slowdown=1.01, since_step=8, since_at_s=NOW_S - 300)
    mark = {"fingerprint": "ab", "job_id": KEY, "rule": "slowdown", "subject": ""}
    with api.store.write() as conn:
        for kind, detail, at_s in (("firing", slow, -800.0), ("resolved", well, -200.0)):
            alerts.add_event(
                conn, event(**mark, kind=kind, detail=detail, at_s=NOW_S + at_s, threshold=1.1)
            )
    shown = await headline(api)
    assert shown["state"] == "healthy"
    assert shown["sentence"] == (
        "Recovered since step 8. From step 0 until then: the job at 1.42\u00d7 of its ideal. "
        "It lasted 10 min."
    )
    assert shown["sub"].startswith("Now: This job runs at")
    with api.store.write() as conn:
        alerts.save(conn, [alert(KEY, "cause")])
    assert not (await headline(api))["sentence"].startswith("Recovered"), "another fires"


async def test_job_has_the_counts_of_its_operations(api, save_silence):
    sample = {"rank": 3, "batch_seq": 9}
    with api.store.write() as conn:
        runs.save(conn, KEY, 1, IngestCounts(100, 5, 4, 3, 2, 1, sample))
    assert (await save_silence())["ingest"] == {
        "accepted": 100,
        "duplicate": 5,
        "conflict": 4,
        "late": 3,
        "dead": 2,
        "lost_batches": 1,
        "last_conflict": sample,
        "in_groups": None,
    }
