"""The OpenAPI document: FastAPI's own, completed by hand."""

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from app.api.http.auth import COOKIE
from app.api.http.fields import PRINTABLE
from app.api.routes.alerts.rules import RulesIn
from app.api.routes.dependencies import ProblemOut
from app.api.routes.pictures import describe_pictures
from app.api.routes.windows.arrivals import WindowArrivals
from app.api.routes.windows.what_if import SavedQuestionIn
from app.api.routes.windows.what_if_edits import QuestionIn
from app.ingest.wire.body import KNOWN_VERSIONS
from app.ingest.wire.collectives import GROUP_DTYPES, MAX_GROUP_ROWS, MAX_GROUPS, MAX_LOCAL_RANK
from app.ingest.wire.json_columns import MAX_JSON_ROWS
from app.result.window_result import WindowResult
from app.trace.collectives import GroupAxis
from app.trace.ops import MAX_TYPE_NAME, OP_NAMES
from app.trace.window import OPTIONAL, StepKind

TAGS = {
    "fleet": "All jobs and their losses over time.",
    "hosts": "Hosts that were culprits of slow jobs.",
    "jobs": "Register and end training jobs, and get their state.",
    "ops": "Push recorded operations in batches, one worker per batch.",
    "windows": "Results of the analysis, by window: the steps that are analysed together.",
    "annotations": "Events beside training, from people and programs: deploys, checkpoints, "
    "drained nodes (docs/annotations.md).",
    "steps": "Step times: recorded, simulated, and simulated without stragglers.",
    "workers": "Figures and charts of one worker, in a window and over the run.",
    "charts": "Charts and headlines of the web pages. For a chart as a picture, accept image/png "
    "or append .png to its path (with width= in pixels).",
    "alerts": "Alerts, acknowledgements, rules, silences, receivers and notifications. Rules are "
    "YAML or JSON with the same keys (docs/alerts.md).",
    "audit": "Log of acknowledgements, silences and changes, with their authors.",
    "events": "Live stream of changes.",
    "tokens": "Access tokens of the project and their scopes.",
    "share links": "Links to frozen snapshots of a job's page, with an expiry.",
    "settings": "Settings of the service, and retention of the project.",
    "session": "Sign-in of the web page.",
    "health": "Liveness and readiness probes, and metrics.",
}
DESCRIPTION = (
    "Paceline shows why a large-model training job is slow, while it runs. Send `Authorization: "
    "Bearer pl_...` with every request. The token determines the project, and its scopes (ingest, "
    "read, write, admin) the allowed operations. Unknown figures are null. Lists are paged: pass "
    "`next_cursor` as `cursor` to get the next page. Errors are problem documents (RFC 9457) with "
    "a stable `code`."
)


def describe(app: FastAPI, routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI document of these routes; cached."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=DESCRIPTION,
            routes=routes,
            tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        )
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(_schemas())
        components["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
        }
        describe_pictures(document)
        document["security"] = [{"token": []}, {"session": []}]
        app.openapi_schema = document
    return app.openapi_schema


def _schemas() -> dict[str, Any]:
    _, models = models_json_schema(
        [
            (ProblemOut, "serialization"),
            (QuestionIn, "validation"),
            (SavedQuestionIn, "validation"),
            (RulesIn, "validation"),
        ],
        ref_template="#/components/schemas/{model}",
    )
    _, records = msgspec.json.schema_components(
        [WindowResult, WindowArrivals], ref_template="#/components/schemas/{name}"
    )
    return {
        **models["$defs"],
        "OpsIn": _ops_in(),
        **records,
        "Figure": {
            "type": "object",
            "required": ["data", "layout", "meta"],
            "properties": {
                "data": _array({"type": "object"}),
                "layout": {"type": "object"},
                "meta": {"type": "object"},
            },
        },
    }


Schema = dict[str, Any]
_NATURAL: Schema = {"type": "integer", "minimum": 0}
_INTEGER: Schema = {"type": "integer"}
_WORD: Schema = {"type": "string", "minLength": 1, "maxLength": 64, "pattern": PRINTABLE}


def _array(items: Schema, **more: object) -> Schema:
    return {"type": "array", "items": items, **more}


