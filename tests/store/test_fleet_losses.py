"""Losses of windows by cause, operation type and host, and their sums."""

import pytest

from app.store import fleet, windows
from app.store import hosts as stored_hosts
from app.store.fleet import Loss, LossSum, losses_of
from tests.store.factories import register, window
from tests.store.findings import finding, result

JOB = "default/job"


def of(found, kind):
    return {each.name: each.gpu_s for each in found if each.kind == kind}


def save(store, job_id=JOB, first_step=0, *, found, updated_s=1000.0, revision=1):
    record = window(first_step, state="complete", updated_s=updated_s, revision=revision)
    with store.write() as conn:
        windows.save(conn, job_id, record)
        fleet.save_losses(conn, job_id, record, found, num_gpus=4)


def test_losses_of_a_window_equal_those_computed_by_hand():
    # 720 GPU-seconds, 144 lost; the slow worker costs a tenth of all, which leaves 72 unexplained.
    # The op types' excesses over 1 are 0.3 and 0.1: three quarters and one.
    found = losses_of(result(finding()), num_gpus=4)
    total = found[0]
    assert (total.kind, total.gpu_s_recorded, total.slowdown) == ("total", 720.0, 1.25)
    assert total.gpu_s == pytest.approx(144.0)
    assert of(found, "cause") == pytest.approx({"slow-worker": 72.0, "not-explained": 72.0})
    assert of(found, "optype") == pytest.approx(
        {"forward-compute": 108.0, "backward-compute": 36.0}
    )
    assert of(found, "host") == pytest.approx({"host-b": 72.0})
    assert [each.slowdown for each in found if each.kind == "host"] == [1.6]


def test_overlapping_causes_leave_no_unexplained_loss():
    costly = finding("stage-imbalance", cost=0.3, culprits=[{"stage": 1}])
    assert of(losses_of(result(finding(), costly), num_gpus=4), "cause") == pytest.approx(
        {"slow-worker": 72.0, "stage-imbalance": 216.0}
    )


def test_loss_without_diagnosis_is_unexplained():
    found = losses_of(result(findings=None), num_gpus=4)
    assert of(found, "cause") == pytest.approx({"not-explained": 144.0})
    assert of(found, "host") == {}


def test_windows_of_low_fidelity_have_no_losses():
    low = {"discrepancy": 0.08, "verdict": "low"}
    assert losses_of(result(finding(), fidelity=low), num_gpus=4) == []
    assert losses_of(result(slowdown=None), num_gpus=4) == []


def test_op_types_with_small_shares_are_one_row():
    slowdowns = {"forward-compute": 1.396} | {f"type-{each}": 1.001 for each in range(4)}
    found = of(losses_of(result(optype_slowdown=slowdowns), num_gpus=4), "optype")
    assert found == pytest.approx({"forward-compute": 144 * 0.99, "other": 144 * 0.01})


@pytest.mark.parametrize(
    "harmless",
    [
        finding("gc-pause"),
        finding("stage-imbalance"),
        finding(persistence="rotating"),
        finding(culprits=[{"dp_rank": 1, "stage": 1}]),
    ],
    ids=["no fault of a host", "nor this", "another one each time", "host not known"],
)
def test_causes_outside_hosts_have_no_host_losses(harmless):
    assert of(losses_of(result(harmless), num_gpus=4), "host") == {}


def test_slowdown_of_a_blamed_host_is_that_of_its_slowest_worker():
    whole = finding(
        culprits=[{"host": "host-a"}, {"dp_rank": 7, "stage": 0, "host": "host-c"}],
        evidence={
            "workers": [[0, 0], [0, 1], [7, 0]],
            "slowdowns_against_peers": [1.5, 1.7, 2.0],
        },
    )
    found = [each for each in losses_of(result(whole), num_gpus=4) if each.kind == "host"]
    assert {each.name: each.slowdown for each in found} == {"host-a": 1.7, "host-c": 2.0}
    assert sum(each.gpu_s for each in found) == pytest.approx(72.0)


def test_newer_revision_replaces_the_losses(store):
    register(store, JOB)
    save(store, found=losses_of(result(finding()), num_gpus=4))
    save(store, found=[Loss("total", "", 5.0, 50.0, 1.1)], revision=2)
    with store.read() as conn:
        assert fleet.loss_since(conn, "default", 0.0) == LossSum(5.0, 50.0)
        assert fleet.loss_by_name(conn, "default", "cause", 0.0) == {}


@pytest.mark.sql_sensitive
def test_loss_sums_are_of_one_project_since_a_time(store):
    for job_id in (JOB, "default/second", "research/job"):
        register(store, job_id, name=job_id)
        for first_step in (0, 1, 2):
            lost = [Loss("total", "", 1.0, 10.0, 1.1), Loss("cause", "gc-pause", 0.5)]
            save(store, job_id, first_step, found=lost, updated_s=100.0 * first_step)
    with store.read() as conn:
        assert fleet.loss_since(conn, "default", 100.0) == LossSum(4.0, 40.0)
        assert fleet.loss_since(conn, "research", 100.0) == LossSum(2.0, 20.0)
        assert fleet.loss_by_name(conn, "default", "cause", 200.0) == {"gc-pause": 1.0}
        assert fleet.loss_by_job(conn, "default", 100.0) == [
            (JOB, 4, LossSum(2.0, 20.0)),
            ("default/second", 4, LossSum(2.0, 20.0)),
        ]
        edges_s = [0.0, 100.0, 150.0, 200.0]
        assert fleet.loss_by_interval(conn, "default", edges_s) == [
            LossSum(2.0, 20.0), LossSum(2.0, 20.0), LossSum(0.0, 0.0)
        ]  # fmt: skip


def test_blamed_hosts_lists_hosts_of_several_jobs(store):
    for job_id, hosts in ((JOB, ("a", "b")), ("default/second", ("b",)), ("research/job", ("a",))):
        register(store, job_id)
        for first_step in (0, 1):
            lost = [Loss("host", host, 36.0, slowdown=1.5 + first_step) for host in hosts]
            save(store, job_id, first_step, found=lost, updated_s=100.0 * first_step)
    with store.read() as conn:
        found, cursor = stored_hosts.listed_hosts(conn, "default", since_s=0.0, min_jobs=2)
        assert found == [stored_hosts.BlamedHost("b", 2, 2.5, 100.0, 144.0, 0.0)]
        assert cursor is None
        assert stored_hosts.blaming_runs(conn, "default", "b", since_s=0.0) == [
            stored_hosts.BlamingRun(job_id, 1, 2, 0, 1, 2.5, 100.0, 72.0)
            for job_id in (JOB, "default/second")
        ]


def test_blamed_hosts_pages_are_ordered_by_jobs(store):
    for number in range(3):
        register(store, f"default/job-{number}")
        hosts = [f"host-{each}" for each in range(number + 1)]
        save(store, f"default/job-{number}", found=[Loss("host", host, 1.0) for host in hosts])
    with store.read() as conn:
        first, cursor = stored_hosts.listed_hosts(conn, "default", since_s=0.0, min_jobs=1, limit=2)
        rest, end = stored_hosts.listed_hosts(
            conn, "default", since_s=0.0, min_jobs=1, limit=2, cursor=cursor
        )
    assert [(each.host, each.num_jobs) for each in first] == [("host-0", 3), ("host-1", 2)]
    assert [each.host for each in rest] == ["host-2"]
    assert end is None
