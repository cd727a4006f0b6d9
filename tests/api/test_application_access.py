"""Every operation with every kind of caller, permitted and refused."""

from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import pytest

from app.alerts.alert import fingerprint
from app.api.http.auth import Authenticator
from app.api.http.principal import ROOT
from app.store import fleet, hosts, jobs, tokens, windows
from app.store.alerting import receivers, silences
from app.store.database import insert_new
from app.store.fleet import Loss
from app.store.tables import annotations as annotations_table
from app.store.tables import fixes as fixes_table
from app.store.tables import jobs as jobs_table
from app.store.tables import saved_questions, saved_views, share_links
from app.store.windows import StepRow
from tests.api import alerting, recorded
from tests.api.server import (
    JOB,
    KEY,
    NOW_S,
    TOKEN,
    binary_batch,
    json_batch,
    recorded_record,
)
from tests.consumer.jobs import SLOW
from tests.store import factories

pytestmark = pytest.mark.anyio

# Operations that need no token.
OPEN = {
    *("get_health", "get_readiness", "get_metrics", "get_session", "sign_in"),
    "get_linked_picture",  # authorised by its link: tests/api/routes/test_pictures_links.py
}

WINDOW = "/api/v1/jobs/llm-70b/windows/latest"
AN_OPERATION = "stage=0&optype=forward-compute&seq_id=0"
WORKER = "/api/v1/jobs/llm-70b/workers/1-1"
QUESTIONS = "/api/v1/jobs/llm-70b/what-ifs"
SAVED = "ab" * 12
FIXES = "/api/v1/jobs/llm-70b/fixes"
ANNOTATIONS = "/api/v1/jobs/llm-70b/annotations"
A_NOTE = {"kind": "note", "text": "a test"}
RECORDING = "/api/v1/jobs/llm-70b/recording"
PAST_THE_LIMIT_S = 60.0  # past the limit of failed sign-ins
ALERT = f"/api/v1/alerts/{fingerprint(KEY, 'slowdown', '')}"
ENDPOINT = "/api/v1/receivers/ep_1"
A_SILENCE = {
    "matchers": [{"label": "job", "pattern": "llm-*"}],
    "ends_at": "2026-09-21T15:13:20Z",
    "comment": "a test",
}
AN_EXIT = {"epoch": 1, "rank": 0, "dp_rank": 0, "stage": 0, "outcome": "finished"}
AN_ENDPOINT = {"name": "a", "url": "https://hooks.example.com/"}
SIDES = "a=llm-70b:latest&b=llm-70b:latest"


@dataclass(frozen=True)
class Operation:
    """A valid request, and the scope it needs, if any; some are permitted with either of two.

    `elsewhere` is the status for a caller of another project.
    """

    method: str
    path: str
    scope: str | None
    json: Any = None
    elsewhere: int = 404
    or_scope: str | None = None

    @property
    def scopes(self) -> list[str]:
        return [scope for scope in (self.scope, self.or_scope) if scope]


