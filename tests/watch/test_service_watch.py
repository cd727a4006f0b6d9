"""When receivers are told of the service itself, and when dead-man's switches get heartbeats."""

import json

import pytest

from app.alerts.formats.alertmanager import REFRESH_EVERY_S
from app.alerts.receiver import SETTINGS_RECEIVER_ID
from app.consumer.context import MAX_WITHOUT_PROGRESS_S
from app.store import projects
from app.store.alerting import receivers
from tests.alerts.http_receiver import Answer
from tests.store.factories import webhook_receiver
from tests.watch.conftest import CANARY_LIMIT_S, LIMIT_S

EVERY_S = 60.0


def kinds(service):
    return [kind for kind, _ in service.said()]


def kinds_of(path, service):
    return [json.loads(body)["type"] for asked, _, body in service.hook.requests if asked == path]


def heartbeats_sent(service):
    """The senders of consumers send what is due."""
    return service.notifier.send()


def test_dead_consumers_are_told_once_by_two_processes_and_once_when_they_are_back(service):
    service.watch(LIMIT_S - 20, turns=False)
    assert service.said() == []
    service.watch(20 + LIMIT_S, turns=False)
    [(kind, sentence)] = service.said()
    assert kind == "service.down"
    assert sentence.startswith("No consumer has worked for 5 minutes")
    service.watch(60)
    assert kinds(service) == ["service.down", "service.up"]
    service.watch(LIMIT_S + 40, turns=False)
    assert kinds(service) == ["service.down", "service.up", "service.down"]


def test_told_within_30_s_after_the_limit(service):
    turned_s = service.clock()
    service.watch(LIMIT_S - 20, turns=False)
    while not service.said():
        service.watch(5, turns=False, every_s=5.0)
    assert LIMIT_S <= service.clock() - turned_s <= LIMIT_S + 30


def test_heartbeats_of_a_consumer_that_does_not_turn_are_no_work(service):
    service.watch(LIMIT_S + 10, turns=False)
    with service.store.read() as conn:
        assert conn.exec_driver_sql("SELECT lease_until_s FROM consumers").scalar() > (
            service.clock()
        )
    assert kinds(service) == ["service.down"]


def test_every_receiver_of_every_project_is_told_and_the_shared_one_once(service):
    with service.store.write() as conn:
        projects.create_if_missing(conn, "research", now_s=1.0)
        url = f"{service.hook.url}/shared"
        shared = webhook_receiver(
            SETTINGS_RECEIVER_ID, project=None, url=url, secrets=("whsec_" + "c2VjcmV0" * 4,)
        )
        receivers.put_settings_receiver(conn, shared)
    service.notifier.add_receiver("other", f"{service.hook.url}/other", project="research")
    service.notifier.add_receiver("off", f"{service.hook.url}/off", is_enabled=False)
    service.watch(LIMIT_S + 10, turns=False)
    paths = sorted(path for path, _, _ in service.hook.requests)
    assert paths == ["/hook", "/hook/other", "/hook/shared"]


def test_nothing_is_told_of_a_time_in_which_nobody_watched(service):
    service.notifier.pass_time(10 * LIMIT_S)
    service.watch(LIMIT_S - 20, turns=False)
    assert service.said() == []
    service.watch(20, turns=False)
    assert kinds(service) == ["service.down"]


def test_an_outage_that_could_not_be_told_is_dropped_when_it_is_over(service):
    service.hook.answer = Answer(500)
    service.watch(LIMIT_S + 10, turns=False)
    tried = len(service.hook.requests)
    assert tried >= 1
    service.hook.answer = Answer(204)
    service.hook.requests.clear()
    service.beat(turns=True)
    service.watch(900)
    assert kinds(service) == ["service.up"]
    assert service.notifier.states() == ["outdated", "delivered"]


def test_heartbeats_stay_away_from_dead_consumers_whom_nobody_is_told_of(make_service, hook):
    service = make_service(consumers_dead_after_s=None, canary_missing_after_s=None)
    service.notifier.add_receiver("switch", hook.url, heartbeat_every_s=EVERY_S)
    service.watch()
    service.watch(2 * LIMIT_S, turns=False)
    heartbeats_sent(service)
    hook.requests.clear()
    service.watch(4 * EVERY_S, turns=False)
    heartbeats_sent(service)
    assert service.said() == []


def test_only_who_heard_of_an_outage_hears_of_its_end(service):
    service.notifier.add_receiver("off", f"{service.hook.url}/off", is_enabled=False)
    service.watch(LIMIT_S + 10, turns=False)
    service.notifier.add_receiver("new", f"{service.hook.url}/new")
    with service.store.write() as conn:
        conn.exec_driver_sql("UPDATE endpoints SET is_enabled = 1")
    service.watch(60)
    assert [path for path, _, _ in service.hook.requests] == ["/hook"] * 2
    assert kinds(service) == ["service.down", "service.up"]


