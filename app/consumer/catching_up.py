"""What fires, told to endpoints that want it only since others were told."""

from app.alerts.plan import Plan
from app.consumer import messages
from app.consumer.desk import Desk
from app.consumer.scene import Scene
from app.consumer.standings import last_of
from app.store import newcomers
from app.store.alert_groups import Group
from app.store.engine import Connection


def catch_up(
    conn: Connection, desk: Desk, group: Group, scene: Scene, plan: Plan, now_s: float
) -> int:
    """How many messages it takes."""
    if not plan.loud:
        return 0
    since_s = newcomers.of_group(conn, group.job_id, group.rule, now_s=now_s)
    num_messages = 0
    for endpoint in (each for each in scene.receivers if each.endpoint_id in since_s):
        draft = plan.for_newcomer(last_of(scene.told), since_s[endpoint.endpoint_id])
        drafts = [] if draft is None else [draft]
        written = messages.write(conn, desk, group, [endpoint], drafts, now_s)
        num_messages += written.kinds.total()
    return num_messages
