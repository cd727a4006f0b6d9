"""Every message names the rank and the GPU of whom it blames."""

import json
from dataclasses import replace
from email import message_from_string, policy

import pytest

from app.alerts.formats.registry import render_notice
from tests.alerts.formats.test_registry import ALERT_FORMATS
from tests.alerts.notices import BLAME, DETAIL, make_receiver, notice, told

CULPRIT = {"dp_rank": 3, "stage": 1, "host": "host-043", "rank": 11, "local_rank": 5}
NAME = "host-043, rank 11 (dp 3, stage 1), GPU 5"
# For programs: they have the culprit as an object.
PLAIN = ("standard", "cloudevents")


def sent(format_):
    blamed = replace(BLAME, culprits=(CULPRIT,))
    made = notice(alerts=(told(detail=replace(DETAIL, blame=blamed)),))
    return render_notice(made, make_receiver(format_)).body


@pytest.mark.parametrize("format_", ALERT_FORMATS)
def test_the_rank_and_the_gpu_are_named(format_):
    body = sent(format_)
    if format_ == "email":
        parts = message_from_string(body, policy=policy.default).walk()
        texts = [part.get_content() for part in parts if not part.is_multipart()]
        assert all(NAME in " ".join(text.split()) for text in texts if isinstance(text, str))
    elif format_ in PLAIN:
        [finding] = [each["finding"] for each in json.loads(body)["data"]["alerts"]]
        assert finding["culprits"] == [CULPRIT]
    else:
        assert NAME in body
