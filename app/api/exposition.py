"""What is known of the whole service, as samples for /metrics; what is not known has none."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from app.ingest.queue import Lag
from app.store.notifying import Notifying, is_outcome
from app.store.service_state import ServiceState

_COUNTS = {
    "accepted": "Operations taken into windows.",
    "duplicate": "Operations in batches that had been taken before.",
    "conflict": "Operations in batches that came again with another content; the first one stands.",
    "late": "Operations that came when their window could no longer be revised.",
    "dead": "Operations in entries that nobody could take; see paceline_dead_letters.",
}
_TOTALS = {
    "fenced_commits": "Commits refused because another consumer owned the shard.",
    "ops_replayed": "Operations of dead letters that were put back into the queue.",
    "entries_lost": "Entries that the queue had acknowledged and no longer held.",
}
_NAME = re.compile(r"[a-z][a-z_]*")


@dataclass(frozen=True, slots=True)
class Snapshot(Collector):
    """Samples of one moment; None is what could not be read."""

    state: ServiceState | None
    lag: Lag | None
    num_shards: int
    allow_lossy: bool

    @override
    def collect(self) -> Iterator[Metric]:
        yield _gauge("shards", "Parts of the event queue.", self.num_shards)
        yield _gauge("lossy_allowed", "1 if batches may be lost in a crash.", self.allow_lossy)
        if self.state is not None:
            yield from _of_store(self.state)
        if self.lag is not None:
            yield from _of_queue(self.lag)


def _of_store(state: ServiceState) -> Iterator[Metric]:
    for name, told in _COUNTS.items():
        yield _counter(f"ops_{name}", told, getattr(state.counts, name))
    lost = "Batches that were skipped by their worker's later ones and never came."
    yield _counter("batches_lost", lost, state.counts.lost_batches)
    for name, value in ({**dict.fromkeys(_TOTALS, 0), **state.totals}).items():
        if _NAME.fullmatch(name) and not is_outcome(name):
            yield _counter(name, _TOTALS.get(name, "A count of the whole service."), value)
    yield _gauge("dead_letters", "Dead letters that nobody has dealt with.", state.dead_letters)
    yield _gauge("outbox_due", "Alert messages that are still to be sent.", state.outbox_due)
    age_s = state.outbox_oldest_s or 0.0
    yield _gauge("outbox_oldest_seconds", "Age of the oldest of these; 0 if none.", age_s)
    yield from _of_telling(state.notifying)
    yield _gauge("consumers_alive", "Consumers whose lease holds.", state.live_consumers)
    unheld = len(state.unheld_shards)
    yield _gauge("shards_unheld", "Parts of the queue that no consumer works on.", unheld)


def _of_telling(told: Notifying) -> Iterator[Metric]:
    firing = "Alerts that fire now, of all projects."
    family = GaugeMetricFamily("paceline_alerts_firing", firing, labels=["severity"])
    for severity, number in told.firing.items():
        family.add_metric([severity], number)
    yield family
    outcomes = "Messages about alerts by what became of them; retried are attempts."
    counted = CounterMetricFamily("paceline_webhook_deliveries", outcomes, labels=["outcome"])
    for outcome, number in told.outcomes.items():
        counted.add_metric([outcome], number)
    yield counted
    disabled = "Receivers of alerts that were given up, until a person enables them."
    yield _gauge("notifier_disabled_endpoints", disabled, told.disabled_endpoints)


def _of_queue(lag: Lag) -> Iterator[Metric]:
    yield _by_shard(
        "queue_entries", "Batches that wait in the queue, or are worked on.", lag.entries
    )
    oldest_s = [age_s or 0.0 for age_s in lag.oldest_s]
    yield _by_shard("queue_oldest_seconds", "How long the oldest of these waits.", oldest_s)
    full = "Parts of the queue that take no batch until consumers have caught up."
    yield _gauge("queue_full_shards", full, len(lag.full))
    if lag.memory_bytes is not None:
        yield _gauge("queue_memory_bytes", "Memory that the queue uses.", lag.memory_bytes)
    if lag.memory_limit_bytes is not None:
        limit = "Memory that the queue may use."
        yield _gauge("queue_memory_limit_bytes", limit, lag.memory_limit_bytes)


def _counter(name: str, told: str, value: float) -> Metric:
    return CounterMetricFamily(f"paceline_{name}", told, value=value)


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(f"paceline_{name}", told, value=value)


def _by_shard(name: str, told: str, values: Sequence[float]) -> Metric:
    family = GaugeMetricFamily(f"paceline_{name}", told, labels=["shard"])
    for shard, value in enumerate(values):
        family.add_metric([str(shard)], value)
    return family
