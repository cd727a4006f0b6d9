import json
import re

import pytest

from app.alerts.formats import slack
from app.alerts.formats.registry import render_notice
from tests.alerts.notices import make_receiver, notice, told

IMAGE = "https://paceline.example/1.png"


def message(**given):
    return json.loads(render_notice(notice(**given), make_receiver("slack")).body)


def texts(content):
    """Every text object in a message."""
    if isinstance(content, dict):
        if content.get("type") in ("plain_text", "mrkdwn"):
            yield content
        for value in content.values():
            yield from texts(value)
    elif isinstance(content, list):
        for value in content:
            yield from texts(value)


def test_the_message_has_all_at_a_glance():
    found = message(image_url=IMAGE)
    kinds = [block["type"] for block in found["blocks"]]
    assert kinds == ["header", "section", "section", "image", "actions"]
    assert found["text"].startswith("Firing: llm-70b runs at 1.42")
    fields = [field["text"] for field in found["blocks"][2]["fields"]]
    assert fields == [
        "Job: llm-70b",
        "Slowdown: 1.42\u00d7",
        "Since: step 1,204",
        "Cause: slow-worker",
        "Who: host-017 (dp 3, stage 1)",
        "Costs: about 19 GPU-h each hour",
        "Confidence: high, 90 %",
    ]
    assert found["blocks"][3]["image_url"] == IMAGE
    assert [button["url"] for button in found["blocks"][4]["elements"]] == [
        notice().page_url,
        notice().runbook_url,
    ]


def test_a_message_that_was_refused_may_go_without_its_image():
    body = render_notice(notice(image_url=IMAGE), make_receiver("slack")).body
    assert json.loads(slack.without_image(body)) == message()
    assert json.loads(slack.without_image(slack.without_image(body))) == message()


def test_other_alerts_have_a_line_each():
    many = (told(), told(sentence="The second is slow."), told(sentence="The third is slow."))
    text = message(alerts=many, num_more=7)["blocks"][3]["text"]["text"]
    assert text == "The second is slow.\nThe third is slow.\nand 7 more alerts"


@pytest.mark.parametrize(
    "name", ["<!channel>", "<@U024BE7LH>", "*a*", "<https://evil.example|x>", "& &amp; <", "`a`"]
)
def test_no_text_is_read_as_markup(name):
    found = message(job_name=name, sentence=f"{name} is slow.", alerts=(told(sentence=name),))
    assert found["mrkdwn"] is False
    assert (found["parse"], found["link_names"]) == ("none", False)
    for text in [*(each["text"] for each in texts(found)), found["text"]]:
        assert "<" not in text
        assert ">" not in text
        assert text.count("&") == sum(text.count(each) for each in ("&amp;", "&lt;", "&gt;"))
    assert {each["type"] for each in texts(found)} == {"plain_text"}


def test_no_text_is_longer_than_slack_takes_nor_ends_within_an_escape():
    found = message(job_name="<" * 400, sentence="&" * 5000, sub=">" * 5000)
    limits = {"header": 150, "section": 3000}
    for block in found["blocks"]:
        for text in texts(block):
            assert len(text["text"]) <= limits.get(block["type"], 75)
            assert not re.search(r"&(?!amp;|lt;|gt;)", text["text"])
    assert len(found["text"]) <= 3000
