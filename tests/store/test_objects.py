"""Operations of closed windows, in the database and moved to a bucket: the same contract.

The bucket is one of moto's server: S3 over HTTP on loopback.
"""

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from sqlalchemy import delete, select, update

from app.errors import Conflict, ObjectStorageUnavailable
from app.store import retention, windows
from app.store.database import Store
from app.store.objects import moves
from app.store.objects.bucket import BucketAddress, S3Bucket
from app.store.objects.moves import Mover
from app.store.retention import RetentionLimits
from app.store.tables import window_objects, window_remainders
from app.store.tables import windows as windows_table
from tests.store.factories import register, window

JOB = "default/job"
DAY_S = 86_400.0
OPERATIONS = b"\x00operations\xff" * 1000
KEYS = {"access_key": "key", "secret_key": "very secret"}


@pytest.fixture(scope="module")
def s3():
    """A client of the server, and its address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="key",
        aws_secret_access_key="very secret",
    )  # fmt: skip
    yield SimpleNamespace(client=client, url=url)
    server.stop()


@pytest.fixture
def bucket(s3, request):
    name = f"b{abs(hash(request.node.nodeid))}"
    s3.client.create_bucket(Bucket=name)
    return S3Bucket(BucketAddress(name, "team/paceline", endpoint=s3.url, **KEYS))


@pytest.fixture
def objects(s3, bucket):
    """Names of all objects in the bucket."""
    name = bucket._address.bucket
    return lambda: [
        each["Key"] for each in s3.client.list_objects_v2(Bucket=name).get("Contents", ())
    ]


@pytest.fixture
def store(url):
    store = Store(url)
    register(store, JOB)
    yield store
    store.close()


def save(store, first_step=0, *, age_s=DAY_S, revision=2, trace=OPERATIONS, **changes):
    record = window(
        first_step, last_step=first_step + 1, state="complete", trace=trace, revision=revision,
        updated_s=time.time() - age_s, **changes,
    )  # fmt: skip
    with store.write() as conn:
        assert windows.save(conn, JOB, record)


def move_all(store, bucket, after_s=3600.0):
    number = 0
    while moves.move_one(store, bucket, after_s=after_s):
        number += 1
    return number


def read(store, bucket, window_id="1-0"):
    with store.snapshot() as conn:
        found = moves.find(conn, JOB, window_id)
    return moves.fetch(bucket, found)


def in_database(store, first_step=0):
    query = select(windows_table.c.trace).where(windows_table.c.first_step == first_step)
    with store.read() as conn:
        return conn.execute(query).scalar_one()


def rows(store):
    with store.read() as conn:
        return conn.execute(select(window_objects)).all()


def sweep(store, raw_days):
    return {
        each.kind: each.number for each in retention.sweep(store, RetentionLimits(raw_days, 180))
    }


def age(store, seconds=1e4):
    """Let the claims of all objects be older."""
    its = window_objects.c.claimed_s
    with store.write() as conn:
        conn.execute(update(window_objects).values(claimed_s=its - seconds))


@pytest.fixture(params=["database", "bucket"])
def settle(request, store):
    """Puts operations where they are to be: nothing, or a move into the bucket."""
    if request.param == "database":
        return lambda: None
    bucket = request.getfixturevalue("bucket")
    return lambda: move_all(store, bucket)


def test_operations_are_read_as_they_were_saved(store, bucket, settle):
    save(store)
    settle()
    assert read(store, bucket) == OPERATIONS


def test_a_revision_takes_the_place_of_the_operations_before(store, bucket, settle):
    save(store)
    settle()
    save(store, revision=3, trace=b"later")
    assert read(store, bucket) == b"later"
    settle()
    assert read(store, bucket) == b"later"


def test_operations_past_their_days_are_read_no_more_but_the_result_is(store, bucket, settle):
    save(store, age_s=20 * DAY_S)
    save(store, 2, age_s=DAY_S)
    settle()
    kinds = sweep(store, raw_days=14)
    assert sum(number for kind, number in kinds.items() if kind.startswith("operations")) == 1
    assert read(store, bucket) is None
    assert read(store, bucket, "1-2") == OPERATIONS
    with store.read() as conn:
        assert windows.summary(conn, JOB, "1-0").revision == 2


def test_moved_operations_leave_the_database_and_their_object_goes_with_retention(
    store, bucket, objects
):
    save(store, age_s=20 * DAY_S)
    save(store, 2)
    assert move_all(store, bucket) == 2
    assert in_database(store) is None
    assert objects() == [f"team/paceline/{JOB}/1-{first}-2.pw" for first in (0, 2)]
    assert moves.delete_some(store, bucket) == 0
    sweep(store, raw_days=14)
    assert moves.delete_some(store, bucket) == 1
    assert objects() == [f"team/paceline/{JOB}/1-2-2.pw"]
    assert len(rows(store)) == 1


@pytest.mark.parametrize("how", ["deleted", "revised"])
def test_object_of_a_window_that_is_gone_or_revised_is_deleted(store, bucket, objects, how):
    save(store)
    move_all(store, bucket)
    if how == "deleted":
        with store.write() as conn:
            conn.execute(delete(windows_table))
    else:
        save(store, revision=3, age_s=0)
    assert moves.delete_some(store, bucket) == 0  # perhaps it is just being moved
    age(store)
    assert moves.delete_some(store, bucket) == 1
    assert (objects(), rows(store)) == ([], [])


def test_only_windows_that_nothing_may_revise_move(store, bucket):
    save(store, 0, age_s=60)
    save(store, 2, remainders=b"exact times")
    save(store, 4)
    assert move_all(store, bucket) == 1
    assert in_database(store, 4) is None
    with store.write() as conn:
        conn.execute(delete(window_remainders))
    assert move_all(store, bucket) == 1


class Broken:
    """A bucket that does one thing, then fails as one that went away does."""

    def __init__(self, bucket: Any, *, after: bool):
        self._bucket, self._after = bucket, after

    def put(self, name, data):
        if self._after:
            self._bucket.put(name, data)
        raise ObjectStorageUnavailable("gone")


@pytest.mark.parametrize("after", [False, True], ids=["before the put", "after the put"])
def test_a_move_that_fails_loses_nothing_and_is_made_up_for(store, bucket, objects, after):
    save(store)
    broken: Any = Broken(bucket, after=after)
    with pytest.raises(ObjectStorageUnavailable):
        moves.move_one(store, broken, after_s=3600.0)
    assert in_database(store) == OPERATIONS
    assert move_all(store, bucket) == 0  # another process may be at it
    age(store)
    assert move_all(store, bucket) == 1
    assert read(store, bucket) == OPERATIONS
    assert len(objects()) == 1


def test_window_revised_during_its_move_keeps_its_new_operations(store, bucket):
    class Slow:
        def put(self, name, data):
            bucket.put(name, data)
            save(store, revision=3, trace=b"later", age_s=0)

    save(store)
    slow: Any = Slow()
    moves.move_one(store, slow, after_s=3600.0)
    assert read(store, bucket) == in_database(store) == b"later"


def test_object_of_a_window_that_retention_reaches_during_its_move_is_deleted(
    store, bucket, objects
):
    class Slow:
        def put(self, name, data):
            sweep(store, raw_days=14)
            assert moves.delete_some(store, bucket) == 0  # by another process
            bucket.put(name, data)

    save(store, age_s=20 * DAY_S)
    slow: Any = Slow()
    assert moves.move_one(store, slow, after_s=3600.0)
    assert (read(store, bucket), len(objects())) == (None, 1)
    assert moves.delete_some(store, bucket) == 1
    assert (objects(), rows(store)) == ([], [])


def test_bucket_that_is_away_says_so_within_seconds_and_the_mover_waits_longer(store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    away = S3Bucket(BucketAddress("b", endpoint=f"http://127.0.0.1:{port}", **KEYS))
    with pytest.raises(ObjectStorageUnavailable, match=f"bucket b at http://127.0.0.1:{port}") as e:
        away.get("name")
    assert "very secret" not in str(e.value)
    save(store)
    mover = Mover(store, away, after_s=3600.0)
    assert [mover.turn(threading.Event()) for _ in range(2)] == [5.0, 30.0]
    age(store)
    assert mover.turn(threading.Event()) == 5.0
    assert read(store, None) == OPERATIONS


def test_refused_key_and_missing_bucket_are_named(s3):
    missing = S3Bucket(BucketAddress("nosuchbucket", endpoint=s3.url, **KEYS))
    with pytest.raises(ObjectStorageUnavailable, match="nosuchbucket"):
        missing.put("name", b"data")


def test_operations_in_a_bucket_are_not_read_without_it_or_if_changed(store, bucket, s3, objects):
    save(store)
    move_all(store, bucket)
    with pytest.raises(Conflict, match="PACELINE_S3_BUCKET"):
        read(store, None)
    [name] = objects()
    s3.client.put_object(Bucket=bucket._address.bucket, Key=name, Body=b"other")
    with pytest.raises(Conflict, match="has been changed there"):
        read(store, bucket)
    s3.client.delete_object(Bucket=bucket._address.bucket, Key=name)
    with pytest.raises(Conflict, match="is not there any more"):
        read(store, bucket)


def test_address_shows_no_secret():
    assert "very secret" not in repr(BucketAddress("b", **KEYS))
