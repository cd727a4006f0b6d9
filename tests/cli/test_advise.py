import json

import pytest

from app.synth.faults.slow_compute import LongLastStage
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files
from tests.cli.test_analyze import paceline


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    job = SimulatedJob(Parallelism(2, 4, 8), 8, faults=(LongLastStage(),), name="llm")
    window = job.record(range(12)).window()
    path = tmp_path_factory.mktemp("trace") / "trace-llm.parquet"
    trace_files.write(window.trace, window.job, path, hosts=window.hosts)
    return path


def test_best_fix_is_in_the_first_sentence(trace):
    done = paceline("advise", str(trace), "--layers", "32")
    assert done.exit_code == 0, done.stderr
    assert "layers, not 8/8/8/8" in " ".join(done.stdout.split())
    assert "--pipeline-model-parallel-layout" in done.stdout


def test_text_to_paste_stays_on_one_line(trace):
    done = paceline("advise", str(trace), "--layers", "32", COLUMNS="60")
    (line,) = [each for each in done.stdout.splitlines() if "module_fqns" in each]
    assert line.startswith("--parallelism.module_fqns_per_model_part tok_embeddings,layers.0,")
    assert line.endswith(",norm,output")


def test_json_goes_to_standard_output_alone(trace):
    done = paceline("advise", str(trace), "--layers", "32", "--json", "-")
    found = json.loads(done.stdout)
    assert found["fixes"][0]["fix"] == "resplit-stages"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--layers", "32", "--layout", "8,8,8,8"], "either layers (as many on each"),
        (["--layers", "0"], "layers: 0; want 1 to 1,000"),
        (["--restart-minutes", "-1"], "want 0 to 10,080"),
        (["--checkpoint-minutes", "nan"], "want 0 to 10,080"),
        (["--expert-loads", "8,inf"], "the tokens of each expert of a layer"),
        (["--expert-share", "2"], "give 0 to 1"),
        (["--document-lengths", "nowhere.txt"], "name a file that you may read"),
        (["--max-tokens", "0"], "want 1 to"),
        (["--layout", "8,x"], "a whole number of layers for each stage"),
    ],
)
def test_contradictory_layers_are_refused(trace, options, reason):
    done = paceline("advise", str(trace), *options)
    assert done.exit_code == 2
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [("812\n40,9x", "number 3 is '9x'"), ("", "give 1 to 2,000,000 lengths")],
)
def test_file_of_document_lengths_that_is_wrong_is_refused(trace, tmp_path, text, reason):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text(text)
    done = paceline("advise", str(trace), "--document-lengths", str(lengths))
    assert done.exit_code == 2
    assert reason in done.stderr
