"""What may be done about an alert on its page: acknowledge it, silence it, plan maintenance."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from app.alerts.alert import Blame
from tests.browser.alerting import SLOW
from tests.browser.test_every_page import LOOKS, violations, wider_than_the_page, wrong_in
from tests.browser.waiting import wait_until

SLOW_WORKER = Blame("slow-worker", "Rank 11 on host-043 is slow", 0.2, 0.99)


def region(page, name):
    return page.get_by_role("region", name=name, exact=True)


def said(page):
    """What a screen reader was told last."""
    return page.locator("#announcer")


def test_an_alert_is_acknowledged_and_unacknowledged_and_the_button_keeps_the_focus(
    project, on_call
):
    from playwright.sync_api import expect

    state = project.fire()
    page = on_call().page
    row = region(page, "Firing").locator(".row")
    row.get_by_role("button", name="Acknowledge slowdown on llm-70b").click()
    expect(row).to_contain_text(f"Acknowledged by {project.name} of ana")
    back = row.get_by_role("button", name="Remove the acknowledgement")
    expect(back).to_be_focused()
    expect(said(page)).to_have_text("Acknowledged: slowdown on llm-70b.")
    [now] = project.get("/alerts")["items"]
    assert now["acknowledged_by"] == f"{project.name} of ana"
    acknowledged = page.locator(".stat", has_text="Acknowledged").locator(".figure")
    expect(acknowledged).to_have_text("1")
    back.click()
    expect(row.get_by_text("Acknowledged by")).to_have_count(0)
    assert project.get("/alerts")["items"][0]["acknowledged_at"] is None
    kinds = [each["kind"] for each in project.get(f"/alerts/{state.fingerprint}")["history"]]
    assert kinds[:2] == ["unacknowledged", "acknowledged"]


def test_an_alert_is_silenced_for_a_while_and_the_silence_is_ended(project, on_call):
    from playwright.sync_api import expect

    project.fire("llm-70b", "cause", "slow-worker")
    project.fire("other", "cause", "slow-worker")
    page = on_call().page
    row = region(page, "Alerts of llm-70b").locator(".row")
    silence_it = row.get_by_role("button", name="Silence cause on llm-70b")
    silence_it.click()
    form = page.get_by_role("form", name="Silence")
    expect(form.get_by_role("button", name="1 h")).to_be_focused()
    page.keyboard.press("Escape")
    expect(form).to_have_count(0)
    expect(silence_it).to_be_focused()
    # As by the palette, which finds what a row offers.
    page.keyboard.press("Control+k")
    page.keyboard.type("silence cause llm")
    page.keyboard.press("Enter")
    expect(form.get_by_role("button", name="1 h")).to_be_focused()
    expect(form.locator("summary")).to_have_text(
        "Alerts whose job is llm-70b, rule is cause, subject is slow-worker"
    )
    expect(form.get_by_text("Matches 1 current alert.")).to_be_visible()
    form.get_by_role("button", name="4 h").click()
    form.get_by_label("Why").fill("<b>new switches</b>")
    form.get_by_role("button", name="Silence", exact=True).click()
    expect(form).to_have_count(0)
    muted = region(page, "Alerts of llm-70b").locator("details.muted")
    expect(muted.locator("summary")).to_contain_text("<b>new switches</b>")
    expect(muted.locator("summary")).to_be_focused()
    [silence] = project.get("/silences")["items"]
    assert silence["comment"] == "<b>new switches</b>"
    wanted = {"job": "llm-70b", "rule": "cause", "subject": "slow-worker"}
    assert {each["label"]: each["pattern"] for each in silence["matchers"]} == wanted
    active = project.get("/alerts")["items"]
    by_job = {each["job_id"]: each["silenced_by"] for each in active}
    assert by_job == {"llm-70b": [silence["silence_id"]], "other": []}
    card = region(page, "Silences")
    muted.locator("summary").click()
    muted.get_by_role("button", name="End the silence of cause on llm-70b").click()
    expect(card.get_by_text("No silences, none planned.")).to_be_visible()
    expect(page.get_by_text("new switches")).to_have_count(0)
    expect(row.get_by_role("button", name="Silence")).to_be_visible()
    assert project.get("/silences")["items"] == []


def test_maintenance_is_planned_and_cancelled(project, on_call):
    from playwright.sync_api import expect

    page = on_call().page
    card = region(page, "Silences")
    card.get_by_role("button", name="New silence").click()
    card.get_by_role("button", name="Add a label").click()
    card.get_by_label("Label 1", exact=True).fill("host")
    card.get_by_label("Label 1 is or is not").select_option("is not")
    card.get_by_label("Pattern of label 1").fill("host-0*")
    card.get_by_role("button", name="Add a label").click()
    card.get_by_label("Label 2", exact=True).fill("job")
    card.get_by_label("Pattern of label 2").fill("llm-*")
    card.get_by_label("Kind").select_option("maintenance")
    card.get_by_label("Begins").fill("2036-05-01T08:00")
    card.get_by_role("button", name="Custom").click()
    card.get_by_label("Until", exact=True).fill("2036-05-01T09:30")
    card.get_by_label("Why").fill("racks move")
    card.get_by_role("button", name="Silence", exact=True).click()
    row = card.locator(".row")
    expect(row).to_contain_text("host is not host-0*")
    expect(row).to_contain_text("From 2036-05-01 08:00:00 until 2036-05-01 09:30:00")
    expect(row).to_contain_text("maintenance")
    [planned] = project.get("/silences")["items"]
    assert (planned["kind"], planned["state"]) == ("maintenance", "coming")
    row.get_by_role("button", name="End the silence").click()
    expect(row).to_have_count(0)


def test_a_refused_silence_keeps_the_typed_values(project, on_call):
    from playwright.sync_api import expect

    project.fire()
    watched = on_call()
    page = watched.page
    page.get_by_role("button", name="Silence slowdown on llm-70b").click()
    form = page.get_by_role("form", name="Silence")
    form.get_by_role("button", name="Custom").click()
    form.get_by_label("Until", exact=True).fill("2020-01-01T00:00")
    form.get_by_label("Why").fill("too late")
    form.get_by_role("button", name="Silence", exact=True).click()
    expect(form.get_by_role("alert")).to_contain_text("want a future time")
    expect(form.get_by_label("Why")).to_have_value("too late")
    watched.forgive("422")  # the browser itself writes down that it was refused
    form.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Silence slowdown on llm-70b")).to_be_focused()


def test_a_read_token_sees_no_buttons_that_change_alerts(project, on_call):
    from playwright.sync_api import expect

    project.fire()
    page = on_call("read").page
    row = region(page, "Firing").locator(".row")
    expect(row).to_be_visible()
    expect(row.get_by_role("button")).to_have_count(0)
    expect(row.get_by_role("link", name="Details")).to_be_visible()
    expect(page.get_by_role("button", name="New silence")).to_have_count(0)


@pytest.mark.nightly
def test_new_alerts_appear_without_resetting_an_open_form(project, on_call):
    from playwright.sync_api import expect

    project.fire()
    page = on_call().page
    page.get_by_role("button", name="Silence slowdown on llm-70b").click()
    why = page.get_by_label("Why")
    why.fill("half a sent")
    later = project.fire("another")
    # A change by somebody else makes every open page look again.
    project.send("POST", f"/alerts/{later.fingerprint}/acknowledge")
    expect(region(page, "Alerts of another").locator(".row")).to_be_visible()
    expect(why).to_have_value("half a sent")
    expect(why).to_be_focused()


@pytest.mark.nightly
def test_the_alerts_page_with_open_forms_has_no_layout_or_accessibility_errors(
    project, on_call, keep
):
    state = project.fire(runbook_url="https://wiki.example.com/slow", is_no_data=True)
    project.fire("other", "cause", "slow-worker", phase="pending", firing_at_s=None)
    matchers = [{"label": "job", "pattern": "oth*"}]
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    wanted = {"matchers": matchers, "ends_at": tomorrow, "comment": "moves"}
    project.send("POST", "/silences", json=wanted)
    watched = on_call(query=f"?alert={state.fingerprint}")
    page = watched.page
    page.get_by_role("button", name="Silence slowdown on llm-70b").click()
    page.get_by_role("button", name="Custom").click()
    assert wrong_in(LOOKS, watched, "alerts-open", keep) == ""


@pytest.fixture
def job_alerts(project, open_page):
    """A function that opens a job's page with these scopes and returns its card of alerts."""
    from playwright.sync_api import expect

    def job_alerts(*scopes, **options):
        watched = open_page(project.link("/jobs/llm-70b", *scopes), **options)
        card = region(watched.page, "Alerts of this job")
        expect(card).not_to_contain_text("Loading")
        return card

    return job_alerts


