"""A host by its worst worker: as slow as the job is because of that worker alone.

So a rule on hosts fires wherever one on workers with the same threshold does, and can speak for it.
"""

from collections.abc import Mapping

from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.culprits import Finding
from app.alerts.readings.figure import Figure, share_of_ratio
from app.alerts.readings.matching import matching
from app.alerts.rule import Rule


class Host(Figure):
    """For each host by its name; nothing where workers do not name their hosts."""

    on = "host"
    unit = "ratio"
    rest = 1.0
    has_subjects = True

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        slowdowns = facts.result["worker_slowdown"]
        of_host: dict[str, float] = {}
        for (dp_rank, stage), host in facts.hosts.items():
            if dp_rank < len(slowdowns) and stage < len(slowdowns[dp_rank]):
                of_host[host] = max(of_host.get(host, 0.0), slowdowns[dp_rank][stage])
        return matching(rule.of, of_host)

    @override
    def blame(self, facts: WindowFacts, subject: str) -> Finding | None:
        return facts.accused.by_host(subject)

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return share_of_ratio(value)

    @override
    def labels(self, facts: WindowFacts, subject: str) -> Mapping[str, str]:
        return {"host": subject}
