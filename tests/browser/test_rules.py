"""The page of the rules: in words, and as a text that is checked line by line before it holds."""

import pytest

from tests.browser.test_every_page import LOOKS, wrong_in

OWN = """rules:
  # Only what pretraining cares about.
  - name: slow
    on: slowdown
    jobs: "llm-*"
    above: 1.25
    severity: critical
    labels: {team: pretraining}
    runbook: https://wiki.example.com/slow
"""
WRONG = """rules:
  - name: slow
    on: speed
    above: 1.25
  - name: slow
    on: slowdown
    abov: 1.2
"""


@pytest.fixture
def rules(project, open_page):
    from playwright.sync_api import expect

    def rules(*scopes):
        watched = open_page(project.link("/alerts/rules", *scopes))
        expect(watched.page.get_by_role("region", name="Rules in force")).to_be_visible()
        return watched

    return rules


def editor(page):
    return page.get_by_label("Rules as YAML")


def test_the_default_rules_are_listed_in_words(project, rules):
    from playwright.sync_api import expect

    known = project.get("/rules")["rules"]
    page = rules().page
    expect(page.locator("h1")).to_contain_text(f"{len(known)} rules watch")
    rows = page.locator(".rule-rows .row")
    expect(rows).to_have_count(len(known))
    expect(rows.filter(has_text="a job runs at")).to_contain_text(
        "Fires when a job runs at 1.10\u00d7 of its ideal or slower for 3 windows in a row and "
        "30 seconds. Resolves after 1 minute below 1.05\u00d7."
    )
    [usual] = [rule for rule in known if rule["on"] == "step-time"]
    expect(rows.filter(has_text="steps of a job take")).to_contain_text(
        f"below {usual['clear']:.2f}\u00d7"
    )
    expect(rows.filter(has_text="no worker of a job")).to_contain_text("Critical")


def test_errors_of_a_rule_text_show_beside_their_lines_and_nothing_is_saved(project, rules):
    from playwright.sync_api import expect

    watched = rules()
    page = watched.page
    editor(page).fill(WRONG)
    page.get_by_role("button", name="Check").click()
    refused = page.get_by_role("alert")
    expect(refused).to_contain_text("errors to fix; nothing was changed.")
    lines = {int(each) for each in page.locator(".gutter .is-wrong").all_inner_texts()}
    assert {3, 7} <= lines
    expect(page.locator(".beside p")).to_have_count(len(lines))
    refused.get_by_role("button", name="Line 7").first.click()
    expect(editor(page)).to_be_focused()
    chosen = editor(page).evaluate(
        "node => node.value.slice(node.selectionStart, node.selectionEnd)"
    )
    assert chosen == "    abov: 1.2"
    with page.expect_response("**/api/v1/rules"):
        page.get_by_role("button", name="Save").click()
    expect(refused).to_be_visible()
    assert project.get("/rules")["source"] == "defaults"
    for _ in range(2):
        watched.forgive("422")


def test_rules_are_saved_as_written_and_reset_to_the_defaults(project, rules):
    from playwright.sync_api import expect

    page = rules().page
    usual = editor(page).input_value()
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    editor(page).fill(OWN)
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".said")).to_contain_text("No errors: 1 rule. Nothing is saved yet.")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".said")).to_contain_text("Saved at")
    expect(page.locator("h1")).to_have_text("One rule watches the jobs of this project.")
    row = page.locator(".rule-rows .row")
    for words in ("1.25\u00d7", "Only jobs that match llm-*.", "team pretraining", "Critical"):
        expect(row).to_contain_text(words)
    expect(row.get_by_role("link", name="Runbook")).to_have_attribute(
        "href", "https://wiki.example.com/slow"
    )
    assert project.get("/rules")["text"] == OWN

    page.get_by_role("button", name="Back to the defaults").click()
    page.get_by_role("button", name="Keep them").click()
    page.get_by_role("button", name="Back to the defaults").click()
    page.get_by_role("button", name="Drop the project").click()
    expect(page.locator(".said")).to_contain_text("own rules are deleted")
    expect(editor(page)).to_have_value(usual)
    assert project.get("/rules")["source"] == "defaults"
    page.get_by_text("The other text").click()
    page.get_by_role("button", name="Put it back into the editor").click()
    expect(editor(page)).to_have_value(OWN)
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".said")).to_contain_text("Saved at")
    assert project.get("/rules")["text"] == OWN


@pytest.mark.nightly
def test_unsaved_rule_text_survives_a_visit_to_another_page(rules):
    from playwright.sync_api import expect

    page = rules().page
    editor(page).fill(OWN)
    page.get_by_role("link", name="Receivers").click()
    expect(page.get_by_role("region", name="Receivers")).to_be_visible()
    page.get_by_role("link", name="Rules", exact=True).click()
    expect(editor(page)).to_have_value(OWN)
    page.get_by_role("button", name="Discard changes").click()
    expect(page.get_by_role("button", name="Save")).to_be_disabled()


def test_a_concurrent_change_of_the_rules_is_not_overwritten(project, rules):
    from playwright.sync_api import expect

    watched = rules()
    page = watched.page
    editor(page).fill(OWN)
    theirs = OWN.replace("1.25", "1.5")
    yaml = {"content-type": "application/yaml"}
    project.send("PUT", "/rules", content=theirs, headers=yaml)
    expect(page.locator(".rule-rows .row").filter(has_text="1.50\u00d7")).to_be_visible()
    expect(editor(page)).to_have_value(OWN)
    expect(editor(page)).to_be_focused()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("the rules have been changed meanwhile")
    watched.forgive("409")  # the browser itself writes down that it was refused
    page.get_by_text("The other text").click()
    expect(page.locator(".replaced code")).to_have_text(theirs)
    assert project.get("/rules")["text"] == theirs
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".said")).to_contain_text("Saved at")
    assert project.get("/rules")["text"] == OWN


def test_without_the_admin_scope_the_rules_are_read_only(rules):
    from playwright.sync_api import expect

    page = rules("read", "write").page
    card = page.get_by_role("region", name="The rules as text")
    expect(card.locator("code").first).to_contain_text("rules:")
    expect(card).to_contain_text("need a token with the scope admin")
    expect(card.get_by_role("button")).to_have_count(0)
    expect(editor(page)).to_have_count(0)


@pytest.mark.nightly
def test_the_rules_page_with_errors_has_no_layout_or_accessibility_errors(rules, keep):
    watched = rules()
    editor(watched.page).fill(WRONG)
    watched.page.get_by_role("button", name="Check").click()
    watched.page.get_by_role("alert").wait_for()
    watched.page.get_by_text("What the keys mean").click()
    watched.forgive("422")
    assert wrong_in(LOOKS, watched, "rules-refused", keep) == ""
