"""What holds for every format: add one to the registry, and it is tested here."""

import dataclasses
import json
import re
from datetime import datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.alerts.alert import Blame, Detail
from app.alerts.formats.alertmanager import PUSH_FIRES_FOR_S, REFRESH_EVERY_S
from app.alerts.formats.registry import (
    MAX_PUSHED,
    RENDERERS,
    format_takes,
    refresh_every_s,
    render_notice,
)
from app.alerts.notice import MAX_MESSAGE_BYTES, NoticeKind
from app.alerts.sending import attempt_headers
from app.result.finding import Culprit
from tests.alerts.notices import DETAIL, LABELS, SECRET, make_receiver, notice, told
from tests.example_counts import many

IMAGE = "https://paceline.example/charts/1.png"
KINDS: tuple[NoticeKind, ...] = ("firing", "resolved", "test", "notifier-unhealthy")
# Those of alerts; a check of healthchecks is only pinged.
ALERT_FORMATS = [name for name in RENDERERS if name != "healthchecks"]
every_format = pytest.mark.parametrize("format_", ALERT_FORMATS)


def shown(format_, given):
    """All that the receiver gets, as text."""
    message = render_notice(given, make_receiver(format_))
    return f"{message.subject} {message.body}"


@every_format
def test_each_message_says_how_slow_since_when_who_what_it_costs_how_sure_and_where(format_):
    text = shown(format_, notice())
    for needed in ("llm-70b", "1.42", "host-017", "90 %", "slow-worker"):
        assert needed in text
    assert "1,204" in text or "1204" in text
    assert "19 GPU-h" in text or "18.9" in text
    assert "https://paceline.example/jobs/llm-70b?window=2-1220" in text


@every_format
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_renders_every_kind(format_, kind):
    for alerts in ((), (told(),)):
        message = render_notice(notice(kind=kind, alerts=alerts), make_receiver(format_))
        if format_ != "email":
            assert json.loads(message.body)


def test_outcomes_of_fixes_go_to_receivers_that_keep_no_incident():
    takers = [name for name in RENDERERS if format_takes(name, "fix-outcome")]
    assert takers == [name for name in ALERT_FORMATS if name != "pagerduty"]
    sentence = "llm-70b: re-split at step 4,120: predicted 1.18\u00d7, achieved 1.16\u00d7."
    outcome = notice(kind="fix-outcome", alerts=(), sentence=sentence, severity="info")
    for name in takers:
        assert "predicted 1.18" in shown(name, outcome)
        assert "achieved 1.16" in shown(name, outcome)


def test_alertmanager_routes_an_outcome_by_its_job_and_ends_it_after_an_hour():
    labels = {
        "job": "llm-70b",
        "project": "default",
        "rule": "fix-outcome",
        "subject": "planned-gc",
    }
    given = notice(kind="fix-outcome", alerts=(), severity="info", group_labels=labels)
    [pushed] = json.loads(render_notice(given, make_receiver("alertmanager-push")).body)
    wanted = labels | {"alertname": "PacelineFixOutcome", "severity": "info"}
    assert pushed["labels"] == wanted
    began, ended = (datetime.fromisoformat(pushed[name]) for name in ("startsAt", "endsAt"))
    assert (ended - began).total_seconds() == 3600


@every_format
def test_what_is_not_known_is_left_out(format_):
    bare = told(detail=replace(DETAIL, slowdown=None, blame=None, since_step=None), labels={})
    text = shown(format_, notice(alerts=(bare,), sub="", page_url=None, runbook_url=None))
    assert "None" not in text.removeprefix("None")
    assert "nan" not in text.lower().split()


@every_format
def test_missing_figures_are_rendered(format_):
    odd = told(detail=replace(DETAIL, value=float("nan"), slowdown=float("inf")))
    body = render_notice(notice(alerts=(odd,)), make_receiver(format_)).body
    if format_ != "email":
        json.loads(body, parse_constant=pytest.fail)


@every_format
def test_secrets_are_in_no_message(format_):
    assert SECRET not in repr(render_notice(notice(), make_receiver(format_)))
    assert SECRET.removeprefix("whsec_") not in shown(format_, notice())