GUARDED = {
    "get_fleet": Operation("GET", "/api/v1/fleet", "read", elsewhere=200),
    "get_fleet_chart": Operation("GET", "/api/v1/fleet/charts/waste", "read", elsewhere=204),
    "list_hosts": Operation("GET", "/api/v1/hosts", "read", elsewhere=200),
    "get_host": Operation("GET", "/api/v1/hosts/host-a", "read"),
    "register_job": Operation("PUT", "/api/v1/jobs/llm-70b", "ingest", JOB, elsewhere=201),
    "end_job": Operation("POST", "/api/v1/jobs/llm-70b/end", "ingest"),
    "report_exit": Operation("POST", "/api/v1/jobs/llm-70b/exits", "ingest", AN_EXIT),
    "edit_job": Operation("PATCH", "/api/v1/jobs/llm-70b", "write", {"labels": {"owner": "a"}}),
    "archive_job": Operation("POST", "/api/v1/jobs/llm-70b/archive", "write"),
    "unarchive_job": Operation("POST", "/api/v1/jobs/llm-70b/unarchive", "write"),
    "delete_job": Operation("DELETE", "/api/v1/jobs/llm-70b", "admin"),
    "restore_job": Operation("POST", "/api/v1/jobs/llm-70b/restore", "admin"),
    "list_views": Operation("GET", "/api/v1/views", "read", elsewhere=200),
    "save_view": Operation(
        "POST", "/api/v1/views", "write", {"name": "mine", "query": {}}, elsewhere=201
    ),
    "delete_view": Operation("DELETE", f"/api/v1/views/{SAVED}", "write"),
    "search": Operation("GET", "/api/v1/search?q=llm", "read", elsewhere=200),
    "list_jobs": Operation("GET", "/api/v1/jobs", "read", elsewhere=200),
    "get_job": Operation("GET", "/api/v1/jobs/llm-70b", "read"),
    "get_recording": Operation("GET", RECORDING, "read"),
    "set_recording": Operation("PUT", RECORDING, "admin", {"every": 10}),
    "list_fixes": Operation("GET", "/api/v1/fixes", "read", elsewhere=200),
    "list_fixes_of_job": Operation("GET", FIXES, "read"),
    "track_fix": Operation("POST", FIXES, "write", {"window": "1-8", "fix": "replace-worker"}),
    "delete_fix": Operation("DELETE", f"{FIXES}/{SAVED}", "write"),
    "add_annotation": Operation("POST", ANNOTATIONS, "ingest", A_NOTE, or_scope="write"),
    "list_annotations_of_job": Operation("GET", ANNOTATIONS, "read"),
    "delete_annotation_of_job": Operation("DELETE", f"{ANNOTATIONS}/{SAVED}", "write"),
    "add_project_annotation": Operation(
        "POST", "/api/v1/annotations", "ingest", A_NOTE, elsewhere=201, or_scope="write"
    ),
    "list_annotations": Operation("GET", "/api/v1/annotations", "read", elsewhere=200),
    "delete_annotation": Operation("DELETE", f"/api/v1/annotations/{SAVED}", "write"),
    "create_share": Operation("POST", "/api/v1/jobs/llm-70b/shares", "write", {}),
    "list_shares": Operation("GET", "/api/v1/shares", "read", elsewhere=200),
    "revoke_share": Operation("DELETE", f"/api/v1/shares/{SAVED}", "write"),
    "push_spans": Operation("POST", "/v1/traces", "ingest", {}, elsewhere=200),
    "push_ops": Operation("POST", "/api/v1/jobs/llm-70b/ops", "ingest", json_batch()),
    "list_windows": Operation("GET", "/api/v1/jobs/llm-70b/windows", "read"),
    "get_window": Operation("GET", WINDOW, "read"),
    "get_window_workers": Operation("GET", f"{WINDOW}/workers", "read"),
    "get_window_timeline": Operation("GET", f"{WINDOW}/timeline", "read"),
    "get_window_trace": Operation("GET", f"{WINDOW}/trace", "read"),
    "get_window_arrivals": Operation("GET", f"{WINDOW}/arrivals", "read"),
    "get_window_critical_path": Operation("GET", f"{WINDOW}/critical-path", "read"),
    "get_window_step": Operation("GET", f"{WINDOW}/step", "read"),
    "get_window_operation": Operation("GET", f"{WINDOW}/operation?{AN_OPERATION}", "read"),
    "get_timeline_chart": Operation("GET", f"{WINDOW}/charts/timeline", "read"),
    "get_path_parts_chart": Operation("GET", f"{WINDOW}/charts/path-parts", "read"),
    "get_waiting_chart": Operation("GET", f"{WINDOW}/charts/waiting", "read"),
    "get_worker": Operation("GET", WORKER, "read"),
    "get_worker_chart": Operation("GET", f"{WORKER}/charts/course", "read"),
    "ask_what_if": Operation("POST", f"{WINDOW}/what-if", "read", {"edits": []}),
    "get_advice": Operation("GET", f"{WINDOW}/advice", "read"),
    "list_saved_questions": Operation("GET", QUESTIONS, "read"),
    "save_question": Operation(
        "POST", QUESTIONS, "write", {"name": "all ideal", "window": "1-0", "edits": []}
    ),
    "get_saved_question": Operation("GET", f"{QUESTIONS}/{SAVED}", "read"),
    "delete_saved_question": Operation("DELETE", f"{QUESTIONS}/{SAVED}", "write"),
    "compare": Operation("GET", f"/api/v1/compare?{SIDES}", "read"),
    "get_compare_chart": Operation("GET", f"/api/v1/compare/charts/steps?{SIDES}", "read"),
    "list_steps": Operation("GET", "/api/v1/jobs/llm-70b/steps", "read"),
    "get_window_chart": Operation("GET", f"{WINDOW}/charts/workers", "read"),
    "get_steps_chart": Operation("GET", "/api/v1/jobs/llm-70b/charts/steps", "read"),
    "get_time_range": Operation("GET", "/api/v1/jobs/llm-70b/time-range?from=last-15m", "read"),
    "get_ribbon": Operation("GET", "/api/v1/jobs/llm-70b/ribbon", "read"),
    "get_headline": Operation("GET", "/api/v1/jobs/llm-70b/headline", "read"),
    "list_alert_transitions": Operation("GET", "/api/v1/alerts/transitions?job=llm-70b", "read"),
    "list_alerts": Operation("GET", "/api/v1/alerts", "read", elsewhere=200),
    "get_alert": Operation("GET", ALERT, "read"),
    "acknowledge_alert": Operation("POST", f"{ALERT}/acknowledge", "write"),
    "assign_alert": Operation("POST", f"{ALERT}/assign", "write", {"to": "Maria"}),
    "unassign_alert": Operation("DELETE", f"{ALERT}/assign", "write"),
    "add_note": Operation("POST", f"{ALERT}/notes", "write", {"text": "see OPS-17"}),
    "unacknowledge_alert": Operation("DELETE", f"{ALERT}/acknowledge", "write"),
    "get_rules": Operation("GET", "/api/v1/rules", "read", elsewhere=200),
    "set_rules": Operation("PUT", "/api/v1/rules", "admin", {"rules": []}, elsewhere=200),
    "reset_rules": Operation("DELETE", "/api/v1/rules", "admin", elsewhere=200),
    "check_rules": Operation("POST", "/api/v1/rules/check", "read", {"rules": []}, elsewhere=200),
    "list_silences": Operation("GET", "/api/v1/silences", "read", elsewhere=200),
    "create_silence": Operation("POST", "/api/v1/silences", "write", A_SILENCE, elsewhere=201),
    "get_silence": Operation("GET", "/api/v1/silences/aa", "read"),
    "end_silence": Operation("DELETE", "/api/v1/silences/aa", "write"),
    "create_receiver": Operation("POST", "/api/v1/receivers", "admin", AN_ENDPOINT, elsewhere=201),
    "get_receiver": Operation("GET", ENDPOINT, "read"),
    "change_receiver": Operation("PATCH", ENDPOINT, "admin", {"name": "another"}),
    "remove_receiver": Operation("DELETE", ENDPOINT, "admin"),
    "rotate_receiver_secret": Operation("POST", f"{ENDPOINT}/rotate", "admin"),
    "enable_receiver": Operation("POST", f"{ENDPOINT}/enable", "admin"),
    "test_receiver": Operation("POST", f"{ENDPOINT}/test", "admin"),
    "get_delivery": Operation("GET", "/api/v1/deliveries/{delivery}", "read"),
    "replay_delivery": Operation("POST", "/api/v1/deliveries/{delivery}/replay", "write"),
    "list_audit": Operation("GET", "/api/v1/audit", "admin", elsewhere=200),
    "stream_events": Operation("GET", "/api/v1/events", "read", elsewhere=200),
    "sign_out": Operation("DELETE", "/api/v1/session", None, elsewhere=204),
    "list_sessions": Operation("GET", "/api/v1/sessions", "read", elsewhere=200),
    # The caller's own: tests/api/routes/test_session.py has those of others.
    "end_session": Operation("DELETE", "/api/v1/sessions/{session}", "read", elsewhere=204),
    "list_tokens": Operation("GET", "/api/v1/tokens", "admin", elsewhere=200),
    "create_token": Operation(
        "POST", "/api/v1/tokens", "admin", {"name": "a", "scopes": ["read"]}, elsewhere=201
    ),
    "revoke_token": Operation("DELETE", "/api/v1/tokens/{token}", "admin"),
    "test_new_receiver": Operation(
        "POST", "/api/v1/receiver-tests", "admin", AN_ENDPOINT, elsewhere=200
    ),
    "test_receiver_change": Operation(
        "POST", f"{ENDPOINT}/test-change", "admin", {"name": "other"}
    ),
    "list_receivers": Operation("GET", "/api/v1/receivers", "read", elsewhere=200),
    "list_deliveries": Operation("GET", "/api/v1/deliveries", "read", elsewhere=200),
    "get_demo": Operation("GET", "/api/v1/demo", "read", elsewhere=200),
    "start_demo": Operation("POST", "/api/v1/demo", "admin", elsewhere=409),
    "stop_demo": Operation("DELETE", "/api/v1/demo", "admin", elsewhere=200),
    "get_settings": Operation("GET", "/api/v1/settings", "read", elsewhere=200),
    "get_status": Operation("GET", "/api/v1/status", "read", elsewhere=200),
    "set_retention": Operation(
        "PUT",
        "/api/v1/settings/retention",
        "admin",
        {"raw_days": 30.0, "results_days": None},
        elsewhere=200,
    ),
}
NOT_THERE = tuple(
    f"{noun}_not_found"
    for noun in (
        *("job", "token", "host", "alert", "silence", "endpoint", "delivery", "view"),
        *("annotation", "share", "session"),
    )
)
OF_JOBS = sorted(name for name, asked in GUARDED.items() if asked.elsewhere == 404)
CHANGING = sorted(name for name, asked in GUARDED.items() if asked.method != "GET")
OTHER_SCOPES = {
    name: [scope for scope in ("ingest", "read", "write", "admin") if scope not in asked.scopes]
    for name, asked in GUARDED.items()
    if asked.scope
}