def test_missing_canary_is_told_where_dead_consumers_are_not(make_service, hook):
    service = make_service(consumers_dead_after_s=None)
    service.notifier.add_receiver("hook", hook.url)
    service.end_round()
    service.watch(CANARY_LIMIT_S + 10, turns=False)
    [(_, sentence)] = service.said()
    assert sentence.startswith("The canary has not been found")


def test_missing_canary_is_told_with_its_reason_and_found_again(service):
    service.end_round()
    service.watch(CANARY_LIMIT_S / 2)
    service.end_round(missing="its window is stored, but has no finding")
    service.watch(CANARY_LIMIT_S / 2 + 10)
    [(_, _, body)] = service.hook.requests
    data = json.loads(body)["data"]
    assert data["sentence"].startswith("The canary has not been found for 10 minutes")
    assert "its window is stored, but has no finding" in data["sub"]
    service.end_round()
    service.watch(10)
    assert kinds(service) == ["service.down", "service.up"]


def test_canary_counts_anew_when_dead_consumers_are_back(service):
    service.end_round()
    service.watch(CANARY_LIMIT_S + 60, turns=False)
    service.watch(CANARY_LIMIT_S - 20)
    assert kinds(service) == ["service.down", "service.up"]
    service.watch(40)
    assert "The canary has not been found for 10 minutes" in service.said()[2][1]


def test_missing_canary_waits_until_consumers_are_surely_alive(make_service, hook):
    service = make_service(consumers_dead_after_s=20.0, canary_missing_after_s=25.0)
    service.notifier.add_receiver("hook", hook.url)
    service.end_round()
    service.watch(12, every_s=2.0)
    service.watch(40, turns=False, every_s=2.0)
    [(kind, sentence)] = service.said()
    assert (kind, "No consumer" in sentence) == ("service.down", True)


def test_canary_that_is_off_is_never_missed(make_service, hook):
    service = make_service(canary_missing_after_s=None)
    service.notifier.add_receiver("hook", hook.url)
    service.end_round()
    service.watch(CANARY_LIMIT_S + 60)
    assert service.said() == []
    # Its age would grow for ever.
    assert ("canary",) not in service.notifier.rows("service_watches", "name")


@pytest.fixture
def switch(service):
    """A dead-man's switch beside the receiver of alerts."""
    url = f"{service.hook.url}/switch"
    service.notifier.add_receiver("switch", url, heartbeat_every_s=EVERY_S)
    return service


def test_heartbeats_go_out_every_interval_while_consumers_turn_and_send(switch):
    for _ in range(15):
        switch.watch(20)
        heartbeats_sent(switch)
    paths = [path for path, _, _ in switch.hook.requests]
    assert paths == ["/hook/switch"] * 6  # at once, then 5 minutes of one each
    assert set(kinds(switch)) == {"service.heartbeat"}
    # Only the last one is kept.
    assert len(switch.notifier.rows("outbox", "seq")) == 1
    assert len(switch.notifier.rows("delivery_attempts", "attempt_id")) == 1


def test_heartbeats_stay_away_while_no_consumer_turns(switch):
    switch.watch()
    heartbeats_sent(switch)
    switch.watch(MAX_WITHOUT_PROGRESS_S, turns=False)
    heartbeats_sent(switch)
    switch.hook.requests.clear()
    switch.watch(LIMIT_S - MAX_WITHOUT_PROGRESS_S - 40, turns=False)
    heartbeats_sent(switch)
    assert switch.said() == []


def test_heartbeats_go_on_while_a_large_window_is_closed(switch):
    for _ in range(4):
        switch.watch(20, turns=False)
        heartbeats_sent(switch)
    assert kinds(switch) == ["service.heartbeat"] * 2


def test_the_api_writes_heartbeats_and_does_not_send_them(switch):
    switch.watch(LIMIT_S)
    assert switch.said() == []
    assert switch.notifier.states() == ["due"]


def test_heartbeats_stay_away_from_a_missing_canary_though_consumers_died_and_came_back(switch):
    switch.end_round()
    switch.watch(CANARY_LIMIT_S + 10)
    switch.watch(LIMIT_S + 10, turns=False)
    switch.watch(60)
    heartbeats_sent(switch)
    switch.hook.requests.clear()
    switch.watch(4 * EVERY_S)
    heartbeats_sent(switch)
    assert switch.said() == []
    switch.end_round()
    switch.watch(EVERY_S)
    heartbeats_sent(switch)
    assert "service.heartbeat" in kinds(switch)


def test_refused_heartbeat_is_not_repeated_later(switch):
    switch.hook.answer = Answer(503)
    switch.watch()
    assert heartbeats_sent(switch) == 1
    switch.hook.answer = Answer(204)
    for _ in range(3):
        switch.notifier.pass_time(15)
        assert heartbeats_sent(switch) == 0
    assert switch.notifier.states() == ["failed"]


