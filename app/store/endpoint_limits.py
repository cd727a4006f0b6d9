"""How many endpoints a project may have: each is told of whatever happens to its jobs."""

from sqlalchemy import Connection, func, select

from app.alerts.endpoint import Endpoint
from app.alerts.formats.registry import knows_each_alert
from app.errors import Conflict
from app.store.alert_tables import endpoints

MAX_ENDPOINTS = 50
# Each is told of all the thousand alerts that a rule may have on a job, again and again.
MAX_PUSHED_TO = 5


def check_room(conn: Connection, endpoint: Endpoint) -> None:
    """See that the project may have one more.

    Raises:
        Conflict: it has as many as it may, at all or of this format.
    """
    check_pushes(conn, endpoint)
    mine = select(func.count()).where(endpoints.c.project == endpoint.project)
    if conn.execute(mine).scalar_one() >= MAX_ENDPOINTS:
        raise Conflict(f"the project has {MAX_ENDPOINTS} endpoints, the most it may have")


def check_pushes(conn: Connection, endpoint: Endpoint) -> None:
    """See that the project may have one more of this format; raises as `check_room` does."""
    if not knows_each_alert(endpoint.format):
        return
    others = select(func.count()).where(
        endpoints.c.project == endpoint.project,
        endpoints.c.format == endpoint.format,
        endpoints.c.endpoint_id != endpoint.endpoint_id,
    )
    if conn.execute(others).scalar_one() >= MAX_PUSHED_TO:
        raise Conflict(f"a project has at most {MAX_PUSHED_TO} endpoints of {endpoint.format}")
