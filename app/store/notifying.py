"""How telling people goes, over all projects: what fires, and which receivers take nothing."""

from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy import Connection, func, select

from app.alerts.rule import Severity
from app.store import totals
from app.store.alert_tables import alerts, endpoints

# What became of a message, or of an attempt that another one follows.
Outcome = Literal["delivered", "retried", "failed", "silenced", "outdated"]
_TOTAL = "webhook_deliveries_"


@dataclass(frozen=True, slots=True)
class Notifying:
    """Alerts that fire by severity, endpoints that were given up, and outcomes since ever."""

    firing: dict[Severity, int]
    disabled_endpoints: int
    outcomes: dict[Outcome, int]


def read(conn: Connection) -> Notifying:
    """As it is now; nobody is named."""
    query = select(alerts.c.severity, func.count()).where(alerts.c.phase == "firing")
    rows = conn.execute(query.group_by(alerts.c.severity))
    firing = {row[0]: row[1] for row in rows}
    disabled = select(func.count()).where(endpoints.c.disabled_at_s.is_not(None))
    counted = totals.all(conn)
    return Notifying(
        firing={each: firing.get(each, 0) for each in get_args(Severity)},
        disabled_endpoints=int(conn.execute(disabled).scalar_one()),
        outcomes={each: counted.get(f"{_TOTAL}{each}", 0) for each in get_args(Outcome)},
    )


def count(conn: Connection, outcome: Outcome, number: int = 1) -> None:
    """So many messages, or attempts, have come to this."""
    if number:
        totals.add(conn, f"{_TOTAL}{outcome}", number)


def is_outcome(name: str) -> bool:
    """Whether a count of the service is one of these, which are told by outcome."""
    return name.startswith(_TOTAL)
