"""The what-if page: what is asked is what the API answers, and its address says all of it."""

import json
import re
import shlex
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from app.formatting import rough_hours

PAGE = "/jobs/slow-worker/what-if"
HALF = {"select": {"stages": [1]}, "change": {"kind": "factor", "value": 0.5}}


def asked(page):
    """Window and edits in a page's address."""
    query = parse_qs(urlsplit(page.url).query)
    return query["window"][0], json.loads(query["edits"][0])


def answer(stocked, window, edits, job="slow-worker"):
    path = f"/jobs/{job}/windows/{window}/what-if"
    found = stocked.server.http.post(path, json={"edits": edits})
    found.raise_for_status()
    return found.json()


def mean(times_s):
    return sum(times_s) / len(times_s)


def with_edits(stocked, *edits):
    return stocked.link(f"{PAGE}?edits={quote(json.dumps(edits))}")


def expect_answer(page, found):
    """The page's figures are those of the API's answer."""
    from playwright.sync_api import expect

    figures = page.locator(".what-if-stats .figure")
    expect(figures.nth(1)).to_have_text(f"{found['against_recorded']['speed_up']:.2f}\u00d7")
    expect(figures.nth(2)).to_have_text(f"{found['against_ideal']['slowdown']:.2f}\u00d7")
    times = found["step_time_s"]
    share = 1 - mean(times["what_if"]) / mean(times["simulated"])
    a_day = 24 * 256 * share  # 8 x 4 workers of 8 GPUs
    expect(figures.nth(3)).to_have_text(f"{rough_hours(abs(a_day))} GPU-h per day")
    changed = sum(edit["changed_ops"] for edit in found["edits"])
    expect(figures.nth(4)).to_have_text(f"{changed:,}")


@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1440), pytest.param("dark", 390, marks=pytest.mark.nightly)]
)
def test_the_what_if_page_starts_with_the_suggestion_of_the_leading_finding(
    stocked, open_page, keep, theme, width
):
    from playwright.sync_api import expect

    page = open_page(stocked.link(PAGE), theme=theme, width=width).page
    expect(page.locator("h1")).to_contain_text("With dp 3, stage 1 as fast as its peers, a step")
    expect(page.get_by_role("button", name="as fast as its peers")).to_have_attribute(
        "aria-pressed", "true"
    )
    window, edits = asked(page)
    assert edits[0]["select"]["workers"] == [[3, 1]]
    expect_answer(page, answer(stocked, window, edits))
    keep(page, f"what-if-{theme}-{width}")


def test_a_typed_question_is_answered_and_kept_in_the_address(stocked, open_page):
    from playwright.sync_api import expect

    watched = open_page(with_edits(stocked))
    page = watched.page
    expect(page.locator("h1")).to_have_text("What if some operations took a different time?")
    page.get_by_label("Stages").fill("1-2")
    page.get_by_label("times as long").fill("0.5")
    expect(page.locator("h1")).to_contain_text("If every operation on stages 1 to 2 took 0.5\u00d7")
    page.get_by_role("button", name="Every operation", exact=True).click()
    page.get_by_role("button", name="forward compute", exact=True).click()
    expect(page.locator("h1")).to_contain_text("If forward compute on stages 1 to 2 took 0.5\u00d7")
    window, edits = asked(page)
    select = {"op_types": ["forward-compute"], "stages": [1, 2]}
    assert edits == [{"select": select, "change": {"kind": "factor", "value": 0.5}}]
    expect_answer(page, answer(stocked, window, edits))
    # Half of a question is none: the figures stay, and are said to be old.
    page.get_by_label("Stages").fill("1-")
    expect(page.get_by_text("Write numbers, as 0-3, 7.")).to_be_visible()
    expect(page.locator(".what-if-stats .figure.is-old")).to_have_count(5)
    # The server knows better what the job has.
    page.get_by_label("Stages").fill("9")
    expect(page.get_by_role("alert")).to_contain_text("there is no stage 9: the job has 0 to 3.")
    watched.forgive("422")


def test_back_undoes_a_suggestion_and_edits_can_be_removed(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(with_edits(stocked, HALF, {"change": {"kind": "ideal"}})).page
    expect(page.locator("h1")).to_contain_text("If these 2 changes were made")
    page.get_by_role("button", name="Transfers taking no time").click()
    expect(page.locator("h1")).to_contain_text("With transfers taking no time")
    expect(page.locator(".edit")).to_have_count(1)
    page.go_back()
    expect(page.locator("h1")).to_contain_text("If these 2 changes were made")
    page.get_by_role("button", name="Remove change 2").click()
    expect(page.locator("h1")).to_contain_text("If every operation on stage 1 took 0.5\u00d7")
    assert asked(page)[1] == [HALF]


def test_a_question_is_saved_opened_deleted_and_restored(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(with_edits(stocked, HALF)).page
    expect(page.locator("h1")).to_contain_text("If every operation on stage 1")
    page.get_by_label("Name of this question").fill("<b>half</b> \u202eof it")
    page.get_by_role("button", name="Save", exact=True).click()
    link = page.locator(".saved li a")
    expect(link).to_have_text("<b>half</b> of it", use_inner_text=True)
    expect(page).to_have_url(re.compile(r"\?saved=[0-9a-f]+$"))
    page.reload()
    expect(page.locator("h1")).to_contain_text("If every operation on stage 1 took 0.5\u00d7")
    [saved] = stocked.get("/jobs/slow-worker/what-ifs")["items"]
    assert saved["edits"] == [HALF]
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("None yet.")).to_be_visible()
    assert asked(page) == (saved["window"], [HALF])
    page.get_by_role("button", name="Undo").click()
    expect(link).to_have_count(1)
    [again] = stocked.get("/jobs/slow-worker/what-ifs")["items"]
    assert (again["name"], again["edits"]) == (saved["name"], saved["edits"])
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("None yet.")).to_be_visible()


@pytest.mark.nightly
def test_the_commands_ask_the_same_question_and_quote_the_address(stocked, open_page):
    from playwright.sync_api import expect

    name = "x'; touch evil; echo '"
    evil = {"select": {"op_types": [name]}, "change": {"kind": "ideal"}}
    watched = open_page(with_edits(stocked, evil))
    page = watched.page
    expect(page.get_by_role("alert")).to_contain_text("is not known")
    watched.forgive("422")
    *_, data = shlex.split(page.locator(".commands pre").inner_text())
    assert json.loads(data) == {"edits": [evil]}
    page.get_by_role("button", name="Command line").click()
    expect(page.locator(".commands pre")).to_contain_text("paceline what-if")
    *_, option, edit = shlex.split(page.locator(".commands pre").inner_text())
    assert (option, edit) == ("--edit", f"op={name} ideal")


def test_steps_chosen_on_the_job_page_are_those_of_the_first_edit(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link(f"{PAGE}?window=1-24..1-32&steps=33-34")).page
    expect(page.get_by_label("Steps")).to_have_value("33-34")
    expect(page.locator("h1")).to_contain_text("in steps 33 to 34")
    assert asked(page)[0] == "1-32"


@pytest.mark.nightly
def test_the_what_if_page_without_a_closed_window_says_so(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/not-analysed/what-if")).page
    expect(page.locator("h1")).to_have_text("No window of this run has closed yet.")
