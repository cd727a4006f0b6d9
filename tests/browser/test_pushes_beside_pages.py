"""Pages and alert actions while workers of the same project hold every place of pushes."""

import contextlib
import socket
from urllib.parse import urlsplit

import pytest

# More than one project ever had places for, pushes and people together.
NUM_PUSHES = 300
# What has come of a body so far keeps it acceptable for half a minute.
BODY_BYTES, SENT_BYTES = 40_000, 25_000


@pytest.fixture
def held_pushes(project):
    """Batches of so many workers, of which the end has not arrived; the server waits for it."""
    server = urlsplit(project.server.server.url)
    head = (
        "POST /api/v1/jobs/llm-70b/ops HTTP/1.1\r\n"
        f"host: {server.netloc}\r\nauthorization: Bearer {project.token}\r\n"
        "content-type: application/vnd.paceline.ops+msgpack\r\n"
        f"content-length: {BODY_BYTES}\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        workers = []
        for _ in range(NUM_PUSHES):
            worker = socket.create_connection((server.hostname, server.port))
            workers.append(stack.enter_context(worker))
            worker.sendall(head.encode() + bytes(SENT_BYTES))
        yield workers


def test_pages_and_alert_actions_answer_while_pushes_hold_all_their_places(
    project, held_pushes, open_page
):
    from playwright.sync_api import expect

    project.fire()
    project.add_receiver()
    refused = []
    page = open_page(project.link("/")).page
    page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 429 else None)
    expect(page.get_by_role("link", name="llm-70b").first).to_be_visible()
    page.goto(f"{project.server.server.url}/alerts")
    row = page.get_by_role("region", name="Firing", exact=True).locator(".row")
    row.get_by_role("button", name="Acknowledge slowdown on llm-70b").click()
    expect(row).to_contain_text("Acknowledged by")
    page.goto(f"{project.server.server.url}/alerts/receivers")
    page.get_by_role("button", name="Send a test to on call").click()
    expect(page.locator(".said")).to_contain_text("The test: delivered.")
    assert refused == []
    # The server still waits for every one of the batches: none was answered.
    for worker in held_pushes:
        worker.setblocking(False)
        with pytest.raises(BlockingIOError):
            worker.recv(1)
