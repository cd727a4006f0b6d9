from io import StringIO

from rich.console import Console

from app.cli.terminal.result import causes
from app.result.finding import RuledOut
from tests.results import finding, idle, window_result

FOUND = finding(sentence="dp 3, stage 1 is 1.6x slower than its peers")
RULED_OUT = [
    RuledOut("slow-link", "no link is slow"),
    RuledOut("stage-imbalance", "there is one stage", insufficient=True),
]


def printed(**given):
    console = Console(width=100, record=True, file=StringIO())
    for part in causes(window_result(**given)):
        console.print(part)
    return console.export_text()


def test_findings_and_ruled_out_causes_are_printed_with_reasons():
    text = printed(findings=[FOUND], ruled_out=RULED_OUT)
    assert (
        "slow-worker (high confidence, 90 %): dp 3, stage 1 is 1.6\u00d7 slower than its peers."
        in text
    )
    assert "no link is slow" in text
    assert "cannot tell: there is one stage" in text


def test_empty_findings_print_none_found():
    assert "None found." in printed(findings=[], ruled_out=RULED_OUT)


def test_facts_without_a_cause_are_printed_under_the_findings():
    for share, is_loud in ((0.02, False), (0.054, True)):
        text = printed(findings=[], ruled_out=RULED_OUT, observations=[idle(share)])
        assert f"{idle(share)['sentence']}." in text
        assert ("None found." in text) is not is_loud


def test_withheld_causes_do_not_print_none_found():
    text = printed(findings=None, ruled_out=RULED_OUT)
    assert "Withheld" in text
    assert "None found" not in text


def test_result_without_a_diagnosis_prints_no_causes():
    assert printed(findings=None, ruled_out=None) == ""


def test_control_characters_in_a_sentence_are_escaped():
    evil = finding(sentence="dp 0 on \x1b[31mhost")
    assert "\\x1b" in printed(findings=[evil], ruled_out=[])
