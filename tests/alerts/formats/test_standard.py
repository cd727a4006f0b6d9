import json

import pytest

from app.alerts.formats import standard
from app.alerts.wording import sentence
from tests.alerts.factories import alert


def test_the_body_holds_what_a_program_and_a_person_need():
    given = alert()
    assert json.loads(standard.body(given)) == {
        "type": "slowdown.firing",
        "timestamp": "2023-11-14T22:13:20.250Z",
        "data": {
            "job_id": "llm-70b",
            "project": "default",
            "job_name": "llm-70b",
            "epoch": 2,
            "window": "2-1220",
            "slowdown": 1.42,
            "threshold": 1.1,
            "gpu_time_wasted": pytest.approx(1 - 1 / 1.42),
            "since_step": 1204,
            "sentence": sentence(given),
            "worst_worker": {"dp_rank": 3, "stage": 1, "host": "host-017", "slowdown": 1.4},
            "url": "https://paceline.example/jobs/llm-70b",
        },
    }


def test_a_job_is_told_by_its_plain_id_and_its_project():
    body = json.loads(standard.body(alert(job_id="research/llm-70b")))
    assert (body["data"]["job_id"], body["data"]["project"]) == ("llm-70b", "research")


def test_what_is_not_known_is_null():
    body = json.loads(standard.body(alert(worst_worker=None, url=None)))
    assert body["data"]["worst_worker"] is body["data"]["url"] is None


def test_the_type_tells_firing_from_resolved():
    resolved = alert(transition={"kind": "resolved"})
    assert json.loads(standard.body(resolved))["type"] == "slowdown.resolved"


def test_any_name_makes_a_body_that_can_be_sent():
    given = alert(job_name='"\n\N{SNOWMAN}' + "x" * 250)
    assert json.loads(standard.body(given).encode())["data"]["job_name"] == given.job_name
