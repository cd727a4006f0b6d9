"""Receivers that newly match a firing alert are marked for notification."""

import pytest

from app.store.alerting import notifications
from tests.api.server import NOW_S

pytestmark = pytest.mark.anyio

PATH = "/api/v1/receivers"
NEW = {"name": "on call", "url": "https://hooks.example.com/hook"}


def late(api):
    with api.store.read() as conn:
        return notifications.new_receivers(conn, "default/job-a", "slowdown", now_s=NOW_S + 1e6)


async def test_new_enabled_or_widened_receiver_is_marked_for_late_notification(api):
    endpoint_id = (await api.client.post(PATH, json=NEW)).json()["receiver_id"]
    assert set(late(api)) == {endpoint_id}
    for change, is_late in (
        ({"name": "other"}, False),
        ({"min_severity": "critical"}, True),
        ({"matchers": [{"label": "job", "pattern": "x"}]}, True),
        ({"is_enabled": False}, True),
    ):
        with api.store.write() as conn:
            notifications.mark_new_receiver(
                conn, endpoint_id, now_s=NOW_S + 1e7
            )  # not marked: as after its notification
        answer = await api.client.patch(f"{PATH}/{endpoint_id}", json=change)
        assert answer.status_code == 200, answer.text
        assert bool(late(api)) is is_late
    with api.store.write() as conn:
        notifications.mark_new_receiver(conn, endpoint_id, now_s=NOW_S + 1e7)
    await api.client.post(f"{PATH}/{endpoint_id}/enable")
    assert late(api)