def test_dead_mans_switch_gets_no_alert_and_no_outage(switch):
    switch.notifier.fire()
    switch.notifier.dispatch()
    switch.watch(LIMIT_S + 10, turns=False)
    assert {path for path, _, body in switch.hook.requests if b"heartbeat" not in body} == {"/hook"}


def test_check_of_healthchecks_is_pinged_and_its_fail_address_at_an_outage(service):
    url = f"{service.hook.url}/uuid?create=1"
    given = {"format": "healthchecks", "secrets": (), "heartbeat_every_s": EVERY_S}
    service.notifier.add_receiver("check", url, **given)
    service.watch()
    heartbeats_sent(service)
    service.watch(LIMIT_S + 10, turns=False)
    service.watch(60)
    heartbeats_sent(service)
    pings = [path for path, _, _ in service.hook.requests if "uuid" in path]
    assert pings == ["/hook/uuid?create=1", "/hook/uuid/fail?create=1", "/hook/uuid?create=1"]


def test_heartbeat_to_an_alertmanager_fires_for_three_intervals(service):
    url = service.hook.url.removesuffix("/hook")
    given = {"format": "alertmanager-push", "secrets": (), "heartbeat_every_s": EVERY_S}
    service.notifier.add_receiver("am", url, **given)
    service.watch()
    heartbeats_sent(service)
    [(path, _, body)] = service.hook.requests
    assert path == "/api/v2/alerts"
    [pushed] = json.loads(body)
    assert pushed["labels"]["alertname"] == "PacelineWatchdog"
    assert pushed["startsAt"] == "2023-11-14T22:13:20Z"
    assert pushed["endsAt"] == "2023-11-14T22:16:20Z"


def test_alertmanager_is_told_again_of_an_outage_as_it_forgets(service):
    url = service.hook.url.removesuffix("/hook")
    service.notifier.add_receiver("am", url, format="alertmanager-push", secrets=())
    service.watch(LIMIT_S + 10, turns=False)
    service.watch(3 * REFRESH_EVERY_S, turns=False)
    service.watch(60)
    *down, up = [json.loads(body)[0] for path, _, body in service.hook.requests if "v2" in path]
    assert len(down) == 4  # by two processes
    assert {each["startsAt"] for each in (*down, up)} == {down[0]["startsAt"]}
    ends = [each["endsAt"] for each in (up, *down)]
    assert ends == sorted(set(ends))
    assert "for 20 minutes" in down[-1]["annotations"]["summary"]
    assert kinds_of("/hook", service) == ["service.down", "service.up"]


def test_repetition_that_an_alertmanager_did_not_take_is_dropped_when_it_is_over(service):
    url = service.hook.url.removesuffix("/hook")
    service.notifier.add_receiver("am", url, format="alertmanager-push", secrets=())
    service.watch(LIMIT_S + 10, turns=False)
    service.hook.answer = Answer(503)
    service.watch(2 * REFRESH_EVERY_S, turns=False)
    service.hook.answer = Answer(200)
    service.hook.requests.clear()
    service.watch(2 * REFRESH_EVERY_S)
    [body] = [json.loads(body)[0] for path, _, body in service.hook.requests if "v2" in path]
    assert body["annotations"]["summary"].startswith("Consumers work again")


def test_missing_canary_is_looked_for_in_the_same_shard_until_it_is_found_there(service):
    numbers = [service.end_round(), service.end_round("it did not end")]
    numbers += [service.end_round("it did not end"), service.end_round(), service.end_round()]
    assert [number % 4 for number in numbers] == [1, 2, 2, 2, 3]
    assert len(set(numbers)) == 5


def test_outage_is_one_alert_for_an_alertmanager_and_one_incident_for_pagerduty(service):
    url = service.hook.url.removesuffix("/hook")
    service.notifier.add_receiver("am", url, format="alertmanager-push", secrets=())
    service.notifier.add_receiver("pd", f"{url}/pd", format="pagerduty", secrets=("k" * 32,))
    service.watch(LIMIT_S + 10, turns=False)
    service.watch(60)
    pushed = [json.loads(body)[0] for path, _, body in service.hook.requests if "v2" in path]
    assert pushed[0]["labels"] == pushed[1]["labels"]
    assert pushed[0]["labels"]["alertname"] == "PacelineServiceDown"
    assert pushed[0]["endsAt"] > pushed[1]["endsAt"] > pushed[1]["startsAt"]
    events = [json.loads(body) for path, _, body in service.hook.requests if path == "/pd"]
    assert [each["event_action"] for each in events] == ["trigger", "resolve"]
    assert len({each["dedup_key"] for each in events}) == 1
