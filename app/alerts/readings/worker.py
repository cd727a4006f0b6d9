"""How much slower the job is because of one worker alone: S_w of the model, exactly."""

from collections.abc import Mapping

from typing_extensions import override

from app.alerts.facts import WindowFacts
from app.alerts.readings.culprits import Finding, name, place_of
from app.alerts.readings.figure import Figure, share_of_ratio
from app.alerts.readings.matching import matching
from app.alerts.rule import Rule


class Worker(Figure):
    """For each worker, called as its page is: "3-1" is dp rank 3 in stage 1."""

    on = "worker"
    unit = "ratio"
    rest = 1.0
    has_subjects = True

    @override
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        slowdowns = facts.result["worker_slowdown"]
        of_worker = {
            name(dp_rank, stage): slowdown
            for dp_rank, of_stages in enumerate(slowdowns)
            for stage, slowdown in enumerate(of_stages)
        }
        return matching(rule.of, of_worker)

    @override
    def blame(self, facts: WindowFacts, subject: str) -> Finding | None:
        return facts.accused.by_worker(place_of(subject))

    @override
    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        return share_of_ratio(value)

    @override
    def labels(self, facts: WindowFacts, subject: str) -> Mapping[str, str]:
        host = facts.hosts.get(place_of(subject))
        return {"worker": subject} | ({"host": host} if host else {})
