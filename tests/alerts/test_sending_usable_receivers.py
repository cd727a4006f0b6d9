import pytest

from app.alerts.formats.registry import RENDERERS
from app.alerts.guard import SsrfGuard
from app.alerts.sending import refuse_unusable_receiver
from app.alerts.smtp import parse_mail_server
from app.errors import Blocked, InvalidRequest
from tests.alerts.notices import OLD_SECRET, SECRET, make_receiver

GUARD = SsrfGuard()
MAIL = parse_mail_server("smtp://mail.example", "paceline@example.com")


@pytest.mark.parametrize("format_", RENDERERS)
def test_an_endpoint_of_each_format_is_taken(format_):
    secrets = () if format_ in ("email", "slack", "healthchecks") else (SECRET,)
    every_s = 60.0 if format_ == "healthchecks" else None
    receiver = make_receiver(format_, secrets=secrets, heartbeat_every_s=every_s)
    refuse_unusable_receiver(receiver, GUARD, MAIL)


@pytest.mark.parametrize(
    ("format_", "given", "words"),
    [
        ("standard", {"secrets": ()}, "needs a secret"),
        ("standard", {"secrets": ("short",)}, "whsec_"),
        ("standard", {"secrets": (SECRET, OLD_SECRET, SECRET)}, "2 secrets at most"),
        ("pagerduty", {"secrets": ()}, "routing key"),
        ("pagerduty", {"secrets": ("a b c d e f g h i j",)}, "printable"),
        ("alertmanager-push", {"secrets": ("a\r\nb" * 8,)}, "printable"),
        ("email", {"url": "https://a.example/"}, "mailto"),
        ("email", {"url": "mailto:a@b.example,c@d.example"}, "mailto"),
        ("email", {"url": "mailto:a@elsewhere.example"}, "PACELINE_SMTP_DOMAINS"),
        ("slack", {"headers": {"X-Team": "a "}}, "cannot be set"),
        ("slack", {"heartbeat_every_s": 60.0}, "format slack is for people"),
        ("healthchecks", {"secrets": ()}, "say how often"),
        ("healthchecks", {"heartbeat_every_s": 60.0}, "has no secret"),
        ("slack", {"headers": {"X-Team": " a"}}, "cannot be set"),
        ("slack", {"url": "mailto:a@b.example"}, "https://"),
        ("slack", {"headers": {"Host": "internal"}}, "cannot be set"),
        ("slack", {"headers": {f"X-{number}": "" for number in range(17)}}, "16 headers"),
    ],
)
def test_what_could_not_be_sent_to_is_refused_with_words(format_, given, words):
    with pytest.raises(InvalidRequest, match=words):
        refuse_unusable_receiver(make_receiver(format_, **given), GUARD, MAIL)


@pytest.mark.parametrize("url", ["https://127.0.0.1/", "https://[::1]/", "http://a.example/"])
def test_an_address_that_is_not_public_is_refused_when_it_is_given(url):
    with pytest.raises(Blocked):
        refuse_unusable_receiver(make_receiver(url=url), GUARD)
