import shutil
import threading

import pytest

from app.alerts.endpoint import OF_SETTINGS
from app.consumer import telling
from app.consumer.dispatcher import Dispatcher
from app.consumer.sender import Sender
from app.errors import StartUpFailed
from app.settings import load_settings
from app.store import endpoints
from app.store.engine import Store
from tests.alerts.notices import SECRET

URL = "https://receiver.example/hook"


@pytest.fixture
def store(migrated_file, tmp_path):
    store = Store(f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'telling.db')}")
    yield store
    store.close()


def test_the_environments_endpoint_is_every_projects():
    endpoint = telling.settings_endpoint(load_settings(webhook_url=URL, webhook_secret=SECRET))
    assert endpoint is not None
    assert (endpoint.endpoint_id, endpoint.project, endpoint.format) == (
        OF_SETTINGS, None, "standard",
    )  # fmt: skip
    assert SECRET not in repr(endpoint)
    assert telling.settings_endpoint(load_settings()) is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"webhook_url": URL}, "PACELINE_WEBHOOK_SECRET"),
        ({"webhook_url": URL, "webhook_secret": "whsec_c2hvcnQ="}, "whsec_"),
        ({"webhook_url": "https://me:pw@a/b", "webhook_secret": SECRET}, "user or password"),
    ],
)
def test_an_endpoint_that_cannot_be_used_stops_the_start(given, complaint):
    with pytest.raises(StartUpFailed, match=complaint) as refusal:
        telling.settings_endpoint(load_settings(**given))
    assert "c2hvcnQ" not in str(refusal.value)


def test_the_operators_own_endpoint_may_be_on_this_machine():
    given = {"webhook_url": "http://127.0.0.1:9000/hook", "webhook_secret": SECRET}
    assert telling.settings_endpoint(load_settings(**given)) is not None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"cordon_command": "drain", "cordon_url": URL}, "not both"),
        ({"cordon_command": "  "}, "names no command"),
        ({"cordon_command": "drain 'host"}, "PACELINE_CORDON_COMMAND"),
        ({"cordon_url": URL, "cordon_dry_run": False}, "PACELINE_CORDON_PROJECTS"),
        (
            {"cordon_url": URL, "cordon_dry_run": False, "cordon_projects": "default"},
            "PACELINE_CORDON_ACTIONS",
        ),
    ],
)
def test_a_hook_that_cannot_be_used_stops_the_start(given, complaint):
    with pytest.raises(StartUpFailed, match=complaint):
        telling.hook(load_settings(**given))


def test_a_hook_is_off_unless_it_is_named_and_dry_unless_it_is_meant():
    assert telling.hook(load_settings()) is None
    hook = telling.hook(load_settings(cordon_command="/usr/bin/drain --now 'a b'"))
    assert hook is not None
    assert (hook.command, hook.is_dry_run) == (["/usr/bin/drain", "--now", "a b"], True)
    allowed = {"cordon_projects": "default, infra-*", "cordon_actions": "drain-host"}
    meant = telling.hook(load_settings(cordon_url=URL, cordon_dry_run=False, **allowed))
    assert meant is not None
    assert (meant.url, meant.is_dry_run) == (URL, False)
    assert (meant.projects, meant.actions) == (("default", "infra-*"), ("drain-host",))


def test_settings_in_their_units_reach_whoever_plans(store):
    settings = load_settings(
        alert_repeat_h=0.5, alert_damping_s=7.0, public_url="https://p.example"
    )
    desk = telling.desk(settings, store, settings.usual_rules())
    assert (desk.timing.repeat_s, desk.timing.damping_s) == (1800.0, 7.0)
    assert desk.base_url == "https://p.example"


def test_how_the_environments_endpoint_fares_is_kept_until_its_address_changes(store):
    for url, failures in ((URL, 0), (URL, 1), (f"{URL}/2", 0)):
        settings = load_settings(webhook_url=url, webhook_secret=SECRET)
        with store.write() as conn:
            endpoints.put_settings_endpoint(conn, telling.settings_endpoint(settings))
            assert endpoints.health(conn, [OF_SETTINGS])[OF_SETTINGS].failures == failures
            endpoints.failed(conn, OF_SETTINGS, detail="no", now_s=1.0)


def test_threads_end_soon_after_they_are_told_to(store):
    settings = load_settings(webhook_url=URL, webhook_secret=SECRET)
    desk = telling.desk(settings, store, settings.usual_rules())
    stop = threading.Event()
    threads = [
        threading.Thread(target=each.run, args=(stop,)) for each in (Sender(desk), Dispatcher(desk))
    ]
    for thread in threads:
        thread.start()
    stop.set()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
