"""The alerts page: active alerts, muted ones, and past transitions."""

import re

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


def about(alert):
    """An alert's rule, and what of the job it is about."""
    return ", ".join(filter(None, (alert["rule"], alert["subject"])))


def test_the_active_alerts_are_those_of_the_api(stocked, alerts):
    from playwright.sync_api import expect

    active = stocked.get("/alerts", phase="firing", limit=200)["items"]
    assert active
    page = alerts("?phase=firing")
    shown = region(page, "Now").locator(".row")
    expect(shown).to_have_count(len(active))
    parts = ("a.job", ".about > .quiet >> nth=0", ".number b")
    told = {tuple(row.locator(part).inner_text().strip() for part in parts) for row in shown.all()}
    assert {(job, rule) for job, rule, _ in told} == {
        (each["job_id"], about(each)) for each in active
    }
    slow = next(each for each in active if each["rule"] == "slowdown")
    assert (slow["job_id"], "slowdown", f"{slow['value']:.2f}{TIMES}") in told
    expect(page.locator("h1")).to_contain_text("firing")
    figure = page.locator(".stat", has_text="Firing now").locator(".figure")
    expect(figure).to_have_text(str(len(active)))
    shown.first.locator("a.job").click()
    expect(page).to_have_url(re.compile("/jobs/[^/?]+$"))


def test_a_muted_alert_names_the_alert_that_covers_it(stocked, alerts):
    from playwright.sync_api import expect

    active = stocked.get("/alerts", limit=200)["items"]
    kept = next(each for each in active if each["inhibited_by"])
    page = alerts(f"?alert={kept['fingerprint']}")
    row = page.locator(".now-rows .is-chosen")
    expect(row).to_contain_text("Muted: covered by the slowdown alert.")
    expect(row.locator(".alert-details")).to_contain_text(kept["blame"]["cause"])
    keys = [each.get_attribute("data-key") for each in page.locator(".now-rows > .row").all()]
    place = keys.index(kept["fingerprint"])
    before = next(each for each in active if each["fingerprint"] == keys[place - 1])
    assert place > 0
    assert before["job_id"] == kept["job_id"]
    assert before["fingerprint"] in kept["inhibited_by"] or before["inhibited_by"]


def test_the_history_filter_is_kept_in_the_address(stocked, alerts):
    from playwright.sync_api import expect

    page = alerts()
    history = region(page, "History")
    [*_, last] = stocked.get("/alerts", kind="resolved")["items"]
    history.get_by_label("Search the history by job").fill(last["job_id"])
    found = stocked.get("/alerts", q=last["job_id"])["items"]
    expect(history.locator("a.row")).to_have_count(min(20, len(found)))
    history.get_by_role("button", name="Resolved").click()
    expect(page).to_have_url(re.compile(rf"\?q={last['job_id']}&kind=resolved$"))
    resolved = stocked.get("/alerts", q=last["job_id"], kind="resolved")["items"]
    expect(history.locator("a.row")).to_have_count(len(resolved))
    expect(history.locator("a.row").first).to_contain_text("the job has ended")
    history.get_by_label("Search the history by job").fill("no-such-job")
    expect(page.get_by_text("No transition matches the filter.")).to_be_visible()


def test_a_project_without_alerts_shows_empty_lists(on_call):
    from playwright.sync_api import expect

    page = on_call().page
    expect(page.locator("h1")).to_have_text("No alert is firing.")
    for words in (
        "No alert is firing or pending.",
        "No alert has fired yet.",
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
    expect(row.locator("a.job")).to_have_text("llm-70b")
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


def test_a_link_to_an_unknown_alert_says_so(on_call):
    from playwright.sync_api import expect

    page = on_call(query="?alert=nothing-like-it").page
    expect(region(page, "The alert of this link")).to_contain_text("There is no such alert")


def test_an_alert_storm_shows_the_most_severe_alerts_first(project, on_call):
    from playwright.sync_api import expect

    for number in range(45):
        severity = "critical" if number == 44 else "warning"
        project.fire(f"job-{number}", severity=severity)
    page = on_call().page
    rows = region(page, "Now").locator(".row")
    expect(rows).to_have_count(20)
    expect(rows.first).to_contain_text("Critical")
    expect(page.locator("h1")).to_contain_text("45 alerts are firing")
    more = region(page, "Now").get_by_role("button", name="Show more")
    more.click()
    expect(rows).to_have_count(40)
    more.click()
    expect(rows).to_have_count(45)
    expect(more).to_have_count(0)
    page.get_by_label("Search active alerts by job").fill("job-44")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("find=job-44"))
