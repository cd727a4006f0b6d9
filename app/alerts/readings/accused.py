"""Which finding of a window names a worker or a host.

Looked up and not searched for: a large job may have as many culprits as workers, and an alert for
each of very many of them.
"""

from collections.abc import Mapping, Sequence

from app.alerts.readings.culprits import Culprit, Finding, Worker, host_of, labels_of

_Named = tuple[int | None, int | None, str | None]  # dp rank, stage, host: what it is, or any


class Accused:
    """All whom these findings name; of several findings the first counts, the most costly.

    `hosts` are the hosts of the run's workers, as far as known.
    """

    def __init__(self, findings: Sequence[Finding], hosts: Mapping[Worker, str]) -> None:
        self._findings = findings
        self._hosts = hosts
        self._labels: dict[int, dict[str, str]] = {}
        self._places: dict[_Named, int] = {}
        self._on_hosts: dict[str, int] = {}
        for at, finding in enumerate(findings):
            for culprit in finding["culprits"]:
                self._places.setdefault(_named(culprit), at)
                if (host := host_of(culprit, hosts)) is not None:
                    self._on_hosts.setdefault(host, at)

    def by_worker(self, worker: Worker) -> Finding | None:
        """The finding that names the worker, its dp rank, its stage, or its host as a whole."""
        dp_rank, stage = worker
        ways = [(dp_rank, stage, None), (dp_rank, None, None), (None, stage, None)]
        host = self._hosts.get(worker)
        wholes: list[_Named] = [] if host is None else [(None, None, host)]
        found = [self._places[each] for each in (*ways, *wholes) if each in self._places]
        return self._findings[min(found)] if found else None

    def by_host(self, host: str) -> Finding | None:
        """The finding that names the host, or a worker on it."""
        at = self._on_hosts.get(host)
        return None if at is None else self._findings[at]

    def labels(self, finding: Finding) -> Mapping[str, str]:
        """Cause, worker and host of one of the findings, each only if it names exactly one."""
        if id(finding) not in self._labels:
            self._labels[id(finding)] = labels_of(finding, self._hosts)
        return self._labels[id(finding)]


def _named(culprit: Culprit) -> _Named:
    dp_rank, stage = culprit.get("dp_rank"), culprit.get("stage")
    is_host = dp_rank is None and stage is None
    return dp_rank, stage, culprit.get("host") if is_host else None
