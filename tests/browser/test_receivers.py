"""The page of the receivers: added, tested, changed, given up; and every message they were sent."""

import json
import re
import time

import pytest

from tests.alerts.http_receiver import Answer
from tests.browser.test_every_page import LOOKS, wrong_in
from tests.browser.waiting import wait_until
from tests.store import factories


@pytest.fixture
def receivers(project, open_page):
    from playwright.sync_api import expect

    def receivers(*scopes, query=""):
        watched = open_page(project.link(f"/alerts/receivers{query}", *scopes))
        expect(watched.page.get_by_role("region", name="Receivers", exact=True)).to_be_visible()
        return watched

    return receivers


@pytest.fixture
def fails(project):
    """Whoever sends to the receiver is answered 503 until the block ends."""
    project.told.answer = Answer(503, body=b"come again")
    yield
    project.told.answer = Answer()


def row(page, name="on call"):
    return page.locator(".receiver-rows .row", has_text=name)


def messages(page):
    return page.get_by_role("region", name="Notifications", exact=True).locator(".row")


def test_an_added_receiver_shows_its_signing_secret_once(project, receivers):
    from playwright.sync_api import expect

    page = receivers().page
    expect(page.locator("h1")).to_have_text("No receivers: alerts notify nobody.")
    page.get_by_role("button", name="Add a receiver").click()
    form = page.get_by_role("form", name="Receiver")
    expect(form.get_by_label("Name", exact=True)).to_be_focused()
    form.get_by_label("Name", exact=True).fill("<b>on call</b>")
    form.get_by_label("Address").fill(f"{project.told.url}/{project.name}?key=secret-part")
    form.get_by_label("Severity").select_option("warning")
    form.get_by_role("button", name="Add a label").click()
    form.get_by_label("Label 1", exact=True).fill("job")
    form.get_by_label("Pattern of label 1").fill("llm-*")
    form.get_by_label("Extra headers").fill("X-Team: pretraining\nAuthorization: Bearer abc")
    form.get_by_label("Also notify when resolved").uncheck()
    form.get_by_role("button", name="Add", exact=True).click()
    text = page.locator(".shown-once code").inner_text()
    assert re.fullmatch(r"whsec_\S+", text)
    [made] = project.get("/receivers")["items"]
    assert made["name"] == "<b>on call</b>"
    one = project.get(f"/receivers/{made['receiver_id']}")
    assert one["header_names"] == ["Authorization", "X-Team"]
    assert made["matchers"] == [{"label": "job", "pattern": "llm-*", "is_negative": False}]
    assert (made["min_severity"], made["wants_resolved"]) == ("warning", False)
    expect(row(page)).to_contain_text("Warning and critical, where job is llm-*")
    expect(row(page)).to_contain_text("not when resolved")
    expect(row(page)).to_contain_text("Not tried yet")
    page.get_by_role("button", name="Done").click()
    expect(page.locator(".shown-once")).to_have_count(0)
    assert text not in page.content()
    assert "secret-part" not in page.content()


def test_a_test_notification_shows_its_result(project, receivers):
    from playwright.sync_api import expect

    project.add_receiver()
    page = receivers().page
    row(page).get_by_role("button", name="Send a test to on call").click()
    expect(row(page).locator(".said")).to_contain_text("The test: delivered.")
    [body] = project.messages
    assert "test" in json.loads(body)["type"]
    expect(row(page)).to_contain_text("Works")
    expect(messages(page)).to_have_count(1)
    expect(messages(page)).to_contain_text("a test")
    messages(page).get_by_role("button", name="Attempts").click()
    expect(page).to_have_url(re.compile("message=msg_"))
    expect(messages(page).locator(".attempts")).to_contain_text("Attempt 1")
    expect(messages(page).locator(".attempts")).to_contain_text("204")


def test_a_receiver_works_only_after_a_delivery(project, receivers, on_call):
    from playwright.sync_api import expect

    project.add_receiver()
    page = receivers().page
    expect(page.locator("h1")).to_have_text("The only receiver is not tried yet.")
    expect(row(page).locator(".state")).to_have_text("Not tried yet")
    receivers_stat = on_call().page.locator(".stat", has_text="Receivers")
    expect(receivers_stat).to_contain_text("1 not tried yet")
    project.add_receiver("nowhere", url="https://nowhere.invalid/hook")
    page.reload()
    expect(page.locator("h1")).to_have_text("1 of 2 receivers is failing.")
    expect(page.locator(".headline p")).to_contain_text("nowhere: ")
    expect(page.locator(".receiver-rows .row").first).to_contain_text("Not reached")
    row(page).get_by_role("button", name="Send a test").click()
    expect(row(page).locator(".state")).to_have_text("Works")


