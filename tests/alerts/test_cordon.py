import json
import sys
from pathlib import Path

import pytest

from app.alerts.alert import Blame, Detail
from app.alerts.cordon import Hook, call
from app.alerts.cordon_request import Request, request_for
from app.alerts.guard.guard import Guard, of_operator
from app.alerts.rule import Rule
from app.cli.bench.faults.waiting import wait_until
from tests.alerts.receiver import Answer, receiver
from tests.alerts.standing import told

JOB = "default/llm-70b"
GUARD = of_operator(Guard(total_s=1.0))
WORKER = Rule("w", "worker", cordon="drain")
CULPRITS = ({"dp_rank": 3, "stage": 1, "host": "host-7"}, {"host": "host-8"})
ECHO = "import sys; text = sys.stdin.read(); print(text)"


def request():
    return asked_for(WORKER, JOB, [slow("3-1", "host-7")])


def slow(worker, host, name="a", *, confidence=0.9, blamed=None):
    """An alert of a worker on a host that a finding names as the culprit, or another one."""
    rank, _, stage = worker.rpartition("-")
    culprit = blamed or {"dp_rank": rank, "stage": stage, "host": host}
    blame = Blame("slow-worker", "why", 0.2, confidence, (culprit,))
    return told(name, labels={"subject": worker, "host": host}, detail=Detail(blame=blame))


def asked_for(rule, job_id, alerts) -> Request:
    asked = request_for(rule, job_id, alerts)
    assert asked is not None
    return asked


def python(code, **given):
    return Hook((sys.executable, "-c", code), is_dry_run=False, **given)


def test_a_rule_on_workers_asks_for_the_workers_that_it_fires_for_and_their_hosts():
    asked = json.loads(request().body())
    assert asked["action"] == "drain"
    assert (asked["project"], asked["job"], asked["rule"]) == ("default", "llm-70b", "w")
    assert (asked["workers"], asked["hosts"]) == (["3-1"], ["host-7"])
    assert asked["reason"] == "llm-70b is slow because of a."
    assert [each["fingerprint"] for each in asked["alerts"]] == ["a"]


def test_whoever_acts_is_told_that_the_job_says_on_which_hosts_it_is():
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
def test_only_whom_the_operator_lets_ask_may_ask(projects, actions, refusal):
    said = Hook(("drain",), projects=projects, actions=actions).refusal(request())
    if refusal is None:
        assert said is None
    else:
        assert said is not None
        assert refusal in said


def test_a_rule_on_causes_asks_for_the_culprits_if_it_is_sure_of_them():
    rule = Rule("c", "cause", cordon="drain", min_confidence=0.8)
    sure = told("a", detail=Detail(blame=Blame("slow-worker", "why", 0.2, 0.9, CULPRITS)))
    asked = asked_for(rule, JOB, [sure])
    assert (asked.workers, asked.hosts) == (["3-1"], ["host-7", "host-8"])
    unsure = told("a", detail=Detail(blame=Blame("slow-worker", "why", 0.2, 0.7, CULPRITS)))
    assert request_for(rule, JOB, [unsure]) is None


@pytest.mark.parametrize("on", ["worker", "host"])
def test_nobody_is_asked_for_who_is_slow_and_whom_no_finding_names(on):
    """All workers of a long stage are slow, and all their hosts are well."""
    rule = Rule("r", on, cordon="drain", min_confidence=0.8)
    unsure = slow("3-1", "host-7", confidence=0.7)
    other = slow("3-1", "host-7", blamed={"dp_rank": 4, "stage": 1, "host": "host-9"})
    nobody = told("a", labels={"subject": "3-1", "host": "host-7"})
    assert request_for(rule, JOB, [unsure, other, nobody]) is None


@pytest.mark.parametrize("on", ["slowdown", "waste", "optype", "stalled"])
def test_a_rule_that_only_knows_that_a_job_is_slow_asks_for_nobody(on):
    blamed = told("a", detail=Detail(blame=Blame("slow-worker", "why", 0.2, 0.9, CULPRITS)))
    assert request_for(Rule("r", on, cordon="drain"), JOB, [blamed]) is None


def test_without_a_cordon_nobody_is_asked():
    assert request_for(Rule("w", "worker"), JOB, [slow("3-1", "host-7")]) is None
    assert request_for(WORKER, JOB, []) is None


def test_a_command_gets_the_request_on_its_input_and_no_secret(monkeypatch):
    monkeypatch.setenv("PACELINE_TOKEN", "pl_secret")
    outcome = call(python(ECHO), request(), GUARD)
    assert (outcome.result, outcome.detail) == ("done", request().body())
    code = "import os; print([name for name in os.environ if 'PACELINE' in name])"
    assert call(python(code), request(), GUARD).detail == "[]"


def test_what_a_worker_is_called_is_never_a_command(tmp_path):
    evil = slow(f"$(touch {tmp_path}/x); `touch {tmp_path}/y`-0", "h")
    asked = asked_for(WORKER, JOB, [evil])
    code = "import json, sys; print(*json.load(sys.stdin)['workers'])"
    assert call(python(code), asked, GUARD).detail == asked.workers[0]
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_fails_says_how():
    outcome = call(python("import sys; print('no such host'); sys.exit(3)"), request(), GUARD)
    assert (outcome.result, outcome.detail) == ("failed", "it ended with status 3: no such host")
    outcome = call(Hook(("/no/such/command",), is_dry_run=False), request(), GUARD)
    assert (outcome.result, outcome.detail) == (
        "failed", "it could not be started: No such file or directory",
    )  # fmt: skip


def test_a_command_without_an_end_is_ended_with_all_that_it_started(tmp_path):
    pid = tmp_path / "pid"
    # A shell, since an interpreter may take longer to start than it is given here.
    code = f"sleep 600 & echo $! > '{pid}'; wait"
    outcome = call(Hook(("sh", "-c", code), is_dry_run=False, timeout_s=2.0), request(), GUARD)
    assert outcome.result == "failed"
    assert "had not ended" in outcome.detail
    child = int(pid.read_text())
    wait_until(lambda: is_dead(child), "what it had started is ended", 10)


def is_dead(pid):
    """Gone, or only waiting to be forgotten."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def test_a_url_gets_the_same():
    with receiver() as tool:
        hook = Hook(url=tool.url, is_dry_run=False)
        assert call(hook, request(), GUARD).result == "done"
        [(_, headers, body)] = tool.requests
        assert headers["content-type"] == "application/json"
        assert json.loads(body) == json.loads(request().body())
        tool.answer = Answer(503, body=b"busy")
        assert call(hook, request(), GUARD).detail == "HTTP 503 busy"
        tool.answer = Answer("silence")
        assert call(hook, request(), GUARD).detail == "no answer in time"


def test_too_many_at_once_are_taken_away_by_nobody():
    alerts = [slow(f"{n}-0", f"host-{n}", f"{n}") for n in range(11)]
    outcome = call(python(ECHO), asked_for(WORKER, JOB, alerts), GUARD)
    assert outcome.result == "failed"
    assert "nothing was called" in outcome.detail
    assert call(python(ECHO), asked_for(WORKER, JOB, alerts[:10]), GUARD).result == "done"
