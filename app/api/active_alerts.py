"""Alerts as they stand now, with who keeps them back: a silence, or another alert."""

from collections.abc import Iterable, Sequence

from app.alerts.alert import AlertState
from app.alerts.inhibition import inhibited
from app.alerts.rule import Rule
from app.alerts.silence import Silence
from app.api.alert_out import ActiveAlertOut, active
from app.api.principal import Principal
from app.api.service import Service
from app.store import alert_rules, alerts, muting
from app.store.engine import Connection

MAX_NAMED = 20  # of the silences, and of the alerts, that keep one back


def rules_in_force(conn: Connection, service: Service, project: str) -> Sequence[Rule]:
    """The project's own rules, or what the service says for projects that have none."""
    own = alert_rules.load(conn, project).rules
    return service.in_force.rules if own is None else own


def active_alerts(
    conn: Connection, service: Service, project: str, states: Sequence[AlertState]
) -> list[ActiveAlertOut]:
    """These alerts of a project as the API says them, in their order."""
    if not states:
        return []
    now_s = service.database_time(conn)
    silences = muting.active(conn, project, now_s=now_s)
    rules = {rule.name: rule for rule in rules_in_force(conn, service, project)}
    of_jobs = {job_id: alerts.of_job(conn, job_id) for job_id in {state.job_id for state in states}}
    kept_back = {
        fingerprint
        for of_job in of_jobs.values()
        for fingerprint in inhibited(of_job, rules.values())
    }
    return [
        active(
            state,
            silenced_by=_silenced_by(state, silences, now_s),
            inhibited_by=_inhibited_by(state, of_jobs[state.job_id], rules)
            if state.fingerprint in kept_back
            else [],
        )
        for state in states
    ]


def one_active(
    conn: Connection, service: Service, caller: Principal, fingerprint: str
) -> ActiveAlertOut:
    """An alert of the caller's as the API says it.

    Raises:
        AlertNotFound: there is none, or it is at rest.
    """
    state = alerts.get(conn, caller.project, fingerprint)
    return active_alerts(conn, service, caller.project, [state])[0]


def _silenced_by(state: AlertState, silences: Iterable[Silence], now_s: float) -> list[str]:
    muted = (each.silence_id for each in silences if each.mutes(state.labels, now_s))
    return list(muted)[:MAX_NAMED]


def _inhibited_by(
    state: AlertState, of_job: Iterable[AlertState], rules: dict[str, Rule]
) -> list[str]:
    host = state.labels.get("host")
    found = []
    for other in of_job:
        rule = rules.get(other.rule)
        if other.phase != "firing" or rule is None or other.fingerprint == state.fingerprint:
            continue
        if state.rule in rule.inhibits or (rule.on == "host" and other.subject == host):
            found.append(other.fingerprint)
    return found[:MAX_NAMED]
