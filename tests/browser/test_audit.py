"""The audit: who acknowledged, silenced or changed what, as the API has it."""

import re

import pytest


@pytest.fixture
def audit(project, open_page):
    from playwright.sync_api import expect

    def audit(*scopes):
        watched = open_page(project.link("/settings/audit", *scopes))
        expect(watched.page.locator("h1")).to_have_text("Audit")
        return watched

    return audit


def test_audit_entries_are_shown_in_words_with_their_actor(project, audit):
    from playwright.sync_api import expect

    state = project.fire()
    project.send("POST", f"/alerts/{state.fingerprint}/acknowledge")
    project.add_receiver("<b>on call</b>")
    page = audit().page
    rows = page.locator("tbody tr")
    known = project.get("/audit")["items"]
    expect(rows).to_have_count(len(known))
    expect(rows.first).to_contain_text("Added a receiver")
    expect(rows.first).to_contain_text("<b>on call</b>")
    acknowledged = rows.filter(has_text="Acknowledged an alert")
    expect(acknowledged).to_contain_text(f"{project.name} of ana")
    assert "secret" not in page.locator("main").inner_text()
    page.get_by_label("Kind of object").select_option("alert")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile(r"object=alert$"))
    page.get_by_label("Who", exact=True).fill("nobody")
    expect(page.get_by_text("No entry matches the filter.")).to_be_visible()
    page.get_by_label("Who", exact=True).fill("")
    acknowledged.get_by_role("link", name=state.fingerprint).click()
    expect(page.locator(".now-rows .is-chosen")).to_contain_text("Acknowledged by")


def test_an_audit_entry_shows_values_before_and_after(project, audit):
    from playwright.sync_api import expect

    made = project.add_receiver(min_severity="info", headers={"X-A": "hidden"})
    change = {"min_severity": "critical", "headers": {"X-B": "hidden"}}
    project.send("PATCH", f"/receivers/{made['receiver_id']}", json=change)
    old = {"name": "slow", "on": "slowdown", "above": 1.2}
    for rules in ([old], [old | {"above": 1.5}, {"name": "hung", "on": "stalled"}]):
        project.send("PUT", "/rules", json={"rules": rules})
    page = audit().page
    rows = page.locator("tbody tr")
    expect(rows.first).to_contain_text("Changed the rules")
    expect(rows.first).to_contain_text("added: hung")
    expect(rows.first).to_contain_text("slow (")
    expect(rows.first).to_contain_text("above from 1.2 to 1.5")
    changed = rows.filter(has_text="Changed a receiver")
    expect(changed).to_contain_text("min severity from info to critical")
    expect(changed).to_contain_text("header names from X-A to X-B")
    expect(changed).to_contain_text("headers changed")
    assert "hidden" not in page.locator("main").inner_text()


def test_without_the_admin_scope_the_audit_page_names_the_scope(audit):
    from playwright.sync_api import expect

    page = audit("read", "write").page
    expect(page.get_by_text("Not shown with your token")).to_be_visible()
