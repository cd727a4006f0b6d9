"""The alert rules of projects that have their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection, select, update

from app.alerts.rule import Rule
from app.alerts.rules.rule_in import MAX_RULES
from app.errors import InvalidRequest
from app.store.alerting.tables import alert_rules
from app.store.columns import checked_text
from app.store.database import insert
from app.trace.job import CANARY_PROJECT

log = structlog.get_logger()

MAX_TEXT_CHARS = 256 << 10
_RULES = alert_rules


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A project's rules; None if it has the service's rules.

    `version` grows with every change and is 0 for a project that never had rules; `updated_s` is
    when rules were last set. `text` is their source, with comments; None where there is none.
    """

    version: int
    rules: list[Rule] | None
    updated_s: float | None = None
    text: str | None = None


def load(conn: Connection, project: str, *, for_update: bool = False) -> RuleSet:
    """The project's rules; `for_update` locks their row until the transaction ends."""
    query = select(_RULES).where(_RULES.c.project == project)
    row = conn.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None:
        return RuleSet(0, None)
    return RuleSet(row.version, row.rules, row.updated_s, row.text)


def load_or_default(conn: Connection, project: str, default: Sequence[Rule]) -> Sequence[Rule]:
    """The project's rules; `default` if it has none, or none that this release can read.

    Canary jobs raise no alerts.
    """
    if project == CANARY_PROJECT:
        return ()
    try:
        own = load(conn, project).rules
    except ValueError as error:
        # Written by a later release, or by hand.
        log.error("rules cannot be read", project=project, reason=str(error))
        own = None
    return default if own is None else own


def versions(conn: Connection) -> dict[str, int]:
    """Version of the rules of each project that ever had its own."""
    rows = conn.execute(select(_RULES.c.project, _RULES.c.version))
    return {row.project: row.version for row in rows}


def replace_all(
    conn: Connection, project: str, rules: Sequence[Rule], *, text: str, now_s: float
) -> int:
    """Replace the rules; returns their version. Raises InvalidRequest if too many or long."""
    if len(rules) > MAX_RULES:
        raise InvalidRequest(f"{len(rules)} rules: a project may have at most {MAX_RULES}")
    checked_text("rules", text, MAX_TEXT_CHARS)
    values = {"rules": list(rules), "text": text, "updated_s": now_s}
    statement = insert(conn, _RULES).values(project=project, version=1, **values)
    statement = statement.on_conflict_do_update(
        index_elements=[_RULES.c.project], set_={**values, "version": _RULES.c.version + 1}
    )
    return int(conn.execute(statement.returning(_RULES.c.version)).scalar_one())


def reset(conn: Connection, project: str) -> None:
    """Remove the project's rules: the service's rules apply again."""
    own = update(_RULES).where(_RULES.c.project == project, _RULES.c.rules.is_not(None))
    conn.execute(own.values(version=_RULES.c.version + 1, rules=None, text=None))
