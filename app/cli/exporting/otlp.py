"""A window's result as OTLP metrics in JSON: gauges, with workers only where they are worst."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Result = Mapping[str, Any]


class Gauge(NamedTuple):
    """One metric; `points` are values with their attributes, unknown ones left out."""

    name: str
    unit: str
    about: str
    points: tuple[tuple[Mapping[str, str | int], float | None], ...]


def request_of(result: Result, *, at_ns: int, worst: int) -> dict[str, Any]:
    """An ExportMetricsServiceRequest; `worst` is how many workers are told of, slowest first."""
    told = [gauge for gauge in _gauges(result, worst) if _points(gauge, at_ns)]
    attributes = {
        "service.name": "paceline",
        "paceline.job": result["job"]["name"],
        "paceline.window": result["window"]["id"],
    }
    metrics = [
        {
            "name": gauge.name,
            "unit": gauge.unit,
            "description": gauge.about,
            "gauge": {"dataPoints": _points(gauge, at_ns)},
        }
        for gauge in told
    ]
    return {
        "resourceMetrics": [
            {
                "resource": {"attributes": _attributes(attributes)},
                "scopeMetrics": [{"scope": {"name": "paceline"}, "metrics": metrics}],
            }
        ]
    }


def _gauges(result: Result, worst: int) -> Iterator[Gauge]:
    yield _one(result, "slowdown", "paceline.job.slowdown", "1", "Step time over the ideal.")
    yield _one(result, "gpu_time_wasted", "paceline.job.gpu_time_wasted", "1", "1 - 1 / slowdown.")
    yield _one(result, "gpu_hours_lost", "paceline.job.gpu_hours_lost", "h", "In this window.")
    yield _one(
        result, "launch_slowdown", "paceline.job.launch_slowdown", "1", "Recorded over simulated."
    )
    yield _one(result, "m_w", "paceline.job.worst_workers_share", "1", "M_W.")
    yield _one(result, "m_s", "paceline.job.last_stage_share", "1", "M_S.")
    discrepancy = result["fidelity"]["discrepancy"]
    yield Gauge(
        "paceline.simulation.discrepancy", "1", "Low fidelity above 0.05.", (({}, discrepancy),)
    )
    times = result["step_time_s"]
    kinds = ("recorded", "simulated", "ideal")
    means = tuple(({"kind": kind}, _mean(times[kind])) for kind in kinds)
    yield Gauge("paceline.step.duration", "s", "Mean of the window.", means)
    by_type = tuple(
        ({"optype": name}, value) for name, value in sorted(result["optype_slowdown"].items())
    )
    yield Gauge("paceline.optype.slowdown", "1", "With this type alone as recorded.", by_type)
    stages = tuple(
        ({"stage": at}, value) for at, value in enumerate(result["stage_slowdown"] or ())
    )
    yield Gauge("paceline.stage.slowdown", "1", "With this stage alone as recorded.", stages)
    yield Gauge("paceline.worker.slowdown", "1", "Of the slowest.", _worst_workers(result, worst))
    found = tuple(
        ({"cause": each["cause"]}, each.get("score")) for each in result["findings"] or ()
    )
    yield Gauge("paceline.finding.score", "1", "Why it is slow.", found)


def _one(result: Result, key: str, name: str, unit: str, about: str) -> Gauge:
    return Gauge(name, unit, about, (({}, result[key]),))


def _worst_workers(
    result: Result, worst: int
) -> tuple[tuple[Mapping[str, str | int], float | None], ...]:
    found = [
        (-slowdown, dp_rank, stage)
        for dp_rank, row in enumerate(result["worker_slowdown"] or ())
        for stage, slowdown in enumerate(row)
    ]
    return tuple(
        ({"dp_rank": dp_rank, "stage": stage}, -negative)
        for negative, dp_rank, stage in sorted(found)[:worst]
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _points(gauge: Gauge, at_ns: int) -> list[dict[str, Any]]:
    return [
        {"asDouble": value, "timeUnixNano": str(at_ns), "attributes": _attributes(attributes)}
        for attributes, value in gauge.points
        if value is not None
    ]


def _attributes(attributes: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)},
        }
        for key, value in attributes.items()
    ]
