"""What may be done about an alert on its page: acknowledge it, silence it, plan maintenance."""

from datetime import UTC, datetime, timedelta

from tests.browser.test_every_page import LOOKS, wrong_in


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
    row = region(page, "Now").locator(".row")
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
    row = region(page, "Now").locator(".row", has_text="llm-70b")
    row.get_by_role("button", name="Silence cause on llm-70b").click()
    form = page.get_by_role("form", name="Silence")
    expect(form.get_by_label("Label 1", exact=True)).to_be_focused()
    expect(form.get_by_text("Matches 1 current alert.")).to_be_visible()
    form.get_by_role("button", name="4 h").click()
    form.get_by_label("Why").fill("<b>new switches</b>")
    form.get_by_role("button", name="Silence", exact=True).click()
    expect(form).to_have_count(0)
    expect(row.get_by_role("button", name="Silence")).to_be_focused()
    expect(row).to_contain_text("<b>new switches</b>")
    [silence] = project.get("/silences")["items"]
    assert silence["comment"] == "<b>new switches</b>"
    wanted = {"job": "llm-70b", "rule": "cause", "subject": "slow-worker"}
    assert {each["label"]: each["pattern"] for each in silence["matchers"]} == wanted
    active = project.get("/alerts")["items"]
    by_job = {each["job_id"]: each["silenced_by"] for each in active}
    assert by_job == {"llm-70b": [silence["silence_id"]], "other": []}
    card = region(page, "Silences")
    card.get_by_role("button", name="End the silence").click()
    expect(card.get_by_text("No silences, none planned.")).to_be_visible()
    expect(row.get_by_text("new switches")).to_have_count(0)
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
    card.get_by_role("button", name="Until").click()
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
    form.get_by_role("button", name="Until").click()
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
    row = region(page, "Now").locator(".row")
    expect(row).to_be_visible()
    expect(row.get_by_role("button")).to_have_count(0)
    expect(row.get_by_role("link", name="Details")).to_be_visible()
    expect(page.get_by_role("button", name="New silence")).to_have_count(0)


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
    expect(region(page, "Now").locator(".row", has_text="another")).to_be_visible()
    expect(why).to_have_value("half a sent")
    expect(why).to_be_focused()


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
    page.get_by_role("button", name="Until").click()
    assert wrong_in(LOOKS, watched, "alerts-open", keep) == ""
