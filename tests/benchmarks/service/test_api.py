"""`python -m benchmarks api`: which addresses it requests, and the figures of their answers."""

import pytest

from app.errors import InvalidRequest
from app.store import fleet
from app.store.database import Store
from app.store.migrations import migrate
from benchmarks.service.api import EXCLUDED, TimedResponse, addresses, figures
from benchmarks.service.stored_jobs import STEPS, fill_store


def parameter(name, location="path", *, required=True, **schema):
    return {"name": name, "in": location, "required": required, "schema": schema}


def document(path="/api/v1/jobs/{job_id}/charts/{chart}", **asked):
    return {
        "paths": {path: {"get": {"operationId": "see", **asked}, "post": {"operationId": "do"}}}
    }


def test_every_choice_of_a_path_parameter_is_an_address():
    asked = [parameter("job_id"), parameter("chart", enum=["a", "b"]),
             parameter("theme", "query", required=False)]  # fmt: skip
    assert addresses(document(parameters=asked), {"job_id": ["llm 70/b"]}) == {
        "see": ["/api/v1/jobs/llm%2070%2Fb/charts/a", "/api/v1/jobs/llm%2070%2Fb/charts/b"]
    }


def test_required_query_parameters_take_their_example():
    asked = [parameter("job_id"), parameter("chart", examples=["a"]),
             parameter("stage", "query", examples=[3])]  # fmt: skip
    assert addresses(document(parameters=asked), {"job_id": ["j"]}) == {
        "see": ["/api/v1/jobs/j/charts/a?stage=3"]
    }


def test_parameter_without_a_known_value_is_refused_by_name():
    with pytest.raises(InvalidRequest, match="'chart'"):
        addresses(document(parameters=[parameter("chart")]), {})


def test_streams_and_paths_outside_the_api_are_excluded():
    assert addresses(document(operationId=EXCLUDED[0]), {}) == {}
    assert addresses(document("/healthz"), {}) == {}


def answers(took_s, busy_s=None):
    return [TimedResponse(each, busy_s) for each in took_s]


def test_percentiles_are_per_address_and_the_slowest_is_named():
    found = figures(
        {"/a": answers([0.001] * 100), "/b": answers([0.010] * 99 + [0.2])}, {"/c": 404}
    )
    assert found["by_address"]["/a"] == {"p50_ms": 1.0, "p99_ms": 1.0}
    assert found["by_address"]["/b"]["p50_ms"] == 10.0
    assert (found["addresses"], found["slowest"], found["over_100_ms"]) == (2, "/b", [])
    assert found["refused"] == {"/c": 404}
    slow = answers([0.010] * 98 + [0.2] * 2)
    assert figures({"/b": slow}, {})["over_100_ms"] == ["/b"]


def test_processor_time_of_the_api_is_reported_apart():
    found = figures({"/a": answers([0.5] * 3, busy_s=0.02)}, {})
    assert found["by_address"]["/a"] == {
        "p50_ms": 500.0, "p99_ms": 500.0, "busy_p50_ms": 20.0, "busy_p99_ms": 20.0
    }  # fmt: skip
    assert (found["over_100_ms"], found["busy_over_100_ms"]) == (["/a"], [])


def test_filled_store_has_fleet_lines_windows_and_losses(tmp_path):
    url = f"sqlite:///{tmp_path / 'filled.db'}"
    migrate(url)
    store = Store(url)
    fill_store(store, num_jobs=5, num_windows=12, now_s=1e9)
    with store.read() as conn:
        lines = fleet.lines(conn, "default")
        windows = fleet.last_windows(conn, [line.job_id for line in lines])
        lost = fleet.loss_by_job(conn, "default", 0.0)
    store.close()
    assert len(lines) == len(lost) == 5
    assert sum(len(each) for each in windows.values()) == 12
    assert all(line.brief for line in lines)
    assert {(line.last_step or 0) % STEPS for line in lines} == {STEPS - 1}
