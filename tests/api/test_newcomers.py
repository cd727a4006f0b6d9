"""Which endpoints are told of what others know already: those that want it only since."""

import pytest

from app.store import newcomers
from tests.api.server import NOW_S

pytestmark = pytest.mark.anyio

PATH = "/api/v1/endpoints"
NEW = {"name": "on call", "url": "https://hooks.example.com/hook"}


def late(api):
    with api.store.read() as conn:
        return newcomers.of_group(conn, "default/job-a", "slowdown", now_s=NOW_S + 1e6)


async def test_one_that_is_made_enabled_or_wants_other_alerts_has_something_to_catch_up_on(api):
    endpoint_id = (await api.client.post(PATH, json=NEW)).json()["endpoint_id"]
    assert set(late(api)) == {endpoint_id}
    for change, is_late in (
        ({"name": "other"}, False),
        ({"min_severity": "critical"}, True),
        ({"matchers": [{"label": "job", "pattern": "x"}]}, True),
        ({"is_enabled": False}, True),
    ):
        with api.store.write() as conn:
            newcomers.begin(conn, endpoint_id, now_s=NOW_S + 1e7)  # not now: as if it had caught up
        answer = await api.client.patch(f"{PATH}/{endpoint_id}", json=change)
        assert answer.status_code == 200, answer.text
        assert bool(late(api)) is is_late
    with api.store.write() as conn:
        newcomers.begin(conn, endpoint_id, now_s=NOW_S + 1e7)
    await api.client.post(f"{PATH}/{endpoint_id}/enable")
    assert late(api)
