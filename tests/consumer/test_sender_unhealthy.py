"""Notifications about a disabled receiver."""

from app.alerts.receiver import SETTINGS_RECEIVER_ID
from app.store import projects
from app.store.alerting import receivers
from tests.alerts.http_receiver import Answer, receiver
from tests.store.factories import webhook_receiver


def test_disabling_the_settings_receiver_notifies_every_project(notifier):
    with receiver() as removed, receiver() as hook:
        removed.answer = Answer(410)
        with notifier.store.write() as conn:
            projects.create_if_missing(conn, "research", now_s=100.0)
            of_all = webhook_receiver(SETTINGS_RECEIVER_ID, project=None, url=removed.url)
            receivers.put_settings_receiver(conn, of_all)
        for project in ("default", "research"):
            notifier.add_receiver(f"of_{project}", f"{hook.url}/{project}", project=project)
        notifier.fire()
        notifier.dispatch()
        paths = [path for path, _, body in hook.requests if b"notifier.unhealthy" in body]
    assert sorted(path.rpartition("/")[2] for path in paths) == ["default", "research"]
    named = ("project", "action", "object_id")
    disabled = {row for row in notifier.rows("audit", *named) if row[1] == "endpoint.disable"}
    assert disabled == {(each, "endpoint.disable", "settings") for each in ("default", "research")}