async def ask(api, client, name):
    """The answer to one operation; a stream ends after its first event."""
    api.app.state.service.hub.close()
    asked = GUARDED[name]
    path = asked.path.replace("{token}", api.token("read")[0])
    if path.endswith(SAVED):
        save_objects(api)
    if "{session}" in path:
        path = path.replace("{session}", own_session(api, client))
    if "{delivery}" in path:
        path = path.replace("{delivery}", failed_delivery(api))
    return await client.request(asked.method, path, json=asked.json)


def save_for_fleet(api):
    """Save losses of the window of `recorded`, and a host of its run."""
    lost = [Loss("total", "", 10.0, 100.0, 1.1)]
    record = recorded_record(recorded.window())
    with api.store.write() as conn:
        fleet.save_losses(conn, KEY, record, lost, num_gpus=4)
        hosts.add_to_run(conn, KEY, 1, ["host-a"])


def save_for_alerts(api):
    """Save a firing alert, a silence, a receiver, and a live consumer."""
    alerting.fire(api, "llm-70b", labels={"job": "another"})
    alerting.add_receiver(api)
    with api.store.write() as conn:
        silences.add(conn, factories.silence(ends_s=NOW_S + 60, starts_s=NOW_S))
    alerting.add_consumer(api)


def failed_delivery(api):
    """Id of a failed message of the project; "msg_1" if it has no receiver."""
    with api.store.read() as conn:
        if not receivers.without_secrets(conn, "default"):
            return "msg_1"
    delivery_id = alerting.send(api, job="llm-70b", fingerprints=[ALERT[-16:]])
    alerting.attempt(api, detail="HTTP 500")
    return delivery_id