def test_a_receiver_is_tested_before_it_is_saved(project, receivers):
    from playwright.sync_api import expect

    page = receivers().page
    page.get_by_text("A webhook on this machine").click()
    recipe = page.locator(".recipe[open]")
    expect(recipe).to_contain_text("PACELINE_WEBHOOK_ALLOW_HTTP=true")
    recipe.get_by_role("button", name="Fill in the form").click()
    form = page.get_by_role("form", name="Receiver")
    expect(form.get_by_label("Name", exact=True)).to_have_value("Local webhook")
    form.get_by_label("Address").fill(f"{project.told.url}/{project.name}")
    form.get_by_role("button", name="Send test").click()
    expect(form.locator(".said")).to_contain_text("Delivered in")
    [body] = project.messages
    assert json.loads(body)["type"] == "alert.test"
    assert project.get("/receivers")["items"] == []
    form.get_by_role("button", name="Add", exact=True).click()
    expect(row(page, "Local webhook")).to_contain_text("Not tried yet")
    row(page, "Local webhook").get_by_role("button", name="Edit").click()
    form.get_by_label("Address").fill(f"{project.told.url}/elsewhere")
    form.get_by_role("button", name="Send test").click()
    expect(form.locator(".said")).to_contain_text("Delivered in")
    assert project.told.requests[-1][0].endswith("/elsewhere")


def test_a_failed_test_notification_shows_the_reason(project, receivers, fails):
    from playwright.sync_api import expect

    project.add_receiver()
    page = receivers().page
    row(page).get_by_role("button", name="Send a test").click()
    expect(row(page).locator(".said")).to_contain_text("503")
    expect(row(page)).to_contain_text("Failing")
    expect(page.locator("h1")).to_have_text("The only receiver is failing.")


@pytest.mark.nightly
def test_a_notified_alert_names_its_receivers(project, open_page):
    from playwright.sync_api import expect

    project.add_receiver()
    state = project.fire()
    project.tell(state)
    wait_until(lambda: project.messages, "the receiver is told")
    page = open_page(project.link(f"/alerts?alert={state.fingerprint}")).page
    expect(page.locator(".now-rows .row")).to_contain_text("Notified: on call at")
    told = page.get_by_role("region", name="Receivers")
    expect(told.locator("li")).to_contain_text("Works")
    told.get_by_role("link", name="Receivers and notifications").click()
    sent = messages(page)
    expect(sent).to_contain_text("slowdown, firing")
    sent.get_by_role("button", name="Attempts").click()
    sent.get_by_role("link", name="Alerts of llm-70b").click()
    expect(page.locator(".now-rows .row")).to_have_count(1)


@pytest.mark.nightly
def test_a_notification_is_sent_again_under_the_same_id(project, receivers):
    from playwright.sync_api import expect

    project.add_receiver()
    project.tell(project.fire())
    wait_until(lambda: project.messages, "the receiver is told")
    page = receivers().page
    expect(messages(page).locator(".state")).to_have_text("delivered")
    messages(page).get_by_role("button", name="Send again").click()
    wait_until(lambda: len(project.messages) == 2, "the receiver is told again")
    paths = [path for path, _, _ in project.told.requests]
    ids = {
        headers["webhook-id"]
        for path, headers, _ in project.told.requests
        if path.endswith(project.name)
    }
    assert len(ids) == 1, paths


def test_a_receiver_is_changed_rotated_and_deleted(project, receivers):
    from playwright.sync_api import expect

    project.add_receiver(headers={"X-Team": "a"})
    page = receivers().page
    row(page).get_by_role("button", name="Edit on call").click()
    form = page.get_by_role("form", name="Receiver")
    expect(form.get_by_label("Name", exact=True)).to_have_value("on call")
    form.get_by_label("Name", exact=True).fill("night shift")
    form.get_by_label("Severity").select_option("critical")
    form.get_by_label("Remove all").check()
    form.get_by_label("Enabled").uncheck()
    form.get_by_role("button", name="Save").click()
    expect(row(page, "night shift")).to_contain_text("Critical only")
    expect(row(page, "night shift")).to_contain_text("Off")
    [changed] = project.get("/receivers")["items"]
    assert (changed["name"], changed["is_enabled"]) == ("night shift", False)
    assert project.get(f"/receivers/{changed['receiver_id']}")["header_names"] == []
    row(page, "night shift").get_by_role("button", name="Make a new secret").click()
    expect(page.locator(".shown-once")).to_contain_text("The old one stays valid for a day")
    page.get_by_role("button", name="Done").click()
    row(page, "night shift").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Keep").click()
    row(page, "night shift").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete for good").click()
    expect(row(page, "night shift")).to_have_count(0)
    assert project.get("/receivers")["items"] == []


def test_a_private_address_is_refused_in_the_receiver_form(receivers):
    from playwright.sync_api import expect

    watched = receivers()
    page = watched.page
    page.get_by_role("button", name="Add a receiver").click()
    form = page.get_by_role("form", name="Receiver")
    form.get_by_label("Name", exact=True).fill("metadata")
    form.get_by_label("Address").fill("https://169.254.169.254/latest")
    form.get_by_role("button", name="Add", exact=True).click()
    expect(form.get_by_role("alert")).to_contain_text("public Internet")
    expect(form.get_by_label("Address")).to_have_value("https://169.254.169.254/latest")
    watched.forgive("422")  # the browser itself writes down that it was refused
    form.get_by_label("Extra headers").fill("no header")
    form.get_by_role("button", name="Add", exact=True).click()
    expect(form.get_by_role("alert")).to_contain_text("one per line")


