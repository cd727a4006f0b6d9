"""Old spellings of paths and parameters answer as the new ones do, and say that they are old."""

import pytest

from tests.api.alerting import add_receiver, fire, send

pytestmark = pytest.mark.anyio

OLD_AND_NEW = [
    ("/api/v1/endpoints", "/api/v1/receivers"),
    ("/api/v1/endpoints/ep_1", "/api/v1/receivers/ep_1"),
    ("/api/v1/alerts/active?limit=5", "/api/v1/alerts?limit=5"),
    ("/api/v1/alerts?kind=firing&limit=5", "/api/v1/alerts/transitions?kind=firing&limit=5"),
    ("/api/v1/deliveries?endpoint=ep_1", "/api/v1/deliveries?receiver=ep_1"),
]


@pytest.mark.parametrize(("old", "new"), OLD_AND_NEW)
async def test_old_spelling_answers_as_the_new_one_and_says_so(api, old, new):
    await api.register("job-a")
    add_receiver(api)
    fire(api)
    send(api)
    answer, expected = await api.client.get(old), await api.client.get(new)
    assert (answer.status_code, answer.json()) == (200, expected.json())
    assert answer.headers["deprecation"].startswith("@")
    assert answer.headers["sunset"].endswith("GMT")
    path = new.partition("?")[0]
    assert answer.headers["link"].startswith(f'<{path}>; rel="successor-version"')
    assert "deprecation" not in expected.headers