def save_objects(api):
    """Save one object of each kind that has an id of its own, once; most need the job."""
    rows = {
        fixes_table: factories.fix_row(fix_id=SAVED, job_id=KEY),
        annotations_table: {
            **{"annotation_id": SAVED, "project": "default", "kind": "note", "text": "a test"},
            **{"matchers": [], "at_s": NOW_S, "source": "", "author": "a"},
            "created_s": NOW_S - 600,
        },
        share_links: {
            **{"share_id": SAVED, "project": "default", "digest": "a", "author": "a"},
            **{"window_id": "1-0", "first_step": 0, "last_step": 1, "size_bytes": 1},
            **{"created_s": NOW_S, "expires_s": NOW_S + 60},
        },
        saved_questions: {
            **{"question_id": SAVED, "name": "a", "window_id": "1-0"},
            **{"question": {"edits": []}, "saved_s": NOW_S},
        },
    }
    view = {"view_id": SAVED, "name": "a", "query": {}, "author": "me", "saved_s": NOW_S}
    with api.store.write() as conn:
        insert_new(conn, saved_views, [view | {"project": "default"}])
        if conn.execute(jobs_table.select().where(jobs_table.c.job_id == KEY)).one_or_none():
            for table, row in rows.items():
                insert_new(conn, table, [row | {"job_id": KEY}])


