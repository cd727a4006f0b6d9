from io import StringIO

from rich.console import Console

from app.cli.terminal.result import causes

FOUND = {"cause": "slow-worker", "sentence": "dp 3, stage 1 is 1.6x slower than its peers"}
RULED_OUT = [
    {"cause": "slow-link", "insufficient_evidence": False, "reason": "no link is slow"},
    {"cause": "stage-imbalance", "insufficient_evidence": True, "reason": "there is one stage"},
]


def shown(**result):
    console = Console(width=100, record=True, file=StringIO())
    for part in causes(result):
        console.print(part)
    return console.export_text()


def test_findings_are_sentences_and_the_others_have_their_reasons():
    text = shown(findings=[FOUND], ruled_out=RULED_OUT)
    assert "slow-worker: dp 3, stage 1 is 1.6x slower than its peers." in text
    assert "no link is slow" in text
    assert "cannot tell: there is one stage" in text


def test_nothing_found_is_said():
    assert "None found." in shown(findings=[], ruled_out=RULED_OUT)


def test_causes_that_are_withheld_are_no_clean_bill():
    text = shown(findings=None, ruled_out=RULED_OUT)
    assert "Withheld" in text
    assert "None found" not in text


def test_a_result_in_which_nobody_looked_shows_nothing():
    assert shown(findings=None, ruled_out=None) == ""


def test_control_characters_of_a_host_are_written_out():
    evil = {**FOUND, "sentence": "dp 0 on \x1b[31mhost"}
    assert "\\x1b" in shown(findings=[evil], ruled_out=[])
