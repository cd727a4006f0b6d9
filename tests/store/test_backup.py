import secrets
import shutil
import zipfile
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select, text, update

from app.alerts.rule import Rule
from app.errors import InvalidRequest
from app.result.brief import brief_of
from app.store import (
    annotations,
    as_of,
    audit,
    dead_letters,
    exits,
    fixes,
    fleet,
    hosts,
    jobs,
    recordings,
    runs,
    saved_questions,
    saved_views,
    service_state,
    shards,
    windows,
)
from app.store import projects as projects_of_users
from app.store import tokens as tokens_of_projects
from app.store.alerting import (
    alert_rules,
    alerts,
    deliveries,
    notifications,
    receivers,
    service_watches,
    silences,
)
from app.store.alerting.deliveries import DeliveryAttempt
from app.store.alerting.notifications import LastNotification
from app.store.backup import backup, restore
from app.store.credentials import sessions, share_links
from app.store.credentials.sessions import SessionRecord
from app.store.database import Store, newest_revision
from app.store.disk import forecast
from app.store.disk.usage import DiskUsage
from app.store.fleet import Loss
from app.store.recordings import StepSample
from app.store.runs import IngestCounts
from app.store.shards import SpoolRow
from app.store.tables import metadata, projects, window_objects
from app.store.tokens import NewToken
from app.store.windows import StepRow
from app.trace import ops
from app.trace.exits import RankExit
from app.trace.job import CANARY_PROJECT, Parallelism, Placement
from tests.postgres import database
from tests.secret_keys import KEYS
from tests.store.factories import (
    add_audit_entry,
    add_message,
    alert,
    annotation,
    event,
    prediction,
    register,
    share_link,
    silence,
    webhook_receiver,
    window,
)
from tests.store.findings import result
from tests.store.test_dead_letters import LETTER

TRANSIENT_TABLES = {
    *("shards", "consumers", "refusals"),
    *("sessions", "disk_samples", "service_watches"),
}


AN_OBJECT = {"job_id": "job", "epoch": 1, "first_step": 0, "revision": 1,
             "window_first_step": 0, "window_revision": 2**53, "updated_s": 0.1 + 0.2,
             "size_bytes": 2**53, "sha256": "ab", "claimed_s": 1.0, "is_stored": True,
             "is_removed": False}  # fmt: skip


