"""A token is looked up, remembered for a moment, and refused soon after it is revoked."""

import asyncio

import pytest
from structlog.testing import capture_logs

from app.api.auth import Access
from app.api.known_tokens import REMEMBER_S
from app.errors import StoreUnavailable, TooManyRequests, Unauthorised
from app.store import tokens
from app.store.tokens import NewToken
from tests.api.server import NOW_S, TOKEN, Clock
from tests.api.stores import CountingStore

pytestmark = pytest.mark.anyio


class Place:
    """An Access over a store, with clocks that stand still."""

    def __init__(self, store):
        self.store, self.clock, self.monotonic = store, Clock(), Clock()
        self.access = self.other_process()

    def other_process(self):
        return Access(TOKEN, self.store, session_s=3600, now_s=self.clock, monotonic=self.monotonic)

    def made(self, **changes):
        wanted = {"project": "default", "name": "a", "scopes": ["read"], **changes}
        with self.store.write() as conn:
            return tokens.create(conn, NewToken(**wanted), now_s=self.clock())

    def revoke(self, record):
        with self.store.write() as conn:
            tokens.revoke(conn, record.project, record.token_id, now_s=self.clock())

    def used_s(self, record):
        with self.store.read() as conn:
            found = tokens.find(conn, record.token_id)
        assert found is not None
        return found.last_used_s


@pytest.fixture
def place(anyio_backend, empty_database, tmp_path):
    path = tmp_path / "paceline.db"
    path.write_bytes(empty_database.read_bytes())
    store = CountingStore(f"sqlite:///{path}")
    yield Place(store)
    store.close()


def asking(token, address="10.0.0.1"):
    headers = [(b"authorization", f"Bearer {token}".encode())]
    return {"method": "GET", "scheme": "http", "headers": headers, "client": (address, 1)}


async def admitted(access, token, **changes):
    scope = asking(token, **changes)
    return access.recent(scope) or await access.admit(scope)


async def test_a_token_says_whose_it_is_and_what_it_may(place):
    record, text = place.made(project="research", scopes=["admin", "ingest"])
    caller = await admitted(place.access, text)
    assert (caller.project, caller.token_id) == ("research", record.token_id)
    assert caller.scopes == {"ingest", "admin"}


async def test_the_root_token_may_do_everything_in_the_default_project_without_the_store(place):
    place.store.is_up = False
    caller = await admitted(place.access, TOKEN)
    assert (caller.project, caller.scopes) == ("default", set(tokens.SCOPES))
    assert place.store.num_reads == 0


async def test_who_asks_again_is_known_without_the_store(place):
    _, text = place.made()
    for _ in range(3):
        await admitted(place.access, text)
    assert place.store.num_reads == 1
    assert place.access.recent(asking(text)) is not None


async def test_many_that_ask_at_once_need_one_look_up(place):
    _, text = place.made()
    await asyncio.gather(*(admitted(place.access, text) for _ in range(50)))
    assert place.store.num_reads == 1


async def test_a_revoked_token_is_refused_within_five_seconds_by_every_process(place):
    record, text = place.made()
    processes = place.access, place.other_process()
    for access in processes:
        await admitted(access, text)
    place.monotonic.now_s += 3
    place.revoke(record)
    place.monotonic.now_s += 1.9
    for access in processes:
        with pytest.raises(Unauthorised):
            await admitted(access, text)
    assert REMEMBER_S < 5


async def test_a_token_is_refused_from_the_moment_on_when_it_is_over(place):
    _, text = place.made(expires_s=NOW_S + 2)
    await admitted(place.access, text)
    for clock in (place.clock, place.monotonic):
        clock.now_s += 2
    with pytest.raises(Unauthorised):
        await admitted(place.access, text)


async def test_a_forgotten_token_is_looked_up_at_once(place):
    record, text = place.made()
    await admitted(place.access, text)
    place.revoke(record)
    place.access.forget(record.token_id)
    with pytest.raises(Unauthorised):
        await admitted(place.access, text)


async def test_the_secret_counts_not_the_id(place):
    record, text = place.made()
    await admitted(place.access, text)
    with pytest.raises(Unauthorised):
        await admitted(place.access, f"pl_{record.token_id}_{'x' * 43}")


