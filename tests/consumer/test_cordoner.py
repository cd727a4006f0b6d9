import json
import shutil
import sys
from queue import Empty

import pytest

from app.alerts.alert import Blame, Detail
from app.alerts.cordon import Hook
from app.alerts.rule import Rule
from app.consumer.cordoner import Cordoner
from app.consumer.dispatcher import Dispatcher
from app.errors import StoreUnavailable
from app.store import jobs, registering, run_hosts
from tests.alerts.receiver import receiver
from tests.consumer.tellers import Tellers
from tests.store.factories import registration

RULES = [Rule("worker", "worker", 1.1, cordon="drain"), Rule("slow", "slowdown", cordon="drain")]
CULPRIT = {"dp_rank": 3, "stage": 1, "host": "host-7"}
FOUND = Detail(value=1.4, blame=Blame("slow-worker", "why", 0.2, 0.9, (CULPRIT,)))
OF_WORKER = {"labels": {"worker": "3-1", "host": "host-7"}, "detail": FOUND}


@pytest.fixture
def tellers(migrated_file, tmp_path):
    path = shutil.copy(migrated_file, tmp_path / "tellers.db")
    tellers = Tellers(f"sqlite:///{path}", rules=RULES)
    yield tellers
    tellers.close()


def cordoner_for(tellers, hook):
    transport = tellers.desk.transport
    cordoner = Cordoner(tellers.store, hook, transport.of_operator, tellers.clock)
    tellers.dispatcher = Dispatcher(tellers.desk, cordoner)
    return cordoner


def hook(*command, **given):
    return Hook(command, **{"projects": ("default",), "actions": ("drain",), **given})


def deeds(tellers):
    return tellers.rows("audit", "action", "object_id")


def test_a_dry_run_only_writes_down_what_would_be_asked(tellers, tmp_path):
    touched = tmp_path / "touched"
    cordoner = cordoner_for(tellers, hook("touch", str(touched)))
    tellers.fire("3-1", rule="worker", **OF_WORKER)
    tellers.tell()
    with pytest.raises(Empty):
        cordoner.ask_next(timeout_s=0.0)
    assert not touched.exists()
    assert deeds(tellers) == [("cordon.would", "job")]
    [(detail,)] = tellers.rows("audit", "detail")
    assert (detail["asked"], detail["workers"], detail["hosts"]) == ("drain", ["3-1"], ["host-7"])


def test_what_is_meant_is_asked_once_and_written_down_before_and_after(tellers, tmp_path):
    touched = tmp_path / "touched"
    cordoner = cordoner_for(tellers, hook("touch", str(touched), is_dry_run=False))
    tellers.fire("3-1", rule="worker", **OF_WORKER)
    tellers.tell()
    assert cordoner.ask_next(timeout_s=0.0).result == "done"
    assert touched.exists()
    assert deeds(tellers) == [("cordon.ask", "job"), ("cordon.done", "job")]
    tellers.pass_time(5 * 3600)
    tellers.tell()
    with pytest.raises(Empty):
        cordoner.ask_next(timeout_s=0.0)


@pytest.mark.parametrize("meanwhile", ["acknowledged for a while", "silenced for a while"])
def test_an_alert_that_is_told_anew_without_an_end_asks_for_nothing(tellers, meanwhile):
    cordoner_for(tellers, hook("true"))
    mark = tellers.fire("3-1", rule="worker", **OF_WORKER)
    tellers.fire("2-1", rule="worker", labels={"worker": "2-1"})
    tellers.tell()
    if meanwhile == "acknowledged for a while":
        tellers.acknowledge(mark)
        tellers.tell()
        tellers.unacknowledge(mark)
    else:
        tellers.silence(pattern="3-1")
        tellers.rest("2-1", rule="worker")  # with which receivers take all of it for over
    for _ in range(3):
        tellers.pass_time(3600)
        tellers.tell()
    assert deeds(tellers) == [("cordon.would", "job")]


def test_without_a_receiver_it_is_asked_once_for_each_beginning(tellers):
    cordoner_for(tellers, hook("true"))
    for number in (1, 2):
        tellers.fire("3-1", rule="worker", **OF_WORKER)
        for _ in range(3):
            tellers.pass_time(3600)
            tellers.tell()
        assert deeds(tellers) == [("cordon.would", "job")] * number
        tellers.rest("3-1", rule="worker")
        tellers.pass_time(3600)
        tellers.tell()


