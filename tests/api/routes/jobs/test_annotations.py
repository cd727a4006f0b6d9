"""Annotations over HTTP: who may push them, where they lie, and what names them."""

import dataclasses

import pytest

from app.store import annotations as stored
from app.store import audit, windows
from app.store.windows import StepRow
from tests.api.server import KEY, NOW_S, window_record, with_result
from tests.results import finding

pytestmark = pytest.mark.anyio

JOB = "/api/v1/jobs/llm-70b"
PATH = f"{JOB}/annotations"
PROJECT = "/api/v1/annotations"
DEPLOY = {"kind": "deploy", "text": "v1.4", "source": "ci"}


@pytest.fixture
async def job(api):
    await api.register()
    return api


async def add(api, path=PATH, status=201, **body):
    answer = await api.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def listed(api, path=PATH, **query):
    answer = await api.client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def test_pushed_annotation_is_listed_with_its_words_and_author(job):
    made = await add(job, **DEPLOY)
    [found] = await listed(job)
    assert found == made | {"placed_epoch": None, "placed_step": None}
    assert (found["label"], found["at"]) == ("deploy v1.4", "2026-09-21T14:13:20Z")
    assert (found["source"], found["author"], found["step"]) == ("ci", "root token", None)
    assert await listed(job, PROJECT) == [made]


async def test_repeated_push_with_a_key_is_stored_once(job):
    first = await add(job, **DEPLOY, idempotency_key="deploy-1.4")
    again = await add(job, status=200, **DEPLOY, idempotency_key="deploy-1.4")
    assert again == first
    await job.register("another")
    await add(job, "/api/v1/jobs/another/annotations", **DEPLOY, idempotency_key="deploy-1.4")
    assert len(await listed(job, PROJECT)) == 2
    with job.store.read() as conn:
        found, _ = audit.page(conn, "default", object_kind="annotation")
    assert [each.action for each in found] == ["annotation.add", "annotation.add"]


async def test_annotations_are_paged_and_filtered_by_time_and_kind(job):
    for minute in range(5):
        kind = "checkpoint" if minute % 2 else "deploy"
        ends = {"ends_at": "2026-09-21T12:30:00Z"} if minute == 0 else {}
        await add(job, kind=kind, text=str(minute), at=f"2026-09-21T12:0{minute}:00Z", **ends)
    first = (await job.client.get(PATH, params={"limit": 2})).json()
    cursor = {"limit": 2, "cursor": first["next_cursor"]}
    second = (await job.client.get(PATH, params=cursor)).json()
    texts = [each["text"] for each in first["items"] + second["items"]]
    assert texts == ["4", "3", "2", "1"]
    span = {"from": "2026-09-21T12:02:00Z", "to": "2026-09-21T12:04:00Z"}
    # The one that lasts half an hour overlaps.
    assert [each["text"] for each in await listed(job, **span)] == ["3", "2", "0"]
    assert [each["text"] for each in await listed(job, PROJECT, **span)] == ["3", "2", "0"]
    assert [each["text"] for each in await listed(job, kind="checkpoint")] == ["3", "1"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"kind": "note"}, "needs one"),
        ({"kind": "party"}, "kind"),
        ({"kind": "note", "text": "a\nb"}, "text"),
        ({"kind": "note", "text": "x" * 501}, "text"),
        ({"kind": "deploy", "at": "2026-09-21T15:13:21Z"}, "an hour ahead"),
        ({"kind": "deploy", "ends_at": "2026-09-20T00:00:00Z"}, "not before"),
        ({"kind": "deploy", "step": -1}, "step"),
    ],
)
async def test_wrong_annotation_is_refused_with_the_reason(job, body, reason):
    answer = await job.client.post(PATH, json=body)
    assert answer.status_code == 422
    assert reason in answer.text


async def test_too_many_annotations_in_a_minute_are_refused(job, monkeypatch):
    monkeypatch.setattr(stored, "MAX_PER_MINUTE", 2)
    for _ in range(2):
        await add(job, **DEPLOY)
    answer = await job.client.post(PATH, json=DEPLOY)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    job.clock.now_s += 61
    await add(job, **DEPLOY)


async def test_over_the_limit_the_oldest_annotation_goes(job, monkeypatch):
    monkeypatch.setattr(stored, "MAX_ANNOTATIONS", 2)
    for hour in (3, 1, 2):
        await add(job, kind="checkpoint", text=str(hour), at=f"2026-09-21T0{hour}:00:00Z")
    assert [each["text"] for each in await listed(job)] == ["3", "2"]


