"""Tokens: looked up, cached for seconds, and refused soon after revocation."""

import pytest
from structlog.testing import capture_logs

from app.api.http.auth import FRESH_S, Authenticator
from app.errors import StoreUnavailable, TooManyRequests, Unauthorised
from app.store import tokens
from app.store.tokens import NewToken
from tests.api.server import NOW_S, TOKEN, Clock
from tests.api.stores import CountingStore

pytestmark = pytest.mark.anyio


class AuthSetup:
    """An Authenticator over a store, with manual clocks."""

    def __init__(self, store):
        self.store, self.clock, self.monotonic = store, Clock(), Clock()
        self.auth = self.other_process()

    def other_process(self):
        return Authenticator(
            TOKEN, self.store, session_s=3600, now_s=self.clock, monotonic=self.monotonic
        )

    def new_token(self, **changes):
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
def setup(anyio_backend, database_url):
    store = CountingStore(database_url)
    yield AuthSetup(store)
    store.close()


def request_scope(token, address="10.0.0.1"):
    headers = [(b"authorization", f"Bearer {token}".encode())]
    return {"method": "GET", "scheme": "http", "headers": headers, "client": (address, 1)}


async def admitted(auth, token, **changes):
    scope = request_scope(token, **changes)
    return auth.recent(scope) or await auth.admit(scope)


async def test_token_gives_its_project_and_scopes(setup):
    record, text = setup.new_token(project="research", scopes=["admin", "ingest"])
    caller = await admitted(setup.auth, text)
    assert (caller.project, caller.token_id) == ("research", record.token_id)
    assert caller.scopes == {"ingest", "admin"}


async def test_root_token_has_all_scopes_without_the_store(setup):
    setup.store.is_up = False
    caller = await admitted(setup.auth, TOKEN)
    assert (caller.project, caller.scopes) == ("default", set(tokens.SCOPES))
    assert setup.store.num_reads == 0


async def test_a_revoked_token_is_refused_within_five_seconds_by_every_process(setup):
    record, text = setup.new_token()
    processes = setup.auth, setup.other_process()
    for auth in processes:
        await admitted(auth, text)
    setup.monotonic.now_s += 3
    setup.revoke(record)
    setup.monotonic.now_s += 1.9
    for auth in processes:
        with pytest.raises(Unauthorised):
            await admitted(auth, text)
    assert FRESH_S < 5


async def test_expired_token_is_refused_at_once(setup):
    _, text = setup.new_token(expires_s=NOW_S + 2)
    await admitted(setup.auth, text)
    for clock in (setup.clock, setup.monotonic):
        clock.now_s += 2
    with pytest.raises(Unauthorised):
        await admitted(setup.auth, text)


async def test_token_with_a_wrong_secret_is_refused(setup):
    record, text = setup.new_token()
    await admitted(setup.auth, text)
    with pytest.raises(Unauthorised):
        await admitted(setup.auth, f"pl_{record.token_id}_{'x' * 43}")


async def test_unknown_ids_are_cached_and_evict_no_token(setup):
    _, text = setup.new_token()
    await admitted(setup.auth, text)
    for _ in range(3):
        with pytest.raises(Unauthorised):
            await admitted(setup.auth, f"pl_{'x' * 10}_{'y' * 43}")
    assert setup.store.num_reads == 2
    setup.monotonic.now_s += FRESH_S
    with pytest.raises(Unauthorised):
        await admitted(setup.auth, f"pl_{'x' * 10}_{'y' * 43}")
    assert setup.store.num_reads == 3


async def test_known_token_stays_valid_for_ten_minutes_without_the_store(setup):
    _, text = setup.new_token()
    await admitted(setup.auth, text)
    setup.store.is_up = False
    for _ in range(3):
        setup.monotonic.now_s += 190
        await admitted(setup.auth, text)
    setup.monotonic.now_s += 31
    with pytest.raises(StoreUnavailable):
        await admitted(setup.auth, text)
    setup.store.is_up = True
    await admitted(setup.auth, text)


async def test_token_revoked_in_an_outage_is_refused_after_it(setup):
    record, text = setup.new_token()
    await admitted(setup.auth, text)
    setup.store.is_up = False
    setup.monotonic.now_s += FRESH_S
    await admitted(setup.auth, text)
    setup.store.is_up = True
    setup.revoke(record)
    setup.monotonic.now_s += 1
    with pytest.raises(Unauthorised):
        await admitted(setup.auth, text)


async def test_token_that_expires_in_an_outage_is_refused(setup):
    _, text = setup.new_token(expires_s=NOW_S + 60)
    await admitted(setup.auth, text)
    setup.store.is_up = False
    for clock in (setup.clock, setup.monotonic):
        clock.now_s += 60
    with pytest.raises(Unauthorised):
        await admitted(setup.auth, text)


async def test_unknown_tokens_are_limited_per_address_and_good_ones_are_not(setup):
    _, text = setup.new_token()
    for _ in range(10):
        with pytest.raises(Unauthorised):
            await admitted(setup.auth, "pl_unknown")
    with pytest.raises(TooManyRequests):
        await admitted(setup.auth, "pl_unknown")
    with pytest.raises(Unauthorised):
        await admitted(setup.auth, "pl_unknown", address="10.0.0.2")
    await admitted(setup.auth, text)
    setup.monotonic.now_s += 60
    with pytest.raises(Unauthorised):
        await admitted(setup.auth, "pl_unknown")


async def test_use_of_a_token_is_recorded_once_a_minute(setup):
    record, text = setup.new_token()
    await admitted(setup.auth, text)
    await setup.auth.close()
    assert setup.used_s(record) == NOW_S // 60 * 60
    setup.clock.now_s += 60
    setup.monotonic.now_s += 60
    await admitted(setup.auth, text)
    await setup.auth.close()
    assert setup.used_s(record) == (NOW_S + 60) // 60 * 60


@pytest.mark.parametrize("sent", [None, b"Bearer ", b"Bearer", b"", b"pl_abc"])
async def test_missing_token_is_reported_as_missing(setup, sent):
    headers = [] if sent is None else [(b"authorization", sent)]
    with pytest.raises(Unauthorised, match="no token: send 'Authorization: Bearer pl_"):
        await setup.auth.admit(request_scope("") | {"headers": headers})


@pytest.mark.parametrize(("way", "reason"), [("revoke", "was revoked"), ("expire", "is over")])
async def test_revoked_token_gets_the_reason_and_a_log_line(setup, way, reason):
    record, text = setup.new_token(expires_s=NOW_S + 2)
    if way == "revoke":
        setup.revoke(record)
    else:
        setup.clock.now_s += 2
    with capture_logs() as logs, pytest.raises(Unauthorised, match=f"this token {reason}"):
        await admitted(setup.auth, text)
    (line,) = logs
    assert (line["token"], line["reason"]) == (record.token_id, reason)
    with capture_logs() as logs, pytest.raises(Unauthorised, match="unknown bearer token"):
        await admitted(setup.auth, f"pl_{record.token_id}_{'x' * 43}")
    assert logs == []
