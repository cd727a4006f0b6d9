"""Which alerts of a job does another one keep back, since it says the same and says it better?"""

from collections.abc import Iterable, Mapping, Sequence

from app.alerts.alert import AlertState
from app.alerts.rule import SEVERITIES, Rule


def inhibited(states: Sequence[AlertState], rules: Iterable[Rule]) -> set[str]:
    """Fingerprints of the firing alerts of one job that its other ones keep back.

    A firing alert keeps back those of the rules that its own rule names. An alert of a host keeps
    back those of the workers on it. Rules that name each other in a circle do not keep all of them
    back: the worst of them speaks. One without data is told to nobody, so it speaks for no other.
    """
    by_name = {rule.name: rule for rule in rules}
    firing = [state for state in states if state.phase == "firing" and state.rule in by_name]
    speaking = [state for state in firing if not state.is_no_data]
    names = {state.rule for state in speaking}
    kept_back = _kept_back({name: rule for name, rule in by_name.items() if name in names})
    hosts = {state.subject for state in speaking if by_name[state.rule].on == "host"}
    return {
        state.fingerprint
        for state in firing
        if state.rule in kept_back
        or (by_name[state.rule].on == "worker" and state.labels.get("host") in hosts)
    }


def _kept_back(rules: Mapping[str, Rule]) -> set[str]:
    reached = {name: _reached(name, rules) for name in rules}
    found = set()
    for name, rule in rules.items():
        for other in rule.inhibits:
            if other in rules and not _speaks_for_its_circle(other, name, rules, reached):
                found.add(other)
    return found


def _speaks_for_its_circle(
    name: str, inhibitor: str, rules: Mapping[str, Rule], reached: Mapping[str, set[str]]
) -> bool:
    """Whether both keep each other back, maybe by way of others, and this is the first of them."""
    circle = {other for other in reached[name] if name in reached[other]} | {name}
    return inhibitor in circle and name == min(circle, key=lambda each: _rank(rules[each]))


def _rank(rule: Rule) -> tuple[int, str]:
    return -SEVERITIES.index(rule.severity), rule.name


def _reached(name: str, rules: Mapping[str, Rule]) -> set[str]:
    """The firing rules that this one keeps back, and that those keep back, and so on."""
    found: set[str] = set()
    left = [name]
    while left:
        new = {each for each in rules[left.pop()].inhibits if each in rules} - found
        found |= new
        left += new
    return found