def test_only_alertmanager_pushes_take_refreshes():
    assert [name for name in RENDERERS if format_takes(name, "refresh")] == ["alertmanager-push"]
    assert refresh_every_s(["slack"]) is None
    assert refresh_every_s(["slack", "alertmanager-push"]) == REFRESH_EVERY_S
    assert PUSH_FIRES_FOR_S > 10 * REFRESH_EVERY_S


def test_only_pagerduty_takes_acknowledgements():
    assert [name for name in RENDERERS if format_takes(name, "acknowledged")] == ["pagerduty"]
    assert all(format_takes(name, kind) for name in ALERT_FORMATS for kind in KINDS)


def test_news_of_the_service_go_to_every_receiver_and_only_an_outage_to_a_check():
    for kind in ("service-down", "service-up"):
        takers = [name for name in RENDERERS if format_takes(name, kind)]
        assert set(ALERT_FORMATS) <= set(takers)
        assert ("healthchecks" in takers) == (kind == "service-down")
        for name in takers:
            text = shown(name, notice(kind=kind, alerts=(), sentence="No consumer has worked."))
            assert "resolve" in text if kind == "service-up" and name == "pagerduty" else True
            assert "No consumer has worked." in text or kind == "service-up"


def test_check_takes_nothing_of_jobs():
    taken = {kind for kind in get_args(NoticeKind) if format_takes("healthchecks", kind)}
    assert taken == {"heartbeat", "service-down", "test"}


PAGE = "https://paceline.example/"


def most_bytes(format_):
    return 1_000_000 if format_ == "alertmanager-push" else MAX_MESSAGE_BYTES


HOSTILE = {
    "mention": "<!channel> <@U024BE7LH> @channel @here",
    "link": "<https://evil.example|Open in Paceline>",
    "formats": "*bold* _it_ `code` ~no~ [a](https://evil.example)",
    "markup": "<script>alert(1)</script> & <b>",
    "lines": "a\r\nBcc: all@evil.example\r\n\r\nbody\n.\nQUIT",
    "separators": "a\u2028b\u2029c\x85d\x00e\x1b[31m",
    "right to left": "abc\u202egpj.exe \u2066x\u2069 \u200f",
    "unpaired": "a\u2069b\u2068c",
    "half a character": "a\ud800b",
    "long": "x" * 10_000,
    "long and wide": "\N{SNOWMAN}" * 10_000,
    "quotes": "\"\\'{{}}%s",
}
UNSEEN = ("\r", "\0", "\x1b", "\u202e", "\u2028", "\u2029", "\x85", "\u200f", "\ud800")


def about(name):
    """Everything that a worker or a user may call anything is called this."""
    blame = Blame("slow-worker", f"{name} is slow", 0.1, 0.9, (Culprit(host=name),), 1)
    labels = {**LABELS, "host": name, "job": name, "team": name, "subject": name}
    one = told(
        sentence=f"{name} is slow.",
        labels=labels,
        detail=replace(DETAIL, blame=blame, names=(name,) * 20, num_named=20),
    )
    return notice(alerts=(one,) * 20, job=None, job_name=name, sentence=f"{name} is slow.")


@every_format
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_text_from_outside_is_data(format_, name):
    given = about(name)
    message = render_notice(given, make_receiver(format_))
    assert message.num_bytes <= most_bytes(format_)
    for sign in UNSEEN:
        assert sign not in message.body
        assert sign not in (message.subject or "")
    assert "\n" not in (message.subject or "")
    for value in attempt_headers(make_receiver(format_), message, "msg_1", 0.0).values():
        assert value.isascii()
        assert value.isprintable()
    if format_ != "email":
        json.loads(message.body)