def test_a_disabled_receiver_shows_the_reason_and_can_be_enabled(project, alert_service, receivers):
    from playwright.sync_api import expect

    from app.store.alerting import receivers as stored_receivers

    made = project.add_receiver()
    with alert_service.store.write() as conn:
        stored_receivers.disable(conn, made["receiver_id"], reason="it said 410 Gone", now_s=1.7e9)
    page = receivers().page
    expect(row(page)).to_contain_text("Disabled")
    expect(row(page)).to_contain_text("it said 410 Gone")
    row(page).get_by_role("button", name="Enable on call").click()
    expect(row(page).locator(".said")).to_contain_text("on call is enabled.")
    expect(row(page).get_by_role("button", name="Enable")).to_have_count(0)
    assert project.get("/receivers")["items"][0]["health"]["state"] == "untried"


@pytest.mark.nightly
def test_a_failing_receiver_can_be_retried_at_once(project, alert_service, receivers):
    from playwright.sync_api import expect

    from app.store.alerting import receivers as stored_receivers

    made = project.add_receiver()
    with alert_service.store.write() as conn:
        for _ in range(5):
            stored_receivers.mark_failed(
                conn, made["receiver_id"], detail="HTTP 503", now_s=time.time()
            )
    page = receivers().page
    expect(row(page)).to_contain_text("others are queued until then")
    row(page).get_by_role("button", name="Retry now on call").click()
    expect(row(page).locator(".said")).to_contain_text("is being retried")
    expect(row(page).get_by_role("button", name="Retry now")).to_have_count(0)


def test_the_operators_receiver_hides_address_and_results(
    project, alert_service, receivers, on_call
):
    from playwright.sync_api import expect

    from app.store.alerting import receivers as stored_receivers

    operators = factories.webhook_receiver(
        "settings", project=None, url=f"{project.told.url}/hidden"
    )
    with alert_service.store.write() as conn:
        stored_receivers.put_settings_receiver(conn, operators)
    try:
        project.tell(project.fire())
        wait_until(lambda: project.get("/deliveries", state="delivered")["items"], "it is told")
        page = receivers().page
        messages(page).get_by_role("button", name="Attempts").click()
        tried = messages(page).locator(".attempts li")
        expect(tried).to_contain_text("result hidden (receiver set by the operator)")
        shown = row(page, "PACELINE_WEBHOOK_URL")
        expect(shown).to_contain_text("address hidden (set by the operator)")
        expect(shown.get_by_role("button")).to_have_count(0)
        told = on_call().page.get_by_role("region", name="Receivers")
        expect(told.locator("li")).to_contain_text("address hidden (set by the operator)")
    finally:
        with alert_service.store.write() as conn:
            stored_receivers.put_settings_receiver(conn, None)


@pytest.mark.nightly
def test_an_alert_links_to_its_notifications(project, open_page):
    from playwright.sync_api import expect

    project.add_receiver()
    slow, other = project.fire(), project.fire("llm-7b")
    for state in (slow, other):
        project.tell(state)
    wait_until(lambda: len(project.messages) == 2, "the receiver is told of both")
    page = open_page(project.link(f"/alerts?alert={slow.fingerprint}")).page
    page.get_by_role("link", name="Its notifications").click()
    expect(messages(page)).to_have_count(1)
    expect(messages(page)).to_contain_text("slowdown, firing")
    page.get_by_role("button", name="Show all").click()
    expect(messages(page)).to_have_count(2)


def test_without_the_admin_scope_receivers_are_read_only(project, receivers):
    from playwright.sync_api import expect

    project.add_receiver()
    page = receivers("read").page
    expect(row(page)).to_be_visible()
    expect(row(page).get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("button", name="Add a receiver")).to_have_count(0)


@pytest.mark.nightly
def test_the_receivers_page_with_its_form_has_no_layout_or_accessibility_errors(
    project, receivers, keep
):
    from playwright.sync_api import expect

    project.add_receiver(headers={"X-Team": "a"}, min_severity="warning")
    project.tell(project.fire())
    wait_until(lambda: project.messages, "the receiver is told")
    watched = receivers()
    page = watched.page
    expect(messages(page).locator(".state")).to_have_text("delivered")
    messages(page).get_by_role("button", name="Attempts").click()
    page.locator(".attempts li").wait_for()
    row(page).get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Add a label").click()
    assert wrong_in(LOOKS, watched, "receivers-open", keep) == ""


@pytest.mark.nightly
def test_links_in_notifications_point_to_the_listening_address_and_the_page_says_so(
    project, receivers
):
    from playwright.sync_api import expect

    project.add_receiver()
    state = project.fire()
    project.tell(state)
    wait_until(lambda: project.messages, "the receiver is told")
    url = project.server.server.url
    [message] = [json.loads(body) for body in project.messages]
    assert message["data"]["url"] == f"{url}/jobs/llm-70b?window=1-16"
    page = receivers().page
    expect(page.get_by_role("note")).to_have_text(
        f"Links in notifications point to {url}, which only this machine reaches. "
        "Set PACELINE_PUBLIC_URL."
    )
