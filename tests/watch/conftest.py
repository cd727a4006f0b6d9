"""A watch over a real store, with a manual clock and receivers on loopback."""

import json
from typing import Any

import pytest

from app.store import shards
from app.store.alerting import service_watches
from app.watch.service_watch import ServiceWatch, WatchLimits
from tests.consumer.conftest import hook, migrated_file, new_url
from tests.consumer.notifier import NotifierTwin

__all__ = ["hook", "migrated_file", "new_url"]  # fixtures

LIMIT_S = 300.0
CANARY_LIMIT_S = 600.0


class WatchedService:
    """A notifier twin, as the senders of consumers, with the watches of two API processes."""

    def __init__(self, url, hook, **limits):
        self.hook = hook
        self.notifier = NotifierTwin(url)
        self.clock, self.store = self.notifier.clock, self.notifier.store
        values = {"consumers_dead_after_s": LIMIT_S, "canary_missing_after_s": CANARY_LIMIT_S}
        self.watches = [
            ServiceWatch(
                self.notifier.context, WatchLimits(**values | limits), is_migrated=lambda: True
            )
            for _ in range(2)
        ]

    def close(self):
        for watch in self.watches:
            watch.close()
        self.notifier.close()

    def watch(self, seconds=0.0, *, turns=True, every_s=20.0):
        """Both processes watch for so long, while a consumer turns, or its heartbeats go on."""
        until_s = self.clock() + seconds
        while True:
            self.beat(turns=turns)
            for watch in self.watches:
                watch.turn()
                watch.settle()
            if self.clock() >= until_s:
                return
            self.notifier.pass_time(every_s)

    def beat(self, *, turns):
        with self.store.write() as conn:
            shards.heartbeat(conn, "one", now_s=self.clock(), lease_s=15.0, has_turned=turns)

    def end_round(self, missing=None):
        """A round of the canary, found or not."""
        with self.store.write() as conn:
            number = service_watches.claim_round(
                conn, now_s=self.clock(), every_s=0.0, lease_s=60.0
            )
            assert number is not None
            service_watches.finish_round(
                conn, number, now_s=self.clock(), took_s=1.5, missing=missing, num_shards=4
            )
        return number

    def said(self):
        """Type and sentence of each message that the hook has got."""
        bodies = (json.loads(body) for _, _, body in self.hook.requests)
        return [(body["type"], body["data"]["sentence"]) for body in bodies]


@pytest.fixture
def make_service(new_url, hook):
    made: list[Any] = []

    def make(**limits):
        made.append(WatchedService(new_url(), hook, **limits))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def service(make_service):
    """A service with one receiver of alerts, in which a consumer has turned."""
    service = make_service()
    service.notifier.add_receiver("hook", service.hook.url)
    service.watch()
    return service
