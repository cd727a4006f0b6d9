"""Row 50 of the fault matrix with real processes: whoever tells people dies, and nobody misses it.

`python -m benchmarks alerts --part crashes` does the same a hundred times.
"""

import pytest

from tests.faults import sabotage
from tests.harness.alerts.crashes import (
    NOTIFIED_WITHIN_S,
    Killer,
    crash_at_points,
    crash_at_random,
    crash_verdict,
)
from tests.harness.alerts.listener import FlakyReplies, webhook_listener
from tests.harness.alerts.receivers import RECEIVERS, SHAKY, add_receivers, settings_for
from tests.harness.alerts.slow_jobs import SlowJobs
from tests.harness.stack import Stack, usual_store


@pytest.fixture(scope="module")
def heard():
    with webhook_listener(FlakyReplies([SHAKY.name])) as heard:
        yield heard


@pytest.fixture(scope="module")
def telling(heard, tmp_path_factory):
    directory = tmp_path_factory.mktemp("telling")
    settings = settings_for(heard, directory)
    with Stack(directory, store=usual_store(), num_consumers=2, settings=settings) as stack:
        add_receivers(stack, heard)
        yield stack


def tried(telling, heard, name, crash, *given, within_s=NOTIFIED_WITHIN_S, **more):
    killer, callers = Killer(telling), SlowJobs(telling, heard, name, within_s)
    return crash_verdict(killer, callers, crash(killer, *given, **more))


def patch(deed):
    return f"{sabotage.__name__}:{deed.__name__}"


def has(found, complaint):
    return any(each.startswith(complaint) for each in found["wrong"])


def test_row_50_consumer_killed_at_any_notification_point_loses_no_alert(telling, heard):
    found = tried(telling, heard, "points", crash_at_points, 1, seed=1)
    assert found["wrong"] == []
    assert found["crashes"] == 4
    assert found["owed"] > len(RECEIVERS)


@pytest.mark.long
def test_row_50_consumers_killed_at_random_lose_no_alert(telling, heard):
    found = tried(telling, heard, "random", crash_at_random, 4, seed=1)
    assert found["wrong"] == []
    assert found["owed"] > len(RECEIVERS)
    assert found["silences"] > 0


@pytest.mark.long
def test_messages_marked_delivered_before_the_post_are_detected(telling, heard):
    patches = [patch(sabotage.mark_before_post)]
    given = {"seed": 1, "points": ["after_claim"], "patches": patches, "within_s": 20.0}
    found = tried(telling, heard, "marked", crash_at_points, 2, **given)
    assert has(found, "lost")