def save_step_times(api):
    """Save when the steps started."""
    rows = [StepRow(1, step, 1.0, 1.0, 1.0, 1.0, "", started_s=NOW_S + step) for step in range(4)]
    with api.store.write() as conn:
        windows.save_steps(conn, KEY, rows)


def own_session(api, client):
    """Id of a new session of the client's token, as far as it has one."""
    claimed = client.headers.get("authorization", "").removeprefix("Bearer ")
    text = tokens.parse_token(claimed)
    record = None
    if text is not None:
        with api.store.read() as conn:
            record = tokens.find(conn, text.token_id)
    if record is None:
        return session_id(session(api))
    return session_id(session(api, record.token_id, project=record.project))


def session_id(headers):
    return headers["cookie"].partition("=")[2].partition(".")[0]


def session(api, token_id="root", *, token=TOKEN, session_s=3600.0, project="default"):
    """Headers with the cookie of a new session."""
    auth = Authenticator(
        token, api.store, session_s=session_s, now_s=api.clock, monotonic=api.monotonic
    )
    caller = replace(ROOT, token_id=token_id, project=project)
    cookie = auth.begin_session(caller, user_agent="", address="")
    return {"cookie": f"paceline_session={cookie}"}


UNKNOWN = {
    "nobody": {},
    "wrong token": {"authorization": "Bearer pl_" + "x" * 40},
    "token that was never made": {"authorization": f"Bearer pl_{'x' * 10}_{'y' * 43}"},
    "no token in the header": {"authorization": "Bearer"},
    "token of another kind": {"authorization": f"Basic {TOKEN}"},
    "made-up session": {"cookie": f"paceline_session={'ab' * 8}.{'A' * 43}"},
    "session of another root token": lambda api: session(api, token="pl_" + "o" * 40),
    "session of a token that was never made": lambda api: session(api, "x" * 10),
    "session that is over": lambda api: session(api, session_s=-1.0),
    "session with another secret": lambda api: {
        "cookie": f"paceline_session={session_id(session(api))}.{'A' * 43}"
    },
    "wrong token with a good session": lambda api: {
        "authorization": "Bearer pl_x",
        **session(api),
    },
    "token in the address": {"x-token": TOKEN},
}


def unknown(api, caller):
    """Headers of a caller that nobody knows."""
    headers = UNKNOWN[caller]
    return headers(api) if callable(headers) else headers


async def test_every_operation_is_in_the_access_matrix(api):
    operations = {
        operation["operationId"]: (method.upper(), path)
        for path, methods in api.app.openapi()["paths"].items()
        for method, operation in methods.items()
    }
    assert set(operations) == OPEN | set(GUARDED)
    for name, asked in GUARDED.items():
        documented_method, documented_path = operations[name]
        assert asked.method == documented_method
        assert len(asked.path.split("/")) == len(documented_path.split("/"))


async def test_public_routes_answer_without_a_token(api):
    async with api.anonymous_client() as client:
        for path in ("/healthz", "/readyz", "/metrics", "/api/v1/session"):
            assert (await client.get(path)).status_code == 200


# Who calls is judged before what is asked for: an operation need not meet every caller.
@pytest.mark.parametrize("number", range(len(UNKNOWN)), ids=UNKNOWN)
async def test_request_without_a_token_gets_401(api, number):
    operations = [*GUARDED][number :: len(UNKNOWN)] if number else GUARDED
    async with api.anonymous_client(headers=unknown(api, [*UNKNOWN][number])) as client:
        for operation in operations:
            api.monotonic.now_s += PAST_THE_LIMIT_S
            answer = await ask(api, client, operation)
            assert answer.status_code == 401, operation
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["code"] == "unauthorised"


