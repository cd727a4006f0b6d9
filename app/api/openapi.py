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
    {"name": "fleet", "description": "All jobs and their losses over time."},
    {"name": "hosts", "description": "Hosts that were culprits of slow jobs."},
    {"name": "jobs", "description": "Register and end training jobs, and get their state."},
    {"name": "ops", "description": "Push recorded operations in batches, one worker per batch."},
    {
        "name": "windows",
        "description": "Results of the analysis, by window: the steps that are analysed together.",
    },
    {
        "name": "scores",
        "description": "Scores of ranks measured by other tools. What-if questions do not apply "
        "to them.",
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
                        "axis": {"enum": list(get_args(Axis))},
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
    matrix = {
        "type": ["array", "null"],
        "items": {"type": "array", "items": {"type": ["number", "null"]}},
        "description": "By dp rank and stage; null for a worker that is missing.",
    }
    thing = {"type": "object"}
    place = {"dp_rank": {"type": "integer"}, "stage": {"type": "integer"}}
    culprit = {
        "type": "object",
        "properties": {
            **place,
            "host": {"type": "string"},
            "rank": {"type": "integer", "description": "Global rank."},
            "local_rank": {
                "type": "integer",
                "description": "Index of the GPU on its host, if the culprit is a single GPU of "
                "a worker.",
            },
            "ranks": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "Global ranks, of a host or of a worker with several.",
            },
            "num_workers": {
                "type": "integer",
                "description": "Workers of a host of which all are affected.",
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
        "onset_at": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "When `onset_step` started; null where not known.",
        },
        "ended_at": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "When `end_step` ended; null while it lasts, or where not known.",
        },
        "lasted_s": {
            **number,
            "description": "Seconds from `onset_at` to `ended_at` or to the end of the newest "
            "step shown; null where not known.",
        },
        "persistence": {"enum": ["transient", "chronic", "rotating", "progressive", None]},
        "cost": {
            **number,
            "description": "Share of the job's GPU time that the cause costs, from 0 to 1.",
        },
        "evidence": thing,
        "sentence": {
            "type": "string",
            "description": "The fact, its onset and end, and its cost, without a full stop.",
        },
        "sentence_parts": {
            **thing,
            "description": "What the sentence is made of, beside onset, end and cost.",
            "properties": {
                "fact": {"type": "string", "description": "In the present tense."},
                "past_fact": {"type": "string", "description": "In the past tense."},
                "onset": {
                    "enum": ["since", "first", None],
                    "description": "How the onset is added: `first` for bursts, null where the "
                    "fact has the step.",
                },
                "note": {"type": "string", "description": "A sentence of its own, or empty."},
            },
        },
    }
    found["after"] = {
        "type": "array",
        "description": "Annotations at most 5 steps before the onset, the nearest first; missing "
        "if there are none. Near in time is no proof of a cause.",
        "items": {
            **thing,
            "properties": {
                "annotation_id": {"type": "string"},
                "kind": {"type": "string"},
                "steps_after": {"type": "integer"},
                "sentence": {"type": "string"},
            },
        },
    }
    end_step = {
        "type": ["integer", "null"],
        "description": "The last step with the cause; null while it lasts.",
    }
    cost_range = {
        "type": ["array", "null"],
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
        "description": "The lower and the higher of two cost estimates, from the replay and "
        "from the waits in collectives, if they differ by more than 3 percentage "
        "points; otherwise null.",
    }
    seen_in = {
        **thing,
        "description": "For a range of windows: in how many windows the cause was found "
        "(`windows`), out of the number examined (`of`).",
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
        "description": "The result of a window or of a range of windows. Arrays are by dp rank, "
        "by stage or by position in `steps`.",
        "properties": {
            "schema": {"const": 1},
            "window": {
                **thing,
                "description": "The window. For a range, `id` is the range, `windows` are the "
                "windows read, and `left_out` the first 100 of the "
                "`num_left_out` windows beyond the limit; gpu_hours_lost still "
                "covers all of them, or is null.",
            },
            **dict.fromkeys(("job", "step_time_s"), thing),
            "fidelity": {
                **thing,
                "description": "Relative difference between simulated and recorded step time, "
                "for the mean and for each step. The verdict is low if the "
                "difference of the means is above 0.05. For a range, "
                "`low_windows` is the number of windows with a low verdict; the "
                "range is low if most of them are.",
            },
            "launch_delay": {
                **thing,
                "description": "Mean seconds per step between the time an operation could start "
                "and its actual start: `by_optype` for an average worker, "
                "`by_worker` as [dp][pp]. `others_waited` as [dp][pp]: mean "
                "seconds per step that other workers waited because this one "
                "launched late.",
            },
            "steps": {"type": "array", "items": {"type": "integer"}},
            "thinned": {
                **thing,
                "description": "Only where the window is old: what was kept of it. `resolution` is "
                "`window` (no figures by step any more), or `hour` or `day`: the result is that of "
                "`window.num_windows` windows, `steps` are the first ones of as many stretches as "
                "`step_counts` has numbers of steps, and each value by step is the mean of "
                "one. `recorded` names the one window whose operations are still stored, "
                "`num_skipped` counts the skipped steps, of which some are listed.",
            },
            "step_started_s": {
                "type": "array",
                "items": {"type": ["number", "null"]},
                "description": "Unix time at which each of `steps` started; null where not known.",
            },
            "structures": {
                "type": "array",
                "description": "Groups of steps with the same operations. Each group is "
                "replayed together and has its own ideal durations.",
                "items": {"type": "array", "items": {"type": "integer"}},
            },
            "skipped_steps": {"type": "array", "items": thing},
            "imputed": {
                **thing,
                "type": ["object", "null"],
                "description": "Operations of `steps` that nobody recorded, and that were imputed "
                "from their peers: how many (`ops`, of which `lone_ops` of workers that "
                "recorded the rest, and `share` of all), `workers` that are missing from "
                "some step, and the completed `steps`. Null if nothing is imputed.",
                "properties": _imputed_properties(place),
            },
            "clocks": {
                **thing,
                "description": "Clock differences between hosts, measured from the ends of "
                "shared operations (docs/clocks.md). After correction, 90 % of "
                "these ends are within `residual_ms` of each other. `by_host` "
                "has offset_ms, drift_ppm and residual_ms of the 20 worst hosts. "
                "`reason`: why clocks were not measured, or what is unknown.",
            },
            "optype_slowdown": {"type": "object", "additionalProperties": {"type": "number"}},
            "optype_time_s": {
                **thing,
                "description": "Mean seconds per step and worker in operations of each type: "
                "`recorded`; for communication also `wait`, until all peers have "
                "arrived, and `transfer`, from then on.",
            },
            "stage_compute_s": {
                "type": ["object", "null"],
                "description": "Mean forward and backward time of one micro-batch on each "
                "stage, in seconds; null for a stage without such operations.",
            },
            **dict.fromkeys(
                ("launch_slowdown", "slowdown", "gpu_time_wasted", "gpu_hours_lost"), number
            ),
            **dict.fromkeys(("m_w", "m_w_exact", "m_s"), number),
            **dict.fromkeys(("step_slowdown", "stage_slowdown", "stage_share"), numbers),
            "dp_rank_slowdown": {**numbers, "items": {"type": ["number", "null"]}},
            **dict.fromkeys(("worker_slowdown", "worker_slowdown_estimate"), matrix),
            "findings": {
                **_list_of(found, end_step=end_step, cost_range=cost_range, seen_in=seen_in),
                "description": "Missing workers, then causes by cost, descending; empty if nothing "
                "is wrong, null if the data does not allow a diagnosis.",
            },
            "more_findings": {
                "type": "integer",
                "description": "For a range of windows: number of findings beyond the first 20, "
                "which are omitted.",
            },
            "ruled_out": {
                **_list_of(looked_at),
                "description": "Causes that were examined and not found, or that lack evidence.",
            },
            "fingerprint": {
                "type": ["object", "null"],
                "description": "Variance of forward computations between stages, between workers "
                "and within workers; share of the loss by operation type and by stage.",
            },
            "changes": {
                "type": ["array", "null"],
                "description": "Points at which the job or some workers became slower or faster.",
                "items": thing,
            },
            "arrivals": arrivals_schema(),
            "unexplained_share": {
                **number,
                "description": "Share of the step spent waiting that no finding explains.",
            },
            "unexplained": {
                "type": ["object", "null"],
                "description": "Loss that is left after the repairs of all findings, as a share of "
                "the step time and of the loss, and the op type and stage with most of it; null "
                "where causes are withheld.",
                "properties": _unexplained_properties(),
            },
            "coverage": {
                **number,
                "description": "Share of the step covered by recorded operations, mean over "
                "ranks. Below 0.6, no cause can be ruled out.",
            },
            "per_step": {
                "type": "object",
                "description": "Figures by step; only with `per_step=true`.",
            },
        },
    }


