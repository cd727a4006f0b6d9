from email import message_from_bytes, policy

import pytest

from app.alerts.formats.email import build_email, mailto_address
from app.alerts.formats.registry import render_notice
from tests.alerts.notices import make_receiver, notice, told


def mail(**given):
    message = render_notice(notice(**given), make_receiver("email"))
    made_mail = build_email(
        message, sender="paceline@example.com", to="a@example.com", delivery_id="msg_1", at_s=0.0
    )
    return message_from_bytes(made_mail.as_bytes(), policy=policy.default)


def test_an_e_mail_has_all_facts_in_plain_text():
    found = mail()
    assert found["Subject"] == "[warning] Firing: llm-70b: slowdown"
    assert found["From"] == "Paceline <paceline@example.com>"
    assert found["To"] == "a@example.com"
    assert found.get_content_type() == "text/plain"
    lines = found.get_content().splitlines()
    assert lines[0] == notice().sentence
    assert notice().page_url in lines
    assert "Since: step 1,204" in lines


def test_attempts_are_one_message_and_a_group_one_thread():
    assert mail()["Message-ID"] == "<msg_1@paceline.invalid>"
    assert mail()["References"] == mail(kind="resolved")["References"]
    assert mail()["References"] != mail(group_key="other")["References"]
    assert mail()["Auto-Submitted"] == "auto-generated"


def test_all_alerts_are_listed():
    content = mail(alerts=(told(), told(sentence="Another is slow.")), num_more=3).get_content()
    assert "- Another is slow." in content
    assert "and 3 more alerts" in content


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mailto:a@example.com", "a@example.com"),
        ("mailto:on-call+gpu@mail.example.com", "on-call+gpu@mail.example.com"),
        ("mailto:a@b@c.example", None),
        ("mailto:a@example.com,b@example.com", None),
        ("mailto:a@example.com?cc=b@example.com", None),
        ("mailto:a b@example.com", None),
        ("mailto:a@example.com\r\nRCPT TO:<b@c>", None),
        ("mailto:<a@example.com>", None),
        ("mailto:@example.com", None),
        ("mailto:\u00e4@example.com", None),
        ("https://example.com", None),
        ("mailto:" + "a" * 300 + "@example.com", None),
    ],
)
def test_an_address_is_one_and_plain(url, address):
    assert mailto_address(url) == address
