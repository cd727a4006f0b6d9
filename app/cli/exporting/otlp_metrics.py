"""`paceline export otlp-metrics`: the figures of a window as OTLP/HTTP gauges in JSON.

Only the slowest workers have gauges of their own.
"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from app.cli.exporting import source
from app.cli.exporting.http_client import QueryClient
from app.cli.exporting.tables import mean_known
from app.cli.options import MetaFile
from app.cli.output import printable, refuse_to_overwrite, say_written, write_json
from app.cli.terminal import stderr_console
from app.errors import InvalidRequest
from app.result.window_result import WindowResult

GaugePoint = tuple[Mapping[str, str | int], float | None]


class OtlpGauge(NamedTuple):
    """One metric; `points` are values with their attributes, unknown ones left out."""

    name: str
    unit: str
    about: str
    points: tuple[GaugePoint, ...]


class _Attribute(msgspec.Struct):
    key: str
    value: dict[str, str]


class _Point(msgspec.Struct, rename="camel"):
    as_double: float
    time_unix_nano: str
    attributes: list[_Attribute]


def metrics_request(result: WindowResult, *, at_ns: int, worst: int) -> tuple[object, int]:
    """An ExportMetricsServiceRequest with the `worst` slowest workers, and its number of points."""
    attributes = {
        "service.name": "paceline",
        "paceline.job": result.job.name,
        "paceline.window": result.window.id or "",
    }
    metrics, num_points = [], 0
    for gauge in _gauges(result, worst):
        if points := _points(gauge, at_ns):
            about = {"name": gauge.name, "unit": gauge.unit, "description": gauge.about}
            metrics.append({**about, "gauge": {"dataPoints": points}})
            num_points += len(points)
    resource_metrics = {
        "resource": {"attributes": _attributes(attributes)},
        "scopeMetrics": [{"scope": {"name": "paceline"}, "metrics": metrics}],
    }
    return {"resourceMetrics": [resource_metrics]}, num_points


# Field of a result, name of its gauge, unit and description.
_OF_JOB = (
    ("slowdown", "slowdown", "1", "Step time over the ideal."),
    ("gpu_time_wasted", "gpu_time_wasted", "1", "1 - 1 / slowdown."),
    ("gpu_hours_lost", "gpu_hours_lost", "h", "In this window."),
    ("launch_slowdown", "launch_slowdown", "1", "Recorded over simulated."),
    ("m_w", "worst_workers_share", "1", "M_W."),
    ("m_s", "last_stage_share", "1", "M_S."),
)


def _gauges(result: WindowResult, worst: int) -> Iterator[OtlpGauge]:
    for key, name, unit, about in _OF_JOB:
        yield OtlpGauge(f"paceline.job.{name}", unit, about, (({}, getattr(result, key)),))
    off: GaugePoint = ({}, result.fidelity.discrepancy)
    yield OtlpGauge("paceline.simulation.discrepancy", "1", "Low fidelity above 0.05.", (off,))
    kinds = ("recorded", "simulated", "ideal")
    means = tuple(({"kind": kind}, mean_known(getattr(result.step_time_s, kind))) for kind in kinds)
    yield OtlpGauge("paceline.step.duration", "s", "Mean of the window.", means)
    slowdowns = sorted(result.optype_slowdown.items())
    by_type = tuple(({"optype": name}, slowdown) for name, slowdown in slowdowns)
    yield OtlpGauge("paceline.optype.slowdown", "1", "With this type alone as recorded.", by_type)
    stages = tuple(({"stage": at}, value) for at, value in enumerate(result.stage_slowdown or ()))
    yield OtlpGauge("paceline.stage.slowdown", "1", "With this stage alone as recorded.", stages)
    workers = [
        (-slowdown, dp_rank, stage)
        for dp_rank, row in enumerate(result.worker_slowdown or ())
        for stage, slowdown in enumerate(row)
        if slowdown is not None
    ]
    slowest = tuple(
        ({"dp_rank": dp_rank, "stage": stage}, -negative)
        for negative, dp_rank, stage in sorted(workers)[:worst]
    )
    yield OtlpGauge("paceline.worker.slowdown", "1", "Of the slowest.", slowest)
    scores = tuple(({"cause": finding.cause}, finding.score) for finding in result.findings or ())
    yield OtlpGauge("paceline.finding.score", "1", "Why it is slow.", scores)


def _points(gauge: OtlpGauge, at_ns: int) -> list[_Point]:
    return [
        _Point(value, str(at_ns), _attributes(attributes))
        for attributes, value in gauge.points
        if value is not None
    ]


def _attributes(attributes: Mapping[str, str | int]) -> list[_Attribute]:
    return [
        _Attribute(key, {"stringValue" if isinstance(value, str) else "intValue": str(value)})
        for key, value in attributes.items()
    ]


def otlp_metrics(
    trace_file: source.OptionalTrace = None,
    meta: MetaFile = None,
    out: Annotated[
        Path | None, typer.Option(help="Write one request in JSON here; - is the terminal.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Send it to this collector, such as http://127.0.0.1:4318.")
    ] = None,
    url: source.Url = None,
    token: source.Token = None,
    job: source.JobOption = None,
    window: source.WindowOption = source.LATEST,
    steps: source.Steps = None,
    workers: Annotated[
        int, typer.Option(min=0, max=1000, help="How many of the slowest workers to name.")
    ] = 10,
) -> None:
    """Give slowdowns, step times and causes to a collector, as OTLP/HTTP gauges.

    Example: paceline export otlp-metrics --url http://127.0.0.1:8642 --job llm-70b
    --endpoint http://127.0.0.1:4318
    """
    asked = source.ExportSource(trace_file, meta, url, token, job, window, steps).checked()
    if (out is None) == (endpoint is None):
        raise InvalidRequest("name a file with --out, or a collector with --endpoint: one of them")
    if asked.trace is not None:
        refuse_to_overwrite("--out", out, asked.trace, meta)
    with stderr_console().status("analysing"):
        at_ns = time.time_ns()
        request, num_points = metrics_request(asked.result(), at_ns=at_ns, worst=workers)
    points = f"{num_points:,} points"
    if out is not None:
        write_json(request, out)
        say_written(out, points)
    if endpoint is not None:
        size = _send(endpoint, msgspec.json.encode(request))
        typer.echo(f"sent {points}, {size}, to {printable(endpoint)}", err=True)


def _send(endpoint: str, body: bytes) -> str:
    """Send to the collector; returns the size for the message."""
    with QueryClient(endpoint, None) as collector:
        answer = collector.post("/v1/metrics", body, "application/json")
    try:
        partial = json.loads(answer or b"{}").get("partialSuccess") or {}
        refused, why = int(partial.get("rejectedDataPoints", 0)), str(partial.get("errorMessage"))
    except (ValueError, AttributeError, TypeError, RecursionError):
        refused, why = 0, ""
    if refused:
        raise InvalidRequest(f"the collector refused {refused} points: {' '.join(why.split())}")
    return f"{len(body):,} bytes"
