"""`python -m benchmarks page-under-load`: its figures; speed is not tested."""

from benchmarks.service.page_load import PAGE_REQUESTS, Probe, TimedRequest, page_figures
from benchmarks.service.stack import StackUnderTest

TARGET = StackUnderTest(1, "pl_token", None, "redis://")


def test_figures_are_over_all_and_by_request_and_count_what_failed():
    quick = [TimedRequest("fleet", 200, 0.010)] * 99
    found = page_figures([*quick, TimedRequest("job", 503, 0.5)])
    assert (found["requests"], found["over_bar"], found["failed"]) == (100, 1, {"503": 1})
    assert found["p50_ms"] == 10.0
    assert found["by_request"]["job"] == {"p50_ms": 500.0, "p99_ms": 500.0, "max_ms": 500.0}


def test_request_without_an_answer_counts_as_failed():
    assert page_figures([TimedRequest("job", 0, 30.0)])["failed"] == {"0": 1}


def test_alert_is_acknowledged_and_released_among_the_requests_of_pages():
    asked = Probe(TARGET, "0123456789abcdef", "ep_1").requests()
    methods = [method for _, method, _ in asked]
    assert len(asked) == len(PAGE_REQUESTS) + 2
    assert methods.index("POST") < methods.index("DELETE")
