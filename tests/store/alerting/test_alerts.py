from dataclasses import replace

import msgspec
import pytest
from msgspec import structs
from sqlalchemy import text

from app.alerts.alert import Blame, Detail
from app.errors import AlertNotFound
from app.result.finding import Culprit
from app.store.alerting import alerts
from tests.store.factories import alert, register

BLAME = Blame("slow-worker", "dp 3 is slow.", 0.2, 0.9, (Culprit(dp_rank=3, host="höst"),), 1)
DETAIL = Detail(
    on="slowdown",
    value=1.42,
    slowdown=1.42,
    gpu_time_wasted=0.1 + 0.2,
    gpu_hours_lost_per_hour=12.5,
    num_gpus=8,
    since_step=2**53,
    window_id="2-1220",
    blame=BLAME,
    names=("dp 3, stage 1",),
    num_named=1,
)
WHOLE = alert(
    "a/job",
    epoch=2,
    window_id="2-1220",
    num_windows=4,
    held_s=0.1 + 0.2,
    below_s=1.0,
    ceased_s=2.0,
    unseen_since_s=2.5,
    is_no_data=True,
    threshold=1.1,
    labels={"job": "job", "team": "Ä"},
    runbook_url="https://runbook.example",
    detail=DETAIL,
    acked_at_s=3.0,
    acked_by="ops",
    assigned_to="Maria",
    assigned_at_s=4.0,
    assigned_by="ops",
    note="see OPS-17",
    noted_at_s=5.0,
    noted_by="ops",
)


@pytest.fixture
def saved(store):
    """Save alerts, with their jobs."""

    def save(*states):
        for job_id in {state.job_id for state in states}:
            register(store, job_id)
        with store.write() as conn:
            alerts.save(conn, states)

    return save


def test_alert_is_read_back_until_removed(store, saved):
    saved(WHOLE, alert("a/other", detail=Detail()))
    with store.write() as conn:
        assert alerts.of_job(conn, "a/job") == [WHOLE]
        assert alerts.get(conn, "a", WHOLE.fingerprint) == WHOLE
        alerts.remove(conn, [WHOLE.fingerprint])
        assert alerts.of_job(conn, "a/job") == []
        assert len(alerts.of_job(conn, "a/other")) == 1
        with pytest.raises(AlertNotFound, match=WHOLE.fingerprint):
            alerts.get(conn, "a", WHOLE.fingerprint)


def test_alerts_of_other_projects_are_not_found(store, saved):
    saved(WHOLE)
    with store.read() as conn:
        for project in ("b", "a0", ""):
            with pytest.raises(AlertNotFound):
                alerts.get(conn, project, WHOLE.fingerprint)
            assert alerts.page(conn, project) == ([], None)


@pytest.mark.sql_sensitive
def test_saving_an_alert_again_replaces_it(store, saved):
    saved(WHOLE)
    later = replace(WHOLE, phase="pending", detail=Detail(value=1.1), num_windows=5)
    saved(later)
    with store.read() as conn:
        assert alerts.of_job(conn, "a/job") == [later]


@pytest.mark.sql_sensitive
def test_acknowledgement_outlives_a_consumers_save(store, saved):
    state = alert("a/job")
    saved(state)
    with store.write() as conn:
        assert alerts.acknowledge(conn, state.fingerprint, by="ops", at_s=7.0)
        assert not alerts.acknowledge(conn, state.fingerprint, by="another", at_s=8.0)
        alerts.save(conn, [replace(state, num_windows=9)])
        found = alerts.get(conn, "a", state.fingerprint)
        assert (found.acked_at_s, found.acked_by, found.num_windows) == (7.0, "ops", 9)
        assert alerts.unacknowledge(conn, state.fingerprint)
        assert not alerts.unacknowledge(conn, state.fingerprint)
        alerts.acknowledge(conn, state.fingerprint, by="ops", at_s=9.0)
        # Resolved and firing again: no longer acknowledged.
        alerts.remove(conn, [state.fingerprint])
        alerts.save(conn, [state])
        assert alerts.get(conn, "a", state.fingerprint).acked_at_s is None


@pytest.mark.sql_sensitive
def test_assignee_and_note_outlive_a_consumers_save_but_not_the_alert(store, saved):
    state = alert("a/job", phase="pending")
    saved(state)
    mark = state.fingerprint
    with store.write() as conn:
        assert alerts.assign(conn, mark, to="Maria", by="ops", at_s=7.0)
        assert not alerts.assign(conn, mark, to="Maria", by="another", at_s=8.0)
        alerts.set_note(conn, mark, text="see OPS-17", by="ops", at_s=8.0)
        alerts.save(conn, [replace(state, phase="firing")])
        found = alerts.get(conn, "a", mark)
        assert (found.assigned_to, found.assigned_by, found.assigned_at_s) == ("Maria", "ops", 7.0)
        assert (found.note, found.noted_by, found.noted_at_s) == ("see OPS-17", "ops", 8.0)
        assert alerts.unassign(conn, mark)
        assert not alerts.unassign(conn, mark)
        alerts.remove(conn, [mark])
        alerts.save(conn, [state])
        assert alerts.get(conn, "a", mark).note is None


