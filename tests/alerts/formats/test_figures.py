"""Messages name the rank and the GPU of whom they blame, and carry the top fix with its gain."""

import json
from email import message_from_string, policy

import pytest
from msgspec.structs import replace

from app.alerts.alert import SuggestedFix
from app.alerts.formats.registry import render_notice
from app.alerts.formats.text import shorten_notice
from app.result.finding import Culprit
from tests.alerts.formats.test_registry import ALERT_FORMATS
from tests.alerts.notices import BLAME, DETAIL, make_receiver, notice, told

COMMAND = "sbatch --exclude=host-017 JOB_SCRIPT"
LABEL = "Slurm: restart without it"
BOUNDS = (380.0, 430.0)
FIX = SuggestedFix("replace-worker", "Replace host-017", 1.37, 412.4, COMMAND, LABEL, BOUNDS)
PLAIN = ("standard", "cloudevents")  # for programs: they have each figure as a field
CULPRIT = Culprit(3, 1, "host-043", rank=11, local_rank=5)


def message(format_, fix=FIX, **given):
    alert = told(detail=replace(DETAIL, fix=fix), **given)
    return render_notice(notice(alerts=(alert,)), make_receiver(format_)).body


def text_of(format_, body):
    if format_ != "email":
        return body
    parts = message_from_string(body, policy=policy.default).walk()
    return " ".join(str(part.get_content()) for part in parts if not part.is_multipart())


@pytest.mark.parametrize("format_", ALERT_FORMATS)
def test_firing_message_has_the_fix_its_gain_and_a_command(format_):
    body = message(format_)
    if format_ in PLAIN:
        [alert] = json.loads(body)["data"]["alerts"]
        assert alert["fix"] == {
            "name": "replace-worker",
            "title": "Replace host-017",
            "speed_up": 1.37,
            "gpu_hours_per_day": 412.4,
            "command": COMMAND,
            "command_label": LABEL,
            "gpu_hours_per_day_range": list(BOUNDS),
        }
    else:
        text = " ".join(text_of(format_, body).split())
        assert "Replace host-017" in text
        assert "1.37" in text
        assert COMMAND in text
        assert LABEL in text


# A PagerDuty incident holds all data of the alert, as the plain ones do.
@pytest.mark.parametrize(
    "format_", [each for each in ALERT_FORMATS if each not in (*PLAIN, "pagerduty")]
)
def test_resolved_message_has_no_fix(format_):
    body = message(format_, status="resolved", ends_at_s=1_700_000_100.0)
    assert COMMAND not in text_of(format_, body)


def test_command_that_would_be_cut_is_left_out_whole():
    long = replace(FIX, command=f"sbatch --exclude={','.join(['host-017'] * 40)} JOB_SCRIPT")
    [alert] = shorten_notice(notice(alerts=(told(detail=replace(DETAIL, fix=long)),)), 1, 60).alerts
    assert alert.detail.fix is not None
    assert alert.detail.fix.command is None
    assert alert.detail.fix.title == "Replace host-017"


@pytest.mark.parametrize("format_", ALERT_FORMATS)
def test_the_rank_and_the_gpu_are_named(format_):
    detail = replace(DETAIL, blame=replace(BLAME, culprits=(CULPRIT,)))
    body = render_notice(notice(alerts=(told(detail=detail),)), make_receiver(format_)).body
    if format_ in PLAIN:
        [alert] = json.loads(body)["data"]["alerts"]
        assert alert["finding"]["culprits"] == [CULPRIT.as_json()]
    else:
        text = " ".join(text_of(format_, body).split())
        assert "host-043, rank 11 (dp 3, stage 1), GPU 5" in text
