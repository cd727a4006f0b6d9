"""Which rules watch a project's jobs, where it has its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from app.alerts.rule import Rule
from app.errors import InvalidRequest
from app.store.alert_json import rules_json, rules_of
from app.store.alert_tables import alert_rules
from app.store.texts import checked
from app.store.upsert import insert

MAX_RULES = 200
MAX_TEXT_CHARS = 256 << 10
_TABLE = alert_rules


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A project's rules; None where it goes by the service's own.

    `version` grows with every change, from 0 of a project that never had any; `updated_s` is when
    rules were last given.
    """

    version: int
    rules: list[Rule] | None
    updated_s: float | None = None


def load(conn: Connection, project: str, *, is_held: bool = False) -> RuleSet:
    """The project's rules as they are now; nobody else changes them meanwhile if they are held."""
    query = select(_TABLE).where(_TABLE.c.project == project)
    row = conn.execute(query.with_for_update() if is_held else query).one_or_none()
    if row is None:
        return RuleSet(0, None)
    rules = None if row.rules is None else rules_of(row.rules)
    return RuleSet(row.version, rules, row.updated_s)


def versions(conn: Connection) -> dict[str, int]:
    """The version of each project's rules, of those that ever had their own."""
    rows = conn.execute(select(_TABLE.c.project, _TABLE.c.version))
    return {row.project: row.version for row in rows}


def text(conn: Connection, project: str) -> str | None:
    """The rules as somebody wrote them, comments and all; None where the project has none."""
    query = select(_TABLE.c.text).where(_TABLE.c.project == project)
    found: str | None = conn.execute(query).scalar_one_or_none()
    return found


def replace_all(
    conn: Connection, project: str, rules: Sequence[Rule], *, text: str, now_s: float
) -> int:
    """Watch by these rules and no others from now on; returns their version.

    Raises:
        InvalidRequest: more rules, or a longer text, than a project may have.
    """
    if len(rules) > MAX_RULES:
        raise InvalidRequest(f"{len(rules)} rules: a project may have {MAX_RULES}")
    checked("rules", text, MAX_TEXT_CHARS)
    values = {"rules": rules_json(rules), "text": text, "updated_s": now_s}
    statement = insert(conn, _TABLE).values(project=project, version=1, **values)
    statement = statement.on_conflict_do_update(
        index_elements=[_TABLE.c.project], set_={**values, "version": _TABLE.c.version + 1}
    )
    return int(conn.execute(statement.returning(_TABLE.c.version)).scalar_one())


def reset(conn: Connection, project: str) -> None:
    """Go by the service's own rules again."""
    mine = update(_TABLE).where(_TABLE.c.project == project, _TABLE.c.rules.is_not(None))
    conn.execute(mine.values(version=_TABLE.c.version + 1, rules=None, text=None))
