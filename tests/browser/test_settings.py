"""The settings page: tokens made, shown once and revoked; how long a project keeps what it has."""

import re

import pytest


@pytest.fixture
def settings(stocked, open_page):
    from playwright.sync_api import expect

    def settings(token=None):
        page = open_page(stocked.link("/settings", token)).page
        expect(page.locator("h1")).to_have_text("Settings")
        return page

    return settings


def test_a_token_is_created_shown_once_and_revoked(stocked, settings):
    from playwright.sync_api import expect

    name = '<b>cluster "A"</b>'
    page = settings()
    page.get_by_label("Name", exact=False).fill(name)
    page.get_by_role("checkbox", name=re.compile("^ingest")).check()
    page.get_by_role("button", name="Create token").click()
    text = page.locator(".shown-once code").inner_text()
    [made] = [each for each in stocked.get("/tokens")["items"] if each["name"] == name]
    assert re.fullmatch(rf"pl_{made['token_id']}_\S+", text)
    assert made["scopes"] == ["ingest", "read"]
    page.get_by_role("button", name="Done").click()
    expect(page.locator(".shown-once")).to_have_count(0)
    row = page.locator(".token-rows .row", has_text=name)
    expect(row.locator("b")).to_have_text(name)
    assert text not in page.content()
    row.get_by_role("button", name="Revoke").click()
    row.get_by_role("button", name="Keep").click()
    row.get_by_role("button", name="Revoke").click()
    row.get_by_role("button", name="Revoke for good").click()
    expect(row).to_have_count(0)
    [gone] = [each for each in stocked.get("/tokens")["items"] if each["name"] == name]
    assert gone["revoked_at"] is not None


@pytest.mark.nightly
def test_a_refused_token_form_shows_the_reason(stocked, open_page):
    from playwright.sync_api import expect

    watched = open_page(stocked.link("/settings"))
    page = watched.page
    page.get_by_label("Name", exact=False).fill("for one job")
    page.get_by_label("Only for job", exact=False).fill("job-a")
    page.get_by_role("button", name="Create token").click()
    refused = page.get_by_role("alert")
    expect(refused).to_have_text("a token for one job has the scope ingest and no other")
    watched.forgive("422")  # the browser itself writes down that it was refused


def test_a_shorter_retention_needs_a_confirmation(stocked, settings):
    from playwright.sync_api import expect

    usual = retention_of(stocked)
    page = settings()
    card = page.get_by_role("region", name="Retention", exact=True)
    days = card.get_by_label("Operations of closed windows", exact=False)
    days.fill(str(usual["usual_raw_days"] - 1))
    card.get_by_role("button", name="Save").click()
    expect(card.get_by_role("alert")).to_contain_text("cannot be restored")
    assert retention_of(stocked) == usual
    card.get_by_role("button", name="Keep less").click()
    expect(card.get_by_text("Saved at")).to_be_visible()
    kept = retention_of(stocked)
    assert kept["raw_days"] == usual["usual_raw_days"] - 1
    assert kept["has_own_raw_days"]
    days.fill("")
    with page.expect_response(lambda answer: answer.request.method == "PUT"):
        card.get_by_role("button", name="Save").click()
    expect(card.get_by_text("the server default").first).to_be_visible()
    expect(days).to_have_attribute("placeholder", f"{usual['usual_raw_days']:g}")
    assert retention_of(stocked) == usual


def retention_of(stocked):
    """The limits; what is stored grows while jobs are analysed."""
    return {**stocked.get("/settings")["retention"], "stored_gb": None}


def test_a_quota_is_set_in_gb_beside_what_is_stored(stocked, settings):
    from playwright.sync_api import expect

    card = settings().get_by_role("region", name="Retention", exact=True)
    quota = card.get_by_label("Windows of the project", exact=False)
    expect(quota).to_have_attribute("placeholder", "no quota")
    expect(card.get_by_text("GB used")).to_be_visible()
    quota.fill("500")
    card.get_by_role("button", name="Save").click()
    expect(card.get_by_text("Now 500 GB")).to_be_visible()
    assert retention_of(stocked)["max_gb"] == 500
    quota.fill("")
    card.get_by_role("button", name="Save").click()
    expect(card.get_by_text("Now no quota")).to_be_visible()
    assert not retention_of(stocked)["has_own_max_gb"]


def test_a_read_token_sees_no_tokens(stocked, open_page):
    from playwright.sync_api import expect

    watched = open_page(stocked.link("/settings", stocked.empty_token))
    expect(watched.page.get_by_text("Not shown with your token")).to_be_visible()
    expect(watched.page.get_by_role("region", name="Retention", exact=True)).to_be_visible()
    watched.forgive("403")  # the browser itself writes down that it was refused


def test_signing_out_shows_the_sign_in_form(settings):
    from playwright.sync_api import expect

    page = settings()
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Sign in with a token")
    page.reload()
    expect(page.locator("h1")).to_have_text("Sign in with a token")


@pytest.mark.nightly
def test_sessions_are_listed_and_another_one_is_ended(stocked, settings):
    import httpx
    from playwright.sync_api import expect

    with httpx.Client(base_url=f"{stocked.url}/api/v1", trust_env=False) as other:
        other.headers["user-agent"] = "another browser"
        assert other.post("/session", json={"token": stocked.server.token}).status_code == 204
        page = settings()
        card = page.get_by_role("region", name="Sessions", exact=True)
        expect(card.get_by_text("this browser")).to_have_count(1)
        row = card.get_by_role("listitem").filter(has_text="another browser").first
        expect(row).to_contain_text("root token")
        assert other.get("/jobs").status_code == 200
        row.get_by_role("button", name="End the session of root token").click()
        expect(card.get_by_text("another browser")).to_have_count(0)
        assert other.get("/jobs").status_code == 401
