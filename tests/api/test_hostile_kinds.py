"""Each hostile kind that is to be computed gets past the checks of its request."""

import pytest

from benchmarks.measuring import BenchmarkFailed
from benchmarks.service.hostile import KINDS, HostileKind, check_reached
from benchmarks.service.stack import JOB
from tests.api import recorded
from tests.api.server import recorded_record

pytestmark = pytest.mark.anyio


async def answer(api, kind):
    headers = {"content-type": kind.media} if kind.media else {}
    _, token = api.token("read")
    client = api.client_with(token)
    return await client.request(kind.method, kind.path, content=kind.body or None, headers=headers)


# A picture is drawn by a browser: one is in tests/api/routes/test_pictures.py.
COMPUTED = [
    pytest.param(name, marks=pytest.mark.nightly) if name == "pictures" else name
    for name, kind in KINDS.items()
    if kind.is_valid
]


@pytest.mark.parametrize("name", COMPUTED)
async def test_kinds_that_are_to_be_computed_are(api, name):
    await api.register(JOB)
    api.save_window(recorded_record(recorded.window()), JOB)
    found = await answer(api, KINDS[name])
    assert found.status_code == 200, found.text


def test_a_kind_that_is_only_refused_fails():
    kind = HostileKind("GET", "/")
    check_reached("a", kind, {"422": 5, "429": 1})
    with pytest.raises(BenchmarkFailed, match="a: none of its requests"):
        check_reached("a", kind, {"422": 5, "hung up": 3})
    check_reached("a", HostileKind("GET", "/", is_valid=False), {"422": 5})
