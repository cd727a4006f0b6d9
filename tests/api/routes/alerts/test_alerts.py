"""Alerts over HTTP: firing, acknowledged and muted ones, and all transitions."""

import pytest
from msgspec.structs import replace

from app.alerts.alert import Blame
from app.alerts.labels import Matcher, Silence
from app.api.routes.alerts.alerts import MAX_NOTES
from app.store.alerting import notifications, silences
from tests import results
from tests.api.alerting import SLOW, fire, resolve
from tests.api.server import NOW_S

pytestmark = pytest.mark.anyio

PATH = "/api/v1/alerts"
TRANSITIONS = f"{PATH}/transitions"


async def found(api, path=PATH, **params):
    answer = await api.client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def test_transition_has_its_figures(api):
    await api.register("job-a")
    state = fire(api)
    [shown] = await found(api, TRANSITIONS)
    assert shown.pop("event_id") == 1
    assert shown == {
        "fingerprint": state.fingerprint,
        "job_id": "job-a",
        **{"rule": "slowdown", "subject": "", "kind": "firing", "severity": "warning"},
        "at": "2026-09-21T14:13:20Z",
        "threshold": 1.1,
        "sentence": "It is slow: 1.42.",
        "on": "slowdown",
        "window_id": "1-16",
        "value": 1.42,
        **{"slowdown": 1.42, "gpu_time_wasted": 0.3, "gpu_hours_lost_per_hour": 2.4},
        **{"num_gpus": 8, "since_step": 1204},
        **{"names": [], "num_named": 0},
        **dict.fromkeys(("since_at", "blame", "fix", "ended", "actor", "reason")),
    }


async def test_transitions_are_filtered_by_kind_job_and_open_state(api):
    for name in ("job-a", "job-b"):
        await api.register(name)
    resolve(api, fire(api, "job-a"))
    fire(api, "job-b")

    async def ids(**params):
        return [each["event_id"] for each in await found(api, TRANSITIONS, **params)]

    assert await ids(open=True) == [3]
    assert await ids(kind="firing") == [3, 1]
    assert await ids(kind=["resolved", "acknowledged"]) == [2]
    assert await ids(kind=["resolved", "firing"]) == [3, 2, 1]
    assert (
        await api.client.get(TRANSITIONS, params={"kind": ["firing", "none"]})
    ).status_code == 422
    assert await ids(q="-B") == [3]
    assert await ids(q="t/job") == []
    assert await ids(q="-A", kind="resolved") == [2]
    assert (await api.client.get(TRANSITIONS, params={"q": "\x00"})).status_code == 422


async def test_active_alert_has_figures_culprit_and_receivers(api):
    await api.register("job-a")
    fact = "dp 3 on h-17 is 1.6x slower than its peers; it costs 29 % of the GPU time"
    culprit = {"dp_rank": 3, "host": "h-17", "rank": 11, "local_rank": 5}
    blame = Blame("slow-worker", fact, 0.29, 0.9, (results.culprit(**culprit),), 1)
    blamed = replace(SLOW, blame=blame)
    fire(api, detail=blamed, threshold=1.1, runbook_url="https://wiki.internal/slow")
    [shown] = await found(api)
    assert (shown["phase"], shown["value"], shown["threshold"]) == ("firing", 1.42, 1.1)
    assert shown["sentence"].startswith("job-a runs at 1.42")
    assert "GPU-h an hour" in shown["sub"]
    assert shown["blame"]["cause"] == "slow-worker"
    assert shown["blame"]["culprits"] == [
        culprit | {"stage": None, "ranks": None, "num_workers": None}
    ]
    assert shown["labels"] == {"job": "job-a", "rule": "slowdown", "severity": "warning"}
    assert shown["runbook_url"] == "https://wiki.internal/slow"
    assert (shown["acknowledged_at"], shown["silenced_by"], shown["inhibited_by"]) == (None, [], [])


