from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from sqlalchemy import text

from app.alerts.rule import ON, Rule
from app.errors import InvalidRequest
from app.store.alerting import alert_rules
from app.store.alerting.alert_rules import RuleSet

SLOW = Rule("slow", "slowdown", above=1.1)
WHOLE = Rule(
    "whole",
    "cause",
    above=0.1 + 0.2,
    clear=0.2,
    of="slow-*",
    jobs="llm-*",
    for_windows=4,
    for_s=12.5,
    keep_firing_s=0.0,
    min_confidence=0.9,
    severity="critical",
    labels={"team": "Ä"},
    runbook_url="https://runbook.example",
    inhibits=("slow", "stalled"),
    cordon="drain",
)


@pytest.fixture
def put(store):
    def put(*rules, project="default", written="rules: []", now_s=1.0):
        with store.write() as conn:
            return alert_rules.replace_all(conn, project, rules, text=written, now_s=now_s)

    return put


def load(store, project="default"):
    with store.read() as conn:
        return alert_rules.load(conn, project)


def test_project_without_rules_has_none(store, put):
    assert load(store) == RuleSet(0, None)
    assert put(SLOW, WHOLE, written="rules:  # mine") == 1
    assert load(store) == RuleSet(1, [SLOW, WHOLE], 1.0, "rules:  # mine")
    assert load(store, "other") == RuleSet(0, None)
    with store.read() as conn:
        assert alert_rules.load(conn, "default").text == "rules:  # mine"
        assert alert_rules.load(conn, "other").text is None


def test_rules_of_every_kind_are_read_back(store, put):
    rules = [Rule(f"r-{on}", on) for on in ON]
    put(*rules)
    assert load(store).rules == rules


def test_every_rule_change_has_a_new_version(store, put):
    with store.write() as conn:
        alert_rules.reset(conn, "default")
        assert alert_rules.versions(conn) == {}
    assert [put(SLOW), put()] == [1, 2]
    assert load(store).rules == []
    with store.write() as conn:
        alert_rules.reset(conn, "default")
        alert_rules.reset(conn, "default")
        assert alert_rules.versions(conn) == {"default": 3}
        assert alert_rules.load(conn, "default").text is None
    assert load(store).rules is None
    assert put(SLOW) == 4


@pytest.mark.sql_sensitive
def test_concurrent_rule_changes_have_different_versions(put):
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda _: put(SLOW), range(8))) == list(range(1, 9))


@pytest.mark.parametrize(("number", "written"), [(201, ""), (1, "#" * (256 * 1024 + 1)), (1, "\0")])
def test_too_many_rules_and_too_long_a_text_are_refused(store, put, number, written):
    with pytest.raises(InvalidRequest):
        put(*[SLOW] * number, written=written)
    assert load(store).version == 0


@pytest.mark.parametrize(
    "kept",
    ['[{"name":"a","on":"nothing"}]', '[{"name":1,"on":"cause"}]', '[{"on":"cause"}]', "[1]"],
)
def test_invalid_rule_row_is_refused(store, put, kept):
    put(SLOW)
    with store.write() as conn:
        conn.execute(text("UPDATE alert_rules SET rules = :kept"), {"kept": kept})
    with pytest.raises(msgspec.ValidationError):
        load(store)
