"""Jobs put away and brought back, owners and tags, saved views, and the command palette."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.test_every_page import INJECTED, violations, wider_than_the_page

JOB = {"parallelism": {"dp_size": 2, "pp_size": 2}, "run_key": "run-1"}
HOSTILE = 'x <img src=y onerror="window.injected=1"> y'


@pytest.fixture
def fleet(project, open_page):
    """A function that opens the fleet of three finished jobs and a running one."""
    for job_id in ("llama-7b", "llama-70b", "vision", "running"):
        name = HOSTILE if job_id == "vision" else job_id
        project.send("PUT", f"/jobs/{job_id}", json=JOB | {"name": name})
        if job_id != "running":
            project.send("POST", f"/jobs/{job_id}/end")

    def fleet(path="/", *scopes, **looks):
        watched = open_page(project.link(path, *scopes), **looks)
        watched.page.locator("main h1").wait_for()
        return watched

    return fleet


def listed(project, lifecycle="active"):
    return [job["job_id"] for job in project.get("/fleet", lifecycle=lifecycle)["items"]]


def test_selected_jobs_are_archived_and_undo_lists_them_again(project, fleet):
    from playwright.sync_api import expect

    page = fleet("/?order=name").page
    lines = page.locator(".fleet-line")
    expect(lines).to_have_count(4)
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.get_by_role("button", name="Select all 4 shown").click()
    page.get_by_role("button", name="Archive", exact=True).click()
    toast = page.get_by_role("region", name="Notices")
    expect(toast).to_contain_text("Archived 3 jobs. Left as it was, not ended yet: running.")
    expect(page.locator("#announcer")).to_contain_text("Archived 3 jobs.")
    expect(lines).to_have_count(1)
    assert listed(project) == ["running"]
    page.get_by_role("button", name="Archived 3").click()
    expect(lines).to_have_count(3)
    assert parse_qs(urlsplit(page.url).query)["lifecycle"] == ["archived"]
    toast.get_by_role("button", name="Undo").press("Enter")
    expect(toast).to_contain_text("Unarchived 3 jobs.")
    assert len(listed(project)) == 4
    page.get_by_role("button", name="All 4").click()
    expect(lines).to_have_count(4)
    assert page.evaluate(INJECTED) == {"ran": None, "made": 0}


def test_a_deleted_job_says_so_on_its_page_and_is_restored_by_a_key(project, fleet):
    from playwright.sync_api import expect

    page = fleet("/jobs/vision").page
    page.locator("main summary", has_text="More").press("Enter")
    assert violations(page) == []
    page.get_by_role("button", name="Delete", exact=True).press("Enter")
    note = page.get_by_role("note").filter(has_text="Deleted. Its data is removed from")
    expect(note.get_by_role("button", name="Restore")).to_be_visible()
    assert "vision" not in listed(project)
    assert violations(page) == []
    page.keyboard.press("Control+z")
    expect(note).to_have_count(0)
    assert "vision" in listed(project)
    assert page.evaluate(INJECTED) == {"ran": None, "made": 0}


@pytest.mark.nightly
def test_a_running_job_and_a_reader_without_scopes_have_nothing_to_put_away(fleet):
    from playwright.sync_api import expect

    page = fleet("/jobs/running").page
    page.locator("main summary", has_text="More").click()
    expect(page.locator(".menu-list")).to_contain_text("A running job cannot be archived")
    expect(page.get_by_role("button", name="Archive", exact=True)).to_have_count(0)
    page = fleet("/jobs/vision", "read").page
    expect(page.locator("main summary", has_text="More")).to_have_count(0)


def test_owner_and_tags_set_on_the_job_page_find_it_in_the_fleet(project, fleet):
    from playwright.sync_api import expect

    page = fleet("/jobs/llama-7b").page
    page.locator("main summary", has_text="More").click()
    page.get_by_role("button", name="Owner and tags").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tags").fill("priority")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_have_text("Not name=value: priority")
    dialog.get_by_label("Tags").fill("priority=high")
    dialog.get_by_label("Owner").fill("team <b>vision</b>")
    assert violations(page) == []
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("link", name="owner: team <b>vision</b>").click()
    expect(page.locator(".fleet-line")).to_have_count(1)
    expect(page.locator(".fleet-line")).to_contain_text("team <b>vision</b>")
    job = project.get("/jobs/llama-7b")
    assert job["edited_labels"] == {"owner": "team <b>vision</b>", "priority": "high"}


@pytest.mark.nightly
def test_a_view_is_saved_chosen_deleted_and_brought_back(project, fleet):
    from playwright.sync_api import expect

    page = fleet("/?q=llama&order=name").page
    views = page.locator(".saved-views summary")
    views.click()
    page.get_by_label("Name of the view").fill("Llamas <b>")
    page.get_by_role("button", name="Save").click()
    expect(views).to_have_text(re.compile("View: .*Llamas <b>"))
    assert project.get("/views")["items"][0]["query"] == {"q": "llama", "order": "name"}
    page.keyboard.press("Escape")
    page.goto(project.link("/"))
    expect(page.locator(".fleet-line")).to_have_count(4)
    views.click()
    assert violations(page) == []
    page.locator(".menu-list a", has_text="Llamas").click()
    expect(page.locator(".fleet-line")).to_have_count(2)
    assert parse_qs(urlsplit(page.url).query) == {"q": ["llama"], "order": ["name"]}
    views.click()
    page.get_by_role("button", name="Delete the view").click()
    expect(views).to_have_text("Views")
    page.get_by_role("region", name="Notices").get_by_role("button", name="Undo").click()
    expect(views).to_have_text(re.compile("View: .*Llamas <b>"))


def test_the_command_palette_jumps_and_acts_by_keyboard_alone(project, fleet):
    from playwright.sync_api import expect

    watched = fleet("/", width=320)
    page = watched.page
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Search or jump to")
    expect(field).to_be_focused()
    page.keyboard.type("70b LLAMA")
    options = page.get_by_role("listbox").get_by_role("option")
    expect(options).to_have_count(1)
    expect(field).to_have_attribute("aria-activedescendant", "palette-0")
    assert violations(page) == []
    assert wider_than_the_page(page) == []
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/jobs/llama-70b$"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.locator("main summary", has_text="More").wait_for()
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.type("archive")
    expect(options.first).to_have_text(re.compile("^Archive"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Notices")).to_contain_text("Archived llama-70b.")
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.type("slowdown rule")
    expect(options.first).to_have_text(re.compile("^slowdown"))
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/alerts/rules#rule-slowdown$"))
    page.get_by_role("button", name="Search or jump to").click()
    page.keyboard.type("nothing has this name")
    expect(page.get_by_role("listbox")).to_have_text("Nothing matches all of these words.")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.type("documentation")
    expect(options.first).to_contain_text("Documentation")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/docs$"))
