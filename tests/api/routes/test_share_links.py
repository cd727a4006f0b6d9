"""Share links: frozen, read-only, with an expiry, and nothing of them kept that opens one."""

import base64
import dataclasses
import hashlib
import re

import pytest

from app.charts.report.html import SERVED_DRAW_SCRIPT
from app.store import audit
from app.store.credentials import share_links
from app.store.tables import share_links as table
from app.store.tables import windows
from tests.api import recorded

pytestmark = pytest.mark.anyio

SHARES = "/api/v1/jobs/llm-70b/shares"
DAY_S = 86_400


@pytest.fixture
async def job(api):
    """A job with two windows, whose links open for anyone."""
    await api.register()
    recorded.save(api, recorded.window(), recorded.window(8))
    service = api.app.state.service
    api.app.state.service = dataclasses.replace(service, share_audience="anyone")
    return api


async def share(api, **body):
    answer = await api.client.post(SHARES, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def opened(api, made, **options):
    async with api.anonymous_client(**options) as client:
        return await client.get(made["path"])


async def test_link_shows_the_figures_as_they_were_after_the_windows_expired(job):
    made = await share(job, window="1-0")
    with job.store.write() as conn:
        conn.execute(windows.delete())
    answer = await opened(job, made)
    assert answer.status_code == 200
    assert "Snapshot of llm-70b at 2026-09-21 14:13 UTC, steps 0 to 1<" in answer.text
    assert (made["window"], made["first_step"], made["last_step"]) == ("1-0", 0, 1)
    assert made["url"].endswith(made["path"])
    assert (made["opens_for"], made["state"]) == ("anyone", "active")


async def test_snapshot_runs_only_its_own_script_and_leaks_nothing(job):
    answer = await opened(job, await share(job))
    headers = answer.headers
    policies = headers.get_list("content-security-policy")
    digest = base64.b64encode(hashlib.sha256(SERVED_DRAW_SCRIPT.encode()).digest()).decode()
    assert len(policies) == 1
    assert policies[0].startswith(f"default-src 'none'; script-src 'self' 'sha256-{digest}'; ")
    assert "unsafe-inline" not in policies[0].split("style-src")[0]
    scripts = re.findall(r"<script(?! type=\"application/json\")([^>]*)>(.*?)</script>",
                         answer.text, re.DOTALL)  # fmt: skip
    assert scripts == [(' src="/static/plotly.min.js"', ""), ("", SERVED_DRAW_SCRIPT)]
    assert headers.get_list("referrer-policy") == ["no-referrer"]
    assert headers["x-robots-tag"] == "noindex, nofollow, noarchive"
    assert headers["cache-control"] == "private, no-store"
    assert '<meta name="robots" content="noindex' in answer.text


async def test_only_a_digest_of_the_link_is_stored(job):
    made = await share(job)
    token = made["path"].removeprefix("/share/")
    assert len(token) == 43
    with job.store.read() as conn:
        [row] = conn.execute(table.select()).all()
        [entry], _ = audit.page(conn, "default", object_kind="share")
    assert token not in repr(row) + repr(entry)
    assert (entry.action, entry.detail["job"]) == ("share.create", "llm-70b")
    [listed] = (await job.client.get("/api/v1/shares")).json()["items"]
    assert "path" not in listed
    assert token not in str(listed)


async def test_expired_link_shows_nothing(job):
    made = await share(job, expires_days=2)
    assert made["expires_at"] == "2026-09-23T14:13:20Z"
    job.clock.now_s += 2 * DAY_S - 1
    assert (await opened(job, made)).status_code == 200
    job.clock.now_s += 1
    answer = await opened(job, made)
    assert answer.status_code == 404
    assert "has expired, was revoked" in answer.text
    [listed] = (await job.client.get("/api/v1/shares?job=llm-70b")).json()["items"]
    assert listed["state"] == "expired"


async def test_revoked_link_shows_nothing_and_its_snapshot_is_deleted(job):
    made = await share(job)
    path = f"/api/v1/shares/{made['share_id']}"
    for _ in range(2):
        assert (await job.client.delete(path)).status_code == 204
    assert (await opened(job, made)).status_code == 404
    with job.store.read() as conn:
        [row] = conn.execute(table.select()).all()
        entries, _ = audit.page(conn, "default", object_kind="share")
    assert row.page is None
    assert [each.action for each in entries] == ["share.revoke", "share.create"]
    [listed] = (await job.client.get("/api/v1/shares")).json()["items"]
    assert listed["state"] == "revoked"
    assert (await job.client.get("/api/v1/shares?job=other")).json()["items"] == []


async def test_link_opens_only_for_who_is_signed_in_unless_the_operator_allows_more(job):
    service = job.app.state.service
    job.app.state.service = dataclasses.replace(service, share_audience="signed-in")
    made = await share(job)
    answer = await opened(job, made)
    assert (answer.status_code, "Sign in first" in answer.text) == (401, True)
    assert (await job.client.get(made["path"])).status_code == 200
    _, elsewhere = job.token("read", project="research")
    async with job.client_with(elsewhere) as client:
        assert (await client.get(made["path"])).status_code == 404
    _, of_a_worker = job.token("ingest")
    async with job.client_with(of_a_worker) as client:
        assert (await client.get(made["path"])).status_code == 403
    job.app.state.service = dataclasses.replace(service, share_audience="off")
    assert (await job.client.post(SHARES, json={})).status_code == 403
    assert (await job.client.get(made["path"])).status_code == 404


async def test_guessing_links_is_refused_after_a_few(job):
    made = await share(job)
    for number in range(10):
        assert (await opened(job, {"path": f"/share/{number}"})).status_code == 404
    assert (await opened(job, {"path": "/share/11"})).status_code == 429
    assert (await opened(job, made)).status_code == 200


async def test_links_and_snapshots_are_limited(job, monkeypatch):
    monkeypatch.setattr(share_links, "MAX_LINKS", 1)
    made = await share(job)
    answer = await job.client.post(SHARES, json={})
    assert (answer.status_code, "revoke one first" in answer.text) == (409, True)
    await job.client.delete(f"/api/v1/shares/{made['share_id']}")
    monkeypatch.setattr(share_links, "MAX_PAGE_BYTES", 100)
    answer = await job.client.post(SHARES, json={})
    assert (answer.status_code, "over the limit of 100" in answer.text) == (413, True)


@pytest.mark.parametrize(("days", "status"), [(90, 404), (91, 422)])
async def test_job_without_figures_and_link_of_over_90_days_are_refused(api, days, status):
    await api.register()
    answer = await api.client.post(SHARES, json={"expires_days": days})
    assert answer.status_code == status


async def test_range_and_chosen_steps_are_shared(job):
    made = await share(job, window="1-0..1-8")
    assert (made["first_step"], made["last_step"]) == (0, 9)
    made = await share(job, window="1-8", since_step=9)
    assert (made["first_step"], made["last_step"]) == (9, 9)
