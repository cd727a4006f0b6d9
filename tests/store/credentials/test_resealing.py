"""Rotation of keys, and rows of releases that stored secrets in plain."""

import msgspec
import pytest
from sqlalchemy import text

from app.errors import SecretsLocked
from app.store import service_state
from app.store.alerting import receivers
from app.store.credentials import resealing
from app.store.credentials.sealing import SecretKeys, key_id
from app.store.database import Store
from tests.store.factories import webhook_receiver

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
SECRET = "whsec_" + "c2VjcmV0LW9mLXRoZS1wbGFpbi1yb3c" * 2
HOOK = "https://hooks.example/services/T00/B00/of-the-plain-row"


@pytest.fixture
def opened(url):
    stores: list[Store] = []

    def opened(*keys: bytes) -> Store:
        stores.append(Store(url, keys=SecretKeys(keys)))
        return stores[-1]

    yield opened
    for each in stores:
        each.close()


def add_plain_rows(store, number):
    """Rows as the releases before encryption wrote them."""
    with store.write() as conn:
        for each in range(number):
            made = webhook_receiver(f"hook{each:03}", project=f"p{each % 3}", url=HOOK)
            receivers.add(conn, made)
        plain = {"secrets": [SECRET], "headers": {"x-key": "of-the-plain-header"}}
        update = text("UPDATE endpoints SET sealed = NULL, url = :url, secrets = :secrets")
        conn.execute(update, {"url": HOOK, "secrets": msgspec.json.encode(plain).decode()})
        service_state.find_or_make_key(conn, "pictures")
        conn.execute(text("UPDATE service_keys SET key = :key"), {"key": b"k" * 32})


@pytest.mark.sql_sensitive
def test_plain_rows_are_read_and_then_sealed(opened):
    store = opened(OLD)
    add_plain_rows(store, 120)  # more than one transaction's
    with store.read() as conn:
        before = receivers.get(conn, "p1", "hook007")
        assert (before.url, before.secrets) == (HOOK, (SECRET,))
        assert receivers.without_secrets(conn, "p1")[0].url == "https://hooks.example"
    assert resealing.reseal(store) == resealing.Resealed(done=121, locked=0, was_plain=True)
    with store.read() as conn:
        assert receivers.get(conn, "p1", "hook007") == before
        assert service_state.find_key(conn, "pictures") == b"k" * 32
        stored = conn.execute(text("SELECT * FROM endpoints")).mappings().all()
    assert "plain" not in str(stored)
    assert resealing.reseal(store) == resealing.Resealed()


def test_nothing_plain_stays_in_the_files_of_sqlite(tmp_path, migrated_file):
    path = tmp_path / "paceline.db"
    path.write_bytes(migrated_file.read_bytes())
    store = Store(f"sqlite:///{path}", keys=SecretKeys([OLD]))
    add_plain_rows(store, 60)
    store.forget_log()
    assert b"of-the-plain" in path.read_bytes()
    resealing.reseal(store)
    files = sorted(tmp_path.iterdir())
    assert path in files
    assert [each.name for each in files if b"of-the-plain" in each.read_bytes()] == []
    store.close()


@pytest.mark.sql_sensitive
def test_rotation_moves_every_row_to_the_newest_key(opened):
    with opened(OLD).write() as conn:
        receivers.add(conn, webhook_receiver("hook", url=HOOK, secrets=(SECRET,)))
        key = service_state.find_or_make_key(conn, "pictures")
    both = opened(NEW, OLD)
    with both.read() as conn:
        assert resealing.count(conn) == resealing.SealedCounts({key_id(OLD): 2}, plain=0, locked=0)
    assert resealing.reseal(both) == resealing.Resealed(done=2)
    with opened(NEW).read() as conn:
        assert receivers.get(conn, "default", "hook").secrets == (SECRET,)
        assert service_state.find_key(conn, "pictures") == key
        assert resealing.count(conn) == resealing.SealedCounts({key_id(NEW): 2}, plain=0, locked=0)
    with opened(OLD).read() as conn:
        assert resealing.count(conn).locked == 2


def test_rows_of_a_key_that_is_not_here_stay_as_they_are(opened):
    with opened(OLD).write() as conn:
        receivers.add(conn, webhook_receiver("hook", url=HOOK, secrets=(SECRET,)))
    assert resealing.reseal(opened(NEW)) == resealing.Resealed(done=0, locked=1)
    with opened(NEW).read() as conn:
        found = receivers.get(conn, "default", "hook")
        assert (found.url, found.secrets) == ("https://hooks.example", ())
        assert found.locked is not None
        assert key_id(OLD) in found.locked
        assert receivers.without_secrets(conn, "default")[0].locked == found.locked
    with opened(OLD).read() as conn:
        assert receivers.get(conn, "default", "hook").url == HOOK


def test_without_a_key_nothing_is_stored(opened):
    with pytest.raises(SecretsLocked, match="PACELINE_SECRET_KEY"), opened().write() as conn:
        receivers.add(conn, webhook_receiver("hook"))
    with pytest.raises(SecretsLocked), opened().write() as conn:
        service_state.find_or_make_key(conn, "pictures")
