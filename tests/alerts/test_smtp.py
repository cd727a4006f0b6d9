"""E-mail over a real connection."""

from dataclasses import replace
from email import message_from_bytes, policy

import pytest

from app.alerts.formats.registry import render_notice
from app.alerts.guard import SsrfGuard
from app.alerts.sending import Transport, refuse_unusable_receiver, send
from app.alerts.smtp import MailServer, parse_mail_server
from app.errors import InvalidRequest, StartUpFailed
from tests.alerts.mail_server import mail_server
from tests.alerts.notices import make_receiver, notice, told
from tests.harness.certificates import make_certificate

TO = make_receiver("email", url="mailto:oncall@example.com", secrets=())
GUARD = SsrfGuard()


def attempt(mailbox, *, message=None, to=TO, **given):
    server = MailServer("127.0.0.1", mailbox.port, False, "paceline@example.com", total_s=5.0)
    transport = Transport(GUARD, replace(server, **given))
    return send(transport, to, render_notice(message or notice(), TO), "msg_1", 1_700_000_000.0)


@pytest.mark.parametrize(
    ("domains", "address", "is_allowed"),
    [
        ((), "a@example.com", True),
        ((), "a@EXAMPLE.com", True),
        ((), "a@sub.example.com", False),
        ((), "a@example.com.evil.example", False),
        (("corp.example",), "a@example.com", False),
        (("corp.example", "*.Example.com"), "a@sub.example.com", True),
        (("*",), "a@anywhere.example", True),
    ],
)
def test_only_domains_that_the_operator_allows_are_written_to(domains, address, is_allowed):
    server = parse_mail_server("smtp://mail.example", "paceline@example.com", domains)
    assert server.may_write_to(address) is is_allowed


def test_what_the_operator_has_ceased_to_allow_is_not_sent():
    with mail_server() as mailbox:
        answer = attempt(mailbox, domains=("elsewhere.example",))
        assert mailbox.mails == []
    assert (answer.status, answer.is_success) == (None, False)
    assert "PACELINE_SMTP_DOMAINS" in answer.detail


def test_a_mail_arrives_unchanged():
    with mail_server() as mailbox:
        answer = attempt(mailbox)
    assert (answer.status, answer.detail, answer.is_success) == (250, "SMTP 250", True)
    [mail] = [message_from_bytes(each, policy=policy.default) for each in mailbox.mails]
    assert mail["To"] == "oncall@example.com"
    assert mail["Subject"] == "[warning] Firing: llm-70b: slowdown"
    assert mail["Message-ID"] == "<msg_1@paceline.invalid>"
    assert notice().sentence in mail.get_content()
    assert [each for each in mailbox.commands if each.startswith(("mail", "rcpt"))] == [
        "mail FROM:<paceline@example.com>",
        "rcpt TO:<oncall@example.com>",
    ]


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ({"RCPT": "550 nobody here"}, 550),
        ({"MAIL": "451 later"}, 451),
        ({"TAKEN": "554 spam"}, 554),
    ],
)
def test_an_smtp_refusal_is_its_code(answers, status):
    with mail_server(answers=answers) as mailbox:
        answer = attempt(mailbox)
    assert answer.status == status
    assert not answer.is_success
    assert answer.detail.startswith(f"SMTP {status}")
    assert "spam" not in answer.detail


def test_a_silent_mail_server_times_out():
    with mail_server(answers={"MAIL": "silence"}) as mailbox:
        answer = attempt(mailbox, total_s=0.2)
    assert answer.status is None
    assert answer.detail.startswith("no connection: ")
    assert answer.took_s < 5


def test_a_greeting_without_end_is_given_up():
    """A claim lasts for thirty seconds: whoever comes next would write the same e-mail again."""
    with mail_server(answers={"GREETING": "drip"}) as mailbox:
        answer = attempt(mailbox, total_s=0.2)
        assert (answer.status, mailbox.commands) == (None, [])
    assert answer.took_s < 20


def test_a_refused_connection_is_named_in_the_detail():
    with mail_server() as mailbox:
        pass
    assert attempt(mailbox).detail == "no connection: ConnectionRefusedError"


def test_a_password_is_not_sent_in_the_clear():
    with mail_server() as mailbox:
        answer = attempt(mailbox, user="me", password="secret")
    assert answer.detail == "no connection: SMTPNotSupportedError"
    assert mailbox.mails == []
    assert "secret" not in str(mailbox.commands)