def _imputed_properties(place: dict[str, Any]) -> dict[str, Any]:
    integer = {"type": "integer"}
    worker = {
        "rank": integer,
        **place,
        "host": {"type": ["string", "null"]},
        "first_step": {**integer, "description": "The first step that it is missing from."},
        "last_step": integer,
        "num_steps": {**integer, "description": "Number of steps that it is missing from."},
    }
    step = {
        "step": integer,
        "reason": {"type": "string", "description": "Why the step was incomplete."},
        "missing": {**_INTEGERS, "description": "Ranks that had not reported the step."},
    }
    return {
        "ops": {**integer, "description": "Number of imputed operations."},
        "lone_ops": {**integer, "description": "Those of workers that recorded the rest."},
        "share": {"type": "number", "description": "Of all operations, from 0 to 1."},
        "workers": _list_of(worker),
        "steps": _list_of(step),
    }


def _unexplained_properties() -> dict[str, Any]:
    share = {"type": "number", "minimum": 0}
    maybe = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
    return {
        "share": {**share, "description": "Of the step time."},
        "share_of_loss": {**maybe, "description": "Of the loss; null without a loss."},
        "optype": {
            "type": ["string", "null"],
            "description": "The op type whose ideal durations win back most of it; null where no "
            "type stands out.",
        },
        "share_in_optype": maybe,
        "stage": {"type": ["integer", "null"], "description": "As `optype`, for stages."},
        "share_in_stage": maybe,
        "late_launch_share": {
            **share,
            "description": "Of the step time: the part in late launches of single steps.",
        },
        "stop_share": {
            **share,
            "description": "Of the step time: the part in stops of all workers.",
        },
        "stop_steps": {**_INTEGERS, "description": "Steps in or before which all workers stop."},
        "sentence": {
            "type": ["string", "null"],
            "description": "The loss and its place in words; null below 5 % of the step time.",
        },
    }


_INTEGERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