@pytest.mark.parametrize("end", ["revoked", "over"])
async def test_revoked_token_gets_401(api, end):
    await api.register()
    token_id, text = api.token(expires_s=NOW_S + 60)
    cookie = session(api, token_id) | {"sec-fetch-site": "same-origin"}
    if end == "over":
        api.clock.now_s += 60
    else:
        assert (await api.client.delete(f"/api/v1/tokens/{token_id}")).status_code == 204
    async with api.client_with(text) as client, api.anonymous_client(headers=cookie) as page:
        callers = (client, page) if end == "over" else (page, client)
        for operation, caller in zip(GUARDED, cycle(callers), strict=False):
            api.monotonic.now_s += PAST_THE_LIMIT_S
            assert (await ask(api, caller, operation)).status_code == 401, operation


async def test_token_with_all_but_the_needed_scope_gets_403(api):
    await api.register()
    for operation, others in OTHER_SCOPES.items():
        _, text = api.token(*others)
        async with api.client_with(text) as client:
            answer = await ask(api, client, operation)
        assert answer.status_code == 403, operation
        assert answer.json()["code"] == "forbidden"
        assert answer.json()["detail"].endswith(
            f"the scope {' or '.join(GUARDED[operation].scopes)}"
        )


# These want a job or an object that the others change or remove.
ENDING = ("archive", "delete", "end", "remove", "replay", "restore", "revoke", "track", "unarch")
ALONE = [name for name in GUARDED if name.startswith(ENDING)]
TOGETHER = [name for name in GUARDED if name not in ALONE]


@pytest.mark.parametrize(
    "operations", [TOGETHER, *([each] for each in ALONE)], ids=["together", *ALONE]
)
async def test_token_with_only_the_needed_scope_is_answered(api, operations):
    await api.register()
    recorded.save(api, recorded.window())
    save_step_times(api)
    if "track_fix" in operations:
        recorded.save_observed(api, SLOW.record(range(8, 16)).window())
    save_for_fleet(api)
    save_for_alerts(api)
    if operations[0] in ("archive_job", "delete_job"):
        assert (await api.client.post("/api/v1/jobs/llm-70b/end")).is_success
    for operation in operations:
        _, text = api.token(GUARDED[operation].scope or "ingest")
        async with api.client_with(text) as client:
            answer = await ask(api, client, operation)
        assert answer.is_success, (operation, answer.text)


# Each needs a delivery of its own, and an alert has one.
OF_DELIVERIES = [name for name, asked in GUARDED.items() if "{delivery}" in asked.path]
# Reading first, while the caller's own project is empty; last, what makes a job of this name in it.
ALL_OTHERS = sorted(
    (name for name in GUARDED if name not in OF_DELIVERIES),
    key=lambda name: (name == "register_job", name in CHANGING),
)
OF_THE_CALLER = {"list_tokens", "list_sessions"}


@pytest.mark.parametrize(
    "operations", [*([each] for each in OF_DELIVERIES), ALL_OTHERS], ids=[*OF_DELIVERIES, "others"]
)
async def test_objects_of_another_project_are_not_found(api, operations):
    await api.register()
    recorded.save(api, recorded.window())
    save_for_fleet(api)
    save_for_alerts(api)
    if operations is ALL_OTHERS:
        save_objects(api)
        failed_delivery(api)
        await api.client.delete("/api/v1/rules")  # for the audit
    _, text = api.token(project="research")
    async with api.client_with(text) as client:
        for operation in operations:
            answer = await ask(api, client, operation)
            assert answer.status_code == GUARDED[operation].elsewhere, (operation, answer.text)
            named = "llm-70b" in answer.text
            assert not named or operation in {"register_job", *OF_JOBS}, operation
            if answer.status_code == 404:
                assert answer.json()["code"] in NOT_THERE, operation
            elif operation.startswith("list_") and operation not in OF_THE_CALLER:
                assert answer.json()["items"] == [], operation


async def test_missing_and_foreign_objects_get_the_same_answer(api):
    """The refusal does not reveal jobs of another project."""
    _, text = api.token(project="research")
    # The id of a token to revoke is another one each time.
    operations = [name for name in OF_JOBS if name != "revoke_token"]
    async with api.client_with(text) as client:
        before = {name: (await ask(api, client, name)).content for name in operations}
        await api.register()
        after = {name: (await ask(api, client, name)).content for name in operations}
    assert before == after