def test_an_alert_is_acknowledged_silenced_assigned_and_noted_on_the_jobs_page(project, job_alerts):
    from playwright.sync_api import expect

    state = project.fire(detail=replace(SLOW, blame=SLOW_WORKER))
    card = job_alerts()
    path = f"/alerts/{state.fingerprint}"
    row = card.locator(".row")
    expect(row).to_contain_text("Slowdown over 1.10\N{MULTIPLICATION SIGN}")
    expect(row).to_contain_text("1.42\N{MULTIPLICATION SIGN}")
    expect(row).to_contain_text(re.compile(r"since (.* )?\d\d:\d\d:\d\d"))
    expect(row).to_contain_text("Not acknowledged")
    runbook = row.get_by_role("link", name="What to do")
    expect(runbook).to_have_attribute("href", "/docs/on-call#slow-worker")

    row.get_by_role("button", name="Acknowledge slowdown on llm-70b").click()
    expect(row).to_contain_text(f"Acknowledged by {project.name} of ana")
    assert project.get(path)["alert"]["acknowledged_by"] == f"{project.name} of ana"
    back = row.get_by_role("button", name="Remove the acknowledgement")
    expect(back).to_be_focused()
    back.click()
    expect(row).to_contain_text("Not acknowledged")

    row.get_by_role("button", name="Assign slowdown on llm-70b").click()
    card.get_by_label("Assign to").fill("Maria")
    card.get_by_label("Assign to").press("Enter")
    expect(row).to_contain_text("Assigned to Maria")
    row.get_by_role("button", name="Add a note to slowdown on llm-70b").click()
    card.get_by_role("textbox", name="Note").fill("<b>GPU 5</b> throttles")
    card.get_by_role("button", name="Add note").click()
    expect(row).to_contain_text("<b>GPU 5</b> throttles")
    expect(row.get_by_role("button", name="Add a note")).to_be_focused()
    known = project.get(path)
    assert (known["alert"]["assigned_to"], known["alert"]["note"]) == (
        "Maria",
        "<b>GPU 5</b> throttles",
    )
    assert [each["kind"] for each in known["history"]][:2] == ["note", "assigned"]

    row.get_by_role("button", name="Silence slowdown on llm-70b").click()
    card.get_by_role("button", name="Until the job ends").click()
    card.get_by_role("button", name="Silence", exact=True).click()
    folded = card.locator("details.muted")
    expect(folded.locator("summary")).to_contain_text("until the job ends")
    expect(folded.locator("summary")).to_be_focused()
    [silence] = project.get("/silences")["items"]
    assert silence["until_end_of"] == "llm-70b"
    folded.locator("summary").click()
    folded.get_by_role("button", name="End the silence of slowdown on llm-70b").click()
    expect(card.locator("details.muted")).to_have_count(0)
    assert project.get("/silences")["items"] == []
    card.page.set_viewport_size({"width": 320, "height": 1000})
    for name in ("Silence", "Assign", "Add a note"):
        row.get_by_role("button", name=f"{name} ").click()
        assert wider_than_the_page(card.page) == []
    assert violations(card.page) == []


