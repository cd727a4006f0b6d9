"""Damaged batches and bombs: no crash, no 5xx, no memory; the benchmark `fuzz` is the long form."""

import json
import subprocess

import pytest

from tests.benchmarks.running import run_benchmark
from tests.harness.fuzz.decoding import decode_status, result_of
from tests.harness.fuzz.payloads import ONE_BOMB_IN, Payloads

KINDS = {
    *("flipped", "cut", "spliced", "lengthened", "retyped", "repeated"),
    *("number", "text", "nested", "noise", "packed"),
}


@pytest.fixture(scope="module")
def payloads():
    return Payloads(seed=1)


@pytest.mark.nightly
def test_damaged_payloads_do_not_crash_the_decoding_process():
    command = ["fuzz", "--payloads=8000", "--seed=1", "--http-every=0"]
    result = run_benchmark(*command)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["wrong"] == []
    assert found["rss_growth_mb"] <= 64
    assert sum(found["by_status"].values()) == 8_000
    assert set(found["by_status"]) == {"202", "400", "413", "415", "422"}


@pytest.mark.nightly
def test_running_api_survives_damaged_payloads_and_bombs():
    command = ["fuzz", "--payloads=8000", "--seed=2", "--http-every=80"]
    result = run_benchmark(*command)
    assert result.exit_code == 0, result.output
    posted = json.loads(result.stdout)["http"]
    assert posted["requests"] == 100
    assert set(posted["by_status"]) <= {"202", "400", "413", "415", "422"}
    assert posted["rss_growth_mb"] <= 64


def test_damaged_payloads_are_decoded_or_refused(payloads):
    damaged = [payloads[number] for number in range(1, ONE_BOMB_IN)]
    assert {each.kind for each in damaged} == KINDS
    assert {decode_status(each) for each in damaged} == {202, 400, 415, 422}


def test_undamaged_payloads_are_accepted(payloads):
    assert {decode_status(payload) for payload in payloads.good} == {202}
    assert len(payloads.good) == 15


def test_seed_and_number_determine_the_payload(payloads):
    assert all(payloads[number] == Payloads(seed=1)[number] for number in range(1, 100))
    assert any(payloads[number] != Payloads(seed=2)[number] for number in range(1, 10))


def test_death_of_the_decoding_process_is_reported():
    command = ["/bin/sh", "-c", "kill -9 $$"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as died:
        assert result_of(died) == {"crashed": -9, "wrong": ["the reading process died"]}
