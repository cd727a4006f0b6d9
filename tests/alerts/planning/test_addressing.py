from dataclasses import replace
from typing import Any

from app.alerts.addressing import notices_for
from app.alerts.alert import Detail
from app.alerts.formats.figures import notice_title
from app.alerts.labels import Matcher
from app.alerts.notice import NoticeGroup
from app.alerts.picture_links import SignedPictureLinks
from app.alerts.planning import Draft
from tests.alerts.current_alerts import make_receiver, told

GROUP = NoticeGroup("default/llm 70b", "LLM", "slow", "https://paceline.example/")


def draft(*alerts, news=None, kind="firing"):
    return Draft(kind, alerts, news or {each.fingerprint: "firing" for each in alerts})


def notices(made, group=GROUP, *, now_s=5000.0, **given) -> list[Any]:
    return list(notices_for(made, group, make_receiver(**given), now_s=now_s))


def notice(made, group=GROUP, **given) -> Any:
    found = notices(made, group, **given)
    assert len(found) <= 1
    return found[0] if found else None


def test_a_notice_names_its_group_and_page():
    made = notice(draft(told("a", detail=Detail(window_id="1-8"))))
    assert (made.project, made.job, made.job_name, made.rule) == (
        "default", "llm 70b", "LLM", "slow",
    )  # fmt: skip
    assert made.page_url == "https://paceline.example/jobs/llm%2070b?window=1-8"
    assert made.group_key == '{}:{job="llm 70b", project="default", rule="slow"}'
    assert made.at_s == 5000.0
    assert made.sentence == "llm-70b is slow because of a."


def test_what_fires_is_shown_where_pictures_can_be_fetched():
    pictures = SignedPictureLinks("https://paceline.example", b"k" * 32)
    group = replace(GROUP, pictures=pictures)
    shown = told("a", detail=Detail(window_id="1-8"))
    made = notice(draft(shown), group)
    assert made.image_url == pictures.heatmap("default/llm 70b", "1-8", 5000.0)
    over = replace(shown, status="resolved")
    for alert, whose in ((shown, GROUP), (over, group), (told("a"), group)):
        assert notice(draft(alert), whose).image_url is None


def test_news_come_first_then_what_fires_then_what_is_worst():
    value = {"a": 1.1, "b": 1.5, "c": None, "d": 9.0, "e": 2.0}
    alerts = [told(name, detail=Detail(value=value[name])) for name in value]
    alerts.append(told("over", status="resolved"))
    alerts.append(told("bad", severity="critical", detail=Detail(value=1.0)))
    news = {each.fingerprint: "firing" for each in alerts} | {"over": "resolved"}
    del news["d"]
    made = notice(draft(*alerts, news=news))
    assert [each.fingerprint for each in made.alerts] == ["bad", "e", "b", "a", "c", "over", "d"]
    assert made.severity == "critical"
    assert made.sentence.endswith("With it: 6 other alerts of the same rule.")


PUSH: dict[str, Any] = {"format": "alertmanager-push"}


def test_stateful_receivers_get_exactly_the_news():
    many = [told(f"{number:03}") for number in range(120)]
    parts = notices(
        draft(*many, told("known"), news={each.fingerprint: "firing" for each in many}), **PUSH
    )
    assert [len(part.alerts) for part in parts] == [50, 50, 20]
    assert sorted(mark for part in parts for mark in part.about) == [f"{n:03}" for n in range(120)]
    assert len({part.notice_id for part in parts}) == 3
    assert {part.num_more for part in parts} == {0}


def test_a_refresh_is_of_all_that_fires_and_is_no_news():
    made = Draft("refresh", [told("a"), told("over", status="resolved")], {"over": "resolved"})
    (found,) = notices(made, **PUSH)
    assert (found.kind, found.about) == ("refresh", ["over", "a"])


def test_a_resolution_goes_to_receivers_matched_by_the_first_labels():
    known_as = {"team": "a", "severity": "critical"}
    now = {"labels": {"team": "b", "severity": "info"}, "severity": "info", "known_as": known_as}
    fires, over = told("x", **now), told("x", status="resolved", **now)
    for given in ({"min_severity": "critical"}, {"matchers": (Matcher("team", "a"),)}):
        assert notice(draft(fires), **given) is None
        assert notice(draft(over, news={"x": "resolved"}), **given).kind == "resolved"


def test_subjects_beyond_the_alert_limit_are_counted():
    alerts = [told(f"{n:02}", detail=Detail(on="worker", num_named=9000)) for n in range(30)]
    made = notice(draft(*alerts))
    assert made.num_more == 9010
    assert made.sentence.endswith("With it: 9,029 other alerts of the same rule.")
    made = notice(draft(told("a", detail=Detail(on="silent-worker", num_named=7))))
    assert made.num_more == 0


def test_a_receiver_gets_only_wanted_news():
    alerts = [told("a"), told("b"), told("c", severity="critical")]
    made = draft(*alerts, news={"a": "firing"})
    only_a = {"matchers": (Matcher("subject", "a"),)}
    assert [each.fingerprint for each in notice(made, **only_a).alerts] == ["a"]
    assert notice(made, matchers=(Matcher("subject", "b"),)) is None
    assert notice(made, min_severity="critical") is None
    assert notice(made).about == ["a"]


def test_what_fires_for_one_endpoint_is_over_for_another():
    made = draft(told("a", status="resolved"), told("b"), news={"a": "resolved"})
    assert notice(made).kind == "firing"
    assert notice(made, format="pagerduty") is None, "its incident is open anyway"
    assert notice(made, wants_resolved=False) is None
    only_a = {"matchers": (Matcher("subject", "a"),)}
    assert notice(made, **only_a).kind == "resolved"
    assert notice(made, **only_a, wants_resolved=False) is None


def test_a_partly_resolved_notice_counts_firing_alerts():
    alerts = [told("a", status="resolved"), told("b"), told("c", status="resolved"), told("d")]
    made = notice(draft(*alerts, news={"a": "resolved", "c": "resolved"}))
    assert notice_title(made) == "Partly resolved: LLM: slow"
    assert made.sentence == "llm-70b is slow because of a. 2 other alerts still fire."
    assert not notice(draft(*alerts)).is_partly_resolved


def test_the_same_at_another_time_is_another_notice_and_for_another_endpoint_the_same():
    made = draft(told("a"))
    first = notice(made, now_s=1.0)
    assert notice(made, now_s=2.0).notice_id != first.notice_id
    assert notice(made, now_s=1.0, endpoint_id="other").notice_id == first.notice_id
    assert "." not in first.notice_id


def test_a_firing_notice_ends_with_assignee_and_last_note():
    lead = told("a", assigned_to="Maria", note="drained")
    assert notice(draft(lead)).sub.endswith("Assigned to Maria. Note: drained.")
    over = replace(lead, status="resolved", ends_at_s=4000.0)
    assert "Maria" not in notice(draft(over, news={"a": "resolved"})).sub
