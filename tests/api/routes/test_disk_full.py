"""A disk that fills, as callers of the API see it: pushes, readiness, metrics, the session."""

from pathlib import Path

import pytest

from app.errors import DiskFull
from app.store.disk.forecast import SAMPLE_EVERY_S
from app.store.disk.usage import DiskMarks, DiskUsage, DiskWatch
from app.store.tables import disk_samples
from tests.api.server import running

GB = 10**9
REFUSED = ": batches are refused until there is space"


pytestmark = pytest.mark.anyio


def watch_at(used_gb):
    """A watch of a disk of 100 GB, with so much used."""
    usage = DiskUsage(int(used_gb * GB), int((100 - used_gb) * GB))
    return DiskWatch([Path("/data")], DiskMarks(ample_bytes=50 * GB), measure=lambda _: usage)


@pytest.mark.parametrize(
    ("used_gb", "status", "sentence"),
    [
        (50, 200, "the disk has room"),
        (85, 200, "the disk is 85 % full, with 15 GB free"),
        (
            97,
            503,
            "the disk is 97 % full, with 3 GB free: batches are refused until there is space",
        ),
    ],
)
async def test_readiness_names_a_disk_that_fills(database_url, used_gb, status, sentence):
    async with running(database_url, disk=watch_at(used_gb)) as api:
        answer = await api.client.get("/readyz")
    assert answer.status_code == status
    assert answer.json()["checks"]["disk"] == {"ok": used_gb == 50, "sentence": sentence}
    if status == 503:
        assert f"disk: {sentence}" in answer.json()["detail"]


async def test_only_operators_are_told_on_the_pages(database_url):
    told = {}
    async with running(database_url, disk=watch_at(91)) as api:
        _, text = api.token("read")
        for name, client in {"operator": api.client, "reader": api.client_with(text)}.items():
            told[name] = (await client.get("/api/v1/session")).json().get("disk")
    assert told == {
        "operator": (
            "the disk is 91 % full, with 9 GB free: the operations of new windows are not stored"
        ),
        "reader": None,
    }


async def test_metrics_have_bytes_by_table_and_days_left_once_measured(database_url):
    async with running(database_url, disk=watch_at(40)) as api:
        text = (await api.client.get("/metrics")).text
    assert 'paceline_table_bytes{table="windows"}' in text
    assert "paceline_disk_free_bytes 6e+10" in text
    assert "paceline_disk_days_left" not in text
    assert "paceline_disk_reusable_bytes" not in text


async def test_space_inside_a_database_is_shown_beside_all_that_is_free(database_url):
    disk = DiskWatch()
    disk.database_disk_bytes = 100 * GB
    disk.note_database(95 * GB, reusable_bytes=40 * GB)
    async with running(database_url, disk=disk) as api:
        text = (await api.client.get("/metrics")).text
        status = (await api.client.get("/api/v1/status")).json()
    assert "paceline_disk_free_bytes 4.5e+10" in text
    assert "paceline_disk_reusable_bytes 4e+10" in text
    assert status["disk"] == {
        "free_bytes": 45 * GB,
        "used_share": 0.55,
        "days_left": None,
        "reusable_bytes": 40 * GB,
    }


async def test_metrics_say_days_left_by_the_growth_that_was_saved(database_url):
    # 1 GB in 2 hours, so that 60 GB last 5 days.
    rows = [{"at_s": n * SAMPLE_EVERY_S, "used_bytes": 39 * GB + n * GB // 12} for n in range(13)]
    async with running(database_url, disk=watch_at(40)) as api:
        with api.store.write() as conn:
            conn.execute(disk_samples.insert(), rows)
        lines = (await api.client.get("/metrics")).text.splitlines()
    [line] = [line for line in lines if line.startswith("paceline_disk_days_left ")]
    assert float(line.split()[1]) == pytest.approx(5.0)


async def test_refused_push_says_that_the_disk_is_full_and_when_to_come_back(
    database_url, monkeypatch
):
    full = watch_at(99.99)

    async with running(database_url) as api:
        await api.register()

        async def refuse(_job_id, _body):
            full.refuse_batches()

        monkeypatch.setattr(api.queue.writer, "append", refuse)
        batch = {
            "version": 1, "epoch": 1, "rank": 0, "dp_rank": 0, "stage": 0, "batch_seq": 0,
            "steps_done": [[100, 1]],
            "rows": [{"step": 100, "optype": "forward-compute", "start_ns": 10**18,
                      "duration_ns": 3_000_000, "mb_id": 0}],
        }  # fmt: skip
        answer = await api.push(batch)
    assert (answer.status_code, answer.json()["code"]) == (503, DiskFull.code)
    assert 3 <= int(answer.headers["retry-after"]) <= 6, "spread, so that not all come at once"
    assert answer.json()["detail"] == (
        "the server's disk is full, with 10 MB free; nothing was stored; "
        "free space or lower keep_raw_days"
    )
