"""Pictures by link: valid for one window and a limited time."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from app.alerts.picture_links import KEY_NAME, PICTURES_PATH, Picture, sign_link
from app.api.http.bodies import ProjectRates
from app.api.http.middleware import SECURITY_HEADERS
from app.api.routes.pictures import PictureMiddleware
from app.charts.base.theme import DARK, LIGHT
from app.errors import RequestLimit, StoreUnavailable, TooManyRequests
from app.store import service_state
from app.store.database import Store
from tests.api.server import NOW_S, window_record

pytestmark = pytest.mark.anyio

PICTURE = Picture("default", "llm-70b", "1-0", "workers", "light", int(NOW_S) + 86_400)
CHART = "/api/v1/jobs/llm-70b/windows/1-0/charts/workers"


class FakeDraw:
    """Records its calls and draws nothing; raises `error` if set."""

    def __init__(self):
        self.asked = []
        self.error = None

    def __call__(self, figure, theme, *, width_px):
        self.asked.append((figure, theme, width_px))
        if self.error is not None:
            raise self.error
        return b"\x89PNG made up"


@pytest.fixture
async def drawn(api, monkeypatch):
    await api.register()
    api.save_window(window_record())
    drawn = FakeDraw()
    # Built with the first request.
    layer = next(each for each in api.app.user_middleware if each.cls is PictureMiddleware)
    monkeypatch.setitem(layer.kwargs, "draw", drawn)
    monkeypatch.setattr(api.app, "middleware_stack", None)
    return drawn


@pytest.fixture
def anonymous(api):
    return api.anonymous_client()


def key(api):
    with api.store.write() as conn:
        return service_state.find_or_make_key(conn, KEY_NAME)


def link(api, **changes):
    return PICTURES_PATH + sign_link(replace(PICTURE, **changes), key(api))


def is_no_link(answer):
    return (answer.status_code, answer.json()["code"]) == (404, "picture_not_found")


async def test_link_needs_no_token(api, drawn, anonymous):
    answer = await anonymous.get(link(api))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert answer.content == b"\x89PNG made up"
    figure = (await api.client.get(CHART)).json()
    assert drawn.asked == [(figure, LIGHT, 960)]


async def test_theme_is_from_the_link_and_not_from_the_query(api, drawn, anonymous):
    params = {"theme": "light", "width": "2000", "sort": "slowest", "steps": "0"}
    assert (await anonymous.get(link(api, theme="dark"), params=params)).status_code == 200
    assert [asked[1:] for asked in drawn.asked] == [(DARK, 960)]


async def test_forged_link_is_refused(api, drawn, anonymous):
    good = link(api)
    assert is_no_link(await anonymous.get(PICTURES_PATH + sign_link(PICTURE, b"guessed" * 5)))
    signed_part, seal = good.removeprefix(PICTURES_PATH).split(".", 1)
    forged_seals = (
        f"{signed_part}.{'A' * 43}.png",
        f"{signed_part}..png",
        f"{signed_part}%00.{seal}",
    )
    for forged in (*forged_seals, signed_part, "x", "", "a/b"):
        assert is_no_link(await anonymous.get(PICTURES_PATH + forged)), forged
    assert drawn.asked == []


async def test_signature_of_another_job_is_refused(api, drawn, anonymous):
    await api.register("secret")
    api.save_window(window_record(), "secret")
    seal = link(api).partition(".")[2]
    signed_part = link(api, job="secret").partition(".")[0]
    assert is_no_link(await anonymous.get(f"{signed_part}.{seal}"))
    signed_part = link(api, project="research").partition(".")[0]
    assert is_no_link(await anonymous.get(f"{signed_part}.{seal}"))
    assert drawn.asked == []


async def test_expired_link_is_refused(api, drawn, anonymous):
    good = link(api)
    api.clock.now_s = PICTURE.expires_s - 1
    answer = await anonymous.get(good)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "public, max-age=1")
    api.clock.now_s = PICTURE.expires_s
    assert is_no_link(await anonymous.get(good))


async def test_every_link_is_refused_before_the_key_exists(api, drawn, anonymous):
    assert is_no_link(await anonymous.get(PICTURES_PATH + sign_link(PICTURE, b"")))
    good = link(api)
    api.monotonic.now_s += 4
    assert (await anonymous.get(good)).status_code == 200


async def test_key_is_read_again_after_an_outage(api, drawn, anonymous, monkeypatch):
    good = link(api)

    def away(self):
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "read", away)
        assert (await anonymous.get(good)).status_code == 503
    assert (await anonymous.get(good)).status_code == 200


async def test_link_gives_access_to_nothing_else(api, drawn, anonymous):
    good = link(api).removeprefix(PICTURES_PATH)
    for path in ("/api/v1/jobs", CHART, f"/api/v1/jobs/{good}"):
        assert (await anonymous.get(path)).status_code == 401
        headers = {"authorization": f"Bearer {good}"}
        assert (await anonymous.get(path, headers=headers)).status_code == 401
    for method in ("POST", "PUT", "DELETE"):
        assert (await anonymous.request(method, PICTURES_PATH + good)).status_code == 401
        assert (await api.client.request(method, PICTURES_PATH + good)).status_code == 405


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"window": "1-99"}, "window_not_found"), ({"job": "gone"}, "job_not_found")],
)
async def test_picture_of_a_deleted_window_is_not_found(api, drawn, anonymous, changes, code):
    answer = await anonymous.get(link(api, **changes))
    assert (answer.status_code, answer.json()["code"]) == (404, code)
    assert answer.headers["cache-control"] == "no-store"


async def test_picture_is_cacheable_and_has_security_headers(api, drawn, anonymous):
    answer = await anonymous.get(link(api))
    own = {"cross-origin-resource-policy": "cross-origin"}
    for name, value in (SECURITY_HEADERS | own).items():
        assert answer.headers.get_list(name) == [value]
    assert answer.headers.get_list("cache-control") == ["public, max-age=3600"]
    refused = await anonymous.get(PICTURES_PATH + "x")
    for name, value in (SECURITY_HEADERS | {"cache-control": "no-store"}).items():
        assert refused.headers.get_list(name) == [value]


async def test_concurrent_requests_draw_one_picture(api, drawn, anonymous):
    for expires_s in range(PICTURE.expires_s, PICTURE.expires_s + 5):
        assert (await anonymous.get(link(api, expires_s=expires_s))).status_code == 200
    assert len(drawn.asked) == 1
    assert (await anonymous.get(link(api, theme="dark"))).status_code == 200
    assert len(drawn.asked) == 2


async def test_refusal_is_not_cached(api, drawn, anonymous):
    drawn.error = TooManyRequests("wait", retry_after_s=1)
    good = link(api)
    assert (await anonymous.get(good)).status_code == 429
    drawn.error = None
    assert (await anonymous.get(good)).status_code == 200
    late = link(api, window="1-8")
    assert (await anonymous.get(late)).status_code == 404
    api.save_window(window_record(8))
    assert (await anonymous.get(late)).status_code == 200


async def test_bad_links_are_limited_and_good_ones_are_not(api, drawn, anonymous):
    good = link(api)
    for _ in range(10):
        assert is_no_link(await anonymous.get(PICTURES_PATH + "x"))
    answer = await anonymous.get(PICTURES_PATH + "x")
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await anonymous.get(good)).status_code == 200


async def test_pictures_count_as_requests_of_their_project(api, drawn, anonymous, monkeypatch):
    good = link(api, project="default")

    def refuse(self, sender, size_bytes):
        raise RequestLimit(f"{sender[0]} asks too often", retry_after_s=1)

    monkeypatch.setattr(ProjectRates, "take", refuse)
    answer = await anonymous.get(good)
    assert (answer.status_code, answer.json()["code"]) == (429, "limit_requests")
    assert answer.json()["detail"] == "default asks too often"


async def test_link_is_not_logged(api, drawn, anonymous):
    unknown = link(api, window="1-99")
    with capture_logs() as lines:
        await anonymous.get(unknown)
    refused_lines = [line for line in lines if line["event"] == "request refused"]
    assert [(line["path"], line["route"]) for line in refused_lines] == [
        (PICTURES_PATH + "...", "pictures")
    ]
    assert unknown.removeprefix(PICTURES_PATH) not in str(lines)


async def test_key_is_never_exposed(api, drawn, anonymous):
    made = key(api)
    answers = [
        (await anonymous.get(link(api))).content,
        (await api.client.get("/api/v1/settings")).content,
        link(api).encode(),
    ]
    for answer in answers:
        assert made not in answer
        assert made.hex().encode() not in answer