async def test_active_alerts_are_filtered_and_paged(api):
    for name in ("job-a", "job-b"):
        await api.register(name)
    fire(api, "job-a", "slow", phase="pending", firing_at_s=None)
    fire(api, "job-a", "lost", severity="critical", began_at_s=91.0)
    fire(api, "job-b", "slow", began_at_s=92.0)

    async def rules(**params):
        return [(each["job_id"], each["rule"]) for each in await found(api, **params)]

    everything = [("job-b", "slow"), ("job-a", "lost"), ("job-a", "slow")]
    assert await rules() == everything
    assert await rules(phase="pending") == [("job-a", "slow")]
    assert await rules(severity="critical") == [("job-a", "lost")]
    assert await rules(job="job-b") == await rules(q="-B") == [("job-b", "slow")]
    assert await rules(job="nobody") == []
    first = (await api.client.get(PATH, params={"limit": 2})).json()
    rest = await found(api, limit=2, cursor=first["next_cursor"])
    assert [(e["job_id"], e["rule"]) for e in first["items"] + rest] == everything


async def test_acknowledgement_names_its_author_everywhere(api):
    await api.register("job-a")
    path = f"{PATH}/{fire(api).fingerprint}"
    _, text = api.token("read", "write", "admin")
    async with api.client_with(text) as client:
        for _ in range(2):
            answer = await client.post(f"{path}/acknowledge")
            assert answer.status_code == 200, answer.text
            assert answer.json()["acknowledged_by"] == "made by a test"
            assert answer.json()["acknowledged_at"] == "2026-09-21T14:13:20Z"
        audit = (await client.get("/api/v1/audit")).json()["items"]
    known = (await api.client.get(path)).json()
    assert [each["kind"] for each in known["history"]] == ["acknowledged", "firing"]
    assert known["history"][0]["actor"] == "made by a test"
    assert known["alert"]["acknowledged_by"] == "made by a test"
    [entry] = audit
    assert (entry["action"], entry["object_id"]) == (
        "alert.acknowledge",
        known["alert"]["fingerprint"],
    )
    assert entry["actor"].startswith("made by a test (")
    assert entry["detail"] == {"job": "job-a", "rule": "slowdown", "subject": ""}


async def test_acknowledgement_can_be_removed(api):
    await api.register("job-a")
    path = f"{PATH}/{fire(api).fingerprint}"
    await api.client.post(f"{path}/acknowledge")
    for _ in range(2):
        answer = await api.client.delete(f"{path}/acknowledge")
        assert (answer.status_code, answer.json()["acknowledged_by"]) == (200, None)
    kinds = [each["kind"] for each in (await api.client.get(path)).json()["history"]]
    assert kinds == ["unacknowledged", "acknowledged", "firing"]


async def test_assignment_names_assignee_and_author_in_alert_history_and_audit(api):
    await api.register("job-a")
    path = f"{PATH}/{fire(api).fingerprint}"
    _, text = api.token("read", "write", "admin")
    async with api.client_with(text) as client:
        for to in ("Maria", "Maria", " Jo\u00e3o "):
            answer = await client.post(f"{path}/assign", json={"to": to})
            assert answer.status_code == 200, answer.text
        audit = (await client.get("/api/v1/audit")).json()["items"]
    shown = answer.json()
    assert (shown["assigned_to"], shown["assigned_by"]) == ("Jo\u00e3o", "made by a test")
    assert shown["assigned_at"] == "2026-09-21T14:13:20Z"
    history = (await api.client.get(path)).json()["history"]
    assert [(each["kind"], each["reason"]) for each in history] == [
        ("assigned", "Jo\u00e3o"),
        ("assigned", "Maria"),
        ("firing", None),
    ]
    assert history[0]["actor"] == "made by a test"
    assert [(each["action"], each["detail"]["text"]) for each in audit] == [
        ("alert.assign", "Jo\u00e3o"),
        ("alert.assign", "Maria"),
    ]
    for _ in range(2):
        answer = await api.client.delete(f"{path}/assign")
        assert (answer.status_code, answer.json()["assigned_to"]) == (200, None)
    kinds = [each["kind"] for each in (await api.client.get(path)).json()["history"]]
    assert kinds == ["unassigned", "assigned", "assigned", "firing"]


