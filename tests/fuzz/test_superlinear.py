"""No input costs more than in proportion to its size; `superlinear` is the long form."""

import json
from contextlib import suppress

import pytest
import yaml

from app.alerts.rules import rule_text
from app.alerts.rules.rule_text import parse_rules
from app.errors import PacelineError
from app.trace.readers.published import meta
from app.trace.readers.registry import FORMATS
from tests.benchmarks.running import run_benchmark
from tests.harness.fuzz.input_families import YAML, growth_exponent, reader_growth
from tests.harness.fuzz.repeated_records import importer, record_families


@pytest.mark.parametrize(
    ("costs_s", "exponent"),
    [
        ((1.0, 2.0, 4.0), 1.0),
        ((1.0, 4.0, 16.0), 2.0),
        ((0.001, 0.004, 0.016), 0.0),  # too small to tell
    ],
)
def test_exponent_is_the_power_of_the_size(costs_s, exponent):
    assert growth_exponent(costs_s) == pytest.approx(exponent)


@pytest.mark.nightly
def test_nested_brackets_are_found_with_a_parser_that_follows_them():
    # What the rules were read with before: 100 kB of them took 46 s.
    def read(text):
        with suppress(yaml.YAMLError):
            list(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))

    found = reader_growth(read, YAML["open lists"], 2_000)
    assert found.is_wrong
    assert found.exponent == pytest.approx(2, abs=0.6)


@pytest.mark.nightly
@pytest.mark.parametrize("family", YAML)
def test_rules_take_time_in_proportion_to_their_size(family):
    def read(text):
        with suppress(PacelineError):
            parse_rules(text)

    assert not reader_growth(read, YAML[family], 8_000).is_wrong


@pytest.mark.nightly
def test_meta_files_take_time_in_proportion_to_their_size(tmp_path):
    path = tmp_path / "meta-a.yaml"

    def read(text):
        path.write_text(text, encoding="utf-8")
        with suppress(PacelineError):
            meta.load(path)

    wrong = [name for name, text in YAML.items() if reader_growth(read, text, 4_000).is_wrong]
    assert wrong == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMATS)
def test_records_take_time_in_proportion_to_their_number(name, tmp_path):
    # A few of each format: the long form has all, and larger ones.
    families = list(record_families(name))
    read, taken, wrong = importer(name, tmp_path), 0, []
    for label, files in families[:: max(1, len(families) // 6)]:
        taken += read(files(1_000))
        if reader_growth(read, files, 5_000).is_wrong:
            wrong.append(label)
    assert wrong == []
    assert taken  # what is refused at once costs nothing


@pytest.mark.nightly
def test_steps_that_never_end_are_not_cut_again_for_each_of_them(tmp_path):
    # Each message's spans were sorted with all that waited: 54, 132 and 369 ms for n, 2n and 4n.
    files = dict(record_families("otlp"))["rank1.pb steps without a number"]
    assert not reader_growth(importer("otlp", tmp_path), files, 20_000).is_wrong


@pytest.mark.nightly
def test_a_loop_over_all_rules_for_each_rule_is_found(monkeypatch):
    read_rules = rule_text._rules

    def slow_rules(document, reader):
        sum(range(1_000 * len(document["rules"]) ** 2))
        return read_rules(document, reader)

    name = "check_rules application/json rules item 0: name distinct, up to the limit"
    only = ("--only", name, "--no-files")
    result = run_benchmark("superlinear", *only)
    assert (result.exit_code, json.loads(result.stdout)["inputs"]) == (0, 1)
    monkeypatch.setattr(rule_text, "_rules", slow_rules)
    result = run_benchmark("superlinear", *only)
    assert (result.exit_code, [*json.loads(result.stdout)["wrong"]]) == (1, [name])


@pytest.mark.nightly
def test_hostile_bodies_hold_up_no_other_request():
    result = run_benchmark(
        "superlinear", "--only", "check_rules application/json rules", "--no-files"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["inputs"] > 200  # in each field of a rule, and rules again and again
    assert found["longest_block_s"] <= 0.05
