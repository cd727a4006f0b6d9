import pytest

from app.alerts.guard import PORTS, SsrfGuard
from app.errors import Blocked


def target(url, *, ports=PORTS, allows_http=False):
    guard = SsrfGuard(ports=ports, allows_http=allows_http, resolver=lambda _: ["1.1.1.1"])
    return guard.check(url)


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("https://a.example", "a.example", 443, b"/", "a.example"),
        ("https://a.example/x/y?z=1#top", "a.example", 443, b"/x/y?z=1", "a.example"),
        ("HTTPS://A.Example:8443/x", "a.example", 8443, b"/x", "a.example:8443"),
        (
            "https://b\u00fccher.example/",
            "xn--bcher-kva.example",
            443,
            b"/",
            "xn--bcher-kva.example",
        ),
        ("https://1.1.1.1/", "1.1.1.1", 443, b"/", "1.1.1.1"),
        ("https://[2606:4700::1]:80/", "2606:4700::1", 80, b"/", "[2606:4700::1]:80"),
        ("https://a_b.example:443/", "a_b.example", 443, b"/", "a_b.example"),
    ],
)
def test_a_url_has_one_meaning(url, host, port, path, authority):
    found = target(url)
    assert (found.host, found.port, found.path) == (host, port, path)
    assert found.authority == authority


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://a.example/", "https://"),
        ("ftp://a.example/", "https://"),
        ("a.example/x", "https://"),
        ("https://me:secret@a.example/", "user or password"),
        ("https://me@a.example/", "user or password"),
        ("https://a.example:22/", "port 22"),
        ("https://a.example:0/", "port 0"),
        ("https://a.example:99999/", "port"),
        ("https://a.example:x/", "cannot be read"),
        ("https:///x", "no name"),
        ("https://a..example/", "no name"),
        ("https://a.example./", "no name"),
        ("https://-a.example/", "no name"),
        ("https://" + "a" * 64 + ".example/", "no name"),
        ("https://127.1/", "written in a way"),
        ("https://0x7f.1/", "written in a way"),
        ("https://a.123/", "written in a way"),
        ("https://[::1%25lo]/", "written in a way"),
        ("https://a.example/" + "x" * 70_000, "too long"),
    ],
)
def test_what_messages_are_not_sent_to_is_refused_with_words(url, words):
    with pytest.raises(Blocked, match=words) as refusal:
        target(url)
    assert "secret" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_what_is_refused_can_be_allowed():
    assert target("http://a.example/", allows_http=True).port == 80
    assert target("https://a.example:9093/", ports={9093}).port == 9093
    assert target("https://a.example:9093/", ports=None).port == 9093


def refused(url, **settings):
    with pytest.raises(Blocked) as refusal:
        SsrfGuard(resolver=lambda _: ["10.1.2.3"], **settings).check(url)
    return str(refusal.value)


def test_a_refusal_names_every_setting_that_is_needed():
    said = refused("http://127.0.0.1:9000/hook")
    assert "must begin with https://; messages are not sent to port 9000; the receiver's" in said
    assert said.endswith(
        "with PACELINE_WEBHOOK_ALLOW_HTTP=true PACELINE_WEBHOOK_PORTS=80,443,8443,9000 "
        "PACELINE_WEBHOOK_ALLOW=127.0.0.1/32"
    )
    # Of a name the addresses are known, but not said.
    said = refused("http://hooks.internal:9000/")
    assert "PACELINE_WEBHOOK_PORTS=80,443,8443,9000 PACELINE_WEBHOOK_ALLOW=NETWORK (" in said
    assert "10.1.2.3" not in said


def test_no_setting_is_suggested_for_addresses_that_serve_credentials():
    said = refused("http://169.254.169.254/latest")
    assert "public Internet" in said
    assert "PACELINE_" not in said
