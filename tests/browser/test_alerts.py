"""The alerts page: active alerts, muted ones, and past transitions."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from app.formatting import TIMES


@pytest.fixture
def alerts(stocked, open_page):
    from playwright.sync_api import expect

    def alerts(query="", **options):
        page = open_page(stocked.link(f"/alerts{query}"), **options).page
        expect(page.locator(".stat-strip")).to_be_visible()
        return page

    return alerts


def region(page, name):
    return page.get_by_role("region", name=name, exact=True)


def test_the_active_alerts_are_those_of_the_api(stocked, alerts):
    from playwright.sync_api import expect

    active = stocked.get("/alerts", phase="firing", limit=200)["items"]
    assert active
    page = alerts()
    card = region(page, "Firing")
    expect(card.locator(".row")).to_have_count(len(active))
    shown = {
        row.get_attribute("data-key"): row.locator(".number b").text_content()
        for row in card.locator(".row").all()
    }
    assert set(shown) == {each["fingerprint"] for each in active}
    slow = next(each for each in active if each["rule"] == "slowdown")
    assert shown[slow["fingerprint"]] == f"{slow['value']:.2f}{TIMES}"
    expect(page.locator("h1")).to_contain_text("firing")
    figure = page.locator(".stat", has_text="Firing now").locator(".figure")
    notifying = [each for each in active if not (each["silenced_by"] or each["inhibited_by"])]
    expect(figure).to_have_text(str(len(notifying)))
    groups = card.locator(".job-group")
    expect(groups).to_have_count(len({each["job_id"] for each in active}))
    groups.first.locator("a.job").click()
    expect(page).to_have_url(re.compile("/jobs/[^/?]+$"))


def test_a_muted_alert_names_the_alert_that_covers_it(stocked, alerts):
    from playwright.sync_api import expect

    active = stocked.get("/alerts", limit=200)["items"]
    kept = next(each for each in active if each["inhibited_by"])
    page = alerts(f"?alert={kept['fingerprint']}")
    group = region(page, f"Alerts of {kept['job_id']}")
    row = group.locator("details.muted .is-chosen")
    expect(row).to_contain_text("Muted: covered by the slowdown alert.")
    expect(row.locator(".alert-details")).to_contain_text(kept["blame"]["cause"])
    expect(group.locator("summary")).to_contain_text("muted. Covered by the slowdown alert.")
    [first, *_] = group.locator(".row").all()
    assert first.get_attribute("data-key") in kept["inhibited_by"]


def test_alerts_are_grouped_by_job_the_worst_first_with_muted_ones_folded(project, on_call):
    from playwright.sync_api import expect

    project.fire("a-job", "slowdown")
    project.fire("b-job", "slowdown")
    project.fire("b-job", "lost", severity="critical")
    project.fire("c-job", "slowdown")
    project.fire("c-job", "waste", phase="pending", firing_at_s=None)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    matchers = [{"label": "job", "pattern": "b-job"}, {"label": "rule", "pattern": "slowdown"}]
    wanted = {"matchers": matchers, "ends_at": tomorrow, "comment": "new switches"}
    project.send("POST", "/silences", json=wanted)
    page = on_call().page
    card = region(page, "Firing")
    headings = card.locator(".job-group h3")
    expect(headings).to_have_text(
        ["b-job 1 critical, 1 muted", "c-job 1 warning", "a-job 1 warning"]
    )
    muted = region(page, "Alerts of b-job").locator("details.muted")
    expect(muted.locator(".row")).to_be_hidden()
    expect(muted.locator("summary")).to_contain_text("1 muted. Silenced by")
    expect(muted.locator("summary")).to_contain_text("new switches")
    muted.locator("summary").click()
    expect(muted.locator(".row")).to_be_visible()
    page.get_by_role("button", name="Pending 1").click()
    expect(page).to_have_url(re.compile(r"\?show=pending$"))
    expect(region(page, "Pending").locator(".row")).to_have_count(1)
    expect(region(page, "Firing")).to_have_count(0)
    page.get_by_role("button", name="History").click()
    expect(region(page, "History").locator("a.row")).to_have_count(5)
    tabs = page.get_by_role("group", name="Alerts shown")
    tabs.get_by_role("button", name="Resolved").click()
    expect(page.get_by_text("No alert has resolved yet.")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile(r"\?show=history$"))


def test_the_history_filter_is_kept_in_the_address(stocked, alerts):
    from playwright.sync_api import expect

    page = alerts("?show=history")
    history = region(page, "History")
    [*_, last] = stocked.get("/alerts/transitions", kind="resolved")["items"]
    history.get_by_label("Search the history by job").fill(last["job_id"])
    found = stocked.get("/alerts/transitions", q=last["job_id"])["items"]
    expect(history.locator("a.row")).to_have_count(min(20, len(found)))
    history.get_by_role("group", name="Kind of transition").get_by_text("Resolved").click()
    expect(page).to_have_url(re.compile(rf"\?show=history&q={last['job_id']}&kind=resolved$"))
    asked = {"q": last["job_id"], "kind": "resolved"}
    resolved = stocked.get("/alerts/transitions", **asked)["items"]
    expect(history.locator("a.row")).to_have_count(len(resolved))
    expect(history.locator("a.row").first).to_contain_text("the job has ended")
    history.get_by_label("Search the history by job").fill("no-such-job")
    expect(page.get_by_text("No transition matches the filter.")).to_be_visible()


def test_a_project_without_alerts_shows_empty_lists(on_call):
    from playwright.sync_api import expect

    page = on_call().page
    expect(page.locator("h1")).to_have_text("No alert is firing.")
    for words in (
        "No firing alerts.",
        "No silences, none planned.",
        "Alerts show on this page only until there is a receiver.",
    ):
        expect(page.get_by_text(words)).to_be_visible()


def test_a_link_shows_its_alert_while_active_and_after_it_has_resolved(project, on_call):
    from playwright.sync_api import expect

    state = project.fire()
    for number in range(25):
        project.fire(f"newer-{number}", began_at_s=state.began_at_s + 1 + number)
    page = on_call(query=f"?alert={state.fingerprint}").page
    row = page.locator(".now-rows .is-chosen")
    expect(region(page, "Alerts of llm-70b").locator(".is-chosen")).to_have_count(1)
    details = row.locator(".alert-details")
    for words in (state.fingerprint, "GPU-hours lost per hour19", "rule slowdown", "Fired"):
        expect(details).to_contain_text(words)
    project.resolve(state)
    page.reload()
    card = region(page, "The alert of this link")
    expect(card).to_contain_text("slowdown on llm-70b is not active")
    expect(card.locator(".transitions li")).to_have_count(2)
    expect(card.locator(".transitions li").first).to_contain_text("Resolved")
    card.get_by_role("button", name="Hide").click()
    expect(page).to_have_url(re.compile(r"/alerts$"))


@pytest.mark.nightly
def test_a_link_to_an_unknown_alert_says_so(on_call):
    from playwright.sync_api import expect

    page = on_call(query="?alert=nothing-like-it").page
    expect(region(page, "The alert of this link")).to_contain_text("There is no such alert")


@pytest.mark.nightly
def test_an_alert_storm_shows_the_most_severe_alerts_first(project, on_call):
    from playwright.sync_api import expect

    for number in range(45):
        severity = "critical" if number == 44 else "warning"
        project.fire(f"job-{number}", severity=severity)
    page = on_call().page
    rows = region(page, "Firing").locator(".row")
    expect(rows).to_have_count(20)
    expect(rows.first).to_contain_text("Critical")
    expect(page.locator("h1")).to_contain_text("45 alerts are firing")
    more = region(page, "Firing").get_by_role("button", name="Show more")
    more.click()
    expect(rows).to_have_count(40)
    more.click()
    expect(rows).to_have_count(45)
    expect(more).to_have_count(0)
    page.get_by_label("Search by job").fill("job-44")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("find=job-44"))