def fill(store):
    """Fill every table with at least one row of values that are hard to carry."""
    own = ops.parse_op_types([{"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}])
    register(store, labels={"Ä": '"\n'}, op_types=own, parallelism=Parallelism(4, 1, ep_size=2))
    with store.write() as conn:
        windows.save(
            conn,
            "job",
            window(2**53, slowdown=0.1 + 0.2, trace=bytes(range(256)), remainders=b"\0\xff"),
        )
        windows.save(conn, "job", window(0, slowdown=None, per_step=None))
        windows.save_steps(
            conn, "job", [StepRow(1, 0, 1 / 3, 1e-300, 1e300, None, "1-0", "why not")]
        )
        conn.execute(window_objects.insert(), [AN_OBJECT])
        shards.add_spooled(conn, [SpoolRow("job", 1, 2**53, 2**53, b"\0\xff")])
        shards.save_assembler(conn, "job", 1, b"")
        runs.save(conn, "job", 1, IngestCounts(late=2**53, last_conflict={"at_s": 0.1 + 0.2}))
        hosts.save(conn, "job", 1, {(0, 1): "host"}, {(0, 1): Placement("ü", None)})
        hosts.add_to_run(conn, "job", 1, ["höst"])
        fleet.save_brief(conn, "job", 1, 0, brief_of(result(), num_gpus=8))
        fleet.save_losses(conn, "job", window(0), [Loss("cause", "slow-link", 1e-300)], num_gpus=8)
        saved_questions.save(
            conn, "job", name="ü", window_id="1-0", question={"edits": []}, now_s=1.0
        )
        annotations.add(conn, annotation(job_id="job", text="ü", host="höst"))
        share_links.create(conn, share_link(job_id="job", page=b"\0\xff"), now_s=0.1 + 0.2)
        fixes.save_prediction(conn, "job", prediction(note="ü"), now_s=0.1 + 0.2)
        runs.save_drops(conn, "job", 1, [(7, 0, 0, 2**53), (8, 0, 1, 0)])
        recordings.add(conn, "job", 1, StepSample(), from_step=2**53, now_s=0.1 + 0.2, by="ü")
        shards.save_history(conn, "job", 1, through_step=2**53, blob=b"\0history\xff")
        exits.add(conn, "job", 1, RankExit(1, 1, 0, "höst", "failed", 0.1 + 0.2, message="ü"))
        jobs.edit_labels(conn, "job", {"owner": "ü"})
        jobs.archive(conn, "job", now_s=0.1 + 0.2)
        saved_views.save(conn, "p", name="ü", query={"q": "ü"}, author="ü", now_s=1.0)
        fill_alerts(conn)
        dead_letters.add(conn, [LETTER])
        service_state.find_or_make_key(conn, "pictures")
        service_state.save_pages_url(conn, "http://127.0.0.1:8642")
        tokens_of_projects.create(conn, NewToken("of-mine", "ü", ["read"]), now_s=1.0)
    run_without_jobs(store)


def fill_alerts(conn):
    """The same for the alert tables."""
    alerts.save(conn, [alert(labels={"a": "ü"})])
    alert_rules.replace_all(conn, "p", [Rule("r", "stalled")], text="# ü", now_s=1.0)
    for endpoint_id in ("a", "b"):
        event_id = alerts.add_event(conn, event())
        receivers.add(conn, webhook_receiver(endpoint_id))
        attempt = DeliveryAttempt(1, 1.0, 0.1 + 0.2, None, "")
        deliveries.add_attempt(conn, add_message(conn, endpoint_id), attempt)
    notifications.wake_group(conn, "job", "slowdown", at_s=1.0)
    notified = LastNotification(
        "firing", 1.0, event_id=event_id, starts_at_s=1.0, sentence="It is slow."
    )
    notifications.save_notifications(conn, "job", "slowdown", {"aa": notified})
    silences.add(conn, silence())
    add_audit_entry(conn, detail={"ü": [1]})


def run_without_jobs(store):
    """Write what processes write before the first job."""
    with store.write() as conn:
        shards.acquire(conn, 1, "me", now_s=1.0, lease_s=2.0)
        shards.heartbeat(conn, "me", now_s=1.0, lease_s=2.0)
        runs.add_to_total(conn, "fenced_commits", 1)
        sessions.begin(conn, signed_in())
        service_watches.note_consumers(conn, now_s=1.0)
        as_of.note_refused(conn, ["job"], now_s=1.0)
        projects_of_users.create_canary(conn, now_s=1.0)
    register(store, f"{CANARY_PROJECT}/canary-1")
    forecast.add_sample(store, DiskUsage(1, 1))


def signed_in():
    """A session of the root token."""
    times: dict[str, Any] = {"created_s": 1.0, "expires_s": 2.0}
    times |= {"last_used_s": None, "ended_s": None}
    return SessionRecord(secrets.token_hex(8), "root", "default", "ü", "::1", **times, digest="d")


def content(store):
    with store.read() as conn:
        return {
            table.name: [tuple(row) for row in conn.execute(select(table).order_by(*table.c))]
            for table in metadata.sorted_tables
        }


@pytest.fixture
def new_store(tmp_path, request):
    stores: list[Store] = []

    def make(kind):
        if kind == "sqlite":
            file = request.getfixturevalue("migrated_file")
            url = f"sqlite:///{shutil.copy(file, tmp_path / f'{len(stores)}.db')}"
        else:
            template = request.getfixturevalue("migrated_pg")
            url = open_ones.enter_context(
                database(request.getfixturevalue("pg_server"), template_url=template)
            )
        stores.append(open_ones.enter_context(closing(Store(url, keys=KEYS))))
        return stores[-1]

    with ExitStack() as open_ones:
        yield make


def test_backup_restores_every_row_on_the_other_database_and_back(new_store, tmp_path):
    stores = [new_store(kind) for kind in ("sqlite", "postgresql", "sqlite")]
    fill(stores[0])
    original = content(stores[0])
    assert all(original.values())
    for number, (source, target) in enumerate(pairwise(stores)):
        file = tmp_path / f"{number}.zip"
        manifest = backup(source, file)
        assert restore(target, file) == manifest
        assert content(target) == original | {name: [] for name in TRANSIENT_TABLES}


@pytest.mark.sql_sensitive
def test_restored_database_continues_its_id_sequences(store, new_store, tmp_path):
    fill(store)
    backup(store, tmp_path / "backup.zip")
    target = new_store("sqlite" if store.is_sqlite else "postgresql")
    restore(target, tmp_path / "backup.zip")
    with target.write() as conn:
        assert alerts.add_event(conn, event()) == 3
        delivery_id = add_message(conn, notice_id="new")
        assert deliveries.get(conn, "default", delivery_id).seq == 3
        deliveries.add_attempt(conn, delivery_id, DeliveryAttempt(1, 1.0, 0.1, 200, ""))
        add_audit_entry(conn)
        assert [each.audit_id for each in audit.page(conn, "p")[0]] == [2, 1]
        dead_letters.add(conn, [replace(LETTER, entry_id="9-9")])
        assert dead_letters.summary(conn, 2).entry_id == "9-9"


def test_an_empty_database_can_be_backed_up_and_restored(store, new_store, tmp_path):
    backup(store, tmp_path / "backup.zip")
    target = new_store("sqlite" if store.is_sqlite else "postgresql")
    restore(target, tmp_path / "backup.zip")
    register(target)
    with target.write() as conn:
        assert alerts.add_event(conn, event()) == 1


@pytest.mark.sql_sensitive
def test_backup_restores_into_a_server_that_ran_without_jobs(store, new_store, tmp_path):
    source = new_store("sqlite")
    fill(source)
    with source.write() as conn:
        conn.execute(update(projects).values(keep_raw_days=3.0))
        runs.add_to_total(conn, "fenced_commits", 6)
    backup(source, tmp_path / "backup.zip")
    run_without_jobs(store)
    transient = {name: content(store)[name] for name in TRANSIENT_TABLES}
    restore(store, tmp_path / "backup.zip")
    assert all(transient.values())
    assert content(store) == content(source) | transient


@pytest.mark.parametrize(
    ("change", "table"),
    [
        ("INSERT INTO jobs (job_id, epoch) VALUES ('default/job', 1)", "jobs"),
        ("INSERT INTO projects (project, created_s) VALUES ('another', 0.0)", "projects"),
        ("UPDATE projects SET keep_results_days = 7.0", "projects"),
    ],
)
def test_restore_into_a_database_with_rows_is_refused(store, tmp_path, change, table):
    backup(store, tmp_path / "backup.zip")
    with store.write() as conn:
        conn.execute(text(change))
    run_without_jobs(store)
    before = content(store)
    with pytest.raises(InvalidRequest, match=f"not empty: its table {table} has"):
        restore(store, tmp_path / "backup.zip")
    assert content(store) == before


@pytest.fixture(scope="module")
def whole(migrated_file, tmp_path_factory):
    """A backup of a database with rows in every table."""
    folder = tmp_path_factory.mktemp("backup")
    path = shutil.copy(migrated_file, folder / "source.db")
    with closing(Store(f"sqlite:///{path}", keys=KEYS)) as source:
        fill(source)
        backup(source, folder / "whole.zip")
    return folder / "whole.zip"


NEWEST = f'"{newest_revision()}"'.encode()


def rewrite(source, target, change):
    """Copy a zip file with some members changed, or dropped where the change is None."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if (text := change(name, old.read(name))) is not None:
                new.writestr(name, text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda name, text: text.replace(NEWEST, b'"9999"'), "of revision 9999"),
        (lambda name, text: text.replace(NEWEST, b'"0014"'), "0014, of before release 0.1.0"),
        (lambda name, text: text.replace(NEWEST, b'"0024"'), "names other tables"),
        (lambda name, text: text.replace(b'"format":1', b'"format":2'), "format 2"),
        (lambda name, text: None if "manifest" in name else text, "no whole backup"),
        (lambda name, text: None if "steps" in name else text, "no whole backup"),
        (lambda name, text: b"" if "steps" in name else text, "steps has 0 rows instead of 1"),
        (lambda name, text: text[:-9] if "steps" in name else text, "no whole backup"),
    ],
    ids=["revision", "too old", "other tables", "format", "manifest", "table", "rows", "cut"],
)
def test_invalid_backup_file_restores_nothing(new_store, whole, tmp_path, change, reason):
    target = new_store("sqlite")
    before = content(target)
    rewrite(whole, tmp_path / "bad.zip", change)
    with pytest.raises(InvalidRequest, match=reason):
        restore(target, tmp_path / "bad.zip")
    assert content(target) == before


def test_failed_backup_leaves_no_file(tmp_path, new_store):
    store = new_store("sqlite")
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="irectory"):
        backup(store, tmp_path / "taken")
    assert [path.name for path in tmp_path.glob(".taken*")] == []
