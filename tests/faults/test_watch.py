"""Rows 81 to 83 of the fault matrix with real processes: the service says itself that it is broken.

`python -m benchmarks watch` does the same with ten rounds of the canary, and with a killed queue.
"""

import pytest

from tests.harness.processes import wait_until
from tests.harness.stack import default_store
from tests.harness.watching import (
    DEAD_AFTER_S,
    FIND_NOTHING,
    ROUND_WITHIN_S,
    WatchedStack,
    watched_stack,
)

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with watched_stack(tmp_path_factory.mktemp("watched"), default_store()) as watched:
        yield watched


@pytest.fixture
def watched(shared):
    yield shared
    shared.stack.restart_patched()
    wait_until(lambda: shared.canary_state() == "found", "the canary is found", ROUND_WITHIN_S)
    wait_until(lambda: shared.is_quiet(), "no outage is left", ROUND_WITHIN_S)


def test_killed_consumers_are_told_once_and_told_when_they_are_back(watched: WatchedStack):
    before = len(watched.told("service.down")), len(watched.told("service.up"))
    watched.stack.kill(*watched.stack.consumers)
    wait_until(
        lambda: len(watched.told("service.down")) > before[0], "people are told", DEAD_AFTER_S + 30
    )
    for name in watched.stack.consumers:
        watched.stack.start(name)
    wait_until(lambda: len(watched.told("service.up")) > before[1], "people are told", 120)
    assert len(watched.told("service.down")) == before[0] + 1
    assert len(watched.told("service.up")) == before[1] + 1


def test_frozen_consumers_make_the_canary_missing(watched: WatchedStack):
    for name in watched.stack.consumers:
        watched.stack.processes[name].freeze()
    wait_until(lambda: watched.canary_state() == "missing", "it is missing", ROUND_WITHIN_S)
    # Missing by the time since it was found, while the round that tells why still waits.
    wait_until(
        lambda: "no window is stored" in (watched.stack.get("/status")["canary"]["detail"] or ""),
        "it is told why",
        ROUND_WITHIN_S,
    )


def test_blind_detectors_make_the_canary_missing(watched: WatchedStack):
    for name in watched.stack.consumers:
        watched.stack.restart(name, FIND_NOTHING)
    wait_until(lambda: watched.canary_state() == "missing", "it is missing", ROUND_WITHIN_S)
    wait_until(lambda: len(watched.told("service.down", part="canary")) > 0, "people are told", 120)
