"""Can a rule be? Thresholds that its figure can reach, and names that are there."""

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from app.alerts.readings.figure import Figure
from app.alerts.readings.registry import FIGURES
from app.alerts.rule import Rule
from app.diagnosis.finding import CAUSES

# A key of the rule, for its line, and what is wrong.
Complaint = tuple[str, str]


def complaints(
    rule: Rule, given: Collection[str], names: Collection[str] | None
) -> Iterator[Complaint]:
    """What cannot be of one rule, of which these keys are given.

    `names` are all rules', None where not all of them are known.
    """
    figure = FIGURES.get(rule.on)
    if figure is None:
        for key in ("above", "clear", "of"):
            if key in given:
                yield key, f"{key}: {rule.on} has no figure: it is so, or it is not"
    else:
        yield from _of_thresholds(rule, figure)
        yield from _of_pattern(rule, figure, given)
    for name in rule.inhibits:
        if name == rule.name:
            yield "inhibits", "inhibits: a rule cannot keep itself back"
        elif names is not None and name not in names:
            yield "inhibits", f"inhibits: no rule is called {name!r}"


def twice(rules: Sequence[Rule]) -> list[int]:
    """Positions of rules whose name an earlier one has."""
    names = [rule.name for rule in rules]
    return [at for at, name in enumerate(names) if name in names[:at]]


def _of_thresholds(rule: Rule, figure: Figure) -> Iterator[Complaint]:
    above = rule.above
    if above is None:
        if figure.usual_above is None:
            yield "on", f"above: a rule on {rule.on} has to say from which value on it holds"
        elif rule.clear is not None:
            yield "clear", "clear: give above, too"
        return
    if above <= figure.rest:
        yield "above", f"above: {above:g} is always reached: want more than {figure.rest:g}"
        return
    if figure.unit == "share" and above >= 1:
        yield "above", f"above: {above:g} is never reached: a share is below 1"
    if rule.clear is not None and not figure.rest < rule.clear <= above:
        yield "clear", f"clear: want more than {figure.rest:g} and at most above, {above:g}"


def _of_pattern(rule: Rule, figure: Figure, given: Collection[str]) -> Iterator[Complaint]:
    if "of" in given and not figure.has_subjects:
        yield "of", f"of: {rule.on} is of the whole job: there is nothing to choose"
    if rule.on == "cause" and not any(fnmatchcase(cause, rule.of) for cause in CAUSES):
        yield "of", f"of: no cause is like {rule.of!r}: there are {', '.join(CAUSES)}"
