"""Rules: what the project's jobs are held to, and who is told how urgently."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header
from starlette.responses import Response

from app.alerts import rule_text
from app.api.audited import note
from app.api.deps import OF_BODIES, CallerDep, Responses, ServiceDep, refusals
from app.api.principal import Principal
from app.api.rule_changes import rule_changes
from app.api.rules_body import (
    RULES_BODY,
    YAML_TYPE,
    YAML_TYPES,
    CheckedOut,
    RulesOut,
    TextDep,
    rules_of,
    rules_out,
)
from app.api.service import Service
from app.errors import Conflict
from app.store import alert_groups, alert_rules
from app.store.engine import Connection

router = APIRouter(tags=["alerts"])

_OK: Responses = {
    200: {
        "model": RulesOut,
        "description": "As YAML for who accepts application/yaml.",
        "content": {YAML_TYPE: {"schema": {"type": "string"}}},
    }
}
_REFUSED: Responses = refusals(409, *OF_BODIES)
_IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        pattern='^"[0-9]{1,18}"$',
        description="The version that was read: a later one is not written over.",
        examples=['"3"'],
    ),
]


@router.get(
    "/rules",
    operation_id="get_rules",
    summary="See the rules in force",
    response_model=None,
    responses={**_OK, **refusals()},
)
def get_rules(
    service: ServiceDep,
    caller: CallerDep,
    accept: Annotated[str, Header(max_length=1000, include_in_schema=False)] = "",
) -> Response:
    """The project's own, or what the service says for projects that have none."""
    with service.store.read() as conn:
        found = _in_force(conn, service, caller.project)
    return _answer(found, accept)


@router.put(
    "/rules",
    operation_id="set_rules",
    summary="Replace the project's rules",
    responses=_REFUSED,
    openapi_extra=RULES_BODY,
)
def set_rules(
    text: TextDep, service: ServiceDep, caller: CallerDep, if_match: _IfMatch = None
) -> RulesOut:
    """All of them at once. Consumers go by them within seconds.

    Alerts of rules that are there no more are resolved. A text is kept as it was written.
    """
    rules = rules_of(text)
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        before = _in_force(conn, service, caller.project, is_held=True)
        version = alert_rules.replace_all(conn, caller.project, rules, text=text, now_s=now_s)
        # Asked only now: whoever was before has held up this transaction until it was over.
        _check_version(version - 1, if_match)
        found = _in_force(conn, service, caller.project)
        _note(conn, caller, "rules.replace", now_s, rule_changes(before, found))
    service.announcer.announce({"event": "alert", "project": caller.project})
    return found


@router.delete(
    "/rules",
    operation_id="reset_rules",
    summary="Go back to the usual rules",
    responses=_REFUSED,
)
def reset_rules(service: ServiceDep, caller: CallerDep, if_match: _IfMatch = None) -> RulesOut:
    """The project's own are gone; the answer is what holds instead."""
    with service.store.write() as conn:
        now_s = service.database_time(conn)
        before = _in_force(conn, service, caller.project, is_held=True)
        _check_version(before.version, if_match)
        alert_rules.reset(conn, caller.project)
        found = _in_force(conn, service, caller.project)
        _note(conn, caller, "rules.reset", now_s, rule_changes(before, found))
    service.announcer.announce({"event": "alert", "project": caller.project})
    return found


@router.post(
    "/rules/check",
    operation_id="check_rules",
    summary="Check rules without keeping them",
    responses=refusals(*OF_BODIES),
    openapi_extra=RULES_BODY,
)
def check_rules(text: TextDep) -> CheckedOut:
    """What they say, with whatever they leave out; or, refused, every line that is wrong."""
    return CheckedOut.model_construct(rules=rules_out(rules_of(text)))


def _in_force(
    conn: Connection, service: Service, project: str, *, is_held: bool = False
) -> RulesOut:
    own = alert_rules.load(conn, project, is_held=is_held)
    if own.rules is None:
        usual = service.in_force.rules
        return RulesOut.model_construct(
            version=own.version,
            source=service.in_force.rules_source,
            rules=rules_out(usual),
            text=rule_text.dump(usual),
        )
    written = alert_rules.text(conn, project)
    return RulesOut.model_construct(
        version=own.version,
        source="project",
        rules=rules_out(own.rules),
        text=rule_text.dump(own.rules) if written is None else written,
    )


def _answer(found: RulesOut, accept: str) -> Response:
    headers = {"etag": f'"{found.version}"', "vary": "accept"}
    accepted = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    if accepted & YAML_TYPES:
        return Response(found.text, media_type=YAML_TYPE, headers=headers)
    body = found.model_dump_json(by_alias=True)
    return Response(body, media_type="application/json", headers=headers)


def _check_version(version: int, if_match: str | None) -> None:
    if if_match is not None and int(if_match.strip('"')) != version:
        raise Conflict(f"somebody has changed the rules: they are version {version} now")


def _note(
    conn: Connection, caller: Principal, action: str, now_s: float, changes: Mapping[str, Any]
) -> None:
    note(conn, caller, action, caller.project, now_s=now_s, **changes)
    alert_groups.wake_project(conn, caller.project, at_s=now_s)
