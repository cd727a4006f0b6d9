"""The benchmark `journey`: what is counted, and that every journey has figures."""

import json

from app.engine.memory import keep_freed_memory
from app.errors import PacelineError
from app.trace.job import job_key
from benchmarks.journey import AIMS, APP, Calls, CallTracer
from tests.benchmarks.running import run_benchmark


def test_file_changes_are_counted_per_thread_in_both_directions():
    names, memory = job_key.__code__, keep_freed_memory.__code__
    calls = Calls()
    calls.by_thread[1] += [names, memory, names, names]
    calls.by_thread[2] += [memory]
    assert calls.figures() == {"files": 2, "functions": 2, "changes": 2}
    assert calls.pairs == {("engine/memory.py", "trace/job.py"): 2}


def test_only_calls_into_app_are_counted():
    tracer = CallTracer()
    with tracer.tracing() as calls:
        json.dumps([job_key("default", each) for each in ("one", "two")])
    assert [code.co_name for code in calls.codes] == ["job_key", "job_key"]
    assert APP.name == PacelineError.__module__.partition(".")[0]


def test_every_journey_has_figures_and_is_compared_with_its_aim():
    done = run_benchmark("journey", "--json", "-", "--detail", "--only", "post")
    figures, *detail = done.stdout.splitlines()
    found = json.loads(figures)
    assert list(found) == list(AIMS)
    for name, each in found.items():
        assert 0 < each["files"] <= each["functions"], name
        assert each["missed"] is (
            each["files"] > each["aim_files"]
            or (each["aim_changes"] is not None and each["changes"] > each["aim_changes"])
        )
    assert done.exit_code == (1 if any(each["missed"] for each in found.values()) else 0)
    assert any(line.strip().startswith("post: calls") for line in detail)
