"""Rules as YAML and as JSON: read, checked line by line, replaced and reset."""

import json
from hashlib import sha256

import pytest

from app.alerts.rules.rule_text import parse_rules
from app.store.alerting import alert_rules
from tests.api.server import running

pytestmark = pytest.mark.anyio

PATH = "/api/v1/rules"
YAML = {"content-type": "application/yaml"}
OWN = """\
rules:
  # Our jobs are slow enough as they are.
  - name: slow
    on: slowdown
    jobs: "llm-*"
    above: 1.2
    for: {windows: 5, seconds: 60}
    labels: {team: pretraining}
    severity: critical
"""
BAD = """\
rules:
  - name: Slow
    on: slowness
  - name: slow
    on: slowdown
    above: 1.1
    clear: 1.2
"""


async def put(api, text=OWN, **headers):
    return await api.client.put(PATH, content=text, headers=YAML | headers)


async def test_project_without_rules_has_the_defaults(api):
    answer = await api.client.get(PATH)
    found = answer.json()
    assert (found["version"], found["source"]) == (0, "defaults")
    assert answer.headers["etag"] == '"0"'
    assert [rule["name"] for rule in found["rules"]][:2] == ["slowdown", "cause"]
    slowdown = found["rules"][0]
    assert (slowdown["above"], slowdown["clear"]) == (1.1, 1.05)
    assert slowdown["for"] == {"windows": 3, "seconds": 30.0}
    assert [rule.name for rule in parse_rules(found["text"])] == [r["name"] for r in found["rules"]]


async def test_defaults_come_from_the_operators_file(anyio_backend, database_url, tmp_path):
    (tmp_path / "rules.yaml").write_text(OWN)
    async with running(database_url, alert_rules=tmp_path / "rules.yaml") as api:
        found = (await api.client.get(PATH)).json()
    assert (found["source"], [rule["name"] for rule in found["rules"]]) == ("file", ["slow"])


async def test_text_of_rules_is_stored_unchanged(api):
    answer = await put(api)
    assert answer.status_code == 200, answer.text
    kept = answer.json()
    assert (kept["version"], kept["source"], kept["text"]) == (1, "project", OWN)
    [rule] = kept["rules"]
    assert (rule["above"], rule["clear"], rule["severity"]) == (1.2, rule["clear"], "critical")
    assert rule["labels"] == {"team": "pretraining"}
    assert (await api.client.get(PATH)).json() == kept
    with api.store.read() as conn:
        [stored] = alert_rules.load(conn, "default").rules or []
    assert (stored.name, stored.for_windows, stored.for_s) == ("slow", 5, 60.0)


@pytest.mark.parametrize("media", ["application/yaml", "text/yaml, */*;q=0.1"])
async def test_accept_yaml_gets_the_text(api, media):
    await put(api)
    answer = await api.client.get(PATH, headers={"accept": media})
    assert answer.headers["content-type"].startswith("application/yaml")
    assert answer.text == OWN