async def test_an_id_that_is_not_there_is_remembered_too_and_drives_nobody_out(place):
    _, text = place.made()
    await admitted(place.access, text)
    for _ in range(3):
        with pytest.raises(Unauthorised):
            await admitted(place.access, f"pl_{'x' * 10}_{'y' * 43}")
    assert place.store.num_reads == 2
    place.monotonic.now_s += REMEMBER_S
    with pytest.raises(Unauthorised):
        await admitted(place.access, f"pl_{'x' * 10}_{'y' * 43}")
    assert place.store.num_reads == 3


async def test_while_the_store_is_down_who_was_known_goes_on_for_ten_minutes(place):
    _, text = place.made()
    await admitted(place.access, text)
    place.store.is_up = False
    for _ in range(3):
        place.monotonic.now_s += 190
        await admitted(place.access, text)
    place.monotonic.now_s += 31
    with pytest.raises(StoreUnavailable):
        await admitted(place.access, text)
    place.store.is_up = True
    await admitted(place.access, text)


async def test_while_the_store_is_down_it_is_asked_once_a_second(place):
    _, text = place.made()
    await admitted(place.access, text)
    place.store.is_up = False
    place.monotonic.now_s += REMEMBER_S
    await place.access.close()  # the first use has been noted, or not
    num_reads, num_writes = place.store.num_reads, place.store.num_writes
    for _ in range(50):
        place.monotonic.now_s += 0.1
        await admitted(place.access, text)
    await place.access.close()
    assert 4 <= place.store.num_reads - num_reads <= 6
    assert place.store.num_writes == num_writes  # no use is noted meanwhile


async def test_once_the_store_is_back_a_token_that_was_revoked_is_refused(place):
    record, text = place.made()
    await admitted(place.access, text)
    place.store.is_up = False
    place.monotonic.now_s += REMEMBER_S
    await admitted(place.access, text)
    place.store.is_up = True
    place.revoke(record)
    place.monotonic.now_s += 1
    with pytest.raises(Unauthorised):
        await admitted(place.access, text)


async def test_a_token_that_ends_while_the_store_is_down_is_refused(place):
    _, text = place.made(expires_s=NOW_S + 60)
    await admitted(place.access, text)
    place.store.is_up = False
    for clock in (place.clock, place.monotonic):
        clock.now_s += 60
    with pytest.raises(Unauthorised):
        await admitted(place.access, text)


async def test_ten_unknown_tokens_a_minute_from_one_address_and_never_a_good_one_is_refused(place):
    _, text = place.made()
    for _ in range(10):
        with pytest.raises(Unauthorised):
            await admitted(place.access, "pl_unknown")
    with pytest.raises(TooManyRequests):
        await admitted(place.access, "pl_unknown")
    with pytest.raises(Unauthorised):
        await admitted(place.access, "pl_unknown", address="10.0.0.2")
    await admitted(place.access, text)
    place.monotonic.now_s += 60
    with pytest.raises(Unauthorised):
        await admitted(place.access, "pl_unknown")


async def test_use_is_noted_to_the_minute_and_not_more_often(place):
    record, text = place.made()
    await admitted(place.access, text)
    await place.access.close()
    assert place.used_s(record) == NOW_S // 60 * 60
    place.clock.now_s += 60
    place.monotonic.now_s += 60
    await admitted(place.access, text)
    await place.access.close()
    assert place.used_s(record) == (NOW_S + 60) // 60 * 60


@pytest.mark.parametrize("sent", [None, b"Bearer ", b"Bearer", b"", b"pl_abc"])
async def test_who_sends_no_token_is_told_to_and_not_that_it_is_unknown(place, sent):
    headers = [] if sent is None else [(b"authorization", sent)]
    with pytest.raises(Unauthorised, match="no token: send 'Authorization: Bearer pl_"):
        await place.access.admit(asking("") | {"headers": headers})


@pytest.mark.parametrize(("way", "reason"), [("revoke", "was revoked"), ("expire", "is over")])
async def test_who_has_the_secret_hears_why_it_is_refused_and_the_log_which_one(place, way, reason):
    record, text = place.made(expires_s=NOW_S + 2)
    if way == "revoke":
        place.revoke(record)
    else:
        place.clock.now_s += 2
    with capture_logs() as logs, pytest.raises(Unauthorised, match=f"this token {reason}"):
        await admitted(place.access, text)
    (line,) = logs
    assert (line["token"], line["reason"]) == (record.token_id, reason)
    with capture_logs() as logs, pytest.raises(Unauthorised, match="is not known here"):
        await admitted(place.access, f"pl_{record.token_id}_{'x' * 43}")
    assert logs == []