def test_tls_is_used_where_it_is_offered_and_the_certificate_checked(tmp_path):
    server_side, client_side = make_certificate(tmp_path / "tls").contexts()
    secret = {"host": "localhost", "tls": client_side, "user": "me", "password": "secret"}
    with mail_server(offers=("STARTTLS", "AUTH PLAIN"), tls=server_side) as mailbox:
        assert attempt(mailbox, **secret).status == 250
        assert mailbox.was_secure == [True]
        assert "\0me\0secret" in mailbox.commands
        strangers = attempt(mailbox, **secret | {"tls": MailServer("", 1, False, "").tls})
    assert strangers.detail == "no connection: SSLCertVerificationError"
    assert len(mailbox.mails) == 1


def test_tls_is_spoken_from_the_first_byte_where_the_operator_says_so(tmp_path):
    server_side, client_side = make_certificate(tmp_path / "tls").contexts()
    given = {"host": "localhost", "is_tls": True}
    with mail_server(tls=server_side, is_tls=True) as mailbox:
        assert attempt(mailbox, **given, tls=client_side).status == 250
        assert attempt(mailbox, **given).detail == "no connection: SSLCertVerificationError"
    assert mailbox.was_secure == [True]


@pytest.mark.parametrize(
    ("url", "host", "port", "is_tls", "user"),
    [
        ("smtp://mail.example", "mail.example", 587, False, None),
        ("smtp://mail.example:25", "mail.example", 25, False, None),
        ("smtps://me:se%40cret@mail.example", "mail.example", 465, True, "me"),
    ],
)
def test_the_environment_names_the_server(url, host, port, is_tls, user):
    server = parse_mail_server(url, "paceline@example.com")
    assert (server.host, server.port, server.is_tls, server.user) == (host, port, is_tls, user)
    assert server.password == ("se@cret" if user else None)
    assert "se@cret" not in repr(server)


EVIL = "x\r\nBcc: all@evil.example\r\n.\r\nMAIL FROM:<a@evil.example>\r\nRCPT TO:<b@evil.example>"
LINE_ENDS = ["\r\n", "\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\r\n\r\n", "\0"]


@pytest.mark.parametrize("end", LINE_ENDS, ids=ascii)
def test_text_of_others_adds_no_header_no_recipient_and_no_second_mail(end):
    text = EVIL.replace("\r\n", end)
    evil = notice(
        job_name=text,
        rule=text,
        sentence=text,
        sub=text,
        group_key=text,
        alerts=(told(sentence=text), told(sentence=text, fingerprint="f" * 16)),
        runbook_url=text,
        page_url=text,
    )
    with mail_server() as mailbox:
        answer = attempt(mailbox, message=evil)
    assert answer.is_success, answer.detail
    commands = [line.split(" ")[0].split(":")[0].upper() for line in mailbox.commands]
    assert commands == ["EHLO", "MAIL", "RCPT", "DATA", "QUIT"]
    assert mailbox.commands[2].upper().startswith("RCPT TO:<ONCALL@EXAMPLE.COM>")
    [mail] = mailbox.mails
    head = message_from_bytes(mail, policy=policy.default)
    with mail_server() as mailbox:
        attempt(mailbox)
    assert head.keys() == message_from_bytes(mailbox.mails[0], policy=policy.default).keys()
    assert head["To"] == "oncall@example.com"
    assert head["Bcc"] is None


@pytest.mark.parametrize(
    "end", ["\r\n", "\n", "\r", "%0d%0a", "%0A", " ", "\0", "\u2028"], ids=ascii
)
@pytest.mark.parametrize(
    "where", ["mailto:a{}RCPT TO:<b@evil.example>@example.com", "mailto:a@example.com{}"]
)
def test_address_with_a_line_end_is_no_receiver(where, end):
    to = replace(TO, url=where.format(end + "DATA"))
    with mail_server() as mailbox:
        answer = attempt(mailbox, to=to)
        assert mailbox.commands == []
    assert (answer.status, answer.is_success) == (None, False)
    with pytest.raises(InvalidRequest, match="one plain address"):
        refuse_unusable_receiver(to, GUARD, MailServer("h", 25, False, "paceline@example.com"))


@pytest.mark.parametrize(
    "sender", ["a@b.example\r\nRCPT TO:<c@d.example>", "a@b.example\nx", "a b@c"]
)
def test_sender_with_a_line_end_stops_the_start(sender):
    with pytest.raises(StartUpFailed, match="PACELINE_SMTP_FROM"):
        parse_mail_server("smtp://mail.example", sender)
