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
from app.ingest.wire.collectives import (
    GROUP_DTYPES,
    MAX_GROUP_ROWS,
    MAX_GROUPS,
    MAX_LOCAL_RANK,
)
from app.ingest.wire.json_columns import MAX_JSON_ROWS
from app.result.window_result import WindowResult
from app.trace.collectives import GroupAxis
from app.trace.ops import MAX_TYPE_NAME, OP_NAMES
from app.trace.window import OPTIONAL, StepKind

TAGS = [
    {"name": "fleet", "description": "All jobs and their losses over time."},
    {"name": "hosts", "description": "Hosts that were culprits of slow jobs."},
    {"name": "jobs", "description": "Register and end training jobs, and get their state."},
    {"name": "ops", "description": "Push recorded operations in batches, one worker per batch."},
    {
        "name": "windows",
        "description": "Results of the analysis, by window: the steps that are analysed together.",
    },
    {
        "name": "annotations",
        "description": "Events beside training, from people and programs: deploys, checkpoints, "
        "drained nodes (docs/annotations.md).",
    },
    {
        "name": "steps",
        "description": "Step times: recorded, simulated, and simulated without stragglers.",
    },
    {
        "name": "workers",
        "description": "Figures and charts of one worker, in a window and over the run.",
    },
    {
        "name": "charts",
        "description": "Charts and headlines of the web pages. For a chart as a picture, accept "
        "image/png or append .png to its path (with width= in pixels).",
    },
    {
        "name": "alerts",
        "description": "Alerts, acknowledgements, rules, silences, receivers and notifications. "
        "Rules are YAML or JSON with the same keys (docs/alerts.md).",
    },
    {
        "name": "audit",
        "description": "Log of acknowledgements, silences and changes, with their authors.",
    },
    {"name": "events", "description": "Live stream of changes."},
    {"name": "tokens", "description": "Access tokens of the project and their scopes."},
    {
        "name": "share links",
        "description": "Links to frozen snapshots of a job's page, with an expiry.",
    },
    {"name": "settings", "description": "Settings of the service, and retention of the project."},
    {"name": "session", "description": "Sign-in of the web page."},
    {"name": "health", "description": "Liveness and readiness probes, and metrics."},
]
DESCRIPTION = (
    "Paceline shows why a large-model training job is slow, while it runs. "
    "Send `Authorization: Bearer pl_...` with every request. The token "
    "determines the project, and its scopes (ingest, read, write, admin) the "
    "allowed operations. Unknown figures are null. Lists are paged: pass "
    "`next_cursor` as `cursor` to get the next page. Errors are problem "
    "documents (RFC 9457) with a stable `code`."
)


def describe(app: FastAPI, routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI document of these routes; cached."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=DESCRIPTION,
            routes=routes,
            tags=TAGS,
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
                "data": {"type": "array", "items": {"type": "object"}},
                "layout": {"type": "object"},
                "meta": {"type": "object"},
            },
        },
    }


