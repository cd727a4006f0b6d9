import json
import sys
from queue import Empty

import pytest

from app.alerts.alert import Blame, Detail
from app.alerts.cordon import CordonHook
from app.alerts.rule import Rule
from app.consumer.cordoner import Cordoner
from app.consumer.dispatcher import Dispatcher
from app.errors import StoreUnavailable
from app.result.finding import Culprit
from app.store import hosts, runs
from tests.alerts.http_receiver import receiver
from tests.store.factories import registration

RULES = [Rule("worker", "worker", 1.1, cordon="drain"), Rule("slow", "slowdown", cordon="drain")]
CULPRIT = Culprit(3, 1, "host-7")
FOUND = Detail(value=1.4, blame=Blame("slow-worker", "why", 0.2, 0.9, (CULPRIT,)))
OF_WORKER = {"labels": {"worker": "3-1", "host": "host-7"}, "detail": FOUND}


@pytest.fixture
def notifier(make_notifier):
    return make_notifier(rules=RULES)


def cordoner_for(notifier, hook):
    transport = notifier.context.transport
    cordoner = Cordoner(notifier.store, hook, transport.operator_guard, notifier.clock)
    notifier.dispatcher = Dispatcher(notifier.context, cordoner)
    return cordoner


def hook(*command, **given):
    return CordonHook(command, **{"projects": ("default",), "actions": ("drain",), **given})


def audit_entries(notifier):
    return notifier.rows("audit", "action", "object_id")


def test_dry_run_only_audits_the_cordon(notifier, tmp_path):
    touched = tmp_path / "touched"
    cordoner = cordoner_for(notifier, hook("touch", str(touched)))
    notifier.fire("3-1", rule="worker", **OF_WORKER)
    notifier.dispatch()
    with pytest.raises(Empty):
        cordoner.ask_next(timeout_s=0.0)
    assert not touched.exists()
    assert audit_entries(notifier) == [("cordon.would", "job")]
    [(detail,)] = notifier.rows("audit", "detail")
    assert (detail["asked"], detail["workers"], detail["hosts"]) == ("drain", ["3-1"], ["host-7"])


def test_cordon_is_requested_once_and_audited_before_and_after(notifier, tmp_path):
    touched = tmp_path / "touched"
    cordoner = cordoner_for(notifier, hook("touch", str(touched), is_dry_run=False))
    notifier.fire("3-1", rule="worker", **OF_WORKER)
    notifier.dispatch()
    assert cordoner.ask_next(timeout_s=0.0).result == "done"
    assert touched.exists()
    assert audit_entries(notifier) == [("cordon.ask", "job"), ("cordon.done", "job")]
    notifier.pass_time(5 * 3600)
    notifier.dispatch()
    with pytest.raises(Empty):
        cordoner.ask_next(timeout_s=0.0)


@pytest.mark.parametrize("meanwhile", ["acknowledged for a while", "silenced for a while"])
def test_repeated_alert_requests_no_cordon(notifier, meanwhile):
    cordoner_for(notifier, hook("true"))
    mark = notifier.fire("3-1", rule="worker", **OF_WORKER)
    notifier.fire("2-1", rule="worker", labels={"worker": "2-1"})
    notifier.dispatch()
    if meanwhile == "acknowledged for a while":
        notifier.acknowledge(mark)
        notifier.dispatch()
        notifier.unacknowledge(mark)
    else:
        notifier.silence(pattern="3-1")
        notifier.resolve("2-1", rule="worker")  # resolves the alert for its receivers
    for _ in range(3):
        notifier.pass_time(3600)
        notifier.dispatch()
    assert audit_entries(notifier) == [("cordon.would", "job")]


def test_cordon_is_requested_once_per_firing_without_receivers(notifier):
    cordoner_for(notifier, hook("true"))
    for number in (1, 2):
        notifier.fire("3-1", rule="worker", **OF_WORKER)
        for _ in range(3):
            notifier.pass_time(3600)
            notifier.dispatch()
        assert audit_entries(notifier) == [("cordon.would", "job")] * number
        notifier.resolve("3-1", rule="worker")
        notifier.pass_time(3600)
        notifier.dispatch()


def test_refused_cordon_request_is_audited(notifier):
    with receiver() as tool:
        tool.answer.status = 500
        cordoner = cordoner_for(notifier, hook(url=tool.url, is_dry_run=False))
        notifier.fire("3-1", rule="worker", **OF_WORKER)
        notifier.dispatch()
        assert cordoner.ask_next(timeout_s=0.0).detail == "HTTP 500"
    assert audit_entries(notifier)[-1] == ("cordon.failed", "job")


@pytest.mark.parametrize("quiet", ["silence", "no worker"])
def test_silenced_or_unnamed_alerts_request_no_cordon(notifier, quiet):
    cordoner_for(notifier, hook(sys.executable, "--version", is_dry_run=False))
    if quiet == "silence":
        notifier.silence()
        notifier.fire("3-1", rule="worker", **OF_WORKER)
    else:
        notifier.fire(rule="slow")
    notifier.dispatch()
    assert audit_entries(notifier) == []


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_project_without_permission_requests_no_cordon(notifier, is_dry_run):
    theirs = hook("false", projects=("infra",), is_dry_run=is_dry_run)
    cordoner = cordoner_for(notifier, theirs)
    notifier.fire("3-1", rule="worker", **OF_WORKER)
    notifier.dispatch()
    with pytest.raises(Empty):
        cordoner.ask_next(timeout_s=0.0)
    [(action, detail)] = notifier.rows("audit", "action", "detail")
    assert (action, detail["hosts"]) == ("cordon.refused", ["host-7"])
    assert "PACELINE_CORDON_PROJECTS" in detail["detail"]


def test_disputed_hosts_are_sent_to_the_hook_only(notifier):
    """Declaring a host must not suffice to cordon it under another project's job."""
    with notifier.store.write() as conn:
        for job_id, host in (("other/a", "host-7"), ("other/b", "host-9"), ("default/c", "host-7")):
            epoch = runs.register(conn, job_id, registration(), now_s=100.0).epoch
            hosts.add_to_run(conn, job_id, epoch, [host])
    with receiver() as tool:
        cordoner = cordoner_for(notifier, hook(url=tool.url, is_dry_run=False))
        notifier.fire("3-1", rule="worker", **OF_WORKER)
        notifier.dispatch()
        cordoner.ask_next(timeout_s=0.0)
        [(_, _, body)] = tool.requests
    assert json.loads(body)["hosts_that_other_projects_declare"] == ["host-7"]
    assert "other" not in str(notifier.rows("audit", "detail"))


def test_cordon_is_requested_without_the_database(notifier, monkeypatch):
    def away(*_):
        raise StoreUnavailable("no answer")

    with receiver() as tool:
        cordoner = cordoner_for(notifier, hook(url=tool.url, is_dry_run=False))
        notifier.fire("3-1", rule="worker", **OF_WORKER)
        notifier.dispatch()
        monkeypatch.setattr(hosts, "named_by_other_projects", away)
        assert cordoner.ask_next(timeout_s=0.0).result == "done"
        [(_, _, body)] = tool.requests
    assert json.loads(body)["hosts_that_other_projects_declare"] is None
