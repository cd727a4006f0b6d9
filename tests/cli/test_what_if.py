"""`paceline what-if`."""

import json

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.cli.typed_text import parse_edit
from app.engine.questions.edits import Add, Edit, Factor, FromWorker, Ideal, Selection, Set
from app.errors import InvalidRequest
from app.trace.readers.published import trace_files
from tests import window_factory
from tests.engine.questions.jobs import two_stages

STEPS = (2, 3, 5, 8)


@pytest.fixture
def trace(tmp_path):
    """Two steps of 7.5 s on two workers."""
    path = tmp_path / "trace-tiny.parquet"
    window = window_factory.window([*two_stages(step=3), *two_stages(step=4)], pp_size=2)
    trace_files.write(window.trace, window.job, path)
    return path


def what_if(trace, *arguments, **options):
    return CliRunner().invoke(app, ["what-if", str(trace), *arguments], **options)


def json_answer(trace, *arguments, **options):
    result = what_if(trace, *arguments, "--json", "-", **options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refusal(trace, *arguments, **options):
    result = what_if(trace, *arguments, **options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("ideal", Edit(Ideal())),
        ("op=pp-comm set=0", Edit(Set(0.0), Selection(op_types=("pp-comm",)))),
        ("factor=0.8 op=gc,optimizer", Edit(Factor(0.8), Selection(op_types=("gc", "optimizer")))),
        ("stage=0,2-4 add=5ms", Edit(Add(0.005), Selection(stages=(0, 2, 3, 4)))),
        ("dp=1 add=-20us", Edit(Add(-20e-6), Selection(dp_ranks=(1,)))),
        ("worker=0/3,1/2 set=1.5s", Edit(Set(1.5), Selection(workers=((0, 3), (1, 2))))),
        ("mb=0-1 from=2/7", Edit(FromWorker(2, 7), Selection(microbatches=(0, 1)))),
        ("step=3-7,8 set=1e-3", Edit(Set(0.001), Selection(steps=(3, 5, 8)))),
        ("step=4 ideal", Edit(Ideal(), Selection(steps=(4,)))),
    ],
)
def test_edit_text_is_parsed(text, edit):
    assert parse_edit(text, STEPS) == edit


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 changes"),
        ("op=gc", "has 0 changes"),
        ("ideal set=0", "has 2 changes"),
        ("opp=gc set=0", "'opp' is not known"),
        ("op= set=0", "'op' is not known"),
        ("ideal=3", "'ideal' is not known"),
        ("halve", "'halve' is not known"),
        ("op=gc op=optimizer set=0", "op is given twice"),
        ("stage=a set=0", "'a' is no number or range"),
        ("stage=-1 set=0", "'-1' is no number or range"),
        ("stage=3-1 set=0", "'3-1' is no number or range"),
        ("mb=0-999999999 set=0", "more than 100,000"),
        ("worker=3 set=0", "'3' names no worker"),
        ("from=0,1", "'0,1' names no worker"),
        ("set=fast", "'fast' is no number"),
        ("set=", "'' is no number"),
        ("set=nan", "'nan' is no number"),
        ("set=5min", "'5min' is no number"),
        ("factor=5ms", "'5ms' is no number: write one such as 0.8"),
        ("factor=inf", "'inf' is no number"),
        ("step=9-12 set=0", "there is no step from 9 to 12"),
        ("step=x set=0", "'x' names no step"),
    ],
)
def test_invalid_edit_text_is_refused_with_a_hint(text, words):
    with pytest.raises(InvalidRequest) as refused:
        parse_edit(text, STEPS)
    assert words in str(refused.value)


def test_answer_is_written_as_json(trace):
    answer = json_answer(
        trace, "--edit", "op=pp-comm set=0", "--edit", "step=4 stage=1 op=compute add=1"
    )
    assert answer["step_time_s"]["what_if"] == pytest.approx([6.5, 8.5])
    assert answer["against_recorded"]["slowdown"] == pytest.approx(1.0)
    assert [edit["changed_ops"] for edit in answer["edits"]] == [8, 3]


def test_answer_is_printed_as_sentences_and_tables(trace):
    result = what_if(trace, "--edit", "op=pp-comm set=0", env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.stderr
    assert "A step of a-job would take 6.500 s instead of 7.500 s" in result.stdout
    assert "1. op=pp-comm set=0: changes 8 operations" in result.stdout
    assert "1.154\u00d7" in result.stdout
    costly = what_if(trace, "--edit", "factor=2 from=0/0")
    assert costly.exit_code == 2
    assert "costs" in what_if(trace, "--edit", "factor=2").stdout


def test_edits_from_a_file_precede_edit_options(trace, tmp_path):
    edit = {"select": {"op_types": ["pp-comm"]}, "change": {"kind": "set", "value": 0}}
    body = json.dumps({"edits": [edit]})
    file = tmp_path / "edits.json"
    file.write_text(body)
    expected = json_answer(trace, "--edit", "op=pp-comm set=0")
    assert json_answer(trace, "--edits", str(file)) == expected
    assert json_answer(trace, "--edits", "-", input=body) == expected
    both = json_answer(trace, "--edits", str(file), "--edit", "op=pp-comm add=1")
    assert both["step_time_s"]["what_if"] == pytest.approx([8.5, 8.5])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "Invalid JSON"),
        ("[]", "edits.json: Input should be"),
        ('{"edits": [{}]}', "edits.0.change, Field required"),
        ('{"edits": [{"change": {"kind": "ideal"}, "\\u001b[2J": 1}]}', "\\x1b[2J"),
        ('{"edits": [{"change": {"kind": "set", "value": -1}}]}', "edits.0.change.set.value"),
        ('{"edits": [{"change": {"kind": "set", "value": NaN}}]}', "finite"),
    ],
)
def test_invalid_edit_files_are_refused(trace, tmp_path, content, words):
    file = tmp_path / "edits.json"
    file.write_text(content)
    message = refusal(trace, "--edits", str(file))
    assert "edits.json" in message
    assert words in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "what-if wants --edit"),
        (("--edit", "stage=2 set=0"), "trace-tiny.parquet: edit 1, there is no stage 2"),
        (("--edit", "ideal", "--edit", "op=gc set=0"), "edit 2 selects no operation"),
        (("--edit", "op=sgd set=0"), "op type 'sgd' is not known"),
        (("--edit", "set=-1"), "a duration in seconds cannot be -1"),
        (("--edits", "no-such.json"), "no-such.json: cannot be read (No such file"),
    ],
)
def test_invalid_questions_are_refused_in_one_line(trace, arguments, words):
    assert words in refusal(trace, *arguments)
