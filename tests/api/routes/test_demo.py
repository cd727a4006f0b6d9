"""Starting and stopping the demo's jobs on a server of `paceline serve`."""

import pytest

from app.api.service.demo_switch import MAX_DEMO_S, DemoSwitch
from tests.api.server import running

pytestmark = pytest.mark.anyio

PATH = "/api/v1/demo"
OFF = {"available": True, "running": False, "ends_at": None}


@pytest.fixture
def switch(tmp_path):
    return tmp_path / "demo-is-on"


async def test_starting_the_demo_turns_the_switch_on_for_an_hour(api, switch):
    assert (await api.client.get(PATH)).json() == OFF
    answer = await api.client.post(PATH)
    assert answer.status_code == 202
    assert switch.exists()
    ends_at_s = DemoSwitch(switch).ends_at_s()
    assert ends_at_s is not None
    assert DemoSwitch(switch).is_on(ends_at_s - 1)
    assert not DemoSwitch(switch).is_on(ends_at_s)
    assert ends_at_s == switch.stat().st_mtime + MAX_DEMO_S


async def test_stopping_the_demo_turns_the_switch_off_and_is_audited(api, switch):
    api.clock.now_s = 0.0  # before any file was made: the switch counts as young
    await api.client.post(PATH)
    assert (await api.client.delete(PATH)).json() == OFF
    assert not switch.exists()
    entries = (await api.client.get("/api/v1/audit")).json()["items"]
    assert [each["action"] for each in entries] == ["demo.stop", "demo.start"]


async def test_a_server_without_a_supervisor_refuses_to_start_the_demo(database_url):
    async with running(database_url) as api:
        assert not (await api.client.get(PATH)).json()["available"]
        answer = await api.client.post(PATH)
    assert answer.status_code == 409
    assert "paceline demo" in answer.json()["detail"]


async def test_another_project_than_the_default_has_no_demo(api, switch):
    _, token = api.token("admin", "read", project="research")
    async with api.client_with(token) as other:
        assert not (await other.get(PATH)).json()["available"]
        assert (await other.post(PATH)).status_code == 409
    assert not switch.exists()
