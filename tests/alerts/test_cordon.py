import json
import sys

import pytest

from app.alerts.alert import Blame, Detail
from app.alerts.cordon import CordonHook, CordonRequest, call_cordon_hook, cordon_request_for
from app.alerts.guard import SsrfGuard, operator_guard
from app.alerts.rule import Rule
from app.result.finding import Culprit
from tests.alerts.current_alerts import told
from tests.alerts.http_receiver import Answer, receiver
from tests.harness.processes import is_alive, wait_until

JOB = "default/llm-70b"
GUARD = operator_guard(SsrfGuard(total_s=1.0))
WORKER = Rule("w", "worker", cordon="drain")
CULPRITS = (Culprit(3, 1, "host-7"), Culprit(host="host-8"))
ECHO = "import sys; text = sys.stdin.read(); print(text)"


def request():
    return asked_for(WORKER, JOB, [slow("3-1", "host-7")])


def slow(worker, host, name="a", *, confidence=0.9, blamed=None):
    """An alert of a worker on a host that a finding names as the culprit, or another one."""
    dp_rank, stage = map(int, worker.split("-"))
    culprit = blamed or Culprit(dp_rank, stage, host)
    blame = Blame("slow-worker", "why", 0.2, confidence, (culprit,))
    return told(name, labels={"subject": worker, "host": host}, detail=Detail(blame=blame))


def asked_for(rule, job_id, alerts) -> CordonRequest:
    asked = cordon_request_for(rule, job_id, alerts)
    assert asked is not None
    return asked


def python(code, **given):
    return CordonHook((sys.executable, "-c", code), is_dry_run=False, **given)


def test_a_rule_on_workers_asks_for_the_workers_that_it_fires_for_and_their_hosts():
    asked = json.loads(request().body())
    assert asked["action"] == "drain"
    assert (asked["project"], asked["job"], asked["rule"]) == ("default", "llm-70b", "w")
    assert (asked["workers"], asked["hosts"]) == (["3-1"], ["host-7"])
    assert asked["reason"] == "llm-70b is slow because of a."
    assert [each["fingerprint"] for each in asked["alerts"]] == ["a"]


def test_a_cordon_request_says_that_hosts_are_as_the_job_reports():
    asked = json.loads(request().body())
    assert asked["hosts_are_declared_by"] == "the job"
    assert asked["hosts_that_other_projects_declare"] == []


@pytest.mark.parametrize(
    ("projects", "actions", "refusal"),
    [
        ((), (), "PACELINE_CORDON_PROJECTS"),
        ((), ("*",), "PACELINE_CORDON_PROJECTS"),
        (("default-2", "defaul"), ("*",), "PACELINE_CORDON_PROJECTS"),
        (("default",), (), "PACELINE_CORDON_ACTIONS"),
        (("default",), ("drain-host", "rain"), "PACELINE_CORDON_ACTIONS"),
        (("default",), ("drain",), None),
        (("*",), ("dr*",), None),
    ],
)
def test_only_allowed_projects_may_request_cordons(projects, actions, refusal):
    said = CordonHook(("drain",), projects=projects, actions=actions).refusal(request())
    if refusal is None:
        assert said is None
    else:
        assert said is not None
        assert refusal in said


def test_a_cause_rule_cordons_confident_culprits():
    rule = Rule("c", "cause", cordon="drain", min_confidence=0.8)
    sure = told("a", detail=Detail(blame=Blame("slow-worker", "why", 0.2, 0.9, CULPRITS)))
    asked = asked_for(rule, JOB, [sure])
    assert (asked.workers, asked.hosts) == (["3-1"], ["host-7", "host-8"])
    unsure = told("a", detail=Detail(blame=Blame("slow-worker", "why", 0.2, 0.7, CULPRITS)))
    assert cordon_request_for(rule, JOB, [unsure]) is None


@pytest.mark.parametrize("on", ["worker", "host"])
def test_slow_workers_without_a_finding_are_not_cordoned(on):
    """All workers of a long stage are slow, and all their hosts are well."""
    rule = Rule("r", on, cordon="drain", min_confidence=0.8)
    unsure = slow("3-1", "host-7", confidence=0.7)
    other = slow("3-1", "host-7", blamed=Culprit(4, 1, "host-9"))
    nobody = told("a", labels={"subject": "3-1", "host": "host-7"})
    assert cordon_request_for(rule, JOB, [unsure, other, nobody]) is None