@pytest.mark.parametrize("format_", ["slack", "email"])
def test_resolved_notices_use_the_past_tense(format_):
    now = replace(DETAIL, slowdown=1.01, gpu_hours_lost_per_hour=0.6, since_step=1300, blame=None)
    over = told(status="resolved", ends_at_s=1.7e9, sentence="Over.", detail=now, was=DETAIL)
    text = render_notice(notice(kind="resolved", alerts=(over,)), make_receiver(format_)).body
    cost = "Had cost: about 19 GPU-h each hour"
    for said in ("Slowdown before: 1.42", "Began: step 1,204", cost):
        assert said in text
    for said in ("Costs:", "Since step:", "Confidence:"):
        assert said not in text


@pytest.mark.parametrize("format_", ["slack", "email", "pagerduty"])
def test_unmeasured_costs_are_marked(format_):
    silent = told(detail=Detail(on="silent-worker", names=("dp 0, stage 1",), num_named=1))
    text = render_notice(notice(alerts=(silent,)), make_receiver(format_)).body
    assert re.search(r'Costs(: |":")not measured', text)


LINKS = (
    "https://evil.example/a",
    "HTTP://evil.example",
    "www.evil.example",
    "mailto:a@evil.example",
)


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("format_", ["slack", "email", "pagerduty"])
def test_job_names_never_become_links(format_, name):
    given = about(name)
    message = render_notice(
        dataclasses.replace(given, alerts=given.alerts[:2], sub=name), make_receiver(format_)
    )
    for text in (message.body, message.subject or ""):
        assert name not in text
    assert given.page_url in message.body, "ours can be"
    assert "evil.example" in message.body, "and it is still told"


any_text = st.text(max_size=300) | st.sampled_from([*HOSTILE.values(), "y" * 30_000])
blames = st.builds(
    Blame,
    cause=st.just("slow-worker"),
    sentence=any_text,
    cost=st.none() | st.floats(),
    confidence=st.floats(0, 1),
    culprits=st.lists(st.builds(Culprit, host=any_text), max_size=50).map(tuple),
)
alerts = st.builds(
    told,
    sentence=any_text,
    labels=st.dictionaries(any_text, any_text, max_size=40),
    detail=st.builds(
        lambda blame, names, value: replace(DETAIL, blame=blame, names=names, value=value),
        st.none() | blames,
        st.lists(any_text, max_size=50).map(tuple),
        st.none() | st.floats(),
    ),
    runbook_url=any_text,
)
notices = st.builds(
    notice,
    alerts=st.lists(alerts, max_size=20),
    job_name=any_text,
    sentence=any_text,
    sub=any_text,
    num_more=st.integers(0, 10**6),
    page_url=any_text.map(lambda text: f"https://{text}"),
    image_url=any_text,
    runbook_url=any_text,
)


@every_format
@many(60)
@given(given=notices)
def test_no_message_is_larger_than_receivers_take(format_, given):
    assert render_notice(given, make_receiver(format_)).num_bytes <= most_bytes(format_)


@pytest.mark.parametrize("name", [*HOSTILE.values(), '"\\' * 5000])
def test_the_largest_push_fits(name):
    many = about(name).alerts[:1] * MAX_PUSHED
    message = render_notice(
        notice(alerts=many, page_url=PAGE + "x" * 1400), make_receiver("alertmanager-push")
    )
    assert message.num_bytes <= most_bytes("alertmanager-push")
    assert len(json.loads(message.body)) == MAX_PUSHED


@every_format
def test_fewer_alerts_are_listed_before_texts_are_cut(format_):
    many = tuple(
        told(fingerprint=f"{number:016x}", sentence=f"{number} " + "long " * 60)
        for number in range(20)
    )
    given = notice(alerts=many, num_more=9_980, sentence="s" * 400)
    message = render_notice(given, make_receiver(format_))
    assert message.num_bytes <= most_bytes(format_)
    assert "s" * 400 in message.body or format_.startswith("alertmanager")
    if format_ == "standard":
        data = json.loads(message.body)["data"]
        assert len(data["alerts"]) + data["num_more"] == 10_000
        assert 5 <= len(data["alerts"]) < 20


def test_an_image_is_shown_if_available():
    for format_ in ("slack", "pagerduty", "standard", "cloudevents"):
        assert IMAGE in shown(format_, notice(image_url=IMAGE))
        assert 'image_url":"' not in shown(format_, notice())
