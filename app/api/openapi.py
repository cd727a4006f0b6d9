"""The OpenAPI document: FastAPI's own, completed by hand."""

from collections.abc import Sequence
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from app.api.http.auth import COOKIE
from app.api.http.fields import PRINTABLE
from app.api.openapi_schemas import arrivals_schema, window_arrivals_schema
from app.api.routes.alerts.rules import RulesIn
from app.api.routes.dependencies import ProblemOut
from app.api.routes.jobs.scores import ScoresIn
from app.api.routes.pictures import describe_pictures
from app.api.routes.windows.what_if import SavedQuestionIn
from app.api.routes.windows.what_if_edits import QuestionIn
from app.diagnosis.finding import CAUSES
from app.ingest.wire.body import KNOWN_VERSIONS
from app.ingest.wire.collectives import (
    GROUP_DTYPES,
    MAX_GROUP_ROWS,
    MAX_GROUPS,
    MAX_LOCAL_RANK,
    Axis,
)
from app.ingest.wire.json_columns import MAX_JSON_ROWS
from app.trace.ops import MAX_TYPE_NAME, OP_NAMES
from app.trace.window import OPTIONAL, StepKind

TAGS = [
    {"name": "fleet", "description": "All jobs at a glance, and what they lose over time."},
    {"name": "hosts", "description": "Hosts that jobs found slower than their peers."},
    {"name": "jobs", "description": "Register a training job, end it, see how it is doing."},
    {"name": "ops", "description": "Push recorded operations, one batch of one worker at a time."},
    {"name": "windows", "description": "Results of the analysis, by window."},
    {
        "name": "scores",
        "description": "Scores of ranks measured by other tools, without what-if.",
    },
    {"name": "steps", "description": "Step times: recorded, simulated, without stragglers."},
    {"name": "workers", "description": "One worker in a window, and over the run."},
    {
        "name": "charts",
        "description": "The page's figures and sentences. Each chart comes as a picture, too: ask "
        "for image/png, or put .png after its path (and width=, in pixels).",
    },
    {
        "name": "alerts",
        "description": "What is wrong with jobs, who acknowledged it, and who is notified. "
        "Rules are YAML or JSON with the same keys; docs/alerts.md has them.",
    },
    {"name": "audit", "description": "Who acknowledged, silenced or changed what."},
    {"name": "events", "description": "Changes as they happen."},
    {"name": "tokens", "description": "Who may do what in the project."},
    {"name": "settings", "description": "Settings of the service, and retention of the project."},
    {"name": "session", "description": "Signing in on the page."},
    {"name": "health", "description": "For probes."},
]
DESCRIPTION = (
    "Paceline shows why a large-model training job is slow, while it runs. Send "
    "`Authorization: Bearer pl_...` with every request: the token says whose jobs you see, and "
    "what you may do (scopes ingest, read, write, admin). Unknown figures are null. Lists come a "
    "page at a time: pass `next_cursor` as `cursor`. Refusals are problems (RFC 9457) with a "
    "stable `code`."
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
            (ScoresIn, "validation"),
        ],
        ref_template="#/components/schemas/{model}",
    )
    return {
        **models["$defs"],
        "OpsIn": _ops_in(),
        "WindowResult": _window_result(),
        "WindowArrivals": window_arrivals_schema(),
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
            "batch_seq": {**natural, "description": "From 0, one more with each batch."},
            "steps_done": {
                "type": "array",
                "description": "Each step that this rank has finished, ascending, with its number "
                "of operations in all batches so far.",
                "items": {"type": "array", "items": natural, "minItems": 2, "maxItems": 2},
            },
            "dropped": {
                "type": ["integer", "null"],
                "minimum": 0,
                "description": "Operations that this rank's recorder has dropped since it began.",
            },
            "placement": {
                "type": ["object", "null"],
                "description": "Where the host stands.",
                "additionalProperties": False,
                "properties": dict.fromkeys(("rack", "switch"), place),
            },
            "step_kinds": {
                "type": "array",
                "description": "Of steps_done those that are no training steps, ascending: they "
                "are not analysed.",
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
                "description": "optype is one of the job's op_types, or built in: "
                f"{', '.join(OP_NAMES)}.",
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
        "description": "What the rank recorded inside its groups, in `columns` or in `rows`.",
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
                        "axis": {"enum": list(get_args(Axis))},
                        "ranks": {"type": "array", "items": natural},
                        "runs": {
                            "type": "array",
                            "items": run,
                            "description": "First rank, how many, and their distance.",
                        },
                    },
                },
            },
            "local_rank": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_LOCAL_RANK},
            "alone": {
                "type": "boolean",
                "description": "The rank records nothing else: no step waits for it.",
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


def _list_of(properties: dict[str, Any], **optional: Any) -> dict[str, Any]:
    items = {
        "type": "object",
        "required": list(properties),
        "properties": {**properties, **optional},
    }
    return {"type": ["array", "null"], "items": items}


def _window_result() -> dict[str, Any]:
    number = {"type": ["number", "null"]}
    numbers = {"type": ["array", "null"], "items": {"type": "number"}}
    matrix = {"type": ["array", "null"], "items": {"type": "array", "items": {"type": "number"}}}
    thing = {"type": "object"}
    place = {"dp_rank": {"type": "integer"}, "stage": {"type": "integer"}}
    culprit = {
        "type": "object",
        "properties": {
            **place,
            "host": {"type": "string"},
            "rank": {"type": "integer", "description": "Global."},
            "local_rank": {
                "type": "integer",
                "description": "Number of the GPU on its host, where one inside a worker is meant.",
            },
        },
    }
    share = {"type": "number", "minimum": 0, "maximum": 1}
    found = {
        "cause": {"enum": list(CAUSES)},
        "score": share,
        "confidence": share,
        "culprits": {"type": "array", "items": culprit},
        "onset_step": {"type": ["integer", "null"]},
        "persistence": {"enum": ["transient", "chronic", "rotating", "progressive", None]},
        "cost": {**number, "description": "Share of the job's GPU time."},
        "evidence": thing,
        "sentence": {"type": "string"},
    }
    cost_range = {
        "type": ["array", "null"],
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
        "description": "What the replay says and what the waits say, where they are more than "
        "3 points apart: the lower and the higher one; else null.",
    }
    seen_in = {
        **thing,
        "description": "Of several windows: in how many of those looked at it was found.",
        "properties": {"windows": {"type": "integer"}, "of": {"type": "integer"}},
    }
    looked_at = {
        "cause": {"enum": list(CAUSES)},
        "score": share,
        "insufficient_evidence": {"type": "boolean"},
        "reason": {"type": "string"},
        "evidence": thing,
    }
    return {
        "type": "object",
        "description": "One window's result; arrays by dp rank, stage or position in `steps`.",
        "properties": {
            "schema": {"const": 1},
            "window": {
                **thing,
                "description": "Of several windows, id is the range, `windows` are those in it "
                "and `left_out` the first 100 of the `num_left_out` that were too many to be read; "
                "gpu_hours_lost is of all of them even so, or null.",
            },
            **dict.fromkeys(("job", "step_time_s"), thing),
            "fidelity": {
                **thing,
                "description": "How far the simulated step time is from the recorded one, as a "
                "share of it: of the mean (verdict low above 0.05), and of each step. Of several "
                "windows, low_windows of them are low, and so are all if these are most of them.",
            },
            "launch_delay": {
                **thing,
                "description": "Mean seconds a step that operations could have started earlier: "
                "by_optype for an average worker; by_worker [dp][pp]; others_waited [dp][pp] is "
                "what other workers waited for this one because it launched late.",
            },
            "steps": {"type": "array", "items": {"type": "integer"}},
            "structures": {
                "type": "array",
                "description": "Steps that have the same operations, which are replayed together "
                "and have ideals of their own.",
                "items": {"type": "array", "items": {"type": "integer"}},
            },
            "skipped_steps": {"type": "array", "items": thing},
            "clocks": {
                **thing,
                "description": "How far hosts' clocks are apart, by the ends of operations that "
                "they share (docs/clocks.md): nine in ten of these are within residual_ms of each "
                "other once corrected; by host, the 20 worst, offset_ms, drift_ppm and "
                "residual_ms; reason says why not, or what is unknown.",
            },
            "optype_slowdown": {"type": "object", "additionalProperties": {"type": "number"}},
            "optype_time_s": {
                **thing,
                "description": "Mean seconds a step and worker in operations of each type: "
                "recorded and, of communication, transfer from when all peers were there and wait "
                "until then.",
            },
            "stage_compute_s": {
                "type": ["object", "null"],
                "description": "Mean seconds of one micro-batch on each stage: forward, backward; "
                "null where a stage has none.",
            },
            **dict.fromkeys(
                ("launch_slowdown", "slowdown", "gpu_time_wasted", "gpu_hours_lost"), number
            ),
            **dict.fromkeys(("m_w", "m_w_exact", "m_s"), number),
            **dict.fromkeys(
                ("step_slowdown", "dp_rank_slowdown", "stage_slowdown", "stage_share"), numbers
            ),
            **dict.fromkeys(("worker_slowdown", "worker_slowdown_estimate"), matrix),
            "findings": {
                **_list_of(found, cost_range=cost_range, seen_in=seen_in),
                "description": "Causes, most costly first; empty where nothing is wrong, null "
                "where nothing can be told.",
            },
            "more_findings": {
                "type": "integer",
                "description": "Of several windows: how many findings are left out after 20.",
            },
            "ruled_out": {
                **_list_of(looked_at),
                "description": "Causes that were looked at and not found, or cannot be told.",
            },
            "fingerprint": {
                "type": ["object", "null"],
                "description": "Variance of forward computations between stages, between workers "
                "and within workers; share of the loss by operation type and by stage.",
            },
            "changes": {
                "type": ["array", "null"],
                "description": "When the job, or some workers, became slower or faster.",
                "items": thing,
            },
            "arrivals": arrivals_schema(),
            "unexplained_share": {
                **number,
                "description": "Share of the step that is waiting which no finding explains.",
            },
            "coverage": {
                **number,
                "description": "Share of the step that operations cover, mean over ranks: below "
                "0.6 nothing can be ruled out.",
            },
            "per_step": {"type": "object", "description": "Only if asked for."},
        },
    }