async def test_two_projects_can_have_jobs_of_the_same_name(api):
    await api.register()
    _, text = api.token(project="research")
    async with api.client_with(text) as client:
        answer = await client.put("/api/v1/jobs/llm-70b", json=JOB | {"name": "another"})
        assert (answer.status_code, answer.json()["epoch"]) == (201, 1)
        assert (await client.post("/api/v1/jobs/llm-70b/end")).status_code == 200
        [listed] = (await client.get("/api/v1/jobs")).json()["items"]
        assert (listed["job_id"], listed["name"]) == ("llm-70b", "another")
    assert (await api.client.get("/api/v1/jobs/llm-70b")).json()["ended_at"] is None


@pytest.mark.parametrize("batch", [json_batch(), binary_batch()], ids=["JSON", "binary"])
async def test_token_of_one_job_reaches_no_other_job(api, batch):
    await api.register("another")
    _, text = api.token("ingest", job="llm-70b")
    async with api.client_with(text) as client:
        assert (await client.put("/api/v1/jobs/llm-70b", json=JOB)).status_code == 201
        assert (await client.post("/api/v1/jobs/llm-70b/end")).status_code == 200
        for method, path in [("PUT", ""), ("POST", "/end"), ("POST", "/ops")]:
            answer = await client.request(method, f"/api/v1/jobs/another{path}", json=JOB)
            assert answer.status_code == 404
            assert answer.json()["code"] == "job_not_found"
    with api.store.read() as conn:
        assert jobs.get(conn, "default/another").ended_s is None


async def test_session_route_answers_without_a_token(api):
    for caller in UNKNOWN:
        async with api.anonymous_client(headers=unknown(api, caller)) as client:
            answer = await client.get("/api/v1/session")
        assert answer.status_code == 200, caller
        assert answer.json()["authenticated"] is False


FOREIGN = {
    "no sign of where from": {},
    "another site": {"sec-fetch-site": "cross-site"},
    "another site with our origin": {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
    "another port of this host": {"sec-fetch-site": "same-site"},
    "another origin": {"origin": "http://evil.test"},
    "an origin with our name in it": {"origin": "http://localhost.evil.test"},
    "no origin at all": {"origin": "null"},
}


@pytest.mark.parametrize("number", range(len(FOREIGN)), ids=FOREIGN)
async def test_session_request_from_another_site_is_refused(api, number):
    operations = CHANGING[number :: len(FOREIGN)] if number else CHANGING
    headers = [*FOREIGN.values()][number]
    async with api.anonymous_client(headers=session(api) | headers) as client:
        for operation in operations:
            answer = await ask(api, client, operation)
            assert answer.status_code == 403, operation
            assert answer.json()["code"] == "forbidden"


@pytest.mark.parametrize(
    "origin", [{"sec-fetch-site": "same-origin"}, {"origin": "http://localhost"}]
)
async def test_session_request_from_our_page_is_accepted(api, origin):
    await api.register()
    async with api.anonymous_client(headers=session(api) | origin) as client:
        assert (await client.post("/api/v1/jobs/llm-70b/end")).status_code == 200


async def test_unknown_paths_need_a_token_too(api):
    async with api.anonymous_client() as client:
        assert (await client.get("/api/v1/nothing")).status_code == 401
        assert (await client.get("/api/")).status_code == 401
    _, text = api.token("ingest", "read", "admin")
    async with api.client_with(text) as client:
        assert (await client.post("/api/v1/nothing")).status_code == 403
        assert (await client.get("/api/v1/nothing")).status_code == 404


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": f"Bearer pl_{'x' * 10}_{'y' * 43}"}], ids=["none", "unknown"]
)
async def test_body_of_an_unauthenticated_request_is_not_read(api, headers):
    async with api.anonymous_client(headers=headers) as client:
        answer = await client.put("/api/v1/jobs/a", content=never_read())
    assert answer.status_code == 401


async def test_body_of_a_forbidden_request_is_not_read(api):
    _, text = api.token("read")
    async with api.client_with(text) as client:
        answer = await client.put("/api/v1/jobs/a", content=never_read())
    assert answer.status_code == 403


async def never_read():
    yield b"{"
    raise AssertionError("the body was read")
