"""Charts as pictures: drawn from the figure of the chart's route."""

import sys

import httpx
import pytest

from app.api.routes.pictures import PictureMiddleware
from app.charts.base.theme import DARK, LIGHT
from tests.api.server import window_record

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/windows/latest/charts/stages"


class FakeDraw:
    """Records its calls and draws nothing."""

    def __init__(self):
        self.asked = []

    def __call__(self, figure, theme, *, width_px):
        self.asked.append((figure, theme, width_px))
        return b"\x89PNG made up"


@pytest.fixture
async def drawn(api):
    await api.register()
    api.save_window(window_record())
    return FakeDraw()


def client(api, draw):
    transport = httpx.ASGITransport(
        PictureMiddleware(api.app, draw=draw), raise_app_exceptions=False
    )
    return httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=api.client.headers
    )


async def test_picture_is_drawn_from_the_figure_of_its_chart(api, drawn):
    async with client(api, drawn) as asking:
        picture = await asking.get(f"{PATH}.png", params={"theme": "dark", "width": 640})
        chart = await asking.get(PATH, params={"theme": "dark"})
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/png")
    assert picture.content == b"\x89PNG made up"
    assert chart.headers["content-type"] == "application/json"
    assert drawn.asked == [(chart.json(), DARK, 640)]


async def test_accept_png_gets_a_picture(api, drawn):
    async with client(api, drawn) as asking:
        picture = await asking.get(PATH, headers={"accept": "image/png"})
        chart = await asking.get(PATH, headers={"accept": "application/json, image/png"})
    assert picture.headers["content-type"] == "image/png"
    assert chart.headers["content-type"] == "application/json"
    assert [asked[1:] for asked in drawn.asked] == [(LIGHT, 960)]


async def test_refusal_of_the_chart_is_passed_on(api, drawn):
    async with client(api, drawn) as asking:
        missing = await asking.get(PATH.replace("latest", "1-99") + ".png")
        no_chart = await asking.get(PATH.replace("stages", "nothing") + ".png")
    assert (missing.status_code, missing.json()["code"]) == (404, "window_not_found")
    assert no_chart.status_code == 422
    assert drawn.asked == []


@pytest.mark.parametrize("width", ["0", "319", "2001", "9" * 30, "-5", "x", "٣٢٠"])
async def test_invalid_width_is_refused_before_drawing(api, width):
    answer = await api.client.get(f"{PATH}.png", params={"width": width})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


async def test_without_kaleido_the_refusal_says_what_to_install(api, drawn, monkeypatch):
    # As for a missing module.
    monkeypatch.setitem(sys.modules, "kaleido", None)
    answer = await api.client.get(f"{PATH}.png")
    assert (answer.status_code, answer.json()["code"]) == (501, "not_installed")
    assert "pip install 'paceline[png]'" in answer.json()["detail"]
    assert (await api.client.get(PATH)).status_code == 200


async def test_picture_of_a_foreign_job_is_not_found(api, drawn):
    _, token = api.token("read", project="research")
    async with api.client_with(token) as other, api.anonymous_client() as anonymous:
        assert (await other.get(f"{PATH}.png")).status_code == 404
        assert (await anonymous.get(f"{PATH}.png")).status_code == 401


def test_kaleido_draws_a_png():
    from app.charts.job.stages import stages
    from app.charts.report.png import png

    found = png(stages([0.1, 0.9], theme=LIGHT), LIGHT, width_px=640)
    assert found.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(found[16:20], "big") == 2 * 640