def _ops_in() -> dict[str, Any]:
    integers = {"type": "array", "items": {"type": "integer"}, "maxItems": MAX_JSON_ROWS}
    name = {"type": "string", "maxLength": MAX_TYPE_NAME, "examples": list(OP_NAMES)}
    names = {"type": "array", "items": name, "maxItems": MAX_JSON_ROWS}
    needed = ["step", "start_ns", "duration_ns"]
    optional = ["seq_id", "mc", "mb_id", *OPTIONAL]
    natural = {"type": "integer", "minimum": 0}
    integer = {"type": "integer"}
    place = {"type": ["string", "null"], "minLength": 1, "maxLength": 64, "pattern": PRINTABLE}
    row = {**dict.fromkeys(needed + optional, integer), "optype": name}
    return {
        "type": "object",
        "description": "One batch of one worker, its operations in `columns` of equal lengths or "
        "in `rows`; docs/wire-format.md describes both.",
        "additionalProperties": False,
        "required": [*("version", "epoch", "rank", "dp_rank", "stage", "batch_seq", "steps_done")],
        "oneOf": [_only("columns", "object", but="rows"), _only("rows", "array", but="columns")],
        "properties": {
            "version": {"enum": list(KNOWN_VERSIONS)},
            "epoch": {"type": "integer", "minimum": 1},
            "rank": natural,
            "dp_rank": natural,
            "stage": natural,
            "host": {"type": ["string", "null"], "maxLength": 255},
            "batch_seq": {
                **natural,
                "description": "Sequence number of the batch, from 0, "
                "incremented with each batch of the rank.",
            },
            "steps_done": {
                "type": "array",
                "description": "Finished steps of this rank, ascending, as pairs [step, number "
                "of operations in all batches so far].",
                "items": {"type": "array", "items": natural, "minItems": 2, "maxItems": 2},
            },
            "dropped": {
                "type": ["integer", "null"],
                "minimum": 0,
                "description": "Number of operations that the rank's recorder has dropped since "
                "its start.",
            },
            "placement": {
                "type": ["object", "null"],
                "description": "Rack and network switch of the host.",
                "additionalProperties": False,
                "properties": dict.fromkeys(("rack", "switch"), place),
            },
            "step_kinds": {
                "type": "array",
                "description": "Steps in `steps_done` that are not training steps, ascending, "
                "as pairs [step, kind]. They are not analysed.",
                "items": {
                    "type": "array",
                    "prefixItems": [natural, {"enum": list(get_args(StepKind))}],
                    "minItems": 2,
                    "maxItems": 2,
                },
            },
            "collectives": _collectives_in(),
            "columns": {
                "type": ["object", "null"],
                "description": "Operations as columns of equal lengths. optype is one of the job's "
                f"op_types or a built-in type: {', '.join(OP_NAMES)}.",
                "additionalProperties": False,
                "required": [*needed, "optype"],
                "properties": {**dict.fromkeys(needed + optional, integers), "optype": names},
            },
            "rows": {
                "type": ["array", "null"],
                "maxItems": MAX_JSON_ROWS,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": [*needed, "optype"],
                    "properties": row,
                },
            },
        },
    }


def _collectives_in() -> dict[str, Any]:
    natural = {"type": "integer", "minimum": 0}
    integer = {"type": "integer"}
    integers = {"type": "array", "items": integer, "maxItems": MAX_GROUP_ROWS}
    kind = {"type": "string", "minLength": 1, "maxLength": 64, "pattern": PRINTABLE}
    needed = ["step", "group", "sequence", "duration_ns"]
    run = {"type": "array", "items": natural, "minItems": 3, "maxItems": 3}
    columns = dict.fromkeys(GROUP_DTYPES, integers)
    kinds = {"type": "array", "items": kind, "maxItems": MAX_GROUP_ROWS}
    return {
        "type": ["object", "null"],
        "description": "Collectives that the rank recorded inside its process groups, in "
        "`columns` or in `rows`.",
        "additionalProperties": False,
        "properties": {
            "groups": {
                "type": "array",
                "maxItems": MAX_GROUPS,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["name"],
                    "properties": {
                        "name": kind,
                        "axis": {"enum": list(get_args(GroupAxis))},
                        "ranks": {"type": "array", "items": natural},
                        "runs": {
                            "type": "array",
                            "items": run,
                            "description": "Ranks as [first rank, number of ranks, stride].",
                        },
                    },
                },
            },
            "local_rank": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_LOCAL_RANK},
            "alone": {
                "type": "boolean",
                "description": "Whether the rank records only collectives; steps are then "
                "complete without this rank.",
            },
            "columns": {
                "type": ["object", "null"],
                "additionalProperties": False,
                "required": [*needed, "kind"],
                "properties": {**columns, "kind": kinds},
            },
            "rows": {
                "type": ["array", "null"],
                "maxItems": MAX_GROUP_ROWS,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": [*needed, "kind"],
                    "properties": {**dict.fromkeys(GROUP_DTYPES, integer), "kind": kind},
                },
            },
        },
    }


def _only(name: str, kind: str, *, but: str) -> dict[str, Any]:
    """One of two keys; null is as good as leaving the other out."""
    return {"required": [name], "properties": {name: {"type": kind}, but: {"type": "null"}}}