async def test_rules_are_accepted_as_json(api):
    [rule] = (await put(api)).json()["rules"]
    answer = await api.client.put(PATH, json={"rules": [rule]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["rules"] == [rule]
    assert (answer.json()["version"], answer.json()["source"]) == (2, "project")
    few = {"name": "slow", "on": "slowdown", "above": 1.3}
    answer = await api.client.put(PATH, json={"rules": [few]})
    assert answer.json()["rules"][0]["for"] == {"windows": 3, "seconds": 30.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("above", -1),
        ("for", {"windows": 1001}),
        ("keep_firing", 30 * 86_400 + 1),
        ("jobs", ""),
        ("of", "x" * 129),
        ("cordon", "Drain it"),
        ("inhibits", ["No rule"]),
        ("labels", {"Team": "x"}),
        ("labels", {"host": "x"}),
        ("runbook", "javascript:alert(1)"),
    ],
)
async def test_json_and_yaml_have_the_same_limits(api, key, value):
    rule = {"name": "slow", "on": "worker", "above": 1.3, key: value}
    refused = await api.client.put(PATH, json={"rules": [rule]})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert refused.json()["errors"][0]["field"].startswith(f"body.rules.0.{key}")
    # JSON is YAML, on one line.
    as_text = await put(api, json.dumps({"rules": [rule]}))
    assert (as_text.status_code, as_text.json()["code"]) == (422, "invalid_rules")
    [error] = as_text.json()["errors"]
    assert (error["line"], error["message"].startswith(key)) == (1, True)


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_every_wrong_line_is_reported(api, method):
    path = PATH if method == "PUT" else f"{PATH}/check"
    answer = await api.client.request(method, path, content=BAD, headers=YAML)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_rules")
    lines = [each["line"] for each in answer.json()["errors"]]
    assert {2, 3} <= set(lines)
    assert set(lines) & {6, 7}
    assert answer.json()["errors"][0]["field"] == "line 2"
    assert answer.json()["detail"].startswith("line 2: ")
    assert (await api.client.get(PATH)).json()["version"] == 0


async def test_check_stores_nothing(api):
    answer = await api.client.post(f"{PATH}/check", content=OWN, headers=YAML)
    assert answer.status_code == 200, answer.text
    assert [rule["name"] for rule in answer.json()["rules"]] == ["slow"]
    assert (await api.client.get(PATH)).json()["version"] == 0


async def test_rules_can_be_reset_to_the_defaults(api):
    await put(api)
    found = (await api.client.delete(PATH)).json()
    assert (found["source"], found["version"]) == ("defaults", 2)
    assert (await api.client.get(PATH)).json() == found
    entries = (await api.client.get("/api/v1/audit?object_kind=rules")).json()["items"]
    assert [entry["action"] for entry in entries] == ["rules.reset", "rules.replace"]
    usual = ["slowdown", "cause", "step-time", "stalled", "silent-worker", "crashed", "fix-outcome"]
    assert (entries[1]["detail"]["added"], entries[1]["detail"]["removed"]) == (["slow"], usual)
    assert (entries[0]["detail"]["added"], entries[0]["detail"]["removed"]) == (usual, ["slow"])


async def test_audit_lists_changed_rules_with_their_changes(api):
    await put(api)
    text = OWN.replace("severity: critical", "severity: info") + "  - {name: hung, on: stalled}\n"
    await put(api, text)
    [entry, _] = (await api.client.get("/api/v1/audit?object_kind=rules")).json()["items"]
    detail = entry["detail"]
    assert (detail["version"], detail["added"], detail["removed"]) == (2, ["hung"], [])
    assert detail["changed"] == ["slow"]
    assert detail["changes"] == {"slow": {"severity": {"old": "critical", "new": "info"}}}
    assert detail["sha256"]["new"] == sha256(text.encode()).hexdigest()[:16]
    assert detail["sha256"]["old"] != detail["sha256"]["new"]


async def test_concurrent_change_is_not_overwritten(api):
    assert (await put(api, **{"if-match": '"0"'})).status_code == 200
    late = await put(api, **{"if-match": '"0"'})
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    assert (await put(api, **{"if-match": '"1"'})).status_code == 200
    assert (await api.client.delete(PATH, headers={"if-match": '"1"'})).status_code == 409
    assert (await put(api, **{"if-match": "7"})).status_code == 422


async def test_rules_of_another_project_are_separate(api):
    await put(api)
    _, text = api.token(project="research")
    async with api.client_with(text) as other:
        assert (await other.get(PATH)).json()["source"] == "defaults"


ODD = {
    "another type": (b"rules: []", "text/plain", 415),
    "no type": (b"rules: []", "", 415),
    "no text": (b"\xff\xfe", "application/yaml", 400),
    "too long": (b"#" * (256 * 1024 + 1), "application/yaml", 413),
    "an alias": (b"rules: &a [*a]", "application/yaml", 422),
    "a billion laughs": (b"a: &a [x,x]\nrules: [*a,*a,*a]", "application/yaml", 422),
    "a tag": (b"rules: !!python/object/apply:os.system ['id']", "application/yaml", 422),
    "no yaml": (b"rules: [", "application/yaml", 422),
    "nothing": (b"", "application/yaml", 422),
    "no json": (b"{", "application/json", 400),
    "json of another kind": (b"[]", "application/json", 422),
    "an unknown key": (b'{"rules": [], "project": "research"}', "application/json", 422),
    "no number": (b'{"rules": [{"name": "a", "on": "slowdown", "above": NaN}]}',
                  "application/json", 422),
    "no unicode": (b'{"rules": [{"name": "a", "on": "slowdown", "above": 2, "of": "\\ud800"}]}',
                   "application/json", 422),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
async def test_malformed_text_gets_a_4xx(api, what):
    body, media, status = ODD[what]
    for method, path in (("PUT", PATH), ("POST", f"{PATH}/check")):
        headers = {"content-type": media}
        answer = await api.client.request(method, path, content=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
