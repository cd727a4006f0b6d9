"""The alert rules of every project, read again when somebody has changed them."""

from collections.abc import Sequence

import structlog

from app.alerts.rule import Rule
from app.store import alert_rules
from app.store.engine import Connection

log = structlog.get_logger()


class ProjectRules:
    """Rules by project; those of projects that have none of their own are `usual`."""

    def __init__(self, usual: Sequence[Rule]) -> None:
        self._usual = usual
        self._known: dict[str, Sequence[Rule]] = {}
        self._versions: dict[str, int] = {}

    def of(self, conn: Connection, project: str) -> Sequence[Rule]:
        """A project's rules, as they were when they were looked at last."""
        if project not in self._known:
            self._known[project] = self._loaded(conn, project)
        return self._known[project]

    def changed(self, conn: Connection) -> list[str]:
        """Projects whose rules have changed since this was asked; at first, all with their own."""
        versions = alert_rules.versions(conn)
        changed = [each for each in versions if versions[each] != self._versions.get(each)]
        for project in changed:
            self._known.pop(project, None)
        self._versions = versions
        return sorted(changed)

    def _loaded(self, conn: Connection, project: str) -> Sequence[Rule]:
        try:
            own = alert_rules.load(conn, project).rules
        except ValueError as error:
            # Written by a later release, or by hand: the usual ones are better than none.
            log.error("rules cannot be read", project=project, reason=str(error))
            own = None
        return self._usual if own is None else own
