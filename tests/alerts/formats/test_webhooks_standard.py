import json

import pytest

from app.alerts.formats.registry import render_notice
from app.alerts.formats.webhooks import EVENT_TYPES
from tests.alerts.notices import LABELS, make_receiver, notice, told


def body(**given):
    return json.loads(render_notice(notice(**given), make_receiver()).body)


def test_the_body_holds_what_a_program_and_a_person_need():
    given = notice()
    assert body() == {
        "type": "alert.firing",
        "timestamp": "2023-11-14T22:13:50.5Z",
        "data": {
            "kind": "firing",
            "is_repeat": False,
            "is_partly_resolved": False,
            "project": "default",
            "job_id": "llm-70b",
            "job_name": "llm-70b",
            "rule": "slowdown",
            "severity": "warning",
            "sentence": given.sentence,
            "sub": given.sub,
            "url": "https://paceline.example/jobs/llm-70b?window=2-1220",
            "image_url": None,
            "runbook_url": "https://runbooks.example/slow",
            "alerts": [
                {
                    "fingerprint": "0123456789abcdef",
                    "event_id": 7,
                    "status": "firing",
                    "severity": "warning",
                    "labels": LABELS,
                    "sentence": given.sentence,
                    "starts_at": "2023-11-14T22:13:20.25Z",
                    "ends_at": None,
                    "threshold": 1.1,
                    "runbook_url": "https://runbooks.example/slow",
                    "assigned_to": None,
                    "note": None,
                    "value": 1.42,
                    "slowdown": 1.42,
                    "gpu_time_wasted": 0.296,
                    "gpu_hours_lost_per_hour": 18.9,
                    "num_gpus": 64,
                    "since_step": 1204,
                    "since_at": None,
                    "window": "2-1220",
                    "finding": {
                        "cause": "slow-worker",
                        "sentence": "dp 3, stage 1 on host-017 is 1.6x slower than its peers",
                        "cost": 0.29,
                        "confidence": 0.9,
                        "culprits": [{"dp_rank": 3, "stage": 1, "host": "host-017"}],
                        "num_culprits": 1,
                    },
                    "fix": None,
                    "names": [],
                    "num_named": 0,
                    "was": None,
                }
            ],
            "num_more": 0,
        },
    }


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_the_type_tells_what_happened_in_signs_that_the_standard_allows(kind):
    found = body(kind=kind)["type"]
    assert found == EVENT_TYPES[kind]
    assert all(part.isidentifier() for part in found.split("."))


def test_a_resolved_alert_has_its_end():
    [ended] = body(alerts=(told(status="resolved", ends_at_s=1_700_000_099.0),))["data"]["alerts"]
    assert ended["ends_at"] == "2023-11-14T22:14:59Z"
