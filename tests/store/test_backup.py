import zipfile
from itertools import pairwise

import pytest
from sqlalchemy import select

from app.alerts.alert import AlertState
from app.errors import InvalidRequest
from app.store import alerts, batches, hosts, outbox, shards, steps, windows
from app.store.backup import backup, restore
from app.store.batches import BatchRow
from app.store.engine import Store
from app.store.migrate import migrate
from app.store.steps import StepRow
from app.store.tables import metadata
from app.trace import user_types
from app.trace.job import Parallelism
from tests.postgres import database
from tests.store.factories import register, window
from tests.store.test_alerts import EVENT


def fill(store):
    """At least one row in every table, with what is hard to carry in each."""
    own = user_types.parse([{"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}])
    register(store, labels={"Ä": '"\n'}, op_types=own, parallelism=Parallelism(4, 1, ep_size=2))
    with store.write() as conn:
        windows.save(conn, "job", window(2**53, slowdown=0.1 + 0.2, trace=bytes(range(256))))
        windows.save(conn, "job", window(0, slowdown=None, per_step=None))
        steps.save(conn, "job", [StepRow(1, 0, 1 / 3, 1e-300, 1e300, None, "1-0", "why not")])
        batches.add(conn, [BatchRow("job", 1, 0, 2**53, b"\0\xff")])
        batches.save_cursor(conn, "job", 1, b"")
        hosts.save(conn, "job", 1, {(0, 1): "host"})
        shards.acquire(conn, 1, "me", now_s=1.0, lease_s=2.0)
        shards.heartbeat(conn, "me", now_s=1.0, lease_s=2.0)
        alerts.save_state(conn, "job", "slowdown", AlertState(True))
        for endpoint in ("https://a.example", "https://b.example"):
            outbox.add(conn, alerts.add_event(conn, EVENT), endpoint, '{"a": "é"}', now_s=1.0)


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
            url = f"sqlite:///{tmp_path / f'{len(stores)}.db'}"
        else:
            server = database(request.getfixturevalue("pg_server"))
            url = server.__enter__()
            request.addfinalizer(lambda: server.__exit__(None, None, None))
        migrate(url)
        stores.append(Store(url))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_a_backup_carries_everything_to_the_other_database_and_back(new_store, tmp_path):
    places = [new_store(kind) for kind in ("sqlite", "postgresql", "sqlite")]
    fill(places[0])
    original = content(places[0])
    assert all(original.values())
    for number, (source, target) in enumerate(pairwise(places)):
        file = tmp_path / f"{number}.zip"
        manifest = backup(source, file)
        assert restore(target, file) == manifest
        assert content(target) == original


def test_a_restored_database_gives_out_new_event_ids(store, new_store, tmp_path):
    fill(store)
    backup(store, tmp_path / "backup.zip")
    target = new_store("sqlite" if store.is_sqlite else "postgresql")
    restore(target, tmp_path / "backup.zip")
    with target.write() as conn:
        assert alerts.add_event(conn, EVENT) == 3


def test_an_empty_database_can_be_backed_up_and_restored(store, new_store, tmp_path):
    backup(store, tmp_path / "backup.zip")
    target = new_store("sqlite" if store.is_sqlite else "postgresql")
    restore(target, tmp_path / "backup.zip")
    register(target)
    with target.write() as conn:
        assert alerts.add_event(conn, EVENT) == 1


def test_a_database_with_rows_is_left_alone(store, tmp_path):
    backup(store, tmp_path / "backup.zip")
    register(store)
    before = content(store)
    with pytest.raises(InvalidRequest, match="not empty: its table jobs"):
        restore(store, tmp_path / "backup.zip")
    assert content(store) == before


def rewrite(source, target, change):
    """A copy of a zip file with some members changed, or left out where the change is None."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if (text := change(name, old.read(name))) is not None:
                new.writestr(name, text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda name, text: text.replace(b'"0002"', b'"0001"'), "of revision 0001"),
        (lambda name, text: text.replace(b'"format":1', b'"format":2'), "format 2"),
        (lambda name, text: None if "manifest" in name else text, "no whole backup"),
        (lambda name, text: None if "steps" in name else text, "no whole backup"),
        (lambda name, text: b"" if "steps" in name else text, "steps has 0 rows instead of 1"),
        (lambda name, text: text[:-9] if "steps" in name else text, "no whole backup"),
    ],
    ids=["revision", "format", "manifest", "table", "rows", "cut"],
)
def test_a_file_that_does_not_fit_fills_nothing(new_store, tmp_path, change, reason):
    source, target = new_store("sqlite"), new_store("sqlite")
    fill(source)
    backup(source, tmp_path / "whole.zip")
    rewrite(tmp_path / "whole.zip", tmp_path / "bad.zip", change)
    with pytest.raises(InvalidRequest, match=reason):
        restore(target, tmp_path / "bad.zip")
    assert not any(content(target).values())


def test_a_file_that_is_no_zip_is_refused(new_store, tmp_path):
    file = tmp_path / "backup.zip"
    file.write_bytes(b"nothing")
    with pytest.raises(InvalidRequest, match="no whole backup"):
        restore(new_store("sqlite"), file)


def test_a_backup_that_fails_leaves_no_file(tmp_path, new_store):
    store = new_store("sqlite")
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="irectory"):
        backup(store, tmp_path / "taken")
    assert [path.name for path in tmp_path.glob(".taken*")] == []
