"""Row 50 of the fault matrix with real processes: notifying consumers die, no alert is lost.

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
from tests.harness.stack import Stack, default_store

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def inbox():
    with webhook_listener(FlakyReplies([SHAKY.name])) as inbox:
        yield inbox


@pytest.fixture(scope="module")
def stack(inbox, tmp_path_factory):
    directory = tmp_path_factory.mktemp("notifications")
    settings = settings_for(inbox, directory)
    with Stack(directory, store=default_store(), num_consumers=2, settings=settings) as stack:
        add_receivers(stack, inbox)
        yield stack


def verdict_of(stack, inbox, name, crash, *given, within_s=NOTIFIED_WITHIN_S, **more):
    killer, slow_jobs = Killer(stack), SlowJobs(stack, inbox, name, within_s)
    return crash_verdict(killer, slow_jobs, crash(killer, *given, **more))


def patch(function):
    return f"{sabotage.__name__}:{function.__name__}"


def has_complaint(found, complaint):
    return any(each.startswith(complaint) for each in found["wrong"])


def test_row_50_consumer_killed_at_any_notification_point_loses_no_alert(stack, inbox):
    found = verdict_of(stack, inbox, "points", crash_at_points, 1, seed=1)
    assert found["wrong"] == []
    assert found["crashes"] == 4
    assert found["owed"] > len(RECEIVERS)


def test_row_50_consumers_killed_at_random_lose_no_alert(stack, inbox):
    found = verdict_of(stack, inbox, "random", crash_at_random, 4, seed=1)
    assert found["wrong"] == []
    assert found["owed"] > len(RECEIVERS)
    assert found["silences"] > 0


def test_messages_marked_delivered_before_the_post_are_detected(stack, inbox):
    patches = [patch(sabotage.mark_before_post)]
    given = {"seed": 1, "points": ["after_claim"], "patches": patches, "within_s": 20.0}
    found = verdict_of(stack, inbox, "marked", crash_at_points, 2, **given)
    assert has_complaint(found, "lost")