@pytest.mark.nightly
def test_a_read_token_sees_the_jobs_alerts_without_buttons(project, job_alerts):
    from playwright.sync_api import expect

    project.fire()
    card = job_alerts("read")
    expect(card.locator(".row")).to_be_visible()
    expect(card.get_by_role("button")).to_have_count(0)
    expect(card.get_by_role("link", name="What to do")).to_be_visible()


@pytest.mark.nightly
def test_a_silence_of_other_alerts_too_cannot_be_ended_on_a_jobs_page(project, job_alerts):
    from playwright.sync_api import expect

    project.fire()
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    matchers = [{"label": "job", "pattern": "llm-*"}]
    wanted = {"matchers": matchers, "ends_at": tomorrow, "comment": "rack 7 moves"}
    project.send("POST", "/silences", json=wanted)
    card = job_alerts()
    card.locator("summary").click()
    expect(card.locator(".row")).to_contain_text("rack 7 moves")
    expect(card.get_by_role("button", name="End the silence")).to_have_count(0)


def test_what_happened_names_rule_time_receivers_and_deliveries(project, open_page):
    from playwright.sync_api import expect

    project.add_receiver("#oncall", format="slack")
    project.add_receiver("pager", url="http://127.0.0.1:443/closed")
    state = project.fire()
    project.tell(state)
    wait_until(lambda: project.messages, "the receiver is told")
    page = open_page(project.link("/jobs/llm-70b")).page
    row = region(page, "What happened").locator("dd")
    expect(row).to_contain_text("Slowdown over 1.10\N{MULTIPLICATION SIGN} fired; ")
    expect(row).to_contain_text(re.compile(r"Slack #oncall delivered \d\d:\d\d:\d\d"))
    expect(row).to_contain_text(
        re.compile(r"pager failed (once|\d+ times): .+, next attempt pending")
    )
    when = region(page, "What happened").locator("dt")
    expect(when).to_have_text(re.compile(r"\d\d:\d\d, step 16$"))
    row.get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/alerts\\?alert={state.fingerprint}$"))


@pytest.mark.nightly
def test_the_first_alert_of_a_job_moves_nothing_on_its_page(project, job_alerts):
    from playwright.sync_api import expect

    state = project.fire()
    project.resolve(state)
    card = job_alerts()
    expect(card).to_contain_text("No alert of this job is firing.")
    before = card.bounding_box()
    project.fire()
    # Something that makes every open page of the project load its alerts again.
    in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    matchers = [{"label": "job", "pattern": "another"}]
    wanted = {"matchers": matchers, "ends_at": in_an_hour, "comment": "moves"}
    project.send("POST", "/silences", json=wanted)
    expect(card.locator(".row")).to_be_visible()
    assert card.bounding_box() == before
