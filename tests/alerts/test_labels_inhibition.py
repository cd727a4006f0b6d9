from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.alerts.alert import AlertState, fingerprint
from app.alerts.labels import inhibited_fingerprints
from app.alerts.rule import SEVERITIES, Rule, default_rules

JOB = "default/llm-70b"


def firing(rule, subject="", **labels):
    mark = fingerprint(JOB, rule, subject)
    return AlertState(mark, JOB, rule, subject, "firing", "warning", 0.0, labels=labels)


def kept_back(states, rules):
    marks = inhibited_fingerprints(states, rules)
    return {(state.rule, state.subject) for state in states if state.fingerprint in marks}


def test_a_firing_alert_keeps_back_the_rules_that_its_own_one_names():
    rules = [Rule("slow", "slowdown", inhibits=("cause",)), Rule("cause", "cause")]
    both = [firing("slow"), firing("cause", "a"), firing("cause", "b")]
    assert kept_back(both, rules) == {("cause", "a"), ("cause", "b")}
    assert kept_back(both[1:], rules) == set()


def test_a_pending_alert_inhibits_nothing():
    rules = [Rule("slow", "slowdown", inhibits=("cause",)), Rule("cause", "cause")]
    pending = replace(firing("slow"), phase="pending")
    assert kept_back([pending, firing("cause", "a")], rules) == set()


def test_an_alert_without_data_inhibits_nothing():
    rules = [Rule("slow", "slowdown", inhibits=("cause",)), Rule("cause", "cause")]
    rules += [Rule("h", "host"), Rule("w", "worker")]
    kept = [firing("cause"), firing("w", "3-1", host="host-7")]
    old = [replace(each, is_no_data=True) for each in (firing("slow"), firing("h", "host-7"))]
    assert kept_back([*old, *kept], rules) == set()


def test_a_host_alert_inhibits_its_workers():
    rules = [Rule("h", "host"), Rule("w", "worker")]
    states = [
        firing("h", "host-7"),
        firing("w", "3-1", host="host-7"),
        firing("w", "4-1", host="host-8"),
        firing("w", "5-1"),
    ]
    assert kept_back(states, rules) == {("w", "3-1")}


def test_default_rules_notify_one_alert_for_a_cause():
    rules = default_rules()
    everything = [firing(rule.name) for rule in rules if rule.on != "fix-outcome"]
    assert {each.rule for each in everything} - {
        name for name, _ in kept_back(everything, rules)
    } == {"stalled", "crashed"}  # a job is in one of these states


def test_of_mutually_inhibiting_rules_the_most_severe_is_notified():
    rules = [
        Rule("a", "slowdown", inhibits=("b", "a")),
        Rule("b", "cause", inhibits=("c",), severity="critical"),
        Rule("c", "optype", inhibits=("a",)),
    ]
    assert kept_back([firing("a"), firing("b"), firing("c")], rules) == {("a", ""), ("c", "")}
    assert kept_back([firing("a"), firing("c")], rules) == {("a", "")}
    assert kept_back([firing("a")], rules) == set()


def test_an_alert_of_a_removed_rule_neither_inhibits_nor_is_inhibited():
    rules = [Rule("slow", "slowdown", inhibits=("gone",))]
    assert kept_back([firing("slow"), firing("gone")], rules) == set()


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef")), min_size=1),
       st.lists(st.sampled_from(SEVERITIES), min_size=6, max_size=6))  # fmt: skip
def test_inhibition_always_leaves_one_alert(names, severities):
    rules = [
        Rule(name, "slowdown", inhibits=tuple(others), severity=severity)
        for (name, others), severity in zip(names.items(), severities, strict=False)
    ]
    back = {name for name, _ in kept_back([firing(rule.name) for rule in rules], rules)}
    assert back < {rule.name for rule in rules}
    for name in back:
        speakers = reaching(name, rules) - back
        assert speakers, "nobody who is heard speaks for it"


def reaching(name, rules):
    """All that keep it back, and all that keep those back."""
    found = {name}
    while True:
        new = {rule.name for rule in rules if found & set(rule.inhibits)} - found
        if not new:
            return found - {name}
        found |= new
