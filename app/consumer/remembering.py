"""What a plan has told, written down: nothing that nobody heard of."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from app.alerts.plan import Last, Plan
from app.consumer.messages import Written
from app.consumer.scene import Scene
from app.consumer.standings import told_rows
from app.store import alert_told
from app.store.alert_groups import Group
from app.store.alert_told import ToldRow
from app.store.engine import Connection

_AT_REST = ("resolved", "lapsed")


def begun(plan: Plan, told: Mapping[str, ToldRow]) -> set[str]:
    """Alerts that are news, and of which nothing was told nor asked since they began to fire."""
    known = {fingerprint for fingerprint, row in told.items() if row.kind != "resolved"}
    fired = {each for draft in plan.drafts for each, news in draft.news.items() if news == "firing"}
    return fired - known


def remember(
    conn: Connection,
    group: Group,
    scene: Scene,
    plan: Plan,
    written: Written,
    asked: Collection[str],
) -> None:
    """What nobody was told is still to be told, to whoever comes; that something is over is not.

    Of the alerts `asked` about, a tool was asked to act: that is not asked again.
    """
    after = dict(_after(scene, plan, written, asked))
    alert_told.save(conn, group.job_id, group.rule, told_rows(scene.alerts, after, scene.told))
    alert_told.forget(conn, plan.forgotten)


def _after(
    scene: Scene, plan: Plan, written: Written, asked: Collection[str]
) -> Iterator[tuple[str, Last]]:
    known = {each for each, row in scene.told.items() if row.kind not in _AT_REST}
    for fingerprint, last in plan.told.items():
        # A repeat that only others wanted is one of this alert, too: else it would come each time.
        is_heard = fingerprint in written.about or (written.is_notice and fingerprint in known)
        if last.kind != "firing" or is_heard:
            yield fingerprint, last
        elif fingerprint in asked:
            yield fingerprint, replace(last, kind="lapsed")
