"""An outbox, for tests of what is sent when."""

from app.store.alerting import deliveries, outbox, receivers
from tests.store import factories

LEASE_S = 30.0


class Box:
    """The outbox of a store; notice ids describe the messages. Adds receivers that are new."""

    def __init__(self, store):
        self._store = store
        self._known = set()

    def add(self, notice="{}", *, to="hook", now_s=100.0, project="default", **given):
        form = {"format": given.pop("format", "standard")}
        with self._store.write() as conn:
            if to not in self._known:
                self._known.add(to)
                receivers.add(conn, factories.webhook_receiver(to, project=project, **form))
            given = {"job_id": f"{project}/job", "notice_id": notice} | given
            return factories.add_message(conn, to, now_s=now_s, project=project, **given)

    def claim(self, now_s=100.0, limit=100):
        with self._store.write() as conn:
            return outbox.claim(conn, now_s=now_s, lease_s=LEASE_S, limit=limit)

    def fail(self, delivery, *, now_s=100.0, next_at_s=10_000.0):
        with self._store.write() as conn:
            outbox.mark_failed(conn, delivery, detail="HTTP 500", next_at_s=next_at_s, now_s=now_s)

    def deliver(self, delivery, *, now_s=100.0):
        with self._store.write() as conn:
            outbox.mark_delivered(conn, delivery, now_s=now_s)

    def records(self):
        with self._store.read() as conn:
            return {each.notice_id: each for each in deliveries.page(conn, "default")[0]}

    def states(self):
        return {notice: each.state for notice, each in self.records().items()}

    def notices_of(self, found):
        names = {each.delivery_id: notice for notice, each in self.records().items()}
        return [names[each.delivery_id] for each in found]
