"""Who waits for whom: news of other alerts, other receivers and other projects for nobody."""

import json
import shutil
import threading
import time

import pytest

from app.alerts.endpoint import Endpoint
from app.alerts.message import Message
from app.consumer.sender import LOOK_EVERY_S
from app.store import endpoints, outbox
from app.store.endpoint_limits import MAX_ENDPOINTS
from app.store.outbox_claims import MOST_OF_A_PROJECT
from tests.alerts.notices import SECRET
from tests.alerts.receiver import Answer, receiver
from tests.consumer.tellers import Tellers


@pytest.fixture
def hook():
    with receiver() as hook:
        yield hook


@pytest.fixture
def tellers(migrated_file, tmp_path):
    path = shutil.copy(migrated_file, tmp_path / "tellers.db")
    tellers = Tellers(f"sqlite:///{path}", total_s=30.0)
    yield tellers
    tellers.close()


def subjects(hook):
    """Of which alerts each message tells."""
    told = [json.loads(body)["data"]["alerts"] for _, _, body in hook.requests]
    return [{alert["labels"]["subject"] for alert in alerts} for alerts in told]


def refused_end(tellers, hook):
    """An alert is over, and four attempts to tell so were refused: the next is minutes away."""
    tellers.fire("a", rule="cause")
    tellers.tell()
    tellers.pass_time(301)
    tellers.rest("a", rule="cause")
    hook.answer = Answer(500)
    for wait_s in (0, 5, 15, 60):
        tellers.pass_time(wait_s)
        assert tellers.tell() == 1
    hook.answer = Answer(204)
    hook.requests.clear()


def test_a_new_alert_does_not_wait_for_what_was_refused_of_another(tellers, hook):
    tellers.endpoint("hook", hook.url)
    refused_end(tellers, hook)
    tellers.fire("b", rule="cause")
    tellers.tell()
    assert subjects(hook) == [{"b"}]
    tellers.pass_time(60)
    tellers.tell()
    assert subjects(hook) == [{"b"}, {"a"}], "soon after it took something"


def test_a_receiver_that_keeps_one_incident_is_not_told_of_an_end_after_a_new_beginning(
    tellers, hook
):
    tellers.endpoint("pager", hook.url, format="pagerduty", secrets=("k" * 32,))
    refused_end(tellers, hook)
    tellers.fire("b", rule="cause")
    tellers.tell()
    tellers.pass_time(1000)
    tellers.tell()
    assert [json.loads(body)["event_action"] for _, _, body in hook.requests] == ["trigger"]
    assert tellers.states() == ["delivered", "outdated", "delivered"]


def test_a_project_whose_receivers_all_hang_delays_no_other(tellers, hook):
    hook.answer = Answer("silence")
    with receiver() as well:
        for number in range(MAX_ENDPOINTS):
            endpoint(tellers, "loud", f"hangs-{number}", hook.url)
        endpoint(tellers, "calm", "well", well.url)
        tell_all(tellers, "loud", [f"hangs-{each % MAX_ENDPOINTS}" for each in range(600)])
        stop = threading.Event()
        thread = threading.Thread(target=tellers.sender.run, args=(stop,))
        thread.start()
        wait_for(lambda: len(hook.requests) == MOST_OF_A_PROJECT)
        began_s = time.monotonic()
        tell_all(tellers, "calm", ["well"] * 3)
        tellers.sender.nudge()
        wait_for(lambda: len(well.requests) == 3)
        took_s = time.monotonic() - began_s
        assert len(hook.requests) == MOST_OF_A_PROJECT
        stop.set()
        hook.released.set()
        thread.join()
    assert took_s < 1.0 + LOOK_EVERY_S


def endpoint(tellers, project, endpoint_id, url):
    made = Endpoint(endpoint_id, project, endpoint_id, "standard", url, (SECRET,))
    with tellers.store.write() as conn:
        endpoints.add(conn, made)


def tell_all(tellers, project, endpoint_ids):
    """A message to each of these."""
    with tellers.store.write() as conn:
        for number, endpoint_id in enumerate(endpoint_ids):
            outbox.add(
                conn,
                endpoint_id=endpoint_id,
                notice_id=f"{project}-{number}",
                job_id=None,
                rule=None,
                kind="test",
                message=Message("{}"),
                fingerprints=(),
                now_s=tellers.clock(),
                project=project,
            )


def wait_for(holds, within_s=60.0):
    """Polls: what is waited for happens in other threads, in real time."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)
