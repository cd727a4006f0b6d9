import pytest

from tests.api import recorded


@pytest.fixture
async def closed(api):
    """An API with one closed window of steps 8 and 9 of 2 x 2 workers, and an open one."""
    await api.register()
    recorded.save(api, recorded.window(8), recorded.window(10, state="open"))
    return api