async def test_notes_are_kept_with_time_and_author(api):
    await api.register("job-a")
    path = f"{PATH}/{fire(api).fingerprint}"
    for words in ("GPU 5 throttles", "drained: OPS-17"):
        answer = await api.client.post(f"{path}/notes", json={"text": words})
        assert answer.status_code == 201, answer.text
    shown = answer.json()
    assert (shown["note"], shown["noted_by"]) == ("drained: OPS-17", "root token")
    assert shown["noted_at"] == "2026-09-21T14:13:20Z"
    history = (await api.client.get(path)).json()["history"]
    assert [(each["kind"], each["reason"]) for each in history[:2]] == [
        ("note", "drained: OPS-17"),
        ("note", "GPU 5 throttles"),
    ]
    [newest, *_] = (await api.client.get("/api/v1/audit")).json()["items"]
    assert (newest["action"], newest["detail"]["text"]) == ("alert.note", "drained: OPS-17")


async def test_number_of_notes_is_limited(api):
    await api.register("job-a")
    path = f"{PATH}/{fire(api).fingerprint}"
    for _ in range(MAX_NOTES):
        assert (await api.client.post(f"{path}/notes", json={"text": "a"})).status_code == 201
    answer = await api.client.post(f"{path}/notes", json={"text": "a"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize("text", ["", "   ", "two\nlines", "x" * 501, 7, None])
async def test_bad_notes_and_names_are_refused(api, text):
    await api.register("job-a")
    path = f"{PATH}/{fire(api).fingerprint}"
    assert (await api.client.post(f"{path}/notes", json={"text": text})).status_code == 422
    assert (await api.client.post(f"{path}/assign", json={"to": text})).status_code == 422


async def test_alert_that_is_not_active_cannot_be_assigned(api):
    await api.register("job-a")
    state = fire(api)
    resolve(api, state)
    path = f"{PATH}/{state.fingerprint}"
    for answer in (
        await api.client.post(f"{path}/assign", json={"to": "Maria"}),
        await api.client.post(f"{path}/notes", json={"text": "a"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "alert_not_found")


async def test_acknowledgement_updates_the_group_at_once(api):
    await api.register("job-a")
    state = fire(api)
    await api.client.post(f"{PATH}/{state.fingerprint}/acknowledge")
    with api.store.write() as conn:
        [group] = notifications.claim_groups(conn, now_s=NOW_S, lease_s=30.0, limit=10)
    assert (group.job_id, group.rule) == (state.job_id, "slowdown")


async def test_alert_that_does_not_fire_cannot_be_acknowledged(api):
    await api.register("job-a")
    pending = fire(api, phase="pending", firing_at_s=None)
    answer = await api.client.post(f"{PATH}/{pending.fingerprint}/acknowledge")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    answer = await api.client.post(f"{PATH}/{'0' * 16}/acknowledge")
    assert (answer.status_code, answer.json()["code"]) == (404, "alert_not_found")


async def test_resolved_alert_keeps_its_history(api):
    await api.register("job-a")
    state = fire(api)
    resolve(api, state)
    known = (await api.client.get(f"{PATH}/{state.fingerprint}")).json()
    assert known["alert"] is None
    assert [each["kind"] for each in known["history"]] == ["resolved", "firing"]
    assert (await api.client.get(f"{PATH}/{'0' * 16}")).status_code == 404


async def test_a_silenced_alert_names_its_silence(api):
    await api.register("job-a")
    fire(api)
    matchers = [Matcher("job", "job-*")]
    for silence_id, starts_s in (("aa", NOW_S - 1), ("bb", NOW_S + 1)):
        with api.store.write() as conn:
            silences.add(
                conn,
                Silence(
                    silence_id, "default", "silence", matchers, starts_s, NOW_S + 60, "", "", 0
                ),
            )
    [shown] = await found(api)
    assert shown["silenced_by"] == ["aa"]


async def test_inhibited_alert_names_its_inhibitor(api):
    await api.register("job-a")
    slow = fire(api)
    fire(api, rule="cause", subject="slow-worker", began_at_s=80.0)
    of_slow, of_cause = await found(api)
    assert (of_slow["rule"], of_slow["inhibited_by"]) == ("slowdown", [])
    assert (of_cause["rule"], of_cause["inhibited_by"]) == ("cause", [slow.fingerprint])
