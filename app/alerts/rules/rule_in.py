"""The model of a rule in a file, on the page and in the API, with its limits.

Beside its fields a rule must make sense: a threshold can be reached, and named rules exist.
"""

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.alerts.labels import BUILT_IN_LABELS
from app.alerts.readings import WINDOW_READINGS, WindowReading
from app.alerts.rule import MAX_RUNBOOK_CHARS, ON, SEVERITIES, On, Rule, Severity
from app.result.causes import CAUSES

MAX_RULES = 200
_MAX_LABELS = 16
_MAX_LABEL_CHARS = 256
_MAX_PATTERN_CHARS = 128
_MAX_SECONDS = 30 * 86_400.0
_MAX_WINDOWS = 1000
UNUSABLE = "unusable"  # type of the errors whose message is made here


def _printable(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError(UNUSABLE, "a character that cannot be printed")
    return text


def _own_label(name: str) -> str:
    if name in BUILT_IN_LABELS:
        raise PydanticCustomError(UNUSABLE, "{name} is one that alerts have anyway", {"name": name})
    return name


def _web_address(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in text
    except ValueError:
        is_web = False
    if not is_web:
        raise PydanticCustomError(UNUSABLE, "want {wanted}", {"wanted": WANTED["runbook"]})
    return text


_Name = Annotated[str, StringConstraints(pattern="^[a-z0-9][a-z0-9-]{0,63}$")]
_Pattern = Annotated[
    str, StringConstraints(min_length=1, max_length=_MAX_PATTERN_CHARS), AfterValidator(_printable)
]
_LabelName = Annotated[
    str, StringConstraints(pattern="^[a-z_][a-z0-9_]{0,63}$"), AfterValidator(_own_label)
]
_LabelText = Annotated[
    str, StringConstraints(max_length=_MAX_LABEL_CHARS), AfterValidator(_printable)
]
_Address = Annotated[
    str,
    StringConstraints(max_length=MAX_RUNBOOK_CHARS),
    AfterValidator(_printable),
    AfterValidator(_web_address),
]
_Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]
# What each key takes, for a message about a value that it does not take.
WANTED = {
    "name": "a text of 1 to 64 of a-z, 0-9 and -",
    "on": f"one of {', '.join(ON)}",
    "jobs": f"a pattern of 1 to {_MAX_PATTERN_CHARS} characters",
    "of": f"a pattern of 1 to {_MAX_PATTERN_CHARS} characters",
    "above": "a number of 0 or more without quotes, such as 1.1",
    "clear": "a number of 0 or more without quotes, such as 1.1",
    "for": "{windows: 3, seconds: 30}",
    "for.windows": f"1 to {_MAX_WINDOWS}, a whole number",
    "for.seconds": f"a number from 0 to {_MAX_SECONDS:.0f}, which is 30 days",
    "keep_firing": f"a number from 0 to {_MAX_SECONDS:.0f}, which is 30 days",
    "min_confidence": "a number from 0 to 1",
    "severity": f"one of {', '.join(SEVERITIES)}",
    "labels": f"at most {_MAX_LABELS} names with texts, such as {{team: training}}",
    "labels.*": f"a text of at most {_MAX_LABEL_CHARS} characters",
    "runbook": f"an address, https://..., of at most {MAX_RUNBOOK_CHARS} characters",
    "inhibits": "a list of rules, such as [cause]",
    "inhibits.*": "a text of 1 to 64 of a-z, 0-9 and -",
    "cordon": "a text of 1 to 64 of a-z, 0-9 and -",
}
LABEL_NAME_WANTED = "1 to 64 of a-z, 0-9 and _, with no digit first"


class ForIn(BaseModel):
    """How long the condition must hold before the alert fires; both limits apply."""

    model_config = ConfigDict(extra="forbid", strict=True)

    windows: int = Field(
        3,
        ge=1,
        le=_MAX_WINDOWS,
        description="Number of successive complete windows in which the condition must hold.",
    )
    seconds: _Seconds = Field(
        30.0, description="Minimum total step time of these windows, in seconds."
    )


class RuleIn(BaseModel):
    """One rule; docs/alerts.md describes the keys."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: _Name = Field(examples=["slow"])
    on: On
    jobs: _Pattern = Field("*", description="Pattern for job ids, with the wildcards * and ?.")
    of: _Pattern = Field(
        "*",
        description="Pattern for causes, workers, hosts or operation types, "
        "with the wildcards * and ?.",
    )
    above: _Figure | None = Field(
        None, description="Threshold: the condition holds at or above this value."
    )
    clear: _Figure | None = Field(
        None, description="The condition ends below this value; default: docs/alerts.md."
    )
    for_: ForIn = Field(ForIn(), alias="for")
    keep_firing: _Seconds = Field(
        60.0, description="Seconds of steps below `clear` until the alert resolves."
    )
    min_confidence: float = Field(0.6, ge=0, le=1, allow_inf_nan=False)
    severity: Severity = "warning"
    labels: dict[_LabelName, _LabelText] = Field({}, max_length=_MAX_LABELS)
    runbook: _Address | None = None
    inhibits: list[_Name] = Field([], max_length=MAX_RULES)
    cordon: _Name | None = None

    @classmethod
    def of_rule(cls, rule: Rule) -> "RuleIn":
        """The model of a rule; not validated, as the service's own may exceed the limits."""
        same: dict[str, Any] = {name: getattr(rule, name) for name in _SAME_FIELDS}
        same["for"] = ForIn.model_construct(windows=rule.for_windows, seconds=rule.for_s)
        return cls.model_construct(
            **same,
            keep_firing=rule.keep_firing_s,
            labels=dict(rule.labels),
            runbook=rule.runbook_url,
            inhibits=list(rule.inhibits),
        )

    def rule(self) -> Rule:
        """The rule; `rule_problems` says whether it makes sense."""
        return Rule(
            **{name: getattr(self, name) for name in _SAME_FIELDS},
            for_windows=self.for_.windows,
            for_s=self.for_.seconds,
            keep_firing_s=self.keep_firing,
            labels=self.labels,
            runbook_url=self.runbook,
            inhibits=tuple(dict.fromkeys(self.inhibits)),
        )


_SAME_FIELDS = (
    *("name", "on", "jobs", "of", "above", "clear", "min_confidence", "severity", "cordon"),
)
# A key of the rule, for its line, and what is wrong.
RuleProblem = tuple[str, str]


def rule_problems(
    rule: Rule, given: Collection[str], names: Collection[str] | None
) -> Iterator[RuleProblem]:
    """The mistakes in one rule that has these keys, beside those of single fields.

    `names` are all rules', None where not all of them are known.
    """
    figure = WINDOW_READINGS.get(rule.on)
    if figure is None:
        for key in ("above", "clear", "of"):
            if key in given:
                yield key, f"{key}: {rule.on} has no value to compare: remove this key"
    else:
        yield from _threshold_problems(rule, figure)
        if "of" in given and not figure.has_subjects:
            yield "of", f"of: {rule.on} has one alert for the whole job: remove this key"
        if rule.on == "cause" and not any(fnmatchcase(cause, rule.of) for cause in CAUSES):
            yield "of", f"of: no cause is like {rule.of!r}: there are {', '.join(CAUSES)}"
    for name in rule.inhibits:
        if name == rule.name:
            yield "inhibits", "inhibits: a rule cannot inhibit itself"
        elif names is not None and name not in names:
            yield "inhibits", f"inhibits: no rule is called {name!r}"


def _threshold_problems(rule: Rule, figure: WindowReading) -> Iterator[RuleProblem]:
    above = rule.above
    if above is None:
        if figure.usual_above is None:
            yield "on", f"above: a rule on {rule.on} needs a threshold"
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
