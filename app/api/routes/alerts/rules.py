"""Alert rules of a project: as YAML or as JSON with the same keys.

The audit of a replacement names added, removed and changed rules, and both texts by digest.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Depends, Header
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from app.alerts.readings import with_default_thresholds
from app.alerts.rule import Rule
from app.alerts.rules.rule_in import MAX_RULES, RuleIn
from app.alerts.rules.rule_text import dump_rules, parse_rules
from app.api.http.bodies import JSON_TYPE, read_model
from app.api.http.fields import RequestModel, ResponseModel
from app.api.http.principal import Principal
from app.api.routes.audit import changed_fields, write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, Responses, ServiceDep, refusals
from app.api.service.service import Service
from app.errors import BadRequest, Conflict, UnsupportedMedia
from app.store.alerting import alert_rules, notifications
from app.store.database import Connection

YAML_TYPE = "application/yaml"
YAML_TYPES = {YAML_TYPE, "text/yaml", "application/x-yaml", "text/x-yaml"}


_JSON_EXAMPLE: JsonDict = {
    "name": "slow",
    "on": "slowdown",
    "jobs": "llm-*",
    "above": 1.2,
    "for": {"windows": 3, "seconds": 30},
    "severity": "critical",
    "labels": {"team": "pretraining"},
}


class RulesIn(RequestModel):
    """All rules of a project."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"rules": [_JSON_EXAMPLE]}]})

    rules: list[RuleIn] = Field(max_length=MAX_RULES)


class RulesOut(ResponseModel):
    """The rules in force for the project."""

    version: int = Field(
        description="Version number, incremented with each change; 0 before the first one."
    )
    source: Literal["project", "file", "defaults"] = Field(
        description="Source of the rules: the project's own, the file in "
        "PACELINE_ALERT_RULES, or the built-in defaults."
    )
    rules: list[RuleIn]
    text: str = Field(description="The rules as YAML; the original text if there is one.")


class CheckedRulesOut(ResponseModel):
    """Valid rules."""

    rules: list[RuleIn]


def rules_out(rules: Sequence[Rule]) -> list[RuleIn]:
    """Rules for an answer, with default thresholds where they have none."""
    return [RuleIn.of_rule(with_default_thresholds(rule)) for rule in rules]


async def rules_text(request: HttpRequest) -> str:
    """The rules of a body as YAML.

    Raises:
        UnsupportedMedia, BadRequest, RequestValidationError
    """
    body = await request.body()
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media in YAML_TYPES:
        try:
            return body.decode()
        except UnicodeDecodeError:
            raise BadRequest("the text is not valid UTF-8") from None
    if media != JSON_TYPE:
        raise UnsupportedMedia(f"send {YAML_TYPE} or {JSON_TYPE}")
    return await run_in_threadpool(_as_yaml, body, media)


def _as_yaml(body: bytes, media: str) -> str:
    return dump_rules([rule.rule() for rule in read_model(RulesIn, body, media).rules])


RulesTextDep = Annotated[str, Depends(rules_text)]


_YAML_EXAMPLE = """rules:
  - name: slow
    on: slowdown
    jobs: "llm-*"
    above: 1.2
    for: {windows: 3, seconds: 30}
    severity: critical
"""
RULES_BODY: JsonDict = {
    "requestBody": {
        "required": True,
        "description": "At most 200 rules, 20,000 values and 128 kB. For invalid YAML, `errors` "
        "lists every invalid line.",
        "content": {
            YAML_TYPE: {"schema": {"type": "string"}, "example": _YAML_EXAMPLE},
            JSON_TYPE: {"schema": {"$ref": "#/components/schemas/RulesIn"}},
        },
    }
}


# Beyond this number, only names: the rest is in the texts.
_MAX_IN_FULL = 20
_DIGEST_CHARS = 16


def rule_changes(before: RulesOut, after: RulesOut) -> JsonDict:
    """Names of added, removed and changed rules, and changed fields before and after."""
    old, new = _by_name(before), _by_name(after)
    changes = {
        name: fields
        for name, rule in new.items()
        if name in old and (fields := changed_fields(old[name], rule))
    }
    return {
        "version": after.version,
        "added": [name for name in new if name not in old],
        "removed": [name for name in old if name not in new],
        "changed": list(changes),
        "changes": dict(list(changes.items())[:_MAX_IN_FULL]),
        "sha256": {"old": _digest(before.text), "new": _digest(after.text)},
    }


