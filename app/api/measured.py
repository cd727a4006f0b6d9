"""What one API process counts of its own work, for /metrics; no project, job or worker is named."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

# Around the promise: the middle of a batch's way is 2 to 10 ms, its end 2 s, where the queue is
# given up.
_ACK_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Measured:
    """Counters of one process, in a registry of its own.

    Every operation of a batch that can be read is received, and then refused or acknowledged. Of
    a batch that cannot, nobody knows how many it has: `requests` alone counts that. One that was
    refused because the queue did not answer may be in the queue all the same.
    """

    def __init__(self) -> None:
        # Without a second series for each counter, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._batches = self._counter("batches_received", "Batches that could be read.")
        self._refused_whole = self._counter(
            "batches_refused", "Those refused whole, by why.", "reason"
        )
        self._received = self._counter("ops_received", "Operations in batches that could be read.")
        self._refused = self._counter("ops_refused", "Those that were not taken, by why.", "reason")
        self._rejected_spans = self._counter("spans_rejected", "Spans (OTLP) that were not taken.")
        self._requests = self._counter("requests", "Answers, by route and status.", "route status")
        self._scrape_errors = self._counter(
            "scrape_errors", "Readings of store, queue or jobs that failed: not shown.", "source"
        )
        self._ack_s = Histogram(
            "paceline_ack_seconds",
            "From the whole of a batch's body to its 202.",
            registry=self.registry,
            buckets=_ACK_BUCKETS_S,
        )
        self._refused_rows = self._refused.labels("invalid")
        self._answers: dict[tuple[str, int], Counter] = {}
        for source in ("queue", "store", "jobs"):
            self._scrape_errors.labels(source)

    def batch(self, *, rows: int, refused: int, ack_s: float) -> None:
        """A batch was acknowledged; of its rows, so many broke a rule."""
        self._batches.inc()
        self._received.inc(rows)
        if refused:
            self._refused_rows.inc(refused)
        self._ack_s.observe(ack_s)

    def refuse(self, *, rows: int, reason: str) -> None:
        """A batch that could be read was refused whole; the reason is the problem's code."""
        self._batches.inc()
        self._refused_whole.labels(reason).inc()
        self._received.inc(rows)
        self._refused.labels(reason).inc(rows)

    def reject_spans(self, number: int) -> None:
        """So many spans of a request were not taken; the log has the reasons."""
        self._rejected_spans.inc(number)

    def request(self, route: str, status: int) -> None:
        """A request was answered; status 0 if the caller had gone before."""
        answers = self._answers.get((route, status))
        if answers is None:  # looked up once: `labels` costs more than all the rest
            answers = self._requests.labels(route, status)
            self._answers[route, status] = answers
        answers.inc()

    def scrape_failed(self, source: str) -> None:
        """The store or the queue could not be read for /metrics."""
        self._scrape_errors.labels(source).inc()

    def _counter(self, name: str, told: str, labels: str = "") -> Counter:
        return Counter(f"paceline_{name}", told, labels.split(), registry=self.registry)