async def test_deleted_annotation_stays_in_the_audit(job):
    made = await add(job, **DEPLOY)
    path = f"{PATH}/{made['annotation_id']}"
    await job.register("another")
    wrong = await job.client.delete(path.replace("llm-70b", "another"))
    assert wrong.status_code == 404
    assert (await job.client.delete(path)).status_code == 204
    assert (await job.client.delete(path)).json()["code"] == "annotation_not_found"
    assert await listed(job) == []
    with job.store.read() as conn:
        [entry, _], _ = audit.page(conn, "default", object_kind="annotation")
    assert entry.action == "annotation.delete"
    assert (entry.detail["job_id"], entry.detail["text"]) == ("llm-70b", "v1.4")


async def test_token_of_one_job_annotates_this_job_only(job):
    _, text = job.token("ingest", job="llm-70b")
    async with job.client_with(text) as client:
        assert (await client.post(PATH, json=DEPLOY)).status_code == 201
        assert (await client.post(PROJECT, json=DEPLOY)).status_code == 403
        other = await client.post("/api/v1/jobs/another/annotations", json=DEPLOY)
        assert other.status_code == 404


def save_window(api, first_step, *, updated_s, **parts):
    record = dataclasses.replace(window_record(first_step), updated_s=updated_s)
    api.save_window(with_result(record, **parts))


async def test_annotation_lies_at_its_step_or_at_the_first_one_after_its_time(job):
    for number in range(3):
        save_window(job, 2 * number, updated_s=NOW_S + 10.0 * (number + 1))
    await add(job, kind="checkpoint", step=3, text="given")
    await add(job, kind="deploy", text="by time", at="2026-09-21T14:13:31Z")
    await add(job, kind="deploy", text="newest", at="2026-09-21T14:23:00Z")
    await add(job, kind="deploy", text="too early", at="2026-09-21T02:00:00Z")
    found = {each["text"]: each["placed_step"] for each in await listed(job)}
    assert found == {"given": 3, "by time": 2, "newest": 6, "too early": None}
    ribbon = (await job.client.get(f"{JOB}/ribbon")).json()
    events = [each for each in ribbon["events"] if each["kind"] == "annotation"]
    assert [(each["step"], each["text"], each["at"]) for each in events] == [
        (2, "deploy by time", "2026-09-21T14:13:31Z"),
        (3, "checkpoint given", "2026-09-21T14:13:20Z"),
    ]
    assert events[0]["detail"] == "deploy by time"


async def test_annotation_lies_at_the_first_step_that_started_after_it(job):
    for number in range(2):  # analysed an hour after they ran
        save_window(job, 2 * number, updated_s=NOW_S + 3600)
    rows = [StepRow(1, step, 1.0, 1.0, 1.0, 1.0, "", started_s=NOW_S + step) for step in range(4)]
    with job.store.write() as conn:
        windows.save_steps(conn, KEY, rows)
    for second in (0, 1, 2, 3, 4):
        await add(job, kind="note", text=str(second), at=f"2026-09-21T14:13:{20 + second}.000Z")
    await add(job, kind="note", text="half", at="2026-09-21T14:13:21.5Z")
    found = {each["text"]: each["placed_step"] for each in await listed(job)}
    assert found == {"0": 0, "1": 1, "half": 2, "2": 2, "3": 3, "4": 4}


async def test_finding_that_begins_soon_after_an_annotation_names_it(job):
    findings = [finding(onset_step=step) for step in (1, 3, 9, None)]
    save_window(job, 0, updated_s=NOW_S + 10, findings=findings)
    await add(job, **DEPLOY, step=1)
    await add(job, kind="config-change", text="later", step=4)
    found = (await job.client.get(f"{JOB}/windows/1-0")).json()["findings"]
    sentences = [[each["sentence"] for each in one.get("after", ())] for one in found]
    careful = "This is a match in time, not a proven cause."
    assert sentences == [
        [f"Begins in the step of: deploy v1.4. {careful}"],
        [f"Begins 2 steps after: deploy v1.4. {careful}"],
        [f"Begins 5 steps after: config change later. {careful}"],
        [],
    ]


async def test_chart_of_step_times_marks_an_annotation(job):
    save_window(job, 0, updated_s=NOW_S + 10)
    await add(job, kind="note", text="<b>&", step=1)
    api_figure = (await job.client.get(f"{JOB}/charts/steps")).json()
    texts = [each["text"] for each in api_figure["layout"]["annotations"]]
    assert "&lt;b&gt;&amp;" in texts