def _by_name(rules: RulesOut) -> dict[str, JsonDict]:
    return {rule.name: rule.model_dump(mode="json", by_alias=True) for rule in rules.rules}


def _digest(text: str) -> str:
    """Digest of a text, to compare it with another or with a file."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]


router = ApiRouter("alerts")

_RULES_RESPONSE: Responses = {
    200: {
        "model": RulesOut,
        "description": "The rules, as JSON or, with `Accept: application/yaml`, as YAML.",
        "content": {YAML_TYPE: {"schema": {"type": "string"}}},
    }
}
_IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        pattern='^"[0-9]{1,18}"$',
        description="Version on which the change is based; 409 if the stored rules have "
        "another one.",
        examples=['"3"'],
    ),
]


@router.get(
    "/rules", summary="Get the rules in force", response_model=None, responses={**_RULES_RESPONSE}
)
def get_rules(
    service: ServiceDep,
    caller: CallerDep,
    accept: Annotated[str, Header(max_length=1000, include_in_schema=False)] = "",
) -> Response:
    """The project's own rules, or the service's defaults."""
    with service.store.read() as conn:
        rules = _rules_in_force(conn, service, caller.project)
    headers = {"etag": f'"{rules.version}"', "vary": "accept"}
    accepted = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    if accepted & YAML_TYPES:
        return Response(rules.text, media_type=YAML_TYPE, headers=headers)
    body = rules.model_dump_json(by_alias=True)
    return Response(body, media_type="application/json", headers=headers)


@router.put(
    "/rules",
    summary="Replace the project's rules",
    responses=refusals(409),
    openapi_extra=RULES_BODY,
)
def set_rules(
    text: RulesTextDep, service: ServiceDep, caller: CallerDep, if_match: _IfMatch = None
) -> RulesOut:
    """Replaces all rules. They take effect within seconds.

    Alerts of removed rules are resolved. The text is stored as written.
    """
    rules = parse_rules(text)
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        before = _rules_in_force(conn, service, caller.project, for_update=True)
        version = alert_rules.replace_all(conn, caller.project, rules, text=text, now_s=now_s)
        # Read after the lock, which waits for earlier transactions.
        _check_version(version - 1, if_match)
        after = _rules_in_force(conn, service, caller.project)
        _audit_rules(conn, caller, "rules.replace", now_s, rule_changes(before, after))
    service.announcer.announce({"event": "alert", "project": caller.project})
    return after


@router.delete("/rules", summary="Delete the project's rules", responses=refusals(409))
def reset_rules(service: ServiceDep, caller: CallerDep, if_match: _IfMatch = None) -> RulesOut:
    """Deletes the project's own rules; the answer contains the defaults, which then apply."""
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        before = _rules_in_force(conn, service, caller.project, for_update=True)
        _check_version(before.version, if_match)
        alert_rules.reset(conn, caller.project)
        after = _rules_in_force(conn, service, caller.project)
        _audit_rules(conn, caller, "rules.reset", now_s, rule_changes(before, after))
    service.announcer.announce({"event": "alert", "project": caller.project})
    return after


@router.post("/rules/check", summary="Check rules without saving them", openapi_extra=RULES_BODY)
def check_rules(text: RulesTextDep) -> CheckedRulesOut:
    """Answers with the rules and all their defaults, or with an error per invalid line."""
    return CheckedRulesOut.model_construct(rules=rules_out(parse_rules(text)))


def _rules_in_force(
    conn: Connection, service: Service, project: str, *, for_update: bool = False
) -> RulesOut:
    own = alert_rules.load(conn, project, for_update=for_update)
    usual = service.public_settings
    rules = usual.rules if own.rules is None else own.rules
    return RulesOut.model_construct(
        version=own.version,
        source=usual.rules_source if own.rules is None else "project",
        rules=rules_out(rules),
        text=dump_rules(rules) if own.text is None else own.text,
    )


def _check_version(version: int, if_match: str | None) -> None:
    if if_match is not None and int(if_match.strip('"')) != version:
        raise Conflict(f"the rules have been changed meanwhile: the version is {version} now")


def _audit_rules(
    conn: Connection, caller: Principal, action: str, now_s: float, changes: JsonDict
) -> None:
    write_audit(conn, caller, action, caller.project, now_s=now_s, **changes)
    notifications.wake_project(conn, caller.project, at_s=now_s)
