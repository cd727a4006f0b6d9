"""Picture links in messages: signed for the API, and dropped if a receiver refuses them."""

import json
import sys

import pytest

from app.alerts.alert import Detail
from app.alerts.picture_links import KEY_NAME, PICTURES_PATH, verify_link
from app.consumer.main import has_pictures
from app.settings import Settings
from app.store import service_state
from tests.alerts.http_receiver import Answer

SEEN = Detail(on="slowdown", value=1.4, slowdown=1.4, window_id="1-8")


def images(hook):
    """The address of each message's image, None where it has none."""
    found = []
    for _, _, body in hook.requests:
        blocks = json.loads(body)["blocks"]
        found.append(next((b["image_url"] for b in blocks if b["type"] == "image"), None))
    return found


def key(notifier):
    with notifier.store.read() as conn:
        return service_state.find_key(conn, KEY_NAME)


def test_slack_message_has_a_picture_link_signed_with_the_shared_key(make_notifier, hook):
    notifier = make_notifier(has_pictures=True)
    notifier.add_receiver("hook", hook.url, format="slack")
    notifier.fire(detail=SEEN)
    notifier.dispatch()
    [url] = images(hook)
    assert url.startswith("https://paceline.example" + PICTURES_PATH)
    picture = verify_link(url.rpartition("/")[2], key(notifier), notifier.clock())
    assert picture is not None
    assert (picture.project, picture.job, picture.window) == ("default", "job", "1-8")
    assert (picture.chart, picture.theme) == ("workers", "light")
    assert picture.expires_s == notifier.clock() + 7 * 86_400


def test_message_without_pictures_has_no_link_and_makes_no_key(make_notifier, hook):
    notifier = make_notifier()
    notifier.add_receiver("hook", hook.url, format="slack")
    notifier.fire(detail=SEEN)
    notifier.dispatch()
    assert images(hook) == [None]
    assert key(notifier) is None


def test_message_refused_by_slack_is_resent_at_once_without_image(make_notifier, hook):
    """Slack refuses a message whose image it cannot fetch."""
    notifier = make_notifier(has_pictures=True)
    hook.answers = [Answer(400, body=b"invalid_blocks")]
    notifier.add_receiver("hook", hook.url, format="slack")
    notifier.fire(detail=SEEN)
    notifier.dispatch()
    first, second = images(hook)
    assert first is not None
    assert second is None
    assert notifier.states() == ["delivered"]


def test_refused_message_without_an_image_waits_for_its_retry(make_notifier, hook):
    notifier = make_notifier()
    hook.answers = [Answer(400, body=b"invalid_blocks")]
    notifier.add_receiver("hook", hook.url, format="slack")
    notifier.fire(detail=SEEN)
    notifier.dispatch()
    assert notifier.states() == ["due"]


@pytest.mark.parametrize(
    ("public_url", "expected"),
    [("https://paceline.example", True), ("http://10.1.2.3:8642", False), (None, False)],
)
def test_pictures_need_a_public_https_url(public_url, expected):
    assert has_pictures(Settings(public_url=public_url)) is expected


def test_pictures_need_kaleido(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    assert not has_pictures(Settings(public_url="https://paceline.example"))
