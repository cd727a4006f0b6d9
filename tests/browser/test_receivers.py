"""The page of the receivers: added, tested, changed, given up; and every message they were sent."""

import json
import re
import time

import pytest

from tests.alerts.receiver import Answer
from tests.browser.test_every_page import LOOKS, wrong_in
from tests.e2e.stack import wait_until
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
    return page.get_by_role("region", name="Messages", exact=True).locator(".row")


def test_a_receiver_is_added_and_its_secret_is_shown_once(project, receivers):
    from playwright.sync_api import expect

    page = receivers().page
    expect(page.locator("h1")).to_have_text("Nobody is told of alerts.")
    page.get_by_role("button", name="Add a receiver").click()
    form = page.get_by_role("form", name="Receiver")
    expect(form.get_by_label("Name", exact=True)).to_be_focused()
    form.get_by_label("Name", exact=True).fill("<b>on call</b>")
    form.get_by_label("Address").fill(f"{project.told.url}/{project.name}?key=secret-part")
    form.get_by_label("Wants").select_option("warning")
    form.get_by_role("button", name="Add a label").click()
    form.get_by_label("Label 1", exact=True).fill("job")
    form.get_by_label("Pattern of label 1").fill("llm-*")
    form.get_by_label("Headers of its own").fill("X-Team: pretraining\nAuthorization: Bearer abc")
    form.get_by_label("Tell it, too").uncheck()
    form.get_by_role("button", name="Add", exact=True).click()
    text = page.locator(".shown-once code").inner_text()
    assert re.fullmatch(r"whsec_\S+", text)
    [made] = project.get("/endpoints")["items"]
    assert made["name"] == "<b>on call</b>"
    one = project.get(f"/endpoints/{made['endpoint_id']}")
    assert one["header_names"] == ["Authorization", "X-Team"]
    assert made["matchers"] == [{"label": "job", "pattern": "llm-*", "is_negative": False}]
    assert (made["min_severity"], made["wants_resolved"]) == ("warning", False)
    expect(row(page)).to_contain_text("Warning and critical, where job is llm-*")
    expect(row(page)).to_contain_text("without what resolves")
    expect(row(page)).to_contain_text("Not used yet")
    page.get_by_role("button", name="Done").click()
    expect(page.locator(".shown-once")).to_have_count(0)
    assert text not in page.content()
    assert "secret-part" not in page.content()


def test_the_button_sends_a_test_and_says_what_came_of_it(project, receivers):
    from playwright.sync_api import expect

    project.add_receiver()
    page = receivers().page
    row(page).get_by_role("button", name="Send a test to on call").click()
    expect(row(page).locator(".said")).to_contain_text("The test: told.", timeout=20_000)
    [body] = project.messages
    assert "test" in json.loads(body)["type"]
    expect(row(page)).to_contain_text("Works")
    expect(messages(page)).to_have_count(1)
    expect(messages(page)).to_contain_text("a test")
    messages(page).get_by_role("button", name="Attempts").click()
    expect(page).to_have_url(re.compile("message=msg_"))
    expect(messages(page).locator(".attempts")).to_contain_text("Attempt 1")
    expect(messages(page).locator(".attempts")).to_contain_text("204")


def test_a_test_that_fails_says_why_and_can_be_sent_again(project, receivers, fails):
    from playwright.sync_api import expect

    project.add_receiver()
    page = receivers().page
    row(page).get_by_role("button", name="Send a test").click()
    expect(row(page).locator(".said")).to_contain_text("503", timeout=20_000)
    expect(row(page)).to_contain_text("Failing")
    expect(page.locator("h1")).to_have_text("The one receiver of alerts cannot be told.")


def test_an_alert_that_was_told_says_to_whom(project, open_page):
    from playwright.sync_api import expect

    project.add_receiver()
    state = project.fire()
    project.tell(state)
    wait_until(lambda: project.messages, "the receiver is told")
    page = open_page(project.link(f"/alerts?alert={state.fingerprint}")).page
    expect(page.locator(".now-rows .row")).to_contain_text("Told: on call at")
    told = page.get_by_role("region", name="Who is told")
    expect(told.locator("li")).to_contain_text("Works")
    told.get_by_role("link", name="Receivers and messages").click()
    sent = messages(page)
    expect(sent).to_contain_text("slowdown, began to fire")
    sent.get_by_role("button", name="Attempts").click()
    sent.get_by_role("link", name="Alerts of llm-70b").click()
    expect(page.locator(".now-rows .row")).to_have_count(1)


