"""Rotation of keys."""

import pytest

from app.errors import SecretsLocked
from app.store import service_state
from app.store.alerting import receivers
from app.store.credentials import resealing
from app.store.credentials.sealing import SecretKeys, key_id
from app.store.database import Store
from tests.store.factories import webhook_receiver

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
SECRET = "whsec_" + "c2VjcmV0LW9mLXRoZS1yb3c" * 2
HOOK = "https://hooks.example/services/T00/B00/of-the-row"


@pytest.fixture
def opened(url):
    stores: list[Store] = []

    def opened(*keys: bytes) -> Store:
        stores.append(Store(url, keys=SecretKeys(keys)))
        return stores[-1]

    yield opened
    for each in stores:
        each.close()


@pytest.mark.sql_sensitive
def test_rotation_moves_every_row_to_the_newest_key(opened):
    with opened(OLD).write() as conn:
        for number in range(120):  # more than one transaction's
            name, project = f"hook{number:03}", f"p{number % 3}"
            receivers.add(
                conn, webhook_receiver(name, project=project, url=HOOK, secrets=(SECRET,))
            )
        key = service_state.find_or_make_key(conn, "pictures")
    both = opened(NEW, OLD)
    with both.read() as conn:
        assert resealing.count(conn) == resealing.SealedCounts({key_id(OLD): 121}, locked=0)
    assert resealing.reseal(both) == resealing.Resealed(done=121)
    with opened(NEW).read() as conn:
        assert receivers.get(conn, "p1", "hook007").secrets == (SECRET,)
        assert service_state.find_key(conn, "pictures") == key
        assert resealing.count(conn) == resealing.SealedCounts({key_id(NEW): 121}, locked=0)
    with opened(OLD).read() as conn:
        assert resealing.count(conn).locked == 121
    assert resealing.reseal(both) == resealing.Resealed()


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
