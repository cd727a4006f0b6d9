import threading
from contextlib import closing

import pytest

from app.alerts.receiver import SETTINGS_RECEIVER_ID
from app.consumer.dispatcher import Dispatcher
from app.consumer.main import notify_context
from app.consumer.sender import OutboxSender
from app.errors import StartUpFailed
from app.settings import load_settings
from app.store.database import Store
from tests.alerts.notices import SECRET
from tests.secret_keys import KEYS

URL = "https://receiver.example/hook"


@pytest.fixture
def store(new_url):
    with closing(Store(new_url(), keys=KEYS)) as store:
        yield store


def test_receiver_of_the_settings_is_shared_by_all_projects():
    found = load_settings(webhook_url=URL, webhook_secret=SECRET).settings_receiver()
    assert found is not None
    assert (found.endpoint_id, found.project, found.format) == (
        SETTINGS_RECEIVER_ID, None, "standard",
    )  # fmt: skip
    assert SECRET not in repr(found)
    assert load_settings().settings_receiver() is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"webhook_url": URL}, "PACELINE_WEBHOOK_SECRET"),
        ({"webhook_url": URL, "webhook_secret": "whsec_c2hvcnQ="}, "whsec_"),
        ({"webhook_url": "https://me:pw@a/b", "webhook_secret": SECRET}, "user or password"),
    ],
)
def test_invalid_settings_receiver_stops_the_start(given, complaint):
    with pytest.raises(StartUpFailed, match=complaint) as refusal:
        load_settings(**given).settings_receiver()
    assert "c2hvcnQ" not in str(refusal.value)


def test_settings_receiver_may_be_on_loopback():
    given = {"webhook_url": "http://127.0.0.1:9000/hook", "webhook_secret": SECRET}
    assert load_settings(**given).settings_receiver() is not None


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
def test_invalid_cordon_hook_stops_the_start(given, complaint):
    with pytest.raises(StartUpFailed, match=complaint):
        load_settings(**given).cordon_hook()


def test_cordon_hook_is_off_by_default_and_dry_run_once_set():
    assert load_settings().cordon_hook() is None
    hook = load_settings(cordon_command="/usr/bin/drain --now 'a b'").cordon_hook()
    assert hook is not None
    assert (hook.command, hook.is_dry_run) == (["/usr/bin/drain", "--now", "a b"], True)
    allowed = {"cordon_projects": "default, infra-*", "cordon_actions": "drain-host"}
    meant = load_settings(cordon_url=URL, cordon_dry_run=False, **allowed).cordon_hook()
    assert meant is not None
    assert (meant.url, meant.is_dry_run) == (URL, False)
    assert (meant.projects, meant.actions) == (("default", "infra-*"), ("drain-host",))


def test_settings_reach_the_notify_context_in_their_units(store):
    settings = load_settings(
        alert_repeat_h=0.5, alert_damping_s=7.0, public_url="https://p.example"
    )
    context = notify_context(settings, store, settings.default_rules())
    assert (context.timing.repeat_s, context.timing.damping_s) == (1800.0, 7.0)
    assert context.base_url == "https://p.example"


def test_threads_end_soon_after_a_stop(store):
    settings = load_settings(webhook_url=URL, webhook_secret=SECRET)
    context = notify_context(settings, store, settings.default_rules())
    stop = threading.Event()
    threads = [
        threading.Thread(target=each.run, args=(stop,))
        for each in (OutboxSender(context), Dispatcher(context))
    ]
    for thread in threads:
        thread.start()
    stop.set()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
