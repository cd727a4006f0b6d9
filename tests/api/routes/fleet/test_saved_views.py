"""Saved views of the fleet page."""

import pytest

pytestmark = pytest.mark.anyio

VIEW = {"name": "Vision <b>", "query": {"q": "owner=vision", "state": "stalled", "dir": None}}


async def test_a_saved_view_is_listed_until_it_is_deleted(api):
    saved = (await api.client.post("/api/v1/views", json=VIEW)).json()
    assert saved["name"] == "Vision <b>"
    assert saved["query"] == {"q": "owner=vision", "state": "stalled"}
    assert (await api.client.get("/api/v1/views")).json()["items"] == [saved]
    again = await api.client.post("/api/v1/views", json=VIEW)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    path = f"/api/v1/views/{saved['view_id']}"
    assert (await api.client.delete(path)).status_code == 204
    gone = await api.client.delete(path)
    assert (gone.status_code, gone.json()["code"]) == (404, "view_not_found")
    entries = (await api.client.get("/api/v1/audit?object_kind=view")).json()["items"]
    assert [each["action"] for each in entries] == ["view.delete", "view.create"]


@pytest.mark.parametrize("query", [{"state": "asleep"}, {"page": "2"}, {"q": "x" * 129}])
async def test_a_view_of_unknown_filters_is_refused(api, query):
    answer = await api.client.post("/api/v1/views", json={"name": "a", "query": query})
    assert answer.status_code == 422