def _tuple_of(items: Schema, length: int) -> Schema:
    return _array(items, minItems=length, maxItems=length)


def _object(properties: Schema, **more: object) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties, **more}


def _or_null(schema: Schema, **more: object) -> Schema:
    return {**schema, "type": [schema["type"], "null"], **more}


def _table(row: Schema, needed: Sequence[str], most: int, **columns: object) -> dict[str, Schema]:
    """Rows of these fields, as `columns` of equal lengths or as `rows`."""
    lists = {name: _array(field, maxItems=most) for name, field in row.items()}
    rows = _array(_object(row, required=needed), maxItems=most)
    return {"columns": _or_null(_object(lists, required=needed), **columns), "rows": _or_null(rows)}


def _ops_in() -> Schema:
    name = {"type": "string", "maxLength": MAX_TYPE_NAME, "examples": list(OP_NAMES)}
    needed = ["step", "start_ns", "duration_ns"]
    numbers = dict.fromkeys([*needed, "seq_id", "mc", "mb_id", *OPTIONAL], _INTEGER)
    kind = {"enum": list(get_args(StepKind))}
    return _object(
        {
            "version": {"enum": list(KNOWN_VERSIONS)},
            "epoch": {"type": "integer", "minimum": 1},
            **dict.fromkeys(("rank", "dp_rank", "stage"), _NATURAL),
            "host": {"type": ["string", "null"], "maxLength": 255},
            "batch_seq": {
                **_NATURAL,
                "description": "Sequence number of the batch, from 0, "
                "incremented with each batch of the rank.",
            },
            "steps_done": _array(
                _tuple_of(_NATURAL, 2),
                description="Finished steps of this rank, ascending, as pairs [step, number "
                "of operations in all batches so far].",
            ),
            "dropped": _or_null(
                _NATURAL,
                description="Number of operations that the rank's recorder has dropped since "
                "its start.",
            ),
            "placement": _or_null(
                _object(dict.fromkeys(("rack", "switch"), _or_null(_WORD))),
                description="Rack and network switch of the host.",
            ),
            "step_kinds": _array(
                {"type": "array", "prefixItems": [_NATURAL, kind], "minItems": 2, "maxItems": 2},
                description="Steps in `steps_done` that are not training steps, ascending, "
                "as pairs [step, kind]. They are not analysed.",
            ),
            "collectives": _collectives_in(),
            **_table(
                {**numbers, "optype": name},
                [*needed, "optype"],
                MAX_JSON_ROWS,
                description="Operations as columns of equal lengths. optype is one of the job's "
                f"op_types or a built-in type: {', '.join(OP_NAMES)}.",
            ),
        },
        description="One batch of one worker, its operations in `columns` of equal lengths or "
        "in `rows`; docs/wire-format.md describes both.",
        required=["version", "epoch", "rank", "dp_rank", "stage", "batch_seq", "steps_done"],
        oneOf=[_only("columns", "object", but="rows"), _only("rows", "array", but="columns")],
    )


def _collectives_in() -> Schema:
    group = {
        "name": _WORD,
        "axis": {"enum": list(get_args(GroupAxis))},
        "ranks": _array(_NATURAL),
        "runs": _array(
            _tuple_of(_NATURAL, 3), description="Ranks as [first rank, number of ranks, stride]."
        ),
    }
    return _or_null(
        _object(
            {
                "groups": _array(_object(group, required=["name"]), maxItems=MAX_GROUPS),
                "local_rank": _or_null(_NATURAL, maximum=MAX_LOCAL_RANK),
                "alone": {
                    "type": "boolean",
                    "description": "Whether the rank records only collectives; steps are then "
                    "complete without this rank.",
                },
                **_table(
                    {**dict.fromkeys(GROUP_DTYPES, _INTEGER), "kind": _WORD},
                    ["step", "group", "sequence", "duration_ns", "kind"],
                    MAX_GROUP_ROWS,
                ),
            }
        ),
        description="Collectives that the rank recorded inside its process groups, in "
        "`columns` or in `rows`.",
    )


def _only(name: str, kind: str, *, but: str) -> Schema:
    """One of two keys; null is as good as leaving the other out."""
    return {"required": [name], "properties": {name: {"type": kind}, but: {"type": "null"}}}
