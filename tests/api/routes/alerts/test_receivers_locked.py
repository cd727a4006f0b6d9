"""Receivers whose secrets were encrypted with a key that the service does not have."""

import pytest
from sqlalchemy import text

from tests.api import alerting

pytestmark = pytest.mark.anyio

RECEIVER = "/api/v1/receivers/ep_1"


@pytest.fixture
async def locked(api):
    """The API, with a receiver that another key has sealed."""
    alerting.add_receiver(api)
    alerting.add_consumer(api)
    with api.store.write() as conn:
        sealed = conn.execute(text("SELECT sealed FROM endpoints")).scalar_one()
        wrong = sealed.replace(sealed.split(".")[1], "0badc0de")
        conn.execute(text("UPDATE endpoints SET sealed = :sealed"), {"sealed": wrong})
    return api


async def test_service_with_another_key_runs_and_says_why_a_receiver_cannot_be_used(locked):
    assert (await locked.client.get("/readyz")).status_code == 200
    [listed] = (await locked.client.get("/api/v1/receivers")).json()["items"]
    assert listed["health"]["state"] == "locked"
    assert "key 0badc0de, which this service does not have" in listed["health"]["last_detail"]
    assert listed["address"].count("/") == 2
    assert (await locked.client.get(RECEIVER)).json()["health"] == listed["health"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/test", None),
        ("POST", "/rotate", None),
        ("PATCH", "", {"name": "another"}),
        ("POST", "/test-change", {"name": "another"}),
    ],
)
async def test_locked_receiver_cannot_be_used_or_changed(locked, method, path, body):
    answer = await locked.client.request(method, RECEIVER + path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (409, "secrets_locked")


async def test_locked_receiver_can_be_deleted(locked):
    assert (await locked.client.delete(RECEIVER)).status_code == 204
    assert (await locked.client.get("/api/v1/receivers")).json()["items"] == []