@pytest.mark.parametrize("on", ["slowdown", "waste", "optype", "stalled"])
def test_a_whole_job_rule_cordons_nothing(on):
    culprits = (*CULPRITS, Culprit(2, 0))  # the last one's host is not known
    blamed = told("a", detail=Detail(blame=Blame("slow-worker", "why", 0.2, 0.9, culprits)))
    assert cordon_request_for(Rule("r", on, cordon="drain"), JOB, [blamed]) is None


def test_a_rule_without_cordon_requests_nothing():
    assert cordon_request_for(Rule("w", "worker"), JOB, [slow("3-1", "host-7")]) is None
    assert cordon_request_for(WORKER, JOB, []) is None


def test_a_command_gets_the_request_on_its_input_and_no_secret(monkeypatch):
    monkeypatch.setenv("PACELINE_TOKEN", "pl_secret")
    outcome = call_cordon_hook(python(ECHO), request(), GUARD)
    assert (outcome.result, outcome.detail) == ("done", request().body())
    code = "import os; print([name for name in os.environ if 'PACELINE' in name])"
    assert call_cordon_hook(python(code), request(), GUARD).detail == "[]"


def test_what_a_host_is_called_is_never_a_command(tmp_path):
    evil = slow("3-1", f"$(touch {tmp_path}/x); `touch {tmp_path}/y`")
    asked = asked_for(WORKER, JOB, [evil])
    code = "import json, sys; print(*json.load(sys.stdin)['hosts'])"
    assert call_cordon_hook(python(code), asked, GUARD).detail == asked.hosts[0]
    assert list(tmp_path.iterdir()) == []


def test_a_failed_command_reports_its_status():
    outcome = call_cordon_hook(
        python("import sys; print('no such host'); sys.exit(3)"), request(), GUARD
    )
    assert (outcome.result, outcome.detail) == ("failed", "it ended with status 3: no such host")
    outcome = call_cordon_hook(
        CordonHook(("/no/such/command",), is_dry_run=False), request(), GUARD
    )
    assert (outcome.result, outcome.detail) == (
        "failed", "it could not be started: No such file or directory",
    )  # fmt: skip


def test_a_hanging_command_is_killed_with_its_children(tmp_path):
    pid = tmp_path / "pid"
    # A shell, since an interpreter may take longer to start than it is given here.
    code = f"sleep 600 & echo $! > '{pid}'; wait"
    outcome = call_cordon_hook(
        CordonHook(("sh", "-c", code), is_dry_run=False, timeout_s=2.0), request(), GUARD
    )
    assert outcome.result == "failed"
    assert "had not ended" in outcome.detail
    child = int(pid.read_text())
    wait_until(lambda: not is_alive(child), "what it had started is ended", 10)


def test_a_url_gets_the_same():
    with receiver() as tool:
        hook = CordonHook(url=tool.url, is_dry_run=False)
        assert call_cordon_hook(hook, request(), GUARD).result == "done"
        [(_, headers, body)] = tool.requests
        assert headers["content-type"] == "application/json"
        assert json.loads(body) == json.loads(request().body())
        tool.answer = Answer(503, body=b"busy")
        assert call_cordon_hook(hook, request(), GUARD).detail == "HTTP 503 busy"
        tool.answer = Answer("silence")
        assert call_cordon_hook(hook, request(), GUARD).detail == "no answer in time"


def test_too_many_workers_at_once_are_not_cordoned():
    alerts = [slow(f"{n}-0", f"host-{n}", f"{n}") for n in range(11)]
    outcome = call_cordon_hook(python(ECHO), asked_for(WORKER, JOB, alerts), GUARD)
    assert outcome.result == "failed"
    assert "nothing was called" in outcome.detail
    assert (
        call_cordon_hook(python(ECHO), asked_for(WORKER, JOB, alerts[:10]), GUARD).result == "done"
    )