def test_what_a_tool_was_asked_for_is_told_to_who_comes_later_and_asked_no_more(tellers):
    cordoner_for(tellers, hook("false"))
    tellers.fire("3-1", rule="worker", **OF_WORKER)
    tellers.tell()
    tellers.pass_time(400)
    with receiver() as late:
        tellers.endpoint("late", late.url)
        tellers.tell()
        assert len(late.requests) == 1
    assert deeds(tellers) == [("cordon.would", "job")]


def test_a_url_that_refuses_is_written_down(tellers):
    with receiver() as tool:
        tool.answer.status = 500
        cordoner = cordoner_for(tellers, hook(url=tool.url, is_dry_run=False))
        tellers.fire("3-1", rule="worker", **OF_WORKER)
        tellers.tell()
        assert cordoner.ask_next(timeout_s=0.0).detail == "HTTP 500"
    assert deeds(tellers)[-1] == ("cordon.failed", "job")


@pytest.mark.parametrize("quiet", ["silence", "no worker"])
def test_what_is_silenced_or_names_nobody_asks_for_nobody(tellers, quiet):
    cordoner_for(tellers, hook(sys.executable, "--version", is_dry_run=False))
    if quiet == "silence":
        tellers.silence()
        tellers.fire("3-1", rule="worker", **OF_WORKER)
    else:
        tellers.fire(rule="slow")
    tellers.tell()
    assert deeds(tellers) == []


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_a_project_that_the_operator_does_not_let_ask_asks_for_nothing(tellers, is_dry_run):
    theirs = hook("false", projects=("infra",), is_dry_run=is_dry_run)
    cordoner = cordoner_for(tellers, theirs)
    tellers.fire("3-1", rule="worker", **OF_WORKER)
    tellers.tell()
    with pytest.raises(Empty):
        cordoner.ask_next(timeout_s=0.0)
    [(action, detail)] = tellers.rows("audit", "action", "detail")
    assert (action, detail["hosts"]) == ("cordon.refused", ["host-7"])
    assert "PACELINE_CORDON_PROJECTS" in detail["detail"]


def test_a_host_that_others_run_on_is_told_to_the_tool_and_to_nobody_else(tellers):
    """To take away what another project's job runs on, it must not do to claim it."""
    with tellers.store.write() as conn:
        for job_id, host in (("other/a", "host-7"), ("other/b", "host-9"), ("default/c", "host-7")):
            epoch = registering.register(conn, job_id, registration(), now_s=100.0).epoch
            run_hosts.add(conn, job_id, epoch, [host])
    with receiver() as tool:
        cordoner = cordoner_for(tellers, hook(url=tool.url, is_dry_run=False))
        tellers.fire("3-1", rule="worker", **OF_WORKER)
        tellers.tell()
        cordoner.ask_next(timeout_s=0.0)
        [(_, _, body)] = tool.requests
    assert json.loads(body)["hosts_that_other_projects_declare"] == ["host-7"]
    assert "other" not in str(tellers.rows("audit", "detail"))


def test_a_database_that_is_away_is_no_reason_to_ask_for_nothing(tellers, monkeypatch):
    def away(*_):
        raise StoreUnavailable("no answer")

    with receiver() as tool:
        cordoner = cordoner_for(tellers, hook(url=tool.url, is_dry_run=False))
        tellers.fire("3-1", rule="worker", **OF_WORKER)
        tellers.tell()
        monkeypatch.setattr(run_hosts, "declared_elsewhere", away)
        assert cordoner.ask_next(timeout_s=0.0).result == "done"
        [(_, _, body)] = tool.requests
    assert json.loads(body)["hosts_that_other_projects_declare"] is None


def test_a_host_that_others_were_on_is_not_disputed(tellers):
    with tellers.store.write() as conn:
        epoch = registering.register(conn, "other/a", registration(), now_s=100.0).epoch
        run_hosts.add(conn, "other/a", epoch, ["host-7"])
        jobs.end(conn, "other/a", now_s=200.0)
    with tellers.store.read() as conn:
        assert run_hosts.declared_elsewhere(conn, "default", ["host-7"]) == set()
