"""All that planning one group of alerts looks at, as the store has it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.alerts.alert import AlertState
from app.alerts.endpoint import Endpoint
from app.alerts.inhibition import inhibited
from app.alerts.labels import relabelled
from app.alerts.plan import Standing
from app.alerts.rule import Rule
from app.consumer.project_rules import ProjectRules
from app.consumer.standings import standings
from app.store import alert_told, alerts, endpoints, jobs
from app.store.alert_groups import Group
from app.store.alert_told import ToldRow
from app.store.engine import Connection
from app.trace.names import project_of


@dataclass(frozen=True, slots=True)
class Scene:
    """The group's alerts, what was told of them, which others keep back, and who may be told.

    `rule` is None once it was removed.
    """

    alerts: Sequence[Standing]
    told: dict[str, ToldRow]
    inhibited: set[str]
    rule: Rule | None
    receivers: Sequence[Endpoint]


def scene_of(conn: Connection, usual: Sequence[Rule], group: Group, now_s: float) -> Scene:
    """The group now; `usual` are the rules of projects that have none of their own."""
    project = project_of(group.job_id)
    of_job = alerts.of_job(conn, group.job_id)
    rules = ProjectRules(usual).of(conn, project)
    rule = next((rule for rule in rules if rule.name == group.rule), None)
    told = alert_told.of_group(conn, group.job_id, group.rule)
    mine = [state for state in of_job if state.rule == group.rule]
    if rule is not None and mine:
        mine = _as_ruled(mine, rule, jobs.get(conn, group.job_id).labels)
    receivers = [each for each in endpoints.for_project(conn, project) if each.is_enabled]
    return Scene(
        standings(conn, mine, told, now_s), told, inhibited(of_job, rules), rule, receivers
    )


def _as_ruled(
    states: Iterable[AlertState], rule: Rule, of_job: Mapping[str, str]
) -> list[AlertState]:
    """The alerts with what their rule says of them now: it may have changed since they began."""
    return [
        replace(
            state,
            severity=rule.severity,
            labels=relabelled(state, rule, of_job),
            runbook_url=rule.runbook_url,
        )
        for state in states
    ]
