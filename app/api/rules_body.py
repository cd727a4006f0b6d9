"""Rules in requests and answers: as YAML, which people write, and as JSON with the same keys."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from pydantic import ConfigDict, Field, FiniteFloat, ValidationError
from starlette.requests import Request as HttpRequest

from app.alerts import rule_text
from app.alerts.readings.registry import whole
from app.alerts.rule import On, Rule, Severity
from app.alerts.rule_text import MAX_BYTES, MAX_RULES
from app.api import json_body
from app.api.fields import Answer, Label, Request, Text
from app.errors import BadRequest, TooLarge, UnsupportedMedia

YAML_TYPE = "application/yaml"
YAML_TYPES = {YAML_TYPE, "text/yaml", "application/x-yaml", "text/x-yaml"}


_SAME = ("name", "on", "jobs", "of", "above", "clear", "min_confidence", "severity", "cordon")


_JSON_EXAMPLE: dict[str, Any] = {
    "name": "slow",
    "on": "slowdown",
    "jobs": "llm-*",
    "above": 1.2,
    "for": {"windows": 3, "seconds": 30},
    "severity": "critical",
    "labels": {"team": "pretraining"},
}


class ForIn(Request):
    """How long a rule has to hold before it fires: both."""

    windows: int = Field(3, ge=1, le=100_000, description="Complete windows in a row.")
    seconds: FiniteFloat = Field(30.0, ge=0, description="That those windows took.")


class RuleIn(Request):
    """One rule; docs/alerts.md says what each key means."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_by_name=True)

    name: str = Field(pattern="^[a-z0-9][a-z0-9-]{0,63}$", examples=["slow"])
    on: On
    jobs: Text = Field("*", description="Pattern with * and ? for ids of jobs.")
    of: Text = Field("*", description="The same for causes, workers, hosts or operation types.")
    above: FiniteFloat | None = Field(None, description="From here on it holds.")
    clear: FiniteFloat | None = Field(None, description="Below this it ceases to.")
    for_: ForIn = Field(ForIn(), alias="for")
    keep_firing: FiniteFloat = Field(60.0, ge=0, description="Seconds.")
    min_confidence: FiniteFloat = Field(0.6, ge=0, le=1)
    severity: Severity = "warning"
    labels: dict[Label, Text] = Field({}, max_length=16)
    runbook: Text | None = None
    inhibits: list[Label] = Field([], max_length=MAX_RULES)
    cordon: Label | None = None

    def rule(self) -> Rule:
        """The rule; whether there can be such a one is still to be seen."""
        return Rule(
            for_windows=self.for_.windows,
            for_s=self.for_.seconds,
            keep_firing_s=self.keep_firing,
            labels=self.labels,
            runbook_url=self.runbook,
            inhibits=tuple(self.inhibits),
            **{name: getattr(self, name) for name in _SAME},
        )


class RulesIn(Request):
    """All rules of a project."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"rules": [_JSON_EXAMPLE]}]})

    rules: list[RuleIn] = Field(max_length=MAX_RULES)


class RulesOut(Answer):
    """The rules that the project's jobs are held to."""

    version: int = Field(description="Goes up with each change; 0 before the first.")
    source: Literal["project", "file", "defaults"] = Field(
        description="Whose they are: its own, those of PACELINE_ALERT_RULES, or the built-in ones."
    )
    rules: list[RuleIn]
    text: str = Field(description="The same as YAML: as it was written, where it was.")


class CheckedOut(Answer):
    """What rules say that can be taken."""

    rules: list[RuleIn]


def rules_out(rules: Sequence[Rule]) -> list[RuleIn]:
    """Rules as the API says them, with the usual thresholds where they name none."""
    return [_rule_out(whole(rule)) for rule in rules]


def _rule_out(rule: Rule) -> RuleIn:
    # Not checked: what the service was started with may be more than a request may say.
    return RuleIn.model_construct(
        for_=ForIn.model_construct(windows=rule.for_windows, seconds=rule.for_s),
        keep_firing=rule.keep_firing_s,
        labels=dict(rule.labels),
        runbook=rule.runbook_url,
        inhibits=list(rule.inhibits),
        **{name: getattr(rule, name) for name in _SAME},
    )


async def text_of(request: HttpRequest) -> str:
    """Rules in a body as YAML.

    Raises:
        TooLarge, UnsupportedMedia, BadRequest, RequestValidationError
    """
    body = await request.body()
    if len(body) > MAX_BYTES:
        raise TooLarge(f"rules have at most {MAX_BYTES:,} bytes")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media in YAML_TYPES:
        try:
            return body.decode()
        except UnicodeDecodeError:
            raise BadRequest("some bytes are no text: send UTF-8") from None
    if media != json_body.JSON_TYPE:
        raise UnsupportedMedia(f"send {YAML_TYPE} or {json_body.JSON_TYPE}")
    return _as_yaml(json_body.read(body, media))


def _as_yaml(given: object) -> str:
    try:
        known = RulesIn.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise RequestValidationError(
            [{**each, "loc": ("body", *each["loc"])} for each in found]
        ) from error
    return rule_text.dump([rule.rule() for rule in known.rules])


TextDep = Annotated[str, Depends(text_of)]


def rules_of(text: str) -> list[Rule]:
    """The rules that a text says.

    Raises:
        InvalidRules: with every line that is wrong.
    """
    return rule_text.parse(text, source="rules")


_EXAMPLE = """rules:
  - name: slow
    on: slowdown
    jobs: "llm-*"
    above: 1.2
    for: {windows: 3, seconds: 30}
    severity: critical
"""
RULES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "At most 200 rules and 256 kB. Of YAML that is wrong, `errors` names every "
        "line.",
        "content": {
            YAML_TYPE: {"schema": {"type": "string"}, "example": _EXAMPLE},
            json_body.JSON_TYPE: {"schema": {"$ref": "#/components/schemas/RulesIn"}},
        },
    }
}