def test_only_firing_alerts_can_be_acknowledged(store, saved):
    state = alert("a/job", phase="pending")
    saved(state)
    with store.write() as conn:
        assert not alerts.acknowledge(conn, state.fingerprint, by="ops", at_s=7.0)
        assert not alerts.acknowledge(conn, "nothing", by="ops", at_s=7.0)


@pytest.mark.sql_sensitive
def test_alert_pages_are_newest_first_without_repeats(store, saved):
    states = [alert("a/job", "worker", f"{n}-0", began_at_s=float(n // 2)) for n in range(7)]
    saved(*states, alert("b/job"))
    found, cursor = [], None
    with store.read() as conn:
        for _ in range(4):
            part, cursor = alerts.page(conn, "a", cursor=cursor, limit=2)
            found += part
    assert cursor is None
    assert [state.began_at_s for state in found] == [3.0, 2.0, 2.0, 1.0, 1.0, 0.0, 0.0]
    assert {state.fingerprint for state in found} == {state.fingerprint for state in states}


@pytest.mark.sql_sensitive
def test_alert_pages_are_filtered(store, saved):
    first = alert("a/LLM-70b", severity="critical")
    second = alert("a/llm-7b", phase="pending")
    third = alert("a/other_")
    saved(first, second, third)
    with store.read() as conn:

        def found(**given):
            return {state.job_id for state in alerts.page(conn, "a", **given)[0]}

        assert found(phase="pending") == {"a/llm-7b"}
        assert found(job_id="a/other_") == {"a/other_"}
        assert found(severity="critical") == {"a/LLM-70b"}
        assert found(text="llm") == {"a/LLM-70b", "a/llm-7b"}
        assert found(text="a/") == set()
        assert found(text="_") == {"a/other_"}
        assert found(text="%") == set()


def test_alerts_with_non_finite_numbers_or_bad_texts_are_saved(store, saved):
    blame = structs.replace(BLAME, cost=float("nan"), sentence="a\0b" + "c" * 5000)
    names = tuple(f"dp {n}" for n in range(100))
    odd = alert(
        "a/job",
        subject="h" * 300,
        detail=Detail(value=float("inf"), blame=blame, names=names, num_named=100),
        labels={"a": "x" * 1000, "b": "\ud800"},
    )
    saved(odd)
    with store.read() as conn:
        [found] = alerts.of_job(conn, "a/job")
    assert found.fingerprint == odd.fingerprint
    assert found.subject == "h" * 255 + "…"
    assert found.detail.value is None
    assert found.detail.blame is not None
    assert found.detail.blame.cost is None
    assert found.detail.blame.sentence.startswith("a�bccc")
    assert len(found.detail.blame.sentence) == 2000
    assert (len(found.detail.names), found.detail.num_named) == (20, 100)
    assert (len(found.labels["a"]), found.labels["b"]) == (256, "?")


@pytest.mark.sql_sensitive
def test_more_alerts_are_saved_and_removed_than_one_statement_takes(store, saved):
    states = [alert("a/job", "worker", f"{n}-0") for n in range(1100)]
    saved(*states)
    with store.write() as conn:
        assert len(alerts.of_job(conn, "a/job")) == 1100
        alerts.remove(conn, [state.fingerprint for state in states])
        assert alerts.of_job(conn, "a/job") == []


@pytest.mark.sql_sensitive
def test_more_alerts_are_removed_than_a_statement_has_parameters(store, saved):
    saved(WHOLE)
    with store.write() as conn:
        alerts.remove(conn, [WHOLE.fingerprint, *(f"{at:016x}" for at in range(66_000))])
        assert alerts.of_job(conn, "a/job") == []


@pytest.mark.parametrize("kept", ['{"value":"1.42"}', '{"since_step":1.5}', '{"blame":{}}', "[]"])
def test_alert_detail_of_other_types_is_refused(store, saved, kept):
    saved(WHOLE)
    change(store, kept)
    with store.read() as conn, pytest.raises(msgspec.ValidationError):
        alerts.of_job(conn, "a/job")


def test_missing_detail_fields_have_their_default(store, saved):
    saved(WHOLE)
    blame = '{"cause":"x","sentence":"y","cost":null,"confidence":1}'
    change(store, f'{{"value":2,"of_a_newer_release":[1],"blame":{blame}}}')
    with store.read() as conn:
        [found] = alerts.of_job(conn, "a/job")
    assert found.detail == Detail(value=2.0, blame=Blame("x", "y", None, 1.0))


def change(store, detail):
    with store.write() as conn:
        conn.execute(text("UPDATE alerts SET detail = :detail"), {"detail": detail})
