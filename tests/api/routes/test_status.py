"""The status of the service itself, also while its parts do not answer."""

import pytest

from app.errors import StoreUnavailable
from app.store import shards
from app.store.alerting import service_watches
from tests.api.alerting import add_receiver
from tests.api.server import NOW_S, running

pytestmark = pytest.mark.anyio

PATH = "/api/v1/status"


@pytest.fixture
async def watched_api(anyio_backend, database_url):
    """An API with a canary."""
    async with running(database_url, canary_every_s=60.0) as api:
        yield api


async def status(api):
    answer = await api.client.get(PATH)
    assert answer.status_code == 200, answer.text
    return answer.json()


def add_consumer(api, *, at_s=NOW_S, num_shards=4):
    with api.store.write() as conn:
        shards.heartbeat(conn, "consumer-0", now_s=at_s, lease_s=15.0, has_turned=True)
        for shard in range(num_shards):
            shards.acquire(conn, shard, "consumer-0", now_s=at_s, lease_s=15.0)


def end_round(api, *, at_s=NOW_S, missing=None):
    with api.store.write() as conn:
        number = service_watches.claim_round(conn, now_s=at_s, every_s=0.0, lease_s=60.0)
        assert number is not None
        service_watches.finish_round(
            conn, number, now_s=at_s, took_s=1.5, missing=missing, num_shards=4
        )


async def test_every_part_works(watched_api):
    add_consumer(watched_api)
    end_round(watched_api, at_s=NOW_S - 40)
    found = await status(watched_api)
    assert found["state"] == "ok"
    assert found["sentence"] == "Every part works; the canary was found 40 seconds ago."
    assert found["consumers"]["items"] == [
        {
            "name": "consumer-0",
            "is_alive": True,
            "last_turn_at": "2026-09-21T14:13:20Z",
            "shards": [0, 1, 2, 3],
        }
    ]
    assert (found["canary"]["state"], found["canary"]["age_s"]) == ("found", 40.0)
    assert found["queue"]["entries"] == 0
    assert found["queue"]["unheld_shards"] == 0
    assert found["outbox"] == {"due": 0, "oldest_s": None}
    assert found["checks"]["store"]["ok"]


async def test_without_consumers_it_is_down(watched_api):
    found = await status(watched_api)
    assert found["state"] == "down"
    assert found["sentence"].startswith("No consumer is alive")
    assert found["canary"]["state"] == "waiting"


async def test_consumer_whose_lease_has_lapsed_is_listed_as_dead(watched_api):
    add_consumer(watched_api, at_s=NOW_S - 60)
    [consumer] = (await status(watched_api))["consumers"]["items"]
    assert (consumer["is_alive"], consumer["shards"]) == (False, [])


async def test_missing_canary_degrades_with_its_reason(watched_api):
    add_consumer(watched_api)
    end_round(watched_api, missing="its window is stored, but has no finding")
    found = await status(watched_api)
    assert (found["state"], found["canary"]["state"]) == ("degraded", "missing")
    assert "its window is stored, but has no finding" in found["sentence"]


async def test_canary_whose_rounds_have_ceased_is_missing(watched_api):
    end_round(watched_api, at_s=NOW_S - 1000)
    assert (await status(watched_api))["canary"]["state"] == "missing"


async def test_dead_mans_switches_of_the_project_are_listed_and_no_others(api):
    add_receiver(api, "ep_alerts")
    add_receiver(api, "ep_beat", name="dead-man", heartbeat_every_s=60.0)
    [switch] = (await status(api))["heartbeats"]
    assert switch == {
        "receiver_id": "ep_beat",
        "name": "dead-man",
        "every_s": 60.0,
        "state": "untried",
        "written_at": None,
        "delivered_at": None,
    }
    _, token = api.token("read", project="other")
    async with api.client_with(token) as client:
        assert (await client.get(PATH)).json()["heartbeats"] == []


async def test_answers_while_the_database_is_away_with_null_for_what_is_not_known(api, monkeypatch):
    def fail(*_, **__):
        raise StoreUnavailable("the database does not answer: secret-host")

    monkeypatch.setattr(type(api.store), "read", fail)
    found = await status(api)
    assert found["state"] == "down"
    assert "the database does not answer" in found["sentence"]
    assert "secret-host" not in str(found)
    assert [found[name] for name in ("consumers", "canary", "heartbeats", "outbox")] == [None] * 4
    assert found["queue"] is not None


async def test_answers_while_the_queue_is_away(api):
    add_consumer(api)
    api.queue.is_up = False
    found = await status(api)
    assert (found["state"], found["queue"]) == ("down", None)
    assert found["consumers"] is not None