def test_a_message_is_sent_again_under_the_same_id(project, receivers):
    from playwright.sync_api import expect

    project.add_receiver()
    project.tell(project.fire())
    wait_until(lambda: project.messages, "the receiver is told")
    page = receivers().page
    expect(messages(page).locator(".state")).to_have_text("told")
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
    form.get_by_label("Wants").select_option("critical")
    form.get_by_label("Drop them").check()
    form.get_by_label("Send to it").uncheck()
    form.get_by_role("button", name="Save").click()
    expect(row(page, "night shift")).to_contain_text("Critical only")
    expect(row(page, "night shift")).to_contain_text("Off")
    [changed] = project.get("/endpoints")["items"]
    assert (changed["name"], changed["is_enabled"]) == ("night shift", False)
    assert project.get(f"/endpoints/{changed['endpoint_id']}")["header_names"] == []
    row(page, "night shift").get_by_role("button", name="Make a new secret").click()
    expect(page.locator(".shown-once")).to_contain_text("the one before is good for a day")
    page.get_by_role("button", name="Done").click()
    row(page, "night shift").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Keep").click()
    row(page, "night shift").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete for good").click()
    expect(row(page, "night shift")).to_have_count(0)
    assert project.get("/endpoints")["items"] == []


def test_an_address_of_the_private_network_is_refused_beside_the_form(receivers):
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
    form.get_by_label("Headers of its own").fill("no header")
    form.get_by_role("button", name="Add", exact=True).click()
    expect(form.get_by_role("alert")).to_contain_text("write one a line")


def test_a_disabled_receiver_says_why_and_is_enabled_again(project, alert_service, receivers):
    from playwright.sync_api import expect

    from app.store import endpoints

    made = project.add_receiver()
    with alert_service.store.write() as conn:
        endpoints.disable(conn, made["endpoint_id"], reason="it said 410 Gone", now_s=1.7e9)
    page = receivers().page
    expect(row(page)).to_contain_text("Disabled")
    expect(row(page)).to_contain_text("it said 410 Gone")
    row(page).get_by_role("button", name="Enable on call").click()
    expect(row(page).locator(".said")).to_contain_text("on call is enabled.")
    expect(row(page).get_by_role("button", name="Enable")).to_have_count(0)
    assert project.get("/endpoints")["items"][0]["health"]["state"] == "ok"


def test_one_that_rests_is_tried_at_once_when_a_reader_wants_it(project, alert_service, receivers):
    from playwright.sync_api import expect

    from app.store import endpoints

    made = project.add_receiver()
    with alert_service.store.write() as conn:
        for _ in range(5):
            endpoints.failed(conn, made["endpoint_id"], detail="HTTP 503", now_s=time.time())
    page = receivers().page
    expect(row(page)).to_contain_text("the others wait for it")
    row(page).get_by_role("button", name="Try now to tell on call").click()
    expect(row(page).locator(".said")).to_contain_text("is tried again")
    expect(row(page).get_by_role("button", name="Try now")).to_have_count(0)


def test_the_operator_s_receiver_is_nobody_else_s_to_try(
    project, alert_service, receivers, on_call
):
    from playwright.sync_api import expect

    from app.store import endpoints

    operators = factories.endpoint("settings", project=None, url=f"{project.told.url}/hidden")
    with alert_service.store.write() as conn:
        endpoints.put_settings_endpoint(conn, operators)
    try:
        project.tell(project.fire())
        wait_until(lambda: project.get("/deliveries", state="delivered")["items"], "it is told")
        page = receivers().page
        messages(page).get_by_role("button", name="Attempts").click()
        tried = messages(page).locator(".attempts li")
        expect(tried).to_contain_text("what came of it only the operator knows")
        shown = row(page, "PACELINE_WEBHOOK_URL")
        expect(shown).to_contain_text("where only the operator knows")
        expect(shown.get_by_role("button")).to_have_count(0)
        told = on_call().page.get_by_role("region", name="Who is told")
        expect(told.locator("li")).to_contain_text("where only the operator knows")
    finally:
        with alert_service.store.write() as conn:
            endpoints.put_settings_endpoint(conn, None)


def test_messages_about_one_alert_are_found_from_it(project, open_page):
    from playwright.sync_api import expect

    project.add_receiver()
    slow, other = project.fire(), project.fire("llm-7b")
    for state in (slow, other):
        project.tell(state)
    wait_until(lambda: len(project.messages) == 2, "the receiver is told of both")
    page = open_page(project.link(f"/alerts?alert={slow.fingerprint}")).page
    page.get_by_role("link", name="Messages about it").click()
    expect(messages(page)).to_have_count(1)
    expect(messages(page)).to_contain_text("slowdown, began to fire")
    page.get_by_role("button", name="Show all").click()
    expect(messages(page)).to_have_count(2)


def test_who_is_no_admin_sees_receivers_and_may_change_none(project, receivers):
    from playwright.sync_api import expect

    project.add_receiver()
    page = receivers("read").page
    expect(row(page)).to_be_visible()
    expect(row(page).get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("button", name="Add a receiver")).to_have_count(0)


def test_the_page_with_its_form_open_is_whole(project, receivers, keep):
    from playwright.sync_api import expect

    project.add_receiver(headers={"X-Team": "a"}, min_severity="warning")
    project.tell(project.fire())
    wait_until(lambda: project.messages, "the receiver is told")
    watched = receivers()
    page = watched.page
    expect(messages(page).locator(".state")).to_have_text("told")
    messages(page).get_by_role("button", name="Attempts").click()
    page.locator(".attempts li").wait_for()
    row(page).get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Add a label").click()
    assert wrong_in(LOOKS, watched, "receivers-open", keep) == ""
