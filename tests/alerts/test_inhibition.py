from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.alerts.alert import AlertState, fingerprint
from app.alerts.defaults import default_rules
from app.alerts.inhibition import inhibited
from app.alerts.rule import SEVERITIES, Rule

JOB = "default/llm-70b"


def firing(rule, subject="", **labels):
    mark = fingerprint(JOB, rule, subject)
    return AlertState(mark, JOB, rule, subject, "firing", "warning", 0.0, labels=labels)


def kept_back(states, rules):
    marks = inhibited(states, rules)
    return {(state.rule, state.subject) for state in states if state.fingerprint in marks}


def test_a_firing_alert_keeps_back_the_rules_that_its_own_one_names():
    rules = [Rule("slow", "slowdown", inhibits=("cause",)), Rule("cause", "cause")]
    both = [firing("slow"), firing("cause", "a"), firing("cause", "b")]
    assert kept_back(both, rules) == {("cause", "a"), ("cause", "b")}
    assert kept_back(both[1:], rules) == set()


def test_one_that_is_only_pending_keeps_nothing_back():
    rules = [Rule("slow", "slowdown", inhibits=("cause",)), Rule("cause", "cause")]
    pending = replace(firing("slow"), phase="pending")
    assert kept_back([pending, firing("cause", "a")], rules) == set()


def test_one_without_data_keeps_nothing_back():
    rules = [Rule("slow", "slowdown", inhibits=("cause",)), Rule("cause", "cause")]
    rules += [Rule("h", "host"), Rule("w", "worker")]
    kept = [firing("cause"), firing("w", "3-1", host="host-7")]
    old = [replace(each, is_no_data=True) for each in (firing("slow"), firing("h", "host-7"))]
    assert kept_back([*old, *kept], rules) == set()


def test_a_host_speaks_for_the_workers_on_it_whatever_the_rules_are_called():
    rules = [Rule("h", "host"), Rule("w", "worker")]
    states = [
        firing("h", "host-7"),
        firing("w", "3-1", host="host-7"),
        firing("w", "4-1", host="host-8"),
        firing("w", "5-1"),
    ]
    assert kept_back(states, rules) == {("w", "3-1")}


def test_by_default_one_thing_speaks_for_all_that_comes_of_it():
    rules = default_rules()
    everything = [firing(rule.name) for rule in rules]
    assert {rule.name for rule in rules} - {name for name, _ in kept_back(everything, rules)} == {
        "stalled"
    }


def test_rules_that_name_each_other_leave_the_worst_of_them_to_speak():
    rules = [
        Rule("a", "slowdown", inhibits=("b", "a")),
        Rule("b", "cause", inhibits=("c",), severity="critical"),
        Rule("c", "optype", inhibits=("a",)),
    ]
    assert kept_back([firing("a"), firing("b"), firing("c")], rules) == {("a", ""), ("c", "")}
    assert kept_back([firing("a"), firing("c")], rules) == {("a", "")}
    assert kept_back([firing("a")], rules) == set()


def test_an_alert_of_a_rule_that_is_gone_keeps_nothing_back_and_is_not():
    rules = [Rule("slow", "slowdown", inhibits=("gone",))]
    assert kept_back([firing("slow"), firing("gone")], rules) == set()


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef")), min_size=1),
       st.lists(st.sampled_from(SEVERITIES), min_size=6, max_size=6))  # fmt: skip
def test_whoever_keeps_whom_back_somebody_speaks_and_only_for_those_it_may(names, severities):
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
