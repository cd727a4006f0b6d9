import pytest

from app.api.http.in_flight import InFlightLimit, ProjectShareLimit
from app.api.http.request_kinds import Kind
from app.errors import NoPlace, Unavailable
from tests.api.http.held_requests import BATCH, PAGE, HeldRoute, asked, held, ignore, no_body

pytestmark = pytest.mark.anyio


async def test_kinds_of_requests_in_flight_are_limited_apart():
    route = HeldRoute()
    limited = InFlightLimit(route, most=dict.fromkeys(Kind, 1))
    async with held(limited, route, [BATCH], [PAGE]):
        assert len(route.inside) == 2
        for request in (BATCH, PAGE):
            with pytest.raises(Unavailable):
                await limited(asked(request), no_body(), ignore)
    await limited(asked(BATCH), no_body(), ignore)


async def test_project_gets_half_of_the_requests_of_each_kind():
    route = HeldRoute()
    limited = ProjectShareLimit(route, most=dict.fromkeys(Kind, 4))
    async with held(limited, route, [BATCH], [BATCH], [PAGE], [PAGE]):
        for request, refusal in ((BATCH, Unavailable), (PAGE, NoPlace)):
            with pytest.raises(refusal, match="this project has too many requests"):
                await limited(asked(request), no_body(), ignore)
        async with held(limited, route, [PAGE, "b"]):
            assert len(route.inside) == 5
    await limited(asked(PAGE), no_body(), ignore)
