"""The query client against a real server: flat rows, pagination and error messages."""

import json
import sys
import types
from typing import Any

import httpx
import pytest
from paceline_client.query import (
    Busy,
    Denied,
    JobRow,
    NoAnswer,
    NotFound,
    Paceline,
    QueryError,
    Refused,
    Rows,
    StepRow,
)

from app.store import fixes, hosts
from app.store.migrations import migrate
from tests.api import alerting, recorded
from tests.api.server import JOB, KEY, NOW_S, TOKEN
from tests.client.real_servers import scripted, serving
from tests.store.factories import prediction


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with a job that has two windows and alerts."""
    database = tmp_path_factory.mktemp("query") / "paceline.db"
    migrate(f"sqlite:///{database}")
    with serving(database) as (url, api):
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=f"{url}/api/v1", headers=headers, trust_env=False) as http:
            for job in ("llm-70b", "llm-7b", "other"):
                body = JOB | {"labels": {"team": "pré"}, "framework": "megatron-lm"}
                assert http.put(f"/jobs/{job}", json=body).status_code == 201
        recorded.save(api, recorded.window(), recorded.window(8))
        with api.store.write() as conn:
            hosts.save(conn, KEY, 1, {(1, 0): "host-017"})
            fixes.save_prediction(conn, KEY, prediction(), now_s=NOW_S)
        alerting.fire(api, "llm-70b")
        yield url


@pytest.fixture
def paceline(served):
    with Paceline(served, TOKEN, page=2) as paceline:
        yield paceline


def check_columns(rows):
    found = rows.all()
    assert found
    for each in found:
        assert tuple(each) == rows.columns
        assert not any(isinstance(value, dict | list) for value in each.values())
    return found


def test_jobs_are_read_over_several_pages(paceline):
    found = check_columns(paceline.jobs())
    assert [job["job_id"] for job in found] == ["llm-70b", "llm-7b", "other"]
    job = found[0]
    assert (job["dp_size"], job["pp_size"], job["world_size"]) == (2, 2, 4)
    assert json.loads(job["labels"]) == {"team": "pré"}
    assert (job["latest_window"], job["ops_accepted"]) == ("1-8", None)
    [newest, _] = paceline.windows("llm-70b")
    assert newest["verdict"] is not None
    assert [each["verdict"] for each in found] == [newest["verdict"], None, None]


def test_steps_are_ascending_over_several_pages(served):
    with Paceline(served, TOKEN, page=1) as one_by_one, Paceline(served, TOKEN) as at_once:
        found = check_columns(one_by_one.steps("llm-70b"))
        assert [step["step"] for step in found] == [0, 1, 8, 9]
        assert found == at_once.steps("llm-70b").all()
        some = one_by_one.steps("llm-70b", first=1, last=8).all()
        assert [step["step"] for step in some] == [1, 8]
        assert one_by_one.steps("llm-70b", first=2, last=7).all() == []
    assert found[0]["recorded_s"] == pytest.approx(7.5)
    assert (found[0]["window_id"], found[2]["window_id"]) == ("1-0", "1-8")


def test_workers_of_a_window_have_their_hosts(paceline):
    found = check_columns(paceline.workers("llm-70b", "1-0"))
    places = [(each["dp_rank"], each["stage"], each["host"]) for each in found]
    assert places == [(0, 0, None), (0, 1, None), (1, 0, "host-017"), (1, 1, None)]
    result = paceline.result("llm-70b", "1-0")
    assert found[2]["slowdown"] == result["worker_slowdown"][1][0]


def test_findings_match_the_result_of_the_latest_window(paceline):
    result = paceline.result("llm-70b")
    found = paceline.findings("llm-70b").all()
    assert [each["cause"] for each in found] == [each["cause"] for each in result["findings"] or []]


def test_advice_takes_facts_and_steps(paceline):
    found = paceline.advice("llm-70b", "1-0", layers=4, scheduler="slurm", layout=None)
    assert (found["window"], found["steps"]) == ("1-0", [0, 1])
    assert paceline.advice("llm-70b", "1-0", steps="1")["steps"] == [1]
    with pytest.raises(Refused, match="either layers"):
        paceline.advice("llm-70b", layers=4, layout="2,2")


def test_finding_row_is_flat():
    from paceline_client.query import shapes

    culprits = [{"dp_rank": 3, "stage": 1, "host": "host-017"}, {"dp_rank": 4}]
    finding = {"cause": "slow-worker", "cost": 0.29, "confidence": 0.9, "score": 0.8}
    more = {"culprits": culprits, "persistence": None, "onset_step": 7, "sentence": "x"}
    result = {"window": {"id": "1-0"}, "findings": [finding | more, finding | {"culprits": []}]}
    first, second = shapes.findings("a", result)
    assert (first["dp_rank"], first["stage"], first["host"]) == (3, 1, "host-017")
    assert (first["num_culprits"], json.loads(first["culprits"])) == (2, culprits)
    assert (second["num_culprits"], second["dp_rank"], second["onset_step"]) == (0, None, None)


def test_alert_history_and_active_alerts_are_listed(paceline):
    [event] = check_columns(paceline.alerts("llm-70b"))
    [now] = check_columns(paceline.active_alerts())
    assert (event["kind"], now["phase"], event["rule"]) == ("firing", "firing", "slowdown")
    assert event["fingerprint"] == now["fingerprint"]
    assert paceline.alerts("llm-7b").all() == []


def test_fixes_are_filtered_by_job_and_state(paceline):
    [fix] = check_columns(paceline.fixes())
    assert (fix["job_id"], fix["fix"], fix["state"]) == ("llm-70b", "replace-worker", "open")
    assert fix["speed_up"] == pytest.approx(1.2)
    assert paceline.fixes("llm-70b", state="open").all() == [fix]
    assert paceline.fixes("llm-70b", state="measured").all() == []
    assert paceline.fixes("llm-7b").all() == []


def test_only_consumed_pages_are_requested():
    page = {"items": [{"window_id": "1-0"}] * 2, "next_cursor": "x"}
    content = json.dumps(page).encode()
    with scripted((200, {}, content)) as server, Paceline(server.url, "t", page=2) as paceline:
        assert len(paceline.windows("a").first(2)) == 2
        assert len(server.requests) == 1
        with pytest.raises(NoAnswer, match="same page again"):
            paceline.windows("a").all()


def test_repeated_steps_page_ends_the_iteration_with_an_error():
    content = json.dumps({"items": [{"step": step, "epoch": 1} for step in (5, 6)]}).encode()
    with scripted((200, {}, content)) as server, Paceline(server.url, "t", page=2) as paceline:
        with pytest.raises(NoAnswer, match="were not asked for"):
            paceline.steps("a").all()
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([{"epoch": 1}] * 2, "has no step"),
        ([{"step": 5}] * 2, "has no epoch"),
        ([{"step": "5", "epoch": 1}] * 2, "has no step"),
        ([5], "is no object"),
    ],
)
def test_malformed_steps_raise_an_error(items, said):
    content = json.dumps({"items": items}).encode()
    with scripted((200, {}, content)) as server, Paceline(server.url, "t", page=2) as paceline:
        with pytest.raises(NoAnswer, match=said):
            paceline.steps("a").all()
        assert len(server.requests) == 1


def test_missing_job_and_window_raise_not_found(paceline):
    with pytest.raises(NotFound, match="no job 'nobody': register it"):
        paceline.windows("nobody").all()
    with pytest.raises(NotFound) as missing:
        paceline.result("llm-70b", "1-999")
    assert (missing.value.status, missing.value.code) == (404, "window_not_found")


def test_job_name_cannot_escape_its_path(paceline):
    with pytest.raises(QueryError):
        paceline.windows("../../healthz").all()


def test_wrong_token_is_denied_and_not_shown(served):
    client = Paceline(served, "pl_secret_of_mine")
    with client, pytest.raises(Denied, match="401 unauthorised") as denied:
        client.jobs().all()
    assert "pl_secret" not in str(denied.value)


def problem(status, code, **headers):
    return status, headers, json.dumps({"code": code, "detail": "said\nso"}).encode()


EMPTY: tuple[int, dict[str, str], bytes] = (200, {}, b'{"items": [], "next_cursor": null}')


def test_busy_server_is_retried_after_its_retry_after():
    waited: list[float] = []
    busy = problem(503, "unavailable", **{"Retry-After": "3"})
    with (
        scripted(busy, (502, {}, b"<html>"), EMPTY) as server,
        Paceline(server.url, "t", sleep=waited.append) as paceline,
    ):
        assert paceline.jobs().all() == []
    assert waited == [3.0, 1.0]
    assert len(server.requests) == 3


def test_retries_stop_after_patience_s():
    waited: list[float] = []
    with scripted(problem(429, "limit_requests", **{"Retry-After": "4"})) as server:
        client = Paceline(server.url, "t", patience_s=9.0, sleep=waited.append)
        with client, pytest.raises(Busy, match="429 limit_requests: said so"):
            client.jobs().all()
    assert waited == [4.0, 4.0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {}, b"<html>"), "answers 200 and no JSON"),
        ((200, {}, b"[" * 100_000), "answers 200 and no JSON"),
        ((200, {}, b"[]"), "no JSON"),
        ((200, {}, b"{}"), "no items"),
        ((200, {}, b'{"items": [1]}'), "not Paceline's address"),
        ((302, {"Location": "https://login.example"}, b""), "redirects"),
        ((200, {"Content-Length": "100", "Connection": "close"}, b"{"), "does not answer"),
    ],
)
def test_answers_not_from_paceline_raise_an_error(answer, said):
    with scripted(answer) as server:
        client = Paceline(server.url, "t", timeout_s=1.0, patience_s=0.0)
        with client, pytest.raises(NoAnswer, match=said):
            client.windows("a").all()


def test_unreachable_server_raises_after_retries():
    with scripted(EMPTY) as server:
        url = server.url
    waited: list[float] = []
    with pytest.raises(NoAnswer, match=r"does not answer .*: is it the right address"):
        Paceline(url, "t", sleep=waited.append).jobs().all()
    assert waited == [0.5, 1.0, 2.0, 4.0]


def test_connection_closed_by_the_server_is_reopened():
    closing = (200, {"Connection": "close"}, EMPTY[2])
    with scripted(closing) as server, Paceline(server.url, "t", patience_s=0.0) as paceline:
        assert [paceline.jobs().all() for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("localhost:8642", "t"), "no http or https address"),
        (("http://user:secret@localhost", "t"), "leave them out"),
        (("http://localhost", "t\n"), "the token has characters"),
        (("http://localhost:port", "t"), "is no address: look at its host and its port"),
        (("http://localhost:70000", "t"), "is no address: look at its host and its port"),
        (("http://a..b", "t"), "is no address: look at its host and its port"),
        (("http://[::1", "t"), "is no address: look at its host and its port"),
        (("http://localhost/péage", "t"), "to be percent-encoded"),
        (("http://localhost/a b", "t"), "to be percent-encoded"),
        ((None, "t"), "PACELINE_URL"),
        (("http://localhost", None), "PACELINE_TOKEN"),
    ],
)
def test_invalid_address_or_token_raises_value_error(arguments, said, monkeypatch):
    for name in ("PACELINE_URL", "PACELINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=said):
        Paceline(*arguments)


def test_address_and_token_are_read_from_the_environment(served, monkeypatch):
    monkeypatch.setenv("PACELINE_URL", served + "/")
    monkeypatch.setenv("PACELINE_TOKEN", TOKEN)
    with Paceline() as paceline:
        assert len(paceline.jobs().all()) == 3


def test_to_pandas_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(QueryError, match="pip install pandas"):
        Rows(JobRow, lambda: iter(())).to_pandas()


def test_to_pandas_passes_rows_columns_and_times():
    """Against a fake pandas; the real one is tested below."""
    given = []

    class Frame(dict):
        def __init__(self, rows, columns):
            given.append((rows, columns))
            super().__init__({name: [row[name] for row in rows] for name in columns})

    twin: Any = types.ModuleType("pandas")
    twin.DataFrame = Frame
    twin.to_numeric = lambda values: [f"number {value}" for value in values]
    twin.to_datetime = lambda values, **_: [f"time {value}" for value in values]
    row: Any = dict.fromkeys(StepRow.__annotations__)
    jobs: Any = dict.fromkeys(JobRow.__annotations__) | {"registered_at": "2026-01-31T12:00:00Z"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pandas", twin)
        Rows(StepRow, lambda: iter([row])).to_pandas()
        frame = Rows(JobRow, lambda: iter([jobs])).to_pandas()
    assert given[0] == ([row], [*StepRow.__annotations__])
    assert frame["registered_at"] == ["time 2026-01-31T12:00:00Z"]
    assert (frame["name"], frame["slowdown"]) == ([None], ["number None"])
