"""An endpoint that is given up: who hears of it."""

import shutil

import pytest

from app.alerts.endpoint import OF_SETTINGS
from app.store import endpoints, projects
from tests.alerts.receiver import Answer, receiver
from tests.consumer.tellers import Tellers
from tests.store.factories import endpoint


@pytest.fixture
def tellers(migrated_file, tmp_path):
    path = shutil.copy(migrated_file, tmp_path / "tellers.db")
    tellers = Tellers(f"sqlite:///{path}")
    yield tellers
    tellers.close()


def test_when_that_of_the_settings_is_given_up_every_project_is_told(tellers):
    with receiver() as gone, receiver() as hook:
        gone.answer = Answer(410)
        with tellers.store.write() as conn:
            projects.make(conn, "research", now_s=100.0)
            of_all = endpoint(OF_SETTINGS, project=None, url=gone.url)
            endpoints.put_settings_endpoint(conn, of_all)
        for project in ("default", "research"):
            tellers.endpoint(f"of_{project}", f"{hook.url}/{project}", project=project)
        tellers.fire()
        tellers.tell()
        heard = [path for path, _, body in hook.requests if b"notifier.unhealthy" in body]
    assert sorted(path.rpartition("/")[2] for path in heard) == ["default", "research"]
    named = ("project", "action", "object_id")
    disabled = {row for row in tellers.rows("audit", *named) if row[1] == "endpoint.disable"}
    assert disabled == {(each, "endpoint.disable", "settings") for each in ("default", "research")}
