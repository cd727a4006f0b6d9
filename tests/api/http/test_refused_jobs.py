import pytest

from app.api.http.errors import refusal
from app.api.http.principal import ROOT, attach_principal
from app.api.http.request_log import ApiMetrics, RefusedJobs, RequestLog
from app.errors import QueueUnavailable
from app.store import as_of
from app.store.as_of import ANY_JOB, EVERY_JOB

OPS = "/api/v1/jobs/llm-70b/ops"


def saved(store, refused, now_s=100.0):
    with store.write() as conn:
        refused.save(conn, now_s)
    with store.read() as conn:
        return as_of.read(conn, num_shards=1, now_s=now_s).refused


def scope(path=OPS, method="POST", caller=ROOT):
    found = {"type": "http", "method": method, "path": path, "headers": []}
    if caller is not None:
        attach_principal(found, caller)
    return found


@pytest.mark.parametrize(
    ("of", "status", "jobs"),
    [
        (scope(), 503, ["default/llm-70b"]),
        (scope(), 429, ["default/llm-70b"]),
        (scope(), 202, []),
        (scope("/v1/traces"), 503, ["default/*"]),
        (scope("/api/v1/jobs/llm-70b/annotations"), 429, []),
        (scope("/api/v1/jobs/llm-70b", "GET"), 503, []),
        (scope(OPS.replace("llm-70b", "%20")), 503, []),
        (scope(caller=None), 503, [EVERY_JOB]),
        # Else anybody without a token could keep it from judging jobs.
        (scope(caller=None), 429, []),
    ],
)
def test_refused_pushes_are_of_their_jobs(api, of, status, jobs):
    refused = RefusedJobs()
    refused.note(of, status)
    assert sorted(saved(api.store, refused)) == jobs


def test_refusals_for_a_part_that_is_away_are_told_of_the_service_and_judge_no_other_job(api):
    found, refused = scope(), RefusedJobs()
    refusal(found, QueueUnavailable("the event queue does not answer"))
    refused.note(found, 503)
    assert sorted(saved(api.store, refused)) == [ANY_JOB, "default/llm-70b"]
    with api.store.read() as conn:
        processed = as_of.read(conn, num_shards=1, now_s=101.0)
    assert processed.of_service.is_refused
    assert not processed.of("default/another").is_behind
    refused.note(found, 503)
    refused.note(scope(), 202)
    assert ANY_JOB not in saved(api.store, refused, now_s=200.0), "others' pushes were taken"


@pytest.mark.parametrize(("others_get", "is_away"), [(202, False), (400, True)])
async def test_service_is_not_away_while_the_middleware_sees_other_pushes_taken(
    api, others_get, is_away
):
    async def answer(of, _receive, send):
        if of["path"] == OPS:
            refusal(of, QueueUnavailable("the event queue does not answer"))
        status = 503 if of["path"] == OPS else others_get
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def nothing():
        return {}

    async def ignore(_message):
        pass

    refused = RefusedJobs()
    log = RequestLog(answer, measured=ApiMetrics(), nouns=(), refused=refused)
    for path in (OPS, OPS.replace("llm-70b", "another")):
        await log(scope(path), nothing, ignore)
    assert (ANY_JOB in saved(api.store, refused)) is is_away
